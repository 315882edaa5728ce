//! Nothing outlives its owner, and nothing waits for one that has gone.

use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Output};
use std::time::Duration;

use execgate::model::EscalationDecision;
use execgate::server::EscalationSession;

use crate::gates::{Service, gate};
use crate::harness::{Place, Shell, script, shells, spawn, wait};
use crate::support::{ESCALATE, PATIENCE, Scripted, text};

/// A command that leaves processes in every way there is, deaf to requests to end, and says when all
/// are there. `$MARK` is in the environment of each.
const HYDRA: &str = "/bin/sh -c 'trap \"\" TERM HUP INT
    setsid sleep 987 &
    (setsid /bin/sh -c \"sleep 987 & exec setsid sleep 987\" &)
    (exec 0<&- 1>&- 2>&-; sleep 987 &)
    echo $$ >ready.new; mv ready.new ready; exec sleep 987'";

/// Ids of the processes with this mark.
pub(crate) fn marked(mark: &str) -> Vec<i32> {
    processes_with(&format!("MARK={mark}"))
}

/// Ids of the processes that have this entry in their environment.
pub(crate) fn processes_with(entry: &str) -> Vec<i32> {
    let has_it = |pid: &i32| {
        std::fs::read(format!("/proc/{pid}/environ")).is_ok_and(|environment| {
            environment
                .split(|byte| *byte == 0)
                .any(|found| found == entry.as_bytes())
        })
    };
    std::fs::read_dir("/proc")
        .unwrap()
        .filter_map(|file| file.unwrap().file_name().to_str()?.parse().ok())
        .filter(has_it)
        .collect()
}

/// A mark that no other run has.
fn mark(place: &Place) -> String {
    place.work().display().to_string()
}

pub(crate) async fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let wait = async {
        while !condition() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let waited = tokio::time::timeout(PATIENCE, wait).await;
    assert!(waited.is_ok(), "{what}");
}

async fn ready(place: &Place, mark: &str) {
    let file = place.work().join("ready");
    until("the command never got ready", || file.exists()).await;
    // Five of the command's own, besides whatever waits for it.
    until("too few processes", || marked(mark).len() >= 5).await;
}

pub(crate) async fn nothing_left(mark: &str) {
    until("processes are left", || marked(mark).is_empty()).await;
}

pub(crate) fn kill(pid: impl std::fmt::Display, signal: &str) {
    let status = std::process::Command::new("kill")
        .args(["-s", signal, &pid.to_string()])
        .status()
        .unwrap();
    assert!(status.success());
}

/// Runs a script with an escalated hydra in it in each shell, calls `end` when all of it is there, and
/// sees that the script says `expected` and that nothing is left.
async fn escalated_hydra(script_text: &str, expected: &str, end: impl Fn(&mut Hydra)) {
    for shell in shells() {
        let place = Place::new();
        let mark = mark(&place);
        let environment = mark.clone();
        let started = move |command: &mut std::process::Command| {
            command.env("MARK", &environment);
        };
        let policy = Scripted::always(ESCALATE).changing_nothing();
        let (session, child) = script(script_text)
            .started(&started)
            .spawn_gated(shell, &place, &policy);
        ready(&place, &mark).await;
        let mut hydra = Hydra {
            place,
            session: Some(session),
        };
        end(&mut hydra);
        let output = wait(child).await;
        // Deaf to TERM, so it was killed, and the wrapper with it.
        assert_eq!(text(&output.stdout), expected, "{shell:?} {output:?}");
        nothing_left(&mark).await;
    }
}

struct Hydra {
    place: Place,
    session: Option<EscalationSession>,
}

#[tokio::test]
async fn the_wrapper_is_killed() {
    let script = format!("{HYDRA} & echo $! >wrapper; wait $!; echo status $?");
    escalated_hydra(&script, "status 137\n", |hydra| {
        let wrapper = std::fs::read_to_string(hydra.place.work().join("wrapper")).unwrap();
        kill(wrapper.trim(), "KILL");
    })
    .await;
}

#[tokio::test]
async fn the_session_is_dropped() {
    // Not exec: the shell tells the wrapper's status.
    let script = format!("{HYDRA}; echo status $?");
    escalated_hydra(&script, "status 137\n", |hydra| drop(hydra.session.take())).await;
}

/// A gate program whose command is the hydra; `options` go before it.
fn hydra_gate(shell: Shell, service: &Service, place: &Place, options: &[&str]) -> Child {
    let mut command = service.gate("exec", shell, &place.work());
    command
        .args(["--no-login"])
        .args(options)
        .args(["--", &format!("{HYDRA}; echo $?")])
        .env("MARK", mark(place));
    spawn(&mut command)
}

/// Ends the gate of a hydra, and tells how it went.
async fn ended(
    verdict: &EscalationDecision,
    options: &[&str],
    end: impl Fn(&Child, &[i32]),
) -> Vec<Output> {
    let mut outputs = Vec::new();
    for shell in shells() {
        let place = Place::new();
        let service = Service::deciding(verdict, &place);
        let child = hydra_gate(shell, &service, &place, options);
        let mark = mark(&place);
        if options.is_empty() {
            ready(&place, &mark).await;
        }
        let gate = child.id();
        let shells: Vec<_> = marked(&mark)
            .into_iter()
            .filter(|pid| {
                let program = std::fs::read_link(format!("/proc/{pid}/exe"));
                program.is_ok_and(|program| program == shell.path().canonicalize().unwrap())
            })
            .collect();
        end(&child, &shells);
        outputs.push(wait(child).await);
        let left = |mark: &str| {
            let mut left = marked(mark);
            left.retain(|pid| u32::try_from(*pid) != Ok(gate));
            left
        };
        until("processes are left", || left(&mark).is_empty()).await;
    }
    outputs
}

fn both() -> [EscalationDecision; 2] {
    [EscalationDecision::Run, ESCALATE]
}

#[tokio::test]
async fn the_shell_is_killed() {
    for verdict in both() {
        for output in ended(&verdict, &[], |_, shells| {
            assert!(!shells.is_empty());
            for pid in shells {
                kill(pid, "KILL");
            }
        })
        .await
        {
            assert_eq!(output.status.code(), Some(137), "{output:?}");
        }
    }
}

#[tokio::test]
async fn the_time_is_over() {
    for verdict in both() {
        for output in ended(&verdict, &["--timeout", "1s"], |_, _| {}).await {
            assert_eq!(output.status.code(), Some(124), "{output:?}");
        }
    }
}

#[tokio::test]
async fn the_gate_is_asked_to_end() {
    for verdict in both() {
        for output in ended(&verdict, &[], |gate, _| kill(gate.id(), "TERM")).await {
            // The shell had not caught it, and died of it.
            assert_eq!(output.status.code(), Some(143), "{output:?}");
        }
    }
}

#[tokio::test]
async fn the_gate_is_killed() {
    for verdict in both() {
        for output in ended(&verdict, &[], |gate, _| kill(gate.id(), "KILL")).await {
            assert_eq!(output.status.signal(), Some(9), "{output:?}");
        }
    }
}

#[tokio::test]
async fn a_waiting_wrapper_says_that_the_gate_is_gone() {
    // Nobody ever answers there.
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    for shell in shells() {
        let place = Place::new();
        // The shell outlives the gate by what those who are asked to end get.
        let waiting = "trap '' TERM; echo >waiting; /bin/echo ran; echo $? >status";
        let mut command = gate("exec", shell, &address, &place.work());
        command
            .args(["--no-login", "--verdict-timeout", "10m", "--", waiting])
            .env("MARK", mark(&place));
        let child = spawn(&mut command);
        let wrapper = std::path::Path::new(crate::support::WRAPPER)
            .canonicalize()
            .unwrap();
        until("no wrapper waits", || {
            marked(&mark(&place)).iter().any(|pid| {
                std::fs::read_link(format!("/proc/{pid}/exe")).is_ok_and(|exe| exe == wrapper)
            })
        })
        .await;
        kill(child.id(), "KILL");
        let output = wait(child).await;
        nothing_left(&mark(&place)).await;
        let status = std::fs::read_to_string(place.work().join("status")).unwrap();
        assert_eq!(status, "125\n");
        assert_eq!(text(&output.stdout), "");
        assert!(
            text(&output.stderr).contains("nothing was run"),
            "{output:?}"
        );
    }
}

#[tokio::test]
async fn a_gate_hands_on_its_shells_status_and_signals() {
    for verdict in both() {
        for shell in shells() {
            let place = Place::new();
            let service = Service::deciding(&verdict, &place);
            for (command, status) in [
                ("exit 7", 7),
                ("/bin/sh -c 'exit 200'", 200),
                ("/bin/sh -c 'kill -TERM $$'; exit $?", 143),
                ("kill -KILL $$", 137),
                ("nonexistent-command", 127),
                ("/etc/passwd", 126),
            ] {
                let mut gate = service.gate("exec", shell, &place.work());
                gate.args(["--no-login", "--", command]);
                let output = wait(spawn(&mut gate)).await;
                assert_eq!(output.status.code(), Some(status), "{command} {output:?}");
            }
            let script =
                "trap 'echo caught; exit 9' USR1; echo >ready; while :; do sleep 0.01; done";
            let mut gate = service.gate("exec", shell, &place.work());
            gate.args(["--no-login", "--", script]);
            let child = spawn(&mut gate);
            let file = place.work().join("ready");
            until("the script never got ready", || file.exists()).await;
            kill(child.id(), "USR1");
            let output = wait(child).await;
            assert_eq!(output.status.code(), Some(9), "{output:?}");
            assert_eq!(text(&output.stdout), "caught\n");
        }
    }
}
