//! Brings stores of earlier versions up to date, in one transaction: either all of it is done, or nothing.
//!
//! Up to version 5 lists had what no event on record says: of execs whose question was removed, and of losses that had
//! another event's sequence. They are made anew from the events, and such losses become events. Version 4 didn't say who
//! ended a session, and version 3 not who decided. Version 1 had no gates. Versions before 3 had no chain: events get
//! their positions in the order in which they were stored, and all other tables are made anew from them, so that what is
//! proven of the events is proven of the tables as well.

use prost::Message;
use rusqlite::{OptionalExtension, Transaction};

use super::chain::{self, Entry, Link};
use super::execs::Execs;
use super::schema::{self, Gates, Repeat, Row};
use crate::pb::audit::v1::{AnswerMode, StoredAnswer};
use crate::pb::v1;
use crate::policyd::identity::GateIdentity;

/// Where the beginning of a session was removed, or may have been, its row is of before all that is on record.
const FROM_5: &str = "
ALTER TABLE sessions ADD COLUMN first_position INTEGER;
CREATE INDEX events_by_exec ON events (session_id, exec_id, kind) WHERE exec_id IS NOT NULL;
CREATE INDEX beginnings ON events (session_id) WHERE kind = 'session-started';
UPDATE sessions SET first_position = coalesce((
    SELECT min(position) FROM events
    WHERE events.session_id = sessions.session_id AND kind = 'session-started' AND (
        NOT EXISTS (SELECT 1 FROM chain_start)
        OR EXISTS (SELECT 1 FROM events e WHERE e.session_id = sessions.session_id AND e.sequence = 1)
    )), 0);
";
const FROM_4: &str = "
ALTER TABLE sessions ADD COLUMN terminated_by TEXT;
ALTER TABLE sessions ADD COLUMN termination_reason TEXT;
ALTER TABLE sessions ADD COLUMN terminated_ns INTEGER;
";
const FROM_3: &str = "
ALTER TABLE execs ADD COLUMN approval_id TEXT;
ALTER TABLE execs ADD COLUMN decided_by TEXT;
";
const FROM_1: &str = "ALTER TABLE sessions ADD COLUMN gate TEXT";

const SET_ASIDE: &str = "
DROP VIEW losses;
DROP INDEX execs_by_time;
DROP INDEX execs_by_program;
ALTER TABLE sessions RENAME TO earlier_sessions;
ALTER TABLE lost_ranges RENAME TO earlier_lost_ranges;
ALTER TABLE events RENAME TO earlier_events;
ALTER TABLE execs RENAME TO earlier_execs;
";

const FINISH: &str = "
UPDATE sessions SET calls = max(calls, coalesce(
    (SELECT calls FROM earlier_sessions e WHERE e.session_id = sessions.session_id), 0));
DROP TABLE earlier_execs;
DROP TABLE earlier_events;
DROP TABLE earlier_lost_ranges;
DROP TABLE earlier_sessions;
";

/// The schema of `version`, which isn't the latest, becomes that.
pub(super) fn upgrade(transaction: &Transaction<'_>, version: i64) -> rusqlite::Result<()> {
    if version == 3 {
        transaction.execute_batch(FROM_3)?;
    }
    if (3..5).contains(&version) {
        transaction.execute_batch(FROM_4)?;
    }
    tracing::info!(
        "bringing the event store up to date; that takes about a minute for each two million events"
    );
    if version >= 3 {
        transaction.execute_batch(FROM_5)?;
        return list_anew(transaction);
    }
    if version == 1 {
        transaction.execute_batch(FROM_1)?;
    }
    transaction.execute_batch(SET_ASIDE)?;
    for tables in [schema::EVENTS, schema::SCHEMA, schema::INDEXES] {
        transaction.execute_batch(tables)?;
    }
    let mut head = Link::BEGINNING;
    let mut events = transaction.prepare(
        "SELECT e.session_id, e.sequence, e.event_ns, e.received_ns, e.kind, e.exec_id, e.payload, s.gate
         FROM earlier_events e LEFT JOIN earlier_sessions s USING (session_id) ORDER BY e.rowid",
    )?;
    let mut rows = events.query([])?;
    while let Some(row) = rows.next()? {
        let session = row.get_ref(0)?.as_str()?;
        let payload = row.get_ref(6)?.as_blob()?;
        let kind = row.get_ref(4)?.as_str()?;
        let exec_id: Option<i64> = row.get(5)?;
        let gate: Option<String> = row.get(7)?;
        let answer = match (kind, exec_id) {
            ("exec-requested", Some(exec_id)) => earlier_answer(transaction, session, exec_id)?,
            _ => None,
        };
        let encoded = answer.as_ref().map(Message::encode_to_vec);
        let (time, received) = (row.get(2)?, row.get(3)?);
        let entry = Entry {
            session,
            sequence: row.get(1)?,
            time,
            received,
            kind,
            exec_id,
            gate: gate.as_deref().filter(|_| kind == schema::BEGINNING),
            payload,
            answer: encoded.as_deref(),
        };
        entry.append(transaction, &mut head)?;
        let gate = gate.map(GateIdentity::from);
        // What can't be read any more stays in the record all the same.
        let request = v1::SessionRequest::decode(payload).unwrap_or_default();
        let event = Row {
            session,
            gate: gate.as_ref(),
            request: &request,
            answer: answer.as_ref(),
            received: std::time::SystemTime::UNIX_EPOCH,
        };
        let mut execs = Execs::default();
        schema::tables(
            transaction,
            &mut execs,
            head.position,
            &event,
            time,
            received,
            Repeat::No,
        )?;
        execs.write(transaction, || ())?;
    }
    drop(rows);
    drop(events);
    transaction.execute_batch(FINISH)
}

/// Makes lists say what events say.
fn list_anew(transaction: &Transaction<'_>) -> rusqlite::Result<()> {
    let losses: Vec<(String, i64, i64)> = transaction
        .prepare("SELECT session_id, first_sequence, last_sequence FROM lost_ranges")?
        .query_map([], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))?
        .collect::<Result<_, _>>()?;
    let mut head = chain::head(transaction)?;
    for (session, first, last) in losses {
        let loss = v1::EventsLost {
            first_sequence: first.cast_unsigned(),
            last_sequence: last.cast_unsigned(),
            count: last.abs_diff(first).saturating_add(1),
        };
        let event = v1::session_request::Event::EventsLost(loss);
        let kind = schema::kind(Some(&event)).0;
        let request = v1::SessionRequest {
            event: Some(event),
            ..v1::SessionRequest::default()
        };
        let entry = Entry {
            session: &session,
            sequence: None,
            time: None,
            received: schema::system_nanoseconds(std::time::SystemTime::now()),
            kind,
            exec_id: None,
            gate: None,
            payload: &request.encode_to_vec(),
            answer: None,
        };
        entry.append(transaction, &mut head)?;
    }
    transaction.execute_batch("DELETE FROM execs; DELETE FROM lost_ranges;")?;
    let mut gates = Gates::kept_in(transaction, "sessions")?;
    let mut statement = transaction.prepare(&format!(
        "SELECT {} FROM events ORDER BY position",
        Entry::COLUMNS
    ))?;
    let mut rows = statement.query([])?;
    while let Some(row) = rows.next()? {
        Entry::with_read(row, |entry, stored| {
            schema::replay(transaction, entry, stored.position, gates.of(entry))
        })??;
    }
    Ok(())
}

/// What was answered, as far as the tables of before have it.
fn earlier_answer(
    transaction: &Transaction<'_>,
    session: &str,
    exec_id: i64,
) -> rusqlite::Result<Option<StoredAnswer>> {
    use v1::verdict::Decision;
    let answer = transaction
        .prepare_cached(
            "SELECT answer, answer_reason, answer_reason_code, answer_rule, answer_revision
             FROM earlier_execs WHERE session_id = ?1 AND exec_id = ?2 AND answers > 0",
        )?
        .query_row((session, exec_id), |row| {
            let text = |column| {
                let text: Option<String> = row.get(column)?;
                Ok::<_, rusqlite::Error>(text.unwrap_or_default())
            };
            let decision = match text(0)?.as_str() {
                "run" => Some(Decision::Run(v1::Run {})),
                "escalate" => Some(Decision::Escalate(v1::Escalate::default())),
                "deny" => Some(Decision::Deny(v1::Deny { reason: text(1)? })),
                _ => None,
            };
            Ok(StoredAnswer {
                verdict: Some(v1::Verdict {
                    service_time: None,
                    exec_id: exec_id.cast_unsigned(),
                    decision,
                    reason_code: text(2)?,
                    rule: text(3)?,
                    policy_revision: text(4)?,
                    reuse: None,
                }),
                mode: AnswerMode::Enforced.into(),
                ..StoredAnswer::default()
            })
        })
        .optional()?;
    Ok(answer)
}
