//! Our wrapper with a server that knows the protocol's core and none of our additions.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

use execgate::sys::descriptor;
use execgate::sys::socket::{self, Kind, Wait};

use crate::support::peer::frame;
use crate::support::{WRAPPER, text};

/// The server's end of a session, and what the wrapper needs of it.
struct Server {
    socket: OwnedFd,
    clients: OwnedFd,
}

impl Server {
    fn new() -> Self {
        let (socket, clients) = socket::pair(Kind::Datagram).unwrap();
        let clients = descriptor::duplicate_from(clients.as_fd(), 100).unwrap();
        Self { socket, clients }
    }

    fn wrapper(&self) -> Command {
        let mut command = Command::new(WRAPPER);
        command
            .env_clear()
            .env(
                "CODEX_ESCALATE_SOCKET",
                self.clients.as_raw_fd().to_string(),
            )
            .env("EXEC_WRAPPER", WRAPPER)
            .env("BASH_EXEC_WRAPPER", WRAPPER)
            .env("KEPT", "yes")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    }

    /// Takes one handshake: the request's stream.
    fn accept(&self) -> OwnedFd {
        let mut buffer = [9; 8192];
        let received = socket::receive(self.socket.as_fd(), &mut buffer, Wait::Blocking).unwrap();
        assert_eq!((received.bytes, buffer[0]), (1, 0));
        let [stream] = <[OwnedFd; 1]>::try_from(received.descriptors).unwrap();
        stream
    }
}

/// Reads one message as the reference does: descriptors with the header's first byte.
fn read(stream: &OwnedFd) -> (serde_json::Value, Vec<OwnedFd>) {
    let mut header = [0; 4];
    let first = socket::receive(stream.as_fd(), &mut header, Wait::Blocking).unwrap();
    assert_eq!(first.bytes, 4, "a header comes whole");
    let mut message = vec![0; u32::from_le_bytes(header) as usize];
    let mut filled = 0;
    while filled < message.len() {
        let part = socket::receive(stream.as_fd(), &mut message[filled..], Wait::Blocking).unwrap();
        assert!(part.bytes > 0, "the stream ended inside a message");
        filled += part.bytes;
    }
    (serde_json::from_slice(&message).unwrap(), first.descriptors)
}

fn write(stream: &OwnedFd, message: &str) {
    let bytes = frame(message.as_bytes());
    socket::send(stream.as_fd(), &bytes, &[], Wait::Blocking).unwrap();
}

fn finish(child: Child) -> (Option<i32>, String, String) {
    let output = child.wait_with_output().unwrap();
    let owned = |bytes: &[u8]| text(bytes).to_owned();
    (
        output.status.code(),
        owned(&output.stdout),
        owned(&output.stderr),
    )
}

#[test]
fn the_request_has_the_protocols_form() {
    let server = Server::new();
    let mut wrapper = server.wrapper();
    wrapper
        .args(["bin/tool", "--help", "x y"])
        .current_dir("/usr");
    let child = wrapper.spawn().unwrap();
    let stream = server.accept();
    let (request, descriptors) = read(&stream);
    assert!(descriptors.is_empty());
    let expected = serde_json::json!({
        "file": "bin/tool", "argv": ["--help", "x y"], "workdir": "/usr", "env": {"KEPT": "yes"},
    });
    assert_eq!(request, expected);
    write(&stream, r#"{"action":{"Deny":{"reason":null}},"later":[]}"#);
    let denied = (Some(1), String::new(), "Execution denied\n".to_owned());
    assert_eq!(finish(child), denied);
}

#[test]
fn run_keeps_the_environment_that_the_wrapper_has() {
    let server = Server::new();
    let child = server
        .wrapper()
        .args(["/usr/bin/env", "env"])
        .spawn()
        .unwrap();
    let stream = server.accept();
    read(&stream);
    write(&stream, r#"{"action":"Run"}"#);
    let (status, out, _) = finish(child);
    assert_eq!(status, Some(0));
    for entry in [
        "CODEX_ESCALATE_SOCKET=",
        "EXEC_WRAPPER=",
        "BASH_EXEC_WRAPPER=",
        "KEPT=yes",
    ] {
        assert!(out.lines().any(|line| line.starts_with(entry)), "{out}");
    }
}

#[test]
fn escalation_needs_no_more_than_descriptors_and_an_exit_code() {
    let server = Server::new();
    let child = server
        .wrapper()
        .args(["/bin/tool", "tool"])
        .spawn()
        .unwrap();
    let stream = server.accept();
    read(&stream);
    write(&stream, r#"{"action":"Escalate"}"#);
    let (message, descriptors) = read(&stream);
    // And whatever else this test program's other tests have open.
    let numbers: Vec<i32> = serde_json::from_value(message["fds"].clone()).unwrap();
    assert_eq!(numbers[..3], [0, 1, 2]);
    assert_eq!(descriptors.len(), numbers.len());
    assert!(!numbers.contains(&server.clients.as_raw_fd()));
    let mut out = std::fs::File::from(descriptors.into_iter().nth(1).unwrap());
    std::io::Write::write_all(&mut out, b"from outside\n").unwrap();
    drop(out);
    write(&stream, r#"{"exit_code":42}"#);
    let ended = (Some(42), "from outside\n".to_owned(), String::new());
    assert_eq!(finish(child), ended);
}

#[test]
fn what_is_no_answer_runs_nothing() {
    let answers = [
        r#"{"action":"Walk"}"#,
        r#"{"action":{"Run":1}}"#,
        r#"{"action":null}"#,
        "{}",
        "[]",
        "",
        "\u{0}",
    ];
    for answer in answers {
        let server = Server::new();
        let child = server
            .wrapper()
            .args(["/bin/echo", "echo", "ran"])
            .spawn()
            .unwrap();
        let stream = server.accept();
        read(&stream);
        write(&stream, answer);
        let (status, out, err) = finish(child);
        assert_eq!((status, &*out), (Some(125), ""), "{answer:?}: {err}");
        assert!(err.contains("nothing was run"), "{err}");
    }
}

#[test]
fn a_server_that_goes_away_is_said_so() {
    // Before the handshake is taken, after it, and in the middle of an answer.
    for stage in 0..3 {
        let server = Server::new();
        let child = server
            .wrapper()
            .args(["/bin/echo", "echo", "ran"])
            .spawn()
            .unwrap();
        let stream = server.accept();
        if stage > 0 {
            read(&stream);
        }
        if stage > 1 {
            socket::send(stream.as_fd(), &[16, 0, 0, 0, b'{'], &[], Wait::Blocking).unwrap();
        }
        drop((stream, server));
        let (status, out, err) = finish(child);
        assert_eq!((status, &*out), (Some(125), ""), "{stage}: {err}");
        assert!(err.contains("nothing was run"), "{stage}: {err}");
    }
}

#[test]
fn a_server_that_refuses_a_request_it_has_not_read_is_heard() {
    let server = Server::new();
    let argument = "x".repeat(100_000);
    let child = server
        .wrapper()
        .args(["/bin/echo", "echo"])
        .args([&*argument; 8])
        .spawn()
        .unwrap();
    let stream = server.accept();
    write(&stream, r#"{"action":{"Deny":{"reason":"too long"}}}"#);
    // The rest can't be sent.
    drop(stream);
    let (status, out, err) = finish(child);
    assert_eq!((status, &*out), (Some(1), ""), "{err}");
    assert_eq!(err, "Execution denied: too long\n");
}

#[test]
fn bytes_that_are_no_text_come_beside_their_rendering() {
    let server = Server::new();
    let mut wrapper = server.wrapper();
    wrapper
        .arg("/bin/tool")
        .arg(std::ffi::OsStr::from_bytes(b"a\xffb"));
    let child = wrapper.spawn().unwrap();
    let stream = server.accept();
    let (request, _) = read(&stream);
    assert_eq!(request["argv"], serde_json::json!(["a\u{fffd}b"]));
    assert!(request["raw"].is_object());
    write(&stream, r#"{"action":{"Deny":{}}}"#);
    assert_eq!(finish(child).0, Some(1));
}

/// What a wrapper makes of a command that turns out to be a directory, by its argument zero.
fn run_a_directory(argument_zero: &[u8]) -> (Option<i32>, String, String) {
    let server = Server::new();
    let mut wrapper = server.wrapper();
    wrapper
        .arg0(std::ffi::OsStr::from_bytes(argument_zero))
        .args(["/usr/bin", "bin"]);
    let child = wrapper.spawn().unwrap();
    let stream = server.accept();
    read(&stream);
    write(&stream, r#"{"action":"Run"}"#);
    finish(child)
}

#[test]
fn argument_zero_is_believed_only_where_it_is_a_patched_shells() {
    let said = |message: &str, status| (Some(status), String::new(), message.to_owned());
    let zsh = b"/a/wrapper\x1fzsh\x1fzsh:7: \x1fbin";
    assert_eq!(
        run_a_directory(zsh),
        said("zsh:7: permission denied: bin\n", 126)
    );
    let bash = b"/a/wrapper\x1fbash\x1fsh\x1f line 8\x1f/bin/bash\x1fbash";
    assert_eq!(
        run_a_directory(bash),
        said("sh: line 8: /usr/bin: Is a directory\n", 126)
    );

    let a_wrappers = said("/usr/bin: Is a directory\n", 126);
    let most = [&b"/w\x1fzsh\x1f"[..], &b"x".repeat(8200), b"\x1fbin"].concat();
    let others: [&[u8]; 12] = [
        b"",
        b"/a/wrapper",
        b"zsh",
        b"/a/wrapper\x1f",
        b"\x1fzsh\x1fzsh:7: \x1fbin",
        b"/a/wrapper\x1fzsh\x1fzsh:7: ",
        b"/a/wrapper\x1fzsh\x1fzsh:7: \x1fb\x1fin",
        b"/a/wrapper\x1fbash\x1fsh\x1f line 8\x1f/bin/bash",
        b"/a/wrapper\x1ffish\x1ffish: \x1fbin",
        b"/a/wrapper zsh zsh:7: bin",
        b"\x1f\x1f\x1f\x1f\x1f\x1f",
        &most,
    ];
    for other in others {
        assert_eq!(run_a_directory(other), a_wrappers, "{other:?}");
    }
}

#[test]
fn a_gate_that_only_says_why_is_quoted() {
    let server = Server::new();
    let mut wrapper = server.wrapper();
    wrapper
        .arg0("/a/wrapper\u{1f}zsh\u{1f}zsh:7: \u{1f}tool")
        .args(["/bin/tool", "tool"]);
    let child = wrapper.spawn().unwrap();
    let stream = server.accept();
    read(&stream);
    write(&stream, r#"{"action":"Escalate"}"#);
    let (message, _) = read(&stream);
    assert_eq!(message["context"]["refusals"], true);
    write(
        &stream,
        r#"{"exit_code":126,"failure":"/bin/tool: Text file busy"}"#,
    );
    let ended = (
        Some(126),
        String::new(),
        "/bin/tool: Text file busy\n".to_owned(),
    );
    assert_eq!(finish(child), ended);
}

#[test]
fn a_waiting_wrapper_is_small() {
    if !std::path::Path::new(WRAPPER).exists() {
        assert!(
            std::env::var_os("CI").is_none(),
            "{WRAPPER}: `make build` makes it"
        );
        println!("skipped: {WRAPPER} isn't there; `make build` makes it");
        return;
    }
    let server = Server::new();
    let mut wrapper = Command::new(WRAPPER);
    wrapper.args(["/bin/tool", "tool"]).env(
        "CODEX_ESCALATE_SOCKET",
        server.clients.as_raw_fd().to_string(),
    );
    let mut child = wrapper.stderr(Stdio::null()).spawn().unwrap();
    let stream = server.accept();
    read(&stream);
    let status = std::fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap();
    let resident = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))
        .unwrap();
    let kibibytes: u64 = resident
        .trim()
        .trim_end_matches(" kB")
        .trim()
        .parse()
        .unwrap();
    assert!(kibibytes <= 2048, "{kibibytes} KiB");
    write(&stream, r#"{"action":{"Deny":{}}}"#);
    assert_eq!(child.wait().unwrap().code(), Some(1));
}

fn state(child: &Child) -> Option<char> {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", child.id())).ok()?;
    stat.rsplit(") ").next()?.chars().next()
}

/// Waits until the process sleeps, or has ended.
fn wait_for_rest(child: &Child) {
    let began = std::time::Instant::now();
    while !matches!(state(child), Some('S' | 'Z')) {
        assert!(began.elapsed() < crate::support::PATIENCE);
        std::thread::sleep(std::time::Duration::from_millis(2));
    }
}

#[test]
fn a_wrapper_waits_for_room_in_a_socket_that_somebody_has_made_non_blocking() {
    let server = Server::new();
    let clients = std::os::unix::net::UnixDatagram::from(server.clients.try_clone().unwrap());
    clients.set_nonblocking(true).unwrap();
    while socket::send(clients.as_fd(), &[1], &[], Wait::Never).is_ok() {}
    let child = server
        .wrapper()
        .args(["/bin/echo", "echo", "ran"])
        .spawn()
        .unwrap();
    wait_for_rest(&child);
    let mut buffer = [9; 8192];
    let stream = loop {
        let received = socket::receive(server.socket.as_fd(), &mut buffer, Wait::Never);
        if let Some(stream) = received.ok().and_then(|mut it| it.descriptors.pop()) {
            break stream;
        }
        assert_ne!(state(&child), Some('Z'), "it hasn't waited");
        std::thread::sleep(std::time::Duration::from_millis(2));
    };
    read(&stream);
    write(&stream, r#"{"action":"Run"}"#);
    assert_eq!(finish(child), (Some(0), "ran\n".to_owned(), String::new()));
}

/// A server that doesn't say that it tells when a command stops isn't known to pass on signals either.
#[test]
fn a_signal_acts_on_the_wrapper_where_the_server_passes_none_on() {
    let server = Server::new();
    let child = server
        .wrapper()
        .args(["/bin/tool", "tool"])
        // In a group that no shell looks after nothing can be stopped by a terminal's signal.
        .process_group(0)
        .spawn()
        .unwrap();
    let stream = server.accept();
    read(&stream);
    write(&stream, r#"{"action":"Escalate"}"#);
    read(&stream);
    let signal = |name: &str| {
        let pid = child.id().to_string();
        let kill = Command::new("kill").args(["-s", name, &pid]).status();
        assert!(kill.unwrap().success());
    };
    let wait_for = |wanted: char| {
        let began = std::time::Instant::now();
        while state(&child) != Some(wanted) {
            assert!(began.elapsed() < crate::support::PATIENCE);
            std::thread::sleep(std::time::Duration::from_millis(2));
        }
    };
    signal("TSTP");
    wait_for('T');
    signal("CONT");
    wait_for('S');
    signal("TERM");
    let output = child.wait_with_output().unwrap();
    assert_eq!(
        std::os::unix::process::ExitStatusExt::signal(&output.status),
        Some(15)
    );
}

#[test]
fn what_a_wrapper_is_told_while_it_waits_is_bounded() {
    for (notices, status) in [(99, 1), (200, 125)] {
        let server = Server::new();
        let child = server
            .wrapper()
            .args(["/bin/echo", "echo", "ran"])
            .spawn()
            .unwrap();
        let stream = server.accept();
        read(&stream);
        let notice = frame(br#"{"waiting":"for ada"}"#).repeat(notices);
        // It may have gone by now.
        let _ = socket::send(stream.as_fd(), &notice, &[], Wait::Blocking);
        let deny = frame(br#"{"action":{"Deny":{}}}"#);
        let _ = socket::send(stream.as_fd(), &deny, &[], Wait::Blocking);
        let (found, out, err) = finish(child);
        assert_eq!((found, &*out), (Some(status), ""), "{err}");
        assert_eq!(err.matches("execgate: for ada\n").count(), notices.min(100));
        assert_eq!(err.contains("nothing was run"), status == 125, "{err}");
    }
}
