//! A gate that sends a stream of its own once more: whoever recorded one can, with the gate's credential.
//!
//! Repeats are a part of the contract, so they aren't refused: a question is answered again, by the rules in
//! force, and nothing that is on record changes.

use std::process::Command;

use execgate::pb::v1;
use v1::session_request::Event;

use crate::scenario;
use crate::service::{Place, Service};
use crate::stranger::{Call, SESSION, connect, requested, started};

const OTHER: &str = "ffeeddccbbaa99887766554433221100";

/// What gates have told, position by position; of execs; of sessions and their ends.
const TOLD: [&str; 4] = [
    "SELECT count(*) FROM events WHERE sequence IS NOT NULL",
    "SELECT coalesce(sum(sequence * length(payload)), 0) FROM events WHERE sequence IS NOT NULL",
    "SELECT count(*) FROM execs",
    "SELECT coalesce(sum(ended_ns), 0) + count(*) FROM sessions",
];

fn told(place: &Place) -> [i64; 4] {
    TOLD.map(|query| place.count(query))
}

/// A whole session: its events, in order.
fn recorded() -> Vec<(u64, Event)> {
    let mut events = vec![started(SESSION, None)];
    for exec_id in 1..=5 {
        events.push(requested(exec_id));
        events.push(Event::ExecDecided(v1::ExecDecided {
            exec_id,
            action: v1::Action::Deny.into(),
            ..v1::ExecDecided::default()
        }));
    }
    events.push(Event::SessionEnded(v1::SessionEnded {
        reason: v1::SessionEndReason::Completed.into(),
        ..v1::SessionEnded::default()
    }));
    (1..).zip(events).collect()
}

/// Sends a stream; gives how many verdicts came for it, and what the call ended with.
async fn play(service: &Service, stream: &[(u64, Event)]) -> (usize, tonic::Code) {
    let channel = connect(&service.address).await;
    let call = Call::open(channel, Some("g")).await.expect("a call");
    for (sequence, event) in stream {
        call.tell(*sequence, event.clone()).await;
    }
    call.finish().await
}

async fn serves_others(service: &Service) {
    let channel = connect(&service.address).await;
    let mut modest = Call::open(channel, Some("m")).await.expect("a call");
    modest.tell(1, started(OTHER, None)).await;
    modest.tell(2, requested(1)).await;
    assert_eq!(modest.verdict().await, "gate token:modest");
    modest.acknowledged(2).await;
}

fn verify(place: &Place) {
    let verified = Command::new(env!("CARGO_BIN_EXE_execgate"))
        .args(["audit", "verify", "--data"])
        .arg(place.path("data"))
        .output()
        .expect("the program");
    assert!(verified.status.success(), "{verified:?}");
}

#[tokio::test]
async fn a_stream_that_is_sent_again_changes_nothing_that_is_on_record() {
    scenario(async {
        let place = Place::new();
        let tokens = place.tokens(&[("greedy", "g"), ("modest", "m")]);
        let service = place.serve(&[&"--tokens", &tokens]);
        let stream = recorded();
        assert_eq!(play(&service, &stream).await, (5, tonic::Code::Ok));
        serves_others(&service).await;
        let before = told(&place);
        let resident = service.resident_kib();
        assert!(!service.log().contains("once more from its beginning"));
        for _ in 0..100 {
            assert_eq!(play(&service, &stream).await, (5, tonic::Code::Ok));
        }
        serves_others(&service).await;
        assert_eq!(told(&place), before);
        // Each answer is on record: what was asked again was answered again.
        assert_eq!(
            place.count("SELECT count(*) FROM events WHERE kind = 'exec-answered'"),
            // And what the modest gate asked again.
            501
        );
        service.wait_for_log("once more from its beginning").await;
        let grown = service.resident_kib().saturating_sub(resident);
        assert!(grown < 64 << 10, "it grew by {grown} KiB");
        verify(&place);
    })
    .await;
}

/// The same positions once more with other events: in a new call from the beginning, in one that says that it goes
/// on, and while the first is connected.
#[tokio::test]
async fn what_was_told_can_not_be_told_otherwise() {
    scenario(Box::pin(async {
        let place = Place::new();
        let tokens = place.tokens(&[("greedy", "g"), ("modest", "m")]);
        let service = place.serve(&[&"--tokens", &tokens]);
        let channel = connect(&service.address).await;
        let mut first = Call::open(channel, Some("g")).await.expect("a call");
        first.tell(1, started(SESSION, None)).await;
        first.tell(2, requested(1)).await;
        first.verdict().await;
        first.acknowledged(2).await;
        serves_others(&service).await;
        let before = told(&place);
        let finished = Event::ExecFinished(v1::ExecFinished {
            exec_id: 1,
            status: Some(v1::exec_finished::Status::ExitCode(7)),
            ..v1::ExecFinished::default()
        });
        for opening in [(1, started(SESSION, None)), (0, started(SESSION, Some(2)))] {
            for event in [requested(77), finished.clone()] {
                let stream = [opening.clone(), (2, event)];
                let (_, code) = play(&service, &stream).await;
                assert_eq!(code, tonic::Code::Ok);
                assert_eq!(told(&place), before);
            }
        }
        // The first goes on, and so do others.
        first.tell(3, requested(2)).await;
        assert_eq!(first.verdict().await, "gate token:greedy");
        first.acknowledged(3).await;
        serves_others(&service).await;
        assert_eq!(place.count(TOLD[2]), 3);
        verify(&place);
    }))
    .await;
}

/// A delivery of what is on record is taken, and decides nothing.
#[tokio::test]
async fn a_delivery_that_is_repeated_gets_no_verdicts() {
    scenario(async {
        let place = Place::new();
        let tokens = place.tokens(&[("greedy", "g"), ("modest", "m")]);
        let service = place.serve(&[&"--tokens", &tokens]);
        let mut stream = recorded();
        assert_eq!(play(&service, &stream).await, (5, tonic::Code::Ok));
        serves_others(&service).await;
        let before = told(&place);
        let Event::SessionStarted(mut opening) = started(SESSION, Some(2)) else {
            panic!("another event");
        };
        opening
            .resumption
            .get_or_insert_default()
            .set_reason(v1::ResumptionReason::Delivery);
        stream[0] = (0, Event::SessionStarted(opening));
        for _ in 0..20 {
            assert_eq!(play(&service, &stream).await, (0, tonic::Code::Ok));
        }
        serves_others(&service).await;
        assert_eq!(told(&place), before);
        verify(&place);
    })
    .await;
}
