//! The one language for all backends: what a profile says, and what it means in one place.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io;
use std::path::{Component, Path, PathBuf};

use super::secrets;
use crate::model::NetworkAccess;

/// The name of the profile that holds where none is named.
pub const DEFAULT: &str = "default";

/// What a sandbox allows, as its owner wrote it.
///
/// A path is absolute, or begins with `~` (the home directory of the gate's user), or with `.` (the
/// session's working directory). It stands for itself and all below it. Of several that hold a file the
/// longest decides.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Profile {
    /// Its name.
    pub name: String,
    /// What can be read and executed.
    pub read: Vec<PathBuf>,
    /// What can also be created, written, removed.
    pub write: Vec<PathBuf>,
    /// What can't be opened or changed. Some backends show that it is there.
    pub hide: Vec<PathBuf>,
    /// What becomes of well-known secrets.
    pub secrets: Secrets,
    /// Whether there is a network.
    pub network: NetworkAccess,
    /// Where temporary files go.
    pub temporary: Temporary,
}

/// What becomes of the places that are known for secrets ([`secrets`]).
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Secrets {
    /// They are hidden, unless the profile names them.
    Hidden,
    /// They are like all others.
    Shown,
}

/// Where a session's temporary files go.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Temporary {
    /// Into a directory of its own, which `TMPDIR` names, and which goes with the session.
    Own,
    /// Nowhere but where the profile lets it write.
    None,
}

impl Default for Profile {
    fn default() -> Self {
        Self {
            name: DEFAULT.to_owned(),
            read: vec!["/".into()],
            write: vec![".".into()],
            hide: Vec::new(),
            secrets: Secrets::Hidden,
            network: NetworkAccess::Denied,
            temporary: Temporary::Own,
        }
    }
}

/// A path that a profile can't have.
#[derive(Debug, thiserror::Error)]
pub enum PathError {
    /// It isn't written as one.
    #[error("`{}` is no path for a profile: write an absolute path, or one that begins with `~/` or `./`", .0.display())]
    NotAbsolute(PathBuf),
    /// It goes up again.
    #[error("`{}` has `..` in it: write where that leads to", .0.display())]
    GoesUp(PathBuf),
    /// There is no such file.
    #[error("{field} {}: {error}{}", .path.display(), advice(field, error))]
    Missing {
        /// Which part of the profile has it.
        field: &'static str,
        /// The path.
        path: PathBuf,
        /// What the system says.
        error: io::Error,
    },
    /// Whoever is in the session decides where it leads.
    #[error(
        "{field} {}: it leads through the link {}, which the session can change: name where it leads to",
        .path.display(), .link.display()
    )]
    Loose {
        /// Which part has it.
        field: &'static str,
        /// The path.
        path: PathBuf,
        /// The link on the way.
        link: PathBuf,
    },
    /// It is to be hidden and not.
    #[error("{} is both to be hidden and to be {}", .path.display(), .access.verb())]
    Both {
        /// The path.
        path: PathBuf,
        /// What else it is to be.
        access: Access,
    },
}

/// What to do about a path that can't be found, to stand behind the reason.
fn advice(field: &str, error: &io::Error) -> &'static str {
    match (field, error.kind()) {
        ("read" | "write", io::ErrorKind::NotFound) => "; make it first, or leave it out",
        _ => "",
    }
}

/// Whether a path is written as a profile's are.
///
/// # Errors
/// Why it isn't.
pub fn check_path(path: &Path) -> Result<(), PathError> {
    let begins = path.components().next();
    let known = path.is_absolute()
        || begins == Some(Component::Normal("~".as_ref()))
        || begins == Some(Component::CurDir);
    if !known {
        return Err(PathError::NotAbsolute(path.to_owned()));
    }
    if path.components().any(|part| part == Component::ParentDir) {
        return Err(PathError::GoesUp(path.to_owned()));
    }
    Ok(())
}

/// What may be done with a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Access {
    /// Nothing.
    Hidden,
    /// It can be read and executed.
    Read,
    /// It can also be written.
    Write,
}

impl Access {
    fn verb(self) -> &'static str {
        match self {
            Self::Hidden => "hidden",
            Self::Read => "read",
            Self::Write => "written",
        }
    }
}

/// Where a profile holds.
#[derive(Debug, Clone)]
pub struct Surroundings {
    /// The session's working directory: absolute, without symbolic links.
    pub workdir: PathBuf,
    /// Home of the gate's user, where it is known.
    pub home: Option<PathBuf>,
    /// What has to be readable in any case: the wrapper's and the shells' directories.
    pub visible: Vec<PathBuf>,
    /// What is hidden in any case: the gate's own keys, tokens, sockets and journal.
    pub gates_own: Vec<PathBuf>,
    /// The session's own temporary directory, where it has one.
    pub temporary: Option<PathBuf>,
}

/// What a profile means in one place: all paths absolute, without symbolic links.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Scope {
    /// The profile's name.
    pub profile: String,
    /// What may be done with each of these and all below it; the longest that holds a file decides, and
    /// where there is none, nothing may.
    pub paths: BTreeMap<PathBuf, Access>,
    /// Whether there is a network.
    pub network: NetworkAccess,
    /// The session's working directory.
    pub workdir: PathBuf,
    /// The session's own temporary directory.
    pub temporary: Option<PathBuf>,
}

impl Profile {
    /// What the profile means there.
    ///
    /// # Errors
    /// Paths that are none, that lead nowhere, or that contradict each other.
    pub fn resolve(&self, place: &Surroundings) -> Result<Scope, PathError> {
        let mut paths = BTreeMap::new();
        if self.secrets == Secrets::Hidden {
            for path in secrets::hidden(place.home.as_deref()) {
                paths.insert(where_it_leads(&path), Access::Hidden);
            }
            for path in secrets::EXCEPTIONS {
                if let Ok(path) = Path::new(path).canonicalize() {
                    paths.insert(path, Access::Read);
                }
            }
        }
        let mut hidden = Vec::new();
        for path in &self.hide {
            let path = where_it_leads(&place.expand(path)?);
            hidden.push(path.clone());
            paths.insert(path, Access::Hidden);
        }
        for (field, list, access) in [
            ("read", &self.read, Access::Read),
            ("write", &self.write, Access::Write),
        ] {
            for path in list {
                let expanded = place.expand(path)?;
                let path = expanded
                    .canonicalize()
                    .map_err(|error| PathError::Missing {
                        field,
                        path: expanded.clone(),
                        error,
                    })?;
                if hidden.contains(&path) {
                    return Err(PathError::Both { path, access });
                }
                paths.insert(path, access);
            }
        }
        if let Some(temporary) = &place.temporary {
            paths.insert(temporary.clone(), Access::Write);
        }
        let mut scope = Scope {
            profile: self.name.clone(),
            paths,
            network: self.network,
            workdir: place.workdir.clone(),
            temporary: place.temporary.clone(),
        };
        for path in &place.visible {
            // What can be written stays so: its owner said it.
            if let Ok(path) = path.canonicalize()
                && scope.access(&path) == Access::Hidden
            {
                scope.paths.insert(path, Access::Read);
            }
        }
        for path in &place.gates_own {
            scope.paths.insert(where_it_leads(path), Access::Hidden);
        }
        Ok(scope)
    }
}

impl Surroundings {
    /// A path as it is written in a profile, made absolute.
    fn expand(&self, path: &Path) -> Result<PathBuf, PathError> {
        check_path(path)?;
        if let Ok(rest) = path.strip_prefix("~") {
            let home = self.home.as_deref().ok_or_else(|| PathError::Missing {
                field: "home",
                path: path.to_owned(),
                error: io::Error::other("the gate's user has no home directory: HOME isn't set"),
            })?;
            return Ok(home.join(rest));
        }
        Ok(self.workdir.join(path))
    }
}

/// The names of a path, the last one first, with `..` for each step up.
fn parts(path: &Path) -> impl Iterator<Item = OsString> {
    path.components().rev().filter_map(|part| match part {
        Component::Normal(name) => Some(name.to_owned()),
        Component::ParentDir => Some("..".into()),
        Component::RootDir | Component::CurDir | Component::Prefix(_) => None,
    })
}

/// The path without symbolic links, as far as it exists.
pub(super) fn where_it_leads(path: &Path) -> PathBuf {
    for ancestor in path.ancestors() {
        if let Ok(found) = ancestor.canonicalize() {
            let rest = path.strip_prefix(ancestor).unwrap_or(Path::new(""));
            // Joining an empty path would add a slash.
            return if rest.as_os_str().is_empty() {
                found
            } else {
                found.join(rest)
            };
        }
    }
    path.to_owned()
}

/// Most links on one way, as many as the kernel follows.
const MOST_LINKS: usize = 40;

impl Scope {
    /// The path without symbolic links, of something that exists. A link that a session of this scope can
    /// change isn't followed: it would be the session that says what is meant.
    pub(super) fn settle(&self, field: &'static str, path: &Path) -> Result<PathBuf, PathError> {
        if !path.is_absolute() {
            return Err(PathError::NotAbsolute(path.to_owned()));
        }
        if path.components().any(|part| part == Component::ParentDir) {
            return Err(PathError::GoesUp(path.to_owned()));
        }
        let missing = |error| PathError::Missing {
            field,
            path: path.to_owned(),
            error,
        };
        let mut links = 0;
        let mut settled = PathBuf::from("/");
        // The rest of the way, from its end.
        let mut rest: Vec<_> = parts(path).collect();
        while let Some(part) = rest.pop() {
            if part == ".." {
                settled.pop();
                continue;
            }
            let next = settled.join(&part);
            if !next.symlink_metadata().map_err(missing)?.is_symlink() {
                settled = next;
                continue;
            }
            links += 1;
            if links > MOST_LINKS {
                return Err(missing(io::Error::from_raw_os_error(libc::ELOOP)));
            }
            // Processes choose what those of `/proc` lead to.
            if self.access(&settled) == Access::Write || settled.starts_with("/proc") {
                return Err(PathError::Loose {
                    field,
                    path: path.to_owned(),
                    link: next,
                });
            }
            let target = next.read_link().map_err(missing)?;
            if target.is_absolute() {
                settled = PathBuf::from("/");
            }
            rest.extend(parts(&target));
        }
        Ok(settled)
    }

    /// Whether a path is in something else that can be written, so that its name can be changed.
    pub(super) fn can_move(&self, path: &Path) -> bool {
        path.ancestors()
            .skip(1)
            .any(|above| self.paths.get(above) == Some(&Access::Write))
    }

    /// What may be done with a file, whose path is absolute and without symbolic links.
    #[must_use]
    pub fn access(&self, path: &Path) -> Access {
        path.ancestors()
            .find_map(|ancestor| self.paths.get(ancestor))
            .copied()
            .unwrap_or(Access::Hidden)
    }

    /// The paths below this one with less than this access.
    pub fn less_below<'a>(
        &'a self,
        path: &'a Path,
        access: Access,
    ) -> impl Iterator<Item = &'a Path> {
        let less = self.paths.iter().filter(move |(_, found)| **found < access);
        less.map(|(path, _)| &**path)
            .filter(move |less| *less != path && less.starts_with(path))
    }

    /// The paths with this access.
    pub fn with(&self, access: Access) -> impl Iterator<Item = &Path> {
        self.paths
            .iter()
            .filter(move |(_, found)| **found == access)
            .map(|(path, _)| &**path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(directory: &Path) -> Surroundings {
        Surroundings {
            workdir: directory.join("work"),
            home: Some(directory.join("home")),
            visible: vec![],
            gates_own: vec![directory.join("home/key")],
            temporary: None,
        }
    }

    fn directory() -> (tempfile::TempDir, PathBuf) {
        let directory = tempfile::tempdir_in("/var/tmp").unwrap();
        let path = directory.path().canonicalize().unwrap();
        for name in ["work/in", "home/.ssh", "home/real"] {
            std::fs::create_dir_all(path.join(name)).unwrap();
        }
        (directory, path)
    }

    #[test]
    fn the_longest_path_decides() {
        let (_kept, path) = directory();
        let profile = Profile {
            hide: vec!["~/real".into()],
            write: vec![".".into(), "~/real/out".into()],
            ..Profile::default()
        };
        std::fs::create_dir(path.join("home/real/out")).unwrap();
        let scope = profile.resolve(&place(&path)).unwrap();
        let access = |name: &str| scope.access(&path.join(name));
        assert_eq!(access("work/in/x"), Access::Write);
        assert_eq!(access("home/x"), Access::Read);
        assert_eq!(access("home/.ssh/id"), Access::Hidden);
        assert_eq!(access("home/real/x"), Access::Hidden);
        assert_eq!(access("home/real/out/x"), Access::Write);
        assert_eq!(access("home/key"), Access::Hidden);
        assert_eq!(scope.access(Path::new("/etc/passwd")), Access::Read);
        assert_eq!(scope.access(Path::new("/etc/shadow")), Access::Hidden);
    }

    #[test]
    fn a_link_hides_what_it_leads_to_and_a_named_secret_is_shown() {
        let (_kept, path) = directory();
        std::os::unix::fs::symlink(path.join("home/real"), path.join("home/.aws")).unwrap();
        let profile = Profile {
            read: vec!["/".into(), "~/.ssh".into()],
            ..Profile::default()
        };
        let scope = profile.resolve(&place(&path)).unwrap();
        assert_eq!(scope.access(&path.join("home/real/keys")), Access::Hidden);
        assert_eq!(scope.access(&path.join("home/.ssh/config")), Access::Read);
    }

    #[test]
    fn bad_paths_are_told() {
        let (_kept, path) = directory();
        let resolve = |write: &str| {
            let profile = Profile {
                write: vec![write.into()],
                hide: vec!["./in".into()],
                ..Profile::default()
            };
            profile.resolve(&place(&path)).unwrap_err().to_string()
        };
        assert!(resolve("work").contains("is no path for a profile"));
        assert!(resolve("./../x").contains("has `..` in it"));
        assert!(resolve("./none").contains("No such file"));
        assert!(resolve("./in").contains("both to be hidden and to be written"));
    }
}
