use std::future::Future;
use std::io;
use std::path::Path;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, ReadBuf};
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::ServerName;
use tokio_rustls::rustls::{self, AlertDescription, CertificateError};
use tonic::codegen::Service;
use tonic::codegen::http::Uri;

use super::credentials::{CredentialFiles, Plaintext};
use super::endpoint::Place;
use super::obstacle::Obstacle;
use crate::sys::host;
use crate::transport::{self, CredentialError, Stream};

/// How long making a connection may take, TLS included.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);

/// TCP's own probes are no concern of the service. They find a dead host within 5 + 3 × 1 seconds.
const PROBE_AFTER: Duration = Duration::from_secs(5);
const PROBE_INTERVAL: Duration = Duration::from_secs(1);
const PROBES: u32 = 3;

/// The first byte of a TLS record with an alert, and of one with a handshake (RFC 8446, section 5.1).
const TLS_RECORDS: [u8; 2] = [0x15, 0x16];

/// How an answer of HTTP/1 begins. No answer of HTTP/2 does: it would be a frame longer than any may be.
const HTTP_1: &[u8] = b"HTTP/1";

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
pub(super) enum ConnectError {
    /// The network's word; `source` says where.
    #[error("{source}")]
    Network {
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    #[error("connecting to {path}: {source}")]
    Socket { path: String, source: io::Error },
    #[error("no connection within {} s", CONNECT_TIMEOUT.as_secs())]
    TimedOut,
    #[error("the connection ended during the TLS handshake: {0}")]
    Broken(io::Error),
    /// What stays so until somebody changes it.
    #[error("{0}")]
    Refused(Objection),
    #[error("{0}")]
    Credentials(#[from] CredentialError),
}

impl ConnectError {
    /// Why trying again soon is useless, where it is.
    pub(super) fn objection(&self) -> Option<Objection> {
        match self {
            Self::Refused(objection) => Some(objection.clone()),
            Self::Credentials(error) => Some(Objection::new(Obstacle::Files, error.to_string())),
            _ => None,
        }
    }
}

/// Why one end doesn't take the other, in words, and what that is where it is known.
#[derive(Debug, Clone)]
pub(super) struct Objection {
    pub(super) obstacle: Option<Obstacle>,
    words: String,
}

impl Objection {
    fn new(obstacle: impl Into<Option<Obstacle>>, words: impl Into<String>) -> Self {
        Self {
            obstacle: obstacle.into(),
            words: words.into(),
        }
    }
}

impl std::fmt::Display for Objection {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(&self.words)
    }
}

/// Makes the connections of an endpoint, each with credentials as they are then.
#[derive(Debug, Clone)]
pub(super) struct Connector {
    place: Place,
    files: Arc<CredentialFiles>,
    pub(super) refusal: Refusal,
}

/// What the service's side of the latest connection said about why it doesn't take it, below HTTP/2: TLS tells a gate
/// after the handshake that its certificate isn't wanted. What says nothing at all is no service.
#[derive(Debug, Clone, Default)]
pub(super) struct Refusal(Arc<Mutex<Option<Objection>>>);

impl Refusal {
    pub(super) fn get(&self) -> Option<Objection> {
        self.lock().clone()
    }

    fn set(&self, objection: Option<Objection>) {
        *self.lock() = objection;
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Option<Objection>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Connector {
    pub(super) fn new(place: Place, files: Arc<CredentialFiles>) -> Self {
        Self {
            place,
            files,
            refusal: Refusal::default(),
        }
    }

    async fn connect(self) -> Result<TokioIo<Connection>, ConnectError> {
        let connected = tokio::time::timeout(CONNECT_TIMEOUT, self.stream()).await;
        let stream = connected.map_err(|_| ConnectError::TimedOut)??;
        self.refusal.set(Some(unheard()));
        Ok(TokioIo::new(Connection {
            stream,
            is_silent: true,
            refusal: self.refusal,
        }))
    }

    async fn stream(&self) -> Result<Stream, ConnectError> {
        match &self.place {
            Place::Unix(path) => self.unix(path).await.map(Stream::Unix),
            Place::Http(uri) => {
                let stream = tcp(uri).await?;
                let is_exposed = self.files.named().plaintext == Plaintext::OnLoopback
                    && !stream.peer_addr().is_ok_and(|peer| peer.ip().is_loopback());
                // A name that is usually this host's may lead elsewhere.
                if is_exposed {
                    let objection = Objection::new(Obstacle::Plaintext, PLAINTEXT_ELSEWHERE);
                    return Err(ConnectError::Refused(objection));
                }
                Ok(Stream::Tcp(stream))
            }
            Place::Https(uri) => {
                let files = Arc::clone(&self.files);
                let config = tokio::task::spawn_blocking(move || files.tls())
                    .await
                    .map_err(|error| ConnectError::Broken(io::Error::other(error)))??;
                let host = uri.host().unwrap_or_default();
                let name = ServerName::try_from(host.trim_matches(['[', ']']).to_owned()).map_err(
                    |error| {
                        let words = format!("{host:?}: {error}");
                        ConnectError::Refused(Objection::new(None, words))
                    },
                )?;
                let stream = tcp(uri).await?;
                let shaken = TlsConnector::from(config).connect(name, stream).await;
                let stream = shaken.map_err(handshake_failure)?;
                Ok(Stream::Tls(Box::new(stream.into())))
            }
        }
    }

    async fn unix(&self, path: &Path) -> Result<UnixStream, ConnectError> {
        let socket_error = |source| ConnectError::Socket {
            path: path.display().to_string(),
            source,
        };
        let stream = UnixStream::connect(path).await.map_err(socket_error)?;
        let user = stream.peer_cred().map_err(socket_error)?.uid();
        let is_trusted =
            user == 0 || user == host::user().id || self.files.named().service_uids.contains(&user);
        if !is_trusted {
            let words = format!(
                "{} is a socket of the user {user}, which isn't trusted: only root, one's own user and \
                 those that are named are",
                path.display()
            );
            return Err(ConnectError::Refused(Objection::new(
                Obstacle::StrangeUser,
                words,
            )));
        }
        Ok(stream)
    }
}

/// Why a service elsewhere isn't spoken to in the clear.
pub(super) const PLAINTEXT_ELSEWHERE: &str = "http:// leads to another host, where whoever stands between could read commands and forge verdicts: \
     use https://";

async fn tcp(uri: &Uri) -> Result<TcpStream, ConnectError> {
    let mut connector = HttpConnector::new();
    connector.enforce_http(false);
    connector.set_nodelay(true);
    connector.set_keepalive(Some(PROBE_AFTER));
    connector.set_keepalive_interval(Some(PROBE_INTERVAL));
    connector.set_keepalive_retries(Some(PROBES));
    let connected = connector.call(uri.clone()).await;
    let stream = connected.map_err(|error| ConnectError::Network {
        source: error.into(),
    })?;
    Ok(stream.into_inner())
}

/// What the failure means, and whether it lasts.
fn handshake_failure(error: io::Error) -> ConnectError {
    use CertificateError as Invalid;
    use rustls::Error;
    let cause = error
        .get_ref()
        .and_then(|error| error.downcast_ref::<Error>());
    let objection = match cause {
        Some(Error::InvalidCertificate(invalid)) => match invalid {
            Invalid::UnknownIssuer => Objection::new(
                Obstacle::UntrustedService,
                "no CA that is trusted here has signed the service's certificate",
            ),
            Invalid::Expired | Invalid::ExpiredContext { .. } => Objection::new(
                Obstacle::ServiceCertificateTime,
                format!("the service's certificate has expired ({invalid})"),
            ),
            Invalid::NotValidYet | Invalid::NotValidYetContext { .. } => Objection::new(
                Obstacle::ServiceCertificateTime,
                format!("the service's certificate isn't valid yet ({invalid})"),
            ),
            Invalid::NotValidForName | Invalid::NotValidForNameContext { .. } => Objection::new(
                Obstacle::AnotherHost,
                format!("the service's certificate is another host's ({invalid})"),
            ),
            other => Objection::new(
                Obstacle::UntrustedService,
                format!("the service's certificate is refused: {other}"),
            ),
        },
        Some(Error::InvalidMessage(_)) => Objection::new(
            Obstacle::NoTls,
            "the service speaks no TLS there: https:// can't be used",
        ),
        Some(Error::AlertReceived(alert)) => refused_by_alert(*alert),
        Some(Error::NoApplicationProtocol) => {
            Objection::new(None, "what is there speaks TLS, but not HTTP/2")
        }
        Some(other) => Objection::new(None, format!("the TLS handshake failed: {other}")),
        None => return ConnectError::Broken(error),
    };
    ConnectError::Refused(objection)
}

/// What is wrong with a connection that breaks before anything was heard: by its end, by a reset, or by the pings that
/// nobody answers.
fn unheard() -> Objection {
    Objection::new(
        Obstacle::NoService,
        "what is there takes the connection, and says nothing, as servers do that don't speak gRPC",
    )
}

fn refused_by_alert(alert: AlertDescription) -> Objection {
    use AlertDescription as Alert;
    match alert {
        Alert::CertificateRequired => Objection::new(
            Obstacle::NoCertificate,
            "the service asks for a certificate, and none is shown",
        ),
        Alert::CertificateExpired => Objection::new(
            Obstacle::CertificateTime,
            "the service refuses the certificate that it is shown: it has expired, or isn't valid yet",
        ),
        Alert::UnknownCA | Alert::DecryptError => Objection::new(
            Obstacle::CertificateRefused,
            "the service refuses the certificate that it is shown: no CA that it trusts has signed it",
        ),
        Alert::BadCertificate
        | Alert::UnsupportedCertificate
        | Alert::CertificateUnknown
        | Alert::CertificateRevoked => Objection::new(
            Obstacle::CertificateRefused,
            format!("the service refuses the certificate that it is shown ({alert:?})"),
        ),
        other => Objection::new(None, format!("the service refuses TLS ({other:?})")),
    }
}

impl Service<Uri> for Connector {
    type Response = TokioIo<Connection>;
    type Error = ConnectError;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, ConnectError>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), ConnectError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Uri) -> Self::Future {
        Box::pin(self.clone().connect())
    }
}

/// A connection that notes why the other side refuses it.
#[derive(Debug)]
pub(super) struct Connection {
    stream: Stream,
    /// Nothing has been read yet.
    is_silent: bool,
    refusal: Refusal,
}

impl AsyncRead for Connection {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let before = buffer.filled().len();
        let read = Pin::new(&mut this.stream).poll_read(context, buffer);
        match &read {
            Poll::Ready(Err(error)) => {
                let cause = error.get_ref().and_then(|error| error.downcast_ref());
                if let Some(rustls::Error::AlertReceived(alert)) = cause {
                    this.refusal.set(Some(refused_by_alert(*alert)));
                }
            }
            Poll::Ready(Ok(())) if this.is_silent && buffer.filled().len() > before => {
                this.is_silent = false;
                let said = buffer.filled().get(before..).unwrap_or_default();
                let is_tcp = matches!(this.stream, Stream::Tcp(_));
                let objection = match said.first() {
                    Some(byte) if is_tcp && TLS_RECORDS.contains(byte) => Some(Objection::new(
                        Obstacle::OnlyTls,
                        "the service speaks TLS there: use https://",
                    )),
                    Some(_) if said.starts_with(HTTP_1) => Some(Objection::new(
                        Obstacle::NoService,
                        "what is there speaks HTTP/1, and a policy service gRPC",
                    )),
                    _ => None,
                };
                this.refusal.set(objection);
            }
            _ => {}
        }
        read
    }
}

transport::writes_go_to!(Connection, stream);

#[cfg(test)]
mod tests {
    use super::*;

    /// What the kernel does about a host that went without a word, on the very connections that are made.
    #[tokio::test]
    async fn a_host_that_is_dead_is_found_within_eight_seconds() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0")
            .await
            .expect("a port");
        let address = listener.local_addr().expect("an address");
        let uri = format!("http://{address}").parse().expect("an address");
        let stream = tcp(&uri).await.expect("a connection");
        let socket = socket2::SockRef::from(&stream);
        assert!(socket.keepalive().expect("a socket"));
        let after = socket.tcp_keepalive_time().expect("a socket");
        let interval = socket.tcp_keepalive_interval().expect("a socket");
        let probes = socket.tcp_keepalive_retries().expect("a socket");
        assert_eq!(after + probes * interval, Duration::from_secs(8));
        // A question is sent at once, whatever small went before it.
        assert!(stream.nodelay().expect("a socket"));
    }
}
