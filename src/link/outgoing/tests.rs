//! Which events wait for others, and that none waits for long. The clock stands still but where a test sleeps, or
//! where all wait for it.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, timeout};
use tokio_stream::StreamExt;

use super::super::load::Pools;
use super::super::options::LinkOptions;
use super::super::session::{GATHERING, MOST_GATHERED, SessionLink};
use super::*;
use crate::model::{
    Environment, EscalationDecision, ExecId, Executable, InterceptedExec, ProcessIdentity,
    SandboxReport, SessionDescription, SessionEndReason, SessionEvent, SessionId, Verdict,
};
use crate::server::{EscalationPolicy, SessionContext};

/// Far longer than anything waits.
const EVER: Duration = Duration::from_secs(600);

struct Gate {
    shared: Arc<Shared>,
    link: Arc<SessionLink>,
    began: Instant,
}

/// What a call has been given: sequences, and when after the beginning.
type Sent = mpsc::Receiver<(u64, Duration)>;

impl Gate {
    fn new() -> Self {
        let mut options = LinkOptions::new("unix:/nowhere".parse().expect("an endpoint"));
        options.verdict_deadline = EVER;
        let shares = Pools::new(&options).shares(&options);
        let session = SessionContext::new(SessionDescription {
            id: SessionId([1; 16]),
            labels: BTreeMap::new(),
            workdir: "/".into(),
            command: Vec::new(),
            sandbox: SandboxReport::none(),
            started_at: SystemTime::now(),
        });
        let options = Arc::new(options);
        let shared = Shared::new(options, Arc::default(), Arc::default(), shares, session);
        let shared = Arc::new(shared);
        Self {
            link: Arc::new(SessionLink::new(Arc::clone(&shared))),
            shared,
            began: Instant::now(),
        }
    }

    /// Calls; has its opening sent, and what there is.
    async fn call(&self) -> Sent {
        let mut outgoing = Outgoing::new(Arc::clone(&self.shared), self.shared.begin_call());
        let (sender, sent) = mpsc::channel(1_000);
        let began = self.began;
        tokio::spawn(async move {
            while let Some(event) = outgoing.next().await {
                let _ = sender.try_send((event.sequence, began.elapsed()));
            }
        });
        settle().await;
        sent
    }

    fn tell(&self, count: usize) {
        for _ in 0..count {
            self.link.observe(SessionEvent::ExecDecided {
                exec: ExecId(1),
                verdict: Verdict::from(EscalationDecision::Run),
                environment: None,
                waited: Duration::ZERO,
                decided_in: Duration::ZERO,
                at: SystemTime::now(),
            });
        }
    }

    async fn ask(&self, exec: u64) {
        let link = Arc::clone(&self.link);
        tokio::spawn(async move {
            let exec = InterceptedExec {
                id: ExecId(exec),
                file: "/bin/true".into(),
                argv: Vec::new(),
                workdir: "/".into(),
                env: Environment(Vec::new()),
                process: ProcessIdentity::default(),
                parent: None,
                asked_at: SystemTime::now(),
                executable: Executable::default(),
                workdir_protection: None,
            };
            link.decide(&exec).await
        });
        settle().await;
    }

    fn end(&self) {
        self.link.observe(SessionEvent::SessionEnded {
            reason: SessionEndReason::Completed,
            detail: String::new(),
            shell: None,
            at: SystemTime::now(),
        });
    }
}

/// Lets all tasks go as far as they come without the clock.
async fn settle() {
    for _ in 0..16 {
        tokio::task::yield_now().await;
    }
}

/// What has been sent so far, if all of it was sent at this time.
fn sent_at(sent: &mut Sent, expected: Duration) -> Vec<u64> {
    std::iter::from_fn(|| sent.try_recv().ok())
        .map(|(sequence, at)| {
            assert_eq!(at, expected, "of event {sequence}");
            sequence
        })
        .collect()
}

#[tokio::test(start_paused = true)]
async fn an_event_waits_for_others_and_not_for_ever() {
    let gate = Gate::new();
    let mut sent = gate.call().await;
    assert_eq!(sent_at(&mut sent, Duration::ZERO), [1]);
    gate.tell(1);
    settle().await;
    assert!(sent.try_recv().is_err());
    // The first one's wait isn't made longer by others.
    sleep(GATHERING * 3 / 5).await;
    gate.tell(2);
    settle().await;
    assert!(sent.try_recv().is_err());
    let (sequence, at) = timeout(EVER, sent.recv())
        .await
        .expect("sent")
        .expect("open");
    // Timers have the resolution of a millisecond.
    let latest = GATHERING + Duration::from_millis(1);
    assert!(
        sequence == 2 && (GATHERING..=latest).contains(&at),
        "{at:?}"
    );
    settle().await;
    assert_eq!(sent_at(&mut sent, at), [3, 4]);
    // The next one is another's first.
    gate.tell(1);
    settle().await;
    assert!(sent.try_recv().is_err());
    let (sequence, later) = timeout(EVER, sent.recv())
        .await
        .expect("sent")
        .expect("open");
    assert!(sequence == 5 && later >= at + GATHERING, "{later:?}");
}

#[tokio::test(start_paused = true)]
async fn a_question_waits_for_nothing_and_comes_behind_what_was_told_before() {
    let gate = Gate::new();
    let mut sent = gate.call().await;
    gate.tell(3);
    settle().await;
    assert_eq!(sent_at(&mut sent, Duration::ZERO), [1]);
    gate.ask(7).await;
    assert_eq!(sent_at(&mut sent, Duration::ZERO), [2, 3, 4, 5]);
    // Nothing is told of, which waits for nothing either.
    gate.ask(8).await;
    assert_eq!(sent_at(&mut sent, Duration::ZERO), [6]);
}

#[tokio::test(start_paused = true)]
async fn many_events_wait_for_no_more() {
    let gate = Gate::new();
    let mut sent = gate.call().await;
    sent_at(&mut sent, Duration::ZERO);
    gate.tell(MOST_GATHERED - 1);
    settle().await;
    assert!(sent.try_recv().is_err());
    gate.tell(1);
    settle().await;
    assert_eq!(sent_at(&mut sent, Duration::ZERO).len(), MOST_GATHERED);
}

#[tokio::test(start_paused = true)]
async fn the_last_event_takes_what_waits_with_it() {
    let gate = Gate::new();
    let mut sent = gate.call().await;
    gate.tell(2);
    settle().await;
    gate.end();
    settle().await;
    assert_eq!(sent_at(&mut sent, Duration::ZERO), [1, 2, 3, 4]);
    // And nothing comes after it.
    assert!(sent.is_closed());
}

#[tokio::test(start_paused = true)]
async fn another_call_is_given_at_once_what_waited_for_the_one_before() {
    let gate = Gate::new();
    let mut first = gate.call().await;
    gate.tell(2);
    settle().await;
    assert_eq!(sent_at(&mut first, Duration::ZERO), [1]);
    let mut second = gate.call().await;
    // It says that it goes on, in an event without a sequence.
    assert_eq!(sent_at(&mut second, Duration::ZERO), [0, 2, 3]);
    gate.tell(1);
    settle().await;
    assert!(second.try_recv().is_err());
    let (sequence, _) = timeout(EVER, second.recv())
        .await
        .expect("sent")
        .expect("open");
    assert_eq!(sequence, 4);
    assert!(first.try_recv().is_err());
}
