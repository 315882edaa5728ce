//! Dying with the mark of a core dump, and without one.
//!
//! The kernel marks only a process that it has dumped, and there is no asking for the mark alone. But where
//! core dumps are files, the place for this one can be a file system that nobody else sees and that goes
//! with the process.

use std::ffi::{CString, OsStr};
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use super::check;

/// The least that the kernel begins a dump for, `ELF_EXEC_PAGESIZE`: headers, and none of the memory.
const LEAST_DUMP: libc::rlim_t = 4096;

/// Where the kernel has the machine's own processes and settings.
const PROC: &str = "/proc";

/// Sends the core dump that this process may leave to nowhere. It is good for nothing but dying then.
///
/// # Errors
/// Core dumps aren't files here, or this process may not have namespaces of its own, or no dump at all.
pub fn divert() -> io::Result<()> {
    let pattern = fs::read(Path::new(PROC).join("sys/kernel/core_pattern"))?;
    let place = place_of(&pattern).ok_or(io::ErrorKind::Unsupported)?;
    allow_least_dump()?;
    // SAFETY: no arguments.
    let user = unsafe { libc::geteuid() };
    // SAFETY: no arguments.
    let group = unsafe { libc::getegid() };
    // SAFETY: integers only. The process has one thread.
    check(unsafe { libc::unshare(libc::CLONE_NEWUSER | libc::CLONE_NEWNS) })?;
    // Other credentials have taken that away.
    // SAFETY: integers only.
    check(unsafe { libc::prctl(libc::PR_SET_DUMPABLE, 1, 0, 0, 0) })?;
    let own = Path::new(PROC).join("self");
    fs::write(own.join("setgroups"), "deny")?;
    fs::write(own.join("uid_map"), format!("{user} {user} 1"))?;
    fs::write(own.join("gid_map"), format!("{group} {group} 1"))?;
    mount_nothing(&place)?;
    std::env::set_current_dir(place)
}

/// Whatever goes wrong, no dump.
pub fn forbid() {
    // SAFETY: integers only.
    unsafe { libc::prctl(libc::PR_SET_DUMPABLE, 0, 0, 0, 0) };
}

/// The one directory that all core dumps are written to; where that is each process's own, any that is there.
/// None where they go to a program, or to directories that differ.
fn place_of(pattern: &[u8]) -> Option<PathBuf> {
    let pattern = pattern.trim_ascii_end();
    match pattern.first()? {
        b'/' => {
            let end = pattern.iter().rposition(|byte| *byte == b'/')?;
            let directory = &pattern[..end];
            let is_one = !directory.is_empty() && !directory.contains(&b'%');
            is_one.then(|| PathBuf::from(OsStr::from_bytes(directory)))
        }
        b'|' | b'@' => None,
        _ => (!pattern.contains(&b'/')).then(|| PathBuf::from(PROC)),
    }
}

fn allow_least_dump() -> io::Result<()> {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: the limit is writable.
    check(unsafe { libc::getrlimit(libc::RLIMIT_CORE, &raw mut limit) })?;
    limit.rlim_cur = LEAST_DUMP.min(limit.rlim_max);
    // SAFETY: the limit is readable.
    check(unsafe { libc::setrlimit(libc::RLIMIT_CORE, &raw const limit) }).map(drop)
}

/// Mounts an empty file system of this process's own.
fn mount_nothing(place: &Path) -> io::Result<()> {
    let place = CString::new(place.as_os_str().as_bytes())?;
    let flags = libc::MS_NOSUID | libc::MS_NODEV | libc::MS_NOEXEC;
    // SAFETY: four strings and an integer.
    let mounted = unsafe {
        libc::mount(
            c"none".as_ptr(),
            place.as_ptr(),
            c"tmpfs".as_ptr(),
            flags,
            c"size=64k,mode=700".as_ptr().cast(),
        )
    };
    check(mounted).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_files_in_one_directory_can_be_diverted() {
        let in_directory = |name: &str| Some(PathBuf::from(name));
        assert_eq!(place_of(b"core\n"), in_directory(PROC));
        assert_eq!(place_of(b"core.%e.%p\n"), in_directory(PROC));
        assert_eq!(
            place_of(b"/var/crash/core.%p\n"),
            in_directory("/var/crash")
        );
        for elsewhere in [
            &b""[..],
            b"\n",
            b"|/usr/bin/handler %p",
            b"@/run/socket",
            b"/var/%u/core",
            b"/core",
            b"cores/core",
        ] {
            assert_eq!(place_of(elsewhere), None, "{elsewhere:?}");
        }
    }
}
