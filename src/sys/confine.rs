//! Confinement that a process puts on itself between fork and exec, and can't take off again: Landlock,
//! seccomp, capabilities.
//!
//! All is prepared before the fork; afterwards nothing is left but the system calls.

use std::ffi::{CStr, c_int, c_ulong};
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};

use super::check;

/// One instruction of a filter, `struct sock_filter` of `linux/filter.h`.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Instruction {
    /// The operation.
    pub code: u16,
    /// How many instructions to skip where a comparison holds.
    pub if_true: u8,
    /// How many to skip where it doesn't.
    pub if_false: u8,
    /// The operand.
    pub operand: u32,
}

/// The most instructions of one filter, `BPF_MAXINSNS`.
const MOST_INSTRUCTIONS: usize = 4096;

/// A filter of system calls, `seccomp(2)`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Filter(Vec<Instruction>);

impl Filter {
    /// From its instructions.
    ///
    /// # Errors
    /// None, or more than the kernel takes.
    pub fn new(instructions: Vec<Instruction>) -> io::Result<Self> {
        if instructions.is_empty() || instructions.len() > MOST_INSTRUCTIONS {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "a filter has 1 to 4096 instructions",
            ));
        }
        Ok(Self(instructions))
    }

    /// The filter as another program reads it: its instructions, one after the other, as the kernel has
    /// them.
    ///
    /// # Errors
    /// No descriptors or no memory left.
    pub fn to_file(&self) -> io::Result<OwnedFd> {
        let mut bytes = Vec::with_capacity(self.0.len() * size_of::<Instruction>());
        for instruction in &self.0 {
            bytes.extend(instruction.code.to_ne_bytes());
            bytes.extend([instruction.if_true, instruction.if_false]);
            bytes.extend(instruction.operand.to_ne_bytes());
        }
        memory_file(c"execgate-filter", &bytes)
    }
}

/// A file without a name, which begins with these bytes and is read from its beginning.
fn memory_file(name: &CStr, bytes: &[u8]) -> io::Result<OwnedFd> {
    // SAFETY: the name is a string.
    let fd = check(unsafe { libc::memfd_create(name.as_ptr(), libc::MFD_CLOEXEC) })?;
    // SAFETY: the kernel has just installed it for us, and nobody else knows it.
    let mut file = File::from(unsafe { OwnedFd::from_raw_fd(fd) });
    file.write_all(bytes)?;
    io::Seek::rewind(&mut file)?;
    Ok(file.into())
}

/// What a process is confined by.
#[derive(Debug)]
pub struct Confinement {
    /// A Landlock ruleset. `None`: none.
    pub ruleset: Option<OwnedFd>,
    /// Flags for it, `landlock_restrict_self(2)`.
    pub ruleset_flags: u32,
    /// Filters, the first of which is the first to be in force. What one of them refuses is refused.
    pub filters: Vec<Filter>,
    /// Flags for them, `seccomp(2)`.
    pub filter_flags: u32,
    /// The capabilities that it keeps, if it has them: bits by their numbers, `capabilities(7)`. `None`: all.
    pub capabilities: Option<u64>,
}

impl Confinement {
    /// One of its own, for one more process.
    ///
    /// # Errors
    /// No descriptors left.
    pub fn try_clone(&self) -> io::Result<Self> {
        Ok(Self {
            ruleset: self.ruleset.as_ref().map(OwnedFd::try_clone).transpose()?,
            ruleset_flags: self.ruleset_flags,
            filters: self.filters.clone(),
            filter_flags: self.filter_flags,
            capabilities: self.capabilities,
        })
    }

    /// The ruleset's number; -1 where there is none.
    pub(super) fn ruleset_number(&self) -> RawFd {
        self.ruleset
            .as_ref()
            .map_or(-1, |fd| fd.as_fd().as_raw_fd())
    }

    /// Confines this process, whose ruleset has got this number. Allocates nothing. A process that gets
    /// an error may be confined in part, and must not go on.
    pub(super) fn apply(&self, ruleset: RawFd) -> Result<(), c_int> {
        // Capabilities first: to take them out of the bounding set takes one of them.
        if let Some(kept) = self.capabilities {
            keep_capabilities(kept)?;
        }
        // SAFETY: integers only.
        done(unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) })?;
        if self.ruleset.is_some() {
            // SAFETY: two integers.
            let result = unsafe {
                libc::syscall(
                    libc::SYS_landlock_restrict_self,
                    ruleset,
                    self.ruleset_flags,
                )
            };
            done(result)?;
        }
        for Filter(instructions) in &self.filters {
            let program = Program {
                // At most 4096, as `Filter::new` sees to.
                #[allow(clippy::cast_possible_truncation, reason = "at most 4096")]
                length: instructions.len() as u16,
                instructions: instructions.as_ptr(),
            };
            // SAFETY: the program and its instructions are readable, and as many as it says.
            let result = unsafe {
                libc::syscall(
                    libc::SYS_seccomp,
                    libc::SECCOMP_SET_MODE_FILTER,
                    self.filter_flags,
                    &raw const program,
                )
            };
            done(result)?;
        }
        Ok(())
    }
}

/// `struct sock_fprog` of `linux/filter.h`.
#[repr(C)]
struct Program {
    length: u16,
    instructions: *const Instruction,
}

fn done<T: Copy + PartialEq + From<i8>>(result: T) -> Result<(), c_int> {
    if result == T::from(0) {
        return Ok(());
    }
    // SAFETY: the place is this thread's own.
    let place = unsafe { libc::__errno_location() };
    // SAFETY: as above.
    Err(unsafe { *place })
}

/// `struct __user_cap_header_struct`, version 3: `capget(2)`.
#[repr(C)]
struct CapabilityHeader {
    version: u32,
    pid: c_int,
}

const CAPABILITY_VERSION: u32 = 0x2008_0522;

/// `struct __user_cap_data_struct`: 32 of them.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct CapabilityData {
    effective: u32,
    permitted: u32,
    inheritable: u32,
}

/// More than any kernel has capabilities.
const LAST_CAPABILITY: c_ulong = 63;

/// Takes all other capabilities from this process and from what it executes.
fn keep_capabilities(kept: u64) -> Result<(), c_int> {
    let mut header = CapabilityHeader {
        version: CAPABILITY_VERSION,
        pid: 0,
    };
    let mut sets = [CapabilityData::default(); 2];
    // SAFETY: both are writable, and as large as this version has them.
    done(unsafe { libc::syscall(libc::SYS_capget, &raw mut header, sets.as_mut_ptr()) })?;
    for capability in 0..=LAST_CAPABILITY {
        if kept & 1 << capability == 0 {
            // Without a privilege it fails, and then `no_new_privs` is what keeps them from coming back.
            // SAFETY: integers only.
            unsafe { libc::prctl(libc::PR_CAPBSET_DROP, capability, 0, 0, 0) };
        }
    }
    // SAFETY: integers only. It fails on kernels that have no such set.
    unsafe {
        libc::prctl(
            libc::PR_CAP_AMBIENT,
            libc::PR_CAP_AMBIENT_CLEAR_ALL,
            0,
            0,
            0,
        )
    };
    #[allow(clippy::cast_possible_truncation, reason = "one half each")]
    let halves = [kept as u32, (kept >> 32) as u32];
    for (set, kept) in sets.iter_mut().zip(halves) {
        set.permitted &= kept;
        set.effective &= kept;
        set.inheritable = 0;
    }
    // SAFETY: both are readable, and as large as this version has them.
    done(unsafe { libc::syscall(libc::SYS_capset, &raw mut header, sets.as_ptr()) })
}

/// The version of Landlock's interface that the kernel has, from 1 on.
///
/// # Errors
/// `EOPNOTSUPP` where it was not switched on when the machine started, `ENOSYS` where the kernel was built
/// without it.
pub fn landlock_version() -> io::Result<u32> {
    // `LANDLOCK_CREATE_RULESET_VERSION`.
    const VERSION: c_int = 1;
    // SAFETY: with this flag no structure is read.
    let version = check(unsafe {
        libc::syscall(
            libc::SYS_landlock_create_ruleset,
            std::ptr::null::<u8>(),
            0_usize,
            VERSION,
        )
    })?;
    u32::try_from(version).map_err(io::Error::other)
}

/// Whether the kernel knows filters of system calls with this much in them.
#[must_use]
pub fn has_filters() -> bool {
    // `SECCOMP_GET_ACTION_AVAIL`, since Linux 4.14.
    const ASK: c_int = 2;
    let action = libc::SECCOMP_RET_ERRNO;
    // SAFETY: the action is readable.
    unsafe { libc::syscall(libc::SYS_seccomp, ASK, 0, &raw const action) == 0 }
}

/// Opens a file as a place only, whatever it is; a symbolic link itself, not what it leads to.
///
/// # Errors
/// Those of `open(2)`.
pub fn open_place(directory: Option<&File>, name: &CStr) -> io::Result<File> {
    let directory = directory.map_or(libc::AT_FDCWD, AsRawFd::as_raw_fd);
    let flags = libc::O_PATH | libc::O_NOFOLLOW | libc::O_CLOEXEC;
    // SAFETY: the name is a string.
    let fd = check(unsafe { libc::openat(directory, name.as_ptr(), flags) })?;
    // SAFETY: the kernel has just installed it for us, and nobody else knows it.
    Ok(unsafe { File::from_raw_fd(fd) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;

    #[test]
    fn a_filter_is_read_as_the_kernel_has_it() {
        let instruction = Instruction {
            code: 6,
            if_true: 1,
            if_false: 2,
            operand: 0x7fff_0000,
        };
        let filter = Filter::new(vec![instruction]).unwrap();
        let mut read = Vec::new();
        std::fs::File::from(filter.to_file().unwrap())
            .read_to_end(&mut read)
            .unwrap();
        assert_eq!(read.len(), size_of::<Instruction>());
        assert_eq!(read[..2], 6_u16.to_ne_bytes());
        assert_eq!(read[4..], 0x7fff_0000_u32.to_ne_bytes());
        assert!(Filter::new(vec![]).is_err());
        assert!(Filter::new(vec![instruction; 4097]).is_err());
    }
}
