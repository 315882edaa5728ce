//! Files of certificates, private keys and tokens, read with care.

use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tokio_rustls::rustls::crypto::{self, CryptoProvider};
use tokio_rustls::rustls::pki_types::pem::{self, PemObject};
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::{self, RootCertStore};

/// Largest file, in bytes: some thousand certificates.
const MAX_FILE_SIZE: u64 = 4 << 20;

/// Permissions that no secret may give: to read or write for every user, to write for its group.
const EXPOSED: u32 = 0o026;

/// What a token begins with, so that whoever finds one knows what it is.
pub const TOKEN_PREFIX: &str = "execgate_";

/// How HTTP/2 is called when TLS negotiates a protocol (RFC 9113, section 3.2).
pub const HTTP2: &[u8] = b"h2";

/// Why a file of credentials can't be used. Each says what to do.
#[derive(Debug, thiserror::Error)]
pub enum CredentialError {
    /// It can't be read.
    #[error("reading {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// A token is given where the name of its file belongs. It isn't shown.
    #[error(
        "that is a token, and not the name of a file; write it into a file that only this user can read, and name that"
    )]
    TokenItself,
    /// It isn't a file.
    #[error("reading {}: it isn't a regular file; give one that can be read again", path.display())]
    NotAFile {
        /// What isn't one.
        path: PathBuf,
    },
    /// It is too large.
    #[error("reading {}: it has more than {} MiB; give a file of credentials", path.display(), MAX_FILE_SIZE >> 20)]
    TooLarge {
        /// The file.
        path: PathBuf,
    },
    /// Others may read it.
    #[error(
        "{} holds a secret, and its mode {:04o} lets others read or change it; chmod 600 it, or 640 for a \
         group of its own",
        path.display(),
        mode
    )]
    Exposed {
        /// The file.
        path: PathBuf,
        /// Its permissions.
        mode: u32,
    },
    /// It isn't what it should be.
    #[error("{}: {reason}", path.display())]
    Content {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// Certificate and key can't be used together, or not at all.
    #[error("the certificate {} and the key {} can't be used: {source}", certificate.display(), key.display())]
    Pair {
        /// The certificate's file.
        certificate: PathBuf,
        /// The key's file.
        key: PathBuf,
        /// Why.
        source: rustls::Error,
    },
    /// The system's certificates can't be used.
    #[error(
        "the system has no root certificates: {reason}; install ca-certificates, or name a file of them"
    )]
    NoSystemRoots {
        /// Why.
        reason: String,
    },
}

/// What the cryptography of TLS is done with.
#[must_use]
pub fn cryptography() -> Arc<CryptoProvider> {
    Arc::new(crypto::ring::default_provider())
}

/// Reads a file that anyone may know, such as certificates.
pub fn read_public(path: &Path) -> Result<Vec<u8>, CredentialError> {
    read(path, |_| Ok(()))
}

/// Reads a file that nobody else may know, such as a private key or a token.
pub fn read_secret(path: &Path) -> Result<Vec<u8>, CredentialError> {
    let is_token = path
        .as_os_str()
        .as_bytes()
        .starts_with(TOKEN_PREFIX.as_bytes());
    if is_token && !path.exists() {
        return Err(CredentialError::TokenItself);
    }
    read(path, |mode| {
        if mode & EXPOSED == 0 {
            Ok(())
        } else {
            Err(CredentialError::Exposed {
                path: path.to_owned(),
                mode: mode & 0o7777,
            })
        }
    })
}

fn read(
    path: &Path,
    permit: impl FnOnce(u32) -> Result<(), CredentialError>,
) -> Result<Vec<u8>, CredentialError> {
    let read_error = |source| CredentialError::Read {
        path: path.to_owned(),
        source,
    };
    // Before it is opened, because opening a pipe waits for whoever writes it.
    if !std::fs::metadata(path).map_err(read_error)?.is_file() {
        return Err(CredentialError::NotAFile {
            path: path.to_owned(),
        });
    }
    let file = std::fs::File::open(path).map_err(read_error)?;
    permit(file.metadata().map_err(read_error)?.permissions().mode())?;
    let mut content = Vec::new();
    file.take(MAX_FILE_SIZE + 1)
        .read_to_end(&mut content)
        .map_err(read_error)?;
    if content.len() as u64 > MAX_FILE_SIZE {
        return Err(CredentialError::TooLarge {
            path: path.to_owned(),
        });
    }
    Ok(content)
}

/// Reads certificates in PEM.
pub fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, CredentialError> {
    let content = read_public(path)?;
    let read: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&content).collect();
    match read {
        Ok(certificates) if !certificates.is_empty() => Ok(certificates),
        Ok(_) => Err(unusable(path, "it holds no certificate in PEM")),
        Err(error) => Err(unusable(
            path,
            format!("its certificates can't be read: {error}"),
        )),
    }
}

/// Reads certificates in PEM, to trust what they have signed.
pub fn trusted(path: &Path) -> Result<Arc<RootCertStore>, CredentialError> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(path)? {
        roots
            .add(certificate)
            .map_err(|error| unusable(path, format!("a certificate can't be trusted: {error}")))?;
    }
    Ok(Arc::new(roots))
}

/// Reads a private key in PEM: PKCS #8, PKCS #1 or SEC1, not encrypted.
pub fn private_key(path: &Path) -> Result<PrivateKeyDer<'static>, CredentialError> {
    PrivateKeyDer::from_pem_slice(&read_secret(path)?).map_err(|error| {
        let reason = match error {
            pem::Error::NoItemsFound => {
                "it holds no private key in PEM that isn't encrypted".to_owned()
            }
            error => format!("its private key can't be read: {error}"),
        };
        unusable(path, reason)
    })
}

/// The error of a file whose content isn't what it should be.
#[must_use]
pub fn unusable(path: &Path, reason: impl Into<String>) -> CredentialError {
    CredentialError::Content {
        path: path.to_owned(),
        reason: reason.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(content: &[u8], mode: u32) -> (tempfile::TempDir, PathBuf) {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("x.pem");
        std::fs::write(&path, content).expect("a file");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).expect("a mode");
        (directory, path)
    }

    #[test]
    fn a_secret_that_others_may_read_or_change_is_not_used() {
        for (mode, is_used) in [
            (0o600, true),
            (0o400, true),
            (0o640, true),
            (0o644, false),
            (0o602, false),
            (0o660, false),
        ] {
            let (_directory, path) = file(b"secret", mode);
            assert_eq!(read_secret(&path).is_ok(), is_used, "{mode:o}");
            assert!(read_public(&path).is_ok(), "{mode:o}");
        }
        let (_directory, path) = file(b"secret", 0o644);
        let error = read_secret(&path).expect_err("refused").to_string();
        assert!(
            error.contains("0644") && error.contains("chmod 600"),
            "{error}"
        );
        assert!(!error.contains("secret\n"), "{error}");
    }

    #[test]
    fn what_is_not_a_file_or_too_large_is_refused_at_once() {
        let too_large = usize::try_from(MAX_FILE_SIZE + 1).expect("a size");
        let (directory, path) = file(&vec![b'x'; too_large], 0o600);
        let error = |path: &Path| read_secret(path).expect_err("refused");
        assert!(matches!(error(&path), CredentialError::TooLarge { .. }));
        assert!(matches!(
            error(directory.path()),
            CredentialError::NotAFile { .. }
        ));
        assert!(matches!(
            error(Path::new("/dev/zero")),
            CredentialError::NotAFile { .. }
        ));
        let pipe = directory.path().join("pipe");
        let made = std::process::Command::new("mkfifo").arg(&pipe).status();
        assert!(made.expect("mkfifo").success());
        assert!(matches!(error(&pipe), CredentialError::NotAFile { .. }));
        assert!(matches!(
            error(&directory.path().join("nothing")),
            CredentialError::Read { .. }
        ));
        let token = error(Path::new("execgate_0123456789abcdef"));
        assert!(!token.to_string().contains("0123"), "{token}");
    }

    #[test]
    fn what_holds_something_else_says_so() {
        let (_directory, path) = file(b"hello\n", 0o600);
        for error in [
            certificates(&path).expect_err("none").to_string(),
            private_key(&path).expect_err("none").to_string(),
            trusted(&path).expect_err("none").to_string(),
        ] {
            assert!(error.contains("x.pem: it holds no "), "{error}");
            assert!(!error.contains("hello"), "{error}");
        }
        let (_directory, path) = file(
            b"-----BEGIN CERTIFICATE-----\naGVsbG8=\n-----END CERTIFICATE-----\n",
            0o600,
        );
        assert!(trusted(&path).is_err());
    }
}
