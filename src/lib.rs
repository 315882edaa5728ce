//! Central exec policy for sandboxes: every command waits for a verdict from a policy service.

#![cfg_attr(not(feature = "std"), no_std)]

extern crate alloc;

pub mod sys;
pub mod wire;
pub mod wrapper;

#[cfg(feature = "std")]
pub mod model;
#[cfg(feature = "std")]
pub mod stand_in;

#[cfg(feature = "full")]
pub mod cli;
#[cfg(any(test, feature = "fuzzing"))]
#[doc(hidden)]
pub mod fuzzing;
#[cfg(feature = "full")]
pub mod journal;
#[cfg(feature = "full")]
pub mod link;
#[cfg(feature = "full")]
pub mod logging;
#[cfg(feature = "full")]
pub mod metrics;
#[cfg(feature = "full")]
pub mod pb;
#[cfg(feature = "full")]
pub mod policyd;
#[cfg(feature = "full")]
pub mod program;
#[cfg(feature = "full")]
pub mod sandbox;
#[cfg(feature = "full")]
pub mod server;
#[cfg(feature = "full")]
pub mod transport;
