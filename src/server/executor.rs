use std::collections::BTreeMap;
use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::policy::BoxFuture;
use crate::model::{Environment, EscalationExecution, ExecOutcome};
use crate::program::WritablePlaces;
use crate::sys::confine::Confinement;

/// Starts processes on the caller's terms: shells for [`exec`](super::EscalateServer::exec), and
/// the command lines of escalated execs.
pub trait ShellCommandExecutor: Send + Sync + 'static {
    /// Runs `command` under the caller's sandbox to its end.
    ///
    /// Must call `command.after_spawn` as soon as the process has been started (or failed to start),
    /// and end the process when `cancelled` is. Where it ends what the process has left behind, which
    /// takes time, it should call `command.after_end` before that.
    ///
    /// # Errors
    /// Where the process couldn't be started or waited for.
    fn run(
        &self,
        command: ShellCommand,
        cancelled: CancellationToken,
    ) -> BoxFuture<'_, Result<ShellOutput, ExecutorError>>;

    /// Turns "run this, in this way" into what is to be executed, outside the session's sandbox.
    ///
    /// # Errors
    /// Where the asked confinement can't be had; the exec then fails with that reason.
    fn prepare_escalated_exec(
        &self,
        exec: EscalatedExec,
    ) -> BoxFuture<'_, Result<PreparedExec, ExecutorError>>;

    /// Where processes under the caller's sandbox can write. Only what is certain may be said to be
    /// confined: it tells which programs a session can't have changed. Asked once, as a session starts.
    fn writable_places(&self) -> WritablePlaces {
        WritablePlaces::Everywhere
    }
}

/// Why an executor failed.
#[derive(Debug, thiserror::Error)]
#[error("{attempted}: {source}")]
pub struct ExecutorError {
    /// What was attempted, such as `start /bin/bash`.
    pub attempted: String,
    /// Why it failed.
    pub source: std::io::Error,
}

/// A shell command to run.
pub struct ShellCommand {
    /// Program and arguments, program first.
    pub argv: Vec<OsString>,
    /// Working directory.
    pub workdir: PathBuf,
    /// Variables to set over the caller's environment.
    pub env_overlay: BTreeMap<OsString, OsString>,
    /// To be called when the process has been spawned.
    pub after_spawn: Box<dyn FnOnce() + Send>,
    /// To be called when the process itself has ended, and how. The session then ends at once, while
    /// the executor still ends what the process has left behind.
    pub after_end: Box<dyn FnOnce(ExecOutcome) + Send>,
}

/// What a shell command produced.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShellOutput {
    /// How it ended.
    pub outcome: ExecOutcome,
    /// Its standard output; empty where it was passed through.
    pub stdout: Vec<u8>,
    /// Its standard error; empty where it was passed through.
    pub stderr: Vec<u8>,
    /// Both in the order of their arrival; empty where they were passed through.
    pub output: Vec<u8>,
    /// Whether an executor that captures output kept less of it than came.
    pub truncated: bool,
}

/// An exec that a verdict escalates.
#[derive(Debug, Clone)]
pub struct EscalatedExec {
    /// The program: absolute. `/proc/self/fd/N` for one that the session can write: it is executed from a
    /// copy, which the command finds at that descriptor.
    pub file: PathBuf,
    /// Its arguments, beginning with argument zero; may be empty.
    pub argv: Vec<OsString>,
    /// Its working directory: absolute.
    pub workdir: PathBuf,
    /// Its whole environment, as the verdict has it.
    pub env: Environment,
    /// How it is to be confined.
    pub execution: EscalationExecution,
}

/// What is to be executed for an escalated exec.
#[derive(Debug)]
pub struct PreparedExec {
    /// The program: absolute.
    pub program: PathBuf,
    /// Its arguments, beginning with argument zero; may be empty.
    pub argv: Vec<OsString>,
    /// Its working directory: absolute.
    pub workdir: PathBuf,
    /// Its whole environment.
    pub env: Environment,
    /// What its process is confined by before it is executed.
    pub confinement: Option<Confinement>,
    /// Further descriptors for it, each with the place in `argv` that has a `?` where its number is to be told.
    pub told_descriptors: Vec<(OwnedFd, usize)>,
    /// Where in `argv` is to be told which signals the command has blocked, if it is what the program starts that is to
    /// get signals: see [`Command::told_signals`](crate::sys::spawn::Command::told_signals).
    pub told_signals: Option<usize>,
}

/// A command string for [`exec`](super::EscalateServer::exec).
#[derive(Debug, Clone, Default)]
pub struct ExecParams {
    /// What the shell is to run, as after its `-c`.
    pub command: OsString,
    /// Where; absolute.
    pub workdir: PathBuf,
    /// How long it may run. Time that passes while a person decides doesn't count.
    pub timeout: Option<Duration>,
    /// Whether the shell is a login shell.
    pub login: Login,
    /// The session's labels.
    pub labels: BTreeMap<String, String>,
}

/// Whether a shell is a login shell.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Login {
    /// `shell -lc COMMAND`: it reads the login files first.
    #[default]
    Yes,
    /// `shell -c COMMAND`.
    No,
}

/// What became of [`exec`](super::EscalateServer::exec).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExecResult {
    /// The shell's exit status, as another shell would see it: 128 + the signal where it was killed.
    pub exit_code: i32,
    /// Its standard output; empty where it was passed through.
    pub stdout: Vec<u8>,
    /// Its standard error; empty where it was passed through.
    pub stderr: Vec<u8>,
    /// Both in the order of their arrival; empty where they were passed through.
    pub output: Vec<u8>,
    /// Whether an executor that captures output kept less of it than came.
    pub truncated: bool,
    /// From the shell's start to its end, pauses included.
    pub duration: Duration,
    /// Whether it was ended because of its time limit.
    pub timed_out: bool,
    /// How many execs were decided each way.
    pub verdicts: VerdictCounts,
}

/// How many execs of a session were decided each way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct VerdictCounts {
    /// Run inside the sandbox.
    pub run: u64,
    /// Escalated.
    pub escalate: u64,
    /// Denied.
    pub deny: u64,
}
