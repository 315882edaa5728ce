//! Verdicts that their policy gave for reuse.

use std::collections::HashMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::model::{
    DecisionCode, Executable, InterceptedExec, Reuse, ReuseReach, ReuseScope, SessionId, Verdict,
    VerdictOrigin,
};
use crate::sys::process::Pidfd;
use crate::sys::program::{self, FileIdentity};

/// The most verdicts that are kept for a session, and as many for a gate.
const MOST_KEPT: usize = 1024;

/// The most of them for programs of one name, since those are looked through one by one.
const MOST_FOR_ONE_NAME: usize = 64;

/// The largest command and list of names that a verdict is kept for, in bytes.
const LARGEST_KEY: usize = 16 << 10;

/// The longest arguments with which an exec is decided without asking, in bytes: it has to be told of
/// nevertheless.
const LONGEST_ARGUMENTS: usize = 64 << 10;

/// The verdicts of one session that may be used again, and those of its gate.
///
/// They are found by what an exec says of itself and by which file its program is now, so that none is
/// used for a program that has changed since. All of it is in memory, behind locks that are never held
/// across a wait.
#[derive(Debug, Clone)]
pub struct ReusableVerdicts {
    session: Arc<Mutex<Table>>,
    gate: GateVerdicts,
    id: SessionId,
    longest: Duration,
}

/// The verdicts that may be used in every session of a gate.
#[derive(Debug, Clone, Default)]
pub(super) struct GateVerdicts(Arc<Mutex<Table>>);

/// Which verdicts are forgotten.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Forgotten<'a> {
    /// All.
    All,
    /// Those of this revision of the policy.
    Revision(&'a str),
    /// Those of any other revision than this, which is the one in force.
    AllBut(&'a str),
}

/// How often verdicts had been forgotten when an exec was asked about: what is answered to it may be
/// older than a later time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Age {
    session: u64,
    gate: u64,
}

#[derive(Debug, Default)]
struct Table {
    by_name: HashMap<PathBuf, Vec<Kept>>,
    count: usize,
    /// How often some were forgotten.
    forgotten: u64,
    /// The revision in force, where it was said: verdicts of others are not kept.
    revision: Option<String>,
}

#[derive(Debug)]
struct Kept {
    program: FileIdentity,
    /// The program as it was judged, where the gate is.
    executable: Executable,
    user: (u32, u32),
    /// Argument zero; `None` where there was none.
    name: Option<OsString>,
    environment_names: Vec<u8>,
    scope: KeptScope,
    expires: Instant,
    verdict: Verdict,
    origin: VerdictOrigin,
}

#[derive(Debug)]
enum KeptScope {
    SameExec {
        arguments: Vec<OsString>,
        workdir: PathBuf,
    },
    ArgumentPrefix(Vec<OsString>),
    Program,
}

impl ReusableVerdicts {
    pub(super) fn new(id: SessionId, gate: GateVerdicts, longest: Duration) -> Self {
        Self {
            session: Arc::default(),
            gate,
            id,
            longest,
        }
    }

    /// Drops verdicts of the session and of the gate. Those that are on their way are not kept either.
    pub fn forget(&self, which: Forgotten<'_>) {
        for table in self.tables() {
            lock(table).forget(which);
        }
    }

    pub(super) fn age(&self) -> Age {
        Age {
            session: lock(&self.session).forgotten,
            gate: lock(&self.gate.0).forgotten,
        }
    }

    /// The verdict that decides an exec without asking, and whose it was.
    pub(super) fn find(
        &self,
        exec: &InterceptedExec,
        process: Option<&Pidfd>,
    ) -> Option<(Verdict, VerdictOrigin)> {
        let process = process?;
        let now = Instant::now();
        if !self
            .tables()
            .iter()
            .any(|table| lock(table).has(&exec.file, now))
        {
            return None;
        }
        if exec.argv.iter().map(|word| word.len()).sum::<usize>() > LONGEST_ARGUMENTS {
            return None;
        }
        let program = program::identify(process, exec.process.pid, &exec.file).ok()?;
        let names = environment_names(exec);
        self.tables()
            .iter()
            .find_map(|table| lock(table).find(exec, program, &names, now))
    }

    /// Keeps a verdict that was given for `exec`, if it may be used again, and if none has been
    /// forgotten since `asked`.
    pub(super) fn keep(
        &self,
        exec: &InterceptedExec,
        process: Option<&Pidfd>,
        verdict: &Verdict,
        asked: Age,
    ) {
        let (Some(reuse), Some(process)) = (verdict.reuse, process) else {
            return;
        };
        let valid_for = reuse.valid_for.min(self.longest);
        let Some(expires) = Instant::now()
            .checked_add(valid_for)
            .filter(|_| !valid_for.is_zero())
        else {
            return;
        };
        let (table, asked) = match reuse.reach {
            ReuseReach::Session => (&self.session, asked.session),
            ReuseReach::Gate => (&self.gate.0, asked.gate),
        };
        let (Some(scope), Ok(program)) = (
            kept_scope(exec, reuse),
            program::identify(process, exec.process.pid, &exec.file),
        ) else {
            return;
        };
        let kept = Kept {
            program,
            executable: exec.executable.clone(),
            user: (exec.process.uid, exec.process.gid),
            name: exec.argv.first().cloned(),
            environment_names: environment_names(exec),
            scope,
            expires,
            verdict: Verdict {
                code: DecisionCode::Reused,
                reuse: None,
                service_time: None,
                ..verdict.clone()
            },
            origin: VerdictOrigin {
                session: self.id,
                exec: exec.id,
            },
        };
        if kept.key_size() > LARGEST_KEY {
            return;
        }
        let mut table = lock(table);
        if table.forgotten == asked && table.is_in_force(verdict) {
            table.keep(exec.file.clone(), kept);
        }
    }

    fn tables(&self) -> [&Mutex<Table>; 2] {
        [&self.session, &self.gate.0]
    }
}

fn lock(table: &Mutex<Table>) -> MutexGuard<'_, Table> {
    // No change panics half-way, so a panic elsewhere can't have spoiled the table.
    table.lock().unwrap_or_else(PoisonError::into_inner)
}

/// All names, each behind a NUL, which none has in it.
fn environment_names(exec: &InterceptedExec) -> Vec<u8> {
    let mut names = Vec::new();
    for name in exec.env.names() {
        names.push(0);
        names.extend_from_slice(name);
    }
    names
}

fn arguments(exec: &InterceptedExec) -> &[OsString] {
    exec.argv.get(1..).unwrap_or_default()
}

fn kept_scope(exec: &InterceptedExec, reuse: Reuse) -> Option<KeptScope> {
    Some(match reuse.scope {
        ReuseScope::SameExec => KeptScope::SameExec {
            arguments: arguments(exec).to_vec(),
            workdir: exec.workdir.clone(),
        },
        ReuseScope::ArgumentPrefix(length) => {
            KeptScope::ArgumentPrefix(arguments(exec).get(..length)?.to_vec())
        }
        ReuseScope::Program => KeptScope::Program,
    })
}

impl Kept {
    fn is_for(&self, exec: &InterceptedExec, program: FileIdentity, names: &[u8]) -> bool {
        self.program == program
            && self.executable == exec.executable
            && self.user == (exec.process.uid, exec.process.gid)
            && self.name.as_ref() == exec.argv.first()
            && self.environment_names == names
            && match &self.scope {
                KeptScope::SameExec {
                    arguments: kept,
                    workdir,
                } => kept == arguments(exec) && *workdir == exec.workdir,
                KeptScope::ArgumentPrefix(kept) => arguments(exec).starts_with(kept),
                KeptScope::Program => true,
            }
    }

    fn key_size(&self) -> usize {
        let size = |words: &[OsString]| {
            words
                .iter()
                .map(|word| word.len() + size_of::<OsString>())
                .sum::<usize>()
        };
        self.environment_names.len()
            + self.name.as_ref().map_or(0, |name| name.len())
            + match &self.scope {
                KeptScope::SameExec { arguments, workdir } => {
                    size(arguments) + workdir.as_os_str().len()
                }
                KeptScope::ArgumentPrefix(arguments) => size(arguments),
                KeptScope::Program => 0,
            }
    }
}

impl Table {
    fn has(&self, file: &Path, now: Instant) -> bool {
        self.by_name
            .get(file)
            .is_some_and(|kept| kept.iter().any(|kept| kept.expires > now))
    }

    fn find(
        &self,
        exec: &InterceptedExec,
        program: FileIdentity,
        names: &[u8],
        now: Instant,
    ) -> Option<(Verdict, VerdictOrigin)> {
        // The latest first: it is the policy's last word.
        self.by_name
            .get(&exec.file)?
            .iter()
            .rev()
            .find(|kept| kept.expires > now && kept.is_for(exec, program, names))
            .map(|kept| (kept.verdict.clone(), kept.origin))
    }

    fn keep(&mut self, file: PathBuf, kept: Kept) {
        if self.count >= MOST_KEPT {
            let now = Instant::now();
            self.retain(|kept| kept.expires > now);
            if self.count >= MOST_KEPT {
                // Whoever is still of use is kept again soon.
                self.by_name.clear();
                self.count = 0;
            }
        }
        let same_name = self.by_name.entry(file).or_default();
        if same_name.len() >= MOST_FOR_ONE_NAME {
            same_name.remove(0);
            self.count -= 1;
        }
        same_name.push(kept);
        self.count += 1;
    }

    fn is_in_force(&self, verdict: &Verdict) -> bool {
        self.revision
            .as_ref()
            .is_none_or(|revision| *revision == verdict.policy_revision)
    }

    fn forget(&mut self, which: Forgotten<'_>) {
        match which {
            Forgotten::All => self.retain(|_| false),
            Forgotten::Revision(revision) => {
                self.retain(|kept| kept.verdict.policy_revision != revision);
            }
            Forgotten::AllBut(revision) => {
                // Said with each verdict, and seldom news.
                if self.revision.as_deref() == Some(revision) {
                    return;
                }
                self.retain(|kept| kept.verdict.policy_revision == revision);
                self.revision = Some(revision.to_owned());
                return;
            }
        }
        self.forgotten += 1;
    }

    fn retain(&mut self, keep: impl Fn(&Kept) -> bool) {
        self.by_name.retain(|_, kept| {
            kept.retain(&keep);
            !kept.is_empty()
        });
        self.count = self.by_name.values().map(Vec::len).sum();
    }
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use super::*;
    use crate::model::{Environment, EscalationDecision, ExecId, ProcessIdentity};
    use crate::sys::process::own_pid;

    const HOUR: Duration = Duration::from_secs(3600);

    fn verdicts() -> ReusableVerdicts {
        ReusableVerdicts::new(SessionId([1; 16]), GateVerdicts::default(), HOUR)
    }

    fn exec(id: u64, argv: &[&str]) -> InterceptedExec {
        InterceptedExec {
            id: ExecId(id),
            file: "/bin/sh".into(),
            argv: argv.iter().map(OsString::from).collect(),
            workdir: "/".into(),
            env: Environment(vec!["HOME=/".into()]),
            process: ProcessIdentity {
                pid: own_pid(),
                ..ProcessIdentity::default()
            },
            parent: None,
            asked_at: SystemTime::now(),
            executable: Executable::default(),
            workdir_protection: None,
        }
    }

    fn verdict(revision: &str, scope: ReuseScope, reach: ReuseReach) -> Verdict {
        Verdict {
            policy_revision: revision.to_owned(),
            reuse: Some(Reuse {
                valid_for: HOUR,
                scope,
                reach,
            }),
            ..Verdict::from(EscalationDecision::Run)
        }
    }

    fn own() -> Pidfd {
        // The name is looked up, so that it is in memory.
        let _ = std::fs::metadata("/bin/sh");
        Pidfd::open(own_pid()).unwrap()
    }

    fn keep(verdicts: &ReusableVerdicts, exec: &InterceptedExec, verdict: &Verdict) {
        verdicts.keep(exec, Some(&own()), verdict, verdicts.age());
    }

    fn is_found(verdicts: &ReusableVerdicts, exec: &InterceptedExec) -> bool {
        verdicts.find(exec, Some(&own())).is_some()
    }

    #[tokio::test(start_paused = true)]
    async fn a_verdict_is_found_until_its_time_is_over() {
        let verdicts = verdicts();
        let asked = exec(3, &["sh", "-c", "x"]);
        let given = verdict("r", ReuseScope::SameExec, ReuseReach::Session);
        assert!(!is_found(&verdicts, &asked));
        keep(&verdicts, &asked, &given);
        let again = exec(4, &["sh", "-c", "x"]);
        let (found, origin) = verdicts.find(&again, Some(&own())).unwrap();
        assert_eq!((found.code, found.reuse), (DecisionCode::Reused, None));
        assert_eq!(origin.exec, ExecId(3));
        // Without a process nothing says which file it is.
        assert!(verdicts.find(&again, None).is_none());
        tokio::time::advance(HOUR).await;
        assert!(!is_found(&verdicts, &again));
    }

    #[tokio::test]
    async fn each_scope_covers_what_it_says() {
        let other_user = InterceptedExec {
            process: ProcessIdentity {
                pid: own_pid(),
                uid: 12_345,
                ..ProcessIdentity::default()
            },
            ..exec(1, &["sh", "a", "b"])
        };
        let other_names = InterceptedExec {
            env: Environment(vec!["HOME=/".into(), "LD_PRELOAD=x".into()]),
            ..exec(1, &["sh", "a", "b"])
        };
        let other_value = InterceptedExec {
            env: Environment(vec!["HOME=/root".into()]),
            ..exec(1, &["sh", "a", "b"])
        };
        let other_directory = InterceptedExec {
            workdir: "/tmp".into(),
            ..exec(1, &["sh", "a", "b"])
        };
        let execs = [
            exec(1, &["sh", "a", "b"]),
            other_value,
            other_directory,
            exec(1, &["sh", "a", "c"]),
            exec(1, &["sh", "b"]),
            exec(1, &["sh"]),
            exec(1, &["other", "a", "b"]),
            exec(1, &[]),
            other_user,
            other_names,
        ];
        for (scope, covered) in [
            (ReuseScope::SameExec, 2),
            (ReuseScope::ArgumentPrefix(2), 3),
            (ReuseScope::ArgumentPrefix(1), 4),
            (ReuseScope::Program, 6),
        ] {
            let verdicts = verdicts();
            keep(
                &verdicts,
                &execs[0],
                &verdict("", scope, ReuseReach::Session),
            );
            for (position, exec) in execs.iter().enumerate() {
                let expected = position < covered;
                assert_eq!(is_found(&verdicts, exec), expected, "{scope:?} {exec:?}");
            }
        }
        // There are not as many arguments as it is to be for.
        let verdicts = verdicts();
        let scope = ReuseScope::ArgumentPrefix(3);
        keep(
            &verdicts,
            &execs[0],
            &verdict("", scope, ReuseReach::Session),
        );
        assert!(!is_found(&verdicts, &execs[0]));
    }

    #[tokio::test]
    async fn verdicts_reach_other_sessions_of_the_gate_only_where_they_say_so() {
        let gate = GateVerdicts::default();
        let session = |id| ReusableVerdicts::new(SessionId([id; 16]), gate.clone(), HOUR);
        let (first, second) = (session(1), session(2));
        let [a, b] = [exec(1, &["sh", "a"]), exec(2, &["sh", "b"])];
        let given = |reach| verdict("", ReuseScope::SameExec, reach);
        keep(&first, &a, &given(ReuseReach::Session));
        keep(&first, &b, &given(ReuseReach::Gate));
        assert!(is_found(&first, &a) && is_found(&first, &b));
        assert!(!is_found(&second, &a) && is_found(&second, &b));
        second.forget(Forgotten::All);
        assert!(is_found(&first, &a) && !is_found(&first, &b));
    }

    #[tokio::test]
    async fn what_was_on_its_way_when_verdicts_were_forgotten_is_not_kept() {
        let given = verdict("old", ReuseScope::SameExec, ReuseReach::Session);
        let asked = exec(1, &["sh"]);
        for forgotten in [
            Forgotten::All,
            Forgotten::Revision("old"),
            Forgotten::AllBut("new"),
        ] {
            let verdicts = verdicts();
            let age = verdicts.age();
            verdicts.forget(forgotten);
            verdicts.keep(&asked, Some(&own()), &given, age);
            assert!(!is_found(&verdicts, &asked), "{forgotten:?}");
        }
        let verdicts = verdicts();
        keep(&verdicts, &asked, &given);
        verdicts.forget(Forgotten::Revision("other"));
        verdicts.forget(Forgotten::AllBut("old"));
        assert!(is_found(&verdicts, &asked));
        verdicts.forget(Forgotten::AllBut("new"));
        assert!(!is_found(&verdicts, &asked));
    }

    #[tokio::test]
    async fn what_is_kept_is_bounded() {
        let verdicts = verdicts();
        let given = verdict("", ReuseScope::SameExec, ReuseReach::Session);
        for number in 0..2 * MOST_FOR_ONE_NAME {
            keep(&verdicts, &exec(1, &["sh", &number.to_string()]), &given);
        }
        assert_eq!(lock(&verdicts.session).count, MOST_FOR_ONE_NAME);
        let last = (2 * MOST_FOR_ONE_NAME - 1).to_string();
        assert!(is_found(&verdicts, &exec(1, &["sh", &last])));
        assert!(!is_found(&verdicts, &exec(1, &["sh", "0"])));

        let long = "x".repeat(LARGEST_KEY);
        keep(&verdicts, &exec(1, &["sh", &long]), &given);
        assert!(!is_found(&verdicts, &exec(1, &["sh", &long])));

        let directory = tempfile::tempdir().unwrap();
        for number in 0..=MOST_KEPT {
            let file = directory.path().join(number.to_string());
            std::fs::write(&file, "").unwrap();
            let exec = InterceptedExec {
                file,
                ..exec(1, &["x"])
            };
            keep(&verdicts, &exec, &given);
        }
        assert!(lock(&verdicts.session).count <= MOST_KEPT);
    }

    #[tokio::test]
    async fn an_exec_with_very_long_arguments_is_asked_about_nevertheless() {
        let verdicts = verdicts();
        let given = verdict("", ReuseScope::Program, ReuseReach::Session);
        keep(&verdicts, &exec(1, &["sh"]), &given);
        let longest = "x".repeat(LONGEST_ARGUMENTS - "sh".len());
        assert!(is_found(&verdicts, &exec(1, &["sh", &longest])));
        assert!(!is_found(&verdicts, &exec(1, &["sh", &longest, "x"])));
    }

    #[tokio::test]
    async fn the_owner_bounds_the_time() {
        let id = SessionId([1; 16]);
        let verdicts = ReusableVerdicts::new(id, GateVerdicts::default(), Duration::ZERO);
        let asked = exec(1, &["sh"]);
        let given = verdict("", ReuseScope::SameExec, ReuseReach::Session);
        keep(&verdicts, &asked, &given);
        assert_eq!(lock(&verdicts.session).count, 0);
    }
}
