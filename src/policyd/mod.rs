//! The reference policy service, and the operator's commands that are built on it.
//!
//! ```text
//! gate --events--> service --facts--> rules
//!      <--verdicts--       --record--> store <-- audit (reads only)
//! ```
//!
//! Invariants: a verdict never waits for the store; whatever can't be evaluated denies; everything
//! that a session can cause to grow is bounded; nothing that came from a sandbox reaches a terminal
//! with its control characters.
//!
//! Not here: sandboxes, local sockets of sessions, processes. A policy service knows a command only
//! by what a gate says of it.

#![forbid(unsafe_code)]

pub mod audit;
pub mod check;
pub mod command;
pub mod listen;
mod reload;
pub mod rules;
mod service;
pub mod store;
mod text;
mod throttle;
