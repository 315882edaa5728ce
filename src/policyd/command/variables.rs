//! Variables that stand for options: those that no option has, and those that a wrong value comes from.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;

use clap::error::{ContextKind, ContextValue};
use clap::{Arg, Command, CommandFactory};

use super::PolicydArgs;
use crate::policyd::text::shown;

/// What variables of `execgate-policyd` begin with.
const PREFIX: &str = "EXECGATE_POLICYD_";

/// The least of a name behind the prefix that says which one is meant.
const TELLING: usize = 3;

/// The most letters by which a name that is meant differs.
const SLIPS: usize = 2;

/// Warns of variables that look like the service's and are none of its options': a misspelt one changes nothing, and
/// the service runs without what it was to say.
pub(super) fn warn_of_unknown() {
    let command = PolicydArgs::command();
    let known: Vec<_> = command.get_arguments().filter_map(Arg::get_env).collect();
    let mut unknown: Vec<_> = std::env::vars_os()
        .map(|(name, _)| name)
        .filter(|name| name.as_bytes().starts_with(PREFIX.as_bytes()))
        .filter(|name| !known.contains(&name.as_os_str()))
        .collect();
    unknown.sort();
    for name in unknown {
        let meant = match meant(&name, &known) {
            Some(names) => format!("is {names} meant? "),
            None => String::new(),
        };
        tracing::warn!(
            "the variable {} is no option's, and changes nothing; {meant}`execgate-policyd --help` has all that \
             there are",
            shown(name.as_bytes())
        );
    }
}

/// Those of the known names that may be meant by another.
fn meant(name: &OsStr, known: &[&OsStr]) -> Option<String> {
    let name = name.to_str()?.strip_prefix(PREFIX)?;
    let is_meant = |known: &str| {
        name.len() >= TELLING && (known.starts_with(name) || distance(known, name) <= SLIPS)
    };
    let names: Vec<_> = known
        .iter()
        .filter_map(|known| known.to_str())
        .filter(|known| known.strip_prefix(PREFIX).is_some_and(is_meant))
        .collect();
    (!names.is_empty()).then(|| names.join(" or "))
}

/// How many bytes have to be put in, taken out or changed to make one of the other (Levenshtein).
fn distance(one: &str, other: &str) -> usize {
    let mut row: Vec<usize> = (0..=other.len()).collect();
    for (above, letter) in (1..).zip(one.bytes()) {
        let (mut diagonal, mut left) = (above - 1, above);
        if let Some(first) = row.first_mut() {
            *first = above;
        }
        for (place, expected) in row.iter_mut().skip(1).zip(other.bytes()) {
            let changed = diagonal + usize::from(letter != expected);
            diagonal = *place;
            left = changed.min(diagonal + 1).min(left + 1);
            *place = left;
        }
    }
    row.last().copied().unwrap_or_default()
}

/// Adds to an error about an option's value the variable that it comes from, where the command line doesn't have
/// that option.
pub(crate) fn sourced(
    mut error: clap::Error,
    command: &Command,
    arguments: &[OsString],
) -> clap::Error {
    let Some(ContextValue::String(wrong)) = error.get(ContextKind::InvalidArg) else {
        return error;
    };
    let long = wrong.split([' ', '=', '[']).next().unwrap_or_default();
    let words = || arguments.iter().skip(1).take_while(|word| *word != "--");
    let is_said = words().any(|word| {
        let behind = word.as_bytes().strip_prefix(long.as_bytes());
        behind.is_some_and(|behind| behind.is_empty() || behind.starts_with(b"="))
    });
    let variable = variable(command, long, words());
    let Some(variable) = variable.filter(|name| std::env::var_os(name).is_some() && !is_said)
    else {
        return error;
    };
    let name = variable.display();
    let tip = format!("the value is that of the variable {name}: mend it there, or unset it");
    let tips = ContextValue::StyledStrs(vec![tip.into()]);
    error.insert(ContextKind::Suggested, tips);
    error
}

/// The variable of an option, of the subcommand that is called or of those above it.
fn variable<'a>(
    mut command: &'a Command,
    long: &str,
    words: impl Iterator<Item = &'a OsString>,
) -> Option<OsString> {
    let of = |command: &Command| {
        let mut options = command.get_arguments();
        let option = options.find(|option| option.get_long() == long.strip_prefix("--"));
        option.and_then(Arg::get_env).map(OsStr::to_owned)
    };
    let mut found = of(command);
    for word in words {
        if let Some(called) = command.find_subcommand(word) {
            command = called;
            found = of(command).or(found);
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_told_from_others_by_what_it_lacks_or_has_too_much() {
        for (one, other, expected) in [
            ("", "", 0),
            ("", "abc", 3),
            ("abc", "", 3),
            ("abc", "abc", 0),
            ("AUDITOR", "AUDITORS", 1),
            ("kitten", "sitting", 3),
            ("flaw", "lawn", 2),
        ] {
            assert_eq!(distance(one, other), expected, "{one} {other}");
        }
        let known = ["TOKENS", "RETAIN_AGE", "RETAIN_SIZE", "LOG", "LISTEN"]
            .map(|name| OsString::from(format!("{PREFIX}{name}")));
        let known: Vec<_> = known.iter().map(OsString::as_os_str).collect();
        let meant = |name: &str| {
            let meant = meant(OsStr::new(&format!("{PREFIX}{name}")), &known);
            meant.map(|names| names.replace(PREFIX, ""))
        };
        let is = |names: &str| Some(names.to_owned());
        assert_eq!(meant("TOKEN"), is("TOKENS"));
        assert_eq!(meant("TOKNES"), is("TOKENS"));
        assert_eq!(meant("RETAIN"), is("RETAIN_AGE or RETAIN_SIZE"));
        for none in ["", "L", "LI", "COLOUR", "TOKENS_OF_GATES"] {
            assert_eq!(meant(none), None, "{none}");
        }
    }
}
