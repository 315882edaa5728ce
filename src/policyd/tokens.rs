//! What gates and operators may show: bearer tokens, known by their digests alone, and operators' certificates, known
//! by their names.

use std::collections::{BTreeMap, HashMap};
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

/// What proves who makes a call, and may be taken back.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum Credential {
    Token(TokenDigest),
    /// By the name in it.
    Certificate(GateIdentity),
}

/// Who may have a token.
pub(super) trait Holder: Sized + Clone + PartialEq + Send + Sync + 'static {
    /// What several of them are called, in the log.
    const NAME: &'static str;
    /// What may stand behind a token, in words.
    const DUTIES: &'static str;

    /// What the words behind a name and a token make of its holder.
    fn named(name: &str, duty: Option<&str>) -> Result<Self, Unfit>;
    /// Whether a line may name a certificate instead of a token.
    fn may_have_certificate() -> bool;
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

    /// A gate whose certificate is trusted needs no line.
    fn may_have_certificate() -> bool {
        false
    }

    fn as_str(&self) -> &str {
        GateIdentity::as_str(self)
    }
}

impl Holder for Operator {
    const NAME: &'static str = "operators' tokens";
    const DUTIES: &'static str =
        "`auditor` or nothing behind it, nor a certificate's uri:URI or dns:NAME alone";

    fn named(name: &str, duty: Option<&str>) -> Result<Self, Unfit> {
        let duty = match duty {
            None => Duty::Operate,
            Some("auditor") => Duty::Audit,
            Some(_) => return Err(Unfit::Duty),
        };
        Operator::named(name, duty).ok_or(Unfit::Name)
    }

    fn may_have_certificate() -> bool {
        true
    }

    fn as_str(&self) -> &str {
        Operator::as_str(self)
    }
}

/// The tokens that are valid, and whose each is. A name may have several.
#[derive(Debug)]
pub(super) struct Tokens<H = GateIdentity> {
    tokens: Vec<(TokenDigest, H)>,
    certificates: BTreeMap<String, H>,
}

impl Tokens<Operator> {
    /// Whether there is somebody who may answer what rules ask a person.
    pub(super) fn has_somebody_who_decides(&self) -> bool {
        let by_token = self.tokens.iter().map(|(_, holder)| holder);
        by_token
            .chain(self.certificates.values())
            .any(|holder| holder.duty() == Duty::Operate)
    }
}

impl<H: Holder> Tokens<H> {
    /// Reads a file of lines `NAME SHA256`, with `auditor` behind it for an operator who only reads; for an operator
    /// with a certificate `uri:URI` or `dns:NAME` alone. Blank lines and what follows `#` at a line's beginning are
    /// passed over. A file of nothing else is one, too: the last line was taken out, and nobody has a token.
    pub(super) fn load(path: &Path) -> Result<Self, CredentialError> {
        let content = transport::read_public(path)?;
        Self::parse(&String::from_utf8_lossy(&content))
            .map_err(|reason| transport::unusable(path, reason))
    }

    /// Errors never repeat a line: somebody may have put a token there.
    fn parse(text: &str) -> Result<Self, String> {
        let mut tokens = Vec::new();
        let mut certificates = BTreeMap::new();
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
                [Some(name), duty @ (None | Some("auditor")), None, None]
                    if H::may_have_certificate() && is_certificates_name(name) =>
                {
                    (name, None, duty)
                }
                [Some(name), Some(digest), duty, None] => (name, Some(digest), duty),
                _ => return Err(shape()),
            };
            let holder = H::named(name, duty).map_err(|unfit| match unfit {
                Unfit::Duty => shape(),
                Unfit::Name => format!(
                    "line {number}: the name must be printable ASCII, 512 characters at most"
                ),
            })?;
            let Some(digest) = digest else {
                if certificates.insert(name.to_owned(), holder).is_some() {
                    return Err(format!("line {number}: {name} has a line already"));
                }
                continue;
            };
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
        if tokens.len() + certificates.len() > MAX_TOKENS {
            return Err(format!("it holds more than {MAX_TOKENS} tokens"));
        }
        Ok(Self {
            tokens,
            certificates,
        })
    }

    /// Whose token this is. Takes as long whoever's it is.
    pub(super) fn owner(&self, digest: TokenDigest) -> Option<&H> {
        let mut found = None;
        for (known, holder) in &self.tokens {
            if bool::from(known.0.ct_eq(&digest.0)) {
                found = Some(holder);
            }
        }
        found
    }

    /// Whose credential this is.
    pub(super) fn holder(&self, credential: &Credential) -> Option<&H> {
        match credential {
            Credential::Token(digest) => self.owner(*digest),
            Credential::Certificate(identity) => self.certificates.get(identity.as_str()),
        }
    }

    /// Whether somebody is known by a certificate.
    pub(super) fn has_certificates(&self) -> bool {
        !self.certificates.is_empty()
    }

    /// Names the content: the beginning of a SHA-256.
    pub(super) fn revision(&self) -> String {
        let tokens = self.tokens.iter();
        let tokens = tokens.flat_map(|(token, holder)| [&token.0[..], holder.as_str().as_bytes()]);
        let certificates = self.certificates.iter();
        let certificates =
            certificates.flat_map(|(name, holder)| [name.as_bytes(), holder.as_str().as_bytes()]);
        revision(tokens.chain(certificates))
    }

    pub(super) fn len(&self) -> usize {
        self.tokens.len() + self.certificates.len()
    }

    /// Whether nobody has one.
    pub(super) fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Whether it is how a certificate's holder is named.
fn is_certificates_name(name: &str) -> bool {
    (name.starts_with("uri:") || name.starts_with("dns:")) && GateIdentity::parse(name).is_ok()
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
    fn a_file_without_a_line_is_nobodys_and_one_has_a_most() {
        for text in ["", "\n \t\n", "# ci was here\n", "#"] {
            let tokens = Tokens::<GateIdentity>::parse(text).expect(text);
            assert!(tokens.is_empty() && tokens.owner(TokenDigest::of(b"")).is_none());
            let operators = Tokens::<Operator>::parse(text).expect(text);
            assert!(operators.is_empty() && !operators.has_somebody_who_decides());
        }
        let lines = |count: usize| {
            let lines = (0..count).map(|number| format!("x {number:064x}\n"));
            Tokens::<GateIdentity>::parse(&lines.collect::<String>())
        };
        assert_eq!(lines(MAX_TOKENS).expect("as many").len(), MAX_TOKENS);
        let error = lines(MAX_TOKENS + 1).expect_err("one more");
        assert!(error.contains("more than 10000"), "{error}");
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

    #[test]
    fn an_operator_may_have_a_certificate_and_a_gate_needs_no_line_for_its_own() {
        let lines = "uri:spiffe://example/ada\ndns:eve.example auditor\n";
        let operators = Tokens::<Operator>::parse(lines).expect("operators");
        let holder = |name: &str| {
            let identity = GateIdentity::parse(name).expect("a name");
            let found = operators.holder(&Credential::Certificate(identity));
            found.map(|operator| (operator.as_str().to_owned(), operator.duty()))
        };
        let ada = (
            "operator:uri:spiffe://example/ada".to_owned(),
            Duty::Operate,
        );
        assert_eq!(holder("uri:spiffe://example/ada"), Some(ada));
        let eve = ("auditor:dns:eve.example".to_owned(), Duty::Audit);
        assert_eq!(holder("dns:eve.example"), Some(eve));
        assert_eq!(holder("dns:bob.example"), None);
        // A name alone proves nothing.
        for name in [
            "uid:7",
            "anonymous",
            "token:ada",
            "ada",
            "dns:",
            "dns:a b c",
        ] {
            assert!(Tokens::<Operator>::parse(name).is_err(), "{name}");
        }
        let twice = Tokens::<Operator>::parse("dns:a\ndns:a auditor").expect_err("refused");
        assert!(twice.contains("line 2"), "{twice}");
        // Not even alone, and as a gate's name it would do.
        for name in ["uri:spiffe://example/ci", "dns:ci.example"] {
            let error = Tokens::<GateIdentity>::parse(name).expect_err(name);
            assert!(error.contains("line 1 isn't"), "{error}");
        }
    }
}
