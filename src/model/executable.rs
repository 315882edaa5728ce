use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;

/// The program of an exec, as the gate found it before it asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Executable {
    /// This file.
    Found(Arc<ExecutableFile>),
    /// There is none of that name.
    NotThere,
    /// None that could be identified; why, in words.
    Unknown(String),
}

/// An executable file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExecutableFile {
    /// Its absolute path without symbolic links, `.` and `..`.
    pub path: PathBuf,
    /// Which file it is, and which state of it.
    pub version: FileVersion,
    /// Numeric user id of its owner.
    pub owner: u32,
    /// Numeric id of its group.
    pub group: u32,
    /// Permission bits with set-user-id, set-group-id and sticky bit.
    pub mode: u32,
    /// Whether the session could have written it; its interpreter apart.
    pub own_protection: Protection,
    /// SHA-256 of its content, where it was asked for and could be had.
    pub sha256: Option<[u8; 32]>,
    /// What the kernel makes of it.
    pub content: ExecutableContent,
}

/// What the kernel makes of an executable file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ExecutableContent {
    /// It executes the file itself.
    Binary,
    /// It executes an interpreter instead.
    Script(Interpreter),
    /// Nothing: shells take it for a script of their own.
    Text(Interpreter),
}

/// What executes a script.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Interpreter {
    /// As the script names it.
    pub name: OsString,
    /// The argument that it gets before the script's name.
    pub argument: Option<OsString>,
    /// The file; it may be a script itself.
    pub executable: Executable,
}

/// A file at one state of its content, as its filesystem tells.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct FileVersion {
    /// Major and minor number of its device.
    pub device: (u32, u32),
    /// Its number on the device.
    pub inode: u64,
    /// In bytes.
    pub size: u64,
    /// When its content was last written: seconds and nanoseconds since 1970.
    pub modified: (i64, u32),
    /// When its content, owner, mode or names last changed.
    pub changed: (i64, u32),
}

/// Whether a session can write something.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Protection {
    /// It can't.
    Protected,
    /// It can, or it isn't certain that it can't: because of this file or directory.
    Writable(PathBuf),
    /// It can write everything: its user is root, and no sandbox confines it.
    NoBoundary,
}

impl ExecutableFile {
    /// Whether the session could have written what is executed: the file, or its interpreter.
    #[must_use]
    pub fn protection(&self) -> &Protection {
        match (&self.own_protection, self.interpreter()) {
            (Protection::Protected, Some(interpreter)) => match &interpreter.executable {
                Executable::Found(file) => file.protection(),
                // It can't be executed now; what is there later nobody has looked at.
                Executable::NotThere | Executable::Unknown(_) => &self.own_protection,
            },
            (own, _) => own,
        }
    }

    /// What executes it, if it is a script.
    #[must_use]
    pub fn interpreter(&self) -> Option<&Interpreter> {
        match &self.content {
            ExecutableContent::Binary => None,
            ExecutableContent::Script(interpreter) | ExecutableContent::Text(interpreter) => {
                Some(interpreter)
            }
        }
    }

    /// The file and its interpreters, in this order.
    ///
    /// # Errors
    /// The first interpreter that isn't a file that is known.
    pub fn chain(self: &Arc<Self>) -> Result<Vec<Arc<Self>>, Interpreter> {
        let mut chain = vec![Arc::clone(self)];
        while let Some(interpreter) = chain.last().and_then(|last| last.interpreter()) {
            let Executable::Found(file) = &interpreter.executable else {
                return Err(interpreter.clone());
            };
            let file = Arc::clone(file);
            chain.push(file);
        }
        Ok(chain)
    }
}

impl Default for Executable {
    fn default() -> Self {
        Self::Unknown("nobody looked".to_owned())
    }
}
