//! The chain of hashes over all events, in the order in which they were stored.
//!
//! Each event's hash is SHA-256 over the hash before it and all that the store has of the event, so an event that
//! is changed, taken out or put in between breaks the chain there. Where old events were removed on purpose, the
//! chain begins at the hash of the last of them, and an event further on in the chain says so.

use rusqlite::{Connection, OptionalExtension, Row, Transaction, params};
use sha2::{Digest, Sha256};

use crate::policyd::revision::hexadecimal;

/// What an event that says which events were removed is called.
pub(super) const PRUNED: &str = "pruned";

/// Hash of the event at a position; at position 0, before the first event, all zeros.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Link {
    /// The position, from 1.
    pub position: i64,
    /// The hash.
    pub hash: [u8; 32],
}

impl Link {
    /// Before the first event.
    pub(super) const BEGINNING: Self = Self {
        position: 0,
        hash: [0; 32],
    };

    /// The link of the event that follows.
    pub(super) fn next(&self, entry: &Entry<'_>) -> Self {
        let position = self.position.saturating_add(1);
        let mut digest = Sha256::new();
        digest.update(self.hash);
        digest.update(position.to_be_bytes());
        digest.update(entry.received.to_be_bytes());
        for number in [entry.sequence, entry.time, entry.exec_id] {
            match number {
                None => digest.update([0]),
                Some(number) => {
                    digest.update([1]);
                    digest.update(number.to_be_bytes());
                }
            }
        }
        for bytes in [
            Some(entry.session.as_bytes()),
            Some(entry.kind.as_bytes()),
            entry.gate.map(str::as_bytes),
            Some(entry.payload),
            entry.answer,
        ] {
            match bytes {
                None => digest.update([0]),
                Some(bytes) => {
                    digest.update([1]);
                    digest.update((bytes.len() as u64).to_be_bytes());
                    digest.update(bytes);
                }
            }
        }
        Self {
            position,
            hash: digest.finalize().into(),
        }
    }

    fn read(row: &Row<'_>) -> rusqlite::Result<Self> {
        Ok(Self {
            position: row.get(0)?,
            hash: row.get(1)?,
        })
    }

    /// Reads `POSITION:HASH`.
    ///
    /// # Errors
    /// In words, where the text isn't that.
    pub fn parse(text: &str) -> Result<Self, String> {
        let wrong = || {
            "write POSITION:HASH, as `execgate audit head` prints it: a number, a colon and 64 hexadecimal digits"
                .to_owned()
        };
        let (position, digits) = text.split_once(':').ok_or_else(wrong)?;
        let position = position.parse().map_err(|_| wrong())?;
        if position < 0
            || digits.len() != 64
            || !digits.bytes().all(|byte| byte.is_ascii_hexdigit())
        {
            return Err(wrong());
        }
        let mut hash = [0; 32];
        for (byte, at) in hash.iter_mut().zip((0..).step_by(2)) {
            let digits = digits.get(at..at + 2).ok_or_else(wrong)?;
            *byte = u8::from_str_radix(digits, 16).map_err(|_| wrong())?;
        }
        Ok(Self { position, hash })
    }
}

impl std::fmt::Display for Link {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "{}:{}", self.position, hexadecimal(&self.hash))
    }
}

/// All that the store has of an event.
#[derive(Debug)]
pub(super) struct Entry<'a> {
    pub(super) session: &'a str,
    /// `None`: it has no place in its session's history.
    pub(super) sequence: Option<i64>,
    pub(super) time: Option<i64>,
    pub(super) received: i64,
    pub(super) kind: &'a str,
    pub(super) exec_id: Option<i64>,
    pub(super) gate: Option<&'a str>,
    pub(super) payload: &'a [u8],
    pub(super) answer: Option<&'a [u8]>,
}

impl Entry<'_> {
    /// The columns that make an entry, as [`with_read`](Self::with_read) takes them.
    pub(super) const COLUMNS: &'static str = "position, hash, session_id, sequence, event_ns, received_ns, kind, \
         exec_id, gate, payload, answer";

    /// Reads an event and the link that is stored with it.
    pub(super) fn with_read<T>(
        row: &Row<'_>,
        look: impl FnOnce(&Entry<'_>, Link) -> T,
    ) -> rusqlite::Result<T> {
        let stored = Link::read(row)?;
        let bytes = |column| Ok::<_, rusqlite::Error>(row.get_ref(column)?.as_blob()?);
        let optional = |column| Ok::<_, rusqlite::Error>(row.get_ref(column)?.as_blob_or_null()?);
        let text = |column| Ok::<_, rusqlite::Error>(row.get_ref(column)?.as_str()?);
        let entry = Entry {
            session: text(2)?,
            sequence: row.get(3)?,
            time: row.get(4)?,
            received: row.get(5)?,
            kind: text(6)?,
            exec_id: row.get(7)?,
            gate: row.get_ref(8)?.as_str_or_null()?,
            payload: bytes(9)?,
            answer: optional(10)?,
        };
        Ok(look(&entry, stored))
    }

    /// Stores the event behind the last one; `false` where its session has it already.
    pub(super) fn append(
        &self,
        transaction: &Transaction<'_>,
        head: &mut Link,
    ) -> rusqlite::Result<bool> {
        let link = head.next(self);
        let is_new = transaction
            .prepare_cached(
                "INSERT INTO events
                     (position, hash, session_id, sequence, event_ns, received_ns, kind, exec_id,
                      gate, payload, answer)
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11)
                 ON CONFLICT (session_id, sequence) DO NOTHING",
            )?
            .execute(params![
                link.position,
                link.hash,
                self.session,
                self.sequence,
                self.time,
                self.received,
                self.kind,
                self.exec_id,
                self.gate,
                self.payload,
                self.answer,
            ])?
            == 1;
        if is_new {
            *head = link;
        }
        Ok(is_new)
    }
}

/// Where the chain begins: behind the last event that was removed.
pub(super) fn start(connection: &Connection) -> rusqlite::Result<Link> {
    let start = connection
        .prepare_cached("SELECT position, hash FROM chain_start")?
        .query_row([], Link::read)
        .optional()?;
    Ok(start.unwrap_or(Link::BEGINNING))
}

/// The latest event's link.
pub(super) fn head(connection: &Connection) -> rusqlite::Result<Link> {
    let latest = connection
        .prepare_cached("SELECT position, hash FROM events ORDER BY position DESC LIMIT 1")?
        .query_row([], Link::read)
        .optional()?;
    latest.map_or_else(|| start(connection), Ok)
}

/// Where the chain begins, and where it ends now.
///
/// # Errors
/// When the store can't be read.
pub(crate) fn ends(connection: &Connection) -> rusqlite::Result<(Link, Link)> {
    let snapshot = connection.unchecked_transaction()?;
    Ok((start(&snapshot)?, head(&snapshot)?))
}
