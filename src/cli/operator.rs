//! How an operator's commands reach a policy service.

use std::ffi::c_int;
use std::io;
use std::time::{Duration, SystemTime};

use tonic::transport::Channel;
use tonic::{Code, Request, Status};

use super::Failure;
use super::remedy::Role;
use super::service::ServiceOptions;
use crate::link::ServiceCaller;

/// The result couldn't be written, or the service failed.
pub(super) const FAILED: c_int = 1;
/// The request makes no sense.
pub(super) const SENSELESS: c_int = 2;
/// Somebody or something else was first.
pub(super) const CLOSED_BEFORE: c_int = 3;
/// There is none of that name.
pub(super) const UNKNOWN: c_int = 4;
/// The service can't be reached, or doesn't take the credential.
pub(super) const REFUSED: c_int = 5;

/// How long a call may take, but for one that watches.
const PATIENCE: Duration = Duration::from_secs(30);

/// An operator's way to the service.
pub(super) struct Operator {
    caller: ServiceCaller,
    runtime: tokio::runtime::Runtime,
}

impl Operator {
    /// Makes no connection yet.
    pub(super) fn new(options: &ServiceOptions) -> Result<Self, Failure> {
        let caller = options.needed_caller()?;
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|error| Failure::new(&error).exiting(FAILED))?;
        Ok(Self { caller, runtime })
    }

    /// Makes one call.
    pub(super) fn call<M, R, F>(
        &self,
        message: M,
        call: impl FnOnce(Channel, Request<M>) -> F,
    ) -> Result<R, Failure>
    where
        F: Future<Output = Result<tonic::Response<R>, Status>>,
    {
        self.runtime.block_on(async {
            let called = async {
                let request = self.caller.request(message, None).await?;
                call(self.caller.channel(), request).await
            };
            match tokio::time::timeout(PATIENCE, called).await {
                Ok(Ok(response)) => Ok(response.into_inner()),
                Ok(Err(status)) => Err(self.failure(status)),
                Err(_) => Err(Failure::saying(format!(
                    "the policy service doesn't answer within {} s",
                    PATIENCE.as_secs()
                ))
                .exiting(REFUSED)
                .hint(Role::Operator.service())),
            }
        })
    }

    pub(super) fn block_on<T>(&self, future: impl Future<Output = T>) -> T {
        self.runtime.block_on(future)
    }

    pub(super) fn failure(&self, status: Status) -> Failure {
        let words = self.caller.describe(status.clone());
        let hint = Role::Operator.after(&self.caller, &status);
        let status = self.caller.explain(status);
        let mut failure = Failure::saying(match status.code() {
            Code::NotFound | Code::InvalidArgument => status.message().to_owned(),
            _ => format!("the policy service: {words}"),
        });
        failure.hint = hint;
        failure.exiting(match status.code() {
            Code::NotFound => UNKNOWN,
            Code::InvalidArgument => SENSELESS,
            _ => code_of(&status),
        })
    }
}

/// The exit code of a command whose call ended so.
pub(super) fn code_of(status: &Status) -> c_int {
    // An error of the connection has a cause here; what a service says comes without.
    let is_unreachable = std::error::Error::source(status).is_some();
    match status.code() {
        Code::Unimplemented
        | Code::Unauthenticated
        | Code::PermissionDenied
        | Code::DeadlineExceeded
        | Code::Unavailable => REFUSED,
        _ if is_unreachable => REFUSED,
        _ => FAILED,
    }
}

/// A time from now on in words, such as `4m 10s`.
pub(super) fn left(until: Option<prost_types::Timestamp>) -> String {
    let until = until.and_then(|time| SystemTime::try_from(time).ok());
    let left = until.and_then(|until| until.duration_since(SystemTime::now()).ok());
    let left = Duration::from_secs(left.unwrap_or_default().as_secs());
    humantime::format_duration(left).to_string()
}

/// Writes rows in columns, under a heading.
pub(super) fn table<const N: usize>(
    out: &mut dyn io::Write,
    heading: [&str; N],
    rows: &[[String; N]],
) -> io::Result<()> {
    use crate::policyd::text::width;
    let mut widths = heading.map(str::len);
    for row in rows {
        for (widest, cell) in widths.iter_mut().zip(row) {
            *widest = (*widest).max(width(cell));
        }
    }
    let heading = heading.map(str::to_owned);
    for row in std::iter::once(&heading).chain(rows) {
        let mut line = String::new();
        for (cell, widest) in row.iter().zip(widths) {
            line.push_str(cell);
            line.extend(std::iter::repeat_n(' ', widest - width(cell) + 2));
        }
        writeln!(out, "{}", line.trim_end())?;
    }
    Ok(())
}

/// Why a result couldn't be written.
pub(super) fn unwritten(error: &io::Error) -> Failure {
    Failure::saying(format!("writing the result: {error}")).exiting(FAILED)
}
