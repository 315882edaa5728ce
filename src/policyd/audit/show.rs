//! Execs for people: a table, or the tree of what started what.

use std::collections::{HashMap, HashSet};
use std::io::{IsTerminal, Write};

use super::AuditColor;
use crate::pb::audit::v1::{AnswerMode, Exec, Session, ending};
use crate::policyd::identity::GateIdentity;
use crate::policyd::text;

/// Whether the answer was only recorded, and the gate was told to run the command.
pub(in crate::policyd) fn is_monitored(exec: &Exec) -> bool {
    exec.answer
        .as_ref()
        .is_some_and(|answer| answer.mode() == AnswerMode::Monitored)
}

/// A gate's name; empty where it has shown nothing.
fn gate_name(gate: &str) -> &str {
    if gate == GateIdentity::ANONYMOUS {
        ""
    } else {
        gate
    }
}

/// What was decided, and why if not by a verdict; with `?` while the gate hasn't said what it did.
pub(crate) fn verdict(exec: &Exec) -> String {
    let answer = exec.answer.as_ref();
    let Some(decision) = &exec.decision else {
        return match answer {
            _ if !exec.withdrawal_reason.is_empty() => "withdrawn".to_owned(),
            Some(_) if is_monitored(exec) => "run?".to_owned(),
            Some(answer) if answer.mode() == AnswerMode::Pending => {
                format!("pending ({})", answer.approval_id)
            }
            Some(answer) => format!("{}?", answer.verdict),
            None => "?".to_owned(),
        };
    };
    let verdict = &decision.verdict;
    match decision.code.as_str() {
        "verdict" | "" => match answer {
            Some(answer) if is_monitored(exec) => format!("{verdict} (would {})", answer.verdict),
            Some(answer) if !answer.decided_by.is_empty() => {
                format!("{verdict} ({})", answer.decided_by)
            }
            _ => verdict.clone(),
        },
        code => format!("{verdict} ({code})"),
    }
}

fn status(exec: &Exec) -> String {
    let status = exec.ending.as_ref().map(|ending| &ending.status);
    let acted = exec.decision.as_ref().map(|decision| &*decision.verdict);
    let is_going = matches!(acted, Some("run" | "escalate"));
    match status {
        Some(Some(ending::Status::ExitCode(code))) => format!("exit {code}"),
        Some(Some(ending::Status::Signal(signal))) => format!("signal {signal}"),
        Some(Some(ending::Status::StartError(_))) => "not started".to_owned(),
        Some(Some(ending::Status::ReplacedByExecId(exec))) => format!("became {exec}"),
        Some(None) => "ended".to_owned(),
        None if !exec.withdrawal_reason.is_empty() => exec.withdrawal_reason.clone(),
        None if is_going && exec.session_end_time.is_some() => "unknown".to_owned(),
        None if is_going => "running".to_owned(),
        None => "-".to_owned(),
    }
}

/// The rule that decided; empty where none did.
pub(crate) fn rule(exec: &Exec) -> &str {
    let acted = exec.decision.as_ref().map(|decision| &*decision.rule);
    let answered = exec.answer.as_ref().map(|answer| &*answer.rule);
    acted
        .filter(|rule| !rule.is_empty())
        .or(answered)
        .unwrap_or_default()
}

/// The command line, with why it couldn't be started.
pub(crate) fn command(exec: &Exec) -> String {
    let command = if exec.command_line.is_empty() {
        "?"
    } else {
        &exec.command_line
    };
    let status = exec
        .ending
        .as_ref()
        .and_then(|ending| ending.status.as_ref());
    match status {
        Some(ending::Status::StartError(error)) => format!("{command}  [{error}]"),
        _ => command.to_owned(),
    }
}

fn cells(exec: &Exec) -> [String; 9] {
    let shown = |words: &str| text::shown(words.as_bytes());
    let elapsed = exec.ending.as_ref().and_then(|ending| ending.elapsed);
    [
        short_time(exec.request_time.or(exec.receive_time).unwrap_or_default()),
        shown(gate_name(&exec.gate)),
        shown(exec.session_id.get(..8).unwrap_or(&exec.session_id)),
        exec.exec_id.to_string(),
        shown(&verdict(exec)),
        shown(&status(exec)),
        elapsed.map_or_else(
            || "-".to_owned(),
            |elapsed| short_duration(nanoseconds(&elapsed)),
        ),
        shown(&command(exec)),
        shown(rule(exec)),
    ]
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
pub(super) struct Layout {
    pub(super) columns: Option<usize>,
    pub(super) colors: Colors,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Colors {
    Plain,
    Ansi,
}

impl Layout {
    pub(super) fn of(color: AuditColor) -> Self {
        let stdout = std::io::stdout();
        let columns = stdout
            .is_terminal()
            .then(|| terminal_size::terminal_size_of(&stdout))
            .flatten()
            .map(|(terminal_size::Width(columns), _)| usize::from(columns));
        let is_colored = match color {
            AuditColor::Always => true,
            AuditColor::Never => false,
            AuditColor::Auto => crate::logging::has_colours(&stdout),
        };
        let colors = if is_colored {
            Colors::Ansi
        } else {
            Colors::Plain
        };
        Self { columns, colors }
    }
}

pub(super) fn write_table(
    entries: &[Exec],
    layout: &Layout,
    out: &mut dyn Write,
) -> std::io::Result<()> {
    let rows: Vec<_> = entries.iter().map(cells).collect();
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

pub(super) fn color_of(column: usize, cell: &str) -> Option<&'static str> {
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

/// What is known of a session, by its id.
pub(super) type Sessions = HashMap<String, Session>;

pub(super) fn write_tree(
    entries: &[Exec],
    known: &Sessions,
    layout: &Layout,
    out: &mut dyn Write,
) -> std::io::Result<()> {
    let mut sessions: Vec<&str> = Vec::new();
    let mut by_session: HashMap<&str, Vec<&Exec>> = HashMap::new();
    for entry in entries {
        by_session
            .entry(&entry.session_id)
            .or_insert_with(|| {
                sessions.push(&entry.session_id);
                Vec::new()
            })
            .push(entry);
    }
    for (position, session) in sessions.iter().enumerate() {
        if position > 0 {
            writeln!(out)?;
        }
        let unknown = Session::default();
        write_header(session, known.get(*session).unwrap_or(&unknown), out)?;
        let rows: Vec<_> = in_tree_order(&by_session[session])
            .into_iter()
            .map(|(entry, level)| {
                let mut cells = cells(entry);
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
pub(super) fn in_tree_order<'e>(entries: &[&'e Exec]) -> Vec<(&'e Exec, usize)> {
    let listed: HashSet<u64> = entries.iter().map(|entry| entry.exec_id).collect();
    let mut children: HashMap<u64, Vec<&'e Exec>> = HashMap::new();
    let mut roots = Vec::new();
    for entry in entries {
        // An exec has a greater id than what it descends from; anything else isn't a tree.
        match Some(entry.parent_exec_id)
            .filter(|parent| listed.contains(parent) && *parent < entry.exec_id)
        {
            Some(parent) => children.entry(parent).or_default().push(entry),
            None => roots.push(*entry),
        }
    }
    let mut ordered = Vec::with_capacity(entries.len());
    let mut open: Vec<(&Exec, usize)> = roots.into_iter().rev().map(|root| (root, 0)).collect();
    while let Some((entry, level)) = open.pop() {
        ordered.push((entry, level));
        if let Some(children) = children.remove(&entry.exec_id) {
            open.extend(children.into_iter().rev().map(|child| (child, level + 1)));
        }
    }
    ordered
}

fn write_header(session: &str, known: &Session, out: &mut dyn Write) -> std::io::Result<()> {
    let mut parts = vec![format!("session {session}")];
    for (what, value) in [
        ("gate", gate_name(&known.gate)),
        ("user", &known.user_name),
        ("host", &known.hostname),
    ] {
        if !value.is_empty() {
            parts.push(format!("{what} {value}"));
        }
    }
    if !known.sandbox.is_empty() {
        parts.push(format!("sandbox {} ({})", known.sandbox, known.enforcement));
    }
    let sandbox = known.sandbox_info.clone().unwrap_or_default();
    if !sandbox.profile.is_empty() {
        parts.push(format!("profile {}", sandbox.profile));
    }
    parts.push(if known.end_reason.is_empty() {
        "going on".to_owned()
    } else {
        format!("ended ({})", known.end_reason)
    });
    if let Some(termination) = &known.termination {
        parts.push(format!("terminated by {}", termination.terminated_by));
        if !termination.reason.is_empty() {
            parts.push(format!("because: {}", termination.reason));
        }
    }
    writeln!(out, "{}", text::shown(parts.join(", ").as_bytes()))?;
    for (what, list) in [
        ("not enforced", &sandbox.unenforced_parts),
        ("not allowed", &sandbox.ungranted_parts),
    ] {
        for part in list {
            writeln!(out, "  {what}: {}", text::shown(part.as_bytes()))?;
        }
    }
    if !known.command_line.is_empty() {
        let command = text::shown(known.command_line.as_bytes());
        writeln!(out, "$ {}", text::shortened(&command, 200))?;
    }
    Ok(())
}

/// Says what a table doesn't show. `limit`: how many it could have.
pub(super) fn write_notes(
    limit: u32,
    entries: &[Exec],
    known: &Sessions,
    out: &mut dyn Write,
) -> std::io::Result<()> {
    if entries.is_empty() {
        writeln!(out, "nothing matches")?;
    }
    let mut told = HashSet::new();
    for entry in entries {
        let lost = known
            .get(&entry.session_id)
            .map_or(0, |session| session.lost_event_count);
        if lost > 0 && told.insert(&entry.session_id) {
            writeln!(
                out,
                "session {}: its gate lost {lost} events, which are not in here",
                text::shown(entry.session_id.as_bytes()),
            )?;
        }
    }
    if entries.len() as u64 >= u64::from(limit) {
        writeln!(out, "the latest {limit}; --limit N shows more")?;
    }
    Ok(())
}

/// Month, day and time, UTC.
pub(crate) fn short_time(time: prost_types::Timestamp) -> String {
    let text = time.to_string();
    text.get(5..19)
        .map_or_else(|| text.clone(), |short| short.replace('T', " "))
}

pub(super) fn short_duration(nanoseconds: i64) -> String {
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

pub(super) fn nanoseconds(duration: &prost_types::Duration) -> i64 {
    duration
        .seconds
        .saturating_mul(1_000_000_000)
        .saturating_add(duration.nanos.into())
}

/// When lines are coloured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LineColors {
    /// Never.
    Plain,
    /// Always.
    Ansi,
}

impl LineColors {
    /// As for a table on standard output.
    #[must_use]
    pub fn of(color: AuditColor) -> Self {
        match Layout::of(color).colors {
            Colors::Plain => Self::Plain,
            Colors::Ansi => Self::Ansi,
        }
    }
}

/// One exec on a line, as it happens: time, session, verdict, command and rule.
#[derive(Debug)]
pub struct Line<'a>(pub &'a Exec, pub LineColors);

/// Width of the verdict's column: most verdicts fit.
const LINE_VERDICT: usize = 8;

impl std::fmt::Display for Line<'_> {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self(exec, colors) = self;
        let shown = |words: &str| text::shown(words.as_bytes());
        let time = short_time(exec.request_time.or(exec.receive_time).unwrap_or_default());
        let time = time.split(' ').next_back().unwrap_or_default();
        let session = shown(exec.session_id.get(..8).unwrap_or(&exec.session_id));
        let verdict = shown(&verdict(exec));
        let padding = " ".repeat(LINE_VERDICT.saturating_sub(text::width(&verdict)));
        write!(formatter, "{time} {session} ")?;
        let color = color_of(VERDICT, &verdict).filter(|_| *colors == LineColors::Ansi);
        match color {
            Some(color) => write!(formatter, "{color}{verdict}\x1b[0m{padding}")?,
            None => write!(formatter, "{verdict}{padding}")?,
        }
        write!(formatter, " {}", shown(&command(exec)))?;
        let (rule, gate) = (shown(rule(exec)), shown(gate_name(&exec.gate)));
        match (rule.is_empty(), gate.is_empty()) {
            (true, true) => Ok(()),
            (false, true) => write!(formatter, "  [{rule}]"),
            (true, false) => write!(formatter, "  [{gate}]"),
            (false, false) => write!(formatter, "  [{rule}; {gate}]"),
        }
    }
}
