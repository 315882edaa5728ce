//! One intercepted exec, from its request to its end: does what the state machine says.

mod child;
mod escalation;
mod start;

use std::collections::VecDeque;
use std::ffi::OsString;
use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::sync::OwnedSemaphorePermit;
use tokio::time::Instant;

use self::child::{Child, report_input};
use self::escalation::Escalation;
use super::connection::{Connection, Frame, ReceiveError};
use super::intercept::{Action, Input, State, step};
use super::policy::PolicyError;
use super::session::Shared;
use super::share::Held;
use super::tracker::Watching;
use crate::model::{
    DecisionCode, Environment, EscalationDecision, ExecId, ExecOutcome, ExecUsage, Executable,
    InterceptedExec, ProcessIdentity, SessionEvent, Verdict,
};
use crate::sys::place::Place;
use crate::sys::process::{self, Pidfd};
use crate::sys::socket::MAX_DESCRIPTORS;
use crate::wire::{
    self, Action as WireAction, EscalateRequest, EscalateResponse, Forward, Notice, Refusal,
    SuperExecMessage, SuperExecResult, WaitNotice,
};

/// How long a wrapper may take over a message that it owes, from the handshake or the answer before
/// it on.
const MESSAGE_TIME: Duration = Duration::from_secs(30);

/// How long an exec waits before its user is told that a person is asked, and between looks at that.
const BEFORE_NOTICE: Duration = Duration::from_secs(2);
const BETWEEN_LOOKS: Duration = Duration::from_secs(1);

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

/// Signals that a wrapper forwards; others aren't its to send.
fn is_forwardable(signal: i32) -> bool {
    crate::sys::signal::forwarded().any(|forwarded| forwarded == signal)
}
