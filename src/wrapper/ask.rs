use std::ffi::{CStr, OsString};
use std::io::{self, IsTerminal};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};

use super::{Failure, say};
use crate::sys::context::RaisedOpenFiles;
use crate::sys::descriptor;
use crate::sys::entry::Invocation;
use crate::sys::socket::{self, Kind, Wait};
use crate::wire::{
    self, Action, EscalateResponse, FrameReader, HANDSHAKE, RequestFields, SESSION_VARIABLES,
    SOCKET_VARIABLE, WaitNotice,
};

/// Most characters of what is said while a person decides.
const MOST_NOTICE: usize = 1_000;

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
        workdir: workdir.as_bytes(),
        env: invocation
            .environment()
            .iter()
            .map(CStr::to_bytes)
            .filter(|entry| !SESSION_VARIABLES.iter().any(|name| is_named(entry, name)))
            .collect(),
        // Nobody reads a line that goes elsewhere, and programs may not expect it there.
        notices: io::stderr().is_terminal(),
    };
    let frame = wire::encode(&request).map_err(|error| {
        Failure::new(
            "ask the gate",
            error,
            "the command's arguments and environment are too long",
        )
    })?;
    let (stream, gates) = match socket::pair(Kind::Stream) {
        Err(error) if error.raw_os_error() == Some(libc::EMFILE) => {
            // For as long as it takes: the command gets its own limit.
            let raised = RaisedOpenFiles::new();
            let pair = socket::pair(Kind::Stream);
            drop(raised);
            pair
        }
        other => other,
    }
    .map_err(|error| {
        Failure::new(
            "ask the gate",
            error,
            "a command needs two free descriptors, see ulimit -n; nothing was run",
        )
    })?;
    // What fits goes ahead of the handshake, so that the gate finds the question there: one wake-up
    // for each side, and nobody who asks can be half-way.
    let sent = match socket::send(stream.as_fd(), &frame, &[], Wait::Never) {
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => 0,
        other => other.map_err(Failure::gate_lost)?,
    };
    shake_hands(session, gates.as_fd()).map_err(Failure::gate_lost)?;
    drop(gates);
    // A gate that has read enough to refuse doesn't read the rest: its answer is there all the same.
    let _ = send_all(stream.as_fd(), &frame[sent..]);
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
        loop {
            let message = self.read_frame()?;
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
    }

    /// Waits for one whole message.
    pub(super) fn read_frame(&mut self) -> Result<Vec<u8>, Failure> {
        loop {
            if let Some(message) = self.reader.take().map_err(Failure::gate_lost)? {
                return Ok(message);
            }
            let buffer = self.reader.buffer().map_err(Failure::gate_lost)?;
            let offered = buffer.len();
            let received = socket::receive(self.stream.as_fd(), buffer, Wait::Blocking);
            let count = received.as_ref().map_or(0, |received| received.bytes);
            self.reader.filled(offered, count);
            if received.map_err(Failure::gate_lost)?.bytes == 0 {
                return Err(Failure::gate_lost("it went away without an answer"));
            }
        }
    }
}

/// Text as one line that does nothing to a terminal, and not a long one.
fn one_line(text: &str) -> String {
    let plain = |character: char| match character {
        character if character.is_control() => '\u{fffd}',
        // What turns the direction of the text around.
        '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => '\u{fffd}',
        character => character,
    };
    text.chars().take(MOST_NOTICE).map(plain).collect()
}

/// Sends the gate its end of the stream.
fn shake_hands(session: BorrowedFd<'_>, gates: BorrowedFd<'_>) -> io::Result<()> {
    loop {
        match socket::send(session, &HANDSHAKE, &[gates], Wait::Blocking) {
            // Somebody made the socket non-blocking. That isn't ours to change.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                socket::wait_writable(session)?;
            }
            other => return other.map(drop),
        }
    }
}

/// Sends all of `bytes`.
pub(super) fn send_all(stream: BorrowedFd<'_>, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        let sent = socket::send(stream, bytes, &[], Wait::Blocking)?;
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
        .environment()
        .iter()
        .map(CStr::to_bytes)
        .find(|entry| is_named(entry, SOCKET_VARIABLE))
        .map(|entry| &entry[SOCKET_VARIABLE.len() + 1..])
        .ok_or_else(|| failure(format!("{SOCKET_VARIABLE} is not set")))?;
    let number = std::str::from_utf8(value)
        .ok()
        .and_then(|text| text.parse().ok())
        .ok_or_else(|| failure(format!("{SOCKET_VARIABLE} is not a number")))?;
    let session = descriptor::inherited(number)
        .map_err(|_| failure(format!("descriptor {number} was closed on the way here")))?;
    if socket::is_unix_socket(session, Kind::Datagram) {
        Ok(session)
    } else {
        Err(failure(format!(
            "descriptor {number} is not the session's socket"
        )))
    }
}

/// The working directory: absolute, and for one that no name leads to, what the kernel calls it.
fn working_directory() -> OsString {
    if let Ok(directory) = std::env::current_dir()
        && directory.is_absolute()
    {
        return directory.into_os_string();
    }
    std::fs::read_link("/proc/self/cwd")
        .ok()
        .filter(|name| name.is_absolute())
        .map_or_else(
            || OsString::from_vec(b"/proc/self/cwd".to_vec()),
            std::path::PathBuf::into_os_string,
        )
}
