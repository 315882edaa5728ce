//! `audit verify`: says what was proven of a store, and what wasn't.

use std::io::Write;

use serde_json::json;

use super::{AuditError, AuditForm, VerifyArgs};
use crate::policyd::store::{self, Verification, Verified};

/// Looks at a store, and says how it is.
///
/// # Errors
/// When it can't be read, the outcome can't be written, and when it isn't what it was.
pub fn verify(args: &VerifyArgs, out: &mut dyn Write) -> Result<(), AuditError> {
    let found = store::verify(&args.data, &args.anchors)?;
    match args.output {
        AuditForm::Text => write_text(&found, args.anchors.len(), out)?,
        AuditForm::Json => {
            let fault = match &found.verified {
                Verified::Intact => json!(null),
                Verified::Broken { position, what } => {
                    json!({ "kind": "broken", "position": position, "what": what })
                }
                Verified::Elsewhere { anchor, what } => {
                    json!({ "kind": "anchor", "position": anchor.position, "what": what })
                }
                Verified::Differs { what } => json!({ "kind": "list", "what": what }),
            };
            let outcome = json!({
                "intact": found.verified == Verified::Intact,
                "events": found.events,
                "start": found.start.to_string(),
                "head": found.head.to_string(),
                "anchors": args.anchors.len(),
                "sessions_without_beginning": found.headless_sessions,
                "fault": fault,
            });
            writeln!(out, "{outcome}")?;
        }
    }
    out.flush()?;
    match found.verified {
        Verified::Intact => Ok(()),
        Verified::Broken { position, what } => Err(AuditError::NotVerified(format!(
            "position {position}: {what}"
        ))),
        Verified::Elsewhere { anchor, what } => {
            Err(AuditError::NotVerified(format!("anchor {anchor}: {what}")))
        }
        Verified::Differs { what } => Err(AuditError::NotVerified(what)),
    }
}

fn write_text(found: &Verification, anchors: usize, out: &mut dyn Write) -> std::io::Result<()> {
    let (start, head) = (found.start, found.head);
    writeln!(
        out,
        "{} events looked at, positions {} to {}",
        found.events,
        start.position + 1,
        head.position
    )?;
    if start.position > 0 {
        writeln!(
            out,
            "those up to {start} were removed by retention, as a later event says"
        )?;
    }
    writeln!(out, "head: {head}")?;
    if found.verified != Verified::Intact {
        return Ok(());
    }
    writeln!(
        out,
        "none was altered or removed in between, and lists say what the events say"
    )?;
    if found.headless_sessions > 0 {
        writeln!(
            out,
            "not proven: what lists say of {} sessions whose beginning was removed, and no later event says",
            found.headless_sessions
        )?;
    }
    if anchors == 0 {
        writeln!(
            out,
            "not proven, without --anchor: that the store isn't another one as a whole, and that nothing was cut \
             off at its end. Note the head elsewhere"
        )
    } else {
        writeln!(
            out,
            "all {anchors} anchors are met; not proven: that nothing was cut off behind the last of them"
        )
    }
}
