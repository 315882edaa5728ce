//! Scripts that are easily got wrong.

use std::sync::Arc;

use execgate::model::EscalationDecision;
use execgate::server::{
    BoxFuture, EscalatedExec, ExecutorError, PreparedExec, ShellCommand, ShellCommandExecutor,
    ShellOutput,
};
use tokio_util::sync::CancellationToken;

use crate::harness::{Place, Shell, VERDICTS, script, shells, wait_with_executor};
use crate::support::{ESCALATE, WRAPPER, deny, text};

#[tokio::test]
async fn pipelines() {
    script("printf 'a\\nb\\nc\\n' | sort -r | head -n 2 | tr a-z A-Z")
        .is_the_same()
        .await;
    script("yes | head -n 1").is_the_same().await;
    script("seq 1 300000 | cat | cat | tail -n 1; true | false; echo $?")
        .is_the_same()
        .await;
}

#[tokio::test]
async fn substitutions_that_leave_a_child() {
    // The first waits for the child that holds its pipe; the second has none.
    script("x=$(/bin/sh -c '(sleep 0.3; echo late) & echo early'); echo \"$x\"")
        .is_the_same()
        .await;
    script("x=$(/bin/sh -c 'sleep 600 >/dev/null 2>&1 & echo $! >pid; echo early'); echo \"$x\"; kill $(cat pid)")
        .is_the_same()
        .await;
    script(
        "/bin/sh -c 'sleep 600 >/dev/null 2>&1 </dev/null & echo $! >pid' | cat; kill $(cat pid)",
    )
    .is_the_same()
    .await;
}

#[tokio::test]
async fn names_that_differ_from_the_file() {
    script(
        "(exec -a other \"$PROBE\" $$ x); (exec -l \"$PROBE\" $$ x); (exec -a '' \"$PROBE\" $$); (exec -c \"$PROBE\" $$ x)",
    )
    .is_the_same_in(Shell::Bash)
    .await;
    script("(exec -a other \"$PROBE\" $$ x); (exec -l \"$PROBE\" $$ x); (exec -c \"$PROBE\" $$ x); ARGV0=zero \"$PROBE\" $$; - \"$PROBE\" $$")
        .is_the_same_in(Shell::Zsh)
        .await;
}

#[tokio::test]
async fn scripts_and_their_names() {
    let tell = "#!/bin/sh\necho \"$0\" \"$@\"\n";
    script("./tell a; d/../tell b; PATH=.:$PATH; tell c; exec ./tell d")
        .file("tell", tell, 0o755)
        .started(&|command| {
            let work = command.get_current_dir().unwrap().to_owned();
            std::fs::create_dir(work.join("d")).unwrap();
        })
        .is_the_same()
        .await;
    script("./python a; ./env b")
        .file(
            "python",
            "#!/usr/bin/python3 -S\nimport sys\nprint(sys.argv)\n",
            0o755,
        )
        .file(
            "env",
            "#!/usr/bin/env -S sh -u\necho \"$0\" \"$@\"\n",
            0o755,
        )
        .is_the_same()
        .await;
}

#[tokio::test]
async fn programs_that_cannot_be_executed() {
    script("nonexistent-command; echo $?; ./nowhere; echo $?; /etc; echo $?; ./plain; echo $?; ./noload; echo $?; cat /dev/null")
        .file("plain", "echo\n", 0o644)
        .file("noload", "#!/no/such/interpreter\n", 0o755)
        .is_the_same()
        .await;
    script("./text a b; echo $?; ./empty; echo $?; ./binary; echo $?; cat /dev/null")
        .file("text", "echo text \"$@\"; exit 3\n", 0o755)
        .file("empty", "", 0o755)
        .file("binary", b"\x7fELF\0\0\0\0\n".to_vec(), 0o755)
        .is_the_same()
        .await;
}

/// Who reads it, and with what: nothing of the wrapper's own is left.
#[tokio::test]
async fn a_script_without_interpreter_is_read_as_by_the_shell() {
    // Such a file is executed first: where a handler of the kernel is registered for it, it is no script.
    let text = "MZ=1\necho ${BASH_VERSION:+bash} \"$@\"; ulimit -n; grep -E 'Sig(Blk|Ign)' /proc/self/status; umask\n";
    script(
        "ulimit -Sn 77; ./text a; (exec ./text b); trap '' USR2; umask 027; ./text c </dev/null",
    )
    .file("text", text, 0o755)
    .is_the_same()
    .await;
    // Such a file surely is one, and is read by the gate for shells that don't say how they would.
    script("./text a; (exec ./text b); /bin/true")
        .file("text", &text["MZ=1\n".len()..], 0o755)
        .is_the_same()
        .await;
}

#[tokio::test]
async fn paths_of_one_command_and_stale_hashes() {
    script("PATH=/nowhere ls; echo $?; PATH=/nowhere:/bin /bin/echo x; PATH=$PWD tool; echo $?; tool; echo $?")
        .file("tool", "#!/bin/sh\necho tool\n", 0o755)
        .is_the_same()
        .await;
    script(
        "mkdir a b; cp tool a; cp tool b; PATH=$PWD/a:$PWD/b:$PATH; tool; rm a/tool; tool; echo $?",
    )
    .file("tool", "#!/bin/sh\necho \"${0##*work/}\"\n", 0o755)
    .is_the_same()
    .await;
}

#[tokio::test]
async fn low_limits() {
    script("ulimit -n 5; /bin/true; echo $?; /bin/sh -c 'ulimit -n'")
        .is_the_same()
        .await;
    // What the wrapper tells of the command takes descriptors of its own.
    script("echo 321 >/proc/$$/oom_score_adj; ulimit -Sn 5; cat /proc/self/oom_score_adj; echo $?")
        .is_the_same()
        .await;
    // zsh itself needs more than that.
    script("ulimit -Sn 4; /bin/true; echo $?; /bin/sh -c 'ulimit -n'")
        .is_the_same_in(Shell::Bash)
        .await;
    script("(ulimit -Sn 3; /bin/true 0<&- 1>&-); echo $?; (ulimit -Sn 3; /bin/true 1>&- 2>&-); echo $?")
        .is_the_same_in(Shell::Bash)
        .await;
    script("ulimit -u 1; /bin/true; echo $?; exec /bin/sh -c 'ulimit -p 2>/dev/null; echo x'")
        .is_the_same()
        .await;
    script("ulimit -f 0; ulimit -c 0; ulimit -v 100000; ulimit -d 50000; ulimit -s 256; ulimit -l 0; /bin/true; echo $?")
        .is_the_same()
        .await;
    script("ulimit -d 512; /bin/true; echo $?")
        .is_the_same()
        .await;
}

#[tokio::test]
async fn a_denial_that_nobody_can_read() {
    for shell in shells() {
        let script = "/bin/true 2>&-; echo $?; (exec 0<&- 2>&-; /bin/true; echo $?)";
        let (_, stdout, _) = gated(script, shell, deny("no")).await;
        assert_eq!(stdout, "1\n1\n", "{shell:?}");
    }
}

/// A gate by hand, which denies, and says what else it gets and how the wrapper ends.
const DENYING_GATE: &str = r#"
import json, os, socket, struct, subprocess, sys
wrapper = sys.argv[1]
for closed in "2>&-", "1>&- 2>&-", "0<&- 2>&-", "0<&- 1>&- 2>&-":
    gate, session = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    environment = {"PATH": "/usr/bin:/bin", "CODEX_ESCALATE_SOCKET": str(session.fileno())}
    command = ["/bin/sh", "-c", 'exec "$0" /bin/true true ' + closed, wrapper]
    child = subprocess.Popen(command, pass_fds=[session.fileno()], env=environment)
    session.close()
    gate.settimeout(100)
    _, descriptors, _, _ = socket.recv_fds(gate, 64, 16)
    stream = socket.socket(fileno=descriptors[0])
    stream.settimeout(100)
    with stream.makefile("rb") as questions:
        length, = struct.unpack("<I", questions.read(4))
        asked = json.loads(questions.read(length))
        answer = json.dumps({"action": {"Deny": {"reason": "no"}}}).encode()
        stream.sendall(struct.pack("<I", len(answer)) + answer)
        print(asked["file"], questions.read(), child.wait())
"#;

/// The wrapper's own words go nowhere then, not even to the gate: no stream of its own has the closed number.
#[test]
fn what_is_said_where_standard_error_is_closed_reaches_nobody() {
    let output = std::process::Command::new("python3")
        .args(["-c", DENYING_GATE, WRAPPER])
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert_eq!(text(&output.stdout), "/bin/true b'' 1\n".repeat(4));
    assert_eq!(text(&output.stderr), "");
}

/// Arguments that just fit for the wrapper: a script without `#!` gets all of them, or isn't executed.
#[tokio::test]
async fn as_many_arguments_as_there_is_room_for() {
    let steps = "ulimit -s 512; full=$(printf %0131000d 0); left=${#full}
        until [ $left -lt 126000 ] || [ \"$ran\" = 30 ]; do
            left=$((left - 24)); count=$(./text a b c ${full:0:$left} 2>/dev/null) && ran=$((ran + 1))
            echo \"${count:-none}\"
        done";
    for verdict in [EscalationDecision::Run, ESCALATE] {
        let case = script(steps).file("text", "echo $#\n", 0o755);
        let (output, _) = case.gated(Shell::Bash, &Place::new(), verdict).await;
        let output = String::from_utf8_lossy(&output.stdout).into_owned();
        let all = |word: &str| output.lines().filter(|line| *line == word).count();
        assert_eq!(all("4"), 30, "{output}");
        assert!(all("none") > 0, "{output}");
        assert_eq!(all("4") + all("none"), output.lines().count(), "{output}");
    }
}

#[tokio::test]
async fn here_documents_and_process_substitution() {
    script("cat <<X\nhere\nX\ncat <<<string; diff <(echo a) <(echo b); echo $?; tee >(tr a-z A-Z) </dev/null; echo x | tee >(cat >&2) | cat; sleep 0.1")
        .is_the_same()
        .await;
}

#[tokio::test]
async fn ends_by_exit_code_and_signal() {
    script(
        "for s in 0 1 2 100 125 126 127 128 130 137 255; do /bin/sh -c \"exit $s\"; echo $?; done",
    )
    .is_the_same()
    .await;
    script("for s in HUP INT QUIT ILL TRAP ABRT BUS FPE KILL USR1 SEGV USR2 PIPE ALRM TERM XCPU IO; do /bin/sh -c \"kill -$s \\$\\$\"; echo $?; done 2>&1 | sed 's/:  *[0-9][0-9]*  *\\([A-Z]\\)/: PID \\1/'")
        .is_the_same()
        .await;
}

#[tokio::test]
async fn the_same_wait_status() {
    script("exec 2>messages; /bin/sh -c 'kill -SEGV $$' & wait $!; echo $?; /bin/sh -c 'exit 7' & wait $!; echo $?; set -o pipefail; /bin/sh -c 'kill -TERM $$' | cat; echo $?; sed 's/:  *[0-9][0-9]* /: PID /' messages")
        .is_the_same_in(Shell::Bash)
        .await;
}

#[tokio::test]
async fn sockets() {
    let through = "import os, socket, subprocess, sys
ours, theirs = socket.socketpair()
session = os.environ.get('CODEX_ESCALATE_SOCKET')
shell = [os.environ['SELF'], '-c', 'tr a-z A-Z; echo done >&3; exit 5']
child = subprocess.Popen(shell, stdin=theirs, stdout=theirs,
    preexec_fn=lambda: os.dup2(theirs.fileno(), 3), pass_fds=[3] + ([int(session)] if session else []))
theirs.close()
ours.sendall(b'through a socket, ' * 5000)
ours.shutdown(socket.SHUT_WR)
data = b''
while part := ours.recv(65536):
    data += part
print(len(data), data[:20], data[-20:], child.wait())
";
    script("python3 through.py")
        .file("through.py", through, 0o644)
        .is_the_same()
        .await;
}

/// What a script says that only a gated shell could.
async fn gated(text: &str, shell: Shell, verdict: EscalationDecision) -> (i32, String, String) {
    let (output, _) = script(text).gated(shell, &Place::new(), verdict).await;
    let string = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let status = output.status.code().unwrap_or(-1);
    (status, string(&output.stdout), string(&output.stderr))
}

#[tokio::test]
async fn a_stale_number_is_never_touched() {
    // The session's number is somebody's pipe by now.
    let script = "n=$CODEX_ESCALATE_SOCKET; eval \"exec $n> >(while read x; do :; done)\"
        flags() { while read key value; do [ $key = flags: ] && echo $value; done </proc/$$/fdinfo/$n; }
        flags; /bin/echo ran; echo $?; flags";
    // zsh redirects single digits only.
    let (_, stdout, stderr) = gated(script, Shell::Bash, EscalationDecision::Run).await;
    let lines: Vec<_> = stdout.lines().collect();
    assert_eq!(lines.len(), 3, "{stdout:?} {stderr:?}");
    assert_eq!(lines[0], lines[2], "its flags were changed");
    assert_eq!(lines[1], "125");
    assert!(stderr.contains("is not the session's socket"), "{stderr}");
}

#[tokio::test]
async fn a_program_that_closes_descriptors_and_starts_a_shell() {
    let script = "python3 -c 'import os, subprocess; print(subprocess.call([os.environ[\"SELF\"], \"-c\", \"/bin/echo ran\"]))'";
    for shell in shells() {
        for verdict in VERDICTS {
            if verdict == ESCALATE {
                // It is outside, where nothing is asked.
                continue;
            }
            let (_, stdout, stderr) = gated(script, shell, verdict).await;
            assert_eq!(stdout, "125\n", "{shell:?} {stderr}");
            assert!(stderr.contains("was closed on the way here"), "{stderr}");
        }
    }
}

#[tokio::test]
async fn more_descriptors_than_can_be_handed_over() {
    let script = "i=20; while [ $i -lt 34 ]; do eval \"exec $i</dev/null\"; i=$((i+1)); done; /bin/echo ran; echo $?";
    let (_, stdout, stderr) = gated(script, Shell::Bash, ESCALATE).await;
    assert_eq!(stdout, "125\n");
    assert!(
        stderr.contains("are open, and at most 16 can be handed over"),
        "{stderr}"
    );
}

#[tokio::test]
async fn no_room_for_a_question() {
    let ask = "ulimit -n 4; /bin/true; echo $?";
    // Where the limit can't be raised for a moment, not even natively is there much that could run.
    let mut without = ask.to_owned();
    if may_raise_limits() {
        let (_, stdout, stderr) = gated(ask, Shell::Bash, EscalationDecision::Run).await;
        assert_eq!(stdout, "0\n", "{stderr}");
        without = format!("exec setpriv --bounding-set -sys_resource \"$SELF\" -c '{ask}'");
    }
    let (_, stdout, stderr) = gated(&without, Shell::Bash, EscalationDecision::Run).await;
    assert_eq!(stdout, "125\n", "{stderr}");
    assert!(stderr.contains("see ulimit -n"), "{stderr}");
}

/// Whether this user has the privilege to raise a limit that was for good.
fn may_raise_limits() -> bool {
    let mut command = std::process::Command::new("/bin/bash");
    command.args(["-c", "ulimit -n 100; ulimit -n 200 2>/dev/null"]);
    command.status().unwrap().success()
}

/// Can't prepare anything.
struct Failing;

impl ShellCommandExecutor for Failing {
    fn run(
        &self,
        _: ShellCommand,
        _: CancellationToken,
    ) -> BoxFuture<'_, Result<ShellOutput, ExecutorError>> {
        Box::pin(async { Err(failure()) })
    }

    fn prepare_escalated_exec(
        &self,
        _: EscalatedExec,
    ) -> BoxFuture<'_, Result<PreparedExec, ExecutorError>> {
        Box::pin(async { Err(failure()) })
    }
}

fn failure() -> ExecutorError {
    ExecutorError {
        attempted: "reach the machine".to_owned(),
        source: std::io::Error::other("it is on fire"),
    }
}

#[tokio::test]
async fn a_command_that_the_gate_cannot_start() {
    for shell in shells() {
        let output = wait_with_executor(
            "/bin/echo ran; echo $?",
            shell,
            &Place::new(),
            Arc::new(Failing),
        )
        .await;
        assert_eq!(text(&output.stdout), "126\n");
        let stderr = text(&output.stderr);
        assert!(
            stderr.starts_with("execgate: ") && stderr.contains("reach the machine"),
            "{stderr}"
        );
    }
}

#[tokio::test]
async fn a_core_dump_is_the_commands_own() {
    // The gate, which is this process, has to allow dumps: only then a session may have them.
    if std::env::var_os("GATE_ALLOWS_DUMPS").is_none() {
        let mut again = std::process::Command::new("/bin/sh");
        again
            .args(["-c", "ulimit -Sc \"$(ulimit -Hc)\"; exec \"$@\"", "sh"])
            .arg(std::env::current_exe().unwrap())
            .args(["scripts::a_core_dump_is_the_commands_own", "--exact"])
            .env("GATE_ALLOWS_DUMPS", "1");
        let output = again.output().unwrap();
        let said = text(&output.stdout);
        assert!(said.contains(" 1 passed;"), "{said}");
        return;
    }
    // The shell's own messages as well, which have `(core dumped)` where there is one and the wrapper can
    // have the mark of one.
    let marks = if wrappers_can_have_the_mark() {
        ""
    } else {
        eprintln!(
            "SKIPPED: marks of core dumps: they aren't files here, or namespaces aren't allowed"
        );
        "; s/ (core dumped)//"
    };
    let lines = format!("exec 2>messages; ulimit -c unlimited; /bin/sh -c 'kill -SEGV $$'; echo $?
         for core in core*; do tr '\\0' '\\n' <$core | grep -a -c '^/bin/sh -c kill'; done; rm -f core*
         /bin/sh -c 'kill -ABRT $$'; echo $?; rm core*; cat /dev/null | /bin/sh -c 'kill -QUIT $$'; echo $?; rm core*
         ulimit -c 0; /bin/sh -c 'kill -SEGV $$'; echo $?; ls; sed 's/  *[0-9][0-9]* / PID /{marks}' messages | grep -v Done"
    );
    script(&lines).is_the_same().await;
}

fn wrappers_can_have_the_mark() -> bool {
    let pattern = std::fs::read_to_string("/proc/sys/kernel/core_pattern").unwrap();
    let mut namespaces = std::process::Command::new("unshare");
    namespaces.args(["--user", "--map-root-user", "--mount", "true"]);
    !pattern.starts_with(['|', '@']) && namespaces.status().is_ok_and(|status| status.success())
}
