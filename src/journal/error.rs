use std::io;
use std::path::PathBuf;

/// Why a journal can't be used.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    /// It isn't there and can't be made.
    #[error("creating the journal's directory {path}: {source}")]
    Create {
        /// The directory.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// Something else has its name.
    #[error("{path} is {found}, and a journal needs a directory")]
    NoDirectory {
        /// What was named.
        path: PathBuf,
        /// What it is.
        found: &'static str,
    },
    /// It is somebody else's.
    #[error("{path} belongs to user {owner}, and this gate runs as user {user}")]
    Foreign {
        /// The directory.
        path: PathBuf,
        /// User id of its owner.
        owner: u32,
        /// User id of the gate.
        user: u32,
    },
    /// Other users may look into it or change it.
    #[error("{path} is open to other users (mode {mode:04o}), and commands stand in a journal")]
    Exposed {
        /// The directory.
        path: PathBuf,
        /// Its permissions.
        mode: u32,
    },
    /// A call to the system failed.
    #[error("{path}: {source}")]
    System {
        /// Directory or file.
        path: PathBuf,
        /// What failed.
        source: io::Error,
    },
    /// The database failed.
    #[error("{path}: {source}")]
    Database {
        /// The file.
        path: PathBuf,
        /// What failed.
        source: rusqlite::Error,
    },
    /// It is no journal's file.
    #[error("{path} is no journal of this version of execgate")]
    Unknown {
        /// The file.
        path: PathBuf,
    },
    /// There is no thread for it.
    #[error("starting the journal's thread: {0}")]
    Thread(io::Error),
}

impl JournalError {
    /// What to do about it, where that is known.
    #[must_use]
    pub fn advice(&self) -> Option<&'static str> {
        match self {
            Self::Exposed { .. } => Some("chmod 700 it, if nobody else has put something there"),
            Self::Foreign { .. } | Self::NoDirectory { .. } => {
                Some("name a directory of the gate's own user; it is made if it isn't there")
            }
            Self::Create { .. } | Self::System { .. } | Self::Database { .. } => {
                Some("see to it that the gate's user can write there, and that there is room")
            }
            Self::Unknown { .. } | Self::Thread(_) => None,
        }
    }

    /// Whether somebody has to change something, as opposed to a disk that is full or broken.
    #[must_use]
    pub fn is_misuse(&self) -> bool {
        matches!(
            self,
            Self::NoDirectory { .. } | Self::Foreign { .. } | Self::Exposed { .. }
        )
    }
}
