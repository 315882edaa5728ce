//! Which file a name leads another process to, found without ever waiting.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use super::process::Pidfd;
use super::{check, place};

/// A file at one state of its content, as far as a filesystem tells: whatever writes it, replaces it, or
/// changes its mode or owner, changes its `ctime`, which no process can set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileIdentity {
    device: (u32, u32),
    inode: u64,
    size: u64,
    /// Seconds and nanoseconds.
    modified: (i64, u32),
    /// Seconds and nanoseconds.
    changed: (i64, u32),
}

/// The file that `path`, which is absolute, is for a process: below its root, in its mounts. `pid` is
/// the process's id.
///
/// Doesn't wait for a disk, a network or another program: the name is looked up, and the file described,
/// by what the kernel has in memory (Linux 5.12). Who is about to execute a file has just looked it up.
///
/// # Errors
/// [`io::ErrorKind::WouldBlock`] where that isn't enough; otherwise what `openat2(2)` says, such as that
/// there is no such file, or the process has ended.
pub fn identify(process: &Pidfd, pid: u32, path: &Path) -> io::Result<FileIdentity> {
    let root = format!("/proc/{pid}/root");
    let root = open(None, Path::new(&root), 0)?;
    // As long as the process is there its id is no other's; so the root was its root.
    process.signal(0)?;
    let in_memory = libc::RESOLVE_IN_ROOT | RESOLVE_CACHED;
    let file = open(Some(&root), path, in_memory)?;
    describe(&file)
}

/// Since Linux 5.12: `include/uapi/linux/openat2.h`.
const RESOLVE_CACHED: u64 = 0x20;

/// The file that `path`, which is absolute, leads this process to, as for [`identify`].
pub(super) fn open_in_memory(path: &Path) -> io::Result<OwnedFd> {
    open(None, path, RESOLVE_CACHED | libc::RESOLVE_NO_MAGICLINKS)
}

/// Opens a name as a place, which needs no permission on what is there and has no effect on it.
fn open(below: Option<&OwnedFd>, path: &Path, resolve: u64) -> io::Result<OwnedFd> {
    let path = CString::new(path.as_os_str().as_bytes())?;
    // SAFETY: all of the structure's fields are integers, for which zero is a value.
    let mut how: libc::open_how = unsafe { std::mem::zeroed() };
    how.flags = (libc::O_PATH | libc::O_CLOEXEC).unsigned_abs().into();
    how.resolve = resolve;
    let below = below.map_or(libc::AT_FDCWD, AsRawFd::as_raw_fd);
    // SAFETY: the path ends with a NUL, and the size is that of the structure.
    let opened = check(unsafe {
        libc::syscall(
            libc::SYS_openat2,
            libc::c_long::from(below),
            path.as_ptr(),
            &raw const how,
            size_of::<libc::open_how>(),
        )
    })?;
    let opened = i32::try_from(opened).map_err(io::Error::other)?;
    // SAFETY: the kernel has just installed it for us, and nobody else knows it.
    Ok(unsafe { OwnedFd::from_raw_fd(opened) })
}

fn describe(file: &OwnedFd) -> io::Result<FileIdentity> {
    let found = place::status_of(file.as_fd(), place::Freshness::InMemory)?;
    Ok(FileIdentity {
        device: found.device,
        inode: found.inode,
        size: found.size,
        modified: found.modified,
        changed: found.changed,
    })
}

#[cfg(test)]
mod tests {
    use super::super::process::own_pid;
    use super::*;

    fn identified(path: &Path) -> io::Result<FileIdentity> {
        identified_for(&Pidfd::open(own_pid())?, own_pid(), path)
    }

    fn identified_for(process: &Pidfd, pid: u32, path: &Path) -> io::Result<FileIdentity> {
        let attempt = || {
            // What has just been looked up is in memory, unless the kernel has needed the room.
            let _ = std::fs::metadata(path);
            identify(process, pid, path)
        };
        let mut attempts = std::iter::repeat_with(attempt).take(100);
        let told = attempts.find(|found| {
            let error = found.as_ref().err().map(io::Error::kind);
            error != Some(io::ErrorKind::WouldBlock)
        });
        told.unwrap_or_else(|| Err(io::ErrorKind::WouldBlock.into()))
    }

    #[test]
    fn a_file_is_itself_by_any_name_until_it_changes() {
        let directory = tempfile::tempdir().unwrap();
        let [file, link, other] = ["file", "link", "other"].map(|name| directory.path().join(name));
        std::fs::write(&file, "one").unwrap();
        std::os::unix::fs::symlink(&file, &link).unwrap();
        let first = identified(&file).unwrap();
        assert_eq!(identified(&link).unwrap(), first);
        assert_eq!(identified(&file).unwrap(), first);

        // The same size, and the time of the last write put back.
        let modified = std::fs::metadata(&file).unwrap().modified().unwrap();
        std::fs::write(&file, "two").unwrap();
        std::fs::File::options()
            .write(true)
            .open(&file)
            .unwrap()
            .set_modified(modified)
            .unwrap();
        let second = identified(&file).unwrap();
        assert_ne!(second, first);

        std::fs::write(&other, "two").unwrap();
        std::fs::rename(&other, &file).unwrap();
        assert_ne!(identified(&file).unwrap(), second);
    }

    #[test]
    fn what_is_not_there_has_no_identity() {
        let directory = tempfile::tempdir().unwrap();
        let error = identified(&directory.path().join("missing")).unwrap_err();
        // File systems in memory don't remember what isn't there.
        if error.kind() == io::ErrorKind::WouldBlock {
            let place = place::Place::in_memory(directory.path()).unwrap().0;
            assert_eq!(place.filesystem().unwrap(), 0x0102_1994, "tmpfs");
        } else {
            assert_eq!(error.kind(), io::ErrorKind::NotFound);
        }
    }

    #[test]
    fn a_process_that_has_ended_leads_nowhere() {
        let mut child = std::process::Command::new("/bin/cat")
            .stdin(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let pidfd = Pidfd::open(child.id()).unwrap();
        let pid = child.id();
        let program = Path::new("/bin/true");
        let found = identified_for(&pidfd, pid, program).unwrap();
        assert_eq!(found, identified(program).unwrap());
        // It ends with its input.
        child.wait().unwrap();
        let error = identified_for(&pidfd, pid, program).unwrap_err();
        // The second where its id is another's by now.
        let ended = [Some(libc::ENOENT), Some(libc::ESRCH)];
        assert!(ended.contains(&error.raw_os_error()), "{error}");
        // Nor does another process's id.
        let error = identified_for(&pidfd, own_pid(), program).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ESRCH), "{error}");
    }
}
