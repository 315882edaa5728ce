//! A program's start without the language runtime.
//!
//! Rust's own start of `main` sets `SIGPIPE` to ignored and opens `/dev/null` in the place of closed
//! standard descriptors (`std::rt`). A program that is to become another program must hand on what
//! it was given, so the wrapper starts here instead.

use std::ffi::{CStr, CString, c_char};

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
            .chain([std::ptr::null()])
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

/// Makes `$main`, a `fn(Invocation) -> c_int`, the start of a `#![no_main]` program.
#[macro_export]
macro_rules! raw_main {
    ($main:path) => {
        /// What the C runtime calls.
        ///
        /// # Safety
        /// As for [`Invocation::new`]($crate::sys::entry::Invocation::new).
        // SAFETY: the program has no other symbol of this name.
        #[allow(unsafe_code)]
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn main(
            _: ::std::ffi::c_int,
            argv: *const *const ::std::ffi::c_char,
            envp: *const *const ::std::ffi::c_char,
        ) -> ::std::ffi::c_int {
            // SAFETY: the C runtime passes the arrays that the kernel laid out, and nothing in the
            // program changes them.
            $main(unsafe { $crate::sys::entry::Invocation::new(argv, envp) })
        }
    };
}
