use prost::bytes::Bytes;

use super::disclosure::{Disclosure, REDACTED};

/// A pattern, and behind its NUL the words of a command, with a NUL between them: a pattern is refused or used, and
/// of words that are redacted just those are changed that are told, and none of the others.
pub(crate) fn redaction(bytes: &[u8]) {
    let mut parts = bytes.split(|byte| *byte == 0);
    let Some(pattern) = parts.next().and_then(|bytes| str::from_utf8(bytes).ok()) else {
        return;
    };
    let mut disclosure = Disclosure::default();
    if disclosure.redact(pattern).is_err() {
        return;
    }
    let words: Vec<_> = parts.map(Bytes::copy_from_slice).collect();
    let mut shown = words.clone();
    let changed = disclosure.redact_words(&mut shown);
    assert_eq!(shown.len(), words.len(), "words were joined or split");
    for (position, (shown, word)) in shown.iter().zip(&words).enumerate() {
        let is_told = changed
            .iter()
            .any(|changed| usize::try_from(*changed) == Ok(position));
        assert_eq!(is_told, shown != word, "word {position}");
        let marks = |bytes: &[u8]| {
            let mark = REDACTED.as_bytes();
            bytes.windows(mark.len()).any(|window| window == mark)
        };
        assert!(!is_told || marks(shown), "word {position} has no mark");
    }
}
