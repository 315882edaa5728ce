//! The gate's own executor: shells under its sandbox and a supervisor, on the descriptors that the
//! gate was started with.

use std::ffi::{CString, OsStr, OsString};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tokio::io::unix::AsyncFd;
use tokio::io::{AsyncReadExt, Interest};
use tokio::net::unix::pipe;
use tokio_util::sync::CancellationToken;

use super::startup::Startup;
use crate::model::{Environment, EscalationExecution, ExecOutcome};
use crate::sandbox::{Sandbox, Unconfined};
use crate::server::{
    BoxFuture, EscalatedExec, ExecutorError, PreparedExec, ShellCommand, ShellCommandExecutor,
    ShellOutput,
};
use crate::sys::signal::SignalWatch;
use crate::sys::spawn::{Command, Directory, ProcessGroup, Report, Supervisor};
use crate::sys::{descriptor, process, readiness};
use crate::wire::SOCKET_VARIABLE;

/// The most of each stream that is captured, in bytes. What is more is read and dropped.
const MOST_CAPTURED: usize = 64 << 20;

/// Where a shell's output goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Streams {
    /// To the gate's own.
    Pass,
    /// Into the result.
    Capture,
}

pub(super) struct Executor {
    pub(super) sandbox: Sandbox,
    pub(super) streams: Streams,
    pub(super) startup: Arc<Startup>,
    /// The session's directory.
    pub(super) home: PathBuf,
    /// Directory of the patched shells, which goes first in `PATH`.
    pub(super) shells: Option<PathBuf>,
    /// Signals for the shell that reach the gate.
    pub(super) signals: std::sync::Mutex<Option<SignalWatch>>,
}

fn failed(attempted: impl Into<String>) -> impl FnOnce(io::Error) -> ExecutorError {
    let attempted = attempted.into();
    |source| ExecutorError { attempted, source }
}

impl ShellCommandExecutor for Executor {
    fn run(
        &self,
        command: ShellCommand,
        cancelled: CancellationToken,
    ) -> BoxFuture<'_, Result<ShellOutput, ExecutorError>> {
        Box::pin(self.run_shell(command, cancelled))
    }

    fn prepare_escalated_exec(
        &self,
        exec: EscalatedExec,
    ) -> BoxFuture<'_, Result<PreparedExec, ExecutorError>> {
        Box::pin(async move {
            let command = Unconfined {
                program: &exec.file,
                argv: &exec.argv,
                workdir: &exec.workdir,
            };
            let confined = match &exec.execution {
                EscalationExecution::Unsandboxed => command.as_it_is(),
                EscalationExecution::TurnDefault => self.sandbox.confine(command, &self.home),
                EscalationExecution::Permissions(permissions) => self
                    .sandbox
                    .confine_by(command, permissions)
                    .map_err(|error| failed("confine the command")(io::Error::other(error)))?,
            };
            Ok(PreparedExec {
                program: confined.program,
                argv: confined.argv,
                workdir: exec.workdir,
                env: exec.env,
            })
        })
    }
}

impl Executor {
    async fn run_shell(
        &self,
        command: ShellCommand,
        cancelled: CancellationToken,
    ) -> Result<ShellOutput, ExecutorError> {
        let program = command.argv.first().cloned().unwrap_or_default();
        let starting = format!("start {}", program.display());
        let (supervisor, capture) = self
            .start(&command, Path::new(&program))
            .map_err(failed(starting.clone()))?;
        (command.after_spawn)();
        let supervisor =
            readiness::watch(supervisor, Interest::READABLE).map_err(failed(starting))?;
        let shell = self.follow(supervisor, cancelled);
        let Some((stdout, stderr)) = capture else {
            return Ok(ShellOutput {
                outcome: shell.await?,
                stdout: vec![],
                stderr: vec![],
                output: vec![],
            });
        };
        let mut captured = Captured::default();
        let (outcome, read) = tokio::join!(shell, captured.read(stdout, stderr));
        read.map_err(failed("read the shell's output"))?;
        Ok(ShellOutput {
            outcome: outcome?,
            stdout: captured.stdout,
            stderr: captured.stderr,
            output: captured.output,
        })
    }

    fn start(
        &self,
        command: &ShellCommand,
        program: &Path,
    ) -> io::Result<(Supervisor, Option<(OwnedFd, OwnedFd)>)> {
        let confined = self.sandbox.confine(
            Unconfined {
                program,
                argv: &command.argv,
                workdir: &command.workdir,
            },
            &self.home,
        );
        let mut descriptors = self.startup.descriptors()?;
        let capture = match self.streams {
            Streams::Pass => None,
            Streams::Capture => {
                let (stdout, shells_stdout) = io::pipe()?;
                let (stderr, shells_stderr) = io::pipe()?;
                descriptors.retain(|(_, number)| *number != 1 && *number != 2);
                descriptors.push((shells_stdout.into(), 1));
                descriptors.push((shells_stderr.into(), 2));
                Some((stdout.into(), stderr.into()))
            }
        };
        if let Some(number) = command
            .env_overlay
            .get(OsStr::new(SOCKET_VARIABLE))
            .and_then(|value| value.to_str()?.parse().ok())
        {
            let client = descriptor::inherited(number)?;
            descriptors.push((client.as_fd().try_clone_to_owned()?, number));
        }
        let supervisor = Supervisor::start(Command {
            program: c_string(confined.program.into_os_string())?,
            argv: confined
                .argv
                .into_iter()
                .map(c_string)
                .collect::<Result<_, _>>()?,
            env: self
                .environment(command)
                .0
                .into_iter()
                .map(c_string)
                .collect::<Result<_, _>>()?,
            directory: Directory::Named(c_string(command.workdir.clone().into_os_string())?),
            descriptors,
            // The gate's own: a terminal's job that the gate is in stays one job.
            group: ProcessGroup::Of(process::own_pid()),
            context: self.startup.context(),
            is_script: false,
        })?;
        Ok((supervisor, capture))
    }

    /// The gate's environment with the session's over it. What is replaced keeps its place.
    fn environment(&self, command: &ShellCommand) -> Environment {
        let mut overlay = command.env_overlay.clone();
        if let Some(shells) = &self.shells {
            overlay.insert("PATH".into(), self.path(shells));
        }
        let mut entries = Vec::new();
        for entry in &self.startup.environment {
            let bytes = entry.as_bytes();
            let name = bytes.split(|byte| *byte == b'=').next().unwrap_or(bytes);
            match overlay.remove(OsStr::from_bytes(name)) {
                Some(value) => entries.push(named(OsStr::from_bytes(name), &value)),
                None => entries.push(entry.clone()),
            }
        }
        entries.extend(overlay.iter().map(|(name, value)| named(name, value)));
        Environment(entries)
    }

    /// The gate's `PATH` with the patched shells before all else.
    fn path(&self, shells: &Path) -> OsString {
        let mut path = OsString::from(shells);
        let inherited = self
            .startup
            .environment
            .iter()
            .find_map(|entry| entry.as_bytes().strip_prefix(b"PATH="));
        path.push(":");
        path.push(OsStr::from_bytes(
            inherited.unwrap_or(b"/usr/local/bin:/usr/bin:/bin"),
        ));
        path
    }

    /// Waits for the shell's end, passes on signals, and ends it when it is to be.
    async fn follow(
        &self,
        supervisor: AsyncFd<Supervisor>,
        cancelled: CancellationToken,
    ) -> Result<ExecOutcome, ExecutorError> {
        let watch = self
            .signals
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
            .take();
        let watch = watch
            .map(|watch| readiness::watch(watch, Interest::READABLE))
            .transpose()
            .map_err(failed("wait for signals"))?;
        let mut ending = false;
        let mut own_group = false;
        let outcome = loop {
            let report = tokio::select! {
                report = supervisor.async_io(Interest::READABLE, Supervisor::report) => report,
                arrived = next_signal(watch.as_ref()) => {
                    // A terminal has sent it to the shell already.
                    if !arrived.from_kernel || own_group {
                        let _ = supervisor.get_ref().signal(arrived.signal);
                    }
                    continue;
                }
                () = cancelled.cancelled(), if !ending => {
                    ending = true;
                    supervisor.get_ref().end();
                    continue;
                }
            };
            match report.map_err(failed("wait for the shell"))? {
                Some(Report::Started { own_group: own, .. }) => own_group = own,
                Some(Report::NotStarted { errno, .. }) => {
                    let error = io::Error::from_raw_os_error(errno);
                    return Err(failed("start the shell")(error));
                }
                Some(Report::Ended { end, .. }) => break end.into(),
                Some(_) => {}
                None if ending => break ExecOutcome::Signaled(libc::SIGKILL),
                None => break ExecOutcome::Unknown,
            }
        };
        // What the shell has left behind can't ask any more: it ends with the session.
        supervisor.get_ref().end();
        while let Ok(Some(_)) = supervisor
            .async_io(Interest::READABLE, Supervisor::report)
            .await
        {}
        let supervisor = supervisor.into_inner();
        let _ = tokio::task::spawn_blocking(|| supervisor.reap()).await;
        Ok(outcome)
    }
}

async fn next_signal(watch: Option<&AsyncFd<SignalWatch>>) -> crate::sys::signal::Arrived {
    let Some(watch) = watch else {
        return std::future::pending().await;
    };
    let taken = watch
        .async_io(Interest::READABLE, |watch| {
            watch
                .take()?
                .ok_or_else(|| io::Error::from(io::ErrorKind::WouldBlock))
        })
        .await;
    match taken {
        Ok(arrived) => arrived,
        Err(_) => std::future::pending().await,
    }
}

#[derive(Default)]
struct Captured {
    stdout: Vec<u8>,
    stderr: Vec<u8>,
    output: Vec<u8>,
}

impl Captured {
    async fn read(&mut self, stdout: OwnedFd, stderr: OwnedFd) -> io::Result<()> {
        let mut stdout = Some(pipe::Receiver::from_owned_fd(stdout)?);
        let mut stderr = Some(pipe::Receiver::from_owned_fd(stderr)?);
        let mut from_stdout = vec![0; 64 << 10];
        let mut from_stderr = vec![0; 64 << 10];
        while stdout.is_some() || stderr.is_some() {
            let (source, kept, read, bytes) = tokio::select! {
                read = read_some(stdout.as_mut(), &mut from_stdout) =>
                    (&mut stdout, &mut self.stdout, read?, &from_stdout),
                read = read_some(stderr.as_mut(), &mut from_stderr) =>
                    (&mut stderr, &mut self.stderr, read?, &from_stderr),
            };
            if read == 0 {
                *source = None;
            }
            for kept in [kept, &mut self.output] {
                let room = MOST_CAPTURED.saturating_sub(kept.len());
                kept.extend_from_slice(&bytes[..read.min(room)]);
            }
        }
        Ok(())
    }
}

async fn read_some(source: Option<&mut pipe::Receiver>, buffer: &mut [u8]) -> io::Result<usize> {
    match source {
        Some(source) => source.read(buffer).await,
        None => std::future::pending().await,
    }
}

fn named(name: &OsStr, value: &OsStr) -> OsString {
    let mut entry = name.to_owned();
    entry.push("=");
    entry.push(value);
    entry
}

fn c_string(string: OsString) -> io::Result<CString> {
    CString::new(string.into_vec()).map_err(io::Error::other)
}
