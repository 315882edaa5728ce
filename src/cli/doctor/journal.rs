//! What a doctor finds in a journal.

use std::path::Path;
use std::time::{Duration, SystemTime};

use super::{Finding, Status};
use crate::journal::{Inspection, JournalError};
use crate::sys::file_system::Kind;

const JOURNAL: &str = "journal";

/// With less room than this, in bytes, a journal can't grow to what it may have by default.
const ENOUGH: u64 = 64 << 20;
/// With less than this nothing can be kept.
const LEAST: u64 = 1 << 20;

/// What somebody who runs gates should know of their journal.
pub(super) fn findings(named: &Path) -> Vec<Finding> {
    let shown = named.display();
    match Inspection::of(named) {
        Ok(None) => vec![Finding::good(
            JOURNAL,
            format!("{shown} isn't there yet; the first gate that is to use it makes it"),
        )],
        Ok(Some(inspection)) => {
            let mut findings = vec![
                use_of(&inspection),
                left(&inspection),
                file_system(&inspection),
                room(&inspection),
                memory(&inspection),
            ];
            findings.extend(inspection.unreadable.iter().map(unreadable));
            findings.extend(inspection.set_aside.iter().map(|file| set_aside(file)));
            findings
        }
        Err(error) => vec![Finding::lacking(
            JOURNAL,
            Status::Broken,
            error.to_string(),
            error.advice().unwrap_or("name another directory"),
        )],
    }
}

fn use_of(inspection: &Inspection) -> Finding {
    let gates = match inspection.gates {
        0 => "no gate uses it now".to_owned(),
        1 => "one gate uses it now".to_owned(),
        count => format!("{count} gates use it now"),
    };
    let directory = inspection.directory.display();
    Finding::good(
        JOURNAL,
        format!("{directory}: {gates}; {}", size(inspection.bytes)),
    )
}

fn left(inspection: &Inspection) -> Finding {
    const SUBJECT: &str = "journal events";
    if inspection.left_files == 0 {
        return Finding::good(SUBJECT, "gates that are no more have left nothing");
    }
    let since = inspection
        .left_since
        .and_then(|since| SystemTime::now().duration_since(since).ok())
        .map_or_else(String::new, |age| {
            let age = humantime::format_duration(Duration::from_secs(age.as_secs()));
            format!("; the oldest was last written {age} ago")
        });
    Finding::lacking(
        SUBJECT,
        Status::Weak,
        format!(
            "gates that are no more have left {} events of {} sessions, in {} files{since}",
            inspection.left_events, inspection.left_sessions, inspection.left_files
        ),
        "the next gate that uses the journal delivers them; if they stay, its log says why",
    )
}

fn file_system(inspection: &Inspection) -> Finding {
    const SUBJECT: &str = "journal disk";
    let file_system = inspection.file_system;
    if file_system.is_read_only {
        return Finding::lacking(
            SUBJECT,
            Status::Broken,
            "it is mounted read-only: nothing can be kept",
            "mount it writable, or name a directory elsewhere",
        );
    }
    match file_system.kind {
        Kind::Local => Finding::good(SUBJECT, "a local file system"),
        Kind::Memory => Finding::lacking(
            SUBJECT,
            Status::Weak,
            "in memory: what is kept outlives a gate, but not a restart of the machine",
            "name a directory on a local disk",
        ),
        Kind::Process => Finding::lacking(
            SUBJECT,
            Status::Weak,
            "a file system in user space: whether its locks hold isn't known",
            "name a directory on a local disk",
        ),
        Kind::Network(name) => Finding::lacking(
            SUBJECT,
            Status::Broken,
            format!("a network file system ({name}): gates can't rely on its locks"),
            "name a directory on a local disk",
        ),
    }
}

fn room(inspection: &Inspection) -> Finding {
    const SUBJECT: &str = "journal room";
    let free = inspection.file_system.free;
    let said = format!("{} free", size(free));
    if free >= ENOUGH {
        return Finding::good(SUBJECT, said);
    }
    let status = if free < LEAST {
        Status::Broken
    } else {
        Status::Weak
    };
    Finding::lacking(
        SUBJECT,
        status,
        said,
        "make room, or lower --journal-limit; with --audit strict a full disk denies execs",
    )
}

fn memory(inspection: &Inspection) -> Finding {
    const SUBJECT: &str = "journal memory";
    match &inspection.memory {
        Some(place) => Finding::good(
            SUBJECT,
            format!("what gates tell last outlives them in {}", place.display()),
        ),
        None => Finding::lacking(
            SUBJECT,
            Status::Weak,
            "no file system in memory has room: a kill of a gate can take what it told last",
            "mount a tmpfs at /dev/shm; without it no gate starts with --audit strict",
        ),
    }
}

fn unreadable(error: &JournalError) -> Finding {
    Finding::lacking(
        "journal file",
        Status::Broken,
        format!("what a gate that is no more has left can't be read: {error}"),
        "the next gate that uses the journal sets it aside; see what the disk says",
    )
}

fn set_aside(file: &Path) -> Finding {
    Finding::lacking(
        "journal file",
        Status::Broken,
        format!("{} was set aside: it couldn't be read", file.display()),
        "save what can be saved of it, for example with sqlite3's .recover, and remove it: it counts \
         against --journal-limit",
    )
}

/// Bytes in a unit that fits.
fn size(bytes: u64) -> String {
    const UNITS: [(u64, &str); 3] = [(1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];
    match UNITS.iter().find(|(unit, _)| bytes >= *unit) {
        Some((unit, name)) => format!("{}.{} {name}", bytes / unit, bytes % unit * 10 / unit),
        None => format!("{bytes} bytes"),
    }
}
