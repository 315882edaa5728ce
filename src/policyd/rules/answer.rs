use std::time::Duration;

use crate::model::{EscalationExecution, EscalationTerms, NetworkAccess};

/// What one rule says of an exec.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// Refuse it.
    Deny,
    /// Ask a person.
    Prompt,
    /// Run it inside the sandbox.
    Run,
    /// Run it outside the session's sandbox.
    Escalate(EscalationExecution),
}

impl Answer {
    /// How strict the answer is. Where rules disagree the strictest wins: deny, prompt, run inside
    /// the sandbox, escalate. Among escalations: under the session's own sandbox, with permissions
    /// that deny the network, with permissions that allow it, under no sandbox.
    pub fn strictness(&self) -> Strictness {
        Strictness(match self {
            Self::Deny => 6,
            Self::Prompt => 5,
            Self::Run => 4,
            Self::Escalate(EscalationExecution::TurnDefault) => 3,
            Self::Escalate(EscalationExecution::Permissions(permissions)) => {
                match permissions.network {
                    NetworkAccess::Denied => 2,
                    NetworkAccess::Allowed => 1,
                }
            }
            Self::Escalate(EscalationExecution::Unsandboxed) => 0,
        })
    }
}

/// Rank of an [`Answer`]; the greater is the stricter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Strictness(u8);

impl std::fmt::Display for Answer {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(match self {
            Self::Deny => "deny",
            Self::Prompt => "prompt",
            Self::Run => "run",
            Self::Escalate(EscalationExecution::Unsandboxed) => "escalate (unsandboxed)",
            Self::Escalate(EscalationExecution::TurnDefault) => "escalate (turn_default)",
            Self::Escalate(EscalationExecution::Permissions(_)) => "escalate (permissions)",
        })
    }
}

/// What one rule says, and who says it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Opinion {
    /// Name of the rule: its own, or the place where it stands.
    pub rule: String,
    /// Where the rule stands, as `file:line`.
    pub place: String,
    /// Why the rule applies, for people.
    pub why: String,
    /// What it says.
    pub answer: Answer,
    /// Its author's reason, in words.
    pub justification: Option<String>,
    /// Its author's stable name for the reason; may be empty.
    pub reason_code: String,
    /// How the answer may be used again; `None`: not at all.
    pub reuse: Option<OpinionReuse>,
    /// Where it escalates: on which terms.
    pub terms: EscalationTerms,
}

/// How an answer may be used again, in the session that it was given in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OpinionReuse {
    /// For how long.
    pub valid_for: Duration,
    /// For which execs.
    pub scope: OpinionReuseScope,
}

/// For which later execs an answer may be used again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OpinionReuseScope {
    /// The same command in the same directory.
    Exec,
    /// The same program, and so many first arguments that are the same.
    Prefix(usize),
}

impl std::fmt::Display for OpinionReuse {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let time = humantime::format_duration(self.valid_for);
        match self.scope {
            OpinionReuseScope::Exec => write!(formatter, "{time}, for the same command"),
            OpinionReuseScope::Prefix(0) => write!(formatter, "{time}, for the same program"),
            OpinionReuseScope::Prefix(length) => {
                write!(
                    formatter,
                    "{time}, for the same program and {length} first arguments"
                )
            }
        }
    }
}
