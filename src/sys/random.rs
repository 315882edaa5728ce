//! Random bytes.

use std::io;

use super::{check, retry_interrupted};

/// 16 bytes from the kernel's generator, `getrandom(2)`.
pub fn sixteen_bytes() -> io::Result<[u8; 16]> {
    let mut bytes = [0_u8; 16];
    // Up to 256 bytes come whole once the generator is ready.
    retry_interrupted(|| {
        // SAFETY: `bytes` is writable for its length.
        check(unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), bytes.len(), 0) })
    })?;
    Ok(bytes)
}
