//! A name followed step by step, as the kernel follows it (`path_resolution(7)`), and judged at each.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use super::writer::{Judge, Writer, is_of_proc};
use crate::model::Protection;
use crate::sys::place::{Place, Status};

/// The longest name, `PATH_MAX`.
const LONGEST: usize = 4096;
/// The most links that one name leads through, as the kernel has it (`MAXSYMLINKS`).
const MOST_LINKS: usize = 40;
/// The most steps, links' own included.
const MOST_STEPS: usize = 4096;

/// What a name leads to.
pub(super) struct Found {
    pub(super) place: Place,
    pub(super) status: Status,
    /// Without links.
    pub(super) path: PathBuf,
    /// Whether another file could be made to stand there, or this one be written.
    pub(super) protection: Protection,
}

/// The file that an absolute name leads to.
pub(super) fn file(path: &Path, writer: &Writer) -> io::Result<Found> {
    let mut judge = Judge::new(writer);
    let (place, status, path) = walk(path, &mut judge)?;
    judge.itself(&path, &place, &status);
    Ok(Found {
        place,
        status,
        path,
        protection: judge.protection(),
    })
}

/// Whether what is in the directory of an absolute name can be written, or another directory be made to
/// stand there.
pub(super) fn directory(path: &Path, writer: &Writer) -> io::Result<Protection> {
    file(path, writer).map(|found| found.protection)
}

fn walk(path: &Path, judge: &mut Judge<'_>) -> io::Result<(Place, Status, PathBuf)> {
    let mut here = Place::root()?;
    let mut status = here.status()?;
    let mut way = PathBuf::from("/");
    let mut rest = Vec::new();
    push(&mut rest, path)?;
    let (mut links, mut steps) = (0, 0);
    while let Some(name) = rest.pop() {
        steps += 1;
        if steps > MOST_STEPS {
            return Err(too_many_links());
        }
        if !status.is_directory() {
            return Err(io::ErrorKind::NotADirectory.into());
        }
        match name.as_bytes() {
            b"" | b"." => continue,
            b".." => {
                if way.pop() {
                    here = here.entry(OsStr::new(".."))?;
                    status = here.status()?;
                }
                continue;
            }
            _ => {}
        }
        let next = here.entry(&name)?;
        let found = next.status()?;
        judge.entry(&way, (&here, &status), &found);
        if found.is_link() {
            links += 1;
            if links > MOST_LINKS {
                return Err(too_many_links());
            }
            if is_of_proc(&next)? {
                return Err(io::Error::other("its name leads through a link of /proc"));
            }
            let target = next.target()?;
            push(&mut rest, &target)?;
            if target.is_absolute() {
                here = Place::root()?;
                status = here.status()?;
                way = PathBuf::from("/");
            }
        } else {
            way.push(&name);
            (here, status) = (next, found);
        }
    }
    Ok((here, status, way))
}

/// Puts the parts of a name in front of the rest, which has its next part last.
fn push(rest: &mut Vec<OsString>, path: &Path) -> io::Result<()> {
    let bytes = path.as_os_str().as_bytes();
    if bytes.is_empty() {
        return Err(io::ErrorKind::NotFound.into());
    }
    if bytes.len() >= LONGEST {
        return Err(io::Error::other("its name is longer than any can be"));
    }
    let parts = bytes.split(|byte| *byte == b'/').rev();
    rest.extend(parts.map(|part| OsString::from_vec(part.to_vec())));
    Ok(())
}

fn too_many_links() -> io::Error {
    io::Error::other("its name leads through too many links")
}
