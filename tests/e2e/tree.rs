//! The audit: every exec once, with all that is known of it, and the tree that they form.

use std::collections::HashSet;

use crate::gate::{Exec, Gate, verdicts};
use crate::machine::{Shell, in_both_shells};

const RULES: &str = r#"
prefix_rule(["uname"], "escalate", name = "kernel", reason_code = "host.kernel")
prefix_rule(["date"], "deny", name = "clock")
def decide(exec):
    if exec.name == "id" and exec.labels.get("stage") == "release":
        return deny("not in a release", name = "labelled")
    return None
fallback("run")
"#;

in_both_shells! {
    execs_form_a_tree,
    an_exec_has_what_was_asked_decided_and_done,
    labels_decide_and_are_recorded,
    the_audit_is_filtered,
    what_ends_with_its_session_is_told,
}

fn execs_form_a_tree(shell: &Shell) {
    let gate = Gate::with_rules(shell, RULES);
    let name = shell
        .path
        .file_name()
        .expect("a name")
        .to_str()
        .expect("text");
    // The patched shells come first in PATH, so that a script's own scripts are gated as well.
    let script = format!(
        "{name} -c '/bin/true; {name} -c \"uname; :\"; date; :' 2>/dev/null; exec /bin/echo last"
    );
    gate.exec(script).exits(0).prints("Linux\nlast\n");
    let execs = gate.audit();
    let outer = format!("{name} run");
    assert_eq!(
        verdicts(&execs),
        [
            &outer,
            "true run",
            &outer,
            "uname escalate",
            "date deny",
            "echo run"
        ]
    );
    let id = |exec: &Exec| exec.number("exec_id");
    let parents: Vec<_> = execs
        .iter()
        .map(|exec| exec.number("parent_exec_id"))
        .collect();
    let (first, inner) = (id(&execs[0]), id(&execs[2]));
    assert_eq!(parents, [None, first, first, inner, first, None]);
    let ids: HashSet<_> = execs.iter().map(id).collect();
    assert_eq!(ids.len(), execs.len());
    // The first command's process is the shell's child, and what replaced the shell is the shell.
    assert_eq!(
        execs[0].number("parent_process_id"),
        execs[5].number("process_id")
    );
}

fn an_exec_has_what_was_asked_decided_and_done(shell: &Shell) {
    let gate = Gate::with_rules(shell, RULES);
    gate.exec("cd /; uname -s; sh -c 'exit 5'").exits(5);
    let execs = gate.audit();
    let uname = &execs[0];
    assert_eq!(uname.0["argv"], serde_json::json!(["uname", "-s"]));
    for (field, value) in [
        ("verdict", "escalate"),
        ("code", "verdict"),
        ("rule", "kernel"),
        ("reason_code", "host.kernel"),
        ("workdir", "/"),
    ] {
        assert_eq!(uname.text(field), value, "{uname:?}");
    }
    assert_eq!(uname.0["answered"]["times"], 1);
    assert_eq!(uname.text("session").len(), 32);
    assert_eq!(uname.number("exit_code"), Some(0));
    let sh = &execs[1];
    // Told since Linux 6.15.
    assert!(matches!(sh.number("exit_code"), None | Some(5)), "{sh:?}");
    assert!(!sh.text("finished_at").is_empty(), "{sh:?}");
    let names = sh.0["environment_names"].as_array().expect("names");
    assert!(
        names.contains(&"HOME".into()) && !names.contains(&"EXEC_WRAPPER".into()),
        "{sh:?}"
    );
}

fn labels_decide_and_are_recorded(shell: &Shell) {
    let gate = Gate::with_rules(shell, RULES);
    gate.exec("id -u >/dev/null").exits(0);
    let gate = gate.option(["--label", "stage=release", "--label", "job=4=2"]);
    gate.exec("id -u")
        .exits(1)
        .says("Execution denied: not in a release\n");
    let execs = gate.audit();
    assert_eq!(execs[0].0["labels"], serde_json::json!({}));
    assert_eq!(
        execs[1].0["labels"],
        serde_json::json!({"stage": "release", "job": "4=2"})
    );
    assert_eq!(execs[1].text("rule"), "labelled");
}

fn the_audit_is_filtered(shell: &Shell) {
    let gate = Gate::with_rules(shell, RULES);
    gate.exec("uname; date; /bin/true").exits(0);
    gate.exec("/bin/true; /bin/pwd; date").exits(1);
    let all = gate.list(&[]);
    let session = all[5].text("session").to_owned();
    let (runs, escalated, denied) = ("true run", "uname escalate", "date deny");
    let found: [(&[&str], &[&str]); 13] = [
        (&["--verdict", "deny"], &[denied, denied]),
        (&["--verdict", "escalate"], &[escalated]),
        (&["--verdict", "run"], &[runs, runs, "pwd run"]),
        (&["--program", "true"], &[runs, runs]),
        (&["--program", "/bin/true"], &[runs, runs]),
        (&["--program", "/true"], &[]),
        (&["--code", "host.kernel"], &[escalated]),
        (&["--code", "timed-out"], &[]),
        (
            &["--since", "1h"],
            &[escalated, denied, runs, runs, "pwd run", denied],
        ),
        (&["--since", "2200-01-01T00:00:00Z"], &[]),
        (&["--session", &session], &[runs, "pwd run", denied]),
        (
            &["--session", &session[..8], "--verdict", "deny"],
            &[denied],
        ),
        (
            &["--session", &session[..8], "--verdict", "run"],
            &[runs, "pwd run"],
        ),
    ];
    for (options, execs) in found {
        assert_eq!(verdicts(&gate.list(options)), execs, "{options:?}");
    }
    let mut audit = std::process::Command::new(crate::process::EXECGATE);
    audit
        .args(["audit", "--limit", "1", "--data"])
        .arg(gate.path("data"));
    let table = crate::process::run(&mut audit);
    assert_eq!(
        table
            .exits(0)
            .output()
            .lines()
            .filter(|line| line.contains("deny"))
            .count(),
        1,
        "{table}"
    );
    // The last, and no other.
    assert!(!table.output().contains("pwd"), "{table}");
    let tree = crate::process::run(audit.args(["--tree", "--session", &session]));
    assert!(tree.exits(0).output().contains("date"), "{tree}");
    assert!(!tree.output().contains("uname"), "{tree}");
}

fn what_ends_with_its_session_is_told(shell: &Shell) {
    let gate = Gate::with_rules(shell, RULES);
    // It runs until the session's end has it ended, deaf to the request or not.
    for (trap, signal) in [("", 15), ("trap '' TERM;", 9)] {
        let script = format!(
            "trap '' HUP; /bin/sh -c \"{trap} exec /bin/sleep 987\" >/dev/null 2>&1 &
            until [ \"$(cat /proc/$!/comm)\" = sleep ]; do :; done"
        );
        gate.exec(script).exits(0);
        let execs = gate.audit();
        let ended = execs.iter().rfind(|exec| exec.name() == "sh");
        let ended = ended.expect("an exec");
        assert!(ended.0["finished_at"].is_string(), "{ended:?}");
        // Before Linux 6.15 nobody knows how.
        let told = ended.number("signal");
        assert!(told.is_none_or(|told| told == signal), "{ended:?}");
    }
}
