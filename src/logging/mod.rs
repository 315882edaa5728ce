//! Where the programs' logs go: standard error, through a thread of its own.
//!
//! Invariants: whoever logs doesn't wait. A reader of standard error that is slow or stuck costs lines of
//! the log, and no verdict its time. As JSON each line is one object, the last words of a program that fails
//! included.
//!
//! Not here: what is logged.

mod writer;

use std::io::{self, IsTerminal, Write};
use std::sync::OnceLock;
use std::time::SystemTime;

use clap::ValueEnum;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::{LevelFilter, ParseError};

pub use writer::Written;

/// The parts of this package that a filter may name, behind `execgate::`.
const PARTS: [&str; 16] = [
    "cli",
    "journal",
    "link",
    "logging",
    "metrics",
    "model",
    "pb",
    "policyd",
    "program",
    "sandbox",
    "server",
    "stand_in",
    "sys",
    "transport",
    "wire",
    "wrapper",
];

/// Packages that log something and that a filter may name.
const PACKAGES: [&str; 10] = [
    "h2",
    "hyper",
    "hyper_util",
    "mio",
    "rustls",
    "starlark",
    "tokio",
    "tokio_rustls",
    "tonic",
    "tower",
];

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

/// Why a filter can't be used.
#[derive(Debug)]
pub enum FilterError {
    /// It isn't written as filters are.
    Malformed(ParseError),
    /// It names what logs nothing, and so would silence everything.
    Unknown(String),
}

impl std::fmt::Display for FilterError {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Malformed(error) => write!(formatter, "{error}")?,
            Self::Unknown(name) => {
                write!(
                    formatter,
                    "{name:?} is no level, and nothing of that name logs"
                )?;
            }
        }
        formatter.write_str(
            "; write error, warn, info, debug, trace or off, or PART=LEVEL, such as execgate::link=debug, or \
             several with commas: info,execgate::policyd=debug. The parts behind execgate:: are ",
        )?;
        formatter.write_str(&PARTS.join(", "))?;
        write!(formatter, "; packages that log are {}", PACKAGES.join(", "))
    }
}

impl std::error::Error for FilterError {}

/// A filter as it stands on a command line, if it can be used.
///
/// # Errors
/// What is wrong with it, and what is to be written.
pub fn check_filter(text: &str) -> Result<String, FilterError> {
    parse(text).map(|_| text.to_owned())
}

/// What nothing of that name logs by would be passed over in silence, with all that it was meant to show.
fn parse(filter: &str) -> Result<EnvFilter, FilterError> {
    let parsed = EnvFilter::try_new(filter).map_err(FilterError::Malformed)?;
    let is_level = |text: &str| text.parse::<LevelFilter>().is_ok();
    for directive in filter.split(',').map(str::trim) {
        let end = directive.find(['=', '[']).unwrap_or(directive.len());
        let target = &directive[..end];
        // A span's name may stand alone, in brackets.
        if !target.is_empty() && !is_level(target) && !is_known(target) {
            return Err(FilterError::Unknown(target.to_owned()));
        }
    }
    Ok(parsed)
}

fn is_known(target: &str) -> bool {
    let mut path = target.split("::");
    match (path.next(), path.next()) {
        (Some("execgate"), Some(part)) => PARTS.contains(&part),
        (Some("execgate"), None) => true,
        (Some(package), _) => PACKAGES.contains(&package),
        (None, _) => false,
    }
}

/// Whether what is written there is to have colours: on a terminal that `TERM` says can show them, unless
/// `NO_COLOR` is set to something.
pub fn has_colours(output: &impl IsTerminal) -> bool {
    let refuses = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    let can = std::env::var_os("TERM").is_some_and(|term| !term.is_empty() && term != "dumb");
    output.is_terminal() && can && !refuses
}

/// Starts logging what `filter` lets through, such as `warn` or `execgate::link=debug`. What is logged
/// before the returned value is dropped gets written, unless that takes longer than a second.
///
/// # Errors
/// A filter that makes no sense.
pub fn start(filter: &str, format: LogFormat) -> Result<Written, FilterError> {
    let _ = FORMAT.set(format);
    let filter = parse(filter)?;
    let (lines, written) = writer::to(io::stderr());
    let log = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(move || lines.clone())
        .with_target(false);
    match format {
        LogFormat::Text => log.with_ansi(has_colours(&io::stderr())).init(),
        LogFormat::Json => log
            .json()
            .flatten_event(true)
            .with_current_span(false)
            .with_span_list(false)
            .init(),
    }
    Ok(written)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filter_that_would_silence_the_log_is_refused_with_what_is_taken() {
        for filter in [
            "warn",
            "WARN",
            "off",
            "3",
            "execgate=debug",
            "execgate",
            "info,execgate::link=trace,h2=off",
            "execgate::policyd::rules=debug",
            "[session]=debug",
            "execgate::link[session{id=1}]=debug",
            "info,",
        ] {
            assert!(check_filter(filter).is_ok(), "{filter}");
        }
        for (filter, named) in [
            ("warm", "\"warm\""),
            ("info,warm", "\"warm\""),
            ("execgat=debug", "\"execgat\""),
            ("execgate::lnk=debug", "\"execgate::lnk\""),
            ("policyd=debug", "\"policyd\""),
            ("execgate=loud", "level"),
        ] {
            let error = check_filter(filter).expect_err(filter).to_string();
            assert!(error.contains(named), "{filter}: {error}");
            assert!(
                error.contains("write error, warn, info"),
                "{filter}: {error}"
            );
            assert!(error.contains("execgate::link"), "{filter}: {error}");
        }
    }

    #[test]
    fn the_parts_that_can_be_named_are_those_that_there_are() {
        // What is only there for tests logs nothing.
        let source = include_str!("../lib.rs").replace("pub mod fuzzing;", "");
        let modules = source.lines().filter_map(|line| {
            let line = line
                .trim()
                .trim_start_matches("pub ")
                .trim_start_matches("pub(crate) ");
            line.strip_prefix("mod ")?.strip_suffix(';')
        });
        let mut modules: Vec<_> = modules.collect();
        modules.sort_unstable();
        assert_eq!(modules, PARTS);
    }
}
