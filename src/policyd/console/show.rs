//! What the page gets to show: times in milliseconds since 1970, durations in milliseconds, text as it may be shown.

use std::borrow::Cow;
use std::collections::HashMap;

use prost_types::{Duration, Timestamp};
use serde_json::{Value, json};

use crate::pb::approval::v1 as approval;
use crate::pb::audit::v1 as record;
use crate::pb::session::v1 as session;
use crate::policyd::approvals::json::{command_line, writable_path};
use crate::policyd::{described, text};

/// Longest command line in bytes, but for what somebody is to decide of: that is whole.
const COMMAND: usize = 4_096;
/// Longest sentence and longest name of an exec, in bytes: a page shows the beginning of others, the record has them whole.
const SENTENCE: usize = 2_048;
const NAME: usize = 512;

fn time(time: Option<&Timestamp>) -> Option<f64> {
    let time = time?;
    #[allow(
        clippy::cast_precision_loss,
        reason = "milliseconds since 1970 are far below 2^53"
    )]
    let seconds = time.seconds as f64;
    Some(seconds * 1e3 + f64::from(time.nanos) / 1e6)
}

fn duration(duration: Option<&Duration>) -> Option<f64> {
    let duration = duration?;
    #[allow(
        clippy::cast_precision_loss,
        reason = "an exec doesn't take millions of years"
    )]
    let seconds = duration.seconds as f64;
    Some(seconds * 1e3 + f64::from(duration.nanos) / 1e6)
}

fn set(text: &str) -> Option<&str> {
    (!text.is_empty()).then_some(text)
}

/// The text where one is set, or its beginning.
fn cut(text: &str, most: usize) -> Option<Cow<'_, str>> {
    let mut end = text.len().min(most);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    match &text[..end] {
        "" => None,
        all if end == text.len() => Some(all.into()),
        beginning => Some(format!("{beginning}…").into()),
    }
}

fn path(bytes: &[u8]) -> Option<String> {
    (!bytes.is_empty()).then(|| text::command_line([bytes], COMMAND))
}

/// The same of what somebody is to decide of.
fn whole(bytes: &[u8]) -> Option<String> {
    (!bytes.is_empty()).then(|| text::quoted(bytes))
}

fn labels(labels: &HashMap<String, String>) -> Vec<(&String, &String)> {
    let mut labels: Vec<_> = labels.iter().collect();
    labels.sort();
    labels
}

/// An exec on record.
pub(super) fn exec(exec: &record::Exec) -> Value {
    let decision = exec.decision.clone().unwrap_or_default();
    let ending = exec.ending.clone().unwrap_or_default();
    let monitored = exec
        .answer
        .as_ref()
        .filter(|answer| answer.mode() == record::AnswerMode::Monitored);
    let name = exec.program.rsplit(|byte| *byte == b'/').next();
    let (mut exit_code, mut signal, mut start_error) = (None, None, None);
    match &ending.status {
        Some(record::ending::Status::ExitCode(code)) => exit_code = Some(code),
        Some(record::ending::Status::Signal(number)) => signal = Some(number),
        Some(record::ending::Status::StartError(error)) => start_error = Some(error),
        Some(record::ending::Status::ReplacedByExecId(_)) | None => {}
    }
    json!({
        "session": exec.session_id,
        "exec": exec.exec_id,
        "parent": exec.parent_exec_id,
        "time": time(exec.request_time.as_ref().or(exec.receive_time.as_ref())),
        "command": exec.command_line,
        "program": path(&exec.program),
        "program_name": name.and_then(path),
        "workdir": path(&exec.workdir),
        "verdict": cut(&decision.verdict, NAME),
        "would": monitored.map(|answer| cut(&answer.verdict, NAME)),
        "withdrawn": cut(&exec.withdrawal_reason, NAME),
        "code": cut(&decision.code, NAME),
        "reason": cut(&decision.reason, SENTENCE),
        "reason_code": cut(&decision.reason_code, NAME),
        "rule": cut(&decision.rule, NAME),
        "policy_revision": cut(&decision.policy_revision, NAME),
        "waited": duration(decision.waited.as_ref()),
        "exit_code": exit_code,
        "signal": signal,
        "start_error": start_error.and_then(|error| cut(error, SENTENCE)),
        "elapsed": duration(ending.elapsed.as_ref()),
        "process": exec.process.map(|process| process.process_id),
        "parent_process": exec.process.map(|process| process.parent_process_id),
        "user": set(&exec.user_name),
        "gate": set(&exec.gate),
    })
}

/// A session on record.
pub(super) fn recorded_session(session: &record::Session) -> Value {
    json!({
        "id": session.session_id,
        "command": session.command_line,
        "gate": set(&session.gate),
        "hostname": set(&session.hostname),
        "user": set(&session.user_name),
        "workdir": path(&session.workdir),
        "labels": labels(&session.labels),
        "sandbox": set(&session.sandbox),
        "enforcement": set(&session.enforcement),
        "sandbox_info": described::sandbox(session.sandbox_info.as_ref()),
        "started": time(session.start_time.as_ref()),
        "ended": time(session.end_time.as_ref()),
        "end_reason": set(&session.end_reason),
        "terminated": session.termination.as_ref().map(|termination| json!({
            "by": termination.terminated_by,
            "reason": set(&termination.reason),
            "at": time(termination.termination_time.as_ref()),
        })),
        "lost_events": session.lost_event_count,
    })
}

/// A session that is connected.
pub(super) fn live_session(session: &session::Session) -> Value {
    json!({
        "id": session.session_id,
        "command": text::command_line(session.command.iter().map(|word| &word[..]), COMMAND),
        "gate": session.gate,
        "hostname": set(&session.hostname),
        "user": set(&session.user_name),
        "labels": labels(&session.labels),
        "sandbox": set(&session.sandbox),
        "sandbox_info": described::sandbox(session.sandbox_info.as_ref()),
        "since": time(session.connected_at.as_ref()),
        "pending": session.pending_approvals,
    })
}

/// An approval.
pub(super) fn approval(approval: &approval::Approval) -> Value {
    let exec = approval.exec.clone().unwrap_or_default();
    let session = approval.session.clone().unwrap_or_default();
    let resolution = approval.resolution.clone().unwrap_or_default();
    let state = match approval.state() {
        approval::ApprovalState::Unspecified => "unknown",
        approval::ApprovalState::Pending => "pending",
        approval::ApprovalState::Approved => "approved",
        approval::ApprovalState::Denied => "denied",
        approval::ApprovalState::Expired => "expired",
        approval::ApprovalState::Withdrawn => "withdrawn",
    };
    let effect = match &approval.effect {
        Some(approval::approval::Effect::Run(_)) => "runs inside the sandbox",
        Some(approval::approval::Effect::Escalate(_)) => "runs outside the sandbox",
        None => "isn't known",
    };
    json!({
        "id": approval.approval_id,
        "state": state,
        "opened": time(approval.opened_at.as_ref()),
        "expires": time(approval.expires_at.as_ref()),
        "asked": set(&approval.asked),
        "rule": approval.rule,
        "reason": set(&approval.reason),
        "effect": effect,
        "command": command_line(approval),
        "words": exec.arguments.len().max(1),
        "writable": writable_path(approval).map(text::quoted),
        "argument_count": exec.arguments.len().saturating_sub(1),
        "program": whole(&exec.file),
        "workdir": whole(&exec.workdir),
        "exec": exec.exec_id,
        "session": session.session_id,
        "gate": session.gate,
        "hostname": set(&session.hostname),
        "user": set(&session.user_name),
        "sandbox": set(&session.sandbox),
        "enforcement": set(&session.enforcement),
        "labels": labels(&session.labels),
        "closed": time(resolution.resolved_at.as_ref()),
        "closed_by": set(&resolution.resolved_by),
        "note": set(&resolution.note),
    })
}
