//! `execgate audit`, of a directory or by asking a policy service.

use std::ffi::c_int;
use std::io::{self, Write};
use std::time::Duration;

use clap::Args;
use tokio::runtime::Runtime;
use tonic::{Code, Status};

use super::remedy::Role;
use super::service::ServiceOptions;
use super::{Failure, SUCCESS};
use crate::link::ServiceCaller;
use crate::pb::audit::v1::audit_service_client::AuditServiceClient;
use crate::pb::audit::v1::{
    Exec, ExecFilter, ExecView, GetHeadRequest, GetSessionRequest, ListRequest, ListResponse,
    Session, WatchRequest, watch_request, watch_response,
};
use crate::policyd::audit::{self, AuditError, Record};
use tonic::transport::Channel;

/// Largest answer, in bytes: an exec can have arguments of 16 MiB.
pub(super) const MOST_ANSWER: usize = 32 << 20;
/// How long one question may take.
const PATIENCE: Duration = Duration::from_secs(60);

/// The command line of `audit`.
#[derive(Debug, Args)]
pub(super) struct AuditArguments {
    #[command(flatten)]
    audit: audit::AuditArgs,

    #[command(flatten)]
    service: ServiceOptions,
}

pub(super) fn audit(arguments: &AuditArguments) -> Result<c_int, Failure> {
    let failed = |error: AuditError| {
        let mut failure = Failure::new(&error).exiting(error.exit_code().into());
        failure.hint = error.hint().map(str::to_owned);
        failure
    };
    let out = &mut io::BufWriter::new(io::stdout());
    let data = arguments.audit.data.as_deref();
    let service = &arguments.service;
    let caller = service.caller_unless("--data", data, "EXECGATE_POLICYD_DATA")?;
    let done = match (&arguments.audit.command, caller) {
        (None, Some(caller)) => {
            let mut record = RemoteRecord::new(caller)?;
            audit::list(&arguments.audit, &mut record, out)
        }
        _ => audit::run(&arguments.audit, out),
    };
    // What was found is said even where something is wrong with it.
    let written = out.flush().map_err(AuditError::from);
    done.and(written).map_err(failed)?;
    Ok(SUCCESS)
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
