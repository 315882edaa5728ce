//! What a gate that is no more had in its journal, delivered by another.

use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use execgate::journal::{Journal, JournalOptions};
use execgate::link::{Audit, Drained, LinkOptions};
use execgate::model::DecisionCode;
use execgate::pb::v1::session_request::Event;
use execgate::pb::v1::session_response::Answer;
use execgate::pb::v1::{
    EventAcknowledgement, ResumptionReason, SessionAccepted, SessionEndReason, SessionStarted,
};
use execgate::server::EscalationPolicy as _;
use tokio::time::timeout;
use tonic::Status;

use crate::gate::{Gate, context, decided, ended};
use crate::peer::{Call, Peer};
use crate::{pass, scenario};

fn journal(directory: &Path) -> Arc<Journal> {
    let options = JournalOptions {
        directory: directory.join("journal"),
        limit: 1 << 20,
    };
    Arc::new(Journal::open(&options).expect("a journal"))
}

fn with_journal(directory: &Path) -> impl FnOnce(&mut LinkOptions) {
    let journal = journal(directory);
    move |options| options.journal = Some(journal)
}

/// Leaves three events and the session's end in the journal: sequences 2 to 5.
async fn leave(directory: &Path) {
    leave_beside(directory, &[]).await;
}

/// The same, and as much of each of other sessions.
async fn leave_beside(directory: &Path, others: &[u8]) {
    let nobody = format!("unix:{}", directory.join("nobody").display());
    let keep = with_journal(directory);
    let gate = Gate::with(&nobody, |options| {
        options.flush_window = Duration::from_millis(1);
        keep(options);
    });
    let mut sessions = vec![Arc::clone(&gate.session)];
    sessions.extend(others.iter().map(|id| {
        let session = gate.link.for_session(&context(*id));
        session.expect("a session")
    }));
    for session in &sessions {
        (1..=3).for_each(|exec| session.observe(decided(exec)));
        session.observe(ended());
    }
    assert_eq!(
        gate.link.drain(Duration::from_secs(30)).await,
        Drained::Completely
    );
    assert_eq!(gate.link.counters().lost_events, 0);
}

/// The call that delivers, among those that gates make.
async fn delivery(peer: &mut Peer) -> (Call, SessionStarted) {
    loop {
        let call = peer.call().await;
        if let Some(delivery) = as_delivery(call).await {
            return delivery;
        }
    }
}

async fn as_delivery(mut call: Call) -> Option<(Call, SessionStarted)> {
    let (sequence, started) = call.started().await;
    let reason = started.resumption.map(|resumption| resumption.reason());
    if reason == Some(ResumptionReason::Delivery) {
        assert_eq!(sequence, 0);
        return Some((call, started));
    }
    // The gate's own session goes on without it.
    std::mem::forget(call);
    None
}

/// The same where a gate may first rest for a while: has that pass.
async fn later_delivery(peer: &mut Peer) -> (Call, SessionStarted) {
    loop {
        match timeout(Duration::from_millis(200), peer.call()).await {
            Ok(call) => {
                if let Some(delivery) = as_delivery(call).await {
                    return delivery;
                }
            }
            Err(_) => pass(Duration::from_secs(5)).await,
        }
    }
}

/// What this thread logs.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl std::io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().expect("no panic").extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl Log {
    /// From now on, until what is returned is dropped.
    fn begin(&self) -> tracing::subscriber::DefaultGuard {
        let log = self.clone();
        let subscriber = tracing_subscriber::fmt().with_writer(move || log.clone());
        tracing::subscriber::set_default(subscriber.finish())
    }

    fn count(&self, words: &str) -> usize {
        let log = self.0.lock().expect("no panic");
        String::from_utf8_lossy(&log).matches(words).count()
    }
}

async fn accept(call: &Call, stored_sequence: u64) {
    call.answer(Answer::SessionAccepted(SessionAccepted {
        event_acknowledgement: EventAcknowledgement::Stored.into(),
        stored_sequence,
        ..SessionAccepted::default()
    }))
    .await;
}

async fn is_gone(directory: &Path) {
    let is_left = || {
        let entries = std::fs::read_dir(directory.join("journal")).expect("a directory");
        let names = entries.map(|entry| entry.expect("an entry").file_name());
        names
            .filter(|name| name.to_string_lossy().ends_with(".sqlite"))
            .count()
            > 1
    };
    while is_left() {
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

#[tokio::test]
async fn what_is_left_is_delivered_in_order_and_what_was_acknowledged_not_again() {
    scenario(async {
        let directory = tempfile::tempdir().expect("a directory");
        leave(directory.path()).await;
        let mut peer = Peer::start().await;
        let _gate = Gate::with_session(&peer.endpoint, 2, with_journal(directory.path()));
        let (mut call, started) = delivery(&mut peer).await;
        assert_eq!(started.session_id, "01".repeat(16));
        assert_eq!(started.labels["team"], "blue");
        assert_eq!(started.resumption.map(|it| it.next_sequence), Some(2));
        accept(&call, 0).await;
        for sequence in 2..=4 {
            assert!(matches!(call.next().await, (it, Event::ExecDecided(_)) if it == sequence));
        }
        call.acknowledge(3).await;
        assert!(matches!(call.next().await, (5, Event::SessionEnded(_))));
        assert_eq!(call.event().await, None);
        call.fail(Status::unavailable("restarting")).await;

        let (mut call, started) = delivery(&mut peer).await;
        assert_eq!(started.resumption.map(|it| it.next_sequence), Some(4));
        accept(&call, 0).await;
        assert_eq!(call.next().await.0, 4);
        assert_eq!(call.next().await.0, 5);
        assert_eq!(call.event().await, None);
        call.acknowledge(5).await;
        call.end();
        is_gone(directory.path()).await;
    })
    .await;
}

#[tokio::test]
async fn an_end_that_the_gate_did_not_tell_follows_behind_all_that_the_service_has() {
    scenario(async {
        let directory = tempfile::tempdir().expect("a directory");
        let nobody = format!("unix:{}", directory.path().join("nobody").display());
        {
            let journal = journal(directory.path());
            let gate = Gate::with(&nobody, |options| {
                options.journal = Some(Arc::clone(&journal));
            });
            gate.tell(1);
            gate.tell(2);
            // As a kill does: the file is let go of, and no session has ended.
            tokio::task::spawn_blocking(move || journal.close())
                .await
                .expect("closed");
            std::mem::forget(gate);
        }
        let mut peer = Peer::start().await;
        let _gate = Gate::with_session(&peer.endpoint, 2, with_journal(directory.path()));
        let (mut call, _) = delivery(&mut peer).await;
        // The service had two events more than the journal.
        accept(&call, 5).await;
        let (sequence, event) = call.next().await;
        let Event::SessionEnded(ended) = event else {
            panic!("not the end: {event:?}");
        };
        assert_eq!(
            (sequence, ended.reason()),
            (6, SessionEndReason::GateFailed)
        );
        assert_eq!(call.event().await, None);
        // The end has its number for good.
        call.fail(Status::unavailable("restarting")).await;
        let (mut call, _) = delivery(&mut peer).await;
        accept(&call, 0).await;
        let mut sequences = Vec::new();
        while let Some(event) = call.event().await {
            sequences.push(event.sequence);
        }
        assert_eq!(sequences, [2, 3, 6]);
        call.acknowledge(6).await;
        call.end();
        is_gone(directory.path()).await;
    })
    .await;
}

#[tokio::test]
async fn a_service_that_acknowledges_nothing_is_sent_all_once() {
    scenario(async {
        let directory = tempfile::tempdir().expect("a directory");
        leave(directory.path()).await;
        let mut peer = Peer::start().await;
        let _gate = Gate::with_session(&peer.endpoint, 2, with_journal(directory.path()));
        let (mut call, _) = delivery(&mut peer).await;
        let mut sequences = Vec::new();
        while let Some(event) = call.event().await {
            sequences.push(event.sequence);
        }
        assert_eq!(sequences, [2, 3, 4, 5]);
        call.end();
        is_gone(directory.path()).await;
    })
    .await;
}

#[tokio::test]
async fn a_session_that_the_service_refuses_keeps_no_other_from_being_delivered() {
    scenario(async {
        let log = Log::default();
        let _logging = log.begin();
        let directory = tempfile::tempdir().expect("a directory");
        leave_beside(directory.path(), &[3]).await;
        let mut peer = Peer::start().await;
        let gate = Gate::with_session(&peer.endpoint, 2, with_journal(directory.path()));
        let refusal = || Status::permission_denied("the session isn't this gate's");
        let (call, refused) = delivery(&mut peer).await;
        call.fail(refusal()).await;
        let (mut call, other) = delivery(&mut peer).await;
        assert_ne!(other.session_id, refused.session_id);
        accept(&call, 0).await;
        while call.event().await.is_some() {}
        call.acknowledge(5).await;
        call.end();
        // It is tried again, and that it is refused is said once.
        for _ in 0..2 {
            let (call, again) = later_delivery(&mut peer).await;
            assert_eq!(again.session_id, refused.session_id);
            call.fail(refusal()).await;
        }
        assert_eq!(log.count("doesn't take the events"), 1);
        let _ = gate.link.drain(Duration::from_millis(10)).await;
        drop(gate);
        // It is there for the gate that shows the right credentials.
        let _gate = Gate::with_session(&peer.endpoint, 4, with_journal(directory.path()));
        loop {
            let (mut call, left) = later_delivery(&mut peer).await;
            accept(&call, 0).await;
            while call.event().await.is_some() {}
            call.acknowledge(5).await;
            call.end();
            // The other gate's own session is left as well.
            if left.session_id == refused.session_id {
                break;
            }
        }
    })
    .await;
}

#[tokio::test]
async fn a_service_that_falls_silent_during_a_delivery_is_called_again() {
    scenario(async {
        let directory = tempfile::tempdir().expect("a directory");
        leave(directory.path()).await;
        let mut peer = Peer::start().await;
        let _gate = Gate::with_session(&peer.endpoint, 2, with_journal(directory.path()));
        let (mut silent, _) = delivery(&mut peer).await;
        accept(&silent, 0).await;
        for sequence in 2..=5 {
            assert_eq!(silent.next().await.0, sequence);
        }
        assert_eq!(silent.event().await, None);
        // It acknowledges nothing, and doesn't end the call.
        pass(Duration::from_secs(31)).await;
        let (mut call, started) = delivery(&mut peer).await;
        assert_eq!(started.resumption.map(|it| it.next_sequence), Some(2));
        accept(&call, 0).await;
        while call.event().await.is_some() {}
        call.acknowledge(5).await;
        call.end();
        is_gone(directory.path()).await;
    })
    .await;
}

#[tokio::test]
async fn a_strict_gate_refuses_execs_before_it_has_to_drop_events() {
    scenario(async {
        let directory = tempfile::tempdir().expect("a directory");
        let socket = directory.path().join("policy.sock");
        let keep = with_journal(directory.path());
        let gate = Gate::with(&format!("unix:{}", socket.display()), |options| {
            options.most_events = 8;
            options.audit = Audit::Strict;
            keep(options);
        });
        assert!(gate.session.may_reuse());
        (1..=5).for_each(|exec| gate.tell(exec));
        let reason = gate.ask(6).denied(DecisionCode::Unrecorded).await;
        assert!(reason.contains("events can't be kept"), "{reason:?}");
        assert!(!gate.session.may_reuse());
        assert_eq!(gate.link.counters().unrecorded, 1);
        assert_eq!(gate.link.counters().lost_events, 0);
        // Once the service takes them execs go on.
        let mut peer = Peer::start_at(&socket);
        let mut call = peer.call().await;
        call.accept_and_store().await;
        for _ in 1..=6 {
            call.next().await;
        }
        call.acknowledge(6).await;
        while !gate.session.may_reuse() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        let asked = gate.ask(7);
        call.asked(7).await;
        call.run(7).await;
        asked.runs(DecisionCode::Verdict).await;
    })
    .await;
}
