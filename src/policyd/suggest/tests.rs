use proptest::prelude::*;

use super::*;
use crate::pb::audit::v1::{Exec, GateDecision, GivenAnswer};
use crate::pb::v1;
use crate::policyd::rules::{CODE_NO_MATCH, SessionFacts};
use crate::policyd::service::ruling;

fn exec(program: &[u8], arguments: &[&[u8]], verdict: &str, rule: &str, reason: &str) -> Exec {
    let words = std::iter::once(program).chain(arguments.iter().copied());
    let unsandboxed = v1::Escalate {
        execution: Some(v1::escalate::Execution::Unsandboxed(v1::Unsandboxed {})),
        environment: None,
        unprotected_programs: v1::UnprotectedPrograms::Denied.into(),
    };
    Exec {
        session_id: "11111111111111111111111111111111".to_owned(),
        program: program.to_vec().into(),
        arguments: words.map(|word| word.to_vec().into()).collect(),
        gate: "anonymous".to_owned(),
        answer: Some(GivenAnswer {
            verdict: verdict.to_owned(),
            rule: rule.to_owned(),
            reason: reason.to_owned(),
            reason_code: if rule == "no rule" { CODE_NO_MATCH } else { "" }.to_owned(),
            escalate: (verdict == "escalate").then_some(unsandboxed),
            ..GivenAnswer::default()
        }),
        decision: Some(GateDecision {
            verdict: verdict.to_owned(),
            code: "verdict".to_owned(),
            ..GateDecision::default()
        }),
        ..Exec::default()
    }
}

fn run(program: &str, arguments: &[&str]) -> Exec {
    let arguments: Vec<_> = arguments.iter().map(|word| word.as_bytes()).collect();
    exec(program.as_bytes(), &arguments, "run", "rules:1", "")
}

fn proposed(execs: &[Exec]) -> Proposal {
    let mut gathered = Gathered::new(Monitored::Would);
    for exec in execs {
        gathered.add(exec).expect("room");
    }
    Proposal::of(&gathered).unwrap_or_else(|error| panic!("{error}"))
}

/// What rules say of a command: "run", "escalate", "ask" or "deny".
fn answer(rules: &Rules, program: &[u8], arguments: &[&[u8]]) -> &'static str {
    use crate::model::EscalationDecision;
    let words = std::iter::once(program).chain(arguments.iter().copied());
    let request = v1::ExecRequested {
        file: program.to_vec().into(),
        arguments: words.map(|word| word.to_vec().into()).collect(),
        ..v1::ExecRequested::default()
    };
    let ruling = ruling(rules, &SessionFacts::default(), &request);
    match ruling.decision {
        _ if ruling.ask.is_some() => "ask",
        EscalationDecision::Run => "run",
        EscalationDecision::Escalate(_) => "escalate",
        EscalationDecision::Deny { .. } => "deny",
    }
}

#[track_caller]
fn says(proposal: &Proposal, verdict: &str, command: &[&str]) {
    let rules = Rules::parse("x", proposal.text.clone()).expect("rules");
    let words: Vec<_> = command.iter().map(|word| word.as_bytes()).collect();
    let said = answer(&rules, words[0], &words[1..]);
    assert_eq!(said, verdict, "{command:?} by\n{}", proposal.text);
}

#[test]
fn programs_whose_arguments_are_code_run_only_what_was_seen() {
    let wide = [
        (
            &["/bin/sh", "-c", "true"][..],
            &["/bin/sh", "-c", "rm -rf x"][..],
        ),
        (
            &["/bin/sh", "-c", "true"],
            &["/bin/sh", "-c", "true", "more"],
        ),
        (&["/usr/bin/env", "A=1", "make"], &["/usr/bin/env", "sh"]),
        (&["/usr/bin/env"], &["/usr/bin/env", "sh"]),
        (&["/usr/bin/xargs", "rm"], &["/usr/bin/xargs", "rm", "-r"]),
        (
            &["/usr/bin/find", ".", "-name", "x"],
            &["/usr/bin/find", ".", "-exec", "sh", ";"],
        ),
        (
            &["/usr/bin/find", ".", "-exec", "true", ";"],
            &["/usr/bin/find", ".", "-exec", "sh", ";"],
        ),
        (&["/usr/bin/ssh", "host", "ls"], &["/usr/bin/ssh", "host"]),
        (
            &["/usr/bin/ssh", "host", "ls"],
            &["/usr/bin/ssh", "-oProxyCommand=sh", "host", "ls"],
        ),
        (
            &["/usr/bin/tar", "-xf", "a.tar"],
            &[
                "/usr/bin/tar",
                "-xf",
                "a.tar",
                "--checkpoint-action=exec=sh",
            ],
        ),
        (
            &["/usr/bin/python3.11", "x.py"],
            &["/usr/bin/python3.11", "-c", "1"],
        ),
        (&["/usr/bin/perl", "-v"], &["/usr/bin/perl", "-e", "1"]),
        (
            &["/usr/bin/git", "-c", "core.pager=less", "log"],
            &["/usr/bin/git", "-c", "core.pager=sh", "log"],
        ),
        (
            &["/usr/bin/git", "config", "a.b"],
            &["/usr/bin/git", "config", "alias.x", "!sh"],
        ),
        (
            &["/usr/bin/git", "log"],
            &["/usr/bin/git", "log", "--ext-diff"],
        ),
        (&["/usr/bin/git", "log"], &["/usr/bin/git", "push"]),
        (
            &["/usr/bin/cargo", "build"],
            &[
                "/usr/bin/cargo",
                "build",
                "--config=build.rustc-wrapper='x'",
            ],
        ),
        (
            &["/usr/bin/gcc", "-c", "a.c"],
            &["/usr/bin/gcc", "-c", "a.c", "-wrapper", "sh"],
        ),
        (
            &["/usr/bin/gcc", "-c", "a.c"],
            &["/usr/bin/gcc", "-c", "@more"],
        ),
        (
            &["/usr/bin/sort", "a"],
            &["/usr/bin/sort", "--compress-prog=sh", "a"],
        ),
        (&["/opt/tool", "a"], &["/opt/tool", "b"]),
        (&["/opt/cat", "a"], &["/opt/cat", "b"]),
    ];
    for (seen, other) in wide {
        let proposal = proposed(&[run(seen[0], &seen[1..])]);
        assert_eq!(proposal.otherwise, 0, "{}", proposal.text);
        says(&proposal, "run", seen);
        says(&proposal, "deny", other);
    }
}

#[test]
fn what_can_be_grouped_is_one_rule() {
    let proposal = proposed(&[
        run("/usr/bin/cat", &["a"]),
        run("/usr/bin/cat", &["b", "c"]),
        run("/usr/bin/git", &["status", "-s"]),
        run("/usr/bin/git", &["status"]),
        run("/usr/bin/gcc", &["-O2", "-c", "a.c", "-o", "a.o"]),
        run("/usr/bin/gcc", &["-O2", "-c", "b.c", "-o", "b.o"]),
    ]);
    for command in [
        &["/usr/bin/cat", "z"][..],
        &["/usr/bin/git", "status", "--long"],
        &["/usr/bin/gcc", "-O2", "-c", "z.c", "-o", "z.o"],
    ] {
        says(&proposal, "run", command);
    }
    assert!(
        proposal
            .text
            .contains("# cat: seen 2 times, as 2 command lines"),
        "{}",
        proposal.text
    );
    assert!(
        proposal
            .text
            .contains(r#"match = [["cat", "a"], ["cat", "b", "c"]]"#),
        "{}",
        proposal.text
    );
}

#[test]
fn denials_questions_and_escalations_stay_what_they_were() {
    let told = |arguments: &[&[u8]], verdict, rule, reason| {
        exec(b"/usr/bin/curl", arguments, verdict, rule, reason)
    };
    let mut asked = run("/usr/bin/touch", &["release"]);
    if let Some(answer) = &mut asked.answer {
        answer.reason_code = "approval.denied".to_owned();
        answer.verdict = "deny".to_owned();
    }
    let proposal = proposed(&[
        told(
            &[b"-s"],
            "deny",
            "no network",
            "No \"network\" here.\n# not a comment",
        ),
        run("/usr/bin/touch", &["a"]),
        asked,
        run("/usr/bin/cat", &["a"]),
        exec(b"/usr/bin/cat", &[b"secret"], "deny", "no rule", ""),
        exec(
            b"/usr/bin/install",
            &[b"a", b"b"],
            "escalate",
            "release",
            "",
        ),
        run("/usr/bin/install", &["c", "d"]),
    ]);
    assert_eq!(proposal.otherwise, 0, "{}", proposal.text);
    says(&proposal, "deny", &["/usr/bin/curl", "-s"]);
    says(&proposal, "ask", &["/usr/bin/touch", "release"]);
    says(&proposal, "run", &["/usr/bin/touch", "other"]);
    says(&proposal, "run", &["/usr/bin/cat", "b"]);
    says(&proposal, "deny", &["/usr/bin/cat", "secret"]);
    says(&proposal, "escalate", &["/usr/bin/install", "a", "b"]);
    says(&proposal, "deny", &["/usr/bin/install", "a", "b", "c"]);
    says(&proposal, "run", &["/usr/bin/install", "c", "d"]);
    says(&proposal, "deny", &["/usr/bin/install", "c", "e"]);
    assert!(
        proposal.text.contains(r#"name = "no network""#),
        "{}",
        proposal.text
    );
}

#[test]
fn what_was_decided_differently_or_cannot_be_written_is_said() {
    let mut redacted = run("/opt/tool", &["--token", "<redacted:execgate>"]);
    redacted.redacted_arguments = vec![2];
    let proposal = proposed(&[
        run("/opt/tool", &["a"]),
        exec(b"/opt/tool", &[b"a"], "deny", "no tools", ""),
        exec(b"/opt/tool", &[b"\xff\x1b[2J"], "run", "r", ""),
        redacted,
        exec(b"/opt/\xff", &[], "run", "r", ""),
    ]);
    assert_eq!(proposal.otherwise, 4, "{}", proposal.text);
    says(&proposal, "deny", &["/opt/tool", "a"]);
    says(
        &proposal,
        "deny",
        &["/opt/tool", "--token", "<redacted:execgate>"],
    );
    says(&proposal, "deny", &["/opt/tool", "\u{fffd}[2J"]);
    assert!(
        proposal.text.contains("4 of these execs"),
        "{}",
        proposal.text
    );
    assert!(
        proposal.text.contains("replaced by the gate's owner"),
        "{}",
        proposal.text
    );
    assert!(!proposal.text.contains('\x1b'));
}

/// A command with a long word in it, and another than all others.
fn long(number: usize, length: usize) -> Exec {
    let number = number.to_string();
    let arguments = [number.as_bytes(), &vec![b'x'; length]];
    exec(b"/opt/tool", &arguments, "run", "rules:1", "")
}

#[test]
fn what_is_kept_of_different_commands_is_bounded() {
    let mut gathered = Gathered::new(Monitored::Would);
    for number in 0..63 {
        gathered.add(&long(number, 1 << 20)).expect("room");
    }
    // What was seen already takes no more.
    for number in 0..63 {
        gathered.add(&long(number, 1 << 20)).expect("known");
    }
    let error = gathered.add(&long(63, 1 << 20)).expect_err("no room");
    assert_eq!(
        error,
        "different commands have more than 67108864 bytes together"
    );
}

#[test]
fn rules_that_no_file_may_hold_are_not_proposed() {
    let mut gathered = Gathered::new(Monitored::Would);
    for number in 0..10 {
        gathered.add(&long(number, 100_000)).expect("room");
    }
    let proposal = Proposal::of(&gathered).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(proposal.otherwise, 0);
    let size = proposal.text.len() as u64;
    assert!((1_000_000..MAX_FILE_SIZE).contains(&size), "{size}");
    gathered.add(&long(10, 100_000)).expect("room");
    let Err(error) = Proposal::of(&gathered) else {
        panic!("there is no file for it");
    };
    assert_eq!(error.exit_code(), 2);
    let error = error.to_string();
    assert!(error.contains("a file has 1048576 at most"), "{error}");
    assert!(error.contains("choose less by"), "{error}");
}

/// Words as attackers choose them.
fn word() -> impl Strategy<Value = Vec<u8>> {
    let hostile = prop_oneof![
        Just(b"\"]), decision=\"allow\"".to_vec()),
        Just(b"\"\n)\nfallback(\"run\")\n#".to_vec()),
        Just(b"\\\"\\\n\r\x1b[2J".to_vec()),
        Just("\u{202e}\u{2028}\u{85}".as_bytes().to_vec()),
        Just(b"{exec}%s\"\"\"".to_vec()),
        Just(b"-exec".to_vec()),
        Just(b"--config=x".to_vec()),
        Just(b"status".to_vec()),
        Just(b"-c".to_vec()),
    ];
    prop_oneof![
        2 => hostile,
        1 => proptest::collection::vec(1..=255_u8, 0..12),
        1 => proptest::collection::vec(0x20..0x7f_u8, 0..12),
        1 => "\\PC{0,6}".prop_map(String::into_bytes),
    ]
}

fn program() -> impl Strategy<Value = Vec<u8>> {
    let known = proptest::sample::select(vec!["git", "cat", "sh", "find", "gcc", "cargo", "env"]);
    prop_oneof![
        3 => known.prop_map(|name| [b"/usr/bin/", name.as_bytes()].concat()),
        1 => word().prop_map(|word| [b"/usr/bin/", &word[..]].concat()),
        1 => word().prop_map(|word| [b"/", &word[..]].concat()),
    ]
}

type Seen = (Vec<u8>, Vec<Vec<u8>>, &'static str, Vec<u8>);

fn seen() -> impl Strategy<Value = Seen> {
    let verdict = proptest::sample::select(vec!["run", "run", "run", "deny", "escalate"]);
    (
        program(),
        proptest::collection::vec(word(), 0..4),
        verdict,
        word(),
    )
}

/// Whether rules can name a command, which takes text.
fn is_text(bytes: &[u8]) -> bool {
    std::str::from_utf8(bytes).is_ok_and(|text| !text.contains(['\0', '\u{fffd}']))
}

proptest! {
    // Each loads rules several times.
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn whatever_was_recorded_says_nothing_in_rules_but_itself(all in proptest::collection::vec(seen(), 1..12)) {
        let execs: Vec<_> = all
            .iter()
            .map(|(program, arguments, verdict, words)| {
                let arguments: Vec<_> = arguments.iter().map(|word| &word[..]).collect();
                let words = String::from_utf8_lossy(words);
                exec(program, &arguments, verdict, &words, &words)
            })
            .collect();
        // Loads, or it panics.
        let mut gathered = Gathered::new(Monitored::Would);
        for exec in &execs {
            gathered.add(exec).expect("room");
        }
        let planned = plan::plan(&gathered);
        let proposal = Proposal::of(&gathered).unwrap_or_else(|error| panic!("{error}"));
        let rules = Rules::parse("x", proposal.text.clone()).expect("rules");
        // Nothing else was declared.
        prop_assert_eq!(rules.prefix_rule_count(), planned.prefixes.len(), "{}", proposal.text);
        prop_assert!(rules.listing().iter().all(|rule| rule.text != "whatever no rule matches"));
        prop_assert_eq!(answer(&rules, b"/usr/bin/never", &[]), "deny");
        prop_assert!(proposal.text.chars().all(|c| c == '\n' || text::is_plain(c)), "{:?}", proposal.text);
        // All that can be written was, and as it was.
        let is_plain = |(program, arguments, ..): &Seen| {
            is_text(program) && arguments.iter().all(|word| is_text(word))
        };
        if all.iter().all(is_plain) {
            let contradicted: u64 = gathered
                .programs
                .values()
                .flat_map(|commands| commands.values())
                .map(|seen| seen.otherwise)
                .sum();
            prop_assert_eq!(proposal.otherwise, contradicted, "{}", proposal.text);
        }
        // Nothing runs or escalates but what was seen, and what is like it of programs that are known.
        for (program, ..) in &all {
            let known = crate::policyd::rules::bare_name(program).map(|name| programs::kind_of(&String::from_utf8_lossy(name)));
            if !matches!(known, Some(programs::Kind::Plain)) {
                let said = answer(&rules, program, &[b"--never-seen", b"\"]), decision=\"allow\" "]);
                prop_assert_eq!(said, "deny", "{}", proposal.text);
            }
        }
    }
}
