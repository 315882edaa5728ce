//! Where the programs' logs go: standard error, through a thread of its own.
//!
//! Invariants: whoever logs doesn't wait. A reader of standard error that is slow or stuck costs lines of
//! the log, and no verdict its time. As JSON each line is one object, the last words of a program that fails
//! included.
//!
//! Not here: what is logged.

use std::io::{self, IsTerminal, Write};
use std::sync::OnceLock;
use std::time::SystemTime;

use clap::ValueEnum;
use tracing_appender::non_blocking::{NonBlockingBuilder, WorkerGuard};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::ParseError;

/// Lines that wait to be written at most; later ones are dropped.
const WAITING_LINES: usize = 4096;

/// How the program's log is written, once that is known.
static FORMAT: OnceLock<LogFormat> = OnceLock::new();

/// How logs are written.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// One JSON object a line: timestamp, level, message, and what the line is about, such as session, exec,
    /// gate and trace.
    Json,
}

/// Starts logging what `filter` lets through, such as `warn` or `execgate::link=debug`. What is logged
/// before the returned value is dropped gets written.
///
/// # Errors
/// A filter that makes no sense.
pub fn start(filter: &str, format: LogFormat) -> Result<WorkerGuard, ParseError> {
    let _ = FORMAT.set(format);
    let filter = EnvFilter::try_new(filter)?;
    let (writer, guard) = NonBlockingBuilder::default()
        .lossy(true)
        .buffered_lines_limit(WAITING_LINES)
        .finish(io::stderr());
    let log = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(writer)
        .with_target(false);
    match format {
        LogFormat::Text => log.with_ansi(io::stderr().is_terminal()).init(),
        LogFormat::Json => log
            .json()
            .flatten_event(true)
            .with_current_span(false)
            .with_span_list(false)
            .init(),
    }
    Ok(guard)
}

/// Writes what a program has to say whatever its log lets through, and waits for that: why it fails, and
/// perhaps what to do. There is nowhere left to say that standard error can't be written.
pub fn say(program: &str, message: &str, hint: Option<&str>) {
    let text = match FORMAT.get().copied().unwrap_or_default() {
        LogFormat::Text => {
            let hint = hint.map_or_else(String::new, |hint| format!("hint: {hint}\n"));
            format!("{program}: {message}\n{hint}")
        }
        LogFormat::Json => {
            let mut line = serde_json::json!({
                "timestamp": humantime::format_rfc3339_micros(SystemTime::now()).to_string(),
                "level": "ERROR",
                "message": message,
                "program": program,
            });
            if let Some(hint) = hint {
                line["hint"] = hint.into();
            }
            format!("{line}\n")
        }
    };
    let _ = io::stderr().write_all(text.as_bytes());
}
