use std::path::Path;
use std::sync::Weak;
use std::time::{Duration, Instant};

use prost::bytes::Bytes;

use super::*;
use crate::model::SessionId;

const ID: SessionId = SessionId([7; 16]);

/// A session whose events a test makes up.
#[derive(Debug, Default)]
struct Told(Mutex<Changes>);

impl Source for Told {
    fn changes(&self, since: Since) -> Changes {
        let all = lock(&self.0).clone();
        Changes {
            events: all
                .events
                .into_iter()
                .filter(|event| event.sequence > since.sequence)
                .collect(),
            lost: if since.dropped == all.dropped {
                Vec::new()
            } else {
                all.lost
            },
            are_all: true,
            ..all
        }
    }
}

impl Told {
    fn event(&self, sequence: u64, length: usize) {
        let mut changes = lock(&self.0);
        changes.told = sequence;
        changes.events.push(KeptEvent {
            first: sequence,
            sequence,
            body: Some(Bytes::from(vec![1; length])),
        });
    }
}

fn open(directory: &Path, limit: u64) -> Journal {
    Journal::open(&JournalOptions {
        directory: directory.join("journal"),
        limit,
    })
    .expect("a journal")
}

fn attend(journal: &Journal, told: &Arc<Told>) -> Attendance {
    let source: Weak<Told> = Arc::downgrade(told);
    journal.attend(ID, Bytes::from_static(b"opening"), source)
}

fn fate(attendance: &Attendance) -> Fate {
    attendance.close().blocking_recv().expect("a fate")
}

/// What is left of the one session.
fn kept(journal: &Journal) -> Vec<(u64, u64, bool)> {
    let left = journal.left().expect("a directory");
    assert_eq!(left.len(), 1, "{left:?}");
    let session = &left[0];
    assert_eq!(
        (session.id(), &session.opening()[..]),
        (ID, &b"opening"[..])
    );
    let events = session.events(0).expect("events");
    let event = |event: KeptEvent| (event.first, event.sequence, event.body.is_some());
    events.into_iter().map(event).collect()
}

fn wait_until(condition: impl Fn() -> bool) {
    let began = Instant::now();
    while !condition() {
        assert!(began.elapsed() < Duration::from_secs(30), "waited in vain");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// How many files a journal has left.
fn files(directory: &tempfile::TempDir) -> usize {
    let journal = directory.path().join("journal");
    journal.read_dir().expect("a directory").count()
}

#[test]
fn what_is_settled_is_forgotten_and_the_rest_is_anothers_to_deliver() {
    let directory = tempfile::tempdir().expect("a directory");
    let journal = open(directory.path(), 1 << 20);
    let told = Arc::new(Told::default());
    let attendance = attend(&journal, &told);
    (2..=5).for_each(|sequence| told.event(sequence, 10));
    attendance.changed();
    lock(&told.0).settled = 3;
    attendance.changed();
    assert_eq!(fate(&attendance), Fate::Kept);
    assert_eq!(kept(&journal), [(4, 4, true), (5, 5, true)]);
    journal.close();

    let next = open(directory.path(), 1 << 20);
    assert_eq!(kept(&next), [(4, 4, true), (5, 5, true)]);
    // Whoever looks again finds the same, and nobody else does.
    assert_eq!(kept(&next).len(), 2);
    let third = open(directory.path(), 1 << 20);
    assert_eq!(third.left().expect("a directory").len(), 0);
    let mut session = next.left().expect("a directory").remove(0);
    assert!(session.has_ended());
    session.settle(4).expect("a file");
    assert_eq!(session.events(0).expect("events").len(), 1);
    session.delivered().expect("a file");
    next.close();
    third.close();
    assert_eq!(files(&directory), 0);
}

#[test]
fn a_session_that_has_delivered_all_leaves_nothing() {
    let directory = tempfile::tempdir().expect("a directory");
    let journal = open(directory.path(), 1 << 20);
    let told = Arc::new(Told::default());
    let attendance = attend(&journal, &told);
    told.event(2, 10);
    lock(&told.0).settled = 2;
    assert_eq!(fate(&attendance), Fate::Settled);
    assert_eq!(journal.left().expect("a directory").len(), 0);
    journal.close();
    assert_eq!(files(&directory), 0);
}

#[test]
fn at_its_bound_it_keeps_that_events_are_lost_and_says_so_until_there_is_room() {
    let directory = tempfile::tempdir().expect("a directory");
    let journal = open(directory.path(), 1 << 20);
    let told = Arc::new(Told::default());
    let attendance = attend(&journal, &told);
    told.event(2, 600 << 10);
    (3..=5).for_each(|sequence| told.event(sequence, 600 << 10));
    told.event(6, 10);
    attendance.changed();
    wait_until(|| {
        lock(&journal.file)
            .as_ref()
            .is_some_and(|file| file.kept().bytes() > 600 << 10)
    });
    assert_eq!(journal.trouble(), None);
    told.event(7, 400 << 10);
    attendance.changed();
    wait_until(|| journal.trouble().is_some());
    let trouble = journal.trouble().expect("trouble");
    assert!(trouble.contains("holds what it may"), "{trouble:?}");
    lock(&told.0).settled = 2;
    attendance.changed();
    wait_until(|| journal.trouble().is_none());
    assert_eq!(fate(&attendance), Fate::Kept);
    assert_eq!(kept(&journal), [(3, 5, false), (6, 6, true), (7, 7, true)]);
}

#[test]
fn what_others_have_left_counts_against_the_bound() {
    let directory = tempfile::tempdir().expect("a directory");
    let journal = open(directory.path(), 1 << 20);
    std::fs::write(directory.path().join("journal/other"), vec![0; 1 << 20]).expect("a file");
    let told = Arc::new(Told::default());
    let attendance = attend(&journal, &told);
    wait_until(|| journal.trouble().is_some());
    std::fs::remove_file(directory.path().join("journal/other")).expect("a file");
    // It looks by itself.
    wait_until(|| journal.trouble().is_none());
    assert_eq!(fate(&attendance), Fate::Settled);
}

#[test]
fn what_memory_drops_is_lost_in_the_journal_as_well() {
    let directory = tempfile::tempdir().expect("a directory");
    let journal = open(directory.path(), 1 << 20);
    let told = Arc::new(Told::default());
    let attendance = attend(&journal, &told);
    (2..=6).for_each(|sequence| told.event(sequence, 10));
    attendance.changed();
    wait_until(|| {
        lock(&journal.file)
            .as_ref()
            .is_some_and(|file| file.kept().bytes() > 5 * 64)
    });
    let lose = |first, sequence| {
        let mut changes = lock(&told.0);
        changes.dropped += 1;
        changes.lost = vec![KeptEvent {
            first,
            sequence,
            body: None,
        }];
        drop(changes);
        attendance.changed();
    };
    lose(2, 3);
    lose(2, 4);
    assert_eq!(fate(&attendance), Fate::Kept);
    assert_eq!(kept(&journal), [(2, 4, false), (5, 5, true), (6, 6, true)]);
}

#[test]
fn a_file_that_its_gate_only_began_is_removed_when_it_is_old() {
    let directory = tempfile::tempdir().expect("a directory");
    let journal = open(directory.path(), 1 << 20);
    let name = format!("gate-{}.sqlite", "a".repeat(32));
    let begun = directory.path().join("journal").join(name);
    std::fs::write(&begun, "").expect("a file");
    assert_eq!(journal.left().expect("a directory").len(), 0);
    assert!(begun.exists());
    let file = std::fs::File::options()
        .write(true)
        .open(&begun)
        .expect("a file");
    file.set_modified(std::time::SystemTime::now() - Duration::from_secs(3600))
        .expect("a time");
    drop(file);
    assert_eq!(journal.left().expect("a directory").len(), 0);
    assert!(!begun.exists());
}

#[test]
fn a_session_without_an_end_is_one_whose_gate_was_killed() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = {
        let journal = open(directory.path(), 1 << 20);
        let told = Arc::new(Told::default());
        let attendance = attend(&journal, &told);
        told.event(2, 10);
        attendance.changed();
        wait_until(|| {
            lock(&journal.file)
                .as_ref()
                .is_some_and(|file| file.kept().bytes() > 0)
        });
        let path = lock(&journal.file)
            .as_ref()
            .expect("a file")
            .path()
            .to_owned();
        journal.close();
        path
    };
    assert!(path.exists());
    let journal = open(directory.path(), 1 << 20);
    let mut session = journal.left().expect("a directory").remove(0);
    assert_eq!((session.has_ended(), session.told()), (false, 2));
    session.end(9, Bytes::from_static(b"end")).expect("a file");
    let mut again = journal.left().expect("a directory").remove(0);
    assert!(again.has_ended());
    let sequences: Vec<_> = again
        .events(0)
        .expect("events")
        .iter()
        .map(|event| event.sequence)
        .collect();
    assert_eq!(sequences, [2, 9]);
    again.settle(9).expect("a file");
}

#[test]
fn a_log_whose_file_is_gone_is_removed_and_one_that_is_set_aside_is_not() {
    let directory = tempfile::tempdir().expect("a directory");
    let journal = open(directory.path(), 1 << 20);
    let path = |number: &str, end: &str| {
        let name = format!("gate-{}.sqlite{end}", number.repeat(32));
        directory.path().join("journal").join(name)
    };
    let aside = [path("2", "-wal"), path("2", ".corrupt")];
    for path in aside.iter().chain([&path("1", "-wal")]) {
        std::fs::write(path, "what a log has").expect("a file");
    }
    journal.left().expect("nothing in the way");
    assert!(!path("1", "-wal").exists());
    assert!(aside.iter().all(|path| path.exists()));
}

#[test]
fn the_log_stays_short_however_much_is_written() {
    const EVENTS: u64 = 24;
    let directory = tempfile::tempdir().expect("a directory");
    let journal = open(directory.path(), 64 << 20);
    let told = Arc::new(Told::default());
    let attendance = attend(&journal, &told);
    let log = lock(&journal.file).as_ref().expect("a file").log_path();
    let mut longest = 0;
    for event in 1..=EVENTS {
        told.event(event + 1, 1 << 20);
        attendance.changed();
        wait_until(|| journal.load().events == event);
        longest = longest.max(std::fs::metadata(&log).expect("a log").len());
    }
    // What exceeds the bound is one commit, and what was written while the log was.
    assert!(longest < 12 << 20, "{longest} bytes");
    assert!(longest > 4 << 20, "{longest} bytes");
    assert_eq!(fate(&attendance), Fate::Kept);
    let left = journal.left().expect("a directory");
    assert_eq!(left[0].count().expect("events"), EVENTS);
}
