use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::SystemTime;

/// Names a session: 128 random bits, shown as 32 hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SessionId(pub [u8; 16]);

impl std::fmt::Display for SessionId {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0
            .iter()
            .try_for_each(|byte| write!(formatter, "{byte:02x}"))
    }
}

impl std::fmt::Debug for SessionId {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "SessionId({self})")
    }
}

/// What is said of a session when it starts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionDescription {
    /// Its id.
    pub id: SessionId,
    /// Free keys and values, set by its owner.
    pub labels: BTreeMap<String, String>,
    /// The directory in which its shell starts.
    pub workdir: PathBuf,
    /// The command that it was started for, program first; empty where that isn't known.
    pub command: Vec<OsString>,
    /// Its sandbox.
    pub sandbox: SandboxReport,
    /// When it began.
    pub started_at: SystemTime,
}

/// The sandbox of a session, and how much of it is in force.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SandboxReport {
    /// Name of the backend, such as `none`.
    pub backend: String,
    /// How much is in force.
    pub enforcement: Enforcement,
    /// Name of the profile that says what it allows; empty where there is none.
    pub profile: String,
    /// What of it isn't enforced, in words.
    pub not_enforced: Vec<String>,
    /// Of what enforces it, such as `landlock 7`; empty where it has none.
    pub version: String,
    /// What no version of the backend holds, in words.
    pub limits: Vec<String>,
    /// What of the profile isn't allowed, because the backend can't allow it without allowing more, in words.
    pub not_granted: Vec<String>,
}

impl SandboxReport {
    /// No sandbox.
    #[must_use]
    pub fn none() -> Self {
        Self {
            backend: "none".to_owned(),
            enforcement: Enforcement::None,
            profile: String::new(),
            not_enforced: Vec::new(),
            version: String::new(),
            limits: Vec::new(),
            not_granted: Vec::new(),
        }
    }
}

/// How much of what was asked of a sandbox is in force.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Enforcement {
    /// All of it.
    Full,
    /// Some of it.
    Partial,
    /// Nothing.
    None,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_id_is_32_hexadecimal_digits() {
        let mut bytes = [0; 16];
        bytes[0] = 0x0a;
        bytes[15] = 0xff;
        assert_eq!(
            SessionId(bytes).to_string(),
            "0a0000000000000000000000000000ff"
        );
    }
}
