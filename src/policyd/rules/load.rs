//! From a file to rules that are known to be good.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Read;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::time::Duration;

use starlark::environment::Module;
use starlark::eval::Evaluator;
use starlark::syntax::AstModule;

use super::answer::{Opinion, OpinionReuseScope, RuleMode};
use super::decide::Decide;
use super::depth;
use super::error::RulesError;
use super::language::{self, Draft, DraftFallback, DraftRule, Place};
use super::pattern;
use super::prefix::{PrefixRule, PrefixRules, TrustedPrograms};
use super::{CODE_NO_MATCH, Rules};
use crate::policyd::revision::revision;
use crate::policyd::text;
use crate::sys::clock;

/// Largest rules file, in bytes.
pub const MAX_FILE_SIZE: u64 = 1 << 20;

/// Most files of rules, and most bytes of all of them.
const MAX_FILES: usize = 256;
const MAX_SIZE: u64 = 8 << 20;

/// Bounds of loading each file. Steps are function calls and loop iterations.
const MAX_STEPS: u64 = 5_000_000;
const MAX_HEAP: usize = 256 << 20;
const MAX_CALLS: usize = 64;
const MAX_TIME: Duration = Duration::from_secs(60);

/// The interpreter recurses over nested expressions, whose depth [`depth`] bounds. Takes some ten thousand levels;
/// address space, not memory, until it is used.
const STACK_SIZE: usize = 512 << 20;

impl Rules {
    /// Loads a rules file: reads it, evaluates it within bounds, and checks its examples.
    ///
    /// # Errors
    /// When the file can't be read, isn't in the language, or one of its examples fails.
    pub fn load(path: &Path) -> Result<Self, RulesError> {
        Self::load_all(std::slice::from_ref(&path))
    }

    /// Loads all rules of files and directories, as if they stood in one file: the strictest answer wins, whichever
    /// file it comes from. What `host_executable` declares holds for all of them.
    ///
    /// # Errors
    /// When one can't be used; and where two files contradict each other.
    pub fn load_all<P: AsRef<Path>>(paths: &[P]) -> Result<Self, RulesError> {
        let mut contents = Vec::new();
        let mut size = 0;
        for path in super::sources::files(paths)? {
            let (file, content) = read(&path)?;
            size += content.len() as u64;
            if contents.len() == MAX_FILES || size > MAX_SIZE {
                return Err(RulesError::TooMany {
                    files: MAX_FILES,
                    bytes: MAX_SIZE,
                });
            }
            contents.push((file, content));
        }
        Self::parse_all(contents)
    }

    /// Loads rules from text; `file` names it in messages.
    ///
    /// # Errors
    /// As [`load`](Self::load), apart from reading.
    pub fn parse(file: &str, content: String) -> Result<Self, RulesError> {
        Self::parse_all(vec![(file.to_owned(), content)])
    }

    pub(super) fn parse_all(contents: Vec<(String, String)>) -> Result<Self, RulesError> {
        let revision = match &contents[..] {
            [(_, content)] => revision([content]),
            // Where one ends and the next begins makes a difference.
            contents => revision(contents.iter().flat_map(|(file, content)| {
                [
                    file.clone(),
                    format!("\n{}\n", content.len()),
                    content.clone(),
                ]
            })),
        };
        let files: Vec<_> = contents.iter().map(|(file, _)| &**file).collect();
        let names = short_names(&files);
        let mut loaded = Vec::with_capacity(contents.len());
        for ((file, content), name) in contents.into_iter().zip(names) {
            loaded.push(evaluate_apart(file, name, content)?);
        }
        finish(revision, loaded)
    }
}

/// Reads one file; gives its name, fit to show, and its text.
fn read(path: &Path) -> Result<(String, String), RulesError> {
    let read_error = |source| RulesError::Read {
        path: path.to_owned(),
        source,
    };
    // Asked before it is opened: opening a pipe would wait for its writer.
    if !std::fs::metadata(path).map_err(read_error)?.is_file() {
        return Err(RulesError::NotAFile {
            path: path.to_owned(),
        });
    }
    let mut content = Vec::new();
    std::fs::OpenOptions::new()
        .read(true)
        // It may have become a pipe meanwhile.
        .custom_flags(libc::O_NONBLOCK)
        .open(path)
        .and_then(|file| file.take(MAX_FILE_SIZE + 1).read_to_end(&mut content))
        .map_err(read_error)?;
    if content.len() as u64 > MAX_FILE_SIZE {
        return Err(RulesError::TooLarge {
            path: path.to_owned(),
            limit: MAX_FILE_SIZE,
        });
    }
    let file = text::shown(path.as_os_str().as_encoded_bytes());
    let content = String::from_utf8(content).map_err(|error| RulesError::NotText {
        line: bytes_before(&error).split(|byte| *byte == b'\n').count(),
        file: file.clone(),
    })?;
    Ok((file, content))
}

/// What one file says.
struct Loaded {
    file: String,
    /// Short enough for a table, and no other file's.
    name: String,
    draft: Draft,
    decide: Option<Decide>,
}

/// Evaluates a file on a thread with room for it.
fn evaluate_apart(file: String, name: String, content: String) -> Result<Loaded, RulesError> {
    let path = file.clone();
    std::thread::Builder::new()
        .name("rules".to_owned())
        .stack_size(STACK_SIZE)
        .spawn(move || evaluate(&path, name, content))
        .map_err(|source| RulesError::Thread { source })?
        .join()
        .unwrap_or_else(|_| Err(RulesError::Interpreter { file }))
}

fn bytes_before(error: &std::string::FromUtf8Error) -> &[u8] {
    &error.as_bytes()[..error.utf8_error().valid_up_to()]
}

fn evaluate(file: &str, name: String, content: String) -> Result<Loaded, RulesError> {
    let invalid = |error: starlark::Error| invalid(file, &error);
    let decide_line = 1 + content
        .lines()
        .position(|line| line.starts_with("def decide"))
        .unwrap_or_default();
    depth::check(&content).map_err(|(line, what)| RulesError::Invalid {
        file: file.to_owned(),
        line,
        column: 1,
        what,
    })?;
    let syntax = AstModule::parse(file, content, &language::dialect()).map_err(invalid)?;
    language::begin();
    let frozen = Module::with_temp_heap(|module| {
        {
            let mut evaluator = Evaluator::new(&module);
            bound(&mut evaluator, MAX_STEPS, MAX_HEAP, MAX_CALLS, MAX_TIME)?;
            evaluator.eval_module(syntax, &language::globals())?;
        }
        module
            .freeze()
            .map_err(|error| starlark::Error::new_other(anyhow::Error::from(error)))
    })
    .map_err(invalid)?;
    let decide = frozen
        .get_option("decide")
        .map_err(|error| invalid(error.into()))?
        .map(|function| {
            Decide::new(name.clone(), decide_line, function).map_err(|what| RulesError::Invalid {
                file: file.to_owned(),
                line: decide_line,
                column: 1,
                what,
            })
        })
        .transpose()?;
    Ok(Loaded {
        file: file.to_owned(),
        name,
        draft: language::end(),
        decide,
    })
}

/// Bounds an evaluation: `time` is the processor's, for this thread. A single step isn't divided: what the interpreter does natively in one, such
/// as repeating a string, is bounded by nothing here.
pub(super) fn bound(
    evaluator: &mut Evaluator<'_, '_, '_>,
    steps: u64,
    heap: usize,
    calls: usize,
    time: Duration,
) -> anyhow::Result<()> {
    evaluator.set_max_tick_count(steps)?;
    evaluator.set_max_heap_size(heap)?;
    evaluator.set_max_callstack_size(calls)?;
    // The thread's own time: on a machine that has much else to do an evaluation takes longer, and none the
    // less ends where it would elsewhere.
    let started = clock::thread_time();
    evaluator.set_check_cancelled(Box::new(move || {
        clock::thread_time().saturating_sub(started) > time
    }));
    Ok(())
}

fn invalid(file: &str, error: &starlark::Error) -> RulesError {
    let begin = error.span().map(|span| span.resolve_span().begin);
    RulesError::Invalid {
        file: file.to_owned(),
        line: begin.map_or(0, |begin| begin.line) + 1,
        column: begin.map_or(0, |begin| begin.column) + 1,
        what: advised(&text::shortened(
            &error.without_diagnostic().to_string(),
            1_000,
        )),
    }
}

/// Says what to do where a bound of loading was met, in the interpreter's own words for it.
fn advised(what: &str) -> String {
    let advice = if what.contains(" ticks ") {
        "the file takes too many steps to load: shorten its loops, or write out what they make"
    } else if what.starts_with("Heap memory limit") {
        "the file makes too much to load: shorten its loops and lists"
    } else if what.contains("call stack overflow") {
        "its functions call each other too deeply: make it a loop"
    } else if what.contains("cancelled") {
        "the file takes too long to load: shorten its loops"
    } else {
        return what.to_owned();
    };
    format!("{advice} ({})", what.lines().next().unwrap_or_default())
}

/// The last path components of each file: one, or as many as tell it from the others.
fn short_names(files: &[&str]) -> Vec<String> {
    let tail = |file: &str, components: usize| {
        let start = file.rmatch_indices('/').nth(components - 1);
        start.map_or_else(
            || file.to_owned(),
            |(slash, _)| file[slash + 1..].to_owned(),
        )
    };
    let short = |file: &&str| {
        (1..=file.matches('/').count() + 1)
            .map(|components| (components, tail(file, components)))
            .find(|(components, name)| {
                let mut others = files.iter().filter(|other| *other != file);
                others.all(|other| tail(other, *components) != *name)
            })
            .map_or_else(|| (*file).to_owned(), |(_, name)| name)
    };
    files.iter().map(short).collect()
}

pub(super) fn place_name(file: &str, line: usize) -> String {
    format!("{file}:{line}")
}

#[allow(clippy::too_many_lines, reason = "each kind of declaration, once")]
fn finish(revision: String, loaded: Vec<Loaded>) -> Result<Rules, RulesError> {
    let invalid_at = |file: &str, Place { line, column }: Place| {
        let file = file.to_owned();
        move |what| RulesError::Invalid {
            file,
            line,
            column,
            what,
        }
    };
    let mut programs = TrustedPrograms::default();
    let mut declared_in = BTreeMap::new();
    let (mut drafts, mut decides) = (Vec::new(), Vec::new());
    let mut fallback: Option<(String, String, DraftFallback)> = None;
    let mut requests_digests = false;
    let mut variables = BTreeSet::new();
    for loaded in loaded {
        let (file, name) = (loaded.file, loaded.name);
        requests_digests |= loaded.draft.requests_digests;
        variables.extend(loaded.draft.variables);
        if variables.len() > language::MAX_VARIABLES {
            return Err(invalid_at(&file, Place { line: 1, column: 1 })(format!(
                "the files ask for more than {} variables together: keep those that decide",
                language::MAX_VARIABLES
            )));
        }
        for (name, paths) in loaded.draft.host_executables {
            let known = programs.declared.insert(name.clone(), paths);
            if known.is_some_and(|known| known != programs.declared[&name]) {
                let other = declared_in.get(&name).cloned().unwrap_or_default();
                return Err(invalid_at(&file, Place { line: 1, column: 1 })(format!(
                    "host_executable({:?}) says otherwise than {other} does: declare it in one file",
                    String::from_utf8_lossy(&name)
                )));
            }
            declared_in.insert(name, file.clone());
        }
        if let Some(own) = loaded.draft.fallback {
            if let Some((other, _, earlier)) = &fallback {
                let what = format!(
                    "fallback() stands in {other}:{} already: keep one of them",
                    earlier.place.line
                );
                return Err(invalid_at(&file, own.place)(what));
            }
            fallback = Some((file.clone(), name.clone(), own));
        }
        decides.extend(loaded.decide);
        drafts.extend(
            loaded
                .draft
                .rules
                .into_iter()
                .map(|draft| (file.clone(), name.clone(), draft)),
        );
    }
    let mut rules = Vec::with_capacity(drafts.len());
    let mut places = Vec::with_capacity(drafts.len());
    for (number, (file, name, draft)) in drafts.into_iter().enumerate() {
        let place = draft.place;
        if rules.len() == language::MAX_RULES {
            let what = format!(
                "the files have more than {} rules together",
                language::MAX_RULES
            );
            return Err(invalid_at(&file, place)(what));
        }
        let (rule, matching, not_matching) = prefix_rule(&name, number, draft);
        check_examples(&programs, &rule, &matching, &not_matching)
            .and_then(|()| pattern::check(&rule.programs, &rule.arguments, &matching))
            .map_err(invalid_at(&file, place))?;
        rules.push(rule);
        places.push((file, place));
    }
    for (rule, (file, place)) in rules.iter().zip(&places) {
        check_reuse(rule, &rules, &decides).map_err(invalid_at(file, *place))?;
    }
    for (position, decide) in decides.iter_mut().enumerate() {
        decide.number = rules.len() + position;
    }
    let last = rules.len() + decides.len();
    let fallback = fallback.map(|(_, name, fallback)| {
        let place = place_name(&name, fallback.place.line);
        Arc::new(Opinion {
            rule: "fallback".to_owned(),
            why: "nothing else matches".to_owned(),
            place,
            number: last,
            answer: fallback.answer,
            justification: fallback.justification,
            reason_code: fallback
                .reason_code
                .unwrap_or_else(|| CODE_NO_MATCH.to_owned()),
            reuse: None,
            mode: RuleMode::Enforce,
            terms: fallback.terms,
            failure: None,
        })
    });
    let decided = (0..=last).map(|_| AtomicU64::new(0)).collect();
    Ok(Rules {
        requests_digests,
        revision,
        programs,
        prefixes: PrefixRules::new(rules),
        decides,
        fallback,
        mode: RuleMode::Enforce,
        decided,
        took_long: AtomicBool::new(false),
        variables: variables.into_iter().collect(),
    })
}

/// An answer that holds for a whole prefix must be the answer to whatever begins with it.
fn check_reuse(rule: &PrefixRule, rules: &[PrefixRule], decides: &[Decide]) -> Result<(), String> {
    let is_for_prefix = rule
        .opinion
        .reuse
        .is_some_and(|reuse| reuse.scope != OpinionReuseScope::Exec);
    if !is_for_prefix {
        return Ok(());
    }
    if !decides.is_empty() {
        return Err(
            "reuse_scope is \"prefix\", and decide() may say otherwise of some of these commands: leave \
             it out"
                .to_owned(),
        );
    }
    match rules.iter().find(|other| rule.is_overruled_by(other)) {
        Some(other) => Err(format!(
            "reuse_scope is \"prefix\", and {} says otherwise of some of these commands: leave it out, \
             or make the pattern {rule} longer",
            other.opinion.place
        )),
        None => Ok(()),
    }
}

type Examples = Vec<Vec<String>>;

fn prefix_rule(file: &str, number: usize, draft: DraftRule) -> (PrefixRule, Examples, Examples) {
    let place = place_name(file, draft.place.line);
    let mut rule = PrefixRule {
        programs: draft.programs,
        arguments: draft.arguments,
        opinion: Arc::new(Opinion {
            rule: draft.name.unwrap_or_else(|| place.clone()),
            place,
            number,
            why: String::new(),
            answer: draft.answer,
            justification: draft.justification,
            reason_code: draft.reason_code.unwrap_or_default(),
            reuse: draft.reuse,
            mode: draft.mode,
            terms: draft.terms,
            failure: None,
        }),
    };
    let why = format!("prefix {}", text::shortened(&rule.to_string(), 200));
    Arc::make_mut(&mut rule.opinion).why = why;
    (rule, draft.matching, draft.not_matching)
}

fn check_examples(
    programs: &TrustedPrograms,
    rule: &PrefixRule,
    matching: &[Vec<String>],
    not_matching: &[Vec<String>],
) -> Result<(), String> {
    let admits = |words: &[String]| {
        let argv: Vec<&[u8]> = words.iter().map(String::as_bytes).collect();
        let program = argv.first().copied().unwrap_or_default();
        // An example that is written by name is about the program that the name means.
        let file = if program.contains(&b'/') {
            Some(program.to_vec())
        } else {
            programs.path_of(program)
        };
        file.is_some_and(|file| rule.admits(programs, &file, &argv))
    };
    let shown = |words: &[String]| text::command_line(words.iter().map(String::as_bytes), 200);
    if let Some(example) = matching.iter().find(|example| !admits(example)) {
        return Err(format!(
            "the example `{}` stands in match, and the pattern {rule} doesn't match it: correct one of \
             them",
            shown(example)
        ));
    }
    if let Some(example) = not_matching.iter().find(|example| admits(example)) {
        return Err(format!(
            "the example `{}` stands in not_match, and the pattern {rule} matches it: correct one of \
             them",
            shown(example)
        ));
    }
    Ok(())
}

#[cfg(test)]
#[allow(
    clippy::unnecessary_wraps,
    reason = "functions of the language may fail"
)]
mod tests {
    use starlark::environment::{GlobalsBuilder, LibraryExtension};
    use starlark::starlark_module;
    use starlark::values::none::NoneType;

    use super::*;

    #[starlark_module]
    fn waits(builder: &mut GlobalsBuilder) {
        /// What a machine does to a thread that isn't its turn.
        fn wait() -> anyhow::Result<NoneType> {
            std::thread::sleep(Duration::from_millis(1));
            Ok(NoneType)
        }
    }

    fn evaluate(content: &str, time: Duration) -> starlark::Result<()> {
        let syntax = AstModule::parse("x", content.to_owned(), &language::dialect())?;
        let globals = GlobalsBuilder::extended_by(&[LibraryExtension::StructType])
            .with(waits)
            .build();
        Module::with_temp_heap(|module| {
            let mut evaluator = Evaluator::new(&module);
            bound(&mut evaluator, u64::MAX, MAX_HEAP, MAX_CALLS, time)?;
            evaluator.eval_module(syntax, &globals).map(|_| ())
        })
    }

    #[test]
    fn time_that_the_machine_has_for_others_is_not_counted() {
        let time = Duration::from_millis(200);
        let began = std::time::Instant::now();
        evaluate("def f():\n  for i in range(300):\n    wait()\nf()", time).expect("in time");
        assert!(began.elapsed() > time);
        let error = evaluate(
            "def f():\n  for i in range(1000000000):\n    pass\nf()",
            time,
        )
        .expect_err("it takes too long");
        assert!(error.to_string().contains("ancel"), "{error}");
    }
}
