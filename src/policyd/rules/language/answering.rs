//! Answers: as values that `run()`, `ask()`, `escalate()` and `deny()` give, and as what these stand for.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::anyhow;
use starlark::values::list::ListRef;
use starlark::values::none::NoneOr;
use starlark::values::structs::{AllocStruct, StructRef};
use starlark::values::{Heap, Value};

use super::arguments::{Words, described, field, paths_of, said};
use crate::model::{EscalationExecution, EscalationPermissions, EscalationTerms, NetworkAccess};
use crate::policyd::rules::answer::{Answer, Ask, Effect, OpinionReuse, OpinionReuseScope};
use crate::policyd::rules::terms::{IsEscalation, TermArguments};

/// The longest that an answer may be said to hold.
const MAX_REUSE: Duration = Duration::from_secs(24 * 3600);

/// How long an answer of a person is waited for unless a rule says otherwise: less than gates wait at
/// most unless told otherwise (10 minutes), so that it is here that the question expires.
const DEFAULT_WITHIN: Duration = Duration::from_secs(5 * 60);
/// The longest that a rule may have a command wait.
const MAX_WITHIN: Duration = Duration::from_secs(24 * 3600);
/// Most bytes of who is asked.
const MAX_ASKED: usize = 200;

/// An answer that `decide()` gave.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::policyd::rules) struct GivenAnswer {
    pub(in crate::policyd::rules) answer: Answer,
    pub(in crate::policyd::rules) justification: Option<String>,
    pub(in crate::policyd::rules) reason_code: Option<String>,
    pub(in crate::policyd::rules) name: Option<String>,
    pub(in crate::policyd::rules) reuse: Option<OpinionReuse>,
    pub(in crate::policyd::rules) terms: EscalationTerms,
}

/// What a rule says of the person that it asks.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Asking {
    asked: Option<String>,
    within: Option<Duration>,
}

impl Asking {
    pub(super) fn of(asked: Words, within: Words) -> anyhow::Result<Self> {
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

/// The answer that a value from `decide()` stands for; `None` for no opinion.
pub(in crate::policyd::rules) fn given_answer(
    value: Value<'_>,
) -> anyhow::Result<Option<GivenAnswer>> {
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

pub(super) fn answer_value<'v>(
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

/// The fields of a value that one of our functions made.
fn answer_fields<'v>(value: Value<'v>, kind: &str) -> Option<StructRef<'v>> {
    let fields = StructRef::from_value(value)?;
    let is_of_kind = field(fields, "kind").and_then(Value::unpack_str) == Some(kind);
    is_of_kind.then_some(fields)
}

pub(super) fn answer_of(
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

pub(super) fn is_escalation(answer: &Answer) -> IsEscalation {
    match answer {
        Answer::Escalate(_)
        | Answer::Ask(Ask {
            effect: Effect::Escalate(_),
            ..
        }) => IsEscalation::Yes,
        Answer::Run | Answer::Deny | Answer::Ask(_) => IsEscalation::No,
    }
}

pub(super) fn execution_of(value: Value<'_>) -> anyhow::Result<EscalationExecution> {
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

pub(super) fn permissions_of(fields: StructRef<'_>) -> anyhow::Result<EscalationPermissions> {
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

pub(super) fn network_of(network: &str) -> anyhow::Result<NetworkAccess> {
    match network {
        "allowed" => Ok(NetworkAccess::Allowed),
        "denied" => Ok(NetworkAccess::Denied),
        other => Err(anyhow!(
            "network is {other:?}: write \"allowed\" or \"denied\""
        )),
    }
}

/// How long an answer may be used again.
pub(super) fn reuse_of(given: Option<NoneOr<String>>) -> anyhow::Result<Option<Duration>> {
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

pub(super) fn reuse_for_exec(time: Option<Duration>) -> Option<OpinionReuse> {
    time.map(|valid_for| OpinionReuse {
        valid_for,
        scope: OpinionReuseScope::Exec,
    })
}

pub(super) fn prefix_reuse(
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
