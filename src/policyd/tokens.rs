//! Bearer tokens: what gates may show, known by their digests alone.

use std::collections::HashMap;
use std::path::Path;

use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

use super::authenticate::Role;
use super::identity::GateIdentity;
use super::revision::{hexadecimal, revision};
use crate::transport::{self, CredentialError};

/// Most tokens in one file: each is compared with what a call shows.
const MAX_TOKENS: usize = 10_000;

/// SHA-256 of a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct TokenDigest([u8; 32]);

impl TokenDigest {
    pub(super) fn of(token: &[u8]) -> Self {
        Self(Sha256::digest(token).into())
    }

    /// Reads 64 hexadecimal digits.
    fn parse(text: &str) -> Option<Self> {
        let mut digest = [0; 32];
        if text.len() != 64 || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return None;
        }
        for (byte, at) in digest.iter_mut().zip((0..).step_by(2)) {
            *byte = u8::from_str_radix(text.get(at..at + 2)?, 16).ok()?;
        }
        Some(Self(digest))
    }
}

impl std::fmt::Display for TokenDigest {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(&hexadecimal(&self.0))
    }
}

/// The tokens that are valid, whose each is, and what for. A name may have several.
#[derive(Debug)]
pub(super) struct Tokens(Vec<Token>);

#[derive(Debug)]
struct Token {
    digest: TokenDigest,
    owner: GateIdentity,
    role: Role,
}

impl Tokens {
    /// Reads a file of lines `NAME SHA256`, or `NAME SHA256 auditor`; blank lines and what follows `#` at a line's beginning are
    /// passed over.
    pub(super) fn load(path: &Path) -> Result<Self, CredentialError> {
        let content = transport::read_public(path)?;
        Self::parse(&String::from_utf8_lossy(&content))
            .map_err(|reason| transport::unusable(path, reason))
    }

    /// Errors never repeat a line: somebody may have put a token there.
    fn parse(text: &str) -> Result<Self, String> {
        let mut tokens = Vec::new();
        let mut lines = HashMap::new();
        for (number, line) in (1..).zip(text.lines()) {
            let mut words = line.split_ascii_whitespace();
            let four = [words.next(), words.next(), words.next(), words.next()];
            let (name, digest, role) = match four {
                [None, ..] => continue,
                [Some(name), ..] if name.starts_with('#') => continue,
                [Some(name), Some(digest), None, None] => (name, digest, Role::Gate),
                [Some(name), Some(digest), Some("auditor"), None] => (name, digest, Role::Auditor),
                _ => {
                    return Err(format!(
                        "line {number} isn't a name and the SHA-256 of a token, with `auditor` behind it or \
                         nothing; `execgate token NAME` makes such lines"
                    ));
                }
            };
            let gate = GateIdentity::token(name).ok_or_else(|| {
                format!("line {number}: the name must be printable ASCII, 512 characters at most")
            })?;
            let digest = TokenDigest::parse(digest).ok_or_else(|| {
                format!(
                    "line {number}: the SHA-256 of a token has 64 hexadecimal digits; never write the token \
                     itself there"
                )
            })?;
            if let Some(earlier) = lines.insert(digest, number) {
                return Err(format!(
                    "lines {earlier} and {number} are the same token: give each gate one of its own"
                ));
            }
            tokens.push(Token {
                digest,
                owner: gate,
                role,
            });
        }
        match tokens.len() {
            0 => Err(
                "it holds no token, so no gate could connect; `execgate token NAME` makes one"
                    .to_owned(),
            ),
            1..=MAX_TOKENS => Ok(Self(tokens)),
            _ => Err(format!("it holds more than {MAX_TOKENS} tokens")),
        }
    }

    /// Whose token this is. Takes as long whoever's it is.
    pub(super) fn owner(&self, digest: TokenDigest) -> Option<&GateIdentity> {
        self.find(digest).map(|token| &token.owner)
    }

    /// What a token is for.
    pub(super) fn role(&self, digest: TokenDigest) -> Option<Role> {
        self.find(digest).map(|token| token.role)
    }

    fn find(&self, digest: TokenDigest) -> Option<&Token> {
        let mut found = None;
        for token in &self.0 {
            if bool::from(token.digest.0.ct_eq(&digest.0)) {
                found = Some(token);
            }
        }
        found
    }

    /// Names the content: the beginning of a SHA-256.
    pub(super) fn revision(&self) -> String {
        revision(self.0.iter().flat_map(|token| {
            let role = match token.role {
                Role::Gate => "",
                Role::Auditor => " auditor",
            };
            [
                &token.digest.0[..],
                token.owner.as_str().as_bytes(),
                role.as_bytes(),
            ]
        }))
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_may_have_several_tokens_and_a_token_has_one_name() {
        let line =
            |name: &str, token: &str| format!("{name} {}\n", TokenDigest::of(token.as_bytes()));
        let text = format!(
            "# gates\n\n{}{}  {}",
            line("ci", "old"),
            line("ci", "new"),
            line("lab", "x").to_uppercase().replace("LAB", "lab"),
        );
        let tokens = Tokens::parse(&text).expect("tokens");
        let owner = |token: &str| {
            tokens
                .owner(TokenDigest::of(token.as_bytes()))
                .map(GateIdentity::as_str)
        };
        assert_eq!(owner("old"), Some("token:ci"));
        assert_eq!(owner("new"), Some("token:ci"));
        assert_eq!(owner("x"), Some("token:lab"));
        assert_eq!(owner("y"), None);
        assert_eq!(owner(""), None);

        let error = Tokens::parse(&format!("{}{}", line("a", "t"), line("b", "t")));
        assert!(error.expect_err("refused").contains("lines 1 and 2"));
    }

    #[test]
    fn a_file_that_is_wrong_says_where_and_not_what() {
        for (text, says) in [
            ("", "no token"),
            ("# nothing\n", "no token"),
            ("execgate_secret", "line 1 isn't"),
            ("# x\nname execgate_secret", "line 2: the SHA-256"),
            ("name execgate_secret more", "line 1 isn't"),
        ] {
            let error = Tokens::parse(text).expect_err(text);
            assert!(error.contains(says), "{error}");
            assert!(!error.contains("secret"), "{error}");
        }
    }
}
