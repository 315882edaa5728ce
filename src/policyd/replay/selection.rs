//! Which execs, and where they are on record.

use std::io::{BufRead, BufReader, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::Args;

use super::{ReplayError, lines};
use crate::pb::audit::v1::{Exec, Outcome};
use crate::policyd::audit::{
    AuditError, FilterArgs, LocalRecord, Record, Since, is_monitored, since,
};
use crate::policyd::text;

/// Longest line of exported execs, in bytes: an exec has 16 MiB at most, of which each byte takes six at most.
const MOST_LINE: u64 = 128 << 20;
/// How long it may take before somebody wants to know, and between what is said then.
const PROGRESS: Duration = Duration::from_secs(2);

/// Which execs on record are looked at.
#[derive(Debug, Clone, Default, Args)]
pub struct Selection {
    /// Directory of the event store, as execgate-policyd has it; it may be running.
    #[arg(long, value_name = "DIR", env = "EXECGATE_POLICYD_DATA")]
    pub data: Option<PathBuf>,

    /// File of execs as `execgate audit --export` or `--output json` writes them; - for standard input.
    #[arg(long, value_name = "FILE")]
    pub from: Option<PathBuf>,

    /// Which commands.
    #[command(flatten)]
    pub filter: FilterArgs,

    /// Only from then on: an age such as 90s, 15m, 2h or 7d, or a time such as 2026-01-31T12:00:00Z.
    #[arg(long, value_name = "TIME", value_parser = since)]
    pub since: Option<Since>,

    /// Only what the policy service learnt of before then, written as for --since.
    #[arg(long, value_name = "TIME", value_parser = since)]
    pub until: Option<Since>,
}

/// Where execs are read.
pub enum Source<'a> {
    /// Where the command line says: a file, or a directory.
    Named,
    /// From this record.
    Record(&'a mut dyn Record),
}

impl std::fmt::Debug for Source<'_> {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(match self {
            Self::Named => "Named",
            Self::Record(_) => "Record",
        })
    }
}

type Take<'t> = &'t mut dyn FnMut(&Exec) -> Result<(), ReplayError>;

impl Selection {
    /// Gives each exec to `take`, the earliest first.
    ///
    /// # Errors
    /// When they can't be read, and what `take` says.
    pub fn each(&self, source: Source<'_>, take: Take<'_>) -> Result<(), ReplayError> {
        let until = self.until.map(Since::nanoseconds);
        let mut progress = Progress::new();
        let taken = {
            let mut take = |exec: &Exec| {
                progress.passed();
                match until {
                    Some(until) if received(exec) >= until => Ok(()),
                    _ => take(exec),
                }
            };
            match (&self.from, source, &self.data) {
                (Some(file), ..) => self.read(file, &mut take),
                (None, Source::Record(record), _) => self.export(record, &mut take),
                (None, Source::Named, Some(data)) => {
                    self.export(&mut LocalRecord::open(data)?, &mut take)
                }
                (None, Source::Named, None) => Err(ReplayError::NoSource),
            }
        };
        progress.end();
        taken
    }

    fn export(&self, record: &mut dyn Record, take: Take<'_>) -> Result<(), ReplayError> {
        let mut stopped = None;
        let exported = record.export(&self.filter.filter(self.since), &mut |exec| {
            take(exec).map_err(|error| {
                stopped = Some(error);
                AuditError::Stopped
            })
        });
        match stopped {
            Some(error) => Err(error),
            None => Ok(exported?),
        }
    }

    fn read(&self, file: &Path, take: Take<'_>) -> Result<(), ReplayError> {
        let name = text::shown(file.as_os_str().as_encoded_bytes());
        let failed = |source| ReplayError::Read {
            file: name.clone(),
            source,
        };
        let mut input: Box<dyn BufRead> = if file.as_os_str() == "-" {
            Box::new(std::io::stdin().lock())
        } else {
            Box::new(BufReader::new(std::fs::File::open(file).map_err(failed)?))
        };
        let since = self.since.map(Since::nanoseconds);
        let mut line = Vec::new();
        for number in 1.. {
            line.clear();
            let mut bounded = std::io::Read::take(&mut input, MOST_LINE);
            if bounded.read_until(b'\n', &mut line).map_err(failed)? == 0 {
                break;
            }
            let wrong = |what| ReplayError::Line {
                file: name.clone(),
                line: number,
                what,
            };
            if line.len() as u64 == MOST_LINE && line.last() != Some(&b'\n') {
                return Err(wrong(format!("the line has more than {MOST_LINE} bytes")));
            }
            if line.trim_ascii().is_empty() {
                continue;
            }
            let exec = lines::exec(&line).map_err(wrong)?;
            if self.fits(&exec, since) {
                take(&exec)?;
            }
        }
        Ok(())
    }

    /// As the store answers the same filter.
    fn fits(&self, exec: &Exec, since: Option<i64>) -> bool {
        let filter = self.filter.filter(None);
        let decision = exec.decision.as_ref();
        let answer = exec.answer.as_ref();
        let verdict = decision
            .map(|decision| &*decision.verdict)
            .or(answer.map(|answer| &*answer.verdict));
        let is_code = |code: &str| {
            let given = decision.map(|decision| &*decision.reason_code);
            let given = given.filter(|code| !code.is_empty());
            decision.is_some_and(|decision| decision.code == code)
                || given.or(answer.map(|answer| &*answer.reason_code)) == Some(code)
        };
        let is_program = |program: &str| {
            let name = exec.program.rsplit(|byte| *byte == b'/').next();
            if program.contains('/') {
                exec.program == program.as_bytes()
            } else {
                name == Some(program.as_bytes())
            }
        };
        let is_outcome = match filter.outcome() {
            Outcome::Unspecified => true,
            Outcome::Run => verdict == Some("run"),
            Outcome::Escalate => verdict == Some("escalate"),
            Outcome::Deny => verdict == Some("deny"),
            Outcome::Pending => verdict == Some("pending") && exec.withdrawal_reason.is_empty(),
            Outcome::Monitored => is_monitored(exec),
        };
        exec.session_id.starts_with(&filter.session_id_prefix)
            && filter
                .labels
                .iter()
                .all(|(key, value)| exec.labels.get(key) == Some(value))
            && (filter.gate.is_empty() || exec.gate == filter.gate)
            && (filter.program.is_empty() || is_program(&filter.program))
            && (filter.code.is_empty() || is_code(&filter.code))
            && is_outcome
            && since.is_none_or(|since| received(exec) >= since)
    }
}

/// When the service heard of an exec, in nanoseconds since 1970.
fn received(exec: &Exec) -> i64 {
    exec.receive_time.map_or(0, |time| {
        time.seconds
            .saturating_mul(1_000_000_000)
            .saturating_add(time.nanos.into())
    })
}

/// Says on standard error how far it is, where that takes long.
struct Progress {
    said: Instant,
    count: u64,
    is_shown: bool,
}

impl Progress {
    fn new() -> Self {
        Self {
            said: Instant::now(),
            count: 0,
            is_shown: false,
        }
    }

    fn passed(&mut self) {
        self.count += 1;
        if self.said.elapsed() < PROGRESS {
            return;
        }
        self.said = Instant::now();
        let mut stderr = std::io::stderr().lock();
        // Nobody may be reading.
        let _ = if stderr.is_terminal() {
            self.is_shown = true;
            write!(stderr, "\r{} execs so far", self.count)
        } else {
            writeln!(stderr, "{} execs so far", self.count)
        };
        let _ = stderr.flush();
    }

    /// Leaves nothing behind on a terminal.
    fn end(&self) {
        if self.is_shown {
            let _ = write!(std::io::stderr(), "\r\x1b[K");
        }
    }
}
