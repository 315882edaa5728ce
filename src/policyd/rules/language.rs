//! What a rules file may call, and how answers look inside it.

mod answering;
mod arguments;

use std::cell::RefCell;

use anyhow::anyhow;
use starlark::environment::{Globals, GlobalsBuilder};
use starlark::eval::Evaluator;
use starlark::starlark_module;
use starlark::syntax::{Dialect, DialectTypes};
use starlark::values::list::{AllocList, UnpackList};
use starlark::values::none::{NoneOr, NoneType};
use starlark::values::structs::AllocStruct;
use starlark::values::tuple::UnpackTuple;
use starlark::values::{Heap, Value};

use self::answering::{
    Asking, answer_of, answer_value, execution_of, is_escalation, network_of, prefix_reuse,
};
use self::arguments::{MAX_PATTERN, alternatives_of, examples_of, mode_of, paths_of, said};
use super::answer::{Answer, OpinionReuse, RuleMode};
use super::options::options;
use super::prefix::Alternatives;
use super::terms::{IsEscalation, TermArguments};
use crate::model::EscalationTerms;

pub(super) use self::answering::{GivenAnswer, given_answer};
pub(super) use self::arguments::{described, field, text_of};

/// Most prefix rules in one file.
pub(super) const MAX_RULES: usize = 10_000;
/// Most variables that a file, or all files together, may ask for, as the contract has it.
pub(super) const MAX_VARIABLES: usize = 256;

/// The language: Starlark with the extensions that similar rule files use, without `load`, so that
/// one file is the whole policy.
pub(super) fn dialect() -> Dialect {
    Dialect {
        enable_load: false,
        enable_keyword_only_arguments: true,
        enable_types: DialectTypes::Enable,
        enable_top_level_stmt: true,
        enable_f_strings: true,
        ..Dialect::Standard
    }
}

pub(super) fn globals() -> Globals {
    GlobalsBuilder::standard()
        .with(declarations)
        .with(answers)
        .with(options)
        .build()
}

/// A place in a rules file, from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) line: usize,
    pub(super) column: usize,
}

/// What a file has declared so far. Examples are checked when all of it is known.
#[derive(Debug, Default)]
pub(super) struct Draft {
    pub(super) rules: Vec<DraftRule>,
    pub(super) host_executables: std::collections::BTreeMap<Vec<u8>, Vec<Vec<u8>>>,
    pub(super) fallback: Option<DraftFallback>,
    /// Names of environment variables whose values are asked for.
    pub(super) variables: std::collections::BTreeSet<Vec<u8>>,
    pub(super) requests_digests: bool,
}

#[derive(Debug)]
pub(super) struct DraftRule {
    pub(super) place: Place,
    pub(super) programs: Alternatives,
    pub(super) arguments: Vec<Alternatives>,
    pub(super) answer: Answer,
    pub(super) justification: Option<String>,
    pub(super) name: Option<String>,
    pub(super) reason_code: Option<String>,
    pub(super) reuse: Option<OpinionReuse>,
    pub(super) mode: RuleMode,
    pub(super) terms: EscalationTerms,
    pub(super) matching: Vec<Vec<String>>,
    pub(super) not_matching: Vec<Vec<String>>,
}

#[derive(Debug)]
pub(super) struct DraftFallback {
    pub(super) place: Place,
    pub(super) answer: Answer,
    pub(super) terms: EscalationTerms,
    pub(super) justification: Option<String>,
    pub(super) reason_code: Option<String>,
}

thread_local! {
    /// Where the declarations of a file gather while it is loaded, on a thread of its own. Handing it
    /// through the interpreter instead takes an unsafe implementation.
    static DRAFT: RefCell<Option<Draft>> = const { RefCell::new(None) };
}

/// Begins to gather on this thread.
pub(super) fn begin() {
    DRAFT.set(Some(Draft::default()));
}

/// Ends it, and gives what was declared.
pub(super) fn end() -> Draft {
    DRAFT.take().unwrap_or_default()
}

/// Adds a declaration to the file that is being loaded.
fn declare<T>(
    function: &str,
    add: impl FnOnce(&mut Draft) -> anyhow::Result<T>,
) -> anyhow::Result<T> {
    DRAFT.with_borrow_mut(|draft| {
        let draft = draft.as_mut().ok_or_else(|| {
            anyhow!(
                "{function}() declares and can't be called by decide(): move it to the top of the file"
            )
        })?;
        add(draft)
    })
}

fn place(evaluator: &Evaluator<'_, '_, '_>) -> Place {
    let begin = evaluator
        .call_stack_top_location()
        .map(|location| location.resolve_span().begin);
    Place {
        line: begin.map_or(0, |begin| begin.line) + 1,
        column: begin.map_or(0, |begin| begin.column) + 1,
    }
}

/// Values that `decide()` returns.
#[starlark_module]
fn answers(builder: &mut GlobalsBuilder) {
    /// Runs the command inside the sandbox.
    fn run<'v>(
        reason: Option<NoneOr<String>>,
        #[starlark(require = named)] reason_code: Option<NoneOr<String>>,
        #[starlark(require = named)] name: Option<NoneOr<String>>,
        #[starlark(require = named)] reuse: Option<NoneOr<String>>,
        heap: Heap<'v>,
    ) -> anyhow::Result<Value<'v>> {
        let said = (reason, reason_code, name, reuse);
        answer_value(
            heap,
            "run",
            None,
            said,
            &EscalationTerms::default(),
            (None, None),
        )
    }

    /// Runs the command outside the session's sandbox.
    #[allow(clippy::too_many_arguments, reason = "rules may say as much")]
    fn escalate<'v>(
        reason: Option<NoneOr<String>>,
        #[starlark(require = named)] execution: Option<Value<'v>>,
        #[starlark(require = named)] reason_code: Option<NoneOr<String>>,
        #[starlark(require = named)] name: Option<NoneOr<String>>,
        #[starlark(require = named)] reuse: Option<NoneOr<String>>,
        #[starlark(require = named)] unprotected: Option<NoneOr<String>>,
        #[starlark(require = named)] keep_environment: Option<NoneOr<Value<'v>>>,
        #[starlark(require = named)] set_environment: Option<NoneOr<Value<'v>>>,
        #[starlark(require = named)] unset_environment: Option<NoneOr<Value<'v>>>,
        heap: Heap<'v>,
    ) -> anyhow::Result<Value<'v>> {
        if let Some(execution) = execution {
            execution_of(execution)?;
        }
        let terms = TermArguments {
            unprotected,
            keep: keep_environment,
            set: set_environment,
            unset: unset_environment,
        }
        .terms(IsEscalation::Yes)?;
        let words = (reason, reason_code, name, reuse);
        answer_value(heap, "escalate", execution, words, &terms, (None, None))
    }

    /// Asks a person: to run the command inside the sandbox, or with an execution, outside.
    #[allow(clippy::too_many_arguments, reason = "rules may say as much")]
    fn ask<'v>(
        reason: Option<NoneOr<String>>,
        #[starlark(require = named)] asks: Option<NoneOr<String>>,
        #[starlark(require = named)] within: Option<NoneOr<String>>,
        #[starlark(require = named)] execution: Option<Value<'v>>,
        #[starlark(require = named)] reason_code: Option<NoneOr<String>>,
        #[starlark(require = named)] name: Option<NoneOr<String>>,
        #[starlark(require = named)] unprotected: Option<NoneOr<String>>,
        #[starlark(require = named)] keep_environment: Option<NoneOr<Value<'v>>>,
        #[starlark(require = named)] set_environment: Option<NoneOr<Value<'v>>>,
        #[starlark(require = named)] unset_environment: Option<NoneOr<Value<'v>>>,
        heap: Heap<'v>,
    ) -> anyhow::Result<Value<'v>> {
        if let Some(execution) = execution {
            execution_of(execution)?;
        }
        let terms = TermArguments {
            unprotected,
            keep: keep_environment,
            set: set_environment,
            unset: unset_environment,
        }
        .terms(match execution {
            Some(_) => IsEscalation::Yes,
            None => IsEscalation::No,
        })?;
        let said = (reason, reason_code, name, None);
        answer_value(heap, "ask", execution, said, &terms, (asks, within))
    }

    /// As `ask()`, for files in the style of Codex.
    fn prompt<'v>(
        reason: Option<NoneOr<String>>,
        #[starlark(require = named)] reason_code: Option<NoneOr<String>>,
        #[starlark(require = named)] name: Option<NoneOr<String>>,
        heap: Heap<'v>,
    ) -> anyhow::Result<Value<'v>> {
        let said = (reason, reason_code, name, None);
        answer_value(
            heap,
            "ask",
            None,
            said,
            &EscalationTerms::default(),
            (None, None),
        )
    }

    /// Refuses the command.
    fn deny<'v>(
        reason: Option<NoneOr<String>>,
        #[starlark(require = named)] reason_code: Option<NoneOr<String>>,
        #[starlark(require = named)] name: Option<NoneOr<String>>,
        #[starlark(require = named)] reuse: Option<NoneOr<String>>,
        heap: Heap<'v>,
    ) -> anyhow::Result<Value<'v>> {
        let said = (reason, reason_code, name, reuse);
        answer_value(
            heap,
            "deny",
            None,
            said,
            &EscalationTerms::default(),
            (None, None),
        )
    }

    /// A confinement for escalated commands.
    fn permissions<'v>(
        #[starlark(require = named)] network: String,
        #[starlark(require = named)] read: Option<UnpackList<Value<'v>>>,
        #[starlark(require = named)] write: Option<UnpackList<Value<'v>>>,
        heap: Heap<'v>,
    ) -> anyhow::Result<Value<'v>> {
        network_of(&network)?;
        let list =
            |what: &str, given: Option<UnpackList<Value<'v>>>| -> anyhow::Result<Value<'v>> {
                let values = given.map(|list| list.items).unwrap_or_default();
                paths_of(what, &values)?;
                Ok(heap.alloc(AllocList(values)))
            };
        Ok(heap.alloc(AllocStruct([
            ("kind", heap.alloc("permissions")),
            ("network", heap.alloc(network)),
            ("read", list("read", read)?),
            ("write", list("write", write)?),
        ])))
    }
}

/// Declarations at the top of a file.
#[starlark_module]
fn declarations(builder: &mut GlobalsBuilder) {
    /// Declares a rule for commands that begin with certain words.
    #[allow(clippy::too_many_arguments, reason = "rules may say as much")]
    fn prefix_rule<'v>(
        pattern: UnpackList<Value<'v>>,
        decision: Option<NoneOr<String>>,
        r#match: Option<NoneOr<UnpackList<Value<'v>>>>,
        not_match: Option<NoneOr<UnpackList<Value<'v>>>>,
        justification: Option<NoneOr<String>>,
        #[starlark(require = named)] execution: Option<NoneOr<Value<'v>>>,
        #[starlark(require = named)] name: Option<NoneOr<String>>,
        #[starlark(require = named)] reason_code: Option<NoneOr<String>>,
        #[starlark(require = named)] reuse: Option<NoneOr<String>>,
        #[starlark(require = named)] reuse_scope: Option<NoneOr<String>>,
        #[starlark(require = named)] mode: Option<NoneOr<String>>,
        #[starlark(require = named)] unprotected: Option<NoneOr<String>>,
        #[starlark(require = named)] keep_environment: Option<NoneOr<Value<'v>>>,
        #[starlark(require = named)] set_environment: Option<NoneOr<Value<'v>>>,
        #[starlark(require = named)] unset_environment: Option<NoneOr<Value<'v>>>,
        #[starlark(require = named)] asks: Option<NoneOr<String>>,
        #[starlark(require = named)] within: Option<NoneOr<String>>,
        eval: &mut Evaluator<'v, '_, '_>,
    ) -> anyhow::Result<NoneType> {
        let decision = decision.and_then(NoneOr::into_option);
        let answer = answer_of(
            decision.as_deref().unwrap_or("run"),
            execution.and_then(NoneOr::into_option),
            Asking::of(asks, within)?,
        )?;
        let terms = TermArguments {
            unprotected,
            keep: keep_environment,
            set: set_environment,
            unset: unset_environment,
        }
        .terms(is_escalation(&answer))?;
        if pattern.items.len() > MAX_PATTERN {
            return Err(anyhow!(
                "pattern has more than {MAX_PATTERN} elements: shorten it"
            ));
        }
        let mut elements = pattern
            .items
            .into_iter()
            .map(alternatives_of)
            .collect::<anyhow::Result<Vec<_>>>()?
            .into_iter();
        let programs = elements.next().ok_or_else(|| {
            anyhow!(
                "pattern is empty: begin it with the program, as in pattern = [\"git\", \"status\"]"
            )
        })?;
        if programs.iter().any(|program| program.is_empty()) {
            return Err(anyhow!(
                "pattern begins with an empty word: name the program"
            ));
        }
        let arguments: Vec<_> = elements.collect();
        let reuse = prefix_reuse(reuse, reuse_scope, &answer, arguments.len())?;
        let rule = DraftRule {
            place: place(eval),
            programs,
            arguments,
            reuse,
            terms,
            answer,
            mode: mode_of(mode)?,
            justification: said("justification", justification)?,
            name: said("name", name)?,
            reason_code: said("reason_code", reason_code)?,
            matching: examples_of("match", r#match)?,
            not_matching: examples_of("not_match", not_match)?,
        };
        declare("prefix_rule", |draft| {
            if draft.rules.len() == MAX_RULES {
                return Err(anyhow!(
                    "the file has more than {MAX_RULES} rules: join some by lists of alternatives"
                ));
            }
            draft.rules.push(rule);
            Ok(NoneType)
        })
    }

    /// Declares the only paths at which a program's bare name means that program.
    fn host_executable<'v>(name: String, paths: UnpackList<Value<'v>>) -> anyhow::Result<NoneType> {
        if matches!(name.as_str(), "" | "." | "..") || name.contains(['/', '\0']) {
            return Err(anyhow!(
                "name is {name:?}: write the program's bare name, such as \"git\""
            ));
        }
        if paths.items.len() > MAX_PATTERN {
            return Err(anyhow!(
                "paths holds more than {MAX_PATTERN} paths: shorten it"
            ));
        }
        let mut declared = Vec::new();
        for value in paths.items {
            let path = text_of("paths", value)?;
            if path.starts_with('~') {
                return Err(anyhow!(
                    "paths holds {path:?}: a policy service doesn't know whose home that is, and a \
                     session can usually write there; write an absolute path"
                ));
            }
            let is_clean = path.strip_prefix('/').is_some_and(|rest| {
                rest.split('/')
                    .all(|component| !matches!(component, "" | "." | ".."))
            });
            if !is_clean || path.rsplit('/').next() != Some(name.as_str()) {
                return Err(anyhow!(
                    "paths holds {path:?}: write an absolute path without \".\", \"..\" or repeated \
                     slashes that ends in \"/{name}\""
                ));
            }
            declared.push(path.into_bytes());
        }
        declare("host_executable", |draft| {
            draft.host_executables.insert(name.into_bytes(), declared);
            Ok(NoneType)
        })
    }

    /// Declares environment variables whose values `decide()` is to see, where gates' owners allow it.
    fn request_environment<'v>(names: UnpackList<Value<'v>>) -> anyhow::Result<NoneType> {
        let mut asked = Vec::new();
        for value in names.items {
            let name = text_of("names", value)?;
            if name.is_empty() || name.contains(['=', '*']) {
                return Err(anyhow!(
                    "names holds {name:?}: write the whole name of a variable, such as \"CI_JOB\""
                ));
            }
            asked.push(name.into_bytes());
        }
        declare("request_environment", |draft| {
            draft.variables.extend(asked);
            if draft.variables.len() > MAX_VARIABLES {
                return Err(anyhow!(
                    "more than {MAX_VARIABLES} variables are asked for: keep those that decide"
                ));
            }
            Ok(NoneType)
        })
    }

    /// Declares what happens to a command that nothing matches.
    #[allow(clippy::too_many_arguments, reason = "rules may say as much")]
    fn fallback<'v>(
        decision: String,
        justification: Option<NoneOr<String>>,
        #[starlark(require = named)] execution: Option<NoneOr<Value<'v>>>,
        #[starlark(require = named)] reason_code: Option<NoneOr<String>>,
        #[starlark(require = named)] unprotected: Option<NoneOr<String>>,
        #[starlark(require = named)] keep_environment: Option<NoneOr<Value<'v>>>,
        #[starlark(require = named)] set_environment: Option<NoneOr<Value<'v>>>,
        #[starlark(require = named)] unset_environment: Option<NoneOr<Value<'v>>>,
        #[starlark(require = named)] asks: Option<NoneOr<String>>,
        #[starlark(require = named)] within: Option<NoneOr<String>>,
        eval: &mut Evaluator<'v, '_, '_>,
    ) -> anyhow::Result<NoneType> {
        let answer = answer_of(
            &decision,
            execution.and_then(NoneOr::into_option),
            Asking::of(asks, within)?,
        )?;
        let terms = TermArguments {
            unprotected,
            keep: keep_environment,
            set: set_environment,
            unset: unset_environment,
        }
        .terms(is_escalation(&answer))?;
        let fallback = DraftFallback {
            place: place(eval),
            answer,
            terms,
            justification: said("justification", justification)?,
            reason_code: said("reason_code", reason_code)?,
        };
        declare("fallback", |draft| {
            if let Some(earlier) = &draft.fallback {
                return Err(anyhow!(
                    "fallback() stands in line {} already: keep one of them",
                    earlier.place.line
                ));
            }
            draft.fallback = Some(fallback);
            Ok(NoneType)
        })
    }

    /// Declares that rules look at the SHA-256 of programs, so that gates compute it.
    fn request_digests() -> anyhow::Result<NoneType> {
        declare("request_digests", |draft| {
            draft.requests_digests = true;
            Ok(NoneType)
        })
    }

    /// Stands for a declaration of similar files that has no meaning here.
    fn network_rule<'v>(
        #[starlark(args)] _positional: UnpackTuple<Value<'v>>,
        #[starlark(kwargs)] _named: Value<'v>,
    ) -> anyhow::Result<NoneType> {
        Err(anyhow!(
            "network_rule() isn't supported: this policy decides commands, not connections; take it \
             out, and confine the network by the sandbox or by permissions(network = \"denied\")"
        ))
    }
}
