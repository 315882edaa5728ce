//! Signals for a command that is being started.

use std::io::{BufRead, BufReader, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use execgate::sys::socket::{self, Wait};

use crate::support::peer::{frame, handshake, read_frame};
use crate::support::{ESCALATE, Scripted, start};

/// Holds up whoever opens a file, and so whoever executes it, by a lease (`fcntl(2)`).
struct Lease(Child);

impl Lease {
    fn on(file: &Path) -> Self {
        let script = "import fcntl, os, signal, sys\n\
            signal.signal(signal.SIGIO, signal.SIG_IGN)\n\
            file = os.open(sys.argv[1], os.O_RDONLY)\n\
            fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_WRLCK)\n\
            print('held', flush=True)\n\
            sys.stdin.read()";
        let mut holder = Command::new("python3")
            .args(["-c", script])
            .arg(file)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        let stdout = holder.stdout.take().unwrap();
        BufReader::new(stdout).read_line(&mut line).unwrap();
        assert_eq!(line, "held\n");
        Self(holder)
    }

    fn end(mut self) {
        drop(self.0.stdin.take());
        self.0.wait().unwrap();
    }
}

/// Sends this so many times to a command that can't be executed yet, as far as the gate takes it. Tells how many
/// it took, and what became of the command.
async fn signals_before_the_start(signal: &[u8], many: usize) -> (usize, String) {
    let session = start(Scripted::always(ESCALATE).changing_nothing());
    let directory = tempfile::tempdir().unwrap();
    let program = directory.path().join("program");
    std::fs::copy("/bin/sleep", &program).unwrap();
    let mut stream = handshake(&session);
    let request = serde_json::json!({
        "file": program, "argv": ["program", "1000"], "workdir": "/", "env": {},
    });
    let request = frame(request.to_string().as_bytes());
    stream.write_all(&request).unwrap();
    read_frame(&stream).await;
    let lease = Lease::on(&program);
    stream.write_all(&frame(br#"{"fds":[]}"#)).unwrap();
    let sent = send_signals(&stream, signal, many).await;
    lease.end();
    (sent, read_frame(&stream).await)
}

/// Until all are sent, or no more are taken.
async fn send_signals(stream: &UnixStream, signal: &[u8], many: usize) -> usize {
    let signal = frame(signal);
    let (mut sent, mut in_vain) = (0, 0);
    while sent < many && in_vain < 100 {
        if let Ok(count) = socket::send(stream.as_fd(), &signal, &[], Wait::Never) {
            assert_eq!(count, signal.len());
            (sent, in_vain) = (sent + 1, 0);
        } else {
            in_vain += 1;
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
    // So that they are there before the command is.
    tokio::time::sleep(Duration::from_millis(50)).await;
    sent
}

#[tokio::test]
async fn what_is_sent_to_a_command_that_is_being_started_reaches_it_and_is_bounded() {
    if execgate::sys::host::user().id != 0 {
        eprintln!(
            "SKIPPED: a program of an ordinary user's is executed from a copy, which nothing can hold up"
        );
        return;
    }
    let killed = r#"{"exit_code":127,"signal":10}"#;
    let signal = br#"{"signal":10}"#;
    let once = (1, killed.to_owned());
    assert_eq!(signals_before_the_start(signal, 1).await, once);
    // The command is in this program's own group, of which the terminal signals all members, once it is one.
    let from_terminal = br#"{"signal":10,"from_terminal":true}"#;
    assert_eq!(signals_before_the_start(from_terminal, 1).await, once);
    let (sent, answer) = signals_before_the_start(signal, 20_000).await;
    assert_eq!(answer, killed);
    assert!(sent < 20_000, "the gate keeps whatever is sent");
}
