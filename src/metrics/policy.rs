use std::sync::Arc;

use tokio::time::Instant;

use super::GateMetrics;
use crate::model::{ExecId, InterceptedExec, SessionEvent, Verdict};
use crate::server::{BoxFuture, Digest, EscalationPolicy, PolicyError, SessionContext};

/// A policy, with what it does counted.
pub struct Measured {
    metrics: Arc<GateMetrics>,
    policy: Arc<dyn EscalationPolicy>,
    /// For that of one session.
    _session: Option<Counted>,
}

/// One more of something, for as long as it lives.
struct Counted(prometheus_client::metrics::gauge::Gauge);

impl Counted {
    fn in_gauge(gauge: &prometheus_client::metrics::gauge::Gauge) -> Self {
        gauge.inc();
        Self(gauge.clone())
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.dec();
    }
}

impl Measured {
    /// Counts what `policy` does.
    #[must_use]
    pub fn new(metrics: Arc<GateMetrics>, policy: Arc<dyn EscalationPolicy>) -> Self {
        Self {
            metrics,
            policy,
            _session: None,
        }
    }
}

impl EscalationPolicy for Measured {
    fn decide<'a>(
        &'a self,
        exec: &'a InterceptedExec,
    ) -> BoxFuture<'a, Result<Verdict, PolicyError>> {
        let deciding = Counted::in_gauge(&self.metrics.deciding);
        self.metrics.asked.inc();
        let began = Instant::now();
        let decision = self.policy.decide(exec);
        Box::pin(async move {
            let decided = decision.await;
            drop(deciding);
            let service = decided
                .as_ref()
                .ok()
                .and_then(|verdict| verdict.service_time);
            self.metrics.decided(began.elapsed(), service);
            decided
        })
    }

    fn may_reuse(&self) -> bool {
        self.policy.may_reuse()
    }

    fn person_asked(&self, exec: ExecId) -> Option<String> {
        self.policy.person_asked(exec)
    }

    fn wanted_digest(&self) -> Digest {
        self.policy.wanted_digest()
    }

    fn observe(&self, event: SessionEvent) {
        match &event {
            SessionEvent::ExecDecided {
                verdict,
                waited,
                decided_in,
                ..
            } => self.metrics.acted(verdict, *waited, *decided_in),
            SessionEvent::ExecWithdrawn { .. } => {
                self.metrics.withdrawn.inc();
            }
            SessionEvent::ExecReused { .. } => {
                self.metrics.reused.inc();
            }
            SessionEvent::ExecFinished { .. } | SessionEvent::SessionEnded { .. } => {}
        }
        self.policy.observe(event);
    }

    fn for_session(&self, session: &SessionContext) -> Option<Arc<dyn EscalationPolicy>> {
        let policy = self
            .policy
            .for_session(session)
            .unwrap_or_else(|| Arc::clone(&self.policy));
        Some(Arc::new(Self {
            metrics: Arc::clone(&self.metrics),
            policy,
            _session: Some(Counted::in_gauge(&self.metrics.sessions)),
        }))
    }
}
