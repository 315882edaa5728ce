use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// What shells look at to say why a program couldn't be executed. Of its bytes no more than that: the
/// file is outside the sandbox.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refusal {
    /// The kernel's error number.
    pub errno: i32,
    /// Whether the program is a directory.
    pub is_directory: bool,
    /// Whether it may be executed, as far as its permissions say.
    pub is_executable: bool,
    /// What its `#!` line names, if it has one; base64 (RFC 4648, padded).
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        serialize_with = "encoded",
        deserialize_with = "decoded"
    )]
    pub interpreter: Option<Vec<u8>>,
    /// What kind of file it is.
    pub contents: Contents,
}

/// What a file's beginning shows of whether it is a script.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Contents {
    /// It can't be read.
    #[default]
    Unreadable,
    /// Nothing is in it.
    Empty,
    /// A script to any shell.
    Text,
    /// A script to bash, for its first line is text, and none to zsh, for what is before its first NUL
    /// byte has no line with a small letter or an expansion.
    FirstLine,
    /// No script.
    Binary,
}

/// How much of a file both shells look at.
const SAMPLE: usize = 128;

impl Refusal {
    /// What a file's beginning shows; the rest is as for a program that isn't there.
    #[must_use]
    pub fn of_contents(beginning: Option<&[u8]>) -> Self {
        Self {
            interpreter: beginning.and_then(interpreter),
            contents: beginning.map_or(Contents::Unreadable, contents),
            ..Self::default()
        }
    }
}

/// The shells' own rules: POSIX leaves them open.
fn contents(beginning: &[u8]) -> Contents {
    let sample = &beginning[..beginning.len().min(SAMPLE)];
    let Some(nul) = sample.iter().position(|byte| *byte == 0) else {
        return match sample {
            [] => Contents::Empty,
            _ => Contents::Text,
        };
    };
    let text = &sample[..nul];
    let newlines = text.split(|byte| *byte == b'\n').count() - 1;
    let lines_of_text = if sample.starts_with(b"#!") { 2 } else { 1 };
    if sample.starts_with(b"\x7fELF") || newlines < lines_of_text {
        return Contents::Binary;
    }
    let is_code = |byte: &u8| byte.is_ascii_lowercase() || matches!(byte, b'$' | b'`');
    match text.iter().position(is_code) {
        Some(code) if text[code..].contains(&b'\n') => Contents::Text,
        _ => Contents::FirstLine,
    }
}

/// The first word of a `#!` line.
fn interpreter(beginning: &[u8]) -> Option<Vec<u8>> {
    let is_blank = |byte: &u8| matches!(byte, b' ' | b'\t');
    let line = beginning
        .strip_prefix(b"#!")?
        .split(|byte| *byte == b'\n')
        .next()?;
    let word = line
        .split(is_blank)
        .find(|word| !word.is_empty())
        .unwrap_or(b"");
    Some(word.to_vec())
}

#[allow(clippy::ref_option, reason = "the form that serde calls")]
fn encoded<S: Serializer>(bytes: &Option<Vec<u8>>, serializer: S) -> Result<S::Ok, S::Error> {
    bytes
        .as_ref()
        .map(|bytes| STANDARD.encode(bytes))
        .serialize(serializer)
}

fn decoded<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Vec<u8>>, D::Error> {
    Option::<String>::deserialize(deserializer)?
        .map(|text| STANDARD.decode(text).map_err(serde::de::Error::custom))
        .transpose()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_files_beginning_tells_what_a_shell_takes_it_for() {
        let [before, behind] = [SAMPLE - 1, SAMPLE].map(|at| [&vec![b'x'; at][..], b"\0"].concat());
        let cases: [(&[u8], Contents); 11] = [
            (b"", Contents::Empty),
            (b"echo x\n", Contents::Text),
            (b"MZ", Contents::Text),
            (b"echo\n\0", Contents::Text),
            (b"MZ\n\0", Contents::FirstLine),
            (b"MZ\0\n", Contents::Binary),
            (b"\x7fELF\n\0", Contents::Binary),
            (b"#!/bin/x\n\0", Contents::Binary),
            (b"#!/bin/x\necho\n\0", Contents::Text),
            // They look no further.
            (&before, Contents::Binary),
            (&behind, Contents::Text),
        ];
        for (beginning, expected) in cases {
            assert_eq!(contents(beginning), expected, "{beginning:?}");
        }
        assert_eq!(Refusal::of_contents(None).contents, Contents::Unreadable);
    }

    #[test]
    fn an_interpreter_is_bytes() {
        let refusal = Refusal::of_contents(Some(b"#! \t/no/\xff\x1b -x\n"));
        assert_eq!(refusal.interpreter.as_deref(), Some(&b"/no/\xff\x1b"[..]));
        let json = serde_json::to_string(&refusal).unwrap();
        assert_eq!(serde_json::from_str::<Refusal>(&json).unwrap(), refusal);
        assert_eq!(Refusal::of_contents(Some(b"echo")).interpreter, None);
    }
}
