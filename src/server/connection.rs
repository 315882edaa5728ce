use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use super::share::{Held, Share};
use crate::sys::readiness;
use crate::sys::socket::{self, Received, Wait};
use crate::wire::{self, FrameError, FrameReader, MAX_FOLLOWING_FRAME};

/// How long a message waits for room in the gate's memory.
const ROOM_TIME: Duration = Duration::from_secs(5);

/// One request's own stream, with a wrapper at its other end.
///
/// The open file may be shared with whoever made it, so its mode is left alone: each call says for
/// itself that it doesn't wait.
pub(super) struct Connection {
    stream: AsyncFd<OwnedFd>,
    reader: FrameReader,
    descriptors: Vec<OwnedFd>,
    /// For the request. What follows it is short, and takes none.
    memory: Option<Arc<Share>>,
    held: Option<Held>,
}

/// How much of a message that there is no room for is received at once, in bytes.
const DISCARDED: usize = 64 << 10;

/// A message and the descriptors that came with it.
pub(super) struct Frame {
    pub(super) message: Vec<u8>,
    pub(super) descriptors: Vec<OwnedFd>,
    /// What it has of the session's memory.
    pub(super) held: Option<Held>,
}

/// Why no message came.
#[derive(Debug, thiserror::Error)]
pub(super) enum ReceiveError {
    /// The wrapper has closed its end between two messages.
    #[error("the asking process closed its end")]
    Closed,
    /// There was no room for it.
    #[error("too many bytes of requests are held by the gate")]
    NoRoom,
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
    /// Takes a stream; `memory` is the session's for messages, in bytes.
    pub(super) fn new(stream: OwnedFd, memory: Arc<Share>) -> io::Result<Self> {
        Ok(Self {
            stream: readiness::watch(stream, Interest::READABLE | Interest::WRITABLE)?,
            reader: FrameReader::default(),
            descriptors: Vec::new(),
            memory: Some(memory),
            held: None,
        })
    }

    pub(super) fn socket(&self) -> std::os::fd::BorrowedFd<'_> {
        self.stream.get_ref().as_fd()
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
                    held: self.held.take(),
                });
            }
            let wanted = self.reader.wanted()?;
            if let Some(memory) = &self.memory
                && self.reader.has_length()
            {
                let room = memory.hold(wanted);
                let Ok(held) = tokio::time::timeout(ROOM_TIME, room).await else {
                    // Who still sends hears of nothing until that is done.
                    let _ = tokio::time::timeout(ROOM_TIME, self.discard(wanted)).await;
                    return Err(ReceiveError::NoRoom);
                };
                self.held = Some(held);
                self.memory = None;
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

    /// Receives so many bytes and keeps none.
    async fn discard(&mut self, mut rest: usize) -> io::Result<()> {
        let mut buffer = vec![0; rest.min(DISCARDED)];
        while rest > 0 {
            let length = rest.min(buffer.len());
            let buffer = &mut buffer[..length];
            let received = self
                .stream
                .async_io(Interest::READABLE, |stream| {
                    socket::receive(stream.as_fd(), buffer, Wait::Never)
                })
                .await?;
            if received.bytes == 0 {
                break;
            }
            rest -= received.bytes.min(rest);
        }
        Ok(())
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
    use crate::server::Pool;
    use crate::sys::socket::{Kind, pair, send};

    #[tokio::test]
    async fn a_message_counts_for_as_long_as_it_is_needed() {
        const LENGTH: usize = 256 << 10;
        let pool = Pool::new(1 << 20);
        let memory = Arc::new(pool.share(1 << 20));
        let (ours, gates) = pair(Kind::Stream).unwrap();
        let mut connection = Connection::new(gates, memory).unwrap();
        let frame = wire::encode(&"x".repeat(LENGTH)).unwrap();
        let length = frame.len();
        let sender = std::thread::spawn(move || {
            let mut rest = &frame[..];
            while !rest.is_empty() {
                rest = &rest[send(ours.as_fd(), rest, &[], Wait::Blocking).unwrap()..];
            }
            ours
        });
        let received = connection.receive(0).await.unwrap();
        assert!(received.message.len() > LENGTH);
        assert!(pool.used() > LENGTH && pool.used() <= length);
        drop(received.held);
        assert_eq!(pool.used(), 0);
        drop(sender.join().unwrap());
    }
}
