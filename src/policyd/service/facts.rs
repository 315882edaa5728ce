//! What gates say, as rules are asked about it.

use tonic::Status;

use crate::model::{Enforcement, ExecId, ProcessIdentity};
use crate::pb::v1;
use crate::policyd::identity::GateIdentity;
use crate::policyd::rules::{EnvironmentFact, ExecFacts, Rules, Ruling, SessionFacts, UserFacts};

pub(in crate::policyd) fn session_facts(
    started: &v1::SessionStarted,
    gate: &GateIdentity,
) -> Result<SessionFacts, Status> {
    let id = &started.session_id;
    let is_digit = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    if id.len() != 32 || !id.bytes().all(is_digit) {
        return Err(Status::invalid_argument(
            "session_id must be 32 lowercase hexadecimal digits",
        ));
    }
    let user = started.user.clone().unwrap_or_default();
    let sandbox = started.sandbox.clone().unwrap_or_default();
    Ok(SessionFacts {
        id: id.clone(),
        gate: gate.clone(),
        labels: started
            .labels
            .iter()
            .map(|(key, value)| (key.clone(), value.clone()))
            .collect(),
        hostname: started
            .gate
            .as_ref()
            .map(|gate| gate.hostname.clone())
            .unwrap_or_default(),
        user: UserFacts {
            uid: user.user_id,
            gid: user.group_id,
            name: user.name,
        },
        workdir: started.workdir.to_vec(),
        command: started.command.iter().map(|word| word.to_vec()).collect(),
        enforcement: match sandbox.enforcement() {
            v1::Enforcement::Full => Enforcement::Full,
            v1::Enforcement::Partial => Enforcement::Partial,
            v1::Enforcement::None | v1::Enforcement::Unspecified => Enforcement::None,
        },
        sandbox: sandbox.backend,
        profile: sandbox.profile,
        not_enforced: sandbox.unenforced_parts,
        sandbox_version: sandbox.version,
        sandbox_limits: sandbox.limits,
        not_granted: sandbox.ungranted_parts,
    })
}

pub(in crate::policyd) fn ruling(
    rules: &Rules,
    session: &SessionFacts,
    exec: &v1::ExecRequested,
) -> Ruling {
    let process = exec.process.unwrap_or_default();
    rules.evaluate(&ExecFacts {
        id: ExecId(exec.exec_id),
        file: &exec.file,
        argv: exec.arguments.iter().map(|word| &word[..]).collect(),
        workdir: &exec.workdir,
        environment_names: exec
            .environment_names
            .iter()
            .map(|name| &name[..])
            .collect(),
        environment: exec
            .environment_variables
            .iter()
            .map(|variable| EnvironmentFact {
                name: &variable.name,
                value: &variable.value,
                is_redacted: variable.redaction() == v1::Redaction::Replaced,
            })
            .collect(),
        redacted_arguments: &exec.redacted_arguments,
        executable: exec.executable.as_ref(),
        workdir_protection: exec.workdir_protection(),
        process: ProcessIdentity {
            pid: process.process_id,
            parent_pid: process.parent_process_id,
            uid: process.user_id,
            gid: process.group_id,
        },
        parent: Some(exec.parent_exec_id)
            .filter(|parent| *parent != 0)
            .map(ExecId),
        session,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_id_is_32_lowercase_hexadecimal_digits() {
        for (id, is_valid) in [
            ("0123456789abcdef0123456789abcdef", true),
            ("0123456789ABCDEF0123456789abcdef", false),
            ("0123456789abcdef0123456789abcde", false),
            ("0123456789abcdef0123456789abcdef0", false),
            ("../3456789abcdef0123456789abcdef", false),
            ("", false),
        ] {
            let started = v1::SessionStarted {
                session_id: id.to_owned(),
                ..v1::SessionStarted::default()
            };
            assert_eq!(
                session_facts(&started, &GateIdentity::anonymous()).is_ok(),
                is_valid,
                "{id:?}"
            );
        }
    }
}
