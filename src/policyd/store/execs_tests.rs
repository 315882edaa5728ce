//! Events that are committed together leave what they would leave one by one.

use proptest::prelude::*;
use rusqlite::types::Value;

use super::tests::{SESSION, decided, event, gate, requested, started};
use super::*;

/// What may be told of an exec, in any order and any number of times.
#[derive(Debug, Clone, Copy)]
enum Told {
    Asked,
    /// Again, as the event that was asked with before.
    AskedAgain,
    Reused,
    Withdrawn,
    Decided,
    Ended,
    Signalled,
}

fn request(told: Told, exec_id: u64, sequence: u64) -> v1::SessionRequest {
    let finished = |status| {
        Event::ExecFinished(v1::ExecFinished {
            exec_id,
            status: Some(status),
            peak_memory_bytes: sequence % 2,
            ..v1::ExecFinished::default()
        })
    };
    match told {
        Told::Asked => requested(sequence, exec_id),
        Told::AskedAgain => requested(sequence.saturating_sub(3), exec_id),
        Told::Reused => event(
            sequence,
            Event::ExecReused(v1::ExecReused {
                exec: Some(v1::ExecRequested {
                    exec_id,
                    parent_exec_id: sequence % 3,
                    file: b"/usr/bin/make"[..].into(),
                    ..v1::ExecRequested::default()
                }),
                ..v1::ExecReused::default()
            }),
        ),
        Told::Withdrawn => event(
            sequence,
            Event::ExecWithdrawn(v1::ExecWithdrawn {
                exec_id,
                reason: v1::WithdrawalReason::AskerGone.into(),
            }),
        ),
        Told::Decided => decided(sequence, exec_id),
        Told::Ended => event(
            sequence,
            finished(v1::exec_finished::Status::ExitCode(
                i32::try_from(sequence).expect("small"),
            )),
        ),
        Told::Signalled => event(sequence, finished(v1::exec_finished::Status::Signal(9))),
    }
}

fn answer(exec_id: u64, sequence: u64) -> StoredAnswer {
    v1::Verdict {
        exec_id,
        decision: Some(v1::verdict::Decision::Run(v1::Run {})),
        rule: format!("rule {sequence}"),
        ..v1::Verdict::default()
    }
    .into()
}

/// The table of execs after so many events of each commit, and what verification says.
fn table(
    events: &[(v1::SessionRequest, Option<StoredAnswer>)],
    commits: impl Iterator<Item = usize>,
) -> (Vec<Vec<Value>>, Verified) {
    let directory = tempfile::tempdir().expect("a directory");
    let (mut connection, _lock) = schema::open_for_writing(directory.path()).expect("a store");
    let gate = gate("a");
    let mut rest = events;
    for size in commits {
        let (batch, later) = rest.split_at(size.min(rest.len()));
        rest = later;
        let transaction = connection.transaction().expect("a transaction");
        let mut head = chain::head(&transaction).expect("an end");
        let mut execs = Execs::default();
        for (request, answer) in batch {
            let row = schema::Row {
                session: SESSION,
                gate: Some(&gate),
                request,
                answer: answer.as_ref(),
                received: SystemTime::UNIX_EPOCH + Duration::from_nanos(request.sequence),
            };
            let written = schema::write(&transaction, &mut execs, &mut head, &row);
            assert_eq!(written.expect("written"), Written::Done);
        }
        execs.write(&transaction, || ()).expect("written");
        transaction.commit().expect("committed");
    }
    assert!(rest.is_empty());
    let mut statement = connection
        .prepare("SELECT * FROM execs ORDER BY exec_id")
        .expect("a statement");
    let columns = statement.column_count();
    let rows = statement
        .query_map([], |row| (0..columns).map(|at| row.get(at)).collect())
        .expect("rows")
        .collect::<Result<_, _>>()
        .expect("a row");
    let verified = verify(directory.path(), &[]).expect("it can be looked at");
    (rows, verified.verified)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn what_is_committed_together_is_what_each_event_says(
        told in prop::collection::vec(
            (
                prop::sample::select(vec![
                    Told::Asked, Told::AskedAgain, Told::Reused, Told::Withdrawn, Told::Decided, Told::Ended,
                    Told::Signalled,
                ]),
                1..4_u64,
                any::<bool>(),
            ),
            1..24,
        ),
        sizes in prop::collection::vec(1..8_usize, 25),
    ) {
        let told = (10..).zip(&told).map(|(sequence, (told, exec_id, is_answered))| {
            let answer = is_answered.then(|| answer(*exec_id, sequence));
            (request(*told, *exec_id, sequence), answer)
        });
        let events: Vec<_> = std::iter::once((started(1, None), None)).chain(told).collect();
        let one_by_one = table(&events, std::iter::repeat_n(1, events.len()));
        prop_assert_eq!(&one_by_one.1, &Verified::Intact);
        prop_assert_eq!(table(&events, sizes.into_iter()), one_by_one);
    }
}
