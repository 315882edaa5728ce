use std::collections::VecDeque;
use std::ffi::{CString, OsString};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::Instant;

use super::connection::{Connection, Frame, ReceiveError};
use super::environment;
use super::executor::{EscalatedExec, PreparedExec};
use super::intercept::{Action, Input, State, step};
use super::policy::PolicyError;
use super::session::Shared;
use super::share::Held;
use super::tracker::Watching;
use crate::model::{
    DecisionCode, Enforcement, Environment, EnvironmentDifference, EscalationDecision,
    EscalationExecution, ExecId, ExecOutcome, ExecUsage, Executable, ExecutableContent,
    InterceptedExec, ProcessIdentity, Protection, SessionEvent, Unprotected, Verdict,
};
use crate::program::{self, Execution};
use crate::sys::descriptor;
use crate::sys::exec;
use crate::sys::limits;
use crate::sys::place::{self, Place};
use crate::sys::process::{self, Pidfd};
use crate::sys::readiness;
use crate::sys::socket::MAX_DESCRIPTORS;
use crate::sys::spawn::{
    Command, Directory, InheritedContext, NOT_EXACTLY, ProcessGroup, Report, Step, Supervisor,
};
use crate::wire::{
    self, Action as WireAction, CommandContext, EscalateRequest, EscalateResponse, Forward, Notice,
    Refusal, SuperExecMessage, SuperExecResult, WaitNotice,
};

/// How long a wrapper may take over a message that it owes, from the handshake or the answer before
/// it on.
const MESSAGE_TIME: Duration = Duration::from_secs(30);

/// How long an exec waits before its user is told that a person is asked, and between looks at that.
const BEFORE_NOTICE: Duration = Duration::from_secs(2);
const BETWEEN_LOOKS: Duration = Duration::from_secs(1);

/// How many signals for a command that is being started are kept.
const MOST_EARLY: usize = 16;

/// The lowest number that a copy of a program gets: out of the way of scripts and shells.
const LOWEST_COPY: i32 = 60;

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
    /// Whether a message to the wrapper couldn't be sent, or not whole.
    deaf: bool,
    process: ProcessIdentity,
    pidfd: Option<Pidfd>,
    began: Instant,
    /// What is asked, until its command is started: it may be long.
    exec: Option<Arc<InterceptedExec>>,
    /// Of what is told to the policy.
    id: Option<ExecId>,
    descriptors: Vec<(OwnedFd, i32)>,
    workdir: Option<OwnedFd>,
    child: Option<Child>,
    delivered: Instant,
    /// How long the policy took to decide.
    decided_in: Duration,
    /// The program as it was asked for, which may be relative.
    asked_file: OsString,
    /// Whether the wrapper reads a notice before the answer.
    notices: bool,
    /// What the session can write of the program, held open until the verdict.
    places: Vec<Place>,
    /// What is executed, once a verdict has escalated it.
    escalation: Option<Escalation>,
    /// Why nothing could be executed, where no command was started.
    refusal: Option<Refusal>,
    /// What the wrapper sent while its command was being started.
    early: VecDeque<Input>,
    /// What its message has of the session's memory.
    held: Option<Held>,
    /// The right to have a command started, which others wait for.
    turn: Option<OwnedSemaphorePermit>,
    /// Which of the command's descriptors are directories that the session can write.
    writable_directories: Vec<i32>,
    /// The right to the memory that copies of its program take.
    copies: Option<OwnedSemaphorePermit>,
}

/// What is executed for an exec that is escalated.
struct Escalation {
    execution: Execution,
    env: Environment,
    difference: EnvironmentDifference,
    /// The right to the memory that copies of the program take.
    copies: Option<OwnedSemaphorePermit>,
}

/// An escalated command.
struct Child {
    supervisor: AsyncFd<Supervisor>,
    program: PathBuf,
    /// Whether that is the program that was asked about, and not one that is to run it.
    program_was_asked: bool,
    /// Where it runs.
    workdir: PathBuf,
    /// Why it couldn't be executed.
    refusal: Option<Refusal>,
    /// Whether it left a core dump.
    core_dumped: bool,
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
            deaf: false,
            process,
            pidfd,
            began,
            exec: None,
            id: None,
            descriptors: Vec::new(),
            workdir: None,
            child: None,
            delivered: began,
            decided_in: Duration::ZERO,
            asked_file: OsString::new(),
            notices: false,
            places: Vec::new(),
            escalation: None,
            refusal: None,
            early: VecDeque::new(),
            held: None,
            turn: None,
            copies: None,
            writable_directories: Vec::new(),
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
            State::Deciding => Some(match self.decide().await {
                Input::Decided(verdict) => Input::Decided(self.permitted(verdict).await),
                other => other,
            }),
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
                if self.peer_gone {
                    // It has been told to end; nothing else counts any more. A session may have ended
                    // while its command was being started, and then it hasn't been told yet.
                    return self.next_report().await;
                }
                let child = self.child.as_mut()?;
                // What the wrapper has sent is older than what its command does now: it may say that
                // the job goes on, and the command has stopped anew since.
                tokio::select! {
                    biased;
                    () = over.cancelled() => Some(self.session_over()),
                    frame = self.connection.receive(0) => Some(self.forwarded(frame)),
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
                frame = self.connection.receive(0) => frame,
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
        let frame = match receive_in_time(&mut self.connection, 0).await {
            Ok(frame) => frame,
            Err(input @ Input::Overloaded(_)) => {
                // It is told of nevertheless, by an id alone.
                let mut exec = self.intercepted(EscalateRequest {
                    file: OsString::new(),
                    argv: Vec::new(),
                    workdir: OsString::new(),
                    env: Environment(Vec::new()),
                    notices: false,
                });
                exec.id = self.shared.next_exec();
                self.id = Some(exec.id);
                self.exec = Some(Arc::new(exec));
                return input;
            }
            Err(input) => return input,
        };
        match EscalateRequest::decode(&frame.message) {
            Ok(request) => {
                self.held = frame.held;
                self.asked_file.clone_from(&request.file);
                self.notices = request.notices;
                let mut exec = self.intercepted(request);
                let wanted = self.shared.policy.wanted_digest();
                let examiner = &self.shared.examiner;
                let found = examiner
                    .examine(&exec.file, &exec.workdir, &exec.process, wanted)
                    .await;
                exec.executable = found.executable;
                exec.workdir_protection = found.workdir;
                self.places = found.places;
                exec.id = self.shared.next_exec();
                self.id = Some(exec.id);
                self.exec = Some(Arc::new(exec));
                Input::Requested
            }
            Err(error) => Input::Malformed(error.to_string()),
        }
    }

    fn intercepted(&self, request: EscalateRequest) -> InterceptedExec {
        let workdir = PathBuf::from(request.workdir);
        InterceptedExec {
            // Given when it is asked about: ids ascend in that order.
            id: ExecId(0),
            // Joined, and no more: what its parts lead to is for the kernel to say.
            file: workdir.join(request.file),
            workdir,
            argv: request.argv,
            env: request.env,
            process: self.process,
            parent: self.shared.tracker.ancestor(&self.process),
            asked_at: SystemTime::now(),
            executable: Executable::default(),
            workdir_protection: None,
        }
    }

    /// The verdict, if it can be followed for the program that was judged; else a denial.
    async fn permitted(&mut self, verdict: Verdict) -> Verdict {
        let places = std::mem::take(&mut self.places);
        let (EscalationDecision::Escalate(_), Some(exec)) = (&verdict.decision, self.exec.clone())
        else {
            return verdict;
        };
        let over = self.shared.over.clone();
        let escalation = tokio::select! {
            escalation = self.shared.escalation(&exec, &verdict, places) => escalation,
            () = over.cancelled() => {
                let reason = "the session has ended".to_owned();
                Err((DecisionCode::SessionEnded, reason))
            }
        };
        match escalation {
            Ok(escalation) => {
                self.escalation = Some(escalation);
                verdict
            }
            Err((code, reason)) => Verdict {
                decision: EscalationDecision::Deny {
                    reason: Some(reason),
                },
                code,
                ..verdict
            },
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
        let mut deciding = policy.decide(&exec);
        let mut notice = pin!(tokio::time::sleep(BEFORE_NOTICE));
        let mut is_to_be_told = self.notices;
        loop {
            tokio::select! {
                biased;
                () = over.cancelled() => return tokio::select! {
                    biased;
                    // It went before the session did.
                    _ = self.connection.receive(0) => Input::AskerGone,
                    () = std::future::ready(()) => self.session_over(),
                },
                verdict = &mut deciding => {
                    self.decided_in = asked_at.elapsed();
                    let verdict = denied_on_error(verdict);
                    verdicts.keep(&exec, self.pidfd.as_ref(), &verdict, asked);
                    return Input::Decided(verdict);
                }
                frame = self.connection.receive(0) => match frame {
                    // A wrapper has nothing to say now.
                    Ok(_) | Err(_) => return Input::AskerGone,
                },
                () = notice.as_mut(), if is_to_be_told => match policy.person_asked(exec.id) {
                    Some(waiting) => {
                        is_to_be_told = false;
                        // The wrapper has read nothing yet, so there is room; else it learns less.
                        let _ = self.connection.send(&WaitNotice { waiting }).await;
                    }
                    None => notice.as_mut().reset(Instant::now() + BETWEEN_LOOKS),
                },
            }
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
        let frame = match receive_in_time(&mut self.connection, MAX_DESCRIPTORS).await {
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
            let frame = match receive_in_time(&mut self.connection, 1).await {
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
                if self.send(&notice).await.is_err() {
                    return Some(Input::AskerGone);
                }
            }
            Action::Reply(exit_code, signal, failure) => {
                let result = SuperExecResult {
                    exit_code,
                    signal,
                    core_dumped: self.child.as_ref().is_some_and(|child| child.core_dumped),
                    failure,
                    refusal: match self.child.as_mut() {
                        Some(child) => child.refusal.take(),
                        None => self.refusal.take(),
                    },
                };
                let _ = self.send(&result).await;
            }
            Action::Withdraw(reason) => {
                if let Some(exec) = self.id {
                    self.shared.policy.observe(SessionEvent::ExecWithdrawn {
                        exec,
                        reason,
                        at: SystemTime::now(),
                    });
                }
            }
            Action::Finish(outcome, usage) => self.finish(outcome, usage),
        }
        None
    }

    async fn send_response(&mut self, action: WireAction) -> io::Result<()> {
        let notices = (action == WireAction::Escalate).then_some(true);
        self.send(&EscalateResponse { action, notices }).await
    }

    /// Sends the wrapper a message. Waits for one that doesn't read no longer than for one that doesn't
    /// write, and not at all once the session is over; after that it gets no other.
    async fn send(&mut self, message: &impl serde::Serialize) -> io::Result<()> {
        if self.deaf {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        let sent = tokio::select! {
            biased;
            sent = self.connection.send(message) => sent,
            () = self.shared.over.cancelled() => Err(io::ErrorKind::TimedOut.into()),
            () = tokio::time::sleep(MESSAGE_TIME) => Err(io::ErrorKind::TimedOut.into()),
        };
        self.deaf = sent.is_err();
        sent
    }

    /// Answers the wrapper. The policy is told before: whatever happens to this process then, nothing has run
    /// that no record tells of.
    async fn respond(&mut self, action: WireAction, verdict: Verdict) -> Option<Input> {
        let exec = self.exec.clone()?;
        let runs = action == WireAction::Run;
        let begun = (runs && self.pidfd.is_some())
            .then(|| self.shared.tracker.begin(self.process.pid, exec.id));
        self.shared.count(&verdict.decision);
        let escalation = self.escalation.as_ref();
        let (code, rule) = (verdict.code, verdict.rule.clone());
        let decision = verdict.decision.as_str();
        let decided = SessionEvent::ExecDecided {
            exec: exec.id,
            verdict,
            environment: escalation.map(|escalation| Box::new(escalation.difference.clone())),
            waited: self.began.elapsed(),
            decided_in: self.decided_in,
            at: SystemTime::now(),
        };
        self.shared.policy.observe(decided);
        let sent = self.send_response(action).await;
        self.delivered = Instant::now();
        if sent.is_err() {
            if let Some(begun) = begun {
                self.shared.tracker.undo(begun);
            }
            if runs {
                let reason = "the asking process went away".to_owned();
                self.finish(ExecOutcome::NotStarted(reason), None);
            }
            return Some(Input::AskerGone);
        }
        tracing::debug!(
            session = %self.shared.context.description.id,
            exec = %exec.id,
            code = code.as_str(),
            rule,
            waited = ?(self.delivered - self.began),
            verdict = decision,
            "acted on an exec"
        );
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
            .take()
            .ok_or_else(|| failure("nothing was asked".to_owned()))?;
        let nothing = || failure("nothing was escalated".to_owned());
        let escalation = self.escalation.take().ok_or_else(nothing)?;
        self.copies = escalation.copies;
        let (file, argv, copies) = match escalation.execution {
            Execution::NotThere => {
                self.refusal = Some(refusal(&exec.file, &exec::not_there()));
                return Err(not_executed(&exec.file, &exec::not_there()));
            }
            Execution::ByName => (exec.file.clone(), exec.argv.clone(), Vec::new()),
            Execution::ByDescriptor(parts) => {
                let taken: Vec<_> = self.descriptors.iter().map(|(_, to)| *to).collect();
                let free = (LOWEST_COPY..).filter(|number| !taken.contains(number));
                parts.command(exec.argv.clone(), free)
            }
        };
        self.check_descriptors()?;
        let directories = open_directories(&self.descriptors);
        if !directories.is_empty() {
            let examiner = &self.shared.examiner;
            self.writable_directories = examiner.writable(directories, &exec.process).await;
        }
        let escalated = EscalatedExec {
            file: file.clone(),
            argv,
            workdir: exec.workdir.clone(),
            env: escalation.env,
            execution,
        };
        let prepared = tokio::select! {
            prepared = self.shared.executor.prepare_escalated_exec(escalated) => prepared,
            () = self.shared.over.cancelled() => return Err(failure("the session has ended".to_owned())),
        };
        let prepared = prepared.map_err(|error| failure(error.to_string()))?;
        let (directory, relative) = self.directory(&exec, &prepared)?;
        let is_itself = prepared.program == file;
        // What people read is the program's name, not a descriptor's.
        let program = if is_itself {
            exec.file.clone()
        } else {
            prepared.program.clone()
        };
        let by_name = prepared.program == exec.file;
        let workdir = prepared.workdir;
        // As it was asked for, where it leads to the same: the kernel tells a script its name.
        let executed = if relative == Relative::Same && by_name {
            self.asked_file.clone()
        } else {
            prepared.program.into_os_string()
        };
        // A script has to find itself; a program that is executed needs its own no more.
        let closed_by_exec = copies
            .iter()
            .map(|(_, number)| *number)
            .filter(|number| is_itself && file == descriptor_path(*number))
            .collect();
        let mut descriptors = std::mem::take(&mut self.descriptors);
        descriptors.extend(copies);
        let command = Command {
            program: c_string(executed)?,
            argv: c_strings(prepared.argv)?,
            env: c_strings(prepared.env.0)?,
            directory,
            descriptors,
            closed_by_exec,
            group: ProcessGroup::Of(self.process.pid),
            confinement: prepared.confinement,
            told_descriptors: prepared.told_descriptors,
            is_script: !context.refusals && by_name && is_text(&exec.executable),
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
        let program_was_asked = program == exec.file;
        drop(exec);
        self.held = None;
        let supervisor = readiness::watch(supervisor, Interest::READABLE)
            .map_err(|error| failure(format!("cannot watch the command: {error}")))?;
        self.child = Some(Child {
            supervisor,
            program_was_asked,
            program,
            workdir,
            refusal: None,
            core_dumped: false,
            pid: 0,
            stopped_at: None,
        });
        Ok(())
    }

    /// Whoever has only a place of something need not be able to open it, and a command outside of the sandbox is: by
    /// `/dev/stdin`, for one.
    fn check_descriptors(&self) -> Result<(), (i32, String)> {
        if self.shared.context.description.sandbox.enforcement == Enforcement::None {
            return Ok(());
        }
        let place = self
            .descriptors
            .iter()
            .find(|(open, _)| descriptor::is_place(open.as_fd()).unwrap_or(true));
        place.map_or(Ok(()), |(_, number)| {
            let reason = format!(
                "execgate: descriptor {number} is a place that nobody has opened (O_PATH), which isn't handed over: \
                 close it, or open what it stands for"
            );
            Err((CANNOT_EXECUTE, reason))
        })
    }

    /// Where the command runs: at the name that was judged, and nowhere that a link leads to instead. Where nothing has that name, because the
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
        Ok(if same {
            (Directory::Exactly(named), Relative::Same)
        } else {
            (Directory::Named(named), Relative::Other)
        })
    }

    fn finish(&self, outcome: ExecOutcome, usage: Option<ExecUsage>) {
        if let Some(exec) = self.id {
            self.shared.policy.observe(SessionEvent::ExecFinished {
                exec,
                outcome,
                elapsed: self.delivered.elapsed(),
                usage,
                pid: self.child.as_ref().map_or(0, |child| child.pid),
                writable_directories: self.writable_directories.clone(),
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
            copies,
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
        drop(copies);
    }
}

impl Shared {
    /// What is executed for an exec that a verdict escalates; else why nothing is.
    async fn escalation(
        &self,
        exec: &InterceptedExec,
        verdict: &Verdict,
        places: Vec<Place>,
    ) -> Result<Escalation, (DecisionCode, String)> {
        let unprotected = verdict.terms.unprotected;
        let copies = self.room_for_copies(&exec.executable, unprotected)?;
        let names = (&*exec.file, &*exec.workdir);
        let execution = self
            .examiner
            .verify(names, &exec.executable, places, &exec.process, unprotected)
            .await
            .map_err(refused)?;
        let rules = &verdict.terms.environment;
        let (env, difference) = environment::escalated(&exec.env, rules, &self.owner);
        Ok(Escalation {
            execution,
            env,
            difference,
            copies,
        })
    }

    fn room_for_copies(
        &self,
        executable: &Executable,
        unprotected: Unprotected,
    ) -> Result<Option<OwnedSemaphorePermit>, (DecisionCode, String)> {
        let (Executable::Found(file), Unprotected::Allowed) = (executable, unprotected) else {
            return Ok(None);
        };
        let sizes = file.chain().unwrap_or_default();
        let size: u64 = sizes
            .iter()
            .filter(|file| matches!(file.own_protection, Protection::Writable(_)))
            .map(|file| file.version.size)
            .sum();
        if size == 0 {
            return Ok(None);
        }
        let permits = u32::try_from(size).ok();
        permits
            .and_then(|size| self.copies.clone().try_acquire_many_owned(size).ok())
            .map(Some)
            .ok_or_else(|| {
                let reason = "copies of escalated programs take too much memory already";
                (DecisionCode::Overloaded, reason.to_owned())
            })
    }
}

/// Why a program isn't escalated, in words for whoever asked.
fn refused(refusal: program::Refusal) -> (DecisionCode, String) {
    match refusal {
        program::Refusal::Changed(what) => (
            DecisionCode::ProgramChanged,
            format!("the program isn't what was asked about any more ({what}); ask again"),
        ),
        program::Refusal::Unprotected(path) => (
            DecisionCode::ProgramUnprotected,
            format!(
                "it may not leave the sandbox, because the session can write {}: the rule has to allow \
                 it by unprotected = \"allow\", or the program be where no session can write",
                path.display()
            ),
        ),
        program::Refusal::Unidentified(why) => (
            DecisionCode::ProgramUnidentified,
            format!("it may not leave the sandbox, because its program isn't known: {why}"),
        ),
    }
}

fn is_text(executable: &Executable) -> bool {
    matches!(executable, Executable::Found(file) if matches!(file.content, ExecutableContent::Text(_)))
}

fn descriptor_path(number: i32) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{number}"))
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

async fn receive_in_time(connection: &mut Connection, most: usize) -> Result<Frame, Input> {
    match tokio::time::timeout(MESSAGE_TIME, connection.receive(most)).await {
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
            let mut error = io::Error::from_raw_os_error(errno);
            if step == Step::Directory && errno == NOT_EXACTLY {
                error = io::Error::other(
                    "its name leads through links, or isn't the kernel's own (`pwd -P`)",
                );
            }
            let attempted = match step {
                Step::Exec => return exec_failure(child, &error),
                Step::Fork => "make a process".to_owned(),
                Step::Descriptors => "put the descriptors in place".to_owned(),
                Step::Directory => {
                    format!("enter the working directory {}", child.workdir.display())
                }
                Step::Context => "set limits or signals".to_owned(),
                Step::Confinement => "confine the command".to_owned(),
            };
            Input::NotStarted {
                exit_code: CANNOT_EXECUTE,
                reason: format!("execgate: cannot {attempted}: {error}"),
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
            core_dumped,
            user,
            system,
            peak_memory_bytes,
        })) => {
            child.core_dumped = core_dumped;
            Input::Ended {
                outcome: end.into(),
                usage: Some(ExecUsage {
                    user,
                    system,
                    peak_memory_bytes,
                }),
            }
        }
        // The supervisor has gone before its command: somebody killed it.
        Ok(None) | Err(_) => Input::Ended {
            outcome: ExecOutcome::Unknown,
            usage: None,
        },
    }
}

/// A program that couldn't be executed, in a shell's words, and with what the shell that asked would need
/// for its own.
fn exec_failure(child: &mut Child, error: &io::Error) -> Input {
    if child.program_was_asked {
        child.refusal = Some(refusal(&child.program, error));
    }
    let (exit_code, reason) = not_executed(&child.program, error);
    Input::NotStarted { exit_code, reason }
}

fn refusal(program: &Path, error: &io::Error) -> Refusal {
    let seen = exec::look_at(program);
    Refusal {
        errno: error.raw_os_error().unwrap_or(0),
        is_directory: seen.is_directory,
        is_executable: seen.is_executable,
        ..Refusal::of_contents(seen.beginning.as_deref())
    }
}

/// A program that couldn't be executed: a shell's status and words.
fn not_executed(program: &Path, error: &io::Error) -> (i32, String) {
    let failure = exec::explain(program, error);
    let reason = String::from_utf8_lossy(&failure.reason);
    (failure.status, format!("{}: {reason}", program.display()))
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

/// The directories among descriptors, by their names.
fn open_directories(descriptors: &[(OwnedFd, i32)]) -> Vec<(i32, PathBuf)> {
    descriptors
        .iter()
        .filter(|(open, _)| place::status(open.as_fd()).is_ok_and(|status| status.is_directory()))
        .filter_map(|(open, number)| Some((*number, name_of(open)?)))
        .collect()
}

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_wrapper_says_of_its_context_is_bounded() {
        let context = CommandContext {
            no_new_privileges: true,
            ignored_signals: vec![1; 1000],
            blocked_signals: vec![1; 1000],
            limits: vec![(0, 1, 1); 1000],
            cpus: vec![1; 1000],
            ..CommandContext::default()
        };
        let bounded = inherited(context.clone(), Enforcement::None);
        // Where there is no sandbox it isn't a sandbox's.
        assert!(bounded.no_new_privileges);
        assert_eq!(bounded.ignored_signals.len(), 64);
        assert_eq!(bounded.blocked_signals.len(), 64);
        assert_eq!(bounded.limits.len(), 32);
        assert_eq!(bounded.cpus.len(), MOST_CPU_WORDS);
        for enforcement in [Enforcement::Partial, Enforcement::Full] {
            assert!(!inherited(context.clone(), enforcement).no_new_privileges);
        }
    }
}
