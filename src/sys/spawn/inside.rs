//! Signals for a command that isn't the supervisor's child, but what that has started in namespaces of its own.

use std::cell::Cell;
use std::ffi::c_int;

use super::super::signal::{self, KernelSet};

/// The command, as far as it is there: the first child of the first child of the supervisor's own. The one in between
/// gets orphans too, but later.
#[derive(Default)]
pub(super) struct Inside {
    /// Signals for a command that wasn't there yet.
    waiting: Cell<KernelSet>,
}

impl Inside {
    pub(super) fn is_there(child: libc::pid_t) -> bool {
        command(child).is_some()
    }

    /// Sends it a signal, now or once it is there.
    pub(super) fn send(&self, child: libc::pid_t, signal: c_int) {
        self.waiting
            .set(self.waiting.get() | signal::kernel_set([signal]));
        self.has_waiting(child);
    }

    /// Sends what waits, if the command is there. Returns whether something still waits.
    pub(super) fn has_waiting(&self, child: libc::pid_t) -> bool {
        let waiting = self.waiting.get();
        if waiting == 0 {
            return false;
        }
        let Some(command) = command(child) else {
            return true;
        };
        // SAFETY: integers only.
        let open = unsafe { libc::syscall(libc::SYS_pidfd_open, command, 0) };
        let open = c_int::try_from(open).unwrap_or(-1);
        // It isn't ours to reap: the number may have become another's since, but not be the command's again.
        let is_it = self::command(child) == Some(command);
        for number in 1..=signal::LAST {
            if !is_it || waiting & signal::kernel_set([number]) == 0 {
                continue;
            }
            if open == -1 {
                // Linux before 5.3.
                // SAFETY: integers only.
                unsafe { libc::kill(command, number) };
            } else {
                let information = std::ptr::null::<libc::siginfo_t>();
                // SAFETY: integers, and no information.
                unsafe {
                    libc::syscall(libc::SYS_pidfd_send_signal, open, number, information, 0);
                }
            }
        }
        if open != -1 {
            // SAFETY: it is ours, and not used again.
            unsafe { libc::close(open) };
        }
        if is_it {
            self.waiting.set(0);
        }
        !is_it
    }
}

/// `None` where it isn't there yet, or any more.
fn command(child: libc::pid_t) -> Option<libc::pid_t> {
    first_child(first_child(child)?)
}

/// The first of the children that `/proc` lists (`proc_pid_children(5)`).
fn first_child(parent: libc::pid_t) -> Option<libc::pid_t> {
    let mut path = [0_u8; 64];
    let mut length = 0;
    let mut add = |bytes: &[u8]| {
        for byte in bytes {
            if let Some(place) = path.get_mut(length) {
                *place = *byte;
                length += 1;
            }
        }
    };
    let mut digits = [0_u8; 12];
    let mut first = digits.len();
    let mut rest = parent.unsigned_abs();
    while rest != 0 && first > 0 {
        first -= 1;
        if let (Some(place), Ok(digit)) = (digits.get_mut(first), u8::try_from(rest % 10)) {
            *place = b'0' + digit;
        }
        rest /= 10;
    }
    let digits = digits.get(first..)?;
    add(b"/proc/");
    add(digits);
    add(b"/task/");
    add(digits);
    add(b"/children\0");
    // SAFETY: the path ends with a NUL.
    let list = unsafe { libc::open(path.as_ptr().cast(), libc::O_RDONLY | libc::O_CLOEXEC) };
    if list == -1 {
        return None;
    }
    let mut text = [0_u8; 16];
    // SAFETY: the buffer is writable.
    let read = unsafe { libc::read(list, text.as_mut_ptr().cast(), text.len()) };
    // SAFETY: it is ours, and not used again.
    unsafe { libc::close(list) };
    let text = text.get(..usize::try_from(read).ok()?)?;
    let mut pid: libc::pid_t = 0;
    for byte in text.iter().take_while(|byte| byte.is_ascii_digit()) {
        pid = pid
            .wrapping_mul(10)
            .wrapping_add(libc::pid_t::from(byte - b'0'));
    }
    (pid > 1).then_some(pid)
}
