//! Rules that operators write, and what they say of one exec.
//!
//! A rules file is Starlark. It declares prefix rules, which are matched natively, and may define a
//! function `decide(exec)`, which is evaluated, bounded, on frozen values.
//!
//! Invariants:
//! - The strictest answer wins, whatever the order of the rules; see [`Answer::strictness`].
//! - A bare program name stands for the program at the trusted places for that name, and at no other:
//!   argument zero makes no program another, and a path that isn't clean is never trusted.
//! - No prefix rule escalates what isn't called by its own name: some programs are others by it.
//! - Bytes are compared as bytes. `decide()` sees text; where that isn't exactly what the bytes say,
//!   `exec.is_exact` is false.
//! - Whatever fails, denies.
//!
//! Not here: what a gate sends and gets (`service`), files that change (`reload`).

mod answer;
mod decide;
mod depth;
mod error;
mod facts;
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) mod fuzzing;
mod language;
mod load;
mod options;
mod pattern;
mod prefix;
mod sources;
mod terms;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

pub use answer::{
    Answer, Ask, Effect, Opinion, OpinionReuse, OpinionReuseScope, RuleMode, Strictness,
};
pub use error::RulesError;
pub use facts::{EnvironmentFact, ExecFacts, SessionFacts, UserFacts};
pub use load::MAX_FILE_SIZE;
pub(in crate::policyd) use options::may_have as may_have_option;
pub(in crate::policyd) use prefix::another_name;
pub(crate) use sources::files;

use crate::model::{EscalationDecision, EscalationTerms};
use crate::policyd::text;
use decide::Decide;
pub(super) use decide::log_failures;
use prefix::{PrefixRules, TrustedPrograms};

/// Reason code of a denial because nothing matched.
pub const CODE_NO_MATCH: &str = "rules.no_match";
/// Reason code of a denial because `decide()` failed.
pub const CODE_DECIDE_FAILED: &str = "rules.decide_failed";
/// Reason code of a denial because a person would have to be asked, and nobody can be.
pub const CODE_APPROVAL_UNAVAILABLE: &str = "approval.unavailable";

/// Name of the rule that `decide()` is, where it gives none.
const DECIDE: &str = "decide";
/// Well above what rules take that only look at an exec, also where the machine is busy.
const LONG: Duration = Duration::from_millis(50);

/// Loaded rules, of a file or several.
#[derive(Debug)]
pub struct Rules {
    revision: String,
    programs: TrustedPrograms,
    prefixes: PrefixRules,
    decides: Vec<Decide>,
    fallback: Option<Arc<Opinion>>,
    mode: RuleMode,
    variables: Vec<Vec<u8>>,
    requests_digests: bool,
    /// How many execs each rule has decided, by its number.
    decided: Vec<AtomicU64>,
    /// Whether one exec has taken long to judge.
    took_long: AtomicBool,
}

/// A rule, for people.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListedRule {
    /// What it says: "run", "escalate", "deny", "ask" or "decide".
    pub decision: &'static str,
    /// What it says it of.
    pub text: String,
    /// Where it stands, as `file:line`.
    pub place: String,
    /// Its author's reason; may be empty.
    pub reason: String,
    /// How many execs it has decided since it was loaded.
    pub decided: u64,
    /// Whether it is acted on.
    pub mode: RuleMode,
}

/// What the rules say of one exec, and why.
#[must_use]
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ruling {
    /// What is to be done; where a person is to be asked: if nobody can be.
    pub decision: EscalationDecision,
    /// The question to a person, where the rules ask one.
    pub ask: Option<Ask>,
    /// Why, in words; may be empty unless the exec is denied.
    pub reason: String,
    /// A stable name for the reason; may be empty.
    pub reason_code: String,
    /// The rule that decided.
    pub rule: String,
    /// How the answer may be used again; `None`: not at all.
    pub reuse: Option<OpinionReuse>,
    /// Where it escalates: on which terms.
    pub terms: EscalationTerms,
    /// All that had an opinion, in the order of the file, `decide()` last.
    pub matched: Vec<Arc<Opinion>>,
    /// Which of them decided. `None`: none of the file's rules, not even a fallback.
    pub winner: Option<usize>,
    /// What would have been done, were all rules enforced, where that is something else. The rule and the code
    /// above are then those that it would have been done by.
    pub monitored: Option<EscalationDecision>,
}

impl Rules {
    /// Names the content: the first 12 hexadecimal digits of its SHA-256.
    pub fn revision(&self) -> &str {
        &self.revision
    }

    /// Whether one of the files defines `decide()`, which may look at all that is known of an exec.
    pub fn has_decide(&self) -> bool {
        !self.decides.is_empty()
    }

    /// Whether judging an exec by them may take so long that others shouldn't wait behind it: it has once.
    pub(super) fn may_take_long(&self) -> bool {
        self.took_long.load(Ordering::Relaxed)
    }

    /// Says how long an exec took to judge.
    pub(super) fn took(&self, time: Duration) {
        if time > LONG {
            self.took_long.store(true, Ordering::Relaxed);
        }
    }

    /// Whether they look at the SHA-256 of programs.
    pub fn requests_digests(&self) -> bool {
        self.requests_digests
    }

    /// How many prefix rules there are.
    pub fn prefix_rule_count(&self) -> usize {
        self.prefixes.len()
    }

    /// All rules, in the order of the file; `decide()` and what holds where none matches last.
    pub fn listing(&self) -> Vec<ListedRule> {
        let decided = |number: usize| {
            let decided = self.decided.get(number);
            decided.map_or(0, |decided| decided.load(Ordering::Relaxed))
        };
        let listed = |text: String, opinion: &Opinion| ListedRule {
            decision: opinion.answer.name(),
            text,
            place: opinion.place.clone(),
            reason: opinion.justification.clone().unwrap_or_default(),
            decided: decided(opinion.number),
            mode: match self.mode {
                RuleMode::Enforce => opinion.mode,
                RuleMode::Monitor => RuleMode::Monitor,
            },
        };
        let prefixes = self.prefixes.rules();
        let mut rules: Vec<_> = prefixes
            .map(|rule| listed(rule.to_string(), &rule.opinion))
            .collect();
        for decide in &self.decides {
            rules.push(ListedRule {
                decision: DECIDE,
                text: "decide(exec)".to_owned(),
                place: decide.place().to_owned(),
                reason: String::new(),
                decided: decided(decide.number),
                mode: self.mode,
            });
        }
        if let Some(fallback) = &self.fallback {
            rules.push(listed("whatever no rule matches".to_owned(), fallback));
        }
        rules
    }

    /// The first rule that has a person asked, where it stands; `None`: no rule does, unless `decide()` says so.
    pub fn first_that_asks(&self) -> Option<&str> {
        let prefixes = self.prefixes.rules().map(|rule| &rule.opinion);
        let is_acted_on = |mode: RuleMode| mode == RuleMode::Enforce;
        prefixes
            .chain(&self.fallback)
            .find(|opinion| {
                matches!(opinion.answer, Answer::Ask(_))
                    && is_acted_on(opinion.mode)
                    && is_acted_on(self.mode)
            })
            .map(|opinion| opinion.place.as_str())
    }

    /// Names of the environment variables whose values `decide()` is to see.
    pub fn requested_environment(&self) -> &[Vec<u8>] {
        &self.variables
    }

    /// Says so if there are rules for a program of this name, and this isn't that program as far as
    /// its path tells.
    pub fn overlooked(&self, file: &[u8]) -> Option<String> {
        let name = file.rsplit(|byte| *byte == b'/').next()?;
        (self.programs.name_of(file).is_none() && self.prefixes.has_name(name)).then(|| {
            format!(
                "rules for the name {} don't apply: {} isn't one of the places where that name is \
                 trusted; declare it by host_executable(), if no session can write there",
                text::command_line([name], 200),
                text::command_line([file], 200)
            )
        })
    }

    /// Decides one exec. Takes microseconds unless the file defines `decide()`, whose run is bounded.
    pub fn evaluate(&self, facts: &ExecFacts<'_>) -> Ruling {
        let mut matched = self.prefixes.opinions(&self.programs, facts);
        for decide in &self.decides {
            if let Some(opinion) = decide.opinion(facts, self.programs.name_of(facts.file)) {
                matched.push(Arc::new(opinion));
            }
        }
        let is_unmatched = matched.is_empty();
        if is_unmatched && let Some(fallback) = &self.fallback {
            matched.push(Arc::clone(fallback));
        }
        let winner = strictest(&matched);
        let Some(opinion) = winner.map(|winner| Arc::clone(&matched[winner])) else {
            let reason = no_match(facts);
            let ruling = Ruling {
                decision: EscalationDecision::Deny {
                    reason: Some(reason.clone()),
                },
                reason,
                ask: None,
                reason_code: CODE_NO_MATCH.to_owned(),
                rule: "no rule".to_owned(),
                reuse: None,
                terms: EscalationTerms::default(),
                matched,
                winner: None,
                monitored: None,
            };
            return match self.mode {
                RuleMode::Enforce => ruling,
                RuleMode::Monitor => monitored(ruling, None),
            };
        };
        if let Some(decided) = self.decided.get(opinion.number) {
            decided.fetch_add(1, Ordering::Relaxed);
        }
        let said = |opinion: &Arc<Opinion>| {
            ruling(opinion, || {
                if is_unmatched {
                    no_match(facts)
                } else {
                    format!("the rule {} forbids it", opinion.rule)
                }
            })
        };
        let ruling = match (self.mode, opinion.mode) {
            (RuleMode::Enforce, RuleMode::Enforce) => said(&opinion),
            (RuleMode::Monitor, _) => monitored(said(&opinion), None),
            (RuleMode::Enforce, RuleMode::Monitor) => {
                let enforced = matched
                    .iter()
                    .filter(|opinion| opinion.mode == RuleMode::Enforce)
                    .rev()
                    .max_by_key(|opinion| opinion.answer.strictness());
                monitored(said(&opinion), enforced.map(said))
            }
        };
        Ruling {
            matched,
            winner,
            reuse: ruling.reuse.filter(|_| !self.may_depend_on_values(facts)),
            ..ruling
        }
    }

    /// The same rules, none of which is acted on if the mode says so.
    #[must_use]
    pub fn in_mode(self, mode: RuleMode) -> Self {
        Self { mode, ..self }
    }

    /// Whether they are acted on.
    pub fn mode(&self) -> RuleMode {
        self.mode
    }

    /// Whether another exec with the same names may get another answer for what its variables hold. A gate
    /// doesn't look at values again, and sends none before it knows that they are asked for.
    fn may_depend_on_values(&self, facts: &ExecFacts<'_>) -> bool {
        let is_asked_for = |name: &&[u8]| self.variables.iter().any(|asked| asked == name);
        !self.decides.is_empty() && facts.environment_names.iter().any(is_asked_for)
    }
}

/// What is done instead of what isn't acted on: what enforced rules say, or the command runs in its sandbox. A
/// verdict that isn't acted on is never used again, so that each exec is recorded with it.
fn monitored(would: Ruling, enforced: Option<Ruling>) -> Ruling {
    let (done, terms, ask) = match enforced {
        Some(enforced) if enforced.decision == would.decision => return enforced,
        Some(enforced) => (enforced.decision, enforced.terms, enforced.ask),
        None => (EscalationDecision::Run, EscalationTerms::default(), None),
    };
    let is_same = done == would.decision;
    Ruling {
        decision: done,
        terms,
        ask,
        reuse: None,
        monitored: (!is_same).then_some(would.decision),
        ..would
    }
}

/// The first of the strictest, and of those that are acted on if there is one.
fn strictest(opinions: &[Arc<Opinion>]) -> Option<usize> {
    let strictness = |opinion: &Arc<Opinion>| opinion.answer.strictness();
    let most = opinions.iter().map(strictness).max()?;
    let first = |acted_on: &[RuleMode]| {
        opinions
            .iter()
            .position(|opinion| strictness(opinion) == most && acted_on.contains(&opinion.mode))
    };
    first(&[RuleMode::Enforce]).or_else(|| first(&[RuleMode::Monitor]))
}

fn no_match(facts: &ExecFacts<'_>) -> String {
    let program = text::command_line([facts.file], 200);
    match another_name(facts.file, &facts.argv) {
        Some(name) => format!(
            "no rule matches {program} by the name of {}",
            text::command_line([name], 200)
        ),
        None => format!("no rule matches {program}"),
    }
}

fn ruling(opinion: &Opinion, reason_of_denial: impl FnOnce() -> String) -> Ruling {
    let justification = opinion.justification.clone();
    let (decision, reason, reason_code) = match &opinion.answer {
        Answer::Deny => {
            let reason = justification.unwrap_or_else(reason_of_denial);
            let decision = EscalationDecision::Deny {
                reason: Some(reason.clone()),
            };
            (decision, reason, opinion.reason_code.clone())
        }
        Answer::Ask(_) => {
            let decision = EscalationDecision::Deny {
                reason: Some(format!(
                    "the rule {} asks for a person's approval, and nobody can be asked",
                    opinion.rule
                )),
            };
            (
                decision,
                justification.unwrap_or_default(),
                CODE_APPROVAL_UNAVAILABLE.to_owned(),
            )
        }
        Answer::Run => (
            EscalationDecision::Run,
            justification.unwrap_or_default(),
            opinion.reason_code.clone(),
        ),
        Answer::Escalate(execution) => (
            EscalationDecision::Escalate(execution.clone()),
            justification.unwrap_or_default(),
            opinion.reason_code.clone(),
        ),
    };
    let ask = match &opinion.answer {
        Answer::Ask(ask) => Some(ask.clone()),
        _ => None,
    };
    Ruling {
        decision,
        ask,
        reason,
        reason_code,
        rule: opinion.rule.clone(),
        reuse: opinion.reuse,
        terms: opinion.terms.clone(),
        matched: Vec::new(),
        winner: None,
        monitored: None,
    }
}

/// The bare name that a program's path may be called by, where no file declares other places.
pub(in crate::policyd) fn bare_name(file: &[u8]) -> Option<&[u8]> {
    prefix::name_at_system_place(file)
}

#[cfg(test)]
mod tests;
