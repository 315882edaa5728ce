//! How the command line names a journal.

use std::path::PathBuf;
use std::sync::Arc;

use clap::{Args, ValueEnum};

use super::Failure;
use crate::journal::{Journal, JournalOptions};
use crate::link::Audit;

/// Less than this holds no session's events.
const LEAST_LIMIT: u64 = 1 << 20;

/// What becomes of events that the policy service hasn't acknowledged.
#[derive(Debug, Args)]
#[command(next_help_heading = "Journal and metrics")]
pub(super) struct JournalArguments {
    /// Keep events in this directory until the policy service has acknowledged them, so that they outlive
    /// the gate: the next gate that uses it delivers them [default: none, they are in memory]
    #[arg(long, value_name = "DIRECTORY", env = "EXECGATE_JOURNAL")]
    journal: Option<PathBuf>,

    /// How many bytes all that is in the journal may take, about: 64MiB, 1GiB, or a number of bytes
    #[arg(long, value_name = "BYTES", default_value = "64MiB", value_parser = parse_limit)]
    journal_limit: u64,

    /// What becomes of execs while events can't be kept: the journal is full or can't be written. strict
    /// needs a journal
    #[arg(long, value_name = "MODE", default_value = "best-effort")]
    audit: Mode,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Mode {
    /// They are denied
    Strict,
    /// They are decided as ever; what is lost is told
    BestEffort,
}

impl JournalArguments {
    /// The journal's directory, which is no session's to see.
    pub(super) fn directory(&self) -> Option<PathBuf> {
        // A variable that is set to nothing isn't a choice.
        let named = self.journal.clone();
        named.filter(|path| !path.as_os_str().is_empty())
    }

    pub(super) fn audit(&self) -> Audit {
        match self.audit {
            Mode::Strict => Audit::Strict,
            Mode::BestEffort => Audit::BestEffort,
        }
    }

    /// Begins the gate's journal, if it is to have one.
    pub(super) fn open(&self) -> Result<Option<Arc<Journal>>, Failure> {
        let Some(directory) = self.directory() else {
            return match self.audit {
                Mode::BestEffort => Ok(None),
                Mode::Strict => Err(Failure::saying(
                    "--audit strict needs a journal to keep events in",
                )
                .hint("give --journal DIRECTORY or set EXECGATE_JOURNAL")),
            };
        };
        let options = JournalOptions {
            directory,
            limit: self.journal_limit,
        };
        match Journal::open(&options) {
            Ok(journal) if self.audit == Mode::Strict && !journal.outlives_kills() => {
                Err(Failure::saying(
                    "--audit strict needs memory that outlives the gate, for what it tells last",
                )
                .hint("mount a tmpfs at /dev/shm that the gate's user can write, with 128KiB free for each gate"))
            }
            Ok(journal) => Ok(Some(Arc::new(journal))),
            Err(error) if self.audit == Mode::BestEffort && !error.is_misuse() => {
                tracing::error!(
                    "this gate has no journal: {error}; its events are in memory alone"
                );
                Ok(None)
            }
            Err(error) => {
                let failure = Failure::new(&error);
                Err(match error.advice() {
                    Some(advice) => failure.hint(advice),
                    None => failure,
                })
            }
        }
    }
}

fn parse_limit(text: &str) -> Result<u64, String> {
    const UNITS: [(&str, u64); 3] = [("KiB", 1 << 10), ("MiB", 1 << 20), ("GiB", 1 << 30)];
    let (number, unit) = UNITS
        .iter()
        .find_map(|(name, unit)| Some((text.strip_suffix(name)?, *unit)))
        .unwrap_or((text, 1));
    let bytes = number.trim_end().parse::<u64>().ok();
    let bytes = bytes.and_then(|number| number.checked_mul(unit));
    match bytes.filter(|bytes| i64::try_from(*bytes).is_ok()) {
        Some(bytes) if bytes >= LEAST_LIMIT => Ok(bytes),
        Some(_) => Err("a journal has at least 1MiB".to_owned()),
        None => Err("write a size such as 64MiB, 1GiB or 67108864".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_units() {
        for (text, bytes) in [
            ("1048576", 1 << 20),
            ("1024KiB", 1 << 20),
            ("64MiB", 64 << 20),
            ("2 GiB", 2 << 30),
        ] {
            assert_eq!(parse_limit(text), Ok(bytes), "{text}");
        }
        for wrong in [
            "",
            "0",
            "1MB",
            "-1MiB",
            "1.5MiB",
            "1023KiB",
            "99999999999GiB",
        ] {
            assert!(parse_limit(wrong).is_err(), "{wrong}");
        }
    }
}
