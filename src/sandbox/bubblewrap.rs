//! Bubblewrap's options: `bwrap(1)`, version 0.6 and later.
//!
//! Its namespaces hide processes, the network and what is hidden altogether. What it can't do: hide what isn't
//! there when the command starts, since there is nothing to put something over.

use std::collections::BTreeMap;
use std::ffi::{CString, OsString};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::landlock::{self, LandlockError};
use super::profile::{Access, Scope};
use super::seccomp::{self, Communication};
use super::{Confined, Entered, Unconfined};
use crate::model::NetworkAccess;
use crate::sys::confine::{self, Confinement};
use crate::sys::exec::BY_DESCRIPTOR;
use crate::sys::host;

/// An installed bubblewrap.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bubblewrap {
    program: PathBuf,
    /// Such as `0.8.0`.
    version: String,
    /// `execgate-stand-in`, which starts the command in the sandbox.
    stand_in: PathBuf,
    open_places: OpenPlaces,
    abstract_sockets: AbstractSockets,
}

/// Whether abstract sockets of others can be reached with the network on: their names are the network's, which is the
/// machine's then.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum AbstractSockets {
    /// Landlock keeps them out of reach. It is in force before bubblewrap itself is executed.
    Kept,
    /// They can: Landlock lacks it, or would take from a set-user-ID bubblewrap what that needs.
    Reached,
}

/// Whether it mounts what is open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum OpenPlaces {
    /// It does: `--bind-fd`, since 0.10, and in Debian's 0.8.
    Mounted,
    /// It mounts names alone.
    NotKnown,
}

/// What no version holds.
const LIMITS: [&str; 2] = [
    "what is hidden and comes into being later can be seen, unless its directory is hidden",
    "datagrams can be sent to Unix datagram sockets that have a name, outside of /run and /tmp",
];
const ABSTRACT_LIMIT: &str = "with a network, datagrams can be sent to abstract Unix sockets of others (Landlock 6, Linux 6.12, and a bubblewrap without set-user-ID prevent it)";

/// Why bubblewrap can't be used.
#[derive(Debug, thiserror::Error)]
pub enum BubblewrapError {
    /// It can't be run.
    #[error("cannot run {}", .program.display())]
    Run {
        /// The program.
        program: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// It can't make a sandbox here.
    #[error("{} can't make a sandbox: {reason}", .program.display())]
    Fails {
        /// The program.
        program: PathBuf,
        /// What it says.
        reason: String,
    },
}

/// The namespaces of every sandbox.
const NAMESPACES: [&str; 5] = [
    "--unshare-pid",
    "--unshare-ipc",
    "--unshare-uts",
    "--unshare-cgroup-try",
    "--die-with-parent",
];

/// What root keeps in it, as under Landlock: `capabilities(7)`.
const CAPABILITIES: [&str; 8] = [
    "CAP_CHOWN",
    "CAP_DAC_OVERRIDE",
    "CAP_FOWNER",
    "CAP_FSETID",
    "CAP_KILL",
    "CAP_SETGID",
    "CAP_SETUID",
    "CAP_NET_BIND_SERVICE",
];

/// Below `/proc`, where the kernel takes the user's number, root's, for a leave to change the machine. What of it
/// isn't there is passed over.
const KERNEL: [&str; 7] = [
    "/proc/acpi",
    "/proc/bus",
    "/proc/fs",
    "/proc/irq",
    "/proc/scsi",
    "/proc/sys",
    "/proc/sysrq-trigger",
];

impl Bubblewrap {
    /// The program at this path, if it works here, and the `execgate-stand-in` that it is to start in sandboxes.
    ///
    /// # Errors
    /// It can't be run, or can't make a sandbox, for lack of user namespaces as a rule.
    pub fn find(program: PathBuf, stand_in: PathBuf) -> Result<Self, BubblewrapError> {
        let run = |options: &[&str]| {
            Command::new(&program)
                .args(options)
                .stdin(Stdio::null())
                .output()
                .map_err(|source| BubblewrapError::Run {
                    program: program.clone(),
                    source,
                })
        };
        let told = String::from_utf8_lossy(&run(&["--version"])?.stdout).into_owned();
        let version = told
            .split_ascii_whitespace()
            .last()
            .unwrap_or_default()
            .to_owned();
        let trial = [
            &NAMESPACES[..],
            &[
                "--unshare-net",
                "--ro-bind",
                "/",
                "/",
                "--dev",
                "/dev",
                "--proc",
                "/proc",
                "--",
                "/bin/true",
            ],
        ];
        let tried = run(&trial.concat())?;
        if !tried.status.success() {
            let reason = String::from_utf8_lossy(&tried.stderr).trim().to_owned();
            return Err(BubblewrapError::Fails { program, reason });
        }
        let help = String::from_utf8_lossy(&run(&["--help"])?.stdout).into_owned();
        let is_set_id = program
            .metadata()
            .is_ok_and(|found| found.permissions().mode() & libc::S_ISUID != 0);
        let has_scopes = confine::landlock_version().is_ok_and(|found| found >= landlock::SCOPES);
        Ok(Self {
            program,
            abstract_sockets: if has_scopes && !is_set_id {
                AbstractSockets::Kept
            } else {
                AbstractSockets::Reached
            },
            stand_in,
            open_places: if help.contains("--ro-bind-fd") {
                OpenPlaces::Mounted
            } else {
                OpenPlaces::NotKnown
            },
            version,
        })
    }

    /// Such as `bubblewrap 0.8.0`.
    #[must_use]
    pub fn version(&self) -> String {
        format!("bubblewrap {}", self.version)
    }

    /// What it holds for no profile, in words.
    pub(super) fn limits(&self) -> Vec<&'static str> {
        let mut limits = LIMITS.to_vec();
        if self.abstract_sockets == AbstractSockets::Reached {
            limits.push(ABSTRACT_LIMIT);
        }
        limits
    }

    /// What bubblewrap itself is confined by before it is executed.
    ///
    /// # Errors
    /// The kernel refuses it.
    pub(super) fn confinement(&self, scope: &Scope) -> Result<Option<Confinement>, LandlockError> {
        let is_needed = scope.network == NetworkAccess::Allowed;
        if !is_needed || self.abstract_sockets == AbstractSockets::Reached {
            return Ok(None);
        }
        Ok(Some(Confinement {
            ruleset: landlock::abstract_sockets()?,
            ruleset_flags: 0,
            filters: Vec::new(),
            filter_flags: 0,
            // It needs them for its mounts, and takes them from the command.
            capabilities: None,
        }))
    }

    /// The command line that runs `command` in a sandbox. `loose` are paths of the scope whose names may lead
    /// elsewhere by the time that they are mounted, opened.
    ///
    /// # Errors
    /// No descriptors left for the filters; a version that can't mount what is open.
    pub(super) fn confine(
        &self,
        command: Unconfined<'_>,
        scope: &Scope,
        loose: BTreeMap<PathBuf, OwnedFd>,
    ) -> io::Result<Confined> {
        if let (Some((path, _)), OpenPlaces::NotKnown) = (loose.first_key_value(), self.open_places)
        {
            return Err(io::Error::other(format!(
                "the session can change what {} is, and this bubblewrap can't mount what is open: \
                 --bind-fd is in 0.10",
                path.display()
            )));
        }
        let mut options = Options(vec!["bwrap".into()]);
        options.flags(&NAMESPACES);
        if host::user().id == 0 {
            options.flags(&["--cap-drop", "ALL"]);
            for capability in CAPABILITIES {
                options.flags(&["--cap-add", capability]);
            }
        }
        if scope.network == NetworkAccess::Denied {
            options.flags(&["--unshare-net"]);
        }
        let mut descriptors = options.mounts(scope, loose);
        for filter in seccomp::filters(scope.network, Communication::Own)? {
            options.flags(&["--add-seccomp-fd"]);
            descriptors.push((filter.to_file()?, options.0.len()));
            options.flags(&["?"]);
        }
        options.flags(&["--chdir"]);
        options.0.push(command.workdir.into());
        options.flags(&["--"]);
        // By a descriptor: its name may be none in the sandbox. Only its place, by which nobody can write it.
        let stand_in = CString::new(self.stand_in.as_os_str().as_bytes())?;
        let stand_in = confine::open_place(None, &stand_in)?;
        descriptors.push((stand_in.into(), options.0.len()));
        options.flags(&[BY_DESCRIPTOR]);
        let told_signals = options.0.len();
        options.flags(&["0"]);
        options.0.push(match command.directory {
            Entered::ByName => OsString::new(),
            Entered::Exactly => command.workdir.into(),
        });
        options.0.push(command.program.into());
        match command.argv {
            [] => options.0.push(command.program.into()),
            argv => options.0.extend(argv.iter().cloned()),
        }
        Ok(Confined {
            program: self.program.clone(),
            argv: options.0,
            confinement: None,
            descriptors,
            told_signals: Some(told_signals),
        })
    }
}

/// The directories between what can be written and what has a mount of its own in it. They get one too: what is a
/// mount can't be moved, and what is below would be found by another name afterwards, uncovered.
fn held(scope: &Scope) -> impl Iterator<Item = &Path> {
    let inner = scope
        .paths
        .keys()
        .filter(|path| path.symlink_metadata().is_ok());
    inner.flat_map(|path| {
        path.ancestors()
            .skip(1)
            .take_while(|above| !scope.paths.contains_key(*above))
            .filter(|above| scope.access(above) == Access::Write)
    })
}

struct Options(Vec<OsString>);

impl Options {
    fn flags(&mut self, words: &[&str]) {
        self.0.extend(words.iter().map(OsString::from));
    }

    fn mount(&mut self, option: &str, from: &Path, to: &Path) {
        self.0.extend([option.into(), from.into(), to.into()]);
    }

    fn at(&mut self, option: &str, place: &Path) {
        self.0.extend([option.into(), place.into()]);
    }

    /// Mounts something, by its name or as it is open.
    fn bind(
        &mut self,
        option: &str,
        path: &Path,
        loose: &mut BTreeMap<PathBuf, OwnedFd>,
        descriptors: &mut Vec<(OwnedFd, usize)>,
    ) {
        let Some(place) = loose.remove(path) else {
            return self.mount(option, path, path);
        };
        self.0.push(format!("{option}-fd").into());
        descriptors.push((place, self.0.len()));
        self.flags(&["?"]);
        self.0.push(path.into());
    }

    /// From the shortest path to the longest, so that the longest decides. Returns what is mounted as it is
    /// open, with its places.
    fn mounts(
        &mut self,
        scope: &Scope,
        mut loose: BTreeMap<PathBuf, OwnedFd>,
    ) -> Vec<(OwnedFd, usize)> {
        let mut descriptors = Vec::new();
        let root = Path::new("/");
        match scope.access(root) {
            Access::Hidden => self.links(),
            Access::Read => self.mount("--ro-bind", root, root),
            Access::Write => self.mount("--bind", root, root),
        }
        self.flags(&["--dev", "/dev", "--proc", "/proc"]);
        if host::user().id == 0 {
            for path in KERNEL.map(Path::new) {
                self.mount("--ro-bind-try", path, path);
            }
        }
        let mut covered = Vec::new();
        if scope.access(Path::new("/tmp")) == Access::Hidden {
            self.flags(&["--tmpfs", "/tmp"]);
        }
        let own = ["/", "/tmp", "/dev", "/proc"].map(Path::new);
        let mut mounts: BTreeMap<&Path, Access> = held(scope)
            .map(|directory| (directory, Access::Write))
            .collect();
        mounts.extend(scope.paths.iter().map(|(path, access)| (&**path, *access)));
        for (path, access) in mounts {
            let above = path
                .parent()
                .map_or(Access::Hidden, |parent| scope.access(parent));
            match access {
                Access::Read if path != root => {
                    self.bind("--ro-bind", path, &mut loose, &mut descriptors);
                }
                Access::Write if path != root => {
                    self.bind("--bind", path, &mut loose, &mut descriptors);
                }
                Access::Hidden if above != Access::Hidden && !own.contains(&path) => {
                    match path.metadata() {
                        Ok(found) if found.is_dir() => {
                            self.at("--tmpfs", path);
                            covered.push(path);
                        }
                        // A device in a mount without devices can't be opened.
                        Ok(_) => self.mount("--ro-bind", Path::new("/dev/null"), path),
                        Err(_) => {}
                    }
                }
                _ => {}
            }
        }
        if scope.access(&scope.workdir) == Access::Hidden {
            // To start in, with nothing in it.
            self.at("--dir", &scope.workdir);
        }
        for path in covered {
            self.at("--remount-ro", path);
        }
        descriptors
    }

    /// A root directory with nothing but the links of the real one, `/bin` and the like.
    fn links(&mut self) {
        let Ok(entries) = std::fs::read_dir("/") else {
            return;
        };
        for path in entries.flatten().map(|entry| entry.path()) {
            if let Ok(to) = path.read_link() {
                self.mount("--symlink", &to, &path);
            }
        }
    }
}
