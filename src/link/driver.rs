use std::error::Error as _;
use std::panic::AssertUnwindSafe;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use tokio::time::Instant;
use tonic::client::Grpc;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::{Code, Request, Status};

use super::backoff::Backoff;
use super::codec::{LinkCodec, MESSAGE_LIMIT};
use super::dialer::Dialer;
use super::outgoing::Outgoing;
use super::route::{Others, Round, Route};
use super::session::Shared;
use super::state::{CallNumber, SessionState};
use crate::journal::Fate;
use crate::pb::{self, Reconnect};

/// The call, as the contract names it.
pub(super) const PATH: &str = "/execgate.policy.v1.PolicyService/Session";

/// A call that stays up this long has a peer that speaks HTTP/2, even if it sends no headers before
/// its first message.
const SETTLED_AFTER: Duration = Duration::from_secs(1);

/// A call that stayed up this long was a good one: the next interval is the shortest again.
const STABLE_AFTER: Duration = Duration::from_secs(5);

/// Least time between the beginnings of two attempts, whatever hastens the second.
const LEAST_INTERVAL: Duration = Duration::from_millis(100);

/// The same where the second is at another endpoint.
const LEAST_FAILOVER_INTERVAL: Duration = Duration::from_millis(10);

/// Calls, and calls again, until the session is over and its events are delivered or given up on.
pub(super) async fn drive(shared: Arc<Shared>, route: Arc<Route>) {
    tokio::select! {
        () = call_again_and_again(&shared, &route) => {}
        () = window_after_end(&shared) => {}
    }
    // Dropping their senders answers those who still ask.
    let (_askers, undelivered) = shared.update(SessionState::close);
    if shared.fate().await == Fate::Lost && undelivered > 0 {
        shared.lost(
            u64::try_from(undelivered).unwrap_or(u64::MAX),
            "the session ended before they could be delivered",
        );
    }
}

async fn window_after_end(shared: &Shared) {
    shared.over.cancelled().await;
    tokio::time::sleep(shared.options.flush_window).await;
}

async fn call_again_and_again(shared: &Arc<Shared>, route: &Route) {
    let mut backoff = Backoff::new();
    let mut round = Round::new();
    loop {
        let begun = Instant::now();
        let Some((place, dialer)) = route.next(&round, begun) else {
            return;
        };
        shared.calls(dialer);
        let number = shared.begin_call();
        // A response that tonic can't take apart makes it panic: that, too, ends but the call.
        let mut heard = None;
        let status = AssertUnwindSafe(call(shared, dialer, number, &mut heard))
            .catch_unwind()
            .await
            .unwrap_or_else(|_| Status::internal("the response can't be taken apart"));
        let obstacle = dialer.obstacle(&status);
        let status = dialer.explain(status);
        if status.code() == Code::Ok && shared.update(|state| state.is_over()) {
            shared.update(SessionState::taken);
            return;
        }

        let now = Instant::now();
        let cause = format!("{}: {}", dialer.endpoint(), describe(&status));
        let quiet = now.saturating_duration_since(heard.unwrap_or(begun));
        if cause.contains("too_many_pings") {
            dialer.ping_seldom();
        } else if is_cut(&status, &cause) && quiet >= 2 * dialer.ping_interval() {
            dialer.cut_while_quiet(now);
        }
        if heard.is_some() {
            route.answered(place);
        }
        if heard.is_none() || status.source().is_some() || status.code() == Code::Unavailable {
            route.rest(place, now);
        }
        if begun.elapsed() >= STABLE_AFTER {
            backoff.reset();
            if heard.is_some() {
                round = Round::new();
            }
        }
        let others = route.tried(&mut round, place, pb::after_status(status.code()));
        let cause = shared.call_broke(&status, others, obstacle, &cause);
        let is_over = shared.over.is_cancelled();
        shared.call_ended(others, round.next(), &cause);
        if others == Others::Untried {
            tokio::time::sleep_until(begun + LEAST_FAILOVER_INTERVAL).await;
            continue;
        }
        let next = round.next();
        round = Round::new();
        if is_over && next == Reconnect::AtLongestInterval {
            return;
        }
        let pause = backoff.next(next, shared.update(|state| state.awaited()));
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            () = hastened(shared, begun, next) => {}
        }
    }
}

/// Completes when the next attempt shouldn't wait: somebody asks, or the session is over and what
/// is left to deliver has little time.
async fn hastened(shared: &Shared, begun: Instant, next: Reconnect) {
    if next == Reconnect::AtLongestInterval {
        return shared.over.cancelled().await;
    }
    tokio::time::sleep_until(begun + LEAST_INTERVAL).await;
    tokio::select! {
        () = shared.attempt_now.notified() => {}
        () = shared.over.cancelled() => {}
    }
}

/// Whether the connection was ended by the other side. What comes from the transport has a source,
/// and what the service says has none.
fn is_cut(status: &Status, cause: &str) -> bool {
    status.source().is_some() && !cause.contains("timed out")
}

/// Makes one call and sees it to its end. Keeps in `heard` when the service last said something.
async fn call(
    shared: &Arc<Shared>,
    dialer: &Dialer,
    number: CallNumber,
    heard: &mut Option<Instant>,
) -> Status {
    let mut client = Grpc::new(dialer.channel())
        .max_decoding_message_size(MESSAGE_LIMIT)
        .max_encoding_message_size(MESSAGE_LIMIT);
    if let Err(error) = client.ready().await {
        return Status::from_error(error.into());
    }
    let mut request = Request::new(Outgoing::new(Arc::clone(shared), number));
    if let Err(status) = dialer.authorize(request.metadata_mut()).await {
        return status;
    }
    if let Some(trace) = shared.trace().metadata() {
        request.metadata_mut().insert(pb::TRACEPARENT, trace);
    }
    // Events flow from the moment there is a connection. The response's headers may take until the
    // service's first message: nothing waits for them but this.
    let response = client.streaming(request, PathAndQuery::from_static(PATH), LinkCodec);
    let mut response = pin!(response);
    let mut settled = tokio::time::interval_at(Instant::now() + SETTLED_AFTER, SETTLED_AFTER);
    let response = loop {
        tokio::select! {
            response = response.as_mut() => break response,
            _ = settled.tick() => shared.update(SessionState::settled),
        }
    };
    let mut answers = match response {
        Ok(response) => response.into_inner(),
        Err(status) => return status,
    };
    shared.update(SessionState::settled);
    *heard = Some(Instant::now());
    // A service that refuses the call may send headers before it says so.
    let mut is_accepted = false;
    loop {
        let answer = tokio::select! {
            biased;
            answer = answers.message() => answer,
            _ = settled.tick(), if !is_accepted => {
                is_accepted = true;
                shared.call_accepted(number);
                continue;
            }
        };
        match answer {
            Ok(Some(answer)) => {
                shared.take(answer);
                if !is_accepted {
                    is_accepted = true;
                    shared.call_accepted(number);
                }
                *heard = Some(Instant::now());
            }
            Ok(None) => return Status::ok("the service ended the call"),
            Err(status) => return status,
        }
    }
}

/// Whether a call that ended so would with any session: the service is away, or doesn't want this gate.
pub(super) fn concerns_all(status: &Status) -> bool {
    status.source().is_some()
        || matches!(
            status.code(),
            Code::Unavailable
                | Code::DeadlineExceeded
                | Code::Unauthenticated
                | Code::Unimplemented
                | Code::Cancelled
                | Code::Unknown
        )
}

/// The status in words, with what the transport knows of its cause.
pub(super) fn describe(status: &Status) -> String {
    let mut text = match status.message() {
        "" => status.code().description().to_owned(),
        message => message.to_owned(),
    };
    let mut source = status.source();
    while let Some(error) = source {
        let cause = error.to_string();
        if !text.contains(&cause) {
            text.push_str(": ");
            text.push_str(&cause);
        }
        source = error.source();
    }
    pb::one_line(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_path_is_that_of_the_contract() {
        let service = pb::v1::policy_service_server::SERVICE_NAME;
        assert_eq!(PATH, format!("/{service}/Session"));
    }
}
