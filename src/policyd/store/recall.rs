//! What of an exec is in its events, and not in the tables.

use prost::Message;
use prost::bytes::Bytes;
use rusqlite::{Connection, OptionalExtension};

use super::schema::number;
use crate::pb::audit::v1::{Exec, SessionFacts, StoredAnswer};
use crate::pb::v1;
use crate::pb::v1::session_request::Event;

/// Longest command of a session that is told with each of its execs, in bytes: a page has many of them.
const MOST_COMMAND: usize = 16 << 10;

/// Adds to an exec what only its events have: all that rules could know when it was asked about, on which terms it was
/// answered, and how its environment was changed.
pub(crate) fn complete(connection: &Connection, exec: &mut Exec) -> rusqlite::Result<()> {
    complete_with(connection, exec, MOST_COMMAND)
}

/// As [`complete`], with the session's command as long as it is, for whoever reads execs one by one.
pub(crate) fn complete_wholly(connection: &Connection, exec: &mut Exec) -> rusqlite::Result<()> {
    complete_with(connection, exec, usize::MAX)
}

fn complete_with(
    connection: &Connection,
    exec: &mut Exec,
    longest_command: usize,
) -> rusqlite::Result<()> {
    let (asked, answered) = question(connection, exec)?;
    if let Some(request) = asked {
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
    let started = beginning(connection, &exec.session_id)?;
    exec.session = started.map(|started| facts(started, longest_command));
    if let Some(answer) = &mut exec.answer
        && answer.verdict == "escalate"
    {
        let latest = if answer.answer_count > 1 || answered.is_none() {
            answered_again(connection, &exec.session_id, exec.exec_id)?
        } else {
            answered
        };
        answer.escalate = latest.and_then(escalate);
    }
    Ok(())
}

fn event(payload: &[u8]) -> Option<Event> {
    v1::SessionRequest::decode(payload)
        .ok()
        .and_then(|request| request.event)
}

/// The latest question, which is what lists tell of, and the first answer to it.
fn question(
    connection: &Connection,
    exec: &Exec,
) -> rusqlite::Result<(Option<v1::ExecRequested>, Option<StoredAnswer>)> {
    let found = connection
        .prepare_cached(
            "SELECT payload, answer FROM events WHERE position = max(
                 coalesce((SELECT max(position) FROM events WHERE session_id = ?1 AND exec_id = ?2
                     AND kind = 'exec-requested'), 0),
                 coalesce((SELECT max(position) FROM events WHERE session_id = ?1 AND exec_id = ?2
                     AND kind = 'exec-reused'), 0))",
        )?
        .query_row((&exec.session_id, number(exec.exec_id)), |row| {
            let request = event(row.get_ref(0)?.as_blob()?);
            let answer = row.get_ref(1)?.as_blob_or_null()?;
            let answer = answer.and_then(|answer| StoredAnswer::decode(answer).ok());
            Ok((request, answer))
        })
        .optional()?;
    let (request, answer) = found.unwrap_or_default();
    let request = match request {
        Some(Event::ExecRequested(request)) => Some(request),
        Some(Event::ExecReused(reused)) => reused.exec,
        _ => None,
    };
    Ok((request, answer))
}

/// The latest answer of those that were given later than their question, or once more.
fn answered_again(
    connection: &Connection,
    session: &str,
    exec_id: u64,
) -> rusqlite::Result<Option<StoredAnswer>> {
    let stored: Option<Vec<u8>> = connection
        .prepare_cached(
            "SELECT answer FROM events INDEXED BY events_by_exec
             WHERE session_id = ?1 AND exec_id = ?2 AND kind = 'exec-answered'
             ORDER BY position DESC LIMIT 1",
        )?
        .query_row((session, number(exec_id)), |row| row.get(0))
        .optional()?
        .flatten();
    Ok(stored.and_then(|stored| StoredAnswer::decode(&stored[..]).ok()))
}

/// On which terms it was answered, where that was to escalate.
fn escalate(answer: StoredAnswer) -> Option<v1::Escalate> {
    match answer.verdict?.decision? {
        v1::verdict::Decision::Escalate(escalate) => Some(escalate),
        _ => None,
    }
}

fn environment_difference(
    connection: &Connection,
    exec: &Exec,
) -> rusqlite::Result<Option<v1::EnvironmentDifference>> {
    let decision = exec.decision.as_ref();
    if decision.is_none_or(|decision| decision.verdict != "escalate") {
        return Ok(None);
    }
    // The latest, which is what lists tell of.
    let found = connection
        .prepare_cached(
            "SELECT payload FROM events INDEXED BY events_by_exec
             WHERE session_id = ?1 AND exec_id = ?2 AND kind = 'exec-decided'
             ORDER BY position DESC LIMIT 1",
        )?
        .query_row((&exec.session_id, number(exec.exec_id)), |row| {
            Ok(event(row.get_ref(0)?.as_blob()?))
        })
        .optional()?
        .flatten();
    Ok(match found {
        Some(Event::ExecDecided(decided)) => decided.environment,
        _ => None,
    })
}

/// What a session began with, as long as that is on record.
pub(super) fn beginning(
    connection: &Connection,
    session: &str,
) -> rusqlite::Result<Option<v1::SessionStarted>> {
    let first = "SELECT payload FROM events WHERE session_id = ?1 AND sequence = 1";
    // What goes on with a session says again what its beginning said.
    let later = "SELECT payload FROM events INDEXED BY beginnings
         WHERE session_id = ?1 AND kind = 'session-started' ORDER BY position LIMIT 1";
    for query in [first, later] {
        let found = connection
            .prepare_cached(query)?
            .query_row([session], |row| Ok(event(row.get_ref(0)?.as_blob()?)))
            .optional()?
            .flatten();
        if let Some(Event::SessionStarted(started)) = found {
            return Ok(Some(started));
        }
    }
    Ok(None)
}

fn facts(started: v1::SessionStarted, longest_command: usize) -> SessionFacts {
    let size: usize = started.command.iter().map(Bytes::len).sum();
    SessionFacts {
        user: started.user,
        workdir: started.workdir,
        command_words: if size > longest_command {
            Vec::new()
        } else {
            started.command
        },
        command_bytes: size as u64,
        sandbox: started.sandbox,
    }
}
