use std::sync::Arc;
use std::time::{Duration, SystemTime};

use super::{EnvironmentDifference, ExecId, InterceptedExec, SessionId, Verdict};

/// What happened in a session, apart from the questions themselves, which a policy gets to decide.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SessionEvent {
    /// An exec is decided by an earlier verdict, which was given for reuse. Nobody is asked; what
    /// follows is as if somebody had been.
    ExecReused {
        /// The exec.
        exec: Arc<InterceptedExec>,
        /// Which verdict it is.
        origin: VerdictOrigin,
    },
    /// An exec that was asked for needs no verdict any more.
    ExecWithdrawn {
        /// The exec.
        exec: ExecId,
        /// Why.
        reason: WithdrawalReason,
        /// When.
        at: SystemTime,
    },
    /// The gate acts on an exec: its answer leaves next.
    ExecDecided {
        /// The exec.
        exec: ExecId,
        /// What it did, and why.
        verdict: Verdict,
        /// How an escalated command's environment differs from what was asked for.
        environment: Option<Box<EnvironmentDifference>>,
        /// How long the process waited, from the question's receipt to its answer.
        waited: Duration,
        /// How much of it the policy took to decide; zero where it wasn't asked.
        decided_in: Duration,
        /// When.
        at: SystemTime,
    },
    /// A command that ran has ended.
    ExecFinished {
        /// The exec.
        exec: ExecId,
        /// How it ended.
        outcome: ExecOutcome,
        /// From the verdict's delivery to the end.
        elapsed: Duration,
        /// What it used, where known.
        usage: Option<ExecUsage>,
        /// The process that ran it; 0 where there was none.
        pid: u32,
        /// Descriptors of an escalated command that are directories which the session can write.
        writable_directories: Vec<i32>,
        /// When.
        at: SystemTime,
    },
    /// The session is over. Nothing follows.
    SessionEnded {
        /// Why.
        reason: SessionEndReason,
        /// In words; may be empty.
        detail: String,
        /// How its shell ended, where known.
        shell: Option<ExecOutcome>,
        /// When.
        at: SystemTime,
    },
}

/// The exec that a verdict was given for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct VerdictOrigin {
    /// The session.
    pub session: SessionId,
    /// The exec.
    pub exec: ExecId,
}

/// Why an exec was withdrawn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WithdrawalReason {
    /// The process that asked has ended or closed its end.
    AskerGone,
    /// The session is over.
    SessionEnded,
    /// The deadline has passed.
    DeadlinePassed,
}

/// How a command ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ExecOutcome {
    /// It called exit with this code.
    Exited(i32),
    /// It was killed by this signal.
    Signaled(i32),
    /// It never started.
    NotStarted(String),
    /// Its process became another command, by this exec.
    Replaced(ExecId),
    /// It ended, and the gate couldn't learn how.
    Unknown,
}

/// What a command used, with the children that it waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExecUsage {
    /// Processor time in user mode.
    pub user: Duration,
    /// Processor time in the kernel.
    pub system: Duration,
    /// Largest resident set of any one process, in bytes.
    pub peak_memory_bytes: u64,
}

/// Why a session ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SessionEndReason {
    /// Its command or shell ended.
    Completed,
    /// Its owner cancelled it.
    Cancelled,
    /// It ran longer than allowed.
    TimedOut,
    /// The policy ended it.
    Terminated,
    /// The gate failed.
    GateFailed,
}
