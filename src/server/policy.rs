use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::reuse::GateVerdicts;
use super::{ReusableVerdicts, Stopwatch};
use crate::model::{ExecId, InterceptedExec, SessionDescription, SessionEvent, Verdict};
use crate::program::Digest;

/// A boxed future that may borrow.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Decides what becomes of each intercepted exec, and is told what became of it.
///
/// Only [`decide`](Self::decide) has to be written. A session ends by
/// [`SessionEvent::SessionEnded`], after which nothing is asked or told.
pub trait EscalationPolicy: Send + Sync + 'static {
    /// Decides one exec, however long that takes. Execs are decided concurrently. An exec to which an
    /// earlier verdict applies that was given for [`Reuse`](crate::model::Reuse) isn't asked about: the
    /// policy is told of it by [`SessionEvent::ExecReused`].
    ///
    /// The future is dropped when the exec is withdrawn: the asker died, or the session ended.
    ///
    /// # Errors
    /// An error denies the exec with [`DecisionCode::PolicyError`](crate::model::DecisionCode).
    /// A refusal isn't an error: it is a verdict.
    fn decide<'a>(
        &'a self,
        exec: &'a InterceptedExec,
    ) -> BoxFuture<'a, Result<Verdict, PolicyError>>;

    /// Whether execs may be decided by earlier verdicts at present; where not, the policy is asked about
    /// each. Must not block.
    fn may_reuse(&self) -> bool {
        true
    }

    /// What the user may be told who waits for the verdict of an exec: who is asked, for what, how long.
    /// `None` while no person is. Asked only of execs that have waited for a while. Must not block.
    fn person_asked(&self, exec: ExecId) -> Option<String> {
        let _ = exec;
        None
    }

    /// Which digest of programs it wants to be told, at present. Must not block.
    fn wanted_digest(&self) -> Digest {
        Digest::None
    }

    /// Is told what happened, in order for each exec. Stands in front of verdicts, so it must not
    /// block: no disk, no network, no lock that is held across either.
    ///
    /// [`SessionEvent::ExecDecided`] is told just before the answer leaves, so that a policy which puts it where
    /// a kill of this process doesn't reach it knows of everything that may have run.
    fn observe(&self, event: SessionEvent) {
        let _ = event;
    }

    /// The policy for one session, called once as it starts, inside the server's runtime. `None`,
    /// the default, means that this policy serves every session.
    fn for_session(&self, session: &SessionContext) -> Option<Arc<dyn EscalationPolicy>> {
        let _ = session;
        None
    }
}

/// Why a policy has no verdict. It denies.
#[derive(Debug, thiserror::Error)]
#[error("the policy failed to decide: {0}")]
pub struct PolicyError(#[from] pub Box<dyn std::error::Error + Send + Sync>);

/// What a policy may know of its session, and do to it.
#[derive(Debug, Clone)]
pub struct SessionContext {
    /// What is said of the session.
    pub description: Arc<SessionDescription>,
    /// The clock that limits the session's run time. Pause it while a person decides.
    pub stopwatch: Stopwatch,
    /// Ends the session.
    pub terminator: SessionTerminator,
    /// The verdicts that were given for reuse. A policy whose rules change has them forgotten.
    pub verdicts: ReusableVerdicts,
}

impl SessionContext {
    /// Of a session that no server has started, for using a policy by itself: without a time limit, and
    /// no verdict is used again.
    #[must_use]
    pub fn new(description: SessionDescription) -> Self {
        Self {
            verdicts: ReusableVerdicts::new(
                description.id,
                GateVerdicts::default(),
                Duration::ZERO,
            ),
            description: Arc::new(description),
            stopwatch: Stopwatch::new(None),
            terminator: SessionTerminator::default(),
        }
    }
}

/// Ends a session from the policy's side, once.
#[derive(Debug, Clone, Default)]
pub struct SessionTerminator {
    token: CancellationToken,
    reason: Arc<std::sync::OnceLock<String>>,
}

impl SessionTerminator {
    /// Ends the session: what is waiting is denied, escalated children are killed, and the token of
    /// [`terminated`](Self::terminated) tells the owner to end the shell. Later calls do nothing.
    pub fn terminate(&self, reason: impl Into<String>) {
        let _ = self.reason.set(reason.into());
        self.token.cancel();
    }

    /// Completes when the policy has ended the session, with the reason.
    pub async fn terminated(&self) -> String {
        self.token.cancelled().await;
        self.reason().unwrap_or_default()
    }

    /// The reason, once the policy has ended the session.
    #[must_use]
    pub fn reason(&self) -> Option<String> {
        self.reason.get().cloned()
    }
}
