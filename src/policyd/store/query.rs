//! Finds execs on record, in bounded steps, so that whoever asks for what is rare holds up nobody.
//!
//! Each step looks at so many of the latest execs that one condition fits, the *driving* one, which has an index that
//! ends with positions, and keeps those that fit all others.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use prost::Message;
use rusqlite::types::Value;
use rusqlite::{Connection, OptionalExtension, Row, params_from_iter};

use super::chain;
use super::recall::complete;
use super::schema::number;
use crate::pb::audit::v1::{
    AnswerMode, Ending, Exec, ExecChange, GateDecision, GivenAnswer, Outcome, Session, ending,
};
use crate::pb::v1;

/// Most execs that one step looks at.
const MOST_SCANNED: u64 = 20_000;
/// Most sessions that are looked at one by one, rather than execs in their order.
const MOST_SESSIONS: usize = 16;
/// Most events that one look at changes passes.
const MOST_CHANGES_SCANNED: i64 = 4_096;
/// About the most bytes of one page, of which each exec takes a part.
const PAGE_BYTES: usize = 4 << 20;
/// By how many places an event may be stored before one that was received earlier.
const REORDERED: i64 = 32_768;

/// Which execs are meant: those that fit all that is set.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Filter {
    /// Beginning of the session's id, in lowercase.
    pub(crate) session: Option<String>,
    pub(crate) labels: BTreeMap<String, String>,
    pub(crate) gate: Option<String>,
    pub(crate) program: Option<String>,
    pub(crate) outcome: Option<Outcome>,
    pub(crate) code: Option<String>,
    /// Nanoseconds since 1970.
    pub(crate) since: Option<i64>,
}

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

const VERDICT: &str = "coalesce(x.action, x.answer)";
const REASON_CODE: &str = "coalesce(nullif(x.reason_code, ''), x.answer_reason_code)";

/// A condition with its values, each of which stands as `?` in it.
#[derive(Debug, Clone)]
struct Condition {
    text: String,
    values: Vec<Value>,
}

impl Condition {
    fn new(text: impl Into<String>, values: impl IntoIterator<Item = Value>) -> Self {
        Self {
            text: text.into(),
            values: values.into_iter().collect(),
        }
    }
}

/// A filter, taken apart: alternatives that drive, and what must hold besides.
#[derive(Debug)]
struct Plan {
    drives: Vec<Condition>,
    others: Vec<Condition>,
}

impl Filter {
    /// All conditions, in the order in which they had better drive.
    fn conditions(&self) -> Vec<Vec<Condition>> {
        let text = |text: &str| Value::Text(text.to_owned());
        let mut all = Vec::new();
        if let Some(prefix) = &self.session {
            all.push(vec![Condition::new(
                "x.session_id >= ? AND x.session_id < ?",
                [text(prefix), Value::Text(format!("{prefix}g"))],
            )]);
        }
        if let Some(program) = &self.program {
            let name = program.rsplit('/').next().unwrap_or_default();
            all.push(vec![if program.contains('/') {
                Condition::new(
                    "x.program_name = ? AND x.program = ?",
                    [text(name), Value::Blob(program.clone().into_bytes())],
                )
            } else {
                Condition::new("x.program_name = ?", [text(program)])
            }]);
        }
        let outcome = self.outcome.and_then(|outcome| {
            Some(match outcome {
                Outcome::Unspecified => return None,
                Outcome::Run => Condition::new(format!("{VERDICT} = ?"), [text("run")]),
                Outcome::Escalate => Condition::new(format!("{VERDICT} = ?"), [text("escalate")]),
                Outcome::Deny => Condition::new(format!("{VERDICT} = ?"), [text("deny")]),
                Outcome::Monitored => Condition::new("x.answer_mode = ?", [text("monitored")]),
            })
        });
        let code = self.code.as_ref().map(|code| {
            vec![
                Condition::new("x.code = ?", [text(code)]),
                Condition::new(format!("{REASON_CODE} = ?"), [text(code)]),
            ]
        });
        let gate = self
            .gate
            .as_ref()
            .map(|gate| Condition::new("x.gate = ?", [text(gate)]));
        // What most execs are is found soon in the order of positions as well.
        if self.outcome == Some(Outcome::Run) {
            all.extend(code);
            all.extend(gate.map(|gate| vec![gate]));
            all.extend(outcome.map(|outcome| vec![outcome]));
        } else {
            all.extend(outcome.map(|outcome| vec![outcome]));
            all.extend(code);
            all.extend(gate.map(|gate| vec![gate]));
        }
        all
    }

    /// Conditions that no index of execs helps with.
    fn rest(&self) -> Vec<Condition> {
        let mut rest: Vec<_> = self
            .labels
            .iter()
            .map(|(key, value)| {
                Condition::new(
                    "EXISTS (SELECT 1 FROM session_labels l
                         WHERE l.session_id = x.session_id AND l.key = ? AND l.value = ?)",
                    [Value::Text(key.clone()), Value::Text(value.clone())],
                )
            })
            .collect();
        if let Some(since) = self.since {
            rest.push(Condition::new(
                "x.received_ns >= ?",
                [Value::Integer(since)],
            ));
        }
        rest
    }

    /// The sessions that fit, where they are few.
    fn sessions(&self, connection: &Connection) -> rusqlite::Result<Option<Vec<String>>> {
        let most = i64::try_from(MOST_SESSIONS + 1).unwrap_or(i64::MAX);
        let found: Vec<String> = if let Some(prefix) = &self.session {
            connection
                .prepare_cached(
                    "SELECT session_id FROM sessions WHERE session_id >= ?1 AND session_id < ?1 || 'g' LIMIT ?2",
                )?
                .query_map((prefix, most), |row| row.get(0))?
                .collect::<Result<_, _>>()?
        } else if let Some((key, value)) = self.labels.iter().next() {
            connection
                .prepare_cached(
                    "SELECT session_id FROM session_labels WHERE key = ?1 AND value = ?2 LIMIT ?3",
                )?
                .query_map((key, value, most), |row| row.get(0))?
                .collect::<Result<_, _>>()?
        } else {
            return Ok(None);
        };
        Ok((found.len() <= MOST_SESSIONS).then_some(found))
    }

    fn plan(&self, connection: &Connection) -> rusqlite::Result<Plan> {
        let mut conditions = self.conditions();
        let mut others = self.rest();
        let sessions = self.sessions(connection)?.filter(|sessions| {
            // An exec whose session's beginning is gone has no row there: look for its id itself.
            !sessions.is_empty() || self.session.is_none()
        });
        let drives = if let Some(sessions) = sessions {
            sessions
                .into_iter()
                .map(|session| Condition::new("x.session_id = ?", [Value::Text(session)]))
                .collect()
        } else if self.session.as_ref().is_some_and(|id| id.len() == 32) {
            let session = self.session.clone().unwrap_or_default();
            vec![Condition::new("x.session_id = ?", [Value::Text(session)])]
        } else if conditions.is_empty() || self.session.is_some() {
            vec![Condition::new("1", [])]
        } else {
            conditions.remove(0)
        };
        others.extend(conditions.into_iter().map(|alternatives| {
            let texts: Vec<_> = alternatives
                .iter()
                .map(|condition| format!("({})", condition.text))
                .collect();
            let values = alternatives
                .into_iter()
                .flat_map(|condition| condition.values);
            Condition::new(format!("({})", texts.join(" OR ")), values)
        }));
        Ok(Plan { drives, others })
    }

    /// The lowest position that can fit.
    fn floor(&self, connection: &Connection) -> rusqlite::Result<i64> {
        let Some(since) = self.since else {
            return Ok(0);
        };
        let first: Option<i64> = connection
            .prepare_cached(
                "SELECT position FROM execs WHERE received_ns >= ?1 ORDER BY received_ns LIMIT 1",
            )?
            .query_row([since], |row| row.get(0))
            .optional()?
            .flatten();
        Ok(first.map_or(i64::MAX, |first| first.saturating_sub(REORDERED)))
    }
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
    let floor = filter.floor(&transaction)?;
    let mut below = below.unwrap_or(i64::MAX);
    let mut page = Page::default();
    let mut bytes = 0;
    let mut scan = want.execs as u64;
    loop {
        let left = want.execs - page.execs.len();
        let step = step(&transaction, &plan, below, floor, left, scan)?;
        let mut next = step.next;
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
            page.execs.push(exec);
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
    floor: i64,
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
        let bounds = [below, floor, i64::try_from(scan).unwrap_or(i64::MAX)];
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
    let all: Vec<_> = filter
        .conditions()
        .into_iter()
        .map(|alternatives| {
            let texts: Vec<_> = alternatives
                .iter()
                .map(|c| format!("({})", c.text))
                .collect();
            let values = alternatives.into_iter().flat_map(|c| c.values);
            Condition::new(format!("({})", texts.join(" OR ")), values)
        })
        .chain(filter.rest())
        .collect();
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
                 (SELECT lost_events FROM losses WHERE losses.session_id = sessions.session_id)
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
            })
        })
        .optional()?;
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

/// What [`exec`] reads. No path that the kernel takes is longer than 4,096 bytes: one that is gets cut.
const COLUMNS: &str = "x.session_id AS session_id, x.exec_id, x.parent_exec_id, x.position, x.gate,
    s.hostname, s.user_name, s.labels, x.requested_ns, x.received_ns,
    substr(x.program, 1, 4096) AS program, x.command_line, substr(x.workdir, 1, 4096) AS workdir,
    x.process_id, x.parent_process_id, x.user_id, x.group_id, x.answers, x.answered_ns, x.answer,
    x.answer_reason, x.answer_reason_code, x.answer_rule, x.answer_revision, x.answer_mode,
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

fn exec(row: &Row<'_>) -> rusqlite::Result<Exec> {
    let word = |name: &str| {
        row.get::<_, Option<String>>(name)
            .map(Option::unwrap_or_default)
    };
    let integer = |name: &str| row.get::<_, Option<i64>>(name);
    let id = |name: &str| Ok::<_, rusqlite::Error>(integer(name)?.unwrap_or(0).cast_unsigned());
    let small = |name: &str| {
        let value = integer(name)?.and_then(|value| u32::try_from(value).ok());
        Ok::<_, rusqlite::Error>(value.unwrap_or(0))
    };
    let answer = match integer("answers")? {
        None | Some(0) => None,
        Some(count) => Some(GivenAnswer {
            verdict: word("answer")?,
            reason: word("answer_reason")?,
            reason_code: word("answer_reason_code")?,
            rule: word("answer_rule")?,
            policy_revision: word("answer_revision")?,
            answer_time: time(integer("answered_ns")?),
            answer_count: count.cast_unsigned(),
            mode: match word("answer_mode")?.as_str() {
                "monitored" => AnswerMode::Monitored,
                _ => AnswerMode::Enforced,
            }
            .into(),
            escalate: None,
        }),
    };
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
    let process = v1::ProcessInfo {
        process_id: small("process_id")?,
        parent_process_id: small("parent_process_id")?,
        user_id: small("user_id")?,
        group_id: small("group_id")?,
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
        process: integer("process_id")?.map(|_| process),
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
