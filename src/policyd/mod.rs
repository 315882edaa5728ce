//! The reference policy service, and the operator's commands that are built on it.
//!
//! ```text
//! gate --events--> service --facts--> rules
//!      <--verdicts--       --record--> store <-- audit (reads only)
//! ```
//!
//! Invariants: a verdict never waits for the store; whatever can't be evaluated denies; everything
//! that a session or a gate can cause to grow is bounded; who a gate is says its credential, and never
//! the gate; nothing that came from a sandbox reaches a terminal
//! with its control characters.
//!
//! Not here: sandboxes, local sockets of sessions, processes. A policy service knows a command only
//! by what a gate says of it.

#![forbid(unsafe_code)]

mod accept;
mod admission;
pub(crate) mod approvals;
mod arrival;
pub mod audit;
mod authenticate;
mod bounds;
pub mod check;
pub mod command;
mod connection;
mod console;
pub(crate) mod described;
mod elements;
mod identity;
pub mod listen;
mod numbers;
mod operators;
mod owners;
mod rate;
mod reception;
mod reload;
pub mod replay;
mod revision;
pub mod rules;
mod service;
mod sessions;
pub mod store;
pub mod suggest;
pub(crate) mod text;
mod throttle;
mod tls;
pub mod token;
mod tokens;
mod webhook;

pub use identity::GateIdentity;
