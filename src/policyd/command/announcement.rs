//! Telling whoever started the service that it serves, and where.

use std::io::Write;

use sd_notify::NotifyState;

use super::StartOutput;
use crate::policyd::listen::ListenAddress;

/// What whoever started the service is told.
pub(super) struct Started<'a> {
    pub(super) bound: &'a ListenAddress,
    pub(super) revision: &'a str,
    pub(super) console: Option<&'a str>,
    pub(super) metrics: Option<&'a str>,
}

pub(super) fn announce(
    output: StartOutput,
    started: &Started<'_>,
    out: &mut dyn Write,
) -> std::io::Result<()> {
    let bound = started.bound;
    match output {
        StartOutput::Text => {
            writeln!(out, "listening on {bound}")?;
            if let Some(console) = started.console {
                writeln!(out, "console at {console}")?;
            }
        }
        StartOutput::Json => {
            let mut line = serde_json::json!({
                "listening": bound.to_string(),
                "rules_revision": started.revision,
            });
            if let Some(console) = started.console {
                line["console"] = console.into();
            }
            if let Some(metrics) = started.metrics {
                line["metrics"] = metrics.into();
            }
            writeln!(out, "{line}")?;
        }
    }
    out.flush()
}

/// Whether it serves, where systemd asks for that (`Type=notify`); elsewhere this does nothing.
pub(super) fn tell_systemd(state: NotifyState<'_>) {
    if let Err(error) = sd_notify::notify(&[state]) {
        tracing::warn!("systemd isn't told whether this service is ready: {error}");
    }
}
