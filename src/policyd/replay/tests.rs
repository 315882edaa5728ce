//! How much is read, and how much is told.

use std::fmt::Write as _;
use std::path::Path;

use super::*;

/// An exec that ran, as `audit --export` writes it.
fn line(program: &str) -> String {
    let session = "0".repeat(32);
    format!(
        r#"{{"session":"{session}","exec_id":1,"program":"{program}","argv":["x"],"verdict":"run","code":"verdict"}}"#
    )
}

/// What replaying lines says, by rules that deny everything.
fn replayed(directory: &Path, output: ReplayOutput) -> Result<(ReplayAnswer, String), ReplayError> {
    let rules = directory.join("x.rules");
    std::fs::write(&rules, "fallback(\"deny\")").expect("a file");
    let args = ReplayArgs {
        rules: vec![rules],
        monitor: false,
        selection: Selection {
            from: Some(directory.join("lines")),
            ..Selection::default()
        },
        output,
    };
    let mut out = Vec::new();
    let answer = run(&args, Source::Named, &mut out)?;
    Ok((answer, String::from_utf8(out).expect("text")))
}

#[test]
fn beyond_so_many_groups_changes_are_counted_and_not_listed() {
    let directory = tempfile::tempdir().expect("a directory");
    let mut lines = String::new();
    for number in 0..10_003 {
        writeln!(lines, "{}", line(&format!("/opt/{number}"))).expect("text");
    }
    // Those that are listed are counted on.
    writeln!(lines, "{}\n{0}", line("/opt/7")).expect("text");
    std::fs::write(directory.path().join("lines"), lines).expect("a file");
    let replayed = |output| replayed(directory.path(), output).expect("a result");

    let (answer, json) = replayed(ReplayOutput::Json);
    assert_eq!(answer, ReplayAnswer::Changed);
    let told: serde_json::Value = serde_json::from_str(&json).expect("JSON");
    let changes = told["changes"].as_array().expect("a list");
    assert_eq!(changes.len(), 10_000);
    assert_eq!(
        (&changes[0]["program"], &changes[0]["count"]),
        (&"/opt/7".into(), &3.into())
    );
    assert_eq!(told["changes_not_listed"], 3);
    assert_eq!(told["changed"], 10_005);

    let (_, text) = replayed(ReplayOutput::Text);
    assert_eq!(text.matches("exec of /opt/").count(), 9_999);
    assert!(text.starts_with("3 execs of /opt/7: run -> deny\n"));
    assert!(text.contains("\n3 execs would change in other ways, too many to list\n"));
    assert!(text.contains("10005 execs: 0 unchanged, 10005 changed, 0 not judged"));
}

#[test]
fn a_line_that_is_longer_than_any_exec_is_told_of() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("lines");
    std::fs::write(&path, line("/opt/tool") + "\n").expect("a file");
    // Without an end, and without room on disk.
    let lines = std::fs::OpenOptions::new().write(true).open(&path);
    lines
        .and_then(|file| file.set_len((128 << 20) + 1_000))
        .expect("a size");
    let error = replayed(directory.path(), ReplayOutput::Text).expect_err("too long");
    assert_eq!(error.exit_code(), 2);
    let error = error.to_string();
    assert!(
        error.contains("lines:2: the line has more than 134217728 bytes"),
        "{error}"
    );
}
