use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::fmt;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::ser::{SerializeMap, Serializer};
use serde::{Deserialize, Serialize};

/// Why a message can't be read.
#[derive(Debug)]
pub struct DecodeError {
    /// The message that was expected.
    pub(super) message: &'static str,
    /// What is wrong with it, and where.
    pub(super) problem: String,
}

impl fmt::Display for DecodeError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "not a valid {}: {}", self.message, self.problem)
    }
}

impl core::error::Error for DecodeError {}

/// Reads a message other than `EscalateRequest`; `name` is for the error.
pub fn decode<'a, T: Deserialize<'a>>(
    name: &'static str,
    json: &'a [u8],
) -> Result<T, DecodeError> {
    let invalid = |problem: String| DecodeError {
        message: name,
        problem,
    };
    // Also where it is passed over.
    let text = core::str::from_utf8(json).map_err(|error| invalid(error.to_string()))?;
    serde_json::from_str(text).map_err(|error| invalid(error.to_string()))
}

/// An `EscalateRequest` to be sent, as bytes that are somewhere else.
#[derive(Debug)]
pub struct RequestFields<'a> {
    /// As in `EscalateRequest`.
    pub file: &'a [u8],
    /// As in `EscalateRequest`.
    pub argv: Vec<&'a [u8]>,
    /// As in `EscalateRequest`.
    pub workdir: &'a [u8],
    /// Entries of the environment, each usually `NAME=value`.
    pub env: Vec<&'a [u8]>,
    /// As in `EscalateRequest`.
    pub notices: bool,
}

impl Serialize for RequestFields<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let text: fn(&[u8]) -> bool = |bytes| core::str::from_utf8(bytes).is_ok();
        let plain = text(self.file)
            && text(self.workdir)
            && self.argv.iter().all(|argument| text(argument))
            && self
                .env
                .iter()
                .all(|entry| split_entry(entry).is_some() && text(entry));
        let raw = (!plain).then(|| RawFields {
            file: Encoded(self.file),
            argv: self.argv.iter().copied().map(Encoded).collect(),
            workdir: Encoded(self.workdir),
            env: self.env.iter().copied().map(Encoded).collect(),
        });
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("file", &Text(self.file))?;
        map.serialize_entry("argv", &Texts(&self.argv))?;
        map.serialize_entry("workdir", &Text(self.workdir))?;
        map.serialize_entry("env", &Entries(&self.env))?;
        if let Some(raw) = raw {
            map.serialize_entry("raw", &raw)?;
        }
        if self.notices {
            map.serialize_entry("notices", &true)?;
        }
        map.end()
    }
}

/// Splits an entry at the first `=` that isn't its first byte.
fn split_entry(entry: &[u8]) -> Option<(&[u8], &[u8])> {
    let position = entry.iter().skip(1).position(|byte| *byte == b'=')? + 1;
    Some((&entry[..position], &entry[position + 1..]))
}

/// Bytes as the text that they are, or nearly are.
struct Text<'a>(&'a [u8]);

impl Serialize for Text<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&String::from_utf8_lossy(self.0))
    }
}

struct Texts<'a>(&'a [&'a [u8]]);

impl Serialize for Texts<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.0.iter().map(|bytes| Text(bytes)))
    }
}

struct Entries<'a>(&'a [&'a [u8]]);

impl Serialize for Entries<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|entry| {
            let (name, value) = split_entry(entry).unwrap_or((entry, b""));
            (Text(name), Text(value))
        }))
    }
}

/// The bytes of a request of which some aren't UTF-8, each string as base64 (RFC 4648, padded).
#[derive(Serialize)]
struct RawFields<'a> {
    file: Encoded<'a>,
    argv: Vec<Encoded<'a>>,
    workdir: Encoded<'a>,
    /// Whole entries, in order.
    env: Vec<Encoded<'a>>,
}

struct Encoded<'a>(&'a [u8]);

impl Serialize for Encoded<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&STANDARD.encode(self.0))
    }
}

/// What a server may send before its answer, to a wrapper that asked for it: the answer takes a person.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WaitNotice {
    /// For the user who waits: who is asked, for what, how long.
    pub waiting: String,
}

/// What the server answers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EscalateResponse {
    /// What the wrapper is to do.
    pub action: Action,
    /// Whether the server sends a `Notice` when an escalated command stops, to wrappers that read it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub notices: Option<bool>,
}

/// What a wrapper is to do.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Action {
    /// Execute the command itself.
    Run,
    /// Send its descriptors, and stand in for the command.
    Escalate,
    /// Tell the user, and exit with 1.
    Deny {
        /// In words.
        #[serde(default)]
        reason: Option<String>,
    },
}
