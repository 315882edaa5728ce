use std::collections::VecDeque;

use prost::bytes::Bytes;
use tokio::time::Instant;

use crate::journal::KeptEvent;
use crate::model::ExecId;

/// The events of a session that aren't settled: to be handed to the transport, or handed to it and
/// not yet acknowledged. In order of their sequences, which are contiguous: what was dropped leaves
/// a gap behind that is told as `EventsLost`.
#[derive(Debug)]
pub(super) struct EventLog {
    entries: VecDeque<Entry>,
    /// How many entries, from the front, the current call has been given.
    handed_over: usize,
    /// Highest sequence that any call has been given; later ones can't have been stored.
    highest: u64,
    bytes: usize,
    /// How many events have been dropped so far.
    dropped: u64,
    bounds: LogBounds,
}

/// Bounds of an [`EventLog`]. Open questions don't count as droppable, and have their own bounds.
#[derive(Debug, Clone, Copy)]
pub(super) struct LogBounds {
    /// Most events.
    pub(super) events: usize,
    /// Most bytes of all events together.
    pub(super) bytes: usize,
}

/// Whether an event is kept when it has been handed to the transport.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Keep {
    /// Until it is acknowledged.
    UntilAcknowledged,
    /// No longer.
    Nothing,
}

/// What is to be sent next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Next {
    /// This event.
    Event {
        /// Its position in the session.
        sequence: u64,
        /// Its encoding, without the sequence.
        body: Bytes,
        /// The exec that it asks for.
        question: Option<ExecId>,
    },
    /// That these events were dropped.
    Lost {
        /// Sequence of the first.
        first: u64,
        /// Sequence of the last.
        last: u64,
    },
}

#[derive(Debug)]
struct Entry {
    first: u64,
    last: u64,
    /// When it was told; of a gap, when the first of it was.
    told: Instant,
    content: Content,
}

#[derive(Debug)]
enum Content {
    Event {
        body: Bytes,
        question: Option<ExecId>,
    },
    Gap,
}

impl Entry {
    fn kept(&self) -> KeptEvent {
        KeptEvent {
            first: self.first,
            sequence: self.last,
            body: match &self.content {
                Content::Event { body, .. } => Some(body.clone()),
                Content::Gap => None,
            },
        }
    }
}

impl EventLog {
    pub(super) fn new(bounds: LogBounds) -> Self {
        Self {
            entries: VecDeque::new(),
            handed_over: 0,
            highest: 0,
            bytes: 0,
            dropped: 0,
            bounds,
        }
    }

    pub(super) fn push(
        &mut self,
        sequence: u64,
        body: Bytes,
        question: Option<ExecId>,
        told: Instant,
    ) {
        self.bytes += body.len();
        self.entries.push_back(Entry {
            first: sequence,
            last: sequence,
            told,
            content: Content::Event { body, question },
        });
    }

    /// Drops events, the oldest first, until the log is within its bounds; open questions stay.
    /// Returns how many it dropped.
    pub(super) fn shed(&mut self, is_open: impl Fn(ExecId) -> bool) -> u64 {
        let mut dropped = 0;
        while self.entries.len() > self.bounds.events || self.bytes > self.bounds.bytes {
            let droppable = self.entries.iter().position(|entry| match &entry.content {
                Content::Event { question, .. } => !question.is_some_and(&is_open),
                Content::Gap => false,
            });
            let Some(index) = droppable else { break };
            self.drop_event(index);
            dropped += 1;
        }
        dropped
    }

    fn drop_event(&mut self, index: usize) {
        let Some(entry) = self.entries.get_mut(index) else {
            return;
        };
        if let Content::Event { body, .. } = std::mem::replace(&mut entry.content, Content::Gap) {
            self.bytes -= body.len();
            self.dropped += 1;
        }
        self.merge_with_next(index);
        if let Some(before) = index.checked_sub(1) {
            self.merge_with_next(before);
        }
    }

    /// Makes one gap of the one at `index` and the one behind it, if both are gaps and both are on
    /// the same side of what was handed over: what has been told isn't told again on this call.
    fn merge_with_next(&mut self, index: usize) {
        let (Some(this), Some(next)) = (self.entries.get(index), self.entries.get(index + 1))
        else {
            return;
        };
        let gaps = matches!((&this.content, &next.content), (Content::Gap, Content::Gap));
        if !gaps || index + 1 == self.handed_over {
            return;
        }
        let last = next.last;
        self.entries.remove(index + 1);
        if let Some(this) = self.entries.get_mut(index) {
            this.last = last;
        }
        if index + 1 < self.handed_over {
            self.handed_over -= 1;
        }
    }

    /// The next thing to send on this call.
    pub(super) fn next(&mut self, keep: Keep) -> Option<Next> {
        let entry = self.entries.get(self.handed_over)?;
        let (first, last) = (entry.first, entry.last);
        self.highest = self.highest.max(last);
        match keep {
            Keep::UntilAcknowledged => {
                let next = match &entry.content {
                    Content::Event { body, question } => Next::Event {
                        sequence: first,
                        body: body.clone(),
                        question: *question,
                    },
                    Content::Gap => Next::Lost { first, last },
                };
                self.handed_over += 1;
                Some(next)
            }
            Keep::Nothing => Some(match self.entries.remove(self.handed_over)?.content {
                Content::Event { body, question } => {
                    self.bytes -= body.len();
                    Next::Event {
                        sequence: first,
                        body,
                        question,
                    }
                }
                Content::Gap => Next::Lost { first, last },
            }),
        }
    }

    /// Forgets what this call has been given.
    pub(super) fn forget_handed_over(&mut self) {
        for _ in 0..std::mem::take(&mut self.handed_over) {
            self.pop();
        }
    }

    /// Forgets what is stored by the service: everything up to `through`. Returns the questions among
    /// it that this call hasn't been given: stored as they are, they may want to be asked.
    pub(super) fn acknowledge(&mut self, through: u64) -> Vec<ExecId> {
        let through = through.min(self.highest);
        let mut not_asked = Vec::new();
        while self
            .entries
            .front()
            .is_some_and(|entry| entry.last <= through)
        {
            let is_ahead = self.handed_over == 0;
            self.handed_over = self.handed_over.saturating_sub(1);
            if let Some(exec) = self.pop()
                && is_ahead
            {
                not_asked.push(exec);
            }
        }
        not_asked
    }

    /// Forgets the first entry; returns the exec that it asks for.
    fn pop(&mut self) -> Option<ExecId> {
        match self.entries.pop_front()?.content {
            Content::Event { body, question } => {
                self.bytes -= body.len();
                question
            }
            Content::Gap => None,
        }
    }

    /// Begins again at the front, for a new call.
    pub(super) fn rewind(&mut self) {
        self.handed_over = 0;
        let mut index = 0;
        while index + 1 < self.entries.len() {
            let before = self.entries.len();
            self.merge_with_next(index);
            if self.entries.len() == before {
                index += 1;
            }
        }
    }

    /// The sequence that the first entry goes out with.
    pub(super) fn first_sequence(&self) -> Option<u64> {
        self.entries.front().map(|entry| match entry.content {
            Content::Event { .. } => entry.first,
            // See `Next::Lost`: a gap stands at the place of its last event.
            Content::Gap => entry.last,
        })
    }

    /// The first event that the log still has.
    pub(super) fn begins_at(&self) -> Option<u64> {
        self.entries.front().map(|entry| entry.first)
    }

    /// How many events have been dropped so far.
    pub(super) fn dropped(&self) -> u64 {
        self.dropped
    }

    /// Other bounds, from the next time that something is dropped on.
    pub(super) fn set_bounds(&mut self, bounds: LogBounds) {
        self.bounds = bounds;
    }

    /// How many events, and losses, there are, and how many bytes they have.
    pub(super) fn size(&self) -> (usize, usize) {
        (self.entries.len(), self.bytes)
    }

    /// When the first was told.
    pub(super) fn oldest(&self) -> Option<Instant> {
        self.entries.front().map(|entry| entry.told)
    }

    /// Whether half of what may be kept is.
    pub(super) fn is_half_full(&self) -> bool {
        self.entries.len() > self.bounds.events / 2 || self.bytes > self.bounds.bytes / 2
    }

    /// What there is behind `after`, in order: so many entries, and about so many bytes, at most; and
    /// whether that is all.
    pub(super) fn since(
        &self,
        after: u64,
        most: usize,
        most_bytes: usize,
    ) -> (Vec<KeptEvent>, bool) {
        let begin = self.entries.partition_point(|entry| entry.last <= after);
        let mut events = Vec::new();
        let mut bytes = 0;
        for entry in self.entries.range(begin..) {
            if events.len() == most || bytes > most_bytes {
                return (events, false);
            }
            let event = entry.kept();
            bytes += event.body.as_ref().map_or(0, Bytes::len);
            events.push(event);
        }
        (events, true)
    }

    /// What was dropped, up to `through`.
    pub(super) fn losses_through(&self, through: u64) -> Vec<KeptEvent> {
        self.entries
            .iter()
            .take_while(|entry| entry.last <= through)
            .filter(|entry| matches!(entry.content, Content::Gap))
            .map(Entry::kept)
            .collect()
    }

    /// Whether there is nothing left to hand over.
    pub(super) fn is_handed_over(&self) -> bool {
        self.handed_over == self.entries.len()
    }

    /// How many events the log holds that aren't settled, where `keep` says what settles them.
    pub(super) fn unsettled(&self, keep: Keep) -> usize {
        let settled = match keep {
            Keep::UntilAcknowledged => 0,
            Keep::Nothing => self.handed_over,
        };
        self.entries
            .iter()
            .skip(settled)
            .filter(|entry| matches!(entry.content, Content::Event { .. }))
            .count()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOUNDS: LogBounds = LogBounds {
        events: 4,
        bytes: 100,
    };

    fn log(events: u64) -> EventLog {
        let mut log = EventLog::new(BOUNDS);
        (1..=events).for_each(|sequence| log.push(sequence, body(sequence), None, Instant::now()));
        log
    }

    fn body(sequence: u64) -> Bytes {
        Bytes::copy_from_slice(&sequence.to_le_bytes())
    }

    fn event(sequence: u64) -> Next {
        Next::Event {
            sequence,
            body: body(sequence),
            question: None,
        }
    }

    fn lost(first: u64, last: u64) -> Next {
        Next::Lost { first, last }
    }

    #[test]
    fn without_acknowledgement_it_forgets_what_it_hands_over() {
        let mut log = log(2);
        assert_eq!(log.next(Keep::Nothing), Some(event(1)));
        log.rewind();
        assert_eq!(log.next(Keep::Nothing), Some(event(2)));
        assert_eq!(log.next(Keep::Nothing), None);
        assert!(log.is_empty());
        assert_eq!(log.bytes, 0);
    }

    #[test]
    fn it_repeats_what_was_not_acknowledged() {
        let mut log = log(3);
        for sequence in 1..=3 {
            assert_eq!(log.next(Keep::UntilAcknowledged), Some(event(sequence)));
        }
        assert_eq!(log.acknowledge(1), []);
        assert!(log.is_handed_over());
        log.rewind();
        assert_eq!(log.first_sequence(), Some(2));
        assert_eq!(log.next(Keep::UntilAcknowledged), Some(event(2)));
        // An acknowledgement from before the repetition reaches past it.
        assert_eq!(log.acknowledge(3), []);
        assert_eq!(log.next(Keep::UntilAcknowledged), None);
        assert!(log.is_empty());
    }

    #[test]
    fn what_was_never_sent_cannot_be_acknowledged() {
        let mut log = log(2);
        let _ = log.next(Keep::UntilAcknowledged);
        assert_eq!(log.acknowledge(u64::MAX), []);
        assert_eq!(log.next(Keep::UntilAcknowledged), Some(event(2)));
    }

    #[test]
    fn at_its_bound_it_drops_the_oldest_and_says_so_in_their_place() {
        let mut log = log(7);
        assert_eq!(log.shed(|_| false), 4);
        assert_eq!(log.next(Keep::UntilAcknowledged), Some(lost(1, 4)));
        assert_eq!(log.next(Keep::UntilAcknowledged), Some(event(5)));
        assert_eq!(log.unsettled(Keep::UntilAcknowledged), 3);
        assert_eq!(log.unsettled(Keep::Nothing), 2);
    }

    #[test]
    fn open_questions_are_not_dropped() {
        let mut log = EventLog::new(BOUNDS);
        for sequence in 1..=6 {
            log.push(
                sequence,
                body(sequence),
                Some(ExecId(sequence)),
                Instant::now(),
            );
        }
        assert_eq!(log.shed(|exec| exec.0 == 2), 4);
        assert_eq!(log.next(Keep::Nothing), Some(lost(1, 1)));
        assert!(matches!(
            log.next(Keep::Nothing),
            Some(Next::Event { sequence: 2, .. })
        ));
        assert_eq!(log.next(Keep::Nothing), Some(lost(3, 5)));
        assert_eq!(log.shed(|_| true), 0);
    }

    #[test]
    fn a_gap_that_was_told_does_not_grow() {
        let mut log = log(5);
        assert_eq!(log.shed(|_| false), 2);
        assert_eq!(log.next(Keep::UntilAcknowledged), Some(lost(1, 2)));
        (6..=7).for_each(|sequence| log.push(sequence, body(sequence), None, Instant::now()));
        assert_eq!(log.shed(|_| false), 3);
        assert_eq!(log.next(Keep::UntilAcknowledged), Some(lost(3, 5)));
        log.rewind();
        assert_eq!(log.next(Keep::UntilAcknowledged), Some(lost(1, 5)));
        assert_eq!(log.acknowledge(5), []);
        assert_eq!(log.next(Keep::UntilAcknowledged), Some(event(6)));
    }

    #[test]
    fn bytes_are_bounded_too() {
        let mut log = EventLog::new(BOUNDS);
        log.push(1, Bytes::from(vec![0; 60]), None, Instant::now());
        log.push(2, Bytes::from(vec![0; 60]), None, Instant::now());
        assert_eq!(log.shed(|_| false), 1);
        log.push(3, Bytes::from(vec![0; 101]), None, Instant::now());
        assert_eq!(log.shed(|_| false), 2);
        assert_eq!(log.next(Keep::Nothing), Some(lost(1, 3)));
    }
}
