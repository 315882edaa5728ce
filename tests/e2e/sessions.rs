//! The options of `execgate exec`, and how a session ends.

use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use serde_json::{Value, json};

use crate::gate::{Gate, verdicts};
use crate::machine::{Shell, command_lines, in_both_shells, is_running};
use crate::process::{self, Done, EXECGATE, wait_until};

const RULES: &str = r#"
prefix_rule(["uname"], "escalate")
prefix_rule(["setsid"], "escalate")
prefix_rule(["date"], "deny", justification = "No clocks here.")
fallback("run")
def decide(exec):
    if exec.name == "sleep" and exec.args[0].endswith(".5"):
        return escalate()
    return None
"#;

/// Times to sleep that no other process has: one that is run, one escalated, one detached.
fn times() -> [String; 3] {
    let own = std::process::id();
    let thread = format!("{:?}", std::thread::current().id());
    let number: String = thread.chars().filter(char::is_ascii_digit).collect();
    [".25", ".5", ".75"].map(|end| format!("{}{own}{number}{end}", 1))
}

/// Waits until all of them sleep: what only asks for it has another command line.
fn wait_for_sleepers(times: &[String; 3]) {
    wait_until("three sleepers", || {
        let lines = command_lines();
        let sleeps = |time: &String| lines.contains(&format!("sleep\0{time}\0").into_bytes());
        times.iter().all(sleeps)
    });
}

/// None of them is there any more.
#[track_caller]
fn none_sleeps(times: &[String; 3], done: &Done) {
    for time in times {
        assert!(!is_running(time), "{time}: {done}");
    }
}

in_both_shells! {
    the_time_limit_ends_a_session_with_all_its_processes,
    the_end_of_the_shell_ends_what_it_left_behind,
    a_signal_to_the_gate_reaches_the_shell,
    no_process_outlives_a_gate_that_was_killed,
    login_files_are_read_unless_told_not_to,
    login_files_that_set_path_anew_hide_no_patched_shell,
    a_session_starts_where_it_is_told,
    a_directory_that_cannot_be_used_is_an_error_of_the_gate,
    output_as_json_has_all_that_became_of_a_command,
    captured_output_is_bounded_and_says_so,
    a_session_belongs_to_the_trace_of_whoever_started_it,
    several_words_are_the_very_arguments,
    standard_input_is_the_commands,
    descriptors_are_inherited_and_closed_ones_stay_closed,
    a_reader_that_went_away_ends_a_command_and_not_the_gate,
    what_the_gate_was_started_with_is_the_sessions,
    a_session_that_raises_its_limit_on_core_dumps_raises_no_escalated_commands,
}

fn the_time_limit_ends_a_session_with_all_its_processes(shell: &Shell) {
    let gate = Gate::with_rules(shell, RULES).option(["--timeout", "5s"]);
    let times = times();
    let [run, escalated, detached] = &times;
    // None holds this test's pipes: that the gate has ended says nothing yet of any of them.
    let script = format!(
        "sleep {run} >/dev/null 2>&1 & sleep {escalated} >/dev/null 2>&1 &
         setsid sh -c 'sleep {detached} & :' >/dev/null 2>&1; wait"
    );
    let running = gate.start(&script);
    wait_for_sleepers(&times);
    let done = running.done();
    done.exits(124)
        .prints("")
        .says("execgate: the time limit was reached\n");
    none_sleeps(&times, &done);
    // Each end is on record, and how what was escalated has ended.
    let execs = gate.audit();
    let sleepers: Vec<_> = execs.iter().filter(|exec| exec.name() == "sleep").collect();
    assert_eq!(sleepers.len(), 2, "{execs:?}");
    for sleeper in sleepers {
        assert!(!sleeper.text("finished_at").is_empty(), "{sleeper:?}");
        let is_known = sleeper.text("verdict") == "run" || sleeper.number("signal").is_some();
        assert!(is_known, "{sleeper:?}");
    }
}

fn the_end_of_the_shell_ends_what_it_left_behind(shell: &Shell) {
    // As text, what they hold open would be this test's pipes, and nothing could be said before they have ended. What is
    // captured is the gate's: that they hold.
    for (output, elsewhere) in [("text", ">/dev/null 2>&1"), ("json", "")] {
        let gate = Gate::with_rules(shell, RULES).option(["--output", output]);
        let times = times();
        let [run, escalated, detached] = &times;
        let script = format!(
            "sleep {run} {elsewhere} & sleep {escalated} {elsewhere} &
             setsid sh -c 'sleep {detached} & :' {elsewhere}; read -r go; echo end; exit 3"
        );
        let mut running = gate.start(&script);
        wait_for_sleepers(&times);
        running.tell("go");
        let done = running.done();
        assert!(done.exits(3).output().contains("end"), "{done}");
        none_sleeps(&times, &done);
    }
}

fn a_signal_to_the_gate_reaches_the_shell(shell: &Shell) {
    let gate = Gate::with_rules(shell, RULES);
    // A child of zsh that gets a signal before it executes anything writes what its shell has just written.
    let mut running = gate.start("trap 'echo caught; exit 5' TERM; sleep 60 & echo ready; wait");
    running.wait_for("ready");
    running.signal("TERM");
    running.done().exits(5).prints("ready\ncaught\n");
    let mut running = gate.start("sleep 60 & echo ready; wait");
    running.wait_for("ready");
    running.signal("TERM");
    running.done().exits(143);
}

fn no_process_outlives_a_gate_that_was_killed(shell: &Shell) {
    let gate = Gate::with_rules(shell, RULES);
    let times = times();
    let [run, escalated, detached] = &times;
    let script =
        format!("sleep {run} & sleep {escalated} & setsid sh -c 'sleep {detached} & :'; wait");
    let running = gate.start(&script);
    wait_for_sleepers(&times);
    drop(running);
    wait_until("no sleepers", || times.iter().all(|time| !is_running(time)));
}

fn login_files_are_read_unless_told_not_to(shell: &Shell) {
    let gate = Gate::with_rules(shell, RULES);
    for file in [".bash_profile", ".zprofile"] {
        std::fs::write(gate.path("home").join(file), "echo login; uname\n").expect("a file");
    }
    gate.exec("echo command").exits(0).prints("command\n");
    assert_eq!(verdicts(&gate.audit()), [""; 0]);
    let gate = gate.option(["--login"]);
    let done = gate.exec("echo command");
    assert!(
        done.exits(0).output().ends_with("login\nLinux\ncommand\n"),
        "{done}"
    );
    assert!(verdicts(&gate.audit()).contains(&"uname escalate".to_owned()));
    // An interactive one reads them only where that is said; of both options the last counts.
    for (options, reads) in [
        (&[][..], false),
        (&["--no-login"], false),
        (&["--login"], true),
        (&["--login", "--no-login"], false),
        (&["--no-login", "--login"], true),
    ] {
        let mut command = Command::new(EXECGATE);
        command.arg("shell").args(options);
        command.args(["--sandbox", "none", "--policy", &gate.url]);
        command.arg("--shell").arg(&shell.path);
        command.args(["--", "-c", "echo command"]);
        gate.settle(&mut command);
        let done = process::run(&mut command);
        let output = done.exits(0).output();
        assert!(output.ends_with("command\n"), "{done}");
        assert_eq!(output.contains("login\n"), reads, "{options:?}: {done}");
    }
}

fn login_files_that_set_path_anew_hide_no_patched_shell(shell: &Shell) {
    let gate = Gate::with_rules(shell, RULES).option(["--login"]);
    for file in [".bash_profile", ".zprofile"] {
        let line = "PATH=/usr/local/bin:/usr/bin:/bin\n";
        std::fs::write(gate.path("home").join(file), line).expect("a file");
    }
    let directory = shell.path.parent().expect("a directory").display();
    let name = shell.path.file_name().expect("a name").display();
    let inner = format!("#!/usr/bin/env {name}\nuname; :\n");
    let script_file = gate.path("work").join("script");
    std::fs::write(&script_file, inner).expect("a file");
    std::fs::set_permissions(&script_file, PermissionsExt::from_mode(0o755)).expect("a mode");
    // The last is a login shell in a shell, which reads the files once more.
    let script = format!(
        "command -v bash; command -v zsh; ./script; {name} -lc 'echo \"${{PATH%%:*}}\"'; \
         echo \"$BASH_EXECUTION_STRING$ZSH_EXECUTION_STRING\""
    );
    let expected = format!("{directory}/bash\n{directory}/zsh\nLinux\n{directory}\n{script}\n");
    gate.exec(&script).exits(0).prints(&expected);
    assert!(verdicts(&gate.audit()).contains(&"uname escalate".to_owned()));
    let mut command = Command::new(EXECGATE);
    command
        .args([
            "shell",
            "--login",
            "--sandbox",
            "none",
            "--policy",
            &gate.url,
            "--shell",
        ])
        .arg(&shell.path)
        .args(["--", "-c", &script]);
    gate.settle(&mut command);
    process::run(&mut command).exits(0).prints(&expected);
    assert!(verdicts(&gate.audit()).contains(&"uname escalate".to_owned()));
}

fn a_session_starts_where_it_is_told(shell: &Shell) {
    let gate = Gate::with_rules(shell, RULES);
    gate.exec("/bin/pwd")
        .prints(&format!("{}\n", gate.path("work").display()));
    let other = gate.path("home");
    let gate = gate.option(["--workdir", "../home"]);
    gate.exec("/bin/pwd; pwd")
        .exits(0)
        .prints(&format!("{0}\n{0}\n", other.display()));
    let gate = gate.option(["--workdir", "/nonexistent"]);
    // clap takes no option twice.
    gate.exec("/bin/pwd").exits(2).prints("");
}

fn a_directory_that_cannot_be_used_is_an_error_of_the_gate(shell: &Shell) {
    let gate = Gate::with_rules(shell, RULES).option(["--workdir", "/nonexistent"]);
    gate.exec("echo x")
        .exits(125)
        .prints("")
        .says("cannot use /nonexistent as the working directory");
    let gate = Gate::with_rules(shell, RULES).option(["--workdir", "/etc/passwd"]);
    gate.exec("echo x")
        .exits(125)
        .prints("")
        .says("cannot use /etc/passwd as the working directory: Not a directory");
}

fn output_as_json_has_all_that_became_of_a_command(shell: &Shell) {
    let gate = Gate::with_rules(shell, RULES).option(["--output", "json", "--timeout", "100s"]);
    let done = gate.exec("uname; date; /bin/echo err >&2; printf '\\377'; exit 4");
    let result: Value = serde_json::from_slice(&done.exits(4).says_nothing().stdout).expect("JSON");
    assert_eq!(result["exit_code"], 4);
    assert_eq!(result["stdout"], "Linux\n\u{fffd}");
    assert_eq!(result["stderr"], "Execution denied: No clocks here.\nerr\n");
    let output = result["output"].as_str().expect("text");
    assert_eq!(
        output.len(),
        "Linux\n\u{fffd}Execution denied: No clocks here.\nerr\n".len()
    );
    assert_eq!(result["timed_out"], false);
    assert_eq!(
        result["verdicts"],
        json!({"run": 1, "escalate": 1, "deny": 1})
    );
    assert!(result["duration"].as_f64() > Some(0.0), "{result}");
    assert_eq!(
        result.as_object().map(serde_json::Map::len),
        Some(8),
        "{result}"
    );
    assert_eq!(result["truncated"], false);

    // What can't be written is no result.
    redirected(&gate, "exit 4", ">/dev/full")
        .exits(125)
        .says("execgate: cannot write the result: No space left on device");

    let gate = Gate::with_rules(shell, RULES).option(["--output", "json", "--timeout", "2s"]);
    let done = gate.exec("echo before; sleep 1000");
    let result: Value = serde_json::from_slice(&done.exits(124).stdout).expect("JSON");
    assert_eq!(
        (&result["timed_out"], &result["stdout"]),
        (&json!(true), &json!("before\n"))
    );
}

fn captured_output_is_bounded_and_says_so(shell: &Shell) {
    const MOST: usize = 64 << 20;
    let gate = Gate::with_rules(shell, RULES).option(["--output", "json"]);
    // A builtin writes it, so that it is the shell's own output.
    let done = gate.exec(format!("printf '%0{}d' 0; echo last >&2", MOST + 1));
    let result: Value = serde_json::from_slice(&done.exits(0).stdout).expect("JSON");
    assert_eq!(result["truncated"], true);
    assert_eq!(result["stdout"].as_str().map(str::len), Some(MOST));
    assert_eq!(result["stderr"], "last\n");
    // Of both together as much is kept.
    assert_eq!(result["output"].as_str().map(str::len), Some(MOST));
}

fn a_session_belongs_to_the_trace_of_whoever_started_it(shell: &Shell) {
    let gate = Gate::with_rules(shell, RULES);
    let trace = "4bf92f3577b34da6a3ce929d0e0e4736";
    let context = format!("00-{trace}-00f067aa0ba902b7-01");
    let mut command = gate.command("uname");
    crate::process::run(command.env("TRACEPARENT", context)).exits(0);
    gate.policyd(|policyd| policyd.wait_for_log(&format!("trace=\"{trace}\"")));
    // What is no context is as good as none: the session is a trace by itself.
    let mut command = gate.command("uname");
    crate::process::run(command.env("TRACEPARENT", "nonsense")).exits(0);
    let execs = gate.audit();
    let session = execs.last().expect("an exec").text("session");
    gate.policyd(|policyd| policyd.wait_for_log(&format!("trace=\"{session}\"")));
}

fn several_words_are_the_very_arguments(shell: &Shell) {
    let gate = Gate::with_rules(shell, RULES);
    let mut command = gate.command("/usr/bin/printf");
    command.args(["[%s]", "a b", "$HOME", "it's", "", "*", "a\nb"]);
    crate::process::run(&mut command)
        .exits(0)
        .prints("[a b][$HOME][it's][][*][a\nb]");
}

fn standard_input_is_the_commands(shell: &Shell) {
    let gate = Gate::with_rules(shell, RULES);
    let mut running = gate.start("cat; echo end");
    running.tell("line");
    running.done().exits(0).prints("line\nend\n");
}

/// Runs a command as the `"$@"` of a shell that is no gate's.
fn within(gate: &Gate, text: &str, command: &Command) -> Done {
    let mut outer = Command::new("/bin/sh");
    outer
        .args(["-c", text, "sh"])
        .arg(command.get_program())
        .args(command.get_args());
    gate.settle(&mut outer);
    process::run(&mut outer)
}

/// `execgate exec` of a script, with these redirections.
fn redirected(gate: &Gate, script: &str, redirections: &str) -> Done {
    let exec = format!("exec \"$@\" {redirections}");
    within(gate, &exec, &gate.command(script))
}

fn descriptors_are_inherited_and_closed_ones_stay_closed(shell: &Shell) {
    let gate = Gate::with_rules(shell, RULES);
    let done = redirected(&gate, "cat; cat <&7; uname", "<&- 7<<END\nseven\nEND\n");
    done.prints("seven\nLinux\n").says("Bad file descriptor");
    let done = redirected(&gate, "uname; echo $? >&2; exit 3", ">&-");
    done.exits(3).says("Bad file descriptor").says("1\n");
    let done = redirected(&gate, "uname; /bin/echo ran; exit 3", "2>&-");
    done.exits(3).prints("Linux\nran\n");
    redirected(&gate, "uname >file; exit 3", "<&- >&- 2>&-").exits(3);
    let written = std::fs::read_to_string(gate.path("work/file"));
    assert_eq!(written.expect("a file"), "Linux\n");
}

fn a_reader_that_went_away_ends_a_command_and_not_the_gate(shell: &Shell) {
    let gate = Gate::with_rules(shell, RULES);
    // The gate itself has the signal ignored, and that isn't handed on. What whoever started it has ignored is.
    for (before, status, end) in [
        ("", 141, [None, Some(13)]),
        ("trap '' PIPE;", 1, [Some(1), None]),
    ] {
        for (command, line) in [("/bin/echo line", "line\n"), ("uname", "Linux\n")] {
            let script = format!(
                "while :; do {command}; s=$?; [ $s = 0 ] || break; done; echo ended $s >&2; exit 3"
            );
            let text = format!(
                "{before} {{ \"$@\"; echo gate $? >&2; }} | {{ read -r line; echo \"$line\"; }}"
            );
            let done = within(&gate, &text, &gate.command(&script));
            done.exits(0)
                .prints(line)
                .says(&format!("ended {status}\n"))
                .says("gate 3\n");
            // What the shell does is in the audit, and how the last command has ended.
            let execs = gate.audit();
            let last = execs.last().expect("an exec");
            let told = [last.number("exit_code"), last.number("signal")];
            // Of what runs nobody knows before Linux 6.15.
            let nobody_knows = last.text("verdict") == "run" && told == [None, None];
            assert!(told == end || nobody_knows, "{last:?} {done}");
        }
    }
}

fn what_the_gate_was_started_with_is_the_sessions(shell: &Shell) {
    let gate = Gate::with_rules(
        shell,
        "prefix_rule([\"grep\"], \"escalate\")\nfallback(\"run\")",
    );
    // The gate raises its own limit on open files, and ignores signals.
    let front = "umask 027; ulimit -Sn 77; trap '' USR2; exec \"$@\"";
    let script = "for file in status limits; do
        sed -n '/^Umask\\|^Sig[BI]\\|^Max open/p' /proc/self/$file
        grep '^Umask\\|^Sig[BI]\\|^Max open' /proc/self/$file
        done";
    let mut plain = Command::new(&shell.path);
    plain.args(["-c", script]);
    let native = within(&gate, front, &plain);
    let gated = within(&gate, front, &gate.command(script));
    assert_eq!(gated.exits(0).output(), native.exits(0).output(), "{gated}");
    assert_eq!(gated.output().matches("0027").count(), 2, "{gated}");
    assert_eq!(
        verdicts(&gate.audit()),
        ["sed run", "grep escalate", "sed run", "grep escalate"]
    );
}

fn a_session_that_raises_its_limit_on_core_dumps_raises_no_escalated_commands(shell: &Shell) {
    let gate = Gate::with_rules(
        shell,
        "prefix_rule([\"grep\"], \"escalate\")\n\
         prefix_rule([\"tail\"], \"escalate\", execution = \"turn_default\")\nfallback(\"run\")",
    );
    let script = "ulimit -Sc \"$(ulimit -Hc)\"; sed -n '/core/p' /proc/self/limits
        grep core /proc/self/limits; tail -n +1 /proc/self/limits | sed -n '/core/p'";
    let soft = |own: &str| {
        let front = format!("ulimit -Sc {own}; exec \"$@\"");
        let done = within(&gate, &front, &gate.command(script));
        let output = done.exits(0).output();
        let soft = |line: &str| line.split_whitespace().nth(4).map(str::to_owned);
        output.lines().filter_map(soft).collect::<Vec<_>>()
    };
    let allowed = soft("\"$(ulimit -Hc)\"");
    let forbidden = soft("0");
    // Inside it is as the session has it; outside as the gate's owner does.
    let [raised, _, _] = &allowed[..] else {
        panic!("{allowed:?}");
    };
    assert_eq!(allowed, [&raised[..]; 3]);
    assert_eq!(forbidden, [&raised[..], "0", "0"]);
    if raised == "0" {
        eprintln!("SKIPPED: raising the limit on core dumps: the hard limit is 0 here");
    }
}
