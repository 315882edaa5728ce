//! `audit`: what happened, from the event store.

use std::collections::{HashMap, HashSet};
use std::io::{IsTerminal, Write};
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use base64::Engine;
use clap::{Args, ValueEnum};
use prost::Message;
use rusqlite::{Row, ToSql};
use serde_json::{Map, Value, json};

use super::described;
use super::identity::GateIdentity;
use super::store::{StoreError, open_for_reading};
use super::text;
use crate::pb::v1;

/// The command line of `audit`.
#[derive(Debug, Clone, Args)]
#[command(
    after_long_help = "Lists commands in the order in which the policy service learnt of them. Works \
        while the service runs.\n\n\
        EXAMPLES\n\
        \x20 execgate audit --data /var/lib/execgate\n\
        \x20 execgate audit --data /var/lib/execgate --verdict deny --since 1h\n\
        \x20 execgate audit --data /var/lib/execgate --session 3f2a --tree\n\
        \x20 execgate audit --data /var/lib/execgate --gate token:ci-7 --since 7d\n\
        \x20 execgate audit --data /var/lib/execgate --code timed-out --output json | jq .program\n\n\
        EXIT CODES\n\
        \x20 0  listed, also when nothing matched\n\
        \x20 1  the store can't be read, or the list can't be written\n\
        \x20 2  there is no store there, or the command line is wrong"
)]
pub struct AuditArgs {
    /// Directory of the event store, as execgate-policyd has it.
    #[arg(long, value_name = "DIR", env = "EXECGATE_POLICYD_DATA")]
    pub data: PathBuf,

    /// Only sessions whose id begins so.
    #[arg(long, value_name = "PREFIX", value_parser = session_prefix)]
    pub session: Option<String>,

    /// Only sessions of this gate, as its credential proves it: uri:URI, dns:NAME, token:NAME,
    /// uid:NUMBER or anonymous.
    #[arg(long, value_name = "IDENTITY", value_parser = GateIdentity::parse)]
    pub gate: Option<GateIdentity>,

    /// Only what was decided so.
    #[arg(long, value_enum)]
    pub verdict: Option<AuditVerdict>,

    /// Only this decision code (verdict, timed-out, unreachable, policy-error, ...) or the rules'
    /// reason code.
    #[arg(long, value_name = "CODE")]
    pub code: Option<String>,

    /// Only this program: its name, or its path if it holds a slash.
    #[arg(long, value_name = "NAME")]
    pub program: Option<String>,

    /// Only from then on: an age such as 90s, 15m, 2h or 7d, or a time such as 2026-01-31T12:00:00Z.
    #[arg(long, value_name = "TIME", value_parser = since)]
    pub since: Option<Since>,

    /// At most so many; the latest.
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub limit: u32,

    /// Show which command started which, session by session.
    #[arg(long, conflicts_with = "output")]
    pub tree: bool,

    /// How to write the list.
    #[arg(long, value_enum, default_value_t = AuditOutput::Table)]
    pub output: AuditOutput,

    /// When to use colours.
    #[arg(long, value_enum, default_value_t = AuditColor::Auto)]
    pub color: AuditColor,
}

/// What was decided.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum AuditVerdict {
    /// To run inside the sandbox.
    Run,
    /// To run outside.
    Escalate,
    /// Refused.
    Deny,
}

/// How the list is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum AuditOutput {
    /// An aligned table, for people.
    Table,
    /// One JSON object a line.
    Json,
}

/// When colours are used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum AuditColor {
    /// On a terminal, unless `NO_COLOR` is set.
    Auto,
    /// Always.
    Always,
    /// Never.
    Never,
}

/// A point in time, as `--since` names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Since {
    /// So long ago.
    Ago(Duration),
    /// Then: nanoseconds since 1970.
    At(i64),
}

/// Why nothing could be listed.
#[derive(Debug, thiserror::Error)]
pub enum AuditError {
    /// There is no store, or it can't be opened.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The store can't be read.
    #[error("reading the event store: {source}")]
    Read {
        /// Why.
        #[from]
        source: rusqlite::Error,
    },
    /// The list can't be written.
    #[error("writing the list: {source}")]
    Write {
        /// Why.
        #[from]
        source: std::io::Error,
    },
}

impl AuditError {
    /// The program's exit code for it.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Store(StoreError::Missing { .. }) => 2,
            Self::Store(_) | Self::Read { .. } | Self::Write { .. } => 1,
        }
    }
}

fn session_prefix(text: &str) -> Result<String, String> {
    let text = text.to_ascii_lowercase();
    if text.is_empty() || text.len() > 32 || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return Err("write the beginning of a session id: up to 32 hexadecimal digits".to_owned());
    }
    Ok(text)
}

fn since(text: &str) -> Result<Since, String> {
    let wrong = || "write an age such as 15m, or a time such as 2026-01-31T12:00:00Z".to_owned();
    if let Some((number, unit)) = text
        .char_indices()
        .next_back()
        .map(|(position, unit)| (&text[..position], unit))
        && let Ok(number) = number.parse::<u64>()
    {
        let seconds = match unit {
            's' => 1,
            'm' => 60,
            'h' => 3_600,
            'd' => 86_400,
            _ => return Err(wrong()),
        };
        return number
            .checked_mul(seconds)
            .map(|seconds| Since::Ago(Duration::from_secs(seconds)))
            .ok_or_else(wrong);
    }
    let time: prost_types::Timestamp = text.parse().map_err(|_| wrong())?;
    time.seconds
        .checked_mul(1_000_000_000)
        .and_then(|seconds| seconds.checked_add(time.nanos.into()))
        .map(Since::At)
        .ok_or_else(wrong)
}

impl Since {
    fn nanoseconds(self) -> i64 {
        match self {
            Self::At(nanoseconds) => nanoseconds,
            Self::Ago(age) => SystemTime::now()
                .checked_sub(age)
                .and_then(|then| then.duration_since(SystemTime::UNIX_EPOCH).ok())
                .and_then(|since| i64::try_from(since.as_nanos()).ok())
                .unwrap_or(0),
        }
    }
}

/// Lists what happened.
///
/// # Errors
/// When there is no store, it can't be read, or the list can't be written.
pub fn run(args: &AuditArgs, out: &mut dyn Write) -> Result<(), AuditError> {
    let connection = open_for_reading(&args.data)?;
    let (conditions, values) = conditions(args);
    let (payload, decided) = match args.output {
        AuditOutput::Json => (
            "(SELECT payload FROM events
              WHERE events.session_id = e.session_id AND sequence = request_sequence)",
            // A little behind the question, as a rule.
            "CASE WHEN action = 'escalate' THEN (SELECT payload FROM events
              WHERE events.session_id = e.session_id AND sequence > request_sequence
                  AND kind = 'exec-decided' AND events.exec_id = e.exec_id
              ORDER BY sequence LIMIT 1) END",
        ),
        AuditOutput::Table => ("NULL", "NULL"),
    };
    // The latest first to find them, the earliest first to show them.
    let query = format!(
        "SELECT *, {payload} AS payload, {decided} AS decided FROM (
             SELECT execs.*, s.gate, s.hostname, s.user_name, s.started_ns, s.ended_ns,
                    s.end_reason, s.sandbox, s.enforcement, s.labels,
                    s.command_line AS session_command,
                    (SELECT lost_events FROM losses
                     WHERE losses.session_id = execs.session_id) AS lost_events
             FROM execs LEFT JOIN sessions s USING (session_id)
             WHERE {conditions}
             ORDER BY execs.received_ns DESC, exec_id DESC LIMIT ?1
         ) e ORDER BY received_ns, exec_id"
    );
    let mut statement = connection.prepare(&query)?;
    let values: Vec<&dyn ToSql> = values.iter().map(AsRef::as_ref).collect();
    let mut rows = statement.query(&values[..])?;
    match args.output {
        AuditOutput::Json => {
            while let Some(row) = rows.next()? {
                writeln!(out, "{}", text::plain_json(&json_of(row)?))?;
            }
        }
        AuditOutput::Table => {
            let mut entries = Vec::new();
            while let Some(row) = rows.next()? {
                entries.push(Entry::read(row)?);
            }
            let layout = Layout::of(args.color);
            if args.tree {
                write_tree(&entries, &layout, out)?;
            } else {
                write_table(&entries, &layout, out)?;
            }
            write_notes(args, &entries, out)?;
        }
    }
    out.flush()?;
    Ok(())
}

fn conditions(args: &AuditArgs) -> (String, Vec<Box<dyn ToSql>>) {
    let mut conditions = vec!["1".to_owned()];
    let mut values: Vec<Box<dyn ToSql>> = vec![Box::new(args.limit)];
    let mut add = |condition: &str, value: Box<dyn ToSql>| {
        values.push(value);
        conditions.push(condition.replace('?', &format!("?{}", values.len())));
    };
    if let Some(prefix) = &args.session {
        add(
            "substr(execs.session_id, 1, length(?)) = ?",
            Box::new(prefix.clone()),
        );
    }
    if let Some(gate) = &args.gate {
        add("s.gate = ?", Box::new(gate.as_str().to_owned()));
    }
    if let Some(verdict) = args.verdict {
        let name = match verdict {
            AuditVerdict::Run => "run",
            AuditVerdict::Escalate => "escalate",
            AuditVerdict::Deny => "deny",
        };
        add("coalesce(action, answer) = ?", Box::new(name));
    }
    if let Some(code) = &args.code {
        add(
            "? IN (code, reason_code, answer_reason_code)",
            Box::new(code.clone()),
        );
    }
    if let Some(program) = &args.program {
        if program.contains('/') {
            add("program = ?", Box::new(program.clone().into_bytes()));
        } else {
            add("program_name = ?", Box::new(program.clone()));
        }
    }
    if let Some(since) = args.since {
        add("execs.received_ns >= ?", Box::new(since.nanoseconds()));
    }
    (conditions.join(" AND "), values)
}

/// One exec, as far as a table shows it. Text is as it was stored: fit to show only after `text::shown`.
#[derive(Debug, Clone, Default)]
struct Entry {
    session: String,
    exec_id: i64,
    parent: Option<i64>,
    time: i64,
    command_line: Option<String>,
    action: Option<String>,
    answer: Option<String>,
    code: Option<String>,
    rule: Option<String>,
    withdrawn: Option<String>,
    finished: Option<i64>,
    exit_code: Option<i64>,
    signal: Option<i64>,
    start_error: Option<String>,
    replaced_by: Option<i64>,
    elapsed: Option<i64>,
    header: SessionHeader,
}

#[derive(Debug, Clone, Default)]
struct SessionHeader {
    gate: Option<String>,
    hostname: Option<String>,
    user: Option<String>,
    sandbox: Option<String>,
    enforcement: Option<String>,
    command: Option<String>,
    ended: Option<i64>,
    end_reason: Option<String>,
    lost_events: i64,
}

impl SessionHeader {
    /// The gate; empty where it has shown nothing.
    fn gate(&self) -> &str {
        let gate = self.gate.as_deref();
        gate.filter(|gate| *gate != GateIdentity::ANONYMOUS)
            .unwrap_or_default()
    }
}

impl Entry {
    fn read(row: &Row<'_>) -> rusqlite::Result<Self> {
        Ok(Self {
            session: row.get("session_id")?,
            exec_id: row.get("exec_id")?,
            parent: row.get("parent_exec_id")?,
            time: match row.get("requested_ns")? {
                Some(time) => time,
                None => row.get("received_ns")?,
            },
            command_line: row.get("command_line")?,
            action: row.get("action")?,
            answer: row.get("answer")?,
            code: row.get("code")?,
            rule: match row.get("rule")? {
                Some(rule) => Some(rule),
                None => row.get("answer_rule")?,
            },
            withdrawn: row.get("withdrawn")?,
            finished: row.get("finished_ns")?,
            exit_code: row.get("exit_code")?,
            signal: row.get("signal")?,
            start_error: row.get("start_error")?,
            replaced_by: row.get("replaced_by_exec_id")?,
            elapsed: row.get("elapsed_ns")?,
            header: SessionHeader {
                gate: row.get("gate")?,
                hostname: row.get("hostname")?,
                user: row.get("user_name")?,
                sandbox: row.get("sandbox")?,
                enforcement: row.get("enforcement")?,
                command: row.get("session_command")?,
                ended: row.get("ended_ns")?,
                end_reason: row.get("end_reason")?,
                lost_events: row.get::<_, Option<i64>>("lost_events")?.unwrap_or(0),
            },
        })
    }

    fn verdict(&self) -> String {
        let Some(action) = &self.action else {
            return match (&self.withdrawn, &self.answer) {
                (Some(_), _) => "withdrawn".to_owned(),
                // Sent, and the gate hasn't said yet what it did with it.
                (None, Some(answer)) => format!("{answer}?"),
                (None, None) => "?".to_owned(),
            };
        };
        match self.code.as_deref() {
            Some("verdict") | None => action.clone(),
            Some(code) => format!("{action} ({code})"),
        }
    }

    fn status(&self) -> String {
        if let Some(code) = self.exit_code {
            return format!("exit {code}");
        }
        if let Some(signal) = self.signal {
            return format!("signal {signal}");
        }
        if self.start_error.is_some() {
            return "not started".to_owned();
        }
        if let Some(exec) = self.replaced_by {
            return format!("became {exec}");
        }
        let is_going = matches!(self.action.as_deref(), Some("run" | "escalate"));
        match (self.finished, &self.withdrawn) {
            (Some(_), _) => "ended".to_owned(),
            (None, Some(reason)) => reason.clone(),
            (None, None) if is_going && self.header.ended.is_some() => "unknown".to_owned(),
            (None, None) if is_going => "running".to_owned(),
            (None, None) => "-".to_owned(),
        }
    }

    fn cells(&self) -> [String; 9] {
        let shown = |words: &str| text::shown(words.as_bytes());
        let command = self.command_line.as_deref().unwrap_or("?");
        let command = match &self.start_error {
            Some(error) => format!("{command}  [{error}]"),
            None => command.to_owned(),
        };
        [
            short_time(self.time),
            shown(self.header.gate()),
            shown(self.session.get(..8).unwrap_or(&self.session)),
            self.exec_id.cast_unsigned().to_string(),
            shown(&self.verdict()),
            shown(&self.status()),
            self.elapsed.map_or_else(|| "-".to_owned(), short_duration),
            shown(&command),
            shown(self.rule.as_deref().unwrap_or("")),
        ]
    }
}

const HEADINGS: [&str; 9] = [
    "TIME", "GATE", "SESSION", "EXEC", "VERDICT", "STATUS", "TOOK", "COMMAND", "RULE",
];
/// Left out where no gate has shown who it is.
const GATE: usize = 1;
const VERDICT: usize = 4;
const TOOK: usize = 6;
const COMMAND: usize = 7;
const RULE: usize = 8;
/// Widest gate in a table.
const GATE_WIDTH: usize = 40;
/// Widest rule name in a table.
const RULE_WIDTH: usize = 32;
/// Narrowest command in a table, however narrow the terminal.
const COMMAND_WIDTH: usize = 20;
/// Widest command where there is no terminal to say how wide.
const UNLIMITED_WIDTH: usize = 1_000;
/// Deepest level of a tree that is still indented further.
const INDENTED_LEVELS: usize = 16;

/// How a table is laid out.
#[derive(Debug, Clone, Copy)]
struct Layout {
    columns: Option<usize>,
    colors: Colors,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Colors {
    Plain,
    Ansi,
}

impl Layout {
    fn of(color: AuditColor) -> Self {
        let stdout = std::io::stdout();
        let columns = stdout
            .is_terminal()
            .then(|| terminal_size::terminal_size_of(&stdout))
            .flatten()
            .map(|(terminal_size::Width(columns), _)| usize::from(columns));
        let is_colored = match color {
            AuditColor::Always => true,
            AuditColor::Never => false,
            AuditColor::Auto => stdout.is_terminal() && std::env::var_os("NO_COLOR").is_none(),
        };
        let colors = if is_colored {
            Colors::Ansi
        } else {
            Colors::Plain
        };
        Self { columns, colors }
    }
}

fn write_table(entries: &[Entry], layout: &Layout, out: &mut dyn Write) -> std::io::Result<()> {
    let rows: Vec<_> = entries.iter().map(Entry::cells).collect();
    write_rows(&rows, layout, out)
}

fn write_rows(rows: &[[String; 9]], layout: &Layout, out: &mut dyn Write) -> std::io::Result<()> {
    let mut widths = HEADINGS.map(str::len);
    for row in rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(text::width(cell));
        }
    }
    if rows.iter().all(|row| row[GATE].is_empty()) {
        widths[GATE] = 0;
    }
    widths[GATE] = widths[GATE].min(GATE_WIDTH);
    widths[RULE] = widths[RULE].min(RULE_WIDTH);
    let columns = widths.iter().filter(|width| **width > 0).count();
    let others: usize = widths.iter().sum::<usize>() - widths[COMMAND] + 2 * (columns - 1);
    let left = layout.columns.map_or(UNLIMITED_WIDTH, |columns| {
        columns.saturating_sub(others).max(COMMAND_WIDTH)
    });
    widths[COMMAND] = widths[COMMAND].min(left);
    let headings = HEADINGS.map(str::to_owned);
    write_row(&headings, &widths, Colors::Plain, out)?;
    for row in rows {
        write_row(row, &widths, layout.colors, out)?;
    }
    Ok(())
}

fn write_row(
    row: &[String; 9],
    widths: &[usize; 9],
    colors: Colors,
    out: &mut dyn Write,
) -> std::io::Result<()> {
    let mut line = String::new();
    for (column, (cell, width)) in row.iter().zip(widths).enumerate() {
        if *width == 0 {
            continue;
        }
        if column > 0 {
            line.push_str("  ");
        }
        let cell = text::shortened(cell, *width);
        let padding = " ".repeat(width.saturating_sub(text::width(&cell)));
        if column == TOOK {
            line.push_str(&padding);
            line.push_str(&cell);
            continue;
        }
        match color_of(column, &cell).filter(|_| colors == Colors::Ansi) {
            Some(color) => {
                line.push_str(color);
                line.push_str(&cell);
                line.push_str("\x1b[0m");
            }
            None => line.push_str(&cell),
        }
        line.push_str(&padding);
    }
    writeln!(out, "{}", line.trim_end())
}

fn color_of(column: usize, cell: &str) -> Option<&'static str> {
    if column != VERDICT {
        return None;
    }
    match cell.split([' ', '?']).next() {
        Some("run") => Some("\x1b[32m"),
        Some("escalate") => Some("\x1b[33m"),
        Some("deny") => Some("\x1b[31m"),
        _ => None,
    }
}

fn write_tree(entries: &[Entry], layout: &Layout, out: &mut dyn Write) -> std::io::Result<()> {
    let mut sessions: Vec<&str> = Vec::new();
    let mut by_session: HashMap<&str, Vec<&Entry>> = HashMap::new();
    for entry in entries {
        by_session
            .entry(&entry.session)
            .or_insert_with(|| {
                sessions.push(&entry.session);
                Vec::new()
            })
            .push(entry);
    }
    for (position, session) in sessions.iter().enumerate() {
        if position > 0 {
            writeln!(out)?;
        }
        let entries = &by_session[session];
        if let Some(first) = entries.first() {
            write_header(session, &first.header, out)?;
        }
        let rows: Vec<_> = in_tree_order(entries)
            .into_iter()
            .map(|(entry, level)| {
                let mut cells = entry.cells();
                let indent = "  ".repeat(level.min(INDENTED_LEVELS));
                cells[COMMAND] = format!("{indent}{}", cells[COMMAND]);
                cells
            })
            .collect();
        write_rows(&rows, layout, out)?;
    }
    Ok(())
}

/// Each entry after the one that it descends from, with its level. What descends from none that is
/// listed, or from itself, stands at level 0.
fn in_tree_order<'e>(entries: &[&'e Entry]) -> Vec<(&'e Entry, usize)> {
    let listed: HashSet<i64> = entries.iter().map(|entry| entry.exec_id).collect();
    let mut children: HashMap<i64, Vec<&'e Entry>> = HashMap::new();
    let mut roots = Vec::new();
    for entry in entries {
        // An exec has a greater id than what it descends from; anything else isn't a tree.
        match entry
            .parent
            .filter(|parent| listed.contains(parent) && *parent < entry.exec_id)
        {
            Some(parent) => children.entry(parent).or_default().push(entry),
            None => roots.push(*entry),
        }
    }
    let mut ordered = Vec::with_capacity(entries.len());
    let mut open: Vec<(&Entry, usize)> = roots.into_iter().rev().map(|root| (root, 0)).collect();
    while let Some((entry, level)) = open.pop() {
        ordered.push((entry, level));
        if let Some(children) = children.remove(&entry.exec_id) {
            open.extend(children.into_iter().rev().map(|child| (child, level + 1)));
        }
    }
    ordered
}

fn write_header(session: &str, header: &SessionHeader, out: &mut dyn Write) -> std::io::Result<()> {
    let mut parts = vec![format!("session {session}")];
    if !header.gate().is_empty() {
        parts.push(format!("gate {}", header.gate()));
    }
    if let Some(user) = header.user.as_deref().filter(|user| !user.is_empty()) {
        parts.push(format!("user {user}"));
    }
    if let Some(hostname) = header.hostname.as_deref().filter(|name| !name.is_empty()) {
        parts.push(format!("host {hostname}"));
    }
    if let Some(sandbox) = header.sandbox.as_deref().filter(|name| !name.is_empty()) {
        let enforcement = header.enforcement.as_deref().unwrap_or("unspecified");
        parts.push(format!("sandbox {sandbox} ({enforcement})"));
    }
    parts.push(match &header.end_reason {
        Some(reason) => format!("ended ({reason})"),
        None => "going on".to_owned(),
    });
    writeln!(out, "{}", text::shown(parts.join(", ").as_bytes()))?;
    if let Some(command) = header.command.as_deref().filter(|line| !line.is_empty()) {
        writeln!(
            out,
            "$ {}",
            text::shortened(&text::shown(command.as_bytes()), 200)
        )?;
    }
    Ok(())
}

fn write_notes(args: &AuditArgs, entries: &[Entry], out: &mut dyn Write) -> std::io::Result<()> {
    if entries.is_empty() {
        writeln!(out, "nothing matches")?;
    }
    let mut told = HashSet::new();
    for entry in entries {
        if entry.header.lost_events > 0 && told.insert(&entry.session) {
            writeln!(
                out,
                "session {}: its gate lost {} events, which are not in here",
                text::shown(entry.session.as_bytes()),
                entry.header.lost_events
            )?;
        }
    }
    if entries.len() as u64 >= u64::from(args.limit) {
        writeln!(out, "the latest {}; --limit N shows more", args.limit)?;
    }
    Ok(())
}

fn timestamp(nanoseconds: i64) -> prost_types::Timestamp {
    prost_types::Timestamp {
        seconds: nanoseconds.div_euclid(1_000_000_000),
        nanos: i32::try_from(nanoseconds.rem_euclid(1_000_000_000)).unwrap_or(0),
    }
}

/// Month, day and time, UTC.
fn short_time(nanoseconds: i64) -> String {
    let text = timestamp(nanoseconds).to_string();
    text.get(5..19)
        .map_or_else(|| text.clone(), |short| short.replace('T', " "))
}

fn short_duration(nanoseconds: i64) -> String {
    let nanoseconds = nanoseconds.max(0).cast_unsigned();
    let (micros, millis) = (nanoseconds / 1_000, nanoseconds / 1_000_000);
    let seconds = millis / 1_000;
    if micros < 1_000 {
        format!("{micros}µs")
    } else if millis < 1_000 {
        format!("{millis}ms")
    } else if seconds < 60 {
        format!("{seconds}.{}s", millis % 1_000 / 100)
    } else if seconds < 3_600 {
        format!("{}m{:02}s", seconds / 60, seconds % 60)
    } else {
        format!("{}h{:02}m", seconds / 3_600, seconds % 3_600 / 60)
    }
}

fn json_of(row: &Row<'_>) -> rusqlite::Result<Value> {
    let mut object = Map::new();
    let text = |name: &str| row.get::<_, Option<String>>(name);
    let number = |name: &str| row.get::<_, Option<i64>>(name);
    // Ids have 64 bits without a sign in the contract.
    let id = |name: &str| number(name).map(|value| value.map(i64::cast_unsigned));
    let time =
        |name: &str| number(name).map(|value| value.map(|value| timestamp(value).to_string()));
    let seconds = |name: &str| {
        number(name).map(|value| {
            value.map(|value| Duration::from_nanos(value.max(0).cast_unsigned()).as_secs_f64())
        })
    };
    object.insert("session".to_owned(), json!(text("session_id")?));
    object.insert("exec_id".to_owned(), json!(id("exec_id")?));
    object.insert("parent_exec_id".to_owned(), json!(id("parent_exec_id")?));
    object.insert("requested_at".to_owned(), json!(time("requested_ns")?));
    object.insert("received_at".to_owned(), json!(time("received_ns")?));
    for name in ["program", "workdir"] {
        if let Some(bytes) = row.get::<_, Option<Vec<u8>>>(name)? {
            insert_bytes(&mut object, name, &bytes);
        }
    }
    let request = row
        .get::<_, Option<Vec<u8>>>("payload")?
        .and_then(|payload| v1::SessionRequest::decode(&payload[..]).ok())
        .and_then(|request| match request.event {
            Some(v1::session_request::Event::ExecRequested(exec)) => Some(exec),
            Some(v1::session_request::Event::ExecReused(reused)) => reused.exec,
            _ => None,
        });
    if let Some(request) = &request {
        insert_words(&mut object, "argv", &request.arguments);
        insert_words(&mut object, "environment_names", &request.environment_names);
        let executable = described::executable(request.executable.as_ref());
        object.insert("executable".to_owned(), executable);
        let workdir = described::protection(request.workdir_protection());
        object.insert("workdir_protection".to_owned(), json!(workdir));
    }
    let difference = row
        .get::<_, Option<Vec<u8>>>("decided")?
        .and_then(|payload| v1::SessionRequest::decode(&payload[..]).ok())
        .and_then(|request| match request.event {
            Some(v1::session_request::Event::ExecDecided(decided)) => decided.environment,
            _ => None,
        });
    if let Some(difference) = &difference {
        let difference = described::environment(difference);
        object.insert("environment_difference".to_owned(), difference);
    }
    for name in ["process_id", "parent_process_id", "user_id", "group_id"] {
        object.insert(name.to_owned(), json!(number(name)?));
    }
    object.insert("verdict".to_owned(), json!(text("action")?));
    for name in [
        "code",
        "reason",
        "reason_code",
        "rule",
        "policy_revision",
        "withdrawn",
    ] {
        object.insert(name.to_owned(), json!(text(name)?));
    }
    object.insert(
        "answered".to_owned(),
        json!({
            "verdict": text("answer")?,
            "reason": text("answer_reason")?,
            "reason_code": text("answer_reason_code")?,
            "rule": text("answer_rule")?,
            "policy_revision": text("answer_revision")?,
            "at": time("answered_ns")?,
            "times": number("answers")?,
        }),
    );
    object.insert("decided_at".to_owned(), json!(time("decided_ns")?));
    object.insert("waited_seconds".to_owned(), json!(seconds("waited_ns")?));
    object.insert("finished_at".to_owned(), json!(time("finished_ns")?));
    for name in ["exit_code", "signal"] {
        object.insert(name.to_owned(), json!(number(name)?));
    }
    object.insert("start_error".to_owned(), json!(text("start_error")?));
    object.insert(
        "replaced_by_exec_id".to_owned(),
        json!(id("replaced_by_exec_id")?),
    );
    for name in ["elapsed", "user_time", "system_time"] {
        object.insert(
            format!("{name}_seconds"),
            json!(seconds(&format!("{name}_ns"))?),
        );
    }
    object.insert(
        "peak_memory_bytes".to_owned(),
        json!(id("peak_memory_bytes")?),
    );
    object.insert("gate".to_owned(), json!(text("gate")?));
    object.insert("hostname".to_owned(), json!(text("hostname")?));
    object.insert("user_name".to_owned(), json!(text("user_name")?));
    let labels = text("labels")?.and_then(|labels| serde_json::from_str::<Value>(&labels).ok());
    object.insert("labels".to_owned(), json!(labels));
    Ok(Value::Object(object))
}

fn base64(bytes: &[u8]) -> String {
    base64::engine::general_purpose::STANDARD.encode(bytes)
}

/// Bytes as text, and in base64 as well where the text doesn't say exactly what they are.
fn insert_bytes(object: &mut Map<String, Value>, name: &str, bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    if matches!(text, std::borrow::Cow::Owned(_)) {
        object.insert(format!("{name}_base64"), json!(base64(bytes)));
    }
    object.insert(name.to_owned(), json!(text));
}

/// As [`insert_bytes`], for a list.
fn insert_words(object: &mut Map<String, Value>, name: &str, words: &[prost::bytes::Bytes]) {
    let texts: Vec<_> = words
        .iter()
        .map(|word| String::from_utf8_lossy(word))
        .collect();
    if texts
        .iter()
        .any(|text| matches!(text, std::borrow::Cow::Owned(_)))
    {
        let exact: Vec<_> = words.iter().map(|word| base64(word)).collect();
        object.insert(format!("{name}_base64"), json!(exact));
    }
    object.insert(name.to_owned(), json!(texts));
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::policyd::store::{Journal, Store};
    use v1::session_request::Event;

    const ONE: &str = "0123456789abcdef0123456789abcdef";
    const TWO: &str = "fedcba9876543210fedcba9876543210";

    #[derive(Debug, Parser)]
    struct Cli {
        #[command(flatten)]
        audit: AuditArgs,
    }

    struct Session {
        journal: Journal,
        sequence: u64,
    }

    impl Session {
        fn start(store: &Store, id: &str) -> Self {
            Self::start_by(store, id, &GateIdentity::anonymous())
        }

        fn start_by(store: &Store, id: &str, gate: &GateIdentity) -> Self {
            let opening = v1::SessionRequest {
                sequence: 1,
                event_time: None,
                event: Some(Event::SessionStarted(v1::SessionStarted {
                    session_id: id.to_owned(),
                    ..v1::SessionStarted::default()
                })),
            };
            Self {
                journal: Journal::begin(store, id, gate, opening),
                sequence: 1,
            }
        }

        fn tell(&mut self, event: Event) {
            self.sequence += 1;
            let request = v1::SessionRequest {
                sequence: self.sequence,
                event_time: Some(prost_types::Timestamp {
                    seconds: 1_700_000_000,
                    nanos: 0,
                }),
                event: Some(event),
            };
            self.journal.record(request, None);
        }

        fn exec(
            &mut self,
            exec_id: u64,
            parent_exec_id: u64,
            file: &[u8],
            arguments: &[&[u8]],
            action: v1::Action,
            code: v1::DecisionCode,
        ) {
            let arguments = std::iter::once(&b"zero"[..])
                .chain(arguments.iter().copied())
                .map(prost::bytes::Bytes::copy_from_slice)
                .collect();
            self.tell(Event::ExecRequested(v1::ExecRequested {
                exec_id,
                parent_exec_id,
                file: prost::bytes::Bytes::copy_from_slice(file),
                arguments,
                ..v1::ExecRequested::default()
            }));
            self.tell(Event::ExecDecided(v1::ExecDecided {
                exec_id,
                action: action.into(),
                code: code.into(),
                rule: format!("rule\x1b{exec_id}"),
                reason_code: format!("code.{exec_id}"),
                ..v1::ExecDecided::default()
            }));
        }

        fn finish(&mut self, exec_id: u64, status: v1::exec_finished::Status) {
            self.tell(Event::ExecFinished(v1::ExecFinished {
                exec_id,
                status: Some(status),
                elapsed: Some(prost_types::Duration {
                    seconds: 1,
                    nanos: 250_000_000,
                }),
                ..v1::ExecFinished::default()
            }));
        }
    }

    fn store() -> tempfile::TempDir {
        use v1::exec_finished::Status;
        use v1::{Action, DecisionCode};
        let directory = tempfile::tempdir().expect("a directory");
        let store = Store::open(directory.path()).expect("a store");
        let mut one = Session::start(&store, ONE);
        one.exec(
            1,
            0,
            b"/usr/bin/make",
            &[b"all"],
            Action::Run,
            DecisionCode::Verdict,
        );
        one.exec(
            2,
            1,
            b"/usr/bin/gcc",
            &[b"-c", b"a b.c"],
            Action::Run,
            DecisionCode::Verdict,
        );
        one.finish(2, Status::Signal(9));
        one.exec(
            3,
            0,
            b"/tmp/e\x1b[2Jvil\xff",
            &[b"\xc2\x9b31m"],
            Action::Deny,
            DecisionCode::TimedOut,
        );
        one.finish(1, Status::ExitCode(2));
        let mut two = Session::start(&store, TWO);
        two.exec(
            1,
            7,
            b"/usr/bin/git",
            &[b"push"],
            Action::Escalate,
            DecisionCode::Verdict,
        );
        two.tell(Event::EventsLost(v1::EventsLost {
            first_sequence: 4,
            last_sequence: 6,
            count: 3,
        }));
        store.close();
        directory
    }

    fn audit(directory: &std::path::Path, arguments: &[&str]) -> String {
        let line = ["audit", "--data", directory.to_str().expect("text")]
            .into_iter()
            .chain(arguments.iter().copied());
        let cli = Cli::try_parse_from(line).expect("a command line");
        let mut out = Vec::new();
        run(&cli.audit, &mut out).expect("a list");
        String::from_utf8(out).expect("text")
    }

    fn programs(directory: &std::path::Path, arguments: &[&str]) -> Vec<String> {
        let arguments = [&["--output", "json"], arguments].concat();
        audit(directory, &arguments)
            .lines()
            .map(|line| {
                let value: Value = serde_json::from_str(line).expect("JSON");
                let program = value["program"].as_str().expect("a program");
                program.rsplit('/').next().expect("a name").to_owned()
            })
            .collect()
    }

    #[test]
    fn a_table_says_what_happened() {
        let directory = store();
        let table = audit(directory.path(), &[]);
        let expected = "\
TIME            SESSION   EXEC  VERDICT           STATUS    TOOK  COMMAND                             RULE
11-14 22:13:20  01234567  1     run               exit 2    1.2s  /usr/bin/make all                   rule\\x1b1
11-14 22:13:20  01234567  2     run               signal 9  1.2s  /usr/bin/gcc -c 'a b.c'             rule\\x1b2
11-14 22:13:20  01234567  3     deny (timed-out)  -            -  $'/tmp/e\\x1b[2Jvil\\xff' $'\\xc2\\x9b31m'  rule\\x1b3
11-14 22:13:20  fedcba98  1     escalate          running      -  /usr/bin/git push                   rule\\x1b1
session fedcba9876543210fedcba9876543210: its gate lost 3 events, which are not in here
";
        let words = |text: &str| {
            text.split_whitespace()
                .map(str::to_owned)
                .collect::<Vec<_>>()
        };
        assert_eq!(words(&table), words(expected), "{table}");
        // Every row's command begins where its heading stands.
        let mut lines = table.lines();
        let column = lines
            .next()
            .expect("headings")
            .find("COMMAND")
            .expect("a heading");
        for line in lines.take(4) {
            assert_eq!(line.as_bytes()[column - 1], b' ', "{line}");
            assert_ne!(line.as_bytes()[column], b' ', "{line}");
        }
    }

    #[test]
    fn filters_narrow_it_down() {
        let directory = store();
        let path = directory.path();
        assert_eq!(programs(path, &[]).len(), 4);
        assert_eq!(programs(path, &["--session", "FEDC"]), ["git"]);
        assert_eq!(programs(path, &["--verdict", "run"]), ["make", "gcc"]);
        assert_eq!(programs(path, &["--code", "timed-out"]).len(), 1);
        assert_eq!(programs(path, &["--code", "code.2"]), ["gcc"]);
        assert_eq!(programs(path, &["--program", "gcc"]), ["gcc"]);
        assert_eq!(programs(path, &["--program", "/usr/bin/gcc"]), ["gcc"]);
        assert!(programs(path, &["--program", "/bin/gcc"]).is_empty());
        assert_eq!(programs(path, &["--since", "1h"]).len(), 4);
        assert!(programs(path, &["--since", "2200-01-01T00:00:00Z"]).is_empty());
        assert_eq!(programs(path, &["--limit", "1"]), ["git"]);
        assert!(audit(path, &["--limit", "1"]).contains("--limit N shows more"));
        assert!(audit(path, &["--program", "nothing"]).contains("nothing matches"));
    }

    #[test]
    fn json_says_exactly_what_was() {
        let directory = store();
        let line = audit(
            directory.path(),
            &["--code", "timed-out", "--output", "json"],
        );
        assert!(!line.trim_end().chars().any(char::is_control), "{line}");
        let value: Value = serde_json::from_str(&line).expect("JSON");
        assert_eq!(
            value["program_base64"],
            json!(base64(b"/tmp/e\x1b[2Jvil\xff"))
        );
        assert_eq!(value["argv"], json!(["zero", "\u{9b}31m"]));
        assert_eq!(value["verdict"], json!("deny"));
        let line = audit(directory.path(), &["--program", "gcc", "--output", "json"]);
        let value: Value = serde_json::from_str(&line).expect("JSON");
        assert_eq!(value["signal"], json!(9));
        assert_eq!(value["elapsed_seconds"], json!(1.25));
        assert_eq!(value["parent_exec_id"], json!(1));
    }

    #[test]
    fn gates_are_shown_where_they_are_known_and_can_be_asked_for() {
        let directory = tempfile::tempdir().expect("a directory");
        let store = Store::open(directory.path()).expect("a store");
        let gate = GateIdentity::parse("token:ci-7").expect("a gate");
        let mut one = Session::start_by(&store, ONE, &gate);
        let mut two = Session::start(&store, TWO);
        for (session, file) in [(&mut one, b"/usr/bin/make"), (&mut two, b"/usr/bin/true")] {
            let (run, verdict) = (v1::Action::Run, v1::DecisionCode::Verdict);
            session.exec(1, 0, file, &[], run, verdict);
        }
        store.close();

        let table = audit(directory.path(), &[]);
        assert!(table.contains("  GATE        SESSION "), "{table}");
        assert!(table.contains("  token:ci-7  01234567 "), "{table}");
        let table = audit(directory.path(), &["--gate", "anonymous"]);
        assert!(!table.contains("GATE"), "{table}");
        assert_eq!(
            programs(directory.path(), &["--gate", "anonymous"]),
            ["true"]
        );
        assert_eq!(
            programs(directory.path(), &["--gate", "token:ci-7"]),
            ["make"]
        );
        let tree = audit(directory.path(), &["--tree", "--gate", "token:ci-7"]);
        let header = format!("session {ONE}, gate token:ci-7, ");
        assert!(tree.starts_with(&header), "{tree}");
    }

    #[test]
    fn a_tree_shows_descent() {
        let directory = store();
        let tree = audit(directory.path(), &["--tree"]);
        let order: Vec<_> = [
            "session 0123",
            "/usr/bin/make all",
            "  /usr/bin/gcc",
            "/tmp/e",
            "session fedc",
            "/usr/bin/git",
        ]
        .iter()
        .map(|part| tree.find(part).unwrap_or_else(|| panic!("{part}: {tree}")))
        .collect();
        assert!(order.is_sorted(), "{tree}");
    }

    #[test]
    fn a_tree_survives_circles() {
        let entries: Vec<_> = [(1, Some(3)), (2, Some(2)), (3, Some(1)), (4, Some(3))]
            .map(|(exec_id, parent)| Entry {
                exec_id,
                parent,
                ..Entry::default()
            })
            .to_vec();
        let entries: Vec<&Entry> = entries.iter().collect();
        let order: Vec<_> = in_tree_order(&entries)
            .iter()
            .map(|(entry, level)| (entry.exec_id, *level))
            .collect();
        assert_eq!(order, [(1, 0), (3, 1), (4, 2), (2, 0)]);
    }

    #[test]
    fn a_narrow_terminal_shortens_commands_and_colours_verdicts() {
        let entry = Entry {
            command_line: Some("x".repeat(500)),
            action: Some("deny".to_owned()),
            ..Entry::default()
        };
        let layout = Layout {
            columns: Some(100),
            colors: Colors::Ansi,
        };
        let mut out = Vec::new();
        write_table(&[entry], &layout, &mut out).expect("written");
        let table = String::from_utf8(out).expect("text");
        let row = table.lines().nth(1).expect("a row");
        assert!(row.contains("\x1b[31mdeny\x1b[0m"), "{row:?}");
        assert!(row.contains('…'));
        assert!(text::width(&row.replace("\x1b[31m", "").replace("\x1b[0m", "")) <= 100);
    }

    #[test]
    fn without_a_store_it_says_so() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().to_str().expect("text");
        let cli = Cli::try_parse_from(["audit", "--data", path]).expect("a command line");
        let error = run(&cli.audit, &mut Vec::new()).expect_err("no store");
        assert_eq!(error.exit_code(), 2);
        assert!(error.to_string().starts_with("there is no event store at"));
    }

    #[test]
    fn points_in_time_are_ages_or_times() {
        assert_eq!(since("15m"), Ok(Since::Ago(Duration::from_secs(900))));
        assert_eq!(since("1970-01-01T00:00:01Z"), Ok(Since::At(1_000_000_000)));
        for wrong in [
            "",
            "m",
            "15",
            "15y",
            "é",
            "yesterday",
            "99999999999999999999d",
            "18446744073709551615d",
        ] {
            assert!(since(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn durations_are_short() {
        for (nanoseconds, text) in [
            (999, "0µs"),
            (1_500_000, "1ms"),
            (3_250_000_000, "3.2s"),
            (125_000_000_000, "2m05s"),
            (7_500_000_000_000, "2h05m"),
            (-5, "0µs"),
        ] {
            assert_eq!(short_duration(nanoseconds), text);
        }
    }
}
