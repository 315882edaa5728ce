use std::collections::BTreeMap;
use std::ffi::OsString;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, SystemTime};

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::connection::Connection;
use super::environment::OwnersEnvironment;
use super::examination::Examiner;
use super::executor::{ShellCommandExecutor, VerdictCounts};
use super::policy::{EscalationPolicy, SessionContext, SessionTerminator};
use super::request;
use super::reuse::{GateVerdicts, ReusableVerdicts};
use super::share::{Pool, Share};
use super::tracker::ProcessTracker;
use super::{ServerError, Stopwatch};
use crate::model::{
    EscalationDecision, ExecId, ExecOutcome, SessionDescription, SessionEndReason, SessionEvent,
};
use crate::program::Digests;
use crate::sys::socket::{self, Kind, Received, Wait};
use crate::sys::{descriptor, limits, readiness};
use crate::wire;

/// The most requests of one session that are served at once. The next waits in the socket's queue,
/// and its wrapper with it.
const MAX_REQUESTS: usize = 1024;

/// The most escalated commands of one session that are being started at once.
const MAX_STARTING: usize = 64;

/// Descriptors that a request takes: its stream, its process, its program, its command's supervisor.
const WHILE_SERVED: usize = 5;

/// Descriptors that a command takes while it is started: those that it gets, and the supervisor's.
const WHILE_STARTING: usize = 20;

/// Descriptors of a gate for what isn't a request.
const FOR_ALL_ELSE: usize = 24;

/// Memory that the messages of a session's requests may take together, in bytes.
const MESSAGES: usize = 256 << 20;

/// What all sessions of a gate may have together. A session may have half of what the others leave, and no
/// more than its own bound.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GateBounds {
    /// Most requests that are served at once; 4,096 by default, and fewer where there are few descriptors. The
    /// next waits.
    pub requests: usize,
    /// Most bytes of their messages; 1 GiB by default. The next waits for five seconds, and is then refused
    /// with [`DecisionCode::Overloaded`](crate::model::DecisionCode::Overloaded).
    pub message_bytes: usize,
}

impl Default for GateBounds {
    fn default() -> Self {
        Self {
            requests: 4 * MAX_REQUESTS,
            message_bytes: 1 << 30,
        }
    }
}

/// What all sessions of a gate share.
#[derive(Debug, Clone)]
pub(super) struct GatePools {
    requests: Pool,
    message_bytes: Pool,
}

impl GatePools {
    pub(super) fn new(bounds: GateBounds) -> Self {
        let descriptors = descriptors_for_requests() / WHILE_SERVED;
        Self {
            requests: Pool::new(bounds.requests.min(descriptors)),
            message_bytes: Pool::new(bounds.message_bytes),
        }
    }
}

/// Memory that copies of programs which commands of a session execute may take together, in bytes.
const COPIES: usize = 512 << 20;

/// The lowest number that the client end gets where there is room: out of the way of scripts, which
/// use single digits, and of shells, which use those from 10 on.
const LOWEST_CLIENT: RawFd = 100;

/// How long the end of a session waits for what it ends.
const TEARDOWN_TIME: Duration = Duration::from_secs(5);

/// What everything in a session shares.
pub(super) struct Shared {
    pub(super) context: SessionContext,
    pub(super) policy: Arc<dyn EscalationPolicy>,
    pub(super) executor: Arc<dyn ShellCommandExecutor>,
    pub(super) tracker: ProcessTracker,
    pub(super) tasks: TaskTracker,
    /// Cancelled when the session is over.
    pub(super) over: CancellationToken,
    /// For requests' messages, in bytes.
    pub(super) memory: Arc<Share>,
    /// For requests that are served.
    requests: Arc<Share>,
    /// For commands that are being started.
    pub(super) starting: Arc<Semaphore>,
    /// For copies of programs, in bytes.
    pub(super) copies: Arc<Semaphore>,
    pub(super) examiner: Examiner,
    pub(super) owner: OwnersEnvironment,
    last_exec: AtomicU64,
    counts: Counts,
    end: OnceLock<End>,
}

#[derive(Default)]
struct Counts {
    run: AtomicU64,
    escalate: AtomicU64,
    deny: AtomicU64,
    dropped_handshakes: AtomicU64,
}

struct End {
    reason: SessionEndReason,
    detail: String,
    shell: Option<ExecOutcome>,
}

impl Shared {
    pub(super) fn next_exec(&self) -> ExecId {
        ExecId(self.last_exec.fetch_add(1, Ordering::Relaxed) + 1)
    }

    pub(super) fn count(&self, decision: &EscalationDecision) {
        let count = match decision {
            EscalationDecision::Run => &self.counts.run,
            EscalationDecision::Escalate(_) => &self.counts.escalate,
            EscalationDecision::Deny { .. } => &self.counts.deny,
        };
        count.fetch_add(1, Ordering::Relaxed);
    }
}

/// A sandbox session: the socket that its processes ask on, and all that is done for them.
///
/// Dropping it ends the session: the client end is closed, what is being decided is abandoned, and
/// every escalated command is killed with all that it started.
pub struct EscalationSession {
    shared: Arc<Shared>,
    env: BTreeMap<OsString, OsString>,
    client: Arc<Mutex<Option<OwnedFd>>>,
}

/// Whether the environment overlay has the wrapper's older name too.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum WrapperAlias {
    /// Only `EXEC_WRAPPER`.
    #[default]
    None,
    /// `BASH_EXEC_WRAPPER` as well, for older patched bashes.
    Bash,
}

pub(super) struct Start {
    pub(super) description: SessionDescription,
    pub(super) policy: Arc<dyn EscalationPolicy>,
    pub(super) executor: Arc<dyn ShellCommandExecutor>,
    pub(super) wrapper: PathBuf,
    pub(super) alias: WrapperAlias,
    pub(super) stopwatch: Stopwatch,
    pub(super) parent: CancellationToken,
    pub(super) verdicts: GateVerdicts,
    pub(super) pools: GatePools,
    pub(super) reuse_limit: Duration,
    pub(super) digests: Arc<Digests>,
    pub(super) owner: OwnersEnvironment,
}

impl EscalationSession {
    pub(super) fn start(start: Start) -> Result<Self, ServerError> {
        let (server, client) = socket::pair(Kind::Datagram).map_err(ServerError::Socket)?;
        let client = descriptor::duplicate_from(client.as_fd(), LOWEST_CLIENT)
            .or_else(|_| descriptor::duplicate_from(client.as_fd(), 3))
            .map_err(ServerError::Socket)?;
        let server = readiness::watch(server, Interest::READABLE).map_err(ServerError::Socket)?;
        let context = SessionContext {
            verdicts: ReusableVerdicts::new(
                start.description.id,
                start.verdicts,
                start.reuse_limit,
            ),
            description: Arc::new(start.description),
            stopwatch: start.stopwatch,
            terminator: SessionTerminator::default(),
        };
        let policy = start.policy.for_session(&context).unwrap_or(start.policy);
        let mut env = BTreeMap::new();
        let mut set = |name: &str, value: OsString| env.insert(name.into(), value);
        set(wire::SOCKET_VARIABLE, client.as_raw_fd().to_string().into());
        set(wire::WRAPPER_VARIABLE, start.wrapper.clone().into());
        if start.alias == WrapperAlias::Bash {
            set(wire::BASH_WRAPPER_VARIABLE, start.wrapper.into());
        }
        let rooms = Rooms::new(descriptors_for_requests());
        let places = start.executor.writable_places();
        let shared = Arc::new(Shared {
            context,
            tracker: ProcessTracker::new(policy.clone()),
            policy,
            executor: start.executor,
            tasks: TaskTracker::new(),
            over: start.parent.child_token(),
            memory: Arc::new(start.pools.message_bytes.share(MESSAGES)),
            requests: Arc::new(start.pools.requests.share(rooms.requests)),
            starting: Arc::new(Semaphore::new(rooms.starting)),
            copies: Arc::new(Semaphore::new(COPIES)),
            examiner: Examiner::new(places, start.digests),
            owner: start.owner,
            last_exec: AtomicU64::new(0),
            counts: Counts::default(),
            end: OnceLock::new(),
        });
        let client = Arc::new(Mutex::new(Some(client)));
        tokio::spawn(serve(shared.clone(), server));
        tokio::spawn(watch_for_end(shared.clone(), client.clone()));
        Ok(Self {
            shared,
            env,
            client,
        })
    }

    /// Variables to set over the environment that the session's shell is started with.
    pub fn env(&self) -> &BTreeMap<OsString, OsString> {
        &self.env
    }

    /// Closes this process's copy of the client end. To be called as soon as the session's shell has
    /// been spawned, so that no unrelated child can inherit it.
    pub fn close_client_socket(&self) {
        close(&self.client);
    }

    /// What [`close_client_socket`](Self::close_client_socket) does, as a function to be called once.
    pub fn after_spawn(&self) -> Box<dyn FnOnce() + Send> {
        let client = self.client.clone();
        Box::new(move || close(&client))
    }

    /// What is said of the session, its clock, and what may end it.
    pub fn context(&self) -> &SessionContext {
        &self.shared.context
    }

    /// How many execs were decided each way so far.
    pub fn verdicts(&self) -> VerdictCounts {
        let counts = &self.shared.counts;
        VerdictCounts {
            run: counts.run.load(Ordering::Relaxed),
            escalate: counts.escalate.load(Ordering::Relaxed),
            deny: counts.deny.load(Ordering::Relaxed),
        }
    }

    /// Ends the session, and waits until all that it did has been told to its policy. `shell` is how
    /// its shell ended, where that is known.
    pub async fn end(self, reason: SessionEndReason, detail: String, shell: Option<ExecOutcome>) {
        let _ = self.shared.end.set(End {
            reason,
            detail,
            shell,
        });
        let tasks = self.shared.tasks.clone();
        drop(self);
        let _ = tokio::time::timeout(TEARDOWN_TIME, tasks.wait()).await;
    }
}

impl Drop for EscalationSession {
    fn drop(&mut self) {
        self.shared.over.cancel();
        close(&self.client);
    }
}

fn close(client: &Mutex<Option<OwnedFd>>) {
    drop(client.lock().unwrap_or_else(PoisonError::into_inner).take());
}

/// Ends the session when its policy or its parent does, and tells the policy as the very last thing.
async fn watch_for_end(shared: Arc<Shared>, client: Arc<Mutex<Option<OwnedFd>>>) {
    // Counted among the tasks, so that `end` waits for the last event as well.
    let last_event = shared.tasks.token();
    tokio::select! {
        () = shared.over.cancelled() => {}
        _ = shared.context.terminator.terminated() => shared.over.cancel(),
    }
    close(&client);
    shared.tasks.close();
    let deadline = tokio::time::Instant::now() + TEARDOWN_TIME;
    while shared.tasks.len() > 1 && tokio::time::Instant::now() < deadline {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let terminated = shared.context.terminator.reason();
    let end = shared.end.get();
    let (reason, detail) = match (terminated, end) {
        (Some(reason), _) => (SessionEndReason::Terminated, reason),
        (None, Some(end)) => (end.reason, end.detail.clone()),
        (None, None) => (SessionEndReason::Cancelled, String::new()),
    };
    shared.policy.observe(SessionEvent::SessionEnded {
        reason,
        detail,
        shell: end.and_then(|end| end.shell.clone()),
        at: SystemTime::now(),
    });
    drop(last_event);
}

/// Takes handshakes until the session is over.
async fn serve(shared: Arc<Shared>, server: AsyncFd<OwnedFd>) {
    let over = shared.over.clone();
    let take = async {
        loop {
            let turn = shared.requests.hold(1).await;
            let handshake = match receive_handshake(server.get_ref()) {
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                    server.async_io(Interest::READABLE, receive_handshake).await
                }
                other => other,
            };
            match handshake
                .map_err(|error| error.to_string())
                .and_then(accept)
            {
                Ok(stream) => match Connection::new(stream, shared.memory.clone()) {
                    Ok(connection) => {
                        let shared_here = shared.clone();
                        shared.tasks.spawn(async move {
                            request::serve(&shared_here, connection).await;
                            drop(turn);
                        });
                    }
                    Err(error) => note_dropped(&shared, &error.to_string()),
                },
                Err(reason) => {
                    note_dropped(&shared, &reason);
                    // Whatever is wrong, others get their turn.
                    tokio::task::yield_now().await;
                }
            }
        }
    };
    tokio::select! {
        () = over.cancelled() => {}
        () = take => {}
    }
}

pub(super) fn receive_handshake(server: &OwnedFd) -> std::io::Result<(Received, u8)> {
    let mut buffer = [0; wire::DATAGRAM_BUFFER];
    let received = socket::receive(server.as_fd(), &mut buffer, Wait::Never)?;
    Ok((received, buffer[0]))
}

/// The stream that a handshake carries, if it is a proper one.
pub(super) fn accept((received, first): (Received, u8)) -> Result<OwnedFd, String> {
    let Received { bytes, descriptors } = received;
    let count = descriptors.len();
    let [stream] = <[OwnedFd; 1]>::try_from(descriptors)
        .map_err(|_| format!("it carries {count} descriptors, not one"))?;
    if bytes != wire::HANDSHAKE.len() || first != wire::HANDSHAKE[0] {
        return Err("it isn't the one byte 0".to_owned());
    }
    if !socket::is_unix_socket(stream.as_fd(), Kind::Stream) {
        return Err("its descriptor isn't a Unix stream socket".to_owned());
    }
    Ok(stream)
}

/// Logs a handshake that was dropped: the first, second, fourth, eighth and so on, so that a flood of
/// them is no flood of lines.
fn note_dropped(shared: &Shared, reason: &str) {
    let count = shared
        .counts
        .dropped_handshakes
        .fetch_add(1, Ordering::Relaxed)
        + 1;
    if count.is_power_of_two() {
        tracing::warn!(session = %shared.context.description.id, count, reason, "a handshake was dropped");
    }
}

/// How many requests are served at once, and how many of them may be having their commands started,
/// which for a moment takes many more descriptors. Who finds no room waits; who has been answered is
/// never in the way of one that starts.
struct Rooms {
    requests: usize,
    starting: usize,
}

/// How many descriptors this process may have for requests.
fn descriptors_for_requests() -> usize {
    let files = limits::open_files().map_or(1024, |limit| limit.soft);
    let files = usize::try_from(files).unwrap_or(usize::MAX);
    files.saturating_sub(FOR_ALL_ELSE)
}

impl Rooms {
    /// For so many descriptors.
    fn new(rest: usize) -> Self {
        let starting = (rest / 3 / WHILE_STARTING).clamp(1, MAX_STARTING);
        let requests = rest.saturating_sub(starting * WHILE_STARTING) / WHILE_SERVED;
        Self {
            requests: requests.clamp(2, MAX_REQUESTS),
            starting,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_takes_no_more_at_once_than_there_are_descriptors_for() {
        for descriptors in [0, 40, 1000, 10_000, 1 << 20, usize::MAX] {
            let Rooms { requests, starting } = Rooms::new(descriptors);
            assert!((2..=MAX_REQUESTS).contains(&requests), "{descriptors}");
            assert!((1..=MAX_STARTING).contains(&starting), "{descriptors}");
            let taken = requests * WHILE_SERVED + starting * WHILE_STARTING;
            assert!(taken <= descriptors.max(40), "{descriptors}");
        }
    }
}
