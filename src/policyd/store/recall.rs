//! What of an exec is in its events, and not in the tables.

use prost::Message;
use prost::bytes::Bytes;
use rusqlite::{Connection, OptionalExtension, ToSql};

use super::schema::number;
use crate::pb::audit::v1::{Exec, SessionFacts, StoredAnswer};
use crate::pb::v1;
use crate::pb::v1::session_request::Event;

/// Longest command of a session that is told with each of its execs, in bytes.
const MOST_COMMAND: usize = 16 << 10;

/// Adds to an exec what only its events have: all that rules could know when it was asked about, on which terms it was
/// answered, and how its environment was changed.
pub(crate) fn complete(connection: &Connection, exec: &mut Exec) -> rusqlite::Result<()> {
    if let Some(request) = question(connection, exec)? {
        // The tables have them shortened.
        exec.program = request.file;
        exec.workdir = request.workdir;
        exec.arguments = request.arguments;
        exec.redacted_arguments = request.redacted_arguments;
        exec.environment_names = request.environment_names;
        exec.workdir_protection = request.workdir_protection;
        exec.executable = request.executable;
    }
    exec.environment_difference = environment_difference(connection, exec)?;
    exec.session = session(connection, &exec.session_id)?;
    let escalate = escalate(connection, exec)?;
    if let Some(answer) = &mut exec.answer {
        answer.escalate = escalate;
    }
    Ok(())
}

/// One event of those that a query finds.
fn event(
    connection: &Connection,
    query: &str,
    values: &[&dyn ToSql],
) -> rusqlite::Result<Option<Event>> {
    let payload: Option<Vec<u8>> = connection
        .prepare_cached(query)?
        .query_row(values, |row| row.get(0))
        .optional()?;
    Ok(payload
        .and_then(|payload| v1::SessionRequest::decode(&payload[..]).ok())
        .and_then(|request| request.event))
}

fn question(connection: &Connection, exec: &Exec) -> rusqlite::Result<Option<v1::ExecRequested>> {
    let query = "SELECT e.payload FROM execs x JOIN events e
             ON e.session_id = x.session_id AND e.sequence = x.request_sequence
         WHERE x.session_id = ?1 AND x.exec_id = ?2";
    let found = event(
        connection,
        query,
        &[&exec.session_id, &number(exec.exec_id)],
    )?;
    Ok(match found {
        Some(Event::ExecRequested(request)) => Some(request),
        Some(Event::ExecReused(reused)) => reused.exec,
        _ => None,
    })
}

fn environment_difference(
    connection: &Connection,
    exec: &Exec,
) -> rusqlite::Result<Option<v1::EnvironmentDifference>> {
    // A little behind the question, as a rule.
    let query = "SELECT e.payload FROM execs x JOIN events e
             ON e.session_id = x.session_id AND e.sequence > x.request_sequence
         WHERE x.session_id = ?1 AND x.exec_id = ?2 AND x.action = 'escalate'
             AND e.kind = 'exec-decided' AND e.exec_id = x.exec_id
         ORDER BY e.sequence LIMIT 1";
    let found = event(
        connection,
        query,
        &[&exec.session_id, &number(exec.exec_id)],
    )?;
    Ok(match found {
        Some(Event::ExecDecided(decided)) => decided.environment,
        _ => None,
    })
}

fn session(connection: &Connection, session: &str) -> rusqlite::Result<Option<SessionFacts>> {
    let first = "SELECT payload FROM events WHERE session_id = ?1 AND sequence = 1";
    // What goes on with a session says again what its beginning said.
    let later = "SELECT payload FROM events
         WHERE session_id = ?1 AND sequence IS NULL AND kind = 'session-started' LIMIT 1";
    for query in [first, later] {
        if let Some(Event::SessionStarted(started)) = event(connection, query, &[&session])? {
            let size: usize = started.command.iter().map(Bytes::len).sum();
            return Ok(Some(SessionFacts {
                user: started.user,
                workdir: started.workdir,
                command_words: if size > MOST_COMMAND {
                    Vec::new()
                } else {
                    started.command
                },
                command_bytes: size as u64,
                sandbox: started.sandbox,
            }));
        }
    }
    Ok(None)
}

/// The latest answer, where it was to escalate.
fn escalate(connection: &Connection, exec: &Exec) -> rusqlite::Result<Option<v1::Escalate>> {
    let answer = exec.answer.as_ref();
    let Some(answer) = answer.filter(|answer| answer.verdict == "escalate") else {
        return Ok(None);
    };
    let query = if answer.answer_count > 1 {
        // Asked again, and answered again.
        "SELECT answer FROM events WHERE session_id = ?1 AND sequence IS NULL
             AND kind = 'exec-answered' AND exec_id = ?2 ORDER BY position DESC LIMIT 1"
    } else {
        "SELECT e.answer FROM execs x JOIN events e
             ON e.session_id = x.session_id AND e.sequence = x.request_sequence
         WHERE x.session_id = ?1 AND x.exec_id = ?2"
    };
    let stored: Option<Vec<u8>> = connection
        .prepare_cached(query)?
        .query_row((&exec.session_id, number(exec.exec_id)), |row| row.get(0))
        .optional()?
        .flatten();
    let verdict = stored
        .and_then(|stored| StoredAnswer::decode(&stored[..]).ok())
        .and_then(|stored| stored.verdict);
    Ok(match verdict.and_then(|verdict| verdict.decision) {
        Some(v1::verdict::Decision::Escalate(escalate)) => Some(escalate),
        _ => None,
    })
}
