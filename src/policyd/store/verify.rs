//! Proves of a store that no event was changed, removed or added behind its back.
//!
//! Two things are looked at: the chain of hashes over the events, and whether the tables that lists are made of say
//! what the events say. For the second, the tables are made anew, in a temporary database.
//!
//! What this can't show: that the chain as a whole isn't another one, made by somebody who can write the store,
//! and that nothing was cut off at its end. For that, a link of it has to be noted elsewhere: an anchor.

use std::path::Path;

use rusqlite::{Connection, OpenFlags};

use super::chain::{Entry, Link, PRUNED};
use super::error::StoreError;
use super::reading;
use super::schema::{self, Gates};

/// Columns that aren't compared as the others: how often a session called was counted from more than events in earlier
/// versions, and whose it is can be told by any of its beginnings.
const NOT_COMPARED: [&str; 2] = ["calls", "gate"];

/// What was looked at, and what is wrong.
#[derive(Debug)]
pub struct Verification {
    /// How many events were looked at.
    pub events: u64,
    /// Behind which event the chain begins; position 0: at the first that there ever was.
    pub start: Link,
    /// The last event that is good.
    pub head: Link,
    /// Sessions whose beginning was removed for its age: what lists say of them, and no event that is left says, can't
    /// be proven.
    pub headless_sessions: u64,
    /// The outcome.
    pub verified: Verified,
}

/// Whether a store is what it was.
#[derive(Debug, PartialEq, Eq)]
pub enum Verified {
    /// It is, as far as it can show by itself and by the anchors.
    Intact,
    /// The chain is broken at this position; nothing is said of what is behind it.
    Broken {
        /// The first bad place.
        position: i64,
        /// What is wrong there.
        what: String,
    },
    /// The chain is unbroken, and it isn't the one that an anchor was taken from, or no longer all of it.
    Elsewhere {
        /// The anchor.
        anchor: Link,
        /// What is wrong.
        what: String,
    },
    /// The chain is unbroken, and a table says something else than its events.
    Differs {
        /// Which row, and of what.
        what: String,
    },
}

/// Looks at a whole store, also while it is written.
///
/// # Errors
/// When there is none, or it can't be read.
pub fn verify(directory: &Path, anchors: &[Link]) -> Result<Verification, StoreError> {
    // Says whether there is one, and of which version.
    let (connection, uri) = reading::open(directory)?;
    drop(connection);
    let path = schema::file_in(directory);
    attached(&uri)
        .and_then(|connection| examine(&connection, anchors))
        .map_err(|source| StoreError::Open { path, source })
}

/// An empty temporary database, with the store beside it, for reading only.
fn attached(uri: &str) -> rusqlite::Result<Connection> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE
        | OpenFlags::SQLITE_OPEN_CREATE
        | OpenFlags::SQLITE_OPEN_URI
        | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    // Without a name: in memory while it is small, then in a file that nobody else sees.
    let connection = Connection::open_with_flags("", flags)?;
    connection.execute("ATTACH ?1 AS store", [uri])?;
    connection.busy_timeout(schema::BUSY_TIME)?;
    connection.execute_batch("PRAGMA main.journal_mode = OFF; PRAGMA main.synchronous = OFF;")?;
    connection.execute_batch(schema::SCHEMA)?;
    connection.execute_batch(schema::INDEXES)?;
    Ok(connection)
}

fn examine(connection: &Connection, anchors: &[Link]) -> rusqlite::Result<Verification> {
    let transaction = connection.unchecked_transaction()?;
    let start = transaction
        .query_row("SELECT position, hash FROM store.chain_start", [], |row| {
            Ok(Link {
                position: row.get(0)?,
                hash: row.get(1)?,
            })
        })
        .or_else(|error| match error {
            rusqlite::Error::QueryReturnedNoRows => Ok(Link::BEGINNING),
            error => Err(error),
        })?;
    take_over(&transaction, start)?;
    let mut walk = Walk::from(start, anchors);
    let mut statement = transaction.prepare(&format!(
        "SELECT {} FROM store.events ORDER BY position",
        Entry::COLUMNS
    ))?;
    let mut gates = Gates::kept_in(&transaction, "store.sessions")?;
    let mut rows = statement.query([])?;
    while walk.broken.is_none()
        && let Some(row) = rows.next()?
    {
        let looked = Entry::with_read(row, |entry, stored| {
            walk.step(entry, stored);
            if walk.broken.is_some() {
                return Ok(());
            }
            schema::replay(&transaction, entry, stored.position, gates.of(entry))
        });
        match looked {
            Ok(written) => written?,
            // A column of another type than any event has.
            Err(error) => {
                let position = walk.head.position + 1;
                walk.broken = Some((position, format!("the event can't be read: {error}")));
            }
        }
    }
    let (events, head) = (walk.events, walk.head);
    let mut verified = walk.outcome();
    if verified == Verified::Intact
        && let Some(what) = difference(&transaction, start)?
    {
        verified = Verified::Differs { what };
    }
    let headless_sessions = transaction.query_row(
        &format!("SELECT count(*) FROM store.sessions WHERE {CUT}"),
        [start.position],
        |row| row.get::<_, i64>(0),
    )?;
    Ok(Verification {
        events,
        start,
        head,
        headless_sessions: headless_sessions.cast_unsigned(),
        verified,
    })
}

/// How far the chain has been looked at.
struct Walk<'a> {
    start: Link,
    head: Link,
    events: u64,
    anchors: &'a [Link],
    /// Anchors that the chain has come by.
    met: Vec<Link>,
    broken: Option<(i64, String)>,
    mismatch: Option<(Link, String)>,
    /// What the chain itself says of where it begins.
    said_start: Option<Vec<u8>>,
}

impl<'a> Walk<'a> {
    fn from(start: Link, anchors: &'a [Link]) -> Self {
        let mut walk = Self {
            start,
            head: start,
            events: 0,
            anchors,
            met: Vec::new(),
            broken: None,
            mismatch: None,
            said_start: None,
        };
        walk.meet(start);
        walk
    }

    fn meet(&mut self, link: Link) {
        for anchor in self.anchors {
            if anchor.position != link.position {
                continue;
            }
            if anchor.hash == link.hash {
                self.met.push(*anchor);
            } else {
                let what = "the event there is another one: the chain was made anew".to_owned();
                self.mismatch.get_or_insert((*anchor, what));
            }
        }
    }

    fn step(&mut self, entry: &Entry<'_>, stored: Link) {
        let link = self.head.next(entry);
        if stored.position != link.position {
            let what = format!(
                "the events from {} to {} are missing",
                link.position,
                stored.position - 1
            );
            self.broken = Some((link.position, what));
            return;
        }
        if stored.hash != link.hash {
            let what = "the event isn't what was stored: it was changed, put there, or one before it was removed";
            self.broken = Some((link.position, what.to_owned()));
            return;
        }
        if entry.kind == PRUNED {
            self.said_start = Some(entry.payload.to_vec());
        }
        self.events += 1;
        self.head = link;
        self.meet(link);
    }

    fn outcome(self) -> Verified {
        if let Some((position, what)) = self.broken {
            return Verified::Broken { position, what };
        }
        let expected = (self.start != Link::BEGINNING).then(|| pruned_payload(self.start));
        if self.said_start != expected {
            return Verified::Broken {
                position: self.start.position + 1,
                what:
                    "the chain begins there, and no event in it says that those before were removed"
                        .to_owned(),
            };
        }
        if let Some((anchor, what)) = self.mismatch {
            return Verified::Elsewhere { anchor, what };
        }
        let missed = self
            .anchors
            .iter()
            .find(|anchor| !self.met.contains(anchor));
        match missed {
            None => Verified::Intact,
            Some(anchor) if anchor.position < self.start.position => Verified::Elsewhere {
                anchor: *anchor,
                what: format!(
                    "the event there was removed for its age or for room, with all up to {}: give a later anchor",
                    self.start.position
                ),
            },
            Some(anchor) => Verified::Elsewhere {
                anchor: *anchor,
                what: format!(
                    "the chain ends at {}: events were removed from its end",
                    self.head.position
                ),
            },
        }
    }
}

/// What an event says that tells of removed ones: the last of them.
pub(super) fn pruned_payload(through: Link) -> Vec<u8> {
    [&through.position.to_be_bytes()[..], &through.hash].concat()
}

/// Holds for sessions whose beginning was removed.
const CUT: &str = "?1 > 0 AND first_position <= ?1";

/// Of sessions whose beginning was removed lists have what no event says any more: it is taken as it is, and what the
/// events say that are left is written over it.
fn take_over(connection: &Connection, start: Link) -> rusqlite::Result<()> {
    let columns = columns(connection, "sessions")?.join(", ");
    connection.execute(
        &format!(
            "INSERT INTO main.sessions ({columns}) SELECT {columns} FROM store.sessions WHERE {CUT}"
        ),
        [start.position],
    )?;
    // Each beginning that is left says it.
    connection.execute("UPDATE main.sessions SET gate = NULL", [])?;
    for table in ["session_labels", "lost_ranges"] {
        connection.execute(
            &format!(
                "INSERT INTO main.{table} SELECT * FROM store.{table}
                 WHERE session_id IN (SELECT session_id FROM main.sessions)"
            ),
            [],
        )?;
    }
    Ok(())
}

/// The first row of a table that isn't what the events make of it.
fn difference(connection: &Connection, start: Link) -> rusqlite::Result<Option<String>> {
    let execs = differing(connection, "execs")?;
    let exec_differs = "'exec ' || printf('%u', exec_id) || ' of session ' || session_id || \
         ' is listed otherwise than its events say'";
    let differs = "'session ' || session_id || ' is listed otherwise than its events say'";
    let mut queries = vec![
        format!(
            "SELECT {exec_differs} FROM store.execs s LEFT JOIN main.execs m USING (session_id, exec_id)
             WHERE m.received_ns IS NULL OR s.gate IS NOT m.gate OR {execs}"
        ),
        format!(
            "SELECT {exec_differs} FROM main.execs m LEFT JOIN store.execs s USING (session_id, exec_id)
             WHERE s.received_ns IS NULL"
        ),
        format!(
            "SELECT {differs} FROM main.sessions m LEFT JOIN store.sessions s USING (session_id)
             WHERE s.received_ns IS NULL OR {} OR s.gate IS NOT coalesce(m.gate,
                 CASE WHEN ?1 > 0 AND m.first_position <= ?1 THEN s.gate END)",
            differing(connection, "sessions")?
        ),
        "SELECT 'session ' || session_id || ' is listed, and no event tells of it' FROM store.sessions s
         WHERE session_id NOT IN (SELECT session_id FROM main.sessions)
             OR NOT EXISTS (SELECT 1 FROM store.events e WHERE e.session_id = s.session_id)"
            .to_owned(),
    ];
    // It is taken over as what was removed said, and the beginning is on record.
    queries.push(format!(
        "SELECT {differs} FROM store.sessions s WHERE {CUT} AND EXISTS (
             SELECT 1 FROM store.events e
             WHERE e.session_id = s.session_id AND e.sequence = 1 AND e.kind = '{}')",
        schema::BEGINNING
    ));
    for (one, other, what) in [
        ("store", "main", "that no service makes"),
        ("main", "store", "no longer as the service makes it"),
    ] {
        queries.push(format!(
            "SELECT 'there is a ' || type || ' ' || name || ' {what}' FROM (
                 SELECT type, name, sql FROM {one}.sqlite_master WHERE type IN ('view', 'trigger')
                 EXCEPT SELECT type, name, sql FROM {other}.sqlite_master)"
        ));
    }
    for (table, what) in [("session_labels", "labels"), ("lost_ranges", "lost events")] {
        for (one, other) in [("store", "main"), ("main", "store")] {
            queries.push(format!(
                "SELECT 'session ' || session_id || ' is listed with other {what} than its events say'
                 FROM (SELECT * FROM {one}.{table} EXCEPT SELECT * FROM {other}.{table})"
            ));
        }
    }
    for query in queries {
        let mut statement = connection.prepare(&format!("{query} LIMIT 1"))?;
        let parameters = statement.parameter_count();
        let values = std::iter::repeat_n(start.position, parameters);
        let mut rows = statement.query(rusqlite::params_from_iter(values))?;
        if let Some(row) = rows.next()? {
            return row.get(0).map(Some);
        }
    }
    // Lists go by indexes, which may lead past rows that are there.
    let found: String =
        connection.query_row("PRAGMA store.integrity_check(1)", [], |row| row.get(0))?;
    Ok((found != "ok").then(|| format!("the file is damaged, or was written by others: {found}")))
}

fn columns(connection: &Connection, table: &str) -> rusqlite::Result<Vec<String>> {
    connection
        .prepare(&format!(
            "SELECT name FROM pragma_table_info('{table}', 'main')"
        ))?
        .query_map([], |row| row.get(0))?
        .collect()
}

/// A condition that holds where a row differs between the store (`s`) and what events say (`m`).
fn differing(connection: &Connection, table: &str) -> rusqlite::Result<String> {
    let conditions: Vec<_> = columns(connection, table)?
        .iter()
        .filter(|column| !NOT_COMPARED.contains(&column.as_str()))
        .map(|column| format!("s.{column} IS NOT m.{column}"))
        .collect();
    Ok(format!("({})", conditions.join(" OR ")))
}
