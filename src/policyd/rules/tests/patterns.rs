//! Which commands a rule is about.

use std::fmt::Write;

use proptest::prelude::*;

use super::*;

#[test]
fn a_prefix_rule_admits_what_begins_with_its_words() {
    let rules = rules(
        r#"
prefix_rule(pattern = ["git", ["status", "log"]], justification = "reads only")
prefix_rule(pattern = ["git", "push"], decision = "forbidden", justification = "Ask a maintainer.")
prefix_rule(["make"], "run", name = "builds", reason_code = "build.make")
"#,
    );
    let ruling = ask(&rules, "/usr/bin/git", &["status", "-s"]);
    assert_eq!(ruling.decision, EscalationDecision::Run);
    assert_eq!(ruling.rule, "test.rules:2");
    assert_eq!(ruling.reason, "reads only");

    let ruling = ask(&rules, "/usr/bin/git", &["push"]);
    assert_eq!(
        ruling.decision,
        EscalationDecision::Deny {
            reason: Some("Ask a maintainer.".to_owned())
        }
    );
    let ruling = ask(&rules, "/usr/bin/make", &[]);
    assert_eq!(
        (ruling.rule.as_str(), ruling.reason_code.as_str()),
        ("builds", "build.make")
    );

    for arguments in [&["statusx"][..], &[], &["-c", "status"]] {
        let ruling = ask(&rules, "/usr/bin/git", arguments);
        assert!(is_denied(&ruling), "{arguments:?}");
        assert_eq!(ruling.reason_code, CODE_NO_MATCH);
        assert_eq!(ruling.reason, "no rule matches /usr/bin/git");
        assert_eq!(ruling.winner, None);
    }
}

#[test]
fn argument_zero_proves_nothing() {
    let rules = rules(r#"prefix_rule(pattern = ["git", "status"])"#);
    assert!(is_denied(&ask_bytes(
        &rules,
        b"/tmp/evil",
        &[b"git", b"status"]
    )));
    assert!(is_denied(&ask_bytes(
        &rules,
        b"/tmp/git",
        &[b"/usr/bin/git", b"status"]
    )));
    assert!(!is_denied(&ask_bytes(
        &rules,
        b"/usr/bin/git",
        &[b"anything", b"status"]
    )));
    assert!(is_denied(&ask_bytes(&rules, b"/usr/bin/git", &[])));
    let bare = self::rules(r#"prefix_rule(pattern = ["git"])"#);
    assert!(!is_denied(&ask_bytes(&bare, b"/usr/bin/git", &[])));
}

/// `git` called `git-push` pushes, whatever its arguments begin with.
#[test]
fn what_is_called_by_another_name_is_not_escalated_by_its_words() {
    let of = |name: &str, answer: &str| {
        let rules = rules(&format!(
            "prefix_rule([[\"git\", \"/opt/git\"], \"status\"], {answer})"
        ));
        let argv = [name.as_bytes(), b"status"];
        ["/usr/bin/git", "/opt/git"].map(|file| ask_bytes(&rules, file.as_bytes(), &argv))
    };
    for answer in [
        "\"run\"",
        "\"deny\"",
        "\"ask\", execution = \"unsandboxed\"",
    ] {
        for name in ["git", "git-push", ""] {
            for ruling in of(name, answer) {
                assert_ne!(ruling.reason_code, CODE_NO_MATCH, "{name} {answer}");
            }
        }
    }
    for execution in ["unsandboxed", "turn_default"] {
        let answer = format!("\"escalate\", execution = \"{execution}\"");
        for name in ["git", "./git", "/usr/bin/git"] {
            assert!(!of(name, &answer).iter().any(is_denied), "{name}");
        }
        for name in ["git-push", "-git", "git/", ""] {
            for ruling in of(name, &answer) {
                assert!(is_denied(&ruling), "{name}");
                let why = format!(
                    " by the name of {}",
                    text::command_line([name.as_bytes()], 9)
                );
                assert!(ruling.reason.ends_with(&why), "{}", ruling.reason);
            }
        }
    }
}

#[test]
fn a_pattern_with_a_path_means_that_path_only() {
    let rules = rules(r#"prefix_rule(pattern = [["/opt/tool/bin/x", "y"], "go"])"#);
    assert!(!is_denied(&ask(&rules, "/opt/tool/bin/x", &["go"])));
    assert!(!is_denied(&ask(&rules, "/usr/bin/y", &["go"])));
    for file in [
        "/usr/bin/x",
        "/opt/tool/bin/../bin/x",
        "/opt/tool/bin//x",
        "/tmp/y",
    ] {
        assert!(is_denied(&ask(&rules, file, &["go"])), "{file}");
    }
}

#[test]
fn declared_executables_replace_the_systems_directories() {
    let rules = rules(
        r#"
prefix_rule(pattern = ["git"], match = ["git status", "/opt/git/bin/git"], not_match = ["/usr/bin/git"])
host_executable(name = "git", paths = ["/opt/git/bin/git"])
"#,
    );
    assert!(!is_denied(&ask(&rules, "/opt/git/bin/git", &[])));
    assert!(is_denied(&ask(&rules, "/usr/bin/git", &[])));
    let none = self::rules(
        "prefix_rule(pattern = [\"git\"])\nhost_executable(name = \"git\", paths = [])",
    );
    assert!(is_denied(&ask(&none, "/usr/bin/git", &[])));
}

#[test]
fn arguments_that_are_not_text_are_compared_by_their_bytes() {
    let rules = rules("prefix_rule(pattern = [\"cat\", \"\u{fffd}\"])");
    assert!(is_denied(&ask_bytes(
        &rules,
        b"/usr/bin/cat",
        &[b"cat", b"\xff"]
    )));
    assert!(!is_denied(&ask_bytes(
        &rules,
        b"/usr/bin/cat",
        &[b"cat", "\u{fffd}".as_bytes()]
    )));
    assert_eq!(
        ask_bytes(&rules, b"/usr/bin/\x1b[2J\xff", &[]).reason,
        r"no rule matches $'/usr/bin/\x1b[2J\xff'"
    );
}

#[test]
fn of_many_rules_those_that_match_are_found_each_once_in_the_files_order() {
    let mut content = String::new();
    for number in 0..1_000 {
        writeln!(content, "prefix_rule([\"tool{number}\", \"go\"])").expect("text");
        writeln!(content, "prefix_rule([\"/bin/tool{number}\"])").expect("text");
    }
    // By name and by path, and by the same name twice: one rule all the same.
    writeln!(
        content,
        "prefix_rule([[\"tool7\", \"/bin/tool7\", \"tool8\", \"tool7\"]])"
    )
    .expect("text");
    let rules = rules(&content);
    assert_eq!(rules.prefix_rule_count(), 2_001);
    for (file, arguments, lines) in [
        ("/bin/tool999", &["go"][..], &[1_999, 2_000][..]),
        ("/usr/bin/tool999", &["go"], &[1_999]),
        ("/bin/tool0", &["stay"], &[2]),
        ("/bin/tool7", &["go"], &[15, 16, 2_001]),
        ("/usr/bin/tool8", &[], &[2_001]),
        ("/usr/bin/tool1000", &["go"], &[]),
        ("/tmp/tool0", &["go"], &[]),
    ] {
        let found = ask(&rules, file, arguments).matched;
        let found: Vec<_> = found.iter().map(|opinion| &*opinion.place).collect();
        let expected: Vec<_> = lines
            .iter()
            .map(|line| format!("test.rules:{line}"))
            .collect();
        assert_eq!(found, expected, "{file} {arguments:?}");
    }
}

/// Answers as files write them, each with its place in the documented order, strictest first.
pub(super) const ANSWERS: [&str; 9] = [
    "\"deny\"",
    "\"forbidden\"",
    "\"prompt\"",
    "\"ask\", execution = \"unsandboxed\"",
    "\"run\"",
    "\"escalate\", execution = \"turn_default\"",
    "\"escalate\", execution = permissions(network = \"denied\")",
    "\"escalate\", execution = permissions(network = \"allowed\")",
    "\"escalate\", execution = \"unsandboxed\"",
];

/// Paths as a session may choose them. Most end in the name, and some of these are the system's: paths that are drawn
/// from all hardly ever are.
fn path() -> impl Strategy<Value = String> {
    let parts = "(/|\\.|\\.\\.|usr|bin|tmp|git|sbin|local|x){0,12}";
    let directory = proptest::sample::select(vec![
        "/bin",
        "/sbin",
        "/usr/bin",
        "/usr/sbin",
        "/usr/local/bin",
        "/usr/local/sbin",
        "/tmp",
        "/x/bin",
        "/usr",
        "/usr/bin/x",
        "/usr//bin",
        "/tmp/../bin",
        "bin",
        "",
    ]);
    let named = prop_oneof![
        2 => directory.prop_map(str::to_owned),
        1 => parts.prop_map(|path| format!("/{path}")),
    ];
    prop_oneof![
        3 => named.prop_map(|directory| directory + "/git"),
        1 => parts,
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_strictest_answer_wins_in_any_order(
        picks in proptest::collection::vec((0..ANSWERS.len(), 0..3_usize), 1..8),
        // Those that `decide()` can give as they stand.
        decide in proptest::option::of(proptest::sample::select(vec![0_usize, 1, 2, 4])),
    ) {
        let mut content = String::new();
        for (answer, length) in &picks {
            let arguments = ", \"x\"".repeat(*length);
            writeln!(content, "prefix_rule([\"a\"{arguments}], {})", ANSWERS[*answer]).expect("text");
        }
        if let Some(decide) = decide {
            writeln!(content, "def decide(exec):\n    return {}", ANSWERS[decide]).expect("text");
        }
        let ruling = ask(&rules(&content), "/bin/a", &["x", "x"]);
        let strictest = picks.iter().map(|(answer, _)| *answer).chain(decide).min().expect("one");
        let lone = rules(&format!("prefix_rule([\"a\"], {})", ANSWERS[strictest]));
        let expected = ask(&lone, "/bin/a", &[]);
        // Reasons name the rule that decided; what is decided is the same.
        let kind = |ruling: &Ruling| match &ruling.decision {
            EscalationDecision::Deny { .. } if ruling.ask.is_some() => format!("{:?}", ruling.ask),
            EscalationDecision::Deny { .. } => "deny".to_owned(),
            other => format!("{other:?}"),
        };
        prop_assert_eq!(kind(&ruling), kind(&expected));
        prop_assert_eq!(ruling.matched.len(), picks.len() + usize::from(decide.is_some()));
    }

    #[test]
    fn no_path_outside_the_trusted_directories_is_called_by_its_name(
        path in path(),
    ) {
        let rules = rules("prefix_rule([\"git\"])");
        let trusted = [
            "/usr/local/bin/git", "/usr/local/sbin/git", "/usr/bin/git", "/usr/sbin/git",
            "/bin/git", "/sbin/git",
        ];
        let ruling = ask(&rules, &path, &[]);
        prop_assert_eq!(!is_denied(&ruling), trusted.contains(&path.as_str()));
    }
}
