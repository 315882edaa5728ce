use std::collections::HashSet;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;

use prost::bytes::Bytes;
use regex::bytes::Regex;

use crate::model::Environment;
use crate::pb::v1::{EnvironmentVariable, Redaction};

/// What stands in the place of what was redacted.
pub const REDACTED: &str = "<redacted:execgate>";

/// The part of a pattern's match that is redacted, where the pattern names one.
const SECRET: &str = "secret";

/// Most names that a service may ask the values of.
const MOST_REQUESTED: usize = 256;

/// What of an exec may leave the gate: arguments, but for what matches a pattern, and of the environment
/// only names, but for those whose values are allowed.
///
/// A pattern is a regular expression over bytes, in the syntax of the package `regex`. It is matched
/// against all arguments, with a NUL between them; so `^` is the beginning of argument zero, and
/// `\x00--password\x00(?<secret>[^\x00]*)` takes the argument behind `--password`. The whole match is
/// redacted, or the group named `secret`.
#[derive(Debug, Clone, Default)]
pub struct Disclosure {
    patterns: Vec<Regex>,
    /// Names, each with what is allowed of those that begin so.
    environment: Vec<(Vec<u8>, Names)>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Names {
    Exactly,
    BeginningSo,
}

/// A pattern that can't be used.
#[derive(Debug, thiserror::Error)]
#[error("the pattern {pattern:?} can't be used")]
pub struct PatternError {
    pattern: String,
    #[source]
    source: Box<regex::Error>,
}

impl Disclosure {
    /// Redacts what a pattern matches.
    ///
    /// # Errors
    /// What is no regular expression, or too large a one.
    pub fn redact(&mut self, pattern: &str) -> Result<(), PatternError> {
        let compiled = regex::bytes::RegexBuilder::new(pattern)
            .unicode(false)
            .build()
            .map_err(|source| PatternError {
                pattern: pattern.to_owned(),
                source: Box::new(source),
            })?;
        self.patterns.push(compiled);
        Ok(())
    }

    /// Allows the values of an environment variable; a name that ends with `*` stands for all that begin
    /// so.
    pub fn allow_environment(&mut self, name: &str) {
        self.environment.push(match name.strip_suffix('*') {
            Some(beginning) => (beginning.into(), Names::BeginningSo),
            None => (name.into(), Names::Exactly),
        });
    }

    fn allows(&self, name: &[u8]) -> bool {
        self.environment.iter().any(|(allowed, names)| match names {
            Names::Exactly => allowed == name,
            Names::BeginningSo => name.starts_with(allowed),
        })
    }

    /// Of the names that a service asks for, those that are allowed.
    pub(super) fn allowed_of(&self, requested: Vec<Vec<u8>>) -> HashSet<Vec<u8>> {
        let allowed = requested.into_iter().filter(|name| self.allows(name));
        allowed.take(MOST_REQUESTED).collect()
    }

    /// Redacts a command's words in place; tells the positions of those that it changed.
    pub(super) fn redact_words(&self, words: &mut [Bytes]) -> Vec<u32> {
        if self.patterns.is_empty() {
            return Vec::new();
        }
        let joined = words.join(&0);
        let Some(redacted) = self.redacted(&joined) else {
            return Vec::new();
        };
        // No word has a NUL in it, and redacting leaves each of them.
        let mut changed = Vec::new();
        for (position, (word, new)) in words
            .iter_mut()
            .zip(redacted.split(|byte| *byte == 0))
            .enumerate()
        {
            if *word != new {
                *word = Bytes::copy_from_slice(new);
                changed.extend(u32::try_from(position));
            }
        }
        changed
    }

    /// The variables of these names, with their values.
    pub(super) fn variables(
        &self,
        environment: &Environment,
        names: &HashSet<Vec<u8>>,
    ) -> Vec<EnvironmentVariable> {
        if names.is_empty() {
            return Vec::new();
        }
        environment
            .names()
            .zip(&environment.0)
            .filter(|(name, _)| names.contains(*name))
            .map(|(name, entry)| {
                let entry = entry.as_bytes();
                let value = |entry: &[u8]| entry.get(name.len() + 1..).map(Bytes::copy_from_slice);
                let (value, redaction) = match self.redacted(entry) {
                    None => (value(entry), Redaction::None),
                    Some(redacted) if redacted.starts_with(name) => {
                        (value(&redacted), Redaction::Replaced)
                    }
                    Some(_) => (Some(REDACTED.into()), Redaction::Replaced),
                };
                EnvironmentVariable {
                    name: Bytes::copy_from_slice(name),
                    value: value.unwrap_or_default(),
                    redaction: redaction.into(),
                }
            })
            .collect()
    }

    /// `None` where there is nothing to redact.
    fn redacted(&self, bytes: &[u8]) -> Option<Vec<u8>> {
        let mut secret: Vec<Range<usize>> = self
            .patterns
            .iter()
            .flat_map(|pattern| pattern.captures_iter(bytes))
            .filter_map(|found| found.name(SECRET).or_else(|| found.get(0)))
            .map(|found| found.range())
            .filter(|range| !range.is_empty())
            .collect();
        if secret.is_empty() {
            return None;
        }
        secret.sort_unstable_by_key(|range| (range.start, range.end));
        let mut redacted = Vec::with_capacity(bytes.len());
        let mut done = 0;
        for range in secret {
            if range.end <= done {
                continue;
            }
            if range.start >= done {
                redacted.extend_from_slice(&bytes[done..range.start]);
                redacted.extend_from_slice(REDACTED.as_bytes());
            }
            // Words stay apart.
            for byte in &bytes[range.start.max(done)..range.end] {
                if *byte == 0 {
                    redacted.extend_from_slice(b"\0");
                    redacted.extend_from_slice(REDACTED.as_bytes());
                }
            }
            done = range.end;
        }
        redacted.extend_from_slice(&bytes[done..]);
        Some(redacted)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn disclosure(patterns: &[&str]) -> Disclosure {
        let mut disclosure = Disclosure::default();
        for pattern in patterns {
            disclosure.redact(pattern).unwrap();
        }
        disclosure
    }

    fn redacted(patterns: &[&str], words: &[&str]) -> (Vec<String>, Vec<u32>) {
        let mut words: Vec<_> = words
            .iter()
            .map(|word| Bytes::copy_from_slice(word.as_bytes()))
            .collect();
        let changed = disclosure(patterns).redact_words(&mut words);
        let words = words
            .iter()
            .map(|word| String::from_utf8_lossy(word).replace(REDACTED, "#"));
        (words.collect(), changed)
    }

    #[test]
    fn what_a_pattern_matches_is_redacted_and_no_more() {
        let words = ["curl", "-u", "ada:pw", "https://x?token=abc&y=1", "-v"];
        assert_eq!(redacted(&[], &words).1, [0; 0]);
        assert_eq!(redacted(&["nothing"], &words).1, [0; 0]);
        let (shown, changed) = redacted(&["token=(?<secret>[^&\\x00]*)"], &words);
        assert_eq!(shown[3], "https://x?token=#&y=1");
        assert_eq!(changed, [3]);
        let (shown, changed) = redacted(&["\\x00-u\\x00(?<secret>[^\\x00]*)", "^curl"], &words);
        assert_eq!(shown, ["#", "-u", "#", words[3], "-v"]);
        assert_eq!(changed, [0, 2]);
    }

    #[test]
    fn matches_that_overlap_or_span_words_redact_all_of_them() {
        assert_eq!(
            redacted(&["bc", "cd", "ab"], &["xabcdx", "y"]),
            (vec!["x#x".to_owned(), "y".to_owned()], vec![0])
        );
        assert_eq!(
            redacted(&["b.*c", "x$"], &["ab", "whole", "cd", "x"]),
            (
                ["a#", "#", "#d", "#"].map(str::to_owned).to_vec(),
                vec![0, 1, 2, 3]
            )
        );
    }

    #[test]
    fn only_values_that_are_asked_for_and_allowed_are_told() {
        let mut disclosure = disclosure(&["TOKEN=(?<secret>.*)", "hunter2"]);
        disclosure.allow_environment("CI");
        disclosure.allow_environment("CI_*");
        disclosure.allow_environment("TOKEN");
        let names = |names: &[&str]| names.iter().map(|name| name.as_bytes().to_vec()).collect();
        let allowed = disclosure.allowed_of(names(&["CI", "CI_JOB", "HOME", "CIX", "TOKEN", "PW"]));
        assert_eq!(
            allowed,
            names(&["CI", "CI_JOB", "TOKEN"])
                .into_iter()
                .collect::<HashSet<Vec<u8>>>()
        );
        let environment = Environment(
            [
                "CI=1",
                "HOME=/root",
                "CI_JOB=a hunter2",
                "CI_OTHER=x",
                "TOKEN=abc",
                "CI=2",
                "CI",
            ]
            .map(Into::into)
            .to_vec(),
        );
        let told: Vec<_> = disclosure
            .variables(&environment, &allowed)
            .into_iter()
            .map(|variable| {
                let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).replace(REDACTED, "#");
                let mark = if variable.redaction() == Redaction::Replaced {
                    "!"
                } else {
                    ""
                };
                format!("{}={}{mark}", text(&variable.name), text(&variable.value))
            })
            .collect();
        assert_eq!(told, ["CI=1", "CI_JOB=a #!", "TOKEN=#!", "CI=2", "CI="]);
    }

    #[test]
    fn a_pattern_that_makes_no_sense_is_said_to() {
        let error = Disclosure::default().redact("(").unwrap_err();
        assert!(error.to_string().contains("\"(\""), "{error}");
    }

    #[test]
    fn a_service_gets_so_many_values_and_no_more_however_many_it_asks_for() {
        let mut disclosure = Disclosure::default();
        disclosure.allow_environment("LC_*");
        let asked = |first: &str| {
            let names = (0..2 * MOST_REQUESTED).map(|number| format!("{first}{number}"));
            names.map(String::into_bytes).collect::<Vec<_>>()
        };
        // What isn't allowed takes no room from what is.
        let names = [asked("HOME"), asked("LC_")].concat();
        let first: HashSet<_> = asked("LC_").into_iter().take(MOST_REQUESTED).collect();
        assert_eq!(disclosure.allowed_of(names), first);
    }

    /// Patterns that match alone, overlap with each other, span words, and leave a part of what they match.
    const PATTERNS: [&str; 6] = [
        "a+.",
        "b[^c]*b",
        "cb|ba",
        "\\x00a",
        "c\\x00",
        "a(?<secret>[^a]*)a",
    ];

    proptest! {
        #[test]
        fn redacting_keeps_words_apart_and_hides_what_it_should(
            patterns in prop::sample::subsequence(PATTERNS.to_vec(), 1..=3),
            words in prop::collection::vec("[abc]{0,5}", 0..6),
        ) {
            let words: Vec<_> = words.into_iter().map(Bytes::from).collect();
            crate::link::fuzzing::redacted(&patterns, &words);
        }
    }
}
