//! Bearer tokens: what gates and operators may show, known by their digests alone.

use std::collections::HashMap;
use std::path::Path;

use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

use super::identity::GateIdentity;
use super::operators::{Duty, Operator};
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

/// Who may have a token.
pub(super) trait Holder: Sized + Clone + PartialEq + Send + Sync + 'static {
    /// What several of them are called, in the log.
    const NAME: &'static str;
    /// What may stand behind a token, in words.
    const DUTIES: &'static str;

    /// What the words behind a name and a token make of its holder.
    fn named(name: &str, duty: Option<&str>) -> Result<Self, Unfit>;
    fn as_str(&self) -> &str;
}

/// Why a line names nobody.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Unfit {
    /// The name isn't one.
    Name,
    /// The word behind the token says nothing.
    Duty,
}

impl Holder for GateIdentity {
    const NAME: &'static str = "tokens";
    const DUTIES: &'static str = "nothing behind it";

    fn named(name: &str, duty: Option<&str>) -> Result<Self, Unfit> {
        match duty {
            None => Self::token(name).ok_or(Unfit::Name),
            Some(_) => Err(Unfit::Duty),
        }
    }

    fn as_str(&self) -> &str {
        GateIdentity::as_str(self)
    }
}

impl Holder for Operator {
    const NAME: &'static str = "operators' tokens";
    const DUTIES: &'static str = "`auditor` or nothing behind it";

    fn named(name: &str, duty: Option<&str>) -> Result<Self, Unfit> {
        let duty = match duty {
            None => Duty::Operate,
            Some("auditor") => Duty::Audit,
            Some(_) => return Err(Unfit::Duty),
        };
        Operator::named(name, duty).ok_or(Unfit::Name)
    }

    fn as_str(&self) -> &str {
        Operator::as_str(self)
    }
}

/// The tokens that are valid, and whose each is. A name may have several.
#[derive(Debug)]
pub(super) struct Tokens<H = GateIdentity>(Vec<(TokenDigest, H)>);

impl<H: Holder> Tokens<H> {
    /// Reads a file of lines `NAME SHA256`, with `auditor` behind it for an operator who only reads; blank lines
    /// and what follows `#` at a line's beginning are passed over.
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
            let shape = || {
                format!(
                    "line {number} isn't a name and the SHA-256 of a token with {}; `execgate token NAME` \
                     makes such lines",
                    H::DUTIES
                )
            };
            let four = [words.next(), words.next(), words.next(), words.next()];
            let (name, digest, duty) = match four {
                [None, ..] => continue,
                [Some(name), ..] if name.starts_with('#') => continue,
                [Some(name), Some(digest), duty, None] => (name, digest, duty),
                _ => return Err(shape()),
            };
            let holder = H::named(name, duty).map_err(|unfit| match unfit {
                Unfit::Duty => shape(),
                Unfit::Name => format!(
                    "line {number}: the name must be printable ASCII, 512 characters at most"
                ),
            })?;
            let digest = TokenDigest::parse(digest).ok_or_else(|| {
                format!(
                    "line {number}: the SHA-256 of a token has 64 hexadecimal digits; never write the token \
                     itself there"
                )
            })?;
            if let Some(earlier) = lines.insert(digest, number) {
                return Err(format!(
                    "lines {earlier} and {number} are the same token: give everybody one of their own"
                ));
            }
            tokens.push((digest, holder));
        }
        match tokens.len() {
            0 => Err(
                "it holds no token, so nobody could show one; `execgate token NAME` makes one"
                    .to_owned(),
            ),
            1..=MAX_TOKENS => Ok(Self(tokens)),
            _ => Err(format!("it holds more than {MAX_TOKENS} tokens")),
        }
    }

    /// Whose token this is. Takes as long whoever's it is.
    pub(super) fn owner(&self, digest: TokenDigest) -> Option<&H> {
        let mut found = None;
        for (known, holder) in &self.0 {
            if bool::from(known.0.ct_eq(&digest.0)) {
                found = Some(holder);
            }
        }
        found
    }

    /// Names the content: the beginning of a SHA-256.
    pub(super) fn revision(&self) -> String {
        let parts = self.0.iter();
        revision(parts.flat_map(|(token, holder)| [&token.0[..], holder.as_str().as_bytes()]))
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
        let tokens = Tokens::<GateIdentity>::parse(&text).expect("tokens");
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

        let error = Tokens::<GateIdentity>::parse(&format!("{}{}", line("a", "t"), line("b", "t")));
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
            ("name execgate_secret auditor more", "line 1 isn't"),
        ] {
            let error = Tokens::<Operator>::parse(text).expect_err(text);
            assert!(error.contains(says), "{error}");
            assert!(!error.contains("secret"), "{error}");
        }
    }

    #[test]
    fn only_an_operator_may_be_an_auditor() {
        let line = format!("ada {} auditor", TokenDigest::of(b"t"));
        let tokens = Tokens::<Operator>::parse(&line).expect("tokens");
        let ada = tokens.owner(TokenDigest::of(b"t")).expect("an auditor");
        assert_eq!((ada.as_str(), ada.duty()), ("auditor:ada", Duty::Audit));
        let error = Tokens::<GateIdentity>::parse(&line).expect_err("refused");
        assert!(error.contains("line 1 isn't"), "{error}");
        assert!(!error.contains("auditor"), "{error}");
    }
}
