//! Generated code of `proto/`, and fallible conversions between it and `model`.

/// Generated from `proto/execgate/policy/v1`.
#[allow(missing_docs, unreachable_pub, clippy::all, clippy::pedantic)]
pub mod v1 {
    tonic::include_proto!("execgate.policy.v1");
}

/// The encoded descriptors of `proto/`, for gRPC reflection.
pub const FILE_DESCRIPTOR_SET: &[u8] =
    include_bytes!(concat!(env!("OUT_DIR"), "/execgate_descriptors.bin"));
