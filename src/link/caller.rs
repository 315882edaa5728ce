use std::time::Duration;

use tonic::transport::Channel;
use tonic::{Request, Status};

use super::credentials::LinkCredentials;
use super::dialer::Dialer;
use super::driver::describe;
use super::endpoint::{Endpoint, Pings, PrepareError};
use super::obstacle::Obstacle;

/// Calls a service for somebody who isn't a gate: an operator, an auditor.
#[derive(Debug)]
pub struct ServiceCaller {
    dialer: Dialer,
}

impl Endpoint {
    /// Prepares calls to a service there, with these credentials.
    ///
    /// # Errors
    /// Where connections can't be prepared: a file of the credentials can't be used, or the calls would cross the
    /// network in the clear.
    pub fn caller(&self, credentials: &LinkCredentials) -> Result<ServiceCaller, PrepareError> {
        Ok(ServiceCaller {
            dialer: Dialer::new(self, credentials, Pings::Seldom)?,
        })
    }
}

impl ServiceCaller {
    /// The connection. It connects, and connects again, when it is used. To be called inside a runtime.
    pub fn channel(&self) -> Channel {
        self.dialer.channel()
    }

    /// A request that shows who calls; with a token as its file has it now. `within`: how long the call may
    /// take, if not however long.
    ///
    /// # Errors
    /// Where the token's file can't be used.
    pub async fn request<T>(
        &self,
        message: T,
        within: Option<Duration>,
    ) -> Result<Request<T>, Status> {
        let mut request = Request::new(message);
        self.dialer.authorize(request.metadata_mut()).await?;
        if let Some(within) = within {
            request.set_timeout(within);
        }
        Ok(request)
    }

    /// What became of a call that failed, as the connection knows it.
    pub fn explain(&self, status: Status) -> Status {
        self.dialer.explain(status)
    }

    /// What has to be changed for such a call, where the connection knows it.
    pub fn obstacle(&self, status: &Status) -> Option<Obstacle> {
        self.dialer.obstacle(status)
    }

    /// What became of it, in words, and which service it was.
    pub fn describe(&self, status: Status) -> String {
        let words = describe(&self.dialer.explain(status));
        format!("{}: {words}", self.dialer.endpoint())
    }
}
