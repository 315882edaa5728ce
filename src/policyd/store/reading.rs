//! Opens the store for reading, also while it is written, and also where nothing can be written.
//!
//! To read a database with a log of writes, SQLite makes two files beside it. Where it can't, because the file
//! system is read-only or the directory is another user's, the database is taken for one that nobody changes: then
//! it needs none. Events that are only in the log would be missing, so that is done without such events alone.

use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rusqlite::{Connection, ErrorCode, OpenFlags};

use super::error::StoreError;
use super::{place, schema};
use crate::policyd::revision::hexadecimal;

/// Opens the store for reading, also while it is written.
///
/// # Errors
/// When there is none, or it can't be read.
pub fn open_for_reading(directory: &Path) -> Result<Connection, StoreError> {
    open(directory).map(|(connection, _)| connection)
}

/// Opens it, and tells by which URI.
pub(super) fn open(directory: &Path) -> Result<(Connection, String), StoreError> {
    let path = schema::file_in(directory);
    match path.metadata() {
        Ok(found) if found.is_file() => {}
        Err(source) if source.kind() == std::io::ErrorKind::PermissionDenied => {
            return Err(StoreError::Closed { path, source });
        }
        _ => return Err(StoreError::Missing { path }),
    }
    let uri = uri(&path);
    let changing = format!("{uri}?mode=ro");
    match open_by(&changing, &path) {
        Ok(connection) => Ok((connection, changing)),
        Err(StoreError::Open { source, .. }) if is_for_want_of_writing(&source) => {
            let log = place::beside(&path, "-wal");
            if log.metadata().is_ok_and(|found| found.len() > 0) {
                return Err(StoreError::Unmerged { path, log, source });
            }
            let still = format!("{uri}?immutable=1");
            open_by(&still, &path).map(|connection| (connection, still))
        }
        Err(error) => Err(error),
    }
}

fn is_for_want_of_writing(error: &rusqlite::Error) -> bool {
    matches!(
        error.sqlite_error_code(),
        Some(ErrorCode::CannotOpen | ErrorCode::ReadOnly)
    )
}

fn open_by(uri: &str, path: &Path) -> Result<Connection, StoreError> {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY
        | OpenFlags::SQLITE_OPEN_URI
        | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let open_error = |source| StoreError::Open {
        path: path.to_owned(),
        source,
    };
    let connection = Connection::open_with_flags(uri, flags).map_err(open_error)?;
    connection
        .busy_timeout(schema::BUSY_TIME)
        .map_err(open_error)?;
    let snapshot = connection.unchecked_transaction().map_err(open_error)?;
    schema::check_for_reading(&snapshot, path)?;
    drop(snapshot);
    Ok(connection)
}

fn uri(path: &Path) -> String {
    let mut uri = "file:".to_owned();
    if path.is_absolute() {
        // No host: what begins with two slashes would have one.
        uri.push_str("//");
    }
    for byte in path.as_os_str().as_bytes() {
        if byte.is_ascii_alphanumeric() || b"/-_.".contains(byte) {
            uri.push(char::from(*byte));
        } else {
            uri.push('%');
            uri.push_str(&hexadecimal(&[*byte]));
        }
    }
    uri
}
