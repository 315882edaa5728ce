//! Words of patterns that nothing matches, or that mean something else than they seem to.
//!
//! A rule with such a word is worse than none: it is there to be read, and a denial that it looks like never comes.

use super::prefix::Alternatives;
use crate::policyd::text;

/// Bytes of one word that are too many for any exec: `MAX_ARG_STRLEN` of execve(2), which has a NUL at its end.
const LONGEST_WORD: usize = 128 << 10;

/// Where in a pattern a word stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Position {
    Program,
    Argument,
}

/// Checks each word of a pattern. What could be meant as it stands is taken where an example of what the rule
/// matches has the very word.
pub(super) fn check(
    programs: &Alternatives,
    arguments: &[Alternatives],
    matching: &[Vec<String>],
) -> Result<(), String> {
    for word in programs {
        if let Some(advice) = matches_nothing(word) {
            return Err(format!(
                "the pattern's program is {}: {advice}",
                text::quoted(word)
            ));
        }
    }
    for (position, words) in std::iter::once(programs).chain(arguments).enumerate() {
        let kind = match position {
            0 => Position::Program,
            _ => Position::Argument,
        };
        for word in words {
            if word.len() >= LONGEST_WORD {
                return Err(format!(
                    "a word of the pattern has {} bytes, and no command's word has more than {}: no system executes it; \
                     shorten it",
                    word.len(),
                    LONGEST_WORD - 1
                ));
            }
            let is_shown = matching.iter().any(|example| {
                let shown = example.get(position);
                shown.is_some_and(|shown| shown.as_bytes() == &**word)
            });
            if let Some(advice) = unclear(word, kind)
                && !is_shown
            {
                return Err(format!(
                    "the pattern's word {} {advice}; where it is meant as it stands, give a command that has it in \
                     match",
                    text::shortened(&text::quoted(word), 200)
                ));
            }
        }
    }
    Ok(())
}

/// What to write instead of a program that no exec can be of: gates tell absolute paths of files.
fn matches_nothing(program: &[u8]) -> Option<&'static str> {
    let last = program.rsplit(|byte| *byte == b'/').next();
    if program.contains(&b'/') && program.first() != Some(&b'/') {
        return Some(if program.first() == Some(&b'~') {
            "a policy service doesn't know whose home that is; write the absolute path"
        } else {
            "the path that is executed is always absolute; write that, or the program's bare name"
        });
    }
    match last {
        Some(b"") => Some("it ends with a slash, and no program's path does; take it away"),
        Some(b"." | b"..") => Some("that is a directory; name a program"),
        _ => None,
    }
}

/// What a word most likely means that it doesn't.
fn unclear(word: &[u8], position: Position) -> Option<&'static str> {
    const WILDCARD: &str = "looks like a wildcard, and there are none: words are compared byte by byte, and a pattern \
                            matches whatever follows it by itself";
    const EXPANDED: &str =
        "is something that a shell replaces before it asks; write what comes of it";
    const ALTERNATIVES: &str =
        "seems to hold alternatives, which are a list: pattern = [\"git\", [\"push\", \"pull\"]]";
    if word.contains(&b'*') || (position == Position::Program && word.contains(&b'?')) {
        return Some(WILDCARD);
    }
    let is_path = position == Position::Program && word.contains(&b'/');
    // Spaces of any kind: a no-break space comes with what is copied from a web page.
    let shown = String::from_utf8_lossy(word);
    let at_an_end = shown.trim().len() < shown.len();
    // Directories have names with spaces in them.
    if at_an_end || (!is_path && shown.contains(char::is_whitespace)) {
        return Some(
            "holds a space, and is compared with one word of the command; write each word on its own, as in \
             pattern = [\"git\", \"push\"]",
        );
    }
    let is_variable = |pair: &[u8]| {
        pair[0] == b'$' && (pair[1].is_ascii_alphabetic() || matches!(pair[1], b'{' | b'_'))
    };
    if word == b"~" || word.starts_with(b"~/") || word.windows(2).any(is_variable) {
        return Some(EXPANDED);
    }
    let is_braced = matches!(word, [b'{', between @ .., b'}'] if between.contains(&b',') && !between.contains(&b'"'));
    if is_braced || (word.len() > 1 && word.contains(&b'|')) {
        return Some(ALTERNATIVES);
    }
    // One of several characters, and something after it: addresses have colons.
    let set_ends = word.iter().position(|byte| *byte == b']');
    if word.first() == Some(&b'[')
        && let Some(end) = set_ends
        && end > 1
        && end + 1 < word.len()
        && !word[..end].contains(&b':')
    {
        return Some(WILDCARD);
    }
    if matches!(word, [_, .., b';' | b'&']) {
        return Some(
            "ends like a command line does, and no shell leaves that on a word; take it away",
        );
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(words: &[&str]) -> Alternatives {
        words
            .iter()
            .map(|word| Box::from(word.as_bytes()))
            .collect()
    }

    fn check_word(position: usize, word: &str, examples: &[&[&str]]) -> Result<(), String> {
        let mut elements = [words(&["git"]), words(&["push"])];
        elements[position] = words(&["fine", word]);
        let examples: Vec<Vec<String>> = examples
            .iter()
            .map(|example| example.iter().map(|word| (*word).to_owned()).collect())
            .collect();
        check(&elements[0], &elements[1..], &examples)
    }

    #[test]
    fn a_program_that_no_exec_can_be_of_is_refused_whatever_examples_say() {
        for (word, says) in [
            ("./git", "always absolute"),
            ("../git", "always absolute"),
            ("bin/git", "always absolute"),
            ("~/bin/git", "whose home"),
            ("~ada/bin/git", "whose home"),
            ("/usr/bin/git/", "ends with a slash"),
            ("/", "ends with a slash"),
            ("/usr/bin/..", "a directory"),
            ("/usr/bin/.", "a directory"),
            (".", "a directory"),
            ("..", "a directory"),
        ] {
            let error = check_word(0, word, &[&[word, "push"]]).expect_err(word);
            assert!(error.contains(says), "{word}: {error}");
        }
    }

    #[test]
    fn what_seems_to_mean_more_than_it_does_takes_an_example() {
        for (position, word, says) in [
            (0, "git*", "wildcard"),
            (0, "/opt/*/git", "wildcard"),
            (0, "gi?", "wildcard"),
            (0, "git push", "each word on its own"),
            (0, " git", "each word on its own"),
            (0, "/usr/bin/git ", "each word on its own"),
            (0, "$HOME/bin/git", "always absolute"),
            (0, "git|hg", "alternatives"),
            (1, "*", "wildcard"),
            (1, "--force*", "wildcard"),
            (1, "push origin", "each word on its own"),
            (1, "push\n", "each word on its own"),
            (1, "~", "a shell replaces"),
            (1, "~/.ssh", "a shell replaces"),
            (1, "$HOME", "a shell replaces"),
            (1, "--to=${HOME}/x", "a shell replaces"),
            (1, "push|pull", "alternatives"),
            (1, "{push,pull}", "alternatives"),
            (1, "[p]ush", "wildcard"),
            (1, "push;", "ends like a command line"),
            (1, "push&", "ends like a command line"),
            (1, "push\u{a0}", "each word on its own"),
            (0, "git\u{a0}push", "each word on its own"),
        ] {
            let error = check_word(position, word, &[&["fine", "fine"]]).expect_err(word);
            assert!(error.contains(says), "{word}: {error}");
            if !says.starts_with("always") {
                let mut example = ["fine", "fine"];
                example[position] = word;
                check_word(position, word, &[&example]).expect(word);
            }
        }
    }

    #[test]
    fn a_word_that_no_exec_can_have_is_refused() {
        let word = "x".repeat(LONGEST_WORD - 1);
        check_word(1, &word, &[]).expect("it may be");
        let error = check_word(1, &format!("{word}x"), &[]).expect_err("too long");
        assert!(error.contains("131072 bytes"), "{error}");
    }

    #[test]
    fn words_that_mean_what_they_say_are_taken() {
        for (position, word) in [
            (0, "["),
            (0, "/usr/bin/["),
            (0, "g++"),
            (0, "/opt/A B/git"),
            (0, "/src/./git"),
            (0, "//usr/bin/git"),
            (1, ""),
            (1, "|"),
            (1, ";"),
            (1, "["),
            (1, "]"),
            (1, "[]"),
            (1, "[::1]"),
            (1, "[::1]:22"),
            (1, "stash@{0}"),
            (1, "{}"),
            (1, "{\"a\":1,\"b\":2}"),
            (1, "HEAD~1"),
            (1, "./x"),
            (1, "../outbox/"),
            (1, "https://127.0.0.1/?x=y"),
            (1, "HEAD@{1}"),
            (1, "$1"),
            (1, "$"),
            (1, "\u{fffd}"),
        ] {
            check_word(position, word, &[]).expect(word);
        }
    }
}
