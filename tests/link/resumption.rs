//! What a call says after another: resumption, open questions, events kept, events lost.

use std::time::Duration;

use execgate::link::Drained;
use execgate::model::DecisionCode;
use execgate::pb::v1::EventsLost;
use execgate::pb::v1::session_request::Event;
use tonic::Status;

use crate::gate::Gate;
use crate::peer::{Call, Peer, run_everything};
use crate::scenario;

/// Exec of the next event, which has to be a decided exec, with its sequence.
async fn decided(call: &mut Call) -> (u64, u64) {
    match call.next().await {
        (sequence, Event::ExecDecided(decided)) => (sequence, decided.exec_id),
        other => panic!("not a decided exec: {other:?}"),
    }
}

async fn broken(call: Call) {
    call.fail(Status::unavailable("restarting")).await;
}

#[tokio::test]
async fn open_questions_are_asked_again_under_their_ids_and_sequences() {
    scenario(async {
        let mut peer = Peer::start().await;
        let gate = Gate::new(&peer.endpoint);
        let mut call = peer.call().await;
        call.started().await;
        let answered = gate.ask(1);
        assert_eq!(call.question().await.0, 2);
        let open = gate.ask(2);
        assert_eq!(call.question().await.0, 3);
        call.run(1).await;
        answered.runs(DecisionCode::Verdict).await;
        broken(call).await;

        let mut call = peer.call().await;
        let (sequence, started) = call.started().await;
        assert_eq!(sequence, 0);
        assert_eq!(started.session_id, "01".repeat(16));
        assert_eq!(started.labels["team"], "blue");
        let resumption = started.resumption.expect("a resumption");
        assert_eq!((resumption.attempt, resumption.next_sequence), (2, 3));
        let (sequence, question) = call.question().await;
        assert_eq!((sequence, question.exec_id), (3, 2));
        call.run(2).await;
        open.runs(DecisionCode::Verdict).await;

        // The next event goes on from there.
        gate.tell(2);
        assert_eq!(decided(&mut call).await, (4, 2));
        assert_eq!(gate.link.counters().broken_calls, 1);
    })
    .await;
}

#[tokio::test]
async fn a_question_asked_between_two_calls_goes_to_the_second() {
    scenario(async {
        let mut peer = Peer::start().await;
        let gate = Gate::new(&peer.endpoint);
        let call = peer.call().await;
        call.end();
        while gate.link.counters().broken_calls == 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        let asked = gate.ask(1);
        let mut call = peer.call().await;
        let (_, started) = call.started().await;
        assert_eq!(started.resumption.map(|it| it.next_sequence), Some(2));
        call.asked(1).await;
        call.run(1).await;
        asked.runs(DecisionCode::Verdict).await;
    })
    .await;
}

#[tokio::test]
async fn unacknowledged_events_are_repeated_with_their_sequences() {
    scenario(async {
        let mut peer = Peer::start().await;
        let gate = Gate::new(&peer.endpoint);
        let mut call = peer.call().await;
        call.accept_and_store().await;
        call.started().await;
        for exec in 1..=3 {
            gate.tell(exec);
            assert_eq!(decided(&mut call).await, (exec + 1, exec));
        }
        call.acknowledge(2).await;
        broken(call).await;

        let mut call = peer.call().await;
        call.accept_and_store().await;
        let (_, started) = call.started().await;
        assert_eq!(started.resumption.map(|it| it.next_sequence), Some(3));
        assert_eq!(decided(&mut call).await, (3, 2));
        assert_eq!(decided(&mut call).await, (4, 3));
        gate.end();
        assert!(matches!(call.next().await, (5, Event::SessionEnded(_))));
        assert_eq!(call.event().await, None);
        call.acknowledge(5).await;
        call.end();
        let drained = gate.link.drain(Duration::from_secs(30)).await;
        assert_eq!(drained, Drained::Completely);
        assert_eq!(gate.link.counters().lost_events, 0);
    })
    .await;
}

#[tokio::test]
async fn without_acknowledgement_what_was_sent_is_not_repeated() {
    scenario(async {
        let mut peer = Peer::start().await;
        let gate = Gate::new(&peer.endpoint);
        let asked = gate.ask(1);
        let mut call = peer.call().await;
        call.asked(1).await;
        call.run(1).await;
        asked.runs(DecisionCode::Verdict).await;
        gate.tell(1);
        assert_eq!(decided(&mut call).await, (3, 1));
        broken(call).await;

        let mut call = peer.call().await;
        let (_, started) = call.started().await;
        assert_eq!(started.resumption.map(|it| it.next_sequence), Some(4));
        gate.tell(2);
        assert_eq!(decided(&mut call).await, (4, 2));
    })
    .await;
}

#[tokio::test]
async fn at_the_bound_events_are_lost_and_said_to_be() {
    scenario(async {
        let directory = tempfile::tempdir().expect("a directory");
        let socket = directory.path().join("policy.sock");
        let gate = Gate::with(&format!("unix:{}", socket.display()), |options| {
            options.most_events = 4;
        });
        for exec in 1..=3 {
            gate.tell(exec);
        }
        let asked = gate.ask(1);
        while gate.link.counters().broken_calls == 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        // Sequences 2 to 4 are told, 5 is the question, which stays.
        for exec in 4..=8 {
            gate.tell(exec);
        }
        let mut peer = Peer::start_at(&socket).await;
        let mut call = peer.call().await;
        call.started().await;
        let lost = |first_sequence, last_sequence| {
            Event::EventsLost(EventsLost {
                first_sequence,
                last_sequence,
                count: last_sequence - first_sequence + 1,
            })
        };
        assert_eq!(call.next().await, (4, lost(2, 4)));
        assert_eq!(call.asked(1).await, 5);
        assert_eq!(call.next().await, (9, lost(6, 9)));
        assert_eq!(decided(&mut call).await, (10, 8));
        call.run(1).await;
        asked.runs(DecisionCode::Verdict).await;
        assert_eq!(gate.link.counters().lost_events, 7);
    })
    .await;
}

#[tokio::test]
async fn a_session_that_has_ended_delivers_its_events() {
    scenario(async {
        let directory = tempfile::tempdir().expect("a directory");
        let socket = directory.path().join("policy.sock");
        let gate = Gate::with(&format!("unix:{}", socket.display()), |options| {
            options.flush_window = Duration::from_secs(30);
        });
        gate.tell(1);
        gate.end();
        while gate.link.counters().broken_calls == 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        let received = run_everything(Peer::start_at(&socket).await);
        let drained = gate.link.drain(Duration::from_secs(30)).await;
        assert_eq!(drained, Drained::Completely);
        let received = received.lock().expect("no test panicked");
        let sequences: Vec<_> = received.iter().map(|event| event.sequence).collect();
        assert_eq!(sequences, [1, 2, 3]);
        assert_eq!(gate.link.counters().lost_events, 0);
    })
    .await;
}

#[tokio::test]
async fn draining_does_not_wait_for_a_session_that_goes_on() {
    scenario(async {
        let peer = Peer::start().await;
        let gate = Gate::new(&peer.endpoint);
        let drained = gate.link.drain(Duration::from_millis(10)).await;
        assert_eq!(drained, Drained::TimedOut);
    })
    .await;
}
