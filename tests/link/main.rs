//! The policy link against scripted policy services over real sockets: a test for each way in which
//! a service can fail, each asserting the decision and its code.

#![cfg(feature = "full")]
#![allow(
    clippy::expect_used,
    clippy::panic,
    reason = "what fails here fails the test"
)]

mod answers;
mod failover;
mod gate;
mod journal;
mod outages;
mod peer;
mod raw_peer;
mod resumption;
mod rows;

use std::future::Future;
use std::time::Duration;

/// Nothing may hang: fails a scenario that takes far longer than it could need.
async fn scenario(scenario: impl Future<Output = ()>) {
    tokio::time::timeout(Duration::from_secs(60), scenario)
        .await
        .expect("the scenario comes to its end");
}

/// Has so much time pass at once. To be used where nothing is on its way that this would be too long for.
async fn pass(time: Duration) {
    tokio::time::pause();
    tokio::time::advance(time).await;
    tokio::time::resume();
}
