//! Supervisors, as the gate uses them.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "tests"
)]

use std::io::{BufRead, BufReader, Read};
use std::process::{Command, Stdio};
use std::time::Duration;

use execgate::sys::process::{ProcessEnd, parent_from_proc};
use execgate::sys::spawn::{self, Report, Supervisor};

use crate::shell_script;
use crate::support::{ESCALATE, PATIENCE, Scripted, WRAPPER, start};

/// The next report, waited for.
fn report(supervisor: &Supervisor) -> Option<Report> {
    let began = std::time::Instant::now();
    loop {
        match supervisor.report() {
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                assert!(began.elapsed() < PATIENCE, "there is no report");
                std::thread::sleep(Duration::from_millis(2));
            }
            other => return other.expect("a report"),
        }
    }
}

fn state(pid: u32) -> Option<char> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit(") ").next()?.chars().next()
}

fn wait_for_state(pid: u32, wanted: char) {
    let began = std::time::Instant::now();
    while state(pid) != Some(wanted) {
        assert!(began.elapsed() < PATIENCE, "{pid} is {:?}", state(pid));
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn kill(pid: u32, signal: &str) {
    let status = Command::new("kill")
        .args(["-s", signal, &pid.to_string()])
        .status()
        .unwrap();
    assert!(status.success());
}

#[test]
fn the_end_is_told_also_where_signals_came_too_late() {
    let (reader, writer) = std::io::pipe().unwrap();
    let supervisor = Supervisor::start(spawn::Command {
        descriptors: vec![(reader.into(), 0)],
        ..shell_script(c"read line; exit 7")
    })
    .unwrap();
    let Some(Report::Started { pid, .. }) = report(&supervisor) else {
        panic!("it wasn't started");
    };
    let own = parent_from_proc(pid).unwrap();
    kill(own, "STOP");
    wait_for_state(own, 'T');
    drop(writer);
    wait_for_state(pid, 'Z');
    // More than it reads before it sees that nobody is left.
    for _ in 0..3 {
        supervisor.signal(10).unwrap();
    }
    kill(own, "CONT");
    loop {
        match report(&supervisor) {
            Some(Report::Ended { end, .. }) => {
                assert_eq!(end, ProcessEnd::Exited(7));
                break;
            }
            Some(_) => {}
            None => panic!("its end isn't told"),
        }
    }
    assert_eq!(report(&supervisor), None);
    supervisor.reap();
}

/// What a wrapper in another terminal session gets: into its group nothing can be put from outside.
#[tokio::test]
async fn a_signal_reaches_all_of_a_command_that_has_a_group_of_its_own() {
    let session = start(Scripted::always(ESCALATE));
    let script =
        "/bin/sh -c 'trap \"echo got; exit\" USR1; echo ready; while :; do sleep 0.01; done' &
        trap : USR1; wait; wait";
    let mut asker = Command::new("setsid")
        .args([WRAPPER, "/bin/sh", "sh", "-c", script])
        .env_clear()
        .env("PATH", "/usr/bin:/bin")
        .envs(session.env())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let pid = asker.id();
    let mut stdout = BufReader::new(asker.stdout.take().unwrap());
    let said = tokio::task::spawn_blocking(move || {
        let mut said = String::new();
        stdout.read_line(&mut said).unwrap();
        kill(pid, "USR1");
        stdout.read_to_string(&mut said).unwrap();
        said
    });
    let said = tokio::time::timeout(PATIENCE, said).await;
    assert_eq!(said.expect("an end").unwrap(), "ready\ngot\n");
    asker.wait().unwrap();
}
