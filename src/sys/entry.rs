//! A program's start without the language runtime.
//!
//! Rust's own start of `main` sets `SIGPIPE` to ignored and opens `/dev/null` in the place of closed
//! standard descriptors (`std::rt`). A program that is to become another program must hand on what
//! it was given, so the wrapper and what stands in for it start here instead.

use alloc::boxed::Box;
use alloc::ffi::CString;
use alloc::vec::Vec;
use core::ffi::{CStr, c_char};

use rustix::fd::{BorrowedFd, RawFd};
use rustix::io::{Errno, fcntl_getfd};

/// Arguments and environment as the kernel passed them.
#[derive(Debug, Clone, Copy)]
pub struct Invocation {
    arguments: Vector,
    environment: Vector,
}

/// A null-terminated array of strings that lives, unchanged, as long as the process.
#[derive(Debug, Clone, Copy)]
pub struct Vector(*const *const c_char);

impl Vector {
    /// The strings.
    pub fn iter(self) -> impl Iterator<Item = &'static CStr> + Clone {
        (0_usize..).map_while(move |index| {
            // SAFETY: no earlier place was the terminator, so this one is in the array.
            let place = unsafe { self.0.add(index) };
            // SAFETY: as above, the place can be read.
            let string = unsafe { *place };
            // SAFETY: what isn't null is a string that lives as long as the process.
            (!string.is_null()).then(|| unsafe { CStr::from_ptr(string) })
        })
    }

    /// The array from its `count`th string on, or its end where it is shorter.
    #[must_use]
    pub fn skip(self, count: usize) -> Self {
        let present = self.iter().take(count).count();
        // SAFETY: at most the place of the terminator.
        Self(unsafe { self.0.add(present) })
    }

    /// An array of these strings. It is never freed.
    fn of(strings: impl Iterator<Item = &'static CStr>) -> Self {
        let pointers: Vec<_> = strings
            .map(CStr::as_ptr)
            .chain([core::ptr::null()])
            .collect();
        Self(Vec::leak(pointers).as_ptr())
    }

    pub(super) fn as_ptr(self) -> *const *const c_char {
        self.0
    }
}

impl Invocation {
    /// Takes what C's `main` was given.
    ///
    /// # Safety
    /// Both must be null-terminated arrays of strings that live, unchanged, as long as the process.
    #[must_use]
    pub unsafe fn new(argv: *const *const c_char, envp: *const *const c_char) -> Self {
        Self {
            arguments: Vector(argv),
            environment: Vector(envp),
        }
    }

    /// The same with other arguments in the place of the first `count`: as if it had been started so. What
    /// that takes is never freed.
    #[must_use]
    pub fn with_first<const N: usize>(self, first: [CString; N], count: usize) -> Self {
        let first = first.map(|string| &*Box::leak(string.into_boxed_c_str()));
        let rest = self.arguments.skip(count).iter();
        Self {
            arguments: Vector::of(first.into_iter().chain(rest)),
            environment: self.environment,
        }
    }

    /// The value of a variable in the environment.
    #[must_use]
    pub fn variable(self, name: &str) -> Option<&'static [u8]> {
        self.environment.iter().find_map(|entry| {
            entry
                .to_bytes()
                .strip_prefix(name.as_bytes())?
                .strip_prefix(b"=")
        })
    }

    /// The arguments, from argument zero on.
    #[must_use]
    pub fn arguments(self) -> Vector {
        self.arguments
    }

    /// The environment, an entry a string.
    #[must_use]
    pub fn environment(self) -> Vector {
        self.environment
    }
}

/// Borrows the descriptor with this number for the rest of the process's life, if it is open.
///
/// For descriptors that a process inherits: nothing in the process may close it.
pub fn inherited(number: RawFd) -> Result<BorrowedFd<'static>, Errno> {
    if number < 0 {
        return Err(Errno::BADF);
    }
    // SAFETY: not -1; whether it is open is what is asked here, and by this function's contract it stays so.
    let descriptor = unsafe { BorrowedFd::borrow_raw(number) };
    fcntl_getfd(descriptor).map(|_| descriptor)
}

/// Replaces the process by `file`, with these very arrays. Returns only where that failed.
///
/// Nothing else changes: descriptors, signals, directory and limits are handed on as they are. The
/// file isn't searched for, and one that the kernel doesn't know how to run (`ENOEXEC`) is an error.
pub fn replace_process(file: &CStr, arguments: Vector, environment: Vector) -> Errno {
    #[cfg(not(feature = "std"))]
    {
        super::bare::execute(file, arguments, environment)
    }
    #[cfg(feature = "std")]
    {
        // SAFETY: a string and two null-terminated arrays of strings, by their types.
        unsafe { libc::execve(file.as_ptr(), arguments.as_ptr(), environment.as_ptr()) };
        Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::INVAL)
    }
}

/// Makes `$main`, a `fn(Invocation) -> c_int`, the start of a `#![no_main]` program.
#[macro_export]
macro_rules! raw_main {
    ($main:path) => {
        /// What the start of the process calls: the C library's, or without one `sys::bare`.
        ///
        /// # Safety
        /// As for [`Invocation::new`]($crate::sys::entry::Invocation::new).
        // SAFETY: the program has no other symbol of this name.
        #[allow(unsafe_code)]
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn main(
            _: ::core::ffi::c_int,
            argv: *const *const ::core::ffi::c_char,
            envp: *const *const ::core::ffi::c_char,
        ) -> ::core::ffi::c_int {
            // SAFETY: the caller passes the arrays that the kernel laid out, and nothing in the
            // program changes them.
            $main(unsafe { $crate::sys::entry::Invocation::new(argv, envp) })
        }
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_that_is_not_open_is_an_error() {
        for number in [-1, 1_000_000] {
            assert_eq!(inherited(number).unwrap_err(), Errno::BADF);
        }
    }
}
