//! What a file system is, and what room it has.

use std::ffi::CString;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use super::check;

/// A file system, `statfs(2)` and `statvfs(3)`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileSystem {
    /// Where what is in it is kept.
    pub kind: Kind,
    /// Whether it can't be written.
    pub is_read_only: bool,
    /// Bytes that this user may still write.
    pub free: u64,
}

/// Where a file system keeps what is in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// On this machine, as far as is known.
    Local,
    /// In this machine's memory.
    Memory,
    /// On another machine: its name.
    Network(&'static str),
    /// By a process, which may keep it anywhere.
    Process,
}

/// `f_type` of what isn't on a local disk; from `statfs(2)` and `linux/magic.h`.
const KINDS: [(u32, Kind); 14] = [
    (0x0102_1994, Kind::Memory),           // TMPFS_MAGIC
    (0x8584_58f6, Kind::Memory),           // RAMFS_MAGIC
    (0x6573_5546, Kind::Process),          // FUSE_SUPER_MAGIC
    (0x6969, Kind::Network("NFS")),        // NFS_SUPER_MAGIC
    (0x517b, Kind::Network("SMB")),        // SMB_SUPER_MAGIC
    (0xfe53_4d42, Kind::Network("SMB")),   // SMB2_SUPER_MAGIC
    (0xff53_4d42, Kind::Network("CIFS")),  // CIFS_SUPER_MAGIC
    (0x5346_414f, Kind::Network("AFS")),   // AFS_SUPER_MAGIC
    (0x6b41_4653, Kind::Network("AFS")),   // AFS_FS_MAGIC
    (0x7375_7245, Kind::Network("Coda")),  // CODA_SUPER_MAGIC
    (0x00c3_6400, Kind::Network("Ceph")),  // CEPH_SUPER_MAGIC
    (0x0102_1997, Kind::Network("9P")),    // V9FS_MAGIC
    (0x7461_636f, Kind::Network("OCFS2")), // OCFS2_SUPER_MAGIC
    (0x0116_1970, Kind::Network("GFS2")),  // GFS2_MAGIC
];

/// The file system of a path.
pub fn of(path: &Path) -> io::Result<FileSystem> {
    let path = CString::new(path.as_os_str().as_bytes())?;
    // SAFETY: all zeroes is a valid value.
    let mut known: libc::statfs = unsafe { std::mem::zeroed() };
    // SAFETY: `path` ends with NUL, and `known` is writable.
    check(unsafe { libc::statfs(path.as_ptr(), &raw mut known) })?;
    // SAFETY: all zeroes is a valid value.
    let mut found: libc::statvfs = unsafe { std::mem::zeroed() };
    // SAFETY: as above.
    check(unsafe { libc::statvfs(path.as_ptr(), &raw mut found) })?;
    #[allow(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "the kernel's numbers have 32 bits; as what libraries give them differs"
    )]
    let magic = known.f_type as u32;
    let kind = KINDS.iter().find(|(known, _)| *known == magic);
    Ok(FileSystem {
        kind: kind.map_or(Kind::Local, |(_, kind)| *kind),
        is_read_only: found.f_flag & libc::ST_RDONLY != 0,
        free: found.f_bavail.saturating_mul(found.f_frsize),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_system_is_told_by_what_the_kernel_says() {
        let shared = of(Path::new("/dev/shm")).expect("a file system");
        assert_eq!(shared.kind, Kind::Memory);
        let own = of(Path::new(env!("CARGO_MANIFEST_DIR"))).expect("a file system");
        assert!(own.free > 0 && !own.is_read_only);
        let error = of(Path::new("/nonexistent")).expect_err("there is none");
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
    }
}
