//! Operating a service: rules that are only monitored, rules that can't be used, numbers, an orderly end.

use std::io::{Read, Write};
use std::time::{Duration, Instant};

use execgate::pb::audit::v1::{ExecFilter, ListRequest, WatchRequest};
use execgate::pb::v1::verdict::Decision;
use tonic::{Code, Status};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;

use crate::place::{ONE, PATIENCE, Place};
use crate::watchers::watch;

/// The numbers as Prometheus reads them.
fn metrics(place: &Place) -> String {
    let url = std::fs::read_to_string(place.path("metrics")).expect("where they are");
    let address = url
        .trim_start_matches("http://")
        .trim_end_matches("/metrics");
    let mut stream = std::net::TcpStream::connect(address).expect("a connection");
    stream.set_read_timeout(Some(PATIENCE)).expect("set");
    stream
        .write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        .expect("asked");
    let mut text = String::new();
    stream.read_to_string(&mut text).expect("an answer");
    assert!(text.starts_with("HTTP/1.1 200"), "{text}");
    text
}

fn has(text: &str, line: &str) {
    assert!(
        text.lines().any(|own| own == line),
        "no {line:?} in\n{text}"
    );
}

#[tokio::test]
async fn monitored_rules_stop_nothing_and_the_record_says_what_they_would_have_done() {
    let arguments = ["--monitor", "--metrics", "127.0.0.1:0", "--output", "json"];
    let place = Place::with(&arguments);
    let mut gate = place.gate(ONE).await;
    for (exec, command) in [
        (1, "git status"),
        (2, "make"),
        (3, "curl x"),
        (4, "unknown"),
    ] {
        let verdict = gate.ask(exec, command).await.expect("an answer");
        assert!(
            matches!(verdict.decision, Some(Decision::Run(_))),
            "{verdict:?}"
        );
    }
    gate.stored().await;
    let data = place.data();
    let (_, out, _) = place.execgate(&["audit", "--data", &data, "--verdict", "monitored"]);
    for would in ["run (would escalate)", "run (would deny)"] {
        assert!(out.contains(would), "{out}");
    }
    assert_eq!(out.lines().count(), 4, "{out}");
    let json = [
        "audit",
        "--data",
        &data,
        "--program",
        "curl",
        "--output",
        "json",
    ];
    let (_, out, _) = place.execgate(&json);
    let out: serde_json::Value = serde_json::from_str(&out).expect("JSON");
    assert_eq!(out["verdict"], "run");
    assert_eq!(out["answered"]["verdict"], "deny");
    assert_eq!(out["answered"]["monitored"], true);
    assert_eq!(out["rule"], out["answered"]["rule"]);

    let text = metrics(&place);
    for (verdict, mode, count) in [
        ("run", "enforced", 1),
        ("escalate", "monitored", 1),
        ("deny", "monitored", 2),
        ("deny", "enforced", 0),
    ] {
        let name = "execgate_policyd_verdicts_total";
        has(
            &text,
            &format!("{name}{{verdict=\"{verdict}\",mode=\"{mode}\"}} {count}"),
        );
    }
    has(&text, "execgate_policyd_sessions 1");
    has(&text, "execgate_policyd_store_failing 0");
    has(
        &text,
        &format!(
            "execgate_policyd_store_events_written_total {}",
            gate.sequence
        ),
    );
    has(
        &text,
        &format!("execgate_policyd_store_head_position {}", gate.sequence),
    );
}

#[tokio::test]
async fn numbers_tell_who_asks_too_much_who_watches_and_how_long_rules_take() {
    let arguments = ["--metrics", "127.0.0.1:0", "--output", "json"];
    let place = Place::with(&[&arguments[..], &["--execs-per-second", "1"]].concat());
    let took = |text: &str| -> f64 {
        let name = "execgate_policyd_evaluation_seconds_total ";
        let line = text.lines().find_map(|line| line.strip_prefix(name));
        line.and_then(|value| value.parse().ok()).expect("a number")
    };
    let text = metrics(&place);
    has(&text, "execgate_policyd_rate_limited_total 0");
    has(&text, "execgate_policyd_watchers 0");
    assert!(took(&text) <= 0.0, "{text}");

    let watching = watch(&place, WatchRequest::default()).await;
    let mut gate = place.gate(ONE).await;
    let (mut judged, mut limited) = (0, 0);
    let began = Instant::now();
    // The second of a second is one too much.
    for exec in 1.. {
        let verdict = gate.ask(exec, "git status").await.expect("an answer");
        match verdict.reason_code.as_str() {
            "git.read" => judged += 1,
            "gate.rate_limited" => limited += 1,
            other => panic!("{other}"),
        }
        if limited == 2 {
            break;
        }
        assert!(began.elapsed() < PATIENCE, "nothing limits it");
    }
    let text = metrics(&place);
    has(&text, "execgate_policyd_rate_limited_total 2");
    // What is beyond the rate is no verdict of the rules.
    let verdicts = "execgate_policyd_verdicts_total";
    has(
        &text,
        &format!("{verdicts}{{verdict=\"run\",mode=\"enforced\"}} {judged}"),
    );
    has(
        &text,
        &format!("{verdicts}{{verdict=\"deny\",mode=\"enforced\"}} 0"),
    );
    assert!(took(&text) > 0.0, "{text}");
    has(&text, "execgate_policyd_watchers 1");
    drop(watching);
    let began = Instant::now();
    while !metrics(&place).contains("execgate_policyd_watchers 0\n") {
        assert!(began.elapsed() < PATIENCE, "{}", metrics(&place));
        // The runtime's own turn: it closes the connection.
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Name, niceness and policy of each thread of a process, the first one before the others: `proc_pid_stat(5)`.
fn threads(process: u32) -> Vec<(String, (i64, i64))> {
    const NICE: usize = 19;
    const POLICY: usize = 41;
    let tasks = std::fs::read_dir(format!("/proc/{process}/task")).expect("threads");
    let tasks = tasks.map(|task| task.expect("a thread").path());
    let mut tasks: Vec<_> = tasks.collect();
    tasks.sort_by_key(|task| !task.ends_with(process.to_string()));
    let read = |task: &std::path::PathBuf| {
        // One that has just ended has no files any more.
        let stat = std::fs::read_to_string(task.join("stat")).ok()?;
        let (name, fields) = stat.rsplit_once(") ")?;
        let fields: Vec<&str> = fields.trim_end().split(' ').collect();
        // The third is the first behind the name.
        let field = |number: usize| fields.get(number - 3)?.parse().ok();
        let name = name.split_once('(')?.1.to_owned();
        Some((name, (field(NICE)?, field(POLICY)?)))
    };
    tasks.iter().filter_map(read).collect()
}

#[tokio::test]
async fn who_writes_the_record_and_who_reads_it_give_way_to_those_that_answer() {
    const NICEST: i64 = 19;
    let place = Place::new();
    let mut gate = place.gate(ONE).await;
    gate.ask(1, "git status").await.expect("an answer");
    // A thread that has written is under way.
    gate.stored().await;
    let of = |named: &str| -> Vec<_> {
        let threads = threads(place.service.id()).into_iter();
        let meant = threads.filter(|(name, _)| name == named);
        meant.map(|(_, scheduling)| scheduling).collect()
    };
    let (_, usual) = threads(place.service.id()).remove(0);
    if usual.0 == NICEST && usual.1 != 0 {
        eprintln!("nothing goes behind what these tests run as: passed over");
        return;
    }
    let [writer] = of("store")[..] else {
        panic!("which thread writes?");
    };
    assert_ne!(writer, usual);
    assert!(writer.0 > usual.0 || usual.0 == NICEST, "{writer:?}");
    // Those that answer and those that read have one name. Before anybody has asked for the record none is behind.
    let pool = of("tokio-rt-worker");
    assert!(!pool.is_empty());
    assert!(pool.iter().all(|thread| *thread == usual), "{pool:?}");
    let began = Instant::now();
    loop {
        let mut auditor = place.auditor().await;
        let list = place.showing("auditor", ListRequest::default());
        auditor.list(list).await.expect("a list");
        let pool = of("tokio-rt-worker");
        assert!(pool.contains(&usual), "{pool:?}");
        // It is there for some seconds, should somebody ask again.
        if pool.contains(&writer) {
            break;
        }
        assert!(began.elapsed() < PATIENCE, "{pool:?}");
    }
}

#[tokio::test]
async fn a_record_that_was_removed_shows_in_the_numbers() {
    let place = Place::with(&["--metrics", "127.0.0.1:0", "--output", "json"]);
    let mut gate = place.gate(ONE).await;
    gate.stored().await;
    has(&metrics(&place), "execgate_policyd_store_failing 0");
    std::fs::remove_dir_all(place.data()).expect("removed");
    gate.ask(1, "git status").await.expect("an answer");
    let began = Instant::now();
    while !metrics(&place).contains("execgate_policyd_store_failing 1\n") {
        assert!(began.elapsed() < PATIENCE, "{}", metrics(&place));
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[tokio::test]
async fn rules_that_can_not_be_used_show_in_metrics_and_health_and_the_last_good_stay() {
    let place = Place::with(&["--metrics", "127.0.0.1:0", "--output", "json"]);
    let mut health = HealthClient::new(place.channel().await);
    let mut wait_for = async |status: i32, failed: &str| {
        let began = Instant::now();
        loop {
            let request = HealthCheckRequest {
                service: "execgate.policyd.rules".to_owned(),
            };
            let checked = health
                .check(place.showing("gate", request))
                .await
                .expect("an answer");
            if checked.into_inner().status == status {
                has(
                    &metrics(&place),
                    &format!("execgate_policyd_rules_reload_failed {failed}"),
                );
                return;
            }
            assert!(began.elapsed() < PATIENCE, "never {status}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    wait_for(1, "0").await;
    let good = std::fs::read_to_string(place.path("rules")).expect("rules");
    std::fs::write(place.path("rules"), "prefix_rule(").expect("a file");
    wait_for(2, "1").await;
    let mut gate = place.gate(ONE).await;
    let verdict = gate.ask(1, "git status").await.expect("an answer");
    assert!(
        matches!(verdict.decision, Some(Decision::Run(_))),
        "{verdict:?}"
    );
    std::fs::write(place.path("rules"), good + "\n").expect("a file");
    wait_for(1, "0").await;
}

#[tokio::test]
async fn all_that_was_answered_is_stored_when_it_is_told_to_stop_and_watchers_do_not_keep_it() {
    let mut place = Place::new();
    // One that never reads, and one that waits for what never comes.
    let stopped = watch(&place, WatchRequest::default()).await;
    let filter = ExecFilter {
        program: "nothing".to_owned(),
        ..ExecFilter::default()
    };
    let request = WatchRequest {
        filter: Some(filter),
        ..WatchRequest::default()
    };
    let mut waiting = watch(&place, request).await;
    let waiting = tokio::spawn(async move {
        loop {
            match waiting.message().await {
                Ok(Some(_)) => {}
                Ok(None) => return Status::ok("it ended without a reason"),
                Err(status) => return status,
            }
        }
    });
    let mut gate = place.gate(ONE).await;
    for exec in 1..=500 {
        let command = format!("git status {}", "x".repeat(2_000));
        gate.ask(exec, &command).await.expect("an answer");
    }
    let pid = place.service.id().to_string();
    let sent = std::process::Command::new("kill")
        .args(["-TERM", &pid])
        .status();
    assert!(sent.expect("kill runs").success());
    // The gate's call ends, and all that came by it is acknowledged before that.
    while gate.ask(1_000, "git status").await.is_some() {}
    let acknowledged = gate.acknowledged;
    drop(gate);
    let began = Instant::now();
    let status = loop {
        if let Some(status) = place.service.try_wait().expect("a child") {
            break status;
        }
        assert!(began.elapsed() < PATIENCE, "it doesn't end");
        tokio::time::sleep(Duration::from_millis(20)).await;
    };
    assert!(status.success(), "{status:?}");
    drop(stopped);
    // Whoever listens is told, rather than cut off.
    let told = waiting.await.expect("no panic");
    let told = (told.code(), told.message());
    assert_eq!(told, (Code::Unavailable, "the policy service is stopping"));
    let (code, out, errors) = place.execgate(&["audit", "verify", "--data", &place.data()]);
    assert_eq!(code, 0, "{out}{errors}");
    let events: u64 = out
        .split(' ')
        .next()
        .and_then(|n| n.parse().ok())
        .expect("a number");
    assert_eq!(events, acknowledged, "{out}");
    // What was answered last came to it; what followed may have been on its way, and stays with the gate.
    assert!(events >= 1_499, "{out}");
}
