use std::ffi::OsString;
use std::path::PathBuf;
use std::time::SystemTime;

use super::{Executable, Protection};

/// Names an exec within its session; greater for each that follows, never 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ExecId(pub u64);

impl std::fmt::Display for ExecId {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(formatter)
    }
}

/// One exec that waits for its verdict.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InterceptedExec {
    /// Its id.
    pub id: ExecId,
    /// The program: absolute. A relative one was joined to `workdir`, and nothing else changed:
    /// `..` and symbolic links are as the process gave them.
    pub file: PathBuf,
    /// Arguments, beginning with argument zero, which proves nothing about the program. May be empty.
    pub argv: Vec<OsString>,
    /// Working directory of the process: absolute, as the process states it.
    pub workdir: PathBuf,
    /// The environment that the command would get.
    pub env: Environment,
    /// The process that asks.
    pub process: ProcessIdentity,
    /// The exec that this one descends from, where known.
    pub parent: Option<ExecId>,
    /// When the question reached the gate.
    pub asked_at: SystemTime,
    /// The file that `file` leads to where the gate is.
    pub executable: Executable,
    /// Whether the session can write to `workdir`; `None` where that isn't known.
    pub workdir_protection: Option<Protection>,
}

/// An environment as the kernel has it: entries in order, each usually `NAME=value`, which may repeat.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Environment(pub Vec<OsString>);

impl Environment {
    /// The part of each entry before its first `=` (all of it where there is none), in order.
    pub fn names(&self) -> impl Iterator<Item = &[u8]> {
        use std::os::unix::ffi::OsStrExt;
        self.0.iter().map(|entry| {
            let bytes = entry.as_bytes();
            // A name may itself begin with `=`; the separator is looked for behind it.
            match bytes.iter().skip(1).position(|byte| *byte == b'=') {
                Some(position) => &bytes[..=position],
                None => bytes,
            }
        })
    }
}

/// A process, as the gate's kernel sees it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ProcessIdentity {
    /// Process id in the gate's namespace; 0 where the kernel gives none.
    pub pid: u32,
    /// Process id of its parent; 0 where that isn't known.
    pub parent_pid: u32,
    /// User id.
    pub uid: u32,
    /// Group id.
    pub gid: u32,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_end_at_the_first_equals_sign_behind_the_name() {
        let environment = Environment(
            ["HOME=/root", "A=b=c", "BARE", "=odd=value", ""]
                .map(OsString::from)
                .to_vec(),
        );
        let names: Vec<_> = environment.names().collect();
        assert_eq!(names, [&b"HOME"[..], b"A", b"BARE", b"=odd", b""]);
    }
}
