//! A gate's numbers, as Prometheus reads them.

use std::io::{Read, Write};
use std::net::TcpStream;

use execgate::pb::v1::session_request::Event;

use crate::exposition;
use crate::gate::Gate;
use crate::machine::{Shell, in_both_shells, in_shell};
use crate::process::{PATIENCE, Running, wait_until};

in_both_shells! {
    what_a_gate_did_is_counted,
    what_waits_and_what_a_service_does_wrong_is_counted,
    what_is_not_delivered_is_told_with_its_age,
    readers_that_stall_or_ask_for_nonsense_cost_nobody_anything,
    an_address_that_cannot_be_listened_at_is_said,
}

const RULES: &str = r#"
prefix_rule(["expr"], "run", reuse = "10m")
prefix_rule(["date"], "deny")
prefix_rule(["printf"], "escalate")
"#;

fn gate(shell: &Shell) -> Gate {
    Gate::with_rules(shell, RULES).option(["--metrics", "127.0.0.1:0", "--log", "info"])
}

/// Where the numbers are, once they are.
pub(crate) fn address(running: &mut Running) -> String {
    running.wait_for_error("metrics are served");
    let said = running.stderr();
    let (_, address) = said.split_once("address=").expect("an address");
    address
        .split_ascii_whitespace()
        .next()
        .expect("an address")
        .to_owned()
}

pub(crate) fn ask(address: &str, request: &str) -> String {
    let mut stream = TcpStream::connect(address).expect("a connection");
    stream.set_read_timeout(Some(PATIENCE)).expect("a limit");
    write!(stream, "{request} HTTP/1.1\r\nHost: x\r\n\r\n").expect("sent");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("text");
    answer
}

pub(crate) fn number(metrics: &str, name: &str) -> Option<f64> {
    let line = metrics.lines().find_map(|line| line.strip_prefix(name))?;
    line.trim().parse().ok()
}

fn what_a_gate_did_is_counted(shell: &Shell) {
    let gate = gate(shell);
    let mut running =
        gate.start("expr 1; expr 1; /usr/bin/printf x; date; date; echo ready; read -r go");
    let address = address(&mut running);
    running.wait_for("ready\n");
    let answer = ask(&address, "GET /metrics");
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    assert!(answer.contains("application/openmetrics-text"), "{answer}");
    assert!(answer.ends_with("# EOF\n"), "{answer}");
    for (name, expected) in [
        (
            "execgate_execs_total{verdict=\"run\",code=\"verdict\"}",
            1.0,
        ),
        ("execgate_execs_total{verdict=\"run\",code=\"reused\"}", 1.0),
        (
            "execgate_execs_total{verdict=\"escalate\",code=\"verdict\"}",
            1.0,
        ),
        (
            "execgate_execs_total{verdict=\"deny\",code=\"verdict\"}",
            2.0,
        ),
        ("execgate_exec_wait_seconds_count", 5.0),
        // The one that was reused wasn't asked about.
        ("execgate_policy_decision_seconds_count", 4.0),
        ("execgate_execs_deciding", 0.0),
        ("execgate_sessions", 1.0),
        ("execgate_link_events_lost_total", 0.0),
        ("execgate_link_calls_broken_total", 0.0),
        ("execgate_link_calls_resumed_total", 0.0),
        ("execgate_link_execs_waiting", 0.0),
        ("execgate_exec_local_seconds_count", 5.0),
        // The service says of each verdict how long it had.
        ("execgate_policy_link_seconds_count", 4.0),
        ("execgate_policy_service_seconds_count", 4.0),
        ("execgate_verdict_cache_hits_total", 1.0),
        ("execgate_verdict_cache_misses_total", 4.0),
    ] {
        assert_eq!(number(&answer, name), Some(expected), "{name} in {answer}");
    }
    let sum = |part: &str| {
        let name = format!("execgate_{part}_seconds_sum");
        number(&answer, &name).unwrap_or_else(|| panic!("{name} in {answer}"))
    };
    let parts = sum("policy_link") + sum("policy_service");
    assert!((parts - sum("policy_decision")).abs() < 1e-6, "{answer}");
    let local = sum("exec_local");
    assert!(local > 0.0 && local < sum("exec_wait"), "{answer}");
    assert!(
        sum("policy_service") > 0.0 && sum("policy_link") > 0.0,
        "{answer}"
    );
    let series = exposition::check(body(&answer));
    assert!(series < 300, "{series} series");
    running.tell("go");
    running.done().exits(0);
}

fn what_waits_and_what_a_service_does_wrong_is_counted(shell: &Shell) {
    let gate = Gate::with_script(shell, async |mut peer| {
        let mut call = peer.call().await;
        while !matches!(call.next().await, (_, Event::ExecWithdrawn(_))) {}
        // What nobody asked about, no answer at all, and a verdict that says nothing; and then one too many.
        call.run(99).await;
        call.send_bytes(vec![]).await;
        call.asked(2).await;
        call.verdict(2, None).await;
        call.run(2).await;
        while call.event().await.is_some() {}
        vec![]
    });
    let gate = gate.option(["--metrics", "127.0.0.1:0", "--log", "info"]);
    let mut running =
        gate.start("/bin/sleep 9 & read -r go; kill -9 $!; wait; expr 2; echo ready; read -r go");
    let address = address(&mut running);
    let are = |expected: &[(&str, f64)]| {
        let answer = ask(&address, "GET /metrics");
        exposition::check(body(&answer));
        let is = |(name, value): &(&str, f64)| number(&answer, name) == Some(*value);
        expected.iter().all(is)
    };
    wait_until("an exec that waits", || {
        are(&[
            ("execgate_link_execs_waiting", 1.0),
            ("execgate_execs_deciding", 1.0),
            ("execgate_execs_withdrawn_total", 0.0),
            ("execgate_link_answers_ignored_total", 0.0),
            ("execgate_link_verdicts_broken_total", 0.0),
        ])
    });
    let answer = ask(&address, "GET /metrics");
    let waiting = number(&answer, "execgate_link_execs_waiting_bytes");
    assert!(waiting > Some(0.0), "{waiting:?} bytes in {answer}");
    running.tell("go");
    running.wait_for("ready\n");
    wait_until("what the service did wrong", || {
        are(&[
            ("execgate_link_execs_waiting", 0.0),
            ("execgate_link_execs_waiting_bytes", 0.0),
            ("execgate_execs_deciding", 0.0),
            ("execgate_execs_withdrawn_total", 1.0),
            ("execgate_link_answers_ignored_total", 3.0),
            ("execgate_link_verdicts_broken_total", 1.0),
            (
                "execgate_execs_total{verdict=\"deny\",code=\"policy-error\"}",
                1.0,
            ),
        ])
    });
    running.tell("go");
    running.done().exits(0).prints("ready\n");
}

/// What follows the headers.
fn body(answer: &str) -> &str {
    answer.split_once("\r\n\r\n").expect("a body").1
}

fn what_is_not_delivered_is_told_with_its_age(shell: &Shell) {
    let rules = "prefix_rule([\"expr\"], \"run\")";
    let gate = Gate::with_rules_on_a_socket(shell, rules);
    let journal = gate.path("journal");
    let journal = journal.to_str().expect("text");
    let options = [
        "--metrics",
        "127.0.0.1:0",
        "--log",
        "info",
        "--journal",
        journal,
        "--journal-limit",
        "8MiB",
    ];
    let gate = gate.option(options).option(["--verdict-timeout", "1s"]);
    let mut running =
        gate.start("expr 1; echo ready; read -r go; expr 2; echo refused; read -r go; expr 3");
    let address = address(&mut running);
    running.wait_for("ready\n");
    gate.kill_policyd();
    running.tell("go");
    running.wait_for("refused\n");
    let ask = || ask(&address, "GET /metrics");
    let is_told = || {
        let answer = ask();
        let has =
            |name: &str| number(&answer, name).unwrap_or_else(|| panic!("{name} in {answer}"));
        exposition::check(body(&answer));
        has("execgate_link_events_queued") >= 2.0
            && has("execgate_link_events_queued_bytes") > 0.0
            && has("execgate_link_oldest_event_age_seconds") > 0.5
            && has("execgate_journal_events") >= 2.0
            && has("execgate_journal_bytes") > 0.0
            && number(&answer, "execgate_journal_limit_bytes") == Some(f64::from(8 << 20))
            && has("execgate_journal_troubled") < 0.5
            && has("execgate_journal_sessions_left") == 0.0
            && has("execgate_journal_events_left") == 0.0
            && has("execgate_journal_oldest_event_left_age_seconds") == 0.0
            && has("execgate_link_calls_broken_total") >= 1.0
    };
    wait_until("events that wait", is_told);
    gate.restart_policyd();
    let is_settled = || {
        let answer = ask();
        let has =
            |name: &str| number(&answer, name).unwrap_or_else(|| panic!("{name} in {answer}"));
        has("execgate_link_calls_resumed_total") >= 1.0
            && has("execgate_link_events_queued") < 0.5
            && has("execgate_link_oldest_event_age_seconds") == 0.0
            && has("execgate_journal_events") < 0.5
            && has("execgate_journal_bytes") < 0.5
    };
    wait_until("events that are settled", is_settled);
    running.tell("go");
    running
        .done()
        .exits(0)
        .says("the policy service can't be reached");
}

#[test]
fn what_a_killed_gate_has_left_the_next_tells_until_it_is_delivered() {
    in_shell("bash", |shell| {
        let gate = Gate::with_rules_on_a_socket(shell, RULES);
        let journal = gate.path("journal");
        let journal = journal.to_str().expect("text");
        let gate = gate.option(["--journal", journal, "--verdict-timeout", "1s"]);
        let mut running = gate.start("expr 1; echo ready; read -r go; expr 2; echo refused; read");
        running.wait_for("ready\n");
        gate.kill_policyd();
        running.tell("go");
        running.wait_for("refused\n");
        running.signal("KILL");
        drop(running);

        let gate = gate.option(["--metrics", "127.0.0.1:0", "--log", "info"]);
        let mut running = gate.start("read -r go");
        let address = address(&mut running);
        let left = || {
            let answer = ask(&address, "GET /metrics");
            exposition::check(body(&answer));
            [
                "sessions_left",
                "events_left",
                "oldest_event_left_age_seconds",
            ]
            .map(|what| number(&answer, &format!("execgate_journal_{what}")))
        };
        wait_until("what is left", || {
            let [sessions, events, age] = left();
            sessions == Some(1.0) && events >= Some(2.0) && age > Some(0.5)
        });
        gate.restart_policyd();
        wait_until("its delivery", || left() == [Some(0.0); 3]);
        running.tell("go");
        running.done().exits(0);
    });
}

/// Readers that are served at once.
const MOST_READERS: usize = 8;

/// How many readers the gate has taken. Those that wait in the kernel have no inode yet (`proc_net_tcp(5)`).
fn taken(address: &str) -> usize {
    let (_, port) = address.rsplit_once(':').expect("a port");
    let port: u16 = port.parse().expect("a number");
    let host = u32::from_ne_bytes([127, 0, 0, 1]);
    let local = format!("{host:08X}:{port:04X}");
    let is_taken = |line: &&str| {
        let fields: Vec<_> = line.split_whitespace().collect();
        let is_established = fields.get(3) == Some(&"01");
        fields.get(1) == Some(&&*local) && is_established && fields.get(9) != Some(&"0")
    };
    let sockets = std::fs::read_to_string("/proc/net/tcp").expect("/proc");
    sockets.lines().filter(is_taken).count()
}

fn readers_that_stall_or_ask_for_nonsense_cost_nobody_anything(shell: &Shell) {
    let gate = gate(shell);
    let mut running = gate.start("expr 1; echo ready; read -r go; expr 2; echo more; read -r go");
    let address = address(&mut running);
    running.wait_for("ready\n");
    for (request, status) in [
        ("GET /", "HTTP/1.1 404"),
        ("GET /metrics/..", "HTTP/1.1 404"),
        ("POST /metrics", "HTTP/1.1 405"),
        ("nonsense", "HTTP/1.1 400"),
    ] {
        let answer = ask(&address, request);
        assert!(answer.starts_with(status), "{request}: {answer}");
    }
    let stalled: Vec<_> = (0..100)
        .map(|_| TcpStream::connect(&address).expect("a connection"))
        .collect();
    wait_until("some are taken", || taken(&address) == MOST_READERS);
    running.tell("go");
    running.wait_for("more\n");
    let taken = taken(&address);
    assert!(taken <= MOST_READERS, "{taken} readers at once");
    running.tell("go");
    running.done().exits(0).prints("1\nready\n2\nmore\n");
    drop(stalled);
}

#[test]
fn readers_that_stall_make_room_for_others_in_time() {
    in_shell("bash", |shell| {
        let gate = gate(shell);
        let mut running = gate.start("read -r go");
        let address = address(&mut running);
        let stalled: Vec<_> = (0..MOST_READERS)
            .map(|_| {
                let mut stream = TcpStream::connect(&address).expect("a connection");
                stream.write_all(b"GET /metrics HTT").expect("sent");
                stream
            })
            .collect();
        wait_until("all are taken", || taken(&address) == MOST_READERS);
        let answer = ask(&address, "GET /metrics");
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        running.tell("go");
        running.done().exits(0);
        drop(stalled);
    });
}

fn an_address_that_cannot_be_listened_at_is_said(shell: &Shell) {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = taken.local_addr().expect("an address").to_string();
    let gate = Gate::with_rules(shell, RULES).option(["--metrics", &address]);
    gate.exec("expr 1").exits(125).prints("").says(&format!(
        "cannot listen at {address} for readers of metrics"
    ));
}
