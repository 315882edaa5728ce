//! Approvals as JSON, for programs: on command lines and in webhooks.

use std::time::SystemTime;

use serde_json::{Value, json};

use crate::pb::approval::v1 as pb;
use crate::pb::v1;
use crate::policyd::text;

/// A time as people and programs read it; empty where there is none.
pub(crate) fn time(time: Option<prost_types::Timestamp>) -> String {
    let time = time.and_then(|time| SystemTime::try_from(time).ok());
    time.map_or_else(String::new, |time| {
        humantime::format_rfc3339_seconds(time).to_string()
    })
}

/// A state's stable name.
pub(crate) fn state_name(state: pb::ApprovalState) -> &'static str {
    match state {
        pb::ApprovalState::Unspecified => "unknown",
        pb::ApprovalState::Pending => "pending",
        pb::ApprovalState::Approved => "approved",
        pb::ApprovalState::Denied => "denied",
        pb::ApprovalState::Expired => "expired",
        pb::ApprovalState::Withdrawn => "withdrawn",
    }
}

/// A decision's stable name.
pub(crate) fn decision_name(decision: pb::Decision) -> &'static str {
    match decision {
        pb::Decision::Approve => "approve",
        pb::Decision::Deny => "deny",
        pb::Decision::Unspecified => "unknown",
    }
}

/// The command of an approval, quoted as a shell would read it, and fit for a terminal. Whole, for nobody is to decide of
/// a part: what a person is asked about is bounded, though quoting may make four bytes of one.
pub(crate) fn command_line(approval: &pb::Approval) -> String {
    super::approval::command_line(approval, usize::MAX)
}

/// What follows if it is approved, in words that are fit for a terminal.
pub(crate) fn effect_name(effect: Option<&pb::approval::Effect>) -> String {
    use v1::escalate::Execution;
    match effect {
        Some(pb::approval::Effect::Run(_)) => "run inside the sandbox".to_owned(),
        Some(pb::approval::Effect::Escalate(escalate)) => match &escalate.execution {
            Some(Execution::Unsandboxed(_)) => "run outside of any sandbox".to_owned(),
            Some(Execution::TurnDefault(_)) => {
                "run apart from the session, under its own kind of sandbox".to_owned()
            }
            Some(Execution::Permissions(permissions)) => {
                let paths = |paths: &[prost::bytes::Bytes]| {
                    text::command_line(paths.iter().map(|path| &path[..]), 4_096)
                };
                let network = match permissions.network_access() {
                    v1::NetworkAccess::Allowed => "with",
                    v1::NetworkAccess::Denied | v1::NetworkAccess::Unspecified => "without",
                };
                format!(
                    "run outside of the session's sandbox, {network} network, may read [{}], may write [{}]",
                    paths(&permissions.readable_paths),
                    paths(&permissions.writable_paths)
                )
            }
            None => "nothing that is known".to_owned(),
        },
        None => "nothing that is known".to_owned(),
    }
}

/// What the session can write of the program, and so could have made of it what it likes; `None` where it
/// can't, or the gate doesn't tell.
pub(crate) fn writable_path(approval: &pb::Approval) -> Option<&[u8]> {
    let executable = approval.exec.as_ref()?.executable.as_ref()?;
    Some(&executable.writable_path[..]).filter(|path| !path.is_empty())
}

fn lossy(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn texts(words: &[prost::bytes::Bytes]) -> Vec<String> {
    words.iter().map(|word| lossy(word)).collect()
}

/// An approval. Bytes that aren't UTF-8 are replaced.
pub(crate) fn approval(approval: &pb::Approval) -> Value {
    let exec = approval.exec.clone().unwrap_or_default();
    let session = approval.session.clone().unwrap_or_default();
    let resolution = approval.resolution.as_ref();
    json!({
        "approval": approval.approval_id,
        "state": state_name(approval.state()),
        "opened_at": time(approval.opened_at),
        "expires_at": time(approval.expires_at),
        "asked": approval.asked,
        "rule": approval.rule,
        "reason": approval.reason,
        "policy_revision": approval.policy_revision,
        "effect": effect_name(approval.effect.as_ref()),
        "program": lossy(&exec.file),
        "argv": texts(&exec.arguments),
        "command_line": command_line(approval),
        "workdir": lossy(&exec.workdir),
        "writable_path": writable_path(approval).map(lossy),
        "environment_names": texts(&exec.environment_names),
        "user_id": exec.user_id,
        "user_name": session.user_name,
        "process_id": exec.process_id,
        "exec_id": exec.exec_id,
        "session": session.session_id,
        "gate": session.gate,
        "hostname": session.hostname,
        "labels": session.labels,
        "sandbox": session.sandbox,
        "enforcement": session.enforcement,
        "resolved_by": resolution.map(|resolution| &resolution.resolved_by),
        "resolved_at": resolution.map(|resolution| time(resolution.resolved_at)),
        "note": resolution.map(|resolution| &resolution.note),
        "remembered": resolution.and_then(|resolution| resolution.grant.as_ref()).map(grant),
    })
}

/// A decision that holds for later execs.
pub(crate) fn grant(grant: &pb::Grant) -> Value {
    json!({
        "approval": grant.approval_id,
        "decision": decision_name(grant.decision()),
        "granted_by": grant.granted_by,
        "granted_at": time(grant.granted_at),
        "expires_at": time(grant.expires_at),
        "session": Some(&grant.session_id).filter(|session| !session.is_empty()),
        "gate": grant.gate,
        "user_id": grant.user_id,
        "rule": grant.rule,
        "program": lossy(&grant.file),
        "arguments": texts(&grant.arguments),
        "workdir": Some(lossy(&grant.workdir)).filter(|workdir| !workdir.is_empty()),
        "uses": grant.uses,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_is_whole_however_long_it_gets_by_being_quoted() {
        let noise = vec![1; 32 << 10];
        let words = [&b"uname"[..], &noise, b"--harmless", b"--evil"];
        let approval = pb::Approval {
            exec: Some(pb::AskedExec {
                file: prost::bytes::Bytes::from_static(b"/bin/uname"),
                arguments: words.map(prost::bytes::Bytes::copy_from_slice).to_vec(),
                ..pb::AskedExec::default()
            }),
            ..pb::Approval::default()
        };
        let line = command_line(&approval);
        assert!(line.ends_with("' --harmless --evil"), "{}", line.len());
        assert_eq!(line.matches("\\x01").count(), noise.len());
        assert_eq!(super::approval(&approval)["command_line"], line);
    }

    #[test]
    fn a_program_that_is_called_by_another_name_is_seen_to_be() {
        for (name, line) in [
            ("tool", "/opt/tool x"),
            ("/elsewhere/tool", "/opt/tool x"),
            ("rm", "exec -a rm /opt/tool x"),
            ("-tool", "exec -a -tool /opt/tool x"),
            ("", "exec -a '' /opt/tool x"),
        ] {
            let words = [name.as_bytes(), b"x"];
            let approval = pb::Approval {
                exec: Some(pb::AskedExec {
                    file: prost::bytes::Bytes::from_static(b"/opt/tool"),
                    arguments: words.map(prost::bytes::Bytes::copy_from_slice).to_vec(),
                    ..pb::AskedExec::default()
                }),
                ..pb::Approval::default()
            };
            assert_eq!(command_line(&approval), line);
        }
    }
}
