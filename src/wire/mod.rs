//! Bytes to messages of the local protocol, and back.
//!
//! ```text
//! wrapper                                   server
//!    │── datagram 0x00 + one descriptor ──────►│   handshake, on the inherited socket
//!    │── EscalateRequest ─────────────────────►│   from here on, on the request's own stream
//!    │◄─────────────────────────── WaitNotice ─│   if asked for, while a person decides
//!    │◄──────────────────── EscalateResponse ──│
//!    │── SuperExecMessage + descriptors ──────►│   after Escalate only
//!    │── Forward ─────────────────────────────►│   any number
//!    │◄─────────────────────────────── Notice ─│   any number, if asked for
//!    │◄────────────────────── SuperExecResult ─│
//! ```
//!
//! Invariants: no claimed length is believed before its bytes have arrived; what doesn't decode is
//! an error that says where.
//!
//! Not here: sockets, descriptors, what a message means.

mod frame;
mod question;

#[cfg(any(test, feature = "fuzzing"))]
pub(crate) mod fuzzing;

#[cfg(feature = "std")]
mod following;
#[cfg(feature = "std")]
mod refusal;
#[cfg(feature = "std")]
mod request;

pub use frame::{FrameError, FrameReader, MAX_FOLLOWING_FRAME, MAX_FRAME, PREFIX, encode};
pub use question::{Action, DecodeError, EscalateResponse, RequestFields, WaitNotice, decode};

#[cfg(feature = "std")]
pub use following::{CommandContext, Forward, Notice, SuperExecMessage, SuperExecResult};
#[cfg(feature = "std")]
pub use refusal::{Contents, Refusal};
#[cfg(feature = "std")]
pub use request::EscalateRequest;

#[cfg(test)]
mod properties;

/// The handshake's datagram.
pub const HANDSHAKE: [u8; 1] = [0];

/// Size of the buffer that a handshake is received into, in bytes.
pub const DATAGRAM_BUFFER: usize = 8192;

/// Names the descriptor of the session's socket, in decimal.
pub const SOCKET_VARIABLE: &str = "CODEX_ESCALATE_SOCKET";

/// Names the wrapper, by an absolute path.
pub const WRAPPER_VARIABLE: &str = "EXEC_WRAPPER";

/// An alias of [`WRAPPER_VARIABLE`] for older patched bashes.
pub const BASH_WRAPPER_VARIABLE: &str = "BASH_EXEC_WRAPPER";

/// The variables that belong to the session, not to the command.
pub const SESSION_VARIABLES: [&str; 3] = [SOCKET_VARIABLE, WRAPPER_VARIABLE, BASH_WRAPPER_VARIABLE];
