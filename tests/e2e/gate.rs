//! A gate to run commands under, with its policy service and its own directory.

use std::cell::{Cell, RefCell};
use std::ffi::OsStr;
use std::future::Future;
use std::path::PathBuf;
use std::process::Command;

use serde_json::Value;
use tempfile::TempDir;

use crate::machine::Shell;
use crate::peer::Peer;
use crate::process::{self, Done, EXECGATE, Running};
use crate::relay::Relay;
use crate::service::Policyd;

/// What of the environment is the same wherever the tests run.
const PATH: &str = "/usr/local/bin:/usr/bin:/bin";

/// All but what a gate without a sandbox says of itself.
const LOG: &str = "warn,execgate::sandbox=error";

pub(crate) struct Gate {
    shell: Shell,
    directory: TempDir,
    policyd: RefCell<Option<Policyd>>,
    script: RefCell<Option<Script>>,
    socket_place: Option<TempDir>,
    pub(crate) url: String,
    options: Vec<String>,
    sandbox: &'static str,
    seen: Cell<usize>,
}

struct Script {
    runtime: tokio::runtime::Runtime,
    done: tokio::task::JoinHandle<Vec<String>>,
}

/// One exec of the audit.
#[derive(Debug, Clone)]
pub(crate) struct Exec(pub(crate) Value);

impl Gate {
    /// With a policy service that decides by these rules.
    pub(crate) fn with_rules(shell: &Shell, rules: &str) -> Self {
        Self::with_rules_at(shell, rules, "127.0.0.1:0")
    }

    /// The same on a Unix socket, so that another service can take the place of the first.
    pub(crate) fn with_rules_on_a_socket(shell: &Shell, rules: &str) -> Self {
        // In a directory of its own: a socket's path has little room.
        let place = tempfile::tempdir().expect("a directory");
        let listen = format!("unix:{}", place.path().join("policy.sock").display());
        let mut gate = Self::with_rules_at(shell, rules, &listen);
        gate.socket_place = Some(place);
        gate
    }

    /// With a policy service that also asks for one of these tokens.
    pub(crate) fn with_tokens(shell: &Shell, rules: &str, tokens: &str) -> Self {
        let directory = directory();
        std::fs::write(directory.path().join("tokens"), tokens).expect("a file");
        Self::serve(shell, rules, "127.0.0.1:0", directory)
    }

    /// With a policy service whose operators, by name, and by role if that is another, have files of tokens, on a Unix
    /// socket.
    pub(crate) fn with_operators(shell: &Shell, rules: &str, operators: &[&str]) -> Self {
        let directory = directory();
        let mut lines = String::new();
        for name in operators {
            let (name, role) = name.split_once(' ').unwrap_or((name, ""));
            let mut command = Command::new(EXECGATE);
            command.args(["token", name, "--write"]);
            command.arg(directory.path().join(format!("{name}.token")));
            if !role.is_empty() {
                command.args(["--role", role]);
            }
            lines += &process::run(&mut command).exits(0).output();
        }
        std::fs::write(directory.path().join("operators"), lines).expect("a file");
        let place = tempfile::tempdir().expect("a directory");
        let listen = format!("unix:{}", place.path().join("policy.sock").display());
        let mut gate = Self::serve(shell, rules, &listen, directory);
        gate.socket_place = Some(place);
        gate
    }

    /// The same, with a console.
    pub(crate) fn with_console(shell: &Shell, rules: &str, operators: &[&str]) -> Self {
        let gate = Self::with_operators(shell, rules, operators);
        std::fs::write(gate.path("console"), "").expect("a file");
        if let Some(before) = gate.policyd.replace(None) {
            before.stop();
        }
        let policyd = Policyd::start(gate.directory.path(), &gate.url);
        gate.policyd.replace(Some(policyd));
        gate
    }

    /// Where the console is.
    pub(crate) fn console(&self) -> String {
        let policyd = self.policyd.borrow();
        let console = policyd.as_ref().and_then(|policyd| policyd.console.clone());
        console.expect("a console")
    }

    /// A command of an operator, such as `approvals list`, with a file of a token in the scenario's directory.
    pub(crate) fn operate(&self, token: &str, arguments: &[&str]) -> Command {
        let mut command = Command::new(EXECGATE);
        command.args(arguments).args(["--service", &self.url]);
        command.arg("--service-token-file").arg(self.path(token));
        self.settle(&mut command);
        command
    }

    fn with_rules_at(shell: &Shell, rules: &str, listen: &str) -> Self {
        Self::serve(shell, rules, listen, directory())
    }

    fn serve(shell: &Shell, rules: &str, listen: &str, directory: TempDir) -> Self {
        std::fs::write(directory.path().join("rules.star"), rules).expect("a file");
        let policyd = Policyd::start(directory.path(), listen);
        let mut gate = Self::at(shell, policyd.url.clone(), directory);
        gate.policyd = RefCell::new(Some(policyd));
        gate
    }

    /// With a service that does what a script says.
    pub(crate) fn with_script<F>(shell: &Shell, script: impl FnOnce(Peer) -> F) -> Self
    where
        F: Future<Output = Vec<String>> + Send + 'static,
    {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .expect("a runtime");
        let peer = runtime.block_on(Peer::start());
        let url = peer.endpoint.clone();
        let done = runtime.spawn(script(peer));
        let mut gate = Self::at(shell, url, directory());
        gate.script = RefCell::new(Some(Script { runtime, done }));
        gate
    }

    /// What a scripted service returned, after its end.
    #[track_caller]
    pub(crate) fn told(&self) -> Vec<String> {
        let script = self.script.take().expect("a script");
        script
            .runtime
            .block_on(script.done)
            .expect("the script goes to its end")
    }

    /// With whatever listens at `url`.
    pub(crate) fn with_policy(shell: &Shell, url: &str) -> Self {
        Self::at(shell, url.to_owned(), directory())
    }

    fn at(shell: &Shell, url: String, directory: TempDir) -> Self {
        std::fs::create_dir(directory.path().join("home")).expect("a directory");
        std::fs::create_dir(directory.path().join("work")).expect("a directory");
        Self {
            shell: shell.clone(),
            directory,
            policyd: RefCell::default(),
            script: RefCell::default(),
            socket_place: None,
            url,
            options: vec!["--no-login".to_owned()],
            sandbox: "none",
            seen: Cell::new(0),
        }
    }

    /// Sets further options of `execgate exec`.
    pub(crate) fn option<const N: usize>(mut self, options: [&str; N]) -> Self {
        self.options.extend(options.map(str::to_owned));
        self
    }

    /// In this sandbox, rather than in none.
    pub(crate) fn in_sandbox(mut self, backend: &'static str) -> Self {
        self.sandbox = backend;
        self
    }

    /// With a relay before the policy service, which sees all that the gate sends it.
    pub(crate) fn through_a_relay(mut self) -> (Self, Relay) {
        let relay = Relay::start(&self.url);
        self.url.clone_from(&relay.url);
        (self, relay)
    }

    /// Where its policy service listens.
    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    /// A path in the scenario's own directory, which has `home` and `work`.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// `execgate exec` of a command string, not started yet.
    pub(crate) fn command(&self, script: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new(EXECGATE);
        command
            .args(["exec", "--policy", &self.url, "--sandbox", self.sandbox])
            .arg("--shell")
            .arg(&self.shell.path)
            .args(&self.options)
            .arg("--")
            .arg(script);
        self.settle(&mut command);
        command
    }

    /// Runs a command string under the gate.
    #[track_caller]
    pub(crate) fn exec(&self, script: impl AsRef<OsStr>) -> Done {
        process::run(&mut self.command(script))
    }

    pub(crate) fn start(&self, script: &str) -> Running {
        Running::start(&mut self.command(script))
    }

    /// Runs a command string in the same shell without any gate.
    #[track_caller]
    pub(crate) fn ungated(&self, script: &str) -> Done {
        let mut command = Command::new(&self.shell.path);
        command.args(["-c", script]);
        self.settle(&mut command);
        process::run(&mut command)
    }

    /// Gives a command the scenario's directory, and an environment that is the same everywhere.
    pub(crate) fn settle(&self, command: &mut Command) {
        command
            .env_clear()
            .env("PATH", PATH)
            .env("HOME", self.path("home"))
            .env("LC_ALL", "C.UTF-8")
            .env("EXECGATE_LOG", LOG)
            .current_dir(self.path("work"));
    }

    /// Lists the audit, with these options.
    #[track_caller]
    pub(crate) fn list(&self, options: &[&str]) -> Vec<Exec> {
        let mut command = Command::new(EXECGATE);
        command
            .args(["audit", "--data"])
            .arg(self.path("data"))
            .args(["--output", "json", "--limit", "100000"])
            .args(options);
        let done = process::run(&mut command);
        done.exits(0).says_nothing();
        let read = |line: &str| Exec(serde_json::from_str(line).expect("JSON"));
        done.output().lines().map(read).collect()
    }

    /// What was executed since this was last asked.
    #[track_caller]
    pub(crate) fn audit(&self) -> Vec<Exec> {
        let mut execs = self.list(&[]);
        let new = execs.split_off(self.seen.get());
        self.seen.set(self.seen.get() + new.len());
        new
    }

    /// Does something with the policy service's process.
    pub(crate) fn policyd<T>(&self, act: impl FnOnce(&Policyd) -> T) -> T {
        act(self.policyd.borrow().as_ref().expect("a policy service"))
    }

    /// Kills the policy service, so that it can't even say goodbye.
    pub(crate) fn kill_policyd(&self) {
        drop(self.policyd.take());
    }

    /// Starts a policy service where the first was.
    pub(crate) fn restart_policyd(&self) {
        if let Some(policyd) = self.policyd.take() {
            policyd.stop();
        }
        let policyd = Policyd::start(self.directory.path(), &self.url);
        *self.policyd.borrow_mut() = Some(policyd);
    }

    pub(crate) fn write_rules(&self, rules: &str) {
        std::fs::write(self.path("rules.star"), rules).expect("a file");
    }
}

impl Exec {
    /// A field as text; empty where there is none.
    pub(crate) fn text(&self, field: &str) -> &str {
        self.0[field].as_str().unwrap_or_default()
    }

    pub(crate) fn number(&self, field: &str) -> Option<i64> {
        self.0[field].as_i64()
    }

    /// The last part of the program's path.
    pub(crate) fn name(&self) -> &str {
        self.text("program").rsplit('/').next().unwrap_or_default()
    }
}

/// Each exec as `NAME VERDICT`, in order.
pub(crate) fn verdicts(execs: &[Exec]) -> Vec<String> {
    let line = |exec: &Exec| format!("{} {}", exec.name(), exec.text("verdict"));
    execs.iter().map(line).collect()
}

/// Outside of `/tmp`, which a sandbox may replace.
pub(crate) fn directory() -> TempDir {
    TempDir::new_in("/var/tmp").expect("a directory")
}
