use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use tonic::codegen::http::Uri;

use super::connector::{Connector, PLAINTEXT_ELSEWHERE};
use super::credentials::{CredentialFiles, LinkCredentials, Plaintext, Tls};
use super::obstacle::Obstacle;
use crate::transport::CredentialError;

/// Longest path that a Unix socket address takes (`sun_path` of unix(7), less its NUL).
const LONGEST_SOCKET_PATH: usize = 107;

/// HTTP/2 pings find a peer that hangs, or a connection that died behind a proxy: within the sum of
/// interval and timeout.
const PING_INTERVAL: Duration = Duration::from_secs(5);
const PING_TIMEOUT: Duration = Duration::from_secs(4);

/// The same where there is another endpoint to turn to: soon enough for a verdict from there within
/// the default deadline.
const SHORT_PING_INTERVAL: Duration = Duration::from_secs(2);
const SHORT_PING_TIMEOUT: Duration = Duration::from_secs(2);

/// Ping interval for a service that calls that too many. gRPC servers accept one ping in five minutes
/// unless told otherwise (gRFC A8); this is a little more.
const CALM_PING_INTERVAL: Duration = Duration::from_secs(310);

/// Answers are small; what is large goes the other way, where the service's windows count.
const STREAM_WINDOW: u32 = 1024 * 1024;
const CONNECTION_WINDOW: u32 = 16 * 1024 * 1024;

/// Where a policy service is: `http://HOST:PORT`, `https://HOST[:PORT]` or `unix:/PATH`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Endpoint(Place);

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Place {
    Http(Uri),
    Https(Uri),
    Unix(PathBuf),
}

/// Why a text names no endpoint.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum EndpointError {
    /// It has no scheme.
    #[error("{0:?} has no scheme: write http://HOST:PORT, https://HOST:PORT or unix:/PATH")]
    NoScheme(String),
    /// Its scheme isn't known.
    #[error("{0:?} is no scheme of a policy service: use http, https or unix")]
    UnknownScheme(String),
    /// It isn't a URI.
    #[error("{text:?} is no address of the form http://HOST:PORT: {reason}")]
    Malformed {
        /// What was given.
        text: String,
        /// What is wrong with it.
        reason: String,
    },
    /// It has no port.
    #[error("{0:?} has no port: gRPC over http has no port of its own, write http://HOST:PORT")]
    NoPort(String),
    /// Something stands behind the port.
    #[error("something stands behind {0:?}: leave it out, the service's path is fixed")]
    Path(String),
    /// It holds a user name or password.
    #[error("the endpoint holds a user name or password, which gRPC doesn't use")]
    Credentials,
    /// The path of the socket is relative.
    #[error("{0:?} is a relative path: write unix:/PATH with an absolute one")]
    RelativeSocketPath(String),
    /// The path of the socket is too long.
    #[error("the socket path has {0} bytes; Unix allows at most 107")]
    SocketPathTooLong(usize),
}

/// Why no connections can be made to an endpoint.
#[derive(Debug, thiserror::Error)]
#[error("the policy service {endpoint}: {source}")]
pub struct PrepareError {
    endpoint: String,
    source: Box<PrepareCause>,
}

#[derive(Debug, thiserror::Error)]
enum PrepareCause {
    #[error("{PLAINTEXT_ELSEWHERE}")]
    Exposed,
    #[error(transparent)]
    Credentials(CredentialError),
}

impl PrepareError {
    /// What has to be changed.
    #[must_use]
    pub fn obstacle(&self) -> Obstacle {
        match *self.source {
            PrepareCause::Exposed => Obstacle::Plaintext,
            PrepareCause::Credentials(_) => Obstacle::Files,
        }
    }
}

/// How often to send HTTP/2 pings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Pings {
    /// Often enough to find a dead peer within four seconds.
    VeryOften,
    /// Often enough to find one within nine.
    Often,
    /// As seldom as services want that have complained.
    Seldom,
}

impl Pings {
    pub(super) fn interval(self) -> Duration {
        match self {
            Self::VeryOften => SHORT_PING_INTERVAL,
            Self::Often => PING_INTERVAL,
            Self::Seldom => CALM_PING_INTERVAL,
        }
    }
}

impl Endpoint {
    /// What makes connections to it.
    pub(super) fn connector(
        &self,
        credentials: &LinkCredentials,
    ) -> Result<(Connector, Arc<CredentialFiles>), PrepareError> {
        let prepare_error = |source| PrepareError {
            endpoint: self.to_string(),
            source: Box::new(source),
        };
        let tls = match &self.0 {
            Place::Https(_) => Tls::Spoken,
            Place::Http(uri) => {
                if credentials.plaintext == Plaintext::OnLoopback && !is_loopback(uri) {
                    return Err(prepare_error(PrepareCause::Exposed));
                }
                Tls::NotSpoken
            }
            Place::Unix(_) => Tls::NotSpoken,
        };
        let files = CredentialFiles::new(credentials.clone(), tls)
            .map_err(|error| prepare_error(PrepareCause::Credentials(error)))?;
        let files = Arc::new(files);
        Ok((Connector::new(self.0.clone(), Arc::clone(&files)), files))
    }

    /// How HTTP/2 is spoken there.
    pub(super) fn transport(&self, pings: Pings) -> tonic::transport::Endpoint {
        let uri = match &self.0 {
            Place::Http(uri) | Place::Https(uri) => uri.clone(),
            // What services see as the authority, as from other implementations of gRPC.
            Place::Unix(_) => Uri::from_static("http://localhost"),
        };
        tonic::transport::Endpoint::from(uri)
            .http2_keep_alive_interval(pings.interval())
            .keep_alive_timeout(match pings {
                Pings::VeryOften => SHORT_PING_TIMEOUT,
                Pings::Often | Pings::Seldom => PING_TIMEOUT,
            })
            // A connection without a call has nothing to lose, and services object to such pings.
            .keep_alive_while_idle(false)
            .initial_stream_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
    }
}

/// Whether a host is this one, by what it is called.
fn is_loopback(uri: &Uri) -> bool {
    let host = uri.host().unwrap_or_default();
    let address = host.trim_matches(['[', ']']).parse::<IpAddr>();
    address.map_or_else(
        |_| host.eq_ignore_ascii_case("localhost"),
        |address| address.is_loopback(),
    )
}

impl FromStr for Endpoint {
    type Err = EndpointError;

    fn from_str(text: &str) -> Result<Self, EndpointError> {
        // Before anything is shown of it: a password belongs in no message.
        if !text.starts_with("unix:") && text.contains('@') {
            return Err(EndpointError::Credentials);
        }
        let Some((scheme, rest)) = text.split_once(':') else {
            return Err(EndpointError::NoScheme(text.to_owned()));
        };
        match scheme {
            "unix" => socket(rest).map(|path| Self(Place::Unix(path))),
            "http" | "https" => {
                let uri = web_address(text)?;
                match (scheme, uri.port_u16()) {
                    ("https", _) => Ok(Self(Place::Https(uri))),
                    (_, Some(_)) => Ok(Self(Place::Http(uri))),
                    (_, None) => Err(EndpointError::NoPort(text.to_owned())),
                }
            }
            // `localhost:50051` and `[::1]:50051` have a colon as well, but no scheme before it.
            _ if rest.starts_with("//") => Err(EndpointError::UnknownScheme(scheme.to_owned())),
            _ => Err(EndpointError::NoScheme(text.to_owned())),
        }
    }
}

fn web_address(text: &str) -> Result<Uri, EndpointError> {
    let malformed = |reason: String| EndpointError::Malformed {
        text: text.to_owned(),
        reason,
    };
    let uri: Uri = text
        .parse()
        .map_err(|error: tonic::codegen::http::uri::InvalidUri| malformed(error.to_string()))?;
    let authority = uri
        .authority()
        .ok_or_else(|| malformed("it has no host".to_owned()))?;
    if authority.host().is_empty() {
        return Err(malformed("it has no host".to_owned()));
    }
    let port = authority.as_str().strip_prefix(authority.host());
    if port.is_some_and(|port| !port.is_empty()) && authority.port_u16().is_none() {
        return Err(malformed("its port is no number up to 65535".to_owned()));
    }
    if !matches!(uri.path(), "" | "/") || uri.query().is_some() {
        // Not what stands there: it may be a secret.
        let scheme = uri.scheme_str().unwrap_or_default();
        return Err(EndpointError::Path(format!("{scheme}://{authority}")));
    }
    Ok(uri)
}

/// `/PATH` or `///PATH`, behind `unix:`.
fn socket(rest: &str) -> Result<PathBuf, EndpointError> {
    let path = rest.strip_prefix("//").unwrap_or(rest);
    if path.len() > LONGEST_SOCKET_PATH {
        return Err(EndpointError::SocketPathTooLong(path.len()));
    }
    if path.contains('\0') {
        return Err(EndpointError::Malformed {
            text: rest.to_owned(),
            reason: "a path has no NUL".to_owned(),
        });
    }
    if !Path::new(path).is_absolute() {
        return Err(EndpointError::RelativeSocketPath(path.to_owned()));
    }
    Ok(PathBuf::from(path))
}

impl std::fmt::Display for Endpoint {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.0 {
            Place::Http(uri) | Place::Https(uri) => {
                formatter.write_str(uri.to_string().trim_end_matches('/'))
            }
            Place::Unix(path) => write!(formatter, "unix:{}", path.display()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_three_kinds_parse() {
        for (text, shown) in [
            ("http://127.0.0.1:50051", "http://127.0.0.1:50051"),
            ("http://[::1]:50051/", "http://[::1]:50051"),
            ("https://policy.example:443", "https://policy.example:443"),
            ("https://policy.example", "https://policy.example"),
            ("unix:/run/policy.sock", "unix:/run/policy.sock"),
            ("unix:///run/policy.sock", "unix:/run/policy.sock"),
        ] {
            let endpoint: Endpoint = text.parse().expect(text);
            assert_eq!(endpoint.to_string(), shown);
        }
    }

    #[test]
    fn what_is_wrong_is_said() {
        use EndpointError as Error;
        let error = |text: &str| text.parse::<Endpoint>().expect_err(text);
        for text in [
            "",
            "localhost",
            "localhost:50051",
            "[::1]:50051",
            "/run/policy.sock",
        ] {
            assert_eq!(error(text), Error::NoScheme(text.to_owned()));
        }
        assert_eq!(
            error("grpc://localhost:1"),
            Error::UnknownScheme("grpc".to_owned())
        );
        assert!(matches!(error("http://"), Error::Malformed { .. }));
        assert!(matches!(error("http://:1"), Error::Malformed { .. }));
        assert!(matches!(error("http:localhost:1"), Error::Malformed { .. }));
        assert!(matches!(
            error("http://host:99999"),
            Error::Malformed { .. }
        ));
        assert!(matches!(error("http://host"), Error::NoPort(_)));
        assert!(matches!(error("http://host:1/path"), Error::Path(_)));
        assert!(matches!(error("http://host:1?query"), Error::Path(_)));
        assert_eq!(error("http://me:secret@host:1"), Error::Credentials);
        assert!(matches!(error("unix:run/s"), Error::RelativeSocketPath(_)));
        assert!(matches!(
            error("unix://run/s"),
            Error::RelativeSocketPath(_)
        ));
        assert!(matches!(error("unix:"), Error::RelativeSocketPath(_)));
        let long = format!("unix:/{}", "a".repeat(107));
        assert_eq!(error(&long), Error::SocketPathTooLong(108));
        for text in [
            "http://me:secret@host:1",
            "http://me:sec ret@host:1",
            "http://me:secret@host:99999",
            "http://me:secret@",
            "me:secret@host:1",
            "grpc://me:secret@host:1",
            "http://host:1/secret",
            "http://host:1?token=secret",
        ] {
            let error = error(text).to_string();
            assert!(!error.contains("sec"), "{text}: {error}");
        }
    }
}
