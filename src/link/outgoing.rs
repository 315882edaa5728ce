use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::SystemTime;

use prost::Message;
use tokio::time::{Sleep, sleep_until};
use tokio_stream::Stream;

use super::codec::EncodedEvent;
use super::session::Shared;
use super::state::{CallNumber, ToSend};
use crate::pb;

/// The request stream of one call: takes events from the session's state when the transport can
/// send them, so that there is no queue and no task between the two.
#[derive(Debug)]
pub(super) struct Outgoing {
    shared: Arc<Shared>,
    call: CallNumber,
    /// Ends when what waits for more is to go.
    pause: Option<Pin<Box<Sleep>>>,
}

impl Outgoing {
    pub(super) fn new(shared: Arc<Shared>, call: CallNumber) -> Self {
        Self {
            shared,
            call,
            pause: None,
        }
    }
}

impl Stream for Outgoing {
    type Item = EncodedEvent;

    fn poll_next(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<EncodedEvent>> {
        let next = loop {
            match self.shared.next_to_send(self.call, context.waker()) {
                ToSend::Later(due) => {
                    let mut pause = Box::pin(sleep_until(due));
                    if pause.as_mut().poll(context).is_pending() {
                        self.pause = Some(pause);
                        return Poll::Pending;
                    }
                }
                next => break next,
            }
        };
        self.pause = None;
        match next {
            ToSend::Message { sequence, body } => {
                Poll::Ready(Some(EncodedEvent { sequence, body }))
            }
            // It takes the place, and the sequence, of the last event that it reports: if more are
            // dropped before it is repeated, the repetition is a message of its own.
            ToSend::Lost { first, last } => Poll::Ready(Some(EncodedEvent {
                sequence: last,
                body: pb::events_lost(first, last, SystemTime::now())
                    .encode_to_vec()
                    .into(),
            })),
            ToSend::Wait | ToSend::Later(_) => Poll::Pending,
            ToSend::HalfClose => Poll::Ready(None),
        }
    }
}

#[cfg(test)]
mod tests;
