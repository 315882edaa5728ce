#![allow(
    clippy::expect_used,
    reason = "a target says by a panic that it can't run"
)]

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use prost::bytes::Bytes;
use rusqlite::Connection;

use super::file::{self, JournalFile, SCHEMA, Seen, Which, add, remove_with_log};
use super::tail::{Record, What, encode, parse};
use crate::model::SessionId;

/// Most bytes of a body that the bytes make up.
const MOST_BODY: usize = 63;

/// A tail, twice over: as it stands, and as what a gate would have put there and been killed over. The one is
/// records or an error; the other all records but the last, and no error. What is read is added to a journal.
pub(crate) fn tail(bytes: &[u8]) {
    let mut found = Vec::new();
    let read = parse(&Bytes::copy_from_slice(bytes), &mut found);
    if read.is_ok() && !bytes.is_empty() && !found.is_empty() {
        assert_eq!(written(&found), bytes[..written(&found).len()], "rewritten");
    }
    added(found);

    let Some((cut, rest)) = bytes.split_first() else {
        return;
    };
    let records = made_of(rest);
    let whole = written(&records);
    let end = whole.len().saturating_sub(usize::from(*cut));
    let mut kept = Vec::new();
    let read = parse(&Bytes::copy_from_slice(&whole[..end]), &mut kept);
    // A cut into the mark is damage; whatever was acknowledged has all of it.
    if end == 0 || end >= super::tail::MARK.len() {
        assert_eq!(read, Ok(()), "a tail that ends early is refused");
    }
    assert_eq!(kept, records[..kept.len()], "other records");
    if *cut == 0 {
        assert_eq!(kept.len(), records.len(), "records are missing");
    }
    added(kept);
}

fn written(records: &[Record]) -> Vec<u8> {
    let mut whole = super::tail::MARK.to_vec();
    for record in records {
        let Record {
            what,
            session,
            sequence,
            body,
        } = record;
        encode(&mut whole, *what, *session, *sequence, body);
    }
    whole
}

/// Records: what, session, sequence, length and body of each.
fn made_of(mut bytes: &[u8]) -> Vec<Record> {
    let mut records = Vec::new();
    while let Some(([what, session, sequence, length], rest)) = bytes.split_first_chunk() {
        let (body, rest) = rest.split_at(rest.len().min(usize::from(*length) & MOST_BODY));
        records.push(Record {
            what: [What::Opening, What::Event, What::LastEvent][usize::from(*what) % 3],
            session: SessionId([session % 3; 16]),
            // Those that are next to each other, and the farthest.
            sequence: match sequence {
                0..=0xef => u64::from(*sequence),
                _ => u64::MAX - u64::from(0xff - sequence),
            },
            body: Bytes::copy_from_slice(body),
        });
        bytes = rest;
    }
    records
}

/// Adds records to a journal in memory, which then tells each event of a session once, in order.
fn added(records: Vec<Record>) {
    let mut connection = Connection::open_in_memory().expect("a database");
    connection.execute_batch(SCHEMA).expect("tables");
    let transaction = connection.transaction().expect("a transaction");
    add(&transaction, records.clone()).expect("whatever is told can be added");
    // Again, as where a gate is killed while it takes over.
    let growth = add(&transaction, records).expect("and added again");
    assert!(
        growth.events <= 0 && growth.bytes <= 0,
        "the same is kept twice: {growth:?}"
    );
    let mut statement = transaction
        .prepare(
            "SELECT session, first, sequence, body IS NULL FROM events ORDER BY session, sequence",
        )
        .expect("a statement");
    let rows: Vec<(i64, i64, i64, bool)> = statement
        .query_map([], |row| {
            Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?))
        })
        .and_then(Iterator::collect)
        .expect("rows");
    for (_, first, last, is_lost) in &rows {
        assert!(first <= last, "an event ends before it begins: {rows:?}");
        assert!(*is_lost || first == last, "one event for many: {rows:?}");
    }
    for pair in rows.windows(2) {
        assert!(
            pair[0].0 != pair[1].0 || pair[0].2 < pair[1].1,
            "an event is told twice: {rows:?}"
        );
    }
}

/// A file of a dead gate: what can be read of it is read, and all else an error. Then it takes a tail.
pub(crate) fn journal(bytes: &[u8]) {
    let path = scratch();
    std::fs::write(&path, bytes).expect("room for a file");
    read(&path);
    remove_with_log(&path);
    let mut journal = path.into_os_string();
    journal.push("-journal");
    let _ = std::fs::remove_file(journal);
}

fn read(path: &Path) {
    let looked = JournalFile::look(path);
    let Ok(Some(mut file)) = JournalFile::take_over(path) else {
        return;
    };
    let mut sessions = Vec::new();
    for session in file.sessions(Which::All).unwrap_or_default() {
        let events = file.events(session.number, 0, 64, 1 << 20);
        for pair in events.unwrap_or_default().windows(2) {
            // What SQLite finds damaged is an error; that a key is in order it promises.
            assert!(pair[0].sequence <= pair[1].sequence, "out of order");
        }
        let _ = file.count(session.number);
        let _ = file.first(session.number);
        let _ = file.last(session.number);
        sessions.push(session.id);
    }
    if let Ok(Seen::Left { sessions: seen, .. }) = looked {
        assert!(sessions.len() as u64 <= seen, "more than was seen");
    }
    let records = sessions.into_iter().map(|session| Record {
        what: What::LastEvent,
        session,
        sequence: 9,
        body: Bytes::from_static(b"end"),
    });
    let records = records.collect();
    let _ = file.change(|transaction| Ok(((), file::add(transaction, records)?)));
    let _ = file.is_empty();
}

/// A name that nobody else has, in memory where there is such a place.
fn scratch() -> PathBuf {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let next = NEXT.fetch_add(1, Ordering::Relaxed);
    let name = format!("execgate-fuzzing-{}-{next}", std::process::id());
    let shared = Path::new("/dev/shm");
    if shared.is_dir() {
        shared.join(name)
    } else {
        std::env::temp_dir().join(name)
    }
}
