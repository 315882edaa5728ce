//! A session's calls: what they send, how they begin and end.

use std::task::Waker;
use std::time::SystemTime;

use prost::Message;
use tokio::time::Instant;
use tonic::{Code, Status};

use super::{Reply, Shared};
use crate::link::dialer::Dialer;
use crate::link::driver::concerns_all;
use crate::link::obstacle::Obstacle;
use crate::link::outage::Said;
use crate::link::route::Others;
use crate::link::state::{CallNumber, ToSend};
use crate::pb::v1::{self, Resumption};
use crate::pb::{self, Reconnect};

impl Shared {
    /// Notes which service is called next.
    pub(in crate::link) fn calls(&self, dialer: &Dialer) {
        let mut locked = self.lock();
        locked.endpoint = dialer.endpoint().to_string();
        locked.refusal = dialer.refusal();
    }

    pub(in crate::link) fn begin_call(&self) -> CallNumber {
        self.lock().gathered = None;
        self.update(|state| {
            state.begin_call(|attempt, next_sequence| {
                let resumption = Resumption {
                    attempt,
                    next_sequence,
                    reason: v1::ResumptionReason::Reconnection.into(),
                };
                pb::resumed(&self.first, resumption, SystemTime::now())
                    .encode_to_vec()
                    .into()
            })
        })
    }

    /// For the transport of `call`.
    pub(in crate::link) fn next_to_send(&self, call: CallNumber, waker: &Waker) -> ToSend {
        let mut locked = self.lock();
        let due = locked.gathered.map(|gathered| gathered.due);
        if let Some(due) = due.filter(|due| *due > Instant::now()) {
            locked.transport = Some(waker.clone());
            return ToSend::Later(due);
        }
        locked.gathered = None;
        let next = locked.state.next(call);
        self.note(&mut locked);
        if next == ToSend::Wait {
            locked.transport = Some(waker.clone());
        }
        next
    }

    /// The service has taken a call, and hasn't refused it at once.
    pub(in crate::link) fn call_accepted(&self, number: CallNumber) {
        if number.is_another() {
            self.tally.resumed_calls.add(1);
        }
        let now = Instant::now();
        for outages in [&*self.outages, &self.refusals] {
            if let Some(Said::Back(since, attempts)) = outages.back(now) {
                tracing::warn!(
                    session = %self.session.description.id,
                    trace = self.trace().trace(),
                    ?since,
                    attempts,
                    "the policy service is back"
                );
            }
        }
    }

    /// Counts a call that ended early, and says so where that is news. Returns what those read who wait no longer.
    pub(in crate::link) fn call_broke(
        &self,
        status: &Status,
        others: Others,
        obstacle: Option<Obstacle>,
        cause: &str,
    ) -> String {
        self.tally.broken_calls.add(1);
        let outcome = obstacle.map_or("can't be reached", Obstacle::outcome);
        let denial = format!("the policy service {outcome}: {cause}");
        let (session, trace) = (self.session.description.id, self.trace());
        let (trace, code) = (trace.trace(), status.code());
        if others == Others::Untried {
            tracing::info!(%session, trace, ?code, "a call ended, and another endpoint is tried: {cause}");
            return denial;
        }
        tracing::debug!(%session, trace, ?code, "a call ended: {cause}");
        let now = Instant::now();
        // A service that restarts may end calls cleanly.
        let (what, said) = if code == Code::Ok || concerns_all(status) {
            (outcome, self.outages.lost(now))
        } else {
            let what = obstacle.map_or("refuses the session", Obstacle::outcome);
            (what, self.refusals.lost(now))
        };
        let hint = self.options.remedy.zip(obstacle);
        let hint = hint.map(|(remedy, obstacle)| remedy(obstacle));
        match said {
            Some(Said::Lost) => tracing::warn!(
                %session, trace, ?code, hint,
                "the policy service {what}: {cause}; it is tried again until it is back"
            ),
            Some(Said::StillLost(since, attempts)) => tracing::warn!(
                %session, trace, ?code, ?since, attempts, hint,
                "the policy service still {what}: {cause}"
            ),
            Some(Said::Back(..)) | None => {}
        }
        denial
    }

    /// The call has ended or failed: records that, and answers those who wait no longer.
    pub(in crate::link) fn call_ended(&self, others: Others, next: Reconnect, cause: &str) {
        // Telling has the transport of the ended call look again, and find that it has ended.
        let given_up =
            self.tell(|state| state.call_ended(others, next, cause.to_owned(), Instant::now()));
        for (exec, asker) in given_up {
            self.withdraw_at_deadline(exec);
            let _ = asker.reply.send(Reply::Unreachable(cause.to_owned()));
        }
    }

    pub(in crate::link) fn lost(&self, events: u64, why: &str) {
        let lost = self.tally.lost_events.add(events);
        if (lost - events).checked_ilog2() != lost.checked_ilog2() {
            tracing::warn!(
                session = %self.session.description.id,
                trace = self.trace().trace(),
                lost,
                "events were lost: {why}"
            );
        }
    }
}
