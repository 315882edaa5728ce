//! What somebody reads who does it for the first time, and wrong: each message names what it is about and says what
//! to do.

use std::net::TcpListener;
use std::process::Command;

use crate::gate::directory;
use crate::machine::{Shell, repository};
use crate::process::{self, Done, EXECGATE};
use crate::service::POLICYD;

const NOWHERE: &str = "http://127.0.0.1:1";

fn run(program: &str, arguments: &[&str]) -> Done {
    let mut command = Command::new(program);
    command
        .args(arguments)
        .env_clear()
        .env("PATH", "/usr/bin:/bin");
    process::run(&mut command)
}

fn execgate(arguments: &[&str]) -> Done {
    run(EXECGATE, arguments)
}

/// A line of an operator whose token nobody has.
fn operator() -> String {
    format!("ada {}\n", "0".repeat(64))
}

#[test]
fn a_log_filter_that_nothing_logs_by_is_refused() {
    for filter in [
        "warm",
        "info,warm",
        "execgat=debug",
        "execgate::lnk=debug",
        "=?=",
    ] {
        let done = execgate(&["--log", filter, "doctor"]);
        done.exits(2)
            .prints("")
            .says("--log")
            .says("write error, warn, info");
        let done = run(POLICYD, &["--rules", "/nonexistent", "--log", filter]);
        done.exits(2)
            .prints("")
            .says("--log")
            .says("write error, warn, info");
    }
    for (variable, program, arguments) in [
        ("EXECGATE_LOG", EXECGATE, &["doctor"][..]),
        (
            "EXECGATE_POLICYD_LOG",
            POLICYD,
            &["--rules", "/nonexistent"],
        ),
    ] {
        let mut command = Command::new(program);
        command.args(arguments).env_clear().env(variable, "warm");
        process::run(&mut command)
            .exits(2)
            .says("\"warm\" is no level");
    }
}

#[test]
fn an_address_that_is_taken_is_said_with_the_option_that_named_it() {
    let place = directory();
    let path = |name: &str| place.path().join(name).display().to_string();
    let (rules, operators) = (path("x.star"), path("operators"));
    std::fs::write(&rules, "fallback(\"run\")\n").expect("a file");
    std::fs::write(&operators, operator()).expect("a file");
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let taken = listener.local_addr().expect("an address").to_string();
    let policyd = |arguments: &[&str]| {
        let fixed = ["--rules", &rules, "--operators", &operators];
        run(POLICYD, &[&fixed, arguments].concat())
    };
    let free = ["--listen", "127.0.0.1:0"];
    for (option, arguments) in [
        ("--listen", &["--listen", &taken][..]),
        ("--console", &[&free[..], &["--console", &taken]].concat()),
        ("--metrics", &[&free[..], &["--metrics", &taken]].concat()),
    ] {
        let done = policyd(arguments);
        done.exits(5)
            .says(&format!("execgate-policyd: {option}: "))
            .says(&taken)
            .says("another process listens there");
    }
    let done = execgate(&["exec", "--policy", NOWHERE, "--metrics", &taken, "--", "x"]);
    done.exits(125).says(&taken).says("--metrics");
    drop(listener);

    // What other programs take.
    for url in ["http://127.0.0.1:0", "https://127.0.0.1:50051/"] {
        for option in ["--listen", "--console"] {
            policyd(&[option, url])
                .exits(2)
                .says(option)
                .says("write HOST:PORT alone");
        }
        policyd(&["--metrics", url])
            .exits(2)
            .says("write ADDRESS:PORT");
        execgate(&["exec", "--policy", NOWHERE, "--metrics", url, "--", "x"])
            .exits(2)
            .says("write ADDRESS:PORT");
    }
}

#[test]
fn a_variable_that_is_no_option_is_told_with_those_that_may_be_meant() {
    let mut command = Command::new(POLICYD);
    command.env_clear().args(["--rules", "/nonexistent"]);
    for (name, value) in [
        ("LOG", "warn"),
        ("MONITOR", "true"),
        ("OPERATOR", "/etc/execgate/operators"),
        ("RETAIN", "1d"),
        ("INSECURE_LISTEN", "true"),
        ("\u{1b}[31m", "x"),
    ] {
        command.env(format!("EXECGATE_POLICYD_{name}"), value);
    }
    // Not the service's.
    command.env("EXECGATE_POLICY_CAA", "x");
    let done = process::run(&mut command);
    done.exits(3)
        .says("OPERATOR is no option's, and changes nothing; is EXECGATE_POLICYD_OPERATORS meant?")
        .says("RETAIN is no option's, and changes nothing; is EXECGATE_POLICYD_RETAIN_AGE or EXECGATE_POLICYD_RETAIN_SIZE meant?")
        .says("INSECURE_LISTEN is no option's, and changes nothing; `execgate-policyd --help`")
        .says("EXECGATE_POLICYD_\\x1b[31m is no option's");
    assert_eq!(done.errors().matches("is no option's").count(), 4, "{done}");
}

#[test]
fn a_wrong_value_that_a_variable_has_is_told_with_its_name() {
    let policyd = ["--rules", "/nonexistent"];
    let list = ["approvals", "list", "--service", NOWHERE];
    let exec = ["exec", "--policy", NOWHERE, "--", "true"];
    for (program, arguments, option, variable, value) in [
        (
            EXECGATE,
            &list[..],
            "--service-token-file",
            "EXECGATE_SERVICE_TOKEN_FILE",
            "",
        ),
        (
            EXECGATE,
            &list,
            "--service-uid",
            "EXECGATE_SERVICE_UID",
            "0,ada",
        ),
        (
            EXECGATE,
            &list,
            "--log-format",
            "EXECGATE_LOG_FORMAT",
            "xml",
        ),
        (EXECGATE, &exec, "--policy-ca", "EXECGATE_POLICY_CA", ""),
        (EXECGATE, &exec, "--journal", "EXECGATE_JOURNAL", ""),
        (EXECGATE, &["audit"], "--data", "EXECGATE_POLICYD_DATA", ""),
        (POLICYD, &policyd, "--tokens", "EXECGATE_POLICYD_TOKENS", ""),
        (
            POLICYD,
            &policyd,
            "--allow-uid",
            "EXECGATE_POLICYD_ALLOW_UID",
            "ada",
        ),
    ] {
        let from = format!("the value is that of the variable {variable}");
        let options = arguments.iter().take_while(|word| **word != "--");
        let (options, rest) = arguments.split_at(options.count());
        let run = |more: &[&str]| {
            let mut command = Command::new(program);
            command.args(options).args(more).args(rest);
            process::run(command.env_clear().env(variable, value))
        };
        let wrong = format!("for '{option} <");
        run(&[]).exits(2).prints("").says(&wrong).says(&from);
        // What the command line says is its own.
        let done = run(&[&format!("{option}={value}")]);
        done.exits(2).says(&wrong);
        assert!(!done.errors().contains(variable), "{done}");
    }
}

#[test]
fn a_path_to_write_that_is_not_there_is_to_be_made() {
    let Some(shell) = Shell::find("bash") else {
        return;
    };
    let home = directory();
    let mut command = Command::new(EXECGATE);
    command.args(["exec", "--policy", NOWHERE, "--shell"]);
    command.arg(&shell.path);
    command.args(["--write", "~/.cache/build", "--", "true"]);
    let done = process::run(command.env_clear().env("HOME", home.path()));
    let path = home.path().join(".cache/build");
    done.exits(125).prints("").says(&format!(
        "write {}: No such file or directory (os error 2); make it first",
        path.display()
    ));
}

#[test]
fn words_that_are_in_the_wrong_place_are_said_where_they_belong() {
    execgate(&["exce"]).exits(2).says("'exec'");
    for (arguments, tip) in [
        (&["exec", "ls", "a b"][..], "execgate exec ... -- ls 'a b'"),
        (
            &["exec", "-c", "uname -s"],
            "execgate exec ... -- 'uname -s'",
        ),
        (&["shell", "--login", "x"], "execgate shell ... -- x"),
        (
            &["check", "--rules", "x", "git", "push"],
            "execgate check ... -- git push",
        ),
    ] {
        execgate(arguments).exits(2).prints("").says(tip);
    }
    // What is misspelt is no command.
    let done = execgate(&["exec", "--polcy", NOWHERE, "--", "ls"]);
    done.exits(2).says("--policy");
    assert!(!done.errors().contains("stands behind"), "{done}");

    let place = directory();
    let rules = place.path().join("x.star");
    std::fs::write(&rules, "fallback(\"run\")\n").expect("a file");
    let rules = rules.display().to_string();
    for string in ["true and so on", "/usr/bin/true and so on"] {
        let done = execgate(&["check", "--rules", &rules, "--", string]);
        done.exits(2).prints("").says(&format!("-- {string}"));
    }
    // A program may have such a name.
    let program = place.path().join("a program");
    std::fs::copy("/usr/bin/true", &program).expect("a copy");
    let program = program.display().to_string();
    execgate(&["check", "--rules", &rules, "--", &program]).exits(0);
}

#[test]
fn without_arguments_it_says_how_to_begin() {
    let done = execgate(&[]);
    done.exits(2)
        .says("First steps:")
        .says("execgate doctor")
        .says("execgate exec --policy");
}

#[test]
fn passwords_in_addresses_are_never_shown() {
    for url in [
        "http://me:hunter2@127.0.0.1:1",
        "me:hunter2@127.0.0.1:1",
        "http://me:hunt er2@127.0.0.1:1",
        "http://127.0.0.1:1/?token=hunter2",
    ] {
        for arguments in [
            &["exec", "--policy", url, "--", "true"][..],
            &["doctor", "--policy", url],
            &["audit", "--service", url],
        ] {
            let done = execgate(arguments);
            let text = done.output() + &done.errors();
            assert!(!text.contains("hunt"), "{done}");
            assert!(!done.status.success(), "{done}");
        }
    }
    let place = directory();
    let path = |name: &str| place.path().join(name).display().to_string();
    std::fs::write(path("x.star"), "fallback(\"run\")\n").expect("a file");
    std::fs::write(path("operators"), operator()).expect("a file");
    let done = run(
        POLICYD,
        &[
            "--rules",
            &path("x.star"),
            "--operators",
            &path("operators"),
            "--listen",
            "127.0.0.1:0",
            "--webhook-secret",
            &path("none"),
            "--webhook",
            "https://me:hunter2@127.0.0.1/",
        ],
    );
    done.exits(2).says("--webhook https://127.0.0.1: ");
    assert!(!done.errors().contains("hunter2"), "{done}");
}

#[test]
fn a_service_that_is_not_there_ends_each_command_alike() {
    let place = directory();
    let rules = place.path().join("x.star");
    std::fs::write(&rules, "fallback(\"run\")\n").expect("a file");
    let rules = rules.display().to_string();
    for command in [
        &["audit"][..],
        &["audit", "--output", "json"],
        &["watch"],
        &["watch", "--output", "json"],
        &["replay", "--rules", &rules],
        &["suggest"],
        &["approvals", "list"],
        &["approvals", "list", "--output", "json"],
        &["sessions", "list"],
        &["sessions", "list", "--output", "json"],
    ] {
        let done = execgate(&[command, &["--service", NOWHERE]].concat());
        done.exits(5)
            .prints("")
            .says(NOWHERE)
            .says("hint: start the service")
            .says("--service");
    }
}

#[test]
fn colours_are_for_terminals_and_not_for_all_of_them() {
    const TERMINAL: &str =
        "import os, pty, sys; sys.exit(os.waitstatus_to_exitcode(pty.spawn(sys.argv[1:])))";
    let on_terminal = |variable: Option<&str>, terminal: Option<&str>| {
        let mut command = Command::new("python3");
        command
            .args(["-c", TERMINAL, EXECGATE, "doctor", "--policy", NOWHERE])
            .env_clear()
            .env("PATH", "/usr/bin:/bin");
        command.envs(terminal.map(|value| ("TERM", value)));
        command.envs(variable.map(|value| ("NO_COLOR", value)));
        process::run(&mut command).output()
    };
    for (variable, terminal, is_coloured) in [
        (None, Some("xterm"), true),
        (Some(""), Some("xterm"), true),
        (Some("1"), Some("xterm"), false),
        (None, Some("dumb"), false),
        (None, Some(""), false),
        (None, None, false),
    ] {
        let output = on_terminal(variable, terminal);
        assert!(output.contains("policy service"), "{output:?}");
        assert_eq!(
            output.contains("\x1b["),
            is_coloured,
            "{variable:?} {terminal:?}: {output:?}"
        );
    }
    let done = execgate(&["doctor"]);
    assert!(!done.output().contains('\x1b'), "{done}");
}

#[test]
fn shells_and_manuals_know_the_programs() {
    let place = directory();
    for (program, option) in [
        ("execgate", "--redact-from"),
        ("execgate-policyd", "--client-ca"),
    ] {
        for shell in ["bash", "zsh", "fish"] {
            let done = execgate(&["completions", shell, "--program", program]);
            let script = done.exits(0).says_nothing().output();
            let words = option.trim_start_matches("--");
            assert!(
                script.contains(program) && script.contains(words),
                "{script}"
            );
            if shell == "bash" {
                if program == "execgate" {
                    let backends = "\"landlock bubblewrap none command:\"";
                    assert!(script.contains(backends), "{script}");
                }
                let file = place.path().join(program);
                std::fs::write(&file, script).expect("a file");
                let file = file.display().to_string();
                run("bash", &["-n", &file]).exits(0).says_nothing();
            }
        }
    }
    let pages = place.path().display().to_string();
    execgate(&["manual", &pages]).exits(0).says_nothing();
    for (page, words) in [
        ("execgate.1", "First steps"),
        ("execgate-exec.1", "redact"),
        ("execgate-approvals-list.1", "service"),
        ("execgate-policyd.1", "Exit codes:"),
    ] {
        let page = std::fs::read_to_string(place.path().join(page)).expect(page);
        assert!(page.contains(words), "{page}");
        assert!(page.contains(".TH "), "{page}");
    }
    execgate(&["manual", "/nonexistent/x"])
        .exits(1)
        .says("/nonexistent/x");
    let makefile = std::fs::read_to_string(repository().join("Makefile")).expect("a file");
    assert!(
        makefile.contains("/execgate manual $(DIST)/share/man/man1\n"),
        "`make install` takes them along"
    );
}

#[test]
fn a_directory_that_can_not_be_entered_is_named() {
    let place = directory();
    let file = place.path().join("file");
    std::fs::write(&file, "").expect("a file");
    let locked = place.path().join("locked");
    std::fs::create_dir(&locked).expect("a directory");
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o000);
    std::fs::set_permissions(&locked, mode).expect("a mode");
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(place.path(), open).expect("a mode");
    let nowhere = place.path().join("nowhere");
    // Where other users can execute it.
    let program = place.path().join("execgate");
    std::fs::copy(EXECGATE, &program).expect("a copy");
    for (directory, why) in [
        (&file, "Not a directory"),
        (&locked, "Permission denied"),
        (&nowhere, "No such file or directory"),
    ] {
        let directory = directory.display().to_string();
        let arguments = [
            "exec",
            "--policy",
            NOWHERE,
            "--no-login",
            "--workdir",
            &directory,
            "--",
            "pwd",
        ];
        let mut command = Command::new(&program);
        command.args(arguments);
        // Permissions say nothing to root.
        let is_root = std::fs::metadata("/proc/self")
            .is_ok_and(|own| std::os::unix::fs::MetadataExt::uid(&own) == 0);
        if is_root {
            command = Command::new("setpriv");
            command.args(["--reuid", "65534", "--regid", "65534", "--clear-groups"]);
            command.arg(&program);
            command.args(arguments);
        }
        let done = process::run(command.env_clear().env("PATH", "/usr/bin:/bin"));
        done.exits(125)
            .prints("")
            .says(&format!(
                "cannot use {directory} as the working directory: {why}"
            ))
            .says("hint: --workdir DIRECTORY");
    }
}

#[test]
fn a_clock_that_is_behind_is_told() {
    let place = directory();
    let program = place.path().join("execgate");
    std::fs::copy(EXECGATE, &program).expect("a copy");
    let doctor = || {
        let mut command = Command::new(&program);
        let done = process::run(command.arg("doctor").env_clear());
        let output = done.output();
        let line = output.lines().find(|line| line.contains(" clock "));
        line.expect("a clock").to_owned()
    };
    assert!(doctor().starts_with("good "), "{}", doctor());
    let later = std::time::SystemTime::now() + std::time::Duration::from_secs(3600);
    let file = std::fs::File::options().append(true).open(&program);
    file.expect("a file").set_modified(later).expect("a time");
    assert!(doctor().starts_with("weak "), "{}", doctor());
}
