//! Other systems that are told of approvals, by signed POSTs: those that listen, and those that don't or do worse.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};

use serde_json::Value;

use crate::approvals::{ada, gate, id, pending};
use crate::gate::Gate;
use crate::machine::{Shell, in_both_shells, in_shell};
use crate::process;

const SECRET: &[u8] = b"a secret of some length";

in_both_shells! {
    another_system_is_told_by_signed_posts_and_told_again_until_it_listens,
}

/// A gate whose service tells what happens to a receiver here.
fn told(shell: &Shell) -> (Gate, TcpListener) {
    use std::os::unix::fs::PermissionsExt;
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address");
    let gate = gate(shell);
    std::fs::write(gate.path("webhook"), format!("http://{address}/hook?x=1")).expect("a file");
    std::fs::write(gate.path("secret"), SECRET).expect("a file");
    let mode = std::fs::Permissions::from_mode(0o600);
    std::fs::set_permissions(gate.path("secret"), mode).expect("a mode");
    gate.restart_policyd();
    (gate, listener)
}

/// The next connection, if one comes before patience is over.
#[track_caller]
fn accept(listener: &TcpListener) -> TcpStream {
    listener.set_nonblocking(true).expect("a mode");
    let mut accepted = None;
    process::wait_until("a connection", || {
        accepted = listener.accept().ok();
        accepted.is_some()
    });
    let (stream, _) = accepted.expect("a connection");
    stream.set_nonblocking(false).expect("a mode");
    stream
}

/// Takes one HTTP request. Gives its connection, its head, in lower case, and its body.
#[track_caller]
fn take_one(listener: &TcpListener) -> (TcpStream, String, Vec<u8>) {
    let mut stream = accept(listener);
    let patience = Some(process::PATIENCE);
    stream.set_read_timeout(patience).expect("a limit");
    stream.set_write_timeout(patience).expect("a limit");
    let mut read = Vec::new();
    let mut buffer = [0; 4096];
    loop {
        let length = stream.read(&mut buffer).expect("a request");
        assert!(length > 0, "it ended early");
        read.extend_from_slice(&buffer[..length]);
        let Some(end) = read.windows(4).position(|four| four == b"\r\n\r\n") else {
            continue;
        };
        let head = String::from_utf8_lossy(&read[..end]).to_lowercase();
        let expected: usize = header(&head, "content-length").parse().expect("a length");
        let body = &read[end + 4..];
        if body.len() >= expected {
            return (stream, head, body.to_vec());
        }
    }
}

/// Takes one HTTP request, and answers it with a status.
#[track_caller]
fn serve_one(listener: &TcpListener, status: &str) -> (String, Vec<u8>) {
    let (mut stream, head, body) = take_one(listener);
    write!(stream, "HTTP/1.1 {status}\r\ncontent-length: 0\r\n\r\n").expect("an answer");
    (head, body)
}

fn header<'a>(head: &'a str, name: &str) -> &'a str {
    let line = head
        .lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
    line.unwrap_or_else(|| panic!("no {name} in {head}"))
}

fn another_system_is_told_by_signed_posts_and_told_again_until_it_listens(shell: &Shell) {
    let (gate, listener) = told(shell);
    let take = |status: &str| -> Value {
        let (head, body) = serve_one(&listener, status);
        assert!(head.starts_with("post /hook?x=1 http/1.1"), "{head}");
        let key = ring::hmac::Key::new(ring::hmac::HMAC_SHA256, SECRET);
        let signed = [header(&head, "execgate-timestamp").as_bytes(), b".", &body].concat();
        let shown = header(&head, "execgate-signature")
            .strip_prefix("v1=")
            .expect("version 1");
        let digits = (0..shown.len()).step_by(2);
        let shown: Vec<u8> = digits
            .map(|at| u8::from_str_radix(&shown[at..at + 2], 16).expect("a digit"))
            .collect();
        ring::hmac::verify(&key, &signed, &shown).expect("it is signed");
        serde_json::from_slice(&body).expect("JSON")
    };
    let running = gate.start("uname");
    let approval = pending(&gate);
    // Nobody has listened yet, and the approval is there nevertheless.
    let told = take("503 Service Unavailable");
    assert_eq!(told["event"], "approval.opened");
    assert_eq!(take("204 No Content"), told);
    assert_eq!(told["approval"]["approval"], approval["approval"]);
    assert_eq!(told["approval"]["state"], "pending");
    ada(&gate, &["approvals", "approve", id(&approval)]).exits(0);
    // The verdict doesn't wait for the receiver.
    running.done().exits(0).prints("Linux\n");
    let told = take("200 OK");
    assert_eq!(told["event"], "approval.closed");
    assert_eq!(told["approval"]["resolved_by"], "operator:ada");
}

/// Most bytes that a connection holds which nobody reads: both ends' buffers, with room.
const MOST_UNREAD: usize = 64 << 20;

/// Sends the same again and again, until nobody takes it any more.
fn send_without_end(mut stream: TcpStream, first: &str, again: &[u8]) -> usize {
    stream.write_all(first.as_bytes()).expect("the beginning");
    let mut sent = 0;
    while stream.write_all(again).is_ok() {
        sent += again.len();
        assert!(sent < MOST_UNREAD, "{sent} bytes were taken");
    }
    sent
}

#[test]
fn receivers_that_redirect_talk_without_end_or_hang_cost_nobody_anything() {
    in_shell("bash", |shell: &Shell| {
        let (gate, listener) = told(shell);
        let elsewhere = TcpListener::bind("127.0.0.1:0").expect("a port");
        elsewhere.set_nonblocking(true).expect("a mode");
        let away = elsewhere.local_addr().expect("an address");
        let event = |body: &[u8]| -> String {
            let told: Value = serde_json::from_slice(body).expect("JSON");
            told["event"].as_str().expect("an event").to_owned()
        };
        let approve = |gate: &Gate| {
            let running = gate.start("uname");
            let approval = pending(gate);
            ada(gate, &["approvals", "approve", id(&approval)]).exits(0);
            running.done().exits(0).prints("Linux\n");
        };
        approve(&gate);

        // The status is what counts: of the ten gigabytes behind it nothing is read.
        let (stream, _, body) = take_one(&listener);
        assert_eq!(event(&body), "approval.opened");
        let head = "HTTP/1.1 200 OK\r\ncontent-length: 10737418240\r\n\r\n";
        send_without_end(stream, head, &[b'x'; 1 << 13]);

        // Who is sent elsewhere doesn't go: what is told is for the receiver that the operator named.
        let (head, body) = serve_one(
            &listener,
            &format!("307 Temporary Redirect\r\nlocation: http://{away}/"),
        );
        assert_eq!(event(&body), "approval.closed");
        let first = header(&head, "execgate-delivery").to_owned();
        gate.policyd(|policyd| policyd.wait_for_log("refuses a change"));
        assert!(elsewhere.accept().is_err(), "it went where it was sent");

        // A head without end is no answer: it is asked again.
        approve(&gate);
        let (stream, head, body) = take_one(&listener);
        assert_eq!(event(&body), "approval.opened");
        let second = header(&head, "execgate-delivery").to_owned();
        assert!(!first.contains(&second[..8]), "{first} {second}");
        send_without_end(
            stream,
            "HTTP/1.1 200 OK\r\n",
            format!("x: {}\r\n", "y".repeat(1 << 10)).as_bytes(),
        );

        // Nor is silence. Meanwhile verdicts and decisions go on as ever.
        let (silent, head, _) = take_one(&listener);
        assert_eq!(header(&head, "execgate-delivery"), second);
        approve(&gate);
        gate.exec("/bin/true").exits(0);
        let (head, _) = serve_one(&listener, "204 No Content");
        assert_eq!(header(&head, "execgate-delivery"), second);
        drop(silent);
        for expected in ["approval.closed", "approval.opened", "approval.closed"] {
            let (_, body) = serve_one(&listener, "204 No Content");
            assert_eq!(event(&body), expected);
        }
    });
}
