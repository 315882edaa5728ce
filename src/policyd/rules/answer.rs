use std::time::Duration;

use crate::model::{EscalationDecision, EscalationExecution, EscalationTerms, NetworkAccess};

/// What one rule says of an exec.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// Refuse it.
    Deny,
    /// Ask a person.
    Ask(Ask),
    /// Run it inside the sandbox.
    Run,
    /// Run it outside the session's sandbox.
    Escalate(EscalationExecution),
}

impl Answer {
    /// The word for it.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Deny => "deny",
            Self::Ask(_) => "ask",
            Self::Run => "run",
            Self::Escalate(_) => "escalate",
        }
    }

    /// How strict the answer is. Where rules disagree the strictest wins: deny, ask, run inside
    /// the sandbox, escalate. Among escalations: under the session's own sandbox, with permissions
    /// that deny the network, with permissions that allow it, under no sandbox. Among those that ask: by
    /// what they ask for, in the same order.
    pub fn strictness(&self) -> Strictness {
        const ASK: u8 = 10;
        const DENY: u8 = 20;
        Strictness(match self {
            Self::Deny => DENY,
            Self::Ask(ask) => ASK + ask.effect.strictness(),
            Self::Run => Effect::Run.strictness(),
            Self::Escalate(execution) => escalation_strictness(execution),
        })
    }
}

fn escalation_strictness(execution: &EscalationExecution) -> u8 {
    match execution {
        EscalationExecution::TurnDefault => 3,
        EscalationExecution::Permissions(permissions) => match permissions.network {
            NetworkAccess::Denied => 2,
            NetworkAccess::Allowed => 1,
        },
        EscalationExecution::Unsandboxed => 0,
    }
}

/// A question to a person.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ask {
    /// What follows if it is approved.
    pub effect: Effect,
    /// Who is asked, in words.
    pub asked: Option<String>,
    /// How long an answer is waited for.
    pub within: Duration,
}

/// What an approval leads to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Effect {
    /// The command runs inside the sandbox.
    Run,
    /// It runs outside the session's sandbox.
    Escalate(EscalationExecution),
}

impl Effect {
    fn strictness(&self) -> u8 {
        match self {
            Self::Run => 4,
            Self::Escalate(execution) => escalation_strictness(execution),
        }
    }

    /// The decision that it is.
    pub fn decision(&self) -> EscalationDecision {
        match self {
            Self::Run => EscalationDecision::Run,
            Self::Escalate(execution) => EscalationDecision::Escalate(execution.clone()),
        }
    }
}

impl std::fmt::Display for Effect {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Run => Answer::Run.fmt(formatter),
            Self::Escalate(execution) => Answer::Escalate(execution.clone()).fmt(formatter),
        }
    }
}

/// Rank of an [`Answer`]; the greater is the stricter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Strictness(u8);

impl std::fmt::Display for Answer {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(match self {
            Self::Deny => "deny",
            Self::Ask(Ask { effect, .. }) => return write!(formatter, "ask, to {effect}"),
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
    /// The rule's position among all, in the order of the files; `decide()` and the fallback last.
    pub number: usize,
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
    /// Whether it is acted on.
    pub mode: RuleMode,
    /// What went wrong, where `decide()` failed at `place`, and this is no opinion of its author's.
    pub failure: Option<String>,
}

/// Whether what rules say is acted on.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum RuleMode {
    /// It is.
    #[default]
    Enforce,
    /// It is recorded, and the command runs as if it weren't for them.
    Monitor,
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
