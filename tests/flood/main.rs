//! A session that takes all it can get, beside one that behaves: real processes, on one gate.

#![cfg(feature = "full")]
#![allow(
    clippy::expect_used,
    clippy::panic,
    reason = "what fails here fails the test"
)]

#[path = "../link/peer.rs"]
#[allow(dead_code, reason = "the tests of the link use the rest")]
mod peer;
#[path = "../support/mod.rs"]
mod support;

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use execgate::link::{LinkOptions, PolicyLink};
use execgate::pb::v1::session_request::Event;
use execgate::pb::v1::{DecisionCode, SessionStarted};
use execgate::server::{EscalateServer, EscalationSession, GateBounds, SessionParams};
use peer::{Call, Peer};
use support::{Direct, PATIENCE, WRAPPER, output, text, wrapped};
use tokio_util::sync::CancellationToken;

/// A gate with two sessions, and a service that answers those of one of them.
struct Gate {
    link: Arc<PolicyLink>,
    flooding: EscalationSession,
    behaving: EscalationSession,
    decided: Arc<Mutex<Vec<DecisionCode>>>,
    service: tokio::task::JoinHandle<()>,
}

impl Gate {
    async fn start(bounds: GateBounds, set: impl FnOnce(&mut LinkOptions)) -> Self {
        let mut peer = Peer::start().await;
        let mut options = LinkOptions::new(peer.endpoint.parse().expect("an endpoint"));
        options.verdict_deadline = PATIENCE;
        set(&mut options);
        let link = Arc::new(PolicyLink::new(options).expect("a link"));
        let server = EscalateServer::new("/bin/sh", WRAPPER, link.clone()).with_bounds(bounds);
        let start = |name: &str| {
            let params = SessionParams {
                labels: [("name".to_owned(), name.to_owned())].into(),
                ..SessionParams::default()
            };
            server
                .start_session(params, Arc::new(Direct), &CancellationToken::new())
                .expect("a session")
        };
        let (flooding, behaving) = (start("flooding"), start("behaving"));
        let decided = Arc::new(Mutex::default());
        let notes = Arc::clone(&decided);
        let service = tokio::spawn(async move {
            loop {
                let call = peer.call().await;
                tokio::spawn(answer(call, Arc::clone(&notes)));
            }
        });
        Self {
            link,
            flooding,
            behaving,
            decided,
            service,
        }
    }

    /// How many execs of the flooding session were refused at a bound, as the service was told.
    fn overloaded(&self) -> usize {
        let decided = self.decided.lock().expect("notes");
        let refused = decided
            .iter()
            .filter(|code| **code == DecisionCode::Overloaded);
        refused.count()
    }

    /// The session that behaves gets its commands executed, one by one and at once.
    async fn the_other_is_served(&self) {
        for _ in 0..10 {
            let got = output(wrapped(&self.behaving, "/bin/echo", &["echo", "x"])).await;
            assert_eq!((text(&got.stdout), text(&got.stderr)), ("x\n", ""));
        }
        let commands: Vec<_> = (0..5)
            .map(|_| tokio::spawn(output(wrapped(&self.behaving, "/bin/true", &["true"]))))
            .collect();
        for command in commands {
            let got = command.await.expect("an end");
            assert!(got.status.success(), "{got:?}");
        }
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        self.service.abort();
    }
}

async fn answer(mut call: Call, decided: Arc<Mutex<Vec<DecisionCode>>>) {
    let (_, SessionStarted { labels, .. }) = call.started().await;
    let behaves = labels["name"] == "behaving";
    while let Some(event) = call.event().await {
        match event.event {
            Some(Event::ExecRequested(question)) if behaves => call.run(question.exec_id).await,
            Some(Event::ExecDecided(event)) if !behaves => {
                decided.lock().expect("notes").push(event.code());
            }
            _ => {}
        }
    }
}

async fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let wait = async {
        while !is_so() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let waited = tokio::time::timeout(PATIENCE, wait).await;
    waited.unwrap_or_else(|_| panic!("waited in vain: {what}"));
}

#[tokio::test]
async fn a_session_that_asks_without_end_is_refused_and_another_is_not() {
    let gate = Gate::start(GateBounds::default(), |options| {
        options.most_waiting_in_all = 40;
    })
    .await;
    let script = format!("for i in $(seq 100); do {WRAPPER} /bin/true true $i & done; wait");
    let mut flood = Command::new("/bin/sh");
    flood
        .args(["-c", &script])
        .envs(gate.flooding.env())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let flood = tokio::spawn(output(flood));
    // Half of what there is for all; the rest is refused at once.
    until("refusals", || gate.overloaded() == 80).await;
    assert_eq!(gate.link.load().waiting, 20);
    gate.the_other_is_served().await;
    assert_eq!(gate.link.load().waiting, 20);
    gate.flooding.context().terminator.terminate("enough");
    let got = flood.await.expect("an end");
    let refused = text(&got.stderr).matches("too many commands wait for the policy service");
    assert_eq!(refused.count(), 80, "{got:?}");
    until("that nothing waits", || gate.link.load().waiting == 0).await;
}

#[tokio::test]
async fn a_session_that_takes_all_memory_is_refused_and_another_is_not() {
    let bounds = GateBounds {
        message_bytes: 32 << 20,
        ..GateBounds::default()
    };
    let gate = Gate::start(bounds, |_| {}).await;
    let mut flood = Command::new("python3");
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/flood/flood.py");
    flood
        .arg(script)
        .envs(gate.flooding.env())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped());
    let mut flood = flood.spawn().expect("python3");
    let answers = BufReader::new(flood.stdout.take().expect("a pipe"));
    let lines = Arc::new(Mutex::new(Vec::new()));
    let read = Arc::clone(&lines);
    std::thread::spawn(move || {
        for line in answers.lines().map_while(Result::ok) {
            read.lock().expect("lines").push(line);
        }
    });
    let said = || lines.lock().expect("lines").len();
    until("the flood", || said() > 0).await;
    gate.the_other_is_served().await;
    // Less than half of it is four messages: all others are refused when they have waited.
    until("refusals", || said() == 1 + 60).await;
    for line in &lines.lock().expect("lines")[1..] {
        assert!(
            line.contains("too many bytes of requests are held by the gate"),
            "{line}"
        );
    }
    until("that the service knows", || gate.overloaded() == 60).await;
    gate.the_other_is_served().await;
    drop(flood.stdin.take());
    flood.wait().expect("an end");
    // What it had is given back.
    let got = output(wrapped(
        &gate.behaving,
        "/bin/true",
        &["true", &"x".repeat(120_000)],
    ))
    .await;
    assert!(got.status.success(), "{got:?}");
}

#[tokio::test]
async fn a_session_whose_events_nobody_takes_loses_its_own_and_no_others() {
    let place = tempfile::tempdir().expect("a directory");
    let socket = place.path().join("policy.sock");
    let endpoint = format!("unix:{}", socket.display());
    let mut options = LinkOptions::new(endpoint.parse().expect("an endpoint"));
    options.most_events_in_all = 120;
    options.outage_tolerance = Duration::ZERO;
    options.flush_window = PATIENCE;
    let link = Arc::new(PolicyLink::new(options).expect("a link"));
    let server = EscalateServer::new("/bin/sh", WRAPPER, link.clone());
    let start = |name: &str| {
        let params = SessionParams {
            labels: [("name".to_owned(), name.to_owned())].into(),
            ..SessionParams::default()
        };
        server
            .start_session(params, Arc::new(Direct), &CancellationToken::new())
            .expect("a session")
    };
    let (flooding, behaving) = (start("flooding"), start("behaving"));
    // There is no service yet: each is denied, and told of later.
    for (session, count) in [(&behaving, 3), (&flooding, 100), (&behaving, 3)] {
        for _ in 0..count {
            let got = output(wrapped(session, "/bin/true", &["true"])).await;
            assert!(text(&got.stderr).contains("can't be reached"), "{got:?}");
        }
    }
    let load = link.load();
    assert!(load.events < 120, "{load:?}");
    assert!(link.counters().lost_events > 0, "{:?}", link.counters());
    for session in [flooding, behaving] {
        let reason = execgate::model::SessionEndReason::Completed;
        session.end(reason, String::new(), None).await;
    }
    let mut peer = Peer::start_at(&socket);
    let mut lost = std::collections::BTreeMap::new();
    while lost.len() < 2 {
        let mut call = peer.call().await;
        let (_, SessionStarted { labels, .. }) = call.started().await;
        let mut dropped = 0;
        while let Some(event) = call.event().await {
            if let Some(Event::EventsLost(event)) = event.event {
                dropped += event.count;
            }
        }
        lost.insert(labels["name"].clone(), dropped);
    }
    assert_eq!(lost["behaving"], 0);
    assert_eq!(lost["flooding"], link.counters().lost_events);
}
