//! `suggest`: rules that answer as execs on record were answered.
//!
//! ```text
//! record --exec by exec--> gathered --plan--> rules' text --load, ask each--> checked
//! ```
//!
//! Invariants: what came from a sandbox stands in the text as quoted strings and in comments of one line, and can't be
//! anything else there; no program runs by its name alone whose arguments may be code; what escalates is a whole command
//! line; the text is loaded, and asked about each command, before anybody sees it.
//!
//! Not here: how execs are read, and what was decided of them (`replay`).

mod gather;
mod plan;
mod programs;
mod write;

use std::io::Write;

use clap::{Args, ValueEnum};
use serde_json::json;

use super::replay::{ReplayError, Selection, Source};
use super::rules::{MAX_FILE_SIZE, Rules};
use super::text;
use gather::Gathered;

/// The command line of `suggest`.
#[derive(Debug, Clone, Args)]
#[command(
    after_long_help = "The rules answer what is on record as it was answered, and deny the rest. Look through them: what \
        was recorded is what one session did, not what another should.\n\n\
        Programs known to do nothing with their arguments but read and write files run whatever these are; git, cargo \
        and the like by their subcommand; find, compilers and the like with the options that were seen. All others, \
        those whose arguments may be code (sh, env, xargs, ssh, tar, interpreters) among them, and all that is \
        escalated, are named with their whole command line; what would be shorter and too wide stands beside it as a \
        comment that says why. What can't be written as a rule is a comment too: arguments that aren't text, or that \
        the gate's owner had replaced.\n\n\
        Examples:\n\
        \x20 execgate suggest --data /var/lib/execgate --session 3f2a > build.rules.star\n\
        \x20 execgate check --rules build.rules.star -- make\n\
        \x20 execgate replay --rules build.rules.star --data /var/lib/execgate --session 3f2a\n\
        \x20 execgate suggest --data /var/lib/execgate --label job=42 --monitor\n\n\
        Exit codes:\n\
        \x20 0  rules were written, and answer all that is on record as it was answered\n\
        \x20 1  rules were written, and some execs on record get another answer by them: comments say which\n\
        \x20 2  the record can't be read, the rules can't be written, or the command line is wrong"
)]
pub struct SuggestArgs {
    /// Take what ran although rules that are only monitored would have had it otherwise as to be run.
    #[arg(long)]
    pub monitor: bool,

    /// Which execs, and where they are on record.
    #[command(flatten)]
    pub selection: Selection,

    /// How to write the rules.
    #[arg(long, value_enum, default_value_t = SuggestOutput::Rules)]
    pub output: SuggestOutput,
}

/// How the rules are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum SuggestOutput {
    /// As a file of rules.
    Rules,
    /// One JSON object, which has the file of rules and what it was made from.
    Json,
}

/// Whether the rules answer all that is on record as it was answered.
#[must_use]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SuggestAnswer {
    /// All of it.
    All,
    /// Not all.
    Some,
}

impl SuggestAnswer {
    /// The program's exit code for it.
    #[must_use]
    pub fn exit_code(self) -> u8 {
        match self {
            Self::All => 0,
            Self::Some => 1,
        }
    }
}

/// Which of two decisions is taken where rules were only monitored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Monitored {
    /// What was done.
    Done,
    /// What would have been.
    Would,
}

/// Proposes rules from execs on record, and writes them.
///
/// # Errors
/// When the record can't be read, there is too much of it, or the rules can't be written.
pub fn run(
    args: &SuggestArgs,
    source: Source<'_>,
    out: &mut dyn Write,
) -> Result<SuggestAnswer, ReplayError> {
    let monitored = if args.monitor {
        Monitored::Done
    } else {
        Monitored::Would
    };
    let mut gathered = Gathered::new(monitored);
    args.selection.each(source, &mut |exec| {
        gathered.add(exec).map_err(ReplayError::TooMuch)
    })?;
    let proposal = Proposal::of(&gathered)?;
    match args.output {
        SuggestOutput::Rules => out.write_all(proposal.text.as_bytes())?,
        SuggestOutput::Json => {
            let gaps: Vec<_> = gathered
                .gaps
                .iter()
                .map(|(gap, count)| json!({"why": gap.name(), "text": gap.text(), "count": count}))
                .collect();
            let object = json!({
                "rules": proposal.text,
                "execs": gathered.execs,
                "sessions": gathered.sessions.len(),
                "answered_otherwise": proposal.otherwise,
                "not_used_because": gaps,
            });
            writeln!(out, "{}", text::plain_json(&object))?;
        }
    }
    out.flush()?;
    Ok(if proposal.otherwise == 0 {
        SuggestAnswer::All
    } else {
        SuggestAnswer::Some
    })
}

/// Rules, and how many execs on record they answer otherwise.
struct Proposal {
    text: String,
    otherwise: u64,
}

impl Proposal {
    fn of(gathered: &Gathered) -> Result<Self, ReplayError> {
        let planned = plan::plan(gathered);
        let body = write::body(&planned);
        let rules = Rules::parse("proposed", body.clone())?;
        let otherwise = gathered.answered_otherwise(&rules);
        let text = write::heading(gathered, otherwise) + &body;
        if text.len() as u64 > MAX_FILE_SIZE {
            return Err(ReplayError::TooMuch(format!(
                "the rules would have {} bytes, and a file has {MAX_FILE_SIZE} at most",
                text.len()
            )));
        }
        // What is written is what was checked.
        let _ = Rules::parse("proposed", text.clone())?;
        Ok(Self { text, otherwise })
    }
}

#[cfg(test)]
mod tests;
