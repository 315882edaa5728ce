#![allow(
    clippy::expect_used,
    reason = "a target says by a panic that it can't run"
)]

use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, OnceLock};

use tokio::runtime::{Builder, Runtime};

use super::connection::Connection;
use super::session::{accept, receive_handshake};
use super::share::Pool;
use crate::sys::socket::{self, Kind, MAX_DESCRIPTORS, Wait, pair};
use crate::wire::{self, EscalateRequest, Forward, HANDSHAKE, SuperExecMessage};

/// Most bytes that a socket takes for sure while nobody reads.
const FITS: usize = 32 << 10;

/// Descriptors of each kind, beginning with the one that a handshake carries.
fn descriptors() -> [BorrowedFd<'static>; 4] {
    static OPEN: OnceLock<[OwnedFd; 4]> = OnceLock::new();
    let open = OPEN.get_or_init(|| {
        let one = |kind| pair(kind).expect("a socket").0;
        [
            one(Kind::Stream),
            one(Kind::Datagram),
            one(Kind::Packets),
            File::open("/dev/null").expect("/dev/null").into(),
        ]
    });
    open.each_ref().map(AsFd::as_fd)
}

/// A datagram on the session's socket: how many descriptors, which, and the bytes. One that isn't exactly a
/// handshake is refused.
pub(crate) fn handshake(bytes: &[u8]) {
    let Some((count, rest)) = bytes.split_first() else {
        return;
    };
    let count = usize::from(*count) % (MAX_DESCRIPTORS + 1);
    let (kinds, datagram) = rest.split_at(rest.len().min(count));
    let kinds: Vec<_> = kinds.iter().map(|kind| usize::from(*kind) % 4).collect();
    let carried: Vec<_> = kinds.iter().map(|kind| descriptors()[*kind]).collect();
    let (sessions, gates) = pair(Kind::Datagram).expect("sockets");
    let datagram = &datagram[..datagram.len().min(FITS)];
    socket::send(sessions.as_fd(), datagram, &carried, Wait::Never).expect("it fits");
    let received = receive_handshake(&gates).expect("what was sent");
    let is_proper = datagram == HANDSHAKE && kinds == [0];
    assert_eq!(accept(received).is_ok(), is_proper);
}

/// What comes on a request's own stream, behind so many descriptors as the first byte says: messages, none with
/// more descriptors than belong to it.
pub(crate) fn stream(bytes: &[u8]) {
    thread_local! {
        static RUNTIME: Runtime = Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("a runtime");
    }
    let Some((count, stream)) = bytes.split_first() else {
        return;
    };
    let carried = vec![descriptors()[3]; usize::from(*count) % (MAX_DESCRIPTORS + 1)];
    let stream = &stream[..stream.len().min(FITS)];
    let (ours, gates) = pair(Kind::Stream).expect("sockets");
    // Two messages at least where there are two bytes, so that descriptors come with the later one.
    let (first, rest) = stream.split_at(stream.len() / 2);
    socket::send(ours.as_fd(), first, &[], Wait::Never).expect("it fits");
    if !rest.is_empty() {
        socket::send(ours.as_fd(), rest, &carried, Wait::Never).expect("it fits");
    }
    drop(ours);
    RUNTIME.with(|runtime| runtime.block_on(receive(gates)));
}

async fn receive(gates: OwnedFd) {
    // There is room for whatever is claimed: waiting for room is another matter.
    let pool = Pool::new(4 * wire::MAX_FRAME);
    let memory = Arc::new(pool.share(2 * wire::MAX_FRAME));
    let mut connection = Connection::new(gates, memory).expect("a socket");
    let mut most = 0;
    while let Ok(frame) = connection.receive(most).await {
        assert!(frame.descriptors.len() <= most, "too many descriptors");
        if most == 0 {
            let _ = EscalateRequest::decode(&frame.message);
        } else {
            let _ = wire::decode::<SuperExecMessage>("SuperExecMessage", &frame.message);
            let _ = wire::decode::<Forward>("Forward", &frame.message);
        }
        most = MAX_DESCRIPTORS;
        drop(frame);
        assert_eq!(pool.used(), 0, "memory of a message that is gone");
    }
    drop(connection);
    assert_eq!(pool.used(), 0, "memory of a request that is gone");
}
