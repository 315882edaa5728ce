use alloc::borrow::ToOwned;
use alloc::ffi::CString;
use alloc::format;
use core::ffi::CStr;
use core::fmt;

use rustix::fd::RawFd;
use rustix::io::Errno;

use super::failure::{Failure, Words};
use crate::sys::entry::{Invocation, replace_process};
use crate::wire::{BASH_WRAPPER_VARIABLE, WRAPPER_VARIABLE};

/// What `execgate-stand-in` is to do: its first argument, in front of the wrapper's own.
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
    #[cfg(feature = "std")]
    pub(crate) fn parse(text: &CStr) -> Option<Self> {
        let words: alloc::vec::Vec<_> = text.to_str().ok()?.split(' ').collect();
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

/// Becomes the program beside the wrapper that does all that not every exec needs. Returns only where that
/// failed.
pub(super) fn hand_over(invocation: Invocation, file: &CStr, errand: Errand) -> Failure {
    let own = invocation
        .arguments()
        .iter()
        .next()
        .unwrap_or_default()
        .to_owned();
    let Ok(text) = CString::new(format!("{errand}")) else {
        return failure(Errno::INVAL);
    };
    let errand = [own, text, file.to_owned()];
    let handed = invocation.with_first(errand, 2);
    let error = match beside(invocation, "execgate-stand-in") {
        Some(program) => {
            let error = replace_process(&program, handed.arguments(), handed.environment());
            if error == Errno::TOOBIG {
                // The command's own just fitted; only a script would need them again.
                let least = handed.without_rest(3);
                replace_process(&program, least.arguments(), least.environment())
            } else {
                error
            }
        }
        None => Errno::NOENT,
    };
    failure(error)
}

fn failure(error: Errno) -> Failure {
    Failure::new(
        "start execgate-stand-in",
        Words(error),
        "it belongs beside execgate-wrapper; nothing was run",
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
