//! Bounds what messages take while they arrive, and until they are answered.
//!
//! A message is kept whole until it can be understood, and takes more then; and a gate may have thousands of calls: if
//! each left a large message unfinished, memory would be gone. So a long message has to find room before it is read, and
//! has to come to its end in time (`arrival`). Whoever finds none waits, and as nothing is read meanwhile, so does the
//! sender.

use std::collections::HashMap;
use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::task::{Context, Poll};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tonic::body::Body;
use tonic::codegen::{Service, http};
use tonic::server::NamedService;

use super::arrival::{Arrival, Handover, LongMessages};
use super::authenticate::Caller;
use super::elements::{LARGEST_ELEMENT, MOST_ELEMENTS};
use super::identity::GateIdentity;

/// Room for long messages, in KiB: of one gate, and of all.
const ROOM_OF_ONE_GATE: usize = 256 << 10;
const ROOM_IN_ALL: usize = 1 << 20;

/// A service whose calls read long messages only where there is room.
#[derive(Debug, Clone)]
pub(super) struct Reception<S> {
    service: S,
    room: Arc<Room>,
    handing: Handing,
}

/// Whether a service's calls live on after a message.
#[derive(Debug, Clone, Copy)]
enum Handing {
    /// A call is one message.
    InPlace,
    /// It takes long ones from [`LongMessages`], which its requests have as an extension.
    Apart,
}

impl<S> Reception<S> {
    /// For a service each of whose calls takes one message.
    pub(super) fn new(service: S, room: &Arc<Room>) -> Self {
        Self {
            service,
            room: Arc::clone(room),
            handing: Handing::InPlace,
        }
    }

    /// For one whose calls take their long messages from [`LongMessages`].
    pub(super) fn apart(service: S, room: &Arc<Room>) -> Self {
        Self {
            handing: Handing::Apart,
            ..Self::new(service, room)
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

    fn call(&mut self, mut request: http::Request<Body>) -> S::Future {
        let caller = request.extensions().get::<Caller>();
        // Without one the service refuses the call, and reads nothing.
        let gate = caller.map_or_else(GateIdentity::anonymous, |caller| caller.gate.clone());
        let room = self.room.of(gate);
        let handover = match self.handing {
            Handing::InPlace => Handover::InPlace,
            Handing::Apart => {
                let messages = LongMessages::default();
                request.extensions_mut().insert(messages.clone());
                Handover::Apart(messages)
            }
        };
        self.service
            .call(request.map(|body| Body::new(Arrival::new(body, room, handover))))
    }
}

/// Memory that several have, in KiB, and no gate more than its part.
#[derive(Debug)]
pub(super) struct Room {
    in_all: Arc<Semaphore>,
    // Of gates that have calls.
    of_gates: Mutex<HashMap<GateIdentity, Weak<Semaphore>>>,
    of_one_gate: usize,
}

impl Room {
    /// Room for messages.
    pub(super) fn new() -> Self {
        Self::of_size(ROOM_OF_ONE_GATE, ROOM_IN_ALL)
    }

    /// Room of so many KiB for each gate, and in all.
    pub(super) fn of_size(of_one_gate: usize, in_all: usize) -> Self {
        Self {
            in_all: Arc::new(Semaphore::new(in_all)),
            of_gates: Mutex::default(),
            of_one_gate,
        }
    }

    pub(super) fn of(&self, gate: GateIdentity) -> RoomOfGate {
        let in_all = Arc::clone(&self.in_all);
        let mut of_gates = self.of_gates.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(of_gate) = of_gates.get(&gate).and_then(Weak::upgrade) {
            return RoomOfGate { of_gate, in_all };
        }
        of_gates.retain(|_, room| room.strong_count() > 0);
        let of_gate = Arc::new(Semaphore::new(self.of_one_gate));
        of_gates.insert(gate, Arc::downgrade(&of_gate));
        RoomOfGate { of_gate, in_all }
    }
}

/// The part of one gate.
#[derive(Debug, Clone)]
pub(super) struct RoomOfGate {
    of_gate: Arc<Semaphore>,
    in_all: Arc<Semaphore>,
}

/// What something holds while it is there.
pub(super) type Held = (OwnedSemaphorePermit, OwnedSemaphorePermit);

impl RoomOfGate {
    /// Waits for room for a message of so many bytes.
    pub(super) fn acquire(&self, length: usize) -> impl Future<Output = Option<Held>> + use<> {
        let Self { of_gate, in_all } = self.clone();
        let kib = cost_kib(length);
        async move {
            let of_gate = of_gate.acquire_many_owned(kib).await.ok()?;
            Some((of_gate, in_all.acquire_many_owned(kib).await.ok()?))
        }
    }

    /// Takes room for so many bytes, if there is.
    pub(super) fn take(self, bytes: usize) -> Option<Held> {
        let kib = u32::try_from(bytes.div_ceil(1 << 10)).ok()?;
        let of_gate = self.of_gate.try_acquire_many_owned(kib).ok()?;
        Some((of_gate, self.in_all.try_acquire_many_owned(kib).ok()?))
    }
}

/// What a message of so many bytes takes at most, in KiB, itself and understood: an element may have two bytes.
pub(super) fn cost_kib(length: usize) -> u32 {
    let elements = (length / 2).min(MOST_ELEMENTS);
    let bytes = length.saturating_add(elements * LARGEST_ELEMENT);
    u32::try_from(bytes.div_ceil(1 << 10)).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::super::service::MAX_MESSAGE_SIZE;
    use super::*;

    #[test]
    fn room_is_its_gates_own_and_forgotten_with_its_calls() {
        let room = Room::new();
        let first = room.of(GateIdentity::uid(1));
        let again = room.of(GateIdentity::uid(1));
        assert!(Arc::ptr_eq(&first.of_gate, &again.of_gate));
        let second = room.of(GateIdentity::uid(2));
        assert!(!Arc::ptr_eq(&first.of_gate, &second.of_gate));
        drop((first, again, second));
        let _third = room.of(GateIdentity::uid(3));
        assert_eq!(room.of_gates.lock().expect("no panic").len(), 1);
    }

    #[test]
    fn each_message_fits_into_a_gates_room_and_a_gate_leaves_room_for_others() {
        let largest = usize::try_from(cost_kib(MAX_MESSAGE_SIZE)).expect("small");
        assert!(2 * largest <= ROOM_OF_ONE_GATE);
        let room = Room::new();
        let greedy = room.of(GateIdentity::uid(1));
        let mut held = Vec::new();
        while let Some(taken) = greedy.clone().take(1 << 20) {
            held.push(taken);
        }
        assert_eq!(held.len(), ROOM_OF_ONE_GATE >> 10);
        assert!(room.of(GateIdentity::uid(2)).take(1 << 20).is_some());
        held.pop();
        assert!(greedy.take(1 << 20).is_some());
    }
}
