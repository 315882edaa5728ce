//! Permissions that come with verdicts, and what a session may do to the paths in them.

#![allow(
    clippy::needless_pass_by_value,
    reason = "a stage is its test's, which may change it"
)]

use std::os::unix::fs::symlink;

use crate::process;
use crate::stage::{Stage, everywhere};

everywhere! {
    a_link_that_the_session_can_change_grants_nothing,
    a_directory_that_is_swapped_meanwhile_grants_nothing_else,
    a_directory_that_trades_places_with_a_link_is_worked_in_or_nothing_is,
    what_is_hidden_in_something_that_can_be_written_stays_hidden_afresh,
    a_temporary_directory_that_is_moved_away_grants_nothing_else,
    paths_are_taken_as_they_are_written_or_refused,
    a_bound_that_is_narrower_than_the_profile_holds_for_verdicts_alone,
    the_example_of_a_release_writes_the_outbox_alone_and_reads_nothing_hidden,
}

/// Escalates `tee` so.
fn escalate_tee(stage: &Stage, execution: &str) {
    stage.take_rules(&format!(
        "prefix_rule([\"tee\"], \"escalate\", execution = {execution})"
    ));
}

fn writes(paths: &[&std::path::Path]) -> String {
    let paths: Vec<_> = paths
        .iter()
        .map(|path| format!("\"{}\"", path.display()))
        .collect();
    format!(
        "permissions(network = \"denied\", write = [{}])",
        paths.join(", ")
    )
}

fn a_link_that_the_session_can_change_grants_nothing(stage: Stage) {
    std::fs::create_dir(stage.path("outside/deep")).expect("a directory");
    stage.give(&stage.path("outside/deep"), 0o755);
    for (named, by) in [("work/out", "out"), ("work/out/deep", "out/deep")] {
        escalate_tee(&stage, &writes(&[&stage.path(named)]));
        stage.can(&format!(
            "mkdir -p {by} && echo x | tee {by}/mine && rm -r out"
        ));
        let done = stage.run(&format!("ln -s $OUTSIDE out; echo x | tee {by}/x; rm out"));
        done.says("it leads through the link ")
            .says("which the session can change: name where it leads to");
    }
    // One that it can't change is followed.
    symlink(stage.path("outside"), stage.path("home/link")).expect("a link");
    escalate_tee(&stage, &writes(&[&stage.path("home/link")]));
    stage.can("echo x | tee $OUTSIDE/granted");
    stage
        .outside("ls $OUTSIDE $OUTSIDE/deep | grep -v :")
        .prints("deep\nfile\ngranted\n\n");
}

/// Has a name be a directory and a link to another place, over and over.
const SWAPPING: &str = r#"
import os
open("swapping", "w").close()
while not os.path.exists("stop"):
    os.rename("d", "e")
    os.symlink(os.environ["OUTSIDE"], "d")
    os.unlink("d")
    os.rename("e", "d")
"#;

fn a_directory_that_is_swapped_meanwhile_grants_nothing_else(stage: Stage) {
    escalate_tee(&stage, &writes(&[&stage.path("work/d")]));
    stage.write("work/swap.py", SWAPPING);
    let done = stage.run(
        "mkdir d; python3 swap.py & while ! test -e swapping; do sleep 0.01; done
         for i in {1..40}; do echo x | tee d/x$i $OUTSIDE/x$i >/dev/null 2>&1; done; touch stop; wait
         ls d | wc -l",
    );
    // It's no test of this where the directory has never been there.
    stage.can("echo x | tee d/x >/dev/null && test -s d/x");
    stage.outside("ls $OUTSIDE").prints("file\n");
    assert!(done.status.success(), "{done}");
}

/// Has a directory and a link to another trade names in one step, at intervals of up to 60 milliseconds.
const TRADING: &str = r#"
import ctypes, os, time
trade = ctypes.CDLL(None).renameat2
open("trading", "w").close()
milliseconds = 1
while not os.path.exists("stop"):
    if trade(-100, b"sub", -100, b"link", 2) != 0:
        open("failed", "w").close()
    time.sleep(milliseconds / 1000)
    milliseconds = milliseconds * 7 % 61
"#;

fn a_directory_that_trades_places_with_a_link_is_worked_in_or_nothing_is(stage: Stage) {
    let places = [stage.path("outside"), stage.path("work")];
    let permissions = writes(&[&places[0], &places[1]]);
    stage.take_rules(&format!(
        "prefix_rule([\"touch\"], \"escalate\", execution = {permissions})"
    ));
    stage.write("work/trade.py", TRADING);
    // The shell stays in the one directory, whatever that is called.
    let done = stage.run(
        "mkdir sub; ln -s $OUTSIDE link; cd sub
         (cd .. && exec python3 trade.py) & while ! test -e ../trading; do sleep 0.01; done
         for i in {1..60}; do touch x$i 2>/dev/null; done; >../stop; wait; ! test -e ../failed",
    );
    assert!(done.status.success(), "{done}");
    stage.outside("ls $OUTSIDE").prints("file\n");
    // It's no test of this where nothing could be made.
    let done = stage.outside("ls work/sub work/link sub link 2>/dev/null | grep -c ^x");
    assert_ne!(done.output(), "0\n", "{done}");
}

fn what_is_hidden_in_something_that_can_be_written_stays_hidden_afresh(stage: Stage) {
    for directory in ["work/a", "work/a/b", "work/a/b/secret"] {
        std::fs::create_dir(stage.path(directory)).expect("a directory");
        stage.give(&stage.path(directory), 0o755);
    }
    stage.write("work/a/b/secret/file", "secret-of-mine\n");
    let stage = stage.option(["--hide", "./a/b/secret"]);
    let permissions = writes(&[&stage.path("work")]);
    for execution in ["\"turn_default\"", permissions.as_str()] {
        stage.take_rules(&format!(
            "prefix_rule([\"cat\"], \"escalate\", execution = {execution})"
        ));
        stage.can("cat /etc/hostname");
        stage.cannot("cat a/b/secret/file");
        // Whether or not these can be moved.
        stage.cannot("{ mv a other; cat other/b/secret/file; }");
        stage.cannot("{ mv a/b other; cat other/secret/file; }");
        stage.cannot("{ mv a/b/secret other; cat other/file; }");
    }
}

fn a_temporary_directory_that_is_moved_away_grants_nothing_else(stage: Stage) {
    std::fs::create_dir(stage.path("work/tmp")).expect("a directory");
    stage.give(&stage.path("work/tmp"), 0o755);
    let permissions = writes(&[]);
    for execution in ["\"turn_default\"", permissions.as_str()] {
        escalate_tee(&stage, execution);
        let script = "
            case $TMPDIR in $PWD/tmp/*) ;; *) exit 9;; esac
            echo x | tee $TMPDIR/before >/dev/null && test -s $TMPDIR/before || exit 8
            name=${TMPDIR##*/}
            if mv tmp other 2>/dev/null; then mkdir tmp; ln -s $OUTSIDE tmp/$name; fi
            if mv tmp/$name moved 2>/dev/null; then ln -s $OUTSIDE tmp/$name; fi
            echo x | tee $TMPDIR/after $OUTSIDE/after
            rm -rf other moved; mkdir -p tmp; true";
        let mut command = stage.command(script);
        command.env("TMPDIR", stage.path("work/tmp"));
        process::run(&mut command).exits(0);
        stage.outside("ls $OUTSIDE").prints("file\n");
    }
}

fn paths_are_taken_as_they_are_written_or_refused(stage: Stage) {
    let outside = stage.path("outside");
    let with = |rest: &str| format!("{}{rest}", outside.display());
    for granted in [
        with("/"),
        with("//"),
        with("/."),
        with("/file"),
        with("/./file"),
    ] {
        escalate_tee(&stage, &writes(&[granted.as_ref()]));
        stage.can("echo x | tee $OUTSIDE/file");
        stage.cannot("echo x | tee ~/open/file");
        let is_file = granted.ends_with("file");
        let done = stage.run("echo x | tee $OUTSIDE/new && rm -f $OUTSIDE/new");
        assert!(!done.status.success(), "{done}");
        assert_eq!(outside.join("new").exists(), !is_file, "{granted}");
        let _ = std::fs::remove_file(outside.join("new"));
    }
    for (refused, why) in [
        (with("/none"), "No such file or directory"),
        (with("/../home"), "has `..` in it"),
        ("/proc/self/cwd".to_owned(), "which the session can change"),
        (with("/file/x"), "Not a directory"),
    ] {
        escalate_tee(&stage, &writes(&[refused.as_ref()]));
        let done = stage.run("echo x | tee $OUTSIDE/new");
        assert!(!done.status.success(), "{refused}: {done}");
        done.says(why);
        assert!(!outside.join("new").exists(), "{refused}");
    }
    // What is relative is no rule, so that the rules before stay.
    stage.gate.write_rules(&format!(
        "prefix_rule([\"tee\"], \"escalate\", execution = {})\nfallback(\"run\")",
        writes(&["outside".as_ref()])
    ));
    let checked = process::run(
        std::process::Command::new(process::EXECGATE)
            .args(["check", "--rules"])
            .arg(stage.gate.path("rules.star"))
            .args(["--", "tee", "x"]),
    );
    assert!(!checked.status.success(), "{checked}");
    // No list is what the session may read, and the temporary directory to be written.
    escalate_tee(
        &stage,
        "permissions(network = \"denied\", read = [], write = [])",
    );
    stage.can("echo x | tee $TMPDIR/x");
    stage.cannot("echo x | tee mine");
    stage.take_rules(
        "prefix_rule([\"cat\"], \"escalate\", execution = permissions(network = \"denied\", read = [], write = []))",
    );
    stage.can("cat $OUTSIDE/file");
    stage.cannot("cat ~/.ssh/id");
}

fn a_bound_that_is_narrower_than_the_profile_holds_for_verdicts_alone(stage: Stage) {
    stage.write(
        "profiles.toml",
        "[least]\nread = [\"/usr\"]\nwrite = []\nnetwork = \"off\"\n",
    );
    let file = stage.path("profiles.toml").display().to_string();
    let stage = stage.option(["--profiles", &file, "--escalation-bound", "least"]);
    let refused = |execution: &str, why: &str| {
        escalate_tee(&stage, execution);
        let done = stage.run("echo x | tee mine");
        assert!(!done.status.success(), "{done}");
        done.says("no more than the profile `least` does").says(why);
        assert!(!stage.path("work/mine").exists(), "{execution}");
    };
    refused(&writes(&[&stage.path("work")]), "grants writing");
    refused(
        "permissions(network = \"denied\", read = [\"/\"])",
        "grants reading /",
    );
    refused(
        "permissions(network = \"denied\", read = [\"/etc\"])",
        "grants reading /etc",
    );
    refused("permissions(network = \"allowed\")", "grants the network");
    refused("\"unsandboxed\"", "under no sandbox");
    // What the session may itself is its owner's word.
    escalate_tee(&stage, "\"turn_default\"");
    stage.can("echo x | tee mine && rm mine");
    escalate_tee(
        &stage,
        "permissions(network = \"denied\", read = [\"/usr\"])",
    );
    stage.can("echo x | tee $TMPDIR/x");
}

/// `examples/rules/demo.rules.star`, whose one escalation takes relative names: what these lead to is the session's choice.
fn the_example_of_a_release_writes_the_outbox_alone_and_reads_nothing_hidden(stage: Stage) {
    stage.take_rules(include_str!("../../examples/rules/demo.rules.star"));
    let outbox = stage.path("outbox");
    std::fs::create_dir(&outbox).expect("a directory");
    stage.give(&outbox, 0o755);
    let release = "install -m 644 hello-1.0.tar.gz ../outbox/";
    stage.can(&format!("echo mine >hello-1.0.tar.gz && {release}"));
    stage.outside("cat $OUTSIDE/../outbox/*").prints("mine\n");

    // The archive is a link to what is hidden.
    stage.run(&format!(
        "rm hello-1.0.tar.gz; ln -s $HOME/.ssh/id hello-1.0.tar.gz; {release}"
    ));
    // The directory is another, in which the outbox is a link to somewhere else.
    let elsewhere =
        format!("mkdir a; ln -s $OUTSIDE outbox; cd a; echo x >hello-1.0.tar.gz; {release}");
    let done = stage.run(&elsewhere);
    assert_ne!(done.status.code(), Some(0), "{done}");
    // More arguments than those, or others in their place.
    for other in [
        "install -m 644 hello-1.0.tar.gz ../outbox/ -t $OUTSIDE",
        "install -m644 hello-1.0.tar.gz ../outbox/",
        "install --mode=644 hello-1.0.tar.gz $OUTSIDE/",
        "install -m 644 -- hello-1.0.tar.gz ../outbox/",
    ] {
        let done = stage.run(&format!(
            "rm -f hello-1.0.tar.gz; echo y >hello-1.0.tar.gz; {other}"
        ));
        assert_ne!(done.status.code(), Some(0), "{other}: {done}");
    }
    let left = stage.outside("cat $OUTSIDE/../outbox/*; ls $OUTSIDE");
    assert!(!left.output().contains("secret-of-mine"), "{left}");
    assert!(!left.output().contains("hello"), "{left}");
}
