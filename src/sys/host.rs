//! What this host and user are called.

use std::ffi::{CStr, c_char};

/// `uname(2)`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Host {
    /// Name of the host.
    pub name: String,
    /// Operating system, release and machine, such as `Linux 6.18.0 x86_64`.
    pub platform: String,
}

/// What the kernel says of this host; empty where it says nothing.
#[must_use]
pub fn host() -> Host {
    // SAFETY: all zeroes is a valid value.
    let mut names: libc::utsname = unsafe { std::mem::zeroed() };
    // SAFETY: `names` is writable.
    if unsafe { libc::uname(&raw mut names) } != 0 {
        return Host::default();
    }
    let text = |field: &[c_char]| {
        let bytes: Vec<u8> = field
            .iter()
            .map(|byte| byte.cast_unsigned())
            .take_while(|byte| *byte != 0)
            .collect();
        String::from_utf8_lossy(&bytes).into_owned()
    };
    Host {
        name: text(&names.nodename),
        platform: format!(
            "{} {} {}",
            text(&names.sysname),
            text(&names.release),
            text(&names.machine)
        ),
    }
}

/// The user that this process runs as.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct User {
    /// Effective user id.
    pub id: u32,
    /// Effective group id.
    pub group_id: u32,
    /// What the host calls the user; empty where it has no name.
    pub name: String,
}

/// The user that this process runs as.
#[must_use]
pub fn user() -> User {
    // SAFETY: it has no arguments and can't fail.
    let id = unsafe { libc::geteuid() };
    // SAFETY: as above.
    let group_id = unsafe { libc::getegid() };
    User {
        id,
        group_id,
        name: user_name(id).unwrap_or_default(),
    }
}

fn user_name(id: u32) -> Option<String> {
    // SAFETY: all zeroes is a valid value.
    let mut entry: libc::passwd = unsafe { std::mem::zeroed() };
    let mut strings = vec![0; 16 << 10];
    let mut found = std::ptr::null_mut();
    // SAFETY: everything is writable, and `strings` for its length.
    let result = unsafe {
        libc::getpwuid_r(
            id,
            &raw mut entry,
            strings.as_mut_ptr(),
            strings.len(),
            &raw mut found,
        )
    };
    if result != 0 || found.is_null() {
        return None;
    }
    // SAFETY: it was found, so its name is a string in `strings`.
    let name = unsafe { CStr::from_ptr(entry.pw_name) };
    Some(name.to_string_lossy().into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_host_and_its_user_have_names() {
        let host = host();
        assert!(host.platform.starts_with("Linux "), "{host:?}");
        assert_eq!(user_name(0).as_deref(), Some("root"));
        assert_eq!(user_name(u32::MAX - 5), None);
    }
}
