//! What the arguments of rules' functions stand for, and what is wrong with those that stand for nothing.

use std::path::PathBuf;

use anyhow::anyhow;
use starlark::values::Value;
use starlark::values::list::{ListRef, UnpackList};
use starlark::values::none::NoneOr;
use starlark::values::structs::StructRef;

use crate::policyd::rules::answer::RuleMode;
use crate::policyd::rules::prefix::Alternatives;
use crate::policyd::text;

/// Most elements of one pattern, and most alternatives of one element.
pub(super) const MAX_PATTERN: usize = 1_000;
/// Most examples of one rule.
const MAX_EXAMPLES: usize = 1_000;

pub(super) type Words = Option<NoneOr<String>>;

pub(in crate::policyd::rules) fn text_of(what: &str, value: Value<'_>) -> anyhow::Result<String> {
    let text = value.unpack_str().ok_or_else(|| {
        anyhow!(
            "{what} is {}: write it as a string, in quotes",
            described(value)
        )
    })?;
    if text.contains('\0') {
        return Err(anyhow!(
            "{what} holds a NUL, which no command can: take it out"
        ));
    }
    Ok(text.to_owned())
}

pub(in crate::policyd::rules) fn described(value: Value<'_>) -> String {
    format!(
        "{} ({})",
        text::shortened(&text::shown(value.to_repr().as_bytes()), 60),
        value.get_type()
    )
}

pub(in crate::policyd::rules) fn field<'v>(fields: StructRef<'v>, name: &str) -> Option<Value<'v>> {
    fields
        .iter()
        .find(|(key, _)| key.as_str() == name)
        .map(|(_, value)| value)
        .filter(|value| !value.is_none())
}

/// Words that must say something where they are given.
pub(super) fn said(what: &str, given: Option<NoneOr<String>>) -> anyhow::Result<Option<String>> {
    match given.and_then(NoneOr::into_option) {
        Some(words) if words.trim().is_empty() => {
            Err(anyhow!("{what} is empty: say it, or leave it out"))
        }
        words => Ok(words),
    }
}

pub(super) fn mode_of(given: Option<NoneOr<String>>) -> anyhow::Result<RuleMode> {
    match given.and_then(NoneOr::into_option).as_deref() {
        None | Some("enforce") => Ok(RuleMode::Enforce),
        Some("monitor") => Ok(RuleMode::Monitor),
        Some(other) => Err(anyhow!(
            "mode is {other:?}: write \"enforce\", or \"monitor\" to record what the rule says and not act on it"
        )),
    }
}

pub(super) fn paths_of(what: &str, values: &[Value<'_>]) -> anyhow::Result<Vec<PathBuf>> {
    let mut paths = Vec::new();
    for value in values {
        let path = text_of(what, *value)?;
        if !path.starts_with('/') {
            return Err(anyhow!(
                "{what} holds {path:?}, which isn't an absolute path: begin it with \"/\""
            ));
        }
        paths.push(PathBuf::from(path));
    }
    Ok(paths)
}

pub(super) fn alternatives_of(value: Value<'_>) -> anyhow::Result<Alternatives> {
    const WHAT: &str = "an element of pattern";
    let words = match ListRef::from_value(value) {
        Some(list) if list.is_empty() => {
            return Err(anyhow!(
                "{WHAT} is an empty list, which nothing matches: name at least one word"
            ));
        }
        Some(list) if list.len() > MAX_PATTERN => {
            return Err(anyhow!(
                "{WHAT} has more than {MAX_PATTERN} alternatives: split the rule"
            ));
        }
        Some(list) => list
            .iter()
            .map(|value| text_of(WHAT, value))
            .collect::<anyhow::Result<Vec<_>>>()?,
        None if value.unpack_str().is_some() => vec![text_of(WHAT, value)?],
        None => {
            return Err(anyhow!(
                "{WHAT} is {}: write a string, or a list of strings that are alternatives",
                described(value)
            ));
        }
    };
    Ok(words
        .into_iter()
        .map(|word| word.into_bytes().into_boxed_slice())
        .collect())
}

pub(super) fn examples_of(
    what: &str,
    examples: Option<NoneOr<UnpackList<Value<'_>>>>,
) -> anyhow::Result<Vec<Vec<String>>> {
    let Some(examples) = examples.and_then(NoneOr::into_option) else {
        return Ok(Vec::new());
    };
    if examples.items.len() > MAX_EXAMPLES {
        return Err(anyhow!(
            "{what} holds more than {MAX_EXAMPLES} examples: keep the telling ones"
        ));
    }
    examples
        .items
        .into_iter()
        .map(|example| {
            let words = if let Some(list) = ListRef::from_value(example) {
                list.iter()
                    .map(|word| text_of("a word of an example", word))
                    .collect::<anyhow::Result<Vec<_>>>()?
            } else {
                let line = text_of("an example", example)?;
                shlex::split(&line).ok_or_else(|| {
                    anyhow!("{what} holds {line:?}, which has a quote or backslash without its end: complete it, or write a list of words")
                })?
            };
            if words.first().is_none_or(String::is_empty) {
                return Err(anyhow!(
                    "{what} holds an example without a program: take it out, or complete it"
                ));
            }
            Ok(words)
        })
        .collect()
}
