//! What `decide()` sees, and what becomes of its answer.

use super::*;

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

#[test]
fn where_decide_failed_is_said_by_file_and_line_whichever_file_it_is() {
    let directory = tempfile::tempdir().expect("a directory");
    for (name, text) in [
        (
            "a.rules",
            "def decide(exec):\n    return None if exec.name != \"one\" else 1\n",
        ),
        (
            "b.rules",
            "def at(list):\n    return list[7]\n\ndef decide(exec):\n    if exec.name == \"two\":\n        \
             return at([])\n    if exec.name == \"three\":\n        return deny(exec.nothing)\n    return None\n",
        ),
    ] {
        std::fs::write(directory.path().join(name), text).expect("a file");
    }
    let rules = Rules::load_all(&[directory.path()]).expect("rules");
    for (program, place) in [
        // The answer is wrong as a whole: where the function begins.
        ("one", "a.rules:1"),
        ("two", "b.rules:2"),
        ("three", "b.rules:8"),
    ] {
        let ruling = ask(&rules, &format!("/usr/bin/{program}"), &[]);
        let failed = &ruling.matched[ruling.winner.expect("one")];
        assert_eq!(failed.place, place, "{program}");
        assert!(failed.failure.is_some(), "{program}");
        let said = format!("decide() failed at {place}: ");
        assert!(
            ruling.reason.contains(&said),
            "{program}: {}",
            ruling.reason
        );
        assert_eq!(ruling.reason_code, CODE_DECIDE_FAILED, "{program}");
    }
}
