//! What a service can answer, and what it can leave unanswered.

use std::time::Duration;

use execgate::link::OnUnavailable;
use execgate::model::{
    DecisionCode, EscalationDecision, EscalationExecution, ExecId, SessionEvent, WithdrawalReason,
};
use execgate::pb::v1;
use execgate::pb::v1::escalate::Execution;
use execgate::pb::v1::session_request::Event;
use execgate::pb::v1::session_response::Answer;
use execgate::pb::v1::verdict::Decision;

use crate::gate::{EVER, Gate, exec_of};
use crate::peer::{Headers, Peer};
use crate::scenario;

const SHORT: Duration = Duration::from_millis(100);

fn escalate(execution: Option<Execution>) -> Decision {
    Decision::Escalate(v1::Escalate {
        execution,
        ..v1::Escalate::default()
    })
}

/// `decision` denies with a policy error, even where execs run when the service is unavailable.
async fn is_a_policy_error(decision: Option<Decision>) {
    let mut peer = Peer::start().await;
    let gate = Gate::with(&peer.endpoint, |options| {
        options.on_unavailable = OnUnavailable::Run;
    });
    let asked = gate.ask(1);
    let mut call = peer.call().await;
    call.asked(1).await;
    call.verdict(1, decision).await;
    asked.denied(DecisionCode::PolicyError).await;
    assert_eq!(gate.link.counters().broken_verdicts, 1);
}

/// An escalation under `profile` denies with a policy error.
async fn has_a_bad_profile(profile: v1::PermissionProfile) {
    is_a_policy_error(Some(escalate(Some(Execution::Permissions(profile))))).await;
}

#[tokio::test]
async fn the_service_denies() {
    scenario(async {
        let mut peer = Peer::start().await;
        let gate = Gate::new(&peer.endpoint);
        let asked = gate.ask(1);
        let mut call = peer.call().await;
        call.asked(1).await;
        call.answer(Answer::Verdict(v1::Verdict {
            exec_id: 1,
            decision: Some(Decision::Deny(v1::Deny {
                reason: "no\nnetwork".to_owned(),
            })),
            reason_code: "network".to_owned(),
            rule: "no-push".to_owned(),
            policy_revision: "7".to_owned(),
            ..v1::Verdict::default()
        }))
        .await;
        let verdict = asked.verdict().await;
        assert_eq!(
            verdict.decision,
            EscalationDecision::Deny {
                reason: Some("no\u{fffd}network".to_owned())
            }
        );
        assert_eq!(verdict.code, DecisionCode::Verdict);
        assert_eq!(verdict.reason_code, "network");
        assert_eq!(verdict.rule, "no-push");
        assert_eq!(verdict.policy_revision, "7");
    })
    .await;
}

#[tokio::test]
async fn the_service_escalates() {
    scenario(async {
        let mut peer = Peer::start().await;
        let gate = Gate::new(&peer.endpoint);
        let asked = gate.ask(1);
        let mut call = peer.call().await;
        call.asked(1).await;
        let unsandboxed = Execution::Unsandboxed(v1::Unsandboxed {});
        call.verdict(1, Some(escalate(Some(unsandboxed)))).await;
        assert_eq!(
            asked.verdict().await.decision,
            EscalationDecision::Escalate(EscalationExecution::Unsandboxed)
        );
    })
    .await;
}

#[tokio::test]
async fn the_first_message_says_what_the_session_is() {
    scenario(async {
        let mut peer = Peer::start().await;
        let _gate = Gate::new(&peer.endpoint);
        let (sequence, started) = peer.call().await.started().await;
        assert_eq!(sequence, 1);
        assert_eq!(started.session_id, "01".repeat(16));
        assert_eq!(started.labels["team"], "blue");
        assert_eq!(started.resumption, None);
    })
    .await;
}

#[tokio::test]
async fn headers_that_come_with_the_first_message_hold_up_nothing() {
    scenario(async {
        let mut peer = Peer::start_with(Headers::WithFirstMessage).await;
        let gate = Gate::new(&peer.endpoint);
        let asked = gate.ask(1);
        let mut call = peer.call().await;
        call.started().await;
        call.question().await;
        call.run(1).await;
        asked.runs(DecisionCode::Verdict).await;
    })
    .await;
}

#[tokio::test]
async fn verdicts_come_in_any_order() {
    scenario(async {
        const EXECS: u64 = 200;
        let mut peer = Peer::start().await;
        let gate = Gate::new(&peer.endpoint);
        let asked: Vec<_> = (1..=EXECS).map(|exec| gate.ask(exec)).collect();
        let mut call = peer.call().await;
        call.started().await;
        let mut execs = Vec::new();
        let mut last_sequence = 1;
        for _ in 0..EXECS {
            let (sequence, question) = call.question().await;
            assert_eq!(sequence, last_sequence + 1);
            last_sequence = sequence;
            execs.push(question.exec_id);
        }
        execs.sort_unstable();
        assert_eq!(execs, (1..=EXECS).collect::<Vec<_>>());
        for exec in execs.into_iter().rev() {
            if exec % 2 == 0 {
                call.run(exec).await;
            } else {
                call.deny(exec, &exec.to_string()).await;
            }
        }
        for (exec, asked) in (1..=EXECS).zip(asked) {
            if exec % 2 == 0 {
                asked.runs(DecisionCode::Verdict).await;
            } else {
                let reason = asked.denied(DecisionCode::Verdict).await;
                assert_eq!(reason, exec.to_string());
            }
        }
        assert_eq!(gate.link.counters().verdicts, EXECS);
    })
    .await;
}

#[tokio::test]
async fn the_largest_exec_that_the_kernel_takes_can_be_asked() {
    scenario(async {
        let mut peer = Peer::start().await;
        let gate = Gate::new(&peer.endpoint);
        let mut exec = exec_of(1);
        // 6 MiB of argument list in all, 128 KiB for one argument (execve(2)).
        exec.argv = vec!["a".repeat(128 * 1024 - 1).into(); 48];
        let asked = gate.ask_about(exec);
        let mut call = peer.call().await;
        call.started().await;
        let (_, question) = call.question().await;
        assert_eq!(question.arguments.len(), 48);
        call.run(1).await;
        asked.runs(DecisionCode::Verdict).await;
    })
    .await;
}

#[tokio::test]
async fn what_exceeds_a_message_is_refused_and_harms_nothing() {
    scenario(async {
        let mut peer = Peer::start().await;
        let gate = Gate::new(&peer.endpoint);
        let mut exec = exec_of(1);
        exec.argv = vec!["a".repeat(17 * 1024 * 1024).into()];
        gate.ask_about(exec).denied(DecisionCode::Overloaded).await;
        let asked = gate.ask(2);
        let mut call = peer.call().await;
        call.asked(2).await;
        call.run(2).await;
        asked.runs(DecisionCode::Verdict).await;
    })
    .await;
}

#[tokio::test]
async fn no_answer_times_out_and_is_withdrawn_once() {
    scenario(async {
        let mut peer = Peer::start().await;
        let gate = Gate::with(&peer.endpoint, |options| options.verdict_deadline = SHORT);
        let mut call = peer.call().await;
        call.started().await;
        let asked = gate.ask(1);
        call.question().await;
        asked.denied(DecisionCode::TimedOut).await;
        assert_eq!(gate.link.counters().timed_out, 1);
        gate.tell(1);
        let (_, withdrawn) = call.next().await;
        assert_eq!(
            withdrawn,
            Event::ExecWithdrawn(v1::ExecWithdrawn {
                exec_id: 1,
                reason: v1::WithdrawalReason::DeadlinePassed.into(),
            })
        );
        assert!(matches!(call.next().await, (_, Event::ExecDecided(_))));
    })
    .await;
}

#[tokio::test]
async fn no_answer_runs_where_the_owner_says_so() {
    scenario(async {
        let mut peer = Peer::start().await;
        let gate = Gate::with(&peer.endpoint, |options| {
            options.verdict_deadline = SHORT;
            options.on_unavailable = OnUnavailable::Run;
        });
        let mut call = peer.call().await;
        call.started().await;
        gate.ask(1).runs(DecisionCode::TimedOut).await;
    })
    .await;
}

#[tokio::test]
async fn late_second_and_unknown_verdicts_are_counted_and_ignored() {
    scenario(async {
        let mut peer = Peer::start().await;
        let gate = Gate::with(&peer.endpoint, |options| options.verdict_deadline = SHORT);
        let mut call = peer.call().await;
        call.started().await;
        let late = gate.ask(1);
        late.denied(DecisionCode::TimedOut).await;
        call.run(1).await;
        call.run(99).await;
        call.run(0).await;
        // The verdicts above have been taken once this is: so it can't be asked with a deadline
        // that may pass.
        call.answer(Answer::TerminateSession(v1::TerminateSession {
            reason: "done".to_owned(),
        }))
        .await;
        gate.context.terminator.terminated().await;
        let counters = gate.link.counters();
        assert_eq!(counters.superfluous_verdicts, 2, "{counters:?}");
        assert_eq!(counters.unknown_verdicts, 1, "{counters:?}");
        assert_eq!(counters.verdicts, 0, "{counters:?}");
    })
    .await;
}

#[tokio::test]
async fn of_two_verdicts_the_first_holds() {
    scenario(async {
        let mut peer = Peer::start().await;
        let gate = Gate::new(&peer.endpoint);
        let asked = gate.ask(1);
        let next = gate.ask(2);
        let mut call = peer.call().await;
        call.started().await;
        call.question().await;
        call.question().await;
        call.deny(1, "first").await;
        call.run(1).await;
        call.run(2).await;
        let reason = asked.denied(DecisionCode::Verdict).await;
        assert_eq!(reason, "first");
        next.runs(DecisionCode::Verdict).await;
        assert_eq!(gate.link.counters().superfluous_verdicts, 1);
    })
    .await;
}

#[tokio::test]
async fn an_unset_decision_denies() {
    scenario(is_a_policy_error(None)).await;
}

#[tokio::test]
async fn an_escalation_without_execution_denies() {
    scenario(is_a_policy_error(Some(escalate(None)))).await;
}

#[tokio::test]
async fn a_profile_with_unspecified_network_denies() {
    let profile = v1::PermissionProfile::default();
    scenario(has_a_bad_profile(profile)).await;
}

#[tokio::test]
async fn a_profile_with_unknown_network_denies() {
    let profile = v1::PermissionProfile {
        network_access: 77,
        ..v1::PermissionProfile::default()
    };
    scenario(has_a_bad_profile(profile)).await;
}

#[tokio::test]
async fn a_profile_with_a_relative_path_denies() {
    let profile = v1::PermissionProfile {
        network_access: v1::NetworkAccess::Denied.into(),
        writable_paths: vec![b"work"[..].into()],
        ..v1::PermissionProfile::default()
    };
    scenario(has_a_bad_profile(profile)).await;
}

/// An answer given as bytes denies exec 1 with a policy error.
async fn bytes_are_a_policy_error(bytes: &'static [u8]) {
    let mut peer = Peer::start().await;
    let gate = Gate::with(&peer.endpoint, |options| {
        options.on_unavailable = OnUnavailable::Run;
    });
    let asked = gate.ask(1);
    let mut call = peer.call().await;
    call.asked(1).await;
    call.send_bytes(bytes).await;
    asked.denied(DecisionCode::PolicyError).await;
}

#[tokio::test]
async fn a_decision_newer_than_the_gate_denies() {
    // SessionResponse { verdict: { exec_id: 1, field 15: {} } }
    scenario(bytes_are_a_policy_error(&[0x12, 4, 0x08, 1, 0x7a, 0])).await;
}

#[tokio::test]
async fn an_execution_newer_than_the_gate_denies() {
    // SessionResponse { verdict: { exec_id: 1, escalate: { field 15: {} } } }
    scenario(bytes_are_a_policy_error(&[
        0x12, 6, 0x08, 1, 0x1a, 2, 0x7a, 0,
    ]))
    .await;
}

#[tokio::test]
async fn a_verdict_that_cannot_be_decoded_denies() {
    // SessionResponse { verdict: { exec_id: 1, run: {}, rule: not UTF-8 } }
    scenario(bytes_are_a_policy_error(&[
        0x12, 7, 0x08, 1, 0x12, 0, 0x32, 1, 0xff,
    ]))
    .await;
}

#[tokio::test]
async fn answers_without_a_known_arm_and_garbage_decide_nothing() {
    scenario(async {
        let mut peer = Peer::start().await;
        let gate = Gate::new(&peer.endpoint);
        let asked = gate.ask(1);
        let mut call = peer.call().await;
        call.asked(1).await;
        call.send_bytes(&[][..]).await;
        // Field 15, and a field that ends early.
        call.send_bytes(&[0x7a, 0][..]).await;
        call.send_bytes(&[0x12, 0xff][..]).await;
        call.run(1).await;
        asked.runs(DecisionCode::Verdict).await;
        assert_eq!(gate.link.counters().broken_answers, 3);
        assert_eq!(gate.link.counters().broken_calls, 0);
    })
    .await;
}

#[tokio::test]
async fn a_person_extends_the_deadline_and_stops_the_clock() {
    scenario(async {
        let mut peer = Peer::start().await;
        let gate = Gate::with(&peer.endpoint, |options| {
            options.verdict_deadline = Duration::from_secs(1);
            options.pending_cap = EVER;
        });
        let mut call = peer.call().await;
        call.started().await;
        let asked = gate.ask(1);
        call.question().await;
        call.answer(Answer::VerdictPending(v1::VerdictPending {
            exec_id: 1,
            expected_within: None,
            message: "ask\tAnna".to_owned(),
        }))
        .await;
        let waiting = loop {
            if let [waiting] = &gate.link.waiting_for_persons()[..] {
                break waiting.clone();
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        };
        assert_eq!(waiting.exec, ExecId(1));
        assert_eq!(waiting.message, "ask\u{fffd}Anna");
        let before = gate.context.stopwatch.elapsed();
        tokio::time::sleep(Duration::from_millis(1500)).await;
        assert_eq!(gate.context.stopwatch.elapsed(), before);
        call.run(1).await;
        asked.runs(DecisionCode::Verdict).await;
        tokio::time::sleep(Duration::from_millis(1)).await;
        assert!(gate.context.stopwatch.elapsed() > before);
        assert_eq!(gate.link.waiting_for_persons(), []);
    })
    .await;
}

#[tokio::test]
async fn a_person_has_no_longer_than_the_cap() {
    scenario(async {
        let mut peer = Peer::start().await;
        let gate = Gate::with(&peer.endpoint, |options| {
            options.verdict_deadline = SHORT;
            options.pending_cap = 2 * SHORT;
        });
        let mut call = peer.call().await;
        call.started().await;
        let asked = gate.ask(1);
        call.asked(1).await;
        call.answer(Answer::VerdictPending(v1::VerdictPending {
            exec_id: 1,
            expected_within: Some(prost_types::Duration {
                seconds: i64::MAX,
                nanos: 0,
            }),
            message: String::new(),
        }))
        .await;
        let reason = asked.denied(DecisionCode::TimedOut).await;
        assert_eq!(
            reason,
            "nobody decided within the time of --approval-timeout"
        );
    })
    .await;
}

#[tokio::test]
async fn a_person_has_no_longer_than_the_service_says() {
    scenario(async {
        let mut peer = Peer::start().await;
        let gate = Gate::with(&peer.endpoint, |options| {
            options.verdict_deadline = SHORT;
            options.pending_cap = EVER;
        });
        let mut call = peer.call().await;
        call.started().await;
        let asked = gate.ask(1);
        call.asked(1).await;
        call.answer(Answer::VerdictPending(v1::VerdictPending {
            exec_id: 1,
            expected_within: Some(prost_types::Duration {
                seconds: 0,
                nanos: 1,
            }),
            message: String::new(),
        }))
        .await;
        let reason = asked.denied(DecisionCode::TimedOut).await;
        assert_eq!(
            reason,
            "nobody decided within the time that the policy service had named"
        );
    })
    .await;
}

#[tokio::test]
async fn an_abandoned_question_is_asked_no_longer() {
    scenario(async {
        let mut peer = Peer::start().await;
        let gate = Gate::new(&peer.endpoint);
        let mut call = peer.call().await;
        call.started().await;
        let abandoned = gate.ask(1);
        call.question().await;
        abandoned.abandon().await;
        gate.session.observe(SessionEvent::ExecWithdrawn {
            exec: ExecId(1),
            reason: WithdrawalReason::AskerGone,
            at: std::time::SystemTime::now(),
        });
        assert!(matches!(call.next().await, (3, Event::ExecWithdrawn(_))));
        call.run(1).await;
        let asked = gate.ask(2);
        call.asked(2).await;
        call.run(2).await;
        asked.runs(DecisionCode::Verdict).await;
        assert_eq!(gate.link.counters().superfluous_verdicts, 1);
    })
    .await;
}

#[tokio::test]
async fn too_many_questions_at_once_are_refused() {
    scenario(async {
        let mut peer = Peer::start().await;
        let gate = Gate::with(&peer.endpoint, |options| options.most_waiting = 1);
        let mut call = peer.call().await;
        call.started().await;
        let asked = gate.ask(1);
        call.question().await;
        gate.ask(2).denied(DecisionCode::Overloaded).await;
        call.run(1).await;
        asked.runs(DecisionCode::Verdict).await;
        assert_eq!(gate.link.counters().overloaded, 1);
    })
    .await;
}

#[tokio::test]
async fn the_service_ends_the_session() {
    scenario(async {
        let mut peer = Peer::start().await;
        let gate = Gate::new(&peer.endpoint);
        let call = peer.call().await;
        call.answer(Answer::TerminateSession(v1::TerminateSession {
            reason: "en\u{1b}ough".to_owned(),
        }))
        .await;
        let reason = gate.context.terminator.terminated().await;
        assert_eq!(reason, "en\u{fffd}ough");
    })
    .await;
}

#[tokio::test]
async fn a_unix_socket_serves_as_well() {
    scenario(async {
        let directory = tempfile::tempdir().expect("a directory");
        let mut peer = Peer::start_at(&directory.path().join("policy.sock"));
        let gate = Gate::new(&peer.endpoint);
        let asked = gate.ask(1);
        let mut call = peer.call().await;
        call.asked(1).await;
        call.run(1).await;
        asked.runs(DecisionCode::Verdict).await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn sessions_share_a_connection_and_not_their_execs() {
    scenario(async {
        use execgate::server::EscalationPolicy as _;
        let mut peer = Peer::start().await;
        let gate = Gate::new(&peer.endpoint);
        let mut call = peer.call().await;
        call.started().await;
        let other = gate
            .link
            .for_session(&crate::gate::context(2))
            .expect("a session");
        let mut other_call = peer.call().await;
        let (_, started) = other_call.started().await;
        assert_eq!(started.session_id, "02".repeat(16));
        let asked = gate.ask(1);
        call.asked(1).await;
        let exec = exec_of(1);
        let (verdict, ()) = tokio::join!(other.decide(&exec), async {
            other_call.asked(1).await;
            other_call.deny(1, "not here").await;
        });
        assert_eq!(verdict.expect("a verdict").code, DecisionCode::Verdict);
        call.run(1).await;
        asked.runs(DecisionCode::Verdict).await;
        assert_eq!(peer.connections(), 1);
    })
    .await;
}
