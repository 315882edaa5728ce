//! A place to try what sandboxes do in, for each backend and each user.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use tempfile::TempDir;

use crate::gate::Gate;
use crate::machine::{Shell, available, repository};
use crate::process::{self, Done, EXECGATE};

/// Who owns nothing: `nobody`.
const NOBODY: u32 = 65534;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum User {
    Own,
    Nobody,
}

pub(crate) fn as_nobody(program: &str) -> Command {
    let mut command = Command::new("setpriv");
    let user = NOBODY.to_string();
    command
        .args(["--reuid", &user, "--regid", &user, "--clear-groups", "--"])
        .arg(program);
    command
}

/// A place with a policy that lets all run, for sessions of one user.
pub(crate) struct Stage {
    pub(crate) user: User,
    pub(crate) backend: &'static str,
    pub(crate) gate: Gate,
    pub(crate) place: TempDir,
    pub(crate) options: Vec<String>,
}

impl Stage {
    pub(crate) fn new(backend: &'static str, user: User, rules: &str) -> Option<Self> {
        let shell = Shell::find("bash")?;
        if backend == "bubblewrap" && !bubblewrap() {
            return None;
        }
        if user == User::Nobody {
            let root = execgate::sys::host::user().id == 0;
            if !available(root, "only root can be another user") {
                return None;
            }
        }
        let gate = Gate::with_rules(&shell, rules);
        let place = TempDir::new_in("/var/tmp").expect("a directory");
        let stage = Self {
            user,
            backend,
            gate,
            place,
            options: Vec::new(),
        };
        for directory in [
            "",
            "work",
            "home",
            "home/.ssh",
            "home/.aws",
            "home/open",
            "outside",
        ] {
            let path = stage.path(directory);
            std::fs::create_dir_all(&path).expect("a directory");
            stage.give(&path, 0o755);
        }
        for file in [
            "home/.ssh/id",
            "home/.aws/credentials",
            "home/.netrc",
            "home/open/file",
            "outside/file",
        ] {
            stage.write(file, "secret-of-mine\n");
        }
        Some(stage)
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.place.path().join(name)
    }

    pub(crate) fn write(&self, name: &str, text: &str) {
        std::fs::write(self.path(name), text).expect("a file");
        self.give(&self.path(name), 0o644);
    }

    pub(crate) fn give(&self, path: &Path, mode: u32) {
        std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).expect("a mode");
        if self.user == User::Nobody {
            std::os::unix::fs::chown(path, Some(NOBODY), Some(NOBODY)).expect("an owner");
        }
    }

    pub(crate) fn option<const N: usize>(mut self, options: [&str; N]) -> Self {
        self.options.extend(options.map(str::to_owned));
        self
    }

    pub(crate) fn command(&self, script: &str) -> Command {
        let mut command = match self.user {
            User::Own => Command::new(EXECGATE),
            User::Nobody => as_nobody(EXECGATE),
        };
        command
            .args([
                "exec",
                "--no-login",
                "--policy",
                self.gate.url(),
                "--sandbox",
                self.backend,
            ])
            .arg("--shell")
            .arg(repository().join("target/dist/libexec/execgate/bash"))
            .args(&self.options)
            .args(["--", script])
            .env_clear()
            .env("PATH", "/usr/local/bin:/usr/bin:/bin")
            .env("HOME", self.path("home"))
            .env("LC_ALL", "C.UTF-8")
            .env("OUTSIDE", self.path("outside"))
            .env("THE_GATES", "secret-of-mine")
            .current_dir(self.path("work"));
        command
    }

    #[track_caller]
    pub(crate) fn run(&self, script: &str) -> Done {
        process::run(&mut self.command(script))
    }

    /// Has these rules in force. They begin with one that denies `uname`.
    pub(crate) fn take_rules(&self, rules: &str) {
        static SERIAL: AtomicU32 = AtomicU32::new(0);
        let serial = SERIAL.fetch_add(1, Ordering::Relaxed);
        self.gate.write_rules(&format!(
            "prefix_rule([\"uname\"], \"deny\", justification = \"rules {serial} hold\")\n{rules}\nfallback(\"run\")\n"
        ));
        let denied = format!("rules {serial} hold");
        process::wait_until("new rules", || self.run("uname").errors().contains(&denied));
    }

    /// Runs it outside, as the same user.
    #[track_caller]
    pub(crate) fn outside(&self, script: &str) -> Done {
        let mut command = Command::new("/bin/bash");
        command.args(["-c", script]);
        let gated = self.command("");
        for (name, value) in gated.get_envs() {
            command.env(name, value.expect("a value"));
        }
        command.current_dir(self.path("work"));
        process::run(&mut command)
    }

    /// `script` has to fail inside, and say so.
    #[track_caller]
    pub(crate) fn cannot(&self, script: &str) {
        let done = self.run(&format!(
            "if {script}\nthen echo could; else echo could not; fi"
        ));
        assert!(
            done.output().ends_with("could not\n"),
            "{} {:?}: {script}: {done}",
            self.backend,
            self.user
        );
        assert!(!done.output().contains("secret-of-mine"), "{done}");
    }

    #[track_caller]
    pub(crate) fn can(&self, script: &str) -> Done {
        let done = self.run(script);
        assert!(
            done.status.success(),
            "{} {:?}: {script}: {done}",
            self.backend,
            self.user
        );
        done
    }
}

/// Whether `--sandbox bubblewrap` works here.
pub(crate) fn bubblewrap() -> bool {
    let mut command = Command::new("bwrap");
    command.args([
        "--ro-bind",
        "/",
        "/",
        "--unshare-pid",
        "--unshare-net",
        "--",
        "/bin/true",
    ]);
    let works = command.output().is_ok_and(|output| output.status.success());
    available(works, "bubblewrap can't make a sandbox: `execgate doctor`")
}

pub(crate) const RUN: &str = "fallback(\"run\")";

/// Each test for both backends and both users.
macro_rules! everywhere {
    ($($test:ident,)*) => {$(
        mod $test {
            use crate::stage::{RUN, Stage, User};

            fn on(backend: &'static str, user: User) {
                if let Some(stage) = Stage::new(backend, user, RUN) {
                    super::$test(stage);
                }
            }

            #[test]
            fn landlock() {
                on("landlock", User::Own);
            }

            #[test]
            fn landlock_as_nobody() {
                on("landlock", User::Nobody);
            }

            #[test]
            fn bubblewrap() {
                on("bubblewrap", User::Own);
            }

            #[test]
            fn bubblewrap_as_nobody() {
                on("bubblewrap", User::Nobody);
            }
        }
    )*};
}

pub(crate) use everywhere;
