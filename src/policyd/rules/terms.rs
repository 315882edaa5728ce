//! On which terms rules escalate: the environment, and programs that sessions can write.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;

use anyhow::anyhow;
use starlark::values::dict::{AllocDict, DictRef};
use starlark::values::list::{AllocList, ListRef};
use starlark::values::none::NoneOr;
use starlark::values::structs::StructRef;
use starlark::values::{Heap, Value};

use super::language::{described, field, text_of};
use crate::model::{EnvironmentRules, EscalationTerms, NamePattern, Unprotected};

/// Most names of variables of each kind.
const MAX_NAMES: usize = 1_000;

/// An optional argument that may be None.
type Given<T> = Option<NoneOr<T>>;

/// The terms as arguments of a rule.
pub(super) struct TermArguments<'v> {
    pub(super) unprotected: Given<String>,
    pub(super) keep: Given<Value<'v>>,
    pub(super) set: Given<Value<'v>>,
    pub(super) unset: Given<Value<'v>>,
}

const UNPROTECTED: &str = "unprotected";
const KEEP: &str = "keep_environment";
const SET: &str = "set_environment";
const UNSET: &str = "unset_environment";

impl<'v> TermArguments<'v> {
    /// Those of a value that [`fields`](Self::fields) made a part of.
    pub(super) fn of(value: StructRef<'v>) -> Self {
        let given = |name: &str| field(value, name).map(NoneOr::Other);
        Self {
            unprotected: field(value, UNPROTECTED)
                .and_then(Value::unpack_str)
                .map(|word| NoneOr::Other(word.to_owned())),
            keep: given(KEEP),
            set: given(SET),
            unset: given(UNSET),
        }
    }

    /// What they say, for a decision that may have some.
    pub(super) fn terms(self, is_escalation: IsEscalation) -> anyhow::Result<EscalationTerms> {
        let Self {
            unprotected,
            keep,
            set,
            unset,
        } = self;
        let given = [
            (UNPROTECTED, said(unprotected.as_ref())),
            (KEEP, said(keep.as_ref())),
            (SET, said(set.as_ref())),
            (UNSET, said(unset.as_ref())),
        ];
        if is_escalation == IsEscalation::No
            && let Some((name, _)) = given.into_iter().find(|(_, is_given)| *is_given)
        {
            return Err(anyhow!(
                "{name} is given with a decision that doesn't escalate: it belongs to \"escalate\" only, \
                 leave it out"
            ));
        }
        Ok(EscalationTerms {
            unprotected: match unprotected.and_then(NoneOr::into_option).as_deref() {
                None | Some("deny") => Unprotected::Denied,
                Some("allow") => Unprotected::Allowed,
                Some(other) => {
                    return Err(anyhow!(
                        "{UNPROTECTED} is {other:?}: write \"allow\" to have a program escalated that the \
                         session could have written, or \"deny\""
                    ));
                }
            },
            environment: EnvironmentRules {
                keep: names(KEEP, keep)?,
                unset: names(UNSET, unset)?,
                set: variables(set)?,
            },
        })
    }

    /// The same as fields of a value of the language.
    pub(super) fn fields(
        terms: &EscalationTerms,
        heap: Heap<'v>,
    ) -> [(&'static str, Value<'v>); 4] {
        let names = |patterns: &[NamePattern]| {
            let names = patterns
                .iter()
                .map(|pattern| heap.alloc(&*String::from_utf8_lossy(&pattern.0)));
            heap.alloc(AllocList(names.collect::<Vec<_>>()))
        };
        let text = |text: &OsString| heap.alloc(&*text.to_string_lossy());
        let set = terms.environment.set.iter();
        let set: Vec<_> = set.map(|(name, value)| (text(name), text(value))).collect();
        let unprotected = match terms.unprotected {
            Unprotected::Allowed => heap.alloc("allow"),
            Unprotected::Denied => Value::new_none(),
        };
        [
            (UNPROTECTED, unprotected),
            (KEEP, names(&terms.environment.keep)),
            (SET, heap.alloc(AllocDict(set))),
            (UNSET, names(&terms.environment.unset)),
        ]
    }
}

/// Whether a decision is to escalate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum IsEscalation {
    Yes,
    No,
}

fn said<T>(given: Option<&NoneOr<T>>) -> bool {
    matches!(given, Some(NoneOr::Other(_)))
}

fn names(what: &str, given: Given<Value<'_>>) -> anyhow::Result<Vec<NamePattern>> {
    let Some(value) = given.and_then(NoneOr::into_option) else {
        return Ok(Vec::new());
    };
    let Some(list) = ListRef::from_value(value) else {
        return Err(anyhow!(
            "{what} is {}: write a list of names, as in {what} = [\"LC_*\"]",
            described(value)
        ));
    };
    within_bounds(what, list.len())?;
    list.iter()
        .map(|name| {
            let name = variable_name(what, name)?;
            Ok(NamePattern(name.into_bytes()))
        })
        .collect()
}

fn variables(given: Given<Value<'_>>) -> anyhow::Result<Vec<(OsString, OsString)>> {
    let Some(value) = given.and_then(NoneOr::into_option) else {
        return Ok(Vec::new());
    };
    let Some(dictionary) = DictRef::from_value(value) else {
        return Err(anyhow!(
            "{SET} is {}: write names and values, as in {SET} = {{\"LANG\": \"C.UTF-8\"}}",
            described(value)
        ));
    };
    within_bounds(SET, dictionary.len())?;
    let os = |text: String| OsString::from_vec(text.into_bytes());
    dictionary
        .iter()
        .map(|(name, value)| {
            let name = variable_name(SET, name)?;
            let value = text_of(&format!("the value of {name} in {SET}"), value)?;
            Ok((os(name), os(value)))
        })
        .collect()
}

fn variable_name(what: &str, name: Value<'_>) -> anyhow::Result<String> {
    let name = text_of(what, name)?;
    if name.is_empty() || name.contains('=') {
        return Err(anyhow!(
            "{what} holds {name:?}: write the name of a variable, without its value"
        ));
    }
    Ok(name)
}

fn within_bounds(what: &str, length: usize) -> anyhow::Result<()> {
    if length > MAX_NAMES {
        return Err(anyhow!(
            "{what} holds more than {MAX_NAMES} names: shorten it, by names that end with \"*\""
        ));
    }
    Ok(())
}
