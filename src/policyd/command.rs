//! The program `execgate-policyd`: start, stop, exit codes.

mod announcement;
mod args;
mod console_door;
mod error;
mod health;
mod persistence;
mod services;
mod sources;
pub(crate) mod variables;

use std::io::Write;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use clap::{CommandFactory, Parser};
use sd_notify::NotifyState;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tonic::service::InterceptorLayer;
use tonic::transport::Server;

use self::announcement::{Started, announce, tell_systemd};
use self::console_door::ConsoleDoor;
use self::error::listening;
use self::persistence::Persistence;
use self::services::Services;
use self::sources::Sources;
use super::accept::{self, Demands, Protocol};
use super::listen::{self, Doors, ListenAddress, Listener};
use super::numbers::ServiceNumbers;
use super::reception::{Reception, Room};
use super::reload::Followed;
use crate::logging;
use crate::metrics::MetricsEndpoint;
use crate::sys::{host, limits};

pub use self::args::{PolicydArgs, StartOutput};
pub use self::error::PolicydError;

/// Finds connections that died silently.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(30);
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(20);
/// Flow control windows of HTTP/2, in bytes: what of a call, and of a connection, may have been sent and not yet
/// been read. The protocol's own 64 KiB make a large argument list take many round trips; and as each of a gate's
/// 2,048 calls may leave all of its window unread, for as long as the gate reads no answers, twice as much costs
/// twice the memory. With this, 2 MiB of arguments take eight round trips, and those calls 512 MiB.
const STREAM_WINDOW: u32 = 256 << 10;
const CONNECTION_WINDOW: u32 = 1 << 20;
/// Most calls of one connection.
const MAX_STREAMS: u32 = 2_048;
/// Most bytes of one call's headers: a token, and what proxies add.
const MAX_HEADERS: u32 = 16 << 10;
/// Most calls that one connection has opened and ended again without anybody having looked.
const MAX_RESET_STREAMS: usize = 64;
/// The interpreter of rules recurses over nested values.
const STACK_SIZE: usize = 16 << 20;
/// How long a service that was told to stop waits for its calls to end.
const STOPPING_PATIENCE: Duration = Duration::from_secs(8);

/// The program.
pub fn main() -> ExitCode {
    let args = PolicydArgs::try_parse().unwrap_or_else(|error| {
        let arguments: Vec<_> = std::env::args_os().collect();
        variables::sourced(error, &PolicydArgs::command(), &arguments).exit()
    });
    // A variable that is set to nothing isn't a choice.
    let log = Some(args.log.as_str()).filter(|log| !log.is_empty());
    let outcome = logging::start(log.unwrap_or(args::LOG), args.log_format)
        .map_err(PolicydError::from)
        .and_then(|_writer| {
            variables::warn_of_unknown();
            run(&args, &mut std::io::stdout())
        });
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            logging::say("execgate-policyd", &error.to_string(), None);
            ExitCode::from(error.exit_code())
        }
    }
}

/// Serves until a signal says to stop. Writes one line to `out` when it listens.
///
/// # Errors
/// When it can't start, or can't go on.
pub fn run(args: &PolicydArgs, out: &mut dyn Write) -> Result<(), PolicydError> {
    let sources = Sources::load(args)?;
    let descriptors = raise_descriptors();
    let persistence = Persistence::open(args)?;
    let kept = persistence.kept.clone();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .thread_stack_size(STACK_SIZE)
        .build()
        .map_err(PolicydError::Runtime)?;
    let served = runtime.block_on(serve(args, sources, persistence, descriptors, out));
    // Calls that didn't end in time end here, and let go of the store.
    runtime.shutdown_timeout(Duration::from_secs(1));
    kept.close();
    served
}

/// Has the process open as many descriptors as it may; tells how many that are.
fn raise_descriptors() -> u64 {
    if let Err(error) = limits::raise_open_files() {
        tracing::warn!("the limit on open files stays low: {error}");
    }
    limits::open_files().map_or(0, |limit| limit.soft)
}

async fn serve(
    args: &PolicydArgs,
    sources: Sources,
    persistence: Persistence,
    descriptors: u64,
    out: &mut dyn Write,
) -> Result<(), PolicydError> {
    // Before anything is announced: from then on a signal must not end the process as it would.
    let mut signals = Signals::watch().map_err(PolicydError::Signals)?;
    let (listener, bound) = listen(args, &sources)?;
    let stopping = CancellationToken::new();
    let rules = sources.rules.in_force();
    let numbers = Arc::new(ServiceNumbers::new(
        persistence.kept.store.clone(),
        rules.clone(),
        sources.reloads(),
    ));
    let metrics = serve_metrics(args, &numbers)?;
    persistence.kept.begin_pruning(args);
    let services = Services::new(args, &sources, persistence, numbers, &stopping)?;
    let console = ConsoleDoor::open(args, &sources, &services, &stopping)?;
    let (health, health_service) = tonic_health::server::health_reporter();
    health::begin(&health, sources.rules.fault()).await;
    let room = Arc::new(Room::new());
    let routes = services
        .routes(&room)?
        .add_service(Reception::new(health_service, &room));
    let router = server()
        .layer(InterceptorLayer::new(sources.authentication(args)))
        .add_routes(routes);

    let revision = rules.borrow().revision().to_owned();
    let prefix_rules = rules.borrow().prefix_rule_count();
    let tls = sources.tls.as_ref().map(Followed::in_force);
    sources.follow().map_err(PolicydError::Signals)?;
    tracing::info!(address = %bound, revision, prefix_rules, "listening");
    let console = console.map(|console| console.serve(tls.clone(), &stopping));
    let started = Started {
        bound: &bound,
        revision: &revision,
        console: console.as_deref(),
        metrics: metrics.as_deref(),
    };
    announce(args.output, &started, out).map_err(PolicydError::Announce)?;
    tell_systemd(NotifyState::Ready);

    let demands = Demands {
        tls,
        users: [0, host::user().id]
            .into_iter()
            .chain(args.allow_uids.iter().copied())
            .collect(),
        protocol: Protocol::Http2,
    };
    let bounds = accept::bounds(descriptors);
    let incoming = accept::connections(listener, demands, bounds, stopping.clone());
    let mut serving = tokio::spawn(router.serve_with_incoming_shutdown(
        ReceiverStream::new(incoming),
        stopping.clone().cancelled_owned(),
    ));
    tokio::select! {
        served = &mut serving => return flatten(served),
        () = signals.stop() => {}
    }
    tell_systemd(NotifyState::Stopping);
    health::end(&health).await;
    stopping.cancel();
    if let Ok(served) = tokio::time::timeout(STOPPING_PATIENCE, &mut serving).await {
        return flatten(served);
    }
    tracing::warn!("some connections didn't end in time; they are cut");
    serving.abort();
    Ok(())
}

/// Listens for whoever may be let in.
fn listen(
    args: &PolicydArgs,
    sources: &Sources,
) -> Result<(Listener, ListenAddress), PolicydError> {
    let doors = if args.allow_uids.is_empty() {
        Doors::Own
    } else {
        Doors::All
    };
    let listening = listen::listen(&args.listen, sources.exposure(args), doors)
        .map_err(listening("--listen"))?;
    if args.insecure_listen {
        tracing::warn!(
            "--insecure-listen: commands and verdicts may cross the network in the clear, or for anyone"
        );
    }
    Ok(listening)
}

/// How it speaks HTTP/2, and within which bounds.
fn server() -> Server {
    Server::builder()
        .http2_keepalive_interval(Some(KEEPALIVE_INTERVAL))
        .http2_keepalive_timeout(Some(KEEPALIVE_TIMEOUT))
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        // It would let both grow.
        .http2_adaptive_window(Some(false))
        .max_concurrent_streams(MAX_STREAMS)
        .http2_max_header_list_size(MAX_HEADERS)
        .http2_max_pending_accept_reset_streams(Some(MAX_RESET_STREAMS))
}

/// Serves numbers where that is asked for; tells where.
fn serve_metrics(
    args: &PolicydArgs,
    numbers: &Arc<ServiceNumbers>,
) -> Result<Option<String>, PolicydError> {
    let Some(address) = args.metrics else {
        return Ok(None);
    };
    let endpoint = MetricsEndpoint::bind(address)?;
    let address = endpoint.address().map_err(PolicydError::Announce)?;
    tracing::info!(%address, "metrics are served");
    let numbers = Arc::clone(numbers);
    endpoint.serve_text(Arc::new(move || numbers.text()))?;
    Ok(Some(format!("http://{address}/metrics")))
}

fn flatten(
    served: Result<Result<(), tonic::transport::Error>, tokio::task::JoinError>,
) -> Result<(), PolicydError> {
    match served {
        Ok(served) => served.map_err(PolicydError::Serve),
        // A panic: there is nothing to go on with.
        Err(error) => Err(PolicydError::Runtime(std::io::Error::other(error))),
    }
}

/// Signals that the service has a use for, or that mustn't end it.
struct Signals {
    _hangups: Signal,
    terminations: Signal,
    interrupts: Signal,
}

impl Signals {
    fn watch() -> std::io::Result<Self> {
        Ok(Self {
            _hangups: signal(SignalKind::hangup())?,
            terminations: signal(SignalKind::terminate())?,
            interrupts: signal(SignalKind::interrupt())?,
        })
    }

    /// Waits until one says to stop.
    async fn stop(&mut self) {
        tokio::select! {
            _ = self.terminations.recv() => tracing::info!("stopping at SIGTERM"),
            _ = self.interrupts.recv() => tracing::info!("stopping at SIGINT"),
        }
    }
}
