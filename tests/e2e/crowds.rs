//! Many execs at once, and many in a row.

use std::collections::HashSet;

use crate::gate::Gate;
use crate::machine::{Shell, in_both_shells};

const RULES: &str = r#"
def decide(exec):
    if exec.name == "echo" and int(exec.args[0]) % 2 == 0:
        return escalate()
    return run()
"#;

in_both_shells! {
    two_hundred_at_once,
    two_thousand_in_a_row,
}

fn two_hundred_at_once(shell: &Shell) {
    let gate = Gate::with_rules(shell, RULES);
    let done = gate.exec("for i in {1..200}; do /bin/echo $i & done; wait");
    let output = done.exits(0).says_nothing().output();
    let mut numbers: Vec<u32> = output
        .lines()
        .map(|line| line.parse().expect("a number"))
        .collect();
    numbers.sort_unstable();
    assert!(numbers.into_iter().eq(1..=200), "{done}");
    let execs = gate.audit();
    assert_eq!(execs.len(), 200);
    let escalated = execs
        .iter()
        .filter(|exec| exec.text("verdict") == "escalate");
    assert_eq!(escalated.count(), 100);
}

fn two_thousand_in_a_row(shell: &Shell) {
    let gate = Gate::with_rules(shell, RULES);
    gate.exec("for i in {1..2000}; do /bin/true $i; done")
        .exits(0)
        .prints("")
        .says_nothing();
    let execs = gate.audit();
    let arguments: HashSet<_> = execs
        .iter()
        .map(|exec| exec.0["argv"].to_string())
        .collect();
    assert_eq!((execs.len(), arguments.len()), (2000, 2000));
    assert!(execs.iter().all(|exec| exec.text("verdict") == "run"));
    let ended = execs
        .iter()
        .filter(|exec| !exec.text("finished_at").is_empty());
    assert_eq!(ended.count(), 2000);
}
