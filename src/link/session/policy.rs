//! The policy of one session: asks, and tells.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use prost::Message;
use prost::bytes::Bytes;
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::{Asker, Reply, Shared};
use crate::journal::{Outlives, Position};
use crate::link::codec::BODY_LIMIT;
use crate::link::options::{Audit, OnUnavailable};
use crate::link::state::{AttemptNow, Expiry, Refusal, SessionState};
use crate::model::{
    DecisionCode, EscalationDecision, ExecId, InterceptedExec, SessionEvent, Verdict,
};
use crate::pb;
use crate::pb::v1::SessionRequest;
use crate::pb::v1::session_request::Event;
use crate::server::{BoxFuture, Digest, EscalationPolicy, PolicyError};

/// The policy of one session.
#[derive(Debug)]
pub(in crate::link) struct SessionLink {
    shared: Arc<Shared>,
}

impl SessionLink {
    pub(in crate::link) fn new(shared: Arc<Shared>) -> Self {
        Self { shared }
    }

    async fn ask(&self, exec: &InterceptedExec) -> Result<Verdict, PolicyError> {
        let shared = &*self.shared;
        if let Some(refusal) = shared.unrecorded() {
            shared.tally.unrecorded.add(1);
            return Ok(refusal);
        }
        let mut question = pb::exec_requested(exec, shared.options.verdict_deadline);
        let told = shared.disclose(&mut question, exec);
        let body = Bytes::from(question.encode_to_vec());
        if body.len() > BODY_LIMIT {
            return Ok(shared.overloaded("the command is too large to ask about"));
        }
        let (reply, mut answer) = oneshot::channel();
        let asker = Asker {
            reply,
            person: None,
        };
        let asked = Instant::now();
        let taken = shared.tell(|state| {
            let taken = state.ask(exec.id, body.clone(), asker, asked)?;
            let outlives = shared.keep(taken.sequence, &body, Position::Within);
            if outlives == Outlives::Nothing && shared.options.audit == Audit::Strict {
                state.withdraw(exec.id);
                return Err(Refusal::Unkept);
            }
            Ok(taken)
        });
        let taken = match taken {
            Ok(taken) => taken,
            Err(Refusal::Overloaded) => {
                return Ok(shared.overloaded("too many commands wait for the policy service"));
            }
            Err(Refusal::Unreachable(cause)) => return Ok(shared.unreachable(&cause)),
            Err(Refusal::SessionEnded) => return Ok(session_ended()),
            Err(Refusal::Unkept) => {
                shared.tally.unrecorded.add(1);
                return Ok(unrecorded("there is no memory that outlives the gate"));
            }
            Err(Refusal::AlreadyAsked) => {
                return Err(PolicyError(
                    format!("exec {} is being asked already", exec.id).into(),
                ));
            }
        };
        let mut open = OpenQuestion {
            shared,
            exec: Some(exec.id),
        };
        if taken.attempt_now == AttemptNow::Yes {
            shared.attempt_now.notify_one();
        }

        let mut deadline = pin!(tokio::time::sleep_until(taken.deadline));
        let reply = loop {
            tokio::select! {
                biased;
                reply = &mut answer => break reply,
                () = deadline.as_mut() => match shared.update(|state| {
                    state.expire(exec.id, Instant::now())
                }) {
                    Expiry::NotBefore(later) => deadline.as_mut().reset(later),
                    Expiry::TimedOut(asker) => {
                        let is_person_asked = asker.person.is_some();
                        drop(asker);
                        open.exec = None;
                        shared.withdraw_at_deadline(exec.id);
                        return Ok(shared.timed_out(exec.id, is_person_asked, asked));
                    }
                    Expiry::Unreachable(asker, cause) => {
                        drop(asker);
                        open.exec = None;
                        shared.withdraw_at_deadline(exec.id);
                        return Ok(shared.unreachable(&cause));
                    }
                    Expiry::Gone => break (&mut answer).await,
                },
            }
        };
        open.exec = None;
        Ok(match reply {
            // Values aren't looked at again, so a verdict that may depend on them is for this exec alone.
            Ok(Reply::Verdict(verdict)) if told == Told::Values => Verdict {
                reuse: None,
                ..verdict
            },
            Ok(Reply::Verdict(verdict)) => verdict,
            Ok(Reply::Unreachable(cause)) => shared.unreachable(&cause),
            // The driver has ended, with the session.
            Err(_) => session_ended(),
        })
    }
}

impl EscalationPolicy for SessionLink {
    fn decide<'a>(
        &'a self,
        exec: &'a InterceptedExec,
    ) -> BoxFuture<'a, Result<Verdict, PolicyError>> {
        Box::pin(self.ask(exec))
    }

    fn may_reuse(&self) -> bool {
        self.shared.unrecorded().is_none()
    }

    fn person_asked(&self, exec: ExecId) -> Option<String> {
        self.shared.update(|state| {
            let mut waiting = state.waiting();
            let (_, asker) = waiting.find(|(waiting, _)| *waiting == exec)?;
            let (message, _) = asker.person.as_ref()?;
            Some(match message.as_str() {
                "" => "waiting for a person's decision".to_owned(),
                message => message.to_owned(),
            })
        })
    }

    fn wanted_digest(&self) -> Digest {
        if self.shared.digests_wanted.load(Ordering::Relaxed) {
            Digest::Sha256
        } else {
            Digest::None
        }
    }

    fn observe(&self, event: SessionEvent) {
        let is_last = matches!(event, SessionEvent::SessionEnded { .. });
        let reused = match &event {
            SessionEvent::ExecReused { exec, .. } => Some(Arc::clone(exec)),
            _ => None,
        };
        let mut event = pb::session_event(event);
        if let Some(exec) = reused {
            self.shared.disclose(&mut event, &exec);
        }
        let body = Bytes::from(event.encode_to_vec());
        if is_last {
            self.shared.tell(|state| {
                self.shared
                    .place(state, &body, Position::Last, Instant::now());
                state.finish();
            });
            self.shared.over.cancel();
        } else {
            self.shared.record(&body);
        }
    }
}

impl Drop for SessionLink {
    fn drop(&mut self) {
        self.shared.tell(SessionState::finish);
        self.shared.over.cancel();
    }
}

/// Withdraws a question when its asker goes away.
struct OpenQuestion<'a> {
    shared: &'a Shared,
    /// `None` once it isn't open any more.
    exec: Option<ExecId>,
}

impl Drop for OpenQuestion<'_> {
    fn drop(&mut self) {
        if let Some(exec) = self.exec {
            // The server tells the service.
            drop(self.shared.update(|state| state.abandon(exec)));
        }
    }
}

/// What was told of an exec's environment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Told {
    Names,
    Values,
}

impl Shared {
    /// Why no exec may be admitted, where the gate's owner wants none without its record.
    fn unrecorded(&self) -> Option<Verdict> {
        if self.options.audit == Audit::BestEffort {
            return None;
        }
        let trouble = self
            .options
            .journal
            .as_ref()
            .and_then(|journal| journal.trouble());
        let is_behind = || self.update(|state| state.is_half_full());
        let cause = trouble.or_else(|| {
            is_behind()
                .then(|| "the policy service doesn't take them, and too many wait".to_owned())
        })?;
        Some(unrecorded(&cause))
    }

    /// Takes out of an exec's description what isn't to leave the gate, and adds what may.
    fn disclose(&self, event: &mut SessionRequest, exec: &InterceptedExec) -> Told {
        let described = match &mut event.event {
            Some(Event::ExecRequested(described)) => described,
            Some(Event::ExecReused(reused)) => match &mut reused.exec {
                Some(described) => described,
                None => return Told::Names,
            },
            _ => return Told::Names,
        };
        let disclosure = &self.options.disclosure;
        described.redacted_arguments = disclosure.redact_words(&mut described.arguments);
        let names = self.environment_names(|names| Arc::clone(names));
        described.environment_variables = disclosure.variables(&exec.env, &names);
        if described.environment_variables.is_empty() {
            Told::Names
        } else {
            Told::Values
        }
    }

    fn timed_out(&self, exec: ExecId, is_person_asked: bool, asked: Instant) -> Verdict {
        let count = self.tally.timed_out.add(1);
        let reason = if !is_person_asked {
            self.no_verdict(exec, count)
        } else if asked.elapsed() >= self.options.pending_cap {
            "nobody decided within the time of --approval-timeout".to_owned()
        } else {
            "nobody decided within the time that the policy service had named".to_owned()
        };
        self.unavailable(DecisionCode::TimedOut, reason)
    }

    /// Says that a connection stands and no verdict came, in the log the first, second, fourth time and so on.
    fn no_verdict(&self, exec: ExecId, count: u64) -> String {
        let (endpoint, objection) = {
            let locked = self.lock();
            (locked.endpoint.clone(), locked.refusal.get())
        };
        let obstacle = objection.as_ref().and_then(|objection| objection.obstacle);
        let detail = objection.map_or(String::new(), |objection| format!(": {objection}"));
        let reason = pb::one_line(format!(
            "the policy service gave no verdict in time: {endpoint}{detail}"
        ));
        if count.is_power_of_two() {
            let hint = self.options.remedy.zip(obstacle);
            let hint = hint.map(|(remedy, obstacle)| remedy(obstacle));
            tracing::warn!(
                session = %self.session.description.id,
                %exec,
                trace = self.trace().trace(),
                count,
                hint,
                "{reason}"
            );
        }
        reason
    }

    fn unreachable(&self, cause: &str) -> Verdict {
        self.tally.unreachable.add(1);
        let reason = pb::one_line(cause.to_owned());
        self.unavailable(DecisionCode::Unreachable, reason)
    }

    fn unavailable(&self, code: DecisionCode, reason: String) -> Verdict {
        match self.options.on_unavailable {
            OnUnavailable::Deny => Verdict::denied(code, reason),
            OnUnavailable::Run => Verdict {
                code,
                ..Verdict::from(EscalationDecision::Run)
            },
        }
    }

    fn overloaded(&self, reason: &str) -> Verdict {
        self.tally.overloaded.add(1);
        Verdict::denied(DecisionCode::Overloaded, reason)
    }
}

fn unrecorded(cause: &str) -> Verdict {
    let reason = pb::one_line(format!("events can't be kept: {cause}"));
    Verdict::denied(DecisionCode::Unrecorded, reason)
}

fn session_ended() -> Verdict {
    Verdict::denied(DecisionCode::SessionEnded, "the session has ended")
}
