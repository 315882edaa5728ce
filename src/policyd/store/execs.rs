//! The table of execs: what a commit's events say of one exec is written at once.
//!
//! Most execs are short, so the question, its answer, the decision and the end are often in the same commit. Each
//! change of a row costs all indexes that it moves in, so a row that is written once costs much less than one that
//! is written four times.
//!
//! Invariant: the table holds what it would hold if each event were written by itself, in their order; `verify`
//! makes it anew in that way.

use std::collections::HashMap;
use std::sync::OnceLock;

use rusqlite::types::{ToSqlOutput, Value, ValueRef};
use rusqlite::{Transaction, params_from_iter};

use super::schema::{COMMAND_LINE_LIMIT, enum_name, nanoseconds, number};
use crate::pb::audit::v1::{AnswerMode, StoredAnswer};
use crate::pb::v1;
use crate::policyd::identity::GateIdentity;
use crate::policyd::text;

/// What a row is made of besides its key, in the order of [`PARTS`]: each part is told by one kind of event.
const REQUESTED: usize = 0;
const WITHDRAWN: usize = 1;
const DECIDED: usize = 2;
const FINISHED: usize = 3;
const ANSWERED: usize = 4;
const PARTS: [&[&str]; 5] = [
    &[
        "request_sequence",
        "requested_ns",
        "program",
        "program_name",
        "command_line",
        "argument_count",
        "workdir",
        "process_id",
        "parent_process_id",
        "user_id",
        "group_id",
        "parent_exec_id",
    ],
    &["withdrawn"],
    &[
        "decided_ns",
        "action",
        "code",
        "reason",
        "reason_code",
        "rule",
        "policy_revision",
        "waited_ns",
    ],
    &[
        "finished_ns",
        "exit_code",
        "signal",
        "start_error",
        "replaced_by_exec_id",
        "elapsed_ns",
        "user_time_ns",
        "system_time_ns",
        "peak_memory_bytes",
    ],
    &[
        "answers",
        "answered_ns",
        "answer",
        "answer_reason",
        "answer_reason_code",
        "answer_rule",
        "answer_revision",
        "answer_mode",
        "approval_id",
        "decided_by",
    ],
];
/// What names a row and is set when it is made.
const KEY: [&str; 5] = ["session_id", "exec_id", "received_ns", "position", "gate"];

/// Where an event stands.
#[derive(Debug, Clone, Copy)]
pub(super) struct Place<'a> {
    pub(super) session: &'a str,
    pub(super) gate: Option<&'a GateIdentity>,
    pub(super) position: i64,
    pub(super) time: Option<i64>,
    pub(super) received: i64,
}

/// Execs that a commit's events tell of.
#[derive(Debug, Default)]
pub(super) struct Execs<'a> {
    rows: Vec<ExecRow<'a>>,
    by_exec: HashMap<(&'a str, u64), usize>,
}

/// What events tell of an exec, each with where it stands.
#[derive(Debug)]
struct ExecRow<'a> {
    exec_id: u64,
    first: Place<'a>,
    /// The latest question, its sequence and its time.
    requested: Option<(&'a v1::ExecRequested, Option<i64>, Option<i64>)>,
    withdrawn: Option<&'a v1::ExecWithdrawn>,
    decided: Option<(&'a v1::ExecDecided, Place<'a>)>,
    finished: Option<(&'a v1::ExecFinished, Place<'a>)>,
    answered: Option<Answered<'a>>,
}

/// The latest answer, and how many there were.
#[derive(Debug, Clone, Copy)]
struct Answered<'a> {
    answer: &'a StoredAnswer,
    verdict: &'a v1::Verdict,
    received: i64,
    count: i64,
}

impl<'a> Execs<'a> {
    fn row(&mut self, place: Place<'a>, exec_id: u64) -> &mut ExecRow<'a> {
        let rows = &mut self.rows;
        let at = *self
            .by_exec
            .entry((place.session, exec_id))
            .or_insert_with(|| {
                rows.push(ExecRow {
                    exec_id,
                    first: place,
                    requested: None,
                    withdrawn: None,
                    decided: None,
                    finished: None,
                    answered: None,
                });
                rows.len() - 1
            });
        &mut rows[at]
    }

    pub(super) fn requested(
        &mut self,
        place: Place<'a>,
        exec: &'a v1::ExecRequested,
        sequence: u64,
    ) {
        let row = self.row(place, exec.exec_id);
        let sequence = Some(sequence).filter(|sequence| *sequence != 0);
        row.requested = Some((exec, sequence.map(number), place.time));
        // What was answered before was answered to another question, which may have been about another command.
        row.answered = None;
    }

    pub(super) fn withdrawn(&mut self, place: Place<'a>, exec: &'a v1::ExecWithdrawn) {
        self.row(place, exec.exec_id).withdrawn = Some(exec);
    }

    pub(super) fn decided(&mut self, place: Place<'a>, exec: &'a v1::ExecDecided) {
        self.row(place, exec.exec_id).decided = Some((exec, place));
    }

    pub(super) fn finished(&mut self, place: Place<'a>, exec: &'a v1::ExecFinished) {
        self.row(place, exec.exec_id).finished = Some((exec, place));
    }

    /// An answer makes no row: the question that it is to has made one, or was removed for its age.
    pub(super) fn answered(
        &mut self,
        transaction: &Transaction<'_>,
        place: Place<'a>,
        answer: &'a StoredAnswer,
    ) -> rusqlite::Result<()> {
        let Some(verdict) = &answer.verdict else {
            return Ok(());
        };
        let mut answered = Answered {
            answer,
            verdict,
            received: place.received,
            count: 1,
        };
        if let Some(at) = self.by_exec.get(&(place.session, verdict.exec_id)) {
            let latest = &mut self.rows[*at].answered;
            let earlier = latest.map_or(0, |latest| latest.count);
            answered.count = answered.count.saturating_add(earlier);
            *latest = Some(answered);
            return Ok(());
        }
        let mut values = Vec::new();
        answered.values(&mut values);
        values.extend([text(place.session), integer(number(verdict.exec_id))]);
        transaction
            .prepare_cached(answer_statement())?
            .execute(params_from_iter(values))?;
        Ok(())
    }

    /// Writes all of it; `between` is called before each row.
    pub(super) fn write(
        &self,
        transaction: &Transaction<'_>,
        mut between: impl FnMut(),
    ) -> rusqlite::Result<()> {
        for row in &self.rows {
            between();
            transaction
                .prepare_cached(statement(row.parts()))?
                .execute(params_from_iter(row.values()))?;
        }
        Ok(())
    }
}

/// Sets the answer in a row that is there.
fn answer_statement() -> &'static str {
    static STATEMENT: OnceLock<String> = OnceLock::new();
    STATEMENT.get_or_init(|| {
        let columns = PARTS[ANSWERED].iter().map(|column| match *column {
            "answers" => "answers = answers + ?".to_owned(),
            column => format!("{column} = ?"),
        });
        let columns: Vec<_> = columns.collect();
        format!(
            "UPDATE execs SET {} WHERE session_id = ? AND exec_id = ?",
            columns.join(", ")
        )
    })
}

/// Which parts of a row there are.
type Parts = [bool; PARTS.len()];

/// Makes a row of these parts, or sets them in the one that is there.
fn statement(parts: Parts) -> &'static str {
    static STATEMENTS: [OnceLock<String>; 1 << PARTS.len()] =
        [const { OnceLock::new() }; 1 << PARTS.len()];
    let number = (0..PARTS.len())
        .filter(|part| parts[*part])
        .fold(0, |number, part| number | 1 << part);
    STATEMENTS[number].get_or_init(|| {
        let there = (0..PARTS.len()).filter(|part| parts[*part]);
        let columns: Vec<_> = there.flat_map(|part| PARTS[part]).copied().collect();
        let updates: Vec<_> = columns
            .iter()
            .map(|column| match *column {
                "answers" if !parts[REQUESTED] => "answers = answers + excluded.answers".to_owned(),
                column => format!("{column} = excluded.{column}"),
            })
            .collect();
        let all: Vec<_> = KEY.iter().chain(&columns).copied().collect();
        let places = vec!["?"; all.len()];
        format!(
            "INSERT INTO execs ({}) VALUES ({}) ON CONFLICT (session_id, exec_id) DO UPDATE SET {}",
            all.join(", "),
            places.join(", "),
            updates.join(", ")
        )
    })
}

impl ExecRow<'_> {
    fn parts(&self) -> Parts {
        let mut parts = [false; PARTS.len()];
        parts[REQUESTED] = self.requested.is_some();
        parts[WITHDRAWN] = self.withdrawn.is_some();
        parts[DECIDED] = self.decided.is_some();
        parts[FINISHED] = self.finished.is_some();
        // A question takes the place of the one before it, and of what that was answered.
        parts[ANSWERED] = self.answered.is_some() || self.requested.is_some();
        parts
    }

    /// The values of the key and of the parts that are there, in their order.
    fn values(&self) -> Vec<ToSqlOutput<'_>> {
        let first = self.first;
        let mut values = Vec::with_capacity(48);
        values.extend([
            text(first.session),
            integer(number(self.exec_id)),
            integer(first.received),
            integer(first.position),
            optional(first.gate.map(|gate| text(gate.as_str()))),
        ]);
        if let Some((exec, sequence, time)) = self.requested {
            request_values(&mut values, exec, sequence, time);
        }
        if let Some(withdrawn) = self.withdrawn {
            let reason = withdrawn.reason().as_str_name();
            values.push(owned(enum_name(reason, "WITHDRAWAL_REASON_")));
        }
        if let Some((exec, place)) = self.decided {
            values.extend([
                optional(place.time.map(integer)),
                owned(enum_name(exec.action().as_str_name(), "ACTION_")),
                owned(enum_name(exec.code().as_str_name(), "DECISION_CODE_")),
                text(&exec.reason),
                text(&exec.reason_code),
                text(&exec.rule),
                text(&exec.policy_revision),
                optional(nanoseconds(exec.waited).map(integer)),
            ]);
        }
        if let Some((exec, place)) = self.finished {
            finish_values(&mut values, exec, place);
        }
        if let Some(answered) = self.answered {
            answered.values(&mut values);
        } else if self.requested.is_some() {
            values.push(integer(0));
            values.extend(PARTS[ANSWERED].iter().skip(1).map(|_| optional(None)));
        }
        values
    }
}

fn request_values<'a>(
    values: &mut Vec<ToSqlOutput<'a>>,
    exec: &'a v1::ExecRequested,
    sequence: Option<i64>,
    time: Option<i64>,
) {
    let process = exec.process.unwrap_or_default();
    let name = exec.file.rsplit(|byte| *byte == b'/').next();
    let name = String::from_utf8_lossy(name.unwrap_or_default());
    // The program is what the command line is shown to begin with: argument zero may say anything.
    let words = std::iter::once(&exec.file)
        .chain(exec.arguments.iter().skip(1))
        .map(|word| &word[..]);
    values.extend([
        optional(sequence.map(integer)),
        optional(time.map(integer)),
        blob(&exec.file),
        owned(name.into_owned()),
        owned(text::command_line(words, COMMAND_LINE_LIMIT)),
        integer(number(exec.arguments.len() as u64)),
        blob(&exec.workdir),
        integer(process.process_id.into()),
        integer(process.parent_process_id.into()),
        integer(process.user_id.into()),
        integer(process.group_id.into()),
        optional(known(exec.parent_exec_id)),
    ]);
}

fn finish_values<'a>(
    values: &mut Vec<ToSqlOutput<'a>>,
    exec: &'a v1::ExecFinished,
    place: Place<'_>,
) {
    use v1::exec_finished::Status;
    let (exit_code, signal, start_error) = match &exec.status {
        Some(Status::ExitCode(code)) => (Some(*code), None, None),
        Some(Status::Signal(signal)) => (None, Some(*signal), None),
        Some(Status::StartError(error)) => (None, None, Some(error.as_str())),
        None => (None, None, None),
    };
    let small = |value: Option<i32>| optional(value.map(|value| integer(value.into())));
    values.extend([
        integer(place.time.unwrap_or(place.received)),
        small(exit_code),
        small(signal),
        optional(start_error.map(text)),
        optional(known(exec.replaced_by_exec_id)),
        optional(nanoseconds(exec.elapsed).map(integer)),
        optional(nanoseconds(exec.user_time).map(integer)),
        optional(nanoseconds(exec.system_time).map(integer)),
        optional(known(exec.peak_memory_bytes)),
    ]);
}

impl<'a> Answered<'a> {
    fn values(self, values: &mut Vec<ToSqlOutput<'a>>) {
        use v1::verdict::Decision;
        let (name, reason) = match &self.verdict.decision {
            Some(Decision::Run(_)) => ("run", None),
            Some(Decision::Escalate(_)) => ("escalate", None),
            Some(Decision::Deny(deny)) => ("deny", Some(deny.reason.as_str())),
            None if self.answer.mode() == AnswerMode::Pending => ("pending", None),
            None => ("none", None),
        };
        let mode = match self.answer.mode() {
            AnswerMode::Monitored => Some("monitored"),
            AnswerMode::Pending => Some("pending"),
            AnswerMode::Enforced | AnswerMode::Unspecified => None,
        };
        let set = |words: &'a str| optional((!words.is_empty()).then(|| text(words)));
        values.extend([
            integer(self.count),
            integer(self.received),
            text(name),
            optional(reason.map(text)),
            text(&self.verdict.reason_code),
            text(&self.verdict.rule),
            text(&self.verdict.policy_revision),
            optional(mode.map(text)),
            set(&self.answer.approval_id),
            set(&self.answer.decided_by),
        ]);
    }
}

fn text(text: &str) -> ToSqlOutput<'_> {
    ToSqlOutput::Borrowed(ValueRef::Text(text.as_bytes()))
}

fn blob(bytes: &[u8]) -> ToSqlOutput<'_> {
    ToSqlOutput::Borrowed(ValueRef::Blob(bytes))
}

fn owned(text: String) -> ToSqlOutput<'static> {
    ToSqlOutput::Owned(Value::Text(text))
}

fn integer(value: i64) -> ToSqlOutput<'static> {
    ToSqlOutput::Owned(Value::Integer(value))
}

/// A number of which 0 says that there is none.
fn known(value: u64) -> Option<ToSqlOutput<'static>> {
    (value != 0).then(|| integer(number(value)))
}

fn optional(value: Option<ToSqlOutput<'_>>) -> ToSqlOutput<'_> {
    value.unwrap_or(ToSqlOutput::Borrowed(ValueRef::Null))
}
