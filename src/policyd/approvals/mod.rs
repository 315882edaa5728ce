//! Execs that wait for a person, what was decided of them, and which decisions hold for later ones.
//!
//! ```text
//! session task --ask--> desk <--resolve-- operator's call
//!      ^                 | |
//!      +----control------+ +--record--> ledger (its own thread and file)
//! ```
//!
//! Invariants: an approval is closed once, and whoever comes later is told how; a decision is recorded
//! before it has any effect; nothing but an operator's decision leads to a command that runs; what waits
//! is bounded, per session, per gate and in total, in number and in bytes; whoever watches never holds up anybody.
//!
//! Not here: which execs are asked about (`rules`), who an operator is (`authenticate`).

mod approval;
mod desk;
mod grants;
pub(crate) mod json;
mod ledger;
mod service;

pub(crate) use approval::asked;
pub(super) use approval::{Decided, Question};
pub(super) use desk::{
    Answered, CLOSED as MOST_CLOSED, Control, Desk, Happened, NO_LONGER_ASKED,
    WAITING_OF_ONE_SESSION, Watch,
};
pub(super) use ledger::{Ledger, Loaded, Termination};
pub(super) use service::Approvals;

#[cfg(test)]
mod tests;
