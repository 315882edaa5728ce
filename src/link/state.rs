use std::collections::VecDeque;
use std::collections::hash_map::{Entry, HashMap};
use std::time::Duration;

use prost::bytes::Bytes;
use tokio::time::Instant;

use super::backoff::Awaited;
use super::log::{EventLog, Keep, LogBounds, Next};
use super::route::Others;
use crate::journal::{Changes, Since};
use crate::model::ExecId;
use crate::pb::{Acknowledgement, Reconnect};

/// Sequence of a session's first event.
const FIRST_SEQUENCE: u64 = 1;

/// After this many calls that broke while they carried it a question is no longer asked: it may be
/// what breaks them, and other execs need the call.
const MOST_BROKEN_CALLS: u32 = 4;

/// Most events, and about the most bytes, that the journal is given at once.
const JOURNAL_EVENTS: usize = 1024;
const JOURNAL_BYTES: usize = 4 << 20;

/// What a session has to say and is waiting for, over all of its calls. Pure: it reads no clock and
/// touches no socket. `R` is where the answer to a question goes.
#[derive(Debug)]
pub(super) struct SessionState<R> {
    bounds: Bounds,
    /// The session's first event, which opens its first call.
    first: Bytes,
    next_sequence: u64,
    log: EventLog,
    open: HashMap<ExecId, Question<R>>,
    /// Bytes of all open questions.
    open_bytes: usize,
    /// Greatest id that was asked, to tell a late verdict from one for an exec that never was.
    greatest_asked: ExecId,
    /// The latest questions whose askers went away, at most as many as may be open: their verdicts may
    /// have been on the way.
    abandoned: VecDeque<ExecId>,
    call: Call,
    /// How many calls have been given their first message.
    calls_opened: u32,
    /// Whether the service has answered any of them, and so has the session's first event.
    is_known: bool,
    outage: Option<Outage>,
    end: End,
}

/// Bounds of a session.
#[derive(Debug, Clone, Copy)]
pub(super) struct Bounds {
    /// How long a question waits for its verdict.
    pub(super) verdict_deadline: Duration,
    /// How long a question waits at most, when a person decides.
    pub(super) pending_cap: Duration,
    /// How long after the beginning of an outage questions go on waiting through failed attempts.
    pub(super) outage_tolerance: Duration,
    /// Most open questions.
    pub(super) questions: usize,
    /// Most bytes of them.
    pub(super) question_bytes: usize,
    /// Bounds of the events that are kept.
    pub(super) log: LogBounds,
}

/// What a session has of what is bounded.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Load {
    /// Open questions.
    pub(super) questions: usize,
    /// Bytes of them.
    pub(super) question_bytes: usize,
    /// Events that aren't settled.
    pub(super) events: usize,
    /// Bytes of them.
    pub(super) event_bytes: usize,
    /// When the first of them was told.
    pub(super) oldest: Option<Instant>,
}

/// An exec that waits for its verdict.
#[derive(Debug)]
struct Question<R> {
    sequence: u64,
    body: Bytes,
    asked: Instant,
    deadline: Instant,
    /// Whether a person decides, and it has more time than most.
    extended: bool,
    /// The call that was given the question last.
    call: Option<CallNumber>,
    broken_calls: u32,
    reply: R,
}

/// Numbers the attempts to call, for telling a call's leftovers from its successor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct CallNumber(u64);

impl CallNumber {
    /// Whether there were calls, or attempts, before.
    pub(super) fn is_another(self) -> bool {
        self.0 > 1
    }
}

#[derive(Debug)]
struct Call {
    number: CallNumber,
    phase: Phase,
    keep: KeepChoice,
    /// Sequence and body of the first message, until it is sent.
    opening: Option<(u64, Bytes)>,
    /// Questions to be asked again before the events of the log, in order.
    again: VecDeque<ExecId>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// There is no call, and no attempt.
    Down,
    /// An attempt: the transport has taken nothing yet.
    Attempted,
    /// The transport has taken the first message, so there is a connection.
    Opened,
    /// The service has shown that it is there.
    Proven,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum KeepChoice {
    /// The service's first answer will tell whether it acknowledges; until then events are kept.
    Open,
    Chosen(Keep),
}

#[derive(Debug)]
struct Outage {
    since: Instant,
    next: Reconnect,
    cause: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    No,
    /// The last event is in the log, if there is one.
    Recorded,
    /// The current call has been told, and half-closed.
    HalfClosed,
}

/// That a question was taken.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Asked {
    /// Its position in the session.
    pub(super) sequence: u64,
    /// When it has waited long enough, unless that is extended.
    pub(super) deadline: Instant,
    /// Whether the link is waiting before its next attempt, which would better be made now.
    pub(super) attempt_now: AttemptNow,
}

/// Whether to wait before the next attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum AttemptNow {
    /// Don't wait.
    Yes,
    /// There is nothing to hasten.
    No,
}

/// Why a question wasn't taken.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    /// Too many wait, or too many bytes.
    Overloaded,
    /// The service refuses calls.
    Unreachable(String),
    /// The session has ended.
    SessionEnded,
    /// That exec is being asked already.
    AlreadyAsked,
    /// It wouldn't outlive the gate.
    Unkept,
}

/// What there is to send on a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum ToSend {
    /// A message: the sequence and the rest of it.
    Message { sequence: u64, body: Bytes },
    /// That events were dropped.
    Lost { first: u64, last: u64 },
    /// Nothing, at present.
    Wait,
    /// Nothing before then, unless something comes that can't wait.
    Later(Instant),
    /// Nothing any more.
    HalfClose,
}

/// A verdict that answers nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stray {
    /// No such exec was asked.
    Unknown,
    /// The exec is no longer open: a second verdict, or one that came too late.
    Superfluous,
    /// Its asker has gone: the service may have answered before it was told.
    Crossed,
}

/// What has become of a question whose deadline came.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Expiry<R> {
    /// The deadline was extended.
    NotBefore(Instant),
    /// It waited long enough, with a service that could have answered.
    TimedOut(R),
    /// It waited long enough, with no service that could have answered.
    Unreachable(R, String),
    /// It isn't open: its answer is on its way.
    Gone,
}

impl<R> SessionState<R> {
    /// A session that begins with the event `first`.
    pub(super) fn new(bounds: Bounds, first: Bytes) -> Self {
        Self {
            bounds,
            first,
            next_sequence: FIRST_SEQUENCE + 1,
            log: EventLog::new(bounds.log),
            open: HashMap::new(),
            open_bytes: 0,
            greatest_asked: ExecId(0),
            abandoned: VecDeque::new(),
            call: Call {
                number: CallNumber(0),
                phase: Phase::Down,
                keep: KeepChoice::Open,
                opening: None,
                again: VecDeque::new(),
            },
            calls_opened: 0,
            is_known: false,
            outage: None,
            end: End::No,
        }
    }

    // What the gate says.

    /// Asks for a verdict. `body` is the question's encoding without its sequence.
    pub(super) fn ask(
        &mut self,
        exec: ExecId,
        body: Bytes,
        reply: R,
        now: Instant,
    ) -> Result<Asked, Refusal> {
        if self.end != End::No {
            return Err(Refusal::SessionEnded);
        }
        if let Some(outage) = &self.outage
            && outage.next == Reconnect::AtLongestInterval
            && self.call.phase == Phase::Down
        {
            return Err(Refusal::Unreachable(outage.cause.clone()));
        }
        let open_bytes = self.open_bytes + body.len();
        if self.open.len() >= self.bounds.questions || open_bytes > self.bounds.question_bytes {
            return Err(Refusal::Overloaded);
        }
        let Entry::Vacant(vacant) = self.open.entry(exec) else {
            return Err(Refusal::AlreadyAsked);
        };
        let sequence = self.next_sequence;
        let deadline = after(now, self.bounds.verdict_deadline);
        vacant.insert(Question {
            sequence,
            body: body.clone(),
            asked: now,
            deadline,
            extended: false,
            call: None,
            broken_calls: 0,
            reply,
        });
        self.next_sequence += 1;
        self.open_bytes = open_bytes;
        self.greatest_asked = self.greatest_asked.max(exec);
        self.log.push(sequence, body, Some(exec), now);
        let attempt_now = match (&self.outage, self.call.phase) {
            (Some(_), Phase::Down) => AttemptNow::Yes,
            _ => AttemptNow::No,
        };
        Ok(Asked {
            sequence,
            deadline,
            attempt_now,
        })
    }

    /// Records an event that isn't a question; gives its sequence. After the last event there is none.
    pub(super) fn record(&mut self, body: Bytes, now: Instant) -> Option<u64> {
        if self.end != End::No {
            return None;
        }
        let sequence = self.next_sequence;
        self.log.push(sequence, body, None, now);
        self.next_sequence += 1;
        Some(sequence)
    }

    /// Says that no further event will be recorded, so that calls end once they have all of them.
    pub(super) fn finish(&mut self) {
        if self.end == End::No {
            self.end = End::Recorded;
        }
    }

    /// Drops what exceeds the bounds, and returns how many events that were.
    pub(super) fn shed(&mut self) -> u64 {
        let open = &self.open;
        self.log.shed(|exec| open.contains_key(&exec))
    }

    /// Takes back a question because its asker went away.
    pub(super) fn abandon(&mut self, exec: ExecId) -> Option<R> {
        let reply = self.withdraw(exec)?;
        if self.abandoned.len() >= self.bounds.questions {
            self.abandoned.pop_front();
        }
        self.abandoned.push_back(exec);
        Some(reply)
    }

    /// Asks no longer: the asker has gone.
    pub(super) fn withdraw(&mut self, exec: ExecId) -> Option<R> {
        let question = self.open.remove(&exec)?;
        self.open_bytes -= question.body.len();
        Some(question.reply)
    }

    /// Looks at a question when its deadline seems to have come.
    pub(super) fn expire(&mut self, exec: ExecId, now: Instant) -> Expiry<R> {
        let Some(question) = self.open.get(&exec) else {
            return Expiry::Gone;
        };
        if question.deadline > now {
            return Expiry::NotBefore(question.deadline);
        }
        let answerable = match (&self.call.phase, &self.outage) {
            (Phase::Proven, _) | (Phase::Opened, None) => None,
            (_, Some(outage)) => Some(outage.cause.clone()),
            (Phase::Down | Phase::Attempted, None) => Some(
                "the policy service can't be reached: no connection could be made yet".to_owned(),
            ),
        };
        match (self.withdraw(exec), answerable) {
            (None, _) => Expiry::Gone,
            (Some(reply), None) => Expiry::TimedOut(reply),
            (Some(reply), Some(cause)) => Expiry::Unreachable(reply, cause),
        }
    }

    // What the service says.

    /// Takes the reply of a question that a verdict has come for.
    pub(super) fn answered(&mut self, exec: ExecId) -> Result<R, Stray> {
        self.heard(Acknowledgement::None);
        self.withdraw(exec).ok_or_else(|| self.stray(exec))
    }

    fn stray(&self, exec: ExecId) -> Stray {
        if self.abandoned.contains(&exec) {
            Stray::Crossed
        } else if exec <= self.greatest_asked {
            Stray::Superfluous
        } else {
            Stray::Unknown
        }
    }

    /// Lets a question wait longer, because a person decides; gives access to its reply.
    pub(super) fn extend(
        &mut self,
        exec: ExecId,
        within: Option<Duration>,
        now: Instant,
    ) -> Result<&mut R, Stray> {
        self.heard(Acknowledgement::None);
        let stray = self.stray(exec);
        let cap = self.bounds.pending_cap;
        let question = self.open.get_mut(&exec).ok_or(stray)?;
        let latest = after(question.asked, cap);
        let until = within.map_or(latest, |within| after(now, within).min(latest));
        question.deadline = question.deadline.max(until);
        question.extended = true;
        // The service can deal with it.
        question.broken_calls = 0;
        Ok(&mut question.reply)
    }

    /// The service has answered; unless it chose so with its first answer, it doesn't acknowledge.
    pub(super) fn heard(&mut self, acknowledgement: Acknowledgement) {
        self.is_known = true;
        if self.call.phase != Phase::Down {
            self.call.phase = Phase::Proven;
            self.outage = None;
        }
        if self.call.keep == KeepChoice::Open {
            let keep = match acknowledgement {
                Acknowledgement::Stored => Keep::UntilAcknowledged,
                Acknowledgement::None => Keep::Nothing,
            };
            self.call.keep = KeepChoice::Chosen(keep);
            if keep == Keep::Nothing {
                self.log.forget_handed_over();
            }
        }
    }

    /// The service has stored the events up to `through`.
    pub(super) fn acknowledged(&mut self, through: u64) {
        self.heard(Acknowledgement::None);
        // An acknowledgement of what an earlier call was given may come before this call has repeated
        // it.
        let not_asked = self.log.acknowledge(through);
        self.call.again.extend(not_asked);
    }

    // For the journal.

    /// What the journal hasn't seen.
    pub(super) fn changes(&self, since: Since) -> Changes {
        let (events, are_all) = self
            .log
            .since(since.sequence, JOURNAL_EVENTS, JOURNAL_BYTES);
        let dropped = self.log.dropped();
        Changes {
            settled: self.log.begins_at().unwrap_or(self.next_sequence) - 1,
            told: self.next_sequence - 1,
            dropped,
            lost: if dropped == since.dropped {
                Vec::new()
            } else {
                self.log.losses_through(since.sequence)
            },
            events,
            are_all,
        }
    }

    /// Whether events may have to be dropped if further execs are admitted.
    pub(super) fn is_half_full(&self) -> bool {
        self.log.is_half_full()
    }

    // Calls.

    /// Begins an attempt to call. `resumption` encodes the first message of a call that goes on
    /// from an earlier one, given its attempt and next sequence.
    pub(super) fn begin_call(&mut self, resumption: impl FnOnce(u32, u64) -> Bytes) -> CallNumber {
        let number = CallNumber(self.call.number.0 + 1);
        self.log.rewind();
        let again = self.questions_before_the_log();
        let opening = if self.calls_opened == 0 {
            (FIRST_SEQUENCE, self.first.clone())
        } else {
            let next_sequence = again
                .front()
                .and_then(|exec| self.open.get(exec))
                .map(|question| question.sequence)
                .or_else(|| self.log.first_sequence())
                .unwrap_or(self.next_sequence);
            let attempt = self.calls_opened.saturating_add(1);
            (0, resumption(attempt, next_sequence))
        };
        if self.end == End::HalfClosed {
            self.end = End::Recorded;
        }
        self.call = Call {
            number,
            phase: Phase::Attempted,
            keep: KeepChoice::Open,
            opening: Some(opening),
            again,
        };
        number
    }

    fn questions_before_the_log(&self) -> VecDeque<ExecId> {
        let log_begins = self.log.begins_at().unwrap_or(self.next_sequence);
        let mut questions: Vec<_> = self
            .open
            .iter()
            .filter(|(_, question)| question.sequence < log_begins)
            .map(|(exec, question)| (question.sequence, *exec))
            .collect();
        questions.sort_unstable();
        questions.into_iter().map(|(_, exec)| exec).collect()
    }

    /// What the transport of call `number` is to send next.
    pub(super) fn next(&mut self, number: CallNumber) -> ToSend {
        if number != self.call.number || self.call.phase == Phase::Down {
            return ToSend::HalfClose;
        }
        // Whatever was heard already, for a service may speak first.
        if let Some((sequence, body)) = self.call.opening.take() {
            self.calls_opened = self.calls_opened.saturating_add(1);
            if self.call.phase == Phase::Attempted {
                self.call.phase = Phase::Opened;
            }
            return ToSend::Message { sequence, body };
        }
        while let Some(exec) = self.call.again.pop_front() {
            // It may have been withdrawn since.
            if let Some(question) = self.open.get_mut(&exec) {
                question.call = Some(number);
                return ToSend::Message {
                    sequence: question.sequence,
                    body: question.body.clone(),
                };
            }
        }
        let keep = match self.call.keep {
            KeepChoice::Open => Keep::UntilAcknowledged,
            KeepChoice::Chosen(keep) => keep,
        };
        match self.log.next(keep) {
            Some(Next::Event {
                sequence,
                body,
                question,
            }) => {
                if let Some(question) = question.and_then(|exec| self.open.get_mut(&exec)) {
                    question.call = Some(number);
                }
                ToSend::Message { sequence, body }
            }
            Some(Next::Lost { first, last }) => ToSend::Lost { first, last },
            None if self.end == End::No => ToSend::Wait,
            None => {
                self.end = End::HalfClosed;
                ToSend::HalfClose
            }
        }
    }

    /// The call has stayed up: there is something that speaks the protocol.
    pub(super) fn settled(&mut self) {
        if self.call.phase == Phase::Opened {
            self.call.phase = Phase::Proven;
            self.outage = None;
        }
    }

    /// The call has ended, or could not be made. Returns the questions that wait no longer.
    pub(super) fn call_ended(
        &mut self,
        others: Others,
        next: Reconnect,
        cause: String,
        now: Instant,
    ) -> Vec<(ExecId, R)> {
        let ended = self.call.number;
        let since = self.outage.as_ref().map_or(now, |outage| outage.since);
        // Where there are others they are asked at once.
        let next = match others {
            Others::Untried => Reconnect::Soon,
            Others::AllTried => next,
        };
        let give_up = others == Others::AllTried
            && (next == Reconnect::AtLongestInterval
                || now.saturating_duration_since(since) >= self.bounds.outage_tolerance);
        self.call.phase = Phase::Down;
        self.outage = Some(Outage { since, next, cause });
        for question in self.open.values_mut() {
            if question.call == Some(ended) {
                question.broken_calls += 1;
            }
        }
        let mut execs: Vec<_> = self
            .open
            .iter()
            .filter(|(_, question)| {
                (give_up && !question.extended) || question.broken_calls >= MOST_BROKEN_CALLS
            })
            .map(|(exec, _)| *exec)
            .collect();
        execs.sort_unstable();
        execs
            .into_iter()
            .filter_map(|exec| Some((exec, self.withdraw(exec)?)))
            .collect()
    }

    /// Whether everything has been said and the call that just ended cleanly has taken it.
    pub(super) fn is_over(&self) -> bool {
        self.end == End::HalfClosed
            && match self.call.keep {
                KeepChoice::Chosen(Keep::UntilAcknowledged) => self.log.is_empty(),
                KeepChoice::Open | KeepChoice::Chosen(Keep::Nothing) => self.log.is_handed_over(),
            }
    }

    /// The service has ended the call as one that it has taken all of. It need not have said anything before.
    pub(super) fn taken(&mut self) {
        self.is_known = true;
        if self.call.keep == KeepChoice::Open {
            self.call.keep = KeepChoice::Chosen(Keep::Nothing);
        }
    }

    /// Ends it all: returns the questions that were open and how many events weren't delivered.
    pub(super) fn close(&mut self) -> (Vec<R>, usize) {
        self.end = End::HalfClosed;
        self.call.phase = Phase::Down;
        self.open_bytes = 0;
        let replies = self.open.drain().map(|(_, question)| question.reply);
        let keep = match self.call.keep {
            KeepChoice::Chosen(keep) => keep,
            // The transport takes events for whatever is there: only an answer shows that it has to do with them.
            KeepChoice::Open => Keep::UntilAcknowledged,
        };
        let first = usize::from(!self.is_known);
        (replies.collect(), first + self.log.unsettled(keep))
    }

    /// How much it has of what is bounded.
    pub(super) fn load(&self) -> Load {
        let (events, event_bytes) = self.log.size();
        Load {
            questions: self.open.len(),
            question_bytes: self.open_bytes,
            events,
            event_bytes,
            oldest: self.log.oldest(),
        }
    }

    /// Other bounds on what it may have, for what follows.
    pub(super) fn allow(&mut self, questions: usize, question_bytes: usize, log: LogBounds) {
        self.bounds.questions = questions;
        self.bounds.question_bytes = question_bytes;
        self.log.set_bounds(log);
    }

    /// Whether somebody waits for a verdict that no person gives.
    pub(super) fn awaited(&self) -> Awaited {
        if self.open.values().any(|question| !question.extended) {
            Awaited::Yes
        } else {
            Awaited::No
        }
    }

    /// The questions that wait.
    pub(super) fn waiting(&self) -> impl Iterator<Item = (ExecId, &R)> {
        self.open
            .iter()
            .map(|(exec, question)| (*exec, &question.reply))
    }
}

/// `span` after `start`; for a span that no clock can show, 30 years.
fn after(start: Instant, span: Duration) -> Instant {
    const FOREVER: Duration = Duration::from_secs(30 * 365 * 24 * 3600);
    start.checked_add(span).unwrap_or_else(|| start + FOREVER)
}

#[cfg(test)]
mod tests;
