//! Who a gate is, and who a policy service is: real certificates, tokens, sockets and processes, in the
//! right hands, in the wrong ones, and in none.

#![cfg(feature = "full")]
#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    reason = "what fails here fails the test"
)]

mod credentials;
mod example;
mod floods;
mod frames;
#[path = "../link/gate.rs"]
#[allow(dead_code, reason = "the tests of the link use the rest")]
mod gate;
mod hostile;
mod operators;
mod overtaken;
mod pki;
#[path = "../e2e/process.rs"]
#[allow(dead_code, reason = "the tests of the whole use the rest")]
mod process;
mod replays;
mod rotation;
mod service;
mod sessions;
mod sockets;
mod storing;
mod stranger;
mod tickets;

use std::future::Future;
use std::time::Duration;

/// Nothing may hang: fails a scenario that takes far longer than it could need.
async fn scenario(scenario: impl Future<Output = ()>) {
    // On the heap: some are large.
    tokio::time::timeout(Duration::from_secs(90), Box::pin(scenario))
        .await
        .expect("the scenario comes to its end");
}
