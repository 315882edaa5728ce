use std::sync::{Mutex, PoisonError};

use tonic::transport::{Channel, Endpoint as Transport};

use super::endpoint::{Endpoint, Pings, PrepareError};

/// Holds the connection that all sessions share.
#[derive(Debug)]
pub(super) struct Dialer {
    often: Transport,
    seldom: Transport,
    current: Mutex<Current>,
}

#[derive(Debug)]
struct Current {
    pings: Pings,
    /// Made at its first use, because that has to be inside a runtime.
    channel: Option<Channel>,
}

impl Dialer {
    pub(super) fn new(endpoint: &Endpoint) -> Result<Self, PrepareError> {
        Ok(Self {
            often: endpoint.prepare(Pings::Often)?,
            seldom: endpoint.prepare(Pings::Seldom)?,
            current: Mutex::new(Current {
                pings: Pings::Often,
                channel: None,
            }),
        })
    }

    /// The shared connection. It connects, and connects again, when it is used.
    pub(super) fn channel(&self) -> Channel {
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        let transport = match current.pings {
            Pings::Often => &self.often,
            Pings::Seldom => &self.seldom,
        };
        current
            .channel
            .get_or_insert_with(|| transport.connect_lazy())
            .clone()
    }

    /// Pings seldom from the next call on: the service ended the connection for its many pings.
    pub(super) fn ping_seldom(&self) {
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        if current.pings == Pings::Often {
            current.pings = Pings::Seldom;
            current.channel = None;
        }
    }
}
