use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use super::answer::{Answer, Opinion};
use super::facts::ExecFacts;
use crate::policyd::text;

/// Where a system keeps its programs. A session's processes are assumed not to be able to write here.
const SYSTEM_DIRECTORIES: [&[u8]; 6] = [
    b"/usr/local/bin",
    b"/usr/local/sbin",
    b"/usr/bin",
    b"/usr/sbin",
    b"/bin",
    b"/sbin",
];

/// One element of a pattern: the words that it admits.
pub(super) type Alternatives = Vec<Box<[u8]>>;

/// A rule that admits commands by their first words.
#[derive(Debug, Clone)]
pub(super) struct PrefixRule {
    /// Bare names, and paths (whatever holds a slash), of the programs.
    pub(super) programs: Alternatives,
    /// What the arguments from argument one on must begin with.
    pub(super) arguments: Vec<Alternatives>,
    /// What the rule says.
    pub(super) opinion: Arc<Opinion>,
}

impl PrefixRule {
    /// Whether a command of this rule's programs is one that it admits.
    fn admits_command(&self, file: &[u8], argv: &[&[u8]]) -> bool {
        // Argument zero is the asker's own choice, and admits nothing. But some programs are another by it, which must
        // not leave the sandbox as this one.
        let leaves = matches!(self.opinion.answer, Answer::Escalate(_));
        let has_own_name = !argv.is_empty() && another_name(file, argv).is_none();
        (!leaves || has_own_name) && self.admits_arguments(argv)
    }

    fn admits_arguments(&self, argv: &[&[u8]]) -> bool {
        let arguments = argv.get(1..).unwrap_or_default();
        arguments.len() >= self.arguments.len()
            && self
                .arguments
                .iter()
                .zip(arguments)
                .all(|(alternatives, argument)| {
                    alternatives.iter().any(|word| **word == **argument)
                })
    }

    /// Whether another rule, about commands that begin with words that this rule's admit and go on,
    /// may win over this one.
    pub(super) fn is_overruled_by(&self, other: &Self) -> bool {
        other.arguments.len() > self.arguments.len()
            && other.opinion.answer != self.opinion.answer
            && other.opinion.answer.strictness() >= self.opinion.answer.strictness()
            && self.programs.iter().any(|own| {
                let own = last_component(own);
                let mut others = other.programs.iter();
                others.any(|other| last_component(other) == own)
            })
            && self
                .arguments
                .iter()
                .zip(&other.arguments)
                .all(|(own, others)| own.iter().any(|word| others.contains(word)))
    }

    /// Whether the rule by itself admits an exec.
    pub(super) fn admits(&self, programs: &TrustedPrograms, file: &[u8], argv: &[&[u8]]) -> bool {
        let name = programs.name_of(file);
        self.programs.iter().any(|program| {
            if program.contains(&b'/') {
                **program == *file
            } else {
                name == Some(&**program)
            }
        }) && self.admits_command(file, argv)
    }
}

impl std::fmt::Display for PrefixRule {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (position, element) in std::iter::once(&self.programs)
            .chain(&self.arguments)
            .enumerate()
        {
            if position > 0 {
                formatter.write_str(" ")?;
            }
            match element.as_slice() {
                [word] => formatter.write_str(&text::quoted(word))?,
                words => {
                    let words: Vec<_> = words.iter().map(|word| text::quoted(word)).collect();
                    write!(formatter, "({})", words.join("|"))?;
                }
            }
        }
        Ok(())
    }
}

/// Argument zero, where it isn't the name that the program has at its path, with a directory or without.
pub(in crate::policyd) fn another_name<'a, A: AsRef<[u8]>>(
    file: &[u8],
    argv: &'a [A],
) -> Option<&'a [u8]> {
    let name = argv.first()?.as_ref();
    (last_component(name) != last_component(file)).then_some(name)
}

fn last_component(program: &[u8]) -> &[u8] {
    program
        .rsplit(|byte| *byte == b'/')
        .next()
        .unwrap_or(program)
}

/// Directory and name of a path that is absolute and clean.
fn clean_parts(file: &[u8]) -> Option<(&[u8], &[u8])> {
    let components = file.strip_prefix(b"/")?.split(|byte| *byte == b'/');
    for component in components {
        if matches!(component, b"" | b"." | b"..") {
            return None;
        }
    }
    let slash = file.iter().rposition(|byte| *byte == b'/')?;
    Some((&file[..slash], &file[slash + 1..]))
}

/// The bare name of a program in one of the system's directories.
pub(super) fn name_at_system_place(file: &[u8]) -> Option<&[u8]> {
    let (directory, name) = clean_parts(file)?;
    SYSTEM_DIRECTORIES.contains(&directory).then_some(name)
}

/// The places at which a program's bare name means that program.
#[derive(Debug, Clone, Default)]
pub(super) struct TrustedPrograms {
    /// By name, where a file says it: the only paths. A name that isn't here stands for the program
    /// of that name in any of the system's directories.
    pub(super) declared: BTreeMap<Vec<u8>, Vec<Vec<u8>>>,
}

impl TrustedPrograms {
    /// The bare name that a program's path may be called by; `None` where the path isn't one of the
    /// trusted places for its last component. Goes by the path's bytes: whatever isn't absolute and
    /// clean (`.`, `..` and empty components) is never trusted, since it may lead elsewhere.
    pub(super) fn name_of<'f>(&self, file: &'f [u8]) -> Option<&'f [u8]> {
        let (directory, name) = clean_parts(file)?;
        let trusted = match self.declared.get(name) {
            Some(paths) => paths.iter().any(|path| path == file),
            None => SYSTEM_DIRECTORIES.contains(&directory),
        };
        trusted.then_some(name)
    }

    /// A path at which the bare name means its program, for examples that are written by name.
    pub(super) fn path_of(&self, name: &[u8]) -> Option<Vec<u8>> {
        match self.declared.get(name) {
            Some(paths) => paths.first().cloned(),
            None => Some([b"/usr/bin/", name].concat()),
        }
    }
}

/// All prefix rules, found by program.
#[derive(Debug, Default)]
pub(super) struct PrefixRules {
    rules: Vec<PrefixRule>,
    by_name: HashMap<Box<[u8]>, Vec<usize>>,
    by_path: HashMap<Box<[u8]>, Vec<usize>>,
}

impl PrefixRules {
    pub(super) fn new(rules: Vec<PrefixRule>) -> Self {
        let mut index = Self::default();
        for (position, rule) in rules.iter().enumerate() {
            for program in &rule.programs {
                let places = if program.contains(&b'/') {
                    &mut index.by_path
                } else {
                    &mut index.by_name
                };
                let positions = places.entry(program.clone()).or_default();
                // A program that a rule names twice is still one rule.
                if positions.last() != Some(&position) {
                    positions.push(position);
                }
            }
        }
        Self { rules, ..index }
    }

    pub(super) fn len(&self) -> usize {
        self.rules.len()
    }

    /// In the order of the file.
    pub(super) fn rules(&self) -> impl Iterator<Item = &PrefixRule> {
        self.rules.iter()
    }

    pub(super) fn has_name(&self, name: &[u8]) -> bool {
        self.by_name.contains_key(name)
    }

    /// What the rules that admit the exec say, in the order of the file.
    pub(super) fn opinions(
        &self,
        programs: &TrustedPrograms,
        facts: &ExecFacts<'_>,
    ) -> Vec<Arc<Opinion>> {
        let by_path = self.by_path.get(facts.file);
        let by_name = programs
            .name_of(facts.file)
            .and_then(|name| self.by_name.get(name));
        let mut positions: Vec<usize> = by_path
            .into_iter()
            .chain(by_name)
            .flatten()
            .copied()
            .filter(|position| self.rules[*position].admits_command(facts.file, &facts.argv))
            .collect();
        positions.sort_unstable();
        positions.dedup();
        positions
            .into_iter()
            .map(|position| Arc::clone(&self.rules[position].opinion))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bare_name_means_the_program_only_where_the_system_keeps_it() {
        let mut programs = TrustedPrograms::default();
        for path in ["/usr/bin/git", "/bin/git", "/usr/local/sbin/git"] {
            assert_eq!(
                programs.name_of(path.as_bytes()),
                Some(&b"git"[..]),
                "{path}"
            );
        }
        for path in [
            "/tmp/git",
            "/usr/bin/../../tmp/git",
            "/usr/bin/./git",
            "/usr/bin//git",
            "//usr/bin/git",
            "/usr/bin/x/git",
            "/usr/bin/git/",
            "./git",
            "git",
            "usr/bin/git",
            "/src/./git",
            "/",
            "",
            "/usr/bin/",
            "/usr/bin/..",
        ] {
            assert_eq!(programs.name_of(path.as_bytes()), None, "{path}");
        }

        programs
            .declared
            .insert(b"git".to_vec(), vec![b"/opt/git/bin/git".to_vec()]);
        assert_eq!(programs.name_of(b"/opt/git/bin/git"), Some(&b"git"[..]));
        assert_eq!(programs.name_of(b"/usr/bin/git"), None);
        assert_eq!(programs.name_of(b"/usr/bin/make"), Some(&b"make"[..]));
    }

    #[test]
    fn a_name_that_is_not_text_is_compared_by_its_bytes() {
        let programs = TrustedPrograms::default();
        assert_eq!(programs.name_of(b"/usr/bin/\xff"), Some(&b"\xff"[..]));
        assert_ne!(
            programs.name_of(b"/usr/bin/\xff"),
            Some("\u{fffd}".as_bytes())
        );
    }
}
