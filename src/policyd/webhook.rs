//! Tells another system of approvals, by signed POSTs.
//!
//! ```text
//! desk --changes (bounded, drops)--> this task --POST, again until it is taken--> receiver
//! ```
//!
//! Never in the way of anything: a receiver that is slow or away loses changes, which the log counts.

use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use http_body_util::Full;
use hyper::body::Bytes;
use hyper::{Request, StatusCode, Uri};
use hyper_util::rt::TokioIo;
use ring::hmac;
use serde_json::json;
use tokio::net::TcpStream;
use tokio::sync::broadcast::error::RecvError;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::ServerName;
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

use super::approvals::{Happened, Watch, json};
use super::revision::hexadecimal;
use super::throttle::Throttle;
use crate::pb::approval::v1 as pb;
use crate::transport::{self, CredentialError, Stream};

/// How long one attempt may take.
const ATTEMPT: Duration = Duration::from_secs(10);
/// Attempts for one change, and the pauses between them: from the first, doubled each time, up to the last.
const ATTEMPTS: u32 = 8;
const FIRST_PAUSE: Duration = Duration::from_millis(500);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
/// The fewest bytes of a secret.
const SHORTEST_SECRET: usize = 16;

static FAILURES: Throttle = Throttle::new(Duration::from_secs(5));

/// Where changes are told, and by what they are signed.
#[derive(Debug)]
pub(super) struct Webhook {
    uri: Uri,
    key: hmac::Key,
    tls: Option<Arc<ClientConfig>>,
}

/// Why there can't be a webhook.
#[derive(Debug, thiserror::Error)]
pub enum WebhookError {
    /// The address can't be used.
    #[error("--webhook {url}: {reason}")]
    Url {
        /// The address.
        url: String,
        /// Why.
        reason: String,
    },
    /// Its files can't be used.
    #[error(transparent)]
    Files(#[from] CredentialError),
}

/// Why an attempt has failed.
#[derive(Debug)]
enum Failure {
    /// It may succeed later.
    Passing(String),
    /// The receiver doesn't want it.
    Lasting(StatusCode),
}

fn passing(error: impl std::fmt::Display) -> Failure {
    Failure::Passing(error.to_string())
}

impl Webhook {
    pub(super) fn new(
        url: &str,
        secret: &Path,
        ca: Option<&PathBuf>,
    ) -> Result<Self, WebhookError> {
        // A password belongs in no message, and what follows the host may be a secret too.
        let shown = match url.split_once("://") {
            Some((scheme, rest)) => {
                let host = rest.split(['/', '?', '#']).next().unwrap_or_default();
                let host = host.rsplit('@').next().unwrap_or_default();
                format!("{scheme}://{host}")
            }
            None => "URL".to_owned(),
        };
        let invalid = |reason: String| WebhookError::Url {
            url: shown.clone(),
            reason,
        };
        let uri: Uri = url
            .parse()
            .map_err(|error: hyper::http::uri::InvalidUri| invalid(error.to_string()))?;
        let host = uri.host().unwrap_or_default();
        if host.is_empty() || uri.authority().is_some_and(|it| it.as_str().contains('@')) {
            return Err(invalid(
                "write https://HOST[:PORT][/PATH], without a user".to_owned(),
            ));
        }
        let tls = match uri.scheme_str() {
            Some("https") => Some(client_config(ca)?),
            Some("http") if is_loopback(host) => None,
            Some("http") => {
                return Err(invalid(
                    "commands would cross the network in the clear; use https://".to_owned(),
                ));
            }
            _ => {
                return Err(invalid(
                    "write https://, or http:// to this host".to_owned(),
                ));
            }
        };
        let content = transport::read_secret(secret)?;
        let key = content.trim_ascii();
        if key.len() < SHORTEST_SECRET {
            return Err(transport::unusable(
                secret,
                format!("a secret has {SHORTEST_SECRET} bytes at least"),
            )
            .into());
        }
        Ok(Self {
            uri,
            key: hmac::Key::new(hmac::HMAC_SHA256, key),
            tls,
        })
    }

    /// Tells of all changes, for as long as the service runs.
    pub(super) async fn run(self, mut changes: Watch) {
        loop {
            match changes.recv().await {
                Ok(happened) => self.tell(&happened).await,
                Err(RecvError::Lagged(missed)) => {
                    tracing::error!(
                        missed,
                        "the webhook's receiver is too slow; changes weren't told"
                    );
                }
                Err(RecvError::Closed) => return,
            }
        }
    }

    async fn tell(&self, happened: &Happened) {
        let event = match happened.change {
            pb::ApprovalChange::Opened => "approval.opened",
            pb::ApprovalChange::Closed => "approval.closed",
            _ => return,
        };
        let id = &happened.approval.approval_id;
        let body = json!({"event": event, "approval": json::approval(&happened.approval)});
        let body = Bytes::from(body.to_string());
        let delivery = format!("{id}.{event}");
        let mut pause = FIRST_PAUSE;
        for attempt in 1..=ATTEMPTS {
            let posted = tokio::time::timeout(ATTEMPT, self.post(&delivery, body.clone())).await;
            let why = match posted {
                Ok(Ok(())) => return,
                Ok(Err(Failure::Lasting(status))) => {
                    tracing::error!(approval = id, event, %status, "the webhook's receiver refuses a change");
                    return;
                }
                Ok(Err(Failure::Passing(why))) => why,
                Err(_) => format!("no answer within {} s", ATTEMPT.as_secs()),
            };
            if let Some(held_back) = FAILURES.admit() {
                tracing::warn!(
                    approval = id,
                    event,
                    attempt,
                    held_back,
                    "the webhook: {why}"
                );
            }
            if attempt < ATTEMPTS {
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(LONGEST_PAUSE);
            }
        }
        tracing::error!(
            approval = id,
            event,
            "the webhook's receiver didn't take a change"
        );
    }

    async fn post(&self, delivery: &str, body: Bytes) -> Result<(), Failure> {
        let host = self.uri.host().unwrap_or_default().trim_matches(['[', ']']);
        let is_tls = self.tls.is_some();
        let port = self.uri.port_u16().unwrap_or(if is_tls { 443 } else { 80 });
        let tcp = TcpStream::connect((host, port)).await.map_err(passing)?;
        let stream = match &self.tls {
            None if !tcp.peer_addr().is_ok_and(|peer| peer.ip().is_loopback()) => {
                return Err(passing("http:// leads to another host"));
            }
            None => Stream::Tcp(tcp),
            Some(config) => {
                let name = ServerName::try_from(host.to_owned()).map_err(passing)?;
                let connector = TlsConnector::from(Arc::clone(config));
                let tls = connector.connect(name, tcp).await.map_err(passing)?;
                Stream::Tls(Box::new(tls.into()))
            }
        };
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
            .await
            .map_err(passing)?;
        let request = self.request(delivery, body, SystemTime::now())?;
        let posting = async {
            sender.ready().await.map_err(passing)?;
            sender.send_request(request).await.map_err(passing)
        };
        let (mut posting, mut connection) = (pin!(posting), pin!(connection));
        // What the receiver has to say isn't read: the connection ends with this. It may have ended by
        // itself behind the answer.
        let response = tokio::select! {
            biased;
            response = &mut posting => response?,
            ended = &mut connection => {
                ended.map_err(passing)?;
                posting.await?
            }
        };
        match response.status() {
            status if status.is_success() => Ok(()),
            status @ (StatusCode::REQUEST_TIMEOUT | StatusCode::TOO_MANY_REQUESTS) => {
                Err(passing(status))
            }
            status if status.is_client_error() || status.is_redirection() => {
                Err(Failure::Lasting(status))
            }
            status => Err(passing(status)),
        }
    }

    fn request(
        &self,
        delivery: &str,
        body: Bytes,
        now: SystemTime,
    ) -> Result<Request<Full<Bytes>>, Failure> {
        let timestamp = now
            .duration_since(SystemTime::UNIX_EPOCH)
            .unwrap_or_default()
            .as_secs()
            .to_string();
        let authority = self.uri.authority().map_or("", |it| it.as_str());
        let path = self.uri.path_and_query().map_or("/", |it| it.as_str());
        Request::post(path)
            .header("host", authority)
            .header("content-type", "application/json")
            .header(
                "user-agent",
                concat!("execgate-policyd/", env!("CARGO_PKG_VERSION")),
            )
            .header("execgate-delivery", delivery)
            .header(
                "execgate-signature",
                signature(&self.key, &timestamp, &body),
            )
            .header("execgate-timestamp", timestamp)
            .body(Full::new(body))
            .map_err(passing)
    }
}

/// `v1=` and the HMAC-SHA256 of timestamp, a dot and body, in hexadecimal.
fn signature(key: &hmac::Key, timestamp: &str, body: &[u8]) -> String {
    let mut context = hmac::Context::with_key(key);
    context.update(timestamp.as_bytes());
    context.update(b".");
    context.update(body);
    format!("v1={}", hexadecimal(context.sign().as_ref()))
}

fn is_loopback(host: &str) -> bool {
    let address = host.trim_matches(['[', ']']).parse::<std::net::IpAddr>();
    address.map_or_else(
        |_| host.eq_ignore_ascii_case("localhost"),
        |address| address.is_loopback(),
    )
}

fn client_config(ca: Option<&PathBuf>) -> Result<Arc<ClientConfig>, CredentialError> {
    let roots = if let Some(path) = ca {
        transport::trusted(path)?
    } else {
        let mut roots = RootCertStore::empty();
        let loaded = rustls_native_certs::load_native_certs();
        if roots.add_parsable_certificates(loaded.certs).0 == 0 {
            return Err(CredentialError::NoSystemRoots {
                reason: "none was found".to_owned(),
            });
        }
        Arc::new(roots)
    };
    let provider = transport::cryptography();
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| CredentialError::NoSystemRoots {
            reason: error.to_string(),
        })?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(Arc::new(config))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signature_is_what_openssl_says() {
        // printf '1700000000.{"a":1}' | openssl dgst -sha256 -hmac 0123456789abcdef
        let key = hmac::Key::new(hmac::HMAC_SHA256, b"0123456789abcdef");
        let signed = signature(&key, "1700000000", br#"{"a":1}"#);
        assert_eq!(
            signed,
            "v1=9eb18f493f8ec135d9eb2dad817c369bb4e9cbfa818657897a7437c1cd8c3a23"
        );
    }

    #[test]
    fn an_address_or_secret_that_makes_no_sense_is_refused() {
        let directory = tempfile::tempdir().expect("a directory");
        let secret = directory.path().join("secret");
        let write = |content: &str| {
            use std::os::unix::fs::PermissionsExt;
            std::fs::write(&secret, content).expect("a file");
            let mode = std::fs::Permissions::from_mode(0o600);
            std::fs::set_permissions(&secret, mode).expect("a mode");
        };
        write("0123456789abcdef\n");
        let new = |url| Webhook::new(url, &secret, None).map(drop);
        new("http://127.0.0.1:1/x?y=z").expect("a webhook");
        for (url, says) in [
            ("http://example.com/", "in the clear"),
            ("ftp://127.0.0.1/", "write https://"),
            ("http://me:secret@127.0.0.1/", "without a user"),
            ("nonsense", "write https://"),
        ] {
            let error = new(url).expect_err(url).to_string();
            assert!(error.contains(says), "{error}");
        }
        write("short");
        let error = new("http://127.0.0.1:1/").expect_err("short").to_string();
        assert!(error.contains("16 bytes"), "{error}");
    }
}
