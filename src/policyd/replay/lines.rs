//! Execs as `audit --export` writes them, read back.

use base64::Engine;
use prost::bytes::Bytes;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::pb::audit::v1::{AnswerMode, Exec, GateDecision, GivenAnswer, SessionFacts};
use crate::pb::v1;

/// Reads a line.
///
/// # Errors
/// What is wrong with it, for people.
pub(super) fn exec(line: &[u8]) -> Result<Exec, String> {
    let value: Value =
        serde_json::from_slice(line).map_err(|error| format!("it isn't JSON: {error}"))?;
    if !value.is_object() {
        return Err("it isn't a JSON object".to_owned());
    }
    if value.get("change").is_some() {
        return Err("it is of `execgate watch`, which repeats execs".to_owned());
    }
    let fields = Fields { value: &value };
    let session_id = fields.text("session")?;
    if session_id.is_empty() || value.get("exec_id").is_none() {
        return Err("it lacks `session` or `exec_id`".to_owned());
    }
    let labels = match value.get("labels") {
        None | Some(Value::Null) => Ok(std::collections::HashMap::new()),
        Some(labels) => serde_json::from_value(labels.clone())
            .map_err(|_| "`labels` isn't an object of texts".to_owned()),
    }?;
    let exec = Exec {
        session_id,
        labels,
        exec_id: fields.number("exec_id")?,
        parent_exec_id: fields.number("parent_exec_id")?,
        position: fields.number("position")?,
        gate: fields.text("gate")?,
        hostname: fields.text("hostname")?,
        user_name: fields.text("user_name")?,
        receive_time: match &*fields.text("received_at")? {
            "" => None,
            time => Some(
                time.parse()
                    .map_err(|_| "`received_at` isn't a time".to_owned())?,
            ),
        },
        program: fields.bytes("program")?,
        workdir: fields.bytes("workdir")?,
        process: process(&fields)?,
        arguments: fields.words("argv")?,
        environment_names: fields.words("environment_names")?,
        redacted_arguments: fields.numbers("redacted_arguments")?,
        executable: executable(value.get("executable"))?,
        workdir_protection: protection(&fields.text("workdir_protection")?)?.into(),
        session: session(value.get("session_facts"))?,
        answer: answer(value.get("answered"))?,
        decision: decision(&fields)?,
        withdrawal_reason: fields.text("withdrawn")?,
        ..Exec::default()
    };
    if !exec.program.is_empty() && value.get("redacted_arguments").is_none() {
        // An earlier version's.
        return Ok(Exec {
            session: None,
            ..exec
        });
    }
    Ok(exec)
}

/// Fields of an object; what is missing is empty.
struct Fields<'v> {
    value: &'v Value,
}

impl Fields<'_> {
    fn get(&self, name: &str) -> Option<&Value> {
        self.value.get(name).filter(|value| !value.is_null())
    }

    fn text(&self, name: &str) -> Result<String, String> {
        match self.get(name) {
            None => Ok(String::new()),
            Some(Value::String(text)) => Ok(text.clone()),
            Some(_) => Err(format!("`{name}` isn't text")),
        }
    }

    fn list<T: DeserializeOwned>(&self, name: &str, of: &str) -> Result<Vec<T>, String> {
        match self.get(name) {
            None => Ok(Vec::new()),
            Some(list) => serde_json::from_value(list.clone())
                .map_err(|_| format!("`{name}` isn't a list of {of}")),
        }
    }

    fn texts(&self, name: &str) -> Result<Vec<String>, String> {
        self.list(name, "texts")
    }

    fn number(&self, name: &str) -> Result<u64, String> {
        match self.get(name) {
            None => Ok(0),
            Some(number) => number
                .as_u64()
                .ok_or_else(|| format!("`{name}` isn't a number")),
        }
    }

    fn small(&self, name: &str) -> Result<u32, String> {
        u32::try_from(self.number(name)?).map_err(|_| format!("`{name}` is too large"))
    }

    fn numbers(&self, name: &str) -> Result<Vec<u32>, String> {
        self.list(name, "numbers")
    }

    /// As they were, where the text doesn't say it.
    fn bytes(&self, name: &str) -> Result<Bytes, String> {
        let exact = format!("{name}_base64");
        match self.get(&exact) {
            None => Ok(self.text(name)?.into_bytes().into()),
            Some(_) => decoded(&exact, &self.text(&exact)?),
        }
    }

    fn words(&self, name: &str) -> Result<Vec<Bytes>, String> {
        let exact = format!("{name}_base64");
        if self.get(&exact).is_some() {
            let words = self.texts(&exact)?;
            return words.iter().map(|word| decoded(&exact, word)).collect();
        }
        let words = self.texts(name)?;
        Ok(words
            .into_iter()
            .map(|word| word.into_bytes().into())
            .collect())
    }
}

fn decoded(name: &str, text: &str) -> Result<Bytes, String> {
    base64::engine::general_purpose::STANDARD
        .decode(text)
        .map(Bytes::from)
        .map_err(|_| format!("`{name}` isn't base64"))
}

fn process(fields: &Fields<'_>) -> Result<Option<v1::ProcessInfo>, String> {
    if fields.get("process_id").is_none() {
        return Ok(None);
    }
    Ok(Some(v1::ProcessInfo {
        process_id: fields.small("process_id")?,
        parent_process_id: fields.small("parent_process_id")?,
        user_id: fields.small("user_id")?,
        group_id: fields.small("group_id")?,
    }))
}

fn decision(fields: &Fields<'_>) -> Result<Option<GateDecision>, String> {
    if fields.get("verdict").is_none() {
        return Ok(None);
    }
    Ok(Some(GateDecision {
        verdict: fields.text("verdict")?,
        code: fields.text("code")?,
        reason: fields.text("reason")?,
        reason_code: fields.text("reason_code")?,
        rule: fields.text("rule")?,
        policy_revision: fields.text("policy_revision")?,
        ..GateDecision::default()
    }))
}

fn answer(value: Option<&Value>) -> Result<Option<GivenAnswer>, String> {
    let Some(value) = value.filter(|value| value.get("verdict").is_some_and(Value::is_string))
    else {
        return Ok(None);
    };
    let fields = Fields { value };
    let mode = match value.get("monitored").and_then(Value::as_bool) {
        Some(true) => AnswerMode::Monitored,
        _ => AnswerMode::Enforced,
    };
    Ok(Some(GivenAnswer {
        verdict: fields.text("verdict")?,
        reason: fields.text("reason")?,
        reason_code: fields.text("reason_code")?,
        rule: fields.text("rule")?,
        policy_revision: fields.text("policy_revision")?,
        answer_count: fields.number("times")?,
        mode: mode.into(),
        escalate: fields.get("escalate").map(escalate).transpose()?,
        approval_id: fields.text("approval")?,
        decided_by: fields.text("decided_by")?,
        answer_time: None,
    }))
}

/// As `decision_message` makes it of the same terms.
fn escalate(value: &Value) -> Result<v1::Escalate, String> {
    use v1::escalate::Execution;
    let fields = Fields { value };
    let execution = match fields.get("execution") {
        Some(Value::String(word)) if word == "unsandboxed" => {
            Execution::Unsandboxed(v1::Unsandboxed {})
        }
        Some(Value::String(word)) if word == "turn_default" => {
            Execution::TurnDefault(v1::TurnDefault {})
        }
        Some(permissions @ Value::Object(_)) => {
            let fields = Fields { value: permissions };
            Execution::Permissions(v1::PermissionProfile {
                network_access: match &*fields.text("network")? {
                    "allowed" => v1::NetworkAccess::Allowed,
                    _ => v1::NetworkAccess::Denied,
                }
                .into(),
                readable_paths: fields.words("read")?,
                writable_paths: fields.words("write")?,
            })
        }
        _ => return Err("`execution` isn't one that is known".to_owned()),
    };
    let set = match fields.get("set_environment") {
        Some(Value::Object(set)) => set
            .iter()
            .map(|(name, value)| {
                Some(v1::SetVariable {
                    name: name.clone().into_bytes().into(),
                    value: value.as_str()?.to_owned().into_bytes().into(),
                })
            })
            .collect::<Option<Vec<_>>>()
            .ok_or_else(|| "`set_environment` isn't an object of texts".to_owned())?,
        _ => Vec::new(),
    };
    let environment = v1::EnvironmentRules {
        kept_names: fields.words("keep_environment")?,
        unset_names: fields.words("unset_environment")?,
        set_variables: set,
    };
    Ok(v1::Escalate {
        execution: Some(execution),
        environment: (environment != v1::EnvironmentRules::default()).then_some(environment),
        unprotected_programs: match &*fields.text("unprotected")? {
            "allow" => v1::UnprotectedPrograms::Allowed,
            _ => v1::UnprotectedPrograms::Denied,
        }
        .into(),
    })
}

fn session(value: Option<&Value>) -> Result<Option<SessionFacts>, String> {
    let Some(value) = value.filter(|value| value.is_object()) else {
        return Ok(None);
    };
    let fields = Fields { value };
    let null = Value::Null;
    let sandbox = Fields {
        value: value.get("sandbox").unwrap_or(&null),
    };
    Ok(Some(SessionFacts {
        user: Some(v1::UserInfo {
            user_id: fields.small("user_id")?,
            group_id: fields.small("group_id")?,
            name: fields.text("user_name")?,
        }),
        workdir: fields.bytes("workdir")?,
        command_words: fields.words("command")?,
        command_bytes: fields.number("command_bytes")?,
        sandbox: Some(v1::SandboxInfo {
            backend: sandbox.text("backend")?,
            enforcement: match &*sandbox.text("enforcement")? {
                "full" => v1::Enforcement::Full,
                "partial" => v1::Enforcement::Partial,
                _ => v1::Enforcement::None,
            }
            .into(),
            profile: sandbox.text("profile")?,
            unenforced_parts: sandbox.texts("not_enforced")?,
            version: sandbox.text("version")?,
            limits: sandbox.texts("limits")?,
            ungranted_parts: sandbox.texts("not_granted")?,
        }),
    }))
}

fn protection(text: &str) -> Result<v1::Protection, String> {
    match text {
        "protected" => Ok(v1::Protection::Protected),
        "no_boundary" => Ok(v1::Protection::NoBoundary),
        "writable" => Ok(v1::Protection::Writable),
        "unknown" | "" => Ok(v1::Protection::Unspecified),
        _ => Err("a protection isn't one that is known".to_owned()),
    }
}

fn executable(value: Option<&Value>) -> Result<Option<v1::ExecutableInfo>, String> {
    let Some(value) = value.filter(|value| value.is_object()) else {
        return Ok(None);
    };
    let fields = Fields { value };
    let mode = fields.text("mode")?;
    let sha256 = fields.text("sha256")?;
    let interpreter = match fields.get("interpreter") {
        None => None,
        Some(value) => {
            let fields = Fields { value };
            Some(Box::new(v1::Interpreter {
                name: fields.bytes("name")?,
                argument: fields.bytes("argument")?,
                executable: executable(value.get("executable"))?.map(Box::new),
            }))
        }
    };
    Ok(Some(v1::ExecutableInfo {
        missing: fields.text("missing")?,
        real_path: fields.bytes("path")?,
        file_version: fields
            .get("size")
            .is_some()
            .then(|| {
                Ok::<_, String>(v1::FileVersion {
                    size: fields.number("size")?,
                    inode: fields.number("inode")?,
                    ..v1::FileVersion::default()
                })
            })
            .transpose()?,
        owner_user_id: fields.small("owner")?,
        owner_group_id: fields.small("group")?,
        mode: match &*mode {
            "" => 0,
            mode => u32::from_str_radix(mode, 8).map_err(|_| "`mode` isn't octal".to_owned())?,
        },
        protection: protection(&fields.text("protection")?)?.into(),
        writable_path: fields.bytes("writable_path")?,
        sha256: digest(&sha256)?,
        interpreter,
    }))
}

fn digest(text: &str) -> Result<Bytes, String> {
    let digits = text.as_bytes();
    let wrong = || "`sha256` isn't hexadecimal".to_owned();
    if !digits.iter().all(u8::is_ascii_hexdigit) || !digits.len().is_multiple_of(2) {
        return Err(wrong());
    }
    digits
        .chunks(2)
        .map(|pair| {
            let pair = std::str::from_utf8(pair).map_err(|_| wrong())?;
            u8::from_str_radix(pair, 16).map_err(|_| wrong())
        })
        .collect::<Result<Vec<_>, _>>()
        .map(Bytes::from)
}
