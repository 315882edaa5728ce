//! Where the service listens.

use std::net::{SocketAddr, ToSocketAddrs};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use socket2::{Domain, SockAddr, Socket, Type};
use tokio::net::{TcpListener, UnixListener};

/// Connections that may wait to be accepted.
const BACKLOG: i32 = 1024;

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
        if text.contains("://") {
            return Err(
                "write HOST:PORT alone, such as 127.0.0.1:50051, or unix:PATH: no http:// or https:// \
                 (--tls-cert is what has it speak TLS)"
                    .to_owned(),
            );
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

/// Who may reach a TCP address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Exposure {
    /// Processes of this host, because something is missing for others.
    Loopback(Missing),
    /// Whoever reaches the host.
    Anyone,
}

/// What other hosts must not be let in without.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Missing {
    /// The service speaks no TLS.
    Tls,
    /// It does, and asks gates for nothing.
    ClientAuthentication,
    /// The console speaks no TLS.
    TlsOfConsole,
}

impl std::fmt::Display for Missing {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(match self {
            Self::Tls => {
                "without TLS, whoever stands between could read every command and forge verdicts; give \
                 --tls-cert and --tls-key, and --client-ca or --tokens. Or listen at 127.0.0.1 or unix:PATH, or say \
                 --insecure-listen"
            }
            Self::ClientAuthentication => {
                "without authentication of gates, whoever reaches it could fill the record with inventions \
                 and take up its time; give --client-ca or --tokens. Or listen at 127.0.0.1, or say \
                 --insecure-listen"
            }
            Self::TlsOfConsole => {
                "without TLS, whoever stands between could read the tokens of those who log in, and decide with \
                 them; give --tls-cert and --tls-key. Or give an address of this host alone, 127.0.0.1:PORT, which \
                 `ssh -L` reaches from elsewhere"
            }
        })
    }
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
    #[error("listening at {address}: {resolved} can be reached from other hosts, and {missing}")]
    Exposed {
        /// The address.
        address: String,
        /// What it means.
        resolved: SocketAddr,
        /// What it lacks.
        missing: Missing,
    },
    /// The address can't be bound.
    #[error("listening at {address}: {source}{}", advice(source))]
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

/// What to do where an address can't be listened at, to stand behind the reason.
pub(super) fn advice(error: &std::io::Error) -> &'static str {
    match error.kind() {
        std::io::ErrorKind::AddrInUse => {
            "; another process listens there: end it, or give another port (0: any that is free)"
        }
        std::io::ErrorKind::AddrNotAvailable => "; give an address that this host has",
        std::io::ErrorKind::PermissionDenied => {
            "; give a port from 1024 on, or a directory of this user's"
        }
        _ => "",
    }
}

/// Which users may open a Unix socket, before the service looks at who they are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Doors {
    /// The service's own, and root.
    Own,
    /// All: the service lets in those it was told of.
    All,
}

impl Doors {
    fn mode(self) -> u32 {
        match self {
            Self::Own => 0o600,
            Self::All => 0o666,
        }
    }
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
    doors: Doors,
) -> Result<(Listener, ListenAddress), ListenError> {
    match address {
        ListenAddress::Tcp(name) => listen_tcp(name, exposure),
        ListenAddress::Unix(path) => {
            listen_unix(path, doors).map(|listener| (listener, ListenAddress::Unix(path.clone())))
        }
    }
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
    if let Exposure::Loopback(missing) = exposure
        && let Some(exposed) = resolved.iter().find(|address| !address.ip().is_loopback())
    {
        return Err(ListenError::Exposed {
            address: name.to_owned(),
            resolved: *exposed,
            missing,
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

fn listen_unix(path: &Path, doors: Doors) -> Result<Listener, ListenError> {
    remove_stale(path)?;
    let bind = || {
        let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
        socket.set_nonblocking(true)?;
        socket.bind(&SockAddr::unix(path)?)?;
        let file = SocketFile::bound(path)?;
        // Nobody can connect before `listen`, so the mode is in force before the first connection.
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(doors.mode()))?;
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
            listen(&everywhere, Exposure::Loopback(Missing::Tls), Doors::Own),
            Err(ListenError::Exposed { .. })
        ));
    }

    #[tokio::test]
    async fn a_socket_file_is_private_and_taken_over_only_when_stale() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("s");
        let address = ListenAddress::Unix(path.clone());

        let (listener, _) =
            listen(&address, Exposure::Loopback(Missing::Tls), Doors::Own).expect("bound");
        let mode = std::fs::metadata(&path)
            .expect("there")
            .permissions()
            .mode();
        assert_eq!(mode & 0o777, 0o600);
        assert!(matches!(
            listen(&address, Exposure::Loopback(Missing::Tls), Doors::Own),
            Err(ListenError::InUse { .. })
        ));
        drop(listener);
        assert!(!path.exists());

        drop(std::os::unix::net::UnixListener::bind(&path).expect("bound"));
        assert!(path.exists());
        let (listener, _) =
            listen(&address, Exposure::Loopback(Missing::Tls), Doors::Own).expect("taken over");
        std::fs::remove_file(&path).expect("removed");
        std::fs::write(&path, "mine").expect("a file");
        drop(listener);
        assert_eq!(std::fs::read(&path).expect("still there"), b"mine");
        assert!(matches!(
            listen(&address, Exposure::Loopback(Missing::Tls), Doors::Own),
            Err(ListenError::NotASocket { .. })
        ));
    }
}
