//! One exec: what was decided, and what rules would decide.

use prost::bytes::Bytes;

use crate::model::EscalationTerms;
use crate::pb::audit::v1::{AnswerMode, Exec, GivenAnswer};
use crate::pb::v1;
use crate::policyd::approvals::asked;
use crate::policyd::identity::GateIdentity;
use crate::policyd::rules::{Answer, Ask, Effect, Rules, Ruling};
use crate::policyd::service::{CODES_OF_NO_RULES, decision_message, ruling, session_facts};

/// Reason codes of what a person was asked about begin so.
const ASKED: &str = "approval.";

/// What is decided.
#[derive(Debug, Clone, PartialEq)]
pub(in crate::policyd) enum Said {
    Run,
    /// `None`: on terms that aren't on record.
    Escalate(Option<v1::Escalate>),
    Deny,
    /// What follows if it is approved: "run" or "escalate"; `None`: not known.
    Ask(Option<&'static str>),
}

impl Said {
    fn of(verdict: &str, reason_code: &str, escalate: Option<&v1::Escalate>) -> Option<Self> {
        if reason_code.starts_with(ASKED) {
            return Some(Self::Ask(match verdict {
                "run" => Some("run"),
                "escalate" => Some("escalate"),
                _ => None,
            }));
        }
        match verdict {
            "run" => Some(Self::Run),
            "escalate" => Some(Self::Escalate(escalate.cloned())),
            "deny" => Some(Self::Deny),
            _ => None,
        }
    }

    fn by(decision: &v1::verdict::Decision) -> Self {
        match decision {
            v1::verdict::Decision::Run(_) => Self::Run,
            v1::verdict::Decision::Escalate(escalate) => Self::Escalate(Some(escalate.clone())),
            v1::verdict::Decision::Deny(_) => Self::Deny,
        }
    }

    /// Whether it comes to the same; `None`: the record doesn't tell.
    fn is_same(&self, other: &Self) -> Option<bool> {
        match (self, other) {
            (Self::Ask(None), Self::Ask(_)) | (Self::Ask(_), Self::Ask(None)) => Some(true),
            (Self::Escalate(None), Self::Escalate(_))
            | (Self::Escalate(_), Self::Escalate(None)) => None,
            _ => Some(self == other),
        }
    }
}

impl std::fmt::Display for Said {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        use v1::escalate::Execution;
        formatter.write_str(match self {
            Self::Run => "run",
            Self::Deny => "deny",
            Self::Ask(None) => "ask",
            Self::Ask(Some(effect)) => return write!(formatter, "ask, to {effect}"),
            Self::Escalate(escalate) => {
                match escalate.as_ref().map(|escalate| &escalate.execution) {
                    Some(Some(Execution::Unsandboxed(_))) => "escalate (unsandboxed)",
                    Some(Some(Execution::TurnDefault(_))) => "escalate (turn_default)",
                    Some(Some(Execution::Permissions(_))) => "escalate (permissions)",
                    Some(None) | None => "escalate",
                }
            }
        })
    }
}

/// What was, or would be, decided, and by what.
#[derive(Debug, Clone, PartialEq)]
pub(in crate::policyd) struct Verdict {
    pub(in crate::policyd) done: Said,
    /// What would have been done, where rules are only monitored.
    pub(in crate::policyd) would: Option<Said>,
    pub(in crate::policyd) rule: String,
    pub(in crate::policyd) reason: String,
    pub(in crate::policyd) reason_code: String,
}

impl std::fmt::Display for Verdict {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.would {
            Some(would) => write!(formatter, "{} (would {would})", self.done),
            None => self.done.fmt(formatter),
        }
    }
}

/// An exec that could be judged.
#[derive(Debug)]
pub(in crate::policyd) struct Judged {
    pub(in crate::policyd) was: Verdict,
    pub(in crate::policyd) now: Verdict,
    pub(in crate::policyd) is_changed: bool,
}

/// Why an exec can't be judged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::policyd) enum Gap {
    Verdict,
    Rules,
    Question,
    Terms,
    Session,
    Command,
    Values,
    Digest,
}

impl Gap {
    /// A name for programs.
    pub(in crate::policyd) fn name(self) -> &'static str {
        match self {
            Self::Verdict => "no-verdict",
            Self::Rules => "no-rules",
            Self::Question => "no-question",
            Self::Terms => "no-terms",
            Self::Session => "no-session",
            Self::Command => "no-command",
            Self::Values => "no-values",
            Self::Digest => "no-digest",
        }
    }

    /// What is lacking, for people.
    pub(in crate::policyd) fn text(self) -> &'static str {
        match self {
            Self::Verdict => {
                "rules decided nothing that is on record: withdrawn, unreachable, ended or still open"
            }
            Self::Rules => {
                "denied by the service without asking rules: beyond its gate's rate, or in a session that an operator ended"
            }
            Self::Question => {
                "the question isn't on record: removed for its age, or lost by its gate"
            }
            Self::Terms => "the terms of the escalation aren't on record",
            Self::Session => {
                "the session's beginning isn't on record, and decide() may look at the session"
            }
            Self::Command => {
                "the session's command was left out of the lines for its length, and decide() may look at it"
            }
            Self::Values => "decide() may look at values of variables, which are never recorded",
            Self::Digest => {
                "decide() may look at the program's digest, which no rules had asked for then"
            }
        }
    }
}

/// Rules may give any reason code; but each has a name, and what they decided has it.
fn is_of_no_rules(rule: &str, reason_code: &str) -> bool {
    rule.is_empty() && CODES_OF_NO_RULES.contains(&reason_code)
}

/// What was decided by rules.
pub(in crate::policyd) fn recorded(exec: &Exec) -> Result<Verdict, Gap> {
    let decision = exec.decision.as_ref();
    let by_verdict = decision.filter(|decision| matches!(&*decision.code, "verdict" | "reused"));
    let words = |answer: &GivenAnswer, done, would| Verdict {
        done,
        would,
        rule: answer.rule.clone(),
        reason: if answer.reason.is_empty() {
            // Of what isn't a denial the gate has it.
            decision.map_or_else(String::new, |decision| decision.reason.clone())
        } else {
            answer.reason.clone()
        },
        reason_code: answer.reason_code.clone(),
    };
    if let Some(answer) = &exec.answer {
        if is_of_no_rules(&answer.rule, &answer.reason_code) {
            return Err(Gap::Rules);
        }
        let code = &answer.reason_code;
        let said = Said::of(&answer.verdict, code, answer.escalate.as_ref());
        let said = said.ok_or(Gap::Verdict)?;
        if answer.mode() != AnswerMode::Monitored {
            return Ok(words(answer, said, None));
        }
        let done = by_verdict.ok_or(Gap::Verdict)?;
        let done = Said::of(&done.verdict, "", None).ok_or(Gap::Verdict)?;
        return Ok(words(answer, done, Some(said)));
    }
    // What a person answered, and what an earlier verdict covered, is only in what the gate did.
    let decision = by_verdict.ok_or(Gap::Verdict)?;
    if is_of_no_rules(&decision.rule, &decision.reason_code) {
        return Err(Gap::Rules);
    }
    let said = Said::of(&decision.verdict, &decision.reason_code, None);
    Ok(Verdict {
        done: said.ok_or(Gap::Verdict)?,
        would: None,
        rule: decision.rule.clone(),
        reason: decision.reason.clone(),
        reason_code: decision.reason_code.clone(),
    })
}

/// What the rules would have answered.
fn answered(ruling: Ruling) -> Verdict {
    let Ruling {
        decision,
        ask,
        mut reason,
        mut reason_code,
        rule,
        terms,
        matched,
        winner,
        monitored,
        ..
    } = ruling;
    let asks = |ask: &Ask| {
        Said::Ask(Some(match ask.effect {
            Effect::Run => "run",
            Effect::Escalate(_) => "escalate",
        }))
    };
    // A ruling says of what is asked that nobody can be: here it is what would be asked that counts.
    let opinion = winner.and_then(|winner| matched.get(winner));
    let question = opinion.and_then(|opinion| match &opinion.answer {
        Answer::Ask(ask) => Some((ask, opinion)),
        _ => None,
    });
    if let Some((ask, opinion)) = question {
        reason_code.clone_from(&opinion.reason_code);
        let whom = asked(ask.asked.as_deref().unwrap_or_default());
        let within = humantime::format_duration(ask.within);
        reason = match &opinion.justification {
            Some(justification) => format!("{justification} (asks {whom}, within {within})"),
            None => format!("asks {whom}, within {within}"),
        };
    }
    let done = match &ask {
        Some(ask) => asks(ask),
        None => Said::by(&decision_message(decision, terms)),
    };
    // As it is recorded.
    let would = monitored.map(|would| {
        if let Some((ask, _)) = question {
            return asks(ask);
        }
        let would = decision_message(would, EscalationTerms::default());
        Said::by(&would)
    });
    Verdict {
        done,
        would,
        rule,
        reason,
        reason_code,
    }
}

/// Whether a file that was found, or one of its interpreters, has no digest.
fn lacks_digest(info: &v1::ExecutableInfo) -> bool {
    let interpreter = info.interpreter.as_ref();
    (info.missing.is_empty() && info.sha256.is_empty())
        || interpreter
            .and_then(|interpreter| interpreter.executable.as_deref())
            .is_some_and(lacks_digest)
}

/// Gates send digests to those who ask for them.
fn without_digests(info: &mut v1::ExecutableInfo) {
    info.sha256.clear();
    let interpreter = info.interpreter.as_mut();
    if let Some(executable) =
        interpreter.and_then(|interpreter| interpreter.executable.as_deref_mut())
    {
        without_digests(executable);
    }
}

/// Judges an exec by other rules.
pub(in crate::policyd) fn judge(rules: &Rules, exec: &Exec) -> Result<Judged, Gap> {
    let was = recorded(exec)?;
    let now = answered(judged(rules, exec)?);
    let is_done = was.done.is_same(&now.done).ok_or(Gap::Terms)?;
    // What would be done, were rules enforced, is news only where other rules say it.
    let is_news = match &now.would {
        None => false,
        Some(would) => !was
            .would
            .as_ref()
            .unwrap_or(&was.done)
            .is_same(would)
            .unwrap_or(true),
    };
    Ok(Judged {
        is_changed: !is_done || is_news,
        was,
        now,
    })
}

/// What the rules say, if the record has all that they may look at.
fn judged(rules: &Rules, exec: &Exec) -> Result<Ruling, Gap> {
    if exec.program.is_empty() {
        return Err(Gap::Question);
    }
    // Prefix rules look at the program and its arguments, and at nothing else.
    if rules.has_decide() {
        let facts = exec.session.as_ref().ok_or(Gap::Session)?;
        if exec.gate.is_empty() {
            return Err(Gap::Session);
        }
        let told: usize = facts.command_words.iter().map(Bytes::len).sum();
        if facts.command_bytes != told as u64 {
            return Err(Gap::Command);
        }
        let names = &exec.environment_names;
        let mut asked = rules.requested_environment().iter();
        if asked.any(|asked| names.iter().any(|name| name == &asked[..])) {
            return Err(Gap::Values);
        }
        if rules.requests_digests() && exec.executable.as_ref().is_some_and(lacks_digest) {
            return Err(Gap::Digest);
        }
    }
    let facts = exec.session.clone().unwrap_or_default();
    let started = v1::SessionStarted {
        session_id: exec.session_id.clone(),
        gate: Some(v1::GateInfo {
            hostname: exec.hostname.clone(),
            ..v1::GateInfo::default()
        }),
        labels: exec.labels.clone(),
        workdir: facts.workdir,
        user: facts.user,
        command: facts.command_words,
        sandbox: facts.sandbox,
        ..v1::SessionStarted::default()
    };
    let gate = GateIdentity::from(exec.gate.clone());
    let session = session_facts(&started, &gate).map_err(|_| Gap::Session)?;
    let mut executable = exec.executable.clone();
    if let Some(executable) = &mut executable
        && !rules.requests_digests()
    {
        without_digests(executable);
    }
    let request = v1::ExecRequested {
        exec_id: exec.exec_id,
        file: exec.program.clone(),
        arguments: exec.arguments.clone(),
        workdir: exec.workdir.clone(),
        environment_names: exec.environment_names.clone(),
        process: exec.process,
        parent_exec_id: exec.parent_exec_id,
        redacted_arguments: exec.redacted_arguments.clone(),
        executable,
        workdir_protection: exec.workdir_protection,
        ..v1::ExecRequested::default()
    };
    Ok(ruling(rules, &session, &request))
}
