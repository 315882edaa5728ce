use std::sync::Arc;
use std::time::Duration;

use super::credentials::LinkCredentials;
use super::disclosure::Disclosure;
use super::endpoint::Endpoint;
use super::log::LogBounds;
use super::obstacle::Obstacle;
use super::state::Bounds;
use crate::journal::Journal;
use crate::pb::{TraceParent, v1};

/// How a link reaches its policy service, and what it does when it can't.
#[derive(Debug, Clone)]
pub struct LinkOptions {
    /// Where the policy service is.
    pub endpoint: Endpoint,
    /// Where else it is, for when it can't be reached there: tried in this order. All of them are one
    /// service: they decide alike, and what one has acknowledged isn't sent to another.
    pub further_endpoints: Vec<Endpoint>,
    /// What the gate shows the service, and asks of it; nothing to show, by default.
    pub credentials: LinkCredentials,
    /// How long an exec waits for its verdict; 5 seconds by default.
    pub verdict_deadline: Duration,
    /// How long an exec waits at most, from when it was asked, while a person decides; 10 minutes by
    /// default.
    pub pending_cap: Duration,
    /// How long after the beginning of an outage execs go on waiting, each until its deadline, for
    /// the service to come back; 5 seconds by default, so that a restart of the service fails no
    /// exec that can still be answered in time. Once an outage has lasted longer an exec makes the
    /// link try again at once, and fails as soon as that attempt does.
    pub outage_tolerance: Duration,
    /// What becomes of execs that no verdict came for; a denial by default.
    pub on_unavailable: OnUnavailable,
    /// Most execs of one session that wait at once; 1,024 by default. Further ones are refused.
    pub most_waiting: usize,
    /// Most events of one session that are kept until they are sent or acknowledged; 8,192 by
    /// default. At the bound the oldest are dropped, and `EventsLost` tells so.
    pub most_events: usize,
    /// Most bytes of such events, and of waiting execs; 32 MiB by default.
    pub most_event_bytes: usize,
    /// Most execs of all sessions together that wait at once; 16,384 by default. A session may have half of
    /// what the others leave: one that asks without end is refused, and the others aren't.
    pub most_waiting_in_all: usize,
    /// Most events of all sessions together that are kept; 262,144 by default. A session that has more than
    /// half of what the others leave loses its own oldest.
    pub most_events_in_all: usize,
    /// Most bytes of such events of all sessions together, and as many of waiting execs; 512 MiB by
    /// default, of which a session may have half of what the others leave.
    pub most_event_bytes_in_all: usize,
    /// Keeps what the service hasn't acknowledged beyond the gate's death; `None` by default.
    pub journal: Option<Arc<Journal>>,
    /// What becomes of execs while events can't be kept.
    pub audit: Audit,
    /// How long after a session's end the link goes on delivering its events; 2 seconds by default.
    pub flush_window: Duration,
    /// What of execs leaves the gate; arguments and names of environment variables by default.
    pub disclosure: Disclosure,
    /// The trace that calls belong to; by default each session is one of its own, named by its id.
    pub trace_parent: Option<TraceParent>,
    /// How the gate describes itself.
    pub gate: GateDescription,
    /// What its owner is told to do about an obstacle, in the log; nothing by default.
    pub remedy: Option<fn(Obstacle) -> String>,
}

impl LinkOptions {
    /// The defaults, for a service at `endpoint`.
    #[must_use]
    pub fn new(endpoint: Endpoint) -> Self {
        Self {
            endpoint,
            further_endpoints: Vec::new(),
            credentials: LinkCredentials::default(),
            verdict_deadline: Duration::from_secs(5),
            pending_cap: Duration::from_secs(600),
            outage_tolerance: Duration::from_secs(5),
            on_unavailable: OnUnavailable::default(),
            most_waiting: 1024,
            most_events: 8192,
            most_event_bytes: 32 << 20,
            most_waiting_in_all: 16_384,
            most_events_in_all: 262_144,
            most_event_bytes_in_all: 512 << 20,
            journal: None,
            audit: Audit::default(),
            flush_window: Duration::from_secs(2),
            disclosure: Disclosure::default(),
            trace_parent: None,
            gate: GateDescription::default(),
            remedy: None,
        }
    }

    pub(super) fn bounds(&self) -> Bounds {
        Bounds {
            verdict_deadline: self.verdict_deadline,
            pending_cap: self.pending_cap,
            outage_tolerance: self.outage_tolerance,
            questions: self.most_waiting,
            question_bytes: self.most_event_bytes,
            log: LogBounds {
                events: self.most_events,
                bytes: self.most_event_bytes,
            },
        }
    }
}

/// What becomes of an exec when the policy service can't be reached or doesn't answer in time. An
/// answer that can't be understood denies in any case.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OnUnavailable {
    /// It is denied.
    #[default]
    Deny,
    /// It runs, inside the sandbox.
    Run,
}

/// What becomes of execs while events can't be kept: the bound of the journal or of memory is near, or
/// the journal can't be written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Audit {
    /// They are decided as ever. What has to be dropped then is told as lost.
    #[default]
    BestEffort,
    /// They are denied.
    Strict,
}

/// How a gate describes itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GateDescription {
    /// Version of the gate's program.
    pub version: String,
    /// Name of the host; empty where it isn't known.
    pub hostname: String,
    /// Operating system, release and machine.
    pub platform: String,
    /// The user that sessions run as, where known.
    pub user: Option<UserDescription>,
}

/// A user of the gate's host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UserDescription {
    /// Numeric user id.
    pub id: u32,
    /// Numeric group id.
    pub group_id: u32,
    /// Name that the host has for the user id; empty where it has none.
    pub name: String,
}

impl Default for GateDescription {
    /// This package's version, the platform it was built for, and nothing else.
    fn default() -> Self {
        Self {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            hostname: String::new(),
            platform: format!("{} {}", std::env::consts::OS, std::env::consts::ARCH),
            user: None,
        }
    }
}

impl GateDescription {
    pub(super) fn gate(&self) -> v1::GateInfo {
        v1::GateInfo {
            version: self.version.clone(),
            hostname: self.hostname.clone(),
            platform: self.platform.clone(),
        }
    }

    pub(super) fn user(&self) -> Option<v1::UserInfo> {
        self.user.as_ref().map(|user| v1::UserInfo {
            user_id: user.id,
            group_id: user.group_id,
            name: user.name.clone(),
        })
    }
}
