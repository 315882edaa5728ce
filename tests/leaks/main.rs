//! Descriptors and processes of the gate are back to where they were. A program of its own, and its
//! tests one at a time, because they count what the whole process has.

#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

#[path = "../support/mod.rs"]
mod support;

use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use execgate::model::EscalationDecision;
use execgate::sys::socket::{self, Kind, Wait};
use support::peer::{is_alive, send_by_hand, session_socket};
use support::{ESCALATE, PATIENCE, Scripted, output, start, wrapped};

static ALONE: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

fn open_descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

#[tokio::test]
async fn handshakes_that_are_none_are_dropped_and_leak_nothing() {
    let _alone = ALONE.lock().await;
    let session = start(Scripted::always(EscalationDecision::Run));
    let socket = session_socket(&session);
    is_alive(&session).await;
    let before = open_descriptors();
    let (pipe, writer) = std::io::pipe().unwrap();
    let (stream, other) = socket::pair(Kind::Stream).unwrap();
    let (datagram, other_datagram) = socket::pair(Kind::Datagram).unwrap();
    let file = std::fs::File::open("/dev/null").unwrap();
    let sixteen = vec![pipe.as_fd(); 16];
    let bad: [(&[u8], &[BorrowedFd<'_>]); 8] = [
        (&[0], &[]),
        (&[0], &[pipe.as_fd()]),
        (&[0], &[file.as_fd()]),
        (&[0], &[datagram.as_fd()]),
        (&[0], &[stream.as_fd(), stream.as_fd()]),
        (&[0], &sixteen),
        (&[7], &[stream.as_fd()]),
        (&[0; 9000], &[stream.as_fd()]),
    ];
    for (bytes, descriptors) in bad {
        for _ in 0..20 {
            socket::send(socket, bytes, descriptors, Wait::Blocking).unwrap();
            tokio::task::yield_now().await;
        }
    }
    // Seventeen and more can be sent by a peer that builds its own control message.
    send_by_hand(socket, &[0], 17);
    is_alive(&session).await;
    drop((pipe, writer, stream, other, datagram, other_datagram, file));
    settle(before - 1).await;
}

/// Waits until no more descriptors are open than `count` and the few that a test's own reading takes.
async fn settle(count: usize) {
    let search = async {
        while open_descriptors() > count + 1 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(PATIENCE, search)
        .await
        .unwrap_or_else(|_| {
            panic!(
                "{} descriptors are open, and {count} were",
                open_descriptors()
            )
        });
}

#[tokio::test]
async fn after_a_thousand_escalations_nothing_is_left() {
    let _alone = ALONE.lock().await;
    let session = start(Scripted::always(ESCALATE));
    is_alive(&session).await;
    let before = open_descriptors();
    for _ in 0..20 {
        let batch: Vec<_> = (0..50)
            .map(|_| tokio::spawn(output(wrapped(&session, "/bin/true", &["true"]))))
            .collect();
        for got in batch {
            let got = got.await.unwrap();
            assert!(got.status.success(), "{got:?}");
        }
    }
    settle(before).await;
    let no_zombies = async {
        while zombies() > 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let settled = tokio::time::timeout(PATIENCE, no_zombies).await;
    assert!(settled.is_ok(), "{} zombies are left", zombies());
}

/// Children of this process that have ended and not been waited for.
fn zombies() -> usize {
    let own = std::process::id().to_string();
    let is_one = |stat: String| {
        let mut fields = stat.rsplit(')').next().unwrap().split_whitespace();
        fields.next() == Some("Z") && fields.next() == Some(&own)
    };
    std::fs::read_dir("/proc")
        .unwrap()
        .filter_map(|entry| std::fs::read_to_string(entry.ok()?.path().join("stat")).ok())
        .filter(|stat| is_one(stat.clone()))
        .count()
}
