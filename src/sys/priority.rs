//! How much of the processor a thread gets beside others.

use std::ffi::c_int;
use std::io;

use rustix::process::{getpid, getpriority_process, setpriority_process};

use super::check;

/// How much nicer a thread is than its process: it still gets a fourth of a processor that one other wants.
const STEP: i32 = 5;
const NICEST: i32 = 19;

/// Lets other threads go first, those of this process among them: from now on the calling thread gets less of a
/// processor that others want, and when it wakes it interrupts nobody, `setpriority(2)` and `SCHED_BATCH` of `sched(7)`.
/// Doing so again changes nothing. There is no way back without privileges, so this isn't for threads that are
/// used for other work later.
pub fn give_way() -> io::Result<()> {
    // On Linux a process's priority is that of its first thread, and one without a number the calling thread's.
    let others = getpriority_process(Some(getpid()))?;
    let nice = others.saturating_add(STEP).min(NICEST);
    if getpriority_process(None)? < nice {
        setpriority_process(None, nice)?;
    }
    // SAFETY: the call has no pointers.
    let policy: c_int = check(unsafe { libc::sched_getscheduler(0) })?;
    // Whoever chose another one for the process knows why.
    if policy == libc::SCHED_OTHER {
        // All zeros is what this policy wants, in each C library's form of it.
        // SAFETY: `sched_param` is made of integers.
        let parameters: libc::sched_param = unsafe { std::mem::zeroed() };
        // SAFETY: `parameters` is readable.
        check(unsafe { libc::sched_setscheduler(0, libc::SCHED_BATCH, &raw const parameters) })?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state() -> (i32, c_int) {
        let nice = getpriority_process(None).expect("a priority");
        // SAFETY: the call has no pointers.
        (nice, unsafe { libc::sched_getscheduler(0) })
    }

    #[test]
    fn a_thread_gives_way_once_and_alone() {
        let before = state();
        let (first, second) = std::thread::spawn(|| {
            give_way().expect("given way");
            let first = state();
            give_way().expect("given way");
            (first, state())
        })
        .join()
        .expect("a thread");
        let process = getpriority_process(Some(getpid())).expect("a priority");
        assert_eq!(first.0, (process + STEP).min(NICEST).max(before.0));
        if before.1 == libc::SCHED_OTHER {
            assert_eq!(first.1, libc::SCHED_BATCH);
        }
        assert_eq!(second, first);
        assert_eq!(state(), before);
    }
}
