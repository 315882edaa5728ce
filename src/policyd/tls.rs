//! What the service shows its gates, and asks of them, by TLS.

use std::path::PathBuf;
use std::sync::Arc;

use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};

use super::accept::Protocol;
use super::revision::revision;
use crate::transport::{self, CredentialError, HTTP2};

/// What browsers speak, by its name in TLS.
const HTTP1: &[u8] = b"http/1.1";

/// The files of the service's TLS.
#[derive(Debug, Clone)]
pub(super) struct TlsFiles {
    pub(super) certificate: PathBuf,
    pub(super) key: PathBuf,
    pub(super) client_ca: Option<PathBuf>,
    pub(super) without_certificate: WithoutCertificate,
}

/// What becomes of a gate that shows no certificate, where one is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum WithoutCertificate {
    /// It may show a token.
    MayShowToken,
    /// It is refused.
    Refused,
}

/// What is in those files, ready to be used.
#[derive(Debug)]
pub(super) struct Tls {
    gates: Arc<ServerConfig>,
    browsers: Arc<ServerConfig>,
    /// Names the content: the beginning of a SHA-256 of the certificates.
    pub(super) revision: String,
}

impl Tls {
    /// What is spoken with whoever speaks this inside. Browsers aren't asked for certificates: people have tokens.
    pub(super) fn of(&self, protocol: Protocol) -> Arc<ServerConfig> {
        Arc::clone(match protocol {
            Protocol::Http2 => &self.gates,
            Protocol::Http1 => &self.browsers,
        })
    }
}

impl TlsFiles {
    pub(super) fn load(&self) -> Result<Tls, CredentialError> {
        let pair_error = |source| CredentialError::Pair {
            certificate: self.certificate.clone(),
            key: self.key.clone(),
            source,
        };
        let provider = transport::cryptography();
        let builder = || {
            ServerConfig::builder_with_provider(Arc::clone(&provider))
                .with_safe_default_protocol_versions()
                .map_err(pair_error)
        };
        let shown = transport::certificates(&self.certificate)?;
        let key = transport::private_key(&self.key)?;
        let mut browsers = builder()?
            .with_no_client_auth()
            .with_single_cert(shown.clone(), key.clone_key())
            .map_err(pair_error)?;
        browsers.alpn_protocols = vec![HTTP1.to_vec()];
        let mut parts = shown.clone();
        let builder = builder()?;
        let builder = match &self.client_ca {
            None => builder.with_no_client_auth(),
            Some(path) => {
                parts.append(&mut transport::certificates(path)?);
                let roots = transport::trusted(path)?;
                let mut verifier =
                    WebPkiClientVerifier::builder_with_provider(roots, Arc::clone(&provider));
                if self.without_certificate == WithoutCertificate::MayShowToken {
                    verifier = verifier.allow_unauthenticated();
                }
                builder.with_client_cert_verifier(
                    verifier
                        .build()
                        .map_err(|error| transport::unusable(path, error.to_string()))?,
                )
            }
        };
        let mut config = builder.with_single_cert(shown, key).map_err(pair_error)?;
        config.alpn_protocols = vec![HTTP2.to_vec()];
        // A session that is resumed isn't verified again, and its certificate may have expired.
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        Ok(Tls {
            gates: Arc::new(config),
            browsers: Arc::new(browsers),
            revision: revision(parts),
        })
    }
}
