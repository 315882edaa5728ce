//! `execgate doctor`: what this machine has, and how to get what it lacks.

use std::ffi::c_int;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, SystemTime};

use clap::Args;
use serde::Serialize;

mod journal;

use super::policy::PolicyOptions;
use super::remedy::Role;
use super::{Failure, OutputForm, OutputOption, SUCCESS, place};
use crate::link::{Endpoint, LinkCredentials};
use crate::logging;
use crate::sandbox::{Backend, Landlock, limits};
use crate::sys::reach::{Reach, reach};
use crate::sys::{host, limits, process, signal};

/// Something that is needed is missing.
const MISSING: c_int = 1;

/// How long a policy service may take to answer.
const PROBE_TIME: Duration = Duration::from_secs(5);

const EXIT_CODES: &str = "\
Exit codes:
  0  everything that is needed is there; what is only useful may be missing
  1  something that is needed is missing, or somebody has to see to something
  2  the command line is wrong
  125  the findings couldn't be written
";

#[derive(Debug, Args)]
#[command(after_help = EXIT_CODES)]
pub(super) struct DoctorArguments {
    /// Look into this journal, and change nothing in it: what gates have left there, and whether it can be
    /// used
    #[arg(long, value_name = "DIRECTORY", env = "EXECGATE_JOURNAL")]
    journal: Option<PathBuf>,

    #[command(flatten)]
    output: OutputOption,

    #[command(flatten)]
    policy: PolicyOptions,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Status {
    /// It is there.
    Good,
    /// It is missing, and only useful.
    Weak,
    /// It is missing, and needed.
    Missing,
    /// It is there, and somebody has to see to it.
    Broken,
}

/// One thing looked at.
#[derive(Debug, Serialize)]
struct Finding {
    subject: &'static str,
    status: Status,
    detail: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    remedy: Option<String>,
}

impl Finding {
    fn good(subject: &'static str, detail: impl Into<String>) -> Self {
        Self {
            subject,
            status: Status::Good,
            detail: detail.into(),
            remedy: None,
        }
    }

    fn lacking(
        subject: &'static str,
        status: Status,
        detail: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        Self {
            subject,
            status,
            detail: detail.into(),
            remedy: Some(remedy.into()),
        }
    }
}

pub(super) fn doctor(arguments: &DoctorArguments) -> Result<c_int, Failure> {
    let mut findings = vec![kernel(), exit_status(), wrapper()];
    findings.extend(["bash", "zsh"].map(shell));
    findings.push(descendants());
    findings.push(open_files());
    findings.push(clock());
    findings.push(landlock());
    findings.push(bubblewrap());
    findings.push(denials());
    findings.extend(policies(&arguments.policy));
    // A variable that is set to nothing isn't a choice.
    if let Some(journal) = &arguments.journal
        && !journal.as_os_str().is_empty()
    {
        findings.extend(journal::findings(journal));
    }
    let text = match arguments.output.output {
        OutputForm::Json => {
            let mut text = serde_json::json!({ "findings": findings }).to_string();
            text.push('\n');
            text
        }
        OutputForm::Text => render(&findings, logging::has_colours(&io::stdout())),
    };
    io::stdout()
        .write_all(text.as_bytes())
        .map_err(|error| Failure::saying(format!("cannot write the findings: {error}")))?;
    let is_urgent = |finding: &Finding| matches!(finding.status, Status::Missing | Status::Broken);
    Ok(if findings.iter().any(is_urgent) {
        MISSING
    } else {
        SUCCESS
    })
}

fn render(findings: &[Finding], colour: bool) -> String {
    findings
        .iter()
        .map(|finding| line(finding, colour))
        .collect()
}

fn line(finding: &Finding, colour: bool) -> String {
    let (word, code) = match finding.status {
        Status::Good => ("good", "32"),
        Status::Weak => ("weak", "33"),
        Status::Missing => ("missing", "31"),
        Status::Broken => ("broken", "31"),
    };
    let (on, off) = if colour {
        (format!("\x1b[{code}m"), "\x1b[0m")
    } else {
        (String::new(), "")
    };
    let Finding {
        subject, detail, ..
    } = finding;
    let remedy = match &finding.remedy {
        Some(remedy) => format!("{:>24}{remedy}\n", "-> "),
        None => String::new(),
    };
    format!("{on}{word:<8}{off}{subject:<16}{detail}\n{remedy}")
}

fn kernel() -> Finding {
    Finding::good("kernel", host::host().platform)
}

fn exit_status() -> Finding {
    const SUBJECT: &str = "exit status";
    match process::Pidfd::open(process::own_pid()).map(|own| own.end()) {
        Ok(Ok(_)) => Finding::good(SUBJECT, "the audit shows how commands that run have ended"),
        Ok(Err(_)) => Finding::lacking(
            SUBJECT,
            Status::Weak,
            "the audit shows when commands that run have ended, but not how",
            "Linux 6.15 or newer tells it",
        ),
        Err(error) => Finding::lacking(
            SUBJECT,
            Status::Weak,
            format!("the audit doesn't show the end of commands that run: {error}"),
            "Linux 5.3 or newer tells when, 6.15 or newer how",
        ),
    }
}

fn wrapper() -> Finding {
    const SUBJECT: &str = "wrapper";
    match place::wrapper() {
        Err(failure) => Finding::lacking(
            SUBJECT,
            Status::Missing,
            failure.message,
            failure.hint.unwrap_or_default(),
        ),
        Ok(path) if is_static(&path) => Finding::good(SUBJECT, path.display().to_string()),
        Ok(path) => Finding::lacking(
            SUBJECT,
            Status::Weak,
            format!(
                "{} is dynamically linked: each exec is slower",
                path.display()
            ),
            "`make build` links it statically",
        ),
    }
}

/// Whether a program needs no dynamic loader: its file doesn't name one.
fn is_static(path: &Path) -> bool {
    std::fs::read(path).is_ok_and(|bytes| {
        let mut windows = bytes.windows(11).take(4096);
        !windows.any(|window| window == b"/ld-linux-x" || window == b"/ld-linux-a")
    })
}

fn shell(name: &'static str) -> Finding {
    let path = match place::shell(Path::new(name)) {
        Ok(path) => path,
        Err(failure) => {
            let needed = if name == "bash" {
                Status::Missing
            } else {
                Status::Weak
            };
            return Finding::lacking(
                name,
                needed,
                failure.message,
                failure.hint.unwrap_or_default(),
            );
        }
    };
    // A wrapper that isn't there keeps a patched shell from executing anything.
    let ran = Command::new(&path)
        .args(["-c", "/bin/true"])
        .env_clear()
        .env("EXEC_WRAPPER", "/nonexistent/execgate-wrapper")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    match ran {
        Ok(status) if status.success() => Finding::lacking(
            name,
            Status::Missing,
            format!("{} isn't patched: its execs can't be gated", path.display()),
            "`make build` builds a patched one",
        ),
        Ok(_) => Finding::good(name, path.display().to_string()),
        Err(error) => Finding::lacking(
            name,
            Status::Missing,
            format!("{}: {error}", path.display()),
            "`make build` builds one for this machine",
        ),
    }
}

fn descendants() -> Finding {
    const SUBJECT: &str = "clean-up";
    match reach() {
        Reach::All => Finding::good(
            SUBJECT,
            "whatever a session's commands start ends with it, whoever's it is (subreaper, CAP_KILL)",
        ),
        Reach::OwnUser => Finding::lacking(
            SUBJECT,
            Status::Weak,
            "whatever a session's commands start ends with it (subreaper), unless it becomes another user's, \
             as by sudo",
            "run the gate as root, or escalate nothing that changes its user",
        ),
        Reach::Group => Finding::lacking(
            SUBJECT,
            Status::Weak,
            "a session's commands end with it, and their process groups: what detaches itself may outlive it",
            "mount /proc, with a kernel that has CONFIG_PROC_CHILDREN",
        ),
    }
}

fn open_files() -> Finding {
    const SUBJECT: &str = "open files";
    match limits::open_files() {
        Ok(limit) if limit.hard >= 4096 => Finding::good(SUBJECT, format!("up to {}", limit.hard)),
        Ok(limit) => Finding::lacking(
            SUBJECT,
            Status::Weak,
            format!("only {}: few commands can wait at once", limit.hard),
            "raise the hard limit, ulimit -Hn",
        ),
        Err(error) => Finding::lacking(SUBJECT, Status::Weak, error.to_string(), "see ulimit -n"),
    }
}

/// Certificates are judged, and the record is dated, by the clock. One that stands still where the machine was made
/// is before the program was installed.
fn clock() -> Finding {
    const SUBJECT: &str = "clock";
    let (now, shown) = (SystemTime::now(), humantime::format_rfc3339_seconds);
    let program = std::env::current_exe().and_then(std::fs::metadata);
    match program.and_then(|program| program.modified()) {
        Ok(installed) if installed > now => Finding::lacking(
            SUBJECT,
            Status::Weak,
            format!(
                "it says {}, and this program was installed at {}: certificates may seem not to be valid yet, and the \
                 record's times wrong",
                shown(now),
                shown(installed)
            ),
            "set it; a time service such as chrony or systemd-timesyncd keeps it right",
        ),
        _ => Finding::good(SUBJECT, shown(now).to_string()),
    }
}

fn landlock() -> Finding {
    const SUBJECT: &str = "landlock";
    match Landlock::find() {
        Ok(Landlock { version, lacking }) if lacking.is_empty() => Finding::good(
            SUBJECT,
            format!(
                "version {version}: --sandbox landlock enforces profiles fully; what they don't cover: {}",
                limits(&Backend::Landlock).join("; ")
            ),
        ),
        Ok(Landlock { version, lacking }) => Finding::lacking(
            SUBJECT,
            Status::Weak,
            format!(
                "version {version}: --sandbox landlock enforces profiles partially: {}",
                lacking.join("; ")
            ),
            "use a newer kernel, or --sandbox bubblewrap, or accept it: --accept-partial-sandbox",
        ),
        Err(error) => Finding::lacking(
            SUBJECT,
            Status::Weak,
            format!("--sandbox landlock, the default, can't be used: {error}"),
            "use --sandbox bubblewrap",
        ),
    }
}

/// Whether `--explain-denials` has anything to say here.
fn denials() -> Finding {
    const SUBJECT: &str = "denials";
    let version =
        Landlock::find().map_or(String::new(), |found| format!("landlock {}", found.version));
    match super::denials::lacking("landlock", &version) {
        None => Finding::good(
            SUBJECT,
            "`exec --explain-denials` tells what --sandbox landlock refuses",
        ),
        Some(lacking) => Finding::lacking(
            SUBJECT,
            Status::Weak,
            format!(
                "`exec --explain-denials` can't tell what a sandbox refuses: {}",
                lacking.why()
            ),
            lacking.remedy(),
        ),
    }
}

fn bubblewrap() -> Finding {
    const SUBJECT: &str = "bubblewrap";
    match super::sandbox::bubblewrap() {
        Ok(found) => Finding::good(
            SUBJECT,
            format!(
                "{}: --sandbox bubblewrap enforces profiles fully; what they don't cover: {}",
                found.version(),
                limits(&Backend::Bubblewrap(found)).join("; ")
            ),
        ),
        Err(failure) => Finding::lacking(
            SUBJECT,
            Status::Weak,
            format!("--sandbox bubblewrap can't be used: {}", failure.message),
            failure.hint.unwrap_or_default(),
        ),
    }
}

const POLICY_SERVICE: &str = "policy service";

/// One for each endpoint.
fn policies(options: &PolicyOptions) -> Vec<Finding> {
    let credentials = options.credentials();
    let mut findings: Vec<_> = options
        .named()
        .map(|named| policy(named, &credentials))
        .collect();
    if findings.is_empty() {
        findings.push(Finding::lacking(
            POLICY_SERVICE,
            Status::Weak,
            "none named",
            "give --policy URL or set EXECGATE_POLICY: this looks whether it answers, and `execgate exec` needs \
             it; `execgate-policyd --rules FILE` starts one",
        ));
    }
    findings
}

fn policy(named: &str, credentials: &LinkCredentials) -> Finding {
    const SUBJECT: &str = POLICY_SERVICE;
    let endpoint: Endpoint = match named.parse() {
        Ok(endpoint) => endpoint,
        Err(error) => {
            return Finding::lacking(
                SUBJECT,
                Status::Missing,
                format!("{error}"),
                "correct --policy or EXECGATE_POLICY",
            );
        }
    };
    // A service that ends the connection must not end this.
    signal::ignore(libc::SIGPIPE);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let runtime = match runtime {
        Ok(runtime) => runtime,
        Err(error) => {
            return Finding::lacking(SUBJECT, Status::Missing, error.to_string(), "see ulimit -n");
        }
    };
    let Err(error) = runtime.block_on(endpoint.probe(credentials, PROBE_TIME)) else {
        return Finding::good(SUBJECT, format!("{endpoint} answers"));
    };
    let remedy = match error.obstacle {
        Some(obstacle) => Role::Gate.remedy(obstacle),
        None => Role::Gate.service(),
    };
    // Some errors begin with whose they are.
    let mut detail = error.to_string();
    if !detail.contains(&endpoint.to_string()) {
        detail = format!("{endpoint}: {detail}");
    }
    Finding::lacking(SUBJECT, Status::Missing, detail, remedy)
}
