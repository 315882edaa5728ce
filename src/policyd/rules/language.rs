//! What a rules file may call, and how answers look inside it.

use std::cell::RefCell;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::anyhow;
use starlark::environment::{Globals, GlobalsBuilder};
use starlark::eval::Evaluator;
use starlark::starlark_module;
use starlark::syntax::{Dialect, DialectTypes};
use starlark::values::list::{AllocList, ListRef, UnpackList};
use starlark::values::none::{NoneOr, NoneType};
use starlark::values::structs::{AllocStruct, StructRef};
use starlark::values::tuple::UnpackTuple;
use starlark::values::{Heap, Value};

use super::answer::{Answer, Ask, Effect, OpinionReuse, OpinionReuseScope, RuleMode};
use super::options::options;
use super::prefix::Alternatives;
use super::terms::{IsEscalation, TermArguments};
use crate::model::{EscalationExecution, EscalationPermissions, EscalationTerms, NetworkAccess};
use crate::policyd::text;

/// Most prefix rules in one file.
pub(super) const MAX_RULES: usize = 10_000;
/// Most elements of one pattern, and most alternatives of one element.
const MAX_PATTERN: usize = 1_000;
/// Most variables that a file, or all files together, may ask for, as the contract has it.
pub(super) const MAX_VARIABLES: usize = 256;
/// Most examples of one rule.
const MAX_EXAMPLES: usize = 1_000;

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

/// An answer that `decide()` gave.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct GivenAnswer {
    pub(super) answer: Answer,
    pub(super) justification: Option<String>,
    pub(super) reason_code: Option<String>,
    pub(super) name: Option<String>,
    pub(super) reuse: Option<OpinionReuse>,
    pub(super) terms: EscalationTerms,
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

pub(super) fn text_of(what: &str, value: Value<'_>) -> anyhow::Result<String> {
    let text = value.unpack_str().ok_or_else(|| {
        anyhow!(
            "{what} is {}: write it as a string, in quotes",
            described(value)
        )
    })?;
    if text.contains('\0') {
        return Err(anyhow!(
            "{what} holds a NUL, which no command can: take it out"
        ));
    }
    Ok(text.to_owned())
}

pub(super) fn described(value: Value<'_>) -> String {
    format!(
        "{} ({})",
        text::shortened(&text::shown(value.to_repr().as_bytes()), 60),
        value.get_type()
    )
}

/// Words that must say something where they are given.
fn said(what: &str, given: Option<NoneOr<String>>) -> anyhow::Result<Option<String>> {
    match given.and_then(NoneOr::into_option) {
        Some(words) if words.trim().is_empty() => {
            Err(anyhow!("{what} is empty: say it, or leave it out"))
        }
        words => Ok(words),
    }
}

/// The longest that an answer may be said to hold.
const MAX_REUSE: Duration = Duration::from_secs(24 * 3600);

/// How long an answer may be used again.
fn reuse_of(given: Option<NoneOr<String>>) -> anyhow::Result<Option<Duration>> {
    let Some(time) = given.and_then(NoneOr::into_option) else {
        return Ok(None);
    };
    match humantime::parse_duration(&time) {
        Ok(time) if time.is_zero() => Err(anyhow!("reuse is no time at all: leave it out")),
        Ok(time) if time > MAX_REUSE => Err(anyhow!(
            "reuse is {time:?}, and can be 24h at most: shorten it"
        )),
        Ok(time) => Ok(Some(time)),
        Err(_) => Err(anyhow!(
            "reuse is {time:?}: write a time such as \"90s\", \"10m\" or \"1h30m\""
        )),
    }
}

fn reuse_for_exec(time: Option<Duration>) -> Option<OpinionReuse> {
    time.map(|valid_for| OpinionReuse {
        valid_for,
        scope: OpinionReuseScope::Exec,
    })
}

fn prefix_reuse(
    time: Option<NoneOr<String>>,
    scope: Option<NoneOr<String>>,
    answer: &Answer,
    arguments: usize,
) -> anyhow::Result<Option<OpinionReuse>> {
    let time = reuse_of(time)?;
    let scope = scope.and_then(NoneOr::into_option);
    let scope = match scope.as_deref() {
        None | Some("exec") => OpinionReuseScope::Exec,
        Some("prefix") => OpinionReuseScope::Prefix(arguments),
        Some(other) => {
            return Err(anyhow!(
                "reuse_scope is {other:?}: write \"exec\" for the same command in the same directory, or \
                 \"prefix\" for all that the pattern matches with the same first words"
            ));
        }
    };
    match time {
        None if scope != OpinionReuseScope::Exec => Err(anyhow!(
            "reuse_scope is given without reuse: say for how long, as in reuse = \"10m\""
        )),
        Some(_) if matches!(answer, Answer::Ask(_)) => Err(anyhow!(
            "reuse is given with the decision \"ask\": the person who is asked says what holds, \
             leave it out"
        )),
        time => Ok(time.map(|valid_for| OpinionReuse { valid_for, scope })),
    }
}

fn mode_of(given: Option<NoneOr<String>>) -> anyhow::Result<RuleMode> {
    match given.and_then(NoneOr::into_option).as_deref() {
        None | Some("enforce") => Ok(RuleMode::Enforce),
        Some("monitor") => Ok(RuleMode::Monitor),
        Some(other) => Err(anyhow!(
            "mode is {other:?}: write \"enforce\", or \"monitor\" to record what the rule says and not act on it"
        )),
    }
}

/// How long an answer of a person is waited for unless a rule says otherwise: less than gates wait at
/// most unless told otherwise (10 minutes), so that it is here that the question expires.
const DEFAULT_WITHIN: Duration = Duration::from_secs(5 * 60);
/// The longest that a rule may have a command wait.
const MAX_WITHIN: Duration = Duration::from_secs(24 * 3600);
/// Most bytes of who is asked.
const MAX_ASKED: usize = 200;

/// What a rule says of the person that it asks.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Asking {
    asked: Option<String>,
    within: Option<Duration>,
}

impl Asking {
    fn of(asked: Words, within: Words) -> anyhow::Result<Self> {
        let asked = said("asks", asked)?;
        if asked.as_ref().is_some_and(|asked| asked.len() > MAX_ASKED) {
            return Err(anyhow!(
                "asks has more than {MAX_ASKED} bytes: name who is asked in a few words"
            ));
        }
        let within = within.and_then(NoneOr::into_option);
        let within = within.map(|time| match humantime::parse_duration(&time) {
            Ok(within) if within < Duration::from_secs(1) => Err(anyhow!(
                "within is {time:?}: no person is as quick, write 1s or more"
            )),
            Ok(within) if within > MAX_WITHIN => Err(anyhow!(
                "within is {time:?}, and can be 24h at most: shorten it"
            )),
            Ok(within) => Ok(within),
            Err(_) => Err(anyhow!(
                "within is {time:?}: write a time such as \"90s\", \"10m\" or \"1h30m\""
            )),
        });
        Ok(Self {
            asked,
            within: within.transpose()?,
        })
    }
}

fn answer_of(
    decision: &str,
    execution: Option<Value<'_>>,
    asking: Asking,
) -> anyhow::Result<Answer> {
    if !matches!(decision, "ask" | "prompt") && asking != Asking::default() {
        return Err(anyhow!(
            "asks or within is given with the decision {decision:?}: they belong to \"ask\" only, leave \
             them out"
        ));
    }
    let answer = match decision {
        "allow" | "run" => Answer::Run,
        "forbidden" | "deny" => Answer::Deny,
        "ask" | "prompt" => {
            return Ok(Answer::Ask(Ask {
                effect: execution.map_or(Ok(Effect::Run), |execution| {
                    execution_of(execution).map(Effect::Escalate)
                })?,
                asked: asking.asked,
                within: asking.within.unwrap_or(DEFAULT_WITHIN),
            }));
        }
        "escalate" => {
            return execution.map_or(
                Ok(Answer::Escalate(EscalationExecution::Unsandboxed)),
                |execution| execution_of(execution).map(Answer::Escalate),
            );
        }
        other => {
            return Err(anyhow!(
                "the decision {other:?} isn't known: write \"run\" (or \"allow\"), \"ask\" (or \
                 \"prompt\"), \"escalate\" or \"deny\" (or \"forbidden\")"
            ));
        }
    };
    if execution.is_some() {
        return Err(anyhow!(
            "execution is given with the decision {decision:?}: it belongs to \"escalate\" and \"ask\" \
             only, leave it out"
        ));
    }
    Ok(answer)
}

fn is_escalation(answer: &Answer) -> IsEscalation {
    match answer {
        Answer::Escalate(_)
        | Answer::Ask(Ask {
            effect: Effect::Escalate(_),
            ..
        }) => IsEscalation::Yes,
        Answer::Run | Answer::Deny | Answer::Ask(_) => IsEscalation::No,
    }
}

fn execution_of(value: Value<'_>) -> anyhow::Result<EscalationExecution> {
    if let Some(fields) = answer_fields(value, "permissions") {
        return permissions_of(fields).map(EscalationExecution::Permissions);
    }
    match value.unpack_str() {
        Some("unsandboxed") => Ok(EscalationExecution::Unsandboxed),
        Some("turn_default") => Ok(EscalationExecution::TurnDefault),
        _ => Err(anyhow!(
            "execution is {}: write \"unsandboxed\", \"turn_default\" or permissions(...)",
            described(value)
        )),
    }
}

/// The fields of a value that one of our functions made.
fn answer_fields<'v>(value: Value<'v>, kind: &str) -> Option<StructRef<'v>> {
    let fields = StructRef::from_value(value)?;
    let is_of_kind = field(fields, "kind").and_then(Value::unpack_str) == Some(kind);
    is_of_kind.then_some(fields)
}

pub(super) fn field<'v>(fields: StructRef<'v>, name: &str) -> Option<Value<'v>> {
    fields
        .iter()
        .find(|(key, _)| key.as_str() == name)
        .map(|(_, value)| value)
        .filter(|value| !value.is_none())
}

fn permissions_of(fields: StructRef<'_>) -> anyhow::Result<EscalationPermissions> {
    let paths = |name: &str| -> anyhow::Result<Vec<PathBuf>> {
        field(fields, name)
            .and_then(ListRef::from_value)
            .map(|list| list.iter().collect())
            .map_or(Ok(Vec::new()), |values: Vec<_>| paths_of(name, &values))
    };
    Ok(EscalationPermissions {
        network: network_of(
            field(fields, "network")
                .and_then(Value::unpack_str)
                .unwrap_or_default(),
        )?,
        readable: paths("read")?,
        writable: paths("write")?,
    })
}

fn network_of(network: &str) -> anyhow::Result<NetworkAccess> {
    match network {
        "allowed" => Ok(NetworkAccess::Allowed),
        "denied" => Ok(NetworkAccess::Denied),
        other => Err(anyhow!(
            "network is {other:?}: write \"allowed\" or \"denied\""
        )),
    }
}

fn paths_of(what: &str, values: &[Value<'_>]) -> anyhow::Result<Vec<PathBuf>> {
    let mut paths = Vec::new();
    for value in values {
        let path = text_of(what, *value)?;
        if !path.starts_with('/') {
            return Err(anyhow!(
                "{what} holds {path:?}, which isn't an absolute path: begin it with \"/\""
            ));
        }
        paths.push(PathBuf::from(path));
    }
    Ok(paths)
}

fn alternatives_of(value: Value<'_>) -> anyhow::Result<Alternatives> {
    const WHAT: &str = "an element of pattern";
    let words = match ListRef::from_value(value) {
        Some(list) if list.is_empty() => {
            return Err(anyhow!(
                "{WHAT} is an empty list, which nothing matches: name at least one word"
            ));
        }
        Some(list) if list.len() > MAX_PATTERN => {
            return Err(anyhow!(
                "{WHAT} has more than {MAX_PATTERN} alternatives: split the rule"
            ));
        }
        Some(list) => list
            .iter()
            .map(|value| text_of(WHAT, value))
            .collect::<anyhow::Result<Vec<_>>>()?,
        None if value.unpack_str().is_some() => vec![text_of(WHAT, value)?],
        None => {
            return Err(anyhow!(
                "{WHAT} is {}: write a string, or a list of strings that are alternatives",
                described(value)
            ));
        }
    };
    Ok(words
        .into_iter()
        .map(|word| word.into_bytes().into_boxed_slice())
        .collect())
}

fn examples_of(
    what: &str,
    examples: Option<NoneOr<UnpackList<Value<'_>>>>,
) -> anyhow::Result<Vec<Vec<String>>> {
    let Some(examples) = examples.and_then(NoneOr::into_option) else {
        return Ok(Vec::new());
    };
    if examples.items.len() > MAX_EXAMPLES {
        return Err(anyhow!(
            "{what} holds more than {MAX_EXAMPLES} examples: keep the telling ones"
        ));
    }
    examples
        .items
        .into_iter()
        .map(|example| {
            let words = if let Some(list) = ListRef::from_value(example) {
                list.iter()
                    .map(|word| text_of("a word of an example", word))
                    .collect::<anyhow::Result<Vec<_>>>()?
            } else {
                let line = text_of("an example", example)?;
                shlex::split(&line).ok_or_else(|| {
                    anyhow!("{what} holds {line:?}, which has a quote or backslash without its end: complete it, or write a list of words")
                })?
            };
            if words.first().is_none_or(String::is_empty) {
                return Err(anyhow!(
                    "{what} holds an example without a program: take it out, or complete it"
                ));
            }
            Ok(words)
        })
        .collect()
}

/// The answer that a value from `decide()` stands for; `None` for no opinion.
pub(super) fn given_answer(value: Value<'_>) -> anyhow::Result<Option<GivenAnswer>> {
    if value.is_none() {
        return Ok(None);
    }
    if let Some(decision) = value.unpack_str() {
        return Ok(Some(GivenAnswer {
            answer: answer_of(decision, None, Asking::default())?,
            justification: None,
            reason_code: None,
            name: None,
            reuse: None,
            terms: EscalationTerms::default(),
        }));
    }
    let Some(fields) = answer_fields(value, "answer") else {
        return Err(anyhow!(
            "decide() returned {}: return None, a decision such as \"run\", or what run(), escalate(), \
             ask() or deny() gives",
            described(value)
        ));
    };
    let words = |name: &str| {
        field(fields, name)
            .and_then(Value::unpack_str)
            .map(str::to_owned)
    };
    let answer = answer_of(
        &words("decision").unwrap_or_default(),
        field(fields, "execution"),
        Asking::of(
            words("asks").map(NoneOr::Other),
            words("within").map(NoneOr::Other),
        )?,
    )?;
    let terms = match is_escalation(&answer) {
        IsEscalation::Yes => TermArguments::of(fields).terms(IsEscalation::Yes)?,
        IsEscalation::No => EscalationTerms::default(),
    };
    Ok(Some(GivenAnswer {
        answer,
        terms,
        justification: words("reason"),
        reason_code: words("reason_code"),
        name: words("name"),
        reuse: reuse_for_exec(reuse_of(words("reuse").map(NoneOr::Other))?),
    }))
}

type Words = Option<NoneOr<String>>;

fn answer_value<'v>(
    heap: Heap<'v>,
    decision: &str,
    execution: Option<Value<'v>>,
    (reason, reason_code, name, reuse): (Words, Words, Words, Words),
    terms: &EscalationTerms,
    (asks, within): (Words, Words),
) -> anyhow::Result<Value<'v>> {
    reuse_of(reuse.clone())?;
    Asking::of(asks.clone(), within.clone())?;
    let words = |what: &str, given: Words| -> anyhow::Result<Value<'v>> {
        Ok(said(what, given)?.map_or_else(Value::new_none, |words| heap.alloc(words)))
    };
    let fields = [
        ("kind", heap.alloc("answer")),
        ("decision", heap.alloc(decision)),
        ("execution", execution.unwrap_or_else(Value::new_none)),
        ("reason", words("reason", reason)?),
        ("reason_code", words("reason_code", reason_code)?),
        ("name", words("name", name)?),
        ("reuse", words("reuse", reuse)?),
        ("asks", words("asks", asks)?),
        ("within", words("within", within)?),
    ];
    let terms = TermArguments::fields(terms, heap);
    Ok(heap.alloc(AllocStruct(fields.into_iter().chain(terms))))
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
    #[allow(clippy::too_many_arguments)]
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
    #[allow(clippy::too_many_arguments)]
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
    #[allow(clippy::too_many_arguments)]
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
            decision.as_deref().unwrap_or("allow"),
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
    #[allow(clippy::too_many_arguments)]
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
