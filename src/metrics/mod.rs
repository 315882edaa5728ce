//! What a gate counts and measures, for Prometheus.
//!
//! ```text
//! server ─► Measured ─► the policy itself        (counts on the way, in atomics)
//!               │
//!           GateMetrics ◄── endpoint, on a thread of its own
//! ```
//!
//! Invariants: nothing here waits in front of a verdict; whoever reads the numbers, however slowly, has a
//! thread that serves nobody else, and is bounded in number and time. Labels have few values, none of them
//! from a sandbox.
//!
//! Not here: what is counted inside the policy link, which its own counters have.

mod endpoint;
mod policy;

use std::sync::Arc;
use std::time::Duration;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric, text};
use prometheus_client::metrics::counter::{ConstCounter, Counter};
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::{ConstGauge, Gauge};
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;

pub use endpoint::{MetricsEndpoint, MetricsError, MetricsText};
pub use policy::Measured;

use crate::link::PolicyLink;
use crate::model::{EscalationDecision, Verdict};

/// A gate's numbers.
#[derive(Debug)]
pub struct GateMetrics {
    registry: Registry,
    execs: Family<ExecLabels, Counter>,
    withdrawn: Counter,
    wait: Histogram,
    decision: Histogram,
    deciding: Gauge,
    sessions: Gauge,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ExecLabels {
    verdict: &'static str,
    code: &'static str,
}

/// From 50 us to 13 s, each bucket twice the one before.
fn latency() -> Histogram {
    Histogram::new(exponential_buckets(0.000_05, 2.0, 19))
}

impl GateMetrics {
    /// Those of a gate with this link.
    #[must_use]
    pub fn new(link: Arc<PolicyLink>) -> Self {
        let mut metrics = Self {
            execs: Family::default(),
            withdrawn: Counter::default(),
            wait: latency(),
            decision: latency(),
            deciding: Gauge::default(),
            sessions: Gauge::default(),
            registry: Registry::with_prefix("execgate"),
        };
        metrics.registry.register(
            "execs",
            "Execs that the gate acted on, by what it did and why; the code reused is a verdict that was kept",
            metrics.execs.clone(),
        );
        metrics.registry.register(
            "execs_withdrawn",
            "Execs that needed no verdict any more: their process or session went away",
            metrics.withdrawn.clone(),
        );
        metrics.registry.register(
            "exec_wait_seconds",
            "Time that a process waited, from the gate's receipt of its question to the gate's answer",
            metrics.wait.clone(),
        );
        metrics.registry.register(
            "policy_decision_seconds",
            "The part of it that the policy took: the link to the service, the service, and the way back",
            metrics.decision.clone(),
        );
        metrics.registry.register(
            "execs_deciding",
            "Execs that wait for a verdict now",
            metrics.deciding.clone(),
        );
        metrics.registry.register(
            "sessions",
            "Sessions that are open now",
            metrics.sessions.clone(),
        );
        metrics
            .registry
            .register_collector(Box::new(LinkNumbers(link)));
        metrics
    }

    fn acted(&self, verdict: &Verdict, waited: Duration) {
        let labels = ExecLabels {
            verdict: match verdict.decision {
                EscalationDecision::Run => "run",
                EscalationDecision::Escalate(_) => "escalate",
                EscalationDecision::Deny { .. } => "deny",
            },
            code: verdict.code.as_str(),
        };
        self.execs.get_or_create(&labels).inc();
        self.wait.observe(waited.as_secs_f64());
    }

    /// All of it, in the text format of OpenMetrics.
    fn text(&self) -> Result<String, std::fmt::Error> {
        let mut text = String::new();
        text::encode(&mut text, &self.registry)?;
        Ok(text)
    }
}

/// What the link counts by itself, read when somebody asks.
#[derive(Debug)]
struct LinkNumbers(Arc<PolicyLink>);

impl Collector for LinkNumbers {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let counters = self.0.counters();
        for (name, help, count) in [
            (
                "link_calls_broken",
                "Calls to the policy service that ended early, and attempts that failed; each is followed by another attempt",
                counters.broken_calls,
            ),
            (
                "link_events_lost",
                "Events that were dropped, as EventsLost says",
                counters.lost_events,
            ),
            (
                "link_answers_ignored",
                "Answers that can't be understood, or answer nothing that was asked",
                counters.broken_answers + counters.unknown_verdicts + counters.superfluous_verdicts,
            ),
            (
                "link_verdicts_broken",
                "Verdicts that can't be acted on, and denied",
                counters.broken_verdicts,
            ),
        ] {
            let counter: ConstCounter<u64> = ConstCounter::new(count);
            let metric = encoder.encode_descriptor(name, help, None, counter.metric_type())?;
            counter.encode(metric)?;
        }
        let queued = i64::try_from(self.0.queued_events()).unwrap_or(i64::MAX);
        let gauge: ConstGauge<i64> = ConstGauge::new(queued);
        let metric = encoder.encode_descriptor(
            "link_events_queued",
            "Events that are kept until they are sent or acknowledged",
            None,
            gauge.metric_type(),
        )?;
        gauge.encode(metric)
    }
}
