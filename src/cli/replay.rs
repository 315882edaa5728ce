//! `execgate replay` and `execgate suggest`, of a directory, of exported lines, or by asking a policy service.

use std::ffi::c_int;
use std::io::{self, Write};

use clap::Args;

use super::Failure;
use super::audit::RemoteRecord;
use super::output;
use super::service::ServiceOptions;
use crate::policyd::replay::{self, ReplayArgs, ReplayError, Selection, Source};
use crate::policyd::suggest::{self, SuggestArgs};

/// The command line of `replay`.
#[derive(Debug, Args)]
pub(super) struct ReplayArguments {
    #[command(flatten)]
    replay: ReplayArgs,

    #[command(flatten)]
    service: ServiceOptions,
}

fn failed(error: &ReplayError) -> Failure {
    let mut failure = Failure::new(error).exiting(error.exit_code().into());
    if let ReplayError::Record(error) = error {
        failure.hint = error.hint().map(str::to_owned);
    }
    failure
}

/// Works with the record that a service has, where one is named, and else with what the command line says.
fn with_source<T>(
    service: &ServiceOptions,
    selection: &Selection,
    work: impl FnOnce(Source<'_>, &mut dyn Write) -> Result<T, ReplayError>,
) -> Result<T, Failure> {
    let out = &mut io::BufWriter::new(output::stdout());
    let caller = match &selection.from {
        Some(from) => service.caller_unless("--from", Some(from), "")?,
        None => {
            service.caller_unless("--data", selection.data.as_deref(), "EXECGATE_POLICYD_DATA")?
        }
    };
    let done = match caller {
        Some(caller) => work(Source::Record(&mut RemoteRecord::new(caller)?), out),
        None => work(Source::Named, out),
    };
    done.map_err(|error| failed(&error))
}

/// The command line of `suggest`.
#[derive(Debug, Args)]
pub(super) struct SuggestArguments {
    #[command(flatten)]
    suggest: SuggestArgs,

    #[command(flatten)]
    service: ServiceOptions,
}

pub(super) fn suggest(arguments: &SuggestArguments) -> Result<c_int, Failure> {
    let answer = with_source(
        &arguments.service,
        &arguments.suggest.selection,
        |source, out| suggest::run(&arguments.suggest, source, out),
    )?;
    Ok(answer.exit_code().into())
}

pub(super) fn replay(arguments: &ReplayArguments) -> Result<c_int, Failure> {
    let answer = with_source(
        &arguments.service,
        &arguments.replay.selection,
        |source, out| replay::run(&arguments.replay, source, out),
    )?;
    Ok(answer.exit_code().into())
}
