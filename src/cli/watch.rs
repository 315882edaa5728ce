//! `execgate watch`: each exec as it happens, from a policy service.

use std::ffi::c_int;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::time::Duration;

use clap::{Args, ValueEnum};
use serde_json::json;
use tokio::io::Interest;
use tonic::{Code, Status};

use super::audit::{client, runtime};
use super::operator::{code_of, unwritten};
use super::remedy::Role;
use super::service::ServiceOptions;
use super::{Failure, SUCCESS};
use crate::link::ServiceCaller;
use crate::pb::audit::v1::{
    ExecChange, ExecView, WatchRequest, WatchResponse, watch_request, watch_response,
};
use crate::policyd::audit::{AuditColor, FilterArgs, Line, LineColors, json_line};
use crate::sys::readiness;

/// Between attempts to call again, at first and at most.
const FIRST_PAUSE: Duration = Duration::from_millis(250);
const LONGEST_PAUSE: Duration = Duration::from_secs(10);
/// How long the service may take to take a call, and to say anything: it says something every 15 s.
const PATIENCE: Duration = Duration::from_secs(10);
const SILENCE: Duration = Duration::from_secs(45);

const EXAMPLES: &str = "\
Needs a credential of an auditor: a token whose line in the service's file ends with `auditor`, or a
certificate or user that the service was told of (execgate-policyd --auditor). After a break it goes
on where it was, as soon as the service can be reached again.

Examples:
  execgate watch --service https://policy.example:50051 --service-token-file auditor.token
  execgate watch --service unix:/run/execgate/policy.sock --verdict deny
  execgate watch --label job=42 --latest 1000
  execgate watch --output json --after 0 | jq -r 'select(.change == \"finished\") | .exit_code'

Exit codes:
  0  standard output was closed
  1  the service failed, or a line couldn't be written
  2  the command line is wrong
  5  the service can't be reached, or doesn't take the credential
";

/// The command line of `watch`.
#[derive(Debug, Args)]
#[command(after_long_help = EXAMPLES)]
pub(super) struct WatchArguments {
    #[command(flatten)]
    filter: FilterArgs,

    /// Begin behind this position, as --output json writes it; 0 for all that is on record
    #[arg(long, value_name = "POSITION", conflicts_with = "latest")]
    after: Option<u64>,

    /// Begin with so many of the latest events, 100000 at most
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(..=100_000))]
    latest: Option<u32>,

    /// How to write: a line for each exec when it is decided, or a JSON object for each change of one
    #[arg(long, value_enum, default_value_t = WatchOutput::Text)]
    output: WatchOutput,

    /// When to use colours
    #[arg(long, value_enum, default_value_t = AuditColor::Auto)]
    color: AuditColor,

    #[command(flatten)]
    service: ServiceOptions,
}

/// How changes are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum WatchOutput {
    /// For people.
    Text,
    /// For programs.
    Json,
}

/// Why watching ends.
enum End {
    /// Nobody reads.
    Closed,
    Failed(Failure),
}

pub(super) fn watch(arguments: &WatchArguments) -> Result<c_int, Failure> {
    let caller = arguments.service.needed_caller()?;
    let mut watcher = Watcher {
        arguments,
        caller,
        colors: LineColors::of(arguments.color),
        start: match (arguments.after, arguments.latest) {
            (Some(position), _) => Some(watch_request::Start::AfterPosition(position)),
            (None, Some(latest)) => Some(watch_request::Start::LatestEvents(latest.into())),
            (None, None) => None,
        },
        has_begun: false,
    };
    let watching = async {
        tokio::select! {
            end = watcher.run() => end,
            () = nobody_reads() => End::Closed,
        }
    };
    match runtime()?.block_on(watching) {
        End::Closed => Ok(SUCCESS),
        End::Failed(failure) => Err(failure),
    }
}

/// Completes when the reader of standard output is gone, so that watching ends with it and not only at the next
/// exec. A file or a terminal has none.
async fn nobody_reads() {
    let output = io::stdout().as_fd().try_clone_to_owned();
    let watched = output.and_then(|output| readiness::watch(output, Interest::ERROR));
    let Ok(watched) = watched else {
        return std::future::pending().await;
    };
    loop {
        match watched.ready(Interest::ERROR).await {
            Ok(guard) if guard.ready().is_error() => return,
            Ok(mut guard) => guard.clear_ready(),
            Err(_) => return std::future::pending().await,
        }
    }
}

struct Watcher<'a> {
    arguments: &'a WatchArguments,
    caller: ServiceCaller,
    colors: LineColors,
    start: Option<watch_request::Start>,
    /// The service has taken a call: it is worth calling again.
    has_begun: bool,
}

impl Watcher<'_> {
    async fn run(&mut self) -> End {
        let mut pause = FIRST_PAUSE;
        loop {
            let before = self.start;
            let (hint, status) = match self.follow().await {
                Ok(end) => return end,
                Err(status) => (
                    Role::Auditor.after(&self.caller, &status),
                    self.caller.explain(status),
                ),
            };
            let may_pass = matches!(
                status.code(),
                Code::Unavailable
                    | Code::Unknown
                    | Code::Internal
                    | Code::Cancelled
                    | Code::DeadlineExceeded
                    | Code::ResourceExhausted
                    | Code::Aborted
            );
            let code = code_of(&status);
            let text = self.caller.describe(status);
            if !(self.has_begun && may_pass) {
                let mut failure = Failure::saying(format!("watching {text}")).exiting(code);
                failure.hint = hint;
                return End::Failed(failure);
            }
            if before != self.start {
                pause = FIRST_PAUSE;
            }
            tracing::warn!("watching broke off and goes on in {pause:?}; {text}");
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    async fn follow(&mut self) -> Result<End, Status> {
        let view = match self.arguments.output {
            WatchOutput::Text => ExecView::Basic,
            WatchOutput::Json => ExecView::Full,
        };
        let request = WatchRequest {
            start: self.start,
            filter: Some(self.arguments.filter.filter(None)),
            view: view.into(),
        };
        let request = self.caller.request(request, None).await?;
        let late = |what: &str| Status::deadline_exceeded(what.to_owned());
        let mut client = client(&self.caller);
        let called = tokio::time::timeout(PATIENCE, client.watch(request)).await;
        let called = called.map_err(|_| late("the service doesn't take the call"))??;
        let mut changes = called.into_inner();
        self.has_begun = true;
        loop {
            let next = tokio::time::timeout(SILENCE, changes.message()).await;
            let next = next.map_err(|_| late("nothing was heard from the service any more"))??;
            let response = next.ok_or_else(|| Status::unavailable("the service ended the call"))?;
            let position = response.position;
            if let Err(error) = self.write(response) {
                return Ok(match error.kind() {
                    io::ErrorKind::BrokenPipe => End::Closed,
                    _ => End::Failed(unwritten(&error)),
                });
            }
            self.start = Some(watch_request::Start::AfterPosition(position));
        }
    }

    fn write(&self, response: WatchResponse) -> io::Result<()> {
        let position = response.position;
        let mut out = io::stdout().lock();
        match (response.update, self.arguments.output) {
            (None, _) => Ok(()),
            (Some(watch_response::Update::EventsRemoved(removed)), WatchOutput::Text) => writeln!(
                out,
                "-- events up to position {} were removed for their age or for room --",
                removed.through_position
            ),
            (Some(watch_response::Update::EventsRemoved(removed)), WatchOutput::Json) => {
                let line = json!({ "removed_through_position": removed.through_position });
                writeln!(out, "{line}")
            }
            (Some(watch_response::Update::ExecChanged(changed)), output) => {
                let change = changed.change();
                let exec = changed.exec.unwrap_or_default();
                match output {
                    // Once each: when the gate has acted. What was never decided is told when that is known.
                    WatchOutput::Text
                        if matches!(change, ExecChange::Decided | ExecChange::Withdrawn) =>
                    {
                        writeln!(out, "{}", Line(&exec, self.colors))
                    }
                    WatchOutput::Text => Ok(()),
                    WatchOutput::Json => {
                        let name = change.as_str_name().trim_start_matches("EXEC_CHANGE_");
                        let name = name.to_ascii_lowercase();
                        // An object has at least one member, so what comes before joins with a comma.
                        let line = json_line(&exec);
                        let rest = line.strip_prefix('{').unwrap_or(&line);
                        writeln!(
                            out,
                            "{{\"change\":\"{name}\",\"change_position\":{position},{rest}"
                        )
                    }
                }
            }
        }
    }
}
