use std::time::Duration;

use tonic::{Code, Request};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;

use super::credentials::LinkCredentials;
use super::dialer::Dialer;
use super::driver::describe;
use super::endpoint::{Endpoint, Pings};
use super::obstacle::Obstacle;

/// Why a service doesn't take calls.
#[derive(Debug, thiserror::Error)]
#[error("{words}")]
pub struct ProbeError {
    words: String,
    /// What has to be changed, where that is known.
    pub obstacle: Option<Obstacle>,
}

impl ProbeError {
    fn saying(words: String) -> Self {
        Self {
            words,
            obstacle: None,
        }
    }
}

impl Endpoint {
    /// Tries whether a gRPC service there takes calls of a gate with these credentials, `within` at
    /// most.
    ///
    /// # Errors
    /// Why not.
    pub async fn probe(
        &self,
        credentials: &LinkCredentials,
        within: Duration,
    ) -> Result<(), ProbeError> {
        let dialer = Dialer::new(self, credentials, Pings::Often).map_err(|error| ProbeError {
            obstacle: Some(error.obstacle()),
            ..ProbeError::saying(error.to_string())
        })?;
        let call = async {
            let mut request = Request::new(HealthCheckRequest::default());
            dialer.authorize(request.metadata_mut()).await?;
            HealthClient::new(dialer.channel()).check(request).await
        };
        let called = tokio::time::timeout(within, call);
        match called.await {
            Err(_) => {
                let words = format!("no answer within {} s", within.as_secs());
                Err(ProbeError::saying(words))
            }
            Ok(Ok(_)) => Ok(()),
            // A service need not tell its health.
            Ok(Err(status)) => {
                let obstacle = dialer.obstacle(&status);
                match dialer.explain(status) {
                    status if matches!(status.code(), Code::Unimplemented | Code::NotFound) => {
                        Ok(())
                    }
                    status => Err(ProbeError {
                        obstacle,
                        ..ProbeError::saying(describe(&status))
                    }),
                }
            }
        }
    }
}
