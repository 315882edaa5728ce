//! What would change, grouped: a thousand equal changes are one.

use std::collections::{BTreeMap, HashMap};
use std::io::Write;

use serde_json::json;

use super::judge::{Gap, Judged, Said, Verdict};
use crate::pb::audit::v1::Exec;
use crate::policyd::rules::Rules;
use crate::policyd::text;

/// Most groups of changes that are told apart; what is beyond them is counted.
const MOST_GROUPS: usize = 10_000;
/// Examples of a group.
const EXAMPLES: usize = 3;
/// Longest command, rule and reason that are kept for a group, in bytes.
const COMMAND: usize = 400;
const WORDS: usize = 400;

/// What is the same for all changes of a group.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Change {
    program: String,
    was: Side,
    now: Side,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Side {
    verdict: String,
    rule: String,
    reason: String,
    reason_code: String,
}

impl Side {
    fn of(verdict: &Verdict) -> Self {
        let shown = |words: &str| text::shortened(&text::shown(words.as_bytes()), WORDS);
        Self {
            verdict: verdict.to_string(),
            rule: shown(&verdict.rule),
            reason: shown(&verdict.reason),
            reason_code: shown(&verdict.reason_code),
        }
    }

    fn json(&self) -> serde_json::Value {
        let words = |text: &str| (!text.is_empty()).then(|| text.to_owned());
        json!({
            "verdict": self.verdict,
            "rule": words(&self.rule),
            "reason": words(&self.reason),
            "reason_code": words(&self.reason_code),
        })
    }
}

impl std::fmt::Display for Side {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let rule = if self.rule.is_empty() {
            "no rule"
        } else {
            &self.rule
        };
        write!(formatter, "{}  {rule}", self.verdict)?;
        if !self.reason.is_empty() {
            write!(formatter, ": {}", self.reason)?;
        }
        if !self.reason_code.is_empty() {
            write!(formatter, " [{}]", self.reason_code)?;
        }
        Ok(())
    }
}

#[derive(Debug)]
struct Example {
    session: String,
    exec: u64,
    command: String,
}

#[derive(Debug)]
struct Group {
    /// Its place among groups, by when it was first seen.
    order: usize,
    count: u64,
    examples: Vec<Example>,
}

/// What is known so far.
#[derive(Debug, Default)]
pub(super) struct Report {
    unchanged: u64,
    /// Of these: by another rule, or for another reason.
    reworded: u64,
    /// Of all that were judged: with arguments that the gate's owner had replaced.
    redacted: u64,
    pairs: BTreeMap<(String, String), u64>,
    gaps: BTreeMap<Gap, u64>,
    groups: HashMap<Change, Group>,
    ungrouped: u64,
}

impl Report {
    pub(super) fn changed(&self) -> u64 {
        self.pairs.values().sum()
    }

    pub(super) fn add(&mut self, exec: &Exec, judged: Result<Judged, Gap>) {
        let Judged {
            was,
            now,
            is_changed,
        } = match judged {
            Ok(judged) => judged,
            Err(gap) => {
                *self.gaps.entry(gap).or_default() += 1;
                return;
            }
        };
        if !exec.redacted_arguments.is_empty() {
            self.redacted += 1;
        }
        if !is_changed {
            self.unchanged += 1;
            // A question's code on record is that of its answer.
            let are_questions = [&was, &now]
                .iter()
                .all(|verdict| matches!(verdict.done, Said::Ask(_)));
            if was.rule != now.rule || (!are_questions && was.reason_code != now.reason_code) {
                self.reworded += 1;
            }
            return;
        }
        let (was, now) = (Side::of(&was), Side::of(&now));
        let pair = (was.verdict.clone(), now.verdict.clone());
        *self.pairs.entry(pair).or_default() += 1;
        let program = text::command_line([&exec.program[..]], COMMAND);
        let change = Change { program, was, now };
        let order = self.groups.len();
        if order >= MOST_GROUPS && !self.groups.contains_key(&change) {
            self.ungrouped += 1;
            return;
        }
        let group = self.groups.entry(change).or_insert(Group {
            order,
            count: 0,
            examples: Vec::new(),
        });
        group.count += 1;
        if group.examples.len() < EXAMPLES {
            let words = std::iter::once(&exec.program).chain(exec.arguments.iter().skip(1));
            let command = text::command_line(words.map(|word| &word[..]), COMMAND);
            if group
                .examples
                .iter()
                .all(|example| example.command != command)
            {
                group.examples.push(Example {
                    session: exec.session_id.clone(),
                    exec: exec.exec_id,
                    command,
                });
            }
        }
    }

    fn judged(&self) -> u64 {
        self.unchanged + self.changed()
    }

    fn not_judged(&self) -> u64 {
        self.gaps.values().sum()
    }

    /// The most frequent first.
    fn ordered(&self) -> Vec<(&Change, &Group)> {
        let mut groups: Vec<_> = self.groups.iter().collect();
        groups.sort_by_key(|(_, group)| (std::cmp::Reverse(group.count), group.order));
        groups
    }

    pub(super) fn write_text(&self, rules: &Rules, out: &mut dyn Write) -> std::io::Result<()> {
        for (change, group) in self.ordered() {
            let (was, now) = (&change.was, &change.now);
            writeln!(
                out,
                "{} of {}: {} -> {}",
                counted(group.count),
                change.program,
                was.verdict,
                now.verdict
            )?;
            writeln!(out, "  was   {was}")?;
            writeln!(out, "  now   {now}")?;
            for example in &group.examples {
                let session = example.session.get(..8).unwrap_or(&example.session);
                let session = text::shown(session.as_bytes());
                writeln!(out, "  {session} {}  {}", example.exec, example.command)?;
            }
            writeln!(out)?;
        }
        if self.ungrouped > 0 {
            let count = counted(self.ungrouped);
            writeln!(
                out,
                "{count} would change in other ways, too many to list\n"
            )?;
        }
        writeln!(
            out,
            "{}: {} unchanged, {} changed, {} not judged; revision {}",
            counted(self.judged() + self.not_judged()),
            self.unchanged,
            self.changed(),
            self.not_judged(),
            rules.revision()
        )?;
        for ((was, now), count) in &self.pairs {
            writeln!(out, "  {count:>9}  changed: {was} -> {now}")?;
        }
        if self.reworded > 0 {
            let count = self.reworded;
            writeln!(
                out,
                "  {count:>9}  unchanged, by another rule or reason code"
            )?;
        }
        if self.redacted > 0 {
            let count = self.redacted;
            let what = "judged as the service saw it: parts of arguments were replaced by the gate's owner";
            writeln!(out, "  {count:>9}  {what}")?;
        }
        for (gap, count) in &self.gaps {
            writeln!(out, "  {count:>9}  not judged: {}", gap.text())?;
        }
        Ok(())
    }

    pub(super) fn write_json(&self, rules: &Rules, out: &mut dyn Write) -> std::io::Result<()> {
        let pairs: Vec<_> = self
            .pairs
            .iter()
            .map(|((was, now), count)| json!({"was": was, "now": now, "count": count}))
            .collect();
        let gaps: Vec<_> = self
            .gaps
            .iter()
            .map(|(gap, count)| json!({"why": gap.name(), "text": gap.text(), "count": count}))
            .collect();
        let changes: Vec<_> = self
            .ordered()
            .into_iter()
            .map(|(change, group)| {
                let examples: Vec<_> = group
                    .examples
                    .iter()
                    .map(|example| {
                        json!({
                            "session": example.session,
                            "exec_id": example.exec,
                            "command_line": example.command,
                        })
                    })
                    .collect();
                json!({
                    "count": group.count,
                    "program": change.program,
                    "was": change.was.json(),
                    "now": change.now.json(),
                    "examples": examples,
                })
            })
            .collect();
        let report = json!({
            "policy_revision": rules.revision(),
            "execs": self.judged() + self.not_judged(),
            "unchanged": self.unchanged,
            "unchanged_by_another_rule": self.reworded,
            "changed": self.changed(),
            "not_judged": self.not_judged(),
            "redacted": self.redacted,
            "changed_verdicts": pairs,
            "not_judged_because": gaps,
            "changes": changes,
            "changes_not_listed": self.ungrouped,
        });
        writeln!(out, "{}", text::plain_json(&report))
    }
}

fn counted(count: u64) -> String {
    match count {
        1 => "1 exec".to_owned(),
        count => format!("{count} execs"),
    }
}
