//! What rules have decided, as gates are told and as it is recorded.

use crate::model::{
    EnvironmentRules, EscalationDecision, EscalationExecution, EscalationPermissions,
    EscalationTerms, NamePattern, NetworkAccess, Unprotected,
};
use crate::pb::audit::v1::{AnswerMode, StoredAnswer};
use crate::pb::v1;
use crate::policyd::approvals::Decided;
use crate::policyd::rules::{OpinionReuse, OpinionReuseScope, Rules, Ruling};

pub(in crate::policyd) fn verdict(
    rules: &Rules,
    exec: &v1::ExecRequested,
    ruling: Ruling,
) -> v1::Verdict {
    let Ruling {
        decision,
        reason_code,
        rule,
        reuse,
        terms,
        ..
    } = ruling;
    v1::Verdict {
        exec_id: exec.exec_id,
        decision: Some(decision_message(decision, terms)),
        reason_code,
        rule,
        policy_revision: rules.revision().to_owned(),
        reuse: reuse.map(reuse_message),
        service_time: None,
    }
}

pub(in crate::policyd) fn decision_message(
    decision: EscalationDecision,
    terms: EscalationTerms,
) -> v1::verdict::Decision {
    use v1::verdict::Decision;
    match decision {
        EscalationDecision::Run => Decision::Run(v1::Run {}),
        EscalationDecision::Escalate(execution) => Decision::Escalate(v1::Escalate {
            execution: Some(execution_message(execution)),
            environment: environment_rules(terms.environment),
            unprotected_programs: match terms.unprotected {
                Unprotected::Denied => v1::UnprotectedPrograms::Denied,
                Unprotected::Allowed => v1::UnprotectedPrograms::Allowed,
            }
            .into(),
        }),
        EscalationDecision::Deny { reason } => Decision::Deny(v1::Deny {
            reason: reason.unwrap_or_default(),
        }),
    }
}

fn execution_message(execution: EscalationExecution) -> v1::escalate::Execution {
    use std::os::unix::ffi::OsStringExt;
    use v1::escalate::Execution;
    let paths = |paths: Vec<std::path::PathBuf>| {
        paths
            .into_iter()
            .map(|path| path.into_os_string().into_vec().into())
            .collect()
    };
    match execution {
        EscalationExecution::Unsandboxed => Execution::Unsandboxed(v1::Unsandboxed {}),
        EscalationExecution::TurnDefault => Execution::TurnDefault(v1::TurnDefault {}),
        EscalationExecution::Permissions(EscalationPermissions {
            network,
            readable,
            writable,
        }) => Execution::Permissions(v1::PermissionProfile {
            network_access: match network {
                NetworkAccess::Denied => v1::NetworkAccess::Denied,
                NetworkAccess::Allowed => v1::NetworkAccess::Allowed,
            }
            .into(),
            readable_paths: paths(readable),
            writable_paths: paths(writable),
        }),
    }
}

fn environment_rules(rules: EnvironmentRules) -> Option<v1::EnvironmentRules> {
    use std::os::unix::ffi::OsStringExt;
    let bytes = |text: std::ffi::OsString| text.into_vec().into();
    let names = |patterns: Vec<NamePattern>| {
        let names = patterns.into_iter().map(|pattern| pattern.0.into());
        names.collect()
    };
    (rules != EnvironmentRules::default()).then(|| v1::EnvironmentRules {
        kept_names: names(rules.keep),
        unset_names: names(rules.unset),
        set_variables: rules
            .set
            .into_iter()
            .map(|(name, value)| v1::SetVariable {
                name: bytes(name),
                value: bytes(value),
            })
            .collect(),
    })
}

fn reuse_message(OpinionReuse { valid_for, scope }: OpinionReuse) -> v1::Reuse {
    let (scope, length) = match scope {
        OpinionReuseScope::Exec => (v1::ReuseScope::SameExec, 0),
        OpinionReuseScope::Prefix(length) => (
            v1::ReuseScope::ArgumentPrefix,
            u32::try_from(length).unwrap_or(u32::MAX),
        ),
    };
    v1::Reuse {
        valid_for: valid_for.try_into().ok(),
        scope: scope.into(),
        argument_prefix_length: length,
        // Rules may look at the session's labels, user and directory.
        reach: v1::ReuseReach::Session.into(),
    }
}

/// What is recorded of a verdict.
pub(super) fn stored(decided: Decided, monitored: Option<EscalationDecision>) -> StoredAnswer {
    let Decided {
        mut verdict,
        approval_id,
        operator: decided_by,
    } = decided;
    let mode = match monitored {
        None => AnswerMode::Enforced,
        Some(would) => {
            verdict.decision = Some(decision_message(would, EscalationTerms::default()));
            AnswerMode::Monitored
        }
    };
    StoredAnswer {
        verdict: Some(verdict),
        mode: mode.into(),
        approval_id,
        decided_by,
        termination: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policyd::rules::SessionFacts;
    use crate::policyd::service::ruling;

    #[test]
    fn a_verdict_carries_all_that_the_rules_say() {
        let rules = Rules::parse(
            "x.rules",
            "prefix_rule([\"make\"], \"escalate\", execution = permissions(network = \"allowed\", \
             write = [\"/w\"]), name = \"n\", reason_code = \"c\")"
                .to_owned(),
        )
        .expect("rules");
        let exec = v1::ExecRequested {
            exec_id: 12,
            file: b"/usr/bin/make"[..].into(),
            arguments: vec![b"make"[..].into()],
            ..v1::ExecRequested::default()
        };
        let ruling = ruling(&rules, &SessionFacts::default(), &exec);
        let verdict = verdict(&rules, &exec, ruling);
        assert_eq!(
            verdict,
            v1::Verdict {
                exec_id: 12,
                decision: Some(v1::verdict::Decision::Escalate(v1::Escalate {
                    execution: Some(v1::escalate::Execution::Permissions(
                        v1::PermissionProfile {
                            network_access: v1::NetworkAccess::Allowed.into(),
                            readable_paths: Vec::new(),
                            writable_paths: vec![b"/w"[..].into()],
                        }
                    )),
                    environment: None,
                    unprotected_programs: v1::UnprotectedPrograms::Denied.into(),
                })),
                reason_code: "c".to_owned(),
                rule: "n".to_owned(),
                policy_revision: rules.revision().to_owned(),
                reuse: None,
                service_time: None,
            }
        );
    }
}
