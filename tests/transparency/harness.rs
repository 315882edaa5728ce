//! Runs a script with a patched shell natively and under a gate in this process, and compares.

use std::fmt::Write as _;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

use execgate::model::EscalationDecision;
use execgate::server::{
    EscalateServer, EscalationPolicy, EscalationSession, SessionParams, ShellCommandExecutor,
};
use tokio_util::sync::CancellationToken;

use crate::support::{ESCALATE, PATIENCE, Scripted, WRAPPER, start};

/// A patched shell.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Shell {
    Bash,
    Zsh,
}

pub(crate) const BOTH_SHELLS: [Shell; 2] = [Shell::Bash, Shell::Zsh];

/// The verdicts under which a command's effects are its own.
pub(crate) const VERDICTS: [EscalationDecision; 2] = [EscalationDecision::Run, ESCALATE];

/// Where `make build` puts what it builds.
pub(crate) fn built(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("target/dist")
        .join(path)
}

impl Shell {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Bash => "bash",
            Self::Zsh => "zsh",
        }
    }

    pub(crate) fn path(self) -> PathBuf {
        built("libexec/execgate").join(self.name())
    }

    /// Arguments with which the shell reads no file of its own first.
    pub(crate) fn plain(self) -> &'static [&'static str] {
        match self {
            Self::Bash => &["--norc", "--noprofile"],
            Self::Zsh => &["-f"],
        }
    }
}

/// The shells that are there. Without one the tests prove less: that is an error where everything
/// has been built, and said loudly elsewhere.
pub(crate) fn shells() -> Vec<Shell> {
    let (there, missing): (Vec<_>, Vec<_>) = BOTH_SHELLS
        .into_iter()
        .partition(|shell: &Shell| shell.path().is_file());
    for shell in missing {
        let message = format!(
            "no patched {}: `make shells` builds {}",
            shell.name(),
            shell.path().display()
        );
        assert!(std::env::var_os("CI").is_none(), "{message}");
        eprintln!("SKIPPED: {message}");
    }
    there
}

/// The probe, compiled once: another process of these tests, which one of them starts, may execute it already.
pub(crate) fn probe() -> &'static Path {
    static PROBE: LazyLock<PathBuf> = LazyLock::new(|| {
        let mut content = DefaultHasher::new();
        include_str!("probe.c").hash(&mut content);
        let directory = Path::new(env!("CARGO_TARGET_TMPDIR"));
        let target = directory.join(format!("probe-{:x}", content.finish()));
        if target.exists() {
            return target;
        }
        let made = tempfile::NamedTempFile::new_in(directory).expect("a file");
        let made = made.into_temp_path();
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/transparency/probe.c");
        let status = Command::new("cc")
            .args(["-O1", "-Wall", "-Wextra", "-Werror", "-o"])
            .arg(&made)
            .arg(source)
            .status()
            .expect("a C compiler");
        assert!(status.success());
        if let Err(error) = made.persist_noclobber(&target) {
            assert_eq!(error.error.kind(), std::io::ErrorKind::AlreadyExists);
        }
        target
    });
    &PROBE
}

/// Held while a session's client end can be inherited: what another test starts must not get it.
static STARTING: Mutex<()> = Mutex::new(());

/// Something run once natively, and once under each verdict.
pub(crate) struct Case<'a> {
    script: &'a str,
    prepare: &'a (dyn Fn(&mut Command) + Sync),
    files: Vec<(&'static str, Vec<u8>, u32)>,
}

/// A case of one script, with nothing special about it.
pub(crate) fn script(script: &str) -> Case<'_> {
    Case {
        script,
        prepare: &|_| {},
        files: Vec::new(),
    }
}

impl<'a> Case<'a> {
    /// Changes how the shell is started.
    pub(crate) fn started(mut self, prepare: &'a (dyn Fn(&mut Command) + Sync)) -> Self {
        self.prepare = prepare;
        self
    }

    /// Has a file with these permissions in the working directory.
    pub(crate) fn file(
        mut self,
        name: &'static str,
        content: impl Into<Vec<u8>>,
        mode: u32,
    ) -> Self {
        self.files.push((name, content.into(), mode));
        self
    }

    /// Runs it in every way, and fails where two differ.
    pub(crate) async fn is_the_same(&self) {
        for shell in shells() {
            self.is_the_same_in(shell).await;
        }
    }

    pub(crate) async fn is_the_same_in(&self, shell: Shell) {
        let place = Place::new();
        let native = self.native(shell, &place).await;
        for verdict in VERDICTS {
            let (gated, asked) = self.gated(shell, &place, verdict.clone()).await;
            assert!(
                asked > 0,
                "the gate was never asked in {shell:?}:\n{}",
                self.script
            );
            assert!(
                gated == native,
                "{}",
                self.difference(shell, &verdict, &native, &gated)
            );
        }
    }

    fn difference(
        &self,
        shell: Shell,
        verdict: &EscalationDecision,
        native: &Output,
        gated: &Output,
    ) -> String {
        let mut text = format!("{shell:?} under {verdict:?} differs:\n{}\n", self.script);
        let _ = writeln!(text, "native {}, gated {}", native.status, gated.status);
        for (name, native, gated) in [
            ("stdout", &native.stdout, &gated.stdout),
            ("stderr", &native.stderr, &gated.stderr),
        ] {
            let lines = |bytes: &[u8]| -> Vec<String> {
                let text = String::from_utf8_lossy(bytes);
                text.lines().map(str::to_owned).collect()
            };
            let (native, gated) = (lines(native), lines(gated));
            for line in native.iter().filter(|line| !gated.contains(line)) {
                let _ = writeln!(text, "{name} native: {line}");
            }
            for line in gated.iter().filter(|line| !native.contains(line)) {
                let _ = writeln!(text, "{name} gated:  {line}");
            }
            if native != gated && native.len() < 20 && gated.len() < 20 {
                let _ = writeln!(text, "{name} whole: native {native:?}, gated {gated:?}");
            }
        }
        text
    }

    pub(crate) async fn native(&self, shell: Shell, place: &Place) -> Output {
        self.lay_out(place);
        self.left_as_it_is(shell, place).await
    }

    /// Natively, with what is in the directory.
    pub(crate) async fn left_as_it_is(&self, shell: Shell, place: &Place) -> Output {
        let child = {
            let _starting = STARTING.lock().unwrap_or_else(PoisonError::into_inner);
            self.command(shell, place).spawn().unwrap()
        };
        wait(child).await
    }

    /// How it ended, and how often the gate was asked.
    pub(crate) async fn gated(
        &self,
        shell: Shell,
        place: &Place,
        verdict: EscalationDecision,
    ) -> (Output, usize) {
        self.lay_out(place);
        let policy = Scripted::always(verdict).changing_nothing();
        let (session, child) = self.spawn_gated(shell, place, &policy);
        let output = wait(child).await;
        drop(session);
        let asked = policy.asked.lock().unwrap().len();
        (output, asked)
    }

    /// Starts it under a gate.
    pub(crate) fn spawn_gated(
        &self,
        shell: Shell,
        place: &Place,
        policy: &Arc<Scripted>,
    ) -> (EscalationSession, Child) {
        let mut command = self.command(shell, place);
        spawn_in_session(&mut command, policy)
    }

    fn lay_out(&self, place: &Place) {
        place.clear();
        for (name, content, mode) in &self.files {
            let path = place.0.path().join("work").join(name);
            std::fs::write(&path, content).unwrap();
            let mode = std::os::unix::fs::PermissionsExt::from_mode(*mode);
            std::fs::set_permissions(&path, mode).unwrap();
        }
    }

    fn command(&self, shell: Shell, place: &Place) -> Command {
        let work = place.0.path().join("work");
        let mut command = Command::new(shell.path());
        command
            .args(shell.plain())
            .args(["-c", self.script, shell.name()])
            .env_clear()
            .env("PATH", "/usr/bin:/bin")
            .env("LC_ALL", "C")
            .env("HOME", &work)
            .env("PROBE", probe())
            .env("SELF", shell.path())
            .current_dir(&work)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        (self.prepare)(&mut command);
        command
    }
}

/// Starts a process as the shell of a new session.
pub(crate) fn spawn_in_session(
    command: &mut Command,
    policy: &Arc<Scripted>,
) -> (EscalationSession, Child) {
    let _starting = STARTING.lock().unwrap_or_else(PoisonError::into_inner);
    let session = start(policy.clone());
    let child = command.envs(session.env()).spawn().unwrap();
    session.close_client_socket();
    (session, child)
}

/// Starts a process that is in no session.
pub(crate) fn spawn(command: &mut Command) -> Child {
    let _starting = STARTING.lock().unwrap_or_else(PoisonError::into_inner);
    command.spawn().unwrap()
}

pub(crate) async fn wait(child: Child) -> Output {
    let pid = child.id();
    let output = tokio::task::spawn_blocking(move || child.wait_with_output());
    let output = tokio::time::timeout(PATIENCE, output).await;
    let output = output.unwrap_or_else(|_| panic!("process {pid} hangs"));
    output.unwrap().unwrap()
}

/// A directory, empty for each run and always of the same name.
pub(crate) struct Place(tempfile::TempDir);

impl Place {
    pub(crate) fn new() -> Self {
        let place = Self(tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap());
        place.clear();
        place
    }

    pub(crate) fn work(&self) -> PathBuf {
        self.0.path().join("work")
    }

    fn clear(&self) {
        let work = self.work();
        let _ = std::fs::remove_dir_all(&work);
        std::fs::create_dir(&work).unwrap();
    }
}

/// Runs a script under a gate that escalates everything, with this executor.
pub(crate) async fn wait_with_executor(
    text: &str,
    shell: Shell,
    place: &Place,
    executor: Arc<dyn ShellCommandExecutor>,
) -> Output {
    let mut command = script(text).command(shell, place);
    let policy = Scripted::always(ESCALATE).changing_nothing();
    let (session, child) = {
        let _starting = STARTING.lock().unwrap_or_else(PoisonError::into_inner);
        let session = EscalateServer::new(shell.path(), WRAPPER, policy)
            .start_session(
                SessionParams::default(),
                executor,
                &CancellationToken::new(),
            )
            .unwrap();
        let child = command.envs(session.env()).spawn().unwrap();
        session.close_client_socket();
        (session, child)
    };
    let output = wait(child).await;
    drop(session);
    output
}

/// Runs a script under a gate with this policy.
pub(crate) async fn wait_with_policy(
    text: &str,
    shell: Shell,
    place: &Place,
    policy: Arc<dyn EscalationPolicy>,
) -> Output {
    let mut command = script(text).command(shell, place);
    let (session, child) = {
        let _starting = STARTING.lock().unwrap_or_else(PoisonError::into_inner);
        let session = start(policy);
        let child = command.envs(session.env()).spawn().unwrap();
        session.close_client_socket();
        (session, child)
    };
    let output = wait(child).await;
    drop(session);
    output
}
