//! `execgate audit` and `execgate watch` as people call them.

use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdout, Stdio};
use std::time::{Duration, Instant};

use execgate::pb::v1;
use execgate::pb::v1::session_request::Event;

use crate::place::{ONE, PATIENCE, Place, filled};

#[tokio::test]
async fn a_service_is_asked_as_a_directory_is_read() {
    let place = filled().await;
    let (url, data) = (place.url(), place.data());
    for arguments in [
        &["--limit", "5"][..],
        &["--tree"],
        &["--verdict", "deny"],
        &["--label", "job=22"],
        &["--output", "json", "--program", "curl"],
        &["--output", "json", "--limit", "1000"],
        &["--export"],
        &["--export", "--verdict", "escalate"],
        &["--session", "3"],
    ] {
        let local = place.execgate(&[&["audit", "--data", &data], arguments].concat());
        let remote = place.execgate(&[&["audit", "--service", &url], arguments].concat());
        assert_eq!(local.0, 0, "{local:?}");
        assert_eq!(local, remote, "{arguments:?}");
    }
    let (_, exported, _) = place.execgate(&["audit", "--data", &data, "--export"]);
    assert_eq!(exported.lines().count(), 33);
    let first: serde_json::Value =
        serde_json::from_str(exported.lines().next().expect("a line")).expect("JSON");
    assert_eq!(first["exec_id"], 1);
    assert_eq!(first["argv"], serde_json::json!(["git", "status"]));
}

#[tokio::test]
async fn what_can_not_be_asked_is_said_with_what_to_do() {
    let place = filled().await;
    let url = place.url();
    for (arguments, code, says) in [
        (&["audit"][..], 2, "--service URL"),
        (&["watch"], 2, "--service"),
        (&["audit", "--service", "ftp://x"], 2, "ftp"),
        (
            &["audit", "--service", "http://127.0.0.1:1"],
            5,
            "127.0.0.1",
        ),
        (
            &["watch", "--service", "http://127.0.0.1:1"],
            5,
            "127.0.0.1",
        ),
        (
            &["watch", "--service", &url, "--after", "99999"],
            1,
            "last event",
        ),
        (
            &["watch", "--service", &url, "--verdict", "maybe"],
            2,
            "possible values",
        ),
        (
            &["audit", "--service", &url, "--label", "x"],
            2,
            "KEY=VALUE",
        ),
        (
            &["audit", "verify", "--data", "/nonexistent"],
            2,
            "no event store",
        ),
        (
            &["audit", "verify", "--data", ".", "--anchor", "7"],
            2,
            "POSITION:HASH",
        ),
    ] {
        let (exit, out, errors) = place.execgate(arguments);
        assert_eq!(exit, code, "{arguments:?}: {out}{errors}");
        assert!(errors.contains(says), "{arguments:?}: {errors}");
    }
    // What the command line says counts more than what the environment does.
    let data = place.data();
    for (service, arguments, code, says) in [
        ("http://127.0.0.1:1", &["audit", "--data", &data][..], 0, ""),
        (
            &*url,
            &["audit", "--data", "/nonexistent"],
            2,
            "no event store",
        ),
        (
            "http://127.0.0.1:1",
            &["audit", "--data", &data, "--service", &url],
            2,
            "give one of them",
        ),
    ] {
        let mut command = place.command(arguments);
        let done = command.env("EXECGATE_SERVICE", service).output();
        let done = done.expect("it runs");
        let errors = String::from_utf8_lossy(&done.stderr).into_owned();
        assert_eq!(done.status.code(), Some(code), "{arguments:?}: {errors}");
        assert!(errors.contains(says), "{arguments:?}: {errors}");
    }
    let mut as_gate = place.command(&["audit", "--service", &url]);
    let done = as_gate
        .env("EXECGATE_SERVICE_TOKEN_FILE", place.path("gate"))
        .output()
        .expect("it runs");
    assert_eq!(done.status.code(), Some(5));
    let errors = String::from_utf8_lossy(&done.stderr).into_owned();
    for said in [
        "operators and auditors, and token:",
        "is a gate",
        "--role auditor",
        "--service-token-file",
    ] {
        assert!(errors.contains(said), "{errors}");
    }
}

/// As on a medium that can only be read, by a user whose files they aren't.
#[tokio::test]
async fn a_copy_is_read_and_verified_where_nothing_can_be_written() {
    let mut place = filled().await;
    let (_, listed, _) = place.execgate(&["audit", "--data", &place.data()]);
    place.kill();
    let set_mode = |path: &std::path::Path, mode| {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).expect("a mode");
    };
    set_mode(place.directory.path(), 0o755);
    // The second name is one that a URI takes apart.
    for (copy, is_merged) in [("killed", false), ("whole ?x=%41#y", true)] {
        let copy = place.path(copy);
        std::fs::create_dir(&copy).expect("a directory");
        for file in ["events.sqlite", "events.sqlite-wal"] {
            std::fs::copy(place.path("data").join(file), copy.join(file)).expect("a copy");
        }
        if is_merged {
            let database = rusqlite::Connection::open(copy.join("events.sqlite"));
            let merged = database.expect("a database").execute_batch(
                "CREATE TABLE temporary (x); DROP TABLE temporary; PRAGMA wal_checkpoint(TRUNCATE)",
            );
            merged.expect("what was in the log is in the file");
            assert!(!copy.join("events.sqlite-wal").exists());
        }
        for entry in copy.read_dir().expect("a directory") {
            set_mode(&entry.expect("a file").path(), 0o444);
        }
        set_mode(&copy, 0o555);
        for asked in [&["audit"][..], &["audit", "verify"], &["audit", "head"]] {
            let mut command = place.command(asked);
            command.arg("--data").arg(&copy);
            command.env_remove("EXECGATE_SERVICE_TOKEN_FILE");
            if rustix::process::geteuid().is_root() {
                command.uid(65_534).gid(65_534);
            }
            let done = command.output().expect("it runs");
            let text = |bytes| String::from_utf8(bytes).expect("text");
            let (out, errors) = (text(done.stdout), text(done.stderr));
            if !is_merged {
                assert!(!done.status.success(), "{asked:?}: {out}{errors}");
                assert!(errors.contains("events.sqlite-wal beside it"), "{errors}");
                assert!(
                    errors.contains("a directory that this user may"),
                    "{errors}"
                );
                continue;
            }
            assert_eq!(done.status.code(), Some(0), "{asked:?}: {out}{errors}");
            match asked {
                ["audit"] => assert_eq!(out, listed),
                ["audit", "verify"] => assert!(out.contains("none was altered"), "{out}"),
                _ => {}
            }
        }
        // For whoever removes it.
        set_mode(&copy, 0o755);
    }
}

#[tokio::test]
async fn the_end_of_the_chain_is_noted_and_met_again() {
    let place = filled().await;
    let data = place.data();
    let (code, head, errors) = place.execgate(&["audit", "head", "--data", &data]);
    assert_eq!(code, 0, "{errors}");
    let asked = place.execgate(&["audit", "head", "--service", &place.url()]);
    assert_eq!(asked, (0, head.clone(), String::new()));
    let (code, _, errors) = place.execgate(&["audit", "head"]);
    assert_eq!(code, 2, "{errors}");
    assert!(errors.contains("--service URL"), "{errors}");
    let mut gate = place.gate(ONE).await;
    gate.ask(77, "make").await.expect("an answer");
    let mut verify = place.command(&["audit", "verify", "--anchor", head.trim()]);
    // A variable of the environment stands beside a subcommand.
    let done = verify
        .env("EXECGATE_POLICYD_DATA", &data)
        .output()
        .expect("it runs");
    assert!(done.status.success(), "{done:?}");
    let text = String::from_utf8(done.stdout).expect("text");
    assert!(text.contains("all 1 anchors are met"), "{text}");
    // One of another record, and one of what was cut off since.
    let (position, hash) = head.trim().split_once(':').expect("a link");
    let other = format!("{position}:{}", hash.chars().rev().collect::<String>());
    let cut = format!("999:{hash}");
    for (anchor, says) in [
        (&*other, "the event there is another one"),
        (&*cut, "events were removed from its end"),
    ] {
        let verify = ["audit", "verify", "--data", &data, "--anchor", head.trim()];
        let verify = [&verify[..], &["--anchor", anchor]].concat();
        let (code, out, errors) = place.execgate(&verify);
        assert_eq!(code, 3, "{anchor}: {out}{errors}");
        assert!(errors.contains(&format!("anchor {anchor}: ")), "{errors}");
        assert!(errors.contains(says), "{errors}");
        assert!(!out.contains("none was altered"), "{out}");
    }

    rusqlite::Connection::open(place.path("data/events.sqlite"))
        .and_then(|store| store.execute("UPDATE events SET received_ns = 1 WHERE position = 5", []))
        .expect("altered");
    let (code, out, errors) = place.execgate(&["audit", "verify", "--data", &data]);
    assert_eq!(code, 3, "{out}{errors}");
    assert!(errors.contains("position 5"), "{errors}");
    let (code, out, _) = place.execgate(&["audit", "verify", "--data", &data, "--output", "json"]);
    let out: serde_json::Value = serde_json::from_str(&out).expect("JSON");
    assert_eq!(
        (code, &out["fault"]["position"]),
        (3, &serde_json::json!(5))
    );
}

#[tokio::test]
async fn an_auditor_sees_which_sessions_there_are_and_ends_none() {
    let place = Place::new();
    let mut gate = place.gate(ONE).await;
    gate.ask(1, "git status").await.expect("an answer");
    let url = place.url();
    let list = ["sessions", "list", "--service", &url];
    let (code, out, errors) = place.execgate(&list);
    assert_eq!(code, 0, "{errors}");
    assert!(out.contains(ONE), "{out}");
    let (code, _, errors) = place.execgate(&["sessions", "terminate", ONE, "--service", &url]);
    assert_eq!(code, 5, "{errors}");
    assert!(errors.contains("operator"), "{errors}");
    let mut command = place.command(&list);
    command.env("EXECGATE_SERVICE_TOKEN_FILE", place.path("gate"));
    let done = command.output().expect("it runs");
    assert_eq!(done.status.code(), Some(5), "{done:?}");
    let verdict = gate.ask(2, "git status").await.expect("an answer");
    assert_eq!(verdict.reason_code, "git.read", "it goes on");
}

#[tokio::test]
async fn a_session_is_ended_for_a_reason_that_is_no_longer_than_a_reason_may_be() {
    let place = Place::new();
    let mut gate = place.gate(ONE).await;
    gate.ask(1, "git status").await.expect("an answer");
    let url = place.url();
    let terminate = |reason: &str| {
        let terminate = ["sessions", "terminate", ONE, "--reason", reason];
        let mut command = place.command(&[&terminate[..], &["--service", &url]].concat());
        command.env("EXECGATE_SERVICE_TOKEN_FILE", place.path("ada"));
        let done = command.output().expect("it runs");
        let said = [done.stdout, done.stderr].concat();
        let said = String::from_utf8(said).expect("text");
        (done.status.success(), said)
    };
    // Bytes are counted: each of these letters has two.
    let (is_ended, errors) = terminate(&format!("{}x", "\u{e9}".repeat(512)));
    assert!(!is_ended);
    assert!(errors.contains("1025 bytes, and 1024 at most"), "{errors}");
    let verdict = gate.ask(2, "git status").await.expect("an answer");
    assert_eq!(verdict.reason_code, "git.read", "it goes on");
    let reason = "\u{e9}".repeat(512);
    let (is_ended, errors) = terminate(&reason);
    assert!(is_ended, "{errors}");
    // Its gate hasn't told its end. Who comes second changes nothing, and reads so.
    let (is_done, said) = terminate("for another reason");
    let first = format!("{ONE} was already ended by operator:ada at 20");
    assert!(is_done && said.starts_with(&first), "{said}");
    let stands =
        format!(", because: {reason}; its gate hasn't told its end yet; nothing was changed\n");
    assert!(said.ends_with(&stands), "{said}");
    // What it is denied with is what the first one said.
    let verdict = gate.ask(3, "git status").await.expect("an answer");
    let Some(v1::verdict::Decision::Deny(deny)) = verdict.decision else {
        panic!("{verdict:?}");
    };
    let denied = format!("the session was ended by operator:ada: {reason}");
    assert_eq!(deny.reason, denied);
    let because = format!("terminated by operator:ada, because: {reason}");
    let began = Instant::now();
    loop {
        let (_, told, _) = place.execgate(&["audit", "--tree", "--service", &url]);
        if told.contains(&because) {
            break;
        }
        assert!(began.elapsed() < PATIENCE, "{told}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test]
async fn a_session_that_has_ended_is_not_ended_again() {
    let place = Place::new();
    let mut gate = place.gate(ONE).await;
    gate.tell(Event::SessionEnded(v1::SessionEnded::default()))
        .await
        .expect("told");
    gate.stored().await;
    drop(gate);
    let url = place.url();
    let terminate = |form: &[&str]| {
        let terminate = ["sessions", "terminate", ONE, "--service", &url];
        let mut command = place.command(&[&terminate, form].concat());
        command.env("EXECGATE_SERVICE_TOKEN_FILE", place.path("ada"));
        let done = command.output().expect("it runs");
        assert_eq!(done.status.code(), Some(0), "{done:?}");
        String::from_utf8(done.stdout).expect("text")
    };
    // The service sees a moment later that its gate is gone.
    let began = Instant::now();
    let list = ["sessions", "list", "--service", &url];
    while place.execgate(&list).1.contains(ONE) {
        assert!(began.elapsed() < PATIENCE, "it is still connected");
        // The runtime's own turn: it closes the connection.
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let said = terminate(&[]);
    assert!(said.contains(" had ended by itself, at 20"), "{said}");
    assert!(said.contains("nothing was changed"), "{said}");
    let said = terminate(&["--output", "json"]);
    let said: serde_json::Value = serde_json::from_str(&said).expect("JSON");
    assert!(said["ended_at"].is_string(), "{said}");
    assert_eq!(said["terminated_by"], serde_json::Value::Null);
    let (_, listed, _) = place.execgate(&["audit", "--tree", "--data", &place.data()]);
    assert!(!listed.contains("terminated"), "{listed}");
}

/// A program that watches, killed when dropped.
pub(crate) struct Watching {
    child: Child,
    lines: std::io::Lines<BufReader<ChildStdout>>,
}

impl Watching {
    pub(crate) fn start(place: &Place, arguments: &[&str]) -> Self {
        let url = place.url();
        let mut command = place.command(&[&["watch", "--service", &url], arguments].concat());
        let mut child = command.stdout(Stdio::piped()).spawn().expect("it runs");
        let lines = BufReader::new(child.stdout.take().expect("a pipe")).lines();
        Self { child, lines }
    }

    pub(crate) fn line(&mut self) -> String {
        self.lines.next().expect("a line").expect("text")
    }
}

impl Drop for Watching {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_line_for_each_exec_and_none_is_missed_over_a_restart() {
    let mut place = filled().await;
    let mut plain = Watching::start(&place, &["--after", "0"]);
    let mut colored = Watching::start(&place, &["--after", "0", "--color", "always"]);
    let mut json = Watching::start(&place, &["--after", "0", "--output", "json"]);
    for exec in 1..=31 {
        let (plain, colored) = (plain.line(), colored.line());
        let verdict = if exec == 31 { "deny" } else { "run" };
        let parts: Vec<_> = plain.split_whitespace().collect();
        assert_eq!(parts[1..3], ["11111111", verdict], "{plain}");
        assert!(!plain.contains('\x1b'));
        assert!(colored.contains("\x1b["), "{colored:?}");
    }
    let first: serde_json::Value = serde_json::from_str(&json.line()).expect("JSON");
    assert_eq!(first["change"], "requested");
    assert_eq!(first["exec_id"], 1);

    place.kill_and_restart();
    let mut gate = place.gate("55555555555555555555555555555555").await;
    gate.ask(1, "curl again").await.expect("an answer");
    gate.stored().await;
    // The two that hadn't been read, and nothing again.
    for (verdict, command) in [("escalate", "/usr/bin/make all"), ("deny", "elsewhere")] {
        let line = plain.line();
        let parts: Vec<_> = line.split_whitespace().collect();
        assert_eq!(parts[1..3], ["22222222", verdict], "{line}");
        assert!(line.contains(command), "{line}");
    }
    let last = plain.line();
    assert!(
        last.contains("55555555") && last.contains("deny") && last.contains("/usr/bin/curl again"),
        "{last}"
    );
    assert!(last.contains("token:gate"), "{last}");
}

#[tokio::test]
async fn watching_begins_with_as_many_of_the_latest_events_as_are_asked_for() {
    let place = filled().await;
    let (_, head, _) = place.execgate(&["audit", "head", "--service", &place.url()]);
    let head: u64 = head
        .split(':')
        .next()
        .and_then(|position| position.parse().ok())
        .expect("a position");
    let first = |latest: &str| {
        let mut watching = Watching::start(&place, &["--latest", latest, "--output", "json"]);
        let line: serde_json::Value = serde_json::from_str(&watching.line()).expect("JSON");
        line["change_position"].as_u64().expect("a position")
    };
    // All five are changes of execs. Of more than there are, the very first is the session's beginning.
    assert_eq!(first("5"), head - 4);
    assert_eq!(first("100000"), 2);
    let url = place.url();
    let (code, _, errors) = place.execgate(&["watch", "--service", &url, "--latest", "100001"]);
    assert_eq!(code, 2, "{errors}");
    assert!(errors.contains("100001 is not in 0..=100000"), "{errors}");
}

#[tokio::test]
async fn watching_ends_with_its_reader_though_nothing_happens() {
    let place = filled().await;
    let url = place.url();
    let mut command = place.command(&[
        "watch",
        "--service",
        &url,
        "--program",
        "make",
        "--after",
        "0",
    ]);
    let mut child = command.stdout(Stdio::piped()).spawn().expect("it runs");
    let mut reader = BufReader::new(child.stdout.take().expect("a pipe"));
    let mut line = String::new();
    reader.read_line(&mut line).expect("a line");
    assert!(line.contains("/usr/bin/make all"), "{line}");
    drop(reader);
    let began = std::time::Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait().expect("a child") {
            break status;
        }
        if began.elapsed() > PATIENCE {
            child.kill().expect("killed");
            panic!("it waits for the next exec");
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
    };
    assert_eq!(status.code(), Some(0));
}
