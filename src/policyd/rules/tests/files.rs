//! Files of rules: which are refused, and what several are together.

use std::path::Path;

use super::*;
use crate::model::EscalationPermissions;

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
            // Not many more than there may be.
            "def f():\n    for i in range(5100000):\n        pass\nf()",
            "test.rules:",
            "takes too many steps",
        ),
        (
            "x = []\n[x.append(\"y\" * 30000 + str(i)) for i in range(12000)]",
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
        {
            let lines = (0..1_300).map(|level| " ".repeat(level) + "if 1:\n");
            lines.collect::<String>() + &" ".repeat(1_300) + "pass\n"
        },
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
    let pipe = directory.path().join("pipe");
    let made = std::process::Command::new("mkfifo").arg(&pipe).status();
    assert!(made.expect("mkfifo").success());
    assert!(matches!(
        Rules::load(&pipe),
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
    // What it writes to is beside the session's directory, whatever the process says of its own.
    let outbox = EscalationPermissions {
        network: NetworkAccess::Denied,
        readable: Vec::new(),
        writable: vec!["/outbox".into()],
    };
    assert_eq!(
        ruling.decision,
        EscalationDecision::Escalate(EscalationExecution::Permissions(outbox))
    );
    // Neither a program that sessions can write, nor what they put into its environment.
    assert_eq!(ruling.terms, crate::model::EscalationTerms::default());
    let options = ask(
        &demo,
        "/usr/bin/tar",
        &["-xf", "x", "--checkpoint-act=exec=sh"],
    );
    assert_eq!(options.rule, "tar options");
    for arguments in [
        &["cIf", "sh", "x.tar", "a"][..],
        &["-cf", "x.tar", "-I", "sh", "a"],
        &["-cf", "x.tar", "-Ish", "a"],
        &["-cf", "x.tar", "--use-comp=sh", "a"],
        &["-cf", "x.tar", "--use-comp", "sh", "a"],
        &["-cMf", "x.tar", "-F", "sh", "a"],
        &["cFMf", "sh", "x.tar", "a"],
        &["-cf", "host:x.tar", "--rsh-command=sh", "a"],
        &["-x", "--to-c=sh", "-f", "x.tar"],
        &["-cf", "x.tar", "--", "--checkpoint-action=exec=sh"],
    ] {
        let ruling = ask(&demo, "/usr/bin/tar", arguments);
        assert_eq!(ruling.rule, "tar options", "{arguments:?}");
    }
    for arguments in [&["xf", "x.tar"][..], &["-czf", "x.tar.gz", "a"]] {
        let ruling = ask(&demo, "/usr/bin/tar", arguments);
        assert_eq!(ruling.decision, EscalationDecision::Run, "{arguments:?}");
    }
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
