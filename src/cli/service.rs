//! How the command line names a policy service for operators and auditors, and what they show it.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use clap::Args;

use super::policy::Shown;
use super::remedy::Role;
use super::{Failure, output};
use crate::link::{Endpoint, ServiceCaller};

/// Where a policy service is, and what an operator or auditor shows it. A gate's credentials are others.
#[derive(Debug, Args)]
#[command(next_help_heading = "Policy service")]
pub(super) struct ServiceOptions {
    /// Policy service to ask: http://HOST:PORT, https://HOST:PORT or unix:/PATH
    #[arg(long, value_name = "URL", env = "EXECGATE_SERVICE")]
    pub(super) service: Option<String>,

    /// Certificates in PEM to trust the service by, instead of the system's
    #[arg(long, value_name = "FILE", env = "EXECGATE_SERVICE_CA")]
    service_ca: Option<PathBuf>,

    /// Certificate in PEM to show the service
    #[arg(
        long,
        value_name = "FILE",
        env = "EXECGATE_SERVICE_CERT",
        requires = "service_key"
    )]
    service_cert: Option<PathBuf>,

    /// Private key of that certificate, in PEM; a file that no other user can read
    #[arg(
        long,
        value_name = "FILE",
        env = "EXECGATE_SERVICE_KEY",
        requires = "service_cert"
    )]
    service_key: Option<PathBuf>,

    /// File of a token to show the service; no other user can read it
    #[arg(long, value_name = "FILE", env = "EXECGATE_SERVICE_TOKEN_FILE")]
    service_token_file: Option<PathBuf>,

    /// User id of the service behind a unix: socket, besides root's and one's own; may be repeated
    #[arg(
        long = "service-uid",
        value_name = "UID",
        env = "EXECGATE_SERVICE_UID",
        value_delimiter = ','
    )]
    service_uids: Vec<u32>,

    /// Allow http:// to other hosts: whoever stands between can read all commands and the token, and decide with it
    #[arg(long)]
    insecure_service: bool,
}

impl ServiceOptions {
    /// What calls the service, unless the command line says to read `place` instead, the value of `option`: a service
    /// that only the environment names doesn't count then.
    pub(super) fn caller_unless(
        &self,
        option: &str,
        place: Option<&Path>,
        variable: &str,
    ) -> Result<Option<ServiceCaller>, Failure> {
        let is_said = |value: Option<&OsStr>, variable: &str| {
            value.is_some() && std::env::var_os(variable).as_deref() != value
        };
        if !is_said(place.map(Path::as_os_str), variable) {
            return self.caller();
        }
        if is_said(self.service.as_deref().map(OsStr::new), "EXECGATE_SERVICE") {
            let message =
                format!("{option} and --service both say where the record is: give one of them");
            return Err(Failure::saying(message).exiting(super::USAGE));
        }
        Ok(None)
    }

    /// What calls the service; `None` where none is named. Whatever that does to a connection, it doesn't end
    /// this process.
    pub(super) fn caller(&self) -> Result<Option<ServiceCaller>, Failure> {
        let named = self.service.as_deref().map(str::trim);
        let Some(name) = named.filter(|name| !name.is_empty()) else {
            return Ok(None);
        };
        let endpoint: Endpoint = name
            .parse()
            .map_err(|error| Failure::new(&error).exiting(super::USAGE))?;
        let shown = Shown {
            ca: &self.service_ca,
            certificate: &self.service_cert,
            key: &self.service_key,
            token: &self.service_token_file,
            uids: &self.service_uids,
            is_insecure: self.insecure_service,
        };
        let caller = endpoint.caller(&shown.credentials());
        let caller = caller.map_err(|error| {
            let failure = Role::Operator.unprepared(&error);
            failure.exiting(super::USAGE)
        })?;
        output::survive_connections();
        Ok(Some(caller))
    }

    /// What calls the service that has to be named.
    pub(super) fn needed_caller(&self) -> Result<ServiceCaller, Failure> {
        self.caller()?.ok_or_else(|| {
            Failure::saying("no policy service is named")
                .exiting(super::USAGE)
                .hint("give --service URL, or set EXECGATE_SERVICE")
        })
    }
}
