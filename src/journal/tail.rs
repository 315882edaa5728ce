use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use prost::bytes::Bytes;

use super::lock;
use crate::model::SessionId;
use crate::sys::file_system::{self, Kind};
use crate::sys::host;

/// What a half begins with: its name, and the version of all that follows.
pub(super) const MARK: [u8; 8] = *b"EXGTAIL\x01";
/// How much of it is the name.
const NAME: usize = 7;

/// Before each body: how long that is, what it is, its session and sequence; a checksum of it, and one of
/// all that is before that.
const HEADER: usize = 4 + 1 + 16 + 8 + 4 + 4;

/// Memory that a half has ahead of what is written, in bytes: what execs that have been asked about still have
/// to tell finds its room there, whatever else fills the file system.
const AHEAD: u64 = 64 << 10;
/// With more than this in a half no exec is to be admitted.
const STRAINED: u64 = 16 << 20;
/// Most bytes of a half.
const MOST: u64 = 24 << 20;

/// A buffer that has become longer isn't kept.
const LONG_BUFFER: usize = 1 << 20;

/// What was told last, and isn't in the gate's file yet, in memory that outlives the process: two files in a
/// file system that has no disk.
///
/// One half takes what is told. The other, which took it before, is emptied when the journal's file has all
/// of it.
#[derive(Debug)]
pub(super) struct Tail {
    halves: [Half; 2],
    inner: Mutex<Inner>,
    is_strained: AtomicBool,
}

#[derive(Debug)]
struct Half {
    file: File,
    path: PathBuf,
}

#[derive(Debug, Default)]
struct Inner {
    /// The half that takes what is told.
    active: usize,
    filled: [Filled; 2],
    buffer: Vec<u8>,
}

#[derive(Debug, Default)]
struct Filled {
    length: u64,
    /// How far the file has its memory.
    allocated: u64,
    /// What of it the journal's file has to have before it can go: each session, and how far.
    unseen: Vec<(SessionId, u64)>,
}

/// What a record is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum What {
    /// A session begins: its first event. The sequence is 0.
    Opening,
    Event,
    /// A session's end.
    LastEvent,
}

impl What {
    fn number(self) -> u8 {
        match self {
            Self::Opening => 1,
            Self::Event => 2,
            Self::LastEvent => 3,
        }
    }

    fn numbered(number: u8) -> Option<Self> {
        [Self::Opening, Self::Event, Self::LastEvent]
            .into_iter()
            .find(|what| what.number() == number)
    }
}

/// Whether something outlives the process from now on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outlives {
    /// A kill of the gate doesn't take it.
    Kill,
    /// It is in the gate's own memory alone, until the journal's thread has written it.
    Nothing,
}

/// What a dead gate has left.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Record {
    pub(super) what: What,
    pub(super) session: SessionId,
    pub(super) sequence: u64,
    pub(super) body: Bytes,
}

/// Why what a dead gate has left can't be used, or not all of it.
#[derive(Debug, thiserror::Error)]
pub(super) enum Unread {
    #[error("{path}: {source}")]
    System { path: PathBuf, source: io::Error },
    #[error("{path} is of another version of execgate")]
    Version { path: PathBuf },
    #[error("{path} has been damaged, at byte {at}")]
    Damaged { path: PathBuf, at: usize },
}

impl Tail {
    /// Makes the tail of a new gate, in the first place where there is memory for it.
    pub(super) fn create(places: &[PathBuf], number: &str) -> io::Result<Self> {
        let mut failure = io::Error::other("there is no file system in memory, such as /dev/shm");
        for place in places {
            match Self::create_in(place, number) {
                Ok(tail) => return Ok(tail),
                Err(error) => {
                    failure = io::Error::new(error.kind(), format!("{}: {error}", place.display()));
                }
            }
        }
        Err(failure)
    }

    fn create_in(place: &Path, number: &str) -> io::Result<Self> {
        let create = |half| -> io::Result<Half> {
            let path = path(place, number, half);
            let file = File::options()
                .read(true)
                .write(true)
                .create_new(true)
                .mode(0o600)
                .open(&path)?;
            Ok(Half { file, path })
        };
        let first = create(0)?;
        let second = create(1).inspect_err(|_| first.remove())?;
        let tail = Self {
            halves: [first, second],
            inner: Mutex::default(),
            is_strained: AtomicBool::new(false),
        };
        for (half, filled) in tail.halves.iter().zip(&mut lock(&tail.inner).filled) {
            if let Err(error) = half.allocate(filled, AHEAD) {
                tail.remove();
                return Err(error);
            }
        }
        Ok(tail)
    }

    /// Adds a record. Waits for no disk: what is written is in memory, and stays there.
    pub(super) fn put(
        &self,
        what: What,
        session: SessionId,
        sequence: u64,
        body: &[u8],
    ) -> Outlives {
        let mut inner = lock(&self.inner);
        let Inner {
            active,
            filled,
            buffer,
        } = &mut *inner;
        let (half, filled) = (&self.halves[*active], &mut filled[*active]);
        buffer.clear();
        if filled.length == 0 {
            buffer.extend_from_slice(&MARK);
        }
        encode(buffer, what, session, sequence, body);
        let end = filled.length.saturating_add(buffer.len() as u64);
        let written = if end > MOST {
            Err(io::ErrorKind::FileTooLarge.into())
        } else {
            // Where there is no memory ahead any more, what there is still serves.
            let ahead = half.allocate(filled, end.saturating_add(AHEAD));
            ahead
                .or_else(|error| {
                    if end <= filled.allocated {
                        Ok(())
                    } else {
                        Err(error)
                    }
                })
                .and_then(|()| half.file.write_all_at(buffer, filled.length))
        };
        if buffer.capacity() > LONG_BUFFER {
            *buffer = Vec::new();
        }
        if written.is_err() {
            return Outlives::Nothing;
        }
        filled.length = end;
        match filled.unseen.iter_mut().find(|(of, _)| *of == session) {
            Some((_, last)) => *last = sequence.max(*last),
            None => filled.unseen.push((session, sequence)),
        }
        self.is_strained.store(end > STRAINED, Ordering::Relaxed);
        Outlives::Kill
    }

    /// Whether so much is waiting for the disk that no exec is to be admitted.
    pub(super) fn is_strained(&self) -> bool {
        self.is_strained.load(Ordering::Relaxed)
    }

    /// Has the other half take what is told from now on, if that is empty.
    pub(super) fn turn(&self) {
        let mut inner = lock(&self.inner);
        let other = 1 - inner.active;
        if inner.filled[other].length == 0 && inner.filled[inner.active].length > 0 {
            inner.active = other;
        }
    }

    /// Empties the other half, if the journal's file has all of it: `seen` says how far it has a session.
    pub(super) fn clear(&self, seen: impl Fn(SessionId) -> Option<u64>) -> io::Result<()> {
        let other = {
            let mut inner = lock(&self.inner);
            let other = 1 - inner.active;
            let filled = &mut inner.filled[other];
            filled
                .unseen
                .retain(|(session, last)| seen(*session).is_none_or(|seen| seen < *last));
            if filled.length == 0 || !filled.unseen.is_empty() {
                return Ok(());
            }
            other
        };
        // Nobody else touches a half that isn't active.
        let half = &self.halves[other];
        half.file.set_len(0)?;
        let mut filled = Filled::default();
        // If there is no memory at present, there may be when it is needed.
        let _ = half.allocate(&mut filled, AHEAD);
        let mut inner = lock(&self.inner);
        inner.filled[other] = filled;
        let length = inner.filled[inner.active].length;
        self.is_strained.store(length > STRAINED, Ordering::Relaxed);
        Ok(())
    }

    /// Nothing more is to be seen of a session: what becomes of its events has been decided.
    pub(super) fn settle(&self, session: SessionId) {
        for filled in &mut lock(&self.inner).filled {
            filled.unseen.retain(|(of, _)| *of != session);
        }
    }

    /// Whether there is something in it that the journal's file lacks.
    pub(super) fn is_needed(&self) -> bool {
        let inner = lock(&self.inner);
        inner.filled.iter().any(|filled| !filled.unseen.is_empty())
    }

    /// Removes the files.
    pub(super) fn remove(&self) {
        self.halves.iter().for_each(Half::remove);
    }
}

impl Half {
    /// Sees to it that the file has memory for so many bytes.
    fn allocate(&self, filled: &mut Filled, bytes: u64) -> io::Result<()> {
        const ZEROES: [u8; 16 << 10] = [0; 16 << 10];
        while filled.allocated < bytes.min(MOST) {
            self.file.write_all_at(&ZEROES, filled.allocated)?;
            filled.allocated += ZEROES.len() as u64;
        }
        Ok(())
    }

    fn remove(&self) {
        remove_file(&self.path);
    }
}

/// Where tails may be, the best place first: file systems that are in memory. A dead gate's is looked for in
/// all of them.
pub(super) fn places(journal: &Path) -> Vec<PathBuf> {
    let own = PathBuf::from(format!("/run/user/{}", host::user().id));
    [Path::new("/dev/shm"), &own, Path::new("/run"), journal]
        .into_iter()
        .filter(|place| file_system::of(place).is_ok_and(|found| found.kind == Kind::Memory))
        .map(Path::to_owned)
        .collect()
}

/// Whether a tail could be made there, as far as can be told from outside.
pub(super) fn has_room(place: &Path) -> bool {
    file_system::of(place).is_ok_and(|found| !found.is_read_only && found.free >= 2 * AHEAD)
}

fn path(place: &Path, number: &str, half: usize) -> PathBuf {
    place.join(format!("execgate-{number}.tail-{half}"))
}

/// Whether a file of that name is a tail's.
pub(super) fn is_named_so(name: &[u8]) -> bool {
    name.starts_with(b"execgate-") && (name.ends_with(b".tail-0") || name.ends_with(b".tail-1"))
}

/// What a dead gate has left, in no order, and what of it couldn't be read.
pub(super) fn read(places: &[PathBuf], number: &str) -> (Vec<Record>, Vec<Unread>) {
    let (mut records, mut unread) = (Vec::new(), Vec::new());
    for path in files(places, number) {
        match contents(&path) {
            Ok(bytes) => {
                let failure = parse(&bytes.into(), &mut records).err();
                unread.extend(failure.map(|failure| match failure {
                    Failure::Version => Unread::Version { path },
                    Failure::Damaged { at } => Unread::Damaged { path, at },
                }));
            }
            Err(source) => unread.push(Unread::System { path, source }),
        }
    }
    (records, unread)
}

/// Removes what a dead gate has left.
pub(super) fn remove(places: &[PathBuf], number: &str) {
    for path in files(places, number) {
        remove_file(&path);
    }
}

/// Copies what can't be read to where somebody may look at it.
pub(super) fn set_aside(places: &[PathBuf], number: &str, directory: &Path, suffix: &str) {
    for path in files(places, number) {
        let Some(name) = path.file_name() else {
            continue;
        };
        let mut name = name.to_owned();
        name.push(suffix);
        let copied = contents(&path).and_then(|bytes| {
            let mut file = File::options()
                .write(true)
                .create_new(true)
                .mode(0o600)
                .open(directory.join(&name))?;
            io::Write::write_all(&mut file, &bytes)
        });
        match copied {
            Ok(()) => remove_file(&path),
            Err(error) => tracing::error!("setting {} aside: {error}", path.display()),
        }
    }
}

/// The files that this user's gate of that number has left. Other users may write in some of the places.
fn files(places: &[PathBuf], number: &str) -> Vec<PathBuf> {
    let user = host::user().id;
    let of_place = |place: &PathBuf| [0, 1].map(|half| path(place, number, half));
    places
        .iter()
        .flat_map(of_place)
        .filter(|path| {
            std::fs::symlink_metadata(path)
                .is_ok_and(|found| found.is_file() && found.uid() == user)
        })
        .collect()
}

fn contents(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path)?
        .take(MOST + AHEAD)
        .read_to_end(&mut bytes)?;
    Ok(bytes)
}

fn remove_file(path: &Path) {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            tracing::warn!("removing {}: {error}", path.display());
        }
        _ => {}
    }
}

pub(super) fn encode(
    buffer: &mut Vec<u8>,
    what: What,
    session: SessionId,
    sequence: u64,
    body: &[u8],
) {
    let begin = buffer.len();
    let length = u32::try_from(body.len()).unwrap_or(u32::MAX);
    buffer.extend_from_slice(&length.to_le_bytes());
    buffer.push(what.number());
    buffer.extend_from_slice(&session.0);
    buffer.extend_from_slice(&sequence.to_le_bytes());
    buffer.extend_from_slice(&crc32fast::hash(body).to_le_bytes());
    let checksum = crc32fast::hash(&buffer[begin..]);
    buffer.extend_from_slice(&checksum.to_le_bytes());
    buffer.extend_from_slice(body);
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Failure {
    Version,
    Damaged { at: usize },
}

/// Reads a half. Behind the last record are zeroes, or nothing, or a part of one that its gate was killed
/// over: what that said wasn't acted on.
pub(super) fn parse(bytes: &Bytes, records: &mut Vec<Record>) -> Result<(), Failure> {
    if bytes.iter().all(|byte| *byte == 0) {
        return Ok(());
    }
    match bytes.get(..MARK.len()) {
        Some(mark) if mark == MARK => {}
        Some(mark) if mark[..NAME] == MARK[..NAME] => return Err(Failure::Version),
        _ => return Err(Failure::Damaged { at: 0 }),
    }
    let mut at = MARK.len();
    let mut last = HEADER;
    while let Some(header) = Header::read(&bytes[at..]) {
        last = HEADER.saturating_add(header.length);
        let end = at.saturating_add(last);
        let Some(body) = bytes.get(at + HEADER..end) else {
            break;
        };
        let Some(what) = What::numbered(header.what) else {
            break;
        };
        if crc32fast::hash(body) != header.checksum {
            break;
        }
        records.push(Record {
            what,
            session: header.session,
            sequence: header.sequence,
            body: bytes.slice(at + HEADER..end),
        });
        (at, last) = (end, HEADER);
    }
    // The kernel copies in order, so what it didn't come to is the end.
    let end = bytes.get(at.saturating_add(last - 1)..);
    let is_unfinished = end.is_none_or(|end| end.iter().all(|byte| *byte == 0));
    if is_unfinished {
        Ok(())
    } else {
        Err(Failure::Damaged { at })
    }
}

struct Header {
    length: usize,
    what: u8,
    session: SessionId,
    sequence: u64,
    checksum: u32,
}

impl Header {
    fn read(bytes: &[u8]) -> Option<Self> {
        let (length, rest) = bytes.split_first_chunk()?;
        let (what, rest) = rest.split_first()?;
        let (session, rest) = rest.split_first_chunk()?;
        let (sequence, rest) = rest.split_first_chunk()?;
        let (checksum, rest) = rest.split_first_chunk()?;
        let own = rest.first_chunk()?;
        if crc32fast::hash(&bytes[..HEADER - own.len()]) != u32::from_le_bytes(*own) {
            return None;
        }
        Some(Self {
            length: usize::try_from(u32::from_le_bytes(*length)).ok()?,
            what: *what,
            session: SessionId(*session),
            sequence: u64::from_le_bytes(*sequence),
            checksum: u32::from_le_bytes(*checksum),
        })
    }
}

#[cfg(test)]
mod tests;
