//! Why `execgate-policyd` ends, and with which exit code.

use crate::logging::FilterError;
use crate::metrics::MetricsError;
use crate::policyd::listen::{self, ListenError};
use crate::policyd::rules::RulesError;
use crate::policyd::store::StoreError;
use crate::policyd::webhook::WebhookError;
use crate::transport::CredentialError;

/// Why the service didn't start, or didn't go on.
#[derive(Debug, thiserror::Error)]
pub enum PolicydError {
    /// The log filter is wrong.
    #[error("--log: {0}")]
    Log(#[from] FilterError),
    /// The rules can't be used.
    #[error(transparent)]
    Rules(#[from] RulesError),
    /// The store can't be used.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The address can't be listened at.
    #[error("{option}: {source}")]
    Listen {
        /// What named it.
        option: &'static str,
        /// Why.
        source: ListenError,
    },
    /// Numbers can't be served.
    #[error("--metrics: {0}: {cause}{advice}", cause = metrics_cause(.0), advice = listen::advice(metrics_cause(.0)))]
    Metrics(#[from] MetricsError),
    /// Certificates, keys or tokens can't be used.
    #[error("{option}: {source}")]
    Credentials {
        /// What named them.
        option: &'static str,
        /// Why.
        source: Box<CredentialError>,
    },
    /// Nobody else can be told of approvals.
    #[error(transparent)]
    Webhook(#[from] WebhookError),
    /// TLS is asked for where none is spoken.
    #[error("--tls-cert: a Unix socket needs no TLS; leave it out, or listen at HOST:PORT")]
    TlsOnSocket,
    /// The runtime can't be started.
    #[error("starting the runtime: {0}")]
    Runtime(#[source] std::io::Error),
    /// Signals can't be watched for.
    #[error("watching for signals: {0}")]
    Signals(#[source] std::io::Error),
    /// The reflection service can't be built.
    #[error("describing the service for reflection: {0}")]
    Reflection(#[source] tonic_reflection::server::Error),
    /// The address can't be announced.
    #[error("writing to standard output: {0}")]
    Announce(#[source] std::io::Error),
    /// Serving failed.
    #[error("serving: {0}")]
    Serve(#[source] tonic::transport::Error),
}

fn metrics_cause(error: &MetricsError) -> &std::io::Error {
    match error {
        MetricsError::Listen { source, .. } | MetricsError::Thread(source) => source,
    }
}

/// An address that can't be listened at, and the option that named it.
pub(super) fn listening(option: &'static str) -> impl FnOnce(ListenError) -> PolicydError {
    move |source| PolicydError::Listen { option, source }
}

/// Credentials that can't be used, and the option that named them.
pub(super) fn credentials(option: &'static str) -> impl FnOnce(CredentialError) -> PolicydError {
    move |source| PolicydError::Credentials {
        option,
        source: Box::new(source),
    }
}

impl PolicydError {
    /// The program's exit code for it.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Runtime(_)
            | Self::Signals(_)
            | Self::Reflection(_)
            | Self::Announce(_)
            | Self::Serve(_) => 1,
            Self::Log(_) | Self::TlsOnSocket | Self::Webhook(WebhookError::Url { .. }) => 2,
            Self::Rules(_) => 3,
            Self::Store(_) => 4,
            Self::Listen { .. } | Self::Metrics(_) => 5,
            Self::Credentials { .. } | Self::Webhook(WebhookError::Files(_)) => 6,
        }
    }
}
