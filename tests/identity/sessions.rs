//! A session is the gate's that started it, whatever another one sends.

use execgate::link::LinkCredentials;
use execgate::model::DecisionCode;
use execgate::pb::v1;
use tonic::Code;
use tonic::transport::Channel;
use v1::session_request::Event;
use v1::session_response::Answer;

use crate::gate::Gate;
use crate::pki::{Validity, dns};
use crate::scenario;
use crate::service::{Place, mutual};
use crate::stranger::{Call, SESSION, connect, requested, started};

#[tokio::test]
async fn a_gate_with_another_certificate_can_not_go_on_with_a_session() {
    scenario(async {
        let place = Place::new();
        let directory = place.directory();
        let (ca, host) = place.authority();
        let arguments = mutual(&host, &ca.file);
        let service = place.serve(&arguments);
        let with = |name: &str| LinkCredentials {
            ca: Some(ca.file.clone()),
            certificate: Some(ca.issue(directory, name, &[dns(name)], Validity::Now)),
            ..LinkCredentials::default()
        };
        let own = Gate::with(&service.https(), |options| {
            options.credentials = with("own.example");
        });
        let reason = own.ask(1).denied(DecisionCode::Verdict).await;
        assert_eq!(reason, "gate dns:own.example");

        // It has the session's id, and a certificate of the same CA.
        let other = Gate::with(&service.https(), |options| {
            options.credentials = with("other.example");
        });
        let reason = other.ask(1).denied(DecisionCode::Unreachable).await;
        assert!(reason.contains("the session isn't this gate's"), "{reason}");
        service
            .wait_for_log("a gate went on with a session that another one started")
            .await;
        let reason = own.ask(2).denied(DecisionCode::Verdict).await;
        assert_eq!(reason, "gate dns:own.example");
    })
    .await;
}

/// What the store has of the session, all told.
const RECORD: &str = "SELECT count(*) * 1000000 + (SELECT count(*) FROM execs) * 1000
    + (SELECT calls FROM sessions) FROM events";

/// Who keeps another gate from the session: memory does before the call is accepted, and the store when it would
/// write what the call said.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Keeper {
    Memory,
    Store,
}

/// Another gate goes on with the session, and begins it anew; asks, and ends it: it is refused.
async fn refused_as_another_gates(channel: &Channel, mut keeper: Keeper) {
    for (sequence, opening) in [(0, started(SESSION, Some(3))), (1, started(SESSION, None))] {
        let mut other = Call::open(channel.clone(), Some("other-token"))
            .await
            .expect("a call");
        other.tell(sequence, opening).await;
        other.tell(3, requested(2)).await;
        let ended = v1::SessionEnded {
            reason: v1::SessionEndReason::Completed.into(),
            ..v1::SessionEnded::default()
        };
        other.tell(4, Event::SessionEnded(ended)).await;
        if keeper == Keeper::Store {
            let accepted = other.next().await.expect("an answer");
            assert!(
                matches!(accepted, Some(Answer::SessionAccepted(_))),
                "{accepted:?}"
            );
            let status = other.end().await;
            assert_eq!(status.code(), Code::PermissionDenied, "{status}");
            // From then on memory has it, too.
            keeper = Keeper::Memory;
            continue;
        }
        let status = other.next().await.expect_err("refused");
        assert_eq!(status.code(), Code::PermissionDenied, "{status}");
    }
}

#[tokio::test]
async fn neither_resuming_nor_replaying_changes_another_gates_record() {
    scenario(async {
        let place = Place::new();
        let tokens = place.tokens(&[("own", "own-token"), ("other", "other-token")]);
        let service = place.serve(&[&"--tokens", &tokens]);
        let channel = connect(&service.address).await;
        let mut own = Call::open(channel.clone(), Some("own-token"))
            .await
            .expect("a call");
        own.tell(1, started(SESSION, None)).await;
        own.tell(2, requested(1)).await;
        assert_eq!(own.verdict().await, "gate token:own");
        own.acknowledged(2).await;
        let recorded = place.count(RECORD);

        // While the session's gate is connected, and on a connection that is the gate's as well.
        refused_as_another_gates(&channel, Keeper::Memory).await;
        drop(own);
        // The session's gate is gone; the service has been started anew.
        service.signal("TERM");
        service.wait_for_log("stopping").await;
        drop(service);
        let service = place.serve(&[&"--tokens", &tokens]);
        let channel = connect(&service.address).await;
        refused_as_another_gates(&channel, Keeper::Memory).await;
        assert_eq!(place.count(RECORD), recorded);
        assert_eq!(
            place.count(
                "SELECT count(*) FROM sessions WHERE gate = 'token:own' AND ended_ns IS NULL"
            ),
            1
        );

        // Its own gate goes on with it.
        let mut own = Call::open(channel, Some("own-token"))
            .await
            .expect("a call");
        own.tell(0, started(SESSION, Some(3))).await;
        own.tell(3, requested(2)).await;
        assert_eq!(own.verdict().await, "gate token:own");
        own.acknowledged(3).await;
    })
    .await;
}

#[tokio::test]
async fn a_service_that_starts_anew_knows_whose_sessions_are_on_record() {
    scenario(async {
        let place = Place::new();
        let tokens = place.tokens(&[("own", "own-token"), ("other", "other-token")]);
        let first = place.serve(&[&"--tokens", &tokens]);
        let channel = connect(&first.address).await;
        let mut own = Call::open(channel, Some("own-token"))
            .await
            .expect("a call");
        own.tell(1, started(SESSION, None)).await;
        own.acknowledged(1).await;

        // The next one has never heard of it, but for the store.
        drop(first);
        let second = place.serve(&[&"--tokens", &tokens]);
        let channel = connect(&second.address).await;
        for _ in 0..2 {
            let mut other = Call::open(channel.clone(), Some("other-token"))
                .await
                .expect("a call");
            other.tell(0, started(SESSION, Some(2))).await;
            other.tell(2, requested(1)).await;
            // Before anything else is said.
            let status = other.next().await.expect_err("refused");
            assert_eq!(status.code(), Code::PermissionDenied, "{status}");
        }
        assert_eq!(place.count("SELECT count(*) FROM execs"), 0);
        let mut own = Call::open(channel, Some("own-token"))
            .await
            .expect("a call");
        own.tell(0, started(SESSION, Some(2))).await;
        own.tell(2, requested(1)).await;
        assert_eq!(own.verdict().await, "gate token:own");
    })
    .await;
}

/// The latest sessions' owners are in memory, and those of all in the store.
#[tokio::test]
async fn whose_a_session_is_the_store_knows_when_memory_has_forgotten() {
    /// As many as memory has.
    const LATER: u64 = 131_072;
    scenario(async {
        let place = Place::new();
        let tokens = place.tokens(&[("own", "own-token"), ("other", "other-token")]);
        let service = place.serve(&[&"--tokens", &tokens]);
        let channel = connect(&service.address).await;
        let mut own = Call::open(channel, Some("own-token"))
            .await
            .expect("a call");
        own.tell(1, started(SESSION, None)).await;
        own.tell(2, requested(1)).await;
        own.acknowledged(2).await;
        service.signal("TERM");
        service.wait_for_log("stopping").await;
        drop((own, service));
        let database = place.path("data").join("events.sqlite");
        rusqlite::Connection::open(database)
            .expect("the database")
            .execute_batch(&format!(
                "INSERT INTO sessions (session_id, received_ns, calls, labels, gate)
                 WITH RECURSIVE later(number) AS
                     (VALUES (1) UNION ALL SELECT number + 1 FROM later WHERE number < {LATER})
                 SELECT printf('%032x', number), 1, 1, '{{}}', 'token:other' FROM later"
            ))
            .expect("sessions");
        let recorded = place.count(RECORD);
        let service = place.serve(&[&"--tokens", &tokens]);
        let channel = connect(&service.address).await;
        refused_as_another_gates(&channel, Keeper::Store).await;
        assert_eq!(place.count(RECORD), recorded);
        let mut own = Call::open(channel, Some("own-token"))
            .await
            .expect("a call");
        own.tell(0, started(SESSION, Some(3))).await;
        own.tell(3, requested(2)).await;
        assert_eq!(own.verdict().await, "gate token:own");
        own.acknowledged(3).await;
    })
    .await;
}
