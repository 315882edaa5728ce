//! Peers that would keep the gate's time, descriptors or memory for themselves.

use std::io::{BufRead, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use execgate::model::{EscalationDecision, SessionEndReason, SessionEvent};
use execgate::server::{EscalateServer, GateBounds, SessionParams};
use execgate::sys::socket::{self, Kind, Wait};
use tokio_util::sync::CancellationToken;

use crate::REQUEST;
use crate::support::peer::{frame, handshake, is_alive, read_frame, session_socket};
use crate::support::{Direct, ESCALATE, PATIENCE, Scripted, WRAPPER, deny, start};

const SLEEP: &[u8] = br#"{"file":"/bin/sleep","argv":["sleep","1000"],"workdir":"/","env":{}}"#;

#[tokio::test]
async fn a_wrapper_that_never_stops_sending_is_not_served_alone() {
    let session = start(Scripted::new(|exec| {
        if exec.file.ends_with("sleep") {
            Some(ESCALATE)
        } else {
            Some(EscalationDecision::Run)
        }
    }));
    let mut stream = handshake(&session);
    stream.write_all(&frame(SLEEP)).unwrap();
    read_frame(&stream).await;
    stream.write_all(&frame(br#"{"fds":[]}"#)).unwrap();
    let answered = Arc::new(AtomicBool::new(false));
    let flood = std::thread::spawn({
        let answered = answered.clone();
        move || {
            let began = Instant::now();
            let signals = frame(br#"{"signal":18}"#).repeat(1000);
            while !answered.load(Ordering::Relaxed) {
                if began.elapsed() > PATIENCE / 2 {
                    return false;
                }
                stream.write_all(&signals).unwrap();
            }
            true
        }
    });
    // Well into the flood.
    tokio::time::sleep(std::time::Duration::from_millis(200)).await;
    is_alive(&session).await;
    answered.store(true, Ordering::Relaxed);
    let unstopped = tokio::task::spawn_blocking(|| flood.join().unwrap());
    assert!(unstopped.await.unwrap(), "nobody else was served meanwhile");
}

/// A pipe whose other end is only in `descriptors`, as many as a message carries.
fn pipe_in_descriptors() -> (std::io::PipeReader, Vec<OwnedFd>) {
    let (reader, writer) = std::io::pipe().unwrap();
    let copies = (0..16).map(|_| writer.try_clone().unwrap().into());
    (reader, copies.collect())
}

/// Waits until nobody holds the pipe's other end.
async fn is_let_go(mut reader: std::io::PipeReader) {
    let end = tokio::task::spawn_blocking(move || reader.read(&mut [0]).unwrap());
    let end = tokio::time::timeout(PATIENCE, end).await;
    assert!(matches!(end, Ok(Ok(0))), "the gate keeps the descriptors");
}

#[tokio::test]
async fn descriptors_that_nobody_asked_for_are_not_kept() {
    let session = start(Scripted::always(ESCALATE));
    let escalated = r#"{"action":"Escalate","notices":true}"#;
    // Half of a request's length, and a pause.
    let mut stream = handshake(&session);
    let (reader, descriptors) = pipe_in_descriptors();
    let borrowed: Vec<_> = descriptors.iter().map(AsFd::as_fd).collect();
    let request = frame(SLEEP);
    let (begin, rest) = request.split_at(2);
    socket::send(stream.as_fd(), begin, &borrowed, Wait::Blocking).unwrap();
    drop(descriptors);
    is_let_go(reader).await;
    // The gate hasn't given it up, which would have let them go too.
    stream.write_all(rest).unwrap();
    assert_eq!(read_frame(&stream).await, escalated);

    // A whole request is one all the same, and goes on when they are gone.
    let mut stream = handshake(&session);
    let (reader, descriptors) = pipe_in_descriptors();
    let borrowed: Vec<_> = descriptors.iter().map(AsFd::as_fd).collect();
    socket::send(stream.as_fd(), &frame(REQUEST), &borrowed, Wait::Blocking).unwrap();
    drop(descriptors);
    assert_eq!(read_frame(&stream).await, escalated);
    is_let_go(reader).await;
    stream.write_all(&frame(br#"{"fds":[]}"#)).unwrap();
    assert_eq!(read_frame(&stream).await, r#"{"exit_code":0}"#);

    // Half a signal for a command that runs: for that the gate waits as long as it takes.
    let mut stream = handshake(&session);
    stream.write_all(&frame(SLEEP)).unwrap();
    read_frame(&stream).await;
    stream.write_all(&frame(br#"{"fds":[]}"#)).unwrap();
    let (reader, descriptors) = pipe_in_descriptors();
    let borrowed: Vec<_> = descriptors.iter().map(AsFd::as_fd).collect();
    socket::send(stream.as_fd(), &[9, 0], &borrowed, Wait::Blocking).unwrap();
    drop(descriptors);
    is_let_go(reader).await;
}

#[tokio::test]
async fn who_does_not_read_the_answer_is_let_go_with_the_session() {
    // More than a socket takes.
    let session = start(Scripted::always(deny(&"no ".repeat(1 << 20))));
    let mut stream = handshake(&session);
    stream.write_all(&frame(REQUEST)).unwrap();
    // The answer has begun to arrive.
    let mut stream = tokio::task::spawn_blocking(move || {
        stream.read_exact(&mut [0; 4]).unwrap();
        stream
    })
    .await
    .unwrap();
    session
        .end(SessionEndReason::Completed, String::new(), None)
        .await;
    let error = stream.write_all(b" ").unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::BrokenPipe);
}

#[tokio::test]
async fn what_follows_a_request_is_short() {
    let session = start(Scripted::always(ESCALATE));
    let mut stream = handshake(&session);
    stream.write_all(&frame(SLEEP)).unwrap();
    read_frame(&stream).await;
    stream.write_all(&70_000_u32.to_le_bytes()).unwrap();
    let answer = read_frame(&stream).await;
    assert!(answer.contains("the most allowed are 65536"), "{answer}");
}

#[tokio::test]
async fn no_more_requests_are_served_at_once_than_the_gate_allows() {
    let policy = Scripted::new(|exec| (!exec.file.ends_with("sleep")).then_some(ESCALATE));
    let bounds = GateBounds {
        requests: 8,
        ..GateBounds::default()
    };
    let session = EscalateServer::new("/bin/sh", WRAPPER, policy.clone())
        .with_bounds(bounds)
        .start_session(
            SessionParams::default(),
            Arc::new(Direct),
            &CancellationToken::new(),
        )
        .unwrap();
    let ask = |_| {
        let mut stream = handshake(&session);
        stream.write_all(&frame(SLEEP)).unwrap();
        stream
    };
    // A session alone gets half of what there is. Those behind wait in its socket.
    let mut askers: Vec<_> = (0..4).map(ask).collect();
    policy.wait_until_asked(4).await;
    askers.extend((4..7).map(ask));
    for served in 4..7 {
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        assert_eq!(policy.asked.lock().unwrap().len(), served);
        // One that goes makes room for one.
        drop(askers.remove(0));
        policy.wait_until_asked(served + 1).await;
    }
}

#[tokio::test]
async fn who_does_not_read_what_is_told_holds_up_its_command_once() {
    let policy = Scripted::always(ESCALATE);
    let session = start(policy.clone());
    let (ours, gates) = socket::pair(Kind::Stream).unwrap();
    socket::send(
        session_socket(&session),
        &[0],
        &[gates.as_fd()],
        Wait::Blocking,
    )
    .unwrap();
    let mut stream = UnixStream::from(ours);
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let request =
        br#"{"file":"/bin/sh","argv":["sh","-c","echo $$; exec sleep 1000"],"workdir":"/",
        "env":{"PATH":"/usr/bin:/bin"}}"#;
    stream.write_all(&frame(request)).unwrap();
    read_frame(&stream).await;
    let (reader, writer) = std::io::pipe().unwrap();
    let message = frame(br#"{"fds":[1],"context":{"notices":true}}"#);
    socket::send(stream.as_fd(), &message, &[writer.as_fd()], Wait::Blocking).unwrap();
    drop(writer);
    let command = tokio::task::spawn_blocking(move || {
        let mut line = String::new();
        std::io::BufReader::new(reader)
            .read_line(&mut line)
            .unwrap();
        line.trim_end().to_owned()
    })
    .await
    .unwrap();
    // All that the gate can send is on its way, and nobody reads it.
    while socket::send(gates.as_fd(), &[0; 512], &[], Wait::Never).is_ok() {}
    for _ in 0..5 {
        for (signal, stopped) in [("-STOP", true), ("-CONT", false)] {
            let kill = Command::new("kill").args([signal, &command]).status();
            assert!(kill.unwrap().success());
            while is_stopped(&command) != stopped {
                tokio::time::sleep(std::time::Duration::from_millis(5)).await;
            }
        }
    }
    // The first may not have been tried yet when its time is said to be over; others have no time at all.
    let ended = async {
        for _ in 0..3 {
            tokio::time::pause();
            tokio::time::advance(std::time::Duration::from_secs(31)).await;
            tokio::time::resume();
            tokio::time::sleep(std::time::Duration::from_secs(1)).await;
        }
    };
    let finished =
        policy.wait_for(|event| matches!(event, SessionEvent::ExecFinished { .. }).then_some(()));
    tokio::join!(ended, finished);
}

fn is_stopped(pid: &str) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    status.rsplit(") ").next().unwrap().starts_with('T')
}

#[tokio::test]
async fn who_is_refused_for_want_of_memory_has_sent_its_message_whole() {
    let bounds = GateBounds {
        message_bytes: 2 << 20,
        ..GateBounds::default()
    };
    let session = EscalateServer::new("/bin/sh", WRAPPER, Scripted::always(ESCALATE))
        .with_bounds(bounds)
        .start_session(
            SessionParams::default(),
            Arc::new(Direct),
            &CancellationToken::new(),
        )
        .unwrap();
    // All that the session may have.
    let mut first = handshake(&session);
    first.write_all(&900_000_u32.to_le_bytes()).unwrap();
    // Once that has been read.
    is_alive(&session).await;
    let mut second = handshake(&session);
    let sent = tokio::task::spawn_blocking(move || {
        let sent = second.write_all(&frame(&vec![b' '; 700_000]));
        sent.map(|()| second)
    });
    let second = sent.await.unwrap().expect("a peer that goes on reading");
    let answer = read_frame(&second).await;
    assert!(answer.contains("too many bytes of requests"), "{answer}");
}
