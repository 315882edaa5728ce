//! The whole path for real: `execgate exec`, a patched shell, the wrapper, gRPC, a policy service,
//! and `execgate audit` afterwards. A scenario takes about ten lines, and runs in bash and in zsh.
//!
//! A shell, Python's packages or a sandbox that this machine lacks fail what needs them where `CI` is
//! set. Elsewhere that is skipped, and standard error says so.

#![cfg(feature = "full")]
#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    reason = "what fails here fails the test"
)]

mod approvals;
mod broken_services;
mod bytes;
mod command_line;
mod confinement;
mod console;
mod crowds;
mod denials;
#[allow(dead_code, reason = "the tests of chaos use the rest")]
mod disk;
mod doctor;
mod embedding;
mod environment;
mod exposition;
mod gate;
mod help;
mod homes;
mod identity;
mod journal;
mod judged;
#[path = "../link/gate.rs"]
#[allow(dead_code, reason = "the tests of the link use the rest")]
mod link_gate;
mod logs;
mod machine;
mod metrics;
mod outages;
#[path = "../link/peer.rs"]
#[allow(dead_code, reason = "the tests of the link use the rest")]
mod peer;
mod permissions;
mod process;
mod python;
mod relay;
mod replay;
mod reuse;
mod sandboxes;
mod secret_places;
mod secrets;
mod service;
mod sessions;
mod stage;
mod tools;
mod tree;
mod verdicts;
mod weak_gates;
mod webhook;
mod words;
