use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use serde::Serialize;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::sys::readiness;
use crate::sys::socket::{self, Received, Wait};
use crate::wire::{self, FrameError, FrameReader, MAX_FOLLOWING_FRAME};

/// A message up to this size, in bytes, needs no share of the session's budget for long ones.
const SHORT: usize = 256 << 10;

/// One request's own stream, with a wrapper at its other end.
///
/// The open file may be shared with whoever made it, so its mode is left alone: each call says for
/// itself that it doesn't wait.
pub(super) struct Connection {
    stream: AsyncFd<OwnedFd>,
    reader: FrameReader,
    descriptors: Vec<OwnedFd>,
    budget: Arc<Semaphore>,
    /// Of the budget, for as long as the long message is in memory.
    share: Option<OwnedSemaphorePermit>,
}

/// A message and the descriptors that came with it.
pub(super) struct Frame {
    pub(super) message: Vec<u8>,
    pub(super) descriptors: Vec<OwnedFd>,
}

/// Why no message came.
#[derive(Debug, thiserror::Error)]
pub(super) enum ReceiveError {
    /// The wrapper has closed its end between two messages.
    #[error("the asking process closed its end")]
    Closed,
    /// What came is no message.
    #[error("{0}")]
    Malformed(String),
}

impl From<FrameError> for ReceiveError {
    fn from(error: FrameError) -> Self {
        Self::Malformed(error.to_string())
    }
}

impl Connection {
    /// Takes a stream; `budget` is the session's for long messages, in bytes.
    pub(super) fn new(stream: OwnedFd, budget: Arc<Semaphore>) -> io::Result<Self> {
        Ok(Self {
            stream: readiness::watch(stream, Interest::READABLE | Interest::WRITABLE)?,
            reader: FrameReader::default(),
            descriptors: Vec::new(),
            budget,
            share: None,
        })
    }

    pub(super) fn socket(&self) -> std::os::fd::BorrowedFd<'_> {
        self.stream.get_ref().as_fd()
    }

    /// Gives back the share of the budget, once what was in a long message isn't needed any more.
    pub(super) fn forget_message(&mut self) {
        self.share = None;
    }

    /// Waits for one whole message, with `most` descriptors at the most: where none belong, none are
    /// kept, so that whoever sends them takes none from the others. May be cancelled, and called again:
    /// nothing is lost.
    pub(super) async fn receive(&mut self, most: usize) -> Result<Frame, ReceiveError> {
        loop {
            if let Some(message) = self.reader.take()? {
                self.reader = FrameReader::new(MAX_FOLLOWING_FRAME);
                return Ok(Frame {
                    message,
                    descriptors: std::mem::take(&mut self.descriptors),
                });
            }
            let wanted = self.reader.wanted()?;
            if wanted > SHORT && self.share.is_none() {
                let bytes = u32::try_from(wanted).unwrap_or(u32::MAX);
                self.share = self.budget.clone().acquire_many_owned(bytes).await.ok();
            }
            // Who never stops sending isn't served alone.
            tokio::task::coop::consume_budget().await;
            let reader = &mut self.reader;
            let received = match receive_some(self.stream.get_ref(), reader) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.stream
                        .async_io(Interest::READABLE, |stream| receive_some(stream, reader))
                        .await
                }
                other => other,
            };
            let received = match received {
                Ok(received) => received,
                Err(error) if error.kind() == io::ErrorKind::ConnectionReset => {
                    return Err(ReceiveError::Closed);
                }
                Err(error) => return Err(ReceiveError::Malformed(error.to_string())),
            };
            if received.bytes == 0 {
                self.reader.end()?;
                return Err(ReceiveError::Closed);
            }
            if most == 0 {
                continue;
            }
            self.descriptors.extend(received.descriptors);
            if self.descriptors.len() > most {
                self.descriptors.clear();
                return Err(ReceiveError::Malformed(format!(
                    "a message carries more than {most} descriptors"
                )));
            }
        }
    }

    /// Sends one message whole.
    pub(super) async fn send(&self, message: &impl Serialize) -> io::Result<()> {
        let frame = wire::encode(message).map_err(io::Error::other)?;
        let mut rest = &frame[..];
        while !rest.is_empty() {
            let sent = match send_some(self.stream.get_ref(), rest) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.stream
                        .async_io(Interest::WRITABLE, |stream| send_some(stream, rest))
                        .await
                }
                other => other,
            }?;
            rest = &rest[sent..];
        }
        Ok(())
    }
}

/// Receives what has arrived of the message at hand. Leaves the reader whole whatever happens.
fn receive_some(stream: &OwnedFd, reader: &mut FrameReader) -> io::Result<Received> {
    let buffer = reader.buffer().map_err(io::Error::other)?;
    let offered = buffer.len();
    let received = socket::receive(stream.as_fd(), buffer, Wait::Never);
    let count = received.as_ref().map_or(0, |received| received.bytes);
    reader.filled(offered, count);
    received
}

fn send_some(stream: &OwnedFd, bytes: &[u8]) -> io::Result<usize> {
    socket::send(stream.as_fd(), bytes, &[], Wait::Never)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::socket::{Kind, pair, send};

    #[tokio::test]
    async fn a_long_message_counts_for_as_long_as_it_is_needed() {
        const BUDGET: usize = 1 << 20;
        let budget = Arc::new(Semaphore::new(BUDGET));
        let (ours, gates) = pair(Kind::Stream).unwrap();
        let mut connection = Connection::new(gates, budget.clone()).unwrap();
        let frame = wire::encode(&"x".repeat(SHORT)).unwrap();
        let length = frame.len();
        let sender = std::thread::spawn(move || {
            let mut rest = &frame[..];
            while !rest.is_empty() {
                rest = &rest[send(ours.as_fd(), rest, &[], Wait::Blocking).unwrap()..];
            }
            ours
        });
        let received = connection.receive(0).await.unwrap();
        assert!(received.message.len() > SHORT);
        let left = budget.available_permits();
        assert!(left <= BUDGET - SHORT && left + length >= BUDGET, "{left}");
        connection.forget_message();
        assert_eq!(budget.available_permits(), BUDGET);
        drop(sender.join().unwrap());
    }
}
