//! Execs as JSON objects, one a line.

use std::time::Duration;

use base64::Engine;
use serde_json::{Map, Value, json};

use super::show::nanoseconds;
use crate::pb::audit::v1::{Exec, SessionFacts, ending};
use crate::pb::v1;
use crate::policyd::{described, text};

/// An exec on a line, in which whatever isn't plain is escaped.
#[must_use]
pub fn line(exec: &Exec) -> String {
    text::plain_json(&json_of(exec))
}

/// What the service answered.
fn answered(exec: &Exec) -> Value {
    let words = |text: &str| (!text.is_empty()).then(|| text.to_owned());
    let answer = exec.answer.clone().unwrap_or_default();
    json!({
        "verdict": words(&answer.verdict),
        "reason": words(&answer.reason),
        "reason_code": words(&answer.reason_code),
        "rule": words(&answer.rule),
        "policy_revision": words(&answer.policy_revision),
        "at": answer.answer_time.as_ref().map(ToString::to_string),
        "times": answer.answer_count,
        "monitored": super::show::is_monitored(exec),
        "approval": words(&answer.approval_id),
        "decided_by": words(&answer.decided_by),
        "escalate": answer.escalate.as_ref().map(described::escalate),
    })
}

/// What a line of `--output json` says.
fn json_of(exec: &Exec) -> Value {
    let mut object = Map::new();
    let words = |text: &str| (!text.is_empty()).then(|| text.to_owned());
    let id = |id: u64| (id != 0).then_some(id);
    let time = |time: &Option<prost_types::Timestamp>| time.as_ref().map(ToString::to_string);
    let seconds = |time: &Option<prost_types::Duration>| {
        let time = nanoseconds(time.as_ref()?).max(0).cast_unsigned();
        Some(Duration::from_nanos(time).as_secs_f64())
    };
    let mut insert = |name: &str, value: Value| object.insert(name.to_owned(), value);
    insert("session", json!(exec.session_id));
    insert("exec_id", json!(exec.exec_id));
    insert("parent_exec_id", json!(id(exec.parent_exec_id)));
    insert("position", json!(exec.position));
    insert("requested_at", json!(time(&exec.request_time)));
    insert("received_at", json!(time(&exec.receive_time)));
    let process = exec.process.as_ref();
    for (name, value) in [
        ("process_id", process.map(|process| process.process_id)),
        (
            "parent_process_id",
            process.map(|process| process.parent_process_id),
        ),
        ("user_id", process.map(|process| process.user_id)),
        ("group_id", process.map(|process| process.group_id)),
    ] {
        insert(name, json!(value));
    }
    let decision = exec.decision.clone().unwrap_or_default();
    for (name, value) in [
        ("verdict", &decision.verdict),
        ("code", &decision.code),
        ("reason", &decision.reason),
        ("reason_code", &decision.reason_code),
        ("rule", &decision.rule),
        ("policy_revision", &decision.policy_revision),
        ("withdrawn", &exec.withdrawal_reason),
    ] {
        insert(name, json!(words(value)));
    }
    insert("answered", answered(exec));
    insert("decided_at", json!(time(&decision.decision_time)));
    insert("waited_seconds", json!(seconds(&decision.waited)));
    let ending = exec.ending.clone().unwrap_or_default();
    insert("finished_at", json!(time(&ending.end_time)));
    let (mut exit_code, mut signal, mut start_error, mut replaced_by) = (None, None, None, None);
    match ending.status {
        Some(ending::Status::ExitCode(code)) => exit_code = Some(code),
        Some(ending::Status::Signal(number)) => signal = Some(number),
        Some(ending::Status::StartError(error)) => start_error = Some(error),
        Some(ending::Status::ReplacedByExecId(exec)) => replaced_by = Some(exec),
        None => {}
    }
    insert("exit_code", json!(exit_code));
    insert("signal", json!(signal));
    insert("start_error", json!(start_error));
    insert("replaced_by_exec_id", json!(replaced_by));
    insert("elapsed_seconds", json!(seconds(&ending.elapsed)));
    insert("user_time_seconds", json!(seconds(&ending.user_time)));
    insert("system_time_seconds", json!(seconds(&ending.system_time)));
    insert("peak_memory_bytes", json!(id(ending.peak_memory_bytes)));
    insert("gate", json!(words(&exec.gate)));
    insert("hostname", json!(words(&exec.hostname)));
    insert("user_name", json!(words(&exec.user_name)));
    insert("labels", json!(exec.labels));
    if !exec.program.is_empty() {
        insert_bytes(&mut object, "program", &exec.program);
    }
    insert_bytes(&mut object, "workdir", &exec.workdir);
    insert_words(&mut object, "argv", &exec.arguments);
    insert_words(&mut object, "environment_names", &exec.environment_names);
    let executable = described::executable(exec.executable.as_ref());
    object.insert("executable".to_owned(), executable);
    let workdir = described::protection(exec.workdir_protection());
    object.insert("workdir_protection".to_owned(), json!(workdir));
    object.insert(
        "redacted_arguments".to_owned(),
        json!(exec.redacted_arguments),
    );
    if let Some(facts) = &exec.session {
        object.insert("session_facts".to_owned(), session_facts(facts));
    }
    if let Some(difference) = &exec.environment_difference {
        let difference = described::environment(difference);
        object.insert("environment_difference".to_owned(), difference);
    }
    Value::Object(object)
}

/// What rules can know of the session.
fn session_facts(facts: &SessionFacts) -> Value {
    let mut object = Map::new();
    let user = facts.user.clone().unwrap_or_default();
    let sandbox = facts.sandbox.clone().unwrap_or_default();
    object.insert("user_id".to_owned(), json!(user.user_id));
    object.insert("group_id".to_owned(), json!(user.group_id));
    object.insert("user_name".to_owned(), json!(user.name));
    insert_bytes(&mut object, "workdir", &facts.workdir);
    // Left out where it was left out.
    let size: usize = facts
        .command_words
        .iter()
        .map(prost::bytes::Bytes::len)
        .sum();
    if facts.command_bytes == size as u64 {
        insert_words(&mut object, "command", &facts.command_words);
    }
    object.insert("command_bytes".to_owned(), json!(facts.command_bytes));
    let enforcement = match sandbox.enforcement() {
        v1::Enforcement::Full => "full",
        v1::Enforcement::Partial => "partial",
        v1::Enforcement::None | v1::Enforcement::Unspecified => "none",
    };
    object.insert(
        "sandbox".to_owned(),
        json!({
            "backend": sandbox.backend,
            "enforcement": enforcement,
            "profile": sandbox.profile,
            "not_enforced": sandbox.unenforced_parts,
            "version": sandbox.version,
            "limits": sandbox.limits,
            "not_granted": sandbox.ungranted_parts,
        }),
    );
    Value::Object(object)
}

fn base64(bytes: &[u8]) -> String {
    base64::engine::general_purpose::STANDARD.encode(bytes)
}

/// Bytes as text, and in base64 as well where the text doesn't say exactly what they are.
fn insert_bytes(object: &mut Map<String, Value>, name: &str, bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    if matches!(text, std::borrow::Cow::Owned(_)) {
        object.insert(format!("{name}_base64"), json!(base64(bytes)));
    }
    object.insert(name.to_owned(), json!(text));
}

/// As [`insert_bytes`], for a list.
fn insert_words(object: &mut Map<String, Value>, name: &str, words: &[prost::bytes::Bytes]) {
    let texts: Vec<_> = words
        .iter()
        .map(|word| String::from_utf8_lossy(word))
        .collect();
    if texts
        .iter()
        .any(|text| matches!(text, std::borrow::Cow::Owned(_)))
    {
        let exact: Vec<_> = words.iter().map(|word| base64(word)).collect();
        object.insert(format!("{name}_base64"), json!(exact));
    }
    object.insert(name.to_owned(), json!(texts));
}
