/// Longest text, in bytes, that is taken over from a policy service.
pub const TEXT_LIMIT: usize = 4096;

/// Makes text that a policy service wrote safe for one line of a terminal: at most
/// [`TEXT_LIMIT`] bytes, and what could steer a terminal, break the line or reorder it replaced by
/// U+FFFD.
#[must_use]
pub fn one_line(text: String) -> String {
    // The usual case: short and printable.
    if text.len() <= TEXT_LIMIT && text.bytes().all(|byte| matches!(byte, b' '..=b'~')) {
        return text;
    }
    let mut line = String::with_capacity(text.len().min(TEXT_LIMIT));
    for character in text.chars() {
        let character = if is_unsafe(character) {
            char::REPLACEMENT_CHARACTER
        } else {
            character
        };
        if line.len() + character.len_utf8() > TEXT_LIMIT {
            break;
        }
        line.push(character);
    }
    line
}

/// Control characters, line and paragraph separators, and the marks that change the direction of
/// the text around them (Unicode Standard Annex #9, section 2).
fn is_unsafe(character: char) -> bool {
    character.is_control()
        || matches!(character, '\u{061c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn printable_text_is_kept() {
        for text in ["", "no network here", "pas de réseau 🚫"] {
            assert_eq!(one_line(text.to_owned()), text);
        }
    }

    #[test]
    fn what_could_steer_a_terminal_is_replaced() {
        assert_eq!(
            one_line("a\u{1b}[2Jb\nc\r\td\u{7f}\u{9b}e\u{202e}f\u{2028}g\0".to_owned()),
            "a\u{fffd}[2Jb\u{fffd}c\u{fffd}\u{fffd}d\u{fffd}\u{fffd}e\u{fffd}f\u{fffd}g\u{fffd}"
        );
    }

    #[test]
    fn long_text_is_cut_between_characters() {
        let cut = one_line("é".repeat(TEXT_LIMIT));
        assert_eq!(cut.len(), TEXT_LIMIT);
        let cut = one_line(format!("a{}", "é".repeat(TEXT_LIMIT)));
        assert_eq!(cut.len(), TEXT_LIMIT - 1);
        assert!(one_line("\n".repeat(TEXT_LIMIT)).len() <= TEXT_LIMIT);
    }
}
