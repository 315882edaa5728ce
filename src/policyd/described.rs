//! Programs and environments of execs as JSON, for `audit`.

use base64::Engine;
use serde_json::{Value, json};

use super::revision::hexadecimal;
use crate::pb::v1;

/// What the gate said of a program; `null` where it said nothing.
pub(super) fn executable(info: Option<&v1::ExecutableInfo>) -> Value {
    let Some(info) = info else {
        return Value::Null;
    };
    if !info.missing.is_empty() {
        return json!({"missing": info.missing});
    }
    let interpreter = info.interpreter.as_ref().map(|interpreter| {
        let mut described = json!({
            "name": text(&interpreter.name),
            "argument": text(&interpreter.argument),
            "executable": executable(interpreter.executable.as_deref()),
        });
        exactly(&mut described, "name", &interpreter.name);
        exactly(&mut described, "argument", &interpreter.argument);
        described
    });
    let mut described = json!({
        "path": text(&info.real_path),
        "owner": info.owner_user_id,
        "group": info.owner_group_id,
        "mode": format!("{:04o}", info.mode),
        "size": info.file_version.map(|version| version.size),
        "inode": info.file_version.map(|version| version.inode),
        "protection": protection(info.protection()),
        "writable_path": (!info.writable_path.is_empty()).then(|| text(&info.writable_path)),
        "sha256": (!info.sha256.is_empty()).then(|| hexadecimal(&info.sha256)),
        "interpreter": interpreter,
    });
    exactly(&mut described, "path", &info.real_path);
    exactly(&mut described, "writable_path", &info.writable_path);
    described
}

/// How something is escalated, in the words of rules.
pub(super) fn escalate(escalate: &v1::Escalate) -> Value {
    use v1::escalate::Execution;
    let texts = |list: &[prost::bytes::Bytes]| -> Vec<String> {
        list.iter().map(|bytes| text(bytes)).collect()
    };
    let execution = match &escalate.execution {
        Some(Execution::Unsandboxed(_)) => json!("unsandboxed"),
        Some(Execution::TurnDefault(_)) => json!("turn_default"),
        Some(Execution::Permissions(permissions)) => json!({
            "network": match permissions.network_access() {
                v1::NetworkAccess::Allowed => "allowed",
                v1::NetworkAccess::Denied | v1::NetworkAccess::Unspecified => "denied",
            },
            "read": texts(&permissions.readable_paths),
            "write": texts(&permissions.writable_paths),
        }),
        None => Value::Null,
    };
    let environment = escalate.environment.clone().unwrap_or_default();
    let set: serde_json::Map<_, _> = environment
        .set_variables
        .iter()
        .map(|variable| (text(&variable.name), json!(text(&variable.value))))
        .collect();
    json!({
        "execution": execution,
        "unprotected": match escalate.unprotected_programs() {
            v1::UnprotectedPrograms::Allowed => "allow",
            v1::UnprotectedPrograms::Denied | v1::UnprotectedPrograms::Unspecified => "deny",
        },
        "keep_environment": texts(&environment.kept_names),
        "unset_environment": texts(&environment.unset_names),
        "set_environment": set,
    })
}

/// What a gate said of a session's sandbox; `null` where that isn't known.
pub(crate) fn sandbox(info: Option<&v1::SandboxInfo>) -> Value {
    let Some(info) = info else {
        return Value::Null;
    };
    let enforcement = match info.enforcement() {
        v1::Enforcement::Full => "full",
        v1::Enforcement::Partial => "partial",
        v1::Enforcement::None | v1::Enforcement::Unspecified => "none",
    };
    json!({
        "backend": info.backend,
        "enforcement": enforcement,
        "profile": info.profile,
        "version": info.version,
        "not_enforced": info.unenforced_parts,
        "not_granted": info.ungranted_parts,
        "limits": info.limits,
    })
}

/// How the environment of an escalated command differed.
pub(super) fn environment(difference: &v1::EnvironmentDifference) -> Value {
    let names = |names: &[prost::bytes::Bytes]| -> Vec<String> {
        names.iter().map(|name| text(name)).collect()
    };
    let set: serde_json::Map<_, _> = difference
        .set_variables
        .iter()
        .map(|variable| (text(&variable.name), json!(text(&variable.value))))
        .collect();
    json!({
        "removed": names(&difference.removed_names),
        "reset": names(&difference.reset_names),
        "unset": names(&difference.unset_names),
        "set": set,
    })
}

/// As rules name it.
pub(super) fn protection(protection: v1::Protection) -> &'static str {
    match protection {
        v1::Protection::Protected => "protected",
        v1::Protection::NoBoundary => "no_boundary",
        v1::Protection::Writable => "writable",
        v1::Protection::Unspecified => "unknown",
    }
}

/// In base64 as well, where text doesn't say exactly what bytes are.
fn exactly(described: &mut Value, name: &str, bytes: &[u8]) {
    if std::str::from_utf8(bytes).is_err() {
        let exact = base64::engine::general_purpose::STANDARD.encode(bytes);
        described[format!("{name}_base64")] = json!(exact);
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
