//! `replay`: what other rules would have answered where execs are on record.
//!
//! ```text
//! store, service or JSON lines --exec by exec--> judge --> report
//!                                  rules ---------^
//! ```
//!
//! Invariants: rules are asked by the very code that answers gates, with what the record has; where it lacks what
//! they may look at, an exec is counted as not judged, and why; one exec is in memory at a time, and groups of changes
//! are bounded.
//!
//! Not here: how the record is read (`audit`, `store`), and what rules are proposed from it (`suggest`).

mod judge;
mod lines;
mod report;
mod selection;

use std::io::Write;
use std::path::PathBuf;

use clap::{Args, ValueEnum};

use judge::judge;
pub(in crate::policyd) use judge::{Gap, Said, recorded};
pub use selection::{Selection, Source};

use super::audit::AuditError;
use super::rules::{RuleMode, Rules, RulesError};
use report::Report;

/// The command line of `replay`.
#[derive(Debug, Clone, Args)]
#[command(
    after_long_help = "Each exec is judged as execgate-policyd would have: by the same code, from what the record has of \
        it. What it lacks is never guessed: values of variables are in no record, digests only where rules asked for \
        them, and a session's beginning may have been removed for its age. Such execs are counted as not judged, unless \
        the rules have no decide() that could look at these. Arguments that a gate's owner had replaced are judged as \
        the service saw them.\n\n\
        A change is another verdict, or the same on other terms. Another rule or reason for the same verdict is counted, \
        and is no change. Of what was only monitored it counts what was done. What a person was asked about counts as \
        \"ask\", whatever the answer was.\n\n\
        Examples:\n\
        \x20 execgate replay --rules new.rules.star --data /var/lib/execgate --since 7d\n\
        \x20 execgate replay --rules rules.d --data /var/lib/execgate --label job=42 --output json | jq .changes\n\
        \x20 execgate audit --data /var/lib/execgate --export > week.jsonl\n\
        \x20 execgate replay --rules new.rules.star --from week.jsonl\n\n\
        Exit codes:\n\
        \x20 0  nothing that could be judged would change\n\
        \x20 1  something would change\n\
        \x20 2  the rules can't be used, the record can't be read, the result can't be written, or the command line \
        is wrong\n\
        \x20 5  the service can't be reached, fails, or doesn't take the credential"
)]
pub struct ReplayArgs {
    /// File of rules to judge by, or a directory of files whose names end with .rules or .rules.star. May be given
    /// more than once.
    #[arg(long, value_name = "PATH", required = true)]
    pub rules: Vec<PathBuf>,

    /// Judge as execgate-policyd --monitor does: no rule is acted on.
    #[arg(long)]
    pub monitor: bool,

    /// Which execs, and where they are on record.
    #[command(flatten)]
    pub selection: Selection,

    /// How to write the result.
    #[arg(long, value_enum, default_value_t = ReplayOutput::Text)]
    pub output: ReplayOutput,
}

/// How the result is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ReplayOutput {
    /// For people.
    Text,
    /// One JSON object.
    Json,
}

/// Whether anything would change.
#[must_use]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReplayAnswer {
    /// Nothing that could be judged.
    Same,
    /// Something.
    Changed,
}

impl ReplayAnswer {
    /// The program's exit code for it.
    #[must_use]
    pub fn exit_code(self) -> u8 {
        match self {
            Self::Same => 0,
            Self::Changed => 1,
        }
    }
}

/// Why there is no result.
#[derive(Debug, thiserror::Error)]
pub enum ReplayError {
    /// The rules can't be used.
    #[error(transparent)]
    Rules(#[from] RulesError),
    /// The record can't be read.
    #[error(transparent)]
    Record(#[from] AuditError),
    /// Nothing says where the record is.
    #[error(
        "nothing to read from: give the store's directory (--data DIR), exported lines (--from FILE), or a policy \
         service (--service URL)"
    )]
    NoSource,
    /// A file of exported execs can't be read.
    #[error("reading {file}: {source}")]
    Read {
        /// Its name, fit to show.
        file: String,
        /// Why.
        source: std::io::Error,
    },
    /// A line isn't an exported exec.
    #[error("{file}:{line}: {what}; give lines as `execgate audit --export` writes them")]
    Line {
        /// The file's name, fit to show.
        file: String,
        /// Line, from 1.
        line: u64,
        /// What is wrong with it.
        what: String,
    },
    /// There is more than can be made rules of.
    #[error("{0}; choose less by --session, --program, --since or the like")]
    TooMuch(String),
    /// The result can't be written.
    #[error("writing the result: {0}")]
    Write(#[from] std::io::Error),
}

impl ReplayError {
    /// The program's exit code for it.
    #[must_use]
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Record(AuditError::Service { .. }) => 5,
            _ => 2,
        }
    }
}

/// Judges execs on record by other rules, and writes what would change.
///
/// # Errors
/// When the rules can't be used, the record can't be read, or the result can't be written.
pub fn run(
    args: &ReplayArgs,
    source: Source<'_>,
    out: &mut dyn Write,
) -> Result<ReplayAnswer, ReplayError> {
    let mode = if args.monitor {
        RuleMode::Monitor
    } else {
        RuleMode::Enforce
    };
    let rules = Rules::load_all(&args.rules)?.in_mode(mode);
    let mut report = Report::default();
    args.selection.each(source, &mut |exec| {
        report.add(exec, judge(&rules, exec));
        Ok(())
    })?;
    match args.output {
        ReplayOutput::Text => report.write_text(&rules, out)?,
        ReplayOutput::Json => report.write_json(&rules, out)?,
    }
    out.flush()?;
    Ok(if report.changed() == 0 {
        ReplayAnswer::Same
    } else {
        ReplayAnswer::Changed
    })
}

#[cfg(test)]
mod tests;
