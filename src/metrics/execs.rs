use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use prometheus_client::encoding::{EncodeLabelSet, EncodeMetric, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;

use crate::model::{DecisionCode, EscalationDecision, Verdict};

const VERDICTS: [&str; 3] = ["run", "escalate", "deny"];

/// How many execs ended with each verdict and code. Both are few, so that each pair has its place.
#[derive(Debug, Clone, Default)]
pub(super) struct ExecCounts(Arc<[[AtomicU64; DecisionCode::ALL.len()]; VERDICTS.len()]>);

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Labels {
    verdict: &'static str,
    code: &'static str,
}

impl ExecCounts {
    pub(super) fn count(&self, verdict: &Verdict) {
        let which = match verdict.decision {
            EscalationDecision::Run => 0,
            EscalationDecision::Escalate(_) => 1,
            EscalationDecision::Deny { .. } => 2,
        };
        let code = DecisionCode::ALL
            .iter()
            .position(|code| *code == verdict.code);
        let place = code.and_then(|code| self.0.get(which)?.get(code));
        if let Some(count) = place {
            count.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl EncodeMetric for ExecCounts {
    fn encode(&self, mut encoder: MetricEncoder<'_>) -> Result<(), std::fmt::Error> {
        for (verdict, counts) in VERDICTS.into_iter().zip(self.0.iter()) {
            for (code, count) in DecisionCode::ALL.into_iter().zip(counts) {
                let count = count.load(Ordering::Relaxed);
                if count > 0 {
                    let code = code.as_str();
                    encoder
                        .encode_family(&Labels { verdict, code })?
                        .encode_counter::<NoLabelSet, _, u64>(&count, None)?;
                }
            }
        }
        Ok(())
    }

    fn metric_type(&self) -> MetricType {
        MetricType::Counter
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_code_has_its_place() {
        let counts = ExecCounts::default();
        for code in DecisionCode::ALL {
            counts.count(&Verdict::denied(code, "no"));
        }
        let denied = counts.0.last().expect("denials");
        assert!(
            denied
                .iter()
                .all(|count| count.load(Ordering::Relaxed) == 1)
        );
    }
}
