//! Peers that would keep the gate's time, descriptors or memory for themselves.

use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use execgate::model::{EscalationDecision, SessionEndReason};
use execgate::sys::socket::{self, Wait};

use crate::REQUEST;
use crate::support::peer::{frame, handshake, is_alive, read_frame};
use crate::support::{ESCALATE, PATIENCE, Scripted, deny, start};

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
    // Half a request, and silence.
    let stream = handshake(&session);
    let (reader, descriptors) = pipe_in_descriptors();
    let borrowed: Vec<_> = descriptors.iter().map(AsFd::as_fd).collect();
    socket::send(stream.as_fd(), &[9, 0], &borrowed, Wait::Blocking).unwrap();
    drop(descriptors);
    is_let_go(reader).await;

    // Half a signal for a command that runs.
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
    tokio::task::spawn_blocking(move || {
        let began = Instant::now();
        while stream.write_all(b" ").is_ok() {
            assert!(began.elapsed() < PATIENCE, "the gate keeps the stream");
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
    })
    .await
    .unwrap();
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
