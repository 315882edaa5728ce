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
//! as the gate lives and the bounds hold. To one that doesn't, each at most once: an event is
//! forgotten when the transport has taken it, and is lost if the connection dies with it. Open
//! questions are asked again in both cases.
//!
//! Not here: what becomes of a decision, and conversions, which are in [`pb`](crate::pb).

mod backoff;
mod codec;
mod connector;
mod counters;
mod credentials;
mod dialer;
mod disclosure;
mod driver;
mod endpoint;
mod log;
mod options;
mod outgoing;
mod probe;
mod route;
mod session;
mod state;

use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use tokio_util::task::TaskTracker;

pub use counters::LinkCounters;
pub use credentials::{CertificateFiles, LinkCredentials, Plaintext};
pub use disclosure::{Disclosure, PatternError, REDACTED};
pub use endpoint::{Endpoint, EndpointError, PrepareError};
pub use options::{GateDescription, LinkOptions, OnUnavailable, UserDescription};
pub use session::PersonWait;

use crate::model::{InterceptedExec, Verdict};
use crate::server::{BoxFuture, EscalationPolicy, PolicyError, SessionContext};
use counters::Tally;
use route::Route;
use session::{SessionLink, Shared};

/// A link to a policy service, for any number of sessions.
#[derive(Debug)]
pub struct PolicyLink {
    options: Arc<LinkOptions>,
    route: Arc<Route>,
    tally: Arc<Tally>,
    drivers: TaskTracker,
    sessions: Mutex<Vec<Weak<Shared>>>,
}

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
            options: Arc::new(options),
            tally: Arc::new(Tally::default()),
            drivers: TaskTracker::new(),
            sessions: Mutex::new(Vec::new()),
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
        let sessions: Vec<_> = {
            let sessions = self.sessions.lock().unwrap_or_else(PoisonError::into_inner);
            sessions.iter().filter_map(Weak::upgrade).collect()
        };
        sessions
            .iter()
            .flat_map(|session| session.waiting_for_persons())
            .collect()
    }

    /// Waits, `within` at most, until all sessions have ended and delivered their events. To be
    /// awaited before the program exits, after the last session's end.
    pub async fn drain(&self, within: Duration) -> Drained {
        self.drivers.close();
        match tokio::time::timeout(within, self.drivers.wait()).await {
            Ok(()) => Drained::Completely,
            Err(_) => Drained::TimedOut,
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
            session.clone(),
        ));
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
