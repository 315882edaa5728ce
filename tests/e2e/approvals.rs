//! What waits for a person: approved, denied, expired, withdrawn, remembered; and sessions that are ended.

use serde_json::Value;

use crate::gate::Gate;
use crate::machine::{Shell, in_both_shells};
use crate::process::{self, Done, Running, wait_until};

const RULES: &str = r#"
prefix_rule(["uname"], "ask", name = "kernel", justification = "It tells what runs here.",
            asks = "the security team", within = "10m")
prefix_rule(["date"], "ask", execution = "unsandboxed", within = "10m")
prefix_rule(["id"], "prompt", within = "1s", name = "hasty")
prefix_rule(["sleep"], "deny")
fallback("run")
"#;

in_both_shells! {
    an_approved_command_goes_on_and_the_record_says_who_approved_it,
    a_denied_command_says_who_denied_it_and_why,
    what_nobody_decides_in_time_is_denied_with_a_code_of_its_own,
    a_command_that_is_ended_while_it_waits_withdraws_its_approval,
    whoever_is_second_changes_nothing_and_learns_who_was_first,
    of_two_who_decide_at_once_one_does,
    a_gate_that_is_killed_while_it_waits_leaves_nothing_that_runs,
    a_service_that_starts_anew_has_the_approvals_that_were_open,
    a_decision_for_a_session_is_remembered_until_it_is_forgotten,
    a_decision_for_a_prefix_covers_what_begins_so_and_no_more,
    no_gate_decides_and_no_operator_is_a_gate,
    an_operator_ends_a_session_for_good,
    without_operators_nobody_is_asked,
    what_waits_for_a_person_is_on_record_as_pending_and_then_with_who_decided,
    a_rule_that_is_only_monitored_asks_nobody,
    whoever_waits_at_a_terminal_is_told_for_whom_and_nobody_else_is,
    more_words_than_anybody_judges_are_denied_and_wait_for_nobody,
}

pub(crate) fn gate(shell: &Shell) -> Gate {
    Gate::with_operators(shell, RULES, &["ada", "bob"])
}

pub(crate) fn ada(gate: &Gate, arguments: &[&str]) -> Done {
    process::run(&mut gate.operate("ada.token", arguments))
}

fn approvals(gate: &Gate, state: &str) -> Vec<Value> {
    let done = ada(
        gate,
        &["approvals", "list", "--state", state, "--output", "json"],
    );
    let output = done.exits(0).says_nothing().output();
    let read = |line: &str| serde_json::from_str(line).expect("JSON");
    output.lines().map(read).collect()
}

/// The one approval that is open, once there is one.
#[track_caller]
pub(crate) fn pending(gate: &Gate) -> Value {
    let mut found = Vec::new();
    wait_until("an approval", || {
        found = approvals(gate, "pending");
        !found.is_empty()
    });
    assert_eq!(found.len(), 1, "{found:?}");
    found.remove(0)
}

pub(crate) fn id(approval: &Value) -> &str {
    approval["approval"].as_str().expect("an id")
}

fn show(gate: &Gate, id: &str) -> Value {
    let done = ada(gate, &["approvals", "show", id, "--output", "json"]);
    serde_json::from_str(&done.exits(0).output()).expect("JSON")
}

fn an_approved_command_goes_on_and_the_record_says_who_approved_it(shell: &Shell) {
    let gate = gate(shell).option(["--label", "job=42"]);
    let running = gate.start("uname -s; date +%Y; echo status $?");
    let approval = pending(&gate);
    assert_eq!(approval["argv"], serde_json::json!(["uname", "-s"]));
    assert_eq!(approval["rule"], "kernel");
    assert_eq!(approval["reason"], "It tells what runs here.");
    assert_eq!(approval["asked"], "the security team");
    assert_eq!(approval["labels"]["job"], "42");
    assert_eq!(approval["effect"], "run inside the sandbox");
    assert!(
        approval["gate"]
            .as_str()
            .is_some_and(|gate| gate.starts_with("uid:"))
    );
    let table = ada(&gate, &["approvals", "list"]);
    assert!(table.exits(0).output().contains("uname -s"), "{table}");
    ada(
        &gate,
        &["approvals", "approve", id(&approval), "--note", "fine"],
    )
    .exits(0);
    let mut second = Value::Null;
    wait_until("the second approval", || {
        let found = approvals(&gate, "pending");
        second = found.first().cloned().unwrap_or_default();
        second["rule"] != Value::Null && second["rule"] != "kernel"
    });
    assert_eq!(second["effect"], "run outside of any sandbox");
    ada(&gate, &["approvals", "approve", id(&second)]).exits(0);
    let done = running.done();
    assert!(done.exits(0).output().starts_with("Linux\n20"), "{done}");
    assert!(done.output().ends_with("status 0\n"), "{done}");

    let shown = show(&gate, id(&approval));
    assert_eq!(
        (&shown["state"], &shown["resolved_by"], &shown["note"]),
        (&"approved".into(), &"operator:ada".into(), &"fine".into())
    );
    let people = ada(&gate, &["approvals", "show", id(&approval)]);
    assert!(
        people.output().contains("decided by   operator:ada"),
        "{people}"
    );
    let execs = gate.audit();
    assert_eq!(
        crate::gate::verdicts(&execs),
        ["uname run", "date escalate"]
    );
    assert_eq!(execs[0].text("reason_code"), "approval.approved");
    assert_eq!(execs[0].text("rule"), "kernel");
}

fn more_words_than_anybody_judges_are_denied_and_wait_for_nobody(shell: &Shell) {
    let gate = gate(shell);
    // Empty ones, so that they have few bytes.
    let done =
        gate.exec("a=(); for i in {1..5000}; do a+=(''); done; uname \"${a[@]}\"; echo status $?");
    done.exits(0).prints("status 1\n");
    done.says("the command has 5001 arguments, and a person is asked about 4096 at most");
    assert!(approvals(&gate, "pending").is_empty());
    let execs = gate.audit();
    assert_eq!(execs[0].text("reason_code"), "approval.too_long");
}

fn a_denied_command_says_who_denied_it_and_why(shell: &Shell) {
    let gate = gate(shell);
    let running = gate.start("uname; echo status $?");
    let approval = pending(&gate);
    ada(
        &gate,
        &[
            "approvals",
            "deny",
            id(&approval),
            "--note",
            "not \u{1b}[2Jtoday",
        ],
    )
    .exits(0);
    let done = running.done();
    done.exits(0).prints("status 1\n");
    done.says("Execution denied: denied by operator:ada: not ");
    assert!(!done.errors().contains('\u{1b}'), "{done}");
    let execs = gate.audit();
    assert_eq!(execs[0].text("reason_code"), "approval.denied");
}

fn what_nobody_decides_in_time_is_denied_with_a_code_of_its_own(shell: &Shell) {
    let gate = gate(shell);
    let done = gate.exec("id; echo status $?");
    done.exits(0).prints("status 1\n");
    done.says("nobody approved it within 1s (approval ");
    let execs = gate.audit();
    assert_eq!(execs[0].text("reason_code"), "approval.expired");
    let expired = approvals(&gate, "expired");
    assert_eq!(expired.len(), 1);
    // Too late is harmless.
    let done = ada(&gate, &["approvals", "approve", id(&expired[0])]);
    assert!(
        done.exits(3).output().contains("was expired before"),
        "{done}"
    );
}

fn a_command_that_is_ended_while_it_waits_withdraws_its_approval(shell: &Shell) {
    let gate = gate(shell);
    let mut running = gate
        .start("uname & p=$!; read line; kill -INT $p; kill $p; wait $p; echo ended; read line");
    let approval = pending(&gate);
    running.tell("go");
    running.wait_for("ended");
    wait_until("it is withdrawn", || approvals(&gate, "pending").is_empty());
    let shown = show(&gate, id(&approval));
    assert_eq!(shown["state"], "withdrawn");
    assert_eq!(shown["note"], "the process that asked is gone");
    ada(&gate, &["approvals", "approve", id(&approval)]).exits(3);
    running.tell("go");
    running.done().exits(0);
}

fn whoever_is_second_changes_nothing_and_learns_who_was_first(shell: &Shell) {
    let gate = gate(shell);
    let running = gate.start("uname");
    let approval = pending(&gate);
    let resolve = |token: &str, what: &str| {
        process::run(&mut gate.operate(token, &["approvals", what, id(&approval)]))
    };
    resolve("ada.token", "approve").exits(0);
    running.done().exits(0).prints("Linux\n");
    let done = resolve("bob.token", "deny");
    assert!(
        done.exits(3)
            .output()
            .contains("was approved by operator:ada before"),
        "{done}"
    );
    // What was wanted is so.
    let done = resolve("bob.token", "approve");
    assert!(done.exits(0).output().contains("by operator:ada"), "{done}");
    let done = ada(&gate, &["approvals", "approve", "00000000"]);
    done.exits(4).says("no approval 00000000");
}

fn of_two_who_decide_at_once_one_does(shell: &Shell) {
    let gate = gate(shell);
    for _ in 0..4 {
        let running = gate.start("uname");
        let approval = pending(&gate);
        let mut both: Vec<_> = [("ada.token", "approve"), ("bob.token", "deny")]
            .map(|(token, what)| {
                Running::start(&mut gate.operate(token, &["approvals", what, id(&approval)]))
            })
            .into_iter()
            .map(|running| running.done().status.code())
            .collect();
        let is_approved = both[0] == Some(0);
        both.sort_unstable();
        assert_eq!(both, [Some(0), Some(3)]);
        let done = running.done();
        assert_eq!(done.status.success(), is_approved, "{done}");
    }
}

fn a_gate_that_is_killed_while_it_waits_leaves_nothing_that_runs(shell: &Shell) {
    let gate = gate(shell);
    let running = gate.start("uname; touch went-on");
    let approval = pending(&gate);
    running.signal("KILL");
    drop(running);
    // Nobody waits; to decide it is harmless.
    ada(&gate, &["approvals", "approve", id(&approval)]).exits(0);
    assert!(!gate.path("work/went-on").exists());
    wait_until("it is gone", || {
        let done = ada(&gate, &["sessions", "list"]);
        done.exits(0).output() == "none\n"
    });
}

fn a_service_that_starts_anew_has_the_approvals_that_were_open(shell: &Shell) {
    let gate = gate(shell);
    let running = gate.start("uname; date +same; uname -s; echo end");
    let approval = pending(&gate);
    gate.restart_policyd();
    // The gate has come back and asked again when the session is connected.
    wait_until("the gate is back", || {
        ada(&gate, &["sessions", "list"]).output().contains("uid:")
    });
    assert_eq!(id(&pending(&gate)), id(&approval));
    ada(&gate, &["approvals", "approve", id(&approval)]).exits(0);
    let mut second = Value::Null;
    wait_until("the second approval", || {
        second = approvals(&gate, "pending").pop().unwrap_or_default();
        second["approval"].is_string()
    });
    // Killed, so that it can't even write anything down.
    gate.kill_policyd();
    gate.restart_policyd();
    assert_eq!(id(&pending(&gate)), id(&second));
    assert_eq!(show(&gate, id(&approval))["resolved_by"], "operator:ada");
    // Decided while the gate may still be away: it gets the verdict when it asks again.
    ada(&gate, &["approvals", "approve", id(&second)]).exits(0);
    let mut third = Value::Null;
    wait_until("the third approval", || {
        third = approvals(&gate, "pending").pop().unwrap_or_default();
        third["approval"].is_string()
    });
    // By other rules nobody is asked any more, and the gate, which asks again, gets its verdict.
    gate.kill_policyd();
    gate.write_rules("fallback(\"run\")");
    gate.restart_policyd();
    running.done().exits(0).prints("Linux\nsame\nLinux\nend\n");
    let shown = show(&gate, id(&third));
    assert_eq!(
        (&shown["state"], &shown["note"]),
        (&"withdrawn".into(), &"the rules ask no longer".into()),
        "{shown}"
    );
}

fn a_decision_for_a_session_is_remembered_until_it_is_forgotten(shell: &Shell) {
    let gate = gate(shell);
    let mut running = gate.start("uname; uname; cd ..; read line; uname; echo status $?");
    let approval = pending(&gate);
    let arguments = [
        "approvals",
        "approve",
        id(&approval),
        "--scope",
        "session",
        "--for",
        "1h",
    ];
    ada(&gate, &arguments).exits(0);
    running.wait_for("Linux\nLinux\n");
    let remembered = ada(&gate, &["approvals", "remembered"]);
    assert!(
        remembered.exits(0).output().contains("operator:ada"),
        "{remembered}"
    );
    let used = || {
        let shown = ada(
            &gate,
            &["approvals", "show", id(&approval), "--output", "json"],
        );
        let shown: Value = serde_json::from_str(shown.exits(0).output().trim()).expect("JSON");
        shown["remembered"]["uses"].clone()
    };
    assert_eq!(used(), 1);
    // Another directory is another command.
    running.tell("go");
    let second = pending(&gate);
    assert_ne!(id(&second), id(&approval));
    ada(&gate, &["approvals", "forget", id(&approval)]).exits(0);
    ada(&gate, &["approvals", "forget", id(&approval)]).exits(4);
    assert_eq!(used(), Value::Null);
    ada(&gate, &["approvals", "deny", id(&second)]).exits(0);
    running.done().exits(0).prints("Linux\nLinux\nstatus 1\n");
    let execs = gate.audit();
    assert_eq!(execs[0].text("reason_code"), "approval.approved");
    assert_eq!(execs[1].text("reason_code"), "approval.remembered");
    // And nothing is remembered beyond the session, or by another.
    let running = gate.start("uname");
    let third = pending(&gate);
    ada(&gate, &["approvals", "deny", id(&third)]).exits(0);
    running.done().exits(1);
}

fn a_decision_for_a_prefix_covers_what_begins_so_and_no_more(shell: &Shell) {
    let gate = gate(shell);
    let running = gate.start("uname -s -s; cd ..; uname -s -r > /dev/null; echo more; uname -r");
    let approval = pending(&gate);
    let with = |more: &[&'static str]| {
        let id = id(&approval).to_owned();
        let arguments = [&["approvals", "approve", &id][..], more].concat();
        ada(&gate, &arguments)
    };
    with(&["--for", "1h"]).exits(2).says("--scope");
    with(&["--scope", "session", "--for", "1000years"])
        .exits(2)
        .says("365d");
    // Before anybody is asked: in words that the service doesn't use, and where there is none.
    with(&["--scope", "gate", "--prefix", "1"])
        .exits(2)
        .says("--scope gate: say for how long it holds, such as --for 8h");
    let mut nowhere = std::process::Command::new(process::EXECGATE);
    nowhere.args(["approvals", "approve", "00000000", "--scope", "gate"]);
    nowhere.args(["--service", "http://127.0.0.1:1"]);
    gate.settle(&mut nowhere);
    process::run(&mut nowhere).exits(2).says("--for 8h");
    with(&["--scope", "session", "--prefix", "3"])
        .exits(2)
        .says("2 arguments");
    with(&["--scope", "session", "--for", "25h"])
        .exits(2)
        .says("at most");
    with(&["--scope", "gate", "--prefix", "1", "--for", "1h"]).exits(0);
    let second = pending(&gate);
    assert_eq!(second["argv"], serde_json::json!(["uname", "-r"]));
    ada(&gate, &["approvals", "deny", id(&second)]).exits(0);
    running.done().exits(1).prints("Linux\nmore\n");
    // It holds for other sessions of this gate, also after the service was started anew.
    gate.restart_policyd();
    gate.exec("uname -s").exits(0).prints("Linux\n");
}

fn no_gate_decides_and_no_operator_is_a_gate(shell: &Shell) {
    let directory = crate::gate::directory();
    let token = directory.path().join("gate.token");
    let mut command = std::process::Command::new(process::EXECGATE);
    command.args(["token", "ci-7", "--write"]).arg(&token);
    let line = process::run(&mut command).exits(0).output();
    let gate = Gate::with_operators(shell, RULES, &["ada"]);
    std::fs::write(gate.path("tokens"), line).expect("a file");
    std::fs::copy(&token, gate.path("gate.token")).expect("a copy");
    gate.restart_policyd();
    for command in [
        &["approvals", "list"][..],
        &["approvals", "approve", "00000000"],
        &["approvals", "watch"],
        &["approvals", "remembered"],
        &["sessions", "list"],
        &["sessions", "terminate", "00000000000000000000000000000000"],
    ] {
        let done = process::run(&mut gate.operate("gate.token", command));
        done.exits(5).says("operator's token");
    }
    let as_gate = |name: &str| {
        let mut command = gate.command("/bin/echo ran");
        command.env("EXECGATE_POLICY_TOKEN_FILE", gate.path(name));
        process::run(&mut command)
    };
    as_gate("gate.token").exits(0).prints("ran\n");
    as_gate("ada.token")
        .exits(1)
        .prints("")
        .says("Execution denied");
    assert_eq!(gate.audit().len(), 1);
    // An operator whose line is taken out is none any more.
    std::fs::write(gate.path("operators"), "eve ".to_owned() + &"0".repeat(64)).expect("a file");
    wait_until("the token is refused", || {
        ada(&gate, &["approvals", "list"]).status.code() == Some(5)
    });
}

fn an_operator_ends_a_session_for_good(shell: &Shell) {
    let gate = gate(shell).option(["--label", "job=9"]);
    let mut running = gate.start("/bin/echo first; uname; read line; /bin/echo never");
    running.wait_for("first");
    let approval = pending(&gate);
    let done = ada(&gate, &["sessions", "list", "--output", "json"]);
    let session: Value = serde_json::from_str(&done.exits(0).output()).expect("JSON");
    assert_eq!(
        (&session["labels"]["job"], &session["pending_approvals"]),
        (&"9".into(), &1.into())
    );
    let session = session["session"].as_str().expect("an id").to_owned();
    let arguments = ["sessions", "terminate", &session[..8], "--reason", "lunch"];
    let done = ada(&gate, &arguments);
    assert!(
        done.exits(0).output().contains("ended by operator:ada"),
        "{done}"
    );
    let done = running.done();
    assert!(!done.status.success(), "{done}");
    done.prints("first\n").says("ended by operator:ada: lunch");
    wait_until("its approval is closed", || {
        show(&gate, id(&approval))["state"] == "withdrawn"
    });
    wait_until("who ended it is on record", || {
        let mut command = std::process::Command::new(process::EXECGATE);
        let done = process::run(
            command
                .args(["audit", "--tree", "--data"])
                .arg(gate.path("data")),
        );
        done.exits(0)
            .output()
            .contains("terminated by operator:ada, because: lunch")
    });
    // Again is harmless, and says who was first; also after a restart of the service.
    gate.restart_policyd();
    let command = ["sessions", "terminate", &session];
    let command = [&command[..], &["--reason", "dinner"]].concat();
    let done = process::run(&mut gate.operate("bob.token", &command));
    let said = done.exits(0).output();
    for part in [
        " had ended already, at 20",
        " (terminated), ended by operator:ada at 20",
        ", because: lunch; nothing was changed",
    ] {
        assert!(said.contains(part), "{part}: {said}");
    }
    let command = [&command[..], &["--output", "json"]].concat();
    let done = process::run(&mut gate.operate("bob.token", &command));
    let said: Value = serde_json::from_str(&done.exits(0).output()).expect("JSON");
    assert!(said["ended_at"].is_string(), "{said}");
    let expected = serde_json::json!({
        "outcome": "ended-before",
        "gate_told": false,
        "terminated_by": "operator:ada",
        "reason": "lunch",
        "end_reason": "terminated",
    });
    for (name, value) in expected.as_object().expect("an object") {
        assert_eq!(&said[name], value, "{name}: {said}");
    }
    ada(&gate, &["sessions", "terminate", &"0".repeat(32)]).exits(4);
}

fn what_waits_for_a_person_is_on_record_as_pending_and_then_with_who_decided(shell: &Shell) {
    let gate = gate(shell);
    let running = gate.start("uname; uname; date; id; echo status $?");
    let approval = pending(&gate);
    let mut waiting = Vec::new();
    wait_until("the record of what waits", || {
        waiting = gate.list(&["--verdict", "pending"]);
        !waiting.is_empty()
    });
    let answered = |exec: &crate::gate::Exec| {
        let answered = &exec.0["answered"];
        ["verdict", "approval", "decided_by"].map(|field| answered[field].clone())
    };
    let [exec] = &waiting[..] else {
        panic!("{waiting:?}");
    };
    let first = Value::from(id(&approval));
    assert_eq!(
        answered(exec),
        ["pending".into(), first.clone(), Value::Null]
    );
    assert_eq!(exec.0["verdict"], Value::Null);
    let audit = |options: &[&str]| {
        let mut command = std::process::Command::new(process::EXECGATE);
        command.arg("audit").args(options).arg("--data");
        process::run(command.arg(gate.path("data")))
            .exits(0)
            .output()
    };
    let table = audit(&[]);
    assert!(
        table.contains(&format!("pending ({})", id(&approval))),
        "{table}"
    );

    let remembered = ["approvals", "approve", id(&approval), "--scope", "session"];
    ada(&gate, &remembered).exits(0);
    let mut second = Value::Null;
    wait_until("the second approval", || {
        let found = approvals(&gate, "pending");
        second = found.first().cloned().unwrap_or_default();
        second["rule"] != Value::Null && second["rule"] != "kernel"
    });
    let denied = ["approvals", "deny", id(&second)];
    process::run(&mut gate.operate("bob.token", &denied)).exits(0);
    running.done().exits(0).prints("Linux\nLinux\nstatus 1\n");

    assert_eq!(gate.list(&["--verdict", "pending"]).len(), 0);
    let execs = gate.audit();
    let by = |name: &str| Value::from(format!("operator:{name}"));
    assert_eq!(
        answered(&execs[0]),
        ["run".into(), first.clone(), by("ada")]
    );
    assert_eq!(execs[0].0["answered"]["times"], 2);
    // By the same decision.
    assert_eq!(answered(&execs[1]), ["run".into(), first, by("ada")]);
    let second = Value::from(id(&second));
    assert_eq!(answered(&execs[2]), ["deny".into(), second, by("bob")]);
    // By nobody, in time.
    let [verdict, approval, nobody] = answered(&execs[3]);
    assert_eq!((verdict, nobody), ("deny".into(), Value::Null));
    assert!(approval.is_string());
    let table = audit(&[]);
    for verdict in ["run (operator:ada)", "deny (operator:bob)"] {
        assert!(table.contains(verdict), "{table}");
    }
    assert!(audit(&["verify"]).contains("none was altered"), "{table}");
}

fn a_rule_that_is_only_monitored_asks_nobody(shell: &Shell) {
    let rules = r#"
prefix_rule(["uname"], "ask", name = "kernel", mode = "monitor", within = "1s")
fallback("run")
"#;
    // Were somebody asked, it would be denied soon.
    let gate = Gate::with_operators(shell, rules, &["ada"]);
    gate.exec("uname").exits(0).prints("Linux\n");
    assert_eq!(approvals(&gate, "all"), Vec::<Value>::new());
    let execs = gate.list(&["--verdict", "monitored"]);
    let [exec] = &execs[..] else {
        panic!("{execs:?}");
    };
    let answered = &exec.0["answered"];
    assert_eq!(
        (&exec.0["verdict"], &answered["rule"], &answered["approval"]),
        (&"run".into(), &"kernel".into(), &Value::Null)
    );
}

fn without_operators_nobody_is_asked(shell: &Shell) {
    let gate = Gate::with_rules(shell, RULES);
    let done = gate.exec("uname; echo status $?");
    done.exits(0)
        .prints("status 1\n")
        .says("nobody can be asked");
    assert_eq!(gate.audit()[0].text("reason_code"), "approval.unavailable");
}

fn whoever_waits_at_a_terminal_is_told_for_whom_and_nobody_else_is(shell: &Shell) {
    if !crate::machine::available(
        std::process::Command::new("python3")
            .arg("--version")
            .output()
            .is_ok(),
        "no python3",
    ) {
        return;
    }
    let gate = gate(shell);
    // With standard error elsewhere nothing is said, and it goes on all the same.
    let script = "uname -s $'a\\e[2Jb'; /bin/echo next; uname 2> errors; cat errors; echo end";
    let inner = gate.command(script);
    let mut command = std::process::Command::new("python3");
    command.args([
        "-c",
        "import pty, sys; sys.exit(pty.spawn(sys.argv[1:]) >> 8)",
    ]);
    command.arg(inner.get_program()).args(inner.get_args());
    gate.settle(&mut command);
    let mut running = Running::start(&mut command);
    let first = pending(&gate);
    running.wait_for("execgate: waiting for the security team to approve /usr/bin/uname -s ");
    running.wait_for("(It tells what runs here.)");
    running.wait_for(&format!("approval {}", id(&first)));
    ada(&gate, &["approvals", "deny", id(&first), "--note", "odd"]).exits(0);
    running.wait_for("next");
    let second = pending(&gate);
    // As long as it takes to be told, were it at a terminal.
    std::thread::sleep(std::time::Duration::from_secs(4));
    ada(&gate, &["approvals", "approve", id(&second)]).exits(0);
    let done = running.done();
    let output = done.exits(0).output();
    assert_eq!(output.matches("waiting for").count(), 1, "{done}");
    assert!(!output.contains('\u{1b}'), "{done}");
    assert!(output.ends_with("next\r\nLinux\r\nend\r\n"), "{done}");
}
