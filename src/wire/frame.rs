use alloc::vec::Vec;
use core::fmt;

/// Size of the length before each message, in bytes: unsigned, little-endian.
pub const PREFIX: usize = 4;

/// The longest message, in bytes.
///
/// Linux takes at most 6 MiB of arguments and environment for one exec (three quarters of
/// `_STK_LIM`, `bprm_stack_limits` in `fs/exec.c`). As JSON a byte becomes six at most (`\u0001`),
/// and where one of them isn't UTF-8 another four thirds are added for base64: 44 MiB.
pub const MAX_FRAME: usize = 64 << 20;

/// The longest message behind a request, in bytes: numbers of descriptors, signals, a context.
pub const MAX_FOLLOWING_FRAME: usize = 64 << 10;

/// How much memory is given to a message before its bytes have arrived.
const FIRST_ALLOCATION: usize = 64 << 10;

/// Why bytes aren't a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FrameError {
    /// The peer claims, or the caller has, a message that is longer than allowed.
    TooLong {
        /// Its length in bytes.
        length: usize,
        /// The most allowed here, in bytes.
        longest: usize,
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
            Self::TooLong { length, longest } => write!(
                formatter,
                "a message of {length} bytes, and the most allowed are {longest}"
            ),
            Self::Truncated { arrived } => write!(
                formatter,
                "the stream ended inside a message, {arrived} bytes after its start"
            ),
        }
    }
}

impl core::error::Error for FrameError {}

/// Puts a message behind its length.
///
/// # Errors
/// [`FrameError::TooLong`].
pub fn encode(message: &impl serde::Serialize) -> Result<Vec<u8>, FrameError> {
    // Serializing into memory fails only for types that aren't JSON, of which there are none here.
    let mut bytes = serde_json::to_vec(message).unwrap_or_default();
    let length = bytes.len();
    match u32::try_from(length) {
        Ok(prefix) if length <= MAX_FRAME => {
            bytes.splice(..0, prefix.to_le_bytes());
            Ok(bytes)
        }
        _ => Err(FrameError::TooLong {
            length,
            longest: MAX_FRAME,
        }),
    }
}

/// Puts messages together from bytes as they arrive.
///
/// Memory grows with the bytes that have arrived, never with what a prefix claims.
#[derive(Debug)]
pub struct FrameReader {
    bytes: Vec<u8>,
    longest: usize,
}

impl Default for FrameReader {
    /// Of messages up to [`MAX_FRAME`].
    fn default() -> Self {
        Self::new(MAX_FRAME)
    }
}

impl FrameReader {
    /// A reader of messages of up to `longest` bytes.
    #[must_use]
    pub fn new(longest: usize) -> Self {
        Self {
            bytes: Vec::new(),
            longest,
        }
    }

    /// How many more bytes the message at hand needs, at most; never more than that are to be read, so
    /// that descriptors sent with the next message stay with it. `Err` for a message that is too long.
    pub fn wanted(&self) -> Result<usize, FrameError> {
        Ok(match self.length()? {
            None => PREFIX - self.bytes.len(),
            Some(length) => PREFIX + length - self.bytes.len(),
        })
    }

    /// Whether it is known how long the message at hand is.
    #[must_use]
    pub fn has_length(&self) -> bool {
        self.bytes.len() >= PREFIX
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

    /// The message, once it is whole.
    pub fn take(&mut self) -> Result<Option<Vec<u8>>, FrameError> {
        match self.length()? {
            Some(length) if self.bytes.len() == PREFIX + length => {
                let mut message = core::mem::take(&mut self.bytes);
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

    fn length(&self) -> Result<Option<usize>, FrameError> {
        let Some(prefix) = self.bytes.first_chunk::<PREFIX>() else {
            return Ok(None);
        };
        let length = u32::from_le_bytes(*prefix) as usize;
        if length > self.longest {
            return Err(FrameError::TooLong {
                length,
                longest: self.longest,
            });
        }
        Ok(Some(length))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Feeds a stream to a reader in pieces, as a socket would: its messages.
    fn read_all(mut stream: &[u8], pieces: &[usize]) -> Result<Vec<Vec<u8>>, FrameError> {
        let mut reader = FrameReader::default();
        let mut messages = Vec::new();
        let mut pieces = pieces.iter().copied().cycle();
        loop {
            if let Some(message) = reader.take()? {
                messages.push(message);
                continue;
            }
            if stream.is_empty() {
                return reader.end().map(|()| messages);
            }
            let buffer = reader.buffer()?;
            let offered = buffer.len();
            let piece = pieces.next().unwrap_or(1);
            let count = piece.clamp(1, offered).min(stream.len());
            buffer[..count].copy_from_slice(&stream[..count]);
            reader.filled(offered, count);
            stream = &stream[count..];
        }
    }

    fn framed(messages: &[Vec<u8>]) -> Vec<u8> {
        let mut stream = Vec::new();
        for message in messages {
            let length = u32::try_from(message.len()).unwrap();
            stream.extend(length.to_le_bytes());
            stream.extend(message);
        }
        stream
    }

    proptest! {
        #[test]
        fn messages_come_out_as_they_went_in_however_they_arrive(
            messages in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..200), 0..5),
            pieces in prop::collection::vec(1_usize..100, 1..10),
        ) {
            let read = read_all(&framed(&messages), &pieces).unwrap();
            prop_assert_eq!(read, messages);
        }

        #[test]
        fn whatever_arrives_memory_stays_within_what_has_arrived(
            stream in prop::collection::vec(any::<u8>(), 0..64),
            pieces in prop::collection::vec(1_usize..64, 1..4),
        ) {
            // Errors are fine; panics and large allocations aren't.
            let _ = read_all(&stream, &pieces);
            let mut reader = FrameReader::default();
            if let Some(prefix) = stream.first_chunk::<PREFIX>() {
                if let Ok(buffer) = reader.buffer() {
                    buffer[..PREFIX].copy_from_slice(prefix);
                    reader.filled(PREFIX, PREFIX);
                }
                if let Ok(buffer) = reader.buffer() {
                    prop_assert!(buffer.len() <= FIRST_ALLOCATION);
                }
            }
        }
    }

    #[test]
    fn a_stream_that_ends_inside_a_message_is_told_from_one_that_ends_between() {
        let stream = framed(&[b"ab".to_vec(), b"c".to_vec()]);
        for end in 0..=stream.len() {
            let result = read_all(&stream[..end], &[3]);
            let between = [0, 6, 11].contains(&end);
            assert_eq!(result.is_ok(), between, "{end}");
        }
    }

    #[test]
    fn a_length_above_the_maximum_is_refused() {
        let claimed = u32::try_from(MAX_FRAME).unwrap() + 1;
        let error = read_all(&[&claimed.to_le_bytes()[..], b"x"].concat(), &[5]);
        let expected = FrameError::TooLong {
            length: MAX_FRAME + 1,
            longest: MAX_FRAME,
        };
        assert_eq!(error, Err(expected));
    }
}
