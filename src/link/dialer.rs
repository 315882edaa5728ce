use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;
use tonic::transport::{Channel, Endpoint as Transport};

use super::endpoint::{Endpoint, Pings, PrepareError};

/// Calls that are cut this close together were on one connection.
const ONE_CUT: Duration = Duration::from_secs(5);

/// After this many connections that were cut while they were quiet, pings are the likely reason.
const MOST_CUTS: u32 = 2;

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
    cuts: u32,
    last_cut: Option<Instant>,
}

impl Dialer {
    pub(super) fn new(endpoint: &Endpoint) -> Result<Self, PrepareError> {
        Ok(Self {
            often: endpoint.prepare(Pings::Often)?,
            seldom: endpoint.prepare(Pings::Seldom)?,
            current: Mutex::new(Current {
                pings: Pings::Often,
                channel: None,
                cuts: 0,
                last_cut: None,
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

impl Current {
    fn ping_seldom(&mut self) {
        if self.pings == Pings::Often {
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
        let dialer = Dialer::new(&endpoint).expect("a dialer");
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
