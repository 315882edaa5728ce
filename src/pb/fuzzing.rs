use std::ffi::OsStr;

use prost::Message;

use super::{Answer, TEXT_LIMIT, v1};
use crate::model::{EscalationDecision, EscalationExecution, Verdict};

/// An answer of a policy service, as the link reads it: what it decides can be done, and what it says is one line.
pub(crate) fn verdicts(bytes: &[u8]) {
    let answer = match v1::SessionResponse::decode(bytes) {
        Ok(response) => super::answer(response),
        Err(error) => super::undecodable(bytes, error),
    };
    match answer {
        Ok(Answer::Verdict {
            verdict: Ok(verdict),
            ..
        }) => can_be_done(&verdict),
        Ok(Answer::Verdict {
            verdict: Err(broken),
            ..
        }) => {
            let denied = Verdict::from(broken);
            let is_denied = matches!(denied.decision, EscalationDecision::Deny { .. });
            assert!(is_denied, "what is broken allows");
            can_be_done(&denied);
        }
        Ok(Answer::Pending { message, .. }) => is_one_line(&message),
        Ok(Answer::Terminated { reason }) => is_one_line(&reason),
        Ok(
            Answer::VerdictsForgotten { policy_revision }
            | Answer::Accepted {
                policy_revision, ..
            },
        ) => is_one_line(&policy_revision),
        Ok(Answer::Acknowledged(_)) | Err(_) => {}
    }
}

fn can_be_done(verdict: &Verdict) {
    let has_nul = |string: &OsStr| string.as_encoded_bytes().contains(&0);
    for text in [
        &verdict.rule,
        &verdict.reason_code,
        &verdict.policy_revision,
    ] {
        is_one_line(text);
    }
    for (name, value) in &verdict.terms.environment.set {
        let is_name = !name.is_empty() && !name.as_encoded_bytes().contains(&b'=');
        assert!(is_name && !has_nul(name) && !has_nul(value), "no variable");
    }
    match &verdict.decision {
        EscalationDecision::Escalate(EscalationExecution::Permissions(profile)) => {
            for path in profile.readable.iter().chain(&profile.writable) {
                assert!(path.is_absolute() && !has_nul(path.as_os_str()), "no path");
            }
        }
        EscalationDecision::Deny {
            reason: Some(reason),
        } => is_one_line(reason),
        _ => {}
    }
}

fn is_one_line(text: &str) {
    let is_one_line = text.len() <= TEXT_LIMIT && !text.chars().any(char::is_control);
    assert!(is_one_line, "{text:?}");
}
