use alloc::ffi::CString;
use alloc::format;
#[cfg(feature = "std")]
use core::ffi::CStr;
use core::fmt;

use rustix::fd::RawFd;
use rustix::io::Errno;

use super::failure::{Failure, Words};
use crate::sys::entry::{Invocation, replace_process};
use crate::wire::{BASH_WRAPPER_VARIABLE, WRAPPER_VARIABLE};

/// What `execgate-stand-in` is to do. It gets the wrapper's own arguments, with this in the place of the wrapper's path,
/// so that they take no more room: they may be as long as the kernel allows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Errand {
    /// To be to the shell what the escalated command would be.
    StandIn {
        /// The number of the request's own stream.
        stream: RawFd,
        /// The number of the session's socket, which is nobody's but the wrapper's.
        session: RawFd,
        /// Whether the gate says when an escalated command stops.
        gate_tells_stops: bool,
    },
    /// To say, and do, what the shell would where executing the command failed.
    Explain {
        /// The kernel's error number.
        errno: i32,
    },
}

impl fmt::Display for Errand {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::StandIn {
                stream,
                session,
                gate_tells_stops,
            } => {
                let stops = u8::from(*gate_tells_stops);
                write!(formatter, "stand-in {stream} {session} {stops}")
            }
            Self::Explain { errno } => write!(formatter, "explain {errno}"),
        }
    }
}

impl Errand {
    /// Reads argument zero.
    #[cfg(feature = "std")]
    pub(crate) fn parse(own: &CStr) -> Option<Self> {
        let (text, _) = split(own.to_bytes());
        let words: alloc::vec::Vec<_> = core::str::from_utf8(text).ok()?.split(' ').collect();
        Some(match words[..] {
            ["stand-in", stream, session, stops] => Self::StandIn {
                stream: stream.parse().ok()?,
                session: session.parse().ok()?,
                gate_tells_stops: stops == "1",
            },
            ["explain", errno] => Self::Explain {
                errno: errno.parse().ok()?,
            },
            _ => return None,
        })
    }
}

/// Between the wrapper's path and what a patched shell says of itself, and between that (`EW_SEPARATOR`).
pub(crate) const SEPARATOR: u8 = 0x1f;

/// What is before the first [`SEPARATOR`], and the rest.
fn split(own: &[u8]) -> (&[u8], &[u8]) {
    let end = own.iter().position(|byte| *byte == SEPARATOR);
    own.split_at(end.unwrap_or(own.len()))
}

/// The same arguments with something else in the place of what is before what the shell says of itself.
pub(crate) fn named(invocation: Invocation, name: &[u8]) -> Option<CString> {
    let own = invocation.arguments().iter().next()?;
    let said = match split(own.to_bytes()) {
        // No patched shell begins so.
        ([], _) => b"",
        (_, said) => said,
    };
    CString::new([name, said].concat()).ok()
}

/// Becomes the program beside the wrapper that does all that not every exec needs. Returns only where that
/// failed.
pub(super) fn hand_over(invocation: Invocation, errand: Errand) -> Failure {
    let Some(own) = named(invocation, format!("{errand}").as_bytes()) else {
        return failure(Errno::INVAL);
    };
    let Some(program) = beside(invocation, "execgate-stand-in") else {
        return failure(Errno::NOENT);
    };
    let handed = invocation.with_first([own], 1);
    failure(replace_process(
        &program,
        handed.arguments(),
        handed.environment(),
    ))
}

fn failure(error: Errno) -> Failure {
    Failure::new(
        "start execgate-stand-in",
        Words(error),
        match error {
            Errno::TOOBIG => {
                "the command's arguments and environment are too long; nothing was run"
            }
            _ => "it belongs beside execgate-wrapper; nothing was run",
        },
    )
}

/// A program of this name in the running program's own directory.
pub(crate) fn beside(invocation: Invocation, name: &str) -> Option<CString> {
    let own = rustix::fs::readlink("/proc/self/exe", alloc::vec::Vec::new()).ok();
    // Without a /proc: as the shell found the wrapper.
    let own = own.or_else(|| {
        [WRAPPER_VARIABLE, BASH_WRAPPER_VARIABLE]
            .iter()
            .find_map(|variable| {
                let value = invocation.variable(variable)?;
                CString::new(value).ok()
            })
    })?;
    let own = own.as_bytes();
    let directory = &own[..own.iter().rposition(|byte| *byte == b'/')?];
    CString::new([directory, b"/", name.as_bytes()].concat()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_errand_arrives_as_it_was_sent() {
        let errands = [
            Errand::StandIn {
                stream: 7,
                session: 120,
                gate_tells_stops: true,
            },
            Errand::StandIn {
                stream: 0,
                session: 3,
                gate_tells_stops: false,
            },
            Errand::Explain { errno: 13 },
        ];
        for errand in errands {
            let text = CString::new(errand.to_string()).unwrap();
            assert_eq!(Errand::parse(&text), Some(errand));
        }
        for text in [
            c"",
            c"stand-in",
            c"stand-in 1 2",
            c"explain x",
            c"explain 1 2",
        ] {
            assert_eq!(Errand::parse(text), None);
        }
    }
}
