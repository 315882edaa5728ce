//! The state by itself: chosen cases, and arbitrary orders of events.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::*;

const SECOND: Duration = Duration::from_secs(1);

const BOUNDS: Bounds = Bounds {
    verdict_deadline: Duration::from_secs(5),
    pending_cap: Duration::from_secs(60),
    outage_tolerance: Duration::from_secs(5),
    questions: 4,
    question_bytes: 400,
    log: LogBounds {
        events: 6,
        bytes: 400,
    },
};

fn state() -> SessionState<u64> {
    SessionState::new(BOUNDS, Bytes::from_static(b"started"))
}

fn begin(state: &mut SessionState<u64>) -> CallNumber {
    state.begin_call(|_, _| Bytes::from_static(b"resumed"))
}

fn ask(state: &mut SessionState<u64>, exec: u64, now: Instant) -> Result<Asked, Refusal> {
    state.ask(ExecId(exec), Bytes::from_static(b"question"), exec, now)
}

fn end(state: &mut SessionState<u64>, now: Instant) -> Vec<(ExecId, u64)> {
    state.call_ended(Others::AllTried, Reconnect::Soon, "gone".to_owned(), now)
}

#[test]
fn an_outage_is_tolerated_for_a_while_from_its_beginning() {
    let now = Instant::now();
    let mut state = state();
    begin(&mut state);
    assert_eq!(end(&mut state, now), []);
    let asked = ask(&mut state, 1, now + SECOND).expect("it is taken");
    assert_eq!(asked.attempt_now, AttemptNow::Yes);
    begin(&mut state);
    assert_eq!(end(&mut state, now + 4 * SECOND), []);
    begin(&mut state);
    assert_eq!(end(&mut state, now + 5 * SECOND), [(ExecId(1), 1)]);
    // A call that settles ends the outage.
    let call = begin(&mut state);
    let _ = state.next(call);
    state.settled();
    ask(&mut state, 2, now + 6 * SECOND).expect("it is taken");
    assert_eq!(end(&mut state, now + 7 * SECOND), []);
}

#[test]
fn a_verdict_for_who_has_gone_is_told_from_one_too_many() {
    let now = Instant::now();
    let mut state = state();
    for exec in 1..=3 {
        ask(&mut state, exec, now).expect("it is taken");
    }
    assert_eq!(state.abandon(ExecId(1)), Some(1));
    assert_eq!(state.answered(ExecId(1)), Err(Stray::Crossed));
    assert_eq!(state.answered(ExecId(2)), Ok(2));
    assert_eq!(state.answered(ExecId(2)), Err(Stray::Superfluous));
    state.expire(ExecId(3), now + BOUNDS.verdict_deadline);
    assert_eq!(state.answered(ExecId(3)), Err(Stray::Superfluous));
    assert_eq!(state.answered(ExecId(4)), Err(Stray::Unknown));
    // The latest are known, as many as may be open.
    for exec in 4..=8 {
        ask(&mut state, exec, now).expect("it is taken");
        state.abandon(ExecId(exec));
    }
    assert_eq!(state.answered(ExecId(4)), Err(Stray::Superfluous));
    assert_eq!(state.answered(ExecId(5)), Err(Stray::Crossed));
}

#[test]
fn what_a_person_decides_outlasts_an_outage() {
    let now = Instant::now();
    let mut state = state();
    begin(&mut state);
    ask(&mut state, 1, now).expect("it is taken");
    state
        .extend(ExecId(1), Some(30 * SECOND), now)
        .expect("it is open");
    assert_eq!(end(&mut state, now), []);
    begin(&mut state);
    assert_eq!(end(&mut state, now + 20 * SECOND), []);
    assert_eq!(
        state.expire(ExecId(1), now + 20 * SECOND),
        Expiry::NotBefore(now + 30 * SECOND)
    );
    assert_eq!(
        state.expire(ExecId(1), now + 30 * SECOND),
        Expiry::Unreachable(1, "gone".to_owned())
    );
}

#[test]
fn an_extension_never_shortens_and_ends_at_the_cap() {
    let now = Instant::now();
    let mut state = state();
    ask(&mut state, 1, now).expect("it is taken");
    let mut extended = |within, at| {
        state.extend(ExecId(1), within, at).expect("it is open");
        match state.expire(ExecId(1), now) {
            Expiry::NotBefore(deadline) => deadline - now,
            other => panic!("expired: {other:?}"),
        }
    };
    assert_eq!(extended(Some(SECOND), now), 5 * SECOND);
    assert_eq!(extended(Some(30 * SECOND), now + SECOND), 31 * SECOND);
    assert_eq!(extended(Some(50 * SECOND), now + 20 * SECOND), 60 * SECOND);
    assert_eq!(extended(Some(Duration::MAX), now), 60 * SECOND);
    assert_eq!(extended(None, now), 60 * SECOND);
}

#[test]
fn a_deadline_tells_a_slow_service_from_none() {
    let now = Instant::now();
    let later = now + 5 * SECOND;
    let mut state = state();
    ask(&mut state, 1, now).expect("it is taken");
    assert!(matches!(
        state.expire(ExecId(1), later),
        Expiry::Unreachable(1, _)
    ));
    assert_eq!(state.expire(ExecId(1), later), Expiry::Gone);
    let call = begin(&mut state);
    let _ = state.next(call);
    ask(&mut state, 2, now).expect("it is taken");
    assert_eq!(state.expire(ExecId(2), later), Expiry::TimedOut(2));
}

#[test]
fn an_exec_is_asked_once_at_a_time() {
    let now = Instant::now();
    let mut state = state();
    ask(&mut state, 1, now).expect("it is taken");
    assert_eq!(ask(&mut state, 1, now), Err(Refusal::AlreadyAsked));
    state.finish();
    assert_eq!(ask(&mut state, 2, now), Err(Refusal::SessionEnded));
}

#[test]
fn a_call_that_was_replaced_gets_nothing() {
    let mut state = state();
    let old = begin(&mut state);
    let _ = state.next(old);
    let new = begin(&mut state);
    assert_eq!(state.next(old), ToSend::HalfClose);
    assert!(matches!(state.next(new), ToSend::Message { .. }));
}

#[test]
fn a_service_that_speaks_first_is_still_told_what_the_session_is() {
    let mut state = state();
    let call = begin(&mut state);
    state.heard(Acknowledgement::Stored);
    let body = Bytes::from_static(b"started");
    assert_eq!(state.next(call), ToSend::Message { sequence: 1, body });
    assert_eq!(state.next(call), ToSend::Wait);
}

#[test]
fn a_question_acknowledged_before_it_is_repeated_is_asked_all_the_same() {
    let mut state = state();
    ask(&mut state, 1, Instant::now()).expect("it is taken");
    let call = begin(&mut state);
    state.heard(Acknowledgement::Stored);
    while state.next(call) != ToSend::Wait {}
    end(&mut state, Instant::now());
    let call = begin(&mut state);
    let _opening = state.next(call);
    state.heard(Acknowledgement::Stored);
    state.acknowledged(2);
    let body = Bytes::from_static(b"question");
    assert_eq!(state.next(call), ToSend::Message { sequence: 2, body });
    assert_eq!(state.next(call), ToSend::Wait);
}

#[derive(Debug, Clone)]
enum Step {
    Ask { size: usize },
    Record { size: usize },
    Withdraw { exec: u64 },
    Expire { exec: u64 },
    Verdict { exec: u64 },
    Pending { exec: u64 },
    Accept { stored: Acknowledgement },
    Acknowledge { through: u64 },
    Send { most: usize },
    Settle,
    CallEnds { others: Others, next: Reconnect },
    Allow { questions: usize, events: usize },
    Call,
    Time,
    Finish,
}

fn step() -> impl Strategy<Value = Step> {
    let exec = 0..25_u64;
    prop_oneof![
        6 => (0..150_usize).prop_map(|size| Step::Ask { size }),
        6 => (0..150_usize).prop_map(|size| Step::Record { size }),
        1 => exec.clone().prop_map(|exec| Step::Withdraw { exec }),
        1 => exec.clone().prop_map(|exec| Step::Expire { exec }),
        4 => exec.clone().prop_map(|exec| Step::Verdict { exec }),
        1 => exec.prop_map(|exec| Step::Pending { exec }),
        1 => Just(Step::Accept { stored: Acknowledgement::Stored }),
        1 => Just(Step::Accept { stored: Acknowledgement::None }),
        2 => (0..60_u64).prop_map(|through| Step::Acknowledge { through }),
        6 => (1..5_usize).prop_map(|most| Step::Send { most }),
        1 => Just(Step::Settle),
        2 => Just(Step::CallEnds { others: Others::AllTried, next: Reconnect::Soon }),
        1 => Just(Step::CallEnds { others: Others::Untried, next: Reconnect::AtLongestInterval }),
        1 => Just(Step::CallEnds { others: Others::AllTried, next: Reconnect::AtLongestInterval }),
        1 => (0..=4_usize, 1..=6_usize).prop_map(|(questions, events)| Step::Allow { questions, events }),
        4 => Just(Step::Call),
        1 => Just(Step::Time),
        1 => prop_oneof![9 => Just(Step::Settle), 1 => Just(Step::Finish)],
    ]
}

/// What has to hold, whatever happens.
struct Model {
    state: SessionState<u64>,
    now: Instant,
    call: Option<CallNumber>,
    next_exec: u64,
    /// Replies that are still held by the state.
    open: BTreeSet<u64>,
    /// Each event by its sequence, as it was told.
    told: BTreeMap<u64, Bytes>,
    next_sequence: u64,
    /// Sequences that were sent or reported as lost on any call.
    accounted: BTreeSet<u64>,
    /// Execs by the sequence of their question.
    questions: BTreeMap<u64, u64>,
    /// Of the current call.
    opened: bool,
    last_sequence: u64,
    asked_on_call: BTreeSet<u64>,
    first_call_opened: bool,
    ended: bool,
    broken_calls: u32,
}

impl Model {
    fn new() -> Self {
        Self {
            state: state(),
            now: Instant::now(),
            call: None,
            next_exec: 1,
            open: BTreeSet::new(),
            told: BTreeMap::new(),
            next_sequence: 2,
            accounted: BTreeSet::new(),
            questions: BTreeMap::new(),
            opened: false,
            last_sequence: 0,
            asked_on_call: BTreeSet::new(),
            first_call_opened: false,
            ended: false,
            broken_calls: 0,
        }
    }

    fn body(&self, size: usize) -> Bytes {
        let mut body = self.next_sequence.to_le_bytes().to_vec();
        body.resize(8 + size, 0);
        body.into()
    }

    fn tell(&mut self, body: Bytes) {
        self.told.insert(self.next_sequence, body);
        self.next_sequence += 1;
    }

    fn reply_given(&mut self, reply: u64) {
        assert!(self.open.remove(&reply), "a reply is given once");
    }

    fn take(&mut self, step: &Step) {
        match *step {
            Step::Ask { size } => {
                let body = self.body(size);
                let exec = self.next_exec;
                let asked = self.state.ask(ExecId(exec), body.clone(), exec, self.now);
                if asked.is_ok() {
                    self.next_exec += 1;
                    self.open.insert(exec);
                    self.questions.insert(self.next_sequence, exec);
                    self.tell(body);
                }
                self.state.shed();
            }
            Step::Record { size } => {
                let body = self.body(size);
                self.state.record(body.clone(), self.now);
                if !self.ended {
                    self.tell(body);
                }
                self.state.shed();
            }
            Step::Withdraw { exec } => {
                if let Some(reply) = self.state.abandon(ExecId(exec)) {
                    assert_eq!(reply, exec);
                    self.reply_given(reply);
                }
            }
            Step::Expire { exec } => match self.state.expire(ExecId(exec), self.now) {
                Expiry::TimedOut(reply) | Expiry::Unreachable(reply, _) => self.reply_given(reply),
                Expiry::NotBefore(deadline) => assert!(deadline > self.now),
                Expiry::Gone => assert!(!self.open.contains(&exec)),
            },
            Step::Verdict { exec } => match self.state.answered(ExecId(exec)) {
                Ok(reply) => {
                    assert_eq!(reply, exec);
                    self.reply_given(reply);
                }
                Err(Stray::Unknown) => assert!(exec >= self.next_exec),
                Err(Stray::Superfluous | Stray::Crossed) => assert!(!self.open.contains(&exec)),
            },
            Step::Pending { exec } => {
                let extended = self.state.extend(ExecId(exec), None, self.now).is_ok();
                assert_eq!(extended, self.open.contains(&exec));
            }
            Step::Accept { stored } => self.state.heard(stored),
            Step::Acknowledge { through } => self.state.acknowledged(through),
            Step::Send { most } => {
                for _ in 0..most {
                    self.send();
                }
            }
            Step::Settle => self.state.settled(),
            Step::Allow { questions, events } => {
                let bytes = BOUNDS.log.bytes;
                self.state
                    .allow(questions, bytes, LogBounds { events, bytes });
                self.state.shed();
            }
            Step::CallEnds { others, next } => {
                if self.call.take().is_some() {
                    let given_up = self.state.call_ended(others, next, String::new(), self.now);
                    self.broken_calls += 1;
                    if others == Others::Untried {
                        // Another endpoint may answer what was asked, but for what breaks every call.
                        let breaks = self.broken_calls >= MOST_BROKEN_CALLS;
                        assert!(given_up.is_empty() || breaks);
                    }
                    for (_, reply) in given_up {
                        self.reply_given(reply);
                    }
                }
            }
            Step::Call => {
                if self.call.is_none() {
                    self.call = Some(begin(&mut self.state));
                    self.opened = false;
                    self.last_sequence = 0;
                    self.asked_on_call.clear();
                }
            }
            Step::Time => self.now += SECOND,
            Step::Finish => {
                self.ended = true;
                self.state.finish();
            }
        }
        assert!(self.state.open.len() <= BOUNDS.questions);
        assert!(self.state.open_bytes <= BOUNDS.log.bytes);
        assert_eq!(self.state.open.len(), self.open.len());
    }

    /// Sends one message; returns whether there was one.
    fn send(&mut self) -> bool {
        let Some(call) = self.call else { return false };
        let sent = self.state.next(call);
        if !self.opened {
            let opening = if self.first_call_opened {
                (0, Bytes::from_static(b"resumed"))
            } else {
                (1, Bytes::from_static(b"started"))
            };
            let (sequence, body) = opening;
            assert_eq!(sent, ToSend::Message { sequence, body });
            self.opened = true;
            self.first_call_opened = true;
            return true;
        }
        let (first, last) = match sent {
            ToSend::Message { sequence, body } => {
                assert_eq!(self.told[&sequence], body, "a sequence names one event");
                if let Some(exec) = self.questions.get(&sequence) {
                    self.asked_on_call.insert(*exec);
                }
                (sequence, sequence)
            }
            ToSend::Lost { first, last } => (first, last),
            ToSend::Later(_) => unreachable!("the state itself gathers nothing"),
            ToSend::Wait => {
                assert!(!self.ended);
                return false;
            }
            ToSend::HalfClose => {
                assert!(self.ended);
                return false;
            }
        };
        assert!(first > self.last_sequence, "sequences increase");
        assert!(first <= last && last < self.next_sequence);
        self.last_sequence = last;
        self.accounted.extend(first..=last);
        true
    }

    /// Lets a call send all it has: then nothing told is unaccounted for, and all that waits has been
    /// asked on that very call.
    fn drain(&mut self) {
        self.take(&Step::Call);
        while self.send() {}
        let told: BTreeSet<u64> = self.told.keys().copied().collect();
        assert_eq!(self.accounted, told);
        assert!(self.open.is_subset(&self.asked_on_call));
    }
}

proptest! {
    #[test]
    fn whatever_happens_nothing_is_lost_silently(
        steps in proptest::collection::vec(step(), 0..200),
    ) {
        let mut model = Model::new();
        for step in &steps {
            model.take(step);
        }
        model.drain();
        let (replies, _) = model.state.close();
        for reply in replies {
            model.reply_given(reply);
        }
        assert!(model.open.is_empty());
    }

    #[test]
    fn a_service_that_stores_gets_again_what_it_has_not_acknowledged(
        steps in proptest::collection::vec(step(), 0..200),
        acknowledged in 0..60_u64,
    ) {
        let accept = Step::Accept { stored: Acknowledgement::Stored };
        let mut model = Model::new();
        for step in &steps {
            model.take(step);
            // It chooses so on each call, before any other answer.
            if matches!(step, Step::Call) {
                model.take(&accept);
            }
        }
        model.take(&Step::Acknowledge { through: acknowledged });
        let acknowledged = steps.iter().fold(acknowledged, |most, step| match step {
            Step::Acknowledge { through } => most.max(*through),
            _ => most,
        });
        model.take(&Step::CallEnds { others: Others::AllTried, next: Reconnect::Soon });
        model.accounted.clear();
        model.take(&Step::Call);
        model.take(&accept);
        while model.send() {}
        let again: Vec<u64> = (acknowledged.max(1) + 1..model.next_sequence).collect();
        let missing = again.iter().find(|sequence| !model.accounted.contains(sequence));
        assert_eq!(missing, None);
    }
}
