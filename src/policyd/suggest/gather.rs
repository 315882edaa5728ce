//! What was seen: each command once, with how often, and how it was decided.

use std::collections::{BTreeMap, HashSet};

use prost::bytes::Bytes;

use super::Monitored;
use crate::model::EscalationDecision;
use crate::pb::audit::v1::Exec;
use crate::pb::v1;
use crate::policyd::replay::{Gap, Said, recorded};
use crate::policyd::rules::{CODE_NO_MATCH, Rules, SessionFacts, bare_name};
use crate::policyd::service::{decision_message, ruling};

/// Most bytes of different commands.
const MOST_BYTES: usize = 64 << 20;
/// What a command takes besides its arguments.
const OVERHEAD: usize = 256;

/// What was decided of a command. The later is the stricter.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Decision {
    Escalate(v1::Escalate),
    Run,
    /// What followed an approval, where that is known.
    Ask(Option<&'static str>),
    /// Because no rule matched.
    Unmatched,
    Deny,
}

impl Decision {
    fn strictness(&self) -> u8 {
        match self {
            Self::Escalate(_) => 0,
            Self::Run => 1,
            Self::Ask(_) => 2,
            Self::Unmatched => 3,
            Self::Deny => 4,
        }
    }
}

/// A decision, and what its rule said.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Decided {
    pub(super) decision: Decision,
    /// Its rule's own name; empty where it had none.
    pub(super) name: String,
    pub(super) reason: String,
    pub(super) reason_code: String,
}

/// One command: a program's arguments, and what became of it.
#[derive(Debug)]
pub(super) struct Seen {
    pub(super) count: u64,
    /// How often it was decided otherwise than it is proposed.
    pub(super) otherwise: u64,
    pub(super) decided: Decided,
    /// Parts of its arguments were replaced by the gate's owner.
    pub(super) is_redacted: bool,
}

/// Arguments from argument one on.
pub(super) type Arguments = Vec<Bytes>;

/// All that was seen.
#[derive(Debug)]
pub(super) struct Gathered {
    monitored: Monitored,
    pub(super) programs: BTreeMap<Bytes, BTreeMap<Arguments, Seen>>,
    pub(super) gaps: BTreeMap<Gap, u64>,
    pub(super) sessions: HashSet<String>,
    pub(super) execs: u64,
    bytes: usize,
}

impl Gathered {
    pub(super) fn new(monitored: Monitored) -> Self {
        Self {
            monitored,
            programs: BTreeMap::new(),
            gaps: BTreeMap::new(),
            sessions: HashSet::new(),
            execs: 0,
            bytes: 0,
        }
    }

    fn decided(&self, exec: &Exec) -> Result<Decided, Gap> {
        if exec.program.is_empty() {
            return Err(Gap::Question);
        }
        let was = recorded(exec)?;
        let said = match (self.monitored, was.would) {
            (Monitored::Would, Some(would)) => would,
            _ => was.done,
        };
        let decision = match said {
            Said::Run => Decision::Run,
            Said::Escalate(Some(escalate)) => Decision::Escalate(escalate),
            Said::Escalate(None) => return Err(Gap::Terms),
            Said::Ask(effect) => Decision::Ask(effect),
            Said::Deny if was.reason_code == CODE_NO_MATCH => Decision::Unmatched,
            Said::Deny => Decision::Deny,
        };
        // A rule without a name is named by its place, which is another one here.
        let is_place = was.rule.rsplit_once(':').is_some_and(|(_, line)| {
            !line.is_empty() && line.bytes().all(|byte| byte.is_ascii_digit())
        });
        let has_name = !is_place && !matches!(&*was.rule, "" | "decide" | "fallback" | "no rule");
        let is_own =
            was.reason_code.starts_with("rules.") || was.reason_code.starts_with("approval.");
        Ok(Decided {
            name: if has_name { was.rule } else { String::new() },
            reason: match decision {
                Decision::Deny => was.reason,
                _ => String::new(),
            },
            reason_code: if is_own {
                String::new()
            } else {
                was.reason_code
            },
            decision,
        })
    }

    /// Adds an exec.
    ///
    /// # Errors
    /// When there is too much to keep, with what to do.
    pub(super) fn add(&mut self, exec: &Exec) -> Result<(), String> {
        self.execs += 1;
        if !self.sessions.contains(&exec.session_id) {
            self.bytes += OVERHEAD;
            self.sessions.insert(exec.session_id.clone());
        }
        let decided = match self.decided(exec) {
            Ok(decided) => decided,
            Err(gap) => {
                *self.gaps.entry(gap).or_default() += 1;
                return Ok(());
            }
        };
        let name = bare_name(&exec.program).unwrap_or(&exec.program);
        let program = Bytes::copy_from_slice(name);
        let arguments: Arguments = exec.arguments.iter().skip(1).cloned().collect();
        let commands = self.programs.entry(program).or_default();
        if let Some(seen) = commands.get_mut(&arguments) {
            seen.is_redacted |= !exec.redacted_arguments.is_empty();
            match (&seen.decided.decision, &decided.decision) {
                (Decision::Ask(_), Decision::Ask(effect)) => {
                    if *effect == Some("escalate") {
                        seen.decided.decision = Decision::Ask(*effect);
                    }
                    seen.count += 1;
                    return Ok(());
                }
                (Decision::Unmatched, Decision::Deny) => {
                    seen.count += 1;
                    seen.decided = decided;
                    return Ok(());
                }
                (Decision::Deny, Decision::Unmatched) => {
                    seen.count += 1;
                    return Ok(());
                }
                (was, now) if was == now => {
                    seen.count += 1;
                    return Ok(());
                }
                _ => {}
            }
            // The strictest, as of rules that disagree.
            if decided.decision.strictness() > seen.decided.decision.strictness() {
                seen.otherwise += seen.count;
                seen.count = 1;
                seen.decided = decided;
            } else {
                seen.otherwise += 1;
            }
            return Ok(());
        }
        let size: usize = arguments.iter().map(|word| word.len() + OVERHEAD / 4).sum();
        self.bytes += size + exec.program.len() + OVERHEAD;
        if self.bytes > MOST_BYTES {
            return Err(format!(
                "different commands have more than {MOST_BYTES} bytes together"
            ));
        }
        let seen = Seen {
            count: 1,
            otherwise: 0,
            decided,
            is_redacted: !exec.redacted_arguments.is_empty(),
        };
        commands.insert(arguments, seen);
        Ok(())
    }

    /// How many execs these rules answer otherwise than they were answered.
    pub(super) fn answered_otherwise(&self, rules: &Rules) -> u64 {
        let session = SessionFacts::default();
        let mut count = 0;
        for (program, commands) in &self.programs {
            let file = if program.contains(&b'/') {
                program.clone()
            } else {
                [b"/usr/bin/", &program[..]].concat().into()
            };
            for (arguments, seen) in commands {
                let request = v1::ExecRequested {
                    file: file.clone(),
                    arguments: std::iter::once(program.clone())
                        .chain(arguments.iter().cloned())
                        .collect(),
                    redacted_arguments: if seen.is_redacted {
                        vec![0]
                    } else {
                        Vec::new()
                    },
                    ..v1::ExecRequested::default()
                };
                let ruling = ruling(rules, &session, &request);
                let is_same = match (&seen.decided.decision, &ruling.ask) {
                    (Decision::Ask(effect), Some(_)) => *effect != Some("escalate"),
                    (Decision::Ask(_), None) | (_, Some(_)) => false,
                    (Decision::Run, None) => ruling.decision == EscalationDecision::Run,
                    (Decision::Deny | Decision::Unmatched, None) => {
                        matches!(ruling.decision, EscalationDecision::Deny { .. })
                    }
                    (Decision::Escalate(escalate), None) => {
                        let now = decision_message(ruling.decision, ruling.terms);
                        now == v1::verdict::Decision::Escalate(escalate.clone())
                    }
                };
                count += seen.otherwise + if is_same { 0 } else { seen.count };
            }
        }
        count
    }
}
