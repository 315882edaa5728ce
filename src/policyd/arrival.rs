//! The messages of a call, as they arrive.
//!
//! It reads no more than gRPC's framing: before each message one byte that says whether it is compressed, and
//! four with its length. Short messages are passed on as they are. A long one has to find room first, which as long as
//! there is none keeps the rest of the call unread, and then is gathered here: tonic's own buffer would be as large as
//! the largest message for as long as the call lives.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use hyper::body::{Body as HttpBody, Bytes, Frame, SizeHint};
use prost::bytes::{Buf, BytesMut};
use tokio::time::Sleep;
use tonic::Status;
use tonic::body::Body;

use super::reception::{Held, RoomOfGate};
use super::service::MAX_MESSAGE_SIZE;

/// Messages longer than this, in bytes, need room. All others of all calls are small together, also when they are
/// understood.
pub(super) const LONG: usize = 4 << 10;
/// How long a long message may take once there is room for it. Poor networks have to do.
const PATIENCE: Duration = Duration::from_secs(120);
/// Before each message.
const HEADER: usize = 5;

/// A long message. It has its room until it is dropped.
#[derive(Debug)]
pub(super) struct LongMessage {
    pub(super) bytes: Bytes,
    pub(super) held: Held,
}

/// Where a call finds its long message, when it is handed an empty one in its place. Clones are the same.
#[derive(Debug, Clone, Default)]
pub(super) struct LongMessages(Arc<Mutex<Option<LongMessage>>>);

impl LongMessages {
    pub(super) fn take(&self) -> Option<LongMessage> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    fn put(&self, message: LongMessage) {
        let mut place = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        *place = Some(message);
    }
}

/// How a long message is handed over.
#[derive(Debug)]
pub(super) enum Handover {
    /// In its place in the call, which has its room until it reads on.
    InPlace,
    /// Apart, and an empty one in its place.
    Apart(LongMessages),
}

/// The body of a call.
pub(super) struct Arrival {
    body: Body,
    room: RoomOfGate,
    handover: Handover,
    /// Has arrived, and isn't passed on yet.
    rest: Bytes,
    header: [u8; HEADER],
    /// Bytes of the header that have come.
    has: usize,
    /// Bytes of a short message that are still to come.
    remaining: usize,
    long: Long,
}

/// What there is of a long message.
enum Long {
    None,
    /// There is no room for it yet.
    Waits {
        length: usize,
        acquiring: Pin<Box<dyn Future<Output = Option<Held>> + Send>>,
    },
    Arrives {
        length: usize,
        message: BytesMut,
        held: Held,
        patience: Pin<Box<Sleep>>,
    },
    /// All of it is passed on. The call is done with it when it reads on.
    IsThere(#[expect(dead_code, reason = "it is held")] Held),
}

impl Arrival {
    pub(super) fn new(body: Body, room: RoomOfGate, handover: Handover) -> Self {
        Self {
            body,
            room,
            handover,
            rest: Bytes::new(),
            header: [0; HEADER],
            has: 0,
            remaining: 0,
            long: Long::None,
        }
    }

    /// Takes what may be passed on from what has arrived, to the header of a long message at most; nothing may be
    /// left of it.
    fn short(&mut self) -> Bytes {
        let mut at = 0;
        loop {
            let taken = self.remaining.min(self.rest.len() - at);
            self.remaining -= taken;
            at += taken;
            let available = self.rest.len() - at;
            if available == 0 {
                return std::mem::take(&mut self.rest);
            }
            if self.has == 0 && available >= HEADER {
                self.header.copy_from_slice(&self.rest[at..at + HEADER]);
                if self.begins_long() {
                    let passed = self.rest.split_to(at);
                    self.rest.advance(HEADER);
                    return passed;
                }
                at += HEADER;
                continue;
            }
            if at > 0 {
                return self.rest.split_to(at);
            }
            // In pieces.
            let taken = (HEADER - self.has).min(available);
            self.rest
                .copy_to_slice(&mut self.header[self.has..self.has + taken]);
            self.has += taken;
            if self.has < HEADER {
                return Bytes::new();
            }
            self.has = 0;
            return if self.begins_long() {
                Bytes::new()
            } else {
                Bytes::copy_from_slice(&self.header)
            };
        }
    }

    /// Looks at a header that is complete.
    fn begins_long(&mut self) -> bool {
        let [compressed, length @ ..] = self.header;
        let length = usize::try_from(u32::from_be_bytes(length)).unwrap_or(usize::MAX);
        // One that is too long, or compressed, is refused when its header is read.
        if compressed != 0 || length <= LONG || length > MAX_MESSAGE_SIZE {
            self.remaining = length;
            return false;
        }
        self.long = Long::Waits {
            length,
            acquiring: Box::pin(self.room.acquire(length)),
        };
        true
    }

    /// Hands a long message over; gives what stands in its place.
    fn hand_over(&mut self, message: BytesMut, held: Held) -> Bytes {
        match &self.handover {
            Handover::InPlace => {
                self.long = Long::IsThere(held);
                message.freeze()
            }
            Handover::Apart(messages) => {
                messages.put(LongMessage {
                    bytes: message.freeze(),
                    held,
                });
                Bytes::from_static(&[0; HEADER])
            }
        }
    }

    /// The body has come to its end.
    fn end(&mut self) -> Option<Result<Frame<Bytes>, Status>> {
        if let Long::Waits { .. } | Long::Arrives { .. } = self.long {
            return Some(Err(Status::internal("the call ended within a message")));
        }
        // Whoever reads it says what is missing.
        let begun = Bytes::copy_from_slice(&self.header[..std::mem::take(&mut self.has)]);
        (!begun.is_empty()).then(|| Ok(Frame::data(begun)))
    }
}

impl HttpBody for Arrival {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let this = &mut *self;
        loop {
            let passed = match std::mem::replace(&mut this.long, Long::None) {
                Long::None | Long::IsThere(_) => this.short(),
                Long::Waits {
                    length,
                    mut acquiring,
                } => {
                    let Poll::Ready(held) = acquiring.as_mut().poll(context) else {
                        this.long = Long::Waits { length, acquiring };
                        return Poll::Pending;
                    };
                    let held = held.ok_or_else(|| Status::unavailable("there is no room"))?;
                    let mut message = BytesMut::with_capacity(HEADER + length);
                    if let Handover::InPlace = this.handover {
                        message.extend_from_slice(&this.header);
                    }
                    this.long = Long::Arrives {
                        length: message.len() + length,
                        message,
                        held,
                        patience: Box::pin(tokio::time::sleep(PATIENCE)),
                    };
                    continue;
                }
                Long::Arrives {
                    length,
                    mut message,
                    held,
                    mut patience,
                } => {
                    let taken = (length - message.len()).min(this.rest.len());
                    message.extend_from_slice(&this.rest.split_to(taken));
                    if message.len() == length {
                        this.hand_over(message, held)
                    } else {
                        if patience.as_mut().poll(context).is_ready() {
                            let text = format!(
                                "a long message wasn't complete within {} seconds",
                                PATIENCE.as_secs()
                            );
                            return Poll::Ready(Some(Err(Status::invalid_argument(text))));
                        }
                        this.long = Long::Arrives {
                            length,
                            message,
                            held,
                            patience,
                        };
                        Bytes::new()
                    }
                }
            };
            if !passed.is_empty() {
                return Poll::Ready(Some(Ok(Frame::data(passed))));
            }
            if !this.rest.is_empty() || matches!(this.long, Long::Waits { .. }) {
                continue;
            }
            let frame = match ready!(Pin::new(&mut this.body).poll_frame(context)) {
                Some(Ok(frame)) => frame,
                Some(Err(error)) => return Poll::Ready(Some(Err(error))),
                None => return Poll::Ready(this.end()),
            };
            match frame.into_data() {
                Ok(data) => this.rest = data,
                Err(trailers) => return Poll::Ready(Some(Ok(trailers))),
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        let is_whole = self.has == 0 && matches!(self.long, Long::None | Long::IsThere(_));
        is_whole && self.rest.is_empty() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::default()
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;
    use http_body_util::{BodyExt, Full, StreamBody};
    use tokio_stream::StreamExt;

    use super::super::identity::GateIdentity;
    use super::super::reception::{Room, cost_kib};
    use super::*;

    fn message(length: usize) -> Vec<u8> {
        let prefix = u32::try_from(length).expect("small").to_be_bytes();
        [&[0], &prefix[..], &vec![b'x'; length]].concat()
    }

    fn room(kib: usize) -> Arc<Room> {
        Arc::new(Room::of_size(kib, kib))
    }

    fn arrival(stream: Vec<Vec<u8>>, room: &Arc<Room>, handover: Handover) -> Arrival {
        let pieces = stream
            .into_iter()
            .map(|piece| Ok::<_, Status>(Frame::data(piece.into())));
        let body = Body::new(StreamBody::new(tokio_stream::iter(pieces)));
        Arrival::new(body, room.of(GateIdentity::uid(1)), handover)
    }

    /// All that is passed on, with long messages where they are handed over; and their lengths.
    async fn all(stream: &[u8], piece: usize, handover: Handover) -> (Vec<u8>, Vec<usize>) {
        let messages = match &handover {
            Handover::Apart(messages) => messages.clone(),
            Handover::InPlace => LongMessages::default(),
        };
        let pieces = stream.chunks(piece).map(<[u8]>::to_vec).collect();
        let mut arrival = arrival(pieces, &room(1 << 20), handover);
        let (mut passed, mut apart) = (Vec::new(), Vec::new());
        while let Some(frame) = arrival.frame().await {
            let data = frame.expect("no error").into_data().expect("data");
            if let Some(long) = messages.take() {
                assert_eq!(data, Bytes::from_static(&[0; HEADER]));
                apart.push(long.bytes.len());
                passed.extend_from_slice(&message(long.bytes.len())[..HEADER]);
                passed.extend_from_slice(&long.bytes);
            } else {
                passed.extend_from_slice(&data);
            }
        }
        (passed, apart)
    }

    #[tokio::test]
    async fn messages_are_found_however_the_stream_is_cut() {
        let lengths = [0, 1, LONG, LONG + 1, 7, 0, 3 * LONG, LONG + 2, 0, 5];
        let stream: Vec<u8> = lengths.into_iter().flat_map(message).collect();
        for piece in [1, 2, 3, 4, 5, 6, 7, 1_000, 16_384, stream.len()] {
            let apart = Handover::Apart(LongMessages::default());
            let long = vec![LONG + 1, 3 * LONG, LONG + 2];
            assert_eq!(all(&stream, piece, apart).await, (stream.clone(), long));
            let in_place = all(&stream, piece, Handover::InPlace).await;
            assert_eq!(in_place, (stream.clone(), Vec::new()));
        }
    }

    #[tokio::test]
    async fn a_stream_that_ends_within_a_message_does_not_end_well() {
        for (length, left) in [(LONG + 1, 1), (LONG + 1, LONG + 1)] {
            let cut = message(length)[..HEADER + length - left].to_vec();
            let mut arrival = arrival(vec![cut], &room(1 << 20), Handover::InPlace);
            let error = arrival.frame().await.expect("not the end").err();
            assert_eq!(error.expect("an error").code(), tonic::Code::Internal);
        }
        // What tonic sees to.
        let mut arrival = arrival(vec![vec![0, 0]], &room(1), Handover::InPlace);
        let frame = arrival.frame().await.expect("more").expect("no error");
        assert_eq!(frame.into_data().expect("data"), vec![0, 0]);
        assert!(arrival.frame().await.is_none());
    }

    #[tokio::test]
    async fn a_long_message_waits_until_there_is_room() {
        let length = 200 << 10;
        let room = room(usize::try_from(cost_kib(length)).expect("small"));
        let stream = vec![message(length), message(3), message(length)];
        let messages = LongMessages::default();
        let mut arrival = arrival(stream, &room, Handover::Apart(messages.clone()));
        let _in_its_place = arrival.frame().await.expect("more").expect("no error");
        let first = messages.take().expect("it is there");
        let next = arrival.frame().await.expect("more").expect("no error");
        assert_eq!(next.into_data().expect("data"), message(3));
        assert!(arrival.frame().now_or_never().is_none());
        // Of another gate there is room, but none in all.
        let others = room.of(GateIdentity::uid(2));
        assert!(others.acquire(1).now_or_never().is_none());
        drop(first);
        let _in_its_place = arrival.frame().await.expect("more").expect("no error");
        assert_eq!(messages.take().expect("it is there").bytes.len(), length);
        assert!(others.acquire(1).now_or_never().is_some());
    }

    #[tokio::test]
    async fn a_body_is_at_its_end_when_all_of_it_is_passed_on_and_not_before() {
        // One that says of itself when it has come to its end.
        let arrival = |stream: Vec<u8>, room: &Arc<Room>| {
            let body = Body::new(Full::new(Bytes::from(stream)));
            Arrival::new(body, room.of(GateIdentity::uid(1)), Handover::InPlace)
        };
        let wide = room(1 << 20);
        assert!(arrival(Vec::new(), &wide).is_end_stream());
        let (short, long) = (message(3), message(LONG + 1));
        for stream in [
            short.clone(),
            long.clone(),
            [&short[..], &long].concat(),
            [&long[..], &short].concat(),
            [&long[..], &long].concat(),
            [&short[..], &[0, 0]].concat(),
        ] {
            let mut left = stream.len();
            let mut arrival = arrival(stream, &wide);
            while left > 0 {
                assert!(!arrival.is_end_stream(), "{left} are left");
                let frame = arrival.frame().await.expect("more").expect("no error");
                left -= frame.into_data().expect("data").len();
            }
            assert!(arrival.is_end_stream());
            assert!(arrival.frame().await.is_none());
        }
        // All of it has come, and there is no room for it.
        let narrow = room(usize::try_from(cost_kib(LONG + 1)).expect("small"));
        let others = narrow.of(GateIdentity::uid(2));
        let held = others.acquire(LONG + 1).await.expect("room");
        // Cut short behind its header, which is still to be told.
        let mut cut = arrival(long[..HEADER].to_vec(), &narrow);
        assert!(cut.frame().now_or_never().is_none());
        assert!(!cut.is_end_stream());
        drop(held);
        assert!(cut.frame().await.expect("more").is_err());
        drop(cut);
        let held = others.acquire(LONG + 1).await.expect("room");
        let mut arrival = arrival(long, &narrow);
        assert!(arrival.frame().now_or_never().is_none());
        assert!(!arrival.is_end_stream());
        drop(held);
        let _whole = arrival.frame().await.expect("more").expect("no error");
        assert!(arrival.is_end_stream());
    }

    #[tokio::test(start_paused = true)]
    async fn a_long_message_that_does_not_come_to_its_end_ends_the_call() {
        let half = Bytes::from(message(LONG + 1)).slice(..LONG);
        let stream = tokio_stream::once(Ok::<_, Status>(Frame::data(half)));
        let body = Body::new(StreamBody::new(stream.chain(tokio_stream::pending())));
        let room = room(1_000).of(GateIdentity::uid(1));
        let mut arrival = Arrival::new(body, room, Handover::InPlace);
        let error = arrival.frame().await.expect("no end").err();
        let error = error.expect("an error");
        assert_eq!(error.code(), tonic::Code::InvalidArgument, "{error}");
    }
}
