use alloc::ffi::CString;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::ffi::CStr;
use core::mem::MaybeUninit;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use rustix::io::{Errno, FdFlags, IoSlice, fcntl_dupfd_cloexec, fcntl_setfd, retry_on_intr};
use rustix::net::sockopt::{socket_domain, socket_type};
use rustix::net::{
    AddressFamily, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags,
    SocketType, recv, send, sendmsg, socketpair,
};

use super::failure::{Failure, Words, say};
use crate::sys::entry::{self, Invocation};
use crate::sys::open_files::RaisedOpenFiles;
use crate::wire::{
    self, Action, EscalateResponse, FrameReader, HANDSHAKE, RequestFields, SESSION_VARIABLES,
    SOCKET_VARIABLE, WaitNotice,
};

/// Most characters of what is said while a person decides.
const MOST_NOTICE: usize = 1_000;

/// How often that may be said: a gate does it once, and the memory that it takes here is given back only at the end.
const MOST_NOTICES: usize = 100;

/// A question that the gate has got.
pub(super) struct Question {
    /// The request's own stream.
    pub(super) stream: OwnedFd,
    /// The session's socket, which is nobody's but the wrapper's.
    pub(super) session: BorrowedFd<'static>,
    /// Whether the gate says when an escalated command stops.
    pub(super) gate_tells_stops: bool,
    reader: FrameReader,
}

/// Asks the gate whether this process may execute `file` with the rest of its arguments.
pub(super) fn ask(invocation: Invocation, file: &CStr) -> Result<Question, Failure> {
    let session = session_socket(invocation)?;
    let workdir = working_directory();
    let request = RequestFields {
        file: file.to_bytes(),
        argv: invocation
            .arguments()
            .iter()
            .skip(2)
            .map(CStr::to_bytes)
            .collect(),
        workdir: &workdir,
        env: invocation
            .environment()
            .iter()
            .map(CStr::to_bytes)
            .filter(|entry| !SESSION_VARIABLES.iter().any(|name| is_named(entry, name)))
            .collect(),
        // Nobody reads a line that goes elsewhere, and programs may not expect it there.
        notices: entry::inherited(2).is_ok_and(rustix::termios::isatty),
    };
    let frame = wire::encode(&request).map_err(|error| {
        Failure::new(
            "ask the gate",
            error,
            "the command's arguments and environment are too long",
        )
    })?;
    let (stream, gates) = match pair() {
        // INVAL: of a number that the limit doesn't allow.
        Err(Errno::MFILE | Errno::INVAL) => {
            // For as long as it takes: the command gets its own limit.
            let raised = RaisedOpenFiles::new();
            let pair = pair();
            drop(raised);
            pair
        }
        other => other,
    }
    .map_err(|error| {
        Failure::new(
            "ask the gate",
            Words(error),
            "a command needs two free descriptors, see ulimit -n; nothing was run",
        )
    })?;
    // What fits goes ahead of the handshake, so that the gate finds the question there: one wake-up
    // for each side, and nobody who asks can be half-way.
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    let sent = match retry_on_intr(|| send(&stream, &frame, flags)) {
        Err(Errno::AGAIN) => 0,
        other => other.map_err(lost)?,
    };
    shake_hands(session, gates.as_fd()).map_err(lost)?;
    drop(gates);
    // A gate that has read enough to refuse doesn't read the rest: its answer is there all the same.
    let _ = send_all(&stream, &frame[sent..]);
    Ok(Question {
        stream,
        session,
        gate_tells_stops: false,
        reader: FrameReader::default(),
    })
}

impl Question {
    /// Waits for the verdict.
    pub(super) fn answer(&mut self) -> Result<Action, Failure> {
        for _ in 0..MOST_NOTICES {
            let message = read_frame(&self.stream, &mut self.reader)?;
            let error = match wire::decode::<EscalateResponse>("EscalateResponse", &message) {
                Ok(response) => {
                    self.gate_tells_stops = response.notices == Some(true);
                    return Ok(response.action);
                }
                Err(error) => error,
            };
            match wire::decode::<WaitNotice>("WaitNotice", &message) {
                Ok(notice) => say(&format_args!("execgate: {}", one_line(&notice.waiting))),
                Err(_) => {
                    return Err(Failure::new(
                        "understand the gate",
                        error,
                        "gate and wrapper may be of different versions; nothing was run",
                    ));
                }
            }
        }
        Err(Failure::new(
            "understand the gate",
            format_args!("it says for the {MOST_NOTICES}th time that a person decides"),
            "nothing was run",
        ))
    }

    /// Lets the stream stay open in the program that the wrapper becomes.
    pub(super) fn keep_open(&self) -> Result<(), Failure> {
        fcntl_setfd(&self.stream, FdFlags::empty()).map_err(lost)
    }
}

/// Waits for one whole message.
pub(crate) fn read_frame(stream: impl AsFd, reader: &mut FrameReader) -> Result<Vec<u8>, Failure> {
    loop {
        if let Some(message) = reader.take().map_err(Failure::gate_lost)? {
            return Ok(message);
        }
        let buffer = reader.buffer().map_err(Failure::gate_lost)?;
        let offered = buffer.len();
        let received = retry_on_intr(|| recv(stream.as_fd(), &mut *buffer, RecvFlags::empty()));
        let received = received.map(|(count, _)| count);
        reader.filled(offered, received.unwrap_or(0));
        if received.map_err(lost)? == 0 {
            return Err(Failure::gate_lost("it went away without an answer"));
        }
    }
}

/// Text as one line that does nothing to a terminal, and not a long one.
pub(super) fn one_line(text: &str) -> String {
    let plain = |character: char| match character {
        character if character.is_control() => '\u{fffd}',
        // What ends a line, or turns the direction of the text around.
        '\u{061c}'
        | '\u{200e}'
        | '\u{200f}'
        | '\u{2028}'..='\u{202e}'
        | '\u{2066}'..='\u{2069}' => '\u{fffd}',
        character => character,
    };
    text.chars().take(MOST_NOTICE).map(plain).collect()
}

/// Sends the gate its end of the stream.
fn shake_hands(session: BorrowedFd<'_>, gates: BorrowedFd<'_>) -> Result<(), Errno> {
    let gates = [gates];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    control.push(SendAncillaryMessage::ScmRights(&gates));
    loop {
        let bytes = [IoSlice::new(&HANDSHAKE)];
        match retry_on_intr(|| sendmsg(session, &bytes, &mut control, SendFlags::NOSIGNAL)) {
            // Somebody made the socket non-blocking. That isn't ours to change.
            Err(Errno::AGAIN) => {
                retry_on_intr(|| poll(&mut [PollFd::new(&session, PollFlags::OUT)], None))?;
            }
            other => return other.map(drop),
        }
    }
}

/// Sends all of `bytes`.
fn send_all(stream: &OwnedFd, mut bytes: &[u8]) -> Result<(), Errno> {
    while !bytes.is_empty() {
        let sent = retry_on_intr(|| send(stream, bytes, SendFlags::NOSIGNAL))?;
        bytes = &bytes[sent..];
    }
    Ok(())
}

fn is_named(entry: &[u8], name: &str) -> bool {
    entry
        .strip_prefix(name.as_bytes())
        .is_some_and(|rest| rest.first() == Some(&b'='))
}

/// The session's socket, by the environment. Nothing is done to a descriptor that isn't one.
fn session_socket(invocation: Invocation) -> Result<BorrowedFd<'static>, Failure> {
    const HINT: &str = "this shell was started to run under execgate; nothing was run";
    let failure = |cause: String| Failure::new("find the gate", cause, HINT);
    let value = invocation
        .variable(SOCKET_VARIABLE)
        .ok_or_else(|| failure(format!("{SOCKET_VARIABLE} is not set")))?;
    let number = core::str::from_utf8(value)
        .ok()
        .and_then(|text| text.parse().ok())
        .ok_or_else(|| failure(format!("{SOCKET_VARIABLE} is not a number")))?;
    let session = entry::inherited(number)
        .map_err(|_| failure(format!("descriptor {number} was closed on the way here")))?;
    let is_sessions = socket_domain(session) == Ok(AddressFamily::UNIX)
        && socket_type(session) == Ok(SocketType::DGRAM);
    if is_sessions {
        Ok(session)
    } else {
        Err(failure(format!(
            "descriptor {number} is not the session's socket"
        )))
    }
}

/// The working directory: absolute, and for one that no name leads to, what the kernel calls it.
fn working_directory() -> Vec<u8> {
    const LINK: &str = "/proc/self/cwd";
    rustix::process::getcwd(Vec::new())
        .ok()
        .filter(|name| name.as_bytes().starts_with(b"/"))
        .or_else(|| rustix::fs::readlink(LINK, Vec::new()).ok())
        .filter(|name| name.as_bytes().starts_with(b"/"))
        .map_or_else(|| LINK.into(), CString::into_bytes)
}

fn lost(error: Errno) -> Failure {
    Failure::gate_lost(Words(error))
}

/// Both with numbers that aren't the standard descriptors': where one of those is closed, it stays so.
fn pair() -> Result<(OwnedFd, OwnedFd), Errno> {
    let (domain, kind) = (AddressFamily::UNIX, SocketType::STREAM);
    let (ours, gates) = socketpair(domain, kind, SocketFlags::CLOEXEC, None)?;
    Ok((above_standard(ours)?, above_standard(gates)?))
}

fn above_standard(descriptor: OwnedFd) -> Result<OwnedFd, Errno> {
    if descriptor.as_raw_fd() > 2 {
        return Ok(descriptor);
    }
    fcntl_dupfd_cloexec(descriptor, 3)
}
