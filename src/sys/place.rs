//! Names followed step by step, and what is at each of them, by descriptors that are places only
//! (`O_PATH`, `open(2)`): nothing is opened for reading, so no device, pipe or server notices.

use std::ffi::{CString, OsStr, OsString};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;

use super::check;

/// A file or directory, or a link itself, held by a descriptor.
#[derive(Debug)]
pub struct Place(OwnedFd);

/// What is at a place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Status {
    /// Major and minor number of its device.
    pub device: (u32, u32),
    /// Its number on the device.
    pub inode: u64,
    /// In bytes.
    pub size: u64,
    /// When its content was last written: seconds and nanoseconds.
    pub modified: (i64, u32),
    /// When its content, owner, mode or names last changed.
    pub changed: (i64, u32),
    /// User id of its owner.
    pub owner: u32,
    /// Its group.
    pub group: u32,
    /// Type and permission bits, `inode(7)`.
    pub mode: u32,
    /// How many names it has.
    pub links: u32,
}

/// The longest target of a link, `PATH_MAX`.
const LONGEST_TARGET: usize = 4096;

impl Place {
    /// The root directory.
    pub fn root() -> io::Result<Self> {
        Self::open(libc::AT_FDCWD, c"/")
    }

    /// What has this name in this directory; a link is not followed. May wait for a disk or a server.
    pub fn entry(&self, name: &OsStr) -> io::Result<Self> {
        Self::open(self.0.as_raw_fd(), &CString::new(name.as_bytes())?)
    }

    /// The file that an absolute name leads this process to, and what it is, if the kernel can tell both
    /// from memory. Links of `/proc` that lead where no name does are refused.
    ///
    /// # Errors
    /// As [`identify`](super::program::identify).
    pub fn in_memory(name: &std::path::Path) -> io::Result<(Self, Status)> {
        let found = super::program::open_in_memory(name)?;
        let status = status_of(found.as_fd(), Freshness::InMemory)?;
        Ok((Self(found), status))
    }

    fn open(below: libc::c_int, name: &std::ffi::CStr) -> io::Result<Self> {
        let flags = libc::O_PATH | libc::O_NOFOLLOW | libc::O_CLOEXEC;
        // SAFETY: the name is a C string.
        let opened = check(unsafe { libc::openat(below, name.as_ptr(), flags) })?;
        // SAFETY: the kernel has just installed it for us, and nobody else knows it.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(opened) }))
    }

    /// What is there.
    pub fn status(&self) -> io::Result<Status> {
        status_of(self.0.as_fd(), Freshness::Synchronized)
    }

    /// Where a link leads.
    pub fn target(&self) -> io::Result<PathBuf> {
        let mut target = vec![0; LONGEST_TARGET];
        // SAFETY: the name is an empty C string, which stands for the link itself, and the buffer writable
        // for its length.
        let length = check(unsafe {
            libc::readlinkat(
                self.0.as_raw_fd(),
                c"".as_ptr(),
                target.as_mut_ptr().cast(),
                target.len(),
            )
        })?;
        target.truncate(length.unsigned_abs());
        Ok(OsString::from_vec(target).into())
    }

    /// The type of the filesystem, as `statfs(2)` numbers them.
    pub fn filesystem(&self) -> io::Result<u64> {
        // SAFETY: all of the structure's fields are integers, for which zero is a value.
        let mut found: libc::statfs = unsafe { std::mem::zeroed() };
        // SAFETY: the structure is writable.
        check(unsafe { libc::fstatfs(self.0.as_raw_fd(), &raw mut found) })?;
        Ok(found.f_type.cast_unsigned() & 0xffff_ffff)
    }

    /// Whether it has an access control list beyond its mode, `acl(5)`.
    pub fn has_access_list(&self) -> io::Result<bool> {
        let name = CString::new(self.by_number().into_os_string().into_vec())?;
        let list = c"system.posix_acl_access";
        // SAFETY: two C strings, and no buffer.
        let size =
            check(unsafe { libc::getxattr(name.as_ptr(), list.as_ptr(), std::ptr::null_mut(), 0) });
        match size {
            Ok(_) => Ok(true),
            Err(error) => match error.raw_os_error() {
                Some(libc::ENODATA | libc::EOPNOTSUPP) => Ok(false),
                _ => Err(error),
            },
        }
    }

    /// Opens the very file that is there for reading. May wait for a disk or a server; not for a pipe.
    pub fn read(&self) -> io::Result<std::fs::File> {
        std::fs::File::options()
            .read(true)
            .custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY)
            .open(self.by_number())
    }

    fn by_number(&self) -> PathBuf {
        PathBuf::from(format!("/proc/self/fd/{}", self.0.as_raw_fd()))
    }
}

impl AsFd for Place {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Status {
    fn is(&self, kind: u32) -> bool {
        self.mode & libc::S_IFMT == kind
    }

    /// Whether it is a regular file.
    #[must_use]
    pub fn is_file(&self) -> bool {
        self.is(libc::S_IFREG)
    }

    /// Whether it is a directory.
    #[must_use]
    pub fn is_directory(&self) -> bool {
        self.is(libc::S_IFDIR)
    }

    /// Whether it is a symbolic link.
    #[must_use]
    pub fn is_link(&self) -> bool {
        self.is(libc::S_IFLNK)
    }
}

/// How up to date what a filesystem says of a file has to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Freshness {
    /// As its server knows it.
    Synchronized,
    /// As this host knows it already.
    InMemory,
}

pub(super) fn status_of(file: BorrowedFd<'_>, freshness: Freshness) -> io::Result<Status> {
    // SAFETY: all of the structure's fields are integers, for which zero is a value.
    let mut found: libc::statx = unsafe { std::mem::zeroed() };
    let flags = match freshness {
        Freshness::Synchronized => libc::AT_STATX_SYNC_AS_STAT,
        Freshness::InMemory => libc::AT_STATX_DONT_SYNC,
    };
    // SAFETY: the path is an empty C string, and `found` is writable.
    check(unsafe {
        libc::statx(
            file.as_raw_fd(),
            c"".as_ptr(),
            libc::AT_EMPTY_PATH | flags,
            libc::STATX_BASIC_STATS,
            &raw mut found,
        )
    })?;
    let time = |time: libc::statx_timestamp| (time.tv_sec, time.tv_nsec);
    Ok(Status {
        device: (found.stx_dev_major, found.stx_dev_minor),
        inode: found.stx_ino,
        size: found.stx_size,
        modified: time(found.stx_mtime),
        changed: time(found.stx_ctime),
        owner: found.stx_uid,
        group: found.stx_gid,
        mode: found.stx_mode.into(),
        links: found.stx_nlink,
    })
}

/// What a descriptor is open for, as far as this host knows it already.
pub fn status(descriptor: BorrowedFd<'_>) -> io::Result<Status> {
    status_of(descriptor, Freshness::InMemory)
}

/// What the user of this process is allowed by groups and capabilities.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Rights {
    /// Effective user id.
    pub user: u32,
    /// Effective group and all others that it is in.
    pub groups: Vec<u32>,
    /// Whether permissions of files keep it from nothing: a capability says so, `capabilities(7)`.
    pub overrides_permissions: bool,
}

/// `CAP_CHOWN`, `CAP_DAC_OVERRIDE`, `CAP_FOWNER`, `CAP_SETUID`, `CAP_SYS_ADMIN`: `linux/capability.h`.
const OVERRIDING: u64 = 1 | 1 << 1 | 1 << 3 | 1 << 7 | 1 << 21;

/// What this process is allowed.
#[must_use]
pub fn rights() -> Rights {
    let user = super::host::user();
    // SAFETY: no buffer: it tells how many there are.
    let count = unsafe { libc::getgroups(0, std::ptr::null_mut()) };
    let mut groups = vec![0; usize::try_from(count).unwrap_or(0)];
    // SAFETY: the buffer is writable for `count` entries.
    let found = unsafe { libc::getgroups(count.max(0), groups.as_mut_ptr()) };
    groups.truncate(usize::try_from(found).unwrap_or(0));
    groups.push(user.group_id);
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    // Where nothing is known, the worst is.
    let capabilities = super::reach::effective_capabilities(&status).unwrap_or(OVERRIDING);
    Rights {
        overrides_permissions: user.id == 0 || capabilities & OVERRIDING != 0,
        user: user.id,
        groups,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn below(path: &std::path::Path) -> Place {
        path.components()
            .skip(1)
            .fold(Place::root().unwrap(), |place, part| {
                place.entry(part.as_os_str()).unwrap()
            })
    }

    #[test]
    fn links_are_seen_and_not_followed() {
        let directory = tempfile::tempdir().unwrap();
        let link = directory.path().join("link");
        std::os::unix::fs::symlink("some/where", &link).unwrap();
        let place = below(&link);
        assert!(place.status().unwrap().is_link());
        assert_eq!(place.target().unwrap(), PathBuf::from("some/where"));
        assert!(below(directory.path()).status().unwrap().is_directory());
    }

    #[test]
    fn a_file_is_read_by_its_place_whatever_its_name_leads_to_by_then() {
        use std::io::Read;
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("file");
        std::fs::write(&file, "one").unwrap();
        let place = below(&file);
        assert!(!place.has_access_list().unwrap());
        std::fs::remove_file(&file).unwrap();
        std::fs::write(&file, "two").unwrap();
        let mut text = String::new();
        place.read().unwrap().read_to_string(&mut text).unwrap();
        assert_eq!(text, "one");
        assert_eq!(place.status().unwrap().links, 0);
    }

    #[test]
    fn an_access_list_is_seen() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("file");
        std::fs::write(&file, "").unwrap();
        assert!(!below(&file).has_access_list().unwrap());
        // `linux/posix_acl_xattr.h`: its version; then a kind, what is allowed and a number for its owner, for the
        // user 12345, for its group, for the most that others than its owner may, and for the rest.
        let nobody = u32::MAX;
        let entries = [(1, 6, nobody), (2, 6, 12345), (4, 4, nobody)];
        let mut list = 2_u32.to_le_bytes().to_vec();
        for (kind, allowed, number) in entries
            .into_iter()
            .chain([(16, 6, nobody), (32, 4, nobody)])
        {
            list.extend(u16::to_le_bytes(kind));
            list.extend(u16::to_le_bytes(allowed));
            list.extend(u32::to_le_bytes(number));
        }
        let name = CString::new(file.as_os_str().as_bytes()).unwrap();
        // SAFETY: two C strings, and a buffer that is readable for its length.
        let set = check(unsafe {
            libc::setxattr(
                name.as_ptr(),
                c"system.posix_acl_access".as_ptr(),
                list.as_ptr().cast(),
                list.len(),
                0,
            )
        });
        if let Err(error) = set {
            assert_eq!(error.raw_os_error(), Some(libc::EOPNOTSUPP), "{error}");
            assert!(std::env::var_os("CI").is_none(), "{error}");
            eprintln!("SKIPPED: the file system of temporary files has no access lists");
            return;
        }
        assert!(below(&file).has_access_list().unwrap());
        assert!(!below(directory.path()).has_access_list().unwrap());
    }
}
