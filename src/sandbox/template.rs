//! A sandbox of the owner's own: a command line with places for what it is to confine.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use super::profile::{Access, Scope};
use super::{Confined, Unconfined};
use crate::model::NetworkAccess;

/// Such as `firejail --quiet --private-cwd={workdir} --whitelist={write} -- {command}`.
///
/// Words are separated by spaces, and nothing else has a meaning: no quotes, no variables, no shell. In a
/// word these are replaced, whatever bytes come of it, and the word stays one word:
///
/// - `{workdir}`: the command's working directory
/// - `{temporary}`: the session's own temporary directory; a word with it is left out where there is none
/// - `{network}`: `on` or `off`
/// - `{profile}`: the profile's name
/// - `{read}`, `{write}`, `{hide}`: the word is there once for each such path, and not at all without any
///
/// `{command}` is the last word, and becomes the program's path and its arguments from the first on; its
/// argument zero is its path. `{{` and `}}` are a brace each.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Template {
    program: PathBuf,
    words: Vec<Vec<Part>>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Part {
    Text(String),
    Workdir,
    Temporary,
    Network,
    Profile,
    Paths(Access),
}

/// Why a template is none.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum TemplateError {
    /// It doesn't begin with a program.
    #[error("the sandbox's command line has to begin with a program")]
    NoProgram,
    /// There is no such program.
    #[error("no program `{0}` in PATH, or none at that absolute path")]
    NotFound(String),
    /// It doesn't say where the command goes.
    #[error("the last word of the sandbox's command line has to be {{command}}, and no other")]
    NoCommand,
    /// A place that isn't known.
    #[error(
        "`{{{0}}}` is none of {{workdir}}, {{temporary}}, {{network}}, {{profile}}, {{read}}, {{write}}, \
         {{hide}}; write {{{{ and }}}} for braces"
    )]
    Unknown(String),
    /// A brace that nothing closes or opens.
    #[error("a brace without its other in `{0}`; write {{{{ and }}}} for braces")]
    Brace(String),
    /// Two lists would multiply.
    #[error("`{0}` has more than one of {{read}}, {{write}} and {{hide}}")]
    TwoLists(String),
}

impl Template {
    /// Reads a template; `find` looks for a program in `PATH`.
    ///
    /// # Errors
    /// What isn't one.
    pub fn parse(
        text: &str,
        find: impl Fn(&str) -> Option<PathBuf>,
    ) -> Result<Self, TemplateError> {
        let mut words: Vec<&str> = text.split_ascii_whitespace().collect();
        if words.pop() != Some("{command}") || words.contains(&"{command}") {
            return Err(TemplateError::NoCommand);
        }
        let (first, rest) = words.split_first().ok_or(TemplateError::NoProgram)?;
        let program = if Path::new(first).is_absolute() {
            Some(PathBuf::from(first)).filter(|path| path.is_file())
        } else {
            find(first)
        };
        Ok(Self {
            program: program.ok_or_else(|| TemplateError::NotFound((*first).to_owned()))?,
            words: rest
                .iter()
                .map(|word| parts(word))
                .collect::<Result<_, _>>()?,
        })
    }

    /// The command line that runs `command` in the sandbox.
    pub(super) fn confine(&self, command: Unconfined<'_>, scope: &Scope) -> Confined {
        let mut argv: Vec<OsString> = vec![self.program.clone().into()];
        for word in &self.words {
            let list = word.iter().find_map(|part| match part {
                Part::Paths(access) => Some(*access),
                _ => None,
            });
            match list {
                Some(access) => {
                    argv.extend(
                        scope
                            .with(access)
                            .filter_map(|path| fill(word, command, scope, path)),
                    );
                }
                None => argv.extend(fill(word, command, scope, Path::new(""))),
            }
        }
        argv.push(command.program.into());
        argv.extend(command.argv.iter().skip(1).cloned());
        Confined {
            program: self.program.clone(),
            argv,
            confinement: None,
            descriptors: Vec::new(),
            told_signals: None,
        }
    }
}

/// One word; `None` where it names what there isn't.
fn fill(word: &[Part], command: Unconfined<'_>, scope: &Scope, path: &Path) -> Option<OsString> {
    let mut filled = Vec::new();
    for part in word {
        let text: &OsStr = match part {
            Part::Text(text) => text.as_ref(),
            Part::Workdir => command.workdir.as_ref(),
            Part::Temporary => scope.temporary.as_ref()?.as_ref(),
            Part::Network if scope.network == NetworkAccess::Allowed => "on".as_ref(),
            Part::Network => "off".as_ref(),
            Part::Profile => scope.profile.as_ref(),
            Part::Paths(_) => path.as_ref(),
        };
        filled.extend_from_slice(text.as_bytes());
    }
    Some(OsString::from_vec(filled))
}

fn parts(word: &str) -> Result<Vec<Part>, TemplateError> {
    let brace = || TemplateError::Brace(word.to_owned());
    let mut parts = Vec::new();
    let mut text = String::new();
    let mut rest = word;
    while let Some(at) = rest.find(['{', '}']) {
        let (before, from) = rest.split_at(at);
        text.push_str(before);
        if let Some(behind) = from.strip_prefix("{{") {
            text.push('{');
            rest = behind;
        } else if let Some(behind) = from.strip_prefix("}}") {
            text.push('}');
            rest = behind;
        } else {
            let inside = from.strip_prefix('{').ok_or_else(brace)?;
            let (name, behind) = inside.split_once('}').ok_or_else(brace)?;
            if !text.is_empty() {
                parts.push(Part::Text(std::mem::take(&mut text)));
            }
            parts.push(match name {
                "workdir" => Part::Workdir,
                "temporary" => Part::Temporary,
                "network" => Part::Network,
                "profile" => Part::Profile,
                "read" => Part::Paths(Access::Read),
                "write" => Part::Paths(Access::Write),
                "hide" => Part::Paths(Access::Hidden),
                _ => return Err(TemplateError::Unknown(name.to_owned())),
            });
            rest = behind;
        }
    }
    text.push_str(rest);
    if !text.is_empty() {
        parts.push(Part::Text(text));
    }
    let lists = parts.iter().filter(|part| matches!(part, Part::Paths(_)));
    if lists.count() > 1 {
        return Err(TemplateError::TwoLists(word.to_owned()));
    }
    Ok(parts)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Template, TemplateError> {
        Template::parse(text, |name| {
            (name == "jail").then(|| "/usr/bin/jail".into())
        })
    }

    #[test]
    fn places_are_filled_and_words_stay_words() {
        let template = parse(
            "jail  -d {workdir} --rw={write} --net={network} -t{temporary} {{x}} '$y' -- {command}",
        )
        .unwrap();
        let scope = Scope {
            profile: "p".to_owned(),
            paths: [
                ("/a b", Access::Write),
                ("/c;d", Access::Write),
                ("/", Access::Read),
            ]
            .map(|(path, access)| (PathBuf::from(path), access))
            .into(),
            network: NetworkAccess::Denied,
            workdir: "/w".into(),
            temporary: None,
        };
        let argv = ["zero", "one two", "$(three)"].map(OsString::from);
        let command = Unconfined {
            program: Path::new("/bin/x"),
            argv: &argv,
            workdir: Path::new("/my work"),
            directory: crate::sandbox::Entered::ByName,
        };
        let confined = template.confine(command, &scope);
        assert_eq!(confined.program, Path::new("/usr/bin/jail"));
        assert_eq!(
            confined.argv,
            [
                "/usr/bin/jail",
                "-d",
                "/my work",
                "--rw=/a b",
                "--rw=/c;d",
                "--net=off",
                "{x}",
                "'$y'",
                "--",
                "/bin/x",
                "one two",
                "$(three)",
            ]
        );
    }

    #[test]
    fn what_is_no_template_is_told() {
        let error = |text| parse(text).unwrap_err();
        assert_eq!(error("jail --"), TemplateError::NoCommand);
        assert_eq!(error("jail {command} x"), TemplateError::NoCommand);
        assert_eq!(error("jail {command} {command}"), TemplateError::NoCommand);
        assert_eq!(
            error("jail --x={command} {command}"),
            TemplateError::Unknown("command".to_owned())
        );
        assert_eq!(error("{command}"), TemplateError::NoProgram);
        assert_eq!(
            error("gaol {command}"),
            TemplateError::NotFound("gaol".to_owned())
        );
        assert_eq!(
            error("jail {home} {command}"),
            TemplateError::Unknown("home".to_owned())
        );
        assert_eq!(
            error("jail {read {command}"),
            TemplateError::Brace("{read".to_owned())
        );
        assert_eq!(
            error("jail {read}:{hide} {command}"),
            TemplateError::TwoLists("{read}:{hide}".to_owned())
        );
        assert!(
            error("jail {x} {command}")
                .to_string()
                .contains("`{x}` is none of {workdir}")
        );
    }
}
