use std::sync::Arc;
use std::time::{Duration, SystemTime};

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;

use crate::journal::JournalLoad;
use crate::link::PolicyLink;

/// What the link and the journal count by themselves, read when somebody asks.
#[derive(Debug)]
pub(super) struct LinkNumbers(pub(super) Arc<PolicyLink>);

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
                "link_calls_resumed",
                "Reconnections: calls that the service answered and by which a session went on",
                counters.resumed_calls,
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
            counter(&mut encoder, name, help, count)?;
        }
        let load = self.0.load();
        for (name, help, value) in [
            (
                "link_execs_waiting",
                "Execs that the policy service is being asked about",
                load.waiting,
            ),
            (
                "link_execs_waiting_bytes",
                "Bytes of their descriptions",
                load.waiting_bytes,
            ),
            (
                "link_events_queued",
                "Events in memory that are kept until they are sent or acknowledged",
                load.events,
            ),
            (
                "link_events_queued_bytes",
                "Bytes of these events",
                load.event_bytes,
            ),
        ] {
            gauge(&mut encoder, name, help, whole(value))?;
        }
        gauge(
            &mut encoder,
            "link_oldest_event_age_seconds",
            "How long ago the oldest of these events was; 0 where there is none",
            load.oldest_event.as_secs_f64(),
        )?;
        match self.0.journal_load() {
            Some(load) => journal(&mut encoder, &load),
            None => Ok(()),
        }
    }
}

fn journal(encoder: &mut DescriptorEncoder<'_>, load: &JournalLoad) -> Result<(), std::fmt::Error> {
    for (name, help, value) in [
        (
            "journal_events",
            "Events that aren't settled in this gate's own file of the journal",
            load.events,
        ),
        (
            "journal_bytes",
            "What these events count against the journal's limit",
            load.bytes,
        ),
        (
            "journal_limit_bytes",
            "The limit, for all files in the journal's directory",
            load.limit,
        ),
        (
            "journal_troubled",
            "1 where events can't be kept in the journal at present, else 0",
            u64::from(load.is_troubled),
        ),
        (
            "journal_sessions_left",
            "Sessions that are over, this gate's or those of gates that are no more, and not delivered yet",
            load.left.sessions,
        ),
        (
            "journal_events_left",
            "Events of these sessions",
            load.left.events,
        ),
    ] {
        gauge(encoder, name, help, whole(value))?;
    }
    let age = load
        .left
        .oldest
        .and_then(|oldest| SystemTime::now().duration_since(oldest).ok())
        .unwrap_or(Duration::ZERO);
    gauge(
        encoder,
        "journal_oldest_event_left_age_seconds",
        "How long ago the oldest of these events was; 0 where there is none",
        age.as_secs_f64(),
    )
}

fn whole(value: impl TryInto<i64>) -> i64 {
    value.try_into().unwrap_or(i64::MAX)
}

fn counter(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    count: u64,
) -> Result<(), std::fmt::Error> {
    let counter = ConstCounter::new(count);
    encode(encoder, name, help, &counter)
}

fn gauge<N>(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    value: N,
) -> Result<(), std::fmt::Error>
where
    ConstGauge<N>: EncodeMetric,
{
    let gauge = ConstGauge::new(value);
    encode(encoder, name, help, &gauge)
}

fn encode(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    metric: &impl EncodeMetric,
) -> Result<(), std::fmt::Error> {
    // As the registry has it.
    let help = format!("{help}.");
    let encoder = encoder.encode_descriptor(name, &help, None, metric.metric_type())?;
    metric.encode(encoder)
}
