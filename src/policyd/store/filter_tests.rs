//! Whatever index is chosen, the same execs are found.

use super::query::Want;
use super::tests::{decided, event, gate, requested, started};
use super::*;
use crate::pb::audit::v1::Outcome;

/// Sessions of each team, one team after the other.
const SESSIONS: u64 = 20;
/// Execs of each session.
const EXECS: u64 = 8;

/// A store of forty sessions, in which one command of all is escalated, and few are denied.
fn filled() -> tempfile::TempDir {
    let directory = tempfile::tempdir().expect("a directory");
    let store = Store::open(directory.path()).expect("a store");
    for number in 0..2 * SESSIONS {
        let id = format!("{}{number:031x}", number % 2);
        let mut opening = started(1, None);
        if let Some(Event::SessionStarted(started)) = &mut opening.event {
            id.clone_into(&mut started.session_id);
            let team = if number < SESSIONS { "old" } else { "new" };
            started.labels.insert("team".to_owned(), team.to_owned());
            let parity = if number % 2 == 0 { "even" } else { "odd" };
            started
                .labels
                .insert("parity".to_owned(), parity.to_owned());
        }
        let name = if number % 5 == 0 { "a" } else { "b" };
        let mut journal = Journal::begin(&store, &id, &gate(name), opening);
        for exec in 1..=EXECS {
            let mut asked = requested(2 * exec, exec);
            if let Some(Event::ExecRequested(asked)) = &mut asked.event {
                asked.file = if exec == 3 { "/bin/rare" } else { "/bin/usual" }.into();
            }
            journal.record(asked, None);
            let action = match (number, exec) {
                (7, 3) => v1::Action::Escalate,
                (_, 5) => v1::Action::Deny,
                _ => v1::Action::Run,
            };
            let mut acted = decided(2 * exec + 1, exec);
            if let Some(Event::ExecDecided(acted)) = &mut acted.event {
                acted.action = action.into();
                acted.reason_code = if exec == 5 { "forbidden" } else { "" }.to_owned();
            }
            journal.record(acted, None);
        }
        journal.record(
            event(
                2 * EXECS + 2,
                Event::SessionEnded(v1::SessionEnded::default()),
            ),
            None,
        );
    }
    store.close();
    directory
}

fn label(key: &str, value: &str) -> (String, String) {
    (key.to_owned(), value.to_owned())
}

/// All positions that pages give, and how many pages those are.
fn paged(connection: &Connection, filter: &Filter, execs: usize) -> (Vec<i64>, usize) {
    let want = Want {
        execs,
        arguments: Arguments::Left,
        within: Duration::ZERO,
    };
    let (mut found, mut below, mut pages) = (Vec::new(), None, 0);
    loop {
        let page = page(connection, filter, below, want).expect("a page");
        pages += 1;
        found.extend(page.execs.iter().map(|exec| exec.position.cast_signed()));
        below = page.next;
        if below.is_none() {
            return (found, pages);
        }
    }
}

/// What each exec says that fits, looked at one by one.
fn fitting(connection: &Connection, filter: &Filter) -> Vec<i64> {
    let all = filter.all();
    let conditions: Vec<_> = all
        .iter()
        .map(|condition| format!("({})", condition.text))
        .chain(["1".to_owned()])
        .collect();
    let values = all.into_iter().flat_map(|condition| condition.values);
    connection
        .prepare(&format!(
            "SELECT +x.position FROM execs x WHERE {} ORDER BY +x.position DESC",
            conditions.join(" AND ")
        ))
        .expect("a query")
        .query_map(rusqlite::params_from_iter(values), |row| row.get(0))
        .expect("rows")
        .collect::<Result<_, _>>()
        .expect("a row")
}

#[test]
fn pages_of_any_filter_have_all_that_fits_and_nothing_else() {
    let directory = filled();
    let connection = open_for_reading(directory.path()).expect("a store");
    let mut found_something = 0;
    let programs = [None, Some("rare"), Some("/bin/usual"), Some("nothing")];
    let outcomes = [
        None,
        Some(Outcome::Run),
        Some(Outcome::Deny),
        Some(Outcome::Escalate),
    ];
    let labels = [
        vec![],
        vec![label("team", "old")],
        vec![label("parity", "odd"), label("team", "old")],
        vec![label("team", "nobody's")],
    ];
    // More of them than are looked at one by one, though not all; and one.
    let sessions = [None, Some("0"), Some("10000000000000000000000000000007")];
    for program in programs {
        for outcome in outcomes {
            for labels in &labels {
                for session in sessions {
                    for (gate, code) in [(None, None), (Some("token:a"), Some("forbidden"))] {
                        let text = |text: Option<&str>| text.map(ToOwned::to_owned);
                        let filter = Filter {
                            session: text(session),
                            labels: labels.iter().cloned().collect(),
                            gate: text(gate),
                            program: text(program),
                            outcome,
                            code: text(code),
                            since: None,
                        };
                        let expected = fitting(&connection, &filter);
                        let (found, _) = paged(&connection, &filter, 7);
                        assert_eq!(found, expected, "{filter:?}");
                        found_something += usize::from(!found.is_empty());
                    }
                }
            }
        }
    }
    assert!(found_something > 20, "{found_something}");
}

#[test]
fn what_sessions_with_other_labels_did_is_passed_over() {
    let directory = filled();
    let connection = open_for_reading(directory.path()).expect("a store");
    let filter = Filter {
        labels: [label("team", "old")].into(),
        ..Filter::default()
    };
    // What isn't passed over is looked at in steps of 10, 40, 160 and so on, each of them a page here.
    let (found, pages) = paged(&connection, &filter, 10);
    let all = SESSIONS * EXECS;
    assert_eq!(found.len() as u64, all);
    assert_eq!(pages as u64, 1 + all / 10 + 1);

    let plan = filter.plan(&connection).expect("a plan");
    let ceiling = |below| plan.ceiling(&connection, below).expect("a ceiling");
    assert_eq!(ceiling(i64::MAX), Some(found[0] + 1));
    assert_eq!(ceiling(found[0]), Some(found[1] + 1));
    assert_eq!(ceiling(found[found.len() - 1]), None);
}

#[test]
fn what_the_fewest_execs_fit_is_looked_up_first() {
    let directory = filled();
    let connection = open_for_reading(directory.path()).expect("a store");
    for (program, outcome, drives) in [
        ("rare", Outcome::Run, "program_name"),
        ("usual", Outcome::Escalate, "action"),
        ("usual", Outcome::Deny, "action"),
        ("nothing", Outcome::Deny, "program_name"),
    ] {
        let filter = Filter {
            program: Some(program.to_owned()),
            outcome: Some(outcome),
            ..Filter::default()
        };
        let plan = filter.plan(&connection).expect("a plan");
        let [drive] = &plan.drives[..] else {
            panic!("{plan:?}");
        };
        assert!(drive.text.contains(drives), "{plan:?}");
    }
}
