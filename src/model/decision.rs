use std::path::PathBuf;
use std::time::Duration;

use super::EscalationTerms;

/// What is to be done with one intercepted exec.
#[must_use]
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EscalationDecision {
    /// The asking process executes its command itself, inside the sandbox.
    Run,
    /// The server executes the command outside the session's sandbox, under the given confinement.
    Escalate(EscalationExecution),
    /// The command is refused; the reason is told to the user of the sandbox.
    Deny {
        /// In words, for the user of the sandbox.
        reason: Option<String>,
    },
}

impl EscalationDecision {
    /// Its stable name: `run`, `escalate` or `deny`.
    #[must_use]
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::Run => "run",
            Self::Escalate(_) => "escalate",
            Self::Deny { .. } => "deny",
        }
    }
}

/// How an escalated command is confined instead.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EscalationExecution {
    /// By nothing.
    Unsandboxed,
    /// By the session's own sandbox configuration, applied afresh.
    TurnDefault,
    /// By a configuration that came with the verdict.
    Permissions(EscalationPermissions),
}

/// A confinement that came with a verdict.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EscalationPermissions {
    /// Whether the command may use the network.
    pub network: NetworkAccess,
    /// Absolute paths that it may read, with all below them. Empty: what the session may read.
    pub readable: Vec<PathBuf>,
    /// Absolute paths that it may write, with all below them.
    pub writable: Vec<PathBuf>,
}

/// Whether a command may use the network.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NetworkAccess {
    /// It may not.
    Denied,
    /// It may.
    Allowed,
}

/// A decision with where it came from.
#[must_use]
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verdict {
    /// What is to be done.
    pub decision: EscalationDecision,
    /// Why, as a stable code.
    pub code: DecisionCode,
    /// The policy's own stable name for the reason; may be empty.
    pub reason_code: String,
    /// The rule that decided; may be empty.
    pub rule: String,
    /// The revision of the policy that decided; may be empty.
    pub policy_revision: String,
    /// How it may be used again; `None`: not at all.
    pub reuse: Option<Reuse>,
    /// How long the policy service says that it took; `None`: it doesn't say.
    pub service_time: Option<Duration>,
    /// Where it escalates: on which terms.
    pub terms: Box<EscalationTerms>,
}

/// How a verdict may be used again without asking.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reuse {
    /// For how long, from its receipt.
    pub valid_for: Duration,
    /// For which later execs.
    pub scope: ReuseScope,
    /// In which sessions.
    pub reach: ReuseReach,
}

/// Which later execs a verdict may be used for. In each case the program is the same file under the
/// same name, and user, argument zero and the names in the environment are the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReuseScope {
    /// The same arguments in the same directory.
    SameExec,
    /// So many arguments, from argument one on, that are the same.
    ArgumentPrefix(usize),
    /// Any arguments.
    Program,
}

/// Where a verdict may be used again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReuseReach {
    /// In the session that it was given for.
    Session,
    /// In every session of the gate.
    Gate,
}

impl Verdict {
    /// A denial that no rule asked for.
    pub fn denied(code: DecisionCode, reason: impl Into<String>) -> Self {
        Self {
            code,
            ..Self::from(EscalationDecision::Deny {
                reason: Some(reason.into()),
            })
        }
    }
}

impl From<EscalationDecision> for Verdict {
    fn from(decision: EscalationDecision) -> Self {
        Self {
            decision,
            code: DecisionCode::Verdict,
            reason_code: String::new(),
            rule: String::new(),
            policy_revision: String::new(),
            reuse: None,
            service_time: None,
            terms: Box::default(),
        }
    }
}

/// Why a gate did what it did. Its names are stable: they stand in events, logs and metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum DecisionCode {
    /// A verdict said so.
    Verdict,
    /// An earlier verdict said so, which was given for reuse.
    Reused,
    /// No verdict came in time.
    TimedOut,
    /// The policy service couldn't be reached, or the call broke before the verdict.
    Unreachable,
    /// The policy answered what can't be acted on, or failed.
    PolicyError,
    /// A bound of the gate was reached.
    Overloaded,
    /// The session was ended while the exec waited.
    SessionEnded,
    /// What the process asked can't be acted on.
    InvalidRequest,
    /// Events can't be kept, and the gate's owner wants no exec without its record.
    Unrecorded,
    /// The program isn't any more what it was when it was asked about.
    ProgramChanged,
    /// The session could have written the program, which the verdict doesn't allow.
    ProgramUnprotected,
    /// Which file the program is couldn't be told, or that file not be executed.
    ProgramUnidentified,
}

impl DecisionCode {
    /// All of them.
    pub const ALL: [Self; 11] = [
        Self::Verdict,
        Self::Reused,
        Self::TimedOut,
        Self::Unreachable,
        Self::PolicyError,
        Self::Overloaded,
        Self::SessionEnded,
        Self::InvalidRequest,
        Self::Unrecorded,
        Self::ProgramUnprotected,
        Self::ProgramUnidentified,
    ];

    /// The code's stable name, such as `timed-out`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Verdict => "verdict",
            Self::Reused => "reused",
            Self::TimedOut => "timed-out",
            Self::Unreachable => "unreachable",
            Self::PolicyError => "policy-error",
            Self::Overloaded => "overloaded",
            Self::SessionEnded => "session-ended",
            Self::InvalidRequest => "invalid-request",
            Self::Unrecorded => "unrecorded",
            Self::ProgramChanged => "program-changed",
            Self::ProgramUnprotected => "program-unprotected",
            Self::ProgramUnidentified => "program-unidentified",
        }
    }
}

impl std::fmt::Display for DecisionCode {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(self.as_str())
    }
}
