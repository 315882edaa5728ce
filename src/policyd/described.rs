//! Programs and environments of execs as JSON, for `audit`.

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
        json!({
            "name": text(&interpreter.name),
            "argument": text(&interpreter.argument),
            "executable": executable(interpreter.executable.as_deref()),
        })
    });
    json!({
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

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
