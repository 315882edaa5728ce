//! Several endpoints: where a session turns to when one fails, and how it comes back.

use std::time::Duration;

use execgate::model::DecisionCode;
use execgate::pb::v1::session_request::Event;
use execgate::server::EscalationPolicy as _;
use tokio::time::Instant;
use tonic::Status;

use crate::gate::{Gate, context};
use crate::peer::Peer;
use crate::{pass, raw_peer, scenario};

#[tokio::test]
async fn an_endpoint_that_cannot_be_reached_is_passed_over_before_any_exec_fails() {
    scenario(async {
        let directory = tempfile::tempdir().expect("a directory");
        let nobody = format!("unix:{}", directory.path().join("nobody").display());
        let mut peer = Peer::start().await;
        let gate = Gate::with(&nobody, |options| {
            options.outage_tolerance = Duration::ZERO;
            options.further_endpoints = vec![
                nobody.parse().expect("an endpoint"),
                peer.endpoint.parse().expect("an endpoint"),
            ];
        });
        let asked = gate.ask(1);
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
async fn an_open_question_is_asked_again_at_the_next_endpoint() {
    scenario(async {
        let (mut first, mut second) = (Peer::start().await, Peer::start().await);
        let gate = Gate::with(&first.endpoint, |options| {
            options.further_endpoints = vec![second.endpoint.parse().expect("an endpoint")];
        });
        let asked = gate.ask(1);
        let mut call = first.call().await;
        call.accept_and_store().await;
        call.asked(1).await;
        call.fail(Status::unavailable("restarting")).await;

        let mut call = second.call().await;
        let (_, started) = call.started().await;
        assert_eq!(started.resumption.map(|it| it.next_sequence), Some(2));
        assert_eq!(call.question().await.0, 2);
        call.run(1).await;
        asked.runs(DecisionCode::Verdict).await;
    })
    .await;
}

/// A refusal that is lasting at one endpoint isn't at another, and that all refuse is said at once.
#[tokio::test]
async fn a_refusal_counts_when_all_endpoints_have_refused() {
    scenario(async {
        let (mut first, mut second) = (Peer::start().await, Peer::start().await);
        let gate = Gate::with(&first.endpoint, |options| {
            options.further_endpoints = vec![second.endpoint.parse().expect("an endpoint")];
        });
        let asked = gate.ask(1);
        let refusal = || Status::permission_denied("not you");
        first.call().await.fail(refusal()).await;
        // One of them may still decide.
        let mut call = second.call().await;
        call.asked(1).await;
        call.run(1).await;
        asked.runs(DecisionCode::Verdict).await;

        let asked = gate.ask(2);
        call.asked(2).await;
        call.fail(refusal()).await;
        let reason = asked.denied(DecisionCode::Unreachable).await;
        assert!(reason.contains("not you"), "{reason:?}");
    })
    .await;
}

#[tokio::test]
async fn a_working_call_stays_where_it_is_and_later_ones_go_to_the_first_endpoint() {
    scenario(async {
        let directory = tempfile::tempdir().expect("a directory");
        let socket = directory.path().join("policy.sock");
        let mut second = Peer::start().await;
        let gate = Gate::with(&format!("unix:{}", socket.display()), |options| {
            options.outage_tolerance = Duration::ZERO;
            options.further_endpoints = vec![second.endpoint.parse().expect("an endpoint")];
        });
        let mut call = second.call().await;
        call.started().await;
        // The first endpoint is there from now on.
        let mut first = Peer::start_at(&socket);
        for exec in 1..=3 {
            let asked = gate.ask(exec);
            call.asked(exec).await;
            call.run(exec).await;
            asked.runs(DecisionCode::Verdict).await;
        }
        // Sessions come back to it when they have to call again anyway: at once, and with what is being asked,
        // because the call was a good one. That the first couldn't be reached before that is long ago.
        let asked = gate.ask(4);
        call.asked(4).await;
        pass(Duration::from_secs(6)).await;
        call.fail(Status::unavailable("restarting")).await;
        let mut call = first.call().await;
        let (_, started) = call.started().await;
        assert!(started.resumption.is_some());
        call.asked(4).await;
        call.run(4).await;
        asked.runs(DecisionCode::Verdict).await;
        let _other = gate.link.for_session(&context(2)).expect("a session");
        let mut call = first.call().await;
        assert!(matches!(call.next().await, (1, Event::SessionStarted(_))));
    })
    .await;
}

/// The clock stands still but where all wait for it, so it says what was waited for.
#[tokio::test(start_paused = true)]
async fn attempts_keep_their_distance_however_many_execs_ask_for_one() {
    scenario(async {
        const EXECS: u32 = 12;
        let directory = tempfile::tempdir().expect("a directory");
        let nobody = |name| format!("unix:{}", directory.path().join(name).display());
        let began = Instant::now();
        let gate = Gate::with(&nobody("first"), |options| {
            options.outage_tolerance = Duration::ZERO;
            options.further_endpoints = vec![nobody("second").parse().expect("an endpoint")];
        });
        for exec in 1..=EXECS {
            gate.ask(exec.into())
                .denied(DecisionCode::Unreachable)
                .await;
        }
        assert_eq!(gate.link.counters().broken_calls, u64::from(2 * EXECS));
        // From one endpoint to the next, and then until the first is called again: but for the first time, when
        // the interval may be shorter by itself.
        let (next, again) = (Duration::from_millis(10), Duration::from_millis(100));
        let least = EXECS * next + (EXECS - 2) * again;
        assert!(began.elapsed() >= least, "{:?}", began.elapsed());
    })
    .await;
}

#[tokio::test]
async fn a_peer_that_hangs_costs_an_exec_time_and_no_verdict() {
    scenario(async {
        let silent = raw_peer::serve(raw_peer::silence).await;
        let mut second = Peer::start().await;
        let gate = Gate::with(&silent, |options| {
            // As it is by default.
            options.verdict_deadline = Duration::from_secs(5);
            options.further_endpoints = vec![second.endpoint.parse().expect("an endpoint")];
        });
        let asked = gate.ask(1);
        let mut call = second.call().await;
        call.asked(1).await;
        call.run(1).await;
        asked.runs(DecisionCode::Verdict).await;
    })
    .await;
}
