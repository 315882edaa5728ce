//! What a gate says of its sandbox: rules act on it, and the record, operators and auditors have it.

use serde_json::Value;

use crate::gate::Gate;
use crate::machine::Shell;
use crate::process::{self, wait_until};

/// Refuses all that isn't wholly enforced.
const STRICT: &str = r#"
def decide(exec):
    sandbox = exec.sandbox
    if sandbox.enforcement != "full":
        return deny("a whole sandbox is needed: %s is %s: %s" % (sandbox.backend, sandbox.enforcement, ", ".join(sandbox.not_enforced)))
    return run()
"#;

const OWN: &str = "command:env OWN=1 {command}";

#[test]
fn a_rule_refuses_a_gate_whose_sandbox_is_not_wholly_enforced() {
    let Some(shell) = Shell::find("bash") else {
        return;
    };
    let with = |backend: &'static str| Gate::with_rules(&shell, STRICT).in_sandbox(backend);
    with("none")
        .exec("uname")
        .exits(1)
        .says("a whole sandbox is needed: none is none: ");
    with(OWN)
        .option(["--accept-partial-sandbox"])
        .exec("uname")
        .exits(1)
        .says("a whole sandbox is needed: command is partial: nobody but its owner knows");
    let whole = execgate::sandbox::Landlock::find().is_ok_and(|found| found.lacking.is_empty());
    if whole {
        with("landlock").exec("uname").exits(0).prints("Linux\n");
    }
}

#[test]
fn what_a_gate_says_of_its_sandbox_is_kept_and_shown() {
    let Some(shell) = Shell::find("bash") else {
        return;
    };
    let gate = Gate::with_operators(&shell, "fallback(\"run\")", &["ada"])
        .in_sandbox(OWN)
        .option(["--accept-partial-sandbox", "--hide", "/etc/none"]);
    let mut running = gate.start("/bin/echo ready; read line");
    running.wait_for("ready");
    let list = |output: &str| {
        let arguments = ["sessions", "list", "--output", output];
        process::run(&mut gate.operate("ada.token", &arguments))
            .exits(0)
            .output()
    };
    let session: Value = serde_json::from_str(&list("json")).expect("JSON");
    let info = &session["sandbox_info"];
    assert_eq!(info["backend"], "command", "{session}");
    assert_eq!(info["enforcement"], "partial", "{session}");
    assert_eq!(info["profile"], "default (changed)", "{session}");
    let lacking = info["not_enforced"][0].as_str().expect("text");
    assert!(lacking.contains("nobody but its owner knows"), "{session}");
    assert!(list("text").contains("command (partial)"), "{session}");
    running.tell("");
    running.done().exits(0);

    // From the record, when neither the session nor the service is there any more.
    let id = session["session"].as_str().expect("an id");
    wait_until("the end on record", || {
        gate.list(&["--session", id])
            .first()
            .is_some_and(|exec| exec.number("exit_code") == Some(0))
    });
    gate.kill_policyd();
    let mut audit = std::process::Command::new(process::EXECGATE);
    audit
        .args(["audit", "--tree", "--session", id, "--data"])
        .arg(gate.path("data"));
    let tree = process::run(&mut audit).exits(0).output();
    assert!(
        tree.contains("sandbox command (partial), profile default (changed)"),
        "{tree}"
    );
    assert!(
        tree.contains("\n  not enforced: nobody but its owner knows"),
        "{tree}"
    );
}
