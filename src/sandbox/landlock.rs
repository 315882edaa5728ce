//! The rules of a Landlock sandbox.
//!
//! Landlock grants: by a rule for a directory, to all below it. Nothing can be taken out of what is
//! granted. So that something in a readable tree stays hidden, its neighbours are granted instead of the
//! tree: all that is in the directories on the way to it, as they are when the session starts.
//!
//! What this costs, and what it can't do:
//!
//! - One rule, and one system call, for each entry of the directories on the way to something hidden.
//! - What is made in those directories later can't be read in the session.
//! - Where such a directory can be written, nothing can be made, renamed or removed directly in it: the right
//!   to that would hold for what is hidden below as well. What is in it when the session starts can be
//!   written.
//! - Directories can be listed, hidden ones too, and files be looked at from outside (`stat(2)`): the right to
//!   list can't be given to one directory alone, and Landlock has none for `stat`.
//! - A rule is on the file itself. What has another name elsewhere (a hard link, a bind mount) is as readable
//!   as that other name.
//!
//! The directories are opened one by one, each from the one above, as places (`O_PATH`), and no link is
//! followed: what somebody moves meanwhile is granted as what it was when it was opened, or not at all.

use std::collections::BTreeMap;
use std::ffi::{CString, OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

use landlock::{
    ABI, Access as _, AccessFs, AccessNet, BitFlags, CompatLevel, Compatible, PathBeneath, Ruleset,
    RulesetAttr, RulesetCreated, RulesetCreatedAttr, Scope as Scoped,
};

use super::profile::{Access, Scope};
use crate::model::NetworkAccess;
use crate::sys::confine;

/// Devices that any program may expect, and that keep nothing.
const DEVICES: [&str; 7] = [
    "/dev/null",
    "/dev/zero",
    "/dev/full",
    "/dev/random",
    "/dev/urandom",
    "/dev/tty",
    "/dev/ptmx",
];

/// Why there is no ruleset.
#[derive(Debug, thiserror::Error)]
pub enum LandlockError {
    /// The kernel can't do it.
    #[error("this kernel has no Landlock ({})", if .0.raw_os_error() == Some(libc::EOPNOTSUPP) {
        "it was not switched on when the machine started: lsm=landlock,..."
    } else {
        "Linux 5.13 or newer has it, built with CONFIG_SECURITY_LANDLOCK"
    })]
    Unavailable(#[source] io::Error),
    /// All that isn't hidden is to be written.
    #[error(
        "/ is to be written, and {} in it is hidden: under Landlock that leaves the kernel's own files \
         in /proc and /sys to be written",
        .hidden.display()
    )]
    RootWritable {
        /// What is hidden.
        hidden: PathBuf,
    },
    /// A path of the profile can't be opened.
    #[error("cannot open {}", .path.display())]
    Open {
        /// The path.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// The kernel refuses the rules.
    #[error("cannot make Landlock's rules")]
    Rules(#[from] landlock::RulesetError),
}

/// The first version with scopes: signals and abstract sockets that stay in the sandbox.
pub(super) const SCOPES: u32 = 6;

/// What no version holds.
pub(super) const LIMITS: [&str; 4] = [
    "modes, owners, times and extended attributes of files elsewhere can be changed by who owns them",
    "names, sizes, times, what links lead to and extended attributes of hidden files can be seen",
    "other processes and their command lines can be seen",
    "datagrams can be sent to Unix datagram sockets that have a name",
];

/// What of a profile this version of Landlock doesn't enforce, in words.
pub(super) fn lacking(version: u32) -> Vec<String> {
    let lacks = [
        (
            3,
            "files elsewhere can be emptied (truncate needs Landlock 3, Linux 6.2)",
        ),
        (
            5,
            "devices that can be opened can be controlled (ioctl needs Landlock 5, Linux 6.10)",
        ),
        (
            6,
            "processes of the same user outside, the gate's too, can be sent signals (Landlock 6, Linux 6.12)",
        ),
        (
            6,
            "abstract Unix sockets of others can be written to (Landlock 6, Linux 6.12)",
        ),
    ];
    lacks
        .into_iter()
        .filter(|(since, _)| version < *since)
        .map(|(_, what)| what.to_owned())
        .collect()
}

/// A ruleset for a profile; `terminals` are those that the session was started with.
///
/// # Errors
/// What Landlock can't do, here or at all.
pub(super) fn ruleset(scope: &Scope, terminals: &[PathBuf]) -> Result<OwnedFd, LandlockError> {
    let version = confine::landlock_version().map_err(LandlockError::Unavailable)?;
    let abi = ABI::from(i32::try_from(version).unwrap_or(i32::MAX));
    // Later ones need rules of their own, which have to be thought of and tried.
    let abi = abi.min(ABI::V7);
    let all = AccessFs::from_all(abi);
    let mut ruleset = Ruleset::default()
        .set_compatibility(CompatLevel::HardRequirement)
        .handle_access(all)?;
    if abi >= ABI::V4 && scope.network == NetworkAccess::Denied {
        ruleset = ruleset.handle_access(AccessNet::from_all(abi))?;
    }
    if abi >= ABI::V6 {
        ruleset = ruleset.scope(Scoped::from_all(abi))?;
    }
    let mut rules = Rules {
        ruleset: ruleset.create()?,
        read: AccessFs::from_read(abi),
        write: all & !(AccessFs::MakeChar | AccessFs::MakeBlock | AccessFs::IoctlDev),
        files: AccessFs::from_file(abi),
        device: AccessFs::from_file(abi) & !AccessFs::Execute,
    };
    for path in scope.with(Access::Write) {
        let kept = kept_in(scope, path);
        if let (Some(hidden), true) = (kept.first(), path == Path::new("/")) {
            return Err(LandlockError::RootWritable {
                hidden: (*hidden).to_owned(),
            });
        }
        rules.grant_but(path, kept, rules.write)?;
    }
    for path in scope.with(Access::Read) {
        rules.grant_but(path, scope.less_below(path, Access::Read), rules.read)?;
    }
    for device in DEVICES
        .iter()
        .map(Path::new)
        .chain(terminals.iter().map(|path| &**path))
    {
        if let Ok(place) = open(device) {
            rules.grant(&place, rules.device)?;
        }
    }
    let fd: Option<OwnedFd> = rules.ruleset.into();
    fd.ok_or_else(|| LandlockError::Unavailable(io::Error::from_raw_os_error(libc::ENOSYS)))
}

/// A ruleset that keeps a process from the abstract sockets of those outside, and from nothing else: it may mount.
///
/// # Errors
/// A kernel without [`SCOPES`].
pub(super) fn abstract_sockets() -> Result<Option<OwnedFd>, LandlockError> {
    let ruleset = Ruleset::default()
        .set_compatibility(CompatLevel::HardRequirement)
        .scope(Scoped::AbstractUnixSocket)?;
    Ok(ruleset.create()?.into())
}

/// What is there below a path that can be written, and can't be written itself; what is below that isn't
/// listed. What isn't there yet isn't kept: it would have the directory that it might come to be in narrowed
/// for nothing.
fn kept_in<'a>(scope: &'a Scope, writable: &'a Path) -> Vec<&'a Path> {
    let mut kept: Vec<&Path> = Vec::new();
    for path in scope.less_below(writable, Access::Write) {
        let is_missing = path.symlink_metadata().is_err_and(|error| {
            matches!(
                error.kind(),
                io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
            )
        });
        if !is_missing && !kept.iter().any(|above| path.starts_with(above)) {
            kept.push(path);
        }
    }
    kept
}

/// How many directories are named one by one, and how much of each is said, in bytes.
const MOST_NAMED: usize = 32;
const LONGEST: usize = 900;

/// What a profile allows and this doesn't, in words: changing directories on the way to what is kept.
pub(super) fn not_granted(scope: &Scope) -> Vec<String> {
    let mut narrowed: BTreeMap<&Path, Vec<&Path>> = BTreeMap::new();
    for writable in scope.with(Access::Write) {
        for kept in kept_in(scope, writable) {
            let above = kept.ancestors().skip(1);
            for directory in above.take_while(|above| above.starts_with(writable)) {
                let names = narrowed.entry(directory).or_default();
                names.push(kept.strip_prefix(directory).unwrap_or(kept));
            }
        }
    }
    let count = narrowed.len();
    let mut said: Vec<_> = narrowed
        .iter()
        .take(MOST_NAMED)
        .map(|(directory, kept)| {
            let names: Vec<_> = kept.iter().take(3).map(|name| name.display().to_string()).collect();
            let more = match kept.len().saturating_sub(names.len()) {
                0 => String::new(),
                more => format!(" and {more} more"),
            };
            let mut text = format!(
                "nothing can be made, renamed or removed directly in {}: it holds {}{more}, which can't be written",
                directory.display(),
                names.join(", "),
            );
            let end = (0..=LONGEST.min(text.len())).rfind(|end| text.is_char_boundary(*end));
            text.truncate(end.unwrap_or(0));
            text
        })
        .collect();
    if count > MOST_NAMED {
        said.push(format!("nor in {} more directories", count - MOST_NAMED));
    }
    said
}

/// Opens what is named by an absolute path without symbolic links, step by step: a link that somebody has put on the
/// way since the path was settled is an error.
pub(super) fn open(path: &Path) -> Result<File, LandlockError> {
    let step = |place: Option<&File>, name: &OsStr| {
        let opened = confine::open_place(place, &CString::new(name.as_bytes())?)?;
        if opened.metadata()?.is_symlink() {
            return Err(io::Error::from_raw_os_error(libc::ELOOP));
        }
        Ok(opened)
    };
    let mut names = path.components().map(Component::as_os_str);
    let root = step(None, names.next().unwrap_or_default());
    root.and_then(|root| names.try_fold(root, |place, name| step(Some(&place), name)))
        .map_err(|source| LandlockError::Open {
            path: path.to_owned(),
            source,
        })
}

/// The way to what is hidden below a directory. A name without anything further is hidden itself.
#[derive(Debug, Default)]
struct Way {
    further: BTreeMap<OsString, Way>,
}

impl Way {
    fn add(&mut self, path: &Path) {
        let mut way = self;
        let mut parts = path.components();
        while let Some(part) = parts.next() {
            let name = part.as_os_str().to_owned();
            let known = way.further.contains_key(&name);
            let next = way.further.entry(name).or_default();
            if known && next.further.is_empty() {
                // It is hidden with all below it already.
                return;
            }
            if parts.as_path().as_os_str().is_empty() {
                next.further.clear();
                return;
            }
            way = next;
        }
    }

    fn to(&self, name: &OsStr) -> Option<&Self> {
        self.further.get(name)
    }
}

struct Rules {
    ruleset: RulesetCreated,
    read: BitFlags<AccessFs>,
    write: BitFlags<AccessFs>,
    /// What there is for what isn't a directory.
    files: BitFlags<AccessFs>,
    device: BitFlags<AccessFs>,
}

impl Rules {
    fn grant(&mut self, place: &File, access: BitFlags<AccessFs>) -> Result<(), LandlockError> {
        let access = if is_directory(place) {
            access
        } else {
            access & self.files
        };
        if !access.is_empty() {
            (&mut self.ruleset).add_rule(PathBeneath::new(place, access))?;
        }
        Ok(())
    }

    /// Grants access to a path and all below it but for these.
    fn grant_but<'a>(
        &mut self,
        path: &Path,
        kept: impl IntoIterator<Item = &'a Path>,
        access: BitFlags<AccessFs>,
    ) -> Result<(), LandlockError> {
        let mut way = Way::default();
        for kept in kept {
            way.add(kept.strip_prefix(path).unwrap_or(kept));
        }
        let place = open(path)?;
        if !way.further.is_empty() {
            // Of directories with something hidden below them at least the names can be seen.
            self.grant(&place, AccessFs::ReadDir.into())?;
        }
        self.grant_around(&place, &way, access)
    }

    /// Grants access to a place but for what is on the way.
    fn grant_around(
        &mut self,
        place: &File,
        way: &Way,
        access: BitFlags<AccessFs>,
    ) -> Result<(), LandlockError> {
        if way.further.is_empty() {
            return self.grant(place, access);
        }
        // What can't be listed can't be read by its user either, but for names that are known.
        let Ok(entries) = std::fs::read_dir(place_of(place)) else {
            return Ok(());
        };
        for entry in entries.flatten() {
            // A link grants nothing: what it leads to has its own place.
            if entry.file_type().is_ok_and(|kind| kind.is_symlink()) {
                continue;
            }
            let name = entry.file_name();
            let further = way.to(&name);
            if further.is_some_and(|way| way.further.is_empty()) {
                continue;
            }
            let Ok(name) = CString::new(name.as_bytes()) else {
                continue;
            };
            // It may be gone by now.
            let Ok(opened) = confine::open_place(Some(place), &name) else {
                continue;
            };
            match further {
                Some(way) if is_directory(&opened) => self.grant_around(&opened, way, access)?,
                // Where a directory is expected and something else is, nothing is granted.
                Some(_) => {}
                None => self.grant_found(&opened, access)?,
            }
        }
        Ok(())
    }

    /// Grants access to what was found on the way. What the kernel takes no rule for, such as a file
    /// that has just been removed, stays out of reach.
    fn grant_found(
        &mut self,
        place: &File,
        access: BitFlags<AccessFs>,
    ) -> Result<(), LandlockError> {
        match self.grant(place, access) {
            Err(LandlockError::Rules(landlock::RulesetError::AddRules(_))) => Ok(()),
            other => other,
        }
    }
}

/// A name for an open place.
fn place_of(place: &File) -> PathBuf {
    Path::new("/proc/self/fd").join(place.as_raw_fd().to_string())
}

fn is_directory(place: &File) -> bool {
    place.metadata().is_ok_and(|found| found.is_dir())
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;
    use crate::sys::confine::Confinement;
    use crate::sys::spawn::{self, Directory, InheritedContext, ProcessGroup, Supervisor};

    /// Says of each attempt whether it could be made, or why not.
    const ATTEMPTS: &str = "
import os, socket, stat, sys
def tried(name, attempt, *arguments):
    try:
        attempt(*arguments)
        print(name, 'could')
    except OSError as error:
        print(name, os.strerror(error.errno))
mode = 0o600
tried('pipe', os.mknod, 'pipe', stat.S_IFIFO | mode)
tried('character', os.mknod, 'character', stat.S_IFCHR | mode, os.makedev(1, 3))
tried('block', os.mknod, 'block', stat.S_IFBLK | mode, os.makedev(7, 0))
tried('connect', socket.create_connection, ('127.0.0.1', int(sys.argv[1])))
tried('bind', socket.socket().bind, ('127.0.0.1', 0))
";

    /// What a process can do that is confined by the rules and by nothing else.
    fn attempted(network: NetworkAccess) -> String {
        let directory = tempfile::tempdir_in("/var/tmp").unwrap();
        let workdir = directory.path().canonicalize().unwrap();
        let paths = [("/".into(), Access::Read), (workdir.clone(), Access::Write)];
        let scope = Scope {
            profile: "test".to_owned(),
            paths: paths.into(),
            network,
            workdir: workdir.clone(),
            temporary: None,
        };
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port().to_string();
        let (mut reader, writer) = std::io::pipe().unwrap();
        let string = |text: &str| CString::new(text).unwrap();
        let supervisor = Supervisor::start(spawn::Command {
            program: string("/usr/bin/python3"),
            argv: ["python3", "-c", ATTEMPTS, &port].map(string).to_vec(),
            env: vec![string("LC_ALL=C.UTF-8")],
            directory: Directory::Named(CString::new(workdir.as_os_str().as_bytes()).unwrap()),
            descriptors: vec![(writer.into(), 1)],
            closed_by_exec: Vec::new(),
            group: ProcessGroup::New,
            context: InheritedContext::default(),
            confinement: Some(Confinement {
                ruleset: Some(ruleset(&scope, &[]).unwrap()),
                ruleset_flags: 0,
                filters: Vec::new(),
                filter_flags: 0,
                capabilities: None,
            }),
            told_descriptors: Vec::new(),
            told_signals: None,
            is_script: false,
        })
        .unwrap();
        let mut said = String::new();
        reader.read_to_string(&mut said).unwrap();
        supervisor.reap();
        said
    }

    /// Filters and capabilities are in the way of the same: here they aren't there.
    #[test]
    fn devices_and_connections_are_refused_by_the_rules_alone() {
        let version = confine::landlock_version().unwrap_or(0);
        // Since 4 it knows of connections.
        if version < 4 {
            assert!(std::env::var_os("CI").is_none(), "Landlock {version}");
            eprintln!("SKIPPED: this kernel's Landlock ({version}) doesn't know connections");
            return;
        }
        let devices =
            "pipe could\ncharacter Permission denied\nblock Permission denied\n".to_owned();
        let refused = "connect Permission denied\nbind Permission denied\n";
        assert_eq!(attempted(NetworkAccess::Denied), devices.clone() + refused);
        let granted = "connect could\nbind could\n";
        assert_eq!(attempted(NetworkAccess::Allowed), devices + granted);
    }

    #[test]
    fn a_way_ends_where_something_is_hidden() {
        let mut way = Way::default();
        for path in ["a/b", "a/b/c", "x/y/z", "x", "d"] {
            way.add(Path::new(path));
        }
        let a = way.to(OsStr::new("a")).unwrap();
        assert!(a.to(OsStr::new("b")).unwrap().further.is_empty());
        assert!(way.to(OsStr::new("x")).unwrap().further.is_empty());
        assert!(way.to(OsStr::new("d")).unwrap().further.is_empty());
        assert!(way.to(OsStr::new("e")).is_none());
    }

    #[test]
    fn an_old_kernel_lacks_what_it_lacks() {
        assert_eq!(lacking(7), [""; 0]);
        assert_eq!(lacking(5).len(), 2);
        assert_eq!(lacking(1).len(), 4);
    }
}
