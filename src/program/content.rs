//! What is in an executable file: its first bytes, and their digest.

use std::collections::HashMap;
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::FileExt;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use sha2::{Digest as _, Sha256};

use super::version;
use crate::model::FileVersion;
use crate::sys::place::Place;

/// How much of a file the kernel looks at (`BINPRM_BUF_SIZE`).
const BEGINNING: usize = 256;

/// The largest file that is digested or copied, in bytes.
pub const LARGEST: u64 = 256 << 20;

/// The most digests that are kept.
const MOST_DIGESTS: usize = 4096;

const PIECE: usize = 256 << 10;

/// What the kernel makes of a file.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Binary,
    Script {
        name: OsString,
        argument: Option<OsString>,
    },
    Text,
}

pub(super) fn kind(file: &File) -> io::Result<Kind> {
    let mut beginning = [0; BEGINNING];
    let mut length = 0;
    while length < BEGINNING {
        match file.read_at(&mut beginning[length..], length as u64) {
            Ok(0) => break,
            Ok(count) => length += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(kind_of(&beginning[..length]))
}

/// As the kernel reads a `#!` line (`fs/binfmt_script.c`), and shells what it doesn't execute.
fn kind_of(beginning: &[u8]) -> Kind {
    let is_blank = |byte: &u8| matches!(byte, b' ' | b'\t');
    if let Some(line) = beginning.strip_prefix(b"#!") {
        let end = line.iter().position(|byte| *byte == b'\n');
        let whole = end.is_some() || beginning.len() < BEGINNING;
        let line = &line[..end.unwrap_or(line.len())];
        let from = line.iter().position(|byte| !is_blank(byte));
        let line = &line[from.unwrap_or(line.len())..];
        let to = line.iter().position(|byte| is_blank(byte) || *byte == 0);
        let (name, rest) = line.split_at(to.unwrap_or(line.len()));
        // A name that isn't there whole is no name.
        if !name.is_empty() && (whole || to.is_some()) {
            let from = rest.iter().position(|byte| !is_blank(byte));
            let to = rest.iter().rposition(|byte| !is_blank(byte));
            let argument = match (from, to) {
                (Some(from), Some(to)) => &rest[from..=to],
                _ => &[],
            };
            let argument = argument.split(|byte| *byte == 0).next().unwrap_or_default();
            return Kind::Script {
                name: OsString::from_vec(name.to_vec()),
                argument: (!argument.is_empty()).then(|| OsString::from_vec(argument.to_vec())),
            };
        }
    }
    let mut lines = beginning.split(|byte| *byte == b'\n');
    if lines.next().is_some_and(|first| first.contains(&0)) {
        Kind::Binary
    } else {
        Kind::Text
    }
}

/// Digests of files at the state that they were computed for.
#[derive(Debug, Default)]
pub struct Digests(Mutex<HashMap<FileVersion, [u8; 32]>>);

impl Digests {
    /// The digest of `file`, which is at `place` and was in this state. `None` where it has changed since, is
    /// too large, can't be read or takes too long.
    pub(super) fn of(
        &self,
        file: &File,
        at: FileVersion,
        place: &Place,
        until: Instant,
    ) -> Option<[u8; 32]> {
        if let Some(digest) = self.lock().get(&at) {
            return Some(*digest);
        }
        let digest = digest(file, LARGEST, |_| {
            if Instant::now() < until {
                Ok(())
            } else {
                Err(io::ErrorKind::TimedOut.into())
            }
        })
        .ok()?;
        if version(&place.status().ok()?) != at {
            return None;
        }
        let mut digests = self.lock();
        if digests.len() >= MOST_DIGESTS {
            // What is still of use is there again soon.
            digests.clear();
        }
        digests.insert(at, digest);
        Some(digest)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<FileVersion, [u8; 32]>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Reads all of a file of `most` bytes at the most, and gives each piece to `take`. It may grow meanwhile.
pub(super) fn digest(
    mut file: &File,
    most: u64,
    mut take: impl FnMut(&[u8]) -> io::Result<()>,
) -> io::Result<[u8; 32]> {
    let mut sha256 = Sha256::new();
    let mut piece = vec![0; PIECE];
    let mut total = 0;
    loop {
        let count = match file.read(&mut piece) {
            Ok(0) => return Ok(sha256.finalize().into()),
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        total += count as u64;
        if total > most {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        sha256.update(&piece[..count]);
        take(&piece[..count])?;
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::time::Duration;

    use super::super::{WritablePlaces, Writer, find};
    use super::*;
    use crate::sys::place::rights;

    fn place(path: &Path) -> Place {
        let writer = Writer::new(&rights(), WritablePlaces::Everywhere);
        find::file(path, &writer).unwrap().place
    }

    #[test]
    fn a_first_line_is_read_as_the_kernel_does() {
        let script = |name: &str, argument: Option<&str>| Kind::Script {
            name: name.into(),
            argument: argument.map(Into::into),
        };
        let long = format!("#!/{}", "x".repeat(300));
        let rows: [(&[u8], Kind); 11] = [
            (b"#!/bin/sh\n", script("/bin/sh", None)),
            (b"#! \t/bin/sh", script("/bin/sh", None)),
            (
                b"#!/usr/bin/env  -S a b \t\nx",
                script("/usr/bin/env", Some("-S a b")),
            ),
            (b"#!bin/x -e\n", script("bin/x", Some("-e"))),
            (b"#!\n", Kind::Text),
            (b"#!  \nx", Kind::Text),
            (long.as_bytes(), Kind::Text),
            (b"echo\n\0", Kind::Text),
            (b"", Kind::Text),
            (b"\x7fELF\x02\0\0", Kind::Binary),
            (b"#!/bin/sh\0x y\n", script("/bin/sh", None)),
        ];
        for (beginning, kind) in rows {
            let beginning = &beginning[..beginning.len().min(BEGINNING)];
            assert_eq!(kind_of(beginning), kind, "{beginning:?}");
        }
    }

    #[test]
    fn a_digest_is_that_of_the_content_and_is_kept_by_state() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        std::fs::write(&path, "abc").unwrap();
        let place = place(&path);
        let state = || version(&place.status().unwrap());
        let digests = Digests::default();
        let [in_time, late] = [3600, 0].map(|rest| Instant::now() + Duration::from_secs(rest));
        let of = |at, until| digests.of(&place.read().unwrap(), at, &place, until);
        let first = state();
        assert_eq!(of(first, late), None);
        let digest = of(first, in_time).unwrap();
        // FIPS 180-2, appendix B.1.
        assert_eq!(digest[..4], [0xba, 0x78, 0x16, 0xbf]);
        // There is no time to read it again.
        assert_eq!(of(first, late), Some(digest));
        std::fs::write(&path, "longer").unwrap();
        assert_eq!(of(state(), late), None);
        // What is read now was never in that state.
        let never = FileVersion { size: 1, ..first };
        assert_eq!(of(never, in_time), None);
        assert_eq!(of(never, late), None);
        let other = of(state(), in_time).unwrap();
        assert_ne!(other, digest);
        assert_eq!(of(state(), late), Some(other));
    }

    #[test]
    fn digests_that_are_kept_are_bounded() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        std::fs::write(&path, "abc").unwrap();
        let place = place(&path);
        let digests = Digests::default();
        let at = version(&place.status().unwrap());
        let states = (0..=MOST_DIGESTS as u64).map(|size| FileVersion { size, ..at });
        let others = states.filter(|other| *other != at);
        digests.lock().extend(others.map(|other| (other, [0; 32])));
        assert_eq!(digests.lock().len(), MOST_DIGESTS);
        let until = Instant::now() + Duration::from_secs(3600);
        let digest = digests.of(&place.read().unwrap(), at, &place, until);
        assert!(digest.is_some());
        assert!(digests.lock().len() <= MOST_DIGESTS);
    }

    #[test]
    fn a_file_that_never_ends_is_read_no_further_than_it_may_be() {
        let endless = File::open("/dev/zero").unwrap();
        let mut taken = 0;
        let most = 3 * PIECE as u64;
        let read = digest(&endless, most, |piece| {
            taken += piece.len() as u64;
            // Else it would go on.
            assert!(taken <= most);
            Ok(())
        });
        assert_eq!(read.unwrap_err().kind(), io::ErrorKind::FileTooLarge);
    }
}
