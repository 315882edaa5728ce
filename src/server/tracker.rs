use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::policy::EscalationPolicy;
use crate::model::{ExecId, ExecOutcome, ProcessIdentity, SessionEvent};
use crate::sys::process::{self, Pidfd, ProcessEnd};
use crate::sys::readiness;

/// How many ancestors are looked at to find the exec that a process descends from.
const MAX_GENERATIONS: usize = 16;

/// How long the status of a process that has ended is waited for: until its parent reaps it.
const REAP_TIME: Duration = Duration::from_secs(5);

/// How long after a session's end the ends of its processes are still waited for. Whoever ends the
/// session ends them, and they have that long to go.
const LAST_ENDS: Duration = Duration::from_secs(1);

/// The commands of a session that run inside its sandbox: which process is which exec, and when it
/// ends.
pub(super) struct ProcessTracker {
    commands: Mutex<HashMap<u32, Command>>,
    policy: Arc<dyn EscalationPolicy>,
}

#[derive(Clone, Copy)]
struct Command {
    exec: ExecId,
    began: Instant,
}

impl ProcessTracker {
    pub(super) fn new(policy: Arc<dyn EscalationPolicy>) -> Self {
        Self {
            commands: Mutex::default(),
            policy,
        }
    }

    /// The exec that a process descends from: its own, or its nearest ancestor's.
    pub(super) fn ancestor(&self, process: &ProcessIdentity) -> Option<ExecId> {
        let find = |pid: u32| self.lock().get(&pid).map(|command| command.exec);
        if self.lock().is_empty() {
            return None;
        }
        let mut pid = process.pid;
        let mut parent = process.parent_pid;
        for _ in 0..MAX_GENERATIONS {
            if let Some(exec) = find(pid) {
                return Some(exec);
            }
            if parent <= 1 || parent == process::own_pid() {
                return None;
            }
            pid = parent;
            parent = parent_of(pid)?;
        }
        None
    }

    /// Notes that a process is about to become the command of an exec. Returns what undoes that.
    pub(super) fn begin(&self, pid: u32, exec: ExecId) -> Begun {
        let command = Command {
            exec,
            began: Instant::now(),
        };
        Begun {
            pid,
            replaced: self.lock().insert(pid, command),
        }
    }

    /// The process wasn't told to become the command after all.
    pub(super) fn undo(&self, begun: Begun) {
        let mut commands = self.lock();
        match begun.replaced {
            Some(command) => commands.insert(begun.pid, command),
            None => commands.remove(&begun.pid),
        };
    }

    /// The process was told. If it was an earlier command, that one has ended by it; else its end is
    /// to be [watched](Self::watch) for.
    pub(super) fn confirm(&self, begun: &Begun, exec: ExecId) -> Watching {
        let Some(replaced) = &begun.replaced else {
            return Watching::ToBegin;
        };
        let outcome = ExecOutcome::Replaced(exec);
        self.finish(*replaced, outcome, begun.pid, Instant::now());
        Watching::Already
    }

    /// Waits for the end of the process, and tells the policy. When the session is over first, an end
    /// that comes within [`LAST_ENDS`] is still told: it may well be by the session's end.
    pub(super) async fn watch(&self, pid: u32, pidfd: Pidfd, session_over: CancellationToken) {
        let Ok(pidfd) = readiness::watch(pidfd, Interest::READABLE) else {
            return;
        };
        let end = tokio::select! {
            end = wait_for_end(&pidfd) => Some(end),
            () = async {
                session_over.cancelled().await;
                tokio::time::sleep(LAST_ENDS).await;
            } => None,
        };
        let command = self.lock().remove(&pid);
        if let (Some(command), Some((end, at))) = (command, end) {
            let outcome = end.map_or(ExecOutcome::Unknown, ExecOutcome::from);
            self.finish(command, outcome, pid, at);
        }
    }

    fn finish(&self, command: Command, outcome: ExecOutcome, pid: u32, at: Instant) {
        self.policy.observe(SessionEvent::ExecFinished {
            exec: command.exec,
            outcome,
            elapsed: at.saturating_duration_since(command.began),
            usage: None,
            pid,
            writable_directories: Vec::new(),
            at: SystemTime::now() - at.elapsed(),
        });
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<u32, Command>> {
        // The map is whole between any two calls, so a panic elsewhere can't spoil it.
        self.commands.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What [`ProcessTracker::begin`] noted.
#[derive(Clone, Copy)]
pub(super) struct Begun {
    pid: u32,
    replaced: Option<Command>,
}

/// Whether a process's end is being watched for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Watching {
    /// It is, since an earlier exec.
    Already,
    /// It isn't yet.
    ToBegin,
}

fn parent_of(pid: u32) -> Option<u32> {
    Pidfd::open(pid)
        .ok()
        .and_then(|pidfd| pidfd.parent())
        .or_else(|| process::parent_from_proc(pid))
}

/// Waits until the process has ended, and where the kernel tells how, been reaped: how, and when it
/// ended.
async fn wait_for_end(pidfd: &AsyncFd<Pidfd>) -> (Option<ProcessEnd>, Instant) {
    // Readable: it has ended. Its status can be read once it has been reaped, which shows as readable
    // once more.
    let first = pidfd.readable().await;
    let ended_at = Instant::now();
    let Ok(mut guard) = first else {
        return (None, ended_at);
    };
    let reaped = async {
        loop {
            match pidfd.get_ref().end() {
                Ok(None) => guard.clear_ready(),
                Ok(end) => return end,
                Err(_) => return None,
            }
            guard = pidfd.readable().await.ok()?;
        }
    };
    let end = tokio::time::timeout(REAP_TIME, reaped).await.ok().flatten();
    (end, ended_at)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{EscalationDecision, InterceptedExec, Verdict};
    use crate::server::{BoxFuture, PolicyError};

    struct Deaf;

    impl EscalationPolicy for Deaf {
        fn decide<'a>(
            &'a self,
            _: &'a InterceptedExec,
        ) -> BoxFuture<'a, Result<Verdict, PolicyError>> {
            Box::pin(async { Ok(Verdict::from(EscalationDecision::Run)) })
        }
    }

    #[test]
    fn who_was_not_told_is_what_it_was() {
        let tracker = ProcessTracker::new(Arc::new(Deaf));
        let process = ProcessIdentity {
            pid: u32::MAX,
            ..ProcessIdentity::default()
        };
        let first = tracker.begin(process.pid, ExecId(1));
        assert_eq!(tracker.ancestor(&process), Some(ExecId(1)));
        let second = tracker.begin(process.pid, ExecId(2));
        assert_eq!(tracker.ancestor(&process), Some(ExecId(2)));
        tracker.undo(second);
        assert_eq!(tracker.ancestor(&process), Some(ExecId(1)));
        tracker.undo(first);
        assert_eq!(tracker.ancestor(&process), None);
    }
}
