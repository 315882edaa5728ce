use prost::bytes::Bytes;
use regex::bytes::{Regex, RegexBuilder};

use super::disclosure::{Disclosure, REDACTED};

/// A pattern, and behind its NUL the words of a command, with a NUL between them: a pattern is refused or used, and
/// what is used hides what it matches, and nothing else.
pub(crate) fn redaction(bytes: &[u8]) {
    let mut parts = bytes.split(|byte| *byte == 0);
    let Some(pattern) = parts.next().and_then(|bytes| str::from_utf8(bytes).ok()) else {
        return;
    };
    let words: Vec<_> = parts.map(Bytes::copy_from_slice).collect();
    redacted(&[pattern], &words);
}

/// Redacts words: just those are changed that are told, what a pattern matches is gone from each, and all else is
/// left where it was, with a mark wherever something has gone.
pub(super) fn redacted(patterns: &[&str], words: &[Bytes]) {
    let mut disclosure = Disclosure::default();
    for pattern in patterns {
        if disclosure.redact(pattern).is_err() {
            return;
        }
    }
    let mut shown = words.to_vec();
    let changed = disclosure.redact_words(&mut shown);
    let hidden = hidden(patterns, &words.join(&0));
    let mut start = 0;
    for (position, (shown, word)) in shown.iter().zip(words).enumerate() {
        let is_told = changed
            .iter()
            .any(|changed| usize::try_from(*changed) == Ok(position));
        assert_eq!(is_told, shown != word, "word {position}");
        let place = start..start + word.len();
        start = place.end + 1;
        // The NULs beside a word are hidden with it, or it with them.
        let beside = place.start.saturating_sub(1)..hidden.len().min(place.end + 1);
        let is_hidden = hidden[beside].contains(&true);
        let (left, marks) = without_marks(shown);
        // What looks like a mark already can't be told from one.
        if word.contains(&b'<') {
            assert!(!is_told || is_hidden, "word {position} is changed");
            assert!(!is_told || marks > 0, "word {position} has no mark");
            continue;
        }
        assert_eq!(is_told, is_hidden, "word {position} of {words:?}");
        assert_eq!(is_told, marks > 0, "marks in word {position} of {words:?}");
        let visible = place.zip(word).filter(|(at, _)| !hidden[*at]);
        let visible: Vec<u8> = visible.map(|(_, byte)| *byte).collect();
        assert_eq!(left, visible, "word {position} of {words:?}");
    }
}

/// Of each byte, whether a pattern matches it.
fn hidden(patterns: &[&str], bytes: &[u8]) -> Vec<bool> {
    let mut hidden = vec![false; bytes.len()];
    for pattern in patterns.iter().filter_map(|pattern| compiled(pattern)) {
        for found in pattern.captures_iter(bytes) {
            let range = found.name("secret").or_else(|| found.get(0));
            let range = range.map_or(0..0, |found| found.range());
            hidden[range].fill(true);
        }
    }
    hidden
}

fn compiled(pattern: &str) -> Option<Regex> {
    RegexBuilder::new(pattern).unicode(false).build().ok()
}

/// What is left of a word, and how many marks are in it.
fn without_marks(mut shown: &[u8]) -> (Vec<u8>, usize) {
    let (mut left, mut marks) = (Vec::new(), 0);
    while let Some((first, rest)) = shown.split_first() {
        shown = if let Some(rest) = shown.strip_prefix(REDACTED.as_bytes()) {
            marks += 1;
            rest
        } else {
            left.push(*first);
            rest
        };
    }
    (left, marks)
}
