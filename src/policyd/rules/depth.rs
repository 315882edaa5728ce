//! Bounds how deeply a file's expressions nest, before the interpreter sees them.
//!
//! The interpreter recurses over expressions, and a stack that is used up ends the process: no error, no last good
//! rules, no verdicts. What is counted here is never less than how deep the interpreter goes: each word and sign of an
//! expression may be one level, until a comma or the end of the line begins the next.

/// Most levels. The interpreter's thread has room for several times as many.
const MOST: usize = 2_000;
/// Longest f-string, in bytes: what is in its braces are expressions too, and each byte may be a level.
const LONGEST_F_STRING: usize = 4_096;
/// Most `elif` in one file: each is a level below the one before.
const MOST_ELIF: usize = 2_000;

/// A pair of brackets, or the file.
#[derive(Debug, Default)]
struct Group {
    /// Words and signs since the last comma.
    words: usize,
    /// Levels of the deepest group since then.
    below: usize,
    /// Levels of the deepest part before that.
    deepest: usize,
    /// Whether a comma may belong to names that `lambda` or `for` binds, and what follows is below them.
    binds: bool,
}

impl Group {
    fn end_part(&mut self) {
        self.deepest = self.deepest.max(self.words + self.below);
        self.words = 0;
        self.below = 0;
        self.binds = false;
    }
}

/// Checks a file; of one that goes too deep the line, from 1, and what to do.
pub(super) fn check(content: &str) -> Result<(), (usize, String)> {
    let bytes = content.as_bytes();
    let mut groups = vec![Group::default()];
    let (mut at, mut line, mut elifs) = (0, 1, 0);
    while let Some(&byte) = bytes.get(at) {
        let open = groups.len() > 1;
        let Some(group) = groups.last_mut() else {
            break;
        };
        let mut length = 1;
        match byte {
            b'\n' => {
                if !open {
                    group.end_part();
                }
                line += 1;
            }
            b'#' => {
                length = bytes[at..]
                    .iter()
                    .take_while(|byte| **byte != b'\n')
                    .count();
            }
            // The line goes on.
            b'\\' if end_of_line(&bytes[at + 1..]) > 0 => {
                length = 1 + end_of_line(&bytes[at + 1..]);
                line += 1;
            }
            _ if byte.is_ascii_whitespace() => {}
            b',' if !group.binds => group.end_part(),
            b';' if !open => group.end_part(),
            b'(' | b'[' | b'{' => {
                group.words += 1;
                groups.push(Group::default());
            }
            b')' | b']' | b'}' if open => {
                group.end_part();
                let deepest = group.deepest;
                groups.pop();
                if let Some(outer) = groups.last_mut() {
                    outer.below = outer.below.max(deepest);
                }
            }
            b'"' | b'\'' => {
                length = string(&bytes[at..]);
                // Whatever is before the quote: more than f-strings may be taken for some, and few are as long.
                let before = &bytes[at.saturating_sub(2)..at];
                let is_f_string = before.iter().any(|byte| matches!(byte, b'f' | b'F'));
                if is_f_string && length > LONGEST_F_STRING {
                    return Err((
                        line,
                        format!(
                            "an f-string is longer than {LONGEST_F_STRING} bytes: use `+` or format()"
                        ),
                    ));
                }
                line += bytes[at..at + length].split(|byte| *byte == b'\n').count() - 1;
                group.words += 1;
            }
            _ => {
                let is_word =
                    |byte: &u8| byte.is_ascii_alphanumeric() || *byte == b'_' || *byte >= 0x80;
                length = bytes[at..]
                    .iter()
                    .take_while(|byte| is_word(byte))
                    .count()
                    .max(1);
                let word = &bytes[at..at + length];
                elifs += usize::from(word == b"elif");
                group.binds |= matches!(word, b"lambda" | b"for");
                group.words += 1;
            }
        }
        // How deep it is at this place: all that is open, and what these have in front of it.
        let is_deep = groups
            .last()
            .is_some_and(|group| group.words + group.below > MOST)
            || groups.len() > MOST;
        if is_deep {
            return Err((
                line,
                format!(
                    "an expression nests more than {MOST} levels deep, or has as many words without a comma: split it, or \
                     give its parts names"
                ),
            ));
        }
        if elifs > MOST_ELIF {
            return Err((
                line,
                format!("the file has more than {MOST_ELIF} elif: use a dict, or lists and `in`"),
            ));
        }
        at += length;
    }
    Ok(())
}

/// The length of the end of a line, if one begins here.
fn end_of_line(bytes: &[u8]) -> usize {
    match bytes {
        [b'\r', b'\n', ..] => 2,
        [b'\n', ..] => 1,
        _ => 0,
    }
}

/// The length of the string that begins here.
fn string(bytes: &[u8]) -> usize {
    let quote = bytes[0];
    let is_triple = bytes.starts_with(&[quote; 3]);
    let mut at = if is_triple { 3 } else { 1 };
    while let Some(&byte) = bytes.get(at) {
        match byte {
            b'\\' => at += 1 + end_of_line(&bytes[at + 1..]).max(1),
            // It isn't ended, which the interpreter says.
            b'\n' if !is_triple => return at,
            _ if byte == quote && !is_triple => return at + 1,
            _ if is_triple && bytes[at..].starts_with(&[quote; 3]) => return at + 3,
            _ => at += 1,
        }
    }
    bytes.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_way_to_nest_is_bounded_and_told_with_its_line() {
        let many = MOST + 1;
        for content in [
            format!("{}1{}", "(".repeat(many), ")".repeat(many)),
            format!("{}{}", "[".repeat(many), "]".repeat(many)),
            format!("{}1{}", "{1: ".repeat(many), "}".repeat(many)),
            format!("{}1", "-".repeat(many)),
            format!("{}1", "not ".repeat(many)),
            format!("{}1", "lambda: ".repeat(many)),
            format!("{}1", "lambda a, b: ".repeat(many)),
            format!("[1{}]", " for a, b in c".repeat(many)),
            format!("1{}", " + 1".repeat(many)),
            format!("1{}", " +\\\n 1".repeat(many)),
            format!("(1{})", "\n+ 1".repeat(many)),
            format!("1{}", " if 1 else 1".repeat(many)),
            format!("a{}", ".a".repeat(many)),
            format!("f{}", "()".repeat(many)),
            format!("a{}", "[0]".repeat(many)),
            format!("[1{}]", " for a in b".repeat(many)),
            format!("\"\"{}", " \"\"".repeat(many)),
            // Without their ends, and behind a string that has none.
            "(".repeat(many),
            format!("'\n{}", "-".repeat(many)),
            // Levels of several kinds add up.
            format!("{}1{}", "(-".repeat(many / 2 + 1), ")".repeat(many / 2 + 1)),
            format!("{}1{}", "(".repeat(1_500), "+1)".repeat(1_500)),
            format!("f({}, {}1{})", "1", "[".repeat(1_500), "][0]".repeat(1_500)),
        ] {
            let (line, what) = check(&format!("# {{[(\n'''\n\n'''\nx = {content}\n"))
                .expect_err(&content[..40.min(content.len())]);
            assert!(line >= 5, "{line}: {what}");
            assert!(what.contains("2000 levels"), "{what}");
        }
        // As editors elsewhere end lines.
        for content in [
            format!("x = {}1", "-\\\r\n".repeat(many)),
            format!("x = 'a\\\r\nb'; y = {}1", "-".repeat(many)),
        ] {
            check(&content).expect_err("levels");
        }
        for content in [
            format!("x = f'{{{}1}}'", "-".repeat(5_000)),
            format!("x = fr'{{{}1}}'", "-".repeat(5_000)),
            format!("x = f\"\"\"{{{}1}}\"\"\"", "-".repeat(5_000)),
        ] {
            let (_, what) = check(&content).expect_err("levels");
            assert!(what.contains("f-string"), "{what}");
        }
        let elifs = format!("if a:\n  a\n{}", "elif a:\n  a\n".repeat(MOST_ELIF + 1));
        let (_, what) = check(&elifs).expect_err("elif");
        assert!(what.contains("elif"), "{what}");
    }

    #[test]
    fn what_is_only_long_is_no_matter() {
        for content in [
            format!("x = [{}]", "1,".repeat(100_000)),
            format!("x = [{}]", "f(1), {2: [3]},\n".repeat(10_000)),
            "x = 1\n".repeat(10_000),
            "x = 1; ".repeat(10_000),
            format!("f = lambda: 1\nx = {}1\n", "1, ".repeat(10_000)),
            format!("# {}\n", "(".repeat(10_000)),
            format!("x = '{}'\n", "(\\'".repeat(10_000)),
            format!("x = \"\"\"{}\"\"\"\n", "(\"\"\n".repeat(10_000)),
            // Malformed: the interpreter's to say.
            ")".repeat(100),
            "'".to_owned(),
            "'\\".to_owned(),
            "\"\"\"".to_owned(),
            format!("'{}\n", "(".repeat(10_000)),
        ] {
            let beginning = &content[..20.min(content.len())];
            check(&content).unwrap_or_else(|error| panic!("{beginning}: {error:?}"));
        }
    }
}
