use std::error::Error as _;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;
use tonic::metadata::MetadataMap;
use tonic::transport::Channel;
use tonic::{Code, Status};

use super::connector::{ConnectError, Connector, Objection, Refusal};
use super::credentials::{CredentialFiles, LinkCredentials};
use super::endpoint::{Endpoint, Pings, PrepareError};
use super::obstacle::Obstacle;

/// Calls that are cut this close together were on one connection.
const ONE_CUT: Duration = Duration::from_secs(5);

/// After this many connections that were cut while they were quiet, pings are the likely reason.
const MOST_CUTS: u32 = 2;

/// Holds the connection to an endpoint that all sessions share.
#[derive(Debug)]
pub(super) struct Dialer {
    endpoint: Endpoint,
    connector: Connector,
    files: Arc<CredentialFiles>,
    current: Mutex<Current>,
}

#[derive(Debug)]
struct Current {
    pings: Pings,
    /// Made at its first use, because that has to be inside a runtime.
    channel: Option<Channel>,
    cuts: u32,
    last_cut: Option<Instant>,
}

impl Dialer {
    pub(super) fn new(
        endpoint: &Endpoint,
        credentials: &LinkCredentials,
        pings: Pings,
    ) -> Result<Self, PrepareError> {
        let (connector, files) = endpoint.connector(credentials)?;
        Ok(Self {
            endpoint: endpoint.clone(),
            connector,
            files,
            current: Mutex::new(Current {
                pings,
                channel: None,
                cuts: 0,
                last_cut: None,
            }),
        })
    }

    /// The shared connection. It connects, and connects again, when it is used.
    pub(super) fn channel(&self) -> Channel {
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        let pings = current.pings;
        current
            .channel
            .get_or_insert_with(|| {
                let transport = self.endpoint.transport(pings);
                transport.connect_with_connector_lazy(self.connector.clone())
            })
            .clone()
    }

    /// Shows the service who the gate is, with a token as its file has it now.
    pub(super) async fn authorize(&self, metadata: &mut MetadataMap) -> Result<(), Status> {
        if self.files.named().token.is_none() {
            return Ok(());
        }
        let files = Arc::clone(&self.files);
        let read = tokio::task::spawn_blocking(move || files.authorization()).await;
        let read = read.map_err(|error| Status::internal(error.to_string()))?;
        let token = read.map_err(|error| Status::from_error(ConnectError::from(error).into()))?;
        if let Some(token) = token {
            metadata.insert("authorization", token);
        }
        Ok(())
    }

    /// Says of a call that failed why, where the connection knows it better; and that trying again soon
    /// is useless, where it is.
    pub(super) fn explain(&self, status: Status) -> Status {
        match self.objection(&status) {
            // A proxy may answer so while the service behind it is away.
            Some(objection) if objection.obstacle == Some(Obstacle::NoService) => {
                Status::unavailable(objection.to_string())
            }
            Some(objection) => Status::unauthenticated(objection.to_string()),
            None => status,
        }
    }

    /// What has to be changed for such a call, where that is known. To be asked before
    /// [`explain`](Self::explain).
    pub(super) fn obstacle(&self, status: &Status) -> Option<Obstacle> {
        match self.objection(status) {
            Some(objection) => objection.obstacle,
            None if connect_error(status).is_some() => Some(Obstacle::Unreachable),
            None => matches!(
                status.code(),
                Code::Unauthenticated | Code::PermissionDenied
            )
            .then_some(Obstacle::CallerRefused),
        }
    }

    fn objection(&self, status: &Status) -> Option<Objection> {
        // Without a source it is the service's own word.
        status.source()?;
        match connect_error(status) {
            Some(error) => error.objection(),
            None => self.connector.refusal.get(),
        }
    }

    /// What is wrong with the connection of the moment, as long as that is asked for.
    pub(super) fn refusal(&self) -> Refusal {
        self.connector.refusal.clone()
    }

    /// What it calls, as it is named.
    pub(super) fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// Between pings while nothing else is heard.
    pub(super) fn ping_interval(&self) -> Duration {
        let current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        current.pings.interval()
    }

    /// Pings seldom from the next call on: the service ended the connection for its many pings.
    pub(super) fn ping_seldom(&self) {
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        current.ping_seldom();
    }

    /// The connection was cut when there had been nothing but pings for a while. Most services that
    /// object to those do just that: the reason they give doesn't reach the calls of the connection.
    pub(super) fn cut_while_quiet(&self, now: Instant) {
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        let last_cut = current.last_cut.replace(now);
        if last_cut.is_some_and(|last| now.saturating_duration_since(last) < ONE_CUT) {
            return;
        }
        current.cuts += 1;
        if current.cuts >= MOST_CUTS {
            current.ping_seldom();
        }
    }
}

/// Why there was no connection for the call, if that is why it failed.
fn connect_error(status: &Status) -> Option<&ConnectError> {
    let mut source = status.source();
    while let Some(error) = source {
        if let Some(error) = error.downcast_ref() {
            return Some(error);
        }
        source = error.source();
    }
    None
}

impl Current {
    fn ping_seldom(&mut self) {
        if self.pings != Pings::Seldom {
            self.pings = Pings::Seldom;
            self.channel = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_cuts_apart_from_each_other_make_pings_seldom() {
        let endpoint = "http://127.0.0.1:1".parse().expect("an endpoint");
        let dialer =
            Dialer::new(&endpoint, &LinkCredentials::default(), Pings::Often).expect("a dialer");
        let pings = || dialer.current.lock().expect("no panic").pings;
        let now = Instant::now();
        dialer.cut_while_quiet(now);
        // Another session's call on the same connection.
        dialer.cut_while_quiet(now + Duration::from_secs(1));
        assert_eq!(pings(), Pings::Often);
        dialer.cut_while_quiet(now + Duration::from_secs(20));
        assert_eq!(pings(), Pings::Seldom);
    }
}
