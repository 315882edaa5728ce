//! Removing a directory that a session could fill as it liked.

use std::ffi::OsStr;
use std::fs::DirEntry;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::PathBuf;

use rustix::fs::{
    AtFlags, Mode, OFlags, RenameFlags, ResolveFlags, fstat, openat, openat2, renameat_with,
    unlinkat,
};
use rustix::io::{Errno, Result};

/// Opens a directory whatever its permissions are, and nothing else.
const ITSELF: OFlags = OFlags::PATH
    .union(OFlags::DIRECTORY)
    .union(OFlags::NOFOLLOW)
    .union(OFlags::CLOEXEC);
/// Each takes a level away. Somebody may go on to make some.
const MOST_ROUNDS: u32 = 1 << 20;

/// Removes a directory with all in it, following no links. What is mounted there stays, and what can't be removed.
///
/// However deep it is, that takes a few descriptors: of what is in a directory of it, directories come up first.
pub(super) fn remove(parent: &OwnedFd, name: &OsStr) {
    if let Ok(top) = open(parent, name) {
        let mut moved = 0;
        for _ in 0..MOST_ROUNDS {
            if !flatten(&top, &mut moved) {
                break;
            }
        }
    }
    let _ = unlinkat(parent, name, AtFlags::REMOVEDIR);
}

/// Removes what is in a directory, but for what its directories hold: that comes up into it. Returns whether there was
/// anything to do.
fn flatten(top: &OwnedFd, moved: &mut u64) -> bool {
    let mut is_changed = false;
    for entry in entries(top) {
        let name = entry.file_name();
        if !is_directory(&entry) {
            is_changed |= unlinkat(top, &name, AtFlags::empty()).is_ok();
            continue;
        }
        let Ok(directory) = open(top, &name) else {
            continue;
        };
        for below in entries(&directory) {
            let name = below.file_name();
            let done = if is_directory(&below) {
                // Its ".." is written.
                open(&directory, &name)
                    .map(|below| permit(&below))
                    .and_then(|_| {
                        loop {
                            *moved += 1;
                            let place = format!("{PREFIX}{moved}");
                            let flags = RenameFlags::NOREPLACE;
                            match renameat_with(&directory, &name, top, place, flags) {
                                Err(Errno::EXIST) => {}
                                done => break done,
                            }
                        }
                    })
            } else {
                unlinkat(&directory, &name, AtFlags::empty())
            };
            is_changed |= done.is_ok();
        }
        is_changed |= unlinkat(top, &name, AtFlags::REMOVEDIR).is_ok();
    }
    is_changed
}

/// Begins the names of what came up. A session may have made such names: they are passed over.
const PREFIX: &str = ".removed-";

/// Opens a directory by its name in another, unless something is mounted there.
fn open(parent: &OwnedFd, name: &OsStr) -> Result<OwnedFd> {
    let staying = ResolveFlags::NO_XDEV | ResolveFlags::NO_SYMLINKS;
    match openat2(parent, name, ITSELF, Mode::empty(), staying) {
        // Before Linux 5.6, and where a container doesn't let it.
        Err(Errno::NOSYS | Errno::PERM) => {
            let directory = openat(parent, name, ITSELF, Mode::empty())?;
            let is_same = fstat(&directory)?.st_dev == fstat(parent)?.st_dev;
            is_same.then_some(directory).ok_or(Errno::XDEV)
        }
        other => other,
    }
}

/// What is in a directory. The user may remove it afterwards: a session may have taken that permission away.
fn entries(directory: &OwnedFd) -> impl Iterator<Item = DirEntry> {
    let _ = permit(directory);
    by_number(directory)
        .read_dir()
        .into_iter()
        .flatten()
        .flatten()
}

fn permit(directory: &OwnedFd) -> Result<()> {
    rustix::fs::chmod(by_number(directory), Mode::RWXU)
}

fn is_directory(entry: &DirEntry) -> bool {
    entry.file_type().is_ok_and(|kind| kind.is_dir())
}

/// A name for an open directory, so that no link that takes the place of one is followed.
pub(super) fn by_number(directory: &OwnedFd) -> PathBuf {
    format!("/proc/self/fd/{}", directory.as_raw_fd()).into()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};
    use std::path::Path;
    use std::process::Command;

    use super::*;

    fn parent(path: &Path) -> OwnedFd {
        rustix::fs::open(path, ITSELF, Mode::empty()).unwrap()
    }

    /// Deeper than there is room on a stack for a call each.
    #[test]
    fn no_depth_is_too_deep() {
        let place = tempfile::tempdir_in("/var/tmp").unwrap();
        let parent = parent(place.path());
        let made = Command::new("python3")
            .args([
                "-c",
                "import os\nfor _ in range(5000):\n os.mkdir('d'); os.chdir('d')",
            ])
            .current_dir(place.path())
            .status();
        assert!(made.unwrap().success());
        std::thread::Builder::new()
            .stack_size(128 << 10)
            .spawn(move || remove(&parent, OsStr::new("d")))
            .unwrap()
            .join()
            .unwrap();
        assert_eq!(place.path().read_dir().unwrap().count(), 0);
    }

    #[test]
    fn names_that_a_session_made_are_passed_over() {
        let place = tempfile::tempdir_in("/var/tmp").unwrap();
        for made in [".removed-1/x", ".removed-1/.removed-2/x"] {
            std::fs::create_dir_all(place.path().join("own").join(made)).unwrap();
            remove(&parent(place.path()), OsStr::new("own"));
            assert!(!place.path().join("own").exists(), "{made}");
        }
    }

    #[test]
    fn all_kinds_of_files_go_and_what_links_lead_to_stays() {
        let place = tempfile::tempdir_in("/var/tmp").unwrap();
        let (own, others) = (place.path().join("own"), place.path().join("others"));
        std::fs::create_dir_all(others.join("below")).unwrap();
        std::fs::create_dir_all(own.join("a/b/c")).unwrap();
        std::fs::create_dir_all(own.join(".removed-1/.removed-2")).unwrap();
        for name in ["x", "a/x", "a/b/x", "a/b/c/x"] {
            std::fs::write(own.join(name), "x").unwrap();
        }
        for name in ["l", "a/l", "a/b/l"] {
            symlink(&others, own.join(name)).unwrap();
        }
        let made = Command::new("mkfifo").arg(own.join("a/p")).status();
        assert!(made.unwrap().success());
        for name in ["a/b/c", "a/b", "a"] {
            std::fs::set_permissions(own.join(name), std::fs::Permissions::from_mode(0o000))
                .unwrap();
        }
        remove(&parent(place.path()), OsStr::new("own"));
        assert!(!own.exists());
        assert!(others.join("below").is_dir());
        // What is no directory isn't removed.
        symlink(&others, &own).unwrap();
        remove(&parent(place.path()), OsStr::new("own"));
        assert!(own.is_symlink() && others.join("below").is_dir());
    }
}
