//! The function `decide(exec)` of a rules file.

use std::borrow::Cow;
use std::collections::HashSet;
use std::panic::AssertUnwindSafe;
use std::time::Duration;

use starlark::environment::Module;
use starlark::eval::Evaluator;
use starlark::typing::Ty;
use starlark::values::dict::AllocDict;
use starlark::values::list::AllocList;
use starlark::values::none::NoneOr;
use starlark::values::structs::AllocStruct;
use starlark::values::{Heap, OwnedFrozenValue, Value};

use super::answer::{Answer, Opinion, RuleMode};
use super::facts::{EnvironmentFact, ExecFacts, SessionFacts};
use super::language::{self, GivenAnswer};
use super::load::{bound, place_name};
use super::{CODE_DECIDE_FAILED, DECIDE, Ruling};
use crate::model::{Enforcement, EscalationTerms};
use crate::pb::v1::{self, ExecRequested};
use crate::policyd::revision::hexadecimal;
use crate::policyd::throttle::Throttle;
use crate::policyd::{described, text};

/// Bounds of one call. Steps are function calls and loop iterations, so that the bound falls at the
/// same place on every machine; the processor's time is for what steps don't see.
const MAX_STEPS: u64 = 100_000;
const MAX_HEAP: usize = 128 << 20;
const MAX_CALLS: usize = 64;
const MAX_TIME: Duration = Duration::from_secs(1);

/// A session can make `decide()` fail as often as it likes.
static FAILURES: Throttle = Throttle::new(Duration::from_secs(1));

/// The function, frozen: calls share nothing that one of them could change.
#[derive(Debug)]
pub(super) struct Decide {
    function: OwnedFrozenValue,
    /// The name of its file, which is all that a call of it can run anything of.
    file: String,
    place: String,
    /// As [`Opinion::number`].
    pub(super) number: usize,
}

impl Decide {
    /// Where it stands.
    pub(super) fn place(&self) -> &str {
        &self.place
    }

    pub(super) fn new(
        file: String,
        line: usize,
        function: OwnedFrozenValue,
    ) -> Result<Self, String> {
        function
            .value()
            .check_callable_with([&Ty::any()], [], None, None, &Ty::any())
            .map_err(|error| {
                format!(
                    "`decide` can't be called as decide(exec): write it as `def decide(exec):` ({})",
                    error.without_diagnostic()
                )
            })?;
        Ok(Self {
            function,
            place: place_name(&file, line),
            file,
            number: 0,
        })
    }

    /// What the function says of an exec: `None` if it has no opinion. If it fails, it denies.
    pub(super) fn opinion(&self, facts: &ExecFacts<'_>, name: Option<&[u8]>) -> Option<Opinion> {
        // A fault of the interpreter must cost its session a command, not the service a session.
        let called = std::panic::catch_unwind(AssertUnwindSafe(|| self.call(facts, name)));
        let given = match called.unwrap_or_else(|_| Err(interpreter_fault())) {
            Ok(given) => given?,
            Err(error) => {
                let what = text::shortened(
                    &text::shown(error.without_diagnostic().to_string().as_bytes()),
                    400,
                );
                // What is wrong with the answer as a whole is no line's fault.
                let place = error.span().map_or_else(
                    || self.place.clone(),
                    |span| place_name(&self.file, span.resolve_span().begin.line + 1),
                );
                return Some(Opinion {
                    rule: DECIDE.to_owned(),
                    number: self.number,
                    why: "decide() failed".to_owned(),
                    answer: Answer::Deny,
                    justification: Some(format!(
                        "the policy's decide() failed at {}: {what}",
                        text::shown(place.as_bytes())
                    )),
                    place,
                    reason_code: CODE_DECIDE_FAILED.to_owned(),
                    reuse: None,
                    mode: RuleMode::Enforce,
                    terms: EscalationTerms::default(),
                    failure: Some(what),
                });
            }
        };
        Some(Opinion {
            rule: given.name.unwrap_or_else(|| DECIDE.to_owned()),
            place: self.place.clone(),
            number: self.number,
            why: "decide() says so".to_owned(),
            answer: given.answer,
            justification: given.justification,
            reason_code: given.reason_code.unwrap_or_default(),
            reuse: given.reuse,
            mode: RuleMode::Enforce,
            terms: given.terms,
            failure: None,
        })
    }

    fn call(
        &self,
        facts: &ExecFacts<'_>,
        name: Option<&[u8]>,
    ) -> starlark::Result<Option<GivenAnswer>> {
        Module::with_temp_heap(|module| {
            let heap = module.heap();
            let function = heap.access_owned_frozen_value(&self.function);
            let exec = exec_value(heap, facts, name);
            let mut evaluator = Evaluator::new(&module);
            bound(&mut evaluator, MAX_STEPS, MAX_HEAP, MAX_CALLS, MAX_TIME)?;
            let given = evaluator.eval_function(function, &[exec], &[])?;
            language::given_answer(given).map_err(Into::into)
        })
    }
}

/// Logs where `decide()` failed as somebody's exec was decided.
pub(in crate::policyd) fn log_failures(
    ruling: &Ruling,
    facts: &SessionFacts,
    exec: &ExecRequested,
) {
    for opinion in &ruling.matched {
        if let Some(what) = &opinion.failure
            && let Some(held_back) = FAILURES.admit()
        {
            tracing::error!(
                session = facts.id,
                exec = %exec.exec_id,
                gate = %facts.gate,
                program = text::shown(&exec.file),
                place = text::shown(opinion.place.as_bytes()),
                held_back,
                "decide() failed, which denies: {what}"
            );
        }
    }
}

fn interpreter_fault() -> starlark::Error {
    starlark::Error::new_other(anyhow::anyhow!("the interpreter failed"))
}

/// Text for rules, and whether it says exactly what the bytes say.
struct Decoding {
    is_exact: bool,
}

impl Decoding {
    fn text<'b>(&mut self, bytes: &'b [u8]) -> Cow<'b, str> {
        let text = String::from_utf8_lossy(bytes);
        self.is_exact &= matches!(text, Cow::Borrowed(_));
        text
    }

    fn list<'v, 'b>(
        &mut self,
        heap: Heap<'v>,
        values: impl IntoIterator<Item = &'b [u8]>,
    ) -> Value<'v> {
        let texts: Vec<_> = values
            .into_iter()
            .map(|bytes| heap.alloc(&*self.text(bytes)))
            .collect();
        heap.alloc(AllocList(texts))
    }
}

impl Decoding {
    /// A dict of names and values; of a name that repeats the first, as `getenv(3)` has it.
    fn environment<'v>(&mut self, heap: Heap<'v>, variables: &[EnvironmentFact<'_>]) -> Value<'v> {
        let mut seen = HashSet::new();
        let mut values = Vec::new();
        for variable in variables {
            if seen.insert(variable.name) {
                let name = heap.alloc(&*self.text(variable.name));
                values.push((name, heap.alloc(&*self.text(variable.value))));
            }
        }
        heap.alloc(AllocDict(values))
    }

    /// `None` where the gate couldn't say which file it is.
    fn executable<'v>(
        &mut self,
        heap: Heap<'v>,
        info: Option<&v1::ExecutableInfo>,
        interpreters: usize,
    ) -> Value<'v> {
        let Some(info) = info.filter(|info| info.missing.is_empty() && !info.real_path.is_empty())
        else {
            return Value::new_none();
        };
        let path = |decoding: &mut Self, bytes: &[u8]| match bytes {
            b"" => Value::new_none(),
            bytes => heap.alloc(&*decoding.text(bytes)),
        };
        let interpreter = match &info.interpreter {
            Some(interpreter) if interpreters > 0 => {
                let executable = interpreter.executable.as_deref();
                heap.alloc(AllocStruct([
                    ("name", heap.alloc(&*self.text(&interpreter.name))),
                    ("argument", path(self, &interpreter.argument)),
                    (
                        "executable",
                        self.executable(heap, executable, interpreters - 1),
                    ),
                ]))
            }
            _ => Value::new_none(),
        };
        heap.alloc(AllocStruct([
            ("path", heap.alloc(&*self.text(&info.real_path))),
            (
                "protected",
                Value::new_bool(info.protection() == v1::Protection::Protected),
            ),
            (
                "protection",
                heap.alloc(described::protection(info.protection())),
            ),
            ("writable_path", path(self, &info.writable_path)),
            ("owner", heap.alloc(info.owner_user_id)),
            ("group", heap.alloc(info.owner_group_id)),
            ("mode", heap.alloc(info.mode)),
            (
                "size",
                heap.alloc(info.file_version.map_or(0, |version| version.size)),
            ),
            (
                "sha256",
                match &info.sha256[..] {
                    [] => Value::new_none(),
                    digest => heap.alloc(hexadecimal(digest)),
                },
            ),
            ("interpreter", interpreter),
        ]))
    }
}

/// The most interpreters of interpreters that rules are shown.
const MOST_INTERPRETERS: usize = 6;

#[allow(clippy::too_many_lines, reason = "a list of fields")]
fn exec_value<'v>(heap: Heap<'v>, facts: &ExecFacts<'_>, name: Option<&[u8]>) -> Value<'v> {
    let mut decoding = Decoding { is_exact: true };
    let session = facts.session;
    let basename = facts.file.rsplit(|byte| *byte == b'/').next();
    let user_name = if session.user.uid == facts.process.uid {
        session.user.name.as_str()
    } else {
        ""
    };
    let labels: Vec<_> = session
        .labels
        .iter()
        .map(|(key, value)| (heap.alloc(key.as_str()), heap.alloc(value.as_str())))
        .collect();
    let fields = [
        ("id", heap.alloc(facts.id.0)),
        ("program", heap.alloc(&*decoding.text(facts.file))),
        (
            "name",
            match name {
                Some(name) => heap.alloc(&*decoding.text(name)),
                None => Value::new_none(),
            },
        ),
        (
            "basename",
            heap.alloc(&*decoding.text(basename.unwrap_or_default())),
        ),
        ("argv", decoding.list(heap, facts.argv.iter().copied())),
        (
            "args",
            decoding.list(heap, facts.argv.iter().copied().skip(1)),
        ),
        ("workdir", heap.alloc(&*decoding.text(facts.workdir))),
        (
            "environment_names",
            decoding.list(heap, facts.environment_names.iter().copied()),
        ),
        (
            "environment",
            decoding.environment(heap, &facts.environment),
        ),
        (
            "redacted_environment",
            decoding.list(
                heap,
                facts
                    .environment
                    .iter()
                    .filter(|variable| variable.is_redacted)
                    .map(|variable| variable.name),
            ),
        ),
        (
            "executable",
            decoding.executable(heap, facts.executable, MOST_INTERPRETERS),
        ),
        (
            "workdir_protected",
            Value::new_bool(facts.workdir_protection == v1::Protection::Protected),
        ),
        (
            "redacted_arguments",
            heap.alloc(AllocList(facts.redacted_arguments.iter().copied())),
        ),
        ("gate", heap.alloc(session.gate.as_str())),
        ("labels", heap.alloc(AllocDict(labels))),
        (
            "user",
            heap.alloc(AllocStruct([
                ("uid", heap.alloc(facts.process.uid)),
                ("gid", heap.alloc(facts.process.gid)),
                ("name", heap.alloc(user_name)),
            ])),
        ),
        ("pid", heap.alloc(facts.process.pid)),
        ("parent_pid", heap.alloc(facts.process.parent_pid)),
        (
            "parent",
            heap.alloc(
                facts
                    .parent
                    .map_or(NoneOr::None, |parent| NoneOr::Other(parent.0)),
            ),
        ),
        ("sandbox", sandbox(heap, session)),
        (
            "session",
            heap.alloc(AllocStruct([
                ("id", heap.alloc(session.id.as_str())),
                ("hostname", heap.alloc(session.hostname.as_str())),
                ("workdir", heap.alloc(&*decoding.text(&session.workdir))),
                (
                    "command",
                    decoding.list(heap, session.command.iter().map(Vec::as_slice)),
                ),
                ("sandbox", heap.alloc(session.sandbox.as_str())),
                ("enforcement", heap.alloc(enforcement(session.enforcement))),
            ])),
        ),
    ];
    // Comes last: it is known when all has been decoded.
    let exact = ("is_exact", Value::new_bool(decoding.is_exact));
    heap.alloc(AllocStruct(fields.into_iter().chain([exact])))
}

fn enforcement(enforcement: Enforcement) -> &'static str {
    match enforcement {
        Enforcement::Full => "full",
        Enforcement::Partial => "partial",
        Enforcement::None => "none",
    }
}

/// The session's sandbox, as the gate states it.
fn sandbox<'v>(heap: Heap<'v>, session: &SessionFacts) -> Value<'v> {
    heap.alloc(AllocStruct([
        ("backend", heap.alloc(session.sandbox.as_str())),
        ("enforcement", heap.alloc(enforcement(session.enforcement))),
        ("profile", heap.alloc(session.profile.as_str())),
        (
            "not_enforced",
            heap.alloc(AllocList(session.not_enforced.iter().map(String::as_str))),
        ),
        (
            "limits",
            heap.alloc(AllocList(session.sandbox_limits.iter().map(String::as_str))),
        ),
        (
            "not_granted",
            heap.alloc(AllocList(session.not_granted.iter().map(String::as_str))),
        ),
        ("version", heap.alloc(session.sandbox_version.as_str())),
    ]))
}
