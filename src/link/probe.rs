use std::time::Duration;

use tonic::{Code, Request};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;

use super::credentials::LinkCredentials;
use super::dialer::Dialer;
use super::driver::describe;
use super::endpoint::{Endpoint, Pings};

impl Endpoint {
    /// Tries whether a gRPC service there takes calls of a gate with these credentials, `within` at
    /// most.
    ///
    /// # Errors
    /// Why not, in words, innermost cause last.
    pub async fn probe(
        &self,
        credentials: &LinkCredentials,
        within: Duration,
    ) -> Result<(), String> {
        let dialer =
            Dialer::new(self, credentials, Pings::Often).map_err(|error| error.to_string())?;
        let call = async {
            let mut request = Request::new(HealthCheckRequest::default());
            dialer.authorize(request.metadata_mut()).await?;
            HealthClient::new(dialer.channel()).check(request).await
        };
        let called = tokio::time::timeout(within, call);
        match called.await {
            Err(_) => Err(format!("no answer within {} s", within.as_secs())),
            Ok(Ok(_)) => Ok(()),
            // A service need not tell its health.
            Ok(Err(status)) => match dialer.explain(status) {
                status if matches!(status.code(), Code::Unimplemented | Code::NotFound) => Ok(()),
                status => Err(describe(&status)),
            },
        }
    }
}
