//! What becomes of a command by each verdict, wherever in a script it stands.

use crate::gate::{Gate, verdicts};
use crate::machine::{Shell, in_both_shells};

const RULES: &str = r#"
prefix_rule(["uname"], "escalate", name = "kernel")
prefix_rule(["sh", "-c", ["echo escalated $PPID", "exit 9", "kill -TERM $$", "cat; echo more >&2"]],
            "escalate",
            match = [["sh", "-c", "echo escalated $PPID"], ["sh", "-c", "exit 9"], ["sh", "-c", "kill -TERM $$"],
                     ["sh", "-c", "cat; echo more >&2"]])
prefix_rule(["date"], "deny", justification = "No clocks here.", name = "clock", reason_code = "time")
prefix_rule(["whoami"], "forbidden")
fallback("run")
"#;

in_both_shells! {
    a_command_that_runs_is_the_shells_own_child,
    an_escalated_command_has_the_shells_streams_and_hands_back_its_status,
    an_escalated_command_is_outside_of_the_shells_processes,
    a_denied_command_says_why_and_the_script_goes_on,
    each_construct_of_a_shell_asks_for_each_of_its_commands_once,
    what_is_not_there_or_no_program_fails_as_without_a_gate,
    a_script_without_interpreter_runs_in_a_shell,
}

fn a_command_that_runs_is_the_shells_own_child(shell: &Shell) {
    let gate = Gate::with_rules(shell, RULES);
    let done =
        gate.exec(r#"test "$(/bin/sh -c 'echo $PPID; :')" = $$ && echo mine; sh -c 'exit 7'"#);
    done.exits(7).prints("mine\n").says_nothing();
    assert_eq!(verdicts(&gate.audit()), ["sh run", "sh run"]);
}

fn an_escalated_command_has_the_shells_streams_and_hands_back_its_status(shell: &Shell) {
    let gate = Gate::with_rules(shell, RULES);
    let done = gate.exec("echo in | sh -c 'cat; echo more >&2'; sh -c 'exit 9'; echo $?; sh -c 'kill -TERM $$'; echo $?");
    done.exits(0).prints("in\n9\n143\n").says("more\n");
    let execs = gate.audit();
    assert_eq!(verdicts(&execs), ["sh escalate"; 3]);
    assert_eq!(execs[1].number("exit_code"), Some(9));
    assert_eq!(execs[2].number("signal"), Some(15));
    assert!(execs[1].number("peak_memory_bytes") > Some(0));
}

fn an_escalated_command_is_outside_of_the_shells_processes(shell: &Shell) {
    let gate = Gate::with_rules(shell, RULES);
    let done = gate.exec("echo shell $$; sh -c 'echo escalated $PPID'; uname");
    let output = done.exits(0).says_nothing().output();
    let words: Vec<_> = output.split_whitespace().collect();
    assert_ne!(words[1], words[3], "{done}");
    assert_eq!(words[4], "Linux", "{done}");
}

fn a_denied_command_says_why_and_the_script_goes_on(shell: &Shell) {
    let gate = Gate::with_rules(shell, RULES);
    let done = gate.exec("date; echo status $?; whoami || echo refused; if date 2>/dev/null; then echo no; fi; /bin/echo end");
    done.exits(0).prints("status 1\nrefused\nend\n");
    done.says_times(2, "Execution denied");
    done.says("Execution denied: No clocks here.\n");
    let execs = gate.audit();
    assert_eq!(
        verdicts(&execs),
        ["date deny", "whoami deny", "date deny", "echo run"]
    );
    let date = &execs[0];
    assert_eq!(
        (date.text("rule"), date.text("reason_code")),
        ("clock", "time")
    );
    assert_eq!(
        (date.text("code"), date.text("reason")),
        ("verdict", "No clocks here.")
    );
    assert_eq!(date.number("exit_code"), None);
    gate.exec("set -e; date; echo not reached")
        .exits(1)
        .prints("");
    gate.exec("date").exits(1);
    gate.exec("exec date; echo not reached").exits(1).prints("");
}

fn each_construct_of_a_shell_asks_for_each_of_its_commands_once(shell: &Shell) {
    let gate = Gate::with_rules(shell, RULES);
    let scripts: [(&str, &str, &[&str]); 12] = [
        (
            "f() { date 2>/dev/null; /bin/echo \"$1\"; }; f x; f y",
            "x\ny\n",
            &["date deny", "date deny", "echo run", "echo run"],
        ),
        (
            "/bin/echo a b | tr a-z A-Z | rev",
            "B A\n",
            &["echo run", "rev run", "tr run"],
        ),
        (
            "uname | tr a-z A-Z | cat; uname | cat",
            "LINUX\nLinux\n",
            &[
                "cat run",
                "cat run",
                "tr run",
                "uname escalate",
                "uname escalate",
            ],
        ),
        (
            "(/bin/echo in; (uname)); /bin/echo out",
            "in\nLinux\nout\n",
            &["echo run", "echo run", "uname escalate"],
        ),
        (
            "x=$(uname; /bin/echo y); echo \"<$x>\"",
            "<Linux\ny>\n",
            &["echo run", "uname escalate"],
        ),
        (
            "cat <(uname) <(/bin/echo z)",
            "Linux\nz\n",
            &["cat run", "echo run", "uname escalate"],
        ),
        (
            "uname > >(cat); wait; sleep 0.2; :",
            "Linux\n",
            &["cat run", "sleep run", "uname escalate"],
        ),
        (
            "uname & date 2>/dev/null & wait; /bin/echo done",
            "Linux\ndone\n",
            &["date deny", "echo run", "uname escalate"],
        ),
        (
            "exec 3>file 4<&0; /bin/echo to >&3; exec 3>&-; cat file; uname >file; cat <file",
            "to\nLinux\n",
            &["cat run", "cat run", "echo run", "uname escalate"],
        ),
        (
            "command uname; command -v uname >/dev/null; exec uname",
            "Linux\nLinux\n",
            &["uname escalate", "uname escalate"],
        ),
        (
            "for i in 1 2 3; do /bin/echo $i; done; while read -r l; do /bin/echo \"$l\"; done <<< h",
            "1\n2\n3\nh\n",
            &["echo run"; 4],
        ),
        (
            "trap 'uname' EXIT; (exit 3) || /bin/echo $?",
            "3\nLinux\n",
            &["echo run", "uname escalate"],
        ),
    ];
    for (script, output, execs) in scripts {
        gate.exec(script).exits(0).says_nothing().prints(output);
        let mut seen = verdicts(&gate.audit());
        seen.sort();
        assert_eq!(seen, execs, "{script}");
    }
}

fn what_is_not_there_or_no_program_fails_as_without_a_gate(shell: &Shell) {
    let gate = Gate::with_rules(shell, RULES);
    std::fs::write(gate.path("work/file"), "x").expect("a file");
    for script in [
        "nonexistent-program",
        "./nonexistent",
        "./file",
        "/",
        "./file/x",
        "exec ./nonexistent",
    ] {
        // The shell is gated, and what can't be executed is nothing to ask about.
        let script = format!("uname; {script}");
        let (gated, ungated) = (gate.exec(&script), gate.ungated(&script));
        assert_eq!(
            gated.status.code(),
            ungated.status.code(),
            "{script}: {gated}{ungated}"
        );
        assert!(matches!(gated.status.code(), Some(126 | 127)), "{gated}");
        assert!(!gated.stderr.is_empty(), "{gated}");
        assert_eq!(gated.errors(), ungated.errors(), "{gated}{ungated}");
        assert_eq!(verdicts(&gate.audit()), ["uname escalate"], "{gated}");
    }
}

fn a_script_without_interpreter_runs_in_a_shell(shell: &Shell) {
    let gate = Gate::with_rules(shell, RULES);
    std::fs::write(gate.path("work/script"), "echo script $1\n").expect("a file");
    gate.exec("chmod +x script; ./script x")
        .exits(0)
        .prints("script x\n")
        .says_nothing();
}
