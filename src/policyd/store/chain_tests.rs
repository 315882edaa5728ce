//! What verification finds, and what is left after pruning and upgrades.

use super::tests::{MADE_OLD, decided, event, gate, requested, started};
use super::*;

fn answer(exec_id: u64) -> StoredAnswer {
    let verdict = v1::Verdict {
        exec_id,
        decision: Some(v1::verdict::Decision::Deny(v1::Deny {
            reason: "no".to_owned(),
        })),
        rule: "a rule".to_owned(),
        ..v1::Verdict::default()
    };
    verdict.into()
}

fn session(store: &Store, id: &str, execs: u64) {
    let mut opening = started(1, None);
    if let Some(Event::SessionStarted(started)) = &mut opening.event {
        id.clone_into(&mut started.session_id);
        started.labels.insert("job".to_owned(), "42".to_owned());
    }
    let mut journal = Journal::begin(store, id, &gate("a"), opening);
    for exec in 1..=execs {
        journal.record(requested(2 * exec, exec), Some(answer(exec)));
        journal.record(decided(2 * exec + 1, exec), None);
    }
    // Asked again, and answered again.
    journal.record(requested(2, 1), Some(answer(1)));
    journal.record(
        event(
            2 * execs + 2,
            Event::SessionEnded(v1::SessionEnded::default()),
        ),
        None,
    );
}

const ONE: &str = "11111111111111111111111111111111";
const TWO: &str = "22222222222222222222222222222222";

fn filled() -> tempfile::TempDir {
    let directory = tempfile::tempdir().expect("a directory");
    let store = Store::open(directory.path()).expect("a store");
    session(&store, ONE, 20);
    session(&store, TWO, 20);
    store.close();
    directory
}

fn database(directory: &Path) -> Connection {
    Connection::open(schema::file_in(directory)).expect("the database")
}

fn verified(directory: &Path, anchors: &[Link]) -> Verification {
    verify(directory, anchors).expect("it can be looked at")
}

#[test]
fn what_nobody_touched_is_intact_and_comes_by_its_anchors() {
    let directory = filled();
    let found = verified(directory.path(), &[]);
    assert_eq!(found.verified, Verified::Intact);
    // 42 events of each session, and an answer given again.
    assert_eq!((found.events, found.head.position), (86, 86));
    assert_eq!(found.start, Link::BEGINNING);
    let earlier = database(directory.path())
        .query_row("SELECT hash FROM events WHERE position = 40", [], |row| {
            row.get(0)
        })
        .expect("a hash");
    let earlier = Link {
        position: 40,
        hash: earlier,
    };
    let again = verified(directory.path(), &[Link::BEGINNING, earlier, found.head]);
    assert_eq!(again.verified, Verified::Intact);
    assert_eq!(Link::parse(&found.head.to_string()), Ok(found.head));
    for wrong in ["", "5", "x:00", "-1:00", "5:0g", ":"] {
        assert!(Link::parse(wrong).is_err(), "{wrong}");
    }

    let mut other = earlier;
    other.hash[0] ^= 1;
    let found = verified(directory.path(), &[other]);
    assert!(matches!(found.verified, Verified::Elsewhere { anchor, .. } if anchor == other));
}

#[test]
fn whatever_is_changed_removed_or_added_shows_with_its_place() {
    for (change, place) in [
        (
            "UPDATE events SET payload = x'00' WHERE position = 7",
            Some(7),
        ),
        (
            "UPDATE events SET answer = NULL WHERE position = 8",
            Some(8),
        ),
        (
            "UPDATE events SET gate = 'token:b' WHERE position = 1",
            Some(1),
        ),
        (
            "UPDATE events SET received_ns = received_ns + 1 WHERE position = 9",
            Some(9),
        ),
        (
            "UPDATE events SET exec_id = 6 WHERE position = 10",
            Some(10),
        ),
        (
            "UPDATE events SET session_id = 'x' WHERE position = 11",
            Some(11),
        ),
        (
            "UPDATE events SET hash = zeroblob(32) WHERE position = 12",
            Some(12),
        ),
        (
            "UPDATE events SET payload = 'text' WHERE position = 13",
            Some(13),
        ),
        (
            "UPDATE events SET hash = x'00' WHERE position = 14",
            Some(14),
        ),
        ("DELETE FROM events WHERE position = 20", Some(20)),
        ("DELETE FROM events WHERE position <= 20", Some(1)),
        (
            "DELETE FROM events WHERE position <= 20;
             INSERT INTO chain_start SELECT 20, zeroblob(32)",
            Some(21),
        ),
        (
            "INSERT INTO chain_start SELECT position, hash FROM events WHERE position = 20;
             DELETE FROM events WHERE position <= 20",
            Some(21),
        ),
        (
            "INSERT INTO events SELECT 87, 'x', 1, NULL, 0, kind, NULL, NULL, payload, NULL, hash
             FROM events WHERE position = 5",
            Some(87),
        ),
        (
            "UPDATE execs SET command_line = 'ls' WHERE exec_id = 3",
            None,
        ),
        ("UPDATE execs SET action = 'run' WHERE exec_id = 3", None),
        (
            "UPDATE execs SET answer_rule = 'another' WHERE exec_id = 3",
            None,
        ),
        ("DELETE FROM execs WHERE exec_id = 3", None),
        (
            "INSERT INTO execs (session_id, exec_id, received_ns, program, position)
             VALUES ('x', 1, 1, x'2f', 90)",
            None,
        ),
        ("UPDATE sessions SET user_name = 'root'", None),
        ("DELETE FROM sessions", None),
        (
            "INSERT INTO sessions (session_id, received_ns, calls, labels) VALUES ('x', 1, 1, '{}')",
            None,
        ),
        ("UPDATE session_labels SET value = '43'", None),
    ] {
        let directory = filled();
        database(directory.path())
            .execute_batch(change)
            .expect("a change");
        let found = verified(directory.path(), &[]).verified;
        match (found, place) {
            (Verified::Broken { position, .. }, Some(place)) => {
                assert_eq!(position, place, "{change}");
            }
            (Verified::Differs { .. }, None) => {}
            (other, _) => panic!("{change}: {other:?}"),
        }
    }
}

#[test]
fn what_is_cut_off_at_the_end_shows_by_an_anchor_alone() {
    let directory = filled();
    let head = verified(directory.path(), &[]).head;
    database(directory.path())
        .execute_batch(
            "DELETE FROM events WHERE session_id LIKE '2%'; DELETE FROM execs WHERE session_id LIKE '2%';
             DELETE FROM sessions WHERE session_id LIKE '2%'",
        )
        .expect("cut off");
    assert_eq!(verified(directory.path(), &[]).verified, Verified::Intact);
    let found = verified(directory.path(), &[head]);
    assert!(matches!(found.verified, Verified::Elsewhere { anchor, .. } if anchor == head));
}

#[test]
fn what_is_removed_for_its_age_leaves_a_chain_that_is_still_proven() {
    let directory = filled();
    let (mut connection, lock) = schema::open_for_writing(directory.path()).expect("a store");
    // The first session, and half of the second, are old.
    let old = "UPDATE events SET received_ns = 0 WHERE position <= 60";
    connection.execute_batch(old).expect("made old");
    let retention = Retention {
        age: Some(Duration::from_secs(3_600)),
        size: None,
    };
    let pruned = retention.prune(&mut connection, SystemTime::now());
    assert_eq!(pruned.expect("removed"), Pruned::Done);
    drop((connection, lock));
    let found = verified(directory.path(), &[]);
    assert_eq!(found.verified, Verified::Intact);
    assert_eq!((found.start.position, found.head.position), (60, 87));
    assert_eq!((found.events, found.headless_sessions), (27, 1));
    let count = |what: &str| {
        let connection = database(directory.path());
        connection.query_row(what, [], |row| row.get::<_, i64>(0))
    };
    assert_eq!(count("SELECT count(*) FROM sessions").expect("a number"), 1);
    let execs = "SELECT count(*) FROM execs WHERE position <= 60";
    assert_eq!(count(execs).expect("a number"), 0);

    // It goes on, and what was removed can't be removed further in silence.
    let store = Store::open(directory.path()).expect("a store");
    session(&store, ONE, 1);
    store.close();
    assert_eq!(
        verified(directory.path(), &[found.head]).verified,
        Verified::Intact
    );
    database(directory.path())
        .execute_batch(
            "DELETE FROM chain_start;
             INSERT INTO chain_start SELECT position, hash FROM events WHERE position = 70;
             DELETE FROM events WHERE position <= 70; DELETE FROM execs WHERE position <= 70",
        )
        .expect("removed");
    let found = verified(directory.path(), &[]);
    assert!(matches!(
        found.verified,
        Verified::Broken { position: 71, .. }
    ));
}

#[test]
fn what_does_not_fit_is_removed_until_it_does() {
    let directory = tempfile::tempdir().expect("a directory");
    let retention = Retention {
        age: None,
        size: Some(2 << 20),
    };
    let store = Store::open_keeping(directory.path(), retention).expect("a store");
    for number in 0..40 {
        session(&store, &format!("{number:032x}"), 100);
    }
    store.prune();
    store.close();
    let store = Store::open_keeping(directory.path(), retention).expect("a store");
    store.prune();
    store.close();
    let connection = database(directory.path());
    assert!(retention::used(&connection).expect("a size") <= 2 << 20);
    let found = verified(directory.path(), &[]);
    assert_eq!(found.verified, Verified::Intact);
    assert!(found.start.position > 0);
    let execs: i64 = connection
        .query_row("SELECT count(*) FROM execs", [], |row| row.get(0))
        .expect("a number");
    assert!(execs > 0);
}

#[test]
fn a_store_without_a_chain_gets_one_and_loses_nothing() {
    let directory = filled();
    let everything = |what: &str| {
        let connection = database(directory.path());
        let mut statement = connection.prepare(what).expect("a query");
        let columns = statement.column_count();
        let rows = statement.query_map([], |row| {
            (0..columns)
                .map(|column| row.get::<_, rusqlite::types::Value>(column))
                .collect::<Result<Vec<_>, _>>()
        });
        let rows: Result<Vec<_>, _> = rows.expect("rows").collect();
        format!("{:?}", rows.expect("rows"))
    };
    // How often it was answered isn't among what events of then can prove.
    let execs = "SELECT session_id, exec_id, request_sequence, program, command_line, answer,
        answer_reason, answer_rule, action, code, rule, gate FROM execs ORDER BY session_id, exec_id";
    let events = "SELECT session_id, sequence, kind, exec_id, received_ns, payload FROM events
        WHERE sequence IS NOT NULL ORDER BY session_id, sequence";
    let sessions = "SELECT * FROM sessions ORDER BY session_id";
    let before = [execs, events, sessions].map(everything);
    database(directory.path())
        .execute_batch(MADE_OLD)
        .expect("made old");
    Store::open(directory.path()).expect("a store").close();
    assert_eq!([execs, events, sessions].map(everything), before);
    let found = verified(directory.path(), &[]);
    assert_eq!(found.verified, Verified::Intact);
    assert_eq!(found.events, 84);
}
