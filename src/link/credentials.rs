use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use tokio_rustls::rustls::client::Resumption;
use tokio_rustls::rustls::{ClientConfig, RootCertStore};
use tonic::metadata::{Ascii, MetadataValue};

use crate::transport::{self, CredentialError, HTTP2};

/// Longest token, in bytes.
const MAX_TOKEN: usize = 4_096;

/// What a gate shows a policy service, and what it asks of it. Files are read when the link is made and
/// at each use after that, so that they can be replaced at any time. What can't be used any more leaves
/// in force what was read last.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LinkCredentials {
    /// Certificates in PEM, to trust services whose certificates they have signed; the system's by
    /// default. Read for each connection.
    pub ca: Option<PathBuf>,
    /// The gate's certificate, with its key, both in PEM. Read for each connection.
    pub certificate: Option<CertificateFiles>,
    /// File of a bearer token. Read for each call.
    pub token: Option<PathBuf>,
    /// Users, besides root and the gate's own, whose processes may be the service at a Unix socket.
    pub service_uids: Vec<u32>,
    /// Whether what crosses the network may do so in the clear.
    pub plaintext: Plaintext,
}

/// A certificate and its private key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CertificateFiles {
    /// The certificate, with those that lead to its root.
    pub certificate: PathBuf,
    /// Its key; a file that no other user can read.
    pub key: PathBuf,
}

/// Whether `http://` may lead to another host.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Plaintext {
    /// To this host only.
    #[default]
    OnLoopback,
    /// To any, with commands, verdicts and tokens in the clear.
    Anywhere,
}

/// Credentials as they were when they could last be read.
#[derive(Debug)]
pub(super) struct CredentialFiles {
    named: LinkCredentials,
    tls: LastGood<Arc<ClientConfig>>,
    token: LastGood<MetadataValue<Ascii>>,
}

/// Whether TLS is spoken, so that what it needs has to be there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Tls {
    Spoken,
    NotSpoken,
}

impl CredentialFiles {
    /// Reads all that will be needed, so that what can't be used shows at once.
    pub(super) fn new(named: LinkCredentials, tls: Tls) -> Result<Self, CredentialError> {
        let files = Self {
            named,
            tls: LastGood::default(),
            token: LastGood::default(),
        };
        files.authorization()?;
        if tls == Tls::Spoken {
            files.tls()?;
        }
        Ok(files)
    }

    pub(super) fn named(&self) -> &LinkCredentials {
        &self.named
    }

    /// What to speak TLS with, from files as they are now. Blocks.
    pub(super) fn tls(&self) -> Result<Arc<ClientConfig>, CredentialError> {
        self.tls
            .or_before("certificates", || load_tls(&self.named).map(Arc::new))
    }

    /// What to show at the beginning of a call, from a file as it is now. Blocks.
    pub(super) fn authorization(&self) -> Result<Option<MetadataValue<Ascii>>, CredentialError> {
        let Some(path) = &self.named.token else {
            return Ok(None);
        };
        let load = || {
            let content = transport::read_secret(path)?;
            let token = content.trim_ascii();
            if token.is_empty()
                || token.len() > MAX_TOKEN
                || !token.iter().all(u8::is_ascii_graphic)
            {
                return Err(transport::unusable(
                    path,
                    "it holds no token: one line of printable ASCII, 4096 bytes at most",
                ));
            }
            let mut value = MetadataValue::try_from([b"Bearer ", token].concat())
                .map_err(|error| transport::unusable(path, error.to_string()))?;
            // So that nothing logs it.
            value.set_sensitive(true);
            Ok(value)
        };
        self.token.or_before("token", load).map(Some)
    }
}

fn load_tls(named: &LinkCredentials) -> Result<ClientConfig, CredentialError> {
    let roots = match &named.ca {
        Some(path) => transport::trusted(path)?,
        None => Arc::new(system_roots()?),
    };
    let builder = ClientConfig::builder_with_provider(transport::cryptography())
        .with_safe_default_protocol_versions()
        .map_err(|error| CredentialError::NoSystemRoots {
            reason: error.to_string(),
        })?
        .with_root_certificates(roots);
    let mut config = match &named.certificate {
        None => builder.with_no_client_auth(),
        Some(CertificateFiles { certificate, key }) => builder
            .with_client_auth_cert(
                transport::certificates(certificate)?,
                transport::private_key(key)?,
            )
            .map_err(|source| CredentialError::Pair {
                certificate: certificate.clone(),
                key: key.clone(),
                source,
            })?,
    };
    config.alpn_protocols = vec![HTTP2.to_vec()];
    // Each connection verifies, and shows, what is valid then.
    config.resumption = Resumption::disabled();
    Ok(config)
}

fn system_roots() -> Result<RootCertStore, CredentialError> {
    let loaded = rustls_native_certs::load_native_certs();
    let mut roots = RootCertStore::empty();
    let (added, _unusable) = roots.add_parsable_certificates(loaded.certs);
    if added > 0 {
        return Ok(roots);
    }
    let reason = loaded
        .errors
        .first()
        .map_or_else(|| "none was found".to_owned(), ToString::to_string);
    Err(CredentialError::NoSystemRoots { reason })
}

/// What was read last and could be used.
#[derive(Debug)]
struct LastGood<T>(Mutex<Option<T>>);

impl<T> Default for LastGood<T> {
    fn default() -> Self {
        Self(Mutex::new(None))
    }
}

impl<T: Clone> LastGood<T> {
    fn or_before(
        &self,
        what: &str,
        load: impl FnOnce() -> Result<T, CredentialError>,
    ) -> Result<T, CredentialError> {
        let loaded = load();
        let mut last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match loaded {
            Ok(value) => {
                *last = Some(value.clone());
                Ok(value)
            }
            Err(error) => match &*last {
                Some(before) => {
                    tracing::warn!(
                        "the new {what} can't be used, so the last good stays in use: {error}"
                    );
                    Ok(before.clone())
                }
                None => Err(error),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_token_is_read_each_time_and_a_broken_file_leaves_the_last() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("token");
        let write = |content: &str, mode| {
            std::fs::write(&path, content).expect("a file");
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).expect("a mode");
        };
        let named = LinkCredentials {
            token: Some(path.clone()),
            ..LinkCredentials::default()
        };
        let new = || CredentialFiles::new(named.clone(), Tls::NotSpoken);
        for wrong in ["", "\n", "two words", "a\nb", "\u{fc}"] {
            write(wrong, 0o600);
            let error = new().expect_err(wrong).to_string();
            assert!(error.contains("it holds no token"), "{error}");
        }
        write("secret", 0o644);
        assert!(matches!(new(), Err(CredentialError::Exposed { .. })));

        write("first\n", 0o600);
        let files = new().expect("credentials");
        let shown = || {
            let value = files.authorization().expect("a token").expect("a token");
            assert!(!format!("{value:?}").contains("first"), "{value:?}");
            value.to_str().expect("ASCII").to_owned()
        };
        assert_eq!(shown(), "Bearer first");
        write("second", 0o600);
        assert_eq!(shown(), "Bearer second");
        write("", 0o600);
        assert_eq!(shown(), "Bearer second");
        std::fs::remove_file(&path).expect("removed");
        assert_eq!(shown(), "Bearer second");
        write("third", 0o600);
        assert_eq!(shown(), "Bearer third");
    }
}
