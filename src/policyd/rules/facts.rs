use std::collections::BTreeMap;

use crate::model::{Enforcement, ExecId, ProcessIdentity};
use crate::pb::v1;
use crate::policyd::identity::GateIdentity;

/// What rules may know of one exec. Bytes are as the gate sent them.
#[derive(Debug, Clone)]
pub struct ExecFacts<'a> {
    /// Its id.
    pub id: ExecId,
    /// The program, as [`InterceptedExec::file`](crate::model::InterceptedExec::file).
    pub file: &'a [u8],
    /// Arguments, beginning with argument zero, which proves nothing about the program.
    pub argv: Vec<&'a [u8]>,
    /// Working directory, as the process states it.
    pub workdir: &'a [u8],
    /// Names of the environment variables.
    pub environment_names: Vec<&'a [u8]>,
    /// Values that were asked for and that the gate's owner allows, in the order of the environment.
    pub environment: Vec<EnvironmentFact<'a>>,
    /// Positions in `argv` of what isn't as the process gave it.
    pub redacted_arguments: &'a [u32],
    /// The file of the program, where the gate is.
    pub executable: Option<&'a v1::ExecutableInfo>,
    /// Whether the session can write to the working directory.
    pub workdir_protection: v1::Protection,
    /// The process that asks.
    pub process: ProcessIdentity,
    /// The exec that this one descends from, where known.
    pub parent: Option<ExecId>,
    /// The session.
    pub session: &'a SessionFacts,
}

/// A variable of an exec's environment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EnvironmentFact<'a> {
    /// Its name.
    pub name: &'a [u8],
    /// Its value.
    pub value: &'a [u8],
    /// Whether the gate's owner has had parts of it replaced.
    pub is_redacted: bool,
}

/// What rules may know of a session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionFacts {
    /// Its id: 32 hexadecimal digits.
    pub id: String,
    /// The gate that it is of, as its credential proves it.
    pub gate: GateIdentity,
    /// Free keys and values, set by its owner.
    pub labels: BTreeMap<String, String>,
    /// Name of the gate's host, as the gate states it.
    pub hostname: String,
    /// The user that its processes run as.
    pub user: UserFacts,
    /// The directory in which its shell started.
    pub workdir: Vec<u8>,
    /// The command that it was started for; empty where that isn't known.
    pub command: Vec<Vec<u8>>,
    /// Name of the sandbox backend.
    pub sandbox: String,
    /// How much of the sandbox is in force.
    pub enforcement: Enforcement,
    /// Name of the sandbox's profile; empty where there is none.
    pub profile: String,
    /// What of it isn't in force, in words.
    pub not_enforced: Vec<String>,
    /// What enforces it, with its version.
    pub sandbox_version: String,
    /// What no version of the backend holds, in words.
    pub sandbox_limits: Vec<String>,
    /// What of the profile isn't allowed, because the backend can't allow it without allowing more, in words.
    pub not_granted: Vec<String>,
}

impl SessionFacts {
    /// What was said of the sandbox.
    pub(crate) fn sandbox_info(&self) -> v1::SandboxInfo {
        let enforcement = match self.enforcement {
            Enforcement::Full => v1::Enforcement::Full,
            Enforcement::Partial => v1::Enforcement::Partial,
            Enforcement::None => v1::Enforcement::None,
        };
        v1::SandboxInfo {
            backend: self.sandbox.clone(),
            enforcement: enforcement.into(),
            profile: self.profile.clone(),
            unenforced_parts: self.not_enforced.clone(),
            version: self.sandbox_version.clone(),
            limits: self.sandbox_limits.clone(),
            ungranted_parts: self.not_granted.clone(),
        }
    }
}

/// A user of the gate's host.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct UserFacts {
    /// Numeric user id.
    pub uid: u32,
    /// Numeric group id.
    pub gid: u32,
    /// Name; empty where the host has none.
    pub name: String,
}

impl Default for SessionFacts {
    fn default() -> Self {
        Self {
            id: "0".repeat(32),
            gate: GateIdentity::anonymous(),
            labels: BTreeMap::new(),
            hostname: String::new(),
            user: UserFacts::default(),
            workdir: Vec::new(),
            command: Vec::new(),
            sandbox: String::new(),
            // What isn't known to be in force isn't.
            enforcement: Enforcement::None,
            profile: String::new(),
            not_enforced: Vec::new(),
            sandbox_version: String::new(),
            sandbox_limits: Vec::new(),
            not_granted: Vec::new(),
        }
    }
}
