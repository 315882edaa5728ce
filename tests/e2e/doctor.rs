//! `execgate doctor`: what of a machine it looks at, tries, and finds.

use std::process::Command;

use execgate::sandbox::Landlock;
use serde_json::Value;

use crate::gate::directory;
use crate::process::{self, EXECGATE};
use crate::service::Policyd;
use crate::stage::bubblewrap;

/// What the doctor finds, by its subjects: of how it stands, what is said, and what is to be done.
fn findings(command: &mut Command) -> impl Fn(&str) -> [String; 3] + use<> {
    let done = process::run(command.args(["doctor", "--output", "json"]));
    let json: Value = serde_json::from_slice(&done.stdout).expect("JSON");
    move |subject: &str| {
        let all = json["findings"].as_array().expect("findings");
        let of = all.iter().find(|finding| finding["subject"] == subject);
        let of = of.unwrap_or_else(|| panic!("nothing of {subject}: {done}"));
        ["status", "detail", "remedy"].map(|part| of[part].as_str().unwrap_or_default().to_owned())
    }
}

/// What is in its place isn't what it has to be.
#[test]
fn the_doctor_tries_what_is_installed() {
    let place = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory");
    let path = |name: &str| place.path().join(name);
    for name in ["bin", "libexec", "libexec/execgate", "tools"] {
        std::fs::create_dir(path(name)).expect("a directory");
    }
    std::fs::hard_link(EXECGATE, path("bin/execgate")).expect("a link");
    // By another process: nobody executes what this one has open for writing, nor what it has just forked.
    let write = |name: &str, text: &str, mode: &str| {
        let script = "printf %s \"$1\" >\"$2\"; chmod \"$3\" \"$2\"";
        let mut command = Command::new("/bin/sh");
        command.args(["-c", script, "sh", text]).arg(path(name));
        process::run(command.arg(mode)).exits(0).says_nothing();
    };
    let program = || {
        let mut command = Command::new(path("bin/execgate"));
        command.env_clear().env("PATH", path("tools"));
        command
    };
    let doctor = || findings(&mut program());
    let exec = || {
        let arguments = ["exec", "--policy", "http://127.0.0.1:1", "--", "echo x"];
        process::run(program().args(arguments))
    };

    // One alone of the two isn't enough.
    write("libexec/execgate/execgate-wrapper", "/ld-linux-x86", "755");
    let [status, detail, remedy] = doctor()("wrapper");
    assert_eq!(status, "missing", "{detail}");
    assert!(detail.contains("with execgate-stand-in beside it, is not in ../libexec/execgate"));
    assert!(remedy.contains("make build"), "{remedy}");
    exec()
        .exits(125)
        .prints("")
        .says("with execgate-stand-in beside it");
    write("libexec/execgate/execgate-stand-in", "", "755");
    let [status, detail, remedy] = doctor()("wrapper");
    assert_eq!(status, "weak", "{detail}");
    assert!(detail.ends_with("is dynamically linked: each exec is slower"));
    assert!(remedy.contains("links it statically"), "{remedy}");

    // A shell that knows of wrappers and executes without them.
    write(
        "libexec/execgate/bash",
        "#!/bin/sh\n# EXEC_WRAPPER\n",
        "755",
    );
    // One that does as it is to do, and one that can't be executed.
    let shell = "#!/bin/sh\nexec \"$EXEC_WRAPPER\"\n";
    write("libexec/execgate/zsh", shell, "755");
    let found = doctor();
    let [status, detail, remedy] = found("bash");
    assert_eq!(status, "missing", "{detail}");
    assert!(detail.ends_with("isn't patched: its execs can't be gated"));
    assert!(remedy.contains("builds a patched one"), "{remedy}");
    assert_eq!(found("zsh")[0], "good", "{:?}", found("zsh"));
    write("libexec/execgate/zsh", shell, "644");
    let [status, detail, remedy] = doctor()("zsh");
    assert_eq!(status, "missing", "{detail}");
    assert!(detail.contains("Permission denied"), "{detail}");
    assert!(remedy.contains("builds one for this machine"), "{remedy}");

    // What makes sandboxes is tried as well.
    let [status, detail, remedy] = doctor()("bubblewrap");
    assert_eq!(
        (&*status, &*detail, &*remedy),
        (
            "weak",
            "--sandbox bubblewrap can't be used: bubblewrap isn't installed",
            "apt-get install bubblewrap"
        )
    );
    write(
        "tools/bwrap",
        "#!/bin/sh\necho no namespaces >&2; exit 1\n",
        "755",
    );
    let [status, detail, remedy] = doctor()("bubblewrap");
    assert_eq!(status, "weak", "{detail}");
    assert!(detail.starts_with("--sandbox bubblewrap can't be used: "));
    assert!(detail.ends_with("/bwrap can't make a sandbox: no namespaces"));
    assert!(remedy.contains("unprivileged user namespaces"), "{remedy}");
}

#[test]
fn the_doctor_looks_at_limits_and_services() {
    let limited = |limit: &str| {
        let mut command = Command::new("/bin/sh");
        let text = format!("ulimit -n {limit}; exec \"$@\"");
        command.args(["-c", &text, "sh", EXECGATE]).env_clear();
        findings(&mut command)("open files")
    };
    let [status, detail, remedy] = limited("100");
    assert_eq!(status, "weak", "{detail}");
    assert_eq!(detail, "only 100: few commands can wait at once");
    assert!(remedy.contains("ulimit -Hn"), "{remedy}");
    // The soft limit is the gate's to raise.
    let [status, detail, _] = limited("4096; ulimit -Sn 100");
    assert_eq!((&*status, &*detail), ("good", "up to 4096"));

    let place = directory();
    std::fs::write(place.path().join("rules.star"), "fallback(\"run\")").expect("a file");
    let policyd = Policyd::start(place.path(), "127.0.0.1:0");
    for (url, status, what, advice) in [
        (&*policyd.url, "good", "answers", ""),
        (
            "127.0.0.1:1",
            "missing",
            "has no scheme",
            "correct --policy or EXECGATE_POLICY",
        ),
        (
            "http://127.0.0.1:1",
            "missing",
            "http://127.0.0.1:1",
            "start the service",
        ),
    ] {
        let mut command = Command::new(EXECGATE);
        command.env_clear().env("EXECGATE_POLICY", url);
        let found = findings(&mut command)("policy service");
        assert_eq!(found[0], status, "{url}: {found:?}");
        assert!(found[1].contains(what), "{url}: {found:?}");
        assert!(found[2].starts_with(advice), "{url}: {found:?}");
    }
    policyd.stop();
    let mut command = Command::new(EXECGATE);
    command.env_clear().env("EXECGATE_POLICY", "");
    let [status, detail, _] = findings(&mut command)("policy service");
    assert_eq!((&*status, &*detail), ("weak", "none named"));
}

#[test]
fn doctor_says_what_sandboxes_enforce() {
    let found = findings(&mut Command::new(EXECGATE));
    let [status, detail, _] = found("landlock");
    let kernels = Landlock::find();
    let (expected, words) = match &kernels {
        Ok(Landlock { version, lacking }) if lacking.is_empty() => (
            "good",
            format!(
                "version {version}: --sandbox landlock enforces profiles fully; what they don't cover: modes, owners"
            ),
        ),
        Ok(Landlock { version, lacking }) => (
            "weak",
            format!(
                "version {version}: --sandbox landlock enforces profiles partially: {}",
                lacking.join("; ")
            ),
        ),
        Err(_) => (
            "weak",
            "--sandbox landlock, the default, can't be used: ".to_owned(),
        ),
    };
    assert_eq!(status, expected, "{detail}");
    assert!(detail.starts_with(&words), "{detail}");

    let [status, detail, _] = found("bubblewrap");
    let (expected, words) = if bubblewrap() {
        (
            "good",
            ": --sandbox bubblewrap enforces profiles fully; what they don't cover: what is hidden",
        )
    } else {
        ("weak", "--sandbox bubblewrap can't be used: ")
    };
    assert_eq!(status, expected, "{detail}");
    assert!(detail.contains(words), "{detail}");
}
