//! A sandboxed peer that lies: hand-written bytes against the real server. Whatever it sends, the
//! session goes on, and what is held for it is bounded.

#![allow(clippy::unwrap_used, reason = "tests")]

#[path = "../support/mod.rs"]
mod support;

mod claims;
mod early;
mod foreign_server;
mod hoarders;

use std::io::{Read, Seek, SeekFrom, Write};
use std::os::fd::{AsFd, OwnedFd};

use execgate::model::{EscalationDecision, ExecOutcome, SessionEvent};
use execgate::sys::socket::{self, Wait};
use execgate::wire::MAX_FRAME;
use support::peer::{frame, handshake, is_alive, read_frame, session_socket};
use support::{ESCALATE, Scripted, output, start, text};

const REQUEST: &[u8] = br#"{"file":"/bin/true","argv":["true"],"workdir":"/","env":{}}"#;

#[tokio::test]
async fn a_foreign_wrapper_is_served_by_the_letter_of_the_protocol() {
    let session = start(Scripted::always(EscalationDecision::Run));
    let mut stream = handshake(&session);
    stream.write_all(&frame(REQUEST)).unwrap();
    assert_eq!(read_frame(&stream).await, r#"{"action":"Run"}"#);

    let session = start(Scripted::always(support::deny("no")));
    let mut stream = handshake(&session);
    stream.write_all(&frame(REQUEST)).unwrap();
    assert_eq!(
        read_frame(&stream).await,
        r#"{"action":{"Deny":{"reason":"no"}}}"#
    );
}

#[tokio::test]
async fn a_foreign_wrapper_that_knows_no_extension_can_escalate() {
    let session = start(Scripted::always(ESCALATE));
    let mut stream = handshake(&session);
    let request =
        br#"{"file":"/bin/sh","argv":["sh","-c","cat <&7; exit 5"],"workdir":"/","env":{}}"#;
    stream.write_all(&frame(request)).unwrap();
    assert!(
        read_frame(&stream)
            .await
            .starts_with(r#"{"action":"Escalate""#)
    );
    let (mut reader, writer) = std::io::pipe().unwrap();
    let (input, mut feed) = std::io::pipe().unwrap();
    feed.write_all(b"through\n").unwrap();
    drop(feed);
    let message = frame(br#"{"fds":[1,2,7]}"#);
    let fds = [writer.as_fd(), writer.as_fd(), input.as_fd()];
    socket::send(stream.as_fd(), &message, &fds, Wait::Blocking).unwrap();
    drop((writer, input));
    assert_eq!(read_frame(&stream).await, r#"{"exit_code":5}"#);
    let mut said = String::new();
    reader.read_to_string(&mut said).unwrap();
    assert_eq!(said, "through\n");
}

#[tokio::test]
async fn descriptors_whose_numbers_overlap_come_out_right() {
    // Each of these arrives in the server at some number that isn't known here; where the places are the
    // same numbers, in another order, one is in the other's way.
    for first in (3..63).step_by(5) {
        let places: Vec<u32> = (first..first + 13).collect();
        let shift = places.len() / 2;
        let session = start(Scripted::always(ESCALATE));
        let mut stream = handshake(&session);
        let script = places
            .iter()
            .map(|place| format!("read line <&{place}; echo $line"))
            .collect::<Vec<_>>()
            .join("; ");
        let request = serde_json::json!({
            "file": "/bin/bash", "argv": ["bash", "-c", script], "workdir": "/", "env": {},
        });
        stream
            .write_all(&frame(request.to_string().as_bytes()))
            .unwrap();
        read_frame(&stream).await;
        let (mut reader, writer) = std::io::pipe().unwrap();
        let mut destinations = vec![1, 2];
        let mut sources: Vec<OwnedFd> = vec![writer.try_clone().unwrap().into(), writer.into()];
        for index in 0..places.len() {
            let place = places[(index + shift) % places.len()];
            let (input, mut feed) = std::io::pipe().unwrap();
            writeln!(feed, "{place}").unwrap();
            destinations.push(place);
            sources.push(input.into());
        }
        let message = frame(
            serde_json::json!({"fds": destinations})
                .to_string()
                .as_bytes(),
        );
        let borrowed: Vec<_> = sources.iter().map(AsFd::as_fd).collect();
        socket::send(stream.as_fd(), &message, &borrowed, Wait::Blocking).unwrap();
        drop(sources);
        let mut said = String::new();
        let said = tokio::task::spawn_blocking(move || {
            reader.read_to_string(&mut said).unwrap();
            said
        })
        .await
        .unwrap();
        let expected = places.iter().map(|place| format!("{place}\n"));
        let expected = expected.collect::<Vec<_>>().concat();
        assert_eq!(said, expected, "from {first}");
    }
}

#[tokio::test]
async fn a_message_that_claims_4_gib_is_refused_unread() {
    let session = start(Scripted::always(EscalationDecision::Run));
    for claimed in [u32::MAX, u32::try_from(MAX_FRAME).unwrap() + 1] {
        let mut stream = handshake(&session);
        // In one piece, so that the gate could read the second part as soon as the first.
        let begin = [&claimed.to_le_bytes()[..], &[b' '; 1000]].concat();
        stream.write_all(&begin).unwrap();
        let answer = read_frame(&stream).await;
        let refused = format!("a message of {claimed} bytes, and the most allowed are {MAX_FRAME}");
        assert!(
            answer.contains("Deny") && answer.contains(&refused),
            "{answer}"
        );
        // What wasn't read makes its end a reset.
        let end = tokio::task::spawn_blocking(move || stream.read(&mut [0]));
        let error = end.await.unwrap().unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
    }
    is_alive(&session).await;
}

/// A session that floods its gate with them would fill the disk that the log is on.
#[tokio::test]
async fn handshakes_that_are_none_are_logged_ever_more_rarely() {
    let mut log = tempfile::tempfile().unwrap();
    let subscriber = tracing_subscriber::fmt()
        .with_ansi(false)
        .with_writer(log.try_clone().unwrap())
        .finish();
    // All of the session is served by this thread.
    let logged = tracing::subscriber::set_default(subscriber);
    let session = start(Scripted::always(EscalationDecision::Run));
    for _ in 0..20 {
        socket::send(session_socket(&session), &[7], &[], Wait::Blocking).unwrap();
    }
    // They are taken one after the other.
    is_alive(&session).await;
    drop(logged);
    let mut lines = String::new();
    log.seek(SeekFrom::Start(0)).unwrap();
    log.read_to_string(&mut lines).unwrap();
    let counts: Vec<_> = lines
        .lines()
        .filter(|line| line.contains("a handshake was dropped"))
        .filter_map(|line| line.split("count=").nth(1)?.split(' ').next())
        .collect();
    assert_eq!(counts, ["1", "2", "4", "8", "16"], "{lines}");
}

#[tokio::test]
async fn garbage_is_refused_with_the_reason() {
    let session = start(Scripted::always(EscalationDecision::Run));
    let bad: [&[u8]; 7] = [
        b"",
        b"null",
        b"\xff\xfe",
        b"{\"file\":1}",
        br#"{"file":"/bin/true","argv":["true"],"workdir":"relative","env":{}}"#,
        br#"{"file":"/bin/true","argv":["true"],"workdir":"/","env":{"A":1}}"#,
        b"[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[",
    ];
    for message in bad {
        let mut stream = handshake(&session);
        stream.write_all(&frame(message)).unwrap();
        let answer = read_frame(&stream).await;
        assert!(answer.contains("invalid request"), "{answer}");
        assert_eq!(read_frame(&stream).await, "");
    }
    is_alive(&session).await;
}

#[tokio::test]
async fn a_stream_that_ends_at_any_byte_decides_nothing() {
    let policy = Scripted::always(EscalationDecision::Run);
    let session = start(policy.clone());
    let whole = frame(REQUEST);
    for end in 0..whole.len() {
        let mut stream = handshake(&session);
        stream.write_all(&whole[..end]).unwrap();
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        let answer = read_frame(&stream).await;
        // Who has said nothing isn't answered either.
        let expected = if end == 0 {
            ""
        } else {
            "the stream ended inside a message"
        };
        assert!(answer.contains(expected), "{end}: {answer}");
        assert_eq!(answer.is_empty(), end == 0, "{end}: {answer}");
    }
    is_alive(&session).await;
    assert_eq!(policy.asked.lock().unwrap().len(), 1);
}

#[tokio::test]
async fn half_a_request_and_silence_hold_up_nobody() {
    let session = start(Scripted::always(EscalationDecision::Run));
    let mut silent = Vec::new();
    for _ in 0..100 {
        let mut stream = handshake(&session);
        stream.write_all(&frame(REQUEST)[..20]).unwrap();
        silent.push(stream);
        tokio::task::yield_now().await;
    }
    is_alive(&session).await;
}

#[tokio::test]
async fn a_byte_at_a_time_is_a_request_too() {
    let session = start(Scripted::always(EscalationDecision::Run));
    let mut stream = handshake(&session);
    for byte in frame(REQUEST) {
        stream.write_all(&[byte]).unwrap();
        tokio::task::yield_now().await;
    }
    assert_eq!(read_frame(&stream).await, r#"{"action":"Run"}"#);
}

#[tokio::test]
async fn descriptors_must_be_as_many_as_declared() {
    for (fds, sent) in [("[0,1,2]", 2), ("[0]", 2), ("[]", 1), ("[0,1]", 0)] {
        let policy = Scripted::always(ESCALATE);
        let session = start(policy.clone());
        let mut stream = handshake(&session);
        stream.write_all(&frame(REQUEST)).unwrap();
        read_frame(&stream).await;
        let null = std::fs::File::open("/dev/null").unwrap();
        let message = frame(format!(r#"{{"fds":{fds}}}"#).as_bytes());
        socket::send(
            stream.as_fd(),
            &message,
            &vec![null.as_fd(); sent],
            Wait::Blocking,
        )
        .unwrap();
        let answer = read_frame(&stream).await;
        assert!(answer.contains("declared"), "{answer}");
        policy
            .wait_for(|event| match event {
                SessionEvent::ExecFinished {
                    outcome: ExecOutcome::NotStarted(_),
                    ..
                } => Some(()),
                _ => None,
            })
            .await;
        is_alive_anew().await;
    }
}

#[tokio::test]
async fn numbers_that_no_descriptor_can_have_are_refused() {
    for fds in ["[-1]", "[2147483647]", "[1,1]", "[1000000000]"] {
        let session = start(Scripted::always(ESCALATE));
        let mut stream = handshake(&session);
        stream.write_all(&frame(REQUEST)).unwrap();
        read_frame(&stream).await;
        let null = std::fs::File::open("/dev/null").unwrap();
        let count = fds.matches(',').count() + 1;
        let message = frame(format!(r#"{{"fds":{fds}}}"#).as_bytes());
        socket::send(
            stream.as_fd(),
            &message,
            &vec![null.as_fd(); count],
            Wait::Blocking,
        )
        .unwrap();
        let answer = read_frame(&stream).await;
        assert!(
            answer.contains("\"exit_code\":126") && answer.contains("failure"),
            "{fds}: {answer}"
        );
    }
}

async fn is_alive_anew() {
    let session = start(Scripted::always(EscalationDecision::Run));
    is_alive(&session).await;
}

#[tokio::test]
async fn signals_that_are_not_a_wrappers_to_send_are_not_sent() {
    let session = start(Scripted::always(ESCALATE));
    let mut stream = handshake(&session);
    let request = br#"{"file":"/bin/sleep","argv":["sleep","0.3"],"workdir":"/","env":{}}"#;
    stream.write_all(&frame(request)).unwrap();
    read_frame(&stream).await;
    let null = std::fs::File::open("/dev/null").unwrap();
    let message = frame(br#"{"fds":[0]}"#);
    socket::send(stream.as_fd(), &message, &[null.as_fd()], Wait::Blocking).unwrap();
    for signal in [0, -1, 9, 11, 64, 1_000_000] {
        let forward = frame(format!(r#"{{"signal":{signal}}}"#).as_bytes());
        stream.write_all(&forward).unwrap();
    }
    assert_eq!(read_frame(&stream).await, r#"{"exit_code":0}"#);
}

#[tokio::test]
async fn escalated_pipelines_do_not_hang() {
    // Each holds descriptors that the others wait for the end of: a leak into one is a deadlock.
    let session = start(Scripted::always(ESCALATE));
    for _ in 0..20 {
        let wrapper = support::WRAPPER;
        let script = format!(
            "{wrapper} /bin/echo echo through | {wrapper} /bin/cat cat | {wrapper} /bin/cat cat"
        );
        let mut command = std::process::Command::new("/bin/sh");
        command.args(["-c", &script]).envs(session.env());
        let got = output(command).await;
        assert_eq!(text(&got.stdout), "through\n", "{got:?}");
    }
}
