//! An escalated command that has been started, and what its supervisor tells of it.

use std::io;
use std::path::{Path, PathBuf};

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use super::CANNOT_EXECUTE;
use crate::model::{ExecOutcome, ExecUsage};
use crate::server::intercept::Input;
use crate::sys::exec;
use crate::sys::spawn::{NOT_EXACTLY, Report, Step, Supervisor};
use crate::wire::Refusal;

/// An escalated command.
pub(super) struct Child {
    pub(super) supervisor: AsyncFd<Supervisor>,
    pub(super) program: PathBuf,
    /// Whether that is the program that was asked about, and not one that is to run it.
    pub(super) program_was_asked: bool,
    /// Why it couldn't be executed.
    pub(super) refusal: Option<Refusal>,
    /// Whether it left a core dump.
    pub(super) core_dumped: bool,
    pub(super) pid: u32,
    /// When it was last stopped, in nanoseconds of the monotonic clock.
    pub(super) stopped_at: Option<u64>,
}

impl Child {
    /// The supervisor's next report, or its end. May be cancelled: nothing is lost.
    pub(super) async fn report(&mut self) -> io::Result<Option<Report>> {
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
    pub(super) async fn gone(&mut self) {
        while let Ok(Some(report)) = self.report().await {
            if let Report::LeftBehind { count } = report {
                note_left_behind(count, &self.program);
            }
        }
    }
}

pub(super) fn note_left_behind(count: u32, program: &Path) {
    tracing::warn!(
        count,
        program = %program.display(),
        "processes of an escalated command are left: they are another user's, and not the gate's to end"
    );
}

pub(super) fn report_input(report: &io::Result<Option<Report>>, child: &mut Child) -> Input {
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
                Step::Fork => "cannot make a process",
                Step::Descriptors => "cannot put the descriptors in place",
                Step::Directory => "cannot enter the working directory",
                Step::Context => "cannot set limits or signals",
                Step::Confinement => "cannot confine the command",
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

pub(super) fn refusal(program: &Path, error: &io::Error) -> Refusal {
    let seen = exec::look_at(program);
    Refusal {
        errno: error.raw_os_error().unwrap_or(0),
        is_directory: seen.is_directory,
        is_executable: seen.is_executable,
        ..Refusal::of_contents(seen.beginning.as_deref())
    }
}

/// A program that couldn't be executed: a shell's status and words.
pub(super) fn not_executed(program: &Path, error: &io::Error) -> (i32, String) {
    let failure = exec::explain(program, error);
    let reason = String::from_utf8_lossy(&failure.reason);
    (failure.status, format!("{}: {reason}", program.display()))
}
