//! A peer that speaks the local protocol by hand.

use std::io::Read;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::net::UnixStream;

use execgate::server::EscalationSession;
use execgate::sys::descriptor;
use execgate::sys::socket::{self, Kind, Wait};

use super::{PATIENCE, output, wrapped};

pub fn session_socket(session: &EscalationSession) -> BorrowedFd<'static> {
    let number = session.env()[std::ffi::OsStr::new("CODEX_ESCALATE_SOCKET")].to_str();
    descriptor::inherited(number.unwrap().parse().unwrap()).unwrap()
}

pub fn handshake(session: &EscalationSession) -> UnixStream {
    let (ours, theirs) = socket::pair(Kind::Stream).unwrap();
    let socket = session_socket(session);
    socket::send(socket, &[0], &[theirs.as_fd()], Wait::Blocking).unwrap();
    let stream = UnixStream::from(ours);
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
}

/// Sends bytes with more descriptors than `socket::send` lets through, as a hostile peer would: by Python.
/// All are its standard input.
pub fn send_by_hand(socket: BorrowedFd<'_>, bytes: &[u8], descriptors: usize) {
    let inherited = descriptor::duplicate_from(socket, 200).unwrap();
    let script = format!(
        "import socket, array\n\
         s = socket.socket(fileno={})\n\
         f = array.array('i', [0] * {descriptors})\n\
         s.sendmsg([bytes({bytes:?})], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, f)])\n",
        inherited.as_raw_fd(),
    );
    let status = std::process::Command::new("python3")
        .args(["-c", &script])
        .status()
        .unwrap();
    assert!(status.success());
}

pub fn frame(message: &[u8]) -> Vec<u8> {
    let length = u32::try_from(message.len()).unwrap();
    [&length.to_le_bytes()[..], message].concat()
}

/// Reads one frame; empty at the end of the stream.
pub async fn read_frame(stream: &UnixStream) -> String {
    let mut stream = stream.try_clone().unwrap();
    tokio::task::spawn_blocking(move || {
        let mut prefix = [0; 4];
        if stream.read_exact(&mut prefix).is_err() {
            return String::new();
        }
        let mut message = vec![0; u32::from_le_bytes(prefix) as usize];
        stream.read_exact(&mut message).unwrap();
        String::from_utf8(message).unwrap()
    })
    .await
    .unwrap()
}

/// The session still serves an honest asker.
pub async fn is_alive(session: &EscalationSession) {
    let got = output(wrapped(session, "/bin/true", &["true"])).await;
    assert!(got.status.success(), "{got:?}");
}
