use std::os::unix::fs::symlink;

use super::*;
use crate::journal::file::{self, JournalFile};
use crate::journal::{Journal, JournalOptions, KeptEvent};

const ID: SessionId = SessionId([3; 16]);
const NUMBER: &str = "0123456789abcdef0123456789abcdef";

/// A directory in memory, as a place for tails.
fn place() -> (tempfile::TempDir, Vec<PathBuf>) {
    let place = tempfile::tempdir_in("/dev/shm").expect("a directory in memory");
    let path = place.path().to_owned();
    (place, vec![path])
}

fn sequences(records: &[Record]) -> Vec<u64> {
    let mut sequences: Vec<_> = records.iter().map(|record| record.sequence).collect();
    sequences.sort_unstable();
    sequences
}

fn event(tail: &Tail, sequence: u64, body: &[u8]) {
    assert_eq!(tail.put(What::Event, ID, sequence, body), Outlives::Kill);
}

/// What stands in the first half.
fn bytes(places: &[PathBuf]) -> Vec<u8> {
    std::fs::read(path(&places[0], NUMBER, 0)).expect("a file")
}

fn write(places: &[PathBuf], bytes: &[u8]) {
    std::fs::write(path(&places[0], NUMBER, 0), bytes).expect("a file");
}

#[test]
fn what_was_put_is_there_when_its_gate_is_no_more() {
    let (_place, places) = place();
    let tail = Tail::create(&places, NUMBER).expect("a tail");
    assert_eq!(tail.put(What::Opening, ID, 0, b"opening"), Outlives::Kill);
    event(&tail, 2, b"");
    tail.turn();
    event(&tail, 3, &vec![7; 100_000]);
    assert_eq!(tail.put(What::LastEvent, ID, 4, b"end"), Outlives::Kill);
    // A gate that is killed closes nothing.
    std::mem::forget(tail);
    let (records, unread) = read(&places, NUMBER);
    assert!(unread.is_empty(), "{unread:?}");
    assert_eq!(sequences(&records), [0, 2, 3, 4]);
    let of = |what| records.iter().find(|record| record.what == what);
    assert_eq!(of(What::Opening).expect("it").body, &b"opening"[..]);
    assert_eq!(of(What::LastEvent).expect("it").body, &b"end"[..]);
    assert!(records.iter().any(|record| record.body == vec![7; 100_000]));
    remove(&places, NUMBER);
    assert_eq!(read(&places, NUMBER).0, []);
}

#[test]
fn a_half_is_emptied_when_the_file_has_all_of_it_and_not_before() {
    let (_place, places) = place();
    let tail = Tail::create(&places, NUMBER).expect("a tail");
    event(&tail, 2, b"x");
    event(&tail, 3, b"x");
    tail.turn();
    event(&tail, 4, b"x");
    // It isn't turned while the other half is needed.
    tail.turn();
    event(&tail, 5, b"x");
    for (seen, left) in [
        (None, &[2, 3, 4, 5][..]),
        (Some(2), &[2, 3, 4, 5]),
        (Some(3), &[4, 5]),
        (Some(5), &[4, 5]),
    ] {
        tail.clear(|_| seen).expect("memory");
        assert_eq!(sequences(&read(&places, NUMBER).0), left, "{seen:?}");
    }
    assert!(tail.is_needed());
    tail.turn();
    tail.clear(|_| Some(5)).expect("memory");
    assert!(!tail.is_needed());
    assert_eq!(read(&places, NUMBER).0, []);
    // What becomes of a session that has ended is no longer asked.
    event(&tail, 6, b"x");
    tail.turn();
    tail.settle(ID);
    tail.clear(|_| None).expect("memory");
    assert_eq!(read(&places, NUMBER).0, []);
}

#[test]
fn it_is_bounded_and_says_so_before_it_is_full() {
    let (_place, places) = place();
    let tail = Tail::create(&places, NUMBER).expect("a tail");
    let body = vec![1; 1 << 20];
    let mut kept = 0;
    while tail.put(What::Event, ID, kept + 2, &body) == Outlives::Kill {
        kept += 1;
        assert_eq!(tail.is_strained(), kept >= STRAINED >> 20, "{kept} MiB");
        assert!(kept < 100, "there is no bound");
    }
    assert_eq!(kept, (MOST >> 20) - 1);
    // What is short still has room.
    event(&tail, kept + 2, b"decided");
    assert_eq!(sequences(&read(&places, NUMBER).0).len() as u64, kept + 1);
    tail.turn();
    assert!(tail.is_strained());
    tail.clear(|_| Some(u64::MAX)).expect("memory");
    assert!(!tail.is_strained());
    let length = std::fs::metadata(path(&places[0], NUMBER, 0)).expect("a file");
    assert_eq!(length.len(), AHEAD);
}

#[test]
fn a_record_that_was_not_finished_was_not_acted_on() {
    let (_place, places) = place();
    let tail = Tail::create(&places, NUMBER).expect("a tail");
    event(&tail, 2, &[1; 3000]);
    event(&tail, 3, &[1; 9000]);
    let whole = bytes(&places);
    let end = MARK.len() + 2 * HEADER + 12_000;
    for cut in [1, 9, 4096, 8192, 9000, 9000 + HEADER] {
        // There is memory ahead, or there is none.
        let mut torn = whole.clone();
        torn[end - cut..].fill(0);
        for torn in [&torn[..], &torn[..end - cut]] {
            write(&places, torn);
            let (records, unread) = read(&places, NUMBER);
            assert_eq!(sequences(&records), [2], "{cut}");
            assert!(unread.is_empty(), "{cut}: {unread:?}");
        }
    }
}

#[test]
fn what_is_damaged_or_another_versions_is_not_taken_for_a_record() {
    let (_place, places) = place();
    let tail = Tail::create(&places, NUMBER).expect("a tail");
    event(&tail, 2, &[1; 50]);
    event(&tail, 3, &[1; 50]);
    event(&tail, 4, &[1; 50]);
    let whole = bytes(&places);
    let second = MARK.len() + HEADER + 50;
    for place in second..second + HEADER + 50 {
        let mut damaged = whole.clone();
        damaged[place] ^= 0x40;
        write(&places, &damaged);
        let (records, unread) = read(&places, NUMBER);
        assert_eq!(sequences(&records), [2], "at {place}");
        assert!(
            matches!(unread[..], [Unread::Damaged { at, .. }] if at == second),
            "at {place}: {unread:?}"
        );
    }
    let mut other = whole.clone();
    other[NAME] += 1;
    write(&places, &other);
    let (records, unread) = read(&places, NUMBER);
    assert_eq!(records, []);
    assert!(matches!(unread[..], [Unread::Version { .. }]), "{unread:?}");
    write(&places, b"something else");
    let (records, unread) = read(&places, NUMBER);
    assert_eq!(records, []);
    assert!(
        matches!(unread[..], [Unread::Damaged { at: 0, .. }]),
        "{unread:?}"
    );
}

#[test]
fn the_next_place_serves_where_the_first_has_no_room_and_links_are_not_followed() {
    let (place, _) = place();
    let places = [place.path().join("missing"), place.path().to_owned()];
    let tail = Tail::create(&places, NUMBER).expect("a tail");
    event(&tail, 2, b"x");
    assert_eq!(sequences(&read(&places, NUMBER).0), [2]);
    // Another gate of that number there can't be.
    assert!(Tail::create(&places[1..], NUMBER).is_err());
    let first = path(&places[1], NUMBER, 0);
    let elsewhere = place.path().join("elsewhere");
    std::fs::rename(&first, &elsewhere).expect("renamed");
    symlink(&elsewhere, &first).expect("a link");
    let (records, unread) = read(&places, NUMBER);
    assert_eq!((records.len(), unread.len()), (0, 0));
    assert!(Tail::create(&[], NUMBER).is_err());
}

/// The journal of a gate that was killed before it had written anything, and its tail.
struct Killed {
    directory: tempfile::TempDir,
    places: Vec<PathBuf>,
    number: String,
}

impl Killed {
    fn new(put: impl FnOnce(&Tail)) -> Self {
        Self::with(|_| {}, put)
    }

    /// The same, where it had written something.
    fn with(write: impl FnOnce(&mut JournalFile), put: impl FnOnce(&Tail)) -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("journal");
        let journal = super::super::directory::Directory::open(&path).expect("a directory");
        let mut file = journal.create().expect("a file");
        write(&mut file);
        let name = file.path().file_name().expect("a name").to_owned();
        let tail = journal.tail(file.path()).expect("a tail");
        put(&tail);
        // As a kill does: the lock is let go of, and the files stay.
        drop(file);
        let name = name.to_str().expect("text");
        let number = &name["gate-".len()..name.len() - ".sqlite".len()];
        Self {
            places: places(&path),
            number: number.to_owned(),
            directory,
        }
    }

    fn journal(&self) -> Journal {
        Journal::open(&JournalOptions {
            directory: self.directory.path().join("journal"),
            limit: 1 << 20,
        })
        .expect("a journal")
    }

    fn is_in_memory(&self) -> bool {
        !files(&self.places, &self.number).is_empty()
    }

    /// What is in memory, each half with its path.
    fn halves(&self) -> Vec<(PathBuf, Vec<u8>)> {
        let halves = files(&self.places, &self.number).into_iter();
        halves
            .map(|path| (path.clone(), std::fs::read(path).expect("a file")))
            .collect()
    }
}

/// Its events: first, last, and whether they are there.
fn left(journal: &Journal) -> Vec<(u64, u64, bool)> {
    let left = journal.left().expect("a directory");
    assert_eq!(left.len(), 1, "{left:?}");
    let events = left[0].events(0).expect("events");
    events
        .into_iter()
        .map(|event| (event.first, event.sequence, event.body.is_some()))
        .collect()
}

#[test]
fn the_next_gate_adds_the_tail_to_the_file_in_order_and_once() {
    let killed = Killed::new(|tail| {
        tail.put(What::Opening, ID, 0, b"opening");
        event(tail, 2, b"asked");
        event(tail, 3, b"decided");
        // For this one there was no memory: 4.
        tail.turn();
        event(tail, 5, b"asked");
        // Of a session that has been delivered and forgotten.
        tail.put(What::LastEvent, SessionId([9; 16]), 7, b"end");
    });
    let halves = killed.halves();
    let next = killed.journal();
    let whole = [(2, 2, true), (3, 3, true), (4, 4, false), (5, 5, true)];
    assert_eq!(left(&next), whole);
    assert!(!killed.is_in_memory());
    let session = next.left().expect("a directory").remove(0);
    assert_eq!(
        (session.id(), &session.opening()[..]),
        (ID, &b"opening"[..])
    );
    assert_eq!((session.told(), session.has_ended()), (5, false));
    // It is this gate's now, and no other's.
    assert_eq!(killed.journal().left().expect("a directory").len(), 0);
    next.close();
    drop((next, session));
    // As where that gate was killed before it had removed the tail.
    for (path, half) in halves {
        std::fs::write(path, half).expect("memory");
    }
    let third = killed.journal();
    assert_eq!(left(&third), whole);
    assert!(!killed.is_in_memory());
    let mut session = third.left().expect("a directory").remove(0);
    assert_eq!((session.told(), session.has_ended()), (5, false));
    session.settle(5).expect("a file");
    assert_eq!(left(&third), []);
}

#[test]
fn what_the_file_knows_to_be_settled_or_lost_the_tail_does_not_bring_back() {
    let write = |file: &mut JournalFile| {
        let written = file.change(|transaction| {
            let number = file::begin(transaction, ID, b"opening")?;
            let lost = KeptEvent {
                first: 4,
                sequence: 6,
                body: None,
            };
            let mut growth = file::keep(transaction, number, &lost)?;
            growth += file::settle(transaction, number, 3, 6)?;
            Ok(((), growth))
        });
        written.expect("a file");
    };
    let killed = Killed::with(write, |tail| {
        tail.put(What::Opening, ID, 0, b"opening");
        // The file has told of these that they are settled, or lost; only the last it hasn't come to.
        for sequence in [2, 3, 4, 5, 7] {
            event(tail, sequence, b"x");
        }
    });
    assert_eq!(left(&killed.journal()), [(4, 6, false), (7, 7, true)]);
}

#[test]
fn a_tail_of_a_gate_that_lives_is_left_alone() {
    let directory = tempfile::tempdir().expect("a directory");
    let options = JournalOptions {
        directory: directory.path().join("journal"),
        limit: 1 << 20,
    };
    let (one, other) = (Journal::open(&options), Journal::open(&options));
    let (one, other) = (one.expect("a journal"), other.expect("a journal"));
    assert!(one.outlives_kills() && other.outlives_kills());
    let tail = one.tail.clone().expect("a tail");
    event(&tail, 2, b"x");
    assert_eq!(other.left().expect("a directory").len(), 0);
    assert!(tail.halves.iter().all(|half| half.path.exists()));
    tail.settle(ID);
    one.close();
    other.close();
    assert!(!tail.halves.iter().any(|half| half.path.exists()));
}

#[test]
fn a_session_whose_end_was_told_has_ended() {
    let killed = Killed::new(|tail| {
        tail.put(What::Opening, ID, 0, b"opening");
        tail.put(What::LastEvent, ID, 2, b"end");
    });
    let next = killed.journal();
    assert_eq!(left(&next), [(2, 2, true)]);
    assert!(next.left().expect("a directory")[0].has_ended());
}

#[test]
fn a_tail_that_cannot_be_read_is_set_aside_and_so_is_that_of_a_file_that_cannot() {
    let aside = |killed: &Killed| {
        let name = format!("execgate-{}.tail-0.corrupt", killed.number);
        let path = killed.directory.path().join("journal").join(name);
        std::fs::read(path).expect("it was set aside")
    };
    let begin = |tail: &Tail| {
        tail.put(What::Opening, ID, 0, b"opening");
        event(tail, 2, b"x");
    };
    let killed = Killed::new(begin);
    let half = files(&killed.places, &killed.number).remove(0);
    let mut damaged = std::fs::read(&half).expect("a file");
    let end = MARK.len() + 2 * HEADER + b"opening".len();
    damaged[end] ^= 1;
    std::fs::write(&half, &damaged).expect("a file");
    // What can be read of it is delivered.
    assert_eq!(left(&killed.journal()), []);
    assert_eq!(aside(&killed), damaged);
    assert!(!killed.is_in_memory());

    let killed = Killed::new(begin);
    let file = killed.directory.path().join("journal");
    let file = file.join(format!("gate-{}.sqlite", killed.number));
    std::fs::write(file, "no database".repeat(100)).expect("a file");
    assert_eq!(killed.journal().left().expect("a directory").len(), 0);
    assert!(aside(&killed).starts_with(&MARK));
    assert!(!killed.is_in_memory());
}
