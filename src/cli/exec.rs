//! `execgate exec` and `execgate shell`: one session of a patched shell.

use std::ffi::{OsString, c_int};
use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use clap::{Args, ValueEnum};
use tokio_util::sync::CancellationToken;

use super::denials::Denials;
use super::executor::{Executor, Streams};
use super::journal::JournalArguments;
use super::policy::PolicyOptions;
use super::remedy::Role;
use super::sandbox::{Place, SandboxArguments};
use super::startup::Startup;
use super::temporary_directory::TemporaryDirectory;
use super::time;
use super::{EXIT_CODES, Failure, OutputForm, OutputOption, PROGRAM, TIMED_OUT, place};
use crate::link::{
    Disclosure, Drained, GateDescription, LinkOptions, OnUnavailable, PolicyLink, UserDescription,
};
use crate::logging;
use crate::metrics::{GateMetrics, Measured, MetricsEndpoint};
use crate::server::{
    ESCALATED_PATH, EscalateServer, EscalationPolicy, ExecParams, ExecResult, Login,
    OwnersEnvironment, ServerError, SessionParams, ShellCommandExecutor,
};
use crate::sys::reach::{Reach, reach};
use crate::sys::signal::{Ready, SignalWatch};
use crate::sys::{host, limits, signal};

/// How long the last events may take to be delivered after the end of a session.
const DRAIN_TIME: Duration = Duration::from_secs(3);

/// How long the journal's last work may take after that.
const SHUTDOWN_TIME: Duration = Duration::from_secs(1);

/// What the gate passes on to the shell.
pub(super) const SIGNALS: &[c_int] = &[
    libc::SIGINT,
    libc::SIGTERM,
    libc::SIGHUP,
    libc::SIGQUIT,
    libc::SIGUSR1,
    libc::SIGUSR2,
];

const EXAMPLES: &str = "\
Examples:
  execgate exec --policy http://127.0.0.1:50051 -- 'make && make check'
  execgate exec --policy unix:/run/execgate/policy.sock --write ~/.cache/build -- ./build.sh
  execgate exec --label job=42 --timeout 10m --output json -- 'cargo test'

The command is one string for the shell. Several words are quoted and joined, so that
`execgate exec -- grep -r 'a b' .` runs grep with those very arguments.

With --output json the result is one object: exit_code, stdout, stderr, output (both in the order
of their arrival), truncated (whether more came than the 64 MiB of each that are kept), duration
(in seconds), timed_out (the program itself then exits with 124), and verdicts (how many execs were
decided as run, escalate, deny).
";

/// What both commands take.
#[derive(Debug, Args)]
struct SessionOptions {
    /// Which patched shell: bash, zsh, or a path
    #[arg(long, value_name = "SHELL", default_value = "bash")]
    shell: PathBuf,

    /// The directory to start in [default: the current one]
    #[arg(long, value_name = "DIRECTORY")]
    workdir: Option<PathBuf>,

    /// A label of the session, for the policy and the audit trail; may be repeated
    #[arg(long = "label", value_name = "KEY=VALUE", value_parser = parse_label)]
    labels: Vec<(String, String)>,

    #[command(flatten)]
    policy: PolicyOptions,

    #[command(flatten)]
    waiting: WaitingOptions,

    #[command(flatten)]
    sandbox: SandboxArguments,

    #[command(flatten)]
    disclosure: DisclosureOptions,

    #[command(flatten)]
    journal: JournalArguments,

    /// Serve the gate's numbers for Prometheus at http://ADDRESS:PORT/metrics while the session lasts
    #[arg(
        long,
        value_name = "ADDRESS:PORT",
        value_parser = MetricsEndpoint::parse_address,
        help_heading = "Journal and metrics"
    )]
    metrics: Option<SocketAddr>,
}

/// How long to wait for verdicts, and what becomes of an exec without one.
#[derive(Debug, Args)]
#[command(next_help_heading = "Verdicts")]
struct WaitingOptions {
    /// What becomes of an exec when the policy service can't be reached or doesn't answer in time
    #[arg(long, value_name = "ACTION", default_value = "deny")]
    on_unavailable: Unavailable,

    /// How long an exec waits for its verdict
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = time::parse)]
    verdict_timeout: Duration,

    /// How long an exec waits while a person decides
    #[arg(long, value_name = "TIME", default_value = "10m", value_parser = time::parse)]
    approval_timeout: Duration,

    /// How long a verdict that the policy service gave for reuse is used at most; 0: each exec is asked
    /// about
    #[arg(long, value_name = "TIME", default_value = "1h", value_parser = time::parse_or_zero)]
    reuse_limit: Duration,

    /// PATH of escalated commands, instead of the one that the session chose
    #[arg(long, value_name = "PATH", env = "EXECGATE_ESCALATED_PATH", default_value = ESCALATED_PATH)]
    escalated_path: OsString,
}

/// What of execs may leave the gate.
#[derive(Debug, Args)]
#[command(next_help_heading = "Secrets")]
struct DisclosureOptions {
    /// Keep what matches this regular expression at home: it is replaced by <redacted:execgate> in
    /// arguments and values before they leave the gate. Arguments are matched with a NUL between them; a
    /// group named secret is all that is replaced. May be repeated
    #[arg(long, value_name = "PATTERN")]
    redact: Vec<String>,

    /// The same for each line of a file that isn't empty and doesn't begin with #
    #[arg(long, value_name = "FILE")]
    redact_from: Option<PathBuf>,

    /// An environment variable whose value a policy service gets if it asks for it; NAME* stands for all
    /// that begin so. May be repeated [default: none, names only]
    #[arg(long, value_name = "NAME")]
    allow_environment: Vec<String>,
}

#[derive(Debug, Args)]
#[command(after_help = format!("{EXAMPLES}\n{EXIT_CODES}"))]
pub(super) struct ExecArguments {
    /// How long the command may run, without the time that people take to decide: 90s, 10m, 1h30m
    #[arg(long, value_name = "TIME", value_parser = time::parse)]
    timeout: Option<Duration>,

    /// Have the shell read its login files first (the default)
    #[arg(long, overrides_with = "no_login")]
    login: bool,

    /// Don't have the shell read its login files
    #[arg(long)]
    no_login: bool,

    #[command(flatten)]
    output: OutputOption,

    /// The command string for the shell
    #[arg(required = true, value_name = "COMMAND", last = true)]
    command: Vec<OsString>,

    // Last: what follows would be under its last heading.
    #[command(flatten)]
    session: SessionOptions,
}

#[derive(Debug, Args)]
#[command(after_help = EXIT_CODES)]
pub(super) struct ShellArguments {
    /// Start it as a login shell
    #[arg(long, overrides_with = "no_login")]
    login: bool,

    /// Don't start it as a login shell (the default)
    #[arg(long)]
    no_login: bool,

    /// Arguments for the shell
    #[arg(value_name = "ARGUMENT", last = true)]
    arguments: Vec<OsString>,

    // Last: what follows would be under its last heading.
    #[command(flatten)]
    session: SessionOptions,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Unavailable {
    /// It is denied.
    Deny,
    /// It runs, inside the sandbox.
    Run,
}

pub(super) fn exec(
    arguments: &ExecArguments,
    startup: Arc<Startup>,
    signals: SignalWatch,
) -> Result<c_int, Failure> {
    let streams = match arguments.output.output {
        OutputForm::Text => Streams::Pass,
        OutputForm::Json => Streams::Capture,
    };
    let params = ExecParams {
        command: command_string(&arguments.command),
        workdir: workdir(arguments.session.workdir.as_deref())?,
        timeout: arguments.timeout,
        login: if arguments.no_login {
            Login::No
        } else {
            Login::Yes
        },
        labels: arguments.session.labels.iter().cloned().collect(),
    };
    let gate = Gate::new(&arguments.session, startup, signals, streams)?;
    let sandbox = gate.executor.sandbox.report();
    let result = gate.run(async |server, executor, cancelled| {
        server.exec(params, sandbox, executor, cancelled).await
    })?;
    if arguments.output.output == OutputForm::Json {
        print_json(&result)
            .map_err(|error| Failure::saying(format!("cannot write the result: {error}")))?;
    } else if result.timed_out {
        logging::say(PROGRAM, "the time limit was reached", None);
    }
    Ok(if result.timed_out {
        TIMED_OUT
    } else {
        result.exit_code
    })
}

pub(super) fn shell(
    arguments: ShellArguments,
    startup: Arc<Startup>,
    signals: SignalWatch,
) -> Result<c_int, Failure> {
    let mut command = arguments.arguments;
    if arguments.login && !arguments.no_login {
        command.insert(0, "-l".into());
    }
    let gate = Gate::new(&arguments.session, startup, signals, Streams::Pass)?;
    let params = SessionParams {
        labels: arguments.session.labels.iter().cloned().collect(),
        workdir: workdir(arguments.session.workdir.as_deref())?,
        command,
        sandbox: gate.executor.sandbox.report(),
        timeout: None,
    };
    let result = gate.run(async |server, executor, cancelled| {
        server.run_shell(params, executor, cancelled).await
    })?;
    Ok(result.exit_code)
}

/// A gate for one session.
struct Gate {
    shell: PathBuf,
    wrapper: PathBuf,
    link: Arc<PolicyLink>,
    policy: Arc<dyn EscalationPolicy>,
    executor: Arc<Executor>,
    reuse_limit: Duration,
    owner: OwnersEnvironment,
    /// Goes with the gate.
    _temporary: Option<TemporaryDirectory>,
    denials: Option<Denials>,
}

impl Gate {
    fn new(
        options: &SessionOptions,
        startup: Arc<Startup>,
        signals: SignalWatch,
        streams: Streams,
    ) -> Result<Self, Failure> {
        let mut endpoints = options.policy.endpoints()?.into_iter();
        let endpoint = endpoints.next().ok_or_else(|| {
            Failure::saying("no policy service is named, and nothing runs without a verdict").hint(
                "give --policy URL or set EXECGATE_POLICY; `execgate-policyd --rules FILE` starts one",
            )
        })?;
        // Before anything is made that a signal would leave behind.
        let disclosure = disclosure(&options.disclosure, &signals)?;
        let wrapper = place::wrapper()?;
        let shell = place::shell(&options.shell)?;
        let shells = shell.parent().map(Path::to_owned);
        let gates_own = options
            .policy
            .own_files()
            .chain(options.journal.directory());
        let sandboxed = options.sandbox.prepare(Place {
            workdir: workdir(options.workdir.as_deref())?,
            visible: [wrapper.parent(), shell.parent()]
                .into_iter()
                .flatten()
                .map(Path::to_owned)
                .collect(),
            gates_own: gates_own
                .chain(options.disclosure.redact_from.clone())
                .collect(),
        })?;
        let mut link = LinkOptions::new(endpoint);
        link.further_endpoints = endpoints.collect();
        link.verdict_deadline = options.waiting.verdict_timeout;
        link.pending_cap = options.waiting.approval_timeout;
        link.on_unavailable = match options.waiting.on_unavailable {
            Unavailable::Deny => OnUnavailable::Deny,
            Unavailable::Run => OnUnavailable::Run,
        };
        link.disclosure = disclosure;
        // Whoever started the gate may be in a trace; what is no context is nobody's fault here.
        link.trace_parent = std::env::var("TRACEPARENT")
            .ok()
            .and_then(|context| context.parse().ok());
        link.gate = describe();
        link.remedy = Some(|obstacle| Role::Gate.remedy(obstacle));
        link.credentials = options.policy.credentials();
        signal::ignore(libc::SIGPIPE);
        // A limit on the size of files is an error like a disk that is full.
        signal::ignore(libc::SIGXFSZ);
        link.audit = options.journal.audit();
        link.journal = options.journal.open()?;
        let link = Arc::new(PolicyLink::new(link).map_err(|error| Role::Gate.unprepared(&error))?);
        if let Err(error) = limits::raise_open_files() {
            tracing::warn!(%error, "the limit on open files stays low");
        }
        tell_reach();
        Ok(Self {
            shell,
            wrapper,
            policy: policy_of(options, &link)?,
            link,
            reuse_limit: options.waiting.reuse_limit,
            owner: OwnersEnvironment {
                path: options.waiting.escalated_path.clone(),
                ..OwnersEnvironment::of_this_process()
            },
            _temporary: sandboxed.temporary,
            denials: sandboxed.denials,
            executor: Arc::new(Executor {
                sandbox: Arc::new(sandboxed.sandbox),
                streams,
                startup,
                shells,
                signals: Mutex::new(Some(signals)),
            }),
        })
    }

    /// Does the whole of a session, and sees its events delivered.
    fn run(
        self,
        session: impl AsyncFnOnce(
            &EscalateServer,
            Arc<dyn ShellCommandExecutor>,
            &CancellationToken,
        ) -> Result<ExecResult, ServerError>,
    ) -> Result<ExecResult, Failure> {
        // One thread: a verdict's way through the gate has no hand-over between threads in it.
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|error| Failure::saying(format!("cannot start: {error}")))?;
        let server = EscalateServer::new(self.shell, self.wrapper, self.policy)
            .with_reuse_limit(self.reuse_limit)
            .with_owners_environment(self.owner);
        let ended = runtime.block_on(async {
            let cancelled = CancellationToken::new();
            let result = session(&server, self.executor.clone(), &cancelled).await;
            if self.link.drain(DRAIN_TIME).await == Drained::TimedOut {
                tracing::warn!("the session's last events couldn't be delivered in time");
            }
            result.map_err(|error| Failure::new(&error))
        });
        if let Some(denials) = self.denials {
            denials.tell();
        }
        // A journal's disk that hangs keeps no gate from ending.
        runtime.shutdown_timeout(SHUTDOWN_TIME);
        ended
    }
}

/// Most patterns in a file, in bytes: what is longer is some other file, or has no end.
const MAX_PATTERNS: u64 = 4 << 20;

/// May be a pipe, as from a shell's process substitution, and nobody may ever write it: signals act meanwhile as
/// they would if they weren't the session's.
fn read_patterns(file: &Path, signals: &SignalWatch) -> io::Result<String> {
    let (finished, finish) = UnixStream::pair()?;
    let file = file.to_owned();
    let reader = std::thread::Builder::new()
        .name("patterns".to_owned())
        .spawn(move || {
            let read = read_whole(&file);
            drop(finish);
            read
        })?;
    while let Ready::Signal(arrived) = signals.wait(finished.as_fd())? {
        signal::act_by_default(arrived.signal);
    }
    reader
        .join()
        .map_err(|_| io::Error::other("reading it panicked"))?
}

fn read_whole(file: &Path) -> io::Result<String> {
    let mut text = String::new();
    let length = std::fs::File::open(file)?
        .take(MAX_PATTERNS + 1)
        .read_to_string(&mut text)?;
    if length as u64 > MAX_PATTERNS {
        return Err(io::Error::new(
            io::ErrorKind::FileTooLarge,
            format!("it is longer than {} MiB", MAX_PATTERNS >> 20),
        ));
    }
    Ok(text)
}

/// What of execs may leave the gate.
fn disclosure(options: &DisclosureOptions, signals: &SignalWatch) -> Result<Disclosure, Failure> {
    let mut disclosure = Disclosure::default();
    for pattern in &options.redact {
        disclosure
            .redact(pattern)
            .map_err(|error| Failure::new(&error))?;
    }
    if let Some(file) = &options.redact_from {
        let shown = file.display();
        let lines = read_patterns(file, signals).map_err(|error| {
            Failure::saying(format!("cannot read the patterns of {shown}: {error}"))
        })?;
        for (line, pattern) in (1..).zip(lines.lines()) {
            if pattern.is_empty() || pattern.starts_with('#') {
                continue;
            }
            disclosure.redact(pattern).map_err(|error| {
                let error = Failure::new(&error).message;
                Failure::saying(format!("{shown}, line {line}: {error}"))
            })?;
        }
    }
    for name in &options.allow_environment {
        disclosure.allow_environment(name);
    }
    Ok(disclosure)
}

/// The link as the policy of sessions, counted where somebody wants the numbers.
fn policy_of(
    options: &SessionOptions,
    link: &Arc<PolicyLink>,
) -> Result<Arc<dyn EscalationPolicy>, Failure> {
    let Some(address) = options.metrics else {
        return Ok(link.clone());
    };
    let metrics = Arc::new(GateMetrics::new(link.clone()));
    let endpoint = MetricsEndpoint::bind(address).map_err(|error| {
        Failure::new(&error).hint("give another port to --metrics; 0 takes any that is free")
    })?;
    if let Ok(address) = endpoint.address() {
        tracing::info!(%address, "metrics are served");
    }
    endpoint
        .serve(metrics.clone())
        .map_err(|error| Failure::new(&error))?;
    Ok(Arc::new(Measured::new(metrics, link.clone())))
}

/// Says what ends what is left of a session. Only what the machine lacks is a warning: to be an ordinary
/// user is no fault, and a gate that says nothing can't be told from none.
fn tell_reach() {
    match reach() {
        Reach::All => {
            tracing::info!("what a session leaves behind is ended by subreapers, whoever's it is");
        }
        Reach::OwnUser => tracing::info!(
            "what a session leaves behind is ended by subreapers, but for processes of other users: \
             no CAP_KILL"
        ),
        Reach::Group => tracing::warn!(
            "what a session leaves behind may outlive it where it leaves its process group: \
             there is no /proc/thread-self/children (CONFIG_PROC_CHILDREN)"
        ),
    }
}

fn describe() -> GateDescription {
    let host = host::host();
    let user = host::user();
    GateDescription {
        hostname: host.name,
        platform: host.platform,
        user: Some(UserDescription {
            id: user.id,
            group_id: user.group_id,
            name: user.name,
        }),
        ..GateDescription::default()
    }
}

/// The session's directory, by its real path.
fn workdir(named: Option<&Path>) -> Result<PathBuf, Failure> {
    const HINT: &str =
        "--workdir DIRECTORY names where to start; without it that is the current directory";
    let directory = named.unwrap_or(Path::new("."));
    let usable = || {
        let found = std::fs::canonicalize(directory)?;
        // What can't be looked into can't be started in, and what is no directory has no such name in it.
        std::fs::metadata(found.join("."))?;
        Ok(found)
    };
    usable().map_err(|error: io::Error| {
        Failure::saying(format!(
            "cannot use {} as the working directory: {error}",
            directory.display()
        ))
        .hint(HINT)
    })
}

/// One string for the shell: the only word as it is, or all words, each quoted.
fn command_string(words: &[OsString]) -> OsString {
    if let [only] = words {
        return only.clone();
    }
    let quoted: Vec<_> = words.iter().map(|word| quote(word.as_bytes())).collect();
    OsString::from_vec(quoted.join(&b' '))
}

/// A word as a shell reads it back: in single quotes, with each of its own as `'\''`.
fn quote(word: &[u8]) -> Vec<u8> {
    let plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"_-./,:@%+=".contains(byte);
    if !word.is_empty() && word.iter().all(plain) {
        return word.to_vec();
    }
    let mut quoted = vec![b'\''];
    for byte in word {
        if *byte == b'\'' {
            quoted.extend(b"'\\''");
        } else {
            quoted.push(*byte);
        }
    }
    quoted.push(b'\'');
    quoted
}

/// Writes what became of a command, for programs.
fn print_json(result: &ExecResult) -> io::Result<()> {
    let text = String::from_utf8_lossy;
    let mut json = serde_json::json!({
        "exit_code": result.exit_code,
        "stdout": text(&result.stdout),
        "stderr": text(&result.stderr),
        "output": text(&result.output),
        "truncated": result.truncated,
        "duration": result.duration.as_secs_f64(),
        "timed_out": result.timed_out,
        "verdicts": {
            "run": result.verdicts.run,
            "escalate": result.verdicts.escalate,
            "deny": result.verdicts.deny,
        },
    })
    .to_string();
    json.push('\n');
    io::stdout().write_all(json.as_bytes())
}

fn parse_label(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
        _ => Err("write KEY=VALUE".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_word_is_a_command_string_and_several_are_quoted() {
        let string = |words: &[&str]| {
            let words: Vec<_> = words.iter().map(OsString::from).collect();
            command_string(&words).into_string().unwrap()
        };
        assert_eq!(
            string(&["for i in 1; do x; done"]),
            "for i in 1; do x; done"
        );
        assert_eq!(string(&["grep", "-r", "a b", "."]), "grep -r 'a b' .");
        assert_eq!(string(&["echo", "it's", ""]), r"echo 'it'\''s' ''");
    }
}
