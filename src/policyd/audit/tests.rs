use base64::Engine;
use clap::Parser;
use serde_json::{Value, json};

use super::show::{Colors, Layout, in_tree_order, short_duration, write_table};
use super::*;
use crate::pb::audit::v1::GateDecision;
use crate::pb::v1;
use crate::policyd::store::{Journal, Store};
use crate::policyd::text;
use v1::session_request::Event;

const ONE: &str = "0123456789abcdef0123456789abcdef";
const TWO: &str = "fedcba9876543210fedcba9876543210";

#[derive(Debug, Parser)]
struct Cli {
    #[command(flatten)]
    audit: AuditArgs,
}

struct Session {
    journal: Journal,
    sequence: u64,
}

impl Session {
    fn start(store: &Store, id: &str) -> Self {
        Self::start_by(store, id, &GateIdentity::anonymous())
    }

    fn start_by(store: &Store, id: &str, gate: &GateIdentity) -> Self {
        let opening = v1::SessionRequest {
            sequence: 1,
            event_time: None,
            event: Some(Event::SessionStarted(v1::SessionStarted {
                session_id: id.to_owned(),
                ..v1::SessionStarted::default()
            })),
        };
        Self {
            journal: Journal::begin(store, id, gate, opening),
            sequence: 1,
        }
    }

    fn tell(&mut self, event: Event) {
        self.sequence += 1;
        let request = v1::SessionRequest {
            sequence: self.sequence,
            event_time: Some(prost_types::Timestamp {
                seconds: 1_700_000_000,
                nanos: 0,
            }),
            event: Some(event),
        };
        self.journal.record(request, None);
    }

    fn exec(
        &mut self,
        exec_id: u64,
        parent_exec_id: u64,
        file: &[u8],
        arguments: &[&[u8]],
        action: v1::Action,
        code: v1::DecisionCode,
    ) {
        let arguments = std::iter::once(&b"zero"[..])
            .chain(arguments.iter().copied())
            .map(prost::bytes::Bytes::copy_from_slice)
            .collect();
        self.tell(Event::ExecRequested(v1::ExecRequested {
            exec_id,
            parent_exec_id,
            file: prost::bytes::Bytes::copy_from_slice(file),
            arguments,
            ..v1::ExecRequested::default()
        }));
        self.tell(Event::ExecDecided(v1::ExecDecided {
            exec_id,
            action: action.into(),
            code: code.into(),
            rule: format!("rule\x1b{exec_id}"),
            reason_code: format!("code.{exec_id}"),
            ..v1::ExecDecided::default()
        }));
    }

    fn finish(&mut self, exec_id: u64, status: v1::exec_finished::Status) {
        self.tell(Event::ExecFinished(v1::ExecFinished {
            exec_id,
            status: Some(status),
            elapsed: Some(prost_types::Duration {
                seconds: 1,
                nanos: 250_000_000,
            }),
            ..v1::ExecFinished::default()
        }));
    }
}

fn store() -> tempfile::TempDir {
    use v1::exec_finished::Status;
    use v1::{Action, DecisionCode};
    let directory = tempfile::tempdir().expect("a directory");
    let store = Store::open(directory.path()).expect("a store");
    let mut one = Session::start(&store, ONE);
    one.exec(
        1,
        0,
        b"/usr/bin/make",
        &[b"all"],
        Action::Run,
        DecisionCode::Verdict,
    );
    one.exec(
        2,
        1,
        b"/usr/bin/gcc",
        &[b"-c", b"a b.c"],
        Action::Run,
        DecisionCode::Verdict,
    );
    one.finish(2, Status::Signal(9));
    one.exec(
        3,
        0,
        b"/tmp/e\x1b[2Jvil\xff",
        &[b"\xc2\x9b31m"],
        Action::Deny,
        DecisionCode::TimedOut,
    );
    one.finish(1, Status::ExitCode(2));
    let mut two = Session::start(&store, TWO);
    two.exec(
        1,
        7,
        b"/usr/bin/git",
        &[b"push"],
        Action::Escalate,
        DecisionCode::Verdict,
    );
    two.tell(Event::EventsLost(v1::EventsLost {
        first_sequence: 4,
        last_sequence: 6,
        count: 3,
    }));
    store.close();
    directory
}

fn audit(directory: &std::path::Path, arguments: &[&str]) -> String {
    let line = ["audit", "--data", directory.to_str().expect("text")]
        .into_iter()
        .chain(arguments.iter().copied());
    let cli = Cli::try_parse_from(line).expect("a command line");
    let mut out = Vec::new();
    let data = cli.audit.data.as_deref().expect("a directory");
    let mut record = LocalRecord::open(data).expect("a store");
    list(&cli.audit, &mut record, &mut out).expect("a list");
    String::from_utf8(out).expect("text")
}

fn programs(directory: &std::path::Path, arguments: &[&str]) -> Vec<String> {
    let arguments = [&["--output", "json"], arguments].concat();
    audit(directory, &arguments)
        .lines()
        .map(|line| {
            let value: Value = serde_json::from_str(line).expect("JSON");
            let program = value["program"].as_str().expect("a program");
            program.rsplit('/').next().expect("a name").to_owned()
        })
        .collect()
}

#[test]
fn a_table_says_what_happened() {
    let directory = store();
    let table = audit(directory.path(), &[]);
    let expected = "\
TIME            SESSION   EXEC  VERDICT           STATUS    TOOK  COMMAND                             RULE
11-14 22:13:20  01234567  1     run               exit 2    1.2s  /usr/bin/make all                   rule\\x1b1
11-14 22:13:20  01234567  2     run               signal 9  1.2s  /usr/bin/gcc -c 'a b.c'             rule\\x1b2
11-14 22:13:20  01234567  3     deny (timed-out)  -            -  $'/tmp/e\\x1b[2Jvil\\xff' $'\\xc2\\x9b31m'  rule\\x1b3
11-14 22:13:20  fedcba98  1     escalate          running      -  /usr/bin/git push                   rule\\x1b1
session fedcba9876543210fedcba9876543210: its gate lost 3 events, which are not in here
";
    let words = |text: &str| {
        text.split_whitespace()
            .map(str::to_owned)
            .collect::<Vec<_>>()
    };
    assert_eq!(words(&table), words(expected), "{table}");
    // Every row's command begins where its heading stands.
    let mut lines = table.lines();
    let column = lines
        .next()
        .expect("headings")
        .find("COMMAND")
        .expect("a heading");
    for line in lines.take(4) {
        assert_eq!(line.as_bytes()[column - 1], b' ', "{line}");
        assert_ne!(line.as_bytes()[column], b' ', "{line}");
    }
}

#[test]
fn filters_narrow_it_down() {
    let directory = store();
    let path = directory.path();
    assert_eq!(programs(path, &[]).len(), 4);
    assert_eq!(programs(path, &["--session", "FEDC"]), ["git"]);
    assert_eq!(programs(path, &["--verdict", "run"]), ["make", "gcc"]);
    assert_eq!(programs(path, &["--code", "timed-out"]).len(), 1);
    assert_eq!(programs(path, &["--code", "code.2"]), ["gcc"]);
    assert_eq!(programs(path, &["--program", "gcc"]), ["gcc"]);
    assert_eq!(programs(path, &["--program", "/usr/bin/gcc"]), ["gcc"]);
    assert!(programs(path, &["--program", "/bin/gcc"]).is_empty());
    assert_eq!(programs(path, &["--since", "1h"]).len(), 4);
    assert!(programs(path, &["--since", "2200-01-01T00:00:00Z"]).is_empty());
    assert_eq!(programs(path, &["--limit", "1"]), ["git"]);
    assert!(audit(path, &["--limit", "1"]).contains("--limit N shows more"));
    assert!(audit(path, &["--program", "nothing"]).contains("nothing matches"));
}

#[test]
fn json_says_exactly_what_was() {
    let directory = store();
    let line = audit(
        directory.path(),
        &["--code", "timed-out", "--output", "json"],
    );
    assert!(!line.trim_end().chars().any(char::is_control), "{line}");
    let value: Value = serde_json::from_str(&line).expect("JSON");
    assert_eq!(
        value["program_base64"],
        json!(base64::engine::general_purpose::STANDARD.encode(b"/tmp/e\x1b[2Jvil\xff"))
    );
    assert_eq!(value["argv"], json!(["zero", "\u{9b}31m"]));
    assert_eq!(value["verdict"], json!("deny"));
    let line = audit(directory.path(), &["--program", "gcc", "--output", "json"]);
    let value: Value = serde_json::from_str(&line).expect("JSON");
    assert_eq!(value["signal"], json!(9));
    assert_eq!(value["elapsed_seconds"], json!(1.25));
    assert_eq!(value["parent_exec_id"], json!(1));
}

#[test]
fn gates_are_shown_where_they_are_known_and_can_be_asked_for() {
    let directory = tempfile::tempdir().expect("a directory");
    let store = Store::open(directory.path()).expect("a store");
    let gate = GateIdentity::parse("token:ci-7").expect("a gate");
    let mut one = Session::start_by(&store, ONE, &gate);
    let mut two = Session::start(&store, TWO);
    for (session, file) in [(&mut one, b"/usr/bin/make"), (&mut two, b"/usr/bin/true")] {
        let (run, verdict) = (v1::Action::Run, v1::DecisionCode::Verdict);
        session.exec(1, 0, file, &[], run, verdict);
    }
    store.close();

    let table = audit(directory.path(), &[]);
    assert!(table.contains("  GATE        SESSION "), "{table}");
    assert!(table.contains("  token:ci-7  01234567 "), "{table}");
    let table = audit(directory.path(), &["--gate", "anonymous"]);
    assert!(!table.contains("GATE"), "{table}");
    assert_eq!(
        programs(directory.path(), &["--gate", "anonymous"]),
        ["true"]
    );
    assert_eq!(
        programs(directory.path(), &["--gate", "token:ci-7"]),
        ["make"]
    );
    let tree = audit(directory.path(), &["--tree", "--gate", "token:ci-7"]);
    let header = format!("session {ONE}, gate token:ci-7, ");
    assert!(tree.starts_with(&header), "{tree}");
}

#[test]
fn a_tree_shows_descent() {
    let directory = tempfile::tempdir().expect("a directory");
    let store = Store::open(directory.path()).expect("a store");
    let mut sessions = [ONE, TWO].map(|id| Session::start(&store, id));
    // As they came: what descends from another stands away from it, and the sessions are mixed.
    for (session, exec, parent, file) in [
        (0, 1, 0, "/bin/make"),
        (1, 1, 7, "/bin/git"),
        (0, 2, 0, "/bin/date"),
        (0, 3, 1, "/bin/gcc"),
        (1, 2, 1, "/bin/ssh"),
        (0, 4, 3, "/bin/as"),
        (0, 5, 1, "/bin/ar"),
    ] {
        let (run, verdict) = (v1::Action::Run, v1::DecisionCode::Verdict);
        sessions[session].exec(exec, parent, file.as_bytes(), &[], run, verdict);
    }
    store.close();
    let tree = audit(directory.path(), &["--tree"]);
    let mut column = 0;
    let mut shown = Vec::new();
    for line in tree.lines() {
        if line.starts_with("session ") {
            shown.push(line.get(.."session 0123".len()).expect("an id").to_owned());
        } else if let Some(heading) = line.find("COMMAND") {
            column = heading;
        } else if let Some(command) = line.get(column..).filter(|line| !line.is_empty()) {
            // Each under the heading, and as much to the right as it descends.
            let program = command.trim_start();
            let indent = command.len() - program.len();
            let name = program.split(' ').next().unwrap_or_default();
            shown.push(format!("{}{name}", " ".repeat(indent)));
        }
    }
    let expected = [
        "session 0123",
        "/bin/make",
        "  /bin/gcc",
        "    /bin/as",
        "  /bin/ar",
        "/bin/date",
        "session fedc",
        "/bin/git",
        "  /bin/ssh",
    ];
    assert_eq!(shown, expected, "{tree}");
}

#[test]
fn a_tree_survives_circles() {
    let entries: Vec<_> = [(1, Some(3)), (2, Some(2)), (3, Some(1)), (4, Some(3))]
        .map(|(exec_id, parent)| Exec {
            exec_id,
            parent_exec_id: parent.unwrap_or_default(),
            ..Exec::default()
        })
        .to_vec();
    let entries: Vec<&Exec> = entries.iter().collect();
    let order: Vec<_> = in_tree_order(&entries)
        .iter()
        .map(|(entry, level)| (entry.exec_id, *level))
        .collect();
    assert_eq!(order, [(1, 0), (3, 1), (4, 2), (2, 0)]);
}

#[test]
fn a_narrow_terminal_shortens_commands_and_colours_verdicts() {
    let entry = Exec {
        command_line: "x".repeat(500),
        decision: Some(GateDecision {
            verdict: "deny".to_owned(),
            ..GateDecision::default()
        }),
        ..Exec::default()
    };
    let layout = Layout {
        columns: Some(100),
        colors: Colors::Ansi,
    };
    let mut out = Vec::new();
    write_table(&[entry], &layout, &mut out).expect("written");
    let table = String::from_utf8(out).expect("text");
    let row = table.lines().nth(1).expect("a row");
    assert!(row.contains("\x1b[31mdeny\x1b[0m"), "{row:?}");
    assert!(row.contains('…'));
    assert!(text::width(&row.replace("\x1b[31m", "").replace("\x1b[0m", "")) <= 100);
}

#[test]
fn without_a_store_it_says_so() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().to_str().expect("text");
    let cli = Cli::try_parse_from(["audit", "--data", path]).expect("a command line");
    let data = cli.audit.data.expect("a directory");
    let error = LocalRecord::open(&data).expect_err("no store");
    assert_eq!(error.exit_code(), 2);
    assert!(error.to_string().starts_with("there is no event store at"));
}

#[test]
fn points_in_time_are_ages_or_times() {
    assert_eq!(since("15m"), Ok(Since::Ago(Duration::from_secs(900))));
    assert_eq!(since("1970-01-01T00:00:01Z"), Ok(Since::At(1_000_000_000)));
    for wrong in [
        "",
        "m",
        "15",
        "15y",
        "é",
        "yesterday",
        "99999999999999999999d",
        "18446744073709551615d",
    ] {
        assert!(since(wrong).is_err(), "{wrong}");
    }
}

#[test]
fn durations_are_short() {
    for (nanoseconds, text) in [
        (999, "0µs"),
        (1_500_000, "1ms"),
        (3_250_000_000, "3.2s"),
        (125_000_000_000, "2m05s"),
        (7_500_000_000_000, "2h05m"),
        (-5, "0µs"),
    ] {
        assert_eq!(short_duration(nanoseconds), text);
    }
}

#[test]
fn a_directory_is_exported_with_long_commands_and_a_page_is_not() {
    let directory = tempfile::tempdir().expect("a directory");
    let store = Store::open(directory.path()).expect("a store");
    let command = vec![prost::bytes::Bytes::from("x".repeat(20 << 10))];
    let opening = v1::SessionRequest {
        sequence: 1,
        event_time: None,
        event: Some(Event::SessionStarted(v1::SessionStarted {
            session_id: ONE.to_owned(),
            command: command.clone(),
            ..v1::SessionStarted::default()
        })),
    };
    let mut session = Session {
        journal: Journal::begin(&store, ONE, &GateIdentity::anonymous(), opening),
        sequence: 1,
    };
    let (action, code) = (v1::Action::Run, v1::DecisionCode::Verdict);
    session.exec(1, 0, b"/usr/bin/make", &[], action, code);
    store.close();
    let mut record = LocalRecord::open(directory.path()).expect("a store");
    let mut exported = Vec::new();
    record
        .export(&ExecFilter::default(), &mut |exec| {
            exported.push(exec.session.clone().unwrap_or_default());
            Ok(())
        })
        .expect("an export");
    let listed = record
        .list(&ListRequest {
            view: ExecView::Full.into(),
            ..ListRequest::default()
        })
        .expect("a list");
    let listed = listed.execs[0].session.clone().unwrap_or_default();
    assert_eq!(exported[0].command_words, command);
    assert!(listed.command_words.is_empty());
    assert_eq!(listed.command_bytes, exported[0].command_bytes);
}

/// Whoever relies on an export is told that it isn't all of what there was when it began.
#[test]
fn an_export_that_retention_overtakes_says_so() {
    use crate::policyd::store::Retention;

    let directory = tempfile::tempdir().expect("a directory");
    let store = Store::open(directory.path()).expect("a store");
    let mut session = Session::start(&store, ONE);
    for exec_id in 1..=600 {
        session.tell(Event::ExecRequested(v1::ExecRequested {
            exec_id,
            ..v1::ExecRequested::default()
        }));
    }
    store.close();
    let export = |at: Option<u64>| {
        let mut record = LocalRecord::open(directory.path()).expect("a record");
        let mut count = 0;
        let exported = record.export(&ExecFilter::default(), &mut |_| {
            count += 1;
            if Some(count) == at {
                let retention = Retention {
                    age: Some(Duration::ZERO),
                    size: None,
                };
                let store = Store::open_keeping(directory.path(), retention).expect("a store");
                store.prune();
                store.close();
            }
            Ok(())
        });
        (count, exported)
    };
    let (count, exported) = export(None);
    assert_eq!(count, 600);
    exported.expect("all of it");
    let (count, exported) = export(Some(1));
    assert!(count < 600, "{count}");
    let error = exported.expect_err("some was removed");
    let says = "events up to position 60";
    assert!(error.to_string().starts_with(says), "{error}");
    assert_eq!(error.exit_code(), 1);
    // What is gone before it begins is no part of it.
    let (_, exported) = export(None);
    exported.expect("what is left");
}
