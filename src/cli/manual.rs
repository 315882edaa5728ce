//! `execgate completions` and `execgate manual`: what shells and man(1) are to know of the programs.

use std::ffi::c_int;
use std::io::{self, Write};
use std::path::PathBuf;

use clap::{Args, CommandFactory, ValueEnum};

use super::{CommandLine, Failure, SUCCESS};
use crate::policyd::command::PolicydArgs;

/// It couldn't be written.
const UNWRITTEN: c_int = 1;

const EXAMPLES: &str = "\
Examples:
  execgate completions bash > ~/.local/share/bash-completion/completions/execgate
  execgate completions zsh --program execgate-policyd > ~/.zfunc/_execgate-policyd

`make install` puts them, and man pages, where shells and man(1) look for them.

Exit codes:
  0  written
  1  it couldn't be written
  2  the command line is wrong
";

/// The command line of `completions`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct CompletionsArguments {
    /// The shell to write them for
    #[arg(value_name = "SHELL")]
    shell: clap_complete::Shell,

    /// The program whose command line is completed
    #[arg(long, value_name = "PROGRAM", default_value = "execgate")]
    program: Program,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Program {
    Execgate,
    ExecgatePolicyd,
}

impl Program {
    fn command(self) -> clap::Command {
        match self {
            Self::Execgate => CommandLine::command(),
            Self::ExecgatePolicyd => PolicydArgs::command(),
        }
    }
}

pub(super) fn completions(arguments: &CompletionsArguments) -> Result<c_int, Failure> {
    let mut command = arguments.program.command();
    let name = command.get_name().to_owned();
    // Into memory first: the generator takes a reader that went away for a fault of its own.
    let mut script = Vec::new();
    clap_complete::generate(arguments.shell, &mut command, name, &mut script);
    let mut out = io::stdout().lock();
    out.write_all(&script)
        .and_then(|()| out.flush())
        .map_err(|error| {
            Failure::saying(format!("cannot write the completions: {error}")).exiting(UNWRITTEN)
        })?;
    Ok(SUCCESS)
}

/// The command line of `manual`.
#[derive(Debug, Args)]
pub(super) struct ManualArguments {
    /// The directory to write them into; it has to be there
    #[arg(value_name = "DIRECTORY")]
    directory: PathBuf,
}

pub(super) fn manual(arguments: &ManualArguments) -> Result<c_int, Failure> {
    let directory = &arguments.directory;
    for program in [Program::Execgate, Program::ExecgatePolicyd] {
        clap_mangen::generate_to(program.command(), directory).map_err(|error| {
            let place = directory.display();
            Failure::saying(format!("cannot write man pages into {place}: {error}"))
                .exiting(UNWRITTEN)
        })?;
    }
    Ok(SUCCESS)
}
