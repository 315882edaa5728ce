//! The record as an auditor sees it, over the network and on disk: the service as a process, the programs as
//! operators call them.

#![cfg(feature = "full")]
#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    reason = "clippy takes what tests call for something else than tests"
)]

mod console;
mod kills;
mod lists;
mod operating;
mod pipes;
mod place;
mod programs;
mod retention;
mod watchers;
