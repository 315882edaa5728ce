//! Starting an escalated command: from what the wrapper sent of itself to a supervisor.

use std::ffi::CString;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use tokio::io::Interest;

use super::child::{Child, not_executed, refusal};
use super::{CANNOT_EXECUTE, Request};
use crate::model::{
    Enforcement, EscalationExecution, Executable, ExecutableContent, InterceptedExec,
};
use crate::program::Execution;
use crate::server::executor::{EscalatedExec, PreparedExec};
use crate::sys::place;
use crate::sys::spawn::{Command, Directory, InheritedContext, ProcessGroup, Supervisor};
use crate::sys::{descriptor, exec, limits, readiness};
use crate::wire::CommandContext;

/// The lowest number that a copy of a program gets: out of the way of scripts and shells.
const LOWEST_COPY: i32 = 60;

/// As many as a kernel can have processors for: `CONFIG_NR_CPUS` ends at 8192.
const MOST_CPU_WORDS: usize = 128;

/// What the kernel adds to the name of a deleted directory.
const DELETED: &[u8] = b" (deleted)";

/// What a name relative to the command's directory leads to.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Relative {
    /// What it led to for the asker, and was judged as.
    Same,
    /// Perhaps something else.
    Other,
}

impl Request<'_> {
    fn inherited(&self, context: CommandContext) -> InheritedContext {
        let sandbox = self.shared.context.description.sandbox.enforcement;
        let core_dumps = limits::core_dumps().map_or(0, |limit| limit.soft);
        inherited(context, sandbox, core_dumps)
    }

    /// Starts the escalated command; the first report says whether that has worked. On failure: the
    /// shell's status, and the reason.
    pub(super) async fn start(
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
            told_signals: prepared.told_signals,
            is_script: !context.refusals && by_name && is_text(&exec.executable),
            context: self.inherited(context),
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
            workdir: prepared.workdir,
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

    /// Where the command runs: at the name that was judged, and nowhere that a link leads to instead. Where
    /// nothing has that name, because the directory has been deleted, by the wrapper's descriptor, if the
    /// kernel says that it is the very directory of that name. Never by the descriptor otherwise: it is a
    /// place in the sandbox's mounts.
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
}

fn is_text(executable: &Executable) -> bool {
    matches!(executable, Executable::Found(file) if matches!(file.content, ExecutableContent::Text(_)))
}

fn descriptor_path(number: i32) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{number}"))
}

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
///
/// A core dump has the command's memory in it, and lies in the directory that it works in, often the session's own: it is
/// no larger than the gate's owner has it by the gate's own soft limit, `core_dumps`, whatever the session has raised.
fn inherited(context: CommandContext, sandbox: Enforcement, core_dumps: u64) -> InheritedContext {
    let signals = |mut signals: Vec<i32>| {
        signals.truncate(64);
        signals
    };
    let mut limits = context.limits;
    limits.truncate(32);
    if limits.is_empty() {
        limits.extend(limits::open_files_at_start());
    }
    for (resource, soft, _) in &mut limits {
        if *resource == limits::CORE_DUMPS {
            *soft = core_dumps.min(*soft);
        }
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
        let bounded = inherited(context.clone(), Enforcement::None, 0);
        // Where there is no sandbox it isn't a sandbox's.
        assert!(bounded.no_new_privileges);
        assert_eq!(bounded.ignored_signals.len(), 64);
        assert_eq!(bounded.blocked_signals.len(), 64);
        assert_eq!(bounded.limits.len(), 32);
        assert_eq!(bounded.cpus.len(), MOST_CPU_WORDS);
        for enforcement in [Enforcement::Partial, Enforcement::Full] {
            assert!(!inherited(context.clone(), enforcement, 0).no_new_privileges);
        }
    }

    #[test]
    fn core_dumps_are_no_larger_than_the_gates_own_soft_limit_allows() {
        let files = (limits::CORE_DUMPS + 1, u64::MAX, u64::MAX);
        for (asked, own, granted) in [(u64::MAX, 0, 0), (u64::MAX, 512, 512), (7, 512, 7)] {
            let core = |soft| (limits::CORE_DUMPS, soft, u64::MAX);
            let context = CommandContext {
                // Said twice, the last would hold.
                limits: vec![core(asked), files, core(asked)],
                ..CommandContext::default()
            };
            let bounded = inherited(context, Enforcement::Full, own);
            // What a command allows itself is its own affair, and the verdict's.
            assert_eq!(bounded.limits, [core(granted), files, core(granted)]);
        }
    }
}
