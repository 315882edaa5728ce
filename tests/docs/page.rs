//! A page's blocks.

/// A fenced block of a page. What follows the language says what the test does with it; readers see nothing of that.
#[derive(Debug)]
pub(crate) struct Block {
    pub(crate) line: usize,
    pub(crate) text: String,
    pub(crate) content: Content,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Content {
    /// `sh`: commands, none of which may fail.
    Commands,
    /// `console`: commands behind `$`, each with what it writes.
    Dialogue(How),
    /// `python`: rules, or a program if its file's name isn't that of rules; `json` and others: a file's content.
    File {
        is_rules: bool,
        path: Option<String>,
    },
    /// `text`: nothing to run.
    Text,
    /// `not-run: REASON`.
    NotRun(String),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum How {
    Once,
    /// In the background; the page goes on when what it shows is written.
    Background,
    /// The same, once all in the background have been interrupted and have ended.
    Instead,
    /// Again and again, until it writes what the page shows.
    Eventually,
}

/// A command and what a page shows of its output.
#[derive(Debug)]
pub(crate) struct Exchange {
    pub(crate) command: String,
    pub(crate) output: Vec<String>,
}

impl Block {
    /// All blocks of a page, in order.
    pub(crate) fn of(page: &str) -> Vec<Self> {
        let mut blocks = Vec::new();
        let mut open: Option<(usize, String, Vec<&str>)> = None;
        for (index, line) in page.lines().enumerate() {
            match (&mut open, line.strip_prefix("```")) {
                (None, Some(info)) => open = Some((index + 1, info.to_owned(), Vec::new())),
                (Some(_), Some("")) => {
                    let (line, info, lines) = open.take().expect("an open block");
                    blocks.push(Self {
                        line,
                        content: content(&info, line),
                        text: lines.join("\n") + "\n",
                    });
                }
                (Some((.., lines)), _) => lines.push(line),
                (None, None) => assert!(
                    !line.starts_with("    "),
                    "line {}: a block without a fence, which no test can know: {line}",
                    index + 1
                ),
            }
        }
        assert!(open.is_none(), "a block has no end: {open:?}");
        blocks
    }

    /// The commands of a dialogue. One that ends with `\` goes on in the next line.
    pub(crate) fn exchanges(&self) -> Vec<Exchange> {
        let mut exchanges: Vec<Exchange> = Vec::new();
        let mut goes_on = false;
        for line in self.text.lines() {
            if let Some(command) = line.strip_prefix("$ ") {
                exchanges.push(Exchange {
                    command: command.to_owned(),
                    output: Vec::new(),
                });
                goes_on = command.ends_with('\\');
                continue;
            }
            let last = exchanges
                .last_mut()
                .unwrap_or_else(|| panic!("line {}: output before any command", self.line));
            if goes_on {
                last.command = format!("{}\n{line}", last.command);
                goes_on = line.ends_with('\\');
            } else {
                last.output.push(line.to_owned());
            }
        }
        exchanges
    }
}

fn content(info: &str, line: usize) -> Content {
    let (language, rest) = info.split_once(' ').unwrap_or((info, ""));
    if let Some(reason) = rest.strip_prefix("not-run: ") {
        assert!(
            reason.len() > 15,
            "line {line}: why it isn't run: {reason:?}"
        );
        return Content::NotRun(reason.to_owned());
    }
    let path = rest.strip_prefix("file=").map(str::to_owned);
    match (language, rest) {
        ("sh", "") => Content::Commands,
        ("console", "") => Content::Dialogue(How::Once),
        ("console", "background") => Content::Dialogue(How::Background),
        ("console", "instead") => Content::Dialogue(How::Instead),
        ("console", "eventually") => Content::Dialogue(How::Eventually),
        ("text", "") => Content::Text,
        ("python", _) if rest.is_empty() || path.is_some() => Content::File {
            is_rules: path.as_ref().is_none_or(|path| path.contains(".rules")),
            path,
        },
        ("ini" | "toml" | "json" | "yaml", _) if path.is_some() => Content::File {
            is_rules: false,
            path,
        },
        _ => panic!("line {line}: no test knows what to do with a block of {info:?}"),
    }
}

/// Whether an output is what a page shows of it: `...` stands for any text in a line, and alone for any lines; how
/// many spaces separate columns doesn't matter.
pub(crate) fn is_as_shown(shown: &[String], output: &str) -> bool {
    let mut pattern = String::from(r"\A");
    for line in shown {
        let words = line.split_whitespace().collect::<Vec<_>>().join(" ");
        if words == "..." {
            pattern += r"(?:.*\n)*?";
            continue;
        }
        // Between words it may stand for none.
        let words = regex::escape(&words).replace(r" \.\.\. ", " (?:.* )?");
        pattern += &words.replace(r"\.\.\.", ".*");
        pattern += r"\n";
    }
    pattern += r"\z";
    let mut lines = String::new();
    for line in output.lines() {
        lines += &line.split_whitespace().collect::<Vec<_>>().join(" ");
        lines.push('\n');
    }
    regex::Regex::new(&pattern)
        .expect("a pattern")
        .is_match(&lines)
}

#[test]
fn what_is_shown_is_compared() {
    let shown = |text: &str| text.lines().map(str::to_owned).collect::<Vec<_>>();
    assert!(is_as_shown(
        &shown("a  b\n...\nc ... e"),
        "a b\nx\ny\nc d e\n"
    ));
    assert!(is_as_shown(&shown("a\n..."), "a\n"));
    assert!(is_as_shown(&shown("a ... b"), "a b\n"));
    assert!(!is_as_shown(&shown("a ... b"), "ab\n"));
    assert!(!is_as_shown(&shown("a"), "a\nb\n"));
    assert!(!is_as_shown(&shown("a\nb"), "a\n"));
    assert!(!is_as_shown(&shown("a."), "ab\n"));
    assert!(is_as_shown(&[], ""));
    assert!(!is_as_shown(&[], "error\n"));
}

#[test]
fn blocks_are_found() {
    let page = "x\n```sh\ncd /\n```\n\n```console eventually\n$ a \\\n  b\nc\n$ d\n```\n```sh not-run: it needs another machine\nx\n```\n";
    let blocks = Block::of(page);
    assert_eq!(blocks[0].content, Content::Commands);
    assert_eq!(blocks[1].content, Content::Dialogue(How::Eventually));
    let exchanges = blocks[1].exchanges();
    assert_eq!(exchanges[0].command, "a \\\n  b");
    assert_eq!(exchanges[0].output, ["c"]);
    assert_eq!(exchanges[1].command, "d");
    assert!(matches!(blocks[2].content, Content::NotRun(_)));
    let hidden = std::panic::catch_unwind(|| Block::of("x\n\n    rm -r y\n"));
    assert!(hidden.is_err(), "a block without a fence isn't found");
}
