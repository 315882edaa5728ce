//! The kernel's record of what it refused: `NETLINK_AUDIT`, `netlink(7)`.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::time::Duration;

use super::check;

#[allow(clippy::cast_possible_truncation, reason = "structures of a few bytes")]
const fn length_of<T>(_: &T) -> libc::socklen_t {
    size_of::<T>() as libc::socklen_t
}

/// One record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// Its kind, `linux/audit.h`.
    pub kind: u16,
    /// What it says: `audit(TIME:SERIAL): KEY=VALUE ...`.
    pub text: String,
}

/// A listener for records.
#[derive(Debug)]
pub struct Records(OwnedFd);

/// Why there is none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lacking {
    /// The kernel has none to listen to, or this process may not (`CAP_AUDIT_READ`).
    Listener,
    /// The kernel isn't told to record anything.
    Off,
}

/// `AUDIT_NLGRP_READLOG`, as a bit.
const READ_LOG: u32 = 1;
/// `AUDIT_GET`.
const GET: u16 = 1000;
/// `AF_NETLINK`.
const FAMILY: libc::sa_family_t = 16;
/// `NLM_F_REQUEST` and `NLMSG_ERROR`, `linux/netlink.h`.
const REQUEST: u16 = 1;
const ERROR: u16 = 2;
/// Length of `struct nlmsghdr`.
const HEADER: usize = 16;
/// Where `struct audit_status` has whether it is on.
const ENABLED: std::ops::Range<usize> = HEADER + 4..HEADER + 8;
/// Longest message, `MAX_AUDIT_MESSAGE_LENGTH` with room for the header.
const LONGEST: usize = 9000;
/// Room for what isn't read yet, in bytes.
const ROOM: libc::c_int = 4 << 20;

impl Records {
    /// Listens, if there is anything to hear.
    ///
    /// # Errors
    /// What is lacking for that.
    pub fn listen() -> Result<Self, Lacking> {
        match is_on() {
            Ok(true) => {}
            Ok(false) => return Err(Lacking::Off),
            Err(_) => return Err(Lacking::Listener),
        }
        let socket = open(READ_LOG).map_err(|_| Lacking::Listener)?;
        let room = ROOM;
        // SAFETY: the integer is readable. Without the privilege the usual room has to do.
        unsafe {
            libc::setsockopt(
                socket.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_RCVBUFFORCE,
                (&raw const room).cast(),
                length_of(&room),
            )
        };
        Ok(Self(socket))
    }

    /// The next record; `None` where there was none for so long.
    ///
    /// # Errors
    /// Records were lost (`ENOBUFS`), or can't be read.
    pub fn next(&self, patience: Duration) -> io::Result<Option<Record>> {
        let Some(message) = receive(&self.0, patience)? else {
            return Ok(None);
        };
        let kind = message.get(4..6).and_then(|bytes| bytes.try_into().ok());
        Ok(Some(Record {
            kind: kind.map_or(0, u16::from_ne_bytes),
            text: String::from_utf8_lossy(message.get(HEADER..).unwrap_or_default())
                .trim_end_matches('\0')
                .to_owned(),
        }))
    }
}

fn open(groups: u32) -> io::Result<OwnedFd> {
    let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC;
    // SAFETY: integers only.
    let fd = check(unsafe { libc::socket(libc::AF_NETLINK, kind, libc::NETLINK_AUDIT) })?;
    // SAFETY: the kernel has just installed it for us, and nobody else knows it.
    let socket = unsafe { OwnedFd::from_raw_fd(fd) };
    // SAFETY: all zeroes is a valid address: the kernel chooses a number.
    let mut address: libc::sockaddr_nl = unsafe { std::mem::zeroed() };
    address.nl_family = FAMILY;
    address.nl_groups = groups;
    // SAFETY: the address is readable for its size.
    check(unsafe {
        libc::bind(
            socket.as_raw_fd(),
            (&raw const address).cast(),
            length_of(&address),
        )
    })?;
    Ok(socket)
}

/// Whether the kernel records, which takes `CAP_AUDIT_CONTROL` to ask.
fn is_on() -> io::Result<bool> {
    let socket = open(0)?;
    let mut question = [0_u8; HEADER];
    question[..4].copy_from_slice(&16_u32.to_ne_bytes());
    question[4..6].copy_from_slice(&GET.to_ne_bytes());
    question[6..8].copy_from_slice(&REQUEST.to_ne_bytes());
    // SAFETY: the question is readable.
    check(unsafe {
        libc::send(
            socket.as_raw_fd(),
            question.as_ptr().cast(),
            question.len(),
            0,
        )
    })?;
    loop {
        let answer = receive(&socket, Duration::from_secs(1))?.ok_or(io::ErrorKind::TimedOut)?;
        let kind = answer.get(4..6).map(|bytes| bytes == GET.to_ne_bytes());
        match (kind, answer.get(ENABLED)) {
            (Some(true), Some(enabled)) => return Ok(enabled.iter().any(|byte| *byte != 0)),
            // An error message: not allowed.
            _ if answer.get(4..6) == Some(&ERROR.to_ne_bytes()) => {
                return Err(io::ErrorKind::PermissionDenied.into());
            }
            _ => {}
        }
    }
}

/// A message of the kernel's, or none for so long.
fn receive(socket: &OwnedFd, patience: Duration) -> io::Result<Option<Vec<u8>>> {
    let mut source = libc::pollfd {
        fd: socket.as_raw_fd(),
        events: libc::POLLIN,
        revents: 0,
    };
    let milliseconds = i32::try_from(patience.as_millis()).unwrap_or(i32::MAX);
    // SAFETY: one entry, writable.
    if check(unsafe { libc::poll(&raw mut source, 1, milliseconds) })? == 0 {
        return Ok(None);
    }
    let mut message = vec![0; LONGEST];
    // SAFETY: the buffer is writable for its length.
    let length = check(unsafe {
        libc::recv(
            socket.as_raw_fd(),
            message.as_mut_ptr().cast(),
            message.len(),
            libc::MSG_DONTWAIT,
        )
    })?;
    message.truncate(length.unsigned_abs());
    Ok(Some(message))
}
