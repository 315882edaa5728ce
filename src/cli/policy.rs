//! How the command line names a policy service, and what the gate shows it.

use std::path::PathBuf;

use clap::Args;

use super::Failure;
use crate::link::{CertificateFiles, Endpoint, LinkCredentials, Plaintext};

/// Variables that begin so are the gate's own, or an auditor's, and no session's.
pub(super) const GATES_OWN: [&str; 2] = ["EXECGATE_POLICY_", "EXECGATE_SERVICE"];

/// Where a policy service is, what the gate shows it, and asks of it.
#[derive(Debug, Args)]
#[command(next_help_heading = "Policy service")]
pub(super) struct PolicyOptions {
    /// Where the policy service is: http://HOST:PORT, https://HOST:PORT or unix:/PATH. May be repeated, or
    /// a list with commas: the first is preferred, the others are tried in order where it can't be reached
    #[arg(
        long,
        value_name = "URL",
        env = "EXECGATE_POLICY",
        value_delimiter = ','
    )]
    policy: Vec<String>,

    /// Certificates in PEM to trust the policy service by, instead of the system's
    #[arg(long, value_name = "FILE", env = "EXECGATE_POLICY_CA")]
    policy_ca: Option<PathBuf>,

    /// Certificate in PEM to show the policy service
    #[arg(
        long,
        value_name = "FILE",
        env = "EXECGATE_POLICY_CERT",
        requires = "policy_key"
    )]
    policy_cert: Option<PathBuf>,

    /// Private key of that certificate, in PEM; a file that no other user can read
    #[arg(
        long,
        value_name = "FILE",
        env = "EXECGATE_POLICY_KEY",
        requires = "policy_cert"
    )]
    policy_key: Option<PathBuf>,

    /// File of a token to show the policy service; no other user can read it
    #[arg(long, value_name = "FILE", env = "EXECGATE_POLICY_TOKEN_FILE")]
    policy_token_file: Option<PathBuf>,

    /// User id of the policy service behind a unix: socket, besides root's and one's own; may be repeated
    #[arg(
        long = "policy-uid",
        value_name = "UID",
        env = "EXECGATE_POLICY_UID",
        value_delimiter = ','
    )]
    policy_uids: Vec<u32>,

    /// Allow http:// to other hosts: whoever stands between can read commands and tokens, and forge
    /// verdicts
    #[arg(long)]
    insecure_policy: bool,
}

impl PolicyOptions {
    /// Where the policy service is, as it was named: a variable that is set to nothing isn't a choice.
    pub(super) fn named(&self) -> impl Iterator<Item = &str> {
        let names = self.policy.iter().map(|name| name.trim());
        names.filter(|name| !name.is_empty())
    }

    /// The same, understood.
    pub(super) fn endpoints(&self) -> Result<Vec<Endpoint>, Failure> {
        self.named()
            .map(|name| name.parse().map_err(|error| Failure::new(&error)))
            .collect::<Result<_, _>>()
    }

    /// What is the gate's own, and no session's to see: keys, tokens, and sockets of policy services.
    pub(super) fn own_files(&self) -> impl Iterator<Item = PathBuf> {
        let sockets = self.named().filter_map(|name| name.strip_prefix("unix:"));
        let files = [&self.policy_key, &self.policy_token_file]
            .into_iter()
            .flatten()
            .cloned();
        let named: Vec<_> = sockets.map(PathBuf::from).chain(files).collect();
        named
            .into_iter()
            .filter_map(|path| std::path::absolute(path).ok())
    }

    pub(super) fn credentials(&self) -> LinkCredentials {
        Shown {
            ca: &self.policy_ca,
            certificate: &self.policy_cert,
            key: &self.policy_key,
            token: &self.policy_token_file,
            uids: &self.policy_uids,
            is_insecure: self.insecure_policy,
        }
        .credentials()
    }
}

/// What is shown to a service and asked of it, whatever its options are called.
pub(super) struct Shown<'a> {
    pub(super) ca: &'a Option<PathBuf>,
    pub(super) certificate: &'a Option<PathBuf>,
    pub(super) key: &'a Option<PathBuf>,
    pub(super) token: &'a Option<PathBuf>,
    pub(super) uids: &'a [u32],
    pub(super) is_insecure: bool,
}

impl Shown<'_> {
    pub(super) fn credentials(&self) -> LinkCredentials {
        let pair = self.certificate.clone().zip(self.key.clone());
        LinkCredentials {
            ca: self.ca.clone(),
            certificate: pair.map(|(certificate, key)| CertificateFiles { certificate, key }),
            token: self.token.clone(),
            service_uids: self.uids.to_vec(),
            plaintext: if self.is_insecure {
                Plaintext::Anywhere
            } else {
                Plaintext::OnLoopback
            },
        }
    }
}
