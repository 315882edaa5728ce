//! What a gate counts and measures, for Prometheus.
//!
//! ```text
//! server ─► Measured ─► the policy itself        (counts on the way, in atomics)
//!               │
//!           GateMetrics ◄── endpoint, on a thread of its own
//! ```
//!
//! Invariants: nothing here waits in front of a verdict, and counting is an atomic addition; whoever reads the numbers, however slowly, has a
//! thread that serves nobody else, and is bounded in number and time. Labels have few values, none of them
//! from a sandbox.
//!
//! Not here: what is counted inside the policy link, which its own counters have.

mod endpoint;
mod execs;
mod histogram;
mod link;
mod policy;

use std::sync::Arc;
use std::time::Duration;

use prometheus_client::encoding::text;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::{Metric, Registry};

pub use endpoint::{MetricsEndpoint, MetricsError, MetricsText};
pub use policy::Measured;

use crate::link::PolicyLink;
use crate::model::Verdict;
use execs::ExecCounts;
use histogram::Latencies;
use link::LinkNumbers;

/// A gate's numbers.
#[derive(Debug)]
pub struct GateMetrics {
    registry: Registry,
    execs: ExecCounts,
    withdrawn: Counter,
    reused: Counter,
    asked: Counter,
    wait: Latencies,
    local: Latencies,
    decision: Latencies,
    link: Latencies,
    service: Latencies,
    deciding: Gauge,
    sessions: Gauge,
}

impl GateMetrics {
    /// Those of a gate with this link.
    #[must_use]
    pub fn new(link: Arc<PolicyLink>) -> Self {
        let mut registry = Registry::with_prefix("execgate");
        let registered = &mut registry;
        Self {
            execs: register(
                registered,
                "execs",
                "Execs that the gate acted on, by what it did and why; the code reused is a verdict that was kept",
            ),
            withdrawn: register(
                registered,
                "execs_withdrawn",
                "Execs that needed no verdict any more: their process or session went away",
            ),
            reused: register(
                registered,
                "verdict_cache_hits",
                "Execs that a kept verdict decided",
            ),
            asked: register(
                registered,
                "verdict_cache_misses",
                "Execs that no kept verdict decided, so that the policy was asked",
            ),
            wait: register(
                registered,
                "exec_wait_seconds",
                "Time that a process waited, from the gate's receipt of its question to the gate's answer",
            ),
            local: register(
                registered,
                "exec_local_seconds",
                "The part of it that is the gate's own: reading the question, looking for a kept verdict, answering",
            ),
            decision: register(
                registered,
                "policy_decision_seconds",
                "The rest: the round trip to the policy service, persons included; of each exec that was asked \
                 about, whatever came of it",
            ),
            link: register(
                registered,
                "policy_link_seconds",
                "The part of that round trip that the service doesn't have; only of verdicts that say how long it had",
            ),
            service: register(
                registered,
                "policy_service_seconds",
                "The part that the service has, as its verdicts say",
            ),
            deciding: register(
                registered,
                "execs_deciding",
                "Execs that wait for a verdict now",
            ),
            sessions: register(registered, "sessions", "Sessions that are open now"),
            registry: {
                registry.register_collector(Box::new(LinkNumbers(link)));
                registry
            },
        }
    }

    fn acted(&self, verdict: &Verdict, waited: Duration, decided_in: Duration) {
        self.execs.count(verdict);
        self.wait.observe(waited);
        self.local.observe(waited.saturating_sub(decided_in));
    }

    /// The policy has decided, or failed to. What the service says of itself counts where it can be true.
    fn decided(&self, round_trip: Duration, service: Option<Duration>) {
        self.decision.observe(round_trip);
        if let Some(service) = service
            && let Some(link) = round_trip.checked_sub(service)
        {
            self.service.observe(service);
            self.link.observe(link);
        }
    }

    /// All of it, in the text format of OpenMetrics.
    fn text(&self) -> Result<String, std::fmt::Error> {
        let mut text = String::new();
        text::encode(&mut text, &self.registry)?;
        Ok(text)
    }
}

fn register<M: Metric + Clone + Default>(registry: &mut Registry, name: &str, help: &str) -> M {
    let metric = M::default();
    registry.register(name, help, metric.clone());
    metric
}
