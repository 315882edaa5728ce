//! Bytes that came from a sandbox, made fit for a terminal, a log line or a message.

use unicode_width::UnicodeWidthChar;

/// Whether a character shows as itself and moves nothing: no controls, no direction overrides, no
/// marks that join to what stands before them, no line separators.
pub(crate) fn is_plain(character: char) -> bool {
    if character.is_whitespace() {
        return character == ' ';
    }
    character.width().is_some_and(|width| width > 0) && character != '\u{ad}'
}

/// The bytes as text in which everything that isn't plain is escaped, such as `\x1b`.
pub(crate) fn shown(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        for character in chunk.valid().chars() {
            if is_plain(character) {
                text.push(character);
            } else {
                let mut buffer = [0; 4];
                push_escaped(&mut text, character.encode_utf8(&mut buffer).as_bytes());
            }
        }
        push_escaped(&mut text, chunk.invalid());
    }
    text
}

fn push_escaped(text: &mut String, bytes: &[u8]) {
    for byte in bytes {
        match byte {
            b'\n' => text.push_str("\\n"),
            b'\t' => text.push_str("\\t"),
            b'\r' => text.push_str("\\r"),
            byte => {
                text.push_str("\\x");
                for nibble in [byte >> 4, byte & 15] {
                    text.push(char::from(b"0123456789abcdef"[usize::from(nibble)]));
                }
            }
        }
    }
}

/// One word as a shell would have to be given it. Plain words stay as they are; words with bytes that
/// aren't fit to show become `$'...'`, as bash and zsh read it.
pub(crate) fn quoted(word: &[u8]) -> String {
    let is_safe =
        |byte: &u8| byte.is_ascii_alphanumeric() || b"_-./,:=@%+".contains(byte) || *byte >= 0x80;
    let text = shown(word);
    let unchanged = text.as_bytes() == word;
    if unchanged && !word.is_empty() && word.iter().all(is_safe) {
        return text;
    }
    if unchanged {
        return format!("'{}'", text.replace('\'', r"'\''"));
    }
    let mut inner = String::with_capacity(text.len() + 3);
    for chunk in word.utf8_chunks() {
        for character in chunk.valid().chars() {
            match character {
                '\\' => inner.push_str("\\\\"),
                '\'' => inner.push_str("\\'"),
                character if is_plain(character) => inner.push(character),
                character => {
                    push_escaped(&mut inner, character.to_string().as_bytes());
                }
            }
        }
        push_escaped(&mut inner, chunk.invalid());
    }
    format!("$'{inner}'")
}

/// A command line for people: quoted words, shortened to about `limit` bytes.
pub(crate) fn command_line<'a>(words: impl IntoIterator<Item = &'a [u8]>, limit: usize) -> String {
    let mut line = String::new();
    for word in words {
        if !line.is_empty() {
            line.push(' ');
        }
        // A word is cut before it is quoted, so that a huge one costs no more than a small one.
        let left = limit.saturating_sub(line.len());
        if word.len() > left {
            line.push_str(&quoted(&word[..left]));
            line.push('…');
            return line;
        }
        line.push_str(&quoted(word));
    }
    line
}

/// JSON in which whatever isn't plain is escaped, so that it may be shown on a terminal too.
pub(crate) fn plain_json(value: &serde_json::Value) -> String {
    use std::fmt::Write;
    let mut plain = String::new();
    for character in value.to_string().chars() {
        if is_plain(character) {
            plain.push(character);
            continue;
        }
        // Outside of strings JSON is plain, so this is inside one.
        let mut units = [0; 2];
        for unit in character.encode_utf16(&mut units) {
            let _ = write!(plain, "\\u{unit:04x}");
        }
    }
    plain
}

/// Columns that the text takes on a terminal.
pub(crate) fn width(text: &str) -> usize {
    text.chars()
        .map(|character| character.width().unwrap_or(0))
        .sum()
}

/// The text cut to a number of columns, with `…` where something was cut off.
pub(crate) fn shortened(text: &str, columns: usize) -> String {
    if width(text) <= columns {
        return text.to_owned();
    }
    let mut taken = 0;
    let mut short = String::new();
    for character in text.chars() {
        let wide = character.width().unwrap_or(0);
        if taken + wide + 1 > columns {
            break;
        }
        taken += wide;
        short.push(character);
    }
    if columns > 0 {
        short.push('…');
    }
    short
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What moves the cursor, turns the direction, can't be seen, or joins to what stands before it: named here by
    /// its numbers, so that it doesn't go by what the code under test takes for plain.
    fn hostile() -> impl Iterator<Item = char> {
        [
            0..=0x1f,
            0x7f..=0x9f,
            // A soft hyphen, accents that join, the mark of an Arabic letter.
            0xad..=0xad,
            0x300..=0x36f,
            0x61c..=0x61c,
            // Of no width, and of one direction.
            0x180e..=0x180e,
            0x200b..=0x200f,
            0x2028..=0x202e,
            0x2060..=0x2069,
            // Variations, marks of byte order, tags.
            0xfe00..=0xfe0f,
            0xfeff..=0xfeff,
            0xe0001..=0xe0001,
            0xe0020..=0xe007f,
        ]
        .into_iter()
        .flatten()
        .filter_map(char::from_u32)
    }

    #[test]
    fn nothing_that_drives_a_terminal_gets_through() {
        let hostile_word = "a\x1b[31m\u{202e}b\u{9b}2J\r\n\u{200b}\u{2028}\u{7f}".as_bytes();
        let safe = r"a\x1b[31m\xe2\x80\xaeb\xc2\x9b2J\r\n\xe2\x80\x8b\xe2\x80\xa8\x7f";
        assert_eq!(shown(hostile_word), safe);
        assert_eq!(quoted(hostile_word), format!("$'{safe}'"));
        assert_eq!(command_line([hostile_word], 100), format!("$'{safe}'"));
        for character in hostile() {
            let text = format!("a{character}b");
            let value = serde_json::json!({ text.clone(): text });
            for safe in [
                shown(text.as_bytes()),
                quoted(text.as_bytes()),
                command_line([text.as_bytes()], 100),
                plain_json(&value),
            ] {
                let is_escaped = safe.bytes().all(|byte| matches!(byte, b' '..=b'~'));
                assert!(is_escaped, "{character:?}: {safe:?}");
            }
        }
        assert_eq!(shown(b"\x1b[2J"), "\\x1b[2J");
        assert_eq!(shown(b"\xff\xfeok"), "\\xff\\xfeok");
        assert_eq!(shown("naïve 漢字".as_bytes()), "naïve 漢字");
    }

    #[test]
    fn words_are_quoted_as_a_shell_needs_them() {
        assert_eq!(quoted(b"plain-1.0"), "plain-1.0");
        assert_eq!(quoted(b""), "''");
        assert_eq!(quoted(b"two words"), "'two words'");
        assert_eq!(quoted(b"it's"), r"'it'\''s'");
        assert_eq!(quoted(b"a\nb'\\"), r"$'a\nb\'\\'");
        assert_eq!(quoted(b"\xff"), r"$'\xff'");
        assert_eq!(quoted(b"$HOME"), "'$HOME'");
    }

    #[test]
    fn json_is_plain_and_says_the_same() {
        let value = serde_json::json!({ "k\u{9b}": "\u{202e}\u{1f600}\u{7f}\n\u{e0001}é" });
        let plain = plain_json(&value);
        assert_eq!(plain, r#"{"k\u009b":"\u202e😀\u007f\n\udb40\udc01é"}"#);
        assert_eq!(
            serde_json::from_str::<serde_json::Value>(&plain).expect("JSON"),
            value
        );
    }

    #[test]
    fn what_is_long_is_cut() {
        let word = vec![b'x'; 5 << 20];
        assert!(command_line([&b"echo"[..], &word], 100).len() < 110);
        assert_eq!(shortened("abcdef", 4), "abc…");
        assert_eq!(shortened("abcd", 4), "abcd");
        assert_eq!(width(&shortened("漢字漢字", 5)), 5);
        assert_eq!(shortened("abc", 0), "");
    }
}
