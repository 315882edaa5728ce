//! The environment of escalated commands: what a session chose for them that would make them run its code.

use std::process::Command;

use serde_json::json;

use crate::gate::Gate;
use crate::machine::{Shell, in_both_shells};

in_both_shells! {
    a_library_that_the_session_preloads_is_not_loaded,
    what_a_shell_would_read_or_define_first_is_taken_out,
    a_rule_keeps_sets_and_unsets_by_name_and_the_audit_says_so,
    path_is_the_gates,
}

/// A shared object that says so when it is loaded by the program; the wrapper may load it as well, inside.
const PRELOADED: &str = r#"
#define _GNU_SOURCE
#include <errno.h>
#include <stdio.h>
#include <string.h>
__attribute__((constructor)) static void loaded(void) {
    if (!strcmp(program_invocation_short_name, "uname")) {
        puts("evil");
        fflush(stdout);
    }
}
"#;

fn a_library_that_the_session_preloads_is_not_loaded(shell: &Shell) {
    for (terms, output) in [
        ("", "Linux\n"),
        ("keep_environment = [\"LD_*\"]", "evil\nLinux\n"),
    ] {
        let rules = format!(
            "def decide(exec):\n    return escalate({terms}) if exec.name == \"uname\" else run()\n"
        );
        let gate = Gate::with_rules(shell, &rules);
        std::fs::write(gate.path("work/evil.c"), PRELOADED).expect("a file");
        let compiled = Command::new("cc")
            .args(["-shared", "-fPIC", "-o", "evil.so", "evil.c"])
            .current_dir(gate.path("work"))
            .status();
        assert!(compiled.expect("a compiler").success());
        let done = gate.exec("LD_PRELOAD=$PWD/evil.so uname");
        done.exits(0).prints(output);
    }
}

fn what_a_shell_would_read_or_define_first_is_taken_out(shell: &Shell) {
    let rules =
        "def decide(exec):\n    return escalate() if exec.name in [\"sh\", \"bash\"] else run()\n";
    let gate = Gate::with_rules(shell, rules);
    std::fs::write(gate.path("work/first"), "echo evil\n").expect("a file");
    let done = gate.exec(
        "export BASH_ENV=$PWD/first ENV=$PWD/first PS4='$(echo evil)'
         /bin/bash -c 'echo one'; /bin/sh -c 'echo two'
         env 'BASH_FUNC_ls%%=() { echo evil; }' /bin/true",
    );
    done.exits(0).prints("one\ntwo\n");
    let execs = gate.audit();
    let removed = execs[0].0["environment_difference"]["removed"].as_array();
    let mut removed: Vec<_> = removed.expect("names").iter().collect();
    removed.sort_by_key(ToString::to_string);
    assert_eq!(
        removed,
        ["BASH_ENV", "ENV", "EXECGATE_LOG", "PS4"],
        "{:?}",
        execs[0]
    );
}

fn a_rule_keeps_sets_and_unsets_by_name_and_the_audit_says_so(shell: &Shell) {
    let rules = r#"
prefix_rule(
    ["env"],
    "escalate",
    keep_environment = ["EDITOR", "GIT_*"],
    set_environment = {"LANG": "C", "ADDED": "by the rule"},
    unset_environment = ["SECRET*"],
)
fallback("run")
"#;
    let gate = Gate::with_rules(shell, rules);
    let done = gate.exec(
        "export EDITOR=vi GIT_SSH=x PAGER=less SECRET_1=a LANG=de PYTHONPATH=/x MINE=1
         env | grep -E '^(EDITOR|GIT_SSH|PAGER|SECRET_1|LANG|PYTHONPATH|ADDED|MINE)=' | sort",
    );
    done.exits(0)
        .prints("ADDED=by the rule\nEDITOR=vi\nGIT_SSH=x\nLANG=C\nMINE=1\n");
    let execs = gate.audit();
    let env = execs.iter().find(|exec| exec.name() == "env").expect("it");
    let mut difference = env.0["environment_difference"].clone();
    // In the order of the environment, which is the shell's.
    for list in ["removed", "unset"] {
        let names = difference[list].as_array_mut().expect("names");
        names.sort_by_key(ToString::to_string);
    }
    assert_eq!(
        difference,
        json!({
            "removed": ["EXECGATE_LOG", "PAGER", "PYTHONPATH"],
            "reset": ["PATH"],
            "unset": ["SECRET_1"],
            "set": {"LANG": "C", "ADDED": "by the rule"},
        })
    );
}

fn path_is_the_gates(shell: &Shell) {
    let rules = "def decide(exec):\n    return escalate() if exec.name == \"sh\" else run()\n";
    let gate = Gate::with_rules(shell, rules).option(["--escalated-path", "/usr/bin:/bin"]);
    std::fs::write(gate.path("work/uname"), "#!/bin/sh\necho evil\n").expect("a file");
    gate.exec("chmod +x uname; PATH=$PWD:$PATH HOME=$PWD /bin/sh -c 'uname; echo $PATH; echo ${HOME##*/}'")
        .exits(0)
        .prints("Linux\n/usr/bin:/bin\nhome\n");
}
