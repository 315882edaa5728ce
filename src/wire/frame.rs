use std::fmt;

/// Size of the length before each message, in bytes: unsigned, little-endian.
pub const PREFIX: usize = 4;

/// The longest message, in bytes.
///
/// Linux takes at most 6 MiB of arguments and environment for one exec (three quarters of
/// `_STK_LIM`, `bprm_stack_limits` in `fs/exec.c`). As JSON a byte becomes six at most (`\u0001`),
/// and where one of them isn't UTF-8 another four thirds are added for base64: 44 MiB.
pub const MAX_FRAME: usize = 64 << 20;

/// How much memory is given to a message before its bytes have arrived.
const FIRST_ALLOCATION: usize = 64 << 10;

/// Why bytes aren't a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FrameError {
    /// The peer claims, or the caller has, a message that is longer than allowed.
    TooLong {
        /// Its length in bytes.
        length: usize,
    },
    /// The stream ended inside a message.
    Truncated {
        /// Bytes of the message that have arrived, its prefix included.
        arrived: usize,
    },
}

impl fmt::Display for FrameError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooLong { length } => write!(
                formatter,
                "a message of {length} bytes, and the most allowed are {MAX_FRAME}"
            ),
            Self::Truncated { arrived } => write!(
                formatter,
                "the stream ended inside a message, {arrived} bytes after its start"
            ),
        }
    }
}

impl std::error::Error for FrameError {}

/// Puts a message behind its length.
///
/// # Errors
/// [`FrameError::TooLong`].
pub fn encode(message: &impl serde::Serialize) -> Result<Vec<u8>, FrameError> {
    let mut bytes = vec![0; PREFIX];
    // Serializing into memory fails only for types that aren't JSON, of which there are none here.
    let _ = serde_json::to_writer(&mut bytes, message);
    let length = bytes.len() - PREFIX;
    match u32::try_from(length) {
        Ok(prefix) if length <= MAX_FRAME => {
            bytes[..PREFIX].copy_from_slice(&prefix.to_le_bytes());
            Ok(bytes)
        }
        _ => Err(FrameError::TooLong { length }),
    }
}

/// Puts messages together from bytes as they arrive.
///
/// Memory grows with the bytes that have arrived, never with what a prefix claims.
#[derive(Debug, Default)]
pub struct FrameReader {
    bytes: Vec<u8>,
}

impl FrameReader {
    /// How many more bytes the message at hand needs, at most; never more than that are to be read, so
    /// that descriptors sent with the next message stay with it. `Err` for a message that is too long.
    pub fn wanted(&self) -> Result<usize, FrameError> {
        Ok(match self.length()? {
            None => PREFIX - self.bytes.len(),
            Some(length) => PREFIX + length - self.bytes.len(),
        })
    }

    /// The part of the buffer to read into: some of what is [wanted](Self::wanted).
    pub fn buffer(&mut self) -> Result<&mut [u8], FrameError> {
        let filled = self.bytes.len();
        let wanted = self.wanted()?.min(filled.max(FIRST_ALLOCATION));
        self.bytes.resize(filled + wanted, 0);
        Ok(&mut self.bytes[filled..])
    }

    /// Says how much of the [`buffer`](Self::buffer) of `offered` bytes was filled.
    pub fn filled(&mut self, offered: usize, count: usize) {
        let unused = offered.saturating_sub(count);
        self.bytes.truncate(self.bytes.len() - unused);
    }

    /// Adds bytes that have arrived: no more than are [wanted](Self::wanted).
    pub fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// The message, once it is whole.
    pub fn take(&mut self) -> Result<Option<Vec<u8>>, FrameError> {
        match self.length()? {
            Some(length) if self.bytes.len() == PREFIX + length => {
                let mut message = std::mem::take(&mut self.bytes);
                message.drain(..PREFIX);
                Ok(Some(message))
            }
            _ => Ok(None),
        }
    }

    /// Whether no byte of a message has arrived.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// What the end of the stream means here: nothing between messages, an error inside one.
    pub fn end(&self) -> Result<(), FrameError> {
        if self.is_empty() {
            Ok(())
        } else {
            Err(FrameError::Truncated {
                arrived: self.bytes.len(),
            })
        }
    }

    /// Bytes that this reader holds.
    #[must_use]
    pub fn held(&self) -> usize {
        self.bytes.len()
    }

    fn length(&self) -> Result<Option<usize>, FrameError> {
        let Some(prefix) = self.bytes.first_chunk::<PREFIX>() else {
            return Ok(None);
        };
        let length = u32::from_le_bytes(*prefix) as usize;
        if length > MAX_FRAME {
            return Err(FrameError::TooLong { length });
        }
        Ok(Some(length))
    }
}
