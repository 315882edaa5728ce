//! Sessions that may write a directory which holds something hidden: a home directory above all.

#![allow(
    clippy::needless_pass_by_value,
    reason = "a stage is its test's, which may change it"
)]

use std::process::Command;

use crate::gate::verdicts;
use crate::process::{self, EXECGATE};
use crate::stage::{RUN, Stage, User, everywhere};

everywhere! {
    a_session_in_a_home_directory_starts_and_hides_what_is_secret,
    what_is_to_be_read_only_is_so_inside_of_what_can_be_written,
    a_verdict_may_grant_a_directory_that_holds_a_secret,
}

/// A home directory as they are, with work in it, and a session that is started there.
fn at_home(stage: Stage) -> Stage {
    for directory in [
        "home/project",
        "home/.config",
        "home/.config/gh",
        "home/.config/tool",
        "home/.cargo",
    ] {
        std::fs::create_dir(stage.path(directory)).expect("a directory");
        stage.give(&stage.path(directory), 0o755);
    }
    for secret in [
        "home/.config/gh/hosts.yml",
        "home/.cargo/credentials.toml",
        "home/.bash_history",
    ] {
        stage.write(secret, "secret-of-mine\n");
    }
    for file in ["home/notes", "home/.cargo/config.toml", "home/project/file"] {
        stage.write(file, "mine\n");
    }
    std::os::unix::fs::symlink(stage.path("home/.netrc"), stage.path("home/link")).expect("a link");
    std::os::unix::fs::symlink(stage.path("outside"), stage.path("home/out")).expect("a link");
    let home = stage.path("home").display().to_string();
    stage.option(["--workdir", &home])
}

fn a_session_in_a_home_directory_starts_and_hides_what_is_secret(stage: Stage) {
    let stage = at_home(stage);
    // What is there can be worked with.
    stage.can("pwd -P; echo more >>notes && echo new >notes && : >notes && cat notes");
    stage.can(
        "cd project && echo a >b && mkdir c && mv b c/ && rm -r c && sed -i s/mine/yours/ file",
    );
    stage.can("echo x >.config/tool/settings && mv project/file .config/tool/ && mv .config/tool/file project/");
    stage.can("cd project && git init -q . && git add . && git -c user.name=a -c user.email=a@b commit -qm one");
    stage.can("cat .cargo/config.toml && echo x >>.cargo/config.toml && echo x >$TMPDIR/x");
    // What is hidden stays so: its content, its name and its place.
    for secret in [
        ".ssh/id",
        ".aws/credentials",
        ".netrc",
        ".config/gh/hosts.yml",
        ".cargo/credentials.toml",
        ".bash_history",
        "link",
    ] {
        stage.cannot(&format!("cat {secret}"));
        stage.cannot(&format!("echo x >>{secret}"));
        stage.cannot(&format!(": >{secret}"));
    }
    for attempt in [
        "mv .ssh project/mine",
        "mv .netrc project/mine",
        "ln .netrc project/mine",
        "ln .cargo/credentials.toml project/mine",
        "mv .config/gh project/mine",
        "cp -r .ssh project/mine && cat project/mine/id",
        "rm -f .netrc && ! test -e .netrc",
        "rm -rf .ssh && ! test -e .ssh",
        "echo x >.ssh/new",
        "mkdir .ssh/new",
        "mv project .ssh",
        "mv project/file .netrc",
        "mv project/file .ssh/",
        "ln -sf project/file .netrc",
        "echo x >out/new",
        "rm -f out/file && ! test -e out/file",
    ] {
        stage.cannot(attempt);
    }
    let message = "nothing can be made, renamed or removed directly in";
    if stage.backend == "landlock" {
        let home = stage.path("home").display().to_string();
        let done = stage.can("true");
        done.says(message)
            .says(&format!("directly in {home}: it holds "))
            .says(&format!("directly in {home}/.config: it holds gh, which"))
            .says("use --sandbox bubblewrap");
        for attempt in [
            "echo x >new",
            "mkdir new",
            "mv notes other",
            "rm -f notes && ! test -e notes",
            "mv project other",
            "mv .config project/mine",
            "echo x >.config/new",
            "mv .config/tool project/",
        ] {
            stage.cannot(attempt);
        }
        // What comes into being there meanwhile is out of reach, secret or not.
        let mut session =
            stage.command("echo ready; read line; cat .kube/config new .git-credentials");
        let mut running = process::Running::start(&mut session);
        running.wait_for("ready");
        std::fs::create_dir(stage.path("home/.kube")).expect("a directory");
        for name in ["home/.kube/config", "home/new", "home/.git-credentials"] {
            stage.write(name, "secret-of-mine\n");
        }
        running.tell("");
        let done = running.done();
        assert!(!done.output().contains("secret"), "{done}");
    } else {
        let done =
            stage.can("echo x >new && mkdir d && mv new d/ && rm -r d && mv notes n && mv n notes");
        assert!(!done.errors().contains(message), "{done}");
    }
    stage
        .outside("cat ~/.ssh/id ~/.netrc ~/.config/gh/hosts.yml ~/.cargo/credentials.toml; cat $OUTSIDE/file; ls $OUTSIDE ~/.ssh ~/project")
        .exits(0)
        .says_nothing();
}

fn what_is_to_be_read_only_is_so_inside_of_what_can_be_written(stage: Stage) {
    for directory in ["work/vendor", "work/source"] {
        std::fs::create_dir(stage.path(directory)).expect("a directory");
        stage.give(&stage.path(directory), 0o755);
    }
    stage.write("work/vendor/file", "mine\n");
    let stage = stage.option(["--read", "/", "--read", "./vendor"]);
    stage.can("cat vendor/file && echo x >source/new");
    for attempt in [
        "echo x >vendor/file",
        "echo x >vendor/new",
        "rm -f vendor/file && ! test -e vendor/file",
        "mv vendor source/",
        "mv vendor/file source/",
        "ln vendor/file source/l && echo x >source/l",
    ] {
        stage.cannot(attempt);
    }
    stage.outside("cat vendor/file").prints("mine\n");
}

fn a_verdict_may_grant_a_directory_that_holds_a_secret(stage: Stage) {
    let home = stage.path("home").display().to_string();
    stage.gate.write_rules(&format!(
        "prefix_rule([\"cp\"], \"escalate\", execution = permissions(network = \"denied\", write = [\"{home}\"]))\n\
         fallback(\"run\")"
    ));
    process::wait_until("new rules", || {
        let done = stage.run("cp /etc/hostname ~/open/first");
        done.status.success()
    });
    stage.can("cp /etc/hostname ~/open/copy");
    stage.cannot("cp ~/.ssh/id ~/open/copy");
    stage.cannot("cp /etc/hostname ~/.ssh/id");
    stage.cannot("cp ~/.netrc ~/open/copy");
    stage.outside("cat ~/.ssh/id").prints("secret-of-mine\n");
}

#[test]
fn the_root_directory_is_not_written_under_landlock() {
    let Some(stage) = Stage::new("landlock", User::Own, RUN) else {
        return;
    };
    let stage = stage.option(["--workdir", "/"]);
    stage
        .run("true")
        .exits(125)
        .says("/ is to be written, and ")
        .says("hint: start it in another directory");
}

#[test]
fn what_a_home_narrows_is_in_the_record_and_rules_see_it() {
    let Some(stage) = Stage::new("landlock", User::Own, RUN) else {
        return;
    };
    let stage = at_home(stage);
    stage.gate.write_rules(
        "def decide(exec):\n    return deny(reason = \"%s: %s\" % (exec.sandbox.enforcement, exec.sandbox.not_granted))\n",
    );
    process::wait_until("new rules", || {
        stage.run("uname").errors().contains("denied")
    });
    // Nothing less is confined.
    stage
        .run("uname")
        .says("full: [\"nothing can be made, renamed or removed directly in ");
}

#[test]
fn a_path_of_thousands_of_bytes_is_no_reason_for_the_policy_service_to_refuse() {
    let Some(stage) = Stage::new("landlock", User::Own, RUN) else {
        return;
    };
    // Deep, and each with something hidden: more directories and longer sentences than the service takes.
    let mut options = Vec::new();
    let mut path = stage.path("work");
    for number in 0..70 {
        path.push(format!("{number}-{}", "é".repeat(20)));
        std::fs::create_dir(&path).expect("a directory");
        std::fs::write(path.join("hidden"), "secret-of-mine\n").expect("a file");
        options.extend([
            "--hide".to_owned(),
            path.join("hidden").display().to_string(),
        ]);
    }
    let mut command = stage.command("/bin/echo started");
    let arguments: Vec<_> = command.get_args().map(ToOwned::to_owned).collect();
    let at = arguments.iter().position(|word| word == "--").expect("it");
    let mut longer = Command::new(EXECGATE);
    longer
        .args(&arguments[..at])
        .args(&options)
        .args(&arguments[at..])
        .env_clear()
        .current_dir(stage.path("work"));
    for (name, value) in command.env_remove("NONE").get_envs() {
        if let Some(value) = value {
            longer.env(name, value);
        }
    }
    process::run(&mut longer)
        .exits(0)
        .prints("started\n")
        .says("nor in 39 more directories");
    // It was asked, and has what was said of the sandbox.
    let execs = stage.gate.audit();
    assert_eq!(verdicts(&execs), ["echo run"]);
    let report = &execs[0].0["session_facts"]["sandbox"];
    assert_eq!(report["backend"], "landlock", "{report}");
    let parts = report["not_granted"].as_array().expect("a list");
    let [named @ .., rest] = &parts[..] else {
        panic!("{report}");
    };
    assert_eq!(named.len(), 32, "{report}");
    assert_eq!(rest, "nor in 39 more directories");
    let first = named[0].as_str().expect("text");
    let work = stage.path("work").display().to_string();
    assert!(first.contains(&work), "{first}");
}
