//! Finds execs on record, in bounded steps, so that whoever asks for what is rare holds up nobody.
//!
//! Each step looks at so many of the latest execs that one condition fits, the *driving* one, which has an index that
//! ends with positions, and keeps those that fit all others. After one that found nothing, what no session with the
//! asked labels has is passed over.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use prost::Message;
use rusqlite::types::Value;
use rusqlite::{Connection, OptionalExtension, Row, params_from_iter};

use super::chain;
use super::filter::{Filter, Plan};
use super::recall::{beginning, complete};
use super::schema::number;
use crate::pb::audit::v1::{
    AnswerMode, Ending, Exec, ExecChange, GateDecision, GivenAnswer, Session, Termination, ending,
};
use crate::pb::v1;

/// Most execs that one step looks at.
const MOST_SCANNED: u64 = 20_000;
/// Most events that one look at changes passes.
const MOST_CHANGES_SCANNED: i64 = 4_096;
/// About the most bytes of one page, of which each exec takes a part.
const PAGE_BYTES: usize = 4 << 20;

/// A page of what was found, the latest first.
#[derive(Debug, Default)]
pub(crate) struct Page {
    pub(crate) execs: Vec<Exec>,
    /// Below which position to go on; `None`: there is nothing more.
    pub(crate) next: Option<i64>,
}

/// How much is to be found.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Want {
    /// Most execs.
    pub(crate) execs: usize,
    /// Arguments and names of the environment as well.
    pub(crate) arguments: Arguments,
    /// How long it may take, about.
    pub(crate) within: Duration,
}

/// Whether arguments are read: they are in the events, not in the tables.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Arguments {
    Left,
    Read,
}

/// Finds the latest execs below a position.
pub(crate) fn page(
    connection: &Connection,
    filter: &Filter,
    below: Option<i64>,
    want: Want,
) -> rusqlite::Result<Page> {
    let started = Instant::now();
    let transaction = connection.unchecked_transaction()?;
    let plan = filter.plan(&transaction)?;
    let mut below = below.unwrap_or(i64::MAX);
    let mut page = Page::default();
    let mut bytes = 0;
    let mut scan = want.execs as u64;
    loop {
        let left = want.execs - page.execs.len();
        let step = step(&transaction, &plan, below, left, scan)?;
        let mut next = step.next;
        let is_barren = step.execs.is_empty();
        for mut exec in step.execs {
            if want.arguments == Arguments::Read {
                complete(&transaction, &mut exec)?;
            }
            let size = exec.encoded_len();
            if !page.execs.is_empty() && bytes + size > PAGE_BYTES {
                next = page.execs.last().map(|last| number(last.position));
                page.next = next;
                return Ok(page);
            }
            bytes += size;
            let position = number(exec.position);
            page.execs.push(exec);
            // What only events have is read one by one.
            if want.arguments == Arguments::Read && started.elapsed() >= want.within {
                page.next = Some(position);
                return Ok(page);
            }
        }
        if let Some(reached) = next
            && is_barren
        {
            next = plan.ceiling(&transaction, reached)?;
        }
        let Some(reached) = next else {
            return Ok(page);
        };
        if page.execs.len() >= want.execs || started.elapsed() >= want.within {
            page.next = Some(reached);
            return Ok(page);
        }
        below = reached;
        scan = scan.saturating_mul(4).min(MOST_SCANNED);
    }
}

/// Looks at so many execs, and finds those that fit.
fn step(
    connection: &Connection,
    plan: &Plan,
    below: i64,
    most: usize,
    scan: u64,
) -> rusqlite::Result<Page> {
    let mut found = BTreeMap::new();
    // The lowest position down to which all that drive have been looked at.
    let mut reached: Option<i64> = None;
    let conditions: Vec<_> = plan.others.iter().map(|other| &*other.text).collect();
    let conditions = if conditions.is_empty() {
        "1".to_owned()
    } else {
        conditions.join(" AND ")
    };
    for drive in &plan.drives {
        let inner = format!(
            "FROM execs x WHERE {} AND x.position < ? AND x.position >= ?
             ORDER BY x.position DESC LIMIT ?",
            drive.text
        );
        let bounds = [below, plan.floor, i64::try_from(scan).unwrap_or(i64::MAX)];
        let inner_values: Vec<_> = drive
            .values
            .iter()
            .cloned()
            .chain(bounds.map(Value::Integer))
            .collect();
        let lowest: (i64, Option<i64>) = connection
            .prepare_cached(&format!(
                "SELECT count(*), min(position) FROM (SELECT x.position {inner})"
            ))?
            .query_row(params_from_iter(&inner_values), |row| {
                Ok((row.get(0)?, row.get(1)?))
            })?;
        let is_all = lowest.0.cast_unsigned() < scan;
        let mut end = lowest.1.filter(|_| !is_all);
        let mut statement = connection.prepare_cached(&format!(
            "SELECT {COLUMNS} FROM (SELECT x.* {inner}) x LEFT JOIN sessions s USING (session_id)
             WHERE {conditions} ORDER BY x.position DESC LIMIT ?"
        ))?;
        let others = plan.others.iter().flat_map(|other| other.values.clone());
        let values = inner_values
            .into_iter()
            .chain(others)
            .chain([Value::Integer(i64::try_from(most).unwrap_or(i64::MAX))]);
        let mut rows = statement.query(params_from_iter(values))?;
        let (mut count, mut bytes) = (0, 0);
        while let Some(row) = rows.next()? {
            let exec = exec(row)?;
            count += 1;
            bytes += exec.encoded_len();
            let position = number(exec.position);
            found.insert(position, exec);
            if count == most || bytes > PAGE_BYTES {
                end = Some(position);
                break;
            }
        }
        reached = reached.max(end);
    }
    let mut execs: Vec<_> = found.into_iter().rev().collect();
    if let Some(reached) = reached {
        execs.retain(|(position, _)| *position >= reached);
    }
    let mut next = reached;
    if execs.len() > most {
        execs.truncate(most);
        next = execs.last().map(|(position, _)| *position);
    }
    Ok(Page {
        execs: execs.into_iter().map(|(_, exec)| exec).collect(),
        next,
    })
}

/// What the latest events changed.
#[derive(Debug, Default)]
pub(crate) struct Changes {
    /// They, in their order.
    pub(crate) found: Vec<Change>,
    /// Events up to there were removed, and would have been next.
    pub(crate) removed: Option<i64>,
    /// Up to where this is all.
    pub(crate) through: i64,
}

/// One event that changed an exec.
#[derive(Debug)]
pub(crate) struct Change {
    pub(crate) position: i64,
    pub(crate) kind: ExecChange,
    pub(crate) exec: Exec,
}

/// Finds what has changed behind a position, some of it at a time.
pub(crate) fn changes(
    connection: &Connection,
    filter: &Filter,
    after: i64,
    want: Want,
) -> rusqlite::Result<Changes> {
    let transaction = connection.unchecked_transaction()?;
    let head = chain::head(&transaction)?.position;
    let start = chain::start(&transaction)?.position;
    let from = after.max(start);
    let mut found = Changes {
        removed: (after < start).then_some(start),
        // Positions have no holes.
        through: from
            .saturating_add(MOST_CHANGES_SCANNED)
            .min(head)
            .max(from),
        found: Vec::new(),
    };
    let all = filter.all();
    let conditions: Vec<_> = all
        .iter()
        .map(|condition| format!(" AND {}", condition.text))
        .collect();
    let conditions = conditions.concat();
    // The driving table is that of events, whatever else there is: CROSS JOIN keeps that order.
    let mut statement = transaction.prepare_cached(&format!(
        "SELECT e.position AS event_position, e.kind, {COLUMNS}
         FROM events e CROSS JOIN execs x ON x.session_id = e.session_id AND x.exec_id = e.exec_id
             LEFT JOIN sessions s ON s.session_id = x.session_id
         WHERE e.position > ? AND e.position <= ? AND e.kind <> 'exec-answered' {conditions}
         ORDER BY e.position LIMIT ?"
    ))?;
    let most = i64::try_from(want.execs).unwrap_or(i64::MAX);
    let values = [from, found.through]
        .map(Value::Integer)
        .into_iter()
        .chain(all.into_iter().flat_map(|condition| condition.values))
        .chain([Value::Integer(most)]);
    let mut rows = statement.query(params_from_iter(values))?;
    let mut bytes = 0;
    while let Some(row) = rows.next()? {
        let position = row.get("event_position")?;
        let change = match row.get_ref("kind")?.as_str()? {
            "exec-requested" => ExecChange::Requested,
            "exec-decided" => ExecChange::Decided,
            "exec-reused" => ExecChange::Reused,
            "exec-withdrawn" => ExecChange::Withdrawn,
            "exec-finished" => ExecChange::Finished,
            _ => ExecChange::Unspecified,
        };
        let mut exec = exec(row)?;
        if want.arguments == Arguments::Read {
            complete(&transaction, &mut exec)?;
        }
        bytes += exec.encoded_len();
        found.found.push(Change {
            position,
            kind: change,
            exec,
        });
        if found.found.len() == want.execs || bytes > PAGE_BYTES {
            found.through = position;
            break;
        }
    }
    Ok(found)
}

/// A session, and its execs behind a position, the earliest first.
pub(crate) fn session(
    connection: &Connection,
    id: &str,
    after: i64,
    want: Want,
) -> rusqlite::Result<Option<(Session, Page)>> {
    let transaction = connection.unchecked_transaction()?;
    let found = transaction
        .prepare_cached(
            "SELECT gate, hostname, user_name, labels, command_line, substr(workdir, 1, 4096), sandbox,
                 enforcement, started_ns, ended_ns, end_reason,
                 (SELECT lost_events FROM losses WHERE losses.session_id = sessions.session_id),
                 terminated_by, termination_reason, terminated_ns
             FROM sessions WHERE session_id = ?1",
        )?
        .query_row([id], |row| {
            let text = |column: usize| {
                row.get::<_, Option<String>>(column)
                    .map(Option::unwrap_or_default)
            };
            Ok(Session {
                session_id: id.to_owned(),
                gate: text(0)?,
                hostname: text(1)?,
                user_name: text(2)?,
                labels: labels(&text(3)?),
                command_line: text(4)?,
                workdir: bytes(row.get(5)?),
                sandbox: text(6)?,
                enforcement: text(7)?,
                start_time: time(row.get(8)?),
                end_time: time(row.get(9)?),
                end_reason: text(10)?,
                lost_event_count: row
                    .get::<_, Option<i64>>(11)?
                    .unwrap_or_default()
                    .cast_unsigned(),
                sandbox_info: None,
                termination: termination(row)?,
            })
        })
        .optional()?;
    let found = match found {
        // All of it, as long as its beginning is on record.
        Some(session) => Some(Session {
            sandbox_info: beginning(&transaction, id)?.and_then(|started| started.sandbox),
            ..session
        }),
        None => None,
    };
    let mut statement = transaction.prepare_cached(&format!(
        "SELECT {COLUMNS} FROM execs x LEFT JOIN sessions s USING (session_id)
         WHERE x.session_id = ?1 AND x.position > ?2 ORDER BY x.position LIMIT ?3"
    ))?;
    let most = i64::try_from(want.execs).unwrap_or(i64::MAX);
    let mut rows = statement.query((id, after, most))?;
    let mut page = Page::default();
    let mut size = 0;
    while let Some(row) = rows.next()? {
        let mut exec = exec(row)?;
        if want.arguments == Arguments::Read {
            complete(&transaction, &mut exec)?;
        }
        size += exec.encoded_len();
        let position = number(exec.position);
        page.execs.push(exec);
        if page.execs.len() == want.execs || size > PAGE_BYTES {
            page.next = Some(position);
            break;
        }
    }
    // What is left of a session whose beginning was removed is a session all the same.
    let found = found.or_else(|| {
        (!page.execs.is_empty()).then(|| Session {
            session_id: id.to_owned(),
            ..Session::default()
        })
    });
    Ok(found.map(|session| (session, page)))
}

fn termination(row: &Row<'_>) -> rusqlite::Result<Option<Termination>> {
    let Some(terminated_by) = row.get("terminated_by")? else {
        return Ok(None);
    };
    let reason: Option<String> = row.get("termination_reason")?;
    Ok(Some(Termination {
        terminated_by,
        reason: reason.unwrap_or_default(),
        termination_time: time(row.get("terminated_ns")?),
    }))
}

/// What [`exec`] reads. No path that the kernel takes is longer than 4,096 bytes: one that is gets cut.
const COLUMNS: &str = "x.session_id AS session_id, x.exec_id, x.parent_exec_id, x.position, x.gate,
    s.hostname, s.user_name, s.labels, x.requested_ns, x.received_ns,
    substr(x.program, 1, 4096) AS program, x.command_line, substr(x.workdir, 1, 4096) AS workdir,
    x.process_id, x.parent_process_id, x.user_id, x.group_id, x.answers, x.answered_ns, x.answer,
    x.answer_reason, x.answer_reason_code, x.answer_rule, x.answer_revision, x.answer_mode,
    x.approval_id, x.decided_by,
    x.decided_ns, x.action, x.code, x.reason, x.reason_code, x.rule, x.policy_revision, x.waited_ns,
    x.withdrawn, x.finished_ns, x.exit_code, x.signal, x.start_error, x.replaced_by_exec_id,
    x.elapsed_ns, x.user_time_ns, x.system_time_ns, x.peak_memory_bytes,
    s.ended_ns AS session_ended_ns, s.end_reason AS session_end_reason";

fn bytes(bytes: Option<Vec<u8>>) -> prost::bytes::Bytes {
    bytes.unwrap_or_default().into()
}

fn labels(json: &str) -> std::collections::HashMap<String, String> {
    serde_json::from_str(json).unwrap_or_default()
}

fn time(nanoseconds: Option<i64>) -> Option<prost_types::Timestamp> {
    nanoseconds.map(|nanoseconds| prost_types::Timestamp {
        seconds: nanoseconds.div_euclid(1_000_000_000),
        nanos: i32::try_from(nanoseconds.rem_euclid(1_000_000_000)).unwrap_or(0),
    })
}

fn duration(nanoseconds: Option<i64>) -> Option<prost_types::Duration> {
    nanoseconds.map(|nanoseconds| prost_types::Duration {
        seconds: nanoseconds / 1_000_000_000,
        nanos: i32::try_from(nanoseconds % 1_000_000_000).unwrap_or(0),
    })
}

fn given_answer(row: &Row<'_>) -> rusqlite::Result<Option<GivenAnswer>> {
    let word = |name: &str| {
        row.get::<_, Option<String>>(name)
            .map(Option::unwrap_or_default)
    };
    let count = row.get::<_, Option<i64>>("answers")?.unwrap_or(0);
    if count == 0 {
        return Ok(None);
    }
    Ok(Some(GivenAnswer {
        verdict: word("answer")?,
        reason: word("answer_reason")?,
        reason_code: word("answer_reason_code")?,
        rule: word("answer_rule")?,
        policy_revision: word("answer_revision")?,
        answer_time: time(row.get("answered_ns")?),
        answer_count: count.cast_unsigned(),
        mode: match word("answer_mode")?.as_str() {
            "monitored" => AnswerMode::Monitored,
            "pending" => AnswerMode::Pending,
            _ => AnswerMode::Enforced,
        }
        .into(),
        approval_id: word("approval_id")?,
        decided_by: word("decided_by")?,
        escalate: None,
    }))
}

/// The process that asked, where the question is on record.
fn process(row: &Row<'_>) -> rusqlite::Result<Option<v1::ProcessInfo>> {
    let number = |name: &str| row.get::<_, Option<i64>>(name);
    let small = |name: &str| {
        let value = number(name)?.and_then(|value| u32::try_from(value).ok());
        Ok::<_, rusqlite::Error>(value.unwrap_or(0))
    };
    let process = v1::ProcessInfo {
        process_id: small("process_id")?,
        parent_process_id: small("parent_process_id")?,
        user_id: small("user_id")?,
        group_id: small("group_id")?,
    };
    Ok(number("process_id")?.map(|_| process))
}

fn exec(row: &Row<'_>) -> rusqlite::Result<Exec> {
    let word = |name: &str| {
        row.get::<_, Option<String>>(name)
            .map(Option::unwrap_or_default)
    };
    let integer = |name: &str| row.get::<_, Option<i64>>(name);
    let id = |name: &str| Ok::<_, rusqlite::Error>(integer(name)?.unwrap_or(0).cast_unsigned());
    let answer = given_answer(row)?;
    let decision = match row.get::<_, Option<String>>("action")? {
        None => None,
        Some(verdict) => Some(GateDecision {
            verdict,
            code: word("code")?,
            reason: word("reason")?,
            reason_code: word("reason_code")?,
            rule: word("rule")?,
            policy_revision: word("policy_revision")?,
            decision_time: time(integer("decided_ns")?),
            waited: duration(integer("waited_ns")?),
        }),
    };
    let ending = match integer("finished_ns")? {
        None => None,
        Some(end) => {
            let start_error: Option<String> = row.get("start_error")?;
            let status = match (
                integer("exit_code")?,
                integer("signal")?,
                start_error,
                integer("replaced_by_exec_id")?,
            ) {
                (Some(code), ..) => Some(ending::Status::ExitCode(code)),
                (_, Some(signal), ..) => Some(ending::Status::Signal(signal)),
                (_, _, Some(error), _) => Some(ending::Status::StartError(error)),
                (.., Some(exec)) => Some(ending::Status::ReplacedByExecId(exec.cast_unsigned())),
                _ => None,
            };
            Some(Ending {
                end_time: time(Some(end)),
                status,
                elapsed: duration(integer("elapsed_ns")?),
                user_time: duration(integer("user_time_ns")?),
                system_time: duration(integer("system_time_ns")?),
                peak_memory_bytes: id("peak_memory_bytes")?,
            })
        }
    };
    Ok(Exec {
        session_id: word("session_id")?,
        exec_id: id("exec_id")?,
        parent_exec_id: id("parent_exec_id")?,
        position: id("position")?,
        gate: word("gate")?,
        hostname: word("hostname")?,
        user_name: word("user_name")?,
        labels: labels(&word("labels")?),
        request_time: time(integer("requested_ns")?),
        receive_time: time(integer("received_ns")?),
        program: bytes(row.get("program")?),
        command_line: word("command_line")?,
        workdir: bytes(row.get("workdir")?),
        process: process(row)?,
        answer,
        decision,
        withdrawal_reason: word("withdrawn")?,
        ending,
        session_end_time: time(integer("session_ended_ns")?),
        session_end_reason: word("session_end_reason")?,
        // What only events have.
        ..Exec::default()
    })
}
