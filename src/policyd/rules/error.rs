use std::path::PathBuf;

/// Why a rules file can't be used. Each says where, what, and what to do.
#[derive(Debug, thiserror::Error)]
pub enum RulesError {
    /// The file can't be read.
    #[error("reading the rules file {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The path leads to something else than a file.
    #[error("reading the rules file {}: it isn't a regular file", path.display())]
    NotAFile {
        /// The path.
        path: PathBuf,
    },
    /// The file is larger than rules may be.
    #[error(
        "reading the rules file {}: it is larger than {limit} bytes; split off what isn't rules, or \
         say more with fewer by lists of alternatives",
        path.display()
    )]
    TooLarge {
        /// The file.
        path: PathBuf,
        /// The bound, in bytes.
        limit: u64,
    },
    /// A directory holds no rules.
    #[error(
        "reading the rules in {}: there is no file whose name ends with .rules or .rules.star in that directory",
        path.display()
    )]
    NoFiles {
        /// The directory.
        path: PathBuf,
    },
    /// There are more files than there may be, or they are larger together.
    #[error(
        "reading the rules: there are more than {files} files, or they are larger than {bytes} bytes together"
    )]
    TooMany {
        /// Most files.
        files: usize,
        /// Most bytes.
        bytes: u64,
    },
    /// The file isn't UTF-8.
    #[error("{file}:{line}: the file isn't UTF-8; save it as UTF-8")]
    NotText {
        /// The file's name.
        file: String,
        /// Line of the first byte that isn't.
        line: usize,
    },
    /// The file's language or rules are wrong.
    #[error("{file}:{line}:{column}: {what}")]
    Invalid {
        /// The file's name.
        file: String,
        /// Line, from 1.
        line: usize,
        /// Column, from 1.
        column: usize,
        /// What is wrong, and what to do.
        what: String,
    },
    /// The thread that loads rules couldn't be started.
    #[error("starting a thread to load the rules: {source}")]
    Thread {
        /// Why.
        source: std::io::Error,
    },
    /// The interpreter failed in a way that it shouldn't.
    #[error("{file}: the interpreter failed while it loaded the file; please report this")]
    Interpreter {
        /// The file's name.
        file: String,
    },
}
