//! Names contents, so that people can tell one from another.

use std::fmt::Write;

use sha2::{Digest, Sha256};

/// The first 12 hexadecimal digits of the SHA-256 of all parts.
pub(super) fn revision<P: AsRef<[u8]>>(parts: impl IntoIterator<Item = P>) -> String {
    let mut digest = Sha256::new();
    for part in parts {
        digest.update(part);
    }
    let mut text = hexadecimal(&digest.finalize());
    text.truncate(12);
    text
}

/// Bytes in lowercase hexadecimal digits.
pub(super) fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        // Writing to a string can't fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}
