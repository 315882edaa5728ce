//! Which file each exec's program is, found before the question.
//!
//! What was looked at a moment ago, and is still there unchanged, is known from memory. All else is looked
//! at on a thread of its own, for a disk or a server may be slow: the question waits for that for
//! [`PATIENCE`] at most, and then goes out without an answer to it.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::Semaphore;

use crate::model::{Executable, ExecutableFile, ProcessIdentity, Protection, Unprotected};
use crate::program::{
    self, Digest, Digests, Examination, Examined, Execution, Refusal, WritablePlaces, Writer,
};
use crate::sys::place::{self, Place};

/// How long a question waits for this.
const PATIENCE: Duration = Duration::from_secs(5);

/// How long a digest may take of that.
const FOR_DIGESTS: Duration = Duration::from_secs(1);

/// How long an escalation waits until its program has been looked at again, and copied.
const FOR_COPIES: Duration = Duration::from_secs(10);

/// How long what was found of directories counts. An escalation looks again.
const FRESH: Duration = Duration::from_secs(5);

/// The most examinations of one session at once; more may hang on a server that is gone.
const MOST_AT_ONCE: usize = 32;

/// The most that is remembered of each kind.
const MOST_KNOWN: usize = 1024;

/// Looks at the programs of one session.
pub(super) struct Examiner {
    writer: Writer,
    digests: Arc<Digests>,
    known: Mutex<Known>,
    at_once: Arc<Semaphore>,
}

#[derive(Default)]
struct Known {
    programs: HashMap<PathBuf, KnownProgram>,
    directories: HashMap<PathBuf, KnownDirectory>,
}

#[derive(Clone)]
struct KnownProgram {
    file: Arc<ExecutableFile>,
    wanted: Digest,
    asker: (u32, u32),
    at: Instant,
}

#[derive(Clone)]
struct KnownDirectory {
    protection: Protection,
    asker: (u32, u32),
    at: Instant,
}

/// What was found of one exec.
pub(super) struct Found {
    pub(super) executable: Executable,
    pub(super) workdir: Option<Protection>,
    /// Held open until the verdict.
    pub(super) places: Vec<Place>,
}

impl Examiner {
    pub(super) fn new(places: WritablePlaces, digests: Arc<Digests>) -> Self {
        Self {
            writer: Writer::new(&place::rights(), places),
            digests,
            known: Mutex::default(),
            at_once: Arc::new(Semaphore::new(MOST_AT_ONCE)),
        }
    }

    /// Looks at the program that `file` leads to, for a process that works in `workdir`.
    pub(super) async fn examine(
        &self,
        file: &Path,
        workdir: &Path,
        asker: &ProcessIdentity,
        wanted: Digest,
    ) -> Found {
        let asker = (asker.uid, asker.gid);
        if let Some(found) = self.known_already(file, workdir, asker, wanted) {
            return found;
        }
        let unknown = |why: &str| Found {
            executable: Executable::Unknown(why.to_owned()),
            workdir: None,
            places: Vec::new(),
        };
        let until = tokio::time::Instant::now() + PATIENCE;
        let permit = self.at_once.clone().acquire_owned();
        let Ok(Ok(permit)) = tokio::time::timeout_at(until, permit).await else {
            return unknown("too many programs are being looked at");
        };
        // Others may have looked at the same meanwhile.
        if let Some(found) = self.known_already(file, workdir, asker, wanted) {
            return found;
        }
        let writer = self.writer(asker);
        let digests = Arc::clone(&self.digests);
        let (file_here, workdir_here) = (file.to_owned(), workdir.to_owned());
        let look = tokio::task::spawn_blocking(move || {
            let examination = Examination {
                writer: &writer,
                digests: &digests,
                wanted,
                until: Instant::now() + FOR_DIGESTS,
            };
            let examined = examination.examine(&file_here, &workdir_here);
            let directory = examination.directory(&workdir_here);
            // Held for as long as the thread hangs.
            drop(permit);
            (examined, directory)
        });
        let (examined, directory) = match tokio::time::timeout_at(until, look).await {
            Ok(Ok(found)) => found,
            Ok(Err(_)) => return unknown("looking at it failed"),
            Err(_) => return unknown("it couldn't be looked at in time"),
        };
        self.remember(file, workdir, &examined, directory.clone(), asker, wanted);
        let Examined { executable, places } = examined;
        Found {
            places: held(&executable, places),
            executable,
            workdir: directory,
        }
    }

    /// Sees to it that what was judged is what is executed.
    pub(super) async fn verify(
        &self,
        (file, workdir): (&Path, &Path),
        executable: &Executable,
        places: Vec<Place>,
        asker: &ProcessIdentity,
        unprotected: Unprotected,
    ) -> Result<Execution, Refusal> {
        let writer = self.writer((asker.uid, asker.gid));
        let (file, workdir) = (file.to_owned(), workdir.to_owned());
        let executable = executable.clone();
        let verify = tokio::task::spawn_blocking(move || {
            let names = (&*file, &*workdir);
            program::verify(names, &executable, &places, &writer, unprotected)
        });
        let unidentified = |why: &str| Err(Refusal::Unidentified(why.to_owned()));
        match tokio::time::timeout(FOR_COPIES, verify).await {
            Ok(Ok(verified)) => verified,
            Ok(Err(_)) => unidentified("looking at it again failed"),
            Err(_) => unidentified("it couldn't be looked at again in time"),
        }
    }

    /// The numbers of those directories that the session can write, or of which that isn't known.
    pub(super) async fn writable(
        &self,
        directories: Vec<(i32, PathBuf)>,
        asker: &ProcessIdentity,
    ) -> Vec<i32> {
        let writer = self.writer((asker.uid, asker.gid));
        let all = directories.iter().map(|(number, _)| *number).collect();
        let look = tokio::task::spawn_blocking(move || {
            directories
                .into_iter()
                .filter(|(_, path)| {
                    program::directory(path, &writer) != Some(Protection::Protected)
                })
                .map(|(number, _)| number)
                .collect()
        });
        match tokio::time::timeout(PATIENCE, look).await {
            Ok(Ok(writable)) => writable,
            _ => all,
        }
    }

    fn writer(&self, (user, group): (u32, u32)) -> Writer {
        self.writer.clone().with(user, group)
    }

    fn known_already(
        &self,
        file: &Path,
        workdir: &Path,
        asker: (u32, u32),
        wanted: Digest,
    ) -> Option<Found> {
        let workdir = self.known_directory(workdir, asker)?;
        let (executable, places) = self.known_program(file, asker, wanted)?;
        Some(Found {
            executable,
            workdir: Some(workdir),
            places,
        })
    }

    fn known_program(
        &self,
        file: &Path,
        asker: (u32, u32),
        wanted: Digest,
    ) -> Option<(Executable, Vec<Place>)> {
        let known = self.known().programs.get(file).cloned()?;
        if known.asker != asker || known.wanted != wanted || known.at.elapsed() > FRESH {
            return None;
        }
        let chain = known.file.chain().ok()?;
        // Absolute, or it wouldn't be remembered.
        let interpreters = chain.iter().filter_map(|file| file.interpreter());
        let names = std::iter::once(file)
            .chain(interpreters.map(|interpreter| Path::new(&interpreter.name)));
        let mut places = Vec::new();
        for (name, file) in names.zip(&chain) {
            let (place, status) = Place::in_memory(name).ok()?;
            if program::version(&status) != file.version {
                return None;
            }
            places.push(place);
        }
        let executable = Executable::Found(known.file);
        let places = held(&executable, places);
        Some((executable, places))
    }

    fn known_directory(&self, path: &Path, asker: (u32, u32)) -> Option<Protection> {
        let known = self.known().directories.get(path).cloned()?;
        (known.asker == asker && known.at.elapsed() <= FRESH).then_some(known.protection)
    }

    fn remember(
        &self,
        file: &Path,
        workdir: &Path,
        examined: &Examined,
        directory: Option<Protection>,
        asker: (u32, u32),
        wanted: Digest,
    ) {
        let at = Instant::now();
        let mut known = self.known();
        if let Executable::Found(found) = &examined.executable
            && found
                .chain()
                .is_ok_and(|chain| program::is_independent_of_workdir(&chain))
        {
            make_room(&mut known.programs);
            known.programs.insert(
                file.to_owned(),
                KnownProgram {
                    file: Arc::clone(found),
                    wanted,
                    asker,
                    at,
                },
            );
        }
        if let Some(protection) = directory {
            make_room(&mut known.directories);
            known.directories.insert(
                workdir.to_owned(),
                KnownDirectory {
                    protection,
                    asker,
                    at,
                },
            );
        }
    }

    fn known(&self) -> std::sync::MutexGuard<'_, Known> {
        // Nothing that is done with it panics half-way.
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Only what may have to be copied is held open until the verdict.
fn held(executable: &Executable, places: Vec<Place>) -> Vec<Place> {
    match executable {
        Executable::Found(file) if matches!(file.protection(), Protection::Writable(_)) => places,
        _ => Vec::new(),
    }
}

fn make_room<T>(known: &mut HashMap<PathBuf, T>) {
    if known.len() >= MOST_KNOWN {
        // What is still of use is there again soon.
        known.clear();
    }
}

#[cfg(test)]
mod tests {
    use std::pin::{Pin, pin};

    use super::*;

    /// What comes of it where nothing more happens.
    async fn by_now<T>(mut looks: Pin<&mut impl Future<Output = T>>) -> Option<T> {
        for _ in 0..100 {
            tokio::select! {
                biased;
                found = &mut looks => return Some(found),
                () = tokio::task::yield_now() => {}
            }
        }
        None
    }

    async fn looked_at(examiner: &Examiner) -> Executable {
        let asker = ProcessIdentity::default();
        let (file, workdir) = (Path::new("/bin/sh"), Path::new("/"));
        let found = examiner.examine(file, workdir, &asker, Digest::None).await;
        found.executable
    }

    #[test]
    fn what_hangs_holds_up_each_question_for_so_long_and_no_more_threads_than_so_many() {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .max_blocking_threads(1)
            .build()
            .unwrap();
        runtime.block_on(async {
            // Whoever has the only thread holds up the others as a disk would.
            let (answers, disk) = std::sync::mpsc::sync_channel::<()>(0);
            let hangs = tokio::task::spawn_blocking(move || disk.recv());
            let examiner = Examiner::new(WritablePlaces::Everywhere, Arc::default());
            let mut looks: Vec<_> = (0..MOST_AT_ONCE)
                .map(|_| Box::pin(looked_at(&examiner)))
                .collect();
            for look in &mut looks {
                assert_eq!(by_now(look.as_mut()).await, None);
            }
            let mut another = pin!(looked_at(&examiner));
            assert_eq!(by_now(another.as_mut()).await, None);
            let moment = Duration::from_millis(10);
            tokio::time::advance(PATIENCE.saturating_sub(moment)).await;
            assert_eq!(by_now(looks[0].as_mut()).await, None);
            assert_eq!(by_now(another.as_mut()).await, None);
            tokio::time::advance(2 * moment).await;
            let unknown = |why: &str| Some(Executable::Unknown(why.to_owned()));
            for look in &mut looks {
                let late = unknown("it couldn't be looked at in time");
                assert_eq!(by_now(look.as_mut()).await, late);
            }
            let too_many = unknown("too many programs are being looked at");
            assert_eq!(by_now(another.as_mut()).await, too_many);

            // The questions have gone out, and the threads hang on.
            let mut another = pin!(looked_at(&examiner));
            assert_eq!(by_now(another.as_mut()).await, None);
            tokio::time::advance(PATIENCE + moment).await;
            assert_eq!(by_now(another.as_mut()).await, too_many);
            drop(answers);
            assert!(hangs.await.unwrap().is_err());
            let found = looked_at(&examiner).await;
            assert!(matches!(found, Executable::Found(_)), "{found:?}");
        });
    }
}
