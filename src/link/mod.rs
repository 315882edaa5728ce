//! The policy over gRPC: one call for each session, all on one connection to each endpoint.
//!
//! ```text
//!  decide()                    transport                     policy service
//!     |  encode, lock, push, wake  |                                |
//!     |--------------------------->|-- ExecRequested -------------->|
//!     |  oneshot                driver                              |
//!     |<---------------------------|<-------------------- Verdict --|
//! ```
//!
//! [`PolicyLink`] holds the connections (`route`). Each session has a pure state (`state`) behind one short
//! lock, which numbers its events, keeps what isn't settled and knows what is being asked; a stream
//! (`outgoing`) by which the transport takes events as it can send them; and a driver (`driver`),
//! which receives answers, and calls again when a call has ended.
//!
//! Invariants:
//! - A command runs or escalates only by a verdict for exactly that exec, or by the owner's choice
//!   of [`OnUnavailable::Run`]. What can't be understood denies. The end of a call decides nothing.
//! - Telling an event never waits. Everything kept is bounded; at a bound execs are refused, and
//!   events dropped and reported as lost.
//! - An event has one sequence for good, assigned in the order in which events are told.
//!
//! What is delivered: to a service that acknowledges events, each at least once and in order, as long
//! as the bounds hold and the gate lives or has a [`journal`](crate::journal): what that holds of
//! sessions that no gate tells events of any more is delivered by any gate that uses it (`backlog`). To one that doesn't, each at most once: an event is
//! forgotten when the transport has taken it, and is lost if the connection dies with it; what a journal
//! hadn't forgotten yet when its gate was killed is sent again. Open
//! questions are asked again in both cases.
//!
//! Not here: what becomes of a decision, and conversions, which are in [`pb`](crate::pb).

mod backlog;
mod backoff;
mod caller;
mod codec;
mod connector;
mod counters;
mod credentials;
mod dialer;
mod disclosure;
mod driver;
mod endpoint;
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) mod fuzzing;
mod load;
mod log;
mod obstacle;
mod options;
mod outage;
mod outgoing;
mod probe;
mod route;
mod session;
mod state;

use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::AbortHandle;
use tokio_util::task::TaskTracker;

pub use caller::ServiceCaller;
pub use counters::LinkCounters;
pub use credentials::{CertificateFiles, LinkCredentials, Plaintext};
pub use disclosure::{Disclosure, PatternError, REDACTED};
pub use endpoint::{Endpoint, EndpointError, PrepareError};
pub use load::LinkLoad;
pub use obstacle::Obstacle;
pub use options::{Audit, GateDescription, LinkOptions, OnUnavailable, UserDescription};
pub use probe::ProbeError;
pub use session::PersonWait;

use crate::journal::JournalLoad;
use crate::model::{InterceptedExec, Verdict};
use crate::server::{BoxFuture, EscalationPolicy, PolicyError, SessionContext};
use backlog::Work;
use counters::Tally;
use load::Pools;
use outage::Outages;
use route::Route;
use session::{SessionLink, Shared};

/// A link to a policy service, for any number of sessions.
#[derive(Debug)]
pub struct PolicyLink {
    options: Arc<LinkOptions>,
    route: Arc<Route>,
    tally: Arc<Tally>,
    pools: Pools,
    outages: Arc<Outages>,
    drivers: TaskTracker,
    sessions: Mutex<Vec<Weak<Shared>>>,
    /// Delivers what is left in the journal, from the first session on.
    backlog: OnceLock<Backlog>,
}

#[derive(Debug)]
struct Backlog {
    task: AbortHandle,
    work: watch::Receiver<Work>,
}

/// How long a gate that is about to end goes on delivering what others have left.
const BACKLOG_GRACE: Duration = Duration::from_secs(1);

/// Whether [`PolicyLink::drain`] saw the end of all sessions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Drained {
    /// Each has delivered its events, or given up on it.
    Completely,
    /// Some were still at it.
    TimedOut,
}

impl PolicyLink {
    /// Makes a link. It connects when its first session starts.
    ///
    /// # Errors
    /// Where connections to an endpoint can't be prepared: a file of the credentials can't be used, or
    /// commands would cross the network in the clear.
    pub fn new(options: LinkOptions) -> Result<Self, PrepareError> {
        Ok(Self {
            route: Arc::new(Route::new(&options)?),
            pools: Pools::new(&options),
            outages: Arc::default(),
            options: Arc::new(options),
            tally: Arc::new(Tally::default()),
            drivers: TaskTracker::new(),
            sessions: Mutex::new(Vec::new()),
            backlog: OnceLock::new(),
        })
    }

    /// What the link has met so far.
    #[must_use]
    pub fn counters(&self) -> LinkCounters {
        self.tally.read()
    }

    /// The execs for which a person is deciding, with what their users may be told.
    #[must_use]
    pub fn waiting_for_persons(&self) -> Vec<PersonWait> {
        self.live_sessions()
            .iter()
            .flat_map(|session| session.waiting_for_persons())
            .collect()
    }

    /// What the link's sessions have of what is bounded. Keeps nobody waiting.
    #[must_use]
    pub fn load(&self) -> LinkLoad {
        let oldest = self
            .live_sessions()
            .iter()
            .filter_map(|session| session.oldest_event())
            .max();
        self.pools.load(oldest.unwrap_or_default())
    }

    /// What the journal has, where there is one.
    #[must_use]
    pub fn journal_load(&self) -> Option<JournalLoad> {
        self.options.journal.as_ref().map(|journal| journal.load())
    }

    fn live_sessions(&self) -> Vec<Arc<Shared>> {
        let sessions = self.sessions.lock().unwrap_or_else(PoisonError::into_inner);
        sessions.iter().filter_map(Weak::upgrade).collect()
    }

    /// Waits, `within` at most, until all sessions have ended and delivered their events. To be
    /// awaited before the program exits, after the last session's end. With a journal, what isn't
    /// delivered stays there, and what others have left is delivered for another second at most.
    pub async fn drain(&self, within: Duration) -> Drained {
        self.drivers.close();
        let drained = match tokio::time::timeout(within, self.drivers.wait()).await {
            Ok(()) => Drained::Completely,
            Err(_) => Drained::TimedOut,
        };
        if let Some(backlog) = self.backlog.get() {
            let mut work = backlog.work.clone();
            let resting = work.wait_for(|work| *work == Work::Resting);
            let _ = tokio::time::timeout(BACKLOG_GRACE, resting).await;
            backlog.task.abort();
        }
        if let Some(journal) = self.options.journal.clone() {
            let closed = tokio::task::spawn_blocking(move || journal.close());
            let _ = tokio::time::timeout(within, closed).await;
        }
        drained
    }

    /// Has what is left in the journal be delivered.
    fn start_backlog(&self) {
        if let Some(journal) = &self.options.journal {
            self.backlog.get_or_init(|| {
                let (sender, work) = watch::channel(Work::Going);
                let (journal, route) = (Arc::clone(journal), Arc::clone(&self.route));
                let task = tokio::spawn(backlog::deliver_what_is_left(journal, route, sender));
                Backlog {
                    task: task.abort_handle(),
                    work,
                }
            });
        }
    }
}

impl Drop for PolicyLink {
    fn drop(&mut self) {
        if let Some(backlog) = self.backlog.get() {
            backlog.task.abort();
        }
    }
}

impl EscalationPolicy for PolicyLink {
    /// Fails: an exec is decided in its session's call.
    fn decide<'a>(
        &'a self,
        _exec: &'a InterceptedExec,
    ) -> BoxFuture<'a, Result<Verdict, PolicyError>> {
        Box::pin(std::future::ready(Err(PolicyError(
            "a policy link decides only in a session of its own".into(),
        ))))
    }

    fn for_session(&self, session: &SessionContext) -> Option<Arc<dyn EscalationPolicy>> {
        let shared = Arc::new(Shared::new(
            Arc::clone(&self.options),
            Arc::clone(&self.tally),
            Arc::clone(&self.outages),
            self.pools.shares(&self.options),
            session.clone(),
        ));
        tracing::info!(
            session = %session.description.id,
            trace = shared.trace().trace(),
            "a session begins"
        );
        shared.attend();
        self.start_backlog();
        {
            let mut sessions = self.sessions.lock().unwrap_or_else(PoisonError::into_inner);
            sessions.retain(|session| session.strong_count() > 0);
            sessions.push(Arc::downgrade(&shared));
        }
        self.drivers
            .spawn(driver::drive(Arc::clone(&shared), Arc::clone(&self.route)));
        Some(Arc::new(SessionLink::new(shared)))
    }
}
