use std::os::unix::fs::PermissionsExt;

use super::*;

pub(super) const SESSION: &str = "0123456789abcdef0123456789abcdef";

pub(super) fn gate(name: &str) -> GateIdentity {
    GateIdentity::token(name).expect("a name")
}

pub(super) fn event(sequence: u64, event: Event) -> v1::SessionRequest {
    v1::SessionRequest {
        sequence,
        event_time: Some(SystemTime::now().into()),
        event: Some(event),
    }
}

pub(super) fn started(sequence: u64, resumption: Option<v1::Resumption>) -> v1::SessionRequest {
    event(
        sequence,
        Event::SessionStarted(v1::SessionStarted {
            session_id: SESSION.to_owned(),
            resumption,
            ..v1::SessionStarted::default()
        }),
    )
}

pub(super) fn decided(sequence: u64, exec_id: u64) -> v1::SessionRequest {
    event(
        sequence,
        Event::ExecDecided(v1::ExecDecided {
            exec_id,
            action: v1::Action::Deny.into(),
            code: v1::DecisionCode::Verdict.into(),
            rule: "a rule".to_owned(),
            ..v1::ExecDecided::default()
        }),
    )
}

pub(super) fn requested(sequence: u64, exec_id: u64) -> v1::SessionRequest {
    event(
        sequence,
        Event::ExecRequested(v1::ExecRequested {
            exec_id,
            file: b"/usr/bin/\xff\x1b"[..].into(),
            arguments: vec![b"x"[..].into(), b"\xfe"[..].into()],
            ..v1::ExecRequested::default()
        }),
    )
}

pub(super) fn lost(sequence: u64, first: u64, last: u64) -> v1::SessionRequest {
    event(
        sequence,
        Event::EventsLost(v1::EventsLost {
            first_sequence: first,
            last_sequence: last,
            count: last - first + 1,
        }),
    )
}

fn count(directory: &Path, what: &str) -> i64 {
    open_for_reading(directory)
        .expect("a store")
        .query_row(what, [], |row| row.get(0))
        .expect("a number")
}

#[test]
fn events_are_stored_once_and_acknowledged_in_order() {
    let directory = tempfile::tempdir().expect("a directory");
    let store = Store::open(directory.path()).expect("a store");
    let mut journal = Journal::begin(&store, SESSION, &gate("a"), started(1, None));
    for sequence in 2..50 {
        journal.record(requested(sequence, sequence), None);
    }
    journal.record(requested(7, 7), None);
    let stored = journal.progress();
    store.close();
    assert_eq!(stored.borrow().through, 49);
    assert!(journal.is_stored());
    assert_eq!(count(directory.path(), "SELECT count(*) FROM events"), 49);
    assert_eq!(count(directory.path(), "SELECT count(*) FROM execs"), 48);
    assert_eq!(count(directory.path(), "SELECT count(*) FROM sessions"), 1);
}

#[test]
fn a_gap_is_never_acknowledged_unless_it_is_declared() {
    let directory = tempfile::tempdir().expect("a directory");
    let store = Store::open(directory.path()).expect("a store");
    let mut declared = Journal::begin(&store, SESSION, &gate("a"), started(1, None));
    declared.record(lost(5, 2, 5), None);
    // Sent again: it is the same loss.
    declared.record(lost(5, 2, 5), None);
    declared.record(requested(6, 1), None);
    let mut broken = Journal::begin(&store, "another", &gate("a"), started(1, None));
    broken.record(requested(3, 2), None);
    broken.record(requested(4, 3), None);
    store.close();
    assert_eq!(declared.progress().borrow().through, 6);
    assert_eq!(broken.progress().borrow().through, 1);
    assert_eq!(count(directory.path(), "SELECT lost_events FROM losses"), 4);
}

#[test]
fn losses_are_counted_once_however_they_are_told() {
    let directory = tempfile::tempdir().expect("a directory");
    let store = Store::open(directory.path()).expect("a store");
    let mut journal = Journal::begin(&store, SESSION, &gate("a"), started(1, None));
    journal.record(requested(2, 1), None);
    journal.record(lost(4, 3, 4), None);
    journal.record(lost(7, 6, 7), None);
    // One that takes up the others, and an event that was stored.
    journal.record(lost(8, 2, 8), None);
    journal.record(lost(20, 20, 20), None);
    // Two that each begin or end within the one before them.
    journal.record(lost(34, 30, 34), None);
    journal.record(lost(36, 33, 36), None);
    journal.record(lost(31, 28, 31), None);
    // And one that only touches it.
    journal.record(lost(38, 37, 38), None);
    store.close();
    let sum = "SELECT lost_events FROM losses";
    assert_eq!(count(directory.path(), sum), 6 + 1 + 9 + 2);
    let ranges = "SELECT count(*) FROM lost_ranges";
    assert_eq!(count(directory.path(), ranges), 4);
    let joined =
        "SELECT count(*) FROM lost_ranges WHERE first_sequence = 28 AND last_sequence = 36";
    assert_eq!(count(directory.path(), joined), 1);
}

#[test]
fn losses_in_more_places_than_are_kept_are_counted_all_the_same() {
    for is_ascending in [true, false] {
        let directory = tempfile::tempdir().expect("a directory");
        let store = Store::open(directory.path()).expect("a store");
        let mut journal = Journal::begin(&store, SESSION, &gate("a"), started(1, None));
        let all: i64 = 1_100;
        for place in 1..=all.cast_unsigned() {
            let place = if is_ascending {
                place
            } else {
                all.cast_unsigned() + 1 - place
            };
            // Each second event is stored, and those between are lost.
            journal.record(requested(2 * place, place), None);
            journal.record(lost(2 * place + 1, 2 * place + 1, 2 * place + 1), None);
        }
        store.close();
        let ranges = "SELECT count(*) FROM lost_ranges";
        assert_eq!(count(directory.path(), ranges), 1_024);
        assert_eq!(
            count(directory.path(), "SELECT lost_events FROM losses"),
            all
        );
        let verified = verify(directory.path(), &[]).expect("read").verified;
        assert_eq!(verified, Verified::Intact);
    }
}

/// A question about a program, and what is answered.
fn asked(
    sequence: u64,
    program: &'static str,
    decision: v1::verdict::Decision,
) -> (v1::SessionRequest, StoredAnswer) {
    let question = Event::ExecRequested(v1::ExecRequested {
        exec_id: 1,
        file: program.as_bytes().into(),
        arguments: vec![program.as_bytes().into()],
        ..v1::ExecRequested::default()
    });
    let verdict = v1::Verdict {
        exec_id: 1,
        decision: Some(decision),
        ..v1::Verdict::default()
    };
    (event(sequence, question), verdict.into())
}

#[test]
fn a_verdict_is_put_down_to_the_command_that_it_was_given_to() {
    use v1::verdict::Decision;
    let denied = || Decision::Deny(v1::Deny::default());
    // The second question has its own sequence, none, and that of the first.
    for sequence in [3, 0, 2] {
        for is_answered in [true, false] {
            let directory = tempfile::tempdir().expect("a directory");
            let store = Store::open(directory.path()).expect("a store");
            let mut journal = Journal::begin(&store, SESSION, &gate("a"), started(1, None));
            let (question, answer) = asked(2, "/bin/nope", denied());
            journal.record(question, Some(answer.clone()));
            journal.answered(answer);
            let (question, answer) = asked(sequence, "/bin/ls", Decision::Run(v1::Run {}));
            journal.record(question, Some(answer).filter(|_| is_answered));
            store.close();
            let connection = open_for_reading(directory.path()).expect("a store");
            let want = Want {
                execs: 9,
                arguments: Arguments::Read,
                within: Duration::MAX,
            };
            let found = page(&connection, &Filter::default(), None, want).expect("read");
            let [exec] = &found.execs[..] else {
                panic!("{found:?}");
            };
            let what = format!("sequence {sequence}, answered: {is_answered}");
            assert_eq!(exec.command_line, "/bin/ls", "{what}");
            assert_eq!(exec.program, "/bin/ls", "{what}");
            assert_eq!(exec.arguments, ["/bin/ls"], "{what}");
            let given = exec.answer.as_ref();
            let given = given.map(|given| (&*given.verdict, given.answer_count));
            assert_eq!(given, is_answered.then_some(("run", 1)), "{what}");
            let verified = verify(directory.path(), &[]).expect("read").verified;
            assert_eq!(verified, Verified::Intact, "{what}");
        }
    }
}

#[test]
fn a_page_of_what_events_have_ends_when_its_time_does_and_is_gone_on_from() {
    let directory = tempfile::tempdir().expect("a directory");
    let store = Store::open(directory.path()).expect("a store");
    let mut journal = Journal::begin(&store, SESSION, &gate("a"), started(1, None));
    for exec in 1..=3 {
        journal.record(requested(exec + 1, exec), None);
    }
    store.close();
    let connection = open_for_reading(directory.path()).expect("a store");
    let want = Want {
        execs: 9,
        arguments: Arguments::Read,
        within: Duration::ZERO,
    };
    let mut below = None;
    for exec in [3, 2, 1] {
        let found = page(&connection, &Filter::default(), below, want).expect("read");
        let found_execs: Vec<_> = found.execs.iter().map(|exec| exec.exec_id).collect();
        assert_eq!(found_execs, [exec]);
        below = Some(found.next.expect("it is to be gone on"));
    }
    let found = page(&connection, &Filter::default(), below, want).expect("read");
    assert_eq!((found.execs.len(), found.next), (0, None));
    // What tables have is there at once.
    let want = Want {
        arguments: Arguments::Left,
        ..want
    };
    let found = page(&connection, &Filter::default(), None, want).expect("read");
    assert_eq!((found.execs.len(), found.next), (3, None));
}

#[test]
fn an_end_before_1970_is_told_as_that() {
    let directory = tempfile::tempdir().expect("a directory");
    let store = Store::open(directory.path()).expect("a store");
    let mut journal = Journal::begin(&store, SESSION, &gate("a"), started(1, None));
    let mut ended = event(2, Event::SessionEnded(v1::SessionEnded::default()));
    ended.event_time = Some(prost_types::Timestamp {
        seconds: -1_000,
        nanos: 0,
    });
    journal.record(ended, None);
    store.close();
    let store = Store::open(directory.path()).expect("a store");
    let (time, _) = store.ended(SESSION).expect("read").expect("it ended");
    assert_eq!(time, SystemTime::UNIX_EPOCH - Duration::from_secs(1_000));
    store.close();
}

#[test]
fn a_resumed_call_asks_what_is_open_and_goes_on_with_what_is_not_acknowledged() {
    let directory = tempfile::tempdir().expect("a directory");
    let store = Store::open(directory.path()).expect("a store");
    let resumption = v1::Resumption {
        attempt: 3,
        next_sequence: 12,
        ..v1::Resumption::default()
    };
    let mut journal = Journal::begin(&store, SESSION, &gate("a"), started(0, Some(resumption)));
    // Asked again under their old numbers.
    journal.record(requested(12, 5), None);
    journal.record(requested(15, 7), None);
    // Here the events begin that weren't acknowledged.
    journal.record(lost(40, 40, 40), None);
    journal.record(requested(41, 30), None);
    // And here something is missing.
    journal.record(requested(43, 31), None);
    store.close();
    assert_eq!(journal.progress().borrow().through, 41);
    assert_eq!(count(directory.path(), "SELECT calls FROM sessions"), 3);
    let told = "SELECT count(*) FROM events WHERE sequence IS NOT NULL";
    assert_eq!(count(directory.path(), told), 5);
}

#[test]
fn a_full_queue_takes_nothing_more_of_that_call() {
    let directory = tempfile::tempdir().expect("a directory");
    let store = Store::open(directory.path()).expect("a store");
    let mut journal = Journal::begin(&store, SESSION, &gate("a"), started(1, None));
    let all = Arc::clone(&store.shared.room)
        .try_acquire_many_owned(u32::try_from(store.shared.room.available_permits()).expect("fits"))
        .expect("the room");
    journal.record(requested(2, 1), None);
    assert!(journal.has_missed());
    assert!(!journal.is_to_be_resumed());
    drop(all);
    // There is room again, and what was missed is still missing.
    journal.record(requested(3, 2), None);
    assert!(journal.is_to_be_resumed());
    store.close();
    assert_eq!(journal.progress().borrow().through, 1);
    assert_eq!(count(directory.path(), "SELECT count(*) FROM events"), 1);
}

#[test]
fn answers_are_recorded_with_their_execs() {
    let directory = tempfile::tempdir().expect("a directory");
    let store = Store::open(directory.path()).expect("a store");
    let mut journal = Journal::begin(&store, SESSION, &gate("a"), started(1, None));
    let answer = v1::Verdict {
        exec_id: 9,
        decision: Some(v1::verdict::Decision::Deny(v1::Deny {
            reason: "no".to_owned(),
        })),
        rule: "r".to_owned(),
        ..v1::Verdict::default()
    };
    journal.record(requested(2, 9), Some(answer.clone().into()));
    journal.record(requested(2, 9), Some(answer.into()));
    store.close();
    let row: (String, String, i64, String, Vec<u8>) = open_for_reading(directory.path())
        .expect("a store")
        .query_row(
            "SELECT answer, answer_reason, answers, command_line, program FROM execs",
            [],
            |row| {
                Ok((
                    row.get(0)?,
                    row.get(1)?,
                    row.get(2)?,
                    row.get(3)?,
                    row.get(4)?,
                ))
            },
        )
        .expect("a row");
    assert_eq!(
        row,
        (
            "deny".to_owned(),
            "no".to_owned(),
            2,
            r"$'/usr/bin/\xff\x1b' $'\xfe'".to_owned(),
            b"/usr/bin/\xff\x1b".to_vec()
        )
    );
}

#[test]
fn numbers_of_any_size_are_kept() {
    let directory = tempfile::tempdir().expect("a directory");
    let store = Store::open(directory.path()).expect("a store");
    let mut journal = Journal::begin(&store, SESSION, &gate("a"), started(1, None));
    journal.record(requested(u64::MAX, u64::MAX), None);
    journal.record(lost(u64::MAX, 0, u64::MAX - 1), None);
    store.close();
    assert_eq!(count(directory.path(), "SELECT exec_id FROM execs"), -1);
}

#[test]
fn a_store_that_is_not_to_be_used_is_refused_with_advice() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("events.sqlite");
    assert!(matches!(
        open_for_reading(directory.path()),
        Err(StoreError::Missing { .. })
    ));

    std::fs::write(
        &path,
        b"something else entirely, and long enough for a header",
    )
    .expect("a file");
    let error = Store::open(directory.path()).expect_err("no database");
    assert!(error.to_string().contains("move the file away"), "{error}");
    std::fs::remove_file(&path).expect("removed");

    Store::open(directory.path()).expect("a store").close();
    let connection = Connection::open(&path).expect("a database");
    connection
        .pragma_update(None, "user_version", 99)
        .expect("set");
    let error = Store::open(directory.path()).expect_err("too new");
    assert!(error.to_string().contains("version 99"), "{error}");
    assert!(matches!(
        open_for_reading(directory.path()),
        Err(StoreError::Newer { found: 99, .. })
    ));
    connection
        .pragma_update(None, "application_id", 5)
        .expect("set");
    assert!(matches!(
        Store::open(directory.path()),
        Err(StoreError::Foreign { .. })
    ));
}

#[test]
fn files_are_for_their_owner_only() {
    let parent = tempfile::tempdir().expect("a directory");
    let directory = parent.path().join("a/data");
    let store = Store::open(&directory).expect("a store");
    let _journal = Journal::begin(&store, SESSION, &gate("a"), started(1, None));
    let mode = |path: &Path| {
        let found = std::fs::metadata(path).expect("it is there");
        found.permissions().mode() & 0o777
    };
    assert_eq!(mode(&directory), 0o700);
    let modes = || {
        let files = directory.read_dir().expect("a directory");
        let paths = files.map(|file| file.expect("a file").path());
        let named = paths.map(|path| {
            let name = path.file_name().unwrap_or_default().to_owned();
            (name.into_string().expect("text"), mode(&path))
        });
        named.collect::<std::collections::BTreeMap<_, _>>()
    };
    let files = [
        "events.lock",
        "events.sqlite",
        "events.sqlite-shm",
        "events.sqlite-wal",
    ];
    let own = std::collections::BTreeMap::from(files.map(|name| (name.to_owned(), 0o600)));
    assert_eq!(modes(), own);
    store.close();
    // Others' reading of what is there already ends, and what is made beside it is like it.
    let lax = std::fs::Permissions::from_mode(0o644);
    std::fs::set_permissions(store.path(), lax).expect("a mode");
    let store = Store::open(&directory).expect("a store");
    assert_eq!(modes(), own);
    store.close();
}

#[test]
fn one_of_several_services_that_begin_a_store_at_once_has_it() {
    let directory = tempfile::tempdir().expect("a directory");
    let barrier = std::sync::Barrier::new(8);
    let opened: Vec<_> = std::thread::scope(|scope| {
        let open = || {
            barrier.wait();
            Store::open(directory.path())
        };
        let threads: Vec<_> = (0..8).map(|_| scope.spawn(open)).collect();
        let mut opened = Vec::new();
        for thread in threads {
            opened.push(thread.join().expect("no panic"));
        }
        opened
    });
    let refused: Vec<_> = opened
        .iter()
        .filter_map(|opened| opened.as_ref().err())
        .collect();
    assert_eq!(refused.len(), 7);
    for error in refused {
        let says = error.to_string();
        assert!(
            says.contains(&format!("(process {})", std::process::id())),
            "{says}"
        );
    }
    open_for_reading(directory.path()).expect("who reads needs no lock");
    for store in opened.into_iter().flatten() {
        store.close();
    }
    Store::open(directory.path())
        .expect("it is free again")
        .close();
}

#[test]
fn who_ended_a_session_is_on_record_and_proven_and_the_first_stays() {
    use crate::pb::audit::v1::Termination;
    let directory = tempfile::tempdir().expect("a directory");
    let store = Store::open(directory.path()).expect("a store");
    let mut journal = Journal::begin(&store, SESSION, &gate("a"), started(1, None));
    let termination = |by: &str, seconds| Termination {
        terminated_by: by.to_owned(),
        reason: "runs wild".to_owned(),
        termination_time: Some(prost_types::Timestamp { seconds, nanos: 0 }),
    };
    for (by, seconds) in [("operator:ada", 5), ("operator:bob", 6)] {
        journal.answered(StoredAnswer {
            termination: Some(termination(by, seconds)),
            ..StoredAnswer::default()
        });
    }
    store.close();
    let connection = open_for_reading(directory.path()).expect("a store");
    let want = Want {
        execs: 1,
        arguments: Arguments::Left,
        within: Duration::MAX,
    };
    let found = session(&connection, SESSION, 0, want).expect("read");
    let (found, _) = found.expect("a session");
    assert_eq!(found.termination, Some(termination("operator:ada", 5)));
    assert_eq!(
        count(
            directory.path(),
            "SELECT count(*) FROM events WHERE kind = 'session-terminated'"
        ),
        2
    );
    let verified = || verify(directory.path(), &[]).expect("read").verified;
    assert_eq!(verified(), Verified::Intact);
    let writer = Connection::open(schema::file_in(directory.path())).expect("the database");
    writer
        .execute("UPDATE sessions SET terminated_by = 'operator:eve'", [])
        .expect("altered");
    assert!(matches!(verified(), Verified::Differs { .. }));
}

#[test]
fn a_store_of_the_fourth_version_gets_a_place_for_who_ended_a_session() {
    let directory = tempfile::tempdir().expect("a directory");
    let store = Store::open(directory.path()).expect("a store");
    let _journal = Journal::begin(&store, SESSION, &gate("a"), started(1, None));
    store.close();
    let old = Connection::open(schema::file_in(directory.path())).expect("the database");
    old.execute_batch(
        "ALTER TABLE sessions DROP COLUMN terminated_by;
         ALTER TABLE sessions DROP COLUMN termination_reason;
         ALTER TABLE sessions DROP COLUMN terminated_ns;
         ALTER TABLE sessions DROP COLUMN first_position;
         DROP INDEX events_by_exec;
         DROP INDEX beginnings;
         PRAGMA user_version = 4",
    )
    .expect("made old");
    drop(old);
    Store::open(directory.path()).expect("a store").close();
    let columns = "SELECT count(*) FROM pragma_table_info('sessions') WHERE name LIKE 'terminat%'";
    assert_eq!(count(directory.path(), columns), 3);
    let verified = verify(directory.path(), &[]).expect("read").verified;
    assert_eq!(verified, Verified::Intact);
}

/// Its gate calls on as before: it doesn't know.
#[test]
fn a_session_goes_on_though_all_of_it_was_removed() {
    let directory = tempfile::tempdir().expect("a directory");
    let retention = Retention {
        age: Some(Duration::ZERO),
        size: None,
    };
    let open = || Store::open_keeping(directory.path(), retention).expect("a store");
    let intact = |what: &str| {
        let found = verify(directory.path(), &[]).expect("read").verified;
        assert_eq!(found, Verified::Intact, "{what}");
    };
    let listed = || {
        let connection = open_for_reading(directory.path()).expect("a store");
        let want = Want {
            execs: 9,
            arguments: Arguments::Read,
            within: Duration::MAX,
        };
        let found = page(&connection, &Filter::default(), None, want).expect("read");
        let execs = found.execs.into_iter();
        let execs = execs.map(|exec| (exec.exec_id, exec.gate, exec.hostname));
        execs.collect::<Vec<_>>()
    };
    let exec = |exec_id, hostname: &str| (exec_id, "token:a".to_owned(), hostname.to_owned());
    let store = open();
    let mut journal = Journal::begin(&store, SESSION, &gate("a"), started(1, None));
    journal.record(requested(2, 1), None);
    let mut ended = requested(4, 3);
    ended.event = Some(Event::SessionEnded(v1::SessionEnded::default()));
    for sequence in [3, 5] {
        store.prune();
        journal.record(requested(sequence, sequence), None);
        if sequence == 3 {
            journal.record(ended.clone(), None);
        }
    }
    store.close();
    intact("it goes on");
    assert_eq!(listed(), [exec(5, "")]);

    // A later beginning says the rest, and nobody else has it meanwhile.
    let store = Store::open(directory.path()).expect("a store");
    let mut again = started(0, Some(v1::Resumption::default()));
    if let Some(Event::SessionStarted(started)) = &mut again.event {
        started.gate = Some(v1::GateInfo {
            hostname: "build-7".to_owned(),
            ..v1::GateInfo::default()
        });
        started.labels.insert("job".to_owned(), "42".to_owned());
    }
    let mut journal = Journal::begin(&store, SESSION, &gate("a"), again.clone());
    journal.record(requested(6, 6), None);
    let other = Journal::begin(&store, SESSION, &gate("b"), again);
    store.close();
    drop(other);
    intact("it is told of again");
    assert_eq!(listed(), [exec(6, "build-7"), exec(5, "build-7")]);
    let labels = "SELECT count(*) FROM sessions WHERE labels = '{\"job\":\"42\"}'";
    assert_eq!(count(directory.path(), labels), 1);

    let store = open();
    store.prune();
    store.close();
    intact("it is removed as well");
    assert_eq!(count(directory.path(), "SELECT count(*) FROM sessions"), 0);
}

#[test]
fn the_note_of_what_was_removed_is_the_last_event_for_all_who_follow() {
    let directory = tempfile::tempdir().expect("a directory");
    let retention = Retention {
        age: Some(Duration::ZERO),
        size: None,
    };
    let store = Store::open_keeping(directory.path(), retention).expect("a store");
    let _journal = Journal::begin(&store, SESSION, &gate("a"), started(1, None));
    store.prune();
    store.close();
    let found = verify(directory.path(), &[]).expect("read");
    assert_eq!(found.verified, Verified::Intact);
    assert_eq!((found.start.position, found.head.position), (1, 2));
    assert_eq!(*store.head().borrow(), found.head);
}

#[test]
fn another_gate_adds_nothing_to_a_session_and_is_told() {
    let directory = tempfile::tempdir().expect("a directory");
    let store = Store::open(directory.path()).expect("a store");
    let mut own = Journal::begin(&store, SESSION, &gate("a"), started(1, None));
    own.record(requested(2, 1), None);
    let resumption = v1::Resumption {
        attempt: 9,
        next_sequence: 3,
        ..v1::Resumption::default()
    };
    let mut foreign = Journal::begin(&store, SESSION, &gate("b"), started(0, Some(resumption)));
    foreign.record(requested(3, 2), None);
    foreign.record(lost(9, 4, 9), None);
    // The same session from its beginning.
    let mut replayed = Journal::begin(&store, SESSION, &gate("b"), started(1, None));
    replayed.record(requested(2, 7), None);
    own.record(requested(3, 2), None);
    store.close();
    for journal in [&foreign, &replayed] {
        let progress = journal.progress();
        assert_eq!(progress.borrow().owner, Some(gate("a")));
        assert_eq!(progress.borrow().through, 0);
    }
    assert_eq!(own.progress().borrow().through, 3);
    assert_eq!(own.progress().borrow().owner, None);
    assert_eq!(count(directory.path(), "SELECT count(*) FROM events"), 3);
    assert_eq!(count(directory.path(), "SELECT count(*) FROM execs"), 2);
    assert_eq!(count(directory.path(), "SELECT count(*) FROM losses"), 0);
    assert_eq!(count(directory.path(), "SELECT calls FROM sessions"), 1);

    let store = Store::open(directory.path()).expect("a store");
    assert_eq!(
        store.latest_owners(5).expect("owners"),
        [(SESSION.to_owned(), gate("a"))]
    );
    store.close();
}

/// Makes the tables what they were in version 2.
pub(super) const MADE_OLD: &str = "
DROP VIEW losses;
ALTER TABLE events RENAME TO new;
CREATE TABLE events (
    session_id      TEXT NOT NULL,
    sequence        INTEGER NOT NULL,
    event_ns        INTEGER,
    received_ns     INTEGER NOT NULL,
    kind            TEXT NOT NULL,
    exec_id         INTEGER,
    payload         BLOB NOT NULL,
    PRIMARY KEY (session_id, sequence)
);
INSERT INTO events SELECT session_id, sequence, event_ns, received_ns, kind, exec_id, payload FROM new
    WHERE sequence IS NOT NULL ORDER BY position;
DROP TABLE new;
DROP TABLE chain_start;
DROP TABLE session_labels;
ALTER TABLE sessions DROP COLUMN terminated_by;
ALTER TABLE sessions DROP COLUMN termination_reason;
ALTER TABLE sessions DROP COLUMN terminated_ns;
ALTER TABLE sessions DROP COLUMN first_position;
DROP INDEX execs_by_position;
DROP INDEX execs_by_session;
DROP INDEX execs_by_program;
DROP INDEX execs_by_verdict;
DROP INDEX execs_by_code;
DROP INDEX execs_by_reason_code;
DROP INDEX execs_monitored;
DROP INDEX execs_by_gate;
ALTER TABLE execs DROP COLUMN position;
ALTER TABLE execs DROP COLUMN gate;
ALTER TABLE execs DROP COLUMN answer_mode;
CREATE INDEX execs_by_program ON execs (program_name, received_ns);
CREATE VIEW losses AS SELECT session_id, 0 AS lost_events FROM lost_ranges;
PRAGMA user_version = 2;
";

#[test]
fn a_store_of_the_first_version_is_brought_up_to_date() {
    let directory = tempfile::tempdir().expect("a directory");
    let store = Store::open(directory.path()).expect("a store");
    let _journal = Journal::begin(&store, SESSION, &gate("a"), started(1, None));
    store.close();
    let old = Connection::open(schema::file_in(directory.path())).expect("the database");
    old.execute_batch(MADE_OLD).expect("made old");
    old.execute_batch("ALTER TABLE sessions DROP COLUMN gate; PRAGMA user_version = 1")
        .expect("made older");
    drop(old);
    assert!(matches!(
        open_for_reading(directory.path()),
        Err(StoreError::Older { .. })
    ));

    let store = Store::open(directory.path()).expect("a store");
    assert_eq!(store.latest_owners(5).expect("owners"), []);
    // Whoever goes on with a session of then has it from now on.
    let resumption = v1::Resumption {
        attempt: 2,
        next_sequence: 2,
        ..v1::Resumption::default()
    };
    let resumed = Journal::begin(&store, SESSION, &gate("b"), started(0, Some(resumption)));
    store.close();
    assert_eq!(resumed.progress().borrow().owner, None);
    assert_eq!(
        count(
            directory.path(),
            "SELECT count(*) FROM sessions WHERE gate = 'token:b'"
        ),
        1
    );
}
