//! Connections and readers that go away: the one is an error that is told, the other a quiet end.

use std::io::{Read, Write};
use std::os::unix::net::UnixListener;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};

use crate::place::{PATIENCE, filled};

const SIGPIPE: i32 = 13;

/// What listens speaks something else, and ends each connection at once.
#[test]
fn a_service_that_hangs_up_is_told_of() {
    let directory = tempfile::tempdir().expect("a directory");
    let socket = directory.path().join("s");
    let listener = UnixListener::bind(&socket).expect("bound");
    std::thread::spawn(move || {
        let mut kept = Vec::new();
        for mut stream in listener.incoming().flatten() {
            // What is written from now on is an error at once, and this frame is to be answered: HTTP/2's settings.
            let _ = stream.shutdown(std::net::Shutdown::Read);
            let _ = stream.write_all(&[0, 0, 0, 4, 0, 0, 0, 0, 0]);
            kept.push(stream);
        }
    });
    let url = format!("unix:{}", socket.display());
    let rules = directory.path().join("x.rules");
    std::fs::write(&rules, "prefix_rule([\"a\"])\n").expect("a file");
    let rules = rules.to_str().expect("text");
    for arguments in [
        &["audit"][..],
        &["watch"],
        &["replay", "--rules", rules],
        &["approvals", "list"],
        &["approvals", "watch"],
        &["sessions", "list"],
    ] {
        for _ in 0..3 {
            let mut command = Command::new(env!("CARGO_BIN_EXE_execgate"));
            command.args(arguments).args(["--service", &url]);
            let done = command.env_clear().output().expect("it runs");
            let said = String::from_utf8_lossy(&done.stderr);
            assert_eq!(done.status.code(), Some(5), "{arguments:?}: {said}");
            assert!(said.starts_with("execgate: "), "{arguments:?}: {said}");
            assert!(done.stdout.is_empty());
        }
    }
}

/// As `| head -1` does: reads a little, and goes.
#[tokio::test]
async fn a_reader_that_goes_away_ends_a_command_quietly() {
    let place = filled().await;
    let url = place.url();
    let auditor = place.path("auditor");
    let data = place.data();
    let remote = [
        "audit",
        "--output",
        "json",
        "--service",
        &url,
        "--service-token-file",
        auditor.to_str().expect("text"),
    ];
    let local = ["audit", "--output", "json", "--data", &data];
    for arguments in [&remote[..], &local] {
        let mut command = place.command(arguments);
        let (reader, writer) = std::io::pipe().expect("a pipe");
        command.stdout(writer).stderr(Stdio::piped());
        let mut child = command.spawn().expect("it runs");
        drop(command);
        // Nothing that it writes is read.
        drop(reader);
        let mut said = String::new();
        let mut errors = child.stderr.take().expect("piped");
        errors.read_to_string(&mut said).expect("text");
        let status = tokio::time::timeout(PATIENCE, async { child.wait().expect("it ends") })
            .await
            .expect("it ends");
        assert_eq!(said, "", "{arguments:?}");
        assert_eq!(status.signal(), Some(SIGPIPE), "{arguments:?}: {status}");
    }
}
