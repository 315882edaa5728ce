use std::collections::VecDeque;
use std::ffi::{CString, OsString};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::Instant;

use super::connection::{Connection, Frame, ReceiveError};
use super::executor::{EscalatedExec, PreparedExec};
use super::intercept::{Action, Input, State, step};
use super::policy::PolicyError;
use super::session::Shared;
use super::share::Held;
use super::tracker::Watching;
use crate::model::{
    DecisionCode, Enforcement, Environment, EscalationExecution, ExecOutcome, ExecUsage,
    InterceptedExec, ProcessIdentity, SessionEvent, Verdict,
};
use crate::sys::exec;
use crate::sys::limits;
use crate::sys::process::{self, Pidfd};
use crate::sys::readiness;
use crate::sys::spawn::{
    Command, Directory, InheritedContext, ProcessGroup, Report, Step, Supervisor,
};
use crate::wire::{
    self, Action as WireAction, CommandContext, EscalateRequest, EscalateResponse, Forward, Notice,
    SuperExecMessage, SuperExecResult,
};

/// How long a wrapper may take over a message that it owes, from the handshake or the answer before
/// it on.
const MESSAGE_TIME: Duration = Duration::from_secs(30);

/// How many signals for a command that is being started are kept.
const MOST_EARLY: usize = 16;

/// Exit status of a shell for a program that can't be executed.
const CANNOT_EXECUTE: i32 = 126;

/// Serves one intercepted exec from its request to its end.
pub(super) async fn serve(shared: &Arc<Shared>, connection: Connection) {
    Request::new(shared, connection).run().await;
}

/// What one intercepted exec needs beside its state.
struct Request<'a> {
    shared: &'a Arc<Shared>,
    connection: Connection,
    /// Whether the wrapper's end has been seen closed or broken.
    peer_gone: bool,
    process: ProcessIdentity,
    pidfd: Option<Pidfd>,
    began: Instant,
    exec: Option<Arc<InterceptedExec>>,
    descriptors: Vec<(OwnedFd, i32)>,
    workdir: Option<OwnedFd>,
    child: Option<Child>,
    delivered: Instant,
    /// How long the policy took to decide.
    decided_in: Duration,
    /// The program as it was asked for, which may be relative.
    asked_file: OsString,
    /// What the wrapper sent while its command was being started.
    early: VecDeque<Input>,
    /// What its message has of the session's memory.
    held: Option<Held>,
    /// The right to have a command started, which others wait for.
    turn: Option<OwnedSemaphorePermit>,
}

/// An escalated command.
struct Child {
    supervisor: AsyncFd<Supervisor>,
    program: PathBuf,
    pid: u32,
    /// When it was last stopped, in nanoseconds of the monotonic clock.
    stopped_at: Option<u64>,
}

impl<'a> Request<'a> {
    fn new(shared: &'a Arc<Shared>, connection: Connection) -> Self {
        // Taken while the process waits, so that it can't be another one's.
        let credentials = process::peer_credentials(connection.socket()).ok();
        let pidfd = credentials
            .filter(|credentials| credentials.pid != 0)
            .and_then(|credentials| Pidfd::of_peer(connection.socket(), credentials).ok());
        let process = credentials.map_or_else(ProcessIdentity::default, |credentials| {
            let parent = pidfd.as_ref().and_then(Pidfd::parent);
            ProcessIdentity {
                pid: credentials.pid,
                parent_pid: parent
                    .or_else(|| process::parent_from_proc(credentials.pid))
                    .unwrap_or(0),
                uid: credentials.uid,
                gid: credentials.gid,
            }
        });
        let began = Instant::now();
        Self {
            shared,
            connection,
            peer_gone: false,
            process,
            pidfd,
            began,
            exec: None,
            descriptors: Vec::new(),
            workdir: None,
            child: None,
            delivered: began,
            decided_in: Duration::ZERO,
            asked_file: OsString::new(),
            early: VecDeque::new(),
            held: None,
            turn: None,
        }
    }

    async fn run(mut self) {
        let mut state = State::Asking;
        loop {
            let input = self.next_input(&state).await;
            let Some(input) = input else { break };
            let (next, actions) = step(state, input);
            state = next;
            let mut pending = VecDeque::from(actions);
            while let Some(action) = pending.pop_front() {
                if let Some(input) = self.perform(action).await {
                    let (next, more) = step(state, input);
                    state = next;
                    pending.extend(more);
                }
            }
            if state == State::Over {
                break;
            }
        }
        self.linger().await;
    }

    /// Waits for what the state waits for.
    async fn next_input(&mut self, state: &State) -> Option<Input> {
        let over = self.shared.over.clone();
        match state {
            State::Asking => tokio::select! {
                biased;
                input = self.receive_request() => Some(input),
                () = over.cancelled() => Some(self.session_over()),
            },
            State::Deciding => Some(self.decide().await),
            State::Collecting(_) => tokio::select! {
                biased;
                input = self.collect_in_turn() => Some(input),
                () = over.cancelled() => Some(self.session_over()),
            },
            State::Starting { .. } => self.starting().await,
            State::Running { .. } => {
                if let Some(input) = self.early.pop_front() {
                    return Some(input);
                }
                if self.peer_gone || over.is_cancelled() {
                    // It has been told to end; nothing else counts any more.
                    return self.next_report().await;
                }
                let child = self.child.as_mut()?;
                // What the wrapper has sent is older than what its command does now: it may say that
                // the job goes on, and the command has stopped anew since.
                tokio::select! {
                    biased;
                    () = over.cancelled() => Some(self.session_over()),
                    frame = self.connection.receive() => Some(self.forwarded(frame)),
                    report = child.report() => Some(report_input(&report, child)),
                }
            }
            State::Over => None,
        }
    }

    /// Waits for the first report, and keeps what the wrapper sends meanwhile. A signal that its process
    /// group got from the terminal may have come too early for the command.
    async fn starting(&mut self) -> Option<Input> {
        while !self.peer_gone && self.early.len() < MOST_EARLY {
            let child = self.child.as_mut()?;
            let frame = tokio::select! {
                report = child.report() => return Some(report_input(&report, child)),
                frame = self.connection.receive() => frame,
            };
            match self.forwarded(frame) {
                Input::Forwarded { signal, .. } => self.early.push_back(Input::Forwarded {
                    signal,
                    from_terminal: false,
                }),
                Input::Requested => {}
                gone => return Some(gone),
            }
        }
        self.next_report().await
    }

    fn session_over(&self) -> Input {
        Input::SessionOver(self.shared.context.terminator.reason())
    }

    async fn receive_request(&mut self) -> Input {
        let frame = match receive_in_time(&mut self.connection).await {
            Ok(frame) => frame,
            Err(input @ Input::Overloaded(_)) => {
                // It is told of nevertheless, by an id alone.
                self.exec = Some(Arc::new(self.intercepted(EscalateRequest {
                    file: OsString::new(),
                    argv: Vec::new(),
                    workdir: OsString::new(),
                    env: Environment(Vec::new()),
                })));
                return input;
            }
            Err(input) => return input,
        };
        match EscalateRequest::decode(&frame.message) {
            Ok(request) => {
                self.held = frame.held;
                self.asked_file.clone_from(&request.file);
                self.exec = Some(Arc::new(self.intercepted(request)));
                Input::Requested
            }
            Err(error) => Input::Malformed(error.to_string()),
        }
    }

    fn intercepted(&self, request: EscalateRequest) -> InterceptedExec {
        let workdir = PathBuf::from(request.workdir);
        InterceptedExec {
            id: self.shared.next_exec(),
            // Joined, and no more: what its parts lead to is for the kernel to say.
            file: workdir.join(request.file),
            workdir,
            argv: request.argv,
            env: request.env,
            process: self.process,
            parent: self.shared.tracker.ancestor(&self.process),
            asked_at: SystemTime::now(),
        }
    }

    /// Waits for the verdict, and meanwhile for the asker or the session to go.
    async fn decide(&mut self) -> Input {
        let Some(exec) = self.exec.clone() else {
            return Input::AskerGone;
        };
        let over = self.shared.over.clone();
        let policy = self.shared.policy.clone();
        let verdicts = self.shared.context.verdicts.clone();
        if policy.may_reuse()
            && let Some((verdict, origin)) = verdicts.find(&exec, self.pidfd.as_ref())
        {
            policy.observe(SessionEvent::ExecReused { exec, origin });
            return Input::Decided(verdict);
        }
        let asked = verdicts.age();
        let asked_at = Instant::now();
        tokio::select! {
            biased;
            () = over.cancelled() => self.session_over(),
            verdict = policy.decide(&exec) => {
                self.decided_in = asked_at.elapsed();
                let verdict = denied_on_error(verdict);
                verdicts.keep(&exec, self.pidfd.as_ref(), &verdict, asked);
                Input::Decided(verdict)
            }
            frame = self.connection.receive() => match frame {
                // A wrapper has nothing to say now.
                Ok(_) | Err(_) => Input::AskerGone,
            },
        }
    }

    /// Collects what the command is to get, when there is room for its descriptors.
    async fn collect_in_turn(&mut self) -> Input {
        if self.turn.is_none() {
            self.turn = self.shared.starting.clone().acquire_owned().await.ok();
        }
        self.collect().await
    }

    async fn collect(&mut self) -> Input {
        let frame = match receive_in_time(&mut self.connection).await {
            Ok(frame) => frame,
            Err(input) => return input,
        };
        let message: SuperExecMessage = match wire::decode("SuperExecMessage", &frame.message) {
            Ok(message) => message,
            Err(error) => return Input::Malformed(error.to_string()),
        };
        if message.fds.len() != frame.descriptors.len() {
            return Input::Malformed(format!(
                "{} descriptors are declared, and {} came",
                message.fds.len(),
                frame.descriptors.len()
            ));
        }
        self.descriptors = frame.descriptors.into_iter().zip(message.fds).collect();
        let context = message.context.unwrap_or_default();
        if context.workdir_follows {
            let frame = match receive_in_time(&mut self.connection).await {
                Ok(frame) => frame,
                Err(input) => return input,
            };
            self.workdir = frame.descriptors.into_iter().next();
        }
        Input::Collected(Box::new(context))
    }

    fn forwarded(&mut self, frame: Result<Frame, ReceiveError>) -> Input {
        let frame = match frame {
            Ok(frame) => frame,
            Err(error) => {
                self.peer_gone = true;
                return match error {
                    ReceiveError::Closed => Input::AskerGone,
                    ReceiveError::NoRoom | ReceiveError::Malformed(_) => {
                        Input::Malformed(error.to_string())
                    }
                };
            }
        };
        match wire::decode::<Forward>("Forward", &frame.message) {
            Ok(forward) => match forward.signal {
                Some(signal) => Input::Forwarded {
                    signal,
                    from_terminal: forward.from_terminal == Some(true),
                },
                // A later version's: it means nothing here.
                None => Input::Requested,
            },
            Err(error) => {
                self.peer_gone = true;
                Input::Malformed(error.to_string())
            }
        }
    }

    async fn next_report(&mut self) -> Option<Input> {
        let child = self.child.as_mut()?;
        let report = child.report().await;
        Some(report_input(&report, child))
    }

    /// Does one thing. Returns what has come of it, where that is news.
    async fn perform(&mut self, action: Action) -> Option<Input> {
        match action {
            Action::Decide => {}
            Action::Respond(action, verdict) => return self.respond(action, verdict).await,
            Action::Refuse(reason) => {
                let reason = Some(reason);
                let _ = self.send_response(WireAction::Deny { reason }).await;
            }
            Action::Start(execution, context) => {
                if let Err((exit_code, reason)) = self.start(execution, *context).await {
                    return Some(Input::NotStarted { exit_code, reason });
                }
            }
            Action::Signal(signal) => {
                if let Some(child) = &self.child
                    && is_forwardable(signal)
                {
                    let _ = child.supervisor.get_ref().signal(signal);
                }
            }
            Action::Kill => {
                self.peer_gone = true;
                if let Some(child) = &self.child {
                    child.supervisor.get_ref().end();
                }
            }
            Action::Notify(stopped) => {
                let notice = Notice {
                    stopped,
                    at: self.child.as_ref().and_then(|child| child.stopped_at),
                };
                let _ = self.connection.send(&notice).await;
            }
            Action::Reply(exit_code, signal, failure) => {
                let result = SuperExecResult {
                    exit_code,
                    signal,
                    failure,
                };
                let _ = self.connection.send(&result).await;
            }
            Action::Withdraw(reason) => {
                if let Some(exec) = &self.exec {
                    self.shared.policy.observe(SessionEvent::ExecWithdrawn {
                        exec: exec.id,
                        reason,
                        at: SystemTime::now(),
                    });
                }
            }
            Action::Finish(outcome, usage) => self.finish(outcome, usage),
        }
        None
    }

    async fn send_response(&self, action: WireAction) -> io::Result<()> {
        let notices = (action == WireAction::Escalate).then_some(true);
        self.connection
            .send(&EscalateResponse { action, notices })
            .await
    }

    /// Answers the wrapper; a verdict counts as acted on once the answer is out.
    async fn respond(&mut self, action: WireAction, verdict: Verdict) -> Option<Input> {
        let exec = self.exec.clone()?;
        let runs = action == WireAction::Run;
        let begun = (runs && self.pidfd.is_some())
            .then(|| self.shared.tracker.begin(self.process.pid, exec.id));
        let sent = self.send_response(action).await;
        self.delivered = Instant::now();
        if sent.is_err() {
            if let Some(begun) = begun {
                self.shared.tracker.undo(begun);
            }
            self.shared.policy.observe(SessionEvent::ExecWithdrawn {
                exec: exec.id,
                reason: crate::model::WithdrawalReason::AskerGone,
                at: SystemTime::now(),
            });
            self.exec = None;
            return Some(Input::AskerGone);
        }
        self.shared.count(&verdict.decision);
        tracing::debug!(
            session = %self.shared.context.description.id,
            exec = %exec.id,
            code = verdict.code.as_str(),
            rule = verdict.rule,
            waited = ?(self.delivered - self.began),
            verdict = verdict.decision.as_str(),
            "acted on an exec"
        );
        self.shared.policy.observe(SessionEvent::ExecDecided {
            exec: exec.id,
            verdict,
            waited: self.delivered - self.began,
            decided_in: self.decided_in,
            at: SystemTime::now(),
        });
        if let (Some(begun), Some(pidfd)) = (begun, self.pidfd.take())
            && self.shared.tracker.confirm(&begun, exec.id) == Watching::ToBegin
        {
            let shared = self.shared.clone();
            let pid = self.process.pid;
            self.shared.tasks.spawn(async move {
                let over = shared.over.clone();
                shared.tracker.watch(pid, pidfd, over).await;
            });
        }
        None
    }

    /// Starts the escalated command; the first report says whether that has worked. On failure: the
    /// shell's status, and the reason.
    async fn start(
        &mut self,
        execution: EscalationExecution,
        context: CommandContext,
    ) -> Result<(), (i32, String)> {
        let failure = |reason: String| (CANNOT_EXECUTE, format!("execgate: {reason}"));
        let exec = self
            .exec
            .clone()
            .ok_or_else(|| failure("nothing was asked".to_owned()))?;
        let escalated = EscalatedExec {
            file: exec.file.clone(),
            argv: exec.argv.clone(),
            workdir: exec.workdir.clone(),
            env: exec.env.clone(),
            execution,
        };
        let prepared = tokio::select! {
            prepared = self.shared.executor.prepare_escalated_exec(escalated) => prepared,
            () = self.shared.over.cancelled() => return Err(failure("the session has ended".to_owned())),
        };
        let prepared = prepared.map_err(|error| failure(error.to_string()))?;
        let (directory, relative) = self.directory(&exec, &prepared)?;
        let program = prepared.program.clone();
        // As it was asked for, where it leads to the same: the kernel tells a script its name.
        let executed = if relative == Relative::Same && prepared.program == exec.file {
            self.asked_file.clone()
        } else {
            prepared.program.into_os_string()
        };
        let command = Command {
            program: c_string(executed)?,
            argv: c_strings(prepared.argv)?,
            env: c_strings(prepared.env.0)?,
            directory,
            descriptors: std::mem::take(&mut self.descriptors),
            group: ProcessGroup::Of(self.process.pid),
            is_script: exec::is_script_without_interpreter(&program),
            context: inherited(context, self.shared.context.description.sandbox.enforcement),
        };
        let turn = self.turn.take();
        let start = move || {
            let started = Supervisor::start(command);
            drop(turn);
            started
        };
        let supervisor = tokio::task::spawn_blocking(start)
            .await
            .map_err(|error| failure(error.to_string()))?
            .map_err(|error| failure(format!("cannot start the command: {error}")))?;
        let supervisor = readiness::watch(supervisor, Interest::READABLE)
            .map_err(|error| failure(format!("cannot watch the command: {error}")))?;
        self.child = Some(Child {
            supervisor,
            program,
            pid: 0,
            stopped_at: None,
        });
        Ok(())
    }

    /// Where the command runs: at the name that was judged. Where nothing has that name, because the
    /// directory has been deleted, by the wrapper's descriptor, if the kernel says that it is the very
    /// directory of that name. Never by the descriptor otherwise: it is a place in the sandbox's mounts.
    fn directory(
        &mut self,
        exec: &InterceptedExec,
        prepared: &PreparedExec,
    ) -> Result<(Directory, Relative), (i32, String)> {
        let same = prepared.workdir == exec.workdir;
        if let Some(open) = self.workdir.take()
            && same
            && exec.workdir.as_os_str().as_bytes().ends_with(DELETED)
            && !exec.workdir.exists()
            && name_of(&open).is_some_and(|name| name == exec.workdir)
        {
            return Ok((Directory::Open(open), Relative::Other));
        }
        let named = c_string(prepared.workdir.clone().into_os_string())?;
        let relative = if same {
            Relative::Same
        } else {
            Relative::Other
        };
        Ok((Directory::Named(named), relative))
    }

    fn finish(&self, outcome: ExecOutcome, usage: Option<ExecUsage>) {
        if let Some(exec) = &self.exec {
            self.shared.policy.observe(SessionEvent::ExecFinished {
                exec: exec.id,
                outcome,
                elapsed: self.delivered.elapsed(),
                usage,
                pid: self.child.as_ref().map_or(0, |child| child.pid),
                at: SystemTime::now(),
            });
        }
    }

    /// Keeps what an ended command has left behind for as long as the session lasts.
    async fn linger(self) {
        let Self {
            shared,
            connection,
            child,
            descriptors,
            workdir,
            ..
        } = self;
        drop((connection, descriptors, workdir));
        let Some(mut child) = child else { return };
        let over = shared.over.clone();
        tokio::select! {
            () = child.gone() => {}
            () = over.cancelled() => {
                child.supervisor.get_ref().end();
                child.gone().await;
            }
        }
        let supervisor = child.supervisor.into_inner();
        // The process is ending, or has ended: a moment at most.
        let _ = tokio::task::spawn_blocking(|| supervisor.reap()).await;
    }
}

impl Child {
    /// The supervisor's next report, or its end. May be cancelled: nothing is lost.
    async fn report(&mut self) -> io::Result<Option<Report>> {
        match self.supervisor.get_ref().report() {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                self.supervisor
                    .async_io(Interest::READABLE, Supervisor::report)
                    .await
            }
            other => other,
        }
    }

    /// Waits until the supervisor has gone.
    async fn gone(&mut self) {
        while let Ok(Some(report)) = self.report().await {
            if let Report::LeftBehind { count } = report {
                note_left_behind(count, &self.program);
            }
        }
    }
}

fn note_left_behind(count: u32, program: &Path) {
    tracing::warn!(
        count,
        program = %program.display(),
        "processes of an escalated command are left: they are another user's, and not the gate's to end"
    );
}

async fn receive_in_time(connection: &mut Connection) -> Result<Frame, Input> {
    match tokio::time::timeout(MESSAGE_TIME, connection.receive()).await {
        Ok(Ok(frame)) => Ok(frame),
        Ok(Err(ReceiveError::Closed)) => Err(Input::AskerGone),
        Ok(Err(error @ ReceiveError::NoRoom)) => Err(Input::Overloaded(error.to_string())),
        Ok(Err(ReceiveError::Malformed(reason))) => Err(Input::Malformed(reason)),
        Err(_) => Err(Input::Malformed(format!(
            "no whole message within {} s",
            MESSAGE_TIME.as_secs()
        ))),
    }
}

/// The one place where a failure to decide becomes a denial.
fn denied_on_error(verdict: Result<Verdict, PolicyError>) -> Verdict {
    verdict.unwrap_or_else(|error| Verdict::denied(DecisionCode::PolicyError, error.to_string()))
}

fn report_input(report: &io::Result<Option<Report>>, child: &mut Child) -> Input {
    match *report {
        Ok(Some(Report::Started { pid, own_group })) => {
            child.pid = pid;
            Input::Started { own_group }
        }
        Ok(Some(Report::NotStarted { step, errno })) => {
            let error = io::Error::from_raw_os_error(errno);
            let attempted = match step {
                Step::Exec => return exec_failure(&child.program, &error),
                Step::Fork => "cannot make a process",
                Step::Descriptors => "cannot put the descriptors in place",
                Step::Directory => "cannot enter the working directory",
                Step::Context => "cannot set limits or signals",
            };
            Input::NotStarted {
                exit_code: CANNOT_EXECUTE,
                reason: format!("execgate: {attempted}: {error}"),
            }
        }
        Ok(Some(Report::Stopped { signal, at })) => {
            child.stopped_at = u64::try_from(at.as_nanos()).ok();
            Input::Stopped(signal)
        }
        Ok(Some(Report::Continued)) => Input::Requested,
        Ok(Some(Report::LeftBehind { count })) => {
            note_left_behind(count, &child.program);
            Input::Requested
        }
        Ok(Some(Report::Ended {
            end,
            user,
            system,
            peak_memory_bytes,
            ..
        })) => Input::Ended {
            outcome: end.into(),
            usage: Some(ExecUsage {
                user,
                system,
                peak_memory_bytes,
            }),
        },
        // The supervisor has gone before its command: somebody killed it.
        Ok(None) | Err(_) => Input::Ended {
            outcome: ExecOutcome::Unknown,
            usage: None,
        },
    }
}

/// A program that couldn't be executed, in a shell's words.
fn exec_failure(program: &Path, error: &io::Error) -> Input {
    let failure = exec::explain(program, error);
    let reason = String::from_utf8_lossy(&failure.reason);
    Input::NotStarted {
        exit_code: failure.status,
        reason: format!("{}: {reason}", program.display()),
    }
}

/// Signals that a wrapper forwards; others aren't its to send.
fn is_forwardable(signal: i32) -> bool {
    crate::sys::signal::forwarded().any(|forwarded| forwarded == signal)
}

/// As many as a kernel can have processors for: `CONFIG_NR_CPUS` ends at 8192.
const MOST_CPU_WORDS: usize = 128;

/// What a name relative to the command's directory leads to.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Relative {
    /// What it led to for the asker, and was judged as.
    Same,
    /// Perhaps something else.
    Other,
}

/// What the kernel adds to the name of a deleted directory.
const DELETED: &[u8] = b" (deleted)";

/// What the kernel calls an open directory.
fn name_of(open: &OwnedFd) -> Option<PathBuf> {
    std::fs::read_link(Path::new("/proc/self/fd").join(open.as_fd().as_raw_fd().to_string())).ok()
}

/// Bounds what a wrapper may say of signals and limits to what there is.
///
/// That executing a program can grant nothing is a sandbox's way to confine: where there is one, the
/// verdict has taken the command out of it.
fn inherited(context: CommandContext, sandbox: Enforcement) -> InheritedContext {
    let signals = |mut signals: Vec<i32>| {
        signals.truncate(64);
        signals
    };
    let mut limits = context.limits;
    limits.truncate(32);
    if limits.is_empty() {
        limits.extend(limits::open_files_at_start());
    }
    InheritedContext {
        umask: context.umask,
        nice: context.nice,
        limits,
        ignored_signals: signals(context.ignored_signals),
        blocked_signals: signals(context.blocked_signals),
        cpus: context.cpus.into_iter().take(MOST_CPU_WORDS).collect(),
        scheduler: context.scheduler,
        io_priority: context.io_priority,
        timer_slack: context.timer_slack,
        oom_score_adj: context.oom_score_adj,
        core_dump_filter: context.core_dump_filter,
        personality: context.personality,
        no_new_privileges: context.no_new_privileges && sandbox == Enforcement::None,
    }
}

fn c_string(string: std::ffi::OsString) -> Result<CString, (i32, String)> {
    CString::new(string.into_vec()).map_err(|error| {
        let shown = String::from_utf8_lossy(&error.into_vec()).into_owned();
        (CANNOT_EXECUTE, format!("execgate: a NUL byte in {shown:?}"))
    })
}

fn c_strings(strings: Vec<std::ffi::OsString>) -> Result<Vec<CString>, (i32, String)> {
    strings.into_iter().map(c_string).collect()
}
