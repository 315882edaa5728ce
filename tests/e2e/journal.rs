//! Events that outlive their gate: kills, services that aren't there, disks that are full or broken.

use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::gate::{Exec, Gate, verdicts};
use crate::machine::{Shell, in_both_shells, in_shell};
use crate::process::wait_until;

in_both_shells! {
    what_a_killed_gate_had_not_delivered_the_next_delivers,
    what_a_service_did_not_take_the_next_gate_delivers,
}

const RULES: &str = "fallback(\"run\")";

fn with_journal(gate: Gate) -> Gate {
    let journal = gate.path("journal");
    let journal = journal.to_str().expect("text").to_owned();
    gate.option(["--journal", &journal])
}

fn files(directory: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(directory).expect("a directory");
    entries
        .map(|entry| entry.expect("an entry").path())
        .collect()
}

/// Each session's end, once.
fn ends(gate: &Gate) -> Vec<String> {
    let query = "SELECT coalesce(end_reason, 'none') FROM sessions ORDER BY rowid";
    rows(gate, query)
}

/// Sessions whose events aren't one unbroken history from its beginning to its end. The first event
/// isn't sent again by contract, so that it may be missing.
fn broken(gate: &Gate) -> Vec<String> {
    rows(
        gate,
        "SELECT session_id || ': ' || count(*) || ' of ' || max(sequence) || ', end at ' ||
             coalesce((SELECT group_concat(sequence) FROM events AS e
                       WHERE e.session_id = events.session_id AND kind = 'session-ended'), 'none')
         FROM events GROUP BY session_id
         HAVING count(*) + (min(sequence) = 2) <> max(sequence) OR min(sequence) > 2
             OR max(sequence) <> (SELECT max(sequence) FROM events AS e
                 WHERE e.session_id = events.session_id AND kind = 'session-ended')",
    )
}

fn rows(gate: &Gate, query: &str) -> Vec<String> {
    let store = execgate::policyd::store::open_for_reading(&gate.path("data")).expect("a store");
    let mut statement = store.prepare(query).expect("a query");
    let rows = statement.query_map([], |row| row.get(0)).expect("rows");
    rows.map(|row| row.expect("a row")).collect()
}

fn what_a_killed_gate_had_not_delivered_the_next_delivers(shell: &Shell) {
    let gate = with_journal(Gate::with_rules_on_a_socket(shell, RULES).option([
        "--on-unavailable",
        "run",
        "--verdict-timeout",
        "500ms",
    ]));
    let mut running =
        gate.start("/bin/true; echo ready; read -r go; /bin/echo alone; echo done; read -r go");
    running.wait_for("ready");
    gate.kill_policyd();
    running.tell("go");
    running.wait_for("done");
    // The command's end is told as well.
    let journal = gate.path("journal");
    wait_until("a file", || !files(&journal).is_empty());
    std::thread::sleep(std::time::Duration::from_millis(300));
    running.signal("KILL");
    drop(running);
    assert!(!files(&journal).is_empty());

    gate.restart_policyd();
    gate.exec("/bin/echo next")
        .exits(0)
        .prints("next\n")
        .says_nothing();
    let execs = gate.audit();
    let by_name = |name: &str| {
        let mut found = execs
            .iter()
            .filter(|exec| exec.text("command_line").contains(name));
        let exec = found
            .next()
            .unwrap_or_else(|| panic!("no {name}: {execs:?}"));
        assert!(found.next().is_none(), "{execs:?}");
        exec
    };
    assert_eq!(by_name("alone").text("verdict"), "run");
    assert_eq!(by_name("alone").text("code"), "unreachable");
    assert!(!by_name("alone").text("finished_at").is_empty());
    // Nobody waited for a verdict any more.
    assert!(by_name("alone").0["answered"].is_null(), "{execs:?}");
    assert_eq!(ends(&gate), ["gate-failed", "completed"]);
    assert_eq!(broken(&gate), Vec::<String>::new());
    assert_eq!(files(&journal), Vec::<PathBuf>::new());
}

fn what_a_service_did_not_take_the_next_gate_delivers(shell: &Shell) {
    let gate = with_journal(Gate::with_rules_on_a_socket(shell, RULES).option([
        "--on-unavailable",
        "run",
        "--verdict-timeout",
        "300ms",
    ]));
    gate.kill_policyd();
    for number in 0..3 {
        gate.exec(format!("/bin/echo {number}"))
            .exits(0)
            .prints(&format!("{number}\n"));
    }
    assert_eq!(files(&gate.path("journal")).len(), 3);
    gate.restart_policyd();
    gate.exec("/bin/true").exits(0).says_nothing();
    assert_eq!(
        verdicts(&gate.audit()),
        ["true run", "echo run", "echo run", "echo run"]
    );
    assert_eq!(ends(&gate), ["completed"; 4]);
    assert_eq!(broken(&gate), Vec::<String>::new());
    assert_eq!(files(&gate.path("journal")), Vec::<PathBuf>::new());
}
