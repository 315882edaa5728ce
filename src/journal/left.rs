use std::sync::Arc;

use prost::bytes::Bytes;

use super::error::JournalError;
use super::file::{self, JournalFile, KeptEvent, KeptSession, Which};
use super::{SharedFile, lock};
use crate::model::SessionId;

/// Most events, and about the most bytes, that are read at once.
const PAGE_EVENTS: usize = 256;
const PAGE_BYTES: u64 = 4 << 20;

/// Whose session it was.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Left {
    /// One of this gate's own, which has ended.
    ByThisGate,
    /// One of a gate that is no more.
    ByAnotherGate,
}

/// A session that no gate tells events of any more, and what is to be delivered of it. All functions that
/// may fail block.
#[derive(Debug, Clone)]
pub struct LeftSession {
    session: KeptSession,
    file: SharedFile,
    whose: Left,
}

pub(super) fn sessions(
    file: &SharedFile,
    which: Which,
    whose: Left,
) -> Result<Vec<LeftSession>, JournalError> {
    let sessions = match &*lock(file) {
        Some(file) => file.sessions(which)?,
        None => Vec::new(),
    };
    let session = |session| LeftSession {
        session,
        file: Arc::clone(file),
        whose,
    };
    Ok(sessions.into_iter().map(session).collect())
}

/// Removes a file that has nothing in it.
pub(super) fn remove(file: &SharedFile) {
    if let Some(file) = lock(file).take() {
        file.remove();
    }
}

pub(super) fn remove_if_empty(file: &SharedFile) {
    let mut file = lock(file);
    if file
        .as_ref()
        .is_some_and(|file| file.is_empty().unwrap_or(false))
        && let Some(file) = file.take()
    {
        file.remove();
    }
}

impl LeftSession {
    /// The session.
    pub fn id(&self) -> SessionId {
        self.session.id
    }

    /// Whose it was.
    pub fn whose(&self) -> Left {
        self.whose
    }

    /// Encoding of its first event.
    pub fn opening(&self) -> &Bytes {
        &self.session.opening
    }

    /// The sequence up to which all is settled.
    pub fn settled(&self) -> u64 {
        self.session.settled
    }

    /// The last sequence that its gate is known to have given to an event.
    pub fn told(&self) -> u64 {
        self.session.told
    }

    /// Whether its end is among its events; otherwise its gate was killed.
    pub fn has_ended(&self) -> bool {
        self.session.is_left
    }

    /// How many events there are to deliver.
    ///
    /// # Errors
    /// When they can't be read.
    pub fn count(&self) -> Result<u64, JournalError> {
        self.with(|file| file.count(self.session.number))
    }

    /// Encoding of the first event that is to be delivered; `None` where it is lost.
    ///
    /// # Errors
    /// When it can't be read.
    pub fn first(&self) -> Result<Option<Bytes>, JournalError> {
        self.with(|file| file.first(self.session.number))
    }

    /// Encoding of the last event; `None` where it is lost, or there is none.
    ///
    /// # Errors
    /// When it can't be read.
    pub fn last(&self) -> Result<Option<Bytes>, JournalError> {
        self.with(|file| file.last(self.session.number))
    }

    /// The events behind `after`, in order, some of them at least if there are any.
    ///
    /// # Errors
    /// When they can't be read.
    pub fn events(&self, after: u64) -> Result<Vec<KeptEvent>, JournalError> {
        self.with(|file| file.events(self.session.number, after, PAGE_EVENTS, PAGE_BYTES))
    }

    /// Adds the session's end, which its gate didn't come to tell.
    ///
    /// # Errors
    /// When it can't be written.
    pub fn end(&mut self, sequence: u64, body: Bytes) -> Result<(), JournalError> {
        let number = self.session.number;
        let event = KeptEvent {
            first: sequence,
            sequence,
            body: Some(body),
        };
        self.with(|file| {
            file.change(|transaction| {
                file::leave(transaction, number)?;
                Ok(((), file::keep(transaction, number, &event)?))
            })
        })?;
        self.session.is_left = true;
        Ok(())
    }

    /// Forgets the events up to `through`.
    ///
    /// # Errors
    /// When that can't be written; they will be delivered again.
    pub fn settle(&mut self, through: u64) -> Result<(), JournalError> {
        let number = self.session.number;
        self.with(|file| {
            file.change(|transaction| {
                Ok(((), file::settle(transaction, number, through, through)?))
            })
        })?;
        self.session.settled = self.session.settled.max(through);
        Ok(())
    }

    /// Forgets the session: all of it is delivered.
    ///
    /// # Errors
    /// When that can't be written; it will be delivered again.
    pub fn delivered(self) -> Result<(), JournalError> {
        let number = self.session.number;
        self.with(|file| file.change(|transaction| Ok(((), file::forget(transaction, number)?))))?;
        if self.whose == Left::ByAnotherGate {
            remove_if_empty(&self.file);
        }
        Ok(())
    }

    fn with<T: Default>(
        &self,
        act: impl FnOnce(&mut JournalFile) -> Result<T, JournalError>,
    ) -> Result<T, JournalError> {
        match &mut *lock(&self.file) {
            Some(file) => act(file),
            // Nothing was left in it.
            None => Ok(T::default()),
        }
    }
}
