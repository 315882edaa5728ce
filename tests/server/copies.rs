//! Copies of escalated programs, which a session can write and its gate has in memory.

#![allow(clippy::expect_used, reason = "tests")]

use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use execgate::model::{DecisionCode, SessionEvent};
use execgate::server::{
    BoxFuture, EscalateServer, EscalatedExec, EscalationSession, ExecutorError, PreparedExec,
    SessionParams, ShellCommand, ShellCommandExecutor, ShellOutput, WritablePlaces,
};
use execgate::sys::socket::{self, Wait};
use tokio_util::sync::CancellationToken;

use crate::support::peer::{frame, handshake, read_frame};
use crate::support::{Direct, ESCALATE, PATIENCE, Scripted, WRAPPER};

/// Executes commands as they are, of a session that can write one directory.
struct Confined(PathBuf);

impl ShellCommandExecutor for Confined {
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
        Direct.prepare_escalated_exec(exec)
    }

    fn writable_places(&self) -> WritablePlaces {
        WritablePlaces::Only(vec![self.0.clone()])
    }
}

/// Makes what is in a file executable, with zeros behind it that take no room on a disk.
fn extended(path: &Path, mebibytes: u64) {
    let file = std::fs::File::options()
        .write(true)
        .open(path)
        .expect("a file");
    file.set_len(mebibytes << 20).expect("a length");
    let mode = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(path, mode).expect("a mode");
}

/// Asks for a program, as for a shell that says when it runs and stays: the request, and the answer.
async fn asked(session: &EscalationSession, program: &Path) -> (UnixStream, String) {
    let mut stream = handshake(session);
    let request = serde_json::json!({
        "file": program, "argv": ["sh", "-c", "echo; exec /bin/sleep 1000"], "workdir": "/", "env": {},
    });
    stream
        .write_all(&frame(request.to_string().as_bytes()))
        .expect("a gate that reads");
    let answer = read_frame(&stream).await;
    (stream, answer)
}

#[tokio::test]
async fn copies_of_programs_take_no_more_memory_than_a_session_may_have() {
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path().canonicalize().unwrap();
    let path = |name: &str| place.join(name);
    std::fs::copy("/bin/sh", path("shell")).unwrap();
    extended(&path("shell"), 3);
    // Together there is room for these alone, and for no 3 MiB beside them. They aren't copied here: the first
    // has changed by then.
    for (name, interpreter, mebibytes) in [("script", "a", 0), ("a", "b", 255), ("b", "c", 255)] {
        let line = format!("#!{}\n", path(interpreter).display());
        std::fs::write(path(name), line).unwrap();
        if mebibytes > 0 {
            extended(&path(name), mebibytes);
        }
    }
    std::fs::write(path("c"), "\0").unwrap();
    std::fs::write(path("large"), "\0").unwrap();
    extended(&path("large"), 600);
    let policy = Scripted::new(|exec| {
        if exec.file.ends_with("script") {
            let script = std::fs::File::options().append(true).open(&exec.file);
            script.unwrap().write_all(b"\n").unwrap();
        }
        Some(ESCALATE)
    });
    let policy = policy.changing_nothing();
    let session = EscalateServer::new("/bin/sh", WRAPPER, policy.clone())
        .start_session(
            SessionParams::default(),
            Arc::new(Confined(place.clone())),
            &CancellationToken::new(),
        )
        .unwrap();
    let changed = "the program isn't what was asked about any more";
    let (_, answer) = asked(&session, &path("script")).await;
    assert!(answer.contains(changed), "{answer}");

    let (runs, answer) = asked(&session, &path("shell")).await;
    assert!(answer.contains("Escalate"), "{answer}");
    let (mut reader, writer) = std::io::pipe().unwrap();
    let message = frame(br#"{"fds":[1]}"#);
    socket::send(runs.as_fd(), &message, &[writer.as_fd()], Wait::Blocking).unwrap();
    drop(writer);
    let said = tokio::task::spawn_blocking(move || reader.read_exact(&mut [0]));
    said.await.unwrap().expect("a command that runs");
    let (_, answer) = asked(&session, &path("script")).await;
    let too_much = "copies of escalated programs take too much memory already";
    assert!(answer.contains(too_much), "{answer}");
    // No memory would do for one that is too large.
    let (_, answer) = asked(&session, &path("large")).await;
    assert!(answer.contains("it has more than 256 MiB"), "{answer}");
    let codes: Vec<_> = policy
        .told
        .lock()
        .unwrap()
        .iter()
        .filter_map(|event| match event {
            SessionEvent::ExecDecided { verdict, .. } => Some(verdict.code),
            _ => None,
        })
        .collect();
    let expected = [
        DecisionCode::ProgramChanged,
        DecisionCode::Verdict,
        DecisionCode::Overloaded,
        DecisionCode::ProgramUnidentified,
    ];
    assert_eq!(codes, expected);

    // With the command its copy is gone.
    drop(runs);
    let there_is_room = async {
        while asked(&session, &path("script")).await.1.contains(too_much) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let waited = tokio::time::timeout(PATIENCE, there_is_room).await;
    waited.expect("room for other copies");
}
