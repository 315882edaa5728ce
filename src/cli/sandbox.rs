//! How the command line names a sandbox, and what it may.

use std::ffi::OsStr;
use std::io::{self, IsTerminal};
use std::path::PathBuf;

use clap::builder::{PossibleValue, TypedValueParser};
use clap::{Args, ValueEnum};

use super::denials::Denials;
use super::temporary_directory::TemporaryDirectory;
use super::{Failure, place};
use crate::model::{Enforcement, NetworkAccess, SandboxReport};
use crate::sandbox::{
    Backend, Bubblewrap, LandlockError, Profile, Profiles, Refusals, Sandbox, SandboxError,
    Surroundings, Template, Temporary, check_path,
};

/// Which sandbox a session is in, and what that allows.
#[derive(Debug, Args)]
#[command(next_help_heading = "Sandbox")]
pub(super) struct SandboxArguments {
    /// Which sandbox the shell and its commands are in: landlock, bubblewrap, none, or command:TEMPLATE, a
    /// command line of your own. Its words are separated by spaces, with no quotes; {command} is the last,
    /// and stands for what is to be confined; {workdir}, {temporary}, {network}, {profile} are replaced, and
    /// a word with {read}, {write} or {hide} is there once for each such path
    #[arg(long, value_name = "BACKEND", default_value = "landlock", value_parser = BackendParser, hide_possible_values = true)]
    sandbox: Named,

    /// The profile of this name in --profiles [default: read all but well-known secrets; write the working
    /// directory and a temporary one of the session's own; no network]
    #[arg(long, value_name = "NAME", requires = "profiles")]
    profile: Option<String>,

    /// TOML file of profiles: a table for each, with read, write and hide (lists of paths), network ("on",
    /// "off"), secrets ("hidden", "shown") and temporary ("own", "none"); what is left out is as in the
    /// default
    #[arg(long, value_name = "FILE")]
    profiles: Option<PathBuf>,

    /// What can be read, instead of what the profile says: a path that is absolute or begins with ~/ or ./,
    /// with all below it. May be repeated
    #[arg(long, value_name = "PATH", value_parser = parse_path)]
    read: Vec<PathBuf>,

    /// What can be written besides what the profile says. May be repeated. Under landlock, in directories that
    /// something hidden is in or below, what is there can be written, and nothing be made, renamed or removed
    #[arg(long, value_name = "PATH", value_parser = parse_path)]
    write: Vec<PathBuf>,

    /// What can't be opened besides what the profile says. Of several paths that hold a file the longest
    /// decides. May be repeated
    #[arg(long, value_name = "PATH", value_parser = parse_path)]
    hide: Vec<PathBuf>,

    /// Whether there is a network, instead of what the profile says. Without one there are no connections
    /// at all, to named Unix sockets neither; with one there are those of the internet
    #[arg(long, value_name = "WHETHER")]
    network: Option<Network>,

    /// Let verdicts escalate no further than the profile of this name in --profiles: what goes beyond it, an
    /// unsandboxed command too, isn't run [default: they may do what the gate's user may]
    #[arg(long, value_name = "NAME", requires = "profiles")]
    escalation_bound: Option<String>,

    /// Start even where not all that is asked of the sandbox can be enforced; what can't be is said, and in
    /// the record of the session
    #[arg(long)]
    accept_partial_sandbox: bool,

    /// Say at the end, on standard error, what the sandbox refused: paths, signals, system calls. The kernel
    /// tells it for --sandbox landlock since Linux 6.15, to root, while its audit record is on; else it is
    /// said why it can't be told
    #[arg(long)]
    explain_denials: bool,
}

/// A backend, as it is named.
#[derive(Debug, Clone)]
enum Named {
    None,
    Landlock,
    Bubblewrap,
    Command(Template),
}

/// Parses a backend, and tells completions what backends there are.
#[derive(Debug, Clone, Copy)]
struct BackendParser;

impl TypedValueParser for BackendParser {
    type Value = Named;

    fn parse_ref(
        &self,
        command: &clap::Command,
        argument: Option<&clap::Arg>,
        value: &OsStr,
    ) -> Result<Named, clap::Error> {
        parse_backend.parse_ref(command, argument, value)
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        let backends = ["landlock", "bubblewrap", "none", "command:"];
        Some(Box::new(backends.into_iter().map(PossibleValue::new)))
    }
}

fn parse_backend(text: &str) -> Result<Named, String> {
    match text {
        "none" => Ok(Named::None),
        "landlock" => Ok(Named::Landlock),
        "bubblewrap" => Ok(Named::Bubblewrap),
        other => match other.strip_prefix("command:") {
            Some(template) => Template::parse(template, place::find_in_path)
                .map(Named::Command)
                .map_err(|error| error.to_string()),
            None => Err("write landlock, bubblewrap, none, or command:TEMPLATE".to_owned()),
        },
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Network {
    /// There is
    On,
    /// There isn't
    Off,
}

/// Where a sandbox is to be made.
pub(super) struct Place {
    pub(super) workdir: PathBuf,
    pub(super) visible: Vec<PathBuf>,
    pub(super) gates_own: Vec<PathBuf>,
}

/// A sandbox, and what goes with it.
pub(super) struct Sandboxed {
    pub(super) sandbox: Sandbox,
    pub(super) temporary: Option<TemporaryDirectory>,
    pub(super) denials: Option<Denials>,
}

impl SandboxArguments {
    pub(super) fn prepare(&self, place: Place) -> Result<Sandboxed, Failure> {
        let backend = self.backend()?;
        let (profile, bound) = self.profiles()?;
        if backend == Backend::None {
            if let Some(option) = self.pointless() {
                return Err(Failure::saying(format!(
                    "{option} needs a sandbox, and --sandbox none is none"
                )));
            }
            // As loud as a log is: this is what nothing else is about.
            tracing::warn!(
                target: "execgate::sandbox",
                "no sandbox: what runs in this session can do all that its user can, to the gate too"
            );
            return Ok(Sandboxed {
                sandbox: Sandbox::none(place.workdir),
                temporary: None,
                denials: None,
            });
        }
        let temporary = match profile.temporary {
            Temporary::Own => Some(TemporaryDirectory::new()?),
            Temporary::None => None,
        };
        let surroundings = Surroundings {
            workdir: place.workdir,
            home: std::env::var_os("HOME")
                .map(PathBuf::from)
                .filter(|home| home.is_absolute()),
            visible: place.visible,
            gates_own: place.gates_own,
            temporary: temporary
                .as_ref()
                .map(|directory| directory.path().to_owned()),
        };
        let resolve = |profile: &Profile| {
            profile.resolve(&surroundings).map_err(|error| {
                Failure::saying(format!(
                    "the profile `{}` can't be used here: {error}",
                    profile.name
                ))
            })
        };
        let refusals = if self.explain_denials {
            Refusals::Recorded
        } else {
            Refusals::Silent
        };
        let bound = bound.as_ref().map(resolve).transpose()?;
        let sandbox = Sandbox::new(backend, resolve(&profile)?, bound, terminals(), refusals)
            .map_err(|error| no_sandbox(&error))?;
        let report = sandbox.report();
        self.accept(&report)?;
        if !report.not_granted.is_empty() {
            tracing::warn!(
                target: "execgate::sandbox",
                "so that what is hidden stays so, {}; where that is needed, let the session write a directory that \
                 holds nothing of the kind, or use --sandbox bubblewrap",
                report.not_granted.join("; ")
            );
        }
        let denials = self
            .explain_denials
            .then(|| Denials::listen(&report.backend, &report.version));
        Ok(Sandboxed {
            sandbox,
            temporary,
            denials,
        })
    }

    fn backend(&self) -> Result<Backend, Failure> {
        match &self.sandbox {
            Named::None => Ok(Backend::None),
            Named::Landlock => Ok(Backend::Landlock),
            Named::Bubblewrap => bubblewrap().map(Backend::Bubblewrap),
            Named::Command(template) => Ok(Backend::Command(template.clone())),
        }
    }

    /// The session's profile, with what the flags change of it, and the owner's bound.
    fn profiles(&self) -> Result<(Profile, Option<Profile>), Failure> {
        let file = self.profiles.as_deref().map(Profiles::read).transpose();
        let file = file.map_err(|error| Failure::new(&error))?;
        if file.is_some() && self.profile.is_none() && self.escalation_bound.is_none() {
            return Err(Failure::saying(
                "--profiles names a file, and nothing says which profile of it holds",
            )
            .hint("add --profile NAME"));
        }
        let named = |name: &Option<String>| match (name, &file) {
            (Some(name), Some(file)) => {
                let found = file.get(name).map_err(|error| Failure::new(&error))?;
                Ok::<_, Failure>(Some(found.clone()))
            }
            _ => Ok(None),
        };
        let mut profile = named(&self.profile)?.unwrap_or_default();
        if self.changes() {
            // What is said of it later isn't to be taken for what it is without these.
            profile.name.push_str(" (changed)");
        }
        if !self.read.is_empty() {
            profile.read.clone_from(&self.read);
        }
        profile.write.extend(self.write.iter().cloned());
        profile.hide.extend(self.hide.iter().cloned());
        match self.network {
            Some(Network::On) => profile.network = NetworkAccess::Allowed,
            Some(Network::Off) => profile.network = NetworkAccess::Denied,
            None => {}
        }
        Ok((profile, named(&self.escalation_bound)?))
    }

    fn changes(&self) -> bool {
        let paths = [&self.read, &self.write, &self.hide];
        paths.iter().any(|list| !list.is_empty()) || self.network.is_some()
    }

    /// What makes no sense without a sandbox.
    fn pointless(&self) -> Option<&'static str> {
        let options = [
            (self.profile.is_some(), "--profile"),
            (!self.read.is_empty(), "--read"),
            (!self.write.is_empty(), "--write"),
            (!self.hide.is_empty(), "--hide"),
            (self.network.is_some(), "--network"),
            (self.escalation_bound.is_some(), "--escalation-bound"),
            (self.explain_denials, "--explain-denials"),
        ];
        options
            .into_iter()
            .find(|(given, _)| *given)
            .map(|(_, option)| option)
    }

    /// Refuses less than was asked for.
    fn accept(&self, report: &SandboxReport) -> Result<(), Failure> {
        if report.enforcement == Enforcement::Full {
            return Ok(());
        }
        let lacking = report.not_enforced.join("; ");
        if self.accept_partial_sandbox {
            tracing::warn!(target: "execgate::sandbox", %lacking, "the sandbox doesn't enforce all that was asked for");
            return Ok(());
        }
        Err(Failure::saying(format!(
            "the sandbox {} can't enforce all that was asked for: {lacking}",
            report.backend
        ))
        .hint("--accept-partial-sandbox starts it all the same; `execgate doctor` says what this machine has"))
    }
}

/// An installed bubblewrap that works.
pub(super) fn bubblewrap() -> Result<Bubblewrap, Failure> {
    let program = place::find_in_path("bwrap").ok_or_else(|| {
        Failure::saying("bubblewrap isn't installed").hint("apt-get install bubblewrap")
    })?;
    Bubblewrap::find(program, place::stand_in()?).map_err(|error| {
        Failure::new(&error).hint("allow unprivileged user namespaces, or run the gate as root")
    })
}

fn no_sandbox(error: &SandboxError) -> Failure {
    let failure = Failure::new(error);
    match error {
        SandboxError::Landlock(LandlockError::RootWritable { .. }) => failure.hint(
            "start it in another directory, or use --sandbox bubblewrap, which has a /proc of its own",
        ),
        SandboxError::Landlock(LandlockError::Unavailable(_)) => failure.hint(
            "use --sandbox bubblewrap; --sandbox none confines nothing. `execgate doctor` says what there is",
        ),
        _ => failure,
    }
}

fn parse_path(text: &str) -> Result<PathBuf, String> {
    let path = PathBuf::from(text);
    check_path(&path).map_err(|error| error.to_string())?;
    Ok(path)
}

/// The terminals that the gate was started with.
fn terminals() -> Vec<PathBuf> {
    let standard = [
        io::stdin().is_terminal(),
        io::stdout().is_terminal(),
        io::stderr().is_terminal(),
    ];
    let numbers = standard
        .iter()
        .enumerate()
        .filter(|(_, is_terminal)| **is_terminal);
    let mut names: Vec<_> = numbers
        .filter_map(|(number, _)| std::fs::read_link(format!("/proc/self/fd/{number}")).ok())
        .filter(|name| name.starts_with("/dev"))
        .collect();
    names.dedup();
    names
}
