//! What verification finds, and what is left after pruning and upgrades.

use super::tests::{MADE_OLD, decided, event, gate, lost, requested, started};
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

/// A store as another is that nobody has open.
fn copy_of(store: &tempfile::TempDir) -> tempfile::TempDir {
    let directory = tempfile::tempdir().expect("a directory");
    let [from, to] = [store, &directory].map(|store| schema::file_in(store.path()));
    std::fs::copy(from, to).expect("a copy");
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

    let mut other = earlier;
    other.hash[0] ^= 1;
    let found = verified(directory.path(), &[other]);
    assert!(matches!(found.verified, Verified::Elsewhere { anchor, .. } if anchor == other));
}

#[test]
fn a_link_is_a_position_and_a_whole_hash() {
    let digits = "0a".repeat(32);
    let hash = [10; 32];
    for (text, position) in [
        (format!("0:{digits}"), 0),
        (format!("5:{digits}"), 5),
        (format!("5:{}", digits.to_uppercase()), 5),
    ] {
        assert_eq!(Link::parse(&text), Ok(Link { position, hash }), "{text}");
    }
    // Each of them wrong in one way.
    let (short, long) = (&digits[2..], format!("{digits}0a"));
    for wrong in [
        String::new(),
        digits.clone(),
        format!("5{digits}"),
        format!(":{digits}"),
        format!("x:{digits}"),
        format!("-1:{digits}"),
        format!(" 5:{digits}"),
        format!("9223372036854775808:{digits}"),
        "5:".to_owned(),
        format!("5:{short}"),
        format!("5:{short}0"),
        format!("5:{digits}0"),
        format!("5:{long}"),
        format!("5:{short}0g"),
        format!("5:{short}+a"),
        format!("5:{short}\u{e9}"),
        format!("5:{digits}\n"),
    ] {
        let says = Link::parse(&wrong).expect_err(&wrong);
        assert!(says.contains("64 hexadecimal digits"), "{wrong:?}: {says}");
    }
}

#[test]
#[allow(clippy::too_many_lines, reason = "a row for each change")]
fn whatever_is_changed_removed_or_added_shows_with_its_place() {
    let original = filled();
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
        // Hidden from whoever asks for the latest.
        ("UPDATE execs SET received_ns = 1 WHERE exec_id = 3", None),
        ("UPDATE execs SET position = NULL WHERE exec_id = 3", None),
        ("UPDATE execs SET gate = 'token:b' WHERE exec_id = 3", None),
        // As of an exec whose question isn't on record.
        ("UPDATE execs SET program = NULL WHERE exec_id = 3", None),
        (
            "INSERT INTO execs (session_id, exec_id, received_ns, command_line, answer, position)
             VALUES ('11111111111111111111111111111111', 99, 1, 'sudo rm -rf /', 'escalate', 50)",
            None,
        ),
        ("UPDATE sessions SET received_ns = 1", None),
        ("UPDATE sessions SET gate = 'token:b'", None),
        // As of a session whose beginning was removed.
        (
            "UPDATE sessions SET first_position = 0, user_name = 'root'",
            None,
        ),
        ("DELETE FROM session_labels", None),
        (
            "INSERT INTO lost_ranges VALUES ('11111111111111111111111111111111', 5, 6)",
            None,
        ),
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
        let directory = copy_of(&original);
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
             DELETE FROM sessions WHERE session_id LIKE '2%'; DELETE FROM session_labels WHERE session_id LIKE '2%'",
        )
        .expect("cut off");
    assert_eq!(verified(directory.path(), &[]).verified, Verified::Intact);
    let found = verified(directory.path(), &[head]);
    assert!(matches!(found.verified, Verified::Elsewhere { anchor, .. } if anchor == head));
}

#[test]
fn what_is_removed_for_its_age_leaves_a_chain_that_is_still_proven() {
    let directory = filled();
    let link_at = |position: i64| {
        let hash = "SELECT hash FROM events WHERE position = ?1";
        let connection = database(directory.path());
        let hash = connection.query_row(hash, [position], |row| row.get(0));
        Link {
            position,
            hash: hash.expect("a hash"),
        }
    };
    let (removed, last_removed) = (link_at(59), link_at(60));
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
    // An anchor of what was removed proves nothing any more, but for the last, behind which the chain begins.
    let anchored = verified(directory.path(), &[last_removed]).verified;
    assert_eq!(anchored, Verified::Intact);
    let anchored = verified(directory.path(), &[last_removed, removed]).verified;
    let Verified::Elsewhere { anchor, what } = anchored else {
        panic!("{anchored:?}");
    };
    assert_eq!(anchor, removed);
    assert!(
        what.contains("removed for its age or for room, with all up to 60"),
        "{what}"
    );
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

/// Removes all that is stored up to a position, as if it were old.
fn prune_through(directory: &Path, position: i64) {
    let (mut connection, _lock) = schema::open_for_writing(directory).expect("a store");
    let start = chain::start(&connection).expect("a beginning").position;
    let old = "UPDATE events SET received_ns = 0 WHERE position <= ?1";
    connection.execute(old, [position]).expect("made old");
    let retention = Retention {
        age: Some(Duration::from_secs(3_600)),
        size: None,
    };
    let pruned = retention.prune(&mut connection, SystemTime::now());
    assert_eq!(pruned.expect("removed"), Pruned::Done);
    assert!(start < position);
}

/// Opens a session once more, as what delivers the rest of it does.
fn delivery(id: &str) -> v1::SessionRequest {
    let mut opening = started(
        0,
        Some(v1::Resumption {
            attempt: 2,
            next_sequence: 90,
            ..v1::Resumption::default()
        }),
    );
    if let Some(Event::SessionStarted(started)) = &mut opening.event {
        id.clone_into(&mut started.session_id);
    }
    opening
}

#[test]
fn wherever_the_record_is_cut_lists_say_what_the_events_say_that_are_left() {
    // Each event of two execs, of a session that ends, and is told of again.
    let original = {
        let directory = tempfile::tempdir().expect("a directory");
        let store = Store::open(directory.path()).expect("a store");
        let mut journal = Journal::begin(&store, ONE, &gate("a"), started(1, None));
        journal.record(requested(2, 1), Some(answer(1)));
        journal.record(requested(3, 2), None);
        journal.answered(answer(2));
        journal.record(lost(5, 4, 5), None);
        journal.record(decided(6, 1), None);
        // The same execs again, and answers to them.
        journal.record(requested(0, 2), None);
        journal.answered(answer(2));
        journal.answered(answer(2));
        journal.record(decided(7, 2), None);
        // A loss in which an event is that was stored by itself.
        journal.record(lost(7, 6, 7), None);
        let ended = Event::SessionEnded(v1::SessionEnded::default());
        journal.record(event(8, ended), None);
        let mut journal = Journal::begin(&store, ONE, &gate("a"), delivery(ONE));
        journal.record(decided(90, 1), None);
        journal.record(lost(92, 92, 92), None);
        store.close();
        directory
    };
    let events = verified(original.path(), &[]).head.position;
    assert_eq!(events, 15);
    for through in 1..=events {
        let directory = copy_of(&original);
        prune_through(directory.path(), through);
        let found = verified(directory.path(), &[]);
        assert_eq!(found.verified, Verified::Intact, "up to {through}");
        let is_cut = through < events;
        assert_eq!(
            found.headless_sessions,
            u64::from(is_cut),
            "up to {through}"
        );
        if is_cut && through + 1 < events {
            prune_through(directory.path(), through + 1);
            let found = verified(directory.path(), &[]).verified;
            assert_eq!(found, Verified::Intact, "up to {through}, and one more");
        }
        // What the last events say is proven all the same.
        if [3, 9, 13].contains(&through) {
            for change in [
                "DELETE FROM lost_ranges",
                "UPDATE execs SET action = 'run' WHERE exec_id = 1",
                "DELETE FROM execs",
                "DELETE FROM sessions",
                "INSERT INTO sessions (session_id, received_ns, calls, labels, first_position)
                 VALUES ('x', 1, 1, '{}', 1)",
                "INSERT INTO execs (session_id, exec_id, received_ns, position)
                 SELECT session_id, 9, 1, 1 FROM sessions",
            ] {
                let directory = copy_of(&original);
                prune_through(directory.path(), through);
                let changed = database(directory.path()).execute_batch(change);
                changed.expect("a change");
                let found = verified(directory.path(), &[]).verified;
                let is_found = matches!(found, Verified::Differs { .. });
                assert!(is_found, "up to {through}: {change}: {found:?}");
            }
        }
    }
}

#[test]
fn a_loss_that_no_list_has_any_more_shows() {
    let directory = tempfile::tempdir().expect("a directory");
    let store = Store::open(directory.path()).expect("a store");
    let mut journal = Journal::begin(&store, ONE, &gate("a"), started(1, None));
    journal.record(lost(4, 2, 4), None);
    store.close();
    assert_eq!(verified(directory.path(), &[]).verified, Verified::Intact);
    let removed = database(directory.path()).execute_batch("DELETE FROM lost_ranges");
    removed.expect("a change");
    let found = verified(directory.path(), &[]).verified;
    let Verified::Differs { what } = found else {
        panic!("{found:?}");
    };
    assert_eq!(
        what,
        format!("session {ONE} is listed with other lost events than its events say")
    );
}

#[test]
fn a_store_of_the_fifth_version_gets_lists_that_its_events_prove() {
    let directory = filled();
    // Of a loss that had another event's sequence, and of an exec whose question was removed, events said nothing.
    prune_through(directory.path(), 2);
    database(directory.path())
        .execute_batch(
            "INSERT INTO lost_ranges VALUES ('11111111111111111111111111111111', 7, 8);
             DELETE FROM execs WHERE exec_id = 1 AND session_id LIKE '1%';
             ALTER TABLE sessions DROP COLUMN first_position;
             DROP INDEX events_by_exec;
             DROP INDEX beginnings;
             PRAGMA user_version = 5",
        )
        .expect("made old");
    Store::open(directory.path()).expect("a store").close();
    let found = verified(directory.path(), &[]);
    assert_eq!(found.verified, Verified::Intact);
    assert_eq!(found.headless_sessions, 1);
    let count = |what: &str| {
        let connection = database(directory.path());
        connection
            .query_row(what, [], |row| row.get::<_, i64>(0))
            .expect("a number")
    };
    let kept = "SELECT count(*) FROM lost_ranges WHERE first_sequence = 7 AND last_sequence = 8";
    assert_eq!(count(kept), 1);
    let decided =
        "SELECT count(*) FROM execs WHERE exec_id = 1 AND program IS NULL AND action = 'deny'";
    assert_eq!(count(decided), 1);
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
    let sessions = "SELECT session_id, started_ns, received_ns, calls, hostname, user_name, labels, gate, ended_ns,
        end_reason, exit_code FROM sessions ORDER BY session_id";
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

/// What lists are read by is looked at, too: what is removed from a record must not take facts of other sessions with it.
#[test]
fn neither_a_beginning_that_is_denied_nor_a_view_nor_an_index_deceives() {
    let original = filled();
    // All of the first session but its end: the second is on record as a whole.
    prune_through(original.path(), 42);
    let found = verified(original.path(), &[]);
    assert_eq!(found.verified, Verified::Intact);
    for (change, says) in [
        (
            format!("UPDATE sessions SET first_position = 1, hostname = 'forged' WHERE session_id = '{TWO}'"),
            "is listed otherwise than its events say",
        ),
        (
            "DROP VIEW losses;
             CREATE VIEW losses AS SELECT session_id, 0 AS lost_events FROM lost_ranges"
                .to_owned(),
            "there is a view losses that no service makes",
        ),
        ("DROP VIEW losses".to_owned(), "there is a view losses no longer as the service makes it"),
        (
            "CREATE TRIGGER t AFTER INSERT ON execs BEGIN DELETE FROM execs; END".to_owned(),
            "there is a trigger t that no service makes",
        ),
        (
            "CREATE TABLE none (a, b, program_name TEXT, position INTEGER, received_ns INTEGER NOT NULL);
             CREATE INDEX empty ON none (received_ns);
             PRAGMA writable_schema = ON;
             UPDATE sqlite_master SET rootpage = (SELECT rootpage FROM sqlite_master WHERE name = 'empty')
                 WHERE name = 'execs_by_time';
             DELETE FROM sqlite_master WHERE name = 'empty';"
                .to_owned(),
            "the file is damaged, or was written by others: ",
        ),
    ] {
        let directory = copy_of(&original);
        let changed = database(directory.path()).execute_batch(&change);
        changed.expect("a change");
        let found = verified(directory.path(), &[]).verified;
        let Verified::Differs { what } = &found else {
            panic!("{change}: {found:?}");
        };
        assert!(what.contains(says), "{change}: {what}");
    }
}

/// Its own gate may send all of it again, though some of it was removed.
#[test]
fn a_session_that_is_sent_again_when_its_beginning_was_removed_is_proven() {
    let directory = filled();
    prune_through(directory.path(), 10);
    let store = Store::open(directory.path()).expect("a store");
    for _ in 0..2 {
        session(&store, ONE, 20);
    }
    store.close();
    let found = verified(directory.path(), &[]);
    assert_eq!(found.verified, Verified::Intact);
    assert_eq!(found.headless_sessions, 1);
}
