//! What the programs say of themselves, word for word. `UPDATE=1 cargo test --test e2e help::`
//! writes it anew; what then differs is looked at like any other change.

use std::fmt::Write;
use std::process::Command;

use crate::machine::repository;
use crate::process::{self, EXECGATE};

const SNAPSHOT: &str = "tests/snapshots/help.txt";

#[test]
fn every_command_says_what_it_does() {
    let policyd = env!("CARGO_BIN_EXE_execgate-policyd");
    let commands = [
        ("execgate", EXECGATE, &[][..]),
        ("execgate exec", EXECGATE, &["exec"]),
        ("execgate shell", EXECGATE, &["shell"]),
        ("execgate check", EXECGATE, &["check"]),
        ("execgate audit", EXECGATE, &["audit"]),
        ("execgate audit verify", EXECGATE, &["audit", "verify"]),
        ("execgate audit head", EXECGATE, &["audit", "head"]),
        ("execgate replay", EXECGATE, &["replay"]),
        ("execgate suggest", EXECGATE, &["suggest"]),
        ("execgate watch", EXECGATE, &["watch"]),
        ("execgate approvals", EXECGATE, &["approvals"]),
        ("execgate approvals list", EXECGATE, &["approvals", "list"]),
        (
            "execgate approvals approve",
            EXECGATE,
            &["approvals", "approve"],
        ),
        ("execgate sessions", EXECGATE, &["sessions"]),
        (
            "execgate sessions terminate",
            EXECGATE,
            &["sessions", "terminate"],
        ),
        ("execgate token", EXECGATE, &["token"]),
        ("execgate doctor", EXECGATE, &["doctor"]),
        ("execgate completions", EXECGATE, &["completions"]),
        ("execgate-policyd", policyd, &[]),
    ];
    let mut text = String::new();
    for (name, program, arguments) in commands {
        let mut command = Command::new(program);
        let done = process::run(command.args(arguments).arg("--help").env_clear());
        done.exits(0).says_nothing();
        write!(text, "==== {name} --help\n\n{}\n", done.output()).expect("text");
    }
    let path = repository().join(SNAPSHOT);
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(&path, &text).expect("a file");
    }
    let expected = std::fs::read_to_string(&path).unwrap_or_default();
    for (number, (line, before)) in text.lines().zip(expected.lines()).enumerate() {
        let number = number + 1;
        assert_eq!(
            line, before,
            "{SNAPSHOT}:{number} differs: UPDATE=1 writes it anew"
        );
    }
    assert_eq!(
        text.len(),
        expected.len(),
        "{SNAPSHOT} differs: UPDATE=1 writes it anew"
    );
}

/// The commands below `command`, as its help lists them.
fn commands_of(command: &[String]) -> Vec<Vec<String>> {
    let help = help_of(command);
    let listed = help.lines().skip_while(|line| *line != "Commands:");
    let names = listed.skip(1).take_while(|line| line.starts_with("  "));
    names
        .filter(|line| !line.starts_with("   "))
        .filter_map(|line| line.split_whitespace().next())
        .filter(|name| *name != "help")
        .map(|name| [command, &[name.to_owned()]].concat())
        .collect()
}

fn help_of(command: &[String]) -> String {
    let mut help = Command::new(EXECGATE);
    let done = process::run(help.args(command).arg("--help").env_clear());
    done.exits(0).output()
}

#[test]
fn every_command_says_its_exit_codes() {
    let mut rest = commands_of(&[]);
    let mut seen = 0;
    while let Some(command) = rest.pop() {
        seen += 1;
        let help = help_of(&command);
        let headings: Vec<_> = help
            .lines()
            .filter(|line| line.starts_with("Exit codes"))
            .collect();
        assert_eq!(headings.len(), 1, "{command:?}: {help}");
        let shouts = |line: &&str| ["EXAMPLES", "EXIT CODES"].contains(&line.trim());
        assert_eq!(help.lines().find(shouts), None, "{command:?}");
        rest.extend(commands_of(&command));
    }
    assert!(seen > 20, "{seen}");
}

#[test]
fn versions_are_the_packages() {
    for (name, program) in [
        ("execgate", EXECGATE),
        ("execgate-policyd", env!("CARGO_BIN_EXE_execgate-policyd")),
    ] {
        let done = process::run(Command::new(program).arg("--version").env_clear());
        done.exits(0)
            .prints(&format!("{name} {}\n", env!("CARGO_PKG_VERSION")));
    }
}
