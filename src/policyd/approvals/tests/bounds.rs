//! How much waits, and how much is kept of what doesn't any more.

use super::*;
use crate::policyd::approvals::desk::CLOSED;
use crate::policyd::approvals::ledger::Termination;

/// Asks until it is refused; gives how many wait, and what the refusal says.
fn fill(desk: &Desk, asker: &Asker, exec: impl Fn(u64) -> v1::ExecRequested) -> (u64, String) {
    let now = SystemTime::now();
    for number in 0.. {
        match asker.put(desk, &exec(number), now) {
            Answered::Pending { .. } => {}
            Answered::Decided(decided) => {
                assert_eq!(decided.verdict.reason_code, "approval.overloaded");
                let Some(v1::verdict::Decision::Deny(deny)) = decided.verdict.decision else {
                    panic!("{decided:?}");
                };
                return (number, deny.reason);
            }
        }
    }
    unreachable!("there are more numbers than may wait")
}

fn of_gate(gate: &str, session: usize) -> Asker {
    let mut asker = Asker::new('a');
    asker.session.gate = GateIdentity::token(gate).expect("a name");
    asker.session.id = format!("{session:032}");
    asker
}

#[test]
fn one_gate_leaves_room_for_others_and_all_together_are_bounded() {
    let desk = desk();
    let ask = |exec_id| exec(exec_id, "x");
    for gate in 0..4 {
        let name = format!("gate-{gate}");
        for session in 0..4 {
            let (waiting, reason) = fill(&desk, &of_gate(&name, 10 * gate + session), ask);
            let is_last = (gate, session) == (3, 3);
            assert_eq!(waiting, 256, "{reason}");
            // Of the bounds that are met, the widest is told.
            let says = match session {
                _ if is_last => "too many commands wait",
                3 => "1024 commands of this gate",
                _ => "256 commands of this session",
            };
            assert!(reason.contains(says), "{session}: {reason}");
        }
        let fifth = of_gate(&name, 10 * gate + 4);
        assert_eq!(fill(&desk, &fifth, ask).0, 0);
    }
    let other = of_gate("gate-5", 50);
    let (waiting, reason) = fill(&desk, &other, ask);
    assert_eq!(waiting, 0);
    assert!(reason.contains("too many commands wait"), "{reason}");
    assert_eq!(desk.waiting().values().sum::<u32>(), 4_096);
    // What is over makes room.
    desk.session_ended(&of_gate("gate-0", 0).session.id, SystemTime::now());
    assert_eq!(fill(&desk, &other, ask).0, 256);
}

/// Large in memory: of many arguments, of which each has next to no bytes, and with a program of which much is told.
fn large(exec_id: u64) -> v1::ExecRequested {
    let mut exec = exec(exec_id, "x");
    exec.arguments.resize(1_024, prost::bytes::Bytes::new());
    exec.executable = Some(v1::ExecutableInfo {
        writable_path: vec![b'x'; 64 << 10].into(),
        ..v1::ExecutableInfo::default()
    });
    exec
}

/// What one of those takes, about: its bytes, and what there is of each argument besides.
const LARGE: usize = (64 << 10) + 1_024 * 34;

/// In each case one more or less, as there is a little more of each.
fn about(bytes: usize) -> std::ops::RangeInclusive<usize> {
    let count = bytes / LARGE;
    count - count / 16..=count + 1
}

#[test]
fn a_session_and_a_gate_have_shares_of_the_memory_and_all_that_waits_is_bounded_in_it() {
    let desk = desk();
    let mut waiting_in_all = 0;
    for gate in 0..6 {
        let mut of_this_gate = 0;
        for session in 0..3 {
            let asker = of_gate(&format!("gate-{gate}"), 10 * gate + session);
            let (waiting, reason) = fill(&desk, &asker, large);
            let waiting = usize::try_from(waiting).expect("a number");
            of_this_gate += waiting;
            match (gate, session) {
                (0..3, 0..2) => {
                    // The second may meet both bounds at once, of which the wider is told.
                    let of_gate = session == 1 && reason.contains("of this gate of 16 MiB");
                    let of_session = reason.contains("of this session of 8 MiB");
                    assert!(of_session || of_gate, "{session}: {reason}");
                    assert!(about(8 << 20).contains(&waiting), "{waiting}");
                }
                (0..3, _) => assert!(reason.contains("of this gate of 16 MiB"), "{reason}"),
                // What the others leave.
                (3, _) => {}
                _ => assert!(reason.contains("too many commands wait"), "{reason}"),
            }
        }
        if gate < 3 {
            assert!(about(16 << 20).contains(&of_this_gate), "{of_this_gate}");
        }
        waiting_in_all += of_this_gate;
    }
    assert!(
        about(64 << 20).contains(&waiting_in_all),
        "{waiting_in_all}"
    );
    // What is over makes room.
    desk.session_ended(&of_gate("gate-0", 0).session.id, SystemTime::now());
    let waiting = fill(&desk, &of_gate("gate-6", 60), large).0;
    let waiting = usize::try_from(waiting).expect("a number");
    assert!(about(8 << 20).contains(&waiting), "{waiting}");
}

#[test]
fn what_was_closed_is_bounded_in_memory() {
    let desk = desk();
    let kept = || desk.list(None, u64::MAX, 1_000, usize::MAX).0;
    let mut earlier = Vec::new();
    // Each makes room for as many that wait, and is kept until later ones take its place.
    for session in 0..12 {
        let asker = of_gate("gate", session);
        let (waiting, reason) = fill(&desk, &asker, large);
        assert!(reason.contains("this session of 8 MiB"), "{reason}");
        assert!(about(8 << 20).contains(&usize::try_from(waiting).expect("a number")));
        if session == 0 {
            earlier = desk.watch().0;
        }
        desk.session_ended(&asker.session.id, SystemTime::now());
        let closed = kept().len();
        let expected = about((8 * (session + 1)).min(64) << 20);
        assert!(
            expected.contains(&closed),
            "{session}: {closed}, not {expected:?}"
        );
    }
    for approval in &earlier {
        assert!(desk.get(&approval.approval_id).is_none());
    }
}

/// What isn't shown of a question may be another each time, and is kept as it was asked last.
#[test]
fn what_is_asked_again_has_no_more_room_than_what_is_asked_first() {
    let desk = desk();
    let asker = of_gate("gate", 1);
    let now = SystemTime::now();
    let with = |exec_id, bytes: usize| {
        let mut exec = exec(exec_id, "x");
        exec.environment_variables.push(v1::EnvironmentVariable {
            value: vec![b'x'; bytes].into(),
            ..v1::EnvironmentVariable::default()
        });
        exec
    };
    let code = |answered| match answered {
        Answered::Decided(decided) => decided.verdict.reason_code,
        Answered::Pending { .. } => "pending".to_owned(),
    };
    for exec_id in 1..=9 {
        assert_eq!(code(asker.put(&desk, &with(exec_id, 0), now)), "pending");
    }
    // Smaller, larger and as large as before: the place is its own.
    for bytes in [5 << 20, 1 << 20, 7 << 20, 1 << 20] {
        assert_eq!(code(asker.put(&desk, &with(1, bytes), now)), "pending");
    }
    for exec_id in 2..=7 {
        let again = asker.put(&desk, &with(exec_id, 1 << 20), now);
        assert_eq!(code(again), "pending", "{exec_id}");
    }
    let id = |exec_id: u64| {
        let open = desk.watch().0;
        let mut ids = open
            .iter()
            .filter(|it| it.exec.as_ref().is_some_and(|it| it.exec_id == exec_id));
        ids.next()
            .map(|it| it.approval_id.clone())
            .expect("it is open")
    };
    for (exec_id, bytes, refused, says) in [
        (
            8,
            1 << 20,
            "approval.overloaded",
            "commands of this session of 8 MiB wait",
        ),
        (
            9,
            15 << 20,
            "approval.too_long",
            "the command and its variables take",
        ),
    ] {
        let id = id(exec_id);
        assert_eq!(code(asker.put(&desk, &with(exec_id, bytes), now)), refused);
        let closed = desk.get(&id).expect("it is known");
        assert_eq!(closed.state(), pb::ApprovalState::Withdrawn);
        let note = closed.resolution.expect("how it was closed").note;
        assert!(note.starts_with(says), "{note}");
    }
    assert_eq!(desk.waiting().values().sum::<u32>(), 7);
}

/// None of them has bytes to speak of, and nobody can judge them.
#[test]
fn more_arguments_than_anybody_reads_are_denied_and_so_is_a_program_of_which_too_much_is_told() {
    let (desk, asker) = (desk(), Asker::new('a'));
    let answer = |exec: &v1::ExecRequested| match asker.put(&desk, exec, SystemTime::now()) {
        Answered::Pending { .. } => String::new(),
        Answered::Decided(decided) => match decided.verdict.decision {
            Some(v1::verdict::Decision::Deny(deny)) => {
                assert_eq!(decided.verdict.reason_code, "approval.too_long");
                deny.reason
            }
            other => panic!("{other:?}"),
        },
    };
    let mut many = exec(1, "x");
    many.arguments.resize(4_096, prost::bytes::Bytes::new());
    assert_eq!(answer(&many), "");
    many.exec_id = 2;
    many.arguments.push(prost::bytes::Bytes::new());
    let reason = answer(&many);
    let says = "the command has 4097 arguments, and a person is asked about 4096 at most";
    assert_eq!(reason, says);

    let told = |exec_id: u64, size: usize, depth: usize| {
        let mut program = v1::ExecutableInfo {
            real_path: vec![b'x'; size].into(),
            ..v1::ExecutableInfo::default()
        };
        for _ in 0..depth {
            program = v1::ExecutableInfo {
                interpreter: Some(Box::new(v1::Interpreter {
                    executable: Some(Box::new(program)),
                    ..v1::Interpreter::default()
                })),
                ..v1::ExecutableInfo::default()
            };
        }
        v1::ExecRequested {
            executable: Some(program),
            ..exec(exec_id, "x")
        }
    };
    for depth in 0..3 {
        let exec_id = 10 * (depth as u64 + 1);
        assert_eq!(answer(&told(exec_id, 64 << 10, depth)), "", "{depth}");
        let reason = answer(&told(exec_id + 1, (64 << 10) + 1, depth));
        let says = "what is told of the command's program has 65537 bytes";
        assert!(reason.starts_with(says), "{depth}: {reason}");
    }
}

/// A build from before took commands that were larger, and of whose programs more was told.
#[test]
fn what_a_service_begins_with_is_bounded_in_memory() {
    const ROW: usize = 4 << 20;
    let directory = tempfile::tempdir().expect("a directory");
    let open = || Ledger::open(directory.path(), CLOSED).expect("a ledger");
    open().0.close();
    let path = directory.path().join("operations.sqlite");
    let database = rusqlite::Connection::open(path).expect("a database");
    let row = |id: &str, state: pb::ApprovalState, opened: i64, arguments: usize, bytes: usize| {
        let approval = pb::Approval {
            approval_id: id.to_owned(),
            state: state.into(),
            exec: Some(pb::AskedExec {
                arguments: vec![prost::bytes::Bytes::new(); arguments],
                workdir: vec![b'x'; bytes].into(),
                ..pb::AskedExec::default()
            }),
            ..pb::Approval::default()
        };
        let approval = prost::Message::encode_to_vec(&approval);
        database
            .execute(
                "INSERT INTO approvals VALUES (?1, ?2, ?3, NULL, ?1, 0, zeroblob(32), zeroblob(32), ?4)",
                rusqlite::params![id, i32::from(state), opened, approval],
            )
            .expect("a row");
    };
    let most = i64::try_from((64 << 20) / ROW).expect("a number");
    for number in 0..most + 4 {
        row(
            &format!("open-{number}"),
            pb::ApprovalState::Pending,
            number,
            0,
            ROW,
        );
        // Of next to no bytes, but as large in memory.
        let state = pb::ApprovalState::Withdrawn;
        row(&format!("closed-{number}"), state, number, ROW / 34, 0);
    }
    let (ledger, loaded) = open();
    let found = |state: &str| -> Vec<String> {
        let ids = loaded
            .kept
            .approvals
            .iter()
            .map(|it| it.approval.approval_id.clone());
        ids.filter(|id| id.starts_with(state)).collect()
    };
    for state in ["open", "closed"] {
        let found = found(state);
        let count = i64::try_from(found.len()).expect("a number");
        assert!((most - 1..=most).contains(&count), "{state}: {count}");
        // The latest, the earliest of them first.
        let first = format!("{state}-{}", most + 4 - count);
        let last = format!("{state}-{}", most + 3);
        assert_eq!((found.first(), found.last()), (Some(&first), Some(&last)));
    }
    ledger.close();
}

/// However large each was, so that the disk isn't filled.
#[tokio::test]
async fn a_ledger_that_has_grown_loses_the_earliest_that_are_closed() {
    let directory = tempfile::tempdir().expect("a directory");
    let open = || Ledger::open(directory.path(), 1).expect("a ledger");
    open().0.close();
    let path = directory.path().join("operations.sqlite");
    let database = rusqlite::Connection::open(path).expect("a database");
    // 8 MiB each.
    database
        .execute_batch(
            "PRAGMA synchronous = OFF;
             WITH RECURSIVE numbers (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < 35)
             INSERT INTO approvals
                 SELECT 'a' || n, CASE n WHEN 1 THEN 1 ELSE 2 END, n, NULL, '', n, zeroblob(32), zeroblob(32),
                        zeroblob(8388608)
                 FROM numbers;",
        )
        .expect("rows");
    let (ledger, _) = open();
    let termination = Termination {
        session: "any".to_owned(),
        operator: "operator:ada".to_owned(),
        reason: String::new(),
        at: SystemTime::now(),
    };
    let written = ledger.write_termination(termination).await;
    written.expect("written");
    let kept: Vec<i64> = database
        .prepare("SELECT opened_ns FROM approvals ORDER BY opened_ns")
        .expect("a query")
        .query_map([], |row| row.get(0))
        .expect("rows")
        .collect::<Result<_, _>>()
        .expect("numbers");
    // What waits, though it is the earliest, and 192 MiB of the latest.
    let expected: Vec<i64> = std::iter::once(1).chain(12..=35).collect();
    assert_eq!(kept, expected);
    ledger.close();
}

#[tokio::test]
async fn what_a_watcher_has_not_seen_is_bounded_in_memory_and_it_learns_what_it_missed() {
    use tokio::sync::broadcast::error::RecvError;

    let (desk, asker) = (desk(), Asker::new('a'));
    let (_, mut idle) = desk.watch();
    let happen = |exec_id| {
        let now = SystemTime::now();
        assert!(is_pending(&asker.put(&desk, &large(exec_id), now)));
        desk.withdraw(&asker.session.id, exec_id, "gone", now);
    };
    let changes = 2 * 300;
    for exec_id in 0..changes / 2 {
        happen(exec_id);
    }
    let Err(RecvError::Lagged(missed)) = idle.recv().await else {
        panic!("all of them are kept");
    };
    let kept = usize::try_from(changes - missed).expect("a number");
    assert!(about(32 << 20).contains(&kept), "{kept}");
    // From there on it has missed none.
    for number in missed..changes {
        let happened = idle.recv().await.expect("a change");
        let exec = happened.approval.exec.as_ref().map(|exec| exec.exec_id);
        let expected = match number % 2 {
            0 => pb::ApprovalChange::Opened,
            _ => pb::ApprovalChange::Closed,
        };
        assert_eq!((happened.change, exec), (expected, Some(number / 2)));
    }
    // One that keeps up with them isn't held to what another doesn't read.
    let (_, mut eager) = desk.watch();
    for exec_id in changes..changes + 200 {
        happen(exec_id);
        for expected in [pb::ApprovalChange::Opened, pb::ApprovalChange::Closed] {
            assert_eq!(eager.recv().await.expect("a change").change, expected);
        }
    }
}

#[test]
fn beyond_so_many_closed_ones_the_earliest_are_forgotten_and_none_that_waits() {
    let (desk, asker) = (desk(), Asker::new('a'));
    let now = SystemTime::now();
    assert!(is_pending(&asker.ask(&desk, 0, "x", now)));
    let waiting = only(&desk).approval_id;
    let close = |exec_id| {
        assert!(
            is_pending(&asker.ask(&desk, exec_id, "x", now)),
            "{exec_id}"
        );
        desk.withdraw(&asker.session.id, exec_id, "gone", now);
    };
    close(1);
    close(2);
    // The latest first.
    let (closed, _) = desk.list(None, u64::MAX, 2, usize::MAX);
    let [second, first] = &closed[..] else {
        panic!("{closed:?}");
    };
    let (first, second) = (&first.approval_id, &second.approval_id);
    let most = u64::try_from(CLOSED).expect("a number");
    for exec_id in 3..=most {
        close(exec_id);
    }
    assert!(desk.get(first).is_some());
    close(most + 1);
    assert!(desk.get(first).is_none());
    assert!(desk.get(second).is_some());
    let (kept, _) = desk.list(None, u64::MAX, usize::MAX, usize::MAX);
    assert_eq!(kept.len(), CLOSED + 1);
    let still = desk.get(&waiting).expect("it waits");
    assert_eq!(still.state(), pb::ApprovalState::Pending);
}

/// So that a ledger doesn't grow for as long as a service is used.
#[tokio::test]
async fn a_ledger_keeps_the_latest_and_all_that_waits() {
    let directory = tempfile::tempdir().expect("a directory");
    let open = || Ledger::open(directory.path(), 10).expect("a ledger");
    let (ledger, _) = open();
    ledger.close();
    let path = directory.path().join("operations.sqlite");
    let database = rusqlite::Connection::open(path).expect("a database");
    // One that waits, the earliest of all, and some more of each kind than are kept.
    database
        .execute_batch(
            "INSERT INTO approvals VALUES ('open', 1, 0, NULL, '', 0, zeroblob(32), zeroblob(32), x'');
             WITH RECURSIVE numbers (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < 100010)
             INSERT INTO approvals
                 SELECT 'a' || n, 2, n, NULL, '', n, zeroblob(32), zeroblob(32), x'' FROM numbers;
             WITH RECURSIVE numbers (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < 100010)
             INSERT INTO terminations SELECT 's' || n, '', '', n FROM numbers;",
        )
        .expect("rows");
    let count = |what: &str| {
        let query = format!("SELECT count(*) FROM {what}");
        let count = database.query_row(&query, [], |row| row.get::<_, i64>(0));
        count.expect("a number")
    };
    let (ledger, _) = open();
    // It is looked at now and then.
    for number in 0..1_000 {
        if count("approvals WHERE state = 2 AND opened_ns <= 10") == 0 {
            break;
        }
        let termination = Termination {
            session: format!("new-{number}"),
            operator: "operator:ada".to_owned(),
            reason: String::new(),
            at: SystemTime::now(),
        };
        ledger
            .write_termination(termination)
            .await
            .expect("written");
    }
    assert_eq!(count("approvals WHERE state = 1"), 1);
    assert_eq!(count("approvals WHERE state = 2"), 100_000);
    assert_eq!(count("approvals WHERE state = 2 AND opened_ns <= 10"), 0);
    assert_eq!(count("terminations"), 100_000);
    assert_eq!(count("terminations WHERE session_id = 's1'"), 0);
    assert!(count("terminations WHERE session_id LIKE 'new-%'") > 0);
    ledger.close();
}
