use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use prometheus_client::encoding::{EncodeMetric, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;

/// The upper bound of the first bucket, in nanoseconds. Each bucket is twice the one before: up to 13 s.
const FIRST: u64 = 50_000;
const BUCKETS: usize = 19;

/// How long something took, in buckets. Whoever adds to it waits for nobody, whoever else looks: the
/// package's own histogram has a lock, which its reader holds. Clones are the same histogram.
#[derive(Debug, Clone, Default)]
pub(super) struct Latencies(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    /// The last is for what is longer than any.
    buckets: [AtomicU64; BUCKETS + 1],
    nanoseconds: AtomicU64,
}

impl Latencies {
    pub(super) fn observe(&self, span: Duration) {
        let nanoseconds = u64::try_from(span.as_nanos()).unwrap_or(u64::MAX);
        if let Some(bucket) = self.0.buckets.get(bucket(nanoseconds)) {
            bucket.fetch_add(1, Ordering::Relaxed);
        }
        self.0.nanoseconds.fetch_add(nanoseconds, Ordering::Relaxed);
    }
}

/// The first bucket whose upper bound is no less.
fn bucket(nanoseconds: u64) -> usize {
    let multiple = nanoseconds.div_ceil(FIRST).max(1);
    let exponent = multiple
        .checked_next_power_of_two()
        .map_or(u64::BITS, u64::trailing_zeros);
    usize::try_from(exponent).map_or(BUCKETS, |exponent| exponent.min(BUCKETS))
}

fn seconds(nanoseconds: u64) -> f64 {
    Duration::from_nanos(nanoseconds).as_secs_f64()
}

impl EncodeMetric for Latencies {
    fn encode(&self, mut encoder: MetricEncoder<'_>) -> Result<(), std::fmt::Error> {
        // All read once: what the buckets say and what they sum up to is the same then.
        let counts = self
            .0
            .buckets
            .each_ref()
            .map(|bucket| bucket.load(Ordering::Relaxed));
        let sum = seconds(self.0.nanoseconds.load(Ordering::Relaxed));
        let bounds = (0..BUCKETS).map(|exponent| seconds(FIRST << exponent));
        // How the encoder is told of the bucket without a bound.
        let bounds = bounds.chain(std::iter::once(f64::MAX));
        let buckets: Vec<_> = bounds.zip(counts).collect();
        encoder.encode_histogram::<NoLabelSet>(sum, counts.iter().sum(), &buckets, None)
    }

    fn metric_type(&self) -> MetricType {
        MetricType::Histogram
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_span_is_in_the_first_bucket_that_has_room_for_it() {
        for (nanoseconds, expected) in [
            (0, 0),
            (1, 0),
            (FIRST, 0),
            (FIRST + 1, 1),
            (2 * FIRST, 1),
            (2 * FIRST + 1, 2),
            (FIRST << (BUCKETS - 1), BUCKETS - 1),
            ((FIRST << (BUCKETS - 1)) + 1, BUCKETS),
            (u64::MAX, BUCKETS),
        ] {
            assert_eq!(bucket(nanoseconds), expected, "{nanoseconds}");
        }
    }
}
