//! Which processes this one can end.

/// What can be ended of all that an escalated command leaves behind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reach {
    /// Every descendant, whoever's it is.
    All,
    /// Every descendant that isn't another user's: this process lacks `CAP_KILL`, `capabilities(7)`.
    OwnUser,
    /// The command and its process group, for want of `/proc/thread-self/children`: what detaches
    /// from them escapes.
    Group,
}

/// The bit of `CAP_KILL` in a set of capabilities, `linux/capability.h`.
const CAP_KILL: u64 = 1 << 5;

/// What supervisors that this process starts can end.
#[must_use]
pub fn reach() -> Reach {
    if !std::path::Path::new("/proc/thread-self/children").exists() {
        return Reach::Group;
    }
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    match effective_capabilities(&status) {
        Some(capabilities) if capabilities & CAP_KILL != 0 => Reach::All,
        _ => Reach::OwnUser,
    }
}

/// Of `proc_pid_status(5)`.
pub(super) fn effective_capabilities(status: &str) -> Option<u64> {
    let set = status
        .lines()
        .find_map(|line| line.strip_prefix("CapEff:"))?;
    u64::from_str_radix(set.trim(), 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn capabilities_are_read_as_the_kernel_writes_them() {
        let own = std::fs::read_to_string("/proc/self/status").unwrap();
        assert!(effective_capabilities(&own).is_some());
        let status = "Name:\tx\nCapPrm:\t0000000000000000\nCapEff:\t0000000000000020\n";
        assert_eq!(effective_capabilities(status), Some(CAP_KILL));
        assert_eq!(effective_capabilities("CapEff: none"), None);
        assert_eq!(effective_capabilities(""), None);
    }
}
