//! How many there may be at once: in all, and of one peer.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Mutex, PoisonError};

/// Counts what is there, and admits no more than there may be.
#[derive(Debug, Clone)]
pub(super) struct Admission<K: Eq + Hash>(Arc<Inner<K>>);

#[derive(Debug)]
struct Inner<K> {
    bounds: Bounds,
    counted: Mutex<Counted<K>>,
}

/// How many may be there at once.
#[derive(Debug, Clone, Copy)]
pub(super) struct Bounds {
    pub(super) in_all: usize,
    pub(super) of_one_peer: usize,
}

#[derive(Debug)]
struct Counted<K> {
    in_all: usize,
    // Peers of which something is there, so never more than are admitted.
    of_peers: HashMap<K, usize>,
}

/// Which bound has been reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Full {
    InAll,
    OfOnePeer,
}

/// One that was admitted. Dropping it makes room.
#[derive(Debug)]
pub(super) struct Admitted<K: Eq + Hash> {
    inner: Arc<Inner<K>>,
    peer: K,
}

impl<K: Eq + Hash + Clone> Admission<K> {
    pub(super) fn new(bounds: Bounds) -> Self {
        Self(Arc::new(Inner {
            bounds,
            counted: Mutex::new(Counted {
                in_all: 0,
                of_peers: HashMap::new(),
            }),
        }))
    }

    pub(super) fn bounds(&self) -> Bounds {
        self.0.bounds
    }

    pub(super) fn admit(&self, peer: K) -> Result<Admitted<K>, Full> {
        let mut counted = self.0.lock();
        if counted.in_all >= self.0.bounds.in_all {
            return Err(Full::InAll);
        }
        let of_peer = counted.of_peers.get(&peer).copied().unwrap_or_default();
        if of_peer >= self.0.bounds.of_one_peer {
            return Err(Full::OfOnePeer);
        }
        counted.in_all += 1;
        counted.of_peers.insert(peer.clone(), of_peer + 1);
        drop(counted);
        Ok(Admitted {
            inner: Arc::clone(&self.0),
            peer,
        })
    }
}

impl<K> Inner<K> {
    fn lock(&self) -> std::sync::MutexGuard<'_, Counted<K>> {
        // Nothing in here is left half done by a panic elsewhere.
        self.counted.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<K: Eq + Hash> Drop for Admitted<K> {
    fn drop(&mut self) {
        let mut counted = self.inner.lock();
        counted.in_all -= 1;
        if let Some(of_peer) = counted.of_peers.get_mut(&self.peer) {
            *of_peer -= 1;
            if *of_peer == 0 {
                counted.of_peers.remove(&self.peer);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_peer_can_not_take_the_room_of_all() {
        let admission = Admission::new(Bounds {
            in_all: 3,
            of_one_peer: 2,
        });
        let first = admission.admit("a").expect("room");
        let second = admission.admit("a").expect("room");
        assert_eq!(admission.admit("a").expect_err("full"), Full::OfOnePeer);
        let third = admission.admit("b").expect("room");
        assert_eq!(admission.admit("c").expect_err("full"), Full::InAll);
        drop(first);
        drop(admission.admit("a").expect("room again"));
        drop((second, third));
        assert!(admission.0.lock().of_peers.is_empty());
        assert_eq!(admission.0.lock().in_all, 0);
    }
}
