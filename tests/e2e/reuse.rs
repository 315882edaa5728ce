//! Verdicts that are given for reuse: what they decide, what they don't, and that each use is told.

use execgate::pb::v1::session_request::Event;
use execgate::pb::v1::session_response::Answer;
use execgate::pb::v1::verdict::Decision;
use execgate::pb::v1::{Reuse, ReuseScope, Run, Verdict};

use crate::gate::{Exec, Gate, verdicts};
use crate::machine::{Shell, in_both_shells};
use crate::peer::Peer;

in_both_shells! {
    a_verdict_is_used_again_for_the_same_command_only,
    a_verdict_for_a_prefix_is_used_for_whatever_begins_so,
    a_program_that_has_changed_is_asked_about_again,
    each_kind_of_verdict_can_be_used_again,
    new_rules_end_the_use_of_old_verdicts,
    a_verdict_of_a_new_revision_ends_the_use_of_those_before,
    a_verdict_for_reuse_holds_while_the_service_is_away,
    the_owner_may_have_each_exec_asked_about,
}

/// The codes of the decisions on a program's execs, in order.
fn codes(execs: &[Exec], name: &str) -> Vec<String> {
    let of_program = execs.iter().filter(|exec| exec.name() == name);
    of_program
        .map(|exec| exec.text("code").to_owned())
        .collect()
}

fn a_verdict_is_used_again_for_the_same_command_only(shell: &Shell) {
    let rules = "prefix_rule([\"expr\"], \"run\", name = \"sums\", reuse = \"10m\")";
    let gate = Gate::with_rules(shell, rules);
    // A directory's change leaves the environment's names as they are, so that it counts by itself.
    gate.exec(
        "cd .; export PWD OLDPWD; expr 1; expr 1; expr 2; EXTRA= expr 1; cd /; expr 1; expr 1",
    )
    .exits(0)
    .prints("1\n1\n2\n1\n1\n1\n");
    let execs = gate.audit();
    let [asked, reused] = ["verdict", "reused"];
    assert_eq!(
        codes(&execs, "expr"),
        [asked, reused, asked, asked, asked, reused]
    );
    let [there, elsewhere] = [&execs[0], &execs[4]];
    assert_eq!(
        there.0["environment_names"],
        elsewhere.0["environment_names"]
    );
    assert_ne!(there.text("workdir"), elsewhere.text("workdir"));
    // What is told of an exec that wasn't asked about is the same.
    let [first, second] = [&execs[0], &execs[1]];
    for field in ["program", "argv", "workdir", "user_id", "environment_names"] {
        assert_eq!(first.0[field], second.0[field], "{field}");
    }
    for exec in [first, second] {
        assert_eq!(exec.text("rule"), "sums");
        assert_eq!(exec.text("verdict"), "run");
    }
    assert_eq!(second.number("exec_id"), Some(2));
    // The same holds of argument zero: `exec` by itself has other names than a command.
    gate.exec("(exec expr 1); (exec expr 1); (exec -a other expr 1); (exec -a other expr 1)")
        .exits(0)
        .prints("1\n1\n1\n1\n");
    let execs = gate.audit();
    assert_eq!(codes(&execs, "expr"), [asked, reused, asked, reused]);
    assert_eq!(
        execs[1].0["environment_names"],
        execs[2].0["environment_names"]
    );
}

fn a_verdict_for_a_prefix_is_used_for_whatever_begins_so(shell: &Shell) {
    let rules = r#"
prefix_rule(["expr", ["1", "2"]], "run", reuse = "10m", reuse_scope = "prefix")
prefix_rule(["expr", "3"], "run")
"#;
    let gate = Gate::with_rules(shell, rules);
    // In any directory, as long as the environment's names are the same.
    gate.exec(
        "cd .; export PWD OLDPWD; expr 1 + 1; expr 1 + 2; cd /; expr 1 + 3; expr 2; expr 2 + 1; expr 3; expr 3",
    )
    .exits(0)
    .prints("2\n3\n4\n2\n3\n3\n3\n");
    let [asked, reused] = ["verdict", "reused"];
    assert_eq!(
        codes(&gate.audit(), "expr"),
        [asked, reused, reused, asked, reused, asked, asked]
    );
}

fn a_program_that_has_changed_is_asked_about_again(shell: &Shell) {
    let rules = "def decide(exec):\n    return run(reuse = \"10m\")\n";
    let gate = Gate::with_rules(shell, rules);
    gate.exec(
        "/bin/cp /bin/echo tool; ./tool a; ./tool a
         /bin/touch -r /bin/echo tool; ./tool a; ./tool a
         /bin/cp -p tool other; /bin/mv other tool; ./tool a; ./tool a
         /bin/ln -s tool link; ./link a; ./link a; ./link a
         /bin/ln -sf /bin/false link; ./link a",
    )
    .exits(1)
    .prints(&"a\n".repeat(9));
    let execs = gate.audit();
    let twice = |times: usize| ["verdict", "reused"].repeat(times);
    assert_eq!(codes(&execs, "tool"), twice(3));
    // The kernel may have to note first that a link was followed, which isn't done without waiting.
    let link = codes(&execs, "link");
    assert_eq!(link.len(), 4);
    assert_eq!(
        [&link[0], &link[2], &link[3]],
        ["verdict", "reused", "verdict"]
    );
}

fn each_kind_of_verdict_can_be_used_again(shell: &Shell) {
    let rules = r#"
prefix_rule(["expr"], "escalate", reuse = "10m")
prefix_rule(["date"], "deny", justification = "No clocks here.", reuse = "10m")
"#;
    let gate = Gate::with_rules(shell, rules);
    let done = gate.exec("for i in 1 2; do expr 0; echo $?; date; echo $?; done");
    done.exits(0)
        .prints("0\n1\n1\n0\n1\n1\n")
        .says_times(2, "Execution denied: No clocks here.");
    let execs = gate.audit();
    assert_eq!(
        verdicts(&execs),
        ["expr escalate", "date deny", "expr escalate", "date deny"]
    );
    for name in ["expr", "date"] {
        assert_eq!(codes(&execs, name), ["verdict", "reused"], "{name}");
    }
    assert_eq!(execs[2].number("exit_code"), Some(1));
}

fn new_rules_end_the_use_of_old_verdicts(shell: &Shell) {
    let gate = Gate::with_rules(shell, "prefix_rule([\"expr\"], \"run\", reuse = \"10m\")");
    let mut running = gate.start(
        "expr 1; expr 1; read -r go
         for i in {1..100000}; do expr 1 > /dev/null 2>&1 || break; done; echo end",
    );
    running.wait_for("1\n1\n");
    gate.write_rules("prefix_rule([\"expr\"], \"deny\")");
    gate.policyd(|policyd| policyd.wait_for_log("new rules are in force"));
    running.tell("go");
    running.done().exits(0).prints("1\n1\nend\n");
    let execs = gate.audit();
    let last = execs.last().expect("an exec");
    assert_eq!(
        (last.text("verdict"), last.text("code")),
        ("deny", "verdict")
    );
    assert_eq!(codes(&execs, "expr")[..2], ["verdict", "reused"]);
}

/// Tells which programs it is asked about, and says nothing but verdicts: for `date` by new rules.
async fn answer_by_revisions(mut peer: Peer) -> Vec<String> {
    let mut asked = Vec::new();
    let mut call = peer.call().await;
    while let Some(event) = call.event().await {
        let Some(Event::ExecRequested(question)) = event.event else {
            continue;
        };
        let program = String::from_utf8_lossy(&question.file).into_owned();
        let name = program.rsplit('/').next().unwrap_or_default();
        let revision = if name == "date" { "new" } else { "old" };
        asked.push(name.to_owned());
        call.answer(Answer::Verdict(Verdict {
            exec_id: question.exec_id,
            decision: Some(Decision::Run(Run {})),
            policy_revision: revision.to_owned(),
            reuse: Some(Reuse {
                valid_for: Some(prost_types::Duration {
                    seconds: 600,
                    nanos: 0,
                }),
                scope: ReuseScope::SameExec.into(),
                ..Reuse::default()
            }),
            ..Verdict::default()
        }))
        .await;
    }
    asked
}

fn a_verdict_of_a_new_revision_ends_the_use_of_those_before(shell: &Shell) {
    let gate = Gate::with_script(shell, answer_by_revisions);
    gate.exec("expr 1; expr 1; date >/dev/null; expr 1")
        .exits(0)
        .prints("1\n1\n1\n");
    assert_eq!(gate.told(), ["expr", "date", "expr"]);
}

fn a_verdict_for_reuse_holds_while_the_service_is_away(shell: &Shell) {
    let rules = "prefix_rule([\"expr\"], \"run\", reuse = \"10m\")";
    let gate = Gate::with_rules_on_a_socket(shell, rules).option(["--verdict-timeout", "500ms"]);
    let mut running = gate.start("expr 1; read -r go; expr 1; expr 2; read -r go; expr 1");
    running.wait_for("1\n");
    gate.kill_policyd();
    running.tell("go");
    running.wait_for("1\n1\n");
    crate::process::wait_until("a denial", || running.stderr().contains("Execution denied"));
    gate.restart_policyd();
    running.tell("go");
    running.done().exits(0).prints("1\n1\n1\n");
    assert_eq!(
        codes(&gate.audit(), "expr"),
        ["verdict", "reused", "unreachable", "reused"]
    );
}

fn the_owner_may_have_each_exec_asked_about(shell: &Shell) {
    let rules = "prefix_rule([\"expr\"], \"run\", reuse = \"10m\")";
    let gate = Gate::with_rules(shell, rules).option(["--reuse-limit", "0"]);
    gate.exec("expr 1; expr 1").exits(0).prints("1\n1\n");
    assert_eq!(codes(&gate.audit(), "expr"), ["verdict", "verdict"]);
}
