//! Rules as text.

use std::fmt::Write;

use super::gather::{Decided, Decision, Gathered};
use super::plan::{Command, Note, Options, Plan, Prefix, Whole};
use crate::pb::v1;
use crate::policyd::text;

/// Examples of a rule, and their longest, in bytes.
const EXAMPLES: usize = 3;
const EXAMPLE: usize = 200;
/// Longest reason, in columns.
const REASON: usize = 300;
/// Most comments on what can't be written.
const NOTES: usize = 200;

/// A string of the language, on one line, whatever is in it.
pub(super) fn quoted(words: &str) -> String {
    let mut quoted = String::with_capacity(words.len() + 2);
    quoted.push('"');
    for character in words.chars() {
        match character {
            '"' => quoted.push_str("\\\""),
            '\\' => quoted.push_str("\\\\"),
            '\n' => quoted.push_str("\\n"),
            '\t' => quoted.push_str("\\t"),
            '\r' => quoted.push_str("\\r"),
            character if text::is_plain(character) => quoted.push(character),
            character => {
                let number = u32::from(character);
                let _ = if number > 0xffff {
                    write!(quoted, "\\U{number:08x}")
                } else {
                    write!(quoted, "\\u{number:04x}")
                };
            }
        }
    }
    quoted.push('"');
    quoted
}

fn list<'w>(words: impl IntoIterator<Item = &'w str>) -> String {
    let words: Vec<_> = words.into_iter().map(quoted).collect();
    format!("[{}]", words.join(", "))
}

/// Arguments that are known to be text.
fn arguments((arguments, _): &Command<'_>) -> Option<String> {
    let words = arguments.iter().map(|word| std::str::from_utf8(word).ok());
    let words: Option<Vec<_>> = words.collect();
    Some(list(words?))
}

fn times(count: u64) -> String {
    match count {
        1 => "once".to_owned(),
        count => format!("{count} times"),
    }
}

fn total(commands: &[Command<'_>]) -> u64 {
    commands.iter().map(|(_, seen)| seen.count).sum()
}

fn seen(commands: &[Command<'_>]) -> String {
    let count = times(total(commands));
    let otherwise: u64 = commands.iter().map(|(_, seen)| seen.otherwise).sum();
    let mut seen = match commands.len() {
        1 => format!("seen {count}"),
        kinds => format!("seen {count}, as {kinds} command lines"),
    };
    if otherwise > 0 {
        let _ = write!(seen, "; decided less strictly {}", times(otherwise));
    }
    seen
}

/// What stands at the top of the file.
pub(super) fn heading(gathered: &Gathered, otherwise: u64) -> String {
    let mut text = format!(
        "# Proposed from {} execs of {} sessions. What isn't named here is denied.\n\
         # Look through it: this is what was done, which need not be what should be.\n",
        gathered.execs,
        gathered.sessions.len()
    );
    if otherwise > 0 {
        let _ = writeln!(
            text,
            "#\n# {otherwise} of these execs get another answer by these rules: they were decided differently at \
             different times,\n# or can't be written as rules. `execgate replay` with this file shows which."
        );
    }
    for (gap, count) in &gathered.gaps {
        let _ = writeln!(text, "# Not used, {}: {}.", times(*count), gap.text());
    }
    text.push('\n');
    text
}

/// The rules.
pub(super) fn body(plan: &Plan<'_>) -> String {
    let mut text = String::new();
    for prefix in &plan.prefixes {
        write_prefix(&mut text, prefix);
    }
    write_lists(&mut text, plan);
    write_decide(&mut text, plan);
    write_notes(&mut text, &plan.notes);
    text
}

fn write_prefix(text: &mut String, prefix: &Prefix<'_>) {
    let Prefix {
        words,
        decided,
        commands,
    } = prefix;
    let _ = writeln!(text, "# {}: {}", comment(words), seen(commands));
    let _ = writeln!(
        text,
        "prefix_rule(\n    pattern = {},",
        list(words.iter().copied())
    );
    let word = match &decided.decision {
        Decision::Ask(_) => "ask",
        Decision::Deny | Decision::Unmatched => "deny",
        Decision::Run | Decision::Escalate(_) => "run",
    };
    let _ = writeln!(text, "    decision = {},", quoted(word));
    for (name, value) in said(decided, "justification", words[0]) {
        let _ = writeln!(text, "    {name} = {value},");
    }
    let mut commands: Vec<_> = commands.iter().collect();
    commands.sort_by_key(|(_, seen)| std::cmp::Reverse(seen.count));
    let examples: Vec<_> = commands
        .into_iter()
        .filter_map(|command| {
            let example = arguments(command)?;
            let program = quoted(words[0]);
            let is_whole = command.0.is_empty();
            let rest = if is_whole { "]" } else { ", " };
            let example = format!(
                "[{program}{rest}{}",
                &example[if is_whole { 2 } else { 1 }..]
            );
            (example.len() <= EXAMPLE && !example.contains("\\u0000")).then_some(example)
        })
        .take(EXAMPLES)
        .collect();
    if !examples.is_empty() {
        let _ = writeln!(text, "    match = [{}],", examples.join(", "));
    }
    text.push_str(")\n\n");
}

/// What a rule says besides its decision.
fn said(decided: &Decided, reason: &'static str, program: &str) -> Vec<(&'static str, String)> {
    let mut said = Vec::new();
    if !decided.reason.trim().is_empty() {
        said.push((reason, quoted(&text::shortened(&decided.reason, REASON))));
    }
    if !decided.reason_code.trim().is_empty() {
        said.push(("reason_code", quoted(&decided.reason_code)));
    }
    let name = if decided.name.trim().is_empty() {
        program
    } else {
        &decided.name
    };
    if !name.trim().is_empty() {
        said.push(("name", quoted(&text::shortened(name, REASON))));
    }
    said
}

/// Words of a command, in a comment.
fn comment(words: &[&str]) -> String {
    text::command_line(words.iter().map(|word| word.as_bytes()), EXAMPLE)
}

fn write_lists(text: &mut String, plan: &Plan<'_>) {
    for (number, options) in plan.options.iter().enumerate() {
        let Options {
            program,
            allowed,
            commands,
        } = options;
        let _ = writeln!(
            text,
            "# {}: {}, such as",
            comment(&[program]),
            seen(commands)
        );
        for (arguments, _) in commands.iter().take(EXAMPLES) {
            let words =
                std::iter::once(program.as_bytes()).chain(arguments.iter().map(|word| &word[..]));
            let _ = writeln!(text, "#   {}", text::command_line(words, EXAMPLE));
        }
        let _ = writeln!(
            text,
            "# Too wide: prefix_rule({}): options of it are code.",
            list([*program])
        );
        let _ = writeln!(
            text,
            "OPTIONS_{number} = {}\n",
            list(allowed.iter().copied())
        );
    }
    for (number, whole) in plan.wholes.iter().enumerate() {
        let Whole {
            program,
            commands,
            why,
            decided,
        } = whole;
        let _ = writeln!(text, "# {}: {}.", comment(&[program]), seen(commands));
        if matches!(decided.decision, Decision::Run | Decision::Escalate(_)) {
            let _ = writeln!(
                text,
                "# Too wide: prefix_rule({}): {why}.",
                list([*program])
            );
        }
        if let Decision::Ask(effect) = &decided.decision {
            let _ = writeln!(
                text,
                "# Who is asked, and for how long, isn't on record{}.",
                match effect {
                    Some("escalate") =>
                        "; an approval led outside of the sandbox, which takes execution = ...",
                    _ => "",
                }
            );
        }
        let _ = writeln!(text, "COMMANDS_{number} = [");
        for command in commands {
            if let Some(arguments) = arguments(command) {
                let _ = writeln!(text, "    {arguments},  # {}", times(command.1.count));
            }
        }
        text.push_str("]\n\n");
    }
}

fn write_decide(text: &mut String, plan: &Plan<'_>) {
    if plan.options.is_empty() && plan.wholes.is_empty() && plan.guards.is_empty() {
        return;
    }
    text.push_str("def decide(exec):\n    program = exec.name or exec.program\n");
    for (number, whole) in plan.wholes.iter().enumerate() {
        let program = quoted(whole.program);
        let _ = writeln!(
            text,
            "    if program == {program} and exec.args in COMMANDS_{number}:\n        return {}",
            answer(whole.decided, whole.program)
        );
    }
    for (number, options) in plan.options.iter().enumerate() {
        let program = quoted(options.program);
        let _ = writeln!(
            text,
            "    if exec.name == {program} and only_options(exec, OPTIONS_{number}):\n        \
             return run(name = {program})"
        );
    }
    for (program, options) in &plan.guards {
        let options: Vec<_> = options.iter().map(|option| quoted(option)).collect();
        let _ = writeln!(
            text,
            "    if exec.name == {} and has_option(exec, {}):\n        \
             return deny({}, name = {})",
            quoted(program),
            options.join(", "),
            quoted("Options that run something else were not seen, and are not allowed."),
            quoted(&format!("{program} options")),
        );
    }
    text.push_str("    return None\n");
}

fn answer(decided: &Decided, program: &str) -> String {
    let (function, terms) = match &decided.decision {
        Decision::Run => ("run", Vec::new()),
        Decision::Ask(_) => ("ask", Vec::new()),
        Decision::Deny | Decision::Unmatched => ("deny", Vec::new()),
        Decision::Escalate(escalate) => ("escalate", terms(escalate)),
    };
    let arguments: Vec<_> = terms
        .into_iter()
        .chain(said(decided, "reason", program))
        .map(|(name, value)| format!("{name} = {value}"))
        .collect();
    format!("{function}({})", arguments.join(", "))
}

/// On which terms something is escalated. Rules are text, so what they said is.
fn terms(escalate: &v1::Escalate) -> Vec<(&'static str, String)> {
    use v1::escalate::Execution;
    let texts = |words: &[prost::bytes::Bytes]| {
        let words: Vec<_> = words
            .iter()
            .map(|word| String::from_utf8_lossy(word))
            .collect();
        list(words.iter().map(|word| &**word))
    };
    let mut terms = Vec::new();
    let execution = match &escalate.execution {
        Some(Execution::Permissions(permissions)) => {
            let network = match permissions.network_access() {
                v1::NetworkAccess::Allowed => "allowed",
                v1::NetworkAccess::Denied | v1::NetworkAccess::Unspecified => "denied",
            };
            format!(
                "permissions(network = {}, read = {}, write = {})",
                quoted(network),
                texts(&permissions.readable_paths),
                texts(&permissions.writable_paths)
            )
        }
        Some(Execution::Unsandboxed(_)) => quoted("unsandboxed"),
        Some(Execution::TurnDefault(_)) | None => quoted("turn_default"),
    };
    terms.push(("execution", execution));
    if escalate.unprotected_programs() == v1::UnprotectedPrograms::Allowed {
        terms.push(("unprotected", quoted("allow")));
    }
    let environment = escalate.environment.clone().unwrap_or_default();
    if !environment.kept_names.is_empty() {
        terms.push(("keep_environment", texts(&environment.kept_names)));
    }
    if !environment.unset_names.is_empty() {
        terms.push(("unset_environment", texts(&environment.unset_names)));
    }
    if !environment.set_variables.is_empty() {
        let text = |bytes: &[u8]| quoted(&String::from_utf8_lossy(bytes));
        let set: Vec<_> = environment
            .set_variables
            .iter()
            .map(|set| format!("{}: {}", text(&set.name), text(&set.value)))
            .collect();
        terms.push(("set_environment", format!("{{{}}}", set.join(", "))));
    }
    terms
}

fn write_notes(text: &mut String, notes: &[Note<'_>]) {
    if notes.is_empty() {
        return;
    }
    text.push_str("\n# Not written as rules, and so denied:\n");
    for note in notes.iter().take(NOTES) {
        let (arguments, seen) = note.command;
        let words = std::iter::once(note.program).chain(arguments.iter().map(|word| &word[..]));
        let decision = match seen.decided.decision {
            Decision::Run => "run",
            Decision::Escalate(_) => "escalate",
            Decision::Ask(_) => "ask",
            Decision::Deny | Decision::Unmatched => "deny",
        };
        let _ = writeln!(
            text,
            "#   {decision}, {}: {}\n#     {}",
            times(seen.count),
            text::command_line(words, EXAMPLE),
            note.why
        );
    }
    if notes.len() > NOTES {
        let _ = writeln!(text, "#   and {} others", notes.len() - NOTES);
    }
}
