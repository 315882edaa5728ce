//! What is done to a journal's file, each within a transaction of whoever does it.

use rusqlite::{OptionalExtension, Transaction, params};

use super::{Growth, KeptEvent, ROW_OVERHEAD, signed, unsigned};
use crate::journal::tail::{Record, What};
use crate::model::SessionId;

/// Adds what a dead gate told last. What is there already, or settled, stays as it is; what ought to be
/// there between the two is lost.
pub(in crate::journal) fn add(
    transaction: &Transaction<'_>,
    mut records: Vec<Record>,
) -> rusqlite::Result<Growth> {
    let mut growth = Growth::default();
    records.sort_by_key(|record| (record.session.0, record.sequence));
    for records in records.chunk_by(|one, next| one.session == next.session) {
        let Some(first) = records.first() else {
            continue;
        };
        let known: Option<(i64, i64, i64)> = transaction
            .prepare_cached("SELECT number, settled, told FROM sessions WHERE id = ?1")?
            .query_row([first.session.0], |row| {
                Ok((row.get(0)?, row.get(1)?, row.get(2)?))
            })
            .optional()?;
        let (number, settled, mut told) = match known {
            Some((number, settled, told)) => (number, unsigned(settled), unsigned(told)),
            None if first.what == What::Opening => {
                (begin(transaction, first.session, &first.body)?, 0, 1)
            }
            // It had been written, and has been delivered and forgotten since.
            None => continue,
        };
        for record in records {
            let sequence = record.sequence;
            if record.what == What::Opening {
                continue;
            }
            if sequence > settled && !is_kept(transaction, number, sequence)? {
                if sequence > told.saturating_add(1) {
                    let lost = KeptEvent {
                        first: told + 1,
                        sequence: sequence - 1,
                        body: None,
                    };
                    growth += keep(transaction, number, &lost)?;
                }
                let event = KeptEvent {
                    first: sequence,
                    sequence,
                    body: Some(record.body.clone()),
                };
                growth += keep(transaction, number, &event)?;
            }
            told = told.max(sequence);
            if record.what == What::LastEvent {
                leave(transaction, number)?;
            }
        }
        growth += settle(transaction, number, settled, told)?;
    }
    Ok(growth)
}

/// Whether an event is kept, or that it is lost.
fn is_kept(transaction: &Transaction<'_>, session: i64, sequence: u64) -> rusqlite::Result<bool> {
    transaction
        .prepare_cached(
            "SELECT 1 FROM events WHERE session = ?1 AND ?2 BETWEEN first AND sequence",
        )?
        .exists(params![session, signed(sequence)])
}

/// Adds a session; gives its number.
pub(in crate::journal) fn begin(
    transaction: &Transaction<'_>,
    id: SessionId,
    opening: &[u8],
) -> rusqlite::Result<i64> {
    transaction.execute(
        "INSERT INTO sessions (id, opening, settled, told, is_left) VALUES (?1, ?2, 0, 1, 0)",
        params![id.0, opening],
    )?;
    Ok(transaction.last_insert_rowid())
}

/// Keeps an event, or that events are lost.
pub(in crate::journal) fn keep(
    transaction: &Transaction<'_>,
    session: i64,
    event: &KeptEvent,
) -> rusqlite::Result<Growth> {
    let mut first = event.first;
    let mut growth = Growth::default();
    if event.body.is_none() {
        // Some of them may have been kept, or told to be lost, before.
        growth += -size(transaction, session, event.first, event.sequence)?;
        transaction
            .prepare_cached("DELETE FROM events WHERE session = ?1 AND sequence BETWEEN ?2 AND ?3")?
            .execute(params![
                session,
                signed(event.first),
                signed(event.sequence)
            ])?;
        // One loss goes on from another.
        let before = transaction
            .prepare_cached(
                "DELETE FROM events WHERE session = ?1 AND sequence = ?2 AND body IS NULL
                 RETURNING first",
            )?
            .query_row(params![session, signed(event.first) - 1], |row| row.get(0))
            .optional()?;
        if let Some(before) = before {
            first = unsigned(before);
            growth.bytes -= ROW_OVERHEAD.cast_signed();
        }
    }
    transaction
        .prepare_cached(
            "INSERT OR REPLACE INTO events (session, sequence, first, body) VALUES (?1, ?2, ?3, ?4)",
        )?
        .execute(params![
            session,
            signed(event.sequence),
            signed(first),
            event.body.as_deref()
        ])?;
    growth += Growth {
        bytes: signed(event.size()),
        events: i64::from(event.body.is_some()),
    };
    Ok(growth)
}

/// Forgets what is settled, and notes how far the session has come.
pub(in crate::journal) fn settle(
    transaction: &Transaction<'_>,
    session: i64,
    settled: u64,
    told: u64,
) -> rusqlite::Result<Growth> {
    let growth = size(transaction, session, 0, settled)?;
    if growth.bytes > 0 {
        transaction
            .prepare_cached("DELETE FROM events WHERE session = ?1 AND sequence <= ?2")?
            .execute(params![session, signed(settled)])?;
    }
    transaction
        .prepare_cached(
            "UPDATE sessions SET settled = max(settled, ?2), told = max(told, ?3) WHERE number = ?1",
        )?
        .execute(params![session, signed(settled), signed(told)])?;
    Ok(-growth)
}

/// What a range of a session's events is.
fn size(
    transaction: &Transaction<'_>,
    session: i64,
    first: u64,
    last: u64,
) -> rusqlite::Result<Growth> {
    transaction
        .prepare_cached(
            "SELECT CAST(count(*) * ?4 + total(length(body)) AS INTEGER), count(body) FROM events
             WHERE session = ?1 AND sequence BETWEEN ?2 AND ?3",
        )?
        .query_row(
            params![
                session,
                signed(first),
                signed(last),
                ROW_OVERHEAD.cast_signed()
            ],
            |row| {
                Ok(Growth {
                    bytes: row.get(0)?,
                    events: row.get(1)?,
                })
            },
        )
}

/// Whether anything of a session is kept.
pub(in crate::journal) fn has_events(
    transaction: &Transaction<'_>,
    session: i64,
) -> rusqlite::Result<bool> {
    transaction
        .prepare_cached("SELECT 1 FROM events WHERE session = ?1 LIMIT 1")?
        .exists([session])
}

/// Says that the session's end is among its events.
pub(in crate::journal) fn leave(
    transaction: &Transaction<'_>,
    session: i64,
) -> rusqlite::Result<()> {
    transaction.execute(
        "UPDATE sessions SET is_left = 1 WHERE number = ?1",
        [session],
    )?;
    Ok(())
}

/// Forgets a session.
pub(in crate::journal) fn forget(
    transaction: &Transaction<'_>,
    session: i64,
) -> rusqlite::Result<Growth> {
    let growth = size(transaction, session, 0, u64::MAX)?;
    transaction.execute("DELETE FROM events WHERE session = ?1", [session])?;
    transaction.execute("DELETE FROM sessions WHERE number = ?1", [session])?;
    Ok(-growth)
}
