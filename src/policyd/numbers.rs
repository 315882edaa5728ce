//! What the service counts, for Prometheus.
//!
//! In front of a verdict nothing but atomics: all labels there are known when the service starts.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric, text};
use prometheus_client::metrics::counter::{ConstCounter, Counter};
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::{ConstGauge, Gauge};
use prometheus_client::registry::{Registry, Unit};
use tokio::sync::watch;

use super::rules::Rules;
use super::store::Store;
use crate::model::EscalationDecision;

/// A policy service's numbers.
#[derive(Debug)]
pub(super) struct ServiceNumbers {
    registry: Registry,
    enforced: ByVerdict,
    monitored: ByVerdict,
    evaluation: Counter<f64, AtomicU64>,
    pub(super) rate_limited: Counter,
    pub(super) sessions: Gauge,
    pub(super) watchers: Gauge,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct VerdictLabels {
    verdict: &'static str,
    mode: &'static str,
}

/// Counters of one mode.
#[derive(Debug)]
struct ByVerdict {
    run: Counter,
    escalate: Counter,
    deny: Counter,
    ask: Counter,
}

impl ByVerdict {
    fn new(family: &Family<VerdictLabels, Counter>, mode: &'static str) -> Self {
        let counter = |verdict| {
            family
                .get_or_create(&VerdictLabels { verdict, mode })
                .clone()
        };
        Self {
            run: counter("run"),
            escalate: counter("escalate"),
            deny: counter("deny"),
            ask: counter("ask"),
        }
    }

    fn count(&self, decision: &EscalationDecision) {
        match decision {
            EscalationDecision::Run => self.run.inc(),
            EscalationDecision::Escalate(_) => self.escalate.inc(),
            EscalationDecision::Deny { .. } => self.deny.inc(),
        };
    }
}

/// Whether what is read from files is what they hold now.
#[derive(Debug)]
pub(super) struct Reload {
    pub(super) name: &'static str,
    pub(super) help: &'static str,
    /// Why it isn't, where it isn't.
    pub(super) fault: watch::Receiver<Option<String>>,
}

impl ServiceNumbers {
    pub(super) fn new(
        store: Option<Store>,
        rules: watch::Receiver<Arc<Rules>>,
        reloads: Vec<Reload>,
    ) -> Self {
        let mut registry = Registry::with_prefix("execgate_policyd");
        let verdicts = Family::<VerdictLabels, Counter>::default();
        let numbers = (
            Counter::<f64, AtomicU64>::default(),
            Gauge::default(),
            Gauge::default(),
        );
        registry.register(
            "verdicts",
            "Verdicts of the rules, ask where a person is asked; of those with the mode monitored the gate was told another one, and the verdict is what it \
             would have been",
            verdicts.clone(),
        );
        registry.register_with_unit(
            "evaluation",
            "Time spent on evaluating rules, of all verdicts together",
            Unit::Seconds,
            numbers.0.clone(),
        );
        let rate_limited = Counter::default();
        registry.register(
            "rate_limited",
            "Execs that were denied because their gate asked about more than it may",
            rate_limited.clone(),
        );
        registry.register(
            "sessions",
            "Calls of sessions that are open now",
            numbers.1.clone(),
        );
        registry.register(
            "watchers",
            "Calls that watch the record now",
            numbers.2.clone(),
        );
        registry.register_collector(Box::new(Read {
            store,
            rules,
            reloads,
        }));
        Self {
            registry,
            enforced: ByVerdict::new(&verdicts, "enforced"),
            monitored: ByVerdict::new(&verdicts, "monitored"),
            evaluation: numbers.0,
            rate_limited,
            sessions: numbers.1,
            watchers: numbers.2,
        }
    }

    /// Counts a verdict, and what it would have been where it is another.
    pub(super) fn decided(
        &self,
        decision: &EscalationDecision,
        monitored: Option<&EscalationDecision>,
        took: Duration,
    ) {
        match monitored {
            None => self.enforced.count(decision),
            Some(would) => self.monitored.count(would),
        }
        self.evaluation.inc_by(took.as_secs_f64());
    }

    /// Counts a question to a person.
    pub(super) fn asked(&self, took: Duration) {
        self.enforced.ask.inc();
        self.evaluation.inc_by(took.as_secs_f64());
    }

    /// All of it, in the text format of OpenMetrics.
    pub(super) fn text(&self) -> Result<String, std::fmt::Error> {
        let mut text = String::new();
        text::encode(&mut text, &self.registry)?;
        Ok(text)
    }
}

/// One more of something, for as long as it lives.
#[derive(Debug)]
pub(super) struct Counted(Gauge);

impl Counted {
    pub(super) fn in_gauge(gauge: &Gauge) -> Self {
        gauge.inc();
        Self(gauge.clone())
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.dec();
    }
}

/// What is read when somebody asks.
#[derive(Debug)]
struct Read {
    store: Option<Store>,
    rules: watch::Receiver<Arc<Rules>>,
    reloads: Vec<Reload>,
}

impl Collector for Read {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let mut gauges = vec![(
            "rules_prefix_rules",
            "Prefix rules in force",
            i64::try_from(self.rules.borrow().prefix_rule_count()).unwrap_or(i64::MAX),
        )];
        gauges.extend(self.reloads.iter().map(|reload| {
            let failed = i64::from(reload.fault.borrow().is_some());
            (reload.name, reload.help, failed)
        }));
        let mut written = None;
        if let Some(store) = &self.store {
            let numbers = store.numbers();
            written = Some(numbers.written);
            gauges.extend([
                (
                    "store_events_queued",
                    "Events that wait to be written",
                    i64::try_from(numbers.queued).unwrap_or(i64::MAX),
                ),
                (
                    "store_failing",
                    "1 while events can't be written, and aren't acknowledged; else 0",
                    i64::from(numbers.is_failing),
                ),
                (
                    "store_head_position",
                    "Position of the last event that is stored",
                    store.head().borrow().position,
                ),
            ]);
        }
        for (name, help, value) in gauges {
            let gauge: ConstGauge<i64> = ConstGauge::new(value);
            let metric = encoder.encode_descriptor(name, help, None, gauge.metric_type())?;
            gauge.encode(metric)?;
        }
        if let Some(written) = written {
            let counter: ConstCounter<u64> = ConstCounter::new(written);
            let help = "Events written since the start";
            let metric = encoder.encode_descriptor(
                "store_events_written",
                help,
                None,
                counter.metric_type(),
            )?;
            counter.encode(metric)?;
        }
        Ok(())
    }
}
