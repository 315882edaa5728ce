//! Turns "run this, so" into a command under a sandbox, and reports what is really enforced.
//!
//! Not here: deciding who runs where; starting processes.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use crate::model::{Enforcement, EscalationPermissions, NetworkAccess, SandboxReport};

/// A sandbox backend.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Sandbox {
    /// None: processes are where the gate is.
    None,
    /// Bubblewrap: namespaces for mounts, processes and the network. Everything can be read, only the
    /// working directory and a temporary directory of its own be written, and there is no network.
    Bubblewrap {
        /// The program.
        program: PathBuf,
        /// What has to be visible whatever is hidden: the wrapper's and the shells' directory.
        visible: Vec<PathBuf>,
    },
}

/// A command line to execute for a confined command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Confined {
    /// The program: absolute.
    pub program: PathBuf,
    /// Its arguments, from argument zero on.
    pub argv: Vec<OsString>,
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
}

impl Unconfined<'_> {
    /// The command as it is.
    pub fn as_it_is(self) -> Confined {
        Confined {
            program: self.program.to_owned(),
            argv: self.argv.to_vec(),
        }
    }
}

/// The asked confinement can't be had.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the sandbox backend `{backend}` can't enforce a permission profile")]
pub struct NotEnforceable {
    backend: &'static str,
}

impl Sandbox {
    fn backend(&self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Bubblewrap { .. } => "bubblewrap",
        }
    }

    /// What is enforced.
    pub fn report(&self) -> SandboxReport {
        SandboxReport {
            backend: self.backend().to_owned(),
            enforcement: match self {
                Self::None => Enforcement::None,
                // A socket elsewhere than in /run and /tmp can still be connected to.
                Self::Bubblewrap { .. } => Enforcement::Partial,
            },
        }
    }

    /// The command under the session's own configuration, for a session that works in `home`.
    ///
    /// Bubblewrap executes the program under its own path: an argument zero that differs is lost.
    pub fn confine(&self, command: Unconfined<'_>, home: &Path) -> Confined {
        match self {
            Self::None => command.as_it_is(),
            Self::Bubblewrap { program, visible } => {
                let mut options = Options::read_only_root();
                for path in visible {
                    options.bind("--ro-bind", path);
                }
                options.bind("--bind", home);
                options.flag("--unshare-net");
                options.finish(program, command)
            }
        }
    }

    /// The command under a configuration that came with a verdict.
    ///
    /// # Errors
    /// A backend that can't enforce one.
    pub fn confine_by(
        &self,
        command: Unconfined<'_>,
        permissions: &EscalationPermissions,
    ) -> Result<Confined, NotEnforceable> {
        let Self::Bubblewrap { program, .. } = self else {
            return Err(NotEnforceable {
                backend: self.backend(),
            });
        };
        let mut options = if permissions.readable.is_empty() {
            Options::read_only_root()
        } else {
            let mut options = Options::empty_root();
            for path in &permissions.readable {
                options.bind("--ro-bind", path);
            }
            options
        };
        for path in &permissions.writable {
            options.bind("--bind", path);
        }
        if permissions.network == NetworkAccess::Denied {
            options.flag("--unshare-net");
        }
        Ok(options.finish(program, command))
    }
}

/// Bubblewrap's options, in their order: `bwrap(1)`, version 0.8.
struct Options(Vec<OsString>);

impl Options {
    fn read_only_root() -> Self {
        let mut options = Self(vec!["bwrap".into()]);
        options.bind("--ro-bind", Path::new("/"));
        options.finish_root();
        options
    }

    fn empty_root() -> Self {
        let mut options = Self(vec!["bwrap".into()]);
        options.finish_root();
        options
    }

    fn finish_root(&mut self) {
        // `/run` holds the sockets of the host's services, which a read-only mount wouldn't keep anyone from.
        let empty = [("--tmpfs", "/tmp"), ("--tmpfs", "/run")];
        for (option, place) in [("--dev", "/dev"), ("--proc", "/proc")]
            .into_iter()
            .chain(empty)
        {
            self.flag(option);
            self.flag(place);
        }
        for option in ["--unshare-pid", "--unshare-ipc", "--die-with-parent"] {
            self.flag(option);
        }
    }

    fn flag(&mut self, option: &str) {
        self.0.push(option.into());
    }

    fn bind(&mut self, option: &str, path: &Path) {
        self.0.extend([option.into(), path.into(), path.into()]);
    }

    fn finish(mut self, bwrap: &Path, command: Unconfined<'_>) -> Confined {
        self.0
            .extend(["--chdir".into(), command.workdir.into(), "--".into()]);
        self.0.push(command.program.into());
        self.0.extend(command.argv.iter().skip(1).cloned());
        Confined {
            program: bwrap.to_owned(),
            argv: self.0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(confined: &Confined) -> String {
        let words: Vec<_> = confined
            .argv
            .iter()
            .map(|word| word.to_str().unwrap())
            .collect();
        words.join(" ")
    }

    #[test]
    fn a_permission_profile_needs_a_backend() {
        let command = Unconfined {
            program: Path::new("/bin/x"),
            argv: &["x".into(), "-y".into()],
            workdir: Path::new("/w"),
        };
        let permissions = EscalationPermissions {
            network: NetworkAccess::Allowed,
            readable: vec!["/usr".into()],
            writable: vec!["/out".into()],
        };
        assert!(Sandbox::None.confine_by(command, &permissions).is_err());
        let bubblewrap = Sandbox::Bubblewrap {
            program: "/usr/bin/bwrap".into(),
            visible: vec![],
        };
        let line = words(&bubblewrap.confine_by(command, &permissions).unwrap());
        assert!(
            line.contains("--ro-bind /usr /usr --bind /out /out --chdir /w -- /bin/x -y"),
            "{line}"
        );
        assert!(
            !line.contains("--unshare-net") && !line.contains("--ro-bind / /"),
            "{line}"
        );
        let line = words(&bubblewrap.confine(command, Path::new("/w")));
        assert!(
            line.contains("--unshare-net") && line.contains("--bind /w /w"),
            "{line}"
        );
    }
}
