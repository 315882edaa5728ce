//! Generated code of `proto/`, and conversions between it and `model`.
//!
//! Invariants: what goes out borrows from the model and copies each byte once; what comes in is
//! converted fallibly, and whatever can't be converted is an error that denies. What a status of
//! the call means for the next attempt stands in one table.
//!
//! Not here: calls, queues, clocks.

mod answer;
mod event;
mod executable;
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) mod fuzzing;
mod status;
mod text;
mod trace;

pub use answer::{
    Acknowledgement, Answer, BrokenAnswer, BrokenVerdict, ExecutableDigest, answer, undecodable,
};
pub use event::{
    events_lost, exec_requested, exec_withdrawn, resumed, session_event, session_started,
};
pub use executable::{executable_info, protection};
pub use status::{Reconnect, after_status};
pub use text::{TEXT_LIMIT, one_line};
pub use trace::{NoTraceParent, TRACEPARENT, TraceParent};

/// What gates and policy services say to each other.
pub mod policy {
    /// Generated from `proto/execgate/policy/v1`.
    #[allow(missing_docs, unreachable_pub, clippy::all, clippy::pedantic)]
    pub mod v1 {
        tonic::include_proto!("execgate.policy.v1");
    }
}

/// What operators and policy services say to each other about execs that wait for a person.
pub mod approval {
    /// Generated from `proto/execgate/approval/v1`.
    #[allow(missing_docs, unreachable_pub, clippy::all, clippy::pedantic)]
    pub mod v1 {
        tonic::include_proto!("execgate.approval.v1");
    }
}

/// What operators and policy services say to each other about sessions.
pub mod session {
    /// Generated from `proto/execgate/session/v1`.
    #[allow(missing_docs, unreachable_pub, clippy::all, clippy::pedantic)]
    pub mod v1 {
        tonic::include_proto!("execgate.session.v1");
    }
}

/// What auditors and policy services say to each other about what is on record.
pub mod audit {
    /// Generated from `proto/execgate/audit/v1`.
    #[allow(missing_docs, unreachable_pub, clippy::all, clippy::pedantic)]
    pub mod v1 {
        tonic::include_proto!("execgate.audit.v1");
    }
}

pub use policy::v1;

/// The encoded descriptors of `proto/`, for gRPC reflection.
pub const FILE_DESCRIPTOR_SET: &[u8] =
    include_bytes!(concat!(env!("OUT_DIR"), "/execgate_descriptors.bin"));
