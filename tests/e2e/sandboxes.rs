//! `--sandbox bubblewrap`: what runs stays inside, what is escalated doesn't, or not altogether.

use crate::gate::{Gate, directory, verdicts};
use crate::machine::{Shell, in_both_shells};
use crate::stage::bubblewrap;

in_both_shells! {
    what_runs_stays_inside_and_what_is_escalated_does_not,
    an_escalation_by_default_is_as_confined_as_the_session,
    a_profile_allows_what_it_names_and_no_more,
    without_a_sandbox_a_profile_is_refused,
}

/// A gate with a sandbox, where `cp` is decided so; and a directory outside, with a file.
fn sandboxed(shell: &Shell, decision: impl Fn(&str) -> String) -> (Gate, tempfile::TempDir) {
    let outside = directory();
    std::fs::write(outside.path().join("file"), "there\n").expect("a file");
    let path = outside.path().to_str().expect("text");
    let rules = format!(
        "prefix_rule([\"cp\"], {})\nfallback(\"run\")",
        decision(path)
    );
    let gate = Gate::with_rules(shell, &rules).in_sandbox("bubblewrap");
    (gate, outside)
}

fn what_runs_stays_inside_and_what_is_escalated_does_not(shell: &Shell) {
    if !bubblewrap() {
        return;
    }
    let (gate, outside) = sandboxed(shell, |_| "\"escalate\"".to_owned());
    let out = outside.path().display();
    let done = gate.exec(format!(
        "touch {out}/run && echo written; echo x > {out}/redirected || echo not written; cat {out}/file; \
         touch inside && ls; cp inside {out}/escalated && echo copied"
    ));
    done.exits(0)
        .prints("not written\nthere\ninside\ncopied\n")
        .says("Read-only file system");
    let names = |name: &str| outside.path().join(name).exists();
    assert_eq!(
        (names("run"), names("redirected"), names("escalated")),
        (false, false, true)
    );
    assert!(gate.path("work/inside").exists());
    assert_eq!(
        verdicts(&gate.audit()),
        ["touch run", "cat run", "touch run", "ls run", "cp escalate"]
    );

    // No network but its own loopback, no other processes, whichever way a command gets there.
    let done = gate.exec("cat /proc/net/route | wc -l; ls -d /proc/[0-9]* | wc -l");
    let output = done.exits(0).output();
    let counts: Vec<u32> = output
        .lines()
        .map(|line| line.parse().expect("a number"))
        .collect();
    assert!(counts[0] <= 1 && counts[1] < 10, "{done}");
}

fn an_escalation_by_default_is_as_confined_as_the_session(shell: &Shell) {
    if !bubblewrap() {
        return;
    }
    let decision = |_: &str| "\"escalate\", execution = \"turn_default\"".to_owned();
    let (gate, outside) = sandboxed(shell, decision);
    let out = outside.path().display();
    let done = gate.exec(format!("echo x > a; cp a {out}/a || cp a b && cat b"));
    done.exits(0).prints("x\n").says("Read-only file system");
    assert!(!outside.path().join("a").exists());
    assert_eq!(
        verdicts(&gate.audit()),
        ["cp escalate", "cp escalate", "cat run"]
    );
}

fn a_profile_allows_what_it_names_and_no_more(shell: &Shell) {
    if !bubblewrap() {
        return;
    }
    let (gate, outside) = sandboxed(shell, |path| {
        format!("\"escalate\", execution = permissions(network = \"denied\", write = [\"{path}\"])")
    });
    let out = outside.path().display();
    let done = gate.exec(format!(
        "echo x > a; cp a {out}/a && cat {out}/a; cp a b || echo not here"
    ));
    done.exits(0)
        .prints("x\nnot here\n")
        .says("Read-only file system");
    assert!(!gate.path("work/b").exists());
    assert_eq!(
        verdicts(&gate.audit()),
        ["cp escalate", "cat run", "cp escalate"]
    );
}

fn without_a_sandbox_a_profile_is_refused(shell: &Shell) {
    let rules = "prefix_rule([\"cp\"], \"escalate\", execution = permissions(network = \"denied\"))\nfallback(\"run\")";
    let gate = Gate::with_rules(shell, rules);
    let done = gate.exec("cp /etc/passwd a; echo $?; ls");
    assert_ne!(done.exits(0).output(), "0\n", "{done}");
    assert!(!gate.path("work/a").exists());
    done.says("can't enforce a permission profile");
}
