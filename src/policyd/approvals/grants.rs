use std::collections::VecDeque;
use std::time::{Duration, SystemTime};

use super::approval::{
    CODE_REMEMBERED, CODE_REMEMBERED_DENIAL, Decided, Question, circumstances_digest, decision_of,
    denial, denied_by, effect_of, time,
};
use crate::pb::approval::v1::{self as pb, approval::Effect};
use crate::pb::v1;
use crate::policyd::identity::GateIdentity;

/// Most decisions that are remembered; the earliest are forgotten, which asks again.
const MOST: usize = 4_096;
/// The longest that a decision holds within a session, and how long where nothing is said.
const LONGEST_IN_SESSION: Duration = Duration::from_secs(24 * 3600);
/// The longest that one holds for a gate.
const LONGEST_FOR_GATE: Duration = Duration::from_secs(30 * 24 * 3600);

/// A decision that holds for later execs, with what isn't told of it.
#[derive(Debug, Clone, PartialEq)]
pub(in crate::policyd) struct Remembered {
    pub(super) grant: pb::Grant,
    /// What was approved.
    pub(super) effect: Option<Effect>,
    /// Who was asked, as the rule names them.
    pub(super) asked: String,
    /// Names what else the command depends on.
    pub(super) circumstances: [u8; 32],
}

/// The decisions that hold for later execs, the earliest first.
#[derive(Debug, Default)]
pub(super) struct Grants(VecDeque<Remembered>);

impl Grants {
    pub(super) fn all(&self) -> impl DoubleEndedIterator<Item = &Remembered> {
        self.0.iter()
    }

    /// Adds one; tells which one had to go for it.
    pub(super) fn add(&mut self, remembered: Remembered) -> Option<String> {
        let evicted = if self.0.len() >= MOST {
            self.0.pop_front()
        } else {
            None
        };
        self.0.push_back(remembered);
        evicted.map(|evicted| evicted.grant.approval_id)
    }

    /// What is remembered of an approval now.
    pub(super) fn of(&self, approval_id: &str) -> Option<&pb::Grant> {
        let mut all = self.0.iter().map(|remembered| &remembered.grant);
        all.find(|grant| grant.approval_id == approval_id)
    }

    /// Takes one out; `None` if there is none of that approval.
    pub(super) fn remove(&mut self, approval_id: &str) -> Option<Remembered> {
        let mut all = self.0.iter();
        let at = all.position(|remembered| remembered.grant.approval_id == approval_id)?;
        self.0.remove(at)
    }

    /// Takes out those that hold no longer; tells which.
    pub(super) fn remove_those(&mut self, is_over: impl Fn(&pb::Grant) -> bool) -> Vec<String> {
        let mut removed = Vec::new();
        self.0.retain(|remembered| {
            let is_over = is_over(&remembered.grant);
            if is_over {
                removed.push(remembered.grant.approval_id.clone());
            }
            !is_over
        });
        removed
    }

    /// The verdict by the latest decision that covers what is asked.
    pub(super) fn verdict(&mut self, question: &Question<'_>, now: SystemTime) -> Option<Decided> {
        if self.0.is_empty() {
            return None;
        }
        let circumstances = circumstances_digest(question.exec);
        let effect = effect_of(question);
        let mut all = self.0.iter_mut().rev();
        let remembered = all.find(|remembered| {
            time(remembered.grant.expires_at) > now
                && remembered.circumstances == circumstances
                && remembered.effect == effect
                && remembered.asked == question.ask.asked.as_deref().unwrap_or_default()
                && covers(&remembered.grant, question)
        })?;
        let grant = &mut remembered.grant;
        grant.uses += 1;
        let (decision, code) = match grant.decision() {
            pb::Decision::Approve => (decision_of(remembered.effect.as_ref()), CODE_REMEMBERED),
            pb::Decision::Deny | pb::Decision::Unspecified => (
                denial(denied_by(
                    &grant.granted_by,
                    "for this command from then on",
                )),
                CODE_REMEMBERED_DENIAL,
            ),
        };
        tracing::debug!(
            session = question.session.id,
            exec = question.exec.exec_id,
            approval = grant.approval_id,
            by = grant.granted_by,
            "decided by an earlier decision of an operator's ({code})"
        );
        Some(Decided {
            verdict: v1::Verdict {
                exec_id: question.exec.exec_id,
                decision: Some(decision),
                reason_code: code.to_owned(),
                rule: question.ruling.rule.clone(),
                policy_revision: question.revision.to_owned(),
                reuse: None,
                service_time: None,
            },
            approval_id: grant.approval_id.clone(),
            operator: grant.granted_by.clone(),
        })
    }
}

fn covers(grant: &pb::Grant, question: &Question<'_>) -> bool {
    let Question { session, exec, .. } = question;
    let arguments = exec.arguments.get(1..).unwrap_or_default();
    let is_same_command = if grant.workdir.is_empty() {
        arguments.starts_with(&grant.arguments)
    } else {
        grant.workdir == exec.workdir && arguments == grant.arguments
    };
    is_same_command
        && grant.gate == session.gate.as_str()
        && (grant.session_id.is_empty() || grant.session_id == session.id)
        && grant.user_id == exec.process.unwrap_or_default().user_id
        && grant.rule == question.ruling.rule
        && grant.file == exec.file
}

/// What is to be remembered of a decision; `None`: nothing.
///
/// # Errors
/// In words, where the scope makes no sense.
pub(super) fn grant(
    approval: &pb::Approval,
    decision: pb::Decision,
    scope: &pb::Scope,
    granted_by: &str,
    now: SystemTime,
) -> Result<Option<pb::Grant>, String> {
    let exec = approval.exec.clone().unwrap_or_default();
    let session = approval.session.clone().unwrap_or_default();
    let given = match scope.valid_for {
        None => None,
        Some(valid_for) => Some(
            Duration::try_from(valid_for)
                .ok()
                .filter(|time| !time.is_zero())
                .ok_or("the time for which it is to hold isn't positive")?,
        ),
    };
    let longest = match scope.reach() {
        pb::ScopeReach::Unspecified if *scope == pb::Scope::default() => return Ok(None),
        pb::ScopeReach::Unspecified => {
            return Err("a scope needs a reach: the session or the gate".to_owned());
        }
        pb::ScopeReach::Session => LONGEST_IN_SESSION,
        pb::ScopeReach::Gate if session.gate == GateIdentity::ANONYMOUS => {
            return Err(
                "the gate has shown no credential, so it can't be told from others: a decision can hold \
                 within the session only"
                    .to_owned(),
            );
        }
        pb::ScopeReach::Gate if given.is_none() => {
            return Err("for a gate, say for how long it is to hold".to_owned());
        }
        pb::ScopeReach::Gate => LONGEST_FOR_GATE,
    };
    let valid_for = given.unwrap_or(longest);
    if valid_for > longest {
        return Err(format!(
            "it can hold for {} at most",
            humantime::format_duration(longest)
        ));
    }
    let mut arguments: Vec<_> = exec.arguments.into_iter().skip(1).collect();
    let workdir = match scope.argument_match() {
        pb::ArgumentMatch::Unspecified | pb::ArgumentMatch::Same => {
            if scope.argument_prefix_length != 0 {
                return Err("a number of first arguments belongs to a prefix".to_owned());
            }
            if exec.workdir.is_empty() {
                return Err("the command's directory isn't known".to_owned());
            }
            exec.workdir
        }
        pb::ArgumentMatch::Prefix => {
            let length = usize::try_from(scope.argument_prefix_length).unwrap_or(usize::MAX);
            if length > arguments.len() {
                return Err(format!(
                    "the command has {} arguments, fewer than the {length} that are to be the same",
                    arguments.len()
                ));
            }
            arguments.truncate(length);
            prost::bytes::Bytes::new()
        }
    };
    Ok(Some(pb::Grant {
        approval_id: approval.approval_id.clone(),
        decision: decision.into(),
        granted_by: granted_by.to_owned(),
        granted_at: Some(now.into()),
        expires_at: Some((now + valid_for).into()),
        session_id: match scope.reach() {
            pb::ScopeReach::Gate => String::new(),
            _ => session.session_id,
        },
        gate: session.gate,
        user_id: exec.user_id,
        rule: approval.rule.clone(),
        file: exec.file,
        arguments,
        workdir,
        uses: 0,
    }))
}
