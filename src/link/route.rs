use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use super::dialer::Dialer;
use super::endpoint::{Pings, PrepareError};
use super::options::LinkOptions;
use crate::pb::Reconnect;

/// How long an endpoint that failed is tried after the others only: what one session has found out
/// the next need not find out again, which may take as long as a verdict may.
const REST: Duration = Duration::from_secs(10);

/// The endpoints of a policy service, in the order in which they are preferred.
///
/// A session calls the first that isn't resting. Where a call fails or ends the session goes on to the
/// next at once; when all have been tried it waits, and begins anew with the first. So sessions come
/// back to the first when they begin and when they have to call again, and a call that works is never
/// ended for that.
#[derive(Debug)]
pub(super) struct Route {
    stops: Vec<Stop>,
}

#[derive(Debug)]
struct Stop {
    dialer: Dialer,
    resting_until: Mutex<Option<Instant>>,
}

/// What a session has tried since it last waited or had a good call.
#[derive(Debug)]
pub(super) struct Round {
    tried: Vec<usize>,
    /// The most hopeful of what the ends of these calls said.
    next: Reconnect,
}

/// Whether there are endpoints that a session hasn't tried in its round.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Others {
    /// There are: call at once.
    Untried,
    /// There are none: wait, and begin anew.
    AllTried,
}

impl Route {
    pub(super) fn new(options: &LinkOptions) -> Result<Self, PrepareError> {
        let endpoints = std::iter::once(&options.endpoint).chain(&options.further_endpoints);
        // With nobody else to turn to it is of little use to know sooner.
        let pings = if options.further_endpoints.is_empty() {
            Pings::Often
        } else {
            Pings::VeryOften
        };
        let stops = endpoints.map(|endpoint| {
            Ok(Stop {
                dialer: Dialer::new(endpoint, &options.credentials, pings)?,
                resting_until: Mutex::default(),
            })
        });
        Ok(Self {
            stops: stops.collect::<Result<_, _>>()?,
        })
    }

    /// The endpoint to call next; `None` only where there is none at all.
    pub(super) fn next(&self, round: &Round, now: Instant) -> Option<(usize, &Dialer)> {
        let untried = || {
            self.stops
                .iter()
                .enumerate()
                .filter(|(place, _)| !round.tried.contains(place))
        };
        untried()
            .find(|(_, stop)| !stop.is_resting(now))
            .or_else(|| untried().next())
            .or_else(|| self.stops.iter().enumerate().next())
            .map(|(place, stop)| (place, &stop.dialer))
    }

    /// Has an endpoint be tried after the others for a while.
    pub(super) fn rest(&self, place: usize, now: Instant) {
        self.set_resting(place, Some(now + REST));
    }

    /// The endpoint has answered.
    pub(super) fn answered(&self, place: usize) {
        self.set_resting(place, None);
    }

    fn set_resting(&self, place: usize, until: Option<Instant>) {
        if let Some(stop) = self.stops.get(place) {
            *stop.lock() = until;
        }
    }

    /// Notes the end of a call, in the round that it belongs to.
    pub(super) fn tried(&self, round: &mut Round, place: usize, next: Reconnect) -> Others {
        if !round.tried.contains(&place) {
            round.tried.push(place);
        }
        if next == Reconnect::Soon {
            round.next = Reconnect::Soon;
        }
        if round.tried.len() < self.stops.len() {
            Others::Untried
        } else {
            Others::AllTried
        }
    }
}

impl Stop {
    fn is_resting(&self, now: Instant) -> bool {
        self.lock().is_some_and(|until| now < until)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Option<Instant>> {
        self.resting_until
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

impl Round {
    pub(super) fn new() -> Self {
        Self {
            tried: Vec::new(),
            next: Reconnect::AtLongestInterval,
        }
    }

    /// When to begin the next round.
    pub(super) fn next(&self) -> Reconnect {
        self.next
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn route() -> Route {
        let endpoint = |port| format!("http://127.0.0.1:{port}").parse().expect("valid");
        let mut options = LinkOptions::new(endpoint(1));
        options.further_endpoints = vec![endpoint(2), endpoint(3)];
        Route::new(&options).expect("a route")
    }

    fn place(route: &Route, round: &Round, now: Instant) -> usize {
        route.next(round, now).expect("an endpoint").0
    }

    #[test]
    fn endpoints_are_tried_in_order_and_then_from_the_first() {
        let (route, now) = (route(), Instant::now());
        let mut round = Round::new();
        for expected in 0..3 {
            assert_eq!(place(&route, &round, now), expected);
            let others = route.tried(&mut round, expected, Reconnect::AtLongestInterval);
            assert_eq!(others == Others::AllTried, expected == 2);
        }
        assert_eq!(round.next(), Reconnect::AtLongestInterval);
        assert_eq!(place(&route, &Round::new(), now), 0);
    }

    #[test]
    fn one_that_rests_comes_after_the_others_and_is_the_first_again_later() {
        let (route, now) = (route(), Instant::now());
        let mut round = Round::new();
        route.rest(0, now);
        assert_eq!(place(&route, &round, now), 1);
        let _ = route.tried(&mut round, 1, Reconnect::Soon);
        assert_eq!(place(&route, &round, now), 2);
        let _ = route.tried(&mut round, 2, Reconnect::AtLongestInterval);
        assert_eq!(place(&route, &round, now), 0);
        assert_eq!(round.next(), Reconnect::Soon);
        assert_eq!(place(&route, &Round::new(), now + REST), 0);
        route.rest(1, now + REST);
        route.answered(1);
        let mut round = Round::new();
        let _ = route.tried(&mut round, 0, Reconnect::Soon);
        assert_eq!(place(&route, &round, now + REST), 1);
    }
}
