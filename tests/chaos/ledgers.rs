//! The three ledgers, side by side.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::play::{Outcome, ledger};

/// How many execs a gate decided, and how.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Verdicts {
    pub(crate) run: u64,
    pub(crate) deny: u64,
}

impl Verdicts {
    /// What a gate printed at its end.
    pub(crate) fn printed(output: &str) -> Option<Self> {
        let output: Value = serde_json::from_str(output).ok()?;
        Some(Self {
            run: output["verdicts"]["run"].as_u64()?,
            deny: output["verdicts"]["deny"].as_u64()?,
        })
    }
}

/// What doesn't agree. Empty: all does.
pub(crate) fn compare(directory: &Path, outcome: &Outcome) -> Vec<String> {
    let mut findings = outcome.findings.clone();
    let ran = ran(directory, &mut findings);
    let execs = audit(directory);
    let mut stored = BTreeMap::new();
    let mut denied: BTreeMap<&str, u64> = BTreeMap::new();
    let mut by_gate: BTreeMap<&str, Verdicts> = BTreeMap::new();
    for exec in &execs {
        let gate = exec["labels"]["gate"].as_str().unwrap_or_default();
        let verdicts = by_gate.entry(gate).or_default();
        let is_run = exec["verdict"] == "run" && exec["code"] == "verdict";
        verdicts.run += u64::from(is_run);
        if exec["verdict"] == "deny" {
            verdicts.deny += 1;
            let code = exec["code"].as_str().unwrap_or_default();
            if !outcome.may_deny.contains(&code) {
                findings.push(format!("denied, and nothing was the matter: {exec}"));
            }
            *denied.entry(code).or_default() += 1;
        }
        if let Some(id) = id(exec)
            && stored.insert(id.to_owned(), exec).is_some()
        {
            findings.push(format!("{id} is in the store twice"));
        }
    }

    // What ran had a verdict, of a rule, and it is stored, whoever was killed meanwhile.
    for id in &ran {
        match stored.get(id) {
            Some(exec) if exec["verdict"] == "run" && exec["code"] == "verdict" => {}
            Some(exec) => findings.push(format!("{id} ran, and its record says {exec}")),
            None => findings.push(format!("{id} ran, and the store knows nothing of it")),
        }
    }

    // What is stored as run did run, but for what was killed on the way.
    for (id, exec) in &stored {
        let (gate, _) = parts(id);
        if exec["verdict"] == "run" && !ran.contains(id) && !outcome.killed.contains(gate) {
            findings.push(format!("{id} is stored as run, and didn't: {exec}"));
        }
    }

    // What gates that came to their ends say that they decided.
    for (gate, decided) in &outcome.decided {
        let stored = by_gate.get(gate.as_str()).copied().unwrap_or_default();
        if stored != *decided {
            findings.push(format!("{gate} says {decided:?}, and {stored:?} is stored"));
        }
    }
    findings.extend(histories(directory));
    eprintln!(
        "{} commands ran, {} execs of {} gates are stored, {denied:?} denied, {} gates were killed",
        ran.len(),
        execs.len(),
        by_gate.len(),
        outcome.killed.len()
    );
    findings
}

/// What is stored of each command that has an id.
pub(crate) fn stored(directory: &Path) -> BTreeMap<String, Value> {
    let execs = audit(directory).into_iter();
    execs
        .filter_map(|exec| Some((id(&exec)?.to_owned(), exec)))
        .collect()
}

/// The id that a command was to write down.
fn id(exec: &Value) -> Option<&str> {
    exec["argv"][2].as_str()?.split_whitespace().nth(1)
}

/// What ran, each once.
fn ran(directory: &Path, findings: &mut Vec<String>) -> BTreeSet<String> {
    let text = std::fs::read_to_string(ledger(directory)).expect("a ledger");
    let mut ran = BTreeSet::new();
    for id in text.lines() {
        if !ran.insert(id.to_owned()) {
            findings.push(format!("{id} ran twice"));
        }
    }
    ran
}

fn parts(id: &str) -> (&str, u64) {
    let (gate, number) = id.split_once('-').expect("an id");
    (gate, number.parse().expect("a number"))
}

fn audit(directory: &Path) -> Vec<Value> {
    let output = Command::new(env!("CARGO_BIN_EXE_execgate"))
        .args(["audit", "--output", "json", "--limit", "1000000", "--data"])
        .arg(directory.join("data"))
        .output()
        .expect("the program");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    let text = String::from_utf8(output.stdout).expect("text");
    text.lines()
        .map(|line| serde_json::from_str(line).expect("JSON"))
        .collect()
}

/// Histories that aren't whole: events missing, lost, out of order, or without an end.
fn histories(directory: &Path) -> Vec<String> {
    let store = execgate::policyd::store::open_for_reading(&directory.join("data"));
    let store = store.expect("a store");
    let rows = |query: &str| -> Vec<String> {
        let mut statement = store.prepare(query).expect("a query");
        let rows = statement.query_map([], |row| row.get(0)).expect("rows");
        rows.map(|row| row.expect("a row")).collect()
    };
    let mut findings = rows("SELECT 'events are lost in ' || session_id FROM losses");
    findings.extend(rows(
        "SELECT 'no end of ' || session_id FROM sessions WHERE end_reason IS NULL",
    ));
    // The first event isn't sent again by contract, because what resumes a session says all that it said.
    findings.extend(rows(
        "SELECT 'of ' || session_id || ' there are ' || count(sequence) || ' events up to ' || max(sequence)
             || ' and the end is ' || coalesce((SELECT group_concat(sequence) FROM events AS e
                 WHERE e.session_id = events.session_id AND kind = 'session-ended'), 'missing')
         FROM events GROUP BY session_id
         HAVING count(sequence) + (min(sequence) = 2) <> max(sequence) OR min(sequence) > 2
             OR max(sequence) IS NOT (SELECT max(sequence) FROM events AS e
                 WHERE e.session_id = events.session_id AND kind = 'session-ended')",
    ));
    // What is denied because it couldn't be recorded isn't asked about.
    for (before, after) in [
        ("exec-requested", "exec-decided"),
        ("exec-decided", "exec-finished"),
    ] {
        findings.extend(rows(&format!(
            "SELECT '{after} before {before} in ' || a.session_id || ', exec ' || a.exec_id
             FROM events AS a LEFT JOIN events AS b ON a.session_id = b.session_id
                 AND a.exec_id = b.exec_id AND b.kind = '{before}' AND b.sequence < a.sequence
             WHERE a.kind = '{after}' AND b.sequence IS NULL AND NOT EXISTS (
                 SELECT 1 FROM execs WHERE execs.session_id = a.session_id
                     AND execs.exec_id = a.exec_id AND code = 'unrecorded')"
        )));
    }
    findings
}
