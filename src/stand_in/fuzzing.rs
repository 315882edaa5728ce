use super::escalated::FromGate;
use crate::wire::{SuperExecResult, decode};

/// A message of a gate whose command runs: what isn't the command's end is never taken for it.
pub(crate) fn ending(message: &[u8]) {
    let ended = decode::<SuperExecResult>("SuperExecResult", message);
    match decode::<FromGate>("SuperExecResult", message) {
        Ok(FromGate::Ended(result)) => assert_eq!(Some(result), ended.ok(), "another end"),
        Ok(FromGate::Stopped(_)) | Err(_) => assert!(ended.is_err(), "an end that isn't seen"),
    }
}
