use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::sync::oneshot;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::environment::OwnersEnvironment;
use super::executor::{
    ExecParams, ExecResult, ExecutorError, Login, ShellCommand, ShellCommandExecutor, ShellOutput,
};
use super::policy::EscalationPolicy;
use super::reuse::GateVerdicts;
use super::session::{EscalationSession, GateBounds, GatePools, Start, WrapperAlias};
use super::stopwatch::Stopwatch;
use crate::model::{ExecOutcome, SandboxReport, SessionDescription, SessionEndReason, SessionId};
use crate::program::Digests;
use crate::sys::random;

/// Starts sandbox sessions, and decides by a policy what their processes may execute.
pub struct EscalateServer {
    shell: PathBuf,
    wrapper: PathBuf,
    policy: Arc<dyn EscalationPolicy>,
    alias: WrapperAlias,
    verdicts: GateVerdicts,
    pools: GatePools,
    reuse_limit: Duration,
    digests: Arc<Digests>,
    owner: OwnersEnvironment,
}

/// How long a verdict that was given for reuse is used at most, unless the gate's owner says otherwise.
pub const REUSE_LIMIT: Duration = Duration::from_secs(3600);

/// Why a session couldn't be started or a command not be run.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// The session's socket couldn't be made.
    #[error("cannot make the session's socket")]
    Socket(#[source] std::io::Error),
    /// The session's id couldn't be chosen.
    #[error("cannot choose an id for the session")]
    SessionId(#[source] std::io::Error),
    /// The shell couldn't be run.
    #[error(transparent)]
    Executor(#[from] ExecutorError),
}

/// What is to be said of a session that is started without a command.
#[derive(Debug, Clone)]
pub struct SessionParams {
    /// The session's labels.
    pub labels: BTreeMap<String, String>,
    /// The directory in which its shell starts.
    pub workdir: PathBuf,
    /// The command that it is for, program first; empty where that isn't known.
    pub command: Vec<OsString>,
    /// Its sandbox.
    pub sandbox: SandboxReport,
    /// How long it may run. Time that passes while a person decides doesn't count. The session's
    /// [`Stopwatch`] says when that is over; ending the session then is up to its owner.
    pub timeout: Option<Duration>,
}

impl Default for SessionParams {
    fn default() -> Self {
        Self {
            labels: BTreeMap::new(),
            workdir: PathBuf::from("/"),
            command: Vec::new(),
            sandbox: SandboxReport {
                backend: "unknown".to_owned(),
                ..SandboxReport::none()
            },
            timeout: None,
        }
    }
}

impl EscalateServer {
    /// A server whose sessions run `shell`, a patched zsh or bash, with `wrapper` in front of every
    /// exec; both by absolute paths.
    pub fn new(
        shell: impl Into<PathBuf>,
        wrapper: impl Into<PathBuf>,
        policy: Arc<dyn EscalationPolicy>,
    ) -> Self {
        Self {
            shell: shell.into(),
            wrapper: wrapper.into(),
            policy,
            alias: WrapperAlias::None,
            verdicts: GateVerdicts::default(),
            pools: GatePools::new(GateBounds::default()),
            reuse_limit: REUSE_LIMIT,
            digests: Arc::default(),
            owner: OwnersEnvironment::of_this_process(),
        }
    }

    /// How long a verdict that was given for reuse is used at most; zero: each exec is asked about.
    #[must_use]
    pub fn with_reuse_limit(mut self, longest: Duration) -> Self {
        self.reuse_limit = longest;
        self
    }

    /// What all sessions may have together, those that are started from here on.
    #[must_use]
    pub fn with_bounds(mut self, bounds: GateBounds) -> Self {
        self.pools = GatePools::new(bounds);
        self
    }

    /// What escalated commands have in the place of the session's own `PATH`, `HOME` and `SHELL`, unless
    /// their verdicts say otherwise.
    #[must_use]
    pub fn with_owners_environment(mut self, owner: OwnersEnvironment) -> Self {
        self.owner = owner;
        self
    }

    /// Whether sessions' environments have the wrapper's older name too.
    #[must_use]
    pub fn with_alias(mut self, alias: WrapperAlias) -> Self {
        self.alias = alias;
        self
    }

    /// Starts a session, and spawns nothing: the caller starts a shell with the session's
    /// [`env`](EscalationSession::env) over its environment, and calls
    /// [`close_client_socket`](EscalationSession::close_client_socket) right after.
    ///
    /// The session ends when it is dropped, and when `parent` is cancelled. To be called inside a
    /// tokio runtime.
    ///
    /// # Errors
    /// No descriptors left, or no random numbers.
    pub fn start_session(
        &self,
        params: SessionParams,
        executor: Arc<dyn ShellCommandExecutor>,
        parent: &CancellationToken,
    ) -> Result<EscalationSession, ServerError> {
        let id = random::sixteen_bytes().map_err(ServerError::SessionId)?;
        EscalationSession::start(Start {
            description: SessionDescription {
                id: SessionId(id),
                labels: params.labels,
                workdir: params.workdir,
                command: params.command,
                sandbox: params.sandbox,
                started_at: SystemTime::now(),
            },
            policy: self.policy.clone(),
            executor,
            wrapper: self.wrapper.clone(),
            alias: self.alias,
            stopwatch: Stopwatch::new(params.timeout),
            parent: parent.clone(),
            verdicts: self.verdicts.clone(),
            pools: self.pools.clone(),
            reuse_limit: self.reuse_limit,
            digests: self.digests.clone(),
            owner: self.owner.clone(),
        })
    }

    /// Runs one command in a session of its own, from start to end, as `shell -lc COMMAND`.
    ///
    /// It is ended when `cancelled` is, when its time is over, and when the policy ends the session.
    ///
    /// # Errors
    /// Where the session or the shell couldn't be started. A command that fails isn't an error.
    pub async fn exec(
        &self,
        params: ExecParams,
        sandbox: SandboxReport,
        executor: Arc<dyn ShellCommandExecutor>,
        cancelled: &CancellationToken,
    ) -> Result<ExecResult, ServerError> {
        let flag = match params.login {
            Login::Yes => "-lc",
            Login::No => "-c",
        };
        let session = SessionParams {
            labels: params.labels,
            workdir: params.workdir,
            command: vec![flag.into(), params.command],
            sandbox,
            timeout: params.timeout,
        };
        self.run_shell(session, executor, cancelled).await
    }

    /// Runs the shell in a session of its own, from start to end; `params.command` holds its arguments.
    ///
    /// # Errors
    /// As for [`exec`](Self::exec).
    pub async fn run_shell(
        &self,
        mut params: SessionParams,
        executor: Arc<dyn ShellCommandExecutor>,
        cancelled: &CancellationToken,
    ) -> Result<ExecResult, ServerError> {
        params.command.insert(0, self.shell.clone().into());
        let argv = params.command.clone();
        let workdir = params.workdir.clone();
        let session = self.start_session(params, executor.clone(), cancelled)?;
        let began = Instant::now();
        let stop = cancelled.child_token();
        let context = session.context().clone();
        let (ended, mut shells_end) = oneshot::channel();
        let run = executor.run(
            ShellCommand {
                argv,
                workdir,
                env_overlay: session.env().clone(),
                after_spawn: session.after_spawn(),
                after_end: Box::new(|outcome| {
                    let _ = ended.send(outcome);
                }),
            },
            stop.clone(),
        );
        tokio::pin!(run);
        let mut timed_out = false;
        let mut terminated = false;
        let mut ends = true;
        let first = loop {
            tokio::select! {
                output = &mut run => break First::Done(output),
                outcome = &mut shells_end, if ends => match outcome {
                    Ok(outcome) => break First::ShellEnded(outcome),
                    Err(_) => ends = false,
                },
                () = context.stopwatch.expired(), if !timed_out => {
                    timed_out = true;
                    stop.cancel();
                }
                _ = context.terminator.terminated(), if !terminated => {
                    terminated = true;
                    stop.cancel();
                }
            }
        };
        let duration = began.elapsed();
        let verdicts = session.verdicts();
        let reason = if timed_out {
            SessionEndReason::TimedOut
        } else if cancelled.is_cancelled() {
            SessionEndReason::Cancelled
        } else {
            SessionEndReason::Completed
        };
        let output = match first {
            First::ShellEnded(outcome) => {
                // What the shell and what the gate has left to end gets its time together, not in turn.
                let end = session.end(reason, String::new(), Some(outcome));
                tokio::join!(run, end).0?
            }
            First::Done(Ok(output)) => {
                let outcome = Some(output.outcome.clone());
                session.end(reason, String::new(), outcome).await;
                output
            }
            First::Done(Err(error)) => {
                let detail = error.to_string();
                session
                    .end(SessionEndReason::GateFailed, detail, None)
                    .await;
                return Err(error.into());
            }
        };
        Ok(ExecResult {
            exit_code: shell_status(&output.outcome),
            stdout: output.stdout,
            stderr: output.stderr,
            output: output.output,
            truncated: output.truncated,
            duration,
            timed_out,
            verdicts,
        })
    }
}

/// What comes first at the end of a shell.
enum First {
    /// The shell has ended, and what it has left behind is being ended.
    ShellEnded(ExecOutcome),
    /// The executor is done.
    Done(Result<ShellOutput, ExecutorError>),
}

/// The status of a gate that couldn't see how its shell ended.
const END_UNSEEN: i32 = 125;

/// The status that a shell gives for a command which ended so.
fn shell_status(outcome: &ExecOutcome) -> i32 {
    match outcome {
        ExecOutcome::Exited(code) => *code,
        ExecOutcome::Signaled(signal) => 128 + signal,
        _ => END_UNSEEN,
    }
}
