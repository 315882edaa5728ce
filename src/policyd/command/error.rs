//! Why `execgate-policyd` ends, and with which exit code.

use crate::metrics::MetricsError;
use crate::policyd::listen::ListenError;
use crate::policyd::rules::RulesError;
use crate::policyd::store::StoreError;
use crate::policyd::webhook::WebhookError;
use crate::transport::CredentialError;

/// Why the service didn't start, or didn't go on.
#[derive(Debug, thiserror::Error)]
pub enum PolicydError {
    /// The log filter is wrong.
    #[error("reading --log {filter:?}: {source}")]
    Log {
        /// The filter.
        filter: String,
        /// Why.
        source: tracing_subscriber::filter::ParseError,
    },
    /// The rules can't be used.
    #[error(transparent)]
    Rules(#[from] RulesError),
    /// The store can't be used.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The address can't be listened at.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// Numbers can't be served.
    #[error("--metrics: {0}: {source}", source = std::error::Error::source(.0).map(ToString::to_string).unwrap_or_default())]
    Metrics(#[from] MetricsError),
    /// Certificates, keys or tokens can't be used.
    #[error(transparent)]
    Credentials(#[from] CredentialError),
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

impl PolicydError {
    /// The program's exit code for it.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Runtime(_)
            | Self::Signals(_)
            | Self::Reflection(_)
            | Self::Announce(_)
            | Self::Serve(_) => 1,
            Self::Log { .. } | Self::TlsOnSocket | Self::Webhook(WebhookError::Url { .. }) => 2,
            Self::Rules(_) => 3,
            Self::Store(_) => 4,
            Self::Listen(_) | Self::Metrics(_) => 5,
            Self::Credentials(_) | Self::Webhook(WebhookError::Files(_)) => 6,
        }
    }
}
