//! What an escalated command's supervisor is to its job, and to the gate's parent.

use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;

use execgate::model::EscalationDecision;
use execgate::server::{
    BoxFuture, EscalatedExec, ExecutorError, PreparedExec, ShellCommand, ShellCommandExecutor,
    ShellOutput,
};
use tokio_util::sync::CancellationToken;

use crate::gates::Service;
use crate::harness::{
    Place, Shell, VERDICTS, script, shells, spawn, wait, wait_with_executor, wait_with_policy,
};
use crate::support::{Direct, ESCALATE, Scripted, text};

/// A job whose parents have gone, with a process in it that was stopped later: nobody hangs up on it.
#[tokio::test]
async fn the_end_of_an_escalated_command_is_no_hangup_for_its_job() {
    let outer = "set -m; /bin/sh -c '$SELF ./inner $$ &'; until [ -e result ]; do sleep 0.01; done; cat result";
    let inner = "while [ -e /proc/$1 ]; do sleep 0.01; done\n\
        sleep 987 & kill -STOP $!\n\
        until grep -q stopped /proc/$!/status; do sleep 0.01; done\n\
        for i in 1 2 3; do /bin/true; done\n\
        grep State /proc/$!/status >state; kill -KILL $!; mv state result\n";
    if !shells().contains(&Shell::Bash) {
        return;
    }
    let place = Place::new();
    let lay_out = || {
        std::fs::write(place.work().join("inner"), inner).unwrap();
        let _ = std::fs::remove_file(place.work().join("result"));
    };
    lay_out();
    let native = script(outer).left_as_it_is(Shell::Bash, &place).await;
    assert_eq!(text(&native.stdout), "State:\tT (stopped)\n", "{native:?}");
    lay_out();
    let policy = Scripted::new(|exec| {
        Some(if exec.file.ends_with("true") {
            ESCALATE
        } else {
            EscalationDecision::Run
        })
    });
    let gated = wait_with_policy(outer, Shell::Bash, &place, policy).await;
    // What the shell says of the end of a process has its number.
    assert_eq!(gated.stdout, native.stdout, "{gated:?}");
}

/// Who is started so hears of no child's end, unless it sees to that itself.
#[tokio::test]
async fn a_gate_whose_parent_ignored_the_ends_of_children() {
    const IGNORING: [&str; 2] = [
        "-c",
        "import os, signal, sys\n\
         signal.signal(signal.SIGCHLD, signal.SIG_IGN)\n\
         os.execv(sys.argv[1], sys.argv[1:])",
    ];
    let ignoring = |command: &Command| {
        let mut front = Command::new("/usr/bin/python3");
        front
            .args(IGNORING)
            .arg(command.get_program())
            .args(command.get_args())
            .env_clear()
            .env("PATH", "/usr/bin:/bin")
            .env("EXECGATE_LOG", "error")
            .stdin(std::process::Stdio::null())
            .stdout(std::process::Stdio::piped())
            .stderr(std::process::Stdio::piped());
        front
    };
    let text = "/bin/sh -c 'exit 5'; echo $?; x=$(/bin/echo y); echo $x; \
        /bin/sh -c 'kill -TERM $$'; echo $?; grep SigIgn /proc/self/status";
    for shell in shells() {
        let place = Place::new();
        let mut native = Command::new(shell.path());
        native.args(["-c", text]);
        let native = wait(spawn(&mut ignoring(&native))).await;
        for verdict in VERDICTS {
            let service = Service::deciding(&verdict, &place);
            let mut gate = service.gate("exec", shell, &place.work());
            gate.args(["--no-login", "--", text]);
            let gated = wait(spawn(&mut ignoring(&gate))).await;
            assert_eq!(
                String::from_utf8_lossy(&gated.stdout),
                String::from_utf8_lossy(&native.stdout),
                "{shell:?} {verdict:?} {gated:?}"
            );
        }
    }
}

/// Executes what is escalated in a directory below.
struct Below;

impl ShellCommandExecutor for Below {
    fn run(
        &self,
        command: ShellCommand,
        cancelled: CancellationToken,
    ) -> BoxFuture<'_, Result<ShellOutput, ExecutorError>> {
        Direct.run(command, cancelled)
    }

    fn prepare_escalated_exec(
        &self,
        exec: EscalatedExec,
    ) -> BoxFuture<'_, Result<PreparedExec, ExecutorError>> {
        Box::pin(async {
            let workdir: PathBuf = exec.workdir.join("below");
            let prepared = Direct.prepare_escalated_exec(exec).await?;
            Ok(PreparedExec {
                workdir,
                ..prepared
            })
        })
    }
}

#[tokio::test]
async fn a_relative_name_leads_to_what_was_judged_wherever_it_is_executed() {
    for shell in shells() {
        let place = Place::new();
        let below = place.work().join("below");
        std::fs::create_dir(&below).unwrap();
        for (directory, says) in [(place.work(), "judged"), (below, "another")] {
            let tool = directory.join("tool");
            std::fs::write(&tool, format!("#!/bin/sh\necho {says} in $(pwd -P)\n")).unwrap();
            let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
            std::fs::set_permissions(&tool, mode).unwrap();
        }
        let output =
            wait_with_executor("./tool; cat missing", shell, &place, Arc::new(Below)).await;
        let below = place.work().join("below");
        let expected = format!("judged in {}\n", below.display());
        assert_eq!(text(&output.stdout), expected, "{shell:?} {output:?}");
    }
}
