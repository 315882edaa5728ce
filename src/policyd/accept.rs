//! Takes connections, and hands on those whose peer has shown who it is, and that it speaks HTTP/2 where gates and
//! operators call.
//!
//! Each is seen to by itself, within a few seconds, and all of them are bounded: one that says nothing
//! holds up nobody.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::sync::{mpsc, watch};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;

use super::admission::{Admission, Admitted, Bounds};
use super::connection::{Connection, Origin, Peer, Proof, Refusal, begin_tls, read_preface};
use super::identity::GateIdentity;
use super::listen::Listener;
use super::throttle::Throttle;
use super::tls::Tls;
use crate::transport::Stream;

/// How long a connection may take to show who it is and that it speaks HTTP/2.
const OPENING_PATIENCE: Duration = Duration::from_secs(5);
/// How long one that is refused may take to read why.
const REFUSAL_PATIENCE: Duration = Duration::from_secs(2);
/// Before the next connection is accepted when one couldn't be.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Connections that are ready and wait to be served.
const READY: usize = 64;
/// Most connections at once; fewer where there are few descriptors.
const MAX_CONNECTIONS: usize = 8_192;
/// Descriptors that are left for everything else.
const OTHER_DESCRIPTORS: u64 = 64;

static NOT_ACCEPTED: Throttle = Throttle::new(Duration::from_secs(5));
static REFUSED: Throttle = Throttle::new(Duration::from_secs(1));
static FULL: Throttle = Throttle::new(Duration::from_secs(1));

/// What connections must come with.
#[derive(Debug)]
pub(super) struct Demands {
    /// TLS, and what may follow from it; `None`: none is spoken.
    pub(super) tls: Option<watch::Receiver<Arc<Tls>>>,
    /// The users whose processes may connect by a Unix socket.
    pub(super) users: Vec<u32>,
    /// Who is spoken with.
    pub(super) protocol: Protocol,
}

/// What is spoken on a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Protocol {
    /// gRPC's, which begins with a preface.
    Http2,
    /// A browser's.
    Http1,
}

/// Bounds for a process that may have so many descriptors. One peer gets half, so that there is room
/// for others.
pub(super) fn bounds(descriptors: u64) -> Bounds {
    let room = usize::try_from(descriptors.saturating_sub(OTHER_DESCRIPTORS)).unwrap_or(usize::MAX);
    let in_all = room.clamp(2, MAX_CONNECTIONS);
    Bounds {
        in_all,
        of_one_peer: in_all / 2,
    }
}

/// Takes connections until it is stopped, or what it returns is dropped.
pub(super) fn connections(
    listener: Listener,
    demands: Demands,
    bounds: Bounds,
    stopping: CancellationToken,
) -> mpsc::Receiver<std::io::Result<Connection>> {
    let (ready, connections) = mpsc::channel(READY);
    let entrance = Entrance {
        demands: Arc::new(demands),
        admission: Admission::new(bounds),
        ready,
    };
    tokio::spawn(async move {
        tokio::select! {
            () = entrance.take(listener) => {}
            () = stopping.cancelled() => {}
        }
    });
    connections
}

#[derive(Debug, Clone)]
struct Entrance {
    demands: Arc<Demands>,
    admission: Admission<Origin>,
    ready: mpsc::Sender<std::io::Result<Connection>>,
}

impl Entrance {
    /// Never ends by itself: what can't be accepted, because descriptors have run out or the peer has
    /// gone, must not end the service.
    async fn take(self, listener: Listener) {
        // The socket's file lives as long as it is listened at.
        match listener {
            Listener::Tcp(listener) => self.take_tcp(listener).await,
            Listener::Unix(listener, _file) => self.take_unix(listener).await,
        }
    }

    async fn take_tcp(self, listener: TcpListener) {
        loop {
            match listener.accept().await {
                Ok((stream, address)) => {
                    if let Some(admitted) = self.admit(origin(address.ip()), &address) {
                        tokio::spawn(self.clone().open_tcp(stream, address, admitted));
                    }
                }
                Err(error) => pause(&error).await,
            }
        }
    }

    async fn take_unix(self, listener: UnixListener) {
        loop {
            let accepted = listener.accept().await;
            match accepted.and_then(|(stream, _)| Ok((stream.peer_cred()?.uid(), stream))) {
                Ok((user, stream)) => {
                    let address = format!("a process of the user {user}");
                    if let Some(admitted) = self.admit(Origin::User(user), &address) {
                        tokio::spawn(self.clone().open_unix(stream, user, address, admitted));
                    }
                }
                Err(error) => pause(&error).await,
            }
        }
    }

    fn admit(&self, origin: Origin, address: &dyn std::fmt::Display) -> Option<Admitted<Origin>> {
        let full = match self.admission.admit(origin) {
            Ok(admitted) => return Some(admitted),
            Err(full) => full,
        };
        if let Some(held_back) = FULL.admit() {
            let bounds = self.admission.bounds();
            tracing::warn!(
                peer = %address,
                held_back,
                "refused a connection: there are as many as there may be ({full:?} of {bounds:?})"
            );
        }
        None
    }

    async fn open_tcp(self, stream: TcpStream, address: SocketAddr, admitted: Admitted<Origin>) {
        // Without it verdicts wait for acknowledgements of what was sent before.
        if let Err(error) = stream.set_nodelay(true) {
            tracing::debug!("setting TCP_NODELAY: {error}");
        }
        let protocol = self.demands.protocol;
        let tls = self.demands.tls.as_ref();
        let acceptor = tls.map(|tls| TlsAcceptor::from(tls.borrow().of(protocol)));
        let opening = open(stream, acceptor, protocol);
        let opened = tokio::time::timeout(OPENING_PATIENCE, opening).await;
        match opened {
            Ok(Ok((stream, proven))) => {
                let peer = Peer {
                    proven,
                    address: address.to_string().into(),
                };
                let connection = Connection::new(stream, peer, protocol, admitted);
                self.hand_on(connection).await;
            }
            Ok(Err((refusal, left))) => {
                refuse(&address, &refusal);
                if let Some(stream) = left {
                    see_off(stream).await;
                }
            }
            Err(_) => too_slow(&address),
        }
    }

    async fn open_unix(
        self,
        stream: UnixStream,
        user: u32,
        address: String,
        admitted: Admitted<Origin>,
    ) {
        let proven = if self.demands.users.contains(&user) {
            Proof::User(GateIdentity::uid(user))
        } else {
            Proof::Stranger
        };
        let peer = Peer {
            proven: Some(proven),
            address: address.into(),
        };
        let mut stream = Stream::Unix(stream);
        match tokio::time::timeout(OPENING_PATIENCE, read_preface(&mut stream)).await {
            Ok(Ok(())) => {
                let connection = Connection::new(stream, peer, Protocol::Http2, admitted);
                self.hand_on(connection).await;
            }
            Ok(Err(refusal)) => refuse(&peer.address, &refusal),
            Err(_) => too_slow(&peer.address),
        }
    }

    async fn hand_on(&self, connection: Connection) {
        // Nobody takes it while the service is stopping.
        let _ = self.ready.send(Ok(connection)).await;
    }
}

/// Does what a TCP connection begins with. One that is refused is given back where its peer may still
/// read why.
async fn open(
    stream: TcpStream,
    acceptor: Option<TlsAcceptor>,
    protocol: Protocol,
) -> Result<(Stream, Option<Proof>), (Refusal, Option<TcpStream>)> {
    let (mut stream, proven) = match acceptor {
        Some(acceptor) => begin_tls(stream, acceptor).await?,
        None => (Stream::Tcp(stream), None),
    };
    if protocol == Protocol::Http1 {
        return Ok((stream, proven));
    }
    match read_preface(&mut stream).await {
        Ok(()) => Ok((stream, proven)),
        Err(refusal) => {
            let left = match stream {
                Stream::Tcp(stream) => Some(stream),
                Stream::Tls(_) | Stream::Unix(_) => None,
            };
            Err((refusal, left))
        }
    }
}

fn origin(address: IpAddr) -> Origin {
    Origin::Network(match address.to_canonical() {
        IpAddr::V4(address) => u64::from(address.to_bits()),
        IpAddr::V6(address) => u64::try_from(address.to_bits() >> 64).unwrap_or_default(),
    })
}

fn refuse(address: &dyn std::fmt::Display, refusal: &Refusal) {
    if matches!(refusal, Refusal::Silent) {
        tracing::debug!(peer = %address, "a connection: {refusal}");
    } else if let Some(held_back) = REFUSED.admit() {
        tracing::warn!(peer = %address, held_back, "refused a connection: {refusal}");
    }
}

fn too_slow(address: &dyn std::fmt::Display) {
    if let Some(held_back) = REFUSED.admit() {
        tracing::warn!(
            peer = %address,
            held_back,
            "refused a connection: it took more than {} s to begin",
            OPENING_PATIENCE.as_secs()
        );
    }
}

/// Reads what a refused peer still sends, for a while: what is unread when a connection is closed makes
/// the kernel reset it, and the peer may then lose what it was told.
async fn see_off(mut stream: TcpStream) {
    let _ = stream.shutdown().await;
    let drained = async {
        let mut buffer = [0; 4096];
        let mut most = 256;
        while most > 0 && matches!(stream.read(&mut buffer).await, Ok(1..)) {
            most -= 1;
        }
    };
    // Whether it took all its time or not, the connection ends.
    let _ = tokio::time::timeout(REFUSAL_PATIENCE, drained).await;
}

async fn pause(error: &std::io::Error) {
    if let Some(held_back) = NOT_ACCEPTED.admit() {
        tracing::error!(held_back, "accepting a connection: {error}");
    }
    tokio::time::sleep(ACCEPT_PAUSE).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ipv6_peer_is_counted_by_its_network() {
        let origin = |text: &str| origin(text.parse().expect("an address"));
        assert_eq!(origin("::1"), origin("::2"));
        assert_ne!(origin("fe80::1"), origin("fe81::1"));
        assert_ne!(origin("127.0.0.1"), origin("127.0.0.2"));
        assert_eq!(origin("::ffff:127.0.0.1"), origin("127.0.0.1"));
    }

    #[test]
    fn one_peer_gets_half_and_few_descriptors_mean_few_connections() {
        assert_eq!(bounds(1 << 20).in_all, MAX_CONNECTIONS);
        assert_eq!(bounds(1 << 20).of_one_peer, MAX_CONNECTIONS / 2);
        assert_eq!(bounds(264).in_all, 200);
        assert_eq!(bounds(0).of_one_peer, 1);
    }
}
