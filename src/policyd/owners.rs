//! Whose session is whose.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};

use super::identity::GateIdentity;

/// Most sessions whose owner is kept in memory: about 20 MiB of them. The store knows all that it has.
pub(super) const MOST_REMEMBERED: usize = 131_072;

/// Whether a gate's session was known before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Claim {
    First,
    Again,
}

/// Remembers which gate started which session, the latest ones.
#[derive(Debug, Clone, Default)]
pub(super) struct Owners(Arc<Mutex<Remembered>>);

#[derive(Debug, Default)]
struct Remembered {
    owners: HashMap<Arc<str>, GateIdentity>,
    /// The earliest first.
    order: VecDeque<Arc<str>>,
}

impl Owners {
    /// Makes a session a gate's, unless it is another's: then tells whose.
    pub(super) fn claim(&self, session: &str, gate: &GateIdentity) -> Result<Claim, GateIdentity> {
        let mut remembered = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(owner) = remembered.owners.get(session) {
            return if owner == gate {
                Ok(Claim::Again)
            } else {
                Err(owner.clone())
            };
        }
        if remembered.order.len() >= MOST_REMEMBERED
            && let Some(earliest) = remembered.order.pop_front()
        {
            remembered.owners.remove(&earliest);
        }
        let session: Arc<str> = session.into();
        remembered.order.push_back(Arc::clone(&session));
        remembered.owners.insert(session, gate.clone());
        Ok(Claim::First)
    }

    /// Whether it is a session that somebody started, as far as is remembered.
    pub(super) fn knows(&self, session: &str) -> bool {
        let remembered = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        remembered.owners.contains_key(session)
    }

    /// Corrects a claim that turned out to be on another gate's session.
    pub(super) fn give_back(&self, session: &str, owner: &GateIdentity) {
        let mut remembered = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = remembered.owners.get_mut(session) {
            known.clone_from(owner);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_is_whose_it_was_first() {
        let gate = |name| GateIdentity::token(name).expect("a name");
        let owners = Owners::default();
        assert_eq!(owners.claim("s", &gate("a")), Ok(Claim::First));
        assert_eq!(owners.claim("s", &gate("a")), Ok(Claim::Again));
        assert_eq!(owners.claim("s", &gate("b")), Err(gate("a")));
        assert_eq!(
            owners.claim("s", &GateIdentity::anonymous()),
            Err(gate("a"))
        );
        owners.give_back("s", &gate("b"));
        owners.claim("s", &gate("b")).expect("its own");
        for number in 0..MOST_REMEMBERED {
            owners.claim(&number.to_string(), &gate("b")).expect("new");
        }
        let remembered = owners.0.lock().expect("no panic");
        assert_eq!(remembered.owners.len(), MOST_REMEMBERED);
        assert_eq!(remembered.order.len(), MOST_REMEMBERED);
    }
}
