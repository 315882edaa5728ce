//! What the test programs share: an in-process policy, an executor, and a session to ask in.
#![allow(dead_code, unreachable_pub, reason = "each test program uses a part")]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "tests"
)]

pub mod peer;

use std::process::{Command, Output, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use execgate::model::{
    EnvironmentRules, EscalationDecision, EscalationExecution, EscalationTerms, ExecId,
    InterceptedExec, NamePattern, SessionEvent, Unprotected, Verdict,
};
use execgate::server::{
    BoxFuture, EscalateServer, EscalatedExec, EscalationPolicy, EscalationSession, ExecutorError,
    PolicyError, PreparedExec, SessionParams, ShellCommand, ShellCommandExecutor, ShellOutput,
};
use tokio_util::sync::CancellationToken;

/// Nothing in a test takes this long unless it hangs.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// As it is installed: without a C library, which a build with all features has.
pub const WRAPPER: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/target/dist/libexec/execgate/execgate-wrapper"
);

pub const ESCALATE: EscalationDecision =
    EscalationDecision::Escalate(EscalationExecution::Unsandboxed);

pub fn deny(reason: &str) -> EscalationDecision {
    EscalationDecision::Deny {
        reason: Some(reason.to_owned()),
    }
}

type Decide = dyn Fn(&InterceptedExec) -> Option<EscalationDecision> + Send + Sync;

/// A policy that decides by a function, at once or (`None`) never, and notes all that it is asked
/// and told.
pub struct Scripted {
    decide: Box<Decide>,
    terms: Box<EscalationTerms>,
    pub asked: Mutex<Vec<InterceptedExec>>,
    pub told: Mutex<Vec<SessionEvent>>,
}

impl Scripted {
    pub fn new(
        decide: impl Fn(&InterceptedExec) -> Option<EscalationDecision> + Send + Sync + 'static,
    ) -> Arc<Self> {
        Arc::new(Self {
            decide: Box::new(decide),
            terms: Box::default(),
            asked: Mutex::default(),
            told: Mutex::default(),
        })
    }

    /// The same, on terms under which an escalated command has the environment that was asked for, and may
    /// be any program.
    pub fn changing_nothing(self: Arc<Self>) -> Arc<Self> {
        let mut policy = Arc::into_inner(self).expect("a policy that nobody uses yet");
        *policy.terms = EscalationTerms {
            environment: EnvironmentRules {
                keep: vec![NamePattern::all()],
                ..EnvironmentRules::default()
            },
            unprotected: Unprotected::Allowed,
        };
        Arc::new(policy)
    }

    pub fn always(decision: EscalationDecision) -> Arc<Self> {
        Self::new(move |_| Some(decision.clone()))
    }

    /// Waits for an event that `find` finds something in.
    pub async fn wait_for<T>(&self, find: impl Fn(&SessionEvent) -> Option<T>) -> T {
        let search = async {
            loop {
                if let Some(found) = self.told.lock().unwrap().iter().find_map(&find) {
                    return found;
                }
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        };
        tokio::time::timeout(PATIENCE, search)
            .await
            .unwrap_or_else(|_| panic!("no such event in {:#?}", self.told.lock().unwrap()))
    }

    pub async fn wait_until_asked(&self, count: usize) {
        while self.asked.lock().unwrap().len() < count {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }

    /// The id of the first exec of a program with this name.
    pub fn exec_of(&self, name: &str) -> ExecId {
        let asked = self.asked.lock().unwrap();
        let found = asked.iter().find(|exec| exec.file.ends_with(name));
        found
            .unwrap_or_else(|| panic!("no exec of {name} in {asked:#?}"))
            .id
    }
}

impl EscalationPolicy for Scripted {
    fn decide<'a>(
        &'a self,
        exec: &'a InterceptedExec,
    ) -> BoxFuture<'a, Result<Verdict, PolicyError>> {
        self.asked.lock().unwrap().push(exec.clone());
        Box::pin(async {
            match (self.decide)(exec) {
                Some(decision) => Ok(Verdict {
                    terms: self.terms.clone(),
                    ..decision.into()
                }),
                None => std::future::pending().await,
            }
        })
    }

    fn observe(&self, event: SessionEvent) {
        self.told.lock().unwrap().push(event);
    }
}

/// Executes escalated commands as they are.
pub struct Direct;

impl ShellCommandExecutor for Direct {
    fn run(
        &self,
        _: ShellCommand,
        _: CancellationToken,
    ) -> BoxFuture<'_, Result<ShellOutput, ExecutorError>> {
        Box::pin(async {
            Err(ExecutorError {
                attempted: "run a shell: these tests start their processes themselves".to_owned(),
                source: std::io::ErrorKind::Unsupported.into(),
            })
        })
    }

    fn prepare_escalated_exec(
        &self,
        exec: EscalatedExec,
    ) -> BoxFuture<'_, Result<PreparedExec, ExecutorError>> {
        Box::pin(async {
            Ok(PreparedExec {
                program: exec.file,
                argv: exec.argv,
                workdir: exec.workdir,
                env: exec.env,
                confinement: None,
                told_descriptors: Vec::new(),
                told_signals: None,
            })
        })
    }
}

pub fn start(policy: Arc<dyn EscalationPolicy>) -> EscalationSession {
    EscalateServer::new("/bin/sh", WRAPPER, policy)
        .start_session(
            SessionParams::default(),
            Arc::new(Direct),
            &CancellationToken::new(),
        )
        .unwrap()
}

/// The wrapper, started as a patched shell would for this program and these arguments.
pub fn wrapped(session: &EscalationSession, file: &str, argv: &[&str]) -> Command {
    let mut command = Command::new(WRAPPER);
    command
        .arg(file)
        .args(argv)
        .env_clear()
        .env("PATH", "/usr/bin:/bin")
        .envs(session.env())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

/// Waits for the end of a process without holding up the runtime.
pub async fn output(mut command: Command) -> Output {
    let output = tokio::task::spawn_blocking(move || command.output());
    tokio::time::timeout(PATIENCE, output)
        .await
        .expect("the process ends")
        .unwrap()
        .unwrap()
}

pub fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}
