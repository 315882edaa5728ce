//! Bounds what messages take while they arrive.
//!
//! A message is kept whole until it can be understood, and a gate may have thousands of calls: if each left a large
//! message unfinished, memory would be gone. So a long message has to find room before it is read, and has
//! to come to its end in time. Whoever finds none waits, and as nothing is read meanwhile, so does the sender.
//!
//! It reads no more than gRPC's framing: before each message one byte that says whether it is compressed, and
//! four with its length.

use std::collections::HashMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use hyper::body::{Body as HttpBody, Bytes, Frame, SizeHint};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Sleep;
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::{Service, http};
use tonic::server::NamedService;

use super::authenticate::Caller;
use super::identity::GateIdentity;
use super::service::MAX_MESSAGE_SIZE;

/// Messages longer than this, in bytes, need room. All others of all calls are small together.
const LONG: usize = 64 << 10;
/// Room for long messages, in KiB: of one gate, and of all.
const ROOM_OF_ONE_GATE: usize = 256 << 10;
const ROOM_IN_ALL: usize = 1 << 20;
/// How long a long message may take once there is room for it. Poor networks have to do.
const PATIENCE: Duration = Duration::from_secs(120);
/// Before each message.
const HEADER: usize = 5;

/// A service whose calls read long messages only where there is room.
#[derive(Debug, Clone)]
pub(super) struct Reception<S> {
    service: S,
    room: Arc<Room>,
}

impl<S> Reception<S> {
    pub(super) fn new(service: S, room: &Arc<Room>) -> Self {
        Self {
            service,
            room: Arc::clone(room),
        }
    }
}

impl<S: NamedService> NamedService for Reception<S> {
    const NAME: &'static str = S::NAME;
}

impl<S> Service<http::Request<Body>> for Reception<S>
where
    S: Service<http::Request<Body>>,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = S::Future;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.service.poll_ready(context)
    }

    fn call(&mut self, request: http::Request<Body>) -> S::Future {
        let caller = request.extensions().get::<Caller>();
        // Without one the service refuses the call, and reads nothing.
        let gate = caller.map_or_else(GateIdentity::anonymous, |caller| caller.gate.clone());
        let of_gate = self.room.of(gate);
        let in_all = Arc::clone(&self.room.in_all);
        self.service
            .call(request.map(|body| Body::new(Arrival::new(body, of_gate, in_all))))
    }
}

/// What all services share.
#[derive(Debug)]
pub(super) struct Room {
    in_all: Arc<Semaphore>,
    // Of gates that have calls.
    of_gates: Mutex<HashMap<GateIdentity, Weak<Semaphore>>>,
}

impl Room {
    pub(super) fn new() -> Self {
        Self {
            in_all: Arc::new(Semaphore::new(ROOM_IN_ALL)),
            of_gates: Mutex::default(),
        }
    }

    fn of(&self, gate: GateIdentity) -> Arc<Semaphore> {
        let mut of_gates = self.of_gates.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(room) = of_gates.get(&gate).and_then(Weak::upgrade) {
            return room;
        }
        of_gates.retain(|_, room| room.strong_count() > 0);
        let room = Arc::new(Semaphore::new(ROOM_OF_ONE_GATE));
        of_gates.insert(gate, Arc::downgrade(&room));
        room
    }
}

/// What a message holds while it is there.
type Held = (OwnedSemaphorePermit, OwnedSemaphorePermit);

async fn acquire(of_gate: Arc<Semaphore>, in_all: Arc<Semaphore>, kib: u32) -> Option<Held> {
    let of_gate = of_gate.acquire_many_owned(kib).await.ok()?;
    Some((of_gate, in_all.acquire_many_owned(kib).await.ok()?))
}

/// The messages of one call, as they arrive.
struct Arrival {
    body: Body,
    of_gate: Arc<Semaphore>,
    in_all: Arc<Semaphore>,
    framing: Framing,
    /// Has arrived, and isn't passed on yet.
    rest: Bytes,
    long: Long,
}

/// What there is of a long message.
enum Long {
    None,
    /// There is no room for it yet.
    Waits(Pin<Box<dyn Future<Output = Option<Held>> + Send>>),
    Arrives(Held, Pin<Box<Sleep>>),
    /// All of it is passed on. The call is done with it when it reads on.
    IsThere(#[expect(dead_code, reason = "it is held")] Held),
}

impl Arrival {
    fn new(body: Body, of_gate: Arc<Semaphore>, in_all: Arc<Semaphore>) -> Self {
        Self {
            body,
            of_gate,
            in_all,
            framing: Framing::default(),
            rest: Bytes::new(),
            long: Long::None,
        }
    }

    /// Passes on what may be, of what is left.
    fn pass_on(&mut self) -> Bytes {
        match self.framing.advance(&self.rest) {
            Step::All => std::mem::take(&mut self.rest),
            Step::Begins { at, length } => {
                let kib = u32::try_from(length.div_ceil(1 << 10)).unwrap_or(u32::MAX);
                let (of_gate, in_all) = (Arc::clone(&self.of_gate), Arc::clone(&self.in_all));
                self.long = Long::Waits(Box::pin(acquire(of_gate, in_all, kib)));
                self.rest.split_to(at)
            }
            Step::Ends { at } => {
                let long = std::mem::replace(&mut self.long, Long::None);
                if let Long::Arrives(held, _) = long {
                    self.long = Long::IsThere(held);
                }
                self.rest.split_to(at)
            }
        }
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
            match &mut this.long {
                Long::None => {}
                Long::IsThere(_) => this.long = Long::None,
                Long::Waits(acquiring) => {
                    let held = ready!(acquiring.as_mut().poll(context));
                    let held = held.ok_or_else(|| Status::unavailable("there is no room"))?;
                    this.long = Long::Arrives(held, Box::pin(tokio::time::sleep(PATIENCE)));
                }
                Long::Arrives(_, patience) => {
                    if patience.as_mut().poll(context).is_ready() {
                        let text = format!(
                            "a long message wasn't complete within {} seconds",
                            PATIENCE.as_secs()
                        );
                        return Poll::Ready(Some(Err(Status::invalid_argument(text))));
                    }
                }
            }
            if this.rest.is_empty() {
                let frame = match ready!(Pin::new(&mut this.body).poll_frame(context)) {
                    Some(Ok(frame)) => frame,
                    other => return Poll::Ready(other),
                };
                match frame.into_data() {
                    Ok(data) => this.rest = data,
                    Err(trailers) => return Poll::Ready(Some(Ok(trailers))),
                }
            }
            let data = this.pass_on();
            if !data.is_empty() {
                return Poll::Ready(Some(Ok(Frame::data(data))));
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::default()
    }
}

/// Where in its messages a stream of bytes is.
#[derive(Debug, Default)]
struct Framing {
    header: [u8; HEADER],
    /// Bytes of the header that have come.
    has: usize,
    /// Bytes of the message that are still to come.
    remaining: usize,
    is_long: bool,
}

/// How far bytes may be read on.
#[derive(Debug, PartialEq, Eq)]
enum Step {
    All,
    /// To just before a long message: but for one byte its header is passed on, so that nobody prepares for
    /// it yet.
    Begins {
        at: usize,
        length: usize,
    },
    /// To the end of a long message.
    Ends {
        at: usize,
    },
}

impl Framing {
    fn advance(&mut self, bytes: &[u8]) -> Step {
        let mut at = 0;
        while at < bytes.len() {
            if self.remaining > 0 {
                let taken = self.remaining.min(bytes.len() - at);
                self.remaining -= taken;
                at += taken;
                if self.remaining == 0 && std::mem::take(&mut self.is_long) {
                    return Step::Ends { at };
                }
                continue;
            }
            self.header[self.has] = bytes[at];
            self.has += 1;
            at += 1;
            if self.has < HEADER {
                continue;
            }
            self.has = 0;
            let [_, length @ ..] = self.header;
            self.remaining = usize::try_from(u32::from_be_bytes(length)).unwrap_or(usize::MAX);
            // One that is too long is refused when its header is read.
            if self.remaining > LONG && self.remaining <= MAX_MESSAGE_SIZE {
                let length = self.remaining;
                self.is_long = true;
                // The byte that is held back.
                self.remaining += 1;
                return Step::Begins { at: at - 1, length };
            }
        }
        Step::All
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(length: usize) -> Vec<u8> {
        let prefix = u32::try_from(length).expect("small").to_be_bytes();
        [&[0], &prefix[..], &vec![b'x'; length]].concat()
    }

    /// What `advance` says of a stream that comes in pieces of this size, and all that it passes on.
    fn steps(stream: &[u8], piece: usize) -> (Vec<usize>, usize, usize) {
        let mut framing = Framing::default();
        let (mut begun, mut ended, mut passed) = (Vec::new(), 0, 0);
        for piece in stream.chunks(piece) {
            let mut rest = piece;
            while !rest.is_empty() {
                let at = match framing.advance(rest) {
                    Step::All => rest.len(),
                    Step::Begins { at, length } => {
                        begun.push(length);
                        at
                    }
                    Step::Ends { at } => {
                        ended += 1;
                        at
                    }
                };
                passed += at;
                rest = &rest[at..];
            }
        }
        (begun, ended, passed)
    }

    #[test]
    fn long_messages_are_found_however_the_stream_is_cut() {
        let lengths = [0, 1, LONG, LONG + 1, 7, 3 * LONG, LONG + 2, 0, 5];
        let stream: Vec<u8> = lengths.into_iter().flat_map(message).collect();
        let expected = (vec![LONG + 1, 3 * LONG, LONG + 2], 3, stream.len());
        for piece in [1, 2, 3, 5, 6, 1_000, 16_384, stream.len()] {
            assert_eq!(steps(&stream, piece), expected, "in pieces of {piece}");
        }
    }

    #[tokio::test]
    async fn a_long_message_waits_until_the_call_is_done_with_the_one_before() {
        use futures_util::FutureExt;
        use http_body_util::BodyExt;

        let length = 200 << 10;
        let stream: Vec<u8> = [message(length), message(3), message(length)].concat();
        let room = || Arc::new(Semaphore::new(length.div_ceil(1 << 10)));
        let (of_gate, in_all) = (room(), room());
        let body = Body::new(http_body_util::Full::new(Bytes::from(stream.clone())));
        let mut arrival = Arrival::new(body, Arc::clone(&of_gate), Arc::clone(&in_all));
        let mut passed = Vec::new();
        while passed.len() < length + HEADER {
            let frame = arrival.frame().await.expect("more").expect("no error");
            passed.extend_from_slice(&frame.into_data().expect("data"));
        }
        assert_eq!(passed.len(), length + HEADER);
        assert_eq!(
            (of_gate.available_permits(), in_all.available_permits()),
            (0, 0)
        );
        // Another call's message takes what becomes free.
        let others = in_all.clone().acquire_many_owned(1);
        tokio::pin!(others);
        assert!(others.as_mut().now_or_never().is_none());
        let frame = arrival.frame().await.expect("more").expect("no error");
        passed.extend_from_slice(&frame.into_data().expect("data"));
        let taken = others.await.expect("room");
        assert!(arrival.frame().now_or_never().is_none());
        drop(taken);
        while let Some(frame) = arrival.frame().await {
            passed.extend_from_slice(&frame.expect("no error").into_data().expect("data"));
        }
        assert_eq!(passed, stream);
        drop(arrival);
        assert_eq!(of_gate.available_permits(), length.div_ceil(1 << 10));
    }

    #[tokio::test(start_paused = true)]
    async fn a_long_message_that_does_not_come_to_its_end_ends_the_call() {
        use http_body_util::{BodyExt, StreamBody};
        use tokio_stream::StreamExt;

        let half = Bytes::from(message(LONG + 1)).slice(..LONG);
        let stream = tokio_stream::once(Ok::<_, Status>(Frame::data(half)));
        let body = Body::new(StreamBody::new(stream.chain(tokio_stream::pending())));
        let room = || Arc::new(Semaphore::new(1_000));
        let mut arrival = Arrival::new(body, room(), room());
        let error = loop {
            match arrival.frame().await.expect("no end") {
                Ok(_) => {}
                Err(status) => break status,
            }
        };
        assert_eq!(error.code(), tonic::Code::InvalidArgument, "{error}");
    }

    #[test]
    fn room_is_its_gates_own_and_forgotten_with_its_calls() {
        let room = Room::new();
        let first = room.of(GateIdentity::uid(1));
        assert!(Arc::ptr_eq(&first, &room.of(GateIdentity::uid(1))));
        let second = room.of(GateIdentity::uid(2));
        assert!(!Arc::ptr_eq(&first, &second));
        drop((first, second));
        let _third = room.of(GateIdentity::uid(3));
        assert_eq!(room.of_gates.lock().expect("no panic").len(), 1);
    }
}
