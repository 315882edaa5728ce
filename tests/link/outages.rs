//! Services that can't be reached, or aren't policy services.

use std::path::Path;
use std::time::Duration;

use execgate::link::{Drained, OnUnavailable};
use execgate::model::DecisionCode;
use execgate::pb::v1;
use execgate::pb::v1::session_response::Answer;
use tokio::io::copy_bidirectional;
use tokio::net::{UnixListener, UnixStream};
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::gate::Gate;
use crate::peer::Peer;
use crate::raw_peer::RawPeer;
use crate::{pass, raw_peer, scenario};

/// An exec that such a service at `endpoint` can't be asked about is denied as unreachable, or runs
/// where the owner says so.
async fn is_unreachable(endpoint: &str) {
    for on_unavailable in [OnUnavailable::Deny, OnUnavailable::Run] {
        let gate = Gate::with(endpoint, |options| {
            options.outage_tolerance = Duration::ZERO;
            options.on_unavailable = on_unavailable;
        });
        for exec in 1..=2 {
            let asked = gate.ask(exec);
            match on_unavailable {
                OnUnavailable::Deny => {
                    asked.denied(DecisionCode::Unreachable).await;
                }
                OnUnavailable::Run => asked.runs(DecisionCode::Unreachable).await,
            }
        }
        assert_eq!(gate.link.counters().unreachable, 2);
        assert!(gate.link.counters().broken_calls > 0);
    }
}

#[tokio::test]
async fn no_listener() {
    scenario(async {
        // A port that something holds without listening.
        let socket = tokio::net::TcpSocket::new_v4().expect("a socket");
        let any = "127.0.0.1:0".parse().expect("an address");
        socket.bind(any).expect("a port");
        let address = socket.local_addr().expect("an address");
        is_unreachable(&format!("http://{address}")).await;
    })
    .await;
}

#[tokio::test]
async fn no_socket() {
    scenario(async {
        let directory = tempfile::tempdir().expect("a directory");
        let socket = directory.path().join("nobody");
        is_unreachable(&format!("unix:{}", socket.display())).await;
    })
    .await;
}

#[tokio::test]
async fn garbage_instead_of_http2() {
    scenario(async { is_unreachable(&raw_peer::serve(raw_peer::garbage).await).await }).await;
}

#[tokio::test]
async fn a_web_server() {
    scenario(async { is_unreachable(&raw_peer::serve(raw_peer::web_server).await).await }).await;
}

#[tokio::test]
async fn a_reset_connection() {
    scenario(async { is_unreachable(&raw_peer::serve(raw_peer::reset).await).await }).await;
}

#[tokio::test]
async fn half_a_message() {
    scenario(async { is_unreachable(&raw_peer::serve(raw_peer::half_a_message).await).await })
        .await;
}

#[tokio::test]
async fn trailers_that_cannot_be_taken_apart() {
    scenario(async { is_unreachable(&raw_peer::serve(raw_peer::broken_trailers).await).await })
        .await;
}

#[tokio::test]
async fn a_service_that_objects_to_pings() {
    scenario(async {
        let endpoint = raw_peer::serve(raw_peer::calm_down).await;
        is_unreachable(&endpoint).await;
        let gate = Gate::with(&endpoint, |options| {
            options.outage_tolerance = Duration::ZERO;
        });
        // The link tells it by these words.
        let reason = gate.ask(1).denied(DecisionCode::Unreachable).await;
        assert!(reason.contains("too_many_pings"), "{reason:?}");
    })
    .await;
}

/// How many pings come while a connection is quiet for long enough to be cut for them. Asks then, which shows that
/// nothing is on its way any more.
async fn pings_while_quiet(peer: &mut RawPeer, gate: &Gate, exec: u64) -> usize {
    pass(Duration::from_secs(12)).await;
    let _asked = gate.ask(exec);
    peer.asked(exec).await
}

#[tokio::test]
async fn a_service_that_objects_to_pings_gets_no_more_of_them() {
    scenario(async {
        let listener = raw_peer::Listener::new().await;
        let gate = Gate::new(&listener.endpoint());
        let mut peer = listener.call().await;
        assert_eq!(pings_while_quiet(&mut peer, &gate, 1).await, 1);
        tokio::spawn(peer.object_to_pings());
        let mut peer = listener.call().await;
        assert_eq!(pings_while_quiet(&mut peer, &gate, 2).await, 0);
    })
    .await;
}

/// What a service says about pings may not reach the gate, or nothing may be said.
#[tokio::test]
async fn connections_that_are_cut_while_they_are_quiet_are_pinged_no_more() {
    scenario(async {
        let listener = raw_peer::Listener::new().await;
        let gate = Gate::new(&listener.endpoint());
        for (exec, pings) in [(1, 1), (2, 1), (3, 0)] {
            let mut peer = listener.call().await;
            let seen = pings_while_quiet(&mut peer, &gate, exec).await;
            assert_eq!(seen, pings, "exec {exec}");
        }
    })
    .await;
}

#[tokio::test]
async fn a_peer_that_accepts_and_never_answers() {
    scenario(async {
        let endpoint = raw_peer::serve(raw_peer::silence).await;
        let gate = Gate::with(&endpoint, |options| {
            options.verdict_deadline = Duration::from_secs(2);
        });
        gate.ask(1).denied(DecisionCode::TimedOut).await;
    })
    .await;
}

#[tokio::test]
async fn a_peer_that_hangs_is_found_by_pings() {
    scenario(async {
        let endpoint = raw_peer::serve(raw_peer::silence).await;
        let gate = Gate::with(&endpoint, |options| {
            options.outage_tolerance = Duration::ZERO;
        });
        gate.ask(1).denied(DecisionCode::Unreachable).await;
    })
    .await;
}

#[tokio::test]
async fn an_oversized_answer() {
    scenario(async {
        let mut peer = Peer::start().await;
        let gate = Gate::with(&peer.endpoint, |options| {
            options.outage_tolerance = Duration::ZERO;
        });
        let asked = gate.ask(1);
        let mut call = peer.call().await;
        call.asked(1).await;
        call.answer(Answer::TerminateSession(v1::TerminateSession {
            reason: "a".repeat(17 * 1024 * 1024),
        }))
        .await;
        asked.denied(DecisionCode::Unreachable).await;
        assert_eq!(gate.context.terminator.reason(), None);
    })
    .await;
}

#[tokio::test]
async fn a_question_that_breaks_every_call_is_given_up() {
    scenario(async {
        let mut peer = Peer::start().await;
        let gate = Gate::new(&peer.endpoint);
        let asked = gate.ask(1);
        for _ in 0..4 {
            let mut call = peer.call().await;
            call.asked(1).await;
            call.end();
        }
        asked.denied(DecisionCode::Unreachable).await;
        let asked = gate.ask(2);
        let mut call = peer.call().await;
        call.asked(2).await;
        call.run(2).await;
        asked.runs(DecisionCode::Verdict).await;
    })
    .await;
}

#[tokio::test]
async fn a_service_that_starts_late_is_in_time() {
    scenario(async {
        let directory = tempfile::tempdir().expect("a directory");
        let socket = directory.path().join("policy.sock");
        let gate = Gate::new(&format!("unix:{}", socket.display()));
        let asked = gate.ask(1);
        while gate.link.counters().broken_calls < 2 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        let mut peer = Peer::start_at(&socket);
        let mut call = peer.call().await;
        let (sequence, started) = call.started().await;
        assert_eq!((sequence, started.resumption), (1, None));
        call.asked(1).await;
        call.run(1).await;
        asked.runs(DecisionCode::Verdict).await;
    })
    .await;
}

/// The clock stands still but where all wait for it, so it says what was waited for, up to where there is a service.
#[tokio::test(start_paused = true)]
async fn an_exec_asked_during_a_long_outage_is_tried_at_once() {
    scenario(async {
        let directory = tempfile::tempdir().expect("a directory");
        let socket = directory.path().join("policy.sock");
        let gate = Gate::with(&format!("unix:{}", socket.display()), |options| {
            options.outage_tolerance = Duration::ZERO;
        });
        for exec in 1..=12 {
            let asked = Instant::now();
            gate.ask(exec).denied(DecisionCode::Unreachable).await;
            // By the eighth the link would wait for five seconds at least.
            let waited = asked.elapsed();
            assert!(waited < Duration::from_secs(1), "exec {exec}: {waited:?}");
        }
        tokio::time::resume();
        let mut peer = Peer::start_at(&socket);
        let asked = gate.ask(13);
        let mut call = peer.call().await;
        call.asked(13).await;
        call.run(13).await;
        asked.runs(DecisionCode::Verdict).await;
    })
    .await;
}

/// A socket that leads to a peer's, and can be cut.
struct Cable(tokio::task::JoinHandle<()>);

impl Cable {
    fn lay(from: &Path, to: &Path) -> Self {
        let listener = UnixListener::bind(from).expect("a socket");
        let to = to.to_owned();
        Self(tokio::spawn(async move {
            let mut connections = JoinSet::new();
            loop {
                let (mut near, _) = listener.accept().await.expect("a connection");
                let mut far = UnixStream::connect(&to).await.expect("a peer");
                connections.spawn(async move { copy_bidirectional(&mut near, &mut far).await });
            }
        }))
    }

    async fn cut(self, from: &Path) {
        std::fs::remove_file(from).expect("a socket");
        self.0.abort();
        let _ = self.0.await;
    }
}

/// Waits for so many calls to have failed; returns how long that took by a clock that stands still where something
/// else can be done.
async fn broken_calls(gate: &Gate, count: u64) -> Duration {
    let began = Instant::now();
    while gate.link.counters().broken_calls < count {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    began.elapsed()
}

#[tokio::test(start_paused = true)]
async fn after_a_good_call_the_service_is_called_again_soon() {
    scenario(async {
        let directory = tempfile::tempdir().expect("a directory");
        let path = |name| directory.path().join(name);
        let (socket, behind) = (path("policy.sock"), path("behind"));
        let gate = Gate::new(&format!("unix:{}", socket.display()));
        broken_calls(&gate, 8).await;
        // It would wait for five seconds at least.
        tokio::time::resume();
        let mut peer = Peer::start_at(&behind);
        let cable = Cable::lay(&socket, &behind);
        let asked = gate.ask(1);
        let mut call = peer.call().await;
        call.asked(1).await;
        call.run(1).await;
        asked.runs(DecisionCode::Verdict).await;
        pass(Duration::from_secs(6)).await;
        let before = gate.link.counters().broken_calls;
        cable.cut(&socket).await;
        broken_calls(&gate, before + 1).await;
        tokio::time::pause();
        let waited = broken_calls(&gate, before + 2).await;
        assert!(waited < Duration::from_secs(1), "{waited:?}");
    })
    .await;
}

#[tokio::test]
async fn without_a_service_the_end_of_a_session_is_not_held_up() {
    scenario(async {
        let directory = tempfile::tempdir().expect("a directory");
        let socket = directory.path().join("nobody");
        let gate = Gate::with(&format!("unix:{}", socket.display()), |options| {
            options.flush_window = Duration::from_millis(50);
        });
        gate.tell(1);
        gate.end();
        let drained = gate.link.drain(Duration::from_secs(30)).await;
        assert_eq!(drained, Drained::Completely);
        assert_eq!(gate.link.counters().lost_events, 3);
        gate.ask(1).denied(DecisionCode::SessionEnded).await;
    })
    .await;
}
