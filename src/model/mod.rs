//! Plain values of the domain: an intercepted exec, a decision, a session, ids.
//!
//! Invariants: arguments, environment and paths are bytes (`OsString`, `PathBuf`) from end to end;
//! ids are types of their own; a value that exists is valid.
//!
//! Not here: input and output, clocks that are read, encodings of any wire.

mod decision;
mod escalation;
mod event;
mod exec;
mod executable;
mod session;

pub use decision::{
    DecisionCode, EscalationDecision, EscalationExecution, EscalationPermissions, NetworkAccess,
    Reuse, ReuseReach, ReuseScope, Verdict,
};
pub use escalation::{
    EnvironmentDifference, EnvironmentRules, EscalationTerms, NamePattern, Unprotected,
};
pub use event::{
    ExecOutcome, ExecUsage, SessionEndReason, SessionEvent, VerdictOrigin, WithdrawalReason,
};
pub use exec::{Environment, ExecId, InterceptedExec, ProcessIdentity};
pub use executable::{
    Executable, ExecutableContent, ExecutableFile, FileVersion, Interpreter, Protection,
};
pub use session::{Enforcement, SandboxReport, SessionDescription, SessionId};
