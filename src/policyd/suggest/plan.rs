//! Which rules are proposed for what was seen.

use std::collections::{BTreeMap, BTreeSet};

use super::gather::{Arguments, Decided, Decision, Gathered, Seen};
use super::programs::{Kind, kind_of};
use crate::policyd::rules::may_have_option;

/// Most options that a rule by options names: a program with more is named by its command lines.
const MOST_OPTIONS: usize = 64;

/// A command that was seen.
pub(super) type Command<'g> = (&'g Arguments, &'g Seen);

/// What is proposed, in the order of programs.
#[derive(Debug, Default)]
pub(super) struct Plan<'g> {
    pub(super) prefixes: Vec<Prefix<'g>>,
    pub(super) options: Vec<Options<'g>>,
    pub(super) wholes: Vec<Whole<'g>>,
    pub(super) guards: BTreeMap<&'g str, &'static [&'static str]>,
    pub(super) notes: Vec<Note<'g>>,
}

/// Whatever begins so.
#[derive(Debug)]
pub(super) struct Prefix<'g> {
    pub(super) words: Vec<&'g str>,
    pub(super) decided: &'g Decided,
    pub(super) commands: Vec<Command<'g>>,
}

/// A program with no options but these.
#[derive(Debug)]
pub(super) struct Options<'g> {
    pub(super) program: &'g str,
    pub(super) allowed: BTreeSet<&'g str>,
    pub(super) commands: Vec<Command<'g>>,
}

/// These command lines of a program.
#[derive(Debug)]
pub(super) struct Whole<'g> {
    pub(super) program: &'g str,
    pub(super) decided: &'g Decided,
    pub(super) commands: Vec<Command<'g>>,
    /// Why it is no shorter.
    pub(super) why: &'static str,
}

/// What can't be written as a rule, or isn't on purpose.
#[derive(Debug)]
pub(super) struct Note<'g> {
    pub(super) program: &'g [u8],
    pub(super) command: Command<'g>,
    pub(super) why: &'static str,
}

/// Bytes as a string of rules that is these bytes and no others. A replacement character may stand for bytes that
/// aren't text.
fn exact(bytes: &[u8]) -> Option<&str> {
    let text = std::str::from_utf8(bytes).ok()?;
    (!text.contains(['\0', '\u{fffd}'])).then_some(text)
}

/// Why a command line can't be named.
fn unnameable((arguments, seen): Command<'_>) -> Option<&'static str> {
    if seen.is_redacted {
        return Some(
            "parts of its arguments were replaced by the gate's owner: many commands look like it",
        );
    }
    let is_exact = arguments.iter().all(|word| exact(word).is_some());
    (!is_exact).then_some("its arguments aren't text, and rules have no other words")
}

pub(super) fn plan(gathered: &Gathered) -> Plan<'_> {
    let mut plan = Plan::default();
    for (program, commands) in &gathered.programs {
        let commands: Vec<_> = commands.iter().collect();
        let Some(name) = exact(program) else {
            let why = "the program's name isn't text";
            plan.notes.extend(noted(program, commands, why));
            continue;
        };
        let kind = if name.contains('/') {
            Kind::Unknown
        } else {
            kind_of(name)
        };
        plan.program(name, kind, commands);
    }
    plan
}

fn noted<'g>(
    program: &'g [u8],
    commands: impl IntoIterator<Item = Command<'g>>,
    why: &'static str,
) -> impl Iterator<Item = Note<'g>> {
    // What nothing matches is denied anyhow.
    let is_told = |seen: &Seen| seen.decided.decision != Decision::Unmatched;
    commands
        .into_iter()
        .filter(move |(_, seen)| is_told(seen))
        .map(move |command| Note {
            program,
            command,
            why,
        })
}

const FOREIGN: &str = "it isn't known what it does with its arguments";
const OUTSIDE: &str = "what is escalated is a whole command line";
const ONE_OF: &str = "commands that begin so were decided differently";
const OTHER_SUBCOMMANDS: &str = "what follows may be code, or what it does isn't known";
const TELLING_OPTIONS: &str = "options of it are code";

impl<'g> Plan<'g> {
    fn program(&mut self, name: &'g str, kind: Kind, commands: Vec<Command<'g>>) {
        match kind {
            Kind::Plain => self.prefix(vec![name], commands, &[]),
            Kind::Subcommands { plain, code } => {
                let mut groups: BTreeMap<&str, Vec<_>> = BTreeMap::new();
                let mut others = Vec::new();
                for command in commands {
                    let word = command.0.first().and_then(|word| exact(word));
                    match word.filter(|word| plain.contains(word)) {
                        Some(word) => groups.entry(word).or_default().push(command),
                        None => others.push(command),
                    }
                }
                for (word, commands) in groups {
                    self.prefix(vec![name, word], commands, code);
                }
                self.whole(name, others, OTHER_SUBCOMMANDS, Denials::Default);
            }
            Kind::Options { code } => self.by_options(name, commands, code),
            Kind::Code(why) => self.whole(name, commands, why, Denials::Default),
            Kind::Unknown => self.whole(name, commands, FOREIGN, Denials::Default),
        }
    }

    fn prefix(
        &mut self,
        words: Vec<&'g str>,
        commands: Vec<Command<'g>>,
        code: &'static [&'static str],
    ) {
        let name = words[0];
        let is =
            |command: &Command<'_>, decision: &Decision| command.1.decided.decision == *decision;
        if commands
            .iter()
            .any(|(_, seen)| matches!(seen.decided.decision, Decision::Escalate(_)))
        {
            return self.whole(name, commands, OUTSIDE, Denials::Default);
        }
        let (runs, others): (Vec<_>, Vec<_>) = commands
            .into_iter()
            .partition(|command| is(command, &Decision::Run));
        if runs.is_empty() {
            let first = &others[0].1.decided;
            let is_one = first.decision != Decision::Unmatched
                && others.iter().all(|(_, seen)| seen.decided == *first);
            if is_one {
                self.prefixes.push(Prefix {
                    words,
                    decided: first,
                    commands: others,
                });
            } else {
                self.whole(name, others, ONE_OF, Denials::Default);
            }
            return;
        }
        if others.iter().any(|command| unnameable(*command).is_some()) {
            // What is denied here couldn't be told from what runs.
            let all = runs.into_iter().chain(others).collect();
            return self.whole(name, all, ONE_OF, Denials::Default);
        }
        let is_code = |(arguments, _): &Command<'_>| has_any(arguments, code);
        let (telling, wide): (Vec<_>, Vec<_>) = runs.into_iter().partition(is_code);
        self.whole(name, telling, TELLING_OPTIONS, Denials::Default);
        if wide.is_empty() {
            return self.whole(name, others, ONE_OF, Denials::Default);
        }
        if !code.is_empty() {
            self.guards.insert(name, code);
        }
        self.prefixes.push(Prefix {
            words,
            decided: &wide[0].1.decided,
            commands: wide,
        });
        self.whole(name, others, ONE_OF, Denials::Written);
    }

    fn by_options(
        &mut self,
        name: &'g str,
        commands: Vec<Command<'g>>,
        code: &'static [&'static str],
    ) {
        if commands
            .iter()
            .any(|(_, seen)| seen.decided.decision != Decision::Run)
        {
            return self.whole(name, commands, TELLING_OPTIONS, Denials::Default);
        }
        let (telling, plain): (Vec<_>, Vec<_>) = commands
            .into_iter()
            .partition(|command| unnameable(*command).is_some() || has_any(command.0, code));
        self.whole(name, telling, TELLING_OPTIONS, Denials::Default);
        let words = plain.iter().flat_map(|(arguments, _)| arguments.iter());
        let allowed: BTreeSet<_> = words
            .filter_map(|word| exact(word))
            .filter(|word| *word != "-" && word.starts_with(['-', '+', '@']))
            .collect();
        // A file of options could hold any.
        let is_short =
            allowed.len() <= MOST_OPTIONS && !allowed.iter().any(|word| word.starts_with('@'));
        if plain.is_empty() || !is_short {
            return self.whole(name, plain, TELLING_OPTIONS, Denials::Default);
        }
        self.options.push(Options {
            program: name,
            allowed,
            commands: plain,
        });
    }

    fn whole(
        &mut self,
        program: &'g str,
        commands: Vec<Command<'g>>,
        why: &'static str,
        denials: Denials,
    ) {
        let mut groups: Vec<Whole<'g>> = Vec::new();
        for command in commands {
            let decided = &command.1.decided;
            if decided.decision == Decision::Unmatched && denials == Denials::Default {
                continue;
            }
            if let Some(why) = unnameable(command) {
                self.notes.extend(noted(program.as_bytes(), [command], why));
                continue;
            }
            match groups.iter_mut().find(|group| group.decided == decided) {
                Some(group) => group.commands.push(command),
                None => groups.push(Whole {
                    program,
                    decided,
                    commands: vec![command],
                    why,
                }),
            }
        }
        self.wholes.extend(groups);
    }
}

/// Whether what no rule matched is written down: not needed where nothing else matches either.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Denials {
    Default,
    Written,
}

fn has_any(arguments: &Arguments, options: &[&str]) -> bool {
    arguments.iter().any(|word| {
        let word = String::from_utf8_lossy(word);
        options.iter().any(|option| may_have_option(&word, option))
    })
}
