use std::fmt::Write;
use std::path::Path;

use proptest::prelude::*;

use super::*;
use crate::model::{EscalationExecution, ExecId, NetworkAccess, ProcessIdentity};

fn rules(content: &str) -> Rules {
    Rules::parse("/etc/policy/test.rules", content.to_owned())
        .unwrap_or_else(|error| panic!("{error}"))
}

fn refusal(content: &str) -> String {
    Rules::parse("test.rules", content.to_owned())
        .expect_err("the file is wrong")
        .to_string()
}

fn ask_bytes(rules: &Rules, file: &[u8], argv: &[&[u8]]) -> Ruling {
    ask_in(&[b"HOME", b"LD_PRELOAD"], rules, file, argv)
}

fn ask_in(environment: &[&[u8]], rules: &Rules, file: &[u8], argv: &[&[u8]]) -> Ruling {
    let session = SessionFacts {
        labels: [("team".to_owned(), "blue".to_owned())].into(),
        user: UserFacts {
            uid: 1000,
            gid: 1000,
            name: "ada".to_owned(),
        },
        ..SessionFacts::default()
    };
    rules.evaluate(&ExecFacts {
        id: ExecId(7),
        file,
        argv: argv.to_vec(),
        workdir: b"/work",
        environment_names: environment.to_vec(),
        environment: Vec::new(),
        redacted_arguments: &[],
        executable: None,
        workdir_protection: crate::pb::v1::Protection::Unspecified,
        process: ProcessIdentity {
            pid: 10,
            parent_pid: 9,
            uid: 1000,
            gid: 1000,
        },
        parent: Some(ExecId(3)),
        session: &session,
    })
}

fn ask(rules: &Rules, file: &str, arguments: &[&str]) -> Ruling {
    let argv: Vec<&[u8]> = std::iter::once(file)
        .chain(arguments.iter().copied())
        .map(str::as_bytes)
        .collect();
    ask_bytes(rules, file.as_bytes(), &argv)
}

fn is_denied(ruling: &Ruling) -> bool {
    matches!(ruling.decision, EscalationDecision::Deny { .. })
}

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
fn a_question_says_who_is_asked_for_what_and_how_long_and_denies_where_nobody_can_be() {
    let rules = rules(
        r#"
prefix_rule(["gh", "pr"], "prompt", justification = "talks to the forge")
prefix_rule(["scp"], "ask", execution = "turn_default", asks = "the release team", within = "90s")
def decide(exec):
    if exec.name == "rsync":
        return ask("copies", asks = "ops", within = "2m", execution = "unsandboxed", name = "sync")
"#,
    );
    let ruling = ask(&rules, "/usr/bin/gh", &["pr"]);
    assert!(is_denied(&ruling));
    assert_eq!(ruling.reason_code, CODE_APPROVAL_UNAVAILABLE);
    assert_eq!(ruling.reason, "talks to the forge");
    assert_eq!(
        ruling.ask,
        Some(Ask {
            effect: Effect::Run,
            asked: None,
            within: std::time::Duration::from_secs(300),
        })
    );
    let ruling = ask(&rules, "/usr/bin/scp", &[]);
    assert_eq!(
        ruling.ask,
        Some(Ask {
            effect: Effect::Escalate(EscalationExecution::TurnDefault),
            asked: Some("the release team".to_owned()),
            within: std::time::Duration::from_secs(90),
        })
    );
    let ruling = ask(&rules, "/usr/bin/rsync", &[]);
    assert_eq!(
        (ruling.rule.as_str(), ruling.reason.as_str()),
        ("sync", "copies")
    );
    let asked = ruling.ask.expect("a question");
    assert_eq!(asked.asked.as_deref(), Some("ops"));
    assert_eq!(
        asked.effect,
        Effect::Escalate(EscalationExecution::Unsandboxed)
    );
}

#[test]
fn a_question_that_makes_no_sense_is_refused() {
    for (content, what) in [
        ("\"ask\", within = \"soon\"", "write a time"),
        ("\"ask\", within = \"0s\"", "no person is as quick"),
        ("\"ask\", within = \"25h\"", "24h at most"),
        ("\"ask\", asks = \" \"", "asks is empty"),
        ("\"run\", asks = \"ops\"", "belong to \"ask\" only"),
        ("\"deny\", within = \"1m\"", "belong to \"ask\" only"),
        ("\"ask\", execution = \"x\"", "execution is"),
    ] {
        let refusal = refusal(&format!("prefix_rule([\"make\"], {content})"));
        assert!(refusal.contains(what), "{content}: {refusal}");
    }
}

#[test]
fn escalations_say_how() {
    let rules = rules(
        r#"
P = permissions(network = "denied", read = ["/usr"], write = ["/srv/cache"])
prefix_rule(["a"], "escalate")
prefix_rule(["b"], "escalate", execution = "turn_default")
prefix_rule(["c"], "escalate", execution = P)
def decide(exec):
    if exec.name == "d":
        return escalate("because", execution = P, reason_code = "x.y", name = "d rule")
"#,
    );
    let execution = |name: &str| match ask(&rules, &format!("/bin/{name}"), &[]).decision {
        EscalationDecision::Escalate(execution) => execution,
        other => panic!("{other:?}"),
    };
    assert_eq!(execution("a"), EscalationExecution::Unsandboxed);
    assert_eq!(execution("b"), EscalationExecution::TurnDefault);
    let EscalationExecution::Permissions(permissions) = execution("c") else {
        panic!()
    };
    assert_eq!(permissions.network, NetworkAccess::Denied);
    assert_eq!(permissions.readable, [Path::new("/usr")]);
    assert_eq!(permissions.writable, [Path::new("/srv/cache")]);
    assert_eq!(
        execution("d"),
        EscalationExecution::Permissions(permissions)
    );
    let ruling = ask(&rules, "/bin/d", &[]);
    assert_eq!(
        (
            ruling.rule.as_str(),
            ruling.reason.as_str(),
            ruling.reason_code.as_str()
        ),
        ("d rule", "because", "x.y")
    );
}

#[test]
fn decide_takes_part_in_the_same_order_of_strictness() {
    let rules = rules(
        r#"
prefix_rule(["a"], "escalate")
prefix_rule(["b"], "forbidden")
def decide(exec):
    return "run"
"#,
    );
    assert_eq!(ask(&rules, "/bin/a", &[]).decision, EscalationDecision::Run);
    assert!(is_denied(&ask(&rules, "/bin/b", &[])));
    assert_eq!(ask(&rules, "/bin/c", &[]).rule, "decide");
}

#[test]
fn decide_sees_the_exec() {
    let rules = rules(
        r#"
def decide(exec):
    seen = [exec.id, exec.program, exec.name, exec.basename, exec.argv, exec.args, exec.workdir,
            exec.labels["team"], exec.user.name, exec.user.uid, exec.environment_names, exec.parent,
            exec.pid, exec.parent_pid, exec.is_exact, exec.session.id, exec.session.enforcement]
    return deny(repr(seen))
"#,
    );
    let zeros = "0".repeat(32);
    assert_eq!(
        ask(&rules, "/usr/bin/git", &["a"]).reason,
        format!(
            r#"[7, "/usr/bin/git", "git", "git", ["/usr/bin/git", "a"], ["a"], "/work", "blue", "ada", 1000, ["HOME", "LD_PRELOAD"], 3, 10, 9, True, "{zeros}", "none"]"#
        )
    );
    let ruling = ask_bytes(&rules, b"/tmp/git", &[b"git", b"\xff"]);
    assert!(
        ruling.reason.contains(r#""/tmp/git", None, "git""#),
        "{}",
        ruling.reason
    );
    assert!(ruling.reason.contains("9, False,"), "{}", ruling.reason);
}

#[test]
fn a_decide_that_fails_denies() {
    for (body, says) in [
        ("fail(\"no\")", "no"),
        ("return 3", "decide() returned 3 (int)"),
        ("return \"maybe\"", "\"maybe\" isn't known"),
        ("return exec.nothing", "nothing"),
        ("return decide(exec)", ""),
        ("return [x for x in range(1000000000)]", ""),
        ("return prefix_rule([\"a\"])", "can't be called by decide()"),
        ("return escalate(execution = \"what\")", "unsandboxed"),
    ] {
        let rules = rules(&format!(
            "prefix_rule([\"a\"])\ndef decide(exec):\n    {body}\n"
        ));
        let ruling = ask(&rules, "/bin/a", &[]);
        assert!(is_denied(&ruling), "{body}");
        assert_eq!(ruling.reason_code, CODE_DECIDE_FAILED, "{body}");
        assert_eq!(ruling.rule, "decide");
        assert!(ruling.reason.contains(says), "{body}: {}", ruling.reason);
    }
}

#[test]
fn calls_of_decide_share_nothing() {
    let what =
        refusal_or_deny("seen = []\ndef decide(exec):\n    seen.append(1)\n    return \"run\"\n");
    assert!(
        what.contains("Immutable") || what.contains("immutable"),
        "{what}"
    );
}

fn refusal_or_deny(content: &str) -> String {
    ask(&rules(content), "/bin/a", &[]).reason
}

#[test]
fn the_fallback_decides_what_nothing_matches() {
    let allowing = rules("fallback(\"run\", \"open house\")\nprefix_rule([\"a\"], \"deny\")");
    let ruling = ask(&allowing, "/tmp/x", &[]);
    assert_eq!(ruling.decision, EscalationDecision::Run);
    assert_eq!(
        (ruling.rule.as_str(), ruling.reason.as_str()),
        ("fallback", "open house")
    );
    assert!(is_denied(&ask(&allowing, "/bin/a", &[])));
    let denying = rules("fallback(\"deny\")");
    let ruling = ask(&denying, "/tmp/x", &[]);
    assert_eq!(ruling.reason, "no rule matches /tmp/x");
    assert_eq!(ruling.reason_code, CODE_NO_MATCH);
}

#[test]
#[allow(clippy::too_many_lines, reason = "one table")]
fn wrong_files_are_refused_with_place_and_advice() {
    for (content, place, says) in [
        ("prefix_rule(pattern = [\"git\"", "test.rules:1:", ""),
        (
            "\nprefix_rule(pattern = [])",
            "test.rules:2:1: ",
            "begin it with the program",
        ),
        (
            "\n  # x\nprefix_rule([\"\"])",
            "test.rules:3:1: ",
            "name the program",
        ),
        (
            "prefix_rule([\"a\", []])",
            "test.rules:1:1: ",
            "at least one word",
        ),
        ("prefix_rule([\"a\", 3])", "test.rules:1:1: ", "3 (int)"),
        (
            "prefix_rule([\"a\"], \"maybe\")",
            "test.rules:1:1: ",
            "\"maybe\"",
        ),
        (
            "prefix_rule([\"a\"], \"run\", execution = \"turn_default\")",
            "test.rules:1:1: ",
            "leave it out",
        ),
        (
            "prefix_rule([\"a\"], \"escalate\", execution = \"x\")",
            "test.rules:1:1: ",
            "turn_default",
        ),
        (
            "prefix_rule([\"a\"], justification = \" \")",
            "test.rules:1:1: ",
            "justification is empty",
        ),
        (
            "prefix_rule([\"a\"], match = [\"'x\"])",
            "test.rules:1:1: ",
            "quote",
        ),
        (
            "prefix_rule([\"a\"], match = [\"\"])",
            "test.rules:1:1: ",
            "without a program",
        ),
        (
            "\nprefix_rule([\"git\", \"log\"], match = [\"git log\", \"git push\"])",
            "test.rules:2:1: ",
            "`git push` stands in match",
        ),
        (
            "prefix_rule([\"git\"], match = [\"/tmp/git\"])",
            "test.rules:1:1: ",
            "`/tmp/git` stands in match",
        ),
        (
            "prefix_rule([\"git\"], not_match = [[\"git\", \"a b\"]])",
            "test.rules:1:1: ",
            "`git 'a b'` stands in not_match",
        ),
        (
            "prefix_rule([\"a\"], match = [\"git a\\u0000b\"])",
            "test.rules:1:1: ",
            "NUL",
        ),
        (
            "host_executable(name = \"a/b\", paths = [])",
            "test.rules:1:1: ",
            "bare name",
        ),
        (
            "host_executable(name = \"a\", paths = [\"~/a\"])",
            "test.rules:1:1: ",
            "home",
        ),
        (
            "host_executable(name = \"a\", paths = [\"/x/../a\"])",
            "test.rules:1:1: ",
            "absolute path",
        ),
        (
            "host_executable(name = \"a\", paths = [\"/x/b\"])",
            "test.rules:1:1: ",
            "ends in \"/a\"",
        ),
        (
            "fallback(\"run\")\nfallback(\"deny\")",
            "test.rules:2:1: ",
            "line 1",
        ),
        (
            "network_rule(host = \"x\", protocol = \"https\", decision = \"allow\")",
            "test.rules:1:1: ",
            "isn't supported",
        ),
        (
            "permissions(network = \"yes\")",
            "test.rules:1:1: ",
            "\"allowed\" or \"denied\"",
        ),
        (
            "permissions(network = \"denied\", read = [\"x\"])",
            "test.rules:1:1: ",
            "absolute",
        ),
        ("load(\"x\", \"y\")", "test.rules:1:", "load"),
        ("a = 1\ndecide = 3", "test.rules:1:", "decide(exec)"),
        (
            "a = 1\ndef decide():\n    return None",
            "test.rules:2:1: ",
            "def decide(exec):",
        ),
        (
            "def f(n):\n    return f(n)\nf(1)",
            "test.rules:2:",
            "make it a loop",
        ),
        (
            "x = [i for i in range(1000000000)]",
            "test.rules:",
            "shorten its loops",
        ),
        (
            "x = []\n[x.append(\"y\" * 10000 + str(i)) for i in range(100000)]",
            "test.rules:",
            "makes too much",
        ),
        (
            "\nprefix_rule([\"git\", \"push *\"])",
            "test.rules:2:1: ",
            "there are none",
        ),
        (
            "\nprefix_rule([\"./git\"], match = [\"./git\"])",
            "test.rules:2:1: ",
            "",
        ),
        (
            "\nprefix_rule([\"a\", \"x\" * 1000000])",
            "test.rules:2:1: ",
            "1000000 bytes",
        ),
        ("nonsense(1)", "test.rules:1:1: ", "nonsense"),
    ] {
        let what = refusal(content);
        assert!(what.starts_with(place), "{content}: {what}");
        assert!(what.contains(says), "{content}: {what}");
    }
}

#[test]
fn deep_nesting_does_not_end_the_process() {
    // As many as a file has room for: the interpreter's stack hasn't.
    let deep = 500_000;
    for content in [
        format!("x = {}1{}", "(".repeat(deep), ")".repeat(deep)),
        format!("x = {}1", "-".repeat(deep)),
        format!("x = 1{}", " + 1".repeat(deep)),
        format!("x = {}{}", "[".repeat(deep), "]".repeat(deep)),
    ] {
        let error = Rules::parse("deep.rules", content).expect_err("too deep");
        let error = error.to_string();
        assert!(error.starts_with("deep.rules:1:1: "), "{error}");
        assert!(error.contains("nests more than"), "{error}");
    }
    // What may be as deep as it is: no level is refused that the stack has room for, and none taken that it hasn't.
    let deep = 1_900;
    for content in [
        format!("x = {}1{}", "(".repeat(deep), ")".repeat(deep)),
        format!("x = {}1", "-".repeat(deep)),
        format!("x = 1{}", "+1".repeat(deep / 2)),
        format!(
            "def f(a):\n  if a:\n    a\n{}",
            "  elif a:\n    a\n".repeat(deep)
        ),
        format!("x = {}1", "lambda: ".repeat(deep / 2)),
        (0..1_300)
            .map(|level| format!("{}if 1:\n", " ".repeat(level)))
            .collect::<String>()
            + &" ".repeat(1_300)
            + "pass\n",
    ] {
        Rules::parse("deep.rules", content).expect("rules");
    }
}

#[test]
fn files_are_bounded_and_must_be_text() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("x.rules");
    let load = || Rules::load(&path);
    assert!(matches!(load(), Err(RulesError::Read { .. })));
    std::fs::write(&path, b"# x\n# \xff\n").expect("a file");
    assert!(
        load()
            .expect_err("not text")
            .to_string()
            .ends_with("x.rules:2: the file isn't UTF-8; save it as UTF-8")
    );
    std::fs::write(&path, vec![b'#'; 1 << 20]).expect("a file");
    assert!(load().is_ok());
    std::fs::write(&path, vec![b'#'; (1 << 20) + 1]).expect("a file");
    assert!(matches!(load(), Err(RulesError::TooLarge { .. })));
    let empty = directory.path().join("empty");
    std::fs::create_dir(&empty).expect("a directory");
    assert!(matches!(
        Rules::load(&empty),
        Err(RulesError::NoFiles { .. })
    ));
    // In a directory among good ones: a pipe, which isn't waited for, and a link that leads to itself.
    let mixed = directory.path().join("mixed");
    std::fs::create_dir(&mixed).expect("a directory");
    std::fs::write(mixed.join("10.rules"), "prefix_rule([\"a\"])").expect("a file");
    let pipe = mixed.join("20.rules");
    rustix::fs::mkfifoat(rustix::fs::CWD, &pipe, rustix::fs::Mode::RUSR).expect("a pipe");
    let error = Rules::load(&mixed).expect_err("a pipe").to_string();
    assert!(
        error.ends_with("20.rules: it isn't a regular file"),
        "{error}"
    );
    std::fs::remove_file(&pipe).expect("removed");
    std::os::unix::fs::symlink("20.rules", &pipe).expect("a link");
    let error = Rules::load(&mixed).expect_err("a loop").to_string();
    assert!(
        error.contains("20.rules: Too many levels of symbolic links"),
        "{error}"
    );
    std::fs::remove_file(&pipe).expect("removed");
    // A directory below isn't looked into.
    std::os::unix::fs::symlink(".", mixed.join("below.rules")).expect("a link");
    let error = Rules::load(&mixed).expect_err("a directory").to_string();
    assert!(
        error.ends_with("below.rules: it isn't a regular file"),
        "{error}"
    );
    assert!(matches!(
        Rules::load(std::path::Path::new("/dev/null")),
        Err(RulesError::NotAFile { .. })
    ));
}

#[test]
fn the_revision_names_the_content() {
    let one = rules("prefix_rule([\"a\"])");
    let same = rules("prefix_rule([\"a\"])");
    let other = rules("prefix_rule([\"b\"])");
    assert_eq!(one.revision(), same.revision());
    assert_ne!(one.revision(), other.revision());
    // The beginning of what `printf '' | sha256sum` prints.
    assert_eq!(rules("").revision(), "e3b0c44298fc");
    assert_eq!(one.prefix_rule_count(), 1);
}

#[test]
fn a_file_of_many_rules_is_answered_by_index() {
    let mut content = String::new();
    for number in 0..9_000 {
        writeln!(content, "prefix_rule([\"tool{number}\", \"go\"])").expect("text");
    }
    let rules = rules(&content);
    assert_eq!(
        ask(&rules, "/usr/bin/tool8999", &["go"]).rule,
        "test.rules:9000"
    );
    let over = "[prefix_rule([\"a\"]) for _ in range(10001)]";
    assert!(refusal(over).contains("10000 rules"));
}

/// Answers as files write them, each with its place in the documented order, strictest first.
const ANSWERS: [&str; 9] = [
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
        path in "(/|\\.|\\.\\.|usr|bin|tmp|git|sbin|local|x){0,12}",
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

#[test]
fn the_example_files_say_what_they_promise() {
    let load = |name: &str| {
        let path = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("examples/rules")
            .join(name);
        Rules::load(&path).unwrap_or_else(|error| panic!("{error}"))
    };
    let demo = load("demo.rules.star");
    for line in [
        "git status",
        "make all",
        "make",
        "tar -xf x",
        "gcc -c x.c",
        "ls -l",
        "sh -c true",
    ] {
        let words: Vec<_> = line.split(' ').collect();
        let ruling = ask(&demo, &format!("/usr/bin/{}", words[0]), &words[1..]);
        assert_eq!(ruling.decision, EscalationDecision::Run, "{line}");
    }
    let release = ["-m", "644", "hello-1.0.tar.gz", "../outbox/"];
    let argv: Vec<_> = std::iter::once("install")
        .chain(release)
        .map(str::as_bytes)
        .collect();
    let ruling = ask_in(&[b"HOME"], &demo, b"/usr/bin/install", &argv);
    assert_eq!(
        ruling.decision,
        EscalationDecision::Escalate(EscalationExecution::Unsandboxed)
    );
    // Neither a program that sessions can write, nor what they put into its environment.
    assert_eq!(ruling.terms, crate::model::EscalationTerms::default());
    let options = ask(
        &demo,
        "/usr/bin/tar",
        &["-xf", "x", "--checkpoint-act=exec=sh"],
    );
    assert_eq!(options.rule, "tar options");
    let more = [&release[..], &["/etc/cron.d/"]].concat();
    for arguments in [&release[..3], &more, &["make", "install"]] {
        assert_eq!(
            ask(&demo, "/usr/bin/install", arguments).reason_code,
            CODE_NO_MATCH,
            "{arguments:?}"
        );
    }
    assert_eq!(
        ask(&demo, "/usr/bin/git", &["push"]).reason_code,
        "network.push"
    );
    for file in ["/tmp/make", "/usr/bin/python3", "/tmp/../usr/bin/make"] {
        assert_eq!(
            ask(&demo, file, &["install"]).reason_code,
            CODE_NO_MATCH,
            "{file}"
        );
    }

    let codex = load("codex-style.rules");
    assert_eq!(
        ask(&codex, "/opt/git/bin/git", &["log"]).decision,
        EscalationDecision::Run
    );
    assert!(is_denied(&ask(&codex, "/usr/local/bin/git", &["log"])));
    assert_eq!(
        ask(&codex, "/usr/bin/git", &["push"]).reason_code,
        CODE_APPROVAL_UNAVAILABLE
    );
    assert!(
        ask(&codex, "/usr/bin/git", &["push", "-f"])
            .reason
            .contains("--force-with-lease")
    );
}

#[test]
fn an_answer_says_how_it_may_be_used_again() {
    let rules = rules(
        r#"
prefix_rule(["make"], reuse = "10m")
prefix_rule(["gcc", "-c"], reuse = "1h30m", reuse_scope = "prefix")
prefix_rule(["ld"], "deny", reuse = "1s")
prefix_rule(["ld"], "run", reuse = "1h")
prefix_rule(["as"])
"#,
    );
    let minutes = |minutes: u64| std::time::Duration::from_secs(minutes * 60);
    let reuse = |program: &str| ask(&rules, program, &["-c", "x"]).reuse;
    assert_eq!(
        reuse("/usr/bin/make"),
        Some(OpinionReuse {
            valid_for: minutes(10),
            scope: OpinionReuseScope::Exec,
        })
    );
    assert_eq!(
        reuse("/usr/bin/gcc"),
        Some(OpinionReuse {
            valid_for: minutes(90),
            scope: OpinionReuseScope::Prefix(1),
        })
    );
    // The winner's.
    assert_eq!(
        reuse("/usr/bin/ld").map(|reuse| reuse.valid_for.as_secs()),
        Some(1)
    );
    assert_eq!(reuse("/usr/bin/as"), None);
    assert_eq!(reuse("/usr/bin/none"), None);

    let rules = self::rules("def decide(exec):\n    return deny(\"no\", reuse = \"10m\")\n");
    let ruling = ask(&rules, "/x", &[]);
    assert!(is_denied(&ruling));
    assert_eq!(ruling.reuse.map(|reuse| reuse.valid_for), Some(minutes(10)));
}

#[test]
fn a_time_of_reuse_that_makes_no_sense_is_refused() {
    for (content, what) in [
        ("reuse = \"soon\"", "write a time"),
        ("reuse = \"0s\"", "no time at all"),
        ("reuse = \"25h\"", "24h at most"),
        ("reuse_scope = \"prefix\"", "without reuse"),
        ("reuse = \"1m\", reuse_scope = \"any\"", "write \"exec\""),
        ("decision = \"prompt\", reuse = \"1m\"", "leave it out"),
    ] {
        let refusal = refusal(&format!("prefix_rule([\"make\"], {content})"));
        assert!(refusal.contains(what), "{content}: {refusal}");
    }
    let rules = rules("def decide(exec):\n    return run(reuse = \"soon\")\n");
    let ruling = ask(&rules, "/x", &[]);
    assert!(is_denied(&ruling), "{ruling:?}");
    assert_eq!(ruling.reuse, None);
}

#[test]
fn an_answer_for_a_prefix_must_be_the_answer_to_all_of_it() {
    let with = |others: &str| {
        format!(
            "prefix_rule([\"git\", [\"log\", \"push\"]], reuse = \"1m\", reuse_scope = \"prefix\")\n{others}"
        )
    };
    for fine in [
        "",
        // As strict, and the same.
        "prefix_rule([\"git\", \"log\", \"-1\"], \"run\")",
        // Less strict.
        "prefix_rule([\"git\", \"push\", \"-f\"], \"escalate\")",
        // Of other commands.
        "prefix_rule([\"git\", \"pull\", \"-f\"], \"deny\")\nprefix_rule([\"hg\", \"push\", \"-f\"], \"deny\")",
        // Wins for all of it, or for other first words.
        "prefix_rule([\"git\"], \"deny\")",
        "prefix_rule([\"git\", \"push\"], \"deny\")",
    ] {
        rules(&with(fine));
    }
    for wrong in [
        "prefix_rule([\"git\", \"push\", \"-f\"], \"deny\")",
        "prefix_rule([[\"hg\", \"git\"], [\"x\", \"push\"], \"-f\", \"y\"], \"prompt\")",
        "prefix_rule([\"/usr/bin/git\", \"log\", \"-1\"], \"deny\")",
    ] {
        let refusal = refusal(&with(wrong));
        assert!(refusal.contains("test.rules:2 says otherwise"), "{refusal}");
    }
    let refusal = refusal(&with("def decide(exec):\n    return None\n"));
    assert!(refusal.contains("decide() may say otherwise"), "{refusal}");
}

#[test]
fn decide_sees_the_values_that_the_file_asks_for() {
    let rules = rules(
        r#"
request_environment(["CI_JOB", "TOKEN"])
request_environment(["CI_JOB"])
def decide(exec):
    if exec.redacted_environment or exec.redacted_arguments:
        return deny(reason = "%s %s" % (exec.redacted_environment, exec.redacted_arguments))
    if exec.environment.get("CI_JOB") == "release":
        return escalate(reuse = "1m")
    return run(reason = repr(exec.environment) + repr(exec.is_exact), reuse = "1m")
"#,
    );
    assert_eq!(rules.requested_environment(), [&b"CI_JOB"[..], b"TOKEN"]);
    let session = SessionFacts::default();
    let ask = |environment: &[(&[u8], &[u8], bool)], redacted: &[u32]| {
        let environment: Vec<_> = environment
            .iter()
            .map(|(name, value, is_redacted)| EnvironmentFact {
                name,
                value,
                is_redacted: *is_redacted,
            })
            .collect();
        rules.evaluate(&ExecFacts {
            id: ExecId(1),
            file: b"/bin/x",
            argv: vec![b"x"],
            workdir: b"/",
            environment_names: environment.iter().map(|variable| variable.name).collect(),
            environment,
            redacted_arguments: redacted,
            executable: None,
            workdir_protection: crate::pb::v1::Protection::Unspecified,
            process: ProcessIdentity::default(),
            parent: None,
            session: &session,
        })
    };
    let nothing = ask(&[], &[]);
    assert_eq!(nothing.reason, "{}True");
    // Whoever has none of these variables gets that answer each time.
    assert!(nothing.reuse.is_some());
    let release = ask(
        &[(b"CI_JOB", b"release", false), (b"CI_JOB", b"x", false)],
        &[],
    );
    assert!(matches!(release.decision, EscalationDecision::Escalate(_)));
    assert_eq!(release.reuse, None);
    let garbled = ask(&[(b"TOKEN", b"\xff", false)], &[]);
    assert_eq!(garbled.reason, r#"{"TOKEN": "\ufffd"}False"#);
    let redacted = ask(&[(b"TOKEN", b"x", true)], &[1, 2]);
    assert_eq!(redacted.reason, "[\"TOKEN\"] [1, 2]");

    for (file, said) in [
        (
            "request_environment([\"\"])",
            "write the whole name of a variable",
        ),
        (
            "request_environment([\"A=B\"])",
            "write the whole name of a variable",
        ),
        (
            "request_environment([\"CI_*\"])",
            "write the whole name of a variable",
        ),
        ("request_environment([1])", "write it as a string"),
        (
            "request_environment([\"V%d\" % n for n in range(257)])",
            "more than 256 variables are asked for",
        ),
    ] {
        let error = refusal(file);
        assert!(error.contains(said), "{file}: {error}");
    }
    let late = Rules::parse(
        "x",
        "def decide(exec):\n  request_environment([\"A\"])".to_owned(),
    )
    .expect("rules");
    assert!(is_denied(&ask_in(&[], &late, b"/bin/x", &[b"x"])));
}

/// What a gate says of a script that the session can write.
fn script_info() -> crate::pb::v1::ExecutableInfo {
    use crate::pb::v1;
    v1::ExecutableInfo {
        real_path: b"/sandbox/tool"[..].into(),
        owner_user_id: 1000,
        mode: 0o755,
        protection: v1::Protection::Writable.into(),
        writable_path: b"/sandbox"[..].into(),
        sha256: vec![0xab; 32].into(),
        interpreter: Some(Box::new(v1::Interpreter {
            name: b"/bin/sh"[..].into(),
            argument: b"-e"[..].into(),
            executable: Some(Box::new(v1::ExecutableInfo {
                real_path: b"/usr/bin/dash"[..].into(),
                protection: v1::Protection::Protected.into(),
                ..v1::ExecutableInfo::default()
            })),
        })),
        ..v1::ExecutableInfo::default()
    }
}

fn ask_about(rules: &Rules, info: Option<&crate::pb::v1::ExecutableInfo>, argv: &[&str]) -> Ruling {
    let session = SessionFacts::default();
    rules.evaluate(&ExecFacts {
        id: ExecId(1),
        file: b"/sandbox/tool",
        argv: argv.iter().map(|word| word.as_bytes()).collect(),
        workdir: b"/work",
        environment_names: Vec::new(),
        environment: Vec::new(),
        redacted_arguments: &[],
        executable: info,
        workdir_protection: crate::pb::v1::Protection::Writable,
        process: ProcessIdentity::default(),
        parent: None,
        session: &session,
    })
}

#[test]
fn decide_knows_the_file_that_is_executed() {
    let rules = rules(
        r#"
def decide(exec):
    file = exec.executable
    if file == None:
        return deny("no file")
    interpreter = file.interpreter
    return deny(" ".join([str(word) for word in [
        file.path, file.protected, file.protection, file.writable_path, file.owner, file.mode == 0o755,
        file.sha256[:4], interpreter.name, interpreter.argument, interpreter.executable.path,
        interpreter.executable.protected, interpreter.executable.sha256, exec.workdir_protected,
    ]]))
"#,
    );
    let ruling = ask_about(&rules, Some(&script_info()), &["tool"]);
    assert_eq!(
        ruling.reason,
        "/sandbox/tool False writable /sandbox 1000 True abab /bin/sh -e /usr/bin/dash True None False"
    );
    assert_eq!(ask_about(&rules, None, &["tool"]).reason, "no file");
    let missing = crate::pb::v1::ExecutableInfo {
        missing: "gone".to_owned(),
        ..crate::pb::v1::ExecutableInfo::default()
    };
    assert_eq!(
        ask_about(&rules, Some(&missing), &["tool"]).reason,
        "no file"
    );
}

#[test]
fn escalations_have_terms() {
    use crate::model::{EnvironmentRules, EscalationTerms, NamePattern, Unprotected};
    let arguments = "unprotected = \"allow\", keep_environment = [\"LC_*\"], \
                     set_environment = {\"A\": \"b\"}, unset_environment = [\"X\"]";
    let expected = EscalationTerms {
        unprotected: Unprotected::Allowed,
        environment: EnvironmentRules {
            keep: vec![NamePattern(b"LC_*".to_vec())],
            unset: vec![NamePattern(b"X".to_vec())],
            set: vec![("A".into(), "b".into())],
        },
    };
    for file in [
        format!("def decide(exec):\n    return escalate({arguments})\n"),
        format!("prefix_rule([\"/sandbox/tool\"], \"escalate\", {arguments})\n"),
        format!("fallback(\"escalate\", {arguments})\n"),
    ] {
        let ruling = ask_about(&rules(&file), None, &["tool"]);
        assert_eq!(ruling.terms, expected, "{file}");
    }
    let ruling = ask_about(&rules("fallback(\"escalate\")"), None, &["tool"]);
    assert_eq!(ruling.terms, EscalationTerms::default());

    for (file, advice) in [
        (
            "prefix_rule([\"x\"], unprotected = \"allow\")",
            "belongs to \"escalate\"",
        ),
        (
            "fallback(\"deny\", keep_environment = [])",
            "belongs to \"escalate\"",
        ),
        (
            "fallback(\"escalate\", unprotected = \"yes\")",
            "write \"allow\"",
        ),
        (
            "fallback(\"escalate\", keep_environment = \"X\")",
            "write a list of names",
        ),
        (
            "fallback(\"escalate\", unset_environment = [\"A=b\"])",
            "without its value",
        ),
        (
            "fallback(\"escalate\", set_environment = [\"A\"])",
            "write names and values",
        ),
        (
            "fallback(\"escalate\", set_environment = {\"A\": 1})",
            "the value of A",
        ),
    ] {
        let error = Rules::parse("test.rules", file.to_owned()).expect_err(file);
        assert!(error.to_string().contains(advice), "{error}");
    }
}

#[test]
fn decide_looks_at_options_whatever_their_order() {
    let rules = rules(
        r#"
def decide(exec):
    if has_option(exec, "-c", "--config-env", "--upload-pack"):
        return deny("code")
    if only_options(exec, ["-q", "--depth"]):
        return run(",".join(options(exec) + operands(exec)))
    return deny("unknown option")
"#,
    );
    let ask = |argv: &[&str]| {
        let argv: Vec<_> = std::iter::once("git").chain(argv.iter().copied()).collect();
        ask_about(&rules, None, &argv).reason
    };
    assert_eq!(
        ask(&["fetch", "-q", "--depth=1", "a"]),
        "-q,--depth,fetch,a"
    );
    for argv in [
        &["-c", "core.pager=x", "log"][..],
        &["-ccore.pager=x"],
        &["fetch", "x", "--upload-pa=evil"],
        &["-qc", "x"],
    ] {
        assert_eq!(ask(argv), "code", "{argv:?}");
    }
    for argv in [&["-x"][..], &["--", "-x"], &["--depths=1"], &["@file"]] {
        assert_eq!(ask(argv), "unknown option", "{argv:?}");
    }
}

#[test]
fn what_is_not_told_whole_is_not_known_to_be_harmless() {
    let rules =
        rules("def decide(exec):\n    return \"run\" if only_options(exec, []) else \"deny\"\n");
    assert!(!is_denied(&ask_about(&rules, None, &["x", "y"])));
    let ruling = ask_bytes(&rules, b"/sandbox/tool", &[b"x", b"\xff"]);
    assert!(is_denied(&ruling));
}

fn ruled(rules: &Rules, file: &str) -> Ruling {
    ask(rules, file, &[])
}

fn denies(decision: &EscalationDecision) -> bool {
    matches!(decision, EscalationDecision::Deny { .. })
}

#[test]
fn a_monitored_rule_is_recorded_and_changes_nothing() {
    let rules = Rules::parse(
        "x.rules",
        r#"
prefix_rule(["rm"], "deny", name = "watched", mode = "monitor", reuse = "1m")
prefix_rule(["mv"], "deny", name = "watched", mode = "monitor")
prefix_rule(["mv"], "escalate", name = "moves")
prefix_rule(["cp"], "deny", name = "watched", mode = "monitor")
prefix_rule(["cp"], "deny", name = "enforced", mode = "enforce")
prefix_rule(["ls"], "run", name = "watched", mode = "monitor")
prefix_rule(["dd"], "escalate", name = "watched", mode = "monitor")
fallback("deny")
"#
        .to_owned(),
    )
    .expect("rules");
    let rm = ruled(&rules, "/usr/bin/rm");
    assert_eq!(rm.decision, EscalationDecision::Run);
    assert_eq!((&*rm.rule, rm.reuse), ("watched", None));
    assert!(rm.monitored.as_ref().is_some_and(denies));
    let mv = ruled(&rules, "/usr/bin/mv");
    assert!(matches!(mv.decision, EscalationDecision::Escalate(_)));
    assert!(mv.monitored.as_ref().is_some_and(denies));
    let cp = ruled(&rules, "/usr/bin/cp");
    assert!(denies(&cp.decision));
    assert_eq!((&*cp.rule, cp.monitored), ("enforced", None));
    assert_eq!(ruled(&rules, "/usr/bin/ls").monitored, None);
    let dd = ruled(&rules, "/usr/bin/dd");
    assert_eq!(dd.decision, EscalationDecision::Run);
    assert!(matches!(
        dd.monitored,
        Some(EscalationDecision::Escalate(_))
    ));
    assert!(denies(&ruled(&rules, "/usr/bin/no").decision));

    let rules = rules.in_mode(RuleMode::Monitor);
    for file in ["/usr/bin/cp", "/usr/bin/no"] {
        let ruling = ruled(&rules, file);
        assert_eq!(ruling.decision, EscalationDecision::Run);
        assert!(ruling.monitored.as_ref().is_some_and(denies), "{file}");
    }
    let error = Rules::parse("x.rules", "prefix_rule([\"a\"], mode = \"off\")".to_owned());
    assert!(
        error
            .expect_err("refused")
            .to_string()
            .contains("x.rules:1:")
    );
}

#[test]
fn files_of_a_directory_and_others_are_one_policy() {
    let directory = tempfile::tempdir().expect("a directory");
    let write = |name: &str, text: &str| {
        std::fs::write(directory.path().join(name), text).expect("a file");
    };
    let load = || Rules::load_all(&[directory.path()]);
    let error = load().expect_err("nothing there");
    assert!(matches!(error, RulesError::NoFiles { .. }), "{error}");
    write(
        "10-base.rules",
        "prefix_rule([\"git\"])\nhost_executable(\"tool\", [\"/opt/tool\"])",
    );
    write(
        "20-more.rules.star",
        "prefix_rule([\"git\"], \"deny\", name = \"none\")",
    );
    write(
        "30-tool.rules",
        "prefix_rule([\"tool\"])\ndef decide(exec):\n    return \"deny\" if exec.name == \"a\" else None",
    );
    write(
        "40-more.rules",
        "def decide(exec):\n    return \"run\" if exec.name == \"b\" else None",
    );
    write(".hidden.rules", "not rules");
    write("README.md", "not rules");
    let rules = load().expect("rules");
    assert_eq!(rules.prefix_rule_count(), 3);
    assert_eq!(ruled(&rules, "/usr/bin/git").rule, "none");
    assert_eq!(ruled(&rules, "/opt/tool").decision, EscalationDecision::Run);
    assert!(denies(&ruled(&rules, "/usr/bin/tool").decision));
    assert_eq!(ruled(&rules, "/usr/bin/a").rule, "decide");
    assert_eq!(
        ruled(&rules, "/usr/bin/b").decision,
        EscalationDecision::Run
    );
    let before = rules.revision().to_owned();

    write("50-last.rules", "fallback(\"run\")");
    let rules = load().expect("rules");
    assert_ne!(rules.revision(), before);
    assert_eq!(
        ruled(&rules, "/usr/bin/x").decision,
        EscalationDecision::Run
    );

    for (name, text, says) in [
        (
            "60-x.rules",
            "fallback(\"deny\")",
            "50-last.rules:1 already",
        ),
        (
            "60-x.rules",
            "host_executable(\"tool\", [\"/usr/bin/tool\"])",
            "10-base.rules does",
        ),
        ("60-x.rules", "\nprefix_rule(", "60-x.rules:2"),
        (
            "60-x.rules",
            "prefix_rule([\"make\"], reuse = \"1m\", reuse_scope = \"prefix\")",
            "decide() may say otherwise",
        ),
    ] {
        write(name, text);
        let error = load().expect_err("refused").to_string();
        assert!(error.contains(says), "{error}");
    }
}

#[test]
fn each_rule_has_its_own_count_wherever_it_stands() {
    let directory = tempfile::tempdir().expect("a directory");
    for (name, program) in [("a", "one"), ("b", "two")] {
        std::fs::create_dir(directory.path().join(name)).expect("a directory");
        let text = format!("prefix_rule([\"{program}\"])\ndef decide(exec):\n    return None\n");
        std::fs::write(directory.path().join(name).join("x.rules"), text).expect("a file");
    }
    std::fs::write(
        directory.path().join("many.rules"),
        "[prefix_rule([name]) for name in [\"three\", \"four\"]]\nfallback(\"run\")",
    )
    .expect("a file");
    let paths = ["a", "b", "many.rules"].map(|name| directory.path().join(name));
    let rules = Rules::load_all(&paths).expect("rules");
    let _ = ask(&rules, "/usr/bin/two", &[]);
    let _ = ask(&rules, "/usr/bin/two", &[]);
    let _ = ask(&rules, "/usr/bin/four", &[]);
    let _ = ask(&rules, "/usr/bin/none", &[]);
    let counts: Vec<_> = rules
        .listing()
        .into_iter()
        .map(|rule| (rule.place, rule.decided))
        .collect();
    let place = |place: &str, decided| (place.to_owned(), decided);
    assert_eq!(
        counts,
        [
            place("a/x.rules:1", 0),
            place("b/x.rules:1", 2),
            place("many.rules:1", 0),
            place("many.rules:1", 1),
            place("a/x.rules:2", 0),
            place("b/x.rules:2", 0),
            place("many.rules:2", 1),
        ]
    );
    assert_eq!(ask(&rules, "/usr/bin/two", &[]).rule, "b/x.rules:1");
}

#[test]
fn no_more_variables_are_asked_for_by_many_files_than_by_one() {
    let directory = tempfile::tempdir().expect("a directory");
    let write = |name: &str, from: usize, to: usize| {
        let names: Vec<_> = (from..to).map(|number| format!("\"V{number}\"")).collect();
        let text = format!("request_environment([{}])", names.join(", "));
        std::fs::write(directory.path().join(name), text).expect("a file");
    };
    write("a.rules", 0, 200);
    write("b.rules", 150, 256);
    let rules = Rules::load_all(&[directory.path()]).expect("rules");
    assert_eq!(rules.requested_environment().len(), 256);
    write("b.rules", 150, 257);
    let error = Rules::load_all(&[directory.path()]).expect_err("too many");
    let error = error.to_string();
    assert!(
        error.contains("b.rules:1") && error.contains("256 variables together"),
        "{error}"
    );
}
