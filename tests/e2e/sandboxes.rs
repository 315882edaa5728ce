//! `--sandbox bubblewrap`: what runs stays inside, what is escalated doesn't, or not altogether.

use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Command;

use crate::gate::{Gate, directory, verdicts};
use crate::machine::{Shell, available, in_both_shells, is_running};
use crate::process::{Running, signal, wait_until};
use crate::stage::{RUN, Stage, User, bubblewrap};

in_both_shells! {
    what_runs_stays_inside_and_what_is_escalated_does_not,
    an_escalation_by_default_is_as_confined_as_the_session,
    a_profile_allows_what_it_names_and_no_more,
    without_a_sandbox_a_profile_is_refused,
    what_a_killed_supervisor_leaves_ends_with_it,
    a_signal_for_the_gate_reaches_the_shell_inside,
    an_escalated_command_ends_by_a_signal_as_it_chooses,
    a_time_limit_leaves_the_shell_inside_a_moment_to_end,
    the_interrupt_key_ends_what_it_would_end_natively,
    an_escalated_command_has_its_argument_zero_and_its_signals,
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

    // Names of the machine and memory without a path are its own, too.
    let kinds = ["ipc", "mnt", "net", "pid", "uts"];
    let links = kinds.map(|kind| format!("/proc/self/ns/{kind}"));
    let done = gate.exec(format!("readlink {}", links.join(" ")));
    let inside = done.exits(0).output();
    let outside = links.map(|link| std::fs::read_link(link).expect("a link"));
    assert_eq!(inside.lines().count(), kinds.len(), "{inside}");
    for (inside, outside) in inside.lines().zip(outside) {
        assert_ne!(inside, outside.to_string_lossy());
    }
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
    // Nothing of it runs, in the session neither.
    done.exits(0).prints("126\n");
    assert!(!gate.path("work/a").exists());
    done.says("can't enforce a permission profile");
    let execs = gate.audit();
    assert_eq!(verdicts(&execs), ["cp escalate", "ls run"]);
    let told = execs[0].text("start_error");
    let why = "can't enforce a permission profile";
    assert!(told.contains(why), "{told}");
}

/// Of a process with this one as its parent, its number.
fn child_of(parent: u32) -> Option<u32> {
    let entries = std::fs::read_dir("/proc").expect("/proc").flatten();
    let mut numbers = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    numbers.find(|pid| execgate::sys::process::parent_from_proc(*pid) == Some(parent))
}

/// Nobody else is there to end it: the gate asks the supervisor to.
fn what_a_killed_supervisor_leaves_ends_with_it(shell: &Shell) {
    if !bubblewrap() {
        return;
    }
    let (gate, _outside) = sandboxed(shell, |_| "\"escalate\"".to_owned());
    let mark = gate.path("work/mark").display().to_string();
    let mut session = gate.start("setsid /bin/sh -c 'echo ready; sleep 987' \"$PWD/mark\"");
    session.wait_for("ready");
    assert!(is_running(&mark));
    signal(child_of(session.id()).expect("a supervisor"), "KILL");
    wait_until("the end of what is inside", || !is_running(&mark));
}

#[test]
fn what_is_mounted_in_a_temporary_directory_is_none_of_the_sessions() {
    let root = execgate::sys::host::user().id == 0;
    if !available(root, "only root can mount") {
        return;
    }
    let Some(stage) = Stage::new("landlock", User::Own, RUN) else {
        return;
    };
    let precious = stage.path("outside/precious");
    std::fs::create_dir(&precious).expect("a directory");
    std::fs::set_permissions(&precious, PermissionsExt::from_mode(0o755)).expect("a mode");
    std::fs::write(precious.join("file"), "x").expect("a file");
    let gate = stage.command("mkdir -p $TMPDIR/a/b/mount; echo $TMPDIR; read line");
    let mut command = Command::new("unshare");
    command.args(["--mount", "--"]).arg(gate.get_program());
    command.args(gate.get_args()).env_clear();
    for (name, value) in gate.get_envs() {
        command.env(name, value.expect("none is taken away"));
    }
    command.current_dir(gate.get_current_dir().expect("a directory"));
    let mut running = Running::start(&mut command);
    running.wait_for("\n");
    let own = PathBuf::from(running.stdout().trim_end());
    let mounted = Command::new("nsenter")
        .args([
            "--mount",
            "--target",
            &running.id().to_string(),
            "mount",
            "--bind",
        ])
        .args([&precious, &own.join("a/b/mount")])
        .status();
    assert!(mounted.expect("nsenter").success());
    running.tell("");
    running.done().exits(0);
    assert!(precious.join("file").exists());
    let mode = precious
        .metadata()
        .expect("a directory")
        .permissions()
        .mode();
    assert_eq!(mode & 0o777, 0o755);
    // Where it was mounted stayed, and is no mount to the others.
    std::fs::remove_dir_all(&own).expect("it stayed");
}

/// Says so when it gets a signal, and ends with a status of its own. It is ready once the file is there: zsh says twice
/// what it is about to say when a trap's turn comes.
fn trapping(signal: &str) -> String {
    format!("trap 'echo got it; exit 7' {signal}; touch ready; while :; do sleep 0.02; done")
}

fn a_signal_for_the_gate_reaches_the_shell_inside(shell: &Shell) {
    if !bubblewrap() {
        return;
    }
    let (gate, _outside) = sandboxed(shell, |_| "\"escalate\"".to_owned());
    let ready = gate.path("work/ready");
    for name in ["USR1", "TERM"] {
        let session = gate.start(&trapping(name));
        wait_until("the trap", || ready.exists());
        session.signal(name);
        session.done().exits(7).prints("got it\n");
        std::fs::remove_file(&ready).expect("a file");
    }
    // One that nothing catches ends it.
    let session = gate.start("touch ready; while :; do sleep 0.02; done");
    wait_until("the shell", || ready.exists());
    session.signal("USR2");
    session.done().exits(128 + 12);
}

fn an_escalated_command_ends_by_a_signal_as_it_chooses(shell: &Shell) {
    if !bubblewrap() {
        return;
    }
    let rules =
        "prefix_rule([\"dash\"], \"escalate\", execution = \"turn_default\")\nfallback(\"run\")";
    let gate = Gate::with_rules(shell, rules).in_sandbox("bubblewrap");
    for name in ["USR1", "TERM"] {
        let trap = trapping(name);
        let done = gate.exec(format!(
            "rm -f ready; dash -c \"{trap}\" & while ! test -e ready; do sleep 0.02; done
             kill -{name} $!; wait $!; echo $?"
        ));
        done.exits(0).prints("got it\n7\n");
    }
}

fn a_time_limit_leaves_the_shell_inside_a_moment_to_end(shell: &Shell) {
    if !bubblewrap() {
        return;
    }
    let (gate, _outside) = sandboxed(shell, |_| "\"escalate\"".to_owned());
    let gate = gate.option(["--timeout", "1s"]);
    let done = gate.exec(trapping("TERM"));
    done.prints("got it\n");
}

/// Types the interrupt key into a terminal of its own once a command says `ready` there, and tells what it says, and how
/// it ends.
const PERSON: &str = r#"
import os, pty, sys
pid, terminal = pty.fork()
if pid == 0:
    os.execv(sys.argv[1], sys.argv[1:])
said = b""
typed = False
while True:
    try:
        read = os.read(terminal, 4096)
    except OSError:
        break
    if not read:
        break
    said += read
    if b"ready" in said and not typed:
        typed = True
        os.write(terminal, b"\x03")
print(said.decode().replace("^C", "").replace("\r", ""), end="")
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"#;

fn the_interrupt_key_ends_what_it_would_end_natively(shell: &Shell) {
    if !bubblewrap() {
        return;
    }
    let rules =
        "prefix_rule([\"python3\"], \"escalate\", execution = \"turn_default\")\nfallback(\"run\")";
    let gate = Gate::with_rules(shell, "fallback(\"run\")").in_sandbox("bubblewrap");
    let escalating = Gate::with_rules(shell, rules).in_sandbox("bubblewrap");
    std::fs::write(
        gate.path("work/it.py"),
        "import time\ntry:\n    print('ready', flush=True)\n    time.sleep(60)\n\
         except KeyboardInterrupt:\n    print('caught')\n",
    )
    .expect("a file");
    let it = gate.path("work/it.py");
    std::fs::copy(&it, escalating.path("work/it.py")).expect("a copy");
    for gate in [&gate, &escalating] {
        let natural = gate.command("trap : INT; python3 it.py; echo after");
        let mut person = std::process::Command::new("python3");
        person
            .args(["-c", PERSON])
            .arg(natural.get_program())
            .args(natural.get_args());
        gate.settle(&mut person);
        crate::process::run(&mut person)
            .exits(0)
            .prints("ready\ncaught\nafter\n0\n");
    }
}

fn an_escalated_command_has_its_argument_zero_and_its_signals(shell: &Shell) {
    if !bubblewrap() {
        return;
    }
    let rules =
        "prefix_rule([\"grep\"], \"escalate\", execution = \"turn_default\")\nfallback(\"run\")";
    let gate = Gate::with_rules(shell, rules).in_sandbox("bubblewrap");
    let script = "grep -E '^Sig(Blk|Ign)' /proc/self/status; (exec -a other grep -E -o other /proc/self/cmdline -a | head -n 1)";
    let native = gate.ungated(script).output();
    assert!(native.ends_with("other\n"), "{native}");
    gate.exec(script).exits(0).prints(&native);
}
