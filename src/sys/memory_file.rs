//! Files that are in memory and change no more: `memfd_create(2)`.

use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd};

use super::check;

/// Since Linux 6.3: whether it may be executed is said when it is made.
const MFD_EXEC: libc::c_uint = 0x10;

/// An empty file that can be executed once it is [`seal`]ed. `name` is for people, in `/proc`.
///
/// # Errors
/// Where the system forbids it, by `vm.memfd_noexec`, or has no descriptor left.
pub fn executable(name: &str) -> io::Result<File> {
    let name = CString::new(name)?;
    let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
    // SAFETY: the name is a C string.
    let made = check(unsafe { libc::memfd_create(name.as_ptr(), flags | MFD_EXEC) });
    let made = match made {
        // An older kernel doesn't know the flag, and lets it be executed.
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
            // SAFETY: as above.
            check(unsafe { libc::memfd_create(name.as_ptr(), flags) })
        }
        other => other,
    }?;
    // SAFETY: the kernel has just installed it for us, and nobody else knows it.
    Ok(unsafe { File::from_raw_fd(made) })
}

/// Has the file stay as it is for good: nobody can write it, whoever has a descriptor for it.
pub fn seal(file: &File) -> io::Result<()> {
    let seals = libc::F_SEAL_SEAL | libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_WRITE;
    // SAFETY: integers only.
    check(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, seals) })?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::unix::fs::FileExt;

    use super::*;

    #[test]
    fn what_is_sealed_cannot_be_written() {
        let mut file = executable("test").unwrap();
        file.write_all(b"as it was").unwrap();
        seal(&file).unwrap();
        let path = format!("/proc/self/fd/{}", file.as_raw_fd());
        let anew = File::options().write(true).open(&path).unwrap();
        for file in [&file, &anew] {
            // In place and at the end; longer and shorter, each of which has a seal of its own.
            for refused in [
                file.write_at(b"x", 0).map(drop),
                file.write_at(b"x", 9).map(drop),
                file.set_len(10),
                file.set_len(0),
            ] {
                assert_eq!(refused.unwrap_err().raw_os_error(), Some(libc::EPERM));
            }
        }
        assert_eq!(std::fs::read(&path).unwrap(), b"as it was");
    }
}
