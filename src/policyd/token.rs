//! `token`: makes a bearer token for a gate, an operator or an auditor.

use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use base64::Engine;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use clap::{Args, ValueEnum};

use super::identity::GateIdentity;
use super::tokens::TokenDigest;
use crate::sys::random;
use crate::transport::TOKEN_PREFIX;

/// The command line of `token`.
#[derive(Debug, Clone, Args)]
#[command(
    after_long_help = "The gate shows the token (--policy-token-file); the policy service knows its SHA-256 \
        alone (execgate-policyd --tokens, or --operators for people). A name may have several tokens, so that a new one can be in use \
        before the old one's line is taken out.\n\n\
        Examples:\n\
        \x20 execgate token ci-7\n\
        \x20 execgate token ci-7 --write /run/execgate/token >> /etc/execgate/tokens\n\
        \x20 execgate token ada --role operator --write ~/.config/execgate/ada >> /etc/execgate/operators\n\
        \x20 execgate token jane --role auditor --write ~/.config/execgate/jane >> /etc/execgate/operators\n\n\
        Exit codes:\n\
        \x20 0  made\n\
        \x20 1  it couldn't be written\n\
        \x20 2  the command line is wrong"
)]
pub struct TokenArgs {
    /// Name of the gate, operator or auditor, as rules and audit will have it: `token:NAME`, `operator:NAME`,
    /// `auditor:NAME`.
    #[arg(value_name = "NAME", value_parser = name)]
    pub name: String,

    /// Write the token into a file that only this user can read, in place of what is there, and only
    /// the line for the policy service to standard output.
    #[arg(long, value_name = "FILE")]
    pub write: Option<PathBuf>,

    /// What the token is for. It is good for nothing else.
    #[arg(long, value_enum, default_value_t = TokenRole::Gate)]
    pub role: TokenRole,
}

/// What a token is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum TokenRole {
    /// A gate: to ask for verdicts.
    Gate,
    /// An operator: to approve and deny, to end sessions, and to read what is on record.
    Operator,
    /// An auditor: to read what is on record.
    Auditor,
}

/// Why there is no token.
#[derive(Debug, thiserror::Error)]
pub enum TokenError {
    /// The kernel gave no random bytes.
    #[error("drawing random bytes: {0}")]
    Random(#[source] std::io::Error),
    /// The file can't be written.
    #[error("writing the token to {}: {source}{}", path.display(), advice(source))]
    File {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// Standard output can't be written.
    #[error("writing the line for the policy service: {0}")]
    Write(#[from] std::io::Error),
}

/// What to do where the file can't be written, to stand behind the reason.
fn advice(error: &std::io::Error) -> &'static str {
    match error.kind() {
        std::io::ErrorKind::NotFound => "; make its directory first",
        _ => "",
    }
}

fn name(text: &str) -> Result<String, String> {
    if text.starts_with('#') || GateIdentity::token(text).is_none() {
        return Err("write up to 512 printable ASCII characters, without spaces".to_owned());
    }
    Ok(text.to_owned())
}

/// Makes a token of 256 random bits.
///
/// # Errors
/// When it can't be made, or written.
pub fn run(args: &TokenArgs, out: &mut dyn Write) -> Result<(), TokenError> {
    let half = || random::sixteen_bytes().map_err(TokenError::Random);
    let bytes = [half()?, half()?].concat();
    let token = format!("{TOKEN_PREFIX}{}", BASE64_URL_SAFE_NO_PAD.encode(bytes));
    let (word, shown_by, known_by) = match args.role {
        TokenRole::Gate => ("", "--policy-token-file", "--tokens"),
        TokenRole::Operator => ("", "--service-token-file, or the console", "--operators"),
        TokenRole::Auditor => (
            " auditor",
            "--service-token-file, or the console",
            "--operators",
        ),
    };
    let line = format!("{} {}{word}", args.name, TokenDigest::of(token.as_bytes()));
    match &args.write {
        None => writeln!(
            out,
            "# The token, for a file that nobody else can read ({shown_by}):\n{token}\n\
             # A line for the policy service's file (execgate-policyd {known_by}):\n{line}"
        )?,
        Some(path) => {
            replace(path, &token).map_err(|source| TokenError::File {
                path: path.clone(),
                source,
            })?;
            writeln!(out, "{line}")?;
        }
    }
    out.flush()?;
    Ok(())
}

/// Whoever reads the file meanwhile has the old token or the new one, whole.
fn replace(path: &Path, token: &str) -> std::io::Result<()> {
    let mut beside = path.as_os_str().to_owned();
    beside.push(format!(".{}", std::process::id()));
    let written = std::fs::OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&beside)
        .and_then(|mut file| {
            writeln!(file, "{token}")?;
            file.sync_all()
        })
        .and_then(|()| std::fs::rename(&beside, path));
    if written.is_err() {
        // It may not even be there.
        let _ = std::fs::remove_file(&beside);
    }
    written
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;
    use crate::policyd::tokens::Tokens;

    fn make(write: Option<PathBuf>) -> String {
        let mut out = Vec::new();
        let args = TokenArgs {
            name: "ci-7".to_owned(),
            write,
            role: TokenRole::Gate,
        };
        run(&args, &mut out).expect("a token");
        String::from_utf8(out).expect("text")
    }

    #[test]
    fn the_line_is_of_the_token_and_the_file_is_private() {
        let directory = tempfile::tempdir().expect("a directory");
        let (token, tokens) = (directory.path().join("t"), directory.path().join("tokens"));
        std::fs::write(&token, "old").expect("a file");
        let line = make(Some(token.clone()));
        std::fs::write(&tokens, line).expect("a file");
        let written = std::fs::read_to_string(&token).expect("a token");
        let mode = std::fs::metadata(&token)
            .expect("a file")
            .permissions()
            .mode();
        assert_eq!(mode & 0o777, 0o600);
        let owner = |token: &str| {
            let tokens = Tokens::<GateIdentity>::load(&tokens).expect("tokens");
            tokens
                .owner(TokenDigest::of(token.as_bytes()))
                .map(GateIdentity::to_string)
        };
        assert_eq!(owner(written.trim_end()).as_deref(), Some("token:ci-7"));
        assert_eq!(
            std::fs::read_dir(directory.path())
                .expect("entries")
                .count(),
            2
        );

        // What is printed for people is a file for the service, less the token's line.
        let printed = make(None);
        let lines: Vec<_> = printed.lines().collect();
        assert!(lines[1].starts_with(TOKEN_PREFIX), "{printed}");
        std::fs::write(&tokens, lines[3]).expect("a file");
        assert_eq!(owner(lines[1]).as_deref(), Some("token:ci-7"));
        assert_ne!(make(None), printed);
    }

    #[test]
    fn a_file_that_can_not_be_written_is_said() {
        let args = TokenArgs {
            name: "x".to_owned(),
            write: Some("/nonexistent/token".into()),
            role: TokenRole::Auditor,
        };
        let error = run(&args, &mut Vec::new()).expect_err("refused");
        assert!(error.to_string().contains("/nonexistent/token"), "{error}");
        assert!(
            error.to_string().ends_with("; make its directory first"),
            "{error}"
        );
    }
}
