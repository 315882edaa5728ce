//! Clocks that aren't the wall's.

use std::time::Duration;

/// The processor time that the calling thread has used, `CLOCK_THREAD_CPUTIME_ID` of `clock_gettime(2)`.
/// Zero where the kernel doesn't tell it, as none does since Linux 2.6.12.
#[must_use]
pub fn thread_time() -> Duration {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: `time` is writable.
    if unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) } != 0 {
        return Duration::ZERO;
    }
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    let nanoseconds = u32::try_from(time.tv_nsec).unwrap_or(0);
    Duration::new(seconds, nanoseconds)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_sleeps_uses_no_time() {
        let before = thread_time();
        let used = || thread_time().saturating_sub(before);
        std::thread::sleep(Duration::from_millis(200));
        assert!(used() < Duration::from_millis(100));
        while used() < Duration::from_millis(1) {}
    }
}
