use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;
use std::time::Duration;

use prost::Message;
use prost::bytes::Bytes;

use super::text::one_line;
use super::v1;
use crate::model::{
    DecisionCode, EnvironmentRules, EscalationDecision, EscalationExecution, EscalationPermissions,
    EscalationTerms, ExecId, NamePattern, NetworkAccess, Reuse, ReuseReach, ReuseScope,
    Unprotected, Verdict,
};

/// What a policy service answered, with all text made safe for one line of a terminal.
#[derive(Debug)]
pub enum Answer {
    /// Options for the session.
    Accepted {
        /// Whether the service acknowledges events.
        acknowledgement: Acknowledgement,
        /// The revision of the policy in force; may be empty.
        policy_revision: String,
        /// Names of environment variables whose values it would like to see.
        environment_names: Vec<Vec<u8>>,
        /// Which digest of programs it would like to see.
        executable_digest: ExecutableDigest,
        /// The highest sequence of the session that it has stored; 0: it doesn't say.
        stored: u64,
    },
    /// A verdict, or why it can't be acted on.
    Verdict {
        /// The exec that it is for.
        exec: ExecId,
        /// What it says.
        verdict: Result<Verdict, BrokenVerdict>,
    },
    /// A person decides.
    Pending {
        /// The exec that it is for.
        exec: ExecId,
        /// How long that may take; `None`: as long as the gate allows.
        expected_within: Option<Duration>,
        /// What the waiting user may be told.
        message: String,
    },
    /// Events up to this sequence are stored.
    Acknowledged(u64),
    /// Verdicts given for reuse no longer hold: those of this revision, or all where it is empty.
    VerdictsForgotten {
        /// The revision.
        policy_revision: String,
    },
    /// The session must end.
    Terminated {
        /// Why.
        reason: String,
    },
}

/// Which digest of programs a policy service would like to see.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExecutableDigest {
    /// None.
    None,
    /// SHA-256 of the content.
    Sha256,
}

/// Whether a policy service acknowledges events.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Acknowledgement {
    /// It doesn't.
    None,
    /// It says which it has stored.
    Stored,
}

/// Why an answer decides nothing.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum BrokenAnswer {
    /// No arm is set, or one that this version doesn't know.
    #[error("an answer of the policy service has no arm set that this version knows")]
    Unset,
    /// The bytes are no answer.
    #[error("an answer of the policy service can't be decoded")]
    Undecodable(#[source] prost::DecodeError),
}

/// Why a verdict can't be acted on. It denies.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum BrokenVerdict {
    /// No decision is set, or one that this version doesn't know.
    #[error("the policy's verdict has no decision that this version knows")]
    NoDecision,
    /// It escalates, with no execution set, or one that this version doesn't know.
    #[error("the policy's verdict escalates without an execution that this version knows")]
    NoExecution,
    /// Its profile doesn't say whether the network may be used.
    #[error("the policy's permission profile leaves the network unspecified")]
    NetworkUnspecified,
    /// Its profile says of the network what this version doesn't know.
    #[error("the policy's permission profile has the unknown network access {0}")]
    NetworkUnknown(i32),
    /// Its profile has a path that isn't absolute.
    #[error("the policy's permission profile has the path {0:?}, which isn't absolute")]
    PathNotAbsolute(PathBuf),
    /// Its profile has a path with a NUL, which no file name can have.
    #[error("the policy's permission profile has the path {0:?}, which contains a NUL")]
    PathWithNul(PathBuf),
    /// It sets a variable that no environment can have.
    #[error(
        "the policy's verdict sets a variable whose name is empty or has = in it, or with a NUL"
    )]
    NoVariable,
    /// It says something of more variables than are looked at.
    #[error("the policy's verdict names more than {MOST_VARIABLES} variables")]
    TooManyVariables,
    /// Its bytes can't be decoded, apart from the exec that it is for.
    #[error("the policy's verdict can't be decoded")]
    Undecodable(#[source] prost::DecodeError),
}

impl From<BrokenVerdict> for Verdict {
    fn from(broken: BrokenVerdict) -> Self {
        Self::denied(DecisionCode::PolicyError, one_line(broken.to_string()))
    }
}

/// Converts one answer.
pub fn answer(response: v1::SessionResponse) -> Result<Answer, BrokenAnswer> {
    use v1::session_response::Answer as Pb;
    Ok(match response.answer.ok_or(BrokenAnswer::Unset)? {
        Pb::SessionAccepted(accepted) => Answer::Accepted {
            acknowledgement: match accepted.event_acknowledgement() {
                v1::EventAcknowledgement::Stored => Acknowledgement::Stored,
                // What this version doesn't know it can't rely on.
                v1::EventAcknowledgement::Unspecified | v1::EventAcknowledgement::None => {
                    Acknowledgement::None
                }
            },
            executable_digest: match accepted.requested_executable_digest() {
                v1::ExecutableDigest::Sha256 => ExecutableDigest::Sha256,
                v1::ExecutableDigest::Unspecified => ExecutableDigest::None,
            },
            stored: accepted.stored_sequence,
            policy_revision: one_line(accepted.policy_revision),
            environment_names: accepted
                .requested_environment_names
                .into_iter()
                .map(Into::into)
                .collect(),
        },
        Pb::Verdict(verdict) => Answer::Verdict {
            exec: ExecId(verdict.exec_id),
            verdict: self::verdict(verdict),
        },
        Pb::VerdictPending(pending) => Answer::Pending {
            exec: ExecId(pending.exec_id),
            // A negative span fails to convert.
            expected_within: pending
                .expected_within
                .and_then(|span| Duration::try_from(span).ok())
                .filter(|span| !span.is_zero()),
            message: one_line(pending.message),
        },
        Pb::EventsAcknowledged(acknowledged) => Answer::Acknowledged(acknowledged.through_sequence),
        Pb::ForgetVerdicts(forget) => Answer::VerdictsForgotten {
            policy_revision: one_line(forget.policy_revision),
        },
        Pb::TerminateSession(terminate) => Answer::Terminated {
            reason: one_line(terminate.reason),
        },
    })
}

/// What can be said of an answer whose bytes failed to decode with `error`: a verdict denies the
/// exec that it is for, if that much can be read.
pub fn undecodable(bytes: &[u8], error: prost::DecodeError) -> Result<Answer, BrokenAnswer> {
    match AnsweredExec::decode(bytes) {
        Ok(AnsweredExec {
            verdict: Some(VerdictExec { exec_id }),
        }) => Ok(Answer::Verdict {
            exec: ExecId(exec_id),
            verdict: Err(BrokenVerdict::Undecodable(error)),
        }),
        Ok(AnsweredExec { verdict: None }) | Err(_) => Err(BrokenAnswer::Undecodable(error)),
    }
}

/// As much of a `SessionResponse` as tells which exec its verdict is for: other fields are passed
/// over unread.
#[derive(Clone, PartialEq, prost::Message)]
struct AnsweredExec {
    #[prost(message, optional, tag = "2")]
    verdict: Option<VerdictExec>,
}

/// As much of a `Verdict` as tells which exec it is for.
#[derive(Clone, PartialEq, prost::Message)]
struct VerdictExec {
    #[prost(uint64, tag = "1")]
    exec_id: u64,
}

fn verdict(verdict: v1::Verdict) -> Result<Verdict, BrokenVerdict> {
    use v1::verdict::Decision;
    let mut terms = Box::<EscalationTerms>::default();
    let decision = match verdict.decision.ok_or(BrokenVerdict::NoDecision)? {
        Decision::Run(v1::Run {}) => EscalationDecision::Run,
        Decision::Escalate(mut escalate) => {
            *terms = self::terms(&mut escalate)?;
            EscalationDecision::Escalate(execution(escalate)?)
        }
        Decision::Deny(v1::Deny { reason }) => EscalationDecision::Deny {
            reason: Some(one_line(reason)).filter(|reason| !reason.is_empty()),
        },
    };
    Ok(Verdict {
        decision,
        code: DecisionCode::Verdict,
        reason_code: one_line(verdict.reason_code),
        rule: one_line(verdict.rule),
        policy_revision: one_line(verdict.policy_revision),
        reuse: verdict.reuse.and_then(reuse),
        // A negative span fails to convert.
        service_time: verdict
            .service_time
            .and_then(|span| Duration::try_from(span).ok()),
        terms,
    })
}

/// The most names, and the most variables, that a verdict may say something of.
const MOST_VARIABLES: usize = 1024;

fn terms(escalate: &mut v1::Escalate) -> Result<EscalationTerms, BrokenVerdict> {
    let rules = escalate.environment.take().unwrap_or_default();
    let lengths = [
        rules.kept_names.len(),
        rules.unset_names.len(),
        rules.set_variables.len(),
    ];
    if lengths.into_iter().any(|length| length > MOST_VARIABLES) {
        return Err(BrokenVerdict::TooManyVariables);
    }
    let patterns = |names: Vec<Bytes>| {
        let pattern = |name: Bytes| NamePattern(name.into());
        names.into_iter().map(pattern).collect()
    };
    let set = rules.set_variables.into_iter().map(|variable| {
        let is_wrong = variable.name.is_empty()
            || variable.name.iter().any(|byte| matches!(byte, 0 | b'='))
            || variable.value.contains(&0);
        if is_wrong {
            return Err(BrokenVerdict::NoVariable);
        }
        let [name, value] =
            [variable.name, variable.value].map(|bytes| OsString::from_vec(bytes.into()));
        Ok((name, value))
    });
    Ok(EscalationTerms {
        environment: EnvironmentRules {
            keep: patterns(rules.kept_names),
            unset: patterns(rules.unset_names),
            set: set.collect::<Result<_, _>>()?,
        },
        unprotected: match v1::UnprotectedPrograms::try_from(escalate.unprotected_programs) {
            Ok(v1::UnprotectedPrograms::Allowed) => Unprotected::Allowed,
            // What this version doesn't know isn't allowed.
            Ok(v1::UnprotectedPrograms::Unspecified | v1::UnprotectedPrograms::Denied) | Err(_) => {
                Unprotected::Denied
            }
        },
    })
}

/// How a verdict may be used again; `None` for whatever this version doesn't know: it is asked for
/// again.
fn reuse(reuse: v1::Reuse) -> Option<Reuse> {
    let scope = match v1::ReuseScope::try_from(reuse.scope).ok()? {
        v1::ReuseScope::Unspecified => return None,
        v1::ReuseScope::SameExec => ReuseScope::SameExec,
        v1::ReuseScope::ArgumentPrefix => {
            ReuseScope::ArgumentPrefix(usize::try_from(reuse.argument_prefix_length).ok()?)
        }
        v1::ReuseScope::Program => ReuseScope::Program,
    };
    let reach = match v1::ReuseReach::try_from(reuse.reach).ok()? {
        v1::ReuseReach::Unspecified | v1::ReuseReach::Session => ReuseReach::Session,
        v1::ReuseReach::Gate => ReuseReach::Gate,
    };
    // A negative span fails to convert.
    let valid_for = Duration::try_from(reuse.valid_for?).ok()?;
    Some(Reuse {
        valid_for,
        scope,
        reach,
    })
}

fn execution(escalate: v1::Escalate) -> Result<EscalationExecution, BrokenVerdict> {
    use v1::escalate::Execution;
    Ok(
        match escalate.execution.ok_or(BrokenVerdict::NoExecution)? {
            Execution::Unsandboxed(v1::Unsandboxed {}) => EscalationExecution::Unsandboxed,
            Execution::TurnDefault(v1::TurnDefault {}) => EscalationExecution::TurnDefault,
            Execution::Permissions(profile) => {
                EscalationExecution::Permissions(permissions(profile)?)
            }
        },
    )
}

fn permissions(profile: v1::PermissionProfile) -> Result<EscalationPermissions, BrokenVerdict> {
    let network = match v1::NetworkAccess::try_from(profile.network_access) {
        Ok(v1::NetworkAccess::Denied) => NetworkAccess::Denied,
        Ok(v1::NetworkAccess::Allowed) => NetworkAccess::Allowed,
        Ok(v1::NetworkAccess::Unspecified) => return Err(BrokenVerdict::NetworkUnspecified),
        Err(_) => return Err(BrokenVerdict::NetworkUnknown(profile.network_access)),
    };
    let paths = |paths: Vec<Bytes>| paths.into_iter().map(path).collect::<Result<_, _>>();
    Ok(EscalationPermissions {
        network,
        readable: paths(profile.readable_paths)?,
        writable: paths(profile.writable_paths)?,
    })
}

fn path(bytes: Bytes) -> Result<PathBuf, BrokenVerdict> {
    let path = PathBuf::from(OsString::from_vec(bytes.into()));
    if path.as_os_str().as_encoded_bytes().contains(&0) {
        Err(BrokenVerdict::PathWithNul(path))
    } else if path.is_absolute() {
        Ok(path)
    } else {
        Err(BrokenVerdict::PathNotAbsolute(path))
    }
}

#[cfg(test)]
mod tests {
    use v1::escalate::Execution;
    use v1::session_response::Answer as Pb;
    use v1::verdict::Decision;

    use super::*;

    fn converted(decision: Option<Decision>) -> Result<EscalationDecision, BrokenVerdict> {
        let response = v1::SessionResponse {
            answer: Some(Pb::Verdict(v1::Verdict {
                exec_id: 4,
                decision,
                ..v1::Verdict::default()
            })),
        };
        match answer(response) {
            Ok(Answer::Verdict { exec, verdict }) => {
                assert_eq!(exec, ExecId(4));
                verdict.map(|verdict| verdict.decision)
            }
            other => panic!("not a verdict: {other:?}"),
        }
    }

    fn escalated(execution: Option<Execution>) -> Result<EscalationDecision, BrokenVerdict> {
        converted(Some(Decision::Escalate(v1::Escalate {
            execution,
            ..v1::Escalate::default()
        })))
    }

    fn with_profile(
        network: i32,
        path: &'static [u8],
    ) -> Result<EscalationDecision, BrokenVerdict> {
        escalated(Some(Execution::Permissions(v1::PermissionProfile {
            network_access: network,
            readable_paths: vec![Bytes::from_static(b"/usr")],
            writable_paths: vec![Bytes::from_static(path)],
        })))
    }

    const DENIED: i32 = v1::NetworkAccess::Denied as i32;

    #[test]
    fn the_three_decisions_convert() {
        assert_eq!(
            converted(Some(Decision::Run(v1::Run {}))),
            Ok(EscalationDecision::Run)
        );
        assert_eq!(
            escalated(Some(Execution::Unsandboxed(v1::Unsandboxed {}))),
            Ok(EscalationDecision::Escalate(
                EscalationExecution::Unsandboxed
            ))
        );
        assert_eq!(
            escalated(Some(Execution::TurnDefault(v1::TurnDefault {}))),
            Ok(EscalationDecision::Escalate(
                EscalationExecution::TurnDefault
            ))
        );
        assert_eq!(
            with_profile(DENIED, b"/src/\xff"),
            Ok(EscalationDecision::Escalate(
                EscalationExecution::Permissions(EscalationPermissions {
                    network: NetworkAccess::Denied,
                    readable: vec!["/usr".into()],
                    writable: vec![OsString::from_vec(b"/src/\xff".to_vec()).into()],
                })
            ))
        );
        let deny = |reason: &str| {
            converted(Some(Decision::Deny(v1::Deny {
                reason: reason.to_owned(),
            })))
        };
        assert_eq!(deny(""), Ok(EscalationDecision::Deny { reason: None }));
        assert_eq!(
            deny("a\nb"),
            Ok(EscalationDecision::Deny {
                reason: Some("a\u{fffd}b".to_owned())
            })
        );
    }

    #[test]
    fn what_is_unset_or_unknown_is_an_error_that_denies() {
        assert_eq!(converted(None), Err(BrokenVerdict::NoDecision));
        assert_eq!(escalated(None), Err(BrokenVerdict::NoExecution));
        assert_eq!(
            with_profile(0, b"/work"),
            Err(BrokenVerdict::NetworkUnspecified)
        );
        assert_eq!(
            with_profile(99, b"/work"),
            Err(BrokenVerdict::NetworkUnknown(99))
        );
        let verdict = Verdict::from(BrokenVerdict::NoDecision);
        assert_eq!(verdict.code, DecisionCode::PolicyError);
        assert!(matches!(verdict.decision, EscalationDecision::Deny { .. }));
    }

    #[test]
    fn terms_of_an_escalation_convert_and_what_makes_no_sense_denies() {
        let with = |unprotected: i32, name: &'static str, value: &'static [u8], count| {
            let response = v1::SessionResponse {
                answer: Some(Pb::Verdict(v1::Verdict {
                    decision: Some(Decision::Escalate(v1::Escalate {
                        execution: Some(Execution::Unsandboxed(v1::Unsandboxed {})),
                        environment: Some(v1::EnvironmentRules {
                            kept_names: vec!["LC_*".into(); count],
                            unset_names: vec!["X".into()],
                            set_variables: vec![v1::SetVariable {
                                name: name.into(),
                                value: value.into(),
                            }],
                        }),
                        unprotected_programs: unprotected,
                    })),
                    ..v1::Verdict::default()
                })),
            };
            match answer(response) {
                Ok(Answer::Verdict { verdict, .. }) => verdict.map(|verdict| verdict.terms),
                other => panic!("not a verdict: {other:?}"),
            }
        };
        let allowed = v1::UnprotectedPrograms::Allowed as i32;
        let terms = with(allowed, "A", b"b=c", 1).expect("terms");
        assert_eq!(terms.unprotected, Unprotected::Allowed);
        assert_eq!(terms.environment.set, [("A".into(), "b=c".into())]);
        assert_eq!(terms.environment.keep, [NamePattern(b"LC_*".to_vec())]);
        assert_eq!(terms.environment.unset, [NamePattern(b"X".to_vec())]);
        for unprotected in [0, 1, 99] {
            let terms = with(unprotected, "A", b"", 1).expect("terms");
            assert_eq!(terms.unprotected, Unprotected::Denied);
        }
        for (name, value) in [("", &b""[..]), ("A=", b""), ("A\0", b""), ("A", b"\0")] {
            let broken = with(allowed, name, value, 1);
            assert_eq!(broken, Err(BrokenVerdict::NoVariable), "{name:?}");
        }
        let broken = with(allowed, "A", b"", MOST_VARIABLES + 1);
        assert_eq!(broken, Err(BrokenVerdict::TooManyVariables));
    }

    #[test]
    fn paths_of_a_profile_are_absolute_and_without_nul() {
        assert_eq!(
            with_profile(DENIED, b"work"),
            Err(BrokenVerdict::PathNotAbsolute("work".into()))
        );
        assert_eq!(
            with_profile(DENIED, b""),
            Err(BrokenVerdict::PathNotAbsolute("".into()))
        );
        assert_eq!(
            with_profile(DENIED, b"/a\0b"),
            Err(BrokenVerdict::PathWithNul("/a\0b".into()))
        );
    }

    #[test]
    fn an_answer_without_an_arm_is_broken() {
        let unset = answer(v1::SessionResponse { answer: None });
        assert!(matches!(unset, Err(BrokenAnswer::Unset)));
    }

    #[test]
    fn a_pending_verdict_without_a_positive_span_has_none() {
        let within = |expected_within| {
            let response = v1::SessionResponse {
                answer: Some(Pb::VerdictPending(v1::VerdictPending {
                    exec_id: 1,
                    expected_within,
                    message: "ask\u{7}".to_owned(),
                })),
            };
            match answer(response) {
                Ok(Answer::Pending {
                    expected_within,
                    message,
                    ..
                }) => {
                    assert_eq!(message, "ask\u{fffd}");
                    expected_within
                }
                other => panic!("not pending: {other:?}"),
            }
        };
        let span = |seconds| Some(prost_types::Duration { seconds, nanos: 0 });
        assert_eq!(within(None), None);
        assert_eq!(within(span(0)), None);
        assert_eq!(within(span(-3)), None);
        assert_eq!(within(span(3)), Some(Duration::from_secs(3)));
    }

    #[test]
    fn an_unknown_acknowledgement_is_none() {
        let acknowledgement = |event_acknowledgement| {
            let response = v1::SessionResponse {
                answer: Some(Pb::SessionAccepted(v1::SessionAccepted {
                    event_acknowledgement,
                    ..v1::SessionAccepted::default()
                })),
            };
            match answer(response) {
                Ok(Answer::Accepted {
                    acknowledgement, ..
                }) => acknowledgement,
                other => panic!("not accepted: {other:?}"),
            }
        };
        assert_eq!(acknowledgement(2), Acknowledgement::Stored);
        for other in [0, 1, 99] {
            assert_eq!(acknowledgement(other), Acknowledgement::None);
        }
    }

    #[test]
    fn a_verdict_is_reusable_only_where_all_of_it_is_known() {
        let reusable = |seconds, scope: i32, reach: i32| {
            reuse(v1::Reuse {
                valid_for: Some(prost_types::Duration { seconds, nanos: 0 }),
                scope,
                argument_prefix_length: 2,
                reach,
            })
        };
        let expected = |scope, reach| {
            Some(Reuse {
                valid_for: Duration::from_secs(5),
                scope,
                reach,
            })
        };
        let session = ReuseReach::Session;
        assert_eq!(reusable(5, 1, 0), expected(ReuseScope::SameExec, session));
        assert_eq!(
            reusable(5, 2, 1),
            expected(ReuseScope::ArgumentPrefix(2), session)
        );
        assert_eq!(
            reusable(5, 3, 2),
            expected(ReuseScope::Program, ReuseReach::Gate)
        );
        assert_eq!(reusable(5, 0, 1), None);
        assert_eq!(reusable(5, 99, 1), None);
        assert_eq!(reusable(5, 1, 99), None);
        assert_eq!(reusable(-5, 1, 1), None);
        assert_eq!(reuse(v1::Reuse::default()), None);
    }

    #[test]
    fn an_undecodable_verdict_denies_its_exec() {
        // Verdict { exec_id: 9, rule: invalid UTF-8 }.
        let bytes = [0x12, 0x05, 0x08, 0x09, 0x32, 0x01, 0xff];
        let error = v1::SessionResponse::decode(&bytes[..]).expect_err("it isn't UTF-8");
        assert!(matches!(
            undecodable(&bytes, error.clone()),
            Ok(Answer::Verdict {
                exec: ExecId(9),
                verdict: Err(BrokenVerdict::Undecodable(_)),
            })
        ));
        assert!(matches!(
            undecodable(&[0xff], error),
            Err(BrokenAnswer::Undecodable(_))
        ));
    }
}
