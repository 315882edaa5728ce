use tonic::transport::Channel;
use tonic::{Request, Status};

use super::credentials::LinkCredentials;
use super::dialer::Dialer;
use super::driver::describe;
use super::endpoint::{Endpoint, Pings, PrepareError};

/// Calls of a policy service that belong to no session: an operator's.
#[derive(Debug)]
pub struct Caller {
    dialer: Dialer,
}

impl Caller {
    /// Makes no connection yet.
    ///
    /// # Errors
    /// When the credentials can't be used, or would cross the network in the clear.
    pub fn new(endpoint: &Endpoint, credentials: &LinkCredentials) -> Result<Self, PrepareError> {
        Dialer::new(endpoint, credentials, Pings::Often).map(|dialer| Self { dialer })
    }

    /// The connection. It connects when it is used; inside a runtime.
    pub fn channel(&self) -> Channel {
        self.dialer.channel()
    }

    /// A request that shows who makes it.
    ///
    /// # Errors
    /// When the token's file can't be read.
    pub async fn request<T>(&self, message: T) -> Result<Request<T>, Status> {
        let mut request = Request::new(message);
        self.dialer.authorize(request.metadata_mut()).await?;
        Ok(request)
    }

    /// Why a call failed, where the connection knows it better than its status; and the same in words,
    /// innermost cause last.
    pub fn explain(&self, status: Status) -> (Status, String) {
        let status = self.dialer.explain(status);
        let words = describe(&status);
        (status, words)
    }
}
