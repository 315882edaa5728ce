//! `execgate audit`, of a directory or by asking a policy service.

use std::ffi::c_int;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, Subcommand};
use tokio::runtime::Runtime;
use tonic::{Code, Status};

use super::output;
use super::remedy::Role;
use super::service::ServiceOptions;
use super::{Failure, SUCCESS};
use crate::link::ServiceCaller;
use crate::pb::audit::v1::audit_service_client::AuditServiceClient;
use crate::pb::audit::v1::{
    Exec, ExecFilter, ExecView, GetHeadRequest, GetSessionRequest, ListRequest, ListResponse,
    Session, WatchRequest, watch_request, watch_response,
};
use crate::policyd::audit::{self, AuditError, LocalRecord, Record, VerifyArgs};
use crate::policyd::store::Link;
use tonic::transport::Channel;

/// Largest answer, in bytes: an exec can have arguments of 16 MiB.
pub(super) const MOST_ANSWER: usize = 32 << 20;
/// How long one question may take.
const PATIENCE: Duration = Duration::from_secs(60);

/// The command line of `audit`.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(super) struct AuditArguments {
    /// What to do instead of listing.
    #[command(subcommand)]
    command: Option<Command>,

    #[command(flatten)]
    audit: audit::AuditArgs,

    #[command(flatten)]
    service: ServiceOptions,
}

/// What `audit` does besides listing.
#[derive(Debug, Subcommand)]
enum Command {
    /// Prove that no event on record was altered or removed.
    Verify(VerifyArgs),
    /// Print the last event's position and hash, to be noted where nobody who can write the store can change it.
    Head(HeadArguments),
}

/// The command line of `audit head`.
#[derive(Debug, Args)]
#[command(after_long_help = "Exit codes:\n\
        \x20 0  printed\n\
        \x20 1  the store can't be read, or the head can't be written\n\
        \x20 2  there is no store there, or the command line is wrong\n\
        \x20 5  the service can't be reached, fails, or doesn't take the credential")]
struct HeadArguments {
    /// Directory of the event store, as execgate-policyd has it.
    #[arg(long, value_name = "DIR", env = "EXECGATE_POLICYD_DATA")]
    data: Option<PathBuf>,

    #[command(flatten)]
    service: ServiceOptions,
}

pub(super) fn audit(arguments: &AuditArguments) -> Result<c_int, Failure> {
    let out = &mut io::BufWriter::new(output::stdout());
    let done = match &arguments.command {
        None => {
            let data = arguments.audit.data.as_deref();
            let mut record = record(data, &arguments.service)?;
            audit::list(&arguments.audit, &mut *record, out)
        }
        Some(Command::Head(head)) => {
            let mut record = record(head.data.as_deref(), &head.service)?;
            audit::head(&mut *record, out)
        }
        Some(Command::Verify(arguments)) => audit::verify(arguments, out),
    };
    // What was found is said even where something is wrong with it.
    let written = out.flush().map_err(AuditError::from);
    done.and(written).map_err(|error| failed(&error))?;
    Ok(SUCCESS)
}

fn failed(error: &AuditError) -> Failure {
    let mut failure = Failure::new(error).exiting(error.exit_code().into());
    failure.hint = error.hint().map(str::to_owned);
    failure
}

/// The record that the command line names: of a directory, or a policy service's.
fn record(data: Option<&Path>, service: &ServiceOptions) -> Result<Box<dyn Record>, Failure> {
    let caller = service.caller_unless("--data", data, "EXECGATE_POLICYD_DATA")?;
    Ok(match (caller, data) {
        (Some(caller), _) => Box::new(RemoteRecord::new(caller)?),
        (None, Some(data)) => Box::new(LocalRecord::open(data).map_err(|error| failed(&error))?),
        (None, None) => return Err(failed(&AuditError::NoSource)),
    })
}

/// A runtime for one thread of calls.
pub(super) fn runtime() -> Result<Runtime, Failure> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::saying(format!("cannot start: {error}")))
}

/// A client on the caller's connection. To be called inside a runtime.
pub(super) fn client(caller: &ServiceCaller) -> AuditServiceClient<Channel> {
    AuditServiceClient::new(caller.channel()).max_decoding_message_size(MOST_ANSWER)
}

/// The record as a policy service tells it.
pub(super) struct RemoteRecord {
    caller: ServiceCaller,
    runtime: Runtime,
}

impl RemoteRecord {
    pub(super) fn new(caller: ServiceCaller) -> Result<Self, Failure> {
        Ok(Self {
            caller,
            runtime: runtime()?,
        })
    }

    fn failed(&self, status: Status) -> AuditError {
        AuditError::Service {
            hint: Role::Auditor.after(&self.caller, &status),
            message: format!("asking the policy service {}", self.caller.describe(status)),
        }
    }
}

impl Record for RemoteRecord {
    fn list(&mut self, request: &ListRequest) -> Result<ListResponse, AuditError> {
        let asked = self.runtime.block_on(async {
            let request = self.caller.request(request.clone(), Some(PATIENCE)).await?;
            client(&self.caller).list(request).await
        });
        match asked {
            Ok(response) => Ok(response.into_inner()),
            Err(status) => Err(self.failed(status)),
        }
    }

    fn session(&mut self, id: &str) -> Result<Option<Session>, AuditError> {
        let request = GetSessionRequest {
            session_id: id.to_owned(),
            page_size: 1,
            ..GetSessionRequest::default()
        };
        let asked = self.runtime.block_on(async {
            let request = self.caller.request(request, Some(PATIENCE)).await?;
            client(&self.caller).get_session(request).await
        });
        match asked {
            Ok(response) => Ok(response.into_inner().session),
            Err(status) if status.code() == Code::NotFound => Ok(None),
            Err(status) => Err(self.failed(status)),
        }
    }

    fn head(&mut self) -> Result<Link, AuditError> {
        let asked = self.runtime.block_on(async {
            let request = self
                .caller
                .request(GetHeadRequest {}, Some(PATIENCE))
                .await?;
            client(&self.caller).get_head(request).await
        });
        let told = match asked {
            Ok(response) => response.into_inner().head.unwrap_or_default(),
            Err(status) => return Err(self.failed(status)),
        };
        let position = i64::try_from(told.position).ok();
        let hash = <[u8; 32]>::try_from(&told.hash[..]).ok();
        match (position, hash) {
            (Some(position), Some(hash)) => Ok(Link { position, hash }),
            _ => Err(AuditError::Service {
                message: "the policy service doesn't tell where its record ends: it has no hash of 32 bytes".to_owned(),
                hint: None,
            }),
        }
    }

    fn export(
        &mut self,
        filter: &ExecFilter,
        take: &mut dyn FnMut(&Exec) -> Result<(), AuditError>,
    ) -> Result<(), AuditError> {
        let request = WatchRequest {
            start: Some(watch_request::Start::AfterPosition(0)),
            filter: Some(filter.clone()),
            view: ExecView::Full.into(),
        };
        self.runtime.block_on(async {
            let began: Result<_, Status> = async {
                let asking = self
                    .caller
                    .request(GetHeadRequest {}, Some(PATIENCE))
                    .await?;
                let head = client(&self.caller)
                    .get_head(asking)
                    .await?
                    .into_inner()
                    .head;
                let asking = self.caller.request(request, None).await?;
                let changes = client(&self.caller).watch(asking).await?.into_inner();
                Ok((head.unwrap_or_default().position, changes))
            }
            .await;
            let (last, mut changes) = began.map_err(|status| self.failed(status))?;
            let mut reached = 0;
            while reached < last {
                let next = changes
                    .message()
                    .await
                    .map_err(|status| self.failed(status))?;
                let Some(response) = next else {
                    return Err(AuditError::Service {
                        message: "the policy service ended the list before its end".to_owned(),
                        hint: Some("ask again".to_owned()),
                    });
                };
                if let Some(watch_response::Update::EventsRemoved(removed)) = &response.update
                    && reached > 0
                {
                    let through = removed.through_position;
                    return Err(AuditError::Overtaken(through.cast_signed()));
                }
                reached = response.position;
                if let Some(watch_response::Update::ExecChanged(changed)) = response.update
                    && let Some(exec) = changed.exec
                    && exec.position == response.position
                    && reached <= last
                {
                    take(&exec)?;
                }
            }
            Ok(())
        })
    }
}
