//! The real gate program with a real policy service.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use execgate::model::EscalationDecision;

use crate::harness::{Place, Shell, spawn};

/// A policy service with rules of one line, ended when dropped.
pub(crate) struct Service {
    child: Child,
    address: String,
}

impl Service {
    /// One that decides everything in this way.
    pub(crate) fn deciding(verdict: &EscalationDecision, place: &Place) -> Self {
        let answer = match verdict {
            EscalationDecision::Run => "\"run\"",
            _ => "escalate(\"a test\", unprotected = \"allow\", keep_environment = [\"*\"])",
        };
        let rules = place.work().join("rules.star");
        std::fs::write(&rules, format!("def decide(exec):\n    return {answer}\n")).unwrap();
        let socket = place.work().join("policy.sock");
        let mut child = spawn(
            Command::new(env!("CARGO_BIN_EXE_execgate-policyd"))
                .arg("--rules")
                .arg(rules)
                // Gates of an ordinary user are tested as well.
                .args(["--allow-uid", "65534"])
                .arg("--listen")
                .arg(format!("unix:{}", socket.display()))
                .stdin(Stdio::null())
                .stdout(Stdio::piped())
                .stderr(Stdio::null()),
        );
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap())
            .read_line(&mut line)
            .unwrap();
        let address = line.trim_end().strip_prefix("listening on ");
        let address = address.expect("an address").to_owned();
        Self { child, address }
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The gate program, about to run `subcommand` with this shell.
pub(crate) fn gate(subcommand: &str, shell: Shell, policy: &str, work: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_execgate"));
    command
        .args([
            subcommand,
            "--policy",
            policy,
            "--sandbox",
            "none",
            "--shell",
        ])
        .arg(shell.path())
        .env_clear()
        .env("PATH", "/usr/bin:/bin")
        .env("LC_ALL", "C")
        .env("EXECGATE_LOG", "warn,execgate::sandbox=error")
        .env("HOME", work)
        .current_dir(work)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

impl Service {
    pub(crate) fn gate(&self, subcommand: &str, shell: Shell, work: &Path) -> Command {
        let address = if self.address.starts_with("unix:") {
            self.address.clone()
        } else {
            format!("http://{}", self.address)
        };
        gate(subcommand, shell, &address, work)
    }
}
