//! Where the service listens.

use std::net::{SocketAddr, ToSocketAddrs};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use futures_util::stream::{self, Stream};
use socket2::{Domain, SockAddr, Socket, Type};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};

use super::throttle::Throttle;

/// Connections that may wait to be accepted.
const BACKLOG: i32 = 1024;
/// Before the next connection is accepted when one couldn't be.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

static REFUSED: Throttle = Throttle::new(Duration::from_secs(5));

/// An address to listen at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ListenAddress {
    /// `HOST:PORT`; port 0 lets the kernel choose.
    Tcp(String),
    /// `unix:PATH`.
    Unix(PathBuf),
}

impl ListenAddress {
    /// Reads an address as it stands on a command line.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        if let Some(path) = text.strip_prefix("unix:") {
            if path.is_empty() {
                return Err("no path follows `unix:`".to_owned());
            }
            return Ok(Self::Unix(path.into()));
        }
        match text.rsplit_once(':') {
            Some((host, port)) if !host.is_empty() && port.parse::<u16>().is_ok() => {
                Ok(Self::Tcp(text.to_owned()))
            }
            _ => Err("write HOST:PORT, such as 127.0.0.1:50051, or unix:PATH".to_owned()),
        }
    }
}

impl std::fmt::Display for ListenAddress {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Tcp(address) => formatter.write_str(address),
            Self::Unix(path) => write!(formatter, "unix:{}", path.display()),
        }
    }
}

/// Who may reach a TCP address that has no encryption.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Exposure {
    /// Processes of this host.
    Loopback,
    /// Whoever reaches the host.
    Anyone,
}

/// Why an address can't be listened at.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    /// The name has no address.
    #[error("listening at {address}: {source}; check the host's name")]
    Resolve {
        /// The address.
        address: String,
        /// Why.
        source: std::io::Error,
    },
    /// The address can be reached from other hosts.
    #[error(
        "listening at {address}: {resolved} can be reached from other hosts, and this service has no \
         TLS and no authentication yet: whoever reaches it could read every command, and whoever stands \
         between could forge verdicts. Listen at 127.0.0.1 or unix:PATH, with a proxy that does TLS in \
         front, or say --insecure-listen"
    )]
    Exposed {
        /// The address.
        address: String,
        /// What it means.
        resolved: SocketAddr,
    },
    /// The address can't be bound.
    #[error("listening at {address}: {source}")]
    Bind {
        /// The address.
        address: String,
        /// Why.
        source: std::io::Error,
    },
    /// Something that isn't a socket has the path.
    #[error("listening at unix:{}: something that isn't a socket is there; give another path", path.display())]
    NotASocket {
        /// The path.
        path: PathBuf,
    },
    /// A process listens there.
    #[error("listening at unix:{}: a process listens there already; end it, or give another path", path.display())]
    InUse {
        /// The path.
        path: PathBuf,
    },
}

/// A socket that listens.
#[derive(Debug)]
pub(super) enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener, SocketFile),
}

/// Listens. Must be called inside a runtime.
pub(super) fn listen(
    address: &ListenAddress,
    exposure: Exposure,
) -> Result<(Listener, ListenAddress), ListenError> {
    match address {
        ListenAddress::Tcp(name) => listen_tcp(name, exposure),
        ListenAddress::Unix(path) => {
            listen_unix(path).map(|listener| (listener, ListenAddress::Unix(path.clone())))
        }
    }
}

/// Connections as they come. Never ends: what can't be accepted, because descriptors have run out
/// or the peer has gone, must not end the service.
pub(super) fn tcp_connections(
    listener: TcpListener,
) -> impl Stream<Item = std::io::Result<TcpStream>> {
    stream::unfold(listener, |listener| async {
        loop {
            match listener.accept().await {
                Ok((connection, _)) => {
                    // Without it verdicts wait for acknowledgements of what was sent before.
                    if let Err(error) = connection.set_nodelay(true) {
                        tracing::debug!("setting TCP_NODELAY: {error}");
                    }
                    return Some((Ok(connection), listener));
                }
                Err(error) => pause(&error).await,
            }
        }
    })
}

/// As [`tcp_connections`].
pub(super) fn unix_connections(
    listener: UnixListener,
) -> impl Stream<Item = std::io::Result<UnixStream>> {
    stream::unfold(listener, |listener| async {
        loop {
            match listener.accept().await {
                Ok((connection, _)) => return Some((Ok(connection), listener)),
                Err(error) => pause(&error).await,
            }
        }
    })
}

async fn pause(error: &std::io::Error) {
    if let Some(held_back) = REFUSED.admit() {
        tracing::error!(held_back, "accepting a connection: {error}");
    }
    tokio::time::sleep(ACCEPT_PAUSE).await;
}

fn listen_tcp(name: &str, exposure: Exposure) -> Result<(Listener, ListenAddress), ListenError> {
    let resolve_error = |source| ListenError::Resolve {
        address: name.to_owned(),
        source,
    };
    let resolved: Vec<_> = name.to_socket_addrs().map_err(resolve_error)?.collect();
    let Some(first) = resolved.first().copied() else {
        return Err(resolve_error(std::io::ErrorKind::NotFound.into()));
    };
    if exposure == Exposure::Loopback
        && let Some(exposed) = resolved.iter().find(|address| !address.ip().is_loopback())
    {
        return Err(ListenError::Exposed {
            address: name.to_owned(),
            resolved: *exposed,
        });
    }
    let bind = || {
        let socket = Socket::new(Domain::for_address(first), Type::STREAM, None)?;
        socket.set_reuse_address(true)?;
        socket.set_nonblocking(true)?;
        socket.bind(&first.into())?;
        socket.listen(BACKLOG)?;
        let listener = TcpListener::from_std(socket.into())?;
        let bound = listener.local_addr()?;
        Ok((
            Listener::Tcp(listener),
            ListenAddress::Tcp(bound.to_string()),
        ))
    };
    bind().map_err(|source| ListenError::Bind {
        address: name.to_owned(),
        source,
    })
}

fn listen_unix(path: &Path) -> Result<Listener, ListenError> {
    remove_stale(path)?;
    let bind = || {
        let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
        socket.set_nonblocking(true)?;
        socket.bind(&SockAddr::unix(path)?)?;
        let file = SocketFile::bound(path)?;
        // Nobody can connect before `listen`, so the mode is in force before the first connection.
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))?;
        socket.listen(BACKLOG)?;
        let listener = UnixListener::from_std(socket.into())?;
        Ok(Listener::Unix(listener, file))
    };
    bind().map_err(|source| ListenError::Bind {
        address: format!("unix:{}", path.display()),
        source,
    })
}

/// Removes a socket that no process listens at, as a killed one leaves it.
fn remove_stale(path: &Path) -> Result<(), ListenError> {
    let bind_error = |source| ListenError::Bind {
        address: format!("unix:{}", path.display()),
        source,
    };
    let metadata = match std::fs::symlink_metadata(path) {
        Ok(metadata) => metadata,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(bind_error(error)),
    };
    if !metadata.file_type().is_socket() {
        return Err(ListenError::NotASocket {
            path: path.to_owned(),
        });
    }
    match std::os::unix::net::UnixStream::connect(path) {
        Err(error) if error.kind() == std::io::ErrorKind::ConnectionRefused => {
            std::fs::remove_file(path).map_err(bind_error)
        }
        Err(error) => Err(bind_error(error)),
        Ok(_) => Err(ListenError::InUse {
            path: path.to_owned(),
        }),
    }
}

/// The file of a socket that was bound here. Dropping it removes the file, unless another one has
/// taken its place.
#[derive(Debug)]
pub(super) struct SocketFile {
    path: PathBuf,
    identity: (u64, u64),
}

impl SocketFile {
    fn bound(path: &Path) -> std::io::Result<Self> {
        let metadata = std::fs::symlink_metadata(path)?;
        Ok(Self {
            path: path.to_owned(),
            identity: (metadata.dev(), metadata.ino()),
        })
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        let is_ours = std::fs::symlink_metadata(&self.path)
            .is_ok_and(|metadata| (metadata.dev(), metadata.ino()) == self.identity);
        if is_ours {
            // It is gone already, or whoever cleans the directory has it.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_from_the_command_line() {
        let tcp = |text: &str| Ok(ListenAddress::Tcp(text.to_owned()));
        assert_eq!(ListenAddress::parse("127.0.0.1:0"), tcp("127.0.0.1:0"));
        assert_eq!(ListenAddress::parse("[::1]:5"), tcp("[::1]:5"));
        assert_eq!(
            ListenAddress::parse("unix:/run/x y"),
            Ok(ListenAddress::Unix("/run/x y".into()))
        );
        for wrong in ["", "host", "host:", ":5", "host:99999", "unix:", "/run/x"] {
            assert!(ListenAddress::parse(wrong).is_err(), "{wrong}");
        }
    }

    #[tokio::test]
    async fn what_others_can_reach_must_be_asked_for() {
        let everywhere = ListenAddress::Tcp("0.0.0.0:0".to_owned());
        assert!(matches!(
            listen(&everywhere, Exposure::Loopback),
            Err(ListenError::Exposed { .. })
        ));
    }

    #[tokio::test]
    async fn a_socket_file_is_private_and_taken_over_only_when_stale() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("s");
        let address = ListenAddress::Unix(path.clone());

        let (listener, _) = listen(&address, Exposure::Loopback).expect("bound");
        let mode = std::fs::metadata(&path)
            .expect("there")
            .permissions()
            .mode();
        assert_eq!(mode & 0o777, 0o600);
        assert!(matches!(
            listen(&address, Exposure::Loopback),
            Err(ListenError::InUse { .. })
        ));
        drop(listener);
        assert!(!path.exists());

        drop(std::os::unix::net::UnixListener::bind(&path).expect("bound"));
        assert!(path.exists());
        let (listener, _) = listen(&address, Exposure::Loopback).expect("taken over");
        std::fs::remove_file(&path).expect("removed");
        std::fs::write(&path, "mine").expect("a file");
        drop(listener);
        assert_eq!(std::fs::read(&path).expect("still there"), b"mine");
        assert!(matches!(
            listen(&address, Exposure::Loopback),
            Err(ListenError::NotASocket { .. })
        ));
    }
}
