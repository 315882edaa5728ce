use std::ffi::c_int;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use serde::Deserialize;

use super::asker::Asker;
use crate::sys::context;
use crate::sys::core_dump;
use crate::sys::descriptor;
use crate::sys::open_files::RaisedOpenFiles;
use crate::sys::signal::{self, Arrived, Ready, SignalWatch};
use crate::sys::socket::{self, MAX_DESCRIPTORS, Wait};
use crate::wire::{
    self, CommandContext, Forward, FrameReader, Notice, Refusal, SuperExecMessage, SuperExecResult,
};
use crate::wrapper::{Failure, NO_VERDICT, read_frame, say};

/// What the gate sends while its command runs.
#[derive(Deserialize)]
#[serde(untagged)]
pub(super) enum FromGate {
    Ended(SuperExecResult),
    Stopped(Notice),
}

/// How standing in ends, where it doesn't end the process.
pub(super) enum End<'a> {
    /// With the command's exit status.
    Status(c_int),
    /// The gate couldn't execute the command, and this shell is to say so. Nothing that the command would
    /// inherit is changed.
    Refused(&'a Asker, Refusal),
}

/// A command that the gate is to run.
pub(super) struct Escalated {
    /// The request's own stream.
    stream: BorrowedFd<'static>,
    /// The session's socket, which is nobody's but the wrapper's.
    session: BorrowedFd<'static>,
    /// Whether the gate says when the command stops.
    gate_tells_stops: bool,
    reader: FrameReader,
}

impl Escalated {
    pub(super) fn new(
        stream: BorrowedFd<'static>,
        session: BorrowedFd<'static>,
        gate_tells_stops: bool,
    ) -> Self {
        Self {
            stream,
            session,
            gate_tells_stops,
            reader: FrameReader::default(),
        }
    }

    /// Hands the process's descriptors to the gate, which runs the command on them, and is to the shell
    /// what the command would be.
    pub(super) fn stand_in(mut self, asker: Option<&Asker>) -> Result<End<'_>, Failure> {
        // What the command inherits is as it is now. The wrapper itself needs a few more descriptors.
        let limits = context::limits();
        let _raised = RaisedOpenFiles::new();
        let inheritable: Vec<_> = descriptor::inheritable()
            .into_iter()
            .filter(|fd| fd.as_raw_fd() != self.session.as_raw_fd())
            .collect();
        if inheritable.len() > MAX_DESCRIPTORS {
            return Err(Failure::new(
                "hand over the command's descriptors",
                format_args!(
                    "{} are open, and at most {MAX_DESCRIPTORS} can be handed over",
                    inheritable.len()
                ),
                "close some before the command; nothing was run",
            ));
        }
        // From here on signals for the command are waited for.
        let ignored_signals = signal::ignored();
        let blocked_signals = signal::blocked();
        let watched = signal::forwarded().filter(|signal| {
            !ignored_signals.contains(signal) && !blocked_signals.contains(signal)
        });
        let watch = SignalWatch::new(watched).map_err(Failure::gate_lost)?;
        let workdir = context::working_directory().ok();
        let message = SuperExecMessage {
            fds: inheritable.iter().map(AsRawFd::as_raw_fd).collect(),
            context: Some(CommandContext {
                umask: Some(context::umask()),
                nice: Some(context::nice()),
                limits,
                ignored_signals,
                blocked_signals,
                workdir_follows: workdir.is_some(),
                notices: true,
                cpus: context::cpus(),
                scheduler: context::scheduler(),
                io_priority: context::io_priority(),
                timer_slack: context::timer_slack(),
                oom_score_adj: context::oom_score_adj(),
                core_dump_filter: context::core_dump_filter(),
                personality: context::personality(),
                no_new_privileges: context::no_new_privileges(),
                refusals: asker.is_some(),
            }),
        };
        let stream = self.stream;
        send_frame(stream, &message, &inheritable).map_err(Failure::gate_lost)?;
        if let Some(workdir) = &workdir {
            let forward = Forward {
                workdir: Some(true),
                ..Forward::default()
            };
            // A gate that doesn't know it may have ended the command and itself by now.
            let _ = send_frame(stream, &forward, &[workdir.as_fd()]);
        }
        drop(workdir);
        let mut job = Job::default();
        loop {
            match watch.wait(self.stream).map_err(Failure::gate_lost)? {
                Ready::Signal(arrived) => job.forward(&self, arrived),
                Ready::Socket => {
                    let message = read_frame(self.stream, &mut self.reader).map_err(|_| {
                        Failure::new(
                            "wait for the command",
                            "the gate went away while it ran",
                            "the command was ended with it",
                        )
                    })?;
                    let message = wire::decode("SuperExecResult", &message).map_err(|error| {
                        Failure::new(
                            "wait for the command",
                            error,
                            "gate and wrapper may be of different versions",
                        )
                    })?;
                    match message {
                        FromGate::Ended(SuperExecResult {
                            refusal: Some(refusal),
                            ..
                        }) if let Some(asker) = asker => {
                            watch.end();
                            return Ok(End::Refused(asker, refusal));
                        }
                        FromGate::Ended(result) => return Ok(End::Status(end_as(&result))),
                        FromGate::Stopped(notice) => {
                            // A signal to go on may have come since this was found to be readable.
                            while let Some(arrived) = watch.take().map_err(Failure::gate_lost)? {
                                job.forward(&self, arrived);
                            }
                            job.stop(&notice);
                        }
                    }
                }
            }
        }
    }
}

/// The job of the shell that the wrapper and the command are.
#[derive(Default)]
struct Job {
    /// When it was last made to go on, in nanoseconds of the monotonic clock.
    continued_at: u64,
}

impl Job {
    fn forward(&mut self, escalated: &Escalated, arrived: Arrived) {
        let forward = Forward {
            signal: Some(arrived.signal),
            from_terminal: arrived.from_kernel.then_some(true),
            ..Forward::default()
        };
        // If the gate is gone, the stream says so next.
        let _ = send_frame(escalated.stream, &forward, &[]);
        if arrived.signal == signal::CONTINUE {
            self.continued_at = context::monotonic_nanoseconds();
        }
        if !escalated.gate_tells_stops {
            // A gate that doesn't pass signals on: end or stop here at least.
            signal::act_by_default(arrived.signal);
        }
    }

    /// Stops as the command did, unless that was before the job was made to go on.
    fn stop(&self, notice: &Notice) {
        if notice.at.is_none_or(|at| at >= self.continued_at) {
            signal::act_by_default(notice.stopped);
        }
    }
}

/// Ends as the command did: dies of its signal, or returns its exit code.
fn end_as(result: &SuperExecResult) -> c_int {
    if let Some(failure) = &result.failure {
        say(failure);
        return result.exit_code;
    }
    if let Some(signal) = result.signal {
        // The command's core dump is its own: there is to be no other, but the mark of one for the shell.
        if !result.core_dumped || core_dump::divert().is_err() {
            core_dump::forbid();
        }
        signal::act_by_default(signal);
        // It isn't deadly here, whatever it was there.
        return NO_VERDICT;
    }
    result.exit_code
}

fn send_frame(
    stream: BorrowedFd<'_>,
    message: &impl serde::Serialize,
    descriptors: &[BorrowedFd<'_>],
) -> io::Result<()> {
    let frame = wire::encode(message).map_err(io::Error::other)?;
    let mut sent = socket::send(stream, &frame, descriptors, Wait::Blocking)?;
    while sent < frame.len() {
        sent += socket::send(stream, &frame[sent..], &[], Wait::Blocking)?;
    }
    Ok(())
}
