//! The reference policy service as a process.

use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use crate::process::{Running, wait_until};

pub(crate) const POLICYD: &str = env!("CARGO_BIN_EXE_execgate-policyd");

pub(crate) struct Policyd {
    running: Running,
    /// As `--policy` takes it.
    pub(crate) url: String,
    /// Where its console is, if it has one.
    pub(crate) console: Option<String>,
}

impl Policyd {
    /// Starts it on the rules, the data and, where there are some, the tokens and operators of `directory`, and waits
    /// until it listens.
    pub(crate) fn start(directory: &Path, listen: &str) -> Self {
        let mut command = Command::new(POLICYD);
        command
            .args([
                "--rules",
                "rules.star",
                "--data",
                "data",
                "--listen",
                listen,
            ])
            .env_clear()
            // A test stops it, which is nothing that the test's own process group should have in it.
            .process_group(0)
            .current_dir(directory);
        if directory.join("tokens").exists() {
            command.args(["--tokens", "tokens"]);
        }
        if directory.join("operators").exists() {
            command.args(["--operators", "operators"]);
        }
        let has_console = directory.join("console").exists();
        if has_console {
            command.args(["--console", "127.0.0.1:0"]);
        }
        if let Ok(url) = std::fs::read_to_string(directory.join("webhook")) {
            command.args(["--webhook", &url, "--webhook-secret", "secret"]);
        }
        if let Ok(number) = std::fs::read_to_string(directory.join("execs-per-second")) {
            command.args(["--execs-per-second", &number]);
        }
        let mut running = Running::start(&mut command);
        running.wait_for(if has_console { "/\n" } else { "\n" });
        let lines = running.stdout();
        let said = |what| lines.lines().find_map(|line| line.strip_prefix(what));
        let console = said("console at ").map(str::to_owned);
        let address = said("listening on ").unwrap_or_else(|| panic!("{lines:?}"));
        let url = if address.starts_with("unix:") {
            address.to_owned()
        } else {
            format!("http://{address}")
        };
        Self {
            running,
            url,
            console,
        }
    }

    pub(crate) fn signal(&self, name: &str) {
        self.running.signal(name);
    }

    /// Has it end, and waits for that.
    pub(crate) fn stop(self) {
        self.running.signal("TERM");
        self.running.done().exits(0);
    }

    #[track_caller]
    pub(crate) fn wait_for_log(&self, text: &str) {
        wait_until(text, || self.running.stderr().contains(text));
    }
}
