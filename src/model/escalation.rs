use std::ffi::OsString;

/// What a verdict says of an escalated command besides its confinement.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct EscalationTerms {
    /// What the command gets of the environment.
    pub environment: EnvironmentRules,
    /// Whether the program may be one that the session could have written.
    pub unprotected: Unprotected,
}

/// Whether a program may be escalated that the session could have written.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Unprotected {
    /// It may not.
    #[default]
    Denied,
    /// It may.
    Allowed,
}

/// What an escalated command gets of the environment that was asked for.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct EnvironmentRules {
    /// Names of variables that it gets as they were asked for.
    pub keep: Vec<NamePattern>,
    /// Names of variables that it doesn't get.
    pub unset: Vec<NamePattern>,
    /// Variables that it gets with these values.
    pub set: Vec<(OsString, OsString)>,
}

/// A name of variables, or with a `*` at its end what their names begin with.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct NamePattern(pub Vec<u8>);

impl NamePattern {
    /// All names.
    #[must_use]
    pub fn all() -> Self {
        Self(b"*".to_vec())
    }

    /// Whether it stands for this name.
    #[must_use]
    pub fn matches(&self, name: &[u8]) -> bool {
        match self.0.strip_suffix(b"*") {
            Some(beginning) => name.starts_with(beginning),
            None => self.0 == name,
        }
    }
}

/// How an escalated command's environment differs from what was asked for.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct EnvironmentDifference {
    /// Taken out by default.
    pub removed: Vec<OsString>,
    /// With the gate's own value instead.
    pub reset: Vec<OsString>,
    /// Taken out because the verdict says so.
    pub unset: Vec<OsString>,
    /// As the verdict sets them.
    pub set: Vec<(OsString, OsString)>,
}
