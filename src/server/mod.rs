//! Sessions, intercepted execs, escalated children, the stopwatch; and the traits for the policy
//! that decides and the executor that starts processes.

mod executor;
mod policy;
mod stopwatch;

pub use executor::{
    EscalatedExec, ExecParams, ExecResult, ExecutorError, Login, PreparedExec, ShellCommand,
    ShellCommandExecutor, ShellOutput, VerdictCounts,
};
pub use policy::{BoxFuture, EscalationPolicy, PolicyError, SessionContext, SessionTerminator};
pub use stopwatch::{Pause, Stopwatch};
