//! Policy services that stop, die, come back, or were never there.

use crate::gate::{Gate, verdicts};
use crate::machine::{Shell, command_lines, in_both_shells, is_running};
use crate::metrics;
use crate::process::{signal, wait_until};

in_both_shells! {
    a_service_that_is_not_there_denies_everything,
    the_owner_may_have_commands_run_without_a_service,
    a_service_killed_while_it_decides_denies,
    a_service_that_stands_still_denies_and_may_go_on,
    a_session_goes_on_with_a_service_that_was_restarted,
    new_rules_hold_for_the_next_command,
    a_session_that_ends_without_its_service_says_what_is_lost,
    a_service_that_stands_still_is_left_for_the_next,
    rolling_restarts_deny_nothing,
}

const RULES: &str = r#"
prefix_rule(["uname"], "escalate", name = "kernel")
fallback("run")
"#;

const NOWHERE: &str = "http://127.0.0.1:1";

fn a_service_that_is_not_there_denies_everything(shell: &Shell) {
    for url in [NOWHERE, "unix:/nonexistent/policy.sock"] {
        let gate = Gate::with_policy(shell, url).option(["--verdict-timeout", "500ms"]);
        let done = gate.exec("/bin/echo one; echo $?; echo builtins run; /bin/echo two");
        done.exits(1).prints("1\nbuiltins run\n");
        let said = format!("Execution denied: the policy service can't be reached: {url}: ");
        done.says_times(2, &said);
    }
}

fn the_owner_may_have_commands_run_without_a_service(shell: &Shell) {
    let gate = Gate::with_policy(shell, NOWHERE).option([
        "--verdict-timeout",
        "500ms",
        "--on-unavailable",
        "run",
    ]);
    gate.exec("/bin/echo one; (exit 3)")
        .exits(3)
        .prints("one\n");

    // Never escalated, and still denied where a rule says so.
    let rules = "prefix_rule([\"date\"], \"deny\")\nfallback(\"run\")";
    let gate = Gate::with_rules(shell, rules).option(["--on-unavailable", "run"]);
    gate.exec("date")
        .exits(1)
        .prints("")
        .says("Execution denied");
}

/// Starts a session that executes a command while its service stands still.
fn asked_in_vain(gate: &Gate, command: &str) -> crate::process::Running {
    let mut running = gate.start(&format!(
        "/bin/true; echo ready; read -r go; {command}; echo $?; echo end"
    ));
    running.wait_for("ready");
    gate.policyd(|policyd| policyd.signal("STOP"));
    running.tell("go");
    running
}

fn is_asking(marker: &str) -> bool {
    command_lines().iter().any(|line| {
        let text = String::from_utf8_lossy(line);
        text.contains("execgate-wrapper") && text.contains(marker)
    })
}

fn marker(what: &str) -> String {
    format!(
        "{what}-{}-{:?}",
        std::process::id(),
        std::thread::current().id()
    )
    .replace(['(', ')'], "")
}

fn a_service_killed_while_it_decides_denies(shell: &Shell) {
    let gate = Gate::with_rules_on_a_socket(shell, RULES).option(["--verdict-timeout", "3s"]);
    let marker = marker("killed");
    let running = asked_in_vain(&gate, &format!("/bin/echo {marker}"));
    wait_until("a question", || is_asking(&marker));
    gate.kill_policyd();
    let done = running.done();
    done.exits(0).prints("ready\n1\nend\n");
    done.says("Execution denied: the policy service can't be reached: ");
    // However often it is tried, that is said once.
    let warnings = done.errors();
    let is_about_it = |line: &&str| line.contains("WARN") && line.contains("be reached");
    let warnings: Vec<_> = warnings.lines().filter(is_about_it).collect();
    let [warning] = warnings[..] else {
        panic!("{done}");
    };
    assert!(
        warning.contains("it is tried again until it is back"),
        "{done}"
    );
}

fn a_service_that_stands_still_denies_and_may_go_on(shell: &Shell) {
    let gate = Gate::with_rules(shell, RULES).option(["--verdict-timeout", "3s"]);
    let mut running = asked_in_vain(
        &gate,
        "/bin/echo x; echo $?; echo again; read -r go; /bin/echo y",
    );
    running.wait_for("again");
    gate.policyd(|policyd| policyd.signal("CONT"));
    running.tell("go");
    let done = running.done();
    done.exits(0).prints("ready\n1\nagain\ny\n0\nend\n");
    // It has answered before on this call: it isn't another kind of server.
    let said = format!(
        "Execution denied: the policy service gave no verdict in time: {}\n",
        gate.url()
    );
    done.says(&said);
    let execs = gate.audit();
    assert_eq!(verdicts(&execs), ["true run", "echo deny", "echo run"]);
    assert_eq!(execs[1].text("code"), "timed-out", "{execs:?}");
    assert_eq!(execs[1].0["answered"]["verdict"], "run", "{execs:?}");
}

fn a_session_goes_on_with_a_service_that_was_restarted(shell: &Shell) {
    let gate = Gate::with_rules_on_a_socket(shell, RULES);
    let mut running =
        gate.start("uname; echo ready; read -r go; uname; echo ready; read -r go; /bin/true");
    running.wait_for("ready");
    gate.restart_policyd();
    running.tell("go");
    running.wait_for("ready\nLinux\nready");
    gate.kill_policyd();
    running.tell("go");
    // While nobody is there.
    std::thread::scope(|scope| {
        scope.spawn(|| {
            running
                .done()
                .exits(0)
                .prints("Linux\nready\nLinux\nready\n")
                .exits(0)
                .status
        });
        gate.restart_policyd();
    });
    let execs = gate.audit();
    assert_eq!(
        verdicts(&execs),
        ["uname escalate", "uname escalate", "true run"]
    );
    assert!(
        execs
            .iter()
            .all(|exec| exec.text("session") == execs[0].text("session"))
    );
    assert!(
        execs
            .iter()
            .all(|exec| !exec.text("finished_at").is_empty()),
        "{execs:?}"
    );
}

fn new_rules_hold_for_the_next_command(shell: &Shell) {
    let gate = Gate::with_rules(shell, RULES);
    let mut running =
        gate.start("uname; echo ready; read -r go; uname; echo again; read -r go; uname");
    running.wait_for("ready");
    gate.write_rules("prefix_rule([\"uname\"], \"deny\", justification = \"new rules\")");
    gate.policyd(|policyd| {
        policyd.signal("HUP");
        policyd.wait_for_log("new rules are in force");
    });
    running.tell("go");
    running.wait_for("again");
    gate.write_rules("prefix_rule(");
    gate.policyd(|policyd| {
        policyd.signal("HUP");
        policyd.wait_for_log("the last good rules");
    });
    running.tell("go");
    let done = running.done();
    done.exits(1)
        .prints("Linux\nready\nagain\n")
        .says_times(2, "Execution denied: new rules\n");
    let execs = gate.audit();
    assert_eq!(
        verdicts(&execs),
        ["uname escalate", "uname deny", "uname deny"]
    );
    assert_ne!(
        execs[0].text("policy_revision"),
        execs[1].text("policy_revision")
    );
}

fn a_session_that_ends_without_its_service_says_what_is_lost(shell: &Shell) {
    let gate = Gate::with_rules(shell, RULES).option(["--verdict-timeout", "3s"]);
    let mut running = gate.start("/bin/true; echo ready; read -r go; exit 4");
    running.wait_for("ready");
    gate.kill_policyd();
    running.tell("go");
    running.done().exits(4).says("WARN").says("events");
}

/// The question that the first had when it was stopped is answered by the second, within the default
/// deadline; and so is that of a gate that starts while the first stands still.
fn a_service_that_stands_still_is_left_for_the_next(shell: &Shell) {
    let second = Gate::with_rules(shell, RULES);
    let first = Gate::with_rules(shell, RULES).option(["--policy", second.url()]);
    let running = asked_in_vain(&first, "/bin/echo x");
    running.done().exits(0).prints("ready\nx\n0\nend\n");
    first.exec("/bin/echo y").exits(0).prints("y\n");
    first.policyd(|policyd| policyd.signal("CONT"));
    // What the first didn't acknowledge is there as well.
    let execs = verdicts(&second.audit());
    assert!(
        execs.ends_with(&["echo run".into(), "echo run".into()]),
        "{execs:?}"
    );
}

fn rolling_restarts_deny_nothing(shell: &Shell) {
    const EXECS: usize = 300;
    let gate = Gate::with_rules_on_a_socket(shell, RULES);
    let script =
        format!("i=0; while [ $i -lt {EXECS} ]; do /bin/echo $i || exit 9; i=$((i+1)); done");
    let running = gate.start(&script);
    for _ in 0..6 {
        let before = running.stdout().len();
        gate.restart_policyd();
        wait_until("the loop goes on", || {
            running.stdout().len() > before || running.is_over()
        });
    }
    let expected: String =
        (0..EXECS).fold(String::new(), |text, number| text + &format!("{number}\n"));
    let done = running.done();
    done.exits(0).prints(&expected);
    let execs = gate.audit();
    assert_eq!(execs.len(), EXECS);
    assert!(
        execs
            .iter()
            .all(|exec| exec.text("verdict") == "run" && exec.text("code") == "verdict")
    );
}

#[test]
fn waiting_is_over_when_the_asker_dies() {
    crate::machine::in_shell("bash", |shell| {
        let gate = Gate::with_rules(shell, RULES)
            .option(["--verdict-timeout", "300s"])
            .option(["--metrics", "127.0.0.1:0", "--log", "info"]);
        let marker = marker("dies");
        let mut running = asked_in_vain(&gate, &format!("/bin/echo {marker}"));
        // That the asker is there doesn't say yet that it has asked.
        let numbers = metrics::address(&mut running);
        wait_until("a question", || {
            let answer = metrics::ask(&numbers, "GET /metrics");
            metrics::number(&answer, "execgate_link_execs_waiting") == Some(1.0)
        });
        let asker = std::fs::read_dir("/proc")
            .expect("/proc")
            .find_map(|entry| {
                let entry = entry.ok()?;
                let line = std::fs::read(entry.path().join("cmdline")).ok()?;
                let line = String::from_utf8_lossy(&line).into_owned();
                let is_it = line.contains("execgate-wrapper") && line.contains(&marker);
                is_it.then(|| {
                    entry
                        .file_name()
                        .to_str()
                        .and_then(|name| name.parse().ok())
                })?
            });
        signal(asker.expect("the asker"), "KILL");
        wait_until("no question", || !is_asking(&marker));
        assert!(!is_running(&marker));
        gate.policyd(|policyd| policyd.signal("CONT"));
        running.done().exits(0).prints("ready\n137\nend\n");
        assert_eq!(gate.audit()[1].text("withdrawn"), "asker-gone");
    });
}
