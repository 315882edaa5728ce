//! What becomes of the service's answers.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use tokio::time::Instant;

use super::{Reply, Shared};
use crate::link::counters::Counter;
use crate::link::state::Stray;
use crate::model::{ExecId, Verdict};
use crate::pb::{self, Answer, BrokenAnswer};
use crate::server::Forgotten;

impl Shared {
    /// Acts on an answer.
    pub(in crate::link) fn take(&self, answer: Result<Answer, BrokenAnswer>) {
        match answer {
            Ok(Answer::Verdict { exec, verdict }) => {
                let verdict = verdict.unwrap_or_else(|broken| {
                    self.warn(
                        &self.tally.broken_verdicts,
                        Some(exec),
                        &format_args!("exec {exec}: {broken}"),
                    );
                    Verdict::from(broken)
                });
                self.in_force(&verdict.policy_revision);
                match self.update(|state| state.answered(exec)) {
                    Ok(asker) => {
                        self.tally.verdicts.add(1);
                        // The asker may have gone just now.
                        let _ = asker.reply.send(Reply::Verdict(verdict));
                    }
                    Err(stray) => self.stray(exec, stray),
                }
            }
            Ok(Answer::Pending {
                exec,
                expected_within,
                message,
            }) => {
                let person = (message, self.session.stopwatch.pause());
                let before = self.update(|state| {
                    let asker = state.extend(exec, expected_within, Instant::now())?;
                    Ok(asker.person.replace(person))
                });
                match before {
                    // Dropped here, outside the lock, because that sets the clock going.
                    Ok(before) => drop(before),
                    Err(stray) => self.stray(exec, stray),
                }
            }
            Ok(Answer::Accepted {
                acknowledgement,
                policy_revision,
                environment_names,
                executable_digest,
                stored: _,
            }) => {
                let wanted = executable_digest == pb::ExecutableDigest::Sha256;
                self.digests_wanted.store(wanted, Ordering::Relaxed);
                let allowed = self.options.disclosure.allowed_of(environment_names);
                self.environment_names(|names| *names = Arc::new(allowed));
                self.update(|state| state.heard(acknowledgement));
                self.in_force(&policy_revision);
            }
            Ok(Answer::Acknowledged(through)) => {
                self.update(|state| state.acknowledged(through));
                self.changed();
            }
            Ok(Answer::VerdictsForgotten { policy_revision }) => {
                self.update(|state| state.heard(pb::Acknowledgement::None));
                self.session
                    .verdicts
                    .forget(match policy_revision.as_str() {
                        "" => Forgotten::All,
                        revision => Forgotten::Revision(revision),
                    });
            }
            Ok(Answer::Terminated { reason }) => {
                self.update(|state| state.heard(pb::Acknowledgement::None));
                // Nothing may wait that would be denied with the reason: whoever started it reads it here.
                tracing::warn!(
                    session = %self.session.description.id,
                    trace = self.trace().trace(),
                    "the policy service ends this session: {reason:?}"
                );
                self.session.terminator.terminate(reason);
            }
            Err(broken) => {
                self.update(|state| state.heard(pb::Acknowledgement::None));
                self.warn(&self.tally.broken_answers, None, &broken);
            }
        }
    }

    /// The revision in force, as the service has just said; verdicts of an earlier one hold no longer.
    fn in_force(&self, policy_revision: &str) {
        if !policy_revision.is_empty() {
            let others = Forgotten::AllBut(policy_revision);
            self.session.verdicts.forget(others);
        }
    }

    fn stray(&self, exec: ExecId, stray: Stray) {
        match stray {
            Stray::Unknown => self.warn(
                &self.tally.unknown_verdicts,
                Some(exec),
                &format_args!("exec {exec} was never asked"),
            ),
            // Nobody's fault.
            Stray::Crossed => {
                self.tally.superfluous_verdicts.add(1);
            }
            Stray::Superfluous => self.warn(
                &self.tally.superfluous_verdicts,
                Some(exec),
                &format_args!("exec {exec} isn't open any more"),
            ),
        }
    }

    /// Counts, and logs the first, second, fourth and so on, so that a service can't flood the log.
    fn warn(&self, counter: &Counter, exec: Option<ExecId>, what: &dyn std::fmt::Display) {
        let count = counter.add(1);
        if count.is_power_of_two() {
            tracing::warn!(
                session = %self.session.description.id,
                exec = exec.map(tracing::field::display),
                trace = self.trace().trace(),
                count,
                "ignored an answer: {what}"
            );
        }
    }
}
