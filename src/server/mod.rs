//! Sessions, intercepted execs, escalated children, the stopwatch; and the traits for the policy
//! that decides and the executor that starts processes.
//!
//! ```text
//! session ── serve ──► request ──► connection   (one task a request)
//!    │                    │  └───► intercept    (what follows from what: a pure state machine)
//!    │                    │  └───► policy       (decides; is told what happened)
//!    │                    └──────► supervisor   (an escalated command: `sys::spawn`)
//!    └─ tracker ◄──────────┘                    (which process is which exec; when it ends)
//! ```
//!
//! Invariants: no answer to run goes out but for a verdict to run that very exec; everything that
//! waits also waits for the session's end; all that a sandbox sends is bounded in size, number and
//! time; nothing here logs or blocks in front of a verdict.
//!
//! Not here: gRPC, sandboxes, command lines.

mod connection;
mod environment;
mod escalate;
mod examination;
mod executor;
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) mod fuzzing;
mod intercept;
mod policy;
mod request;
mod reuse;
mod session;
mod share;
mod stopwatch;
mod tracker;

pub use crate::program::{Digest, WritablePlaces};
pub use environment::{ESCALATED_PATH, OwnersEnvironment};
pub use escalate::{EscalateServer, REUSE_LIMIT, ServerError, SessionParams};
pub use executor::{
    EscalatedExec, ExecParams, ExecResult, ExecutorError, Login, PreparedExec, ShellCommand,
    ShellCommandExecutor, ShellOutput, VerdictCounts,
};
pub use policy::{BoxFuture, EscalationPolicy, PolicyError, SessionContext, SessionTerminator};
pub use reuse::{Forgotten, ReusableVerdicts};
pub use session::{EscalationSession, GateBounds, WrapperAlias};
pub use share::{Full, Held, Pool, Share};
pub use stopwatch::{Pause, Stopwatch};

impl From<crate::sys::process::ProcessEnd> for crate::model::ExecOutcome {
    fn from(end: crate::sys::process::ProcessEnd) -> Self {
        match end {
            crate::sys::process::ProcessEnd::Exited(code) => Self::Exited(code),
            crate::sys::process::ProcessEnd::Signaled(signal) => Self::Signaled(signal),
        }
    }
}
