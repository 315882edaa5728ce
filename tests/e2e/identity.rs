//! A gate that shows who it is: what its user, its session and its operator see of that.

use std::os::unix::fs::PermissionsExt;

use crate::gate::{Gate, verdicts};
use crate::machine::{Shell, in_both_shells};
use crate::process;

const RULES: &str = r#"
prefix_rule(["env"])
def decide(exec):
    if exec.name == "true" and exec.gate == "token:ci-7":
        return run(name = "ci may")
"#;

/// The line of the token `t`.
const TOKENS: &str = "ci-7 e3b98a4da31a127d4bde6e43033f66ba274cab0eb7eb1c70ec41402bf6273dd8\n";

in_both_shells! {
    rules_and_audit_know_a_gate_by_its_token_and_its_session_does_not,
}

fn rules_and_audit_know_a_gate_by_its_token_and_its_session_does_not(shell: &Shell) {
    let gate = Gate::with_tokens(shell, RULES, TOKENS);
    let token = gate.path("token");
    std::fs::write(&token, "t\n").expect("a file");
    let set_mode = |mode| {
        let mode = std::fs::Permissions::from_mode(mode);
        std::fs::set_permissions(&token, mode).expect("a mode");
    };
    set_mode(0o600);
    let exec = |script: &str| {
        let mut command = gate.command(script);
        command.env("EXECGATE_POLICY_TOKEN_FILE", &token);
        command.env("EXECGATE_POLICY_UID", "7");
        process::run(&mut command)
    };
    let done = exec("/usr/bin/env; /bin/true && echo done");
    let output = done.exits(0).output();
    assert!(output.contains("\ndone\n"), "{done}");
    assert!(!output.contains("EXECGATE_POLICY_"), "{done}");
    let known = gate.list(&["--gate", "token:ci-7"]);
    assert_eq!(verdicts(&known), ["env run", "true run"]);
    assert!(gate.list(&["--gate", "anonymous"]).is_empty());

    // Without it nothing runs, and the user reads why.
    let done = gate.exec("/bin/true");
    done.exits(1)
        .says("Execution denied: the policy service refuses this gate: ")
        .says("asks for a token, and none is shown");
    // The gate's owner reads what to do.
    assert!(
        done.errors().contains("EXECGATE_POLICY_TOKEN_FILE"),
        "{done}"
    );
    std::fs::write(&token, "another\n").expect("a file");
    exec("/bin/true")
        .exits(1)
        .says("Execution denied: the policy service refuses this gate: ")
        .says("the token isn't one that the policy service knows")
        .says("WARN the policy service refuses this gate: ")
        .says("EXECGATE_POLICY_TOKEN_FILE");
    set_mode(0o644);
    exec("/bin/true").exits(125).says("chmod 600");
}
