//! A gated command can't tell: the same script runs natively and under a gate, in both shells and
//! under both verdicts, and everything that can be observed is compared.

#![allow(
    clippy::expect_used,
    clippy::unwrap_used,
    clippy::panic,
    clippy::unimplemented,
    clippy::print_stderr,
    reason = "clippy takes what tests call for something else than tests"
)]

#[path = "../support/mod.rs"]
mod support;

mod endings;
mod failures;
mod gates;
mod harness;
mod jobs;
mod observables;
mod scripts;
mod terminals;
mod users;
mod volume;
