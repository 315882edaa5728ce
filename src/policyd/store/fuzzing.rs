#![allow(
    clippy::expect_used,
    reason = "a target says by a panic that it can't run"
)]

use std::time::{Duration, SystemTime};

use rusqlite::Connection;

use super::execs::Execs;
use super::schema::{self, Written};
use super::{StoredAnswer, chain};
use crate::pb::v1;
use crate::policyd::identity::GateIdentity;

/// A store in memory.
pub(in crate::policyd) fn store() -> Connection {
    let connection = Connection::open_in_memory().expect("a database");
    for tables in [schema::EVENTS, schema::SCHEMA, schema::INDEXES] {
        connection.execute_batch(tables).expect("tables");
    }
    connection
}

/// Forgets all that is in it.
pub(in crate::policyd) fn empty(connection: &Connection) {
    let tables: Vec<String> = connection
        .prepare_cached("SELECT name FROM sqlite_master WHERE type = 'table'")
        .and_then(|mut names| names.query_map([], |row| row.get(0))?.collect())
        .expect("names");
    for table in tables {
        connection
            .execute(&format!("DELETE FROM {table}"), [])
            .expect("an empty table");
    }
}

/// Writes a session's events and what was answered, as one commit.
pub(in crate::policyd) fn write(
    connection: &mut Connection,
    session: &str,
    gate: &GateIdentity,
    events: &[(v1::SessionRequest, Option<StoredAnswer>)],
) {
    let transaction = connection.transaction().expect("a transaction");
    let mut head = chain::head(&transaction).expect("an end");
    let mut execs = Execs::default();
    for (request, answer) in events {
        let row = schema::Row {
            session,
            gate: Some(gate),
            request,
            answer: answer.as_ref(),
            received: SystemTime::UNIX_EPOCH + Duration::from_secs(1_000),
        };
        let written = schema::write(&transaction, &mut execs, &mut head, &row);
        assert_eq!(written.expect("whatever is told is kept"), Written::Done);
    }
    execs.write(&transaction, || ()).expect("and its execs are");
    transaction.commit().expect("a commit");
}
