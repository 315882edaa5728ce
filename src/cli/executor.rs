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

use super::Failure;
use super::startup::Startup;
use crate::model::{Environment, EscalationExecution, ExecOutcome};
use crate::sandbox::{Entered, Sandbox, Unconfined};
use crate::server::{
    BoxFuture, EscalatedExec, ExecutorError, PreparedExec, ShellCommand, ShellCommandExecutor,
    ShellOutput, WritablePlaces,
};
use crate::sys::signal::SignalWatch;
use crate::sys::spawn::{Command, Directory, ProcessGroup, Report, Step, Supervisor};
use crate::sys::{entry, process, readiness};
use crate::wire::SOCKET_VARIABLE;

/// The most of each stream that is captured, in bytes, and of both together. What is more is read
/// and dropped, and the result says so.
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
    pub(super) sandbox: Arc<Sandbox>,
    pub(super) streams: Streams,
    pub(super) startup: Arc<Startup>,
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
        let sandbox = self.sandbox.clone();
        Box::pin(async move {
            if let EscalationExecution::Permissions(_) = exec.execution {
                // Rules of its own are to be made, by looking at directories: the gate's thread goes on.
                let prepare = move || prepare(&sandbox, exec);
                let prepared = tokio::task::spawn_blocking(prepare).await;
                return prepared
                    .map_err(|error| failed("confine the command")(io::Error::other(error)))?;
            }
            prepare(&sandbox, exec)
        })
    }

    fn writable_places(&self) -> WritablePlaces {
        match self.sandbox.writable() {
            None => WritablePlaces::Everywhere,
            Some(places) => WritablePlaces::Only(places),
        }
    }
}

/// Puts an escalated command into the confinement that its verdict says.
fn prepare(sandbox: &Sandbox, exec: EscalatedExec) -> Result<PreparedExec, ExecutorError> {
    let command = Unconfined {
        program: &exec.file,
        argv: &exec.argv,
        workdir: &exec.workdir,
        directory: Entered::Exactly,
    };
    let confined = match &exec.execution {
        EscalationExecution::Unsandboxed => sandbox.release(command),
        EscalationExecution::TurnDefault => sandbox.confine(command),
        EscalationExecution::Permissions(permissions) => sandbox.confine_by(command, permissions),
    };
    let confined = confined.map_err(|error| {
        failed("confine the command")(io::Error::other(Failure::new(&error).message))
    })?;
    Ok(PreparedExec {
        program: confined.program,
        argv: confined.argv,
        workdir: exec.workdir,
        env: exec.env,
        confinement: confined.confinement,
        told_descriptors: confined.descriptors,
        told_signals: confined.told_signals,
    })
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
        let shell = self.follow(supervisor, cancelled, command.after_end, &command.workdir);
        let Some((stdout, stderr)) = capture else {
            return Ok(ShellOutput {
                outcome: shell.await?,
                stdout: vec![],
                stderr: vec![],
                output: vec![],
                truncated: false,
            });
        };
        let reading = "read the shell's output";
        let mut capture = Capture::new(stdout, stderr).map_err(failed(reading))?;
        tokio::pin!(shell);
        let outcome = tokio::select! {
            outcome = &mut shell => {
                // An escalated command may have left something behind that holds the pipes open, and
                // goes on until the session ends. What the shell wrote is in them by now.
                capture.read_rest().map_err(failed(reading))?;
                outcome?
            }
            read = capture.read() => {
                read.map_err(failed(reading))?;
                shell.await?
            }
        };
        Ok(ShellOutput {
            outcome,
            truncated: capture.truncated,
            stdout: capture.stdout.kept,
            stderr: capture.stderr.kept,
            output: capture.output,
        })
    }

    fn start(
        &self,
        command: &ShellCommand,
        program: &Path,
    ) -> io::Result<(Supervisor, Option<(OwnedFd, OwnedFd)>)> {
        let confined = self
            .sandbox
            .confine(Unconfined {
                program,
                argv: &command.argv,
                workdir: &command.workdir,
                directory: Entered::ByName,
            })
            .map_err(io::Error::other)?;
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
            let client = entry::inherited(number)?;
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
            closed_by_exec: Vec::new(),
            confinement: confined.confinement,
            told_descriptors: confined.descriptors,
            told_signals: confined.told_signals,
        })?;
        Ok((supervisor, capture))
    }

    /// The gate's environment with the session's over it. What is replaced keeps its place.
    fn environment(&self, command: &ShellCommand) -> Environment {
        let mut overlay = command.env_overlay.clone();
        if let Some(shells) = &self.shells {
            overlay.insert("PATH".into(), self.path(shells));
        }
        if let Some(temporary) = self.sandbox.temporary() {
            overlay.insert("TMPDIR".into(), temporary.into());
            // zsh has a name of its own for the files of its here-documents.
            overlay.insert("TMPPREFIX".into(), temporary.join("zsh").into());
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
        after_end: Box<dyn FnOnce(ExecOutcome) + Send>,
        workdir: &Path,
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
                Some(Report::NotStarted { step, errno }) => {
                    let error = io::Error::from_raw_os_error(errno);
                    let attempted = match step {
                        Step::Confinement => "confine the shell".to_owned(),
                        Step::Directory => {
                            format!("enter the working directory {}", workdir.display())
                        }
                        _ => "start the shell".to_owned(),
                    };
                    return Err(failed(attempted)(error));
                }
                Some(Report::Ended { end, .. }) => break end.into(),
                Some(report) => note_left_behind(report),
                None if ending => break ExecOutcome::Signaled(libc::SIGKILL),
                None => break ExecOutcome::Unknown,
            }
        };
        // What the shell has left behind can't ask any more: it ends with the session.
        after_end(outcome.clone());
        supervisor.get_ref().end();
        while let Ok(Some(report)) = supervisor
            .async_io(Interest::READABLE, Supervisor::report)
            .await
        {
            note_left_behind(report);
        }
        let supervisor = supervisor.into_inner();
        let _ = tokio::task::spawn_blocking(|| supervisor.reap()).await;
        Ok(outcome)
    }
}

fn note_left_behind(report: Report) {
    if let Report::LeftBehind { count } = report {
        tracing::warn!(
            count,
            "processes of the session's shell are left: they are another user's, and not the gate's to end"
        );
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

/// A shell's output, as it is read.
struct Capture {
    stdout: Captured,
    stderr: Captured,
    output: Vec<u8>,
    /// Whether some of it was dropped.
    truncated: bool,
}

/// One stream of it.
struct Captured {
    /// `None` after its end.
    source: Option<pipe::Receiver>,
    buffer: Vec<u8>,
    kept: Vec<u8>,
}

/// Whether a capture had room for what was read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kept {
    Whole,
    Partly,
}

impl Capture {
    fn new(stdout: OwnedFd, stderr: OwnedFd) -> io::Result<Self> {
        Ok(Self {
            stdout: Captured::new(stdout)?,
            stderr: Captured::new(stderr)?,
            output: Vec::new(),
            truncated: false,
        })
    }

    /// Reads to the end of both. Loses nothing when it is dropped half-way.
    async fn read(&mut self) -> io::Result<()> {
        while self.stdout.source.is_some() || self.stderr.source.is_some() {
            let (stream, count) = tokio::select! {
                count = self.stdout.read() => (&mut self.stdout, count?),
                count = self.stderr.read() => (&mut self.stderr, count?),
            };
            self.truncated |= stream.keep(count, &mut self.output) == Kept::Partly;
        }
        Ok(())
    }

    /// Reads what is there already.
    fn read_rest(&mut self) -> io::Result<()> {
        for stream in [&mut self.stdout, &mut self.stderr] {
            while let Some(source) = &stream.source {
                match source.try_read(&mut stream.buffer) {
                    Ok(count) => {
                        self.truncated |= stream.keep(count, &mut self.output) == Kept::Partly;
                    }
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                    Err(error) => return Err(error),
                }
            }
        }
        Ok(())
    }
}

impl Captured {
    fn new(source: OwnedFd) -> io::Result<Self> {
        Ok(Self {
            source: Some(pipe::Receiver::from_owned_fd(source)?),
            buffer: vec![0; 64 << 10],
            kept: Vec::new(),
        })
    }

    async fn read(&mut self) -> io::Result<usize> {
        match &mut self.source {
            Some(source) => source.read(&mut self.buffer).await,
            None => std::future::pending().await,
        }
    }

    /// Keeps the first `count` bytes of the buffer; none are the end.
    fn keep(&mut self, count: usize, output: &mut Vec<u8>) -> Kept {
        if count == 0 {
            self.source = None;
        }
        let mut whole = Kept::Whole;
        for kept in [&mut self.kept, output] {
            let room = MOST_CAPTURED.saturating_sub(kept.len());
            kept.extend_from_slice(&self.buffer[..count.min(room)]);
            if count > room {
                whole = Kept::Partly;
            }
        }
        whole
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
