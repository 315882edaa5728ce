//! A person at an interactive shell. `terminal.py` is that person, and does the same natively, so that
//! what it expects is what a shell really does.

use std::path::Path;
use std::process::{Command, Output, Stdio};

use execgate::model::EscalationDecision;

use crate::gates::Service;
use crate::harness::{Place, Shell, VERDICTS, shells, spawn, spawn_in_session, wait};
use crate::support::{Scripted, text};

const PERSON: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/tests/transparency/terminal.py"
);

fn person(shell: Shell, work: &Path) -> Command {
    let inputrc = work.join("inputrc");
    std::fs::write(&inputrc, "set enable-bracketed-paste off\n").unwrap();
    let mut command = Command::new("python3");
    command
        .args([PERSON, shell.name()])
        .env_clear()
        .env("PATH", "/usr/bin:/bin")
        .env("LC_ALL", "C")
        .env("HOME", work)
        .env("TERM", "vt100")
        .env("INPUTRC", inputrc)
        .env("INNER", shell.path())
        .current_dir(work)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

#[track_caller]
fn is_content(what: &str, output: &Output) {
    assert!(
        output.status.success(),
        "{what}: {}\n{}",
        text(&output.stdout),
        text(&output.stderr)
    );
}

#[tokio::test]
async fn natively() {
    for shell in shells() {
        let place = Place::new();
        let mut command = person(shell, &place.work());
        command.arg(shell.path());
        is_content("native", &wait(spawn(&mut command)).await);
    }
}

/// The gate is in another terminal session, as a daemon would be.
async fn under_a_gate_elsewhere(verdict: EscalationDecision) {
    for shell in shells() {
        let place = Place::new();
        let mut command = person(shell, &place.work());
        // A gate elsewhere can't put a command into this terminal's foreground.
        if verdict != EscalationDecision::Run {
            command.env("SCENARIOS", WITHOUT_FOREGROUND);
        }
        command.arg(shell.path());
        let policy = Scripted::always(verdict.clone()).changing_nothing();
        let (session, child) = spawn_in_session(&mut command, &policy);
        is_content("a gate elsewhere", &wait(child).await);
        drop(session);
    }
}

/// What doesn't need the terminal to know the command.
const WITHOUT_FOREGROUND: &str = "interrupt quit_key handled_once_in_group kill_wrapper time_limit \
    background stop_by_signal news_of_a_job editing_and_history traps_wait_and_time";

#[tokio::test]
async fn run_under_a_gate_elsewhere() {
    under_a_gate_elsewhere(EscalationDecision::Run).await;
}

#[tokio::test]
async fn escalated_under_a_gate_elsewhere() {
    under_a_gate_elsewhere(crate::support::ESCALATE).await;
}

/// The gate was started on the same terminal.
async fn in_a_gates_shell(shell: Shell) {
    for verdict in VERDICTS {
        let place = Place::new();
        let service = Service::deciding(&verdict, &place);
        let gate = service.gate("shell", shell, &place.work());
        let mut command = person(shell, &place.work());
        command
            .arg(gate.get_program())
            .args(gate.get_args())
            .arg("--");
        let output = wait(spawn(&mut command)).await;
        is_content(&format!("execgate shell, {verdict:?}"), &output);
    }
}

#[tokio::test]
async fn bash_in_a_gates_shell() {
    if shells().contains(&Shell::Bash) {
        in_a_gates_shell(Shell::Bash).await;
    }
}

#[tokio::test]
async fn zsh_in_a_gates_shell() {
    if shells().contains(&Shell::Zsh) {
        in_a_gates_shell(Shell::Zsh).await;
    }
}
