//! How much rules may say.

use super::*;

#[test]
fn what_a_rule_says_is_bounded_and_the_most_is_taken() {
    for (most, content, says) in [
        (
            1_000,
            "prefix_rule([\"a\"] * COUNT)",
            "pattern has more than 1000 elements",
        ),
        (
            1_000,
            "prefix_rule([\"b\", [\"a\"] * COUNT])",
            "more than 1000 alternatives",
        ),
        (
            1_000,
            "prefix_rule([\"a\"], match = [\"a\"] * COUNT)",
            "match holds more than 1000 examples",
        ),
        (
            1_000,
            "prefix_rule([\"b\"], not_match = [\"a\"] * COUNT)",
            "not_match holds more than 1000 examples",
        ),
        (
            1_000,
            "host_executable(\"a\", [\"/\" + str(i) + \"/a\" for i in range(COUNT)])",
            "paths holds more than 1000 paths",
        ),
        (
            1_000,
            "prefix_rule([\"a\"], \"escalate\", keep_environment = [\"A\"] * COUNT)",
            "keep_environment holds more than 1000 names",
        ),
        (
            1_000,
            "prefix_rule([\"a\"], \"escalate\", unset_environment = [\"A\"] * COUNT)",
            "unset_environment holds more than 1000 names",
        ),
        (
            1_000,
            "prefix_rule([\"a\"], \"escalate\", set_environment = {str(i): \"\" for i in range(COUNT)})",
            "set_environment holds more than 1000 names",
        ),
        (
            200,
            "prefix_rule([\"a\"], \"ask\", asks = \"x\" * COUNT)",
            "asks has more than 200 bytes",
        ),
        (
            10_000,
            "[prefix_rule([\"a\"]) for _ in range(COUNT)]",
            "the file has more than 10000 rules",
        ),
    ] {
        let of = |count: usize| content.replace("COUNT", &count.to_string());
        if let Err(error) = Rules::parse("test.rules", of(most)) {
            panic!("{content}, {most}: {error}");
        }
        let what = refusal(&of(most + 1));
        assert!(what.contains(says), "{content}: {what}");
    }
}

#[test]
fn files_together_are_bounded_in_number_and_in_size() {
    let many = tempfile::tempdir().expect("a directory");
    let write = |number: usize| {
        let path = many.path().join(format!("{number}.rules"));
        std::fs::write(path, format!("prefix_rule([\"a{number}\"])")).expect("a file");
    };
    (0..256).for_each(write);
    let rules = Rules::load(many.path()).expect("as many as there may be");
    assert_eq!(rules.prefix_rule_count(), 256);
    write(256);
    let large = tempfile::tempdir().expect("a directory");
    for number in 0..8 {
        let content = vec![b'#'; 1 << 20];
        std::fs::write(large.path().join(format!("{number}.rules")), content).expect("a file");
    }
    assert!(Rules::load(large.path()).is_ok());
    let one_more = large.path().join("8.rules");
    std::fs::write(&one_more, "#").expect("a file");
    // However the files are named.
    let files: Vec<_> = (0..9)
        .map(|number| large.path().join(format!("{number}.rules")))
        .collect();
    for error in [
        Rules::load(many.path()),
        Rules::load(large.path()),
        Rules::load_all(&files),
        Rules::load_all(&[many.path(), one_more.as_path()]),
    ] {
        let error = error.expect_err("too many");
        assert!(matches!(error, RulesError::TooMany { .. }), "{error}");
        assert!(error.to_string().contains("more than 256 files"), "{error}");
    }
}
