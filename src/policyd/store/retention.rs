//! Removes the oldest events, by age and by size, so that the chain of what is left can still be proven.

use std::collections::BTreeSet;
use std::time::{Duration, SystemTime};

use rusqlite::{Connection, OptionalExtension, Transaction, params};

use super::chain::{self, Entry, Link, PRUNED};
use super::schema;
use super::verify::pruned_payload;
use crate::policyd::identity::GateIdentity;

/// Most events that are removed in one transaction: what comes meanwhile waits for it.
const STEP: i64 = 2_048;

/// What is kept. By default everything is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Retention {
    /// Events that were received longer ago are removed.
    pub age: Option<Duration>,
    /// The oldest events are removed while the store takes more bytes. The file itself doesn't shrink: what is
    /// free in it is used again.
    pub size: Option<u64>,
}

/// Whether there is more to remove.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Pruned {
    /// Nothing for now.
    Done,
    /// At once.
    More,
}

impl Retention {
    /// Whether nothing is ever removed.
    #[must_use]
    pub fn keeps_everything(self) -> bool {
        self == Self::default()
    }

    /// Removes some of what isn't kept.
    pub(super) fn prune(
        self,
        connection: &mut Connection,
        now: SystemTime,
    ) -> rusqlite::Result<Pruned> {
        let transaction =
            connection.transaction_with_behavior(rusqlite::TransactionBehavior::Immediate)?;
        let is_oversize = match self.size {
            None => false,
            Some(size) => used(&transaction)? > size,
        };
        let before = self.age.and_then(|age| now.checked_sub(age));
        let before = before.map_or(i64::MIN, schema::system_nanoseconds);
        let mut sessions = BTreeSet::new();
        let mut last = None;
        let mut count: i64 = 0;
        {
            let mut oldest = transaction.prepare_cached(
                "SELECT position, hash, received_ns, session_id FROM events
                 ORDER BY position LIMIT ?1",
            )?;
            let mut rows = oldest.query([STEP])?;
            while let Some(row) = rows.next()? {
                let is_old = row.get::<_, i64>(2)? < before;
                if !(is_old || is_oversize) {
                    break;
                }
                count += 1;
                last = Some(Link {
                    position: row.get(0)?,
                    hash: row.get(1)?,
                });
                sessions.insert(row.get::<_, String>(3)?);
            }
        }
        let Some(through) = last else {
            return Ok(Pruned::Done);
        };
        remove(&transaction, through, &sessions)?;
        transaction.commit()?;
        tracing::debug!(through = through.position, count, "removed old events");
        Ok(if count == STEP {
            Pruned::More
        } else {
            Pruned::Done
        })
    }
}

fn remove(
    transaction: &Transaction<'_>,
    through: Link,
    sessions: &BTreeSet<String>,
) -> rusqlite::Result<()> {
    // First, so that there always is one: the chain goes on, and says itself where it begins.
    let payload = pruned_payload(through);
    let note = Entry {
        session: "",
        sequence: None,
        time: None,
        received: schema::system_nanoseconds(SystemTime::now()),
        kind: PRUNED,
        exec_id: None,
        gate: None,
        payload: &payload,
        answer: None,
    };
    let mut head = chain::head(transaction)?;
    note.append(transaction, &mut head)?;
    transaction
        .prepare_cached("DELETE FROM events WHERE position <= ?1")?
        .execute([through.position])?;
    let cut: Vec<(String, i64)> = transaction
        .prepare_cached("DELETE FROM execs WHERE position <= ?1 RETURNING session_id, exec_id")?
        .query_map([through.position], |row| Ok((row.get(0)?, row.get(1)?)))?
        .collect::<Result<_, _>>()?;
    for (session, exec_id) in &cut {
        make_anew(transaction, session, *exec_id)?;
    }
    for session in sessions {
        for table in ["session_labels", "lost_ranges", "sessions"] {
            transaction
                .prepare_cached(&format!(
                    "DELETE FROM {table} WHERE session_id = ?1
                         AND NOT EXISTS (SELECT 1 FROM events WHERE session_id = ?1)
                         AND NOT EXISTS (SELECT 1 FROM execs WHERE session_id = ?1)"
                ))?
                .execute([session])?;
        }
    }
    transaction.execute("DELETE FROM chain_start", [])?;
    transaction.execute(
        "INSERT INTO chain_start VALUES (?1, ?2)",
        params![through.position, through.hash],
    )?;
    Ok(())
}

/// Kinds of events that make an exec's row; questions first.
const KINDS: [&str; 5] = [
    "exec-requested",
    "exec-reused",
    "exec-withdrawn",
    "exec-decided",
    "exec-finished",
];
const QUESTIONS: usize = 2;

/// Makes the row of an exec, the first events of which were removed, of those that are left: what `verify` makes of all
/// of them. Of each kind the latest stands, so no others are looked at, however many there are.
fn make_anew(transaction: &Transaction<'_>, session: &str, exec_id: i64) -> rusqlite::Result<()> {
    let mut positions = BTreeSet::new();
    let (mut first, mut asked) = (i64::MAX, None);
    for (number, kind) in KINDS.into_iter().enumerate() {
        let (earliest, latest): (Option<i64>, Option<i64>) = transaction
            .prepare_cached(
                "SELECT (SELECT min(position) FROM events
                         WHERE session_id = ?1 AND exec_id = ?2 AND kind = ?3),
                     (SELECT max(position) FROM events
                         WHERE session_id = ?1 AND exec_id = ?2 AND kind = ?3)",
            )?
            .query_row(params![session, exec_id, kind], |row| {
                Ok((row.get(0)?, row.get(1)?))
            })?;
        if let (Some(earliest), Some(latest)) = (earliest, latest) {
            positions.insert(latest);
            first = first.min(earliest);
            if number < QUESTIONS {
                asked = asked.max(Some(latest));
            }
        }
    }
    if positions.is_empty() {
        return Ok(());
    }
    // It says when the exec was first heard of.
    positions.insert(first);
    let (answers, answered): (i64, Option<i64>) = transaction
        .prepare_cached(
            "SELECT count(*), max(position) FROM events INDEXED BY events_by_exec
             WHERE session_id = ?1 AND exec_id = ?2 AND kind = 'exec-answered' AND position > ?3",
        )?
        .query_row(params![session, exec_id, asked.unwrap_or(first)], |row| {
            Ok((row.get(0)?, row.get(1)?))
        })?;
    positions.extend(answered);
    let gate = transaction
        .prepare_cached("SELECT gate FROM sessions WHERE session_id = ?1")?
        .query_row([session], |row| row.get::<_, Option<String>>(0))
        .optional()?
        .flatten()
        .map(GateIdentity::from);
    for position in positions {
        transaction
            .prepare_cached(&format!(
                "SELECT {} FROM events WHERE position = ?1",
                Entry::COLUMNS
            ))?
            .query_row([position], |row| {
                Entry::with_read(row, |entry, stored| {
                    schema::replay(transaction, entry, stored.position, gate.as_ref())
                })
            })??;
    }
    if answers > 1 {
        transaction
            .prepare_cached(
                "UPDATE execs SET answers = answers + ?3 WHERE session_id = ?1 AND exec_id = ?2",
            )?
            .execute(params![session, exec_id, answers - 1])?;
    }
    Ok(())
}

/// How many bytes of the file are in use.
pub(super) fn used(connection: &Connection) -> rusqlite::Result<u64> {
    let number = |name: &str| {
        connection
            .pragma_query_value(None, name, |row| row.get::<_, i64>(0))
            .map(i64::cast_unsigned)
    };
    let pages = number("page_count")?.saturating_sub(number("freelist_count")?);
    Ok(pages.saturating_mul(number("page_size")?))
}
