//! The gate's side: one session of a link.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use execgate::link::{LinkOptions, PolicyLink};
use execgate::model::{
    DecisionCode, Environment, EscalationDecision, ExecId, InterceptedExec, ProcessIdentity,
    SandboxReport, SessionDescription, SessionEndReason, SessionEvent, SessionId, Verdict,
};
use execgate::server::{EscalationPolicy, SessionContext};
use tokio::task::JoinHandle;

/// Long enough never to be reached in a test.
pub(crate) const EVER: Duration = Duration::from_secs(300);

pub(crate) struct Gate {
    pub(crate) link: PolicyLink,
    pub(crate) context: SessionContext,
    pub(crate) session: Arc<dyn EscalationPolicy>,
}

/// An exec that is being asked.
pub(crate) struct Asked(JoinHandle<Verdict>);

impl Gate {
    /// A session whose deadlines are too long to matter.
    pub(crate) fn new(endpoint: &str) -> Self {
        Self::with(endpoint, |_| {})
    }

    pub(crate) fn with(endpoint: &str, adjust: impl FnOnce(&mut LinkOptions)) -> Self {
        Self::with_session(endpoint, 1, adjust)
    }

    /// The same with a session of its own id.
    pub(crate) fn with_session(
        endpoint: &str,
        id: u8,
        adjust: impl FnOnce(&mut LinkOptions),
    ) -> Self {
        let mut options = LinkOptions::new(endpoint.parse().expect("an endpoint"));
        options.verdict_deadline = EVER;
        options.outage_tolerance = EVER;
        adjust(&mut options);
        let link = PolicyLink::new(options).expect("a link");
        let context = context(id);
        let session = link.for_session(&context).expect("a session");
        Self {
            link,
            context,
            session,
        }
    }

    pub(crate) fn ask(&self, exec: u64) -> Asked {
        self.ask_about(exec_of(exec))
    }

    pub(crate) fn ask_about(&self, exec: InterceptedExec) -> Asked {
        let session = Arc::clone(&self.session);
        Asked(tokio::spawn(async move {
            session.decide(&exec).await.expect("no policy error")
        }))
    }

    /// Tells an event that is easy to recognize by `exec`.
    pub(crate) fn tell(&self, exec: u64) {
        self.session.observe(decided(exec));
    }

    pub(crate) fn end(&self) {
        self.session.observe(ended());
    }
}

pub(crate) fn decided(exec: u64) -> SessionEvent {
    SessionEvent::ExecDecided {
        exec: ExecId(exec),
        verdict: Verdict::from(EscalationDecision::Run),
        environment: None,
        waited: Duration::ZERO,
        decided_in: Duration::ZERO,
        at: SystemTime::now(),
    }
}

pub(crate) fn ended() -> SessionEvent {
    SessionEvent::SessionEnded {
        reason: SessionEndReason::Completed,
        detail: String::new(),
        shell: None,
        at: SystemTime::now(),
    }
}

impl Asked {
    pub(crate) async fn verdict(self) -> Verdict {
        self.0.await.expect("a verdict")
    }

    /// The asker dies.
    pub(crate) async fn abandon(self) {
        self.0.abort();
        assert!(self.0.await.expect_err("no verdict yet").is_cancelled());
    }

    pub(crate) async fn runs(self, code: DecisionCode) {
        let verdict = self.verdict().await;
        assert_eq!(
            (&verdict.decision, verdict.code),
            (&EscalationDecision::Run, code)
        );
    }

    /// Returns the reason.
    pub(crate) async fn denied(self, code: DecisionCode) -> String {
        let verdict = self.verdict().await;
        assert_eq!(verdict.code, code, "{verdict:?}");
        match verdict.decision {
            EscalationDecision::Deny { reason } => reason.unwrap_or_default(),
            other => panic!("not denied: {other:?}"),
        }
    }
}

pub(crate) fn context(session: u8) -> SessionContext {
    SessionContext::new(SessionDescription {
        id: SessionId([session; 16]),
        labels: BTreeMap::from([("team".to_owned(), "blue".to_owned())]),
        workdir: "/work".into(),
        command: vec!["zsh".into()],
        sandbox: SandboxReport::none(),
        started_at: SystemTime::now(),
    })
}

pub(crate) fn exec_of(exec: u64) -> InterceptedExec {
    InterceptedExec {
        id: ExecId(exec),
        file: "/usr/bin/git".into(),
        argv: vec!["git".into(), "push".into()],
        workdir: "/work".into(),
        env: Environment(vec!["HOME=/root".into()]),
        process: ProcessIdentity::default(),
        parent: None,
        asked_at: SystemTime::now(),
        executable: execgate::model::Executable::default(),
        workdir_protection: None,
    }
}
