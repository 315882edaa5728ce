use serde::{Deserialize, Serialize};

use super::refusal::Refusal;

/// What a wrapper sends for an escalated command, with as many descriptors.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SuperExecMessage {
    /// The numbers that the descriptors belong at, in their order.
    pub fds: Vec<i32>,
    /// What else the command inherits. A server that doesn't know it passes over it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub context: Option<CommandContext>,
}

/// What a command inherits besides descriptors and environment; numbers as on the wrapper's host.
#[allow(
    clippy::struct_excessive_bools,
    reason = "each is a field of the message"
)]
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct CommandContext {
    /// File mode creation mask.
    pub umask: Option<u32>,
    /// Nice value.
    pub nice: Option<i32>,
    /// Resource, soft and hard limit.
    pub limits: Vec<(u32, u64, u64)>,
    /// Signals that are ignored.
    pub ignored_signals: Vec<i32>,
    /// Signals that are blocked.
    pub blocked_signals: Vec<i32>,
    /// Whether a frame follows at once that carries the working directory as its one descriptor.
    pub workdir_follows: bool,
    /// Whether the wrapper reads a [`Notice`].
    pub notices: bool,
    /// Processors that it may run on, as bits in words from the lowest on.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub cpus: Vec<u64>,
    /// Scheduling policy.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scheduler: Option<i32>,
    /// Class and level of priority for input and output.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub io_priority: Option<i32>,
    /// In nanoseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timer_slack: Option<u64>,
    /// Adjustment for the out-of-memory killer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub oom_score_adj: Option<i32>,
    /// Bits of what goes into a core dump.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub core_dump_filter: Option<u32>,
    /// Execution domain.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub personality: Option<u32>,
    /// Whether executing a program can grant nothing.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub no_new_privileges: bool,
    /// Whether the wrapper reads a [`Refusal`], and goes on itself with a script that has no `#!`.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub refusals: bool,
}

/// What a wrapper may send after [`SuperExecMessage`].
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Forward {
    /// A signal for the command.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub signal: Option<i32>,
    /// Whether the kernel sent the signal, as for a terminal's keys: it then has reached a command
    /// that shares the wrapper's process group already.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub from_terminal: Option<bool>,
    /// Set in the frame that carries the working directory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub workdir: Option<bool>,
}

/// How an escalated command ended.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SuperExecResult {
    /// Its exit code; 127 where it has none of its own.
    pub exit_code: i32,
    /// The signal that killed it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signal: Option<i32>,
    /// Whether it left a core dump then.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub core_dumped: bool,
    /// Why it never started, in words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<String>,
    /// Where that is because the program couldn't be executed, all that a shell would say it by.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refusal: Option<Refusal>,
}

/// What a server tells of a command that goes on, to a wrapper that asked for it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Notice {
    /// The command was stopped by this signal.
    pub stopped: i32,
    /// When, in nanoseconds of the system's monotonic clock. A wrapper that was made to go on since
    /// must not stop: the command goes on as well.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at: Option<u64>,
}
