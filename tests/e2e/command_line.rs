//! `execgate` as it is installed, and what its commands say, print and exit with.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use tempfile::TempDir;

use crate::gate::directory;
use crate::machine::{Shell, repository};
use crate::process::{self, Done, EXECGATE, lossy};

fn execgate(arguments: &[&str]) -> Done {
    process::run(
        Command::new(EXECGATE)
            .args(arguments)
            .env_clear()
            .env("PATH", "/usr/bin:/bin"),
    )
}

/// The programs as `make install` leaves them.
struct Installed {
    prefix: TempDir,
}

impl Installed {
    fn new() -> Option<Self> {
        Shell::find("bash").and(Shell::find("zsh"))?;
        let prefix = directory();
        std::fs::create_dir(prefix.path().join("bin")).expect("a directory");
        std::fs::create_dir(prefix.path().join("libexec")).expect("a directory");
        let installed = Self { prefix };
        std::fs::copy(EXECGATE, installed.program()).expect("a copy");
        let dist = repository().join("target/dist/libexec/execgate");
        let libexec = installed.prefix.path().join("libexec/execgate");
        std::os::unix::fs::symlink(dist, libexec).expect("a link");
        Some(installed)
    }

    fn program(&self) -> PathBuf {
        self.prefix.path().join("bin/execgate")
    }

    fn run(&self, arguments: &[&str]) -> Done {
        process::run(
            Command::new(self.program())
                .args(arguments)
                .env_clear()
                .env("PATH", "/usr/bin:/bin"),
        )
    }
}

fn rules(directory: &Path, text: &str) -> String {
    let path = directory.join("x.star");
    std::fs::write(&path, text).expect("a file");
    path.to_str().expect("text").to_owned()
}

#[test]
fn what_is_no_regular_file_is_refused_rather_than_waited_for() {
    let directory = directory();
    let pipe = directory.path().join("pipe");
    let made = Command::new("mkfifo").arg(&pipe).status();
    assert!(made.expect("mkfifo").success());
    let pipe = pipe.to_str().expect("text");
    let service = ["--policy", "http://127.0.0.1:1"];
    let secure = ["--policy", "https://localhost:1", "--policy-ca", pipe];
    let token = [
        "--policy",
        "http://127.0.0.1:1",
        "--policy-token-file",
        pipe,
    ];
    for options in [
        [&service[..], &["--shell", pipe]].concat(),
        [&service[..], &["--shell", "/dev/zero"]].concat(),
        [&service[..], &["--profiles", pipe, "--profile", "build"]].concat(),
        secure.to_vec(),
        token.to_vec(),
    ] {
        let done = execgate(&[&["exec"], &options[..], &["--", "true"]].concat());
        done.exits(125).says("isn't a regular file");
    }
    done_checks(pipe);
}

/// The same of files that the policy service and its tools read.
fn done_checks(pipe: &str) {
    let rules = ["check", "--rules", pipe, "--", "true"];
    assert!(execgate(&rules).exits(2).errors().contains("regular file"));
}

#[test]
fn installed_programs_find_wrapper_and_shells_beside_themselves() {
    let Some(installed) = Installed::new() else {
        return;
    };
    let done = installed.run(&["doctor"]);
    done.exits(0);
    for subject in ["wrapper", "bash", "zsh"] {
        let line = done
            .output()
            .lines()
            .find(|line| line.contains(subject))
            .map(str::to_owned);
        assert!(
            line.is_some_and(|line| line.starts_with("good")),
            "{subject}: {done}"
        );
    }
    // With no policy service everything but the shell's own doing is denied; bash is the default.
    let service = [
        "--policy",
        "http://127.0.0.1:1",
        "--verdict-timeout",
        "200ms",
    ];
    let script = ["--no-login", "--", "echo $BASH_VERSION; /bin/true"];
    let done = installed.run(&[&["exec"], &service[..], &script].concat());
    assert!(done.exits(1).output().starts_with("5."), "{done}");
    let script = [
        "--no-login",
        "--shell",
        "zsh",
        "--",
        "echo $ZSH_VERSION; /bin/true",
    ];
    let done = installed.run(&[&["exec"], &service[..], &script].concat());
    assert!(done.exits(1).output().starts_with("5."), "{done}");
}

#[test]
fn the_doctor_says_what_is_missing_and_how_to_get_it() {
    // The program alone, as nobody installs it.
    let place = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory");
    let program = place.path().join("execgate");
    std::fs::hard_link(EXECGATE, &program).expect("a link");
    let doctor = |arguments: &[&str]| {
        let mut command = Command::new(&program);
        command.arg("doctor").args(arguments);
        process::run(command.env_clear().env("PATH", "/usr/bin:/bin"))
    };
    let done = doctor(&[]);
    done.exits(1);
    let output = done.output();
    assert!(
        output.contains("missing bash            no patched shell bash\n"),
        "{done}"
    );
    assert!(output.contains("make build"), "{done}");
    assert!(!output.contains('\x1b'), "{done}");

    let done = doctor(&["--output", "json", "--policy", "http://127.0.0.1:1"]);
    let json: Value = serde_json::from_slice(&done.exits(1).stdout).expect("JSON");
    let findings = json["findings"].as_array().expect("findings");
    let subjects: Vec<_> = findings
        .iter()
        .filter_map(|finding| finding["subject"].as_str())
        .collect();
    let expected = [
        "kernel",
        "exit status",
        "wrapper",
        "bash",
        "zsh",
        "clean-up",
        "open files",
        "clock",
        "landlock",
        "bubblewrap",
        "denials",
        "policy service",
    ];
    assert_eq!(subjects, expected);
    for finding in findings {
        let status = finding["status"].as_str().expect("a status");
        assert!(["good", "weak", "missing"].contains(&status), "{finding}");
        assert_eq!(finding["remedy"].is_string(), status != "good", "{finding}");
        assert!(finding["detail"].is_string(), "{finding}");
    }
    assert_eq!(findings[11]["status"], "missing");
}

#[test]
fn nothing_runs_where_no_policy_service_is_named() {
    for variable in [None, Some("")] {
        let mut command = Command::new(EXECGATE);
        command
            .env_clear()
            .args(["exec", "--shell", "/bin/sh", "--", "echo x"]);
        command.envs(variable.map(|value| ("EXECGATE_POLICY", value)));
        let done = process::run(&mut command);
        done.exits(125)
            .prints("")
            .says("no policy service is named")
            .says("hint: ");
    }
}

#[test]
fn command_lines_that_make_no_sense_exit_with_2() {
    let service = "http://127.0.0.1:1";
    // Each with what is wrong, so that it is refused for nothing else.
    let lines: [(&[&str], &str); 24] = [
        (&["exec"], "not provided:\n  <COMMAND>"),
        (&["exec", "echo"], "unexpected argument 'echo'"),
        (&["exec", "--"], "not provided:\n  <COMMAND>"),
        (&["exec", "--label", "x", "--", "y"], "write KEY=VALUE"),
        (&["exec", "--label", "=x", "--", "y"], "write KEY=VALUE"),
        (
            &["exec", "--timeout", "5 parsecs", "--", "y"],
            "write a time such as",
        ),
        (
            &["exec", "--timeout", "0", "--", "y"],
            "1ms is the shortest",
        ),
        (
            &["exec", "--on-unavailable", "escalate", "--", "y"],
            "[possible values: deny, run]",
        ),
        (
            &["exec", "--sandbox", "jail", "--", "y"],
            "write landlock, bubblewrap, none, or command:TEMPLATE",
        ),
        (
            &["exec", "--output", "xml", "--", "y"],
            "[possible values: text, json]",
        ),
        (
            &["exec", "--journal-limit", "1MB", "--", "y"],
            "write a size such as 64MiB",
        ),
        (
            &["exec", "--journal-limit", "1000", "--", "y"],
            "a journal has at least 1MiB",
        ),
        (
            &["exec", "--policy-cert", "x", "--", "y"],
            "not provided:\n  --policy-key <FILE>",
        ),
        (
            &["exec", "--escalation-bound", "x", "--", "y"],
            "not provided:\n  --profiles <FILE>",
        ),
        (
            &["audit"],
            "nothing to read from: give the store's directory",
        ),
        (
            &["audit", "--data", "/nonexistent", "--since", "yesterday"],
            "write an age such as 15m, or a time such as",
        ),
        (
            &["audit", "--data", "/nonexistent"],
            "there is no event store at /nonexistent/events.sqlite",
        ),
        (
            &["audit", "--data", "/nonexistent", "--service", service],
            "--data and --service both say where the record is",
        ),
        (
            &["watch"],
            "hint: give --service URL, or set EXECGATE_SERVICE",
        ),
        (
            &["sessions", "terminate", "123", "--service", service],
            "a session's id has 32 lowercase hexadecimal digits",
        ),
        (&["check", "--", "x"], "not provided:\n  --rules <PATH>"),
        (
            &["check", "--rules", "/nonexistent", "--", "x"],
            "reading the rules file /nonexistent: No such file",
        ),
        (&["nonsense"], "unrecognized subcommand 'nonsense'"),
        (&[], "First steps:"),
    ];
    for (arguments, what) in lines {
        execgate(arguments).exits(2).prints("").says(what);
    }
}

#[test]
fn an_address_or_a_shell_that_makes_no_sense_is_an_error_of_the_gate() {
    let policy = ["--policy", "http://127.0.0.1:1"];
    for (endpoint, what) in [
        ("127.0.0.1:1", "has no scheme"),
        ("ftp://127.0.0.1", "ftp"),
        ("unix:policy.sock", "absolute"),
    ] {
        let done = execgate(&[
            "exec", "--policy", endpoint, "--shell", "/bin/sh", "--", "echo x",
        ]);
        done.exits(125).prints("").says(what);
    }
    let done = execgate(
        &[
            &["exec", "--shell", "/nonexistent/sh"],
            &policy[..],
            &["--", "x"],
        ]
        .concat(),
    );
    done.exits(125)
        .says("no patched shell /nonexistent/sh")
        .says("hint: ");
}

#[test]
fn a_shell_that_would_not_ask_is_refused() {
    for (shell, what) in [
        ("/bin/sh", "isn't a patched shell"),
        ("/etc/passwd", "isn't a patched shell"),
        ("/etc", "isn't a regular file"),
        ("/nonexistent/sh", "no patched shell /nonexistent/sh"),
        ("sh", "no patched shell sh"),
    ] {
        let policy = ["exec", "--policy", "http://127.0.0.1:1", "--no-login"];
        let done = execgate(&[&policy[..], &["--shell", shell, "--", "echo x"]].concat());
        done.exits(125).prints("").says(what);
    }
}

#[test]
fn check_answers_by_text_json_and_exit_code() {
    let place = directory();
    let rules = rules(
        place.path(),
        "prefix_rule([\"true\"])\nprefix_rule([\"uname\"], \"escalate\", execution = \"turn_default\")\n\
         prefix_rule([\"date\", \"-s\"], \"deny\", justification = \"No.\", name = \"clock\")\n",
    );
    let check =
        |command: &[&str]| execgate(&[&["check", "--rules", &rules, "--"], command].concat());
    check(&["true"]).exits(0).says_nothing();
    check(&["uname", "-a"]).exits(3);
    let done = check(&["date", "-s", "now"]);
    done.exits(4);
    assert!(
        done.output()
            .contains("answer    deny\nrule      clock\nreason    No.\n"),
        "{done}"
    );
    let done = check(&["date"]);
    done.exits(4);
    assert!(done.output().contains("no rule matches"), "{done}");
    check(&["nonexistent-program"])
        .exits(2)
        .prints("")
        .says("no directory of PATH");
    check(&[""]).exits(2).prints("");
    let done = execgate(&[
        "check",
        "--rules",
        &rules,
        "--output",
        "json",
        "--",
        "/usr/bin/uname",
    ]);
    let json: Value = serde_json::from_slice(&done.exits(3).stdout).expect("JSON");
    assert_eq!(
        (&json["decision"], &json["execution"]),
        (&"escalate".into(), &"turn_default".into())
    );

    let failing = self::rules(place.path(), "def decide(exec):\n    return exec.nothing\n");
    let done = execgate(&["check", "--rules", &failing, "--", "true"]);
    // Once, and where it failed.
    let said = done.exits(4).says_nothing().output();
    assert!(
        said.contains("-> deny                   x.star:2 decide (decide() failed): "),
        "{done}"
    );
    assert!(
        said.contains("reason    the policy's decide() failed at x.star:2: "),
        "{done}"
    );

    let broken = self::rules(place.path(), "prefix_rule([\"a\"])\nprefix_rule(7)\n");
    let done = execgate(&["check", "--rules", &broken, "--", "true"]);
    done.exits(2).prints("").says("x.star:2");
}

#[test]
fn a_reader_that_went_away_and_a_full_disk_are_told() {
    let place = directory();
    let rules = rules(place.path(), "fallback(\"run\")");
    for (arguments, status, said) in [
        (
            &["check", "--rules", &rules, "--", "true"][..],
            1,
            "execgate: ",
        ),
        (&["doctor"], 125, "execgate: cannot write the findings: "),
        (
            &["completions", "bash"],
            1,
            "execgate: cannot write the completions: ",
        ),
    ] {
        let full = std::fs::OpenOptions::new()
            .write(true)
            .open("/dev/full")
            .expect("a device");
        let output = Command::new(EXECGATE)
            .args(arguments)
            .stdout(full)
            .output()
            .expect("it runs");
        assert_eq!(
            output.status.code(),
            Some(status),
            "{}",
            lossy(&output.stderr)
        );
        let errors = lossy(&output.stderr);
        assert!(errors.contains("No space left"), "{errors}");
        assert!(errors.starts_with(said), "{errors}");
    }
}
