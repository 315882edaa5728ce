//! Turns "run this, so" into a command under a sandbox, and reports what is really enforced.
//!
//! ```text
//! Profile (flags, TOML) ── resolve, in its surroundings ──► Scope ──► backend ──► Confined
//! permissions of a verdict ── within the owner's bound ──────┘
//! ```
//!
//! Invariants: all backends take the same scopes; what a backend doesn't enforce it says in words, and a
//! session that would have less than was asked for doesn't begin unless its owner accepts that; what comes
//! with a verdict is never wider than the owner's bound.
//!
//! Not here: deciding who runs where; starting processes; reading command lines.

mod bubblewrap;
mod landlock;
mod profile;
mod profiles;
mod seccomp;
pub mod secrets;
mod template;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

pub use bubblewrap::{Bubblewrap, BubblewrapError};
pub use landlock::LandlockError;
pub use profile::{
    Access, DEFAULT, PathError, Profile, Scope, Secrets, Surroundings, Temporary, check_path,
};
pub use profiles::{Profiles, ProfilesError};
pub use template::{Template, TemplateError};

use seccomp::Communication;

use crate::model::{Enforcement, EscalationPermissions, NetworkAccess, SandboxReport};
use crate::sys::confine::{self, Confinement};

/// What puts a command into a sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Backend {
    /// Nothing: processes are where the gate is.
    None,
    /// Landlock and a filter of system calls. No privileges, no namespaces.
    Landlock,
    /// Bubblewrap: namespaces for mounts, processes and the network, and the same filter.
    Bubblewrap(Bubblewrap),
    /// A command line of the owner's own.
    Command(Template),
}

/// What this machine has of Landlock and filters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Landlock {
    /// The version of its interface.
    pub version: u32,
    /// What of any profile isn't enforced, in words; empty: all is.
    pub lacking: Vec<String>,
}

impl Landlock {
    /// Looks.
    ///
    /// # Errors
    /// There is none.
    pub fn find() -> Result<Self, LandlockError> {
        let version = confine::landlock_version().map_err(LandlockError::Unavailable)?;
        let mut lacking = landlock::lacking(version);
        if !confine::has_filters() {
            lacking.push(
                "system calls aren't filtered (seccomp needs CONFIG_SECCOMP_FILTER, Linux 4.14)"
                    .to_owned(),
            );
        }
        Ok(Self { version, lacking })
    }
}

/// Whether the kernel records what a sandbox refuses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusals {
    /// It doesn't.
    Silent,
    /// It does, in its audit record, where that is on and the backend has them recorded.
    Recorded,
}

/// A session's sandbox.
#[derive(Debug)]
pub struct Sandbox {
    backend: Backend,
    scope: Scope,
    /// What verdicts may grant at the most; `None`: whatever they say.
    bound: Option<Scope>,
    /// What the session's processes are confined by before they are executed.
    confinement: Option<Confinement>,
    terminals: Vec<PathBuf>,
    refusals: Refusals,
    report: SandboxReport,
}

/// A command line to execute for a confined command.
#[derive(Debug)]
pub struct Confined {
    /// The program: absolute.
    pub program: PathBuf,
    /// Its arguments, from argument zero on.
    pub argv: Vec<OsString>,
    /// What its process is confined by before it is executed.
    pub confinement: Option<Confinement>,
    /// Descriptors for it, each with the place in `argv` that has a `?` where its number has to be.
    pub descriptors: Vec<(OwnedFd, usize)>,
    /// Where in `argv` the signals that the command has blocked have to be, where it is started with all blocked.
    pub told_signals: Option<usize>,
}

/// A command to be confined.
#[derive(Debug, Clone, Copy)]
pub struct Unconfined<'a> {
    /// The program: absolute.
    pub program: &'a Path,
    /// Its arguments, from argument zero on; may be empty.
    pub argv: &'a [OsString],
    /// Its working directory: absolute.
    pub workdir: &'a Path,
    /// What of that name will do.
    pub directory: Entered,
}

/// How a working directory is entered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Entered {
    /// By its name, wherever that leads.
    ByName,
    /// It has to be the one that the kernel itself has that name for, in the sandbox too.
    Exactly,
}

impl Unconfined<'_> {
    /// The command as it is.
    pub fn as_it_is(self) -> Confined {
        Confined {
            program: self.program.to_owned(),
            argv: self.argv.to_vec(),
            confinement: None,
            descriptors: Vec::new(),
            told_signals: None,
        }
    }
}

/// There is no sandbox, or the asked confinement can't be had.
#[derive(Debug, thiserror::Error)]
pub enum SandboxError {
    /// Landlock can't do it.
    #[error(transparent)]
    Landlock(#[from] LandlockError),
    /// The backend can't do it at all.
    #[error("the sandbox backend `{0}` can't enforce a permission profile")]
    NotEnforceable(&'static str),
    /// A path in a verdict's permissions.
    #[error("the verdict's permissions can't be used: {0}")]
    Permissions(PathError),
    /// More than the owner allows.
    #[error(
        "the gate's owner allows escalations no more than the profile `{bound}` does: {excess}"
    )]
    Exceeds {
        /// The profile that is the bound.
        bound: String,
        /// What is more, in words.
        excess: String,
    },
    /// The filters or their descriptors can't be made.
    #[error("cannot make the sandbox")]
    Make(#[source] io::Error),
}

/// What of a file's owner and group, signals and so on root keeps under Landlock, `capabilities(7)`: what
/// building and installing needs, and nothing that reaches beyond the sandbox. The numbers of CHOWN,
/// DAC_OVERRIDE, FOWNER, FSETID, SETGID, SETUID and NET_BIND_SERVICE; KILL where signals don't leave it.
const CAPABILITIES: [u64; 7] = [0, 1, 3, 4, 6, 7, 10];
const CAPABILITY_KILL: u64 = 5;
/// Since then refusals are recorded, also those of programs executed later
/// (`LANDLOCK_RESTRICT_SELF_LOG_NEW_EXEC_ON`).
const TOLD: u32 = 7;
const LOG_NEW_EXEC_ON: u32 = 1 << 1;
/// `SECCOMP_FILTER_FLAG_LOG`.
const FILTER_LOG: u32 = 1 << 1;
/// Since then signals stay in the sandbox.
const SCOPED_SIGNALS: u32 = landlock::SCOPES;

impl Sandbox {
    /// A sandbox of this scope. `terminals` are those that the session was started with.
    ///
    /// # Errors
    /// The backend isn't there, or can't do what the scope asks for.
    pub fn new(
        backend: Backend,
        scope: Scope,
        bound: Option<Scope>,
        terminals: Vec<PathBuf>,
        refusals: Refusals,
    ) -> Result<Self, SandboxError> {
        let (name, version, lacking) = match &backend {
            Backend::None => ("none", String::new(), Vec::new()),
            Backend::Landlock => {
                let found = Landlock::find()?;
                (
                    "landlock",
                    format!("landlock {}", found.version),
                    found.lacking,
                )
            }
            Backend::Bubblewrap(bubblewrap) => ("bubblewrap", bubblewrap.version(), Vec::new()),
            Backend::Command(_) => (
                "command",
                String::new(),
                vec!["nobody but its owner knows what a sandbox of one's own enforces".to_owned()],
            ),
        };
        let report = SandboxReport {
            backend: name.to_owned(),
            enforcement: match &backend {
                Backend::None => Enforcement::None,
                _ if lacking.is_empty() => Enforcement::Full,
                _ => Enforcement::Partial,
            },
            profile: match &backend {
                Backend::None => String::new(),
                _ => scope.profile.clone(),
            },
            not_enforced: lacking,
            limits: limits(&backend),
            version,
            not_granted: match &backend {
                Backend::Landlock => landlock::not_granted(&scope),
                _ => Vec::new(),
            },
        };
        let confinement = match &backend {
            Backend::Landlock => Some(confinement(&scope, &terminals, refusals)?),
            _ => None,
        };
        Ok(Self {
            backend,
            scope,
            bound,
            confinement,
            terminals,
            refusals,
            report,
        })
    }

    /// No sandbox.
    pub fn none(workdir: PathBuf) -> Self {
        Self {
            backend: Backend::None,
            scope: Scope {
                profile: String::new(),
                paths: [(PathBuf::from("/"), Access::Write)].into(),
                network: NetworkAccess::Allowed,
                workdir,
                temporary: None,
            },
            bound: None,
            confinement: None,
            terminals: Vec::new(),
            refusals: Refusals::Silent,
            report: SandboxReport::none(),
        }
    }

    /// What is enforced.
    pub fn report(&self) -> SandboxReport {
        self.report.clone()
    }

    /// The files and directories, with all below them, in which the session's processes can write, and nowhere
    /// else; `None`: that isn't certain.
    pub fn writable(&self) -> Option<Vec<PathBuf>> {
        let is_known = match self.backend {
            Backend::Landlock | Backend::Bubblewrap(_) => true,
            Backend::None | Backend::Command(_) => false,
        };
        (is_known && self.report.enforcement == Enforcement::Full)
            .then(|| self.scope.with(Access::Write).map(Path::to_owned).collect())
    }

    /// The session's own temporary directory.
    pub fn temporary(&self) -> Option<&Path> {
        self.scope.temporary.as_deref()
    }

    /// The command under the session's own configuration, afresh.
    ///
    /// # Errors
    /// No descriptors left.
    pub fn confine(&self, command: Unconfined<'_>) -> Result<Confined, SandboxError> {
        match &self.confinement {
            Some(confinement) => Ok(Confined {
                confinement: Some(confinement.try_clone().map_err(SandboxError::Make)?),
                ..command.as_it_is()
            }),
            None => self.by_scope(command, &self.scope),
        }
    }

    /// The command under no sandbox.
    ///
    /// # Errors
    /// The owner's bound is less than that.
    pub fn release(&self, command: Unconfined<'_>) -> Result<Confined, SandboxError> {
        match &self.bound {
            None => Ok(command.as_it_is()),
            Some(bound) => Err(SandboxError::Exceeds {
                bound: bound.profile.clone(),
                excess: "the verdict is to run it under no sandbox".to_owned(),
            }),
        }
    }

    /// The command under a configuration that came with a verdict. What the session can't see stays
    /// hidden, unless the permissions name it.
    ///
    /// # Errors
    /// A backend that can't enforce one, paths that lead nowhere, and what is more than the owner's bound.
    pub fn confine_by(
        &self,
        command: Unconfined<'_>,
        permissions: &EscalationPermissions,
    ) -> Result<Confined, SandboxError> {
        if self.backend == Backend::None {
            return Err(SandboxError::NotEnforceable("none"));
        }
        let (scope, named) = self.scope_of(permissions)?;
        if let Some(bound) = &self.bound {
            within(&scope, &named, bound)?;
        }
        self.by_scope(command, &scope)
    }

    fn by_scope(&self, command: Unconfined<'_>, scope: &Scope) -> Result<Confined, SandboxError> {
        match &self.backend {
            Backend::None => Ok(command.as_it_is()),
            Backend::Landlock => Ok(Confined {
                confinement: Some(confinement(scope, &self.terminals, self.refusals)?),
                ..command.as_it_is()
            }),
            Backend::Bubblewrap(bubblewrap) => {
                let loose = self.loose(scope)?;
                Ok(Confined {
                    confinement: bubblewrap.confinement(scope)?,
                    ..bubblewrap
                        .confine(command, scope, loose)
                        .map_err(SandboxError::Make)?
                })
            }
            Backend::Command(template) => Ok(template.confine(command, scope)),
        }
    }

    /// What of a scope the session may have moved by the time that its name is looked up once more, opened. The
    /// places of its own scope it can't move.
    fn loose(&self, scope: &Scope) -> Result<BTreeMap<PathBuf, OwnedFd>, SandboxError> {
        let named = scope.with(Access::Read).chain(scope.with(Access::Write));
        named
            .filter(|path| self.scope.can_move(path) && !self.scope.paths.contains_key(*path))
            .map(|path| {
                let place = landlock::open(path)?;
                Ok((path.to_owned(), place.into()))
            })
            .collect()
    }

    /// What a verdict's permissions mean here, and the paths that it names: the session's own temporary
    /// directory is always in them.
    fn scope_of(
        &self,
        permissions: &EscalationPermissions,
    ) -> Result<(Scope, Vec<(Access, PathBuf)>), SandboxError> {
        let hidden = self
            .scope
            .with(Access::Hidden)
            .map(|path| (path.to_owned(), Access::Hidden));
        let mut paths: BTreeMap<_, _> = hidden.collect();
        let mut named = Vec::new();
        if permissions.readable.is_empty() {
            let readable = self
                .scope
                .with(Access::Read)
                .chain(self.scope.with(Access::Write));
            paths.extend(readable.map(|path| (path.to_owned(), Access::Read)));
        }
        let lists = [
            ("read", &permissions.readable, Access::Read),
            ("write", &permissions.writable, Access::Write),
        ];
        for (field, list, access) in lists {
            for path in list {
                let settled = self.scope.settle(field, path);
                let settled = settled.map_err(SandboxError::Permissions)?;
                named.push((access, settled.clone()));
                paths.insert(settled, access);
            }
        }
        if let Some(temporary) = &self.scope.temporary {
            paths.insert(temporary.clone(), Access::Write);
        }
        let scope = Scope {
            profile: "permissions".to_owned(),
            paths,
            network: permissions.network,
            workdir: self.scope.workdir.clone(),
            temporary: self.scope.temporary.clone(),
        };
        Ok((scope, named))
    }
}

/// What of no profile a backend holds, in words.
pub fn limits(backend: &Backend) -> Vec<String> {
    let limits = match backend {
        Backend::Landlock => landlock::LIMITS.to_vec(),
        Backend::Bubblewrap(bubblewrap) => bubblewrap.limits(),
        Backend::None | Backend::Command(_) => Vec::new(),
    };
    limits.into_iter().map(str::to_owned).collect()
}

/// Checks that permissions are within the owner's bound: each path that they name, and all below it. The paths
/// are those that will be granted: what their names lead to may be something else by now.
fn within(scope: &Scope, named: &[(Access, PathBuf)], bound: &Scope) -> Result<(), SandboxError> {
    let exceeds = |excess: String| {
        Err(SandboxError::Exceeds {
            bound: bound.profile.clone(),
            excess,
        })
    };
    if scope.network == NetworkAccess::Allowed && bound.network == NetworkAccess::Denied {
        return exceeds("the verdict grants the network".to_owned());
    }
    // What the session itself may is its owner's word already, and no verdict's.
    for (access, path) in named {
        let verb = match access {
            Access::Write => "writing",
            Access::Read | Access::Hidden => "reading",
        };
        if bound.access(path) < *access {
            return exceeds(format!("the verdict grants {verb} {}", path.display()));
        }
        let below = bound.paths.iter().find(|(inner, allowed)| {
            **allowed < *access && inner.starts_with(path) && scope.access(inner) > **allowed
        });
        if let Some((inner, _)) = below {
            return exceeds(format!(
                "the verdict grants {verb} {}, in which {} is",
                path.display(),
                inner.display()
            ));
        }
    }
    Ok(())
}

fn confinement(
    scope: &Scope,
    terminals: &[PathBuf],
    refusals: Refusals,
) -> Result<Confinement, SandboxError> {
    let mut capabilities = CAPABILITIES.iter().fold(0, |all, number| all | 1 << number);
    let version = confine::landlock_version().unwrap_or(0);
    let is_told = refusals == Refusals::Recorded;
    if version >= SCOPED_SIGNALS {
        capabilities |= 1 << CAPABILITY_KILL;
    }
    Ok(Confinement {
        ruleset: Some(landlock::ruleset(scope, terminals)?),
        ruleset_flags: if is_told && version >= TOLD {
            LOG_NEW_EXEC_ON
        } else {
            0
        },
        filters: seccomp::filters(scope.network, Communication::Shared)
            .map_err(SandboxError::Make)?,
        filter_flags: if is_told { FILTER_LOG } else { 0 },
        capabilities: Some(capabilities),
    })
}
