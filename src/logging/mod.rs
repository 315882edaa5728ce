//! Where the programs' logs go: standard error, through a thread of its own.
//!
//! Invariant: whoever logs doesn't wait. A reader of standard error that is slow or stuck costs lines of
//! the log, and no verdict its time.
//!
//! Not here: what is logged.

use std::io::{self, IsTerminal};

use tracing_appender::non_blocking::{NonBlockingBuilder, WorkerGuard};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::ParseError;

/// Lines that wait to be written at most; later ones are dropped.
const WAITING_LINES: usize = 4096;

/// Starts logging what `filter` lets through, such as `warn` or `execgate::link=debug`. What is logged
/// before the returned value is dropped gets written.
///
/// # Errors
/// A filter that makes no sense.
pub fn start(filter: &str) -> Result<WorkerGuard, ParseError> {
    let filter = EnvFilter::try_new(filter)?;
    let (writer, guard) = NonBlockingBuilder::default()
        .lossy(true)
        .buffered_lines_limit(WAITING_LINES)
        .finish(io::stderr());
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(writer)
        .with_ansi(io::stderr().is_terminal())
        .with_target(false)
        .init();
    Ok(guard)
}
