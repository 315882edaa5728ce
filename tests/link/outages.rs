//! Services that can't be reached, or aren't policy services.

use std::time::Duration;

use execgate::link::{Drained, OnUnavailable};
use execgate::model::DecisionCode;
use execgate::pb::v1;
use execgate::pb::v1::session_response::Answer;

use crate::gate::Gate;
use crate::peer::Peer;
use crate::{raw_peer, scenario};

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
                    asked.is_denied(DecisionCode::Unreachable).await;
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
    scenario(async { is_unreachable(&raw_peer::serve(raw_peer::calm_down).await).await }).await;
}

#[tokio::test]
async fn a_peer_that_accepts_and_never_answers() {
    scenario(async {
        let endpoint = raw_peer::serve(raw_peer::silence).await;
        let gate = Gate::with(&endpoint, |options| {
            options.verdict_deadline = Duration::from_secs(2);
        });
        gate.ask(1).is_denied(DecisionCode::TimedOut).await;
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
        gate.ask(1).is_denied(DecisionCode::Unreachable).await;
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
        asked.is_denied(DecisionCode::Unreachable).await;
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
        asked.is_denied(DecisionCode::Unreachable).await;
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
        let mut peer = Peer::start_at(&socket).await;
        let mut call = peer.call().await;
        let (sequence, started) = call.started().await;
        assert_eq!((sequence, started.resumption), (1, None));
        call.asked(1).await;
        call.run(1).await;
        asked.runs(DecisionCode::Verdict).await;
    })
    .await;
}

#[tokio::test]
async fn an_exec_asked_during_a_long_outage_is_tried_at_once() {
    scenario(async {
        let directory = tempfile::tempdir().expect("a directory");
        let socket = directory.path().join("policy.sock");
        let gate = Gate::with(&format!("unix:{}", socket.display()), |options| {
            options.outage_tolerance = Duration::ZERO;
        });
        // By then the interval between attempts is longer than this test may take.
        for exec in 1..=12 {
            gate.ask(exec).is_denied(DecisionCode::Unreachable).await;
        }
        let mut peer = Peer::start_at(&socket).await;
        let asked = gate.ask(13);
        let mut call = peer.call().await;
        call.asked(13).await;
        call.run(13).await;
        asked.runs(DecisionCode::Verdict).await;
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
        gate.ask(1).is_denied(DecisionCode::SessionEnded).await;
    })
    .await;
}
