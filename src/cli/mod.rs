//! The `execgate` program: parses, wires the objects together, and turns outcomes into exit codes.
//!
//! Not here: anything that another program could want; that is in the other rooms.

mod approvals;
mod audit;
mod denials;
mod doctor;
mod exec;
mod executor;
mod journal;
mod manual;
mod operator;
mod output;
mod place;
mod policy;
mod remedy;
mod removal;
mod replay;
mod sandbox;
mod service;
mod sessions;
mod startup;
mod temporary_directory;
mod time;
mod watch;

use std::ffi::{OsString, c_int};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Args, CommandFactory, Parser, Subcommand, ValueEnum};

use crate::logging::{self, LogFormat};
use crate::policyd::command::variables;
use crate::policyd::{check, text, token};
use crate::sys::entry::Invocation;
use crate::sys::signal::SignalWatch;
use startup::Startup;

/// What it calls itself.
const PROGRAM: &str = "execgate";

/// Everything went as asked.
const SUCCESS: c_int = 0;
/// A command line that makes no sense, as clap gives it.
const USAGE: c_int = 2;
/// The time limit of a session was reached, as with `timeout(1)`.
const TIMED_OUT: c_int = 124;
/// The gate itself failed, as with `env(1)` and `timeout(1)`.
const FAILED: c_int = 125;

/// What is logged where nothing else is said.
const LOG: &str = "warn";

const FIRST_STEPS: &str = "\
First steps:
  execgate doctor                   what this machine lacks, and how to get it
  execgate-policyd --rules FILE     a policy service, in a terminal of its own
  execgate exec --policy http://127.0.0.1:50051 -- 'git status; ls'
  execgate COMMAND --help           options, examples and exit codes
";

/// Those of `exec` and `shell`.
const EXIT_CODES: &str = "\
Exit codes of exec and shell:
  the shell's own, or 128 + N where signal N killed it
  2    the command line is wrong
  124  the time limit was reached
  125  the gate failed: nothing of the command ran, or its end couldn't be seen
Inside a session a command ends with 1 where the policy denies it, and with 125 where no
verdict could be had because the gate is gone.
";

/// Decides at each exec: run it in the sandbox, run it outside, or not at all.
#[derive(Debug, Parser)]
#[command(
    name = "execgate",
    version,
    after_help = format!("{FIRST_STEPS}\n{EXIT_CODES}"),
    max_term_width = 100
)]
struct CommandLine {
    #[command(subcommand)]
    command: Subcommands,

    /// What to log on standard error: error, warn, info, debug, trace, or a filter such as
    /// execgate::link=debug
    #[arg(
        long,
        global = true,
        value_name = "FILTER",
        env = "EXECGATE_LOG",
        default_value = LOG,
        value_parser = logging::check_filter,
        help_heading = "Log"
    )]
    log: String,

    /// How to log
    #[arg(
        long,
        global = true,
        value_name = "FORMAT",
        env = "EXECGATE_LOG_FORMAT",
        default_value = "text",
        help_heading = "Log"
    )]
    log_format: LogFormat,
}

#[derive(Debug, Subcommand)]
enum Subcommands {
    /// Run a command string in a patched shell, each of its execs decided by the policy service
    Exec(exec::ExecArguments),
    /// Start an interactive patched shell, each of its execs decided by the policy service
    Shell(exec::ShellArguments),
    /// Say what rules would answer for a command, and why
    Check(check::CheckArgs),
    /// List what happened in sessions, from the record of a policy service, and prove that it is whole
    Audit(Box<audit::AuditArguments>),
    /// Say what other rules would have decided of execs on record
    Replay(Box<replay::ReplayArguments>),
    /// Propose rules that decide execs on record as they were decided
    Suggest(Box<replay::SuggestArguments>),
    /// Show each exec as it happens, from a policy service
    Watch(Box<watch::WatchArguments>),
    /// List, approve and deny what waits for a person at a policy service
    Approvals(approvals::ApprovalsArguments),
    /// List the sessions that are connected to a policy service, and end one
    Sessions(sessions::SessionsArguments),
    /// Make a token by which a gate or an operator shows a policy service who it is
    Token(token::TokenArgs),
    /// Say what is missing on this machine, and how to get it
    Doctor(doctor::DoctorArguments),
    /// Write what a shell needs to complete command lines
    Completions(manual::CompletionsArguments),
    /// Write the man pages of both programs
    #[command(hide = true)]
    Manual(manual::ManualArguments),
}

/// How results are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum OutputForm {
    /// For people.
    Text,
    /// For programs: an object, or for a list one a line.
    Json,
}

/// `--output`, for commands that have it.
#[derive(Debug, Clone, Copy, Args)]
struct OutputOption {
    /// How to write the result
    #[arg(long, value_name = "FORM", default_value = "text")]
    output: OutputForm,
}

/// Why a command failed: what was attempted, all causes, and what to do.
#[derive(Debug)]
struct Failure {
    message: String,
    hint: Option<String>,
    exit_code: c_int,
}

impl Failure {
    fn new(error: &dyn std::error::Error) -> Self {
        let mut message = error.to_string();
        let mut source = error.source();
        while let Some(cause) = source {
            let text = cause.to_string();
            // Some errors' texts hold their cause's already.
            if !message.contains(&text) {
                message.push_str(": ");
                message.push_str(&text);
            }
            source = cause.source();
        }
        Self {
            message,
            hint: None,
            exit_code: FAILED,
        }
    }

    fn saying(message: impl Into<String>) -> Self {
        Self {
            message: message.into(),
            hint: None,
            exit_code: FAILED,
        }
    }

    fn exiting(mut self, exit_code: c_int) -> Self {
        self.exit_code = exit_code;
        self
    }

    fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }
}

/// The whole program.
pub fn main(invocation: Invocation) -> c_int {
    match run(invocation) {
        Ok(status) => status,
        Err(failure) => {
            logging::say(PROGRAM, &failure.message, failure.hint.as_deref());
            failure.exit_code
        }
    }
}

fn run(invocation: Invocation) -> Result<c_int, Failure> {
    let startup = Startup::take(invocation)
        .map_err(|error| Failure::saying(format!("cannot start: {error}")))?;
    let command_line = match CommandLine::try_parse_from(&startup.arguments) {
        Ok(command_line) => command_line,
        Err(error) => {
            let error = with_tip(error, &startup.arguments);
            let error = variables::sourced(error, &CommandLine::command(), &startup.arguments);
            let _ = error.print();
            return Ok(if error.use_stderr() { USAGE } else { SUCCESS });
        }
    };
    let startup = Arc::new(startup);
    // The log has a thread of its own, and a signal acts on any thread that doesn't block it: a
    // session's signals are blocked before that thread is there.
    let signals = match command_line.command {
        Subcommands::Exec(_) | Subcommands::Shell(_) => exec::SIGNALS,
        _ => &[],
    };
    let signals = SignalWatch::new(startup.acting(signals))
        .map_err(|error| Failure::saying(format!("cannot wait for signals: {error}")))?;
    // A variable that is set to nothing isn't a choice.
    let log = Some(command_line.log.as_str()).filter(|log| !log.is_empty());
    let _writer = logging::start(log.unwrap_or(LOG), command_line.log_format)
        .map_err(|error| Failure::new(&error).exiting(USAGE))?;
    match command_line.command {
        Subcommands::Exec(arguments) => exec::exec(&arguments, startup, signals),
        Subcommands::Shell(arguments) => exec::shell(arguments, startup, signals),
        Subcommands::Check(arguments) => match check::run(&arguments, &mut io::stdout()) {
            Ok(answer) => Ok(answer.exit_code().into()),
            Err(error) => Err(Failure::new(&error).exiting(error.exit_code().into())),
        },
        Subcommands::Audit(arguments) => audit::audit(&arguments),
        Subcommands::Replay(arguments) => replay::replay(&arguments),
        Subcommands::Suggest(arguments) => replay::suggest(&arguments),
        Subcommands::Watch(arguments) => watch::watch(&arguments),
        Subcommands::Approvals(arguments) => approvals::approvals(&arguments),
        Subcommands::Sessions(arguments) => sessions::sessions(&arguments),
        Subcommands::Token(arguments) => match token::run(&arguments, &mut io::stdout()) {
            Ok(()) => Ok(SUCCESS),
            Err(error) => Err(Failure::new(&error).exiting(1)),
        },
        Subcommands::Doctor(arguments) => doctor::doctor(&arguments),
        Subcommands::Completions(arguments) => manual::completions(&arguments),
        Subcommands::Manual(arguments) => manual::manual(&arguments),
    }
}

/// Says where a command belongs that stands among the options.
fn with_tip(mut error: clap::Error, arguments: &[OsString]) -> clap::Error {
    let is = |word: &OsString, names: &[&str]| names.iter().any(|name| word == name);
    let Some(ContextValue::String(stray)) = error.get(ContextKind::InvalidArg) else {
        return error;
    };
    let subcommand = arguments
        .iter()
        .find(|word| is(word, &["exec", "shell", "check"]));
    let has_separator = arguments.iter().any(|word| is(word, &["--"]));
    let begins = arguments.iter().position(|word| is(word, &[stray]));
    let (Some(subcommand), Some(begins)) = (subcommand, begins) else {
        return error;
    };
    // As with `sh -c COMMAND`.
    let is_string = subcommand == "exec" && stray == "-c";
    let is_option = stray.starts_with('-') && !is_string;
    if error.kind() != ErrorKind::UnknownArgument || has_separator || is_option {
        return error;
    }
    let begins = begins + usize::from(is_string);
    if begins == arguments.len() {
        return error;
    }
    let words = arguments.iter().skip(begins).map(|word| word.as_bytes());
    let tip = format!(
        "a command stands behind `--`: execgate {} ... -- {}",
        subcommand.display(),
        text::command_line(words, 1_000)
    );
    let tips = ContextValue::StyledStrs(vec![tip.into()]);
    error.insert(ContextKind::Suggested, tips);
    error
}
