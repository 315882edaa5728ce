//! Whatever happens in whatever order: one answer at most, nothing is started without a verdict for it, and who
//! goes away is forgotten.

use proptest::prelude::*;

use super::*;
use crate::model::{EscalationPermissions, NetworkAccess};

fn execution() -> impl Strategy<Value = EscalationExecution> {
    prop_oneof![
        Just(EscalationExecution::Unsandboxed),
        Just(EscalationExecution::TurnDefault),
        Just(EscalationExecution::Permissions(EscalationPermissions {
            network: NetworkAccess::Denied,
            readable: vec!["/usr".into()],
            writable: Vec::new(),
        })),
    ]
}

fn decision() -> impl Strategy<Value = EscalationDecision> {
    prop_oneof![
        Just(EscalationDecision::Run),
        execution().prop_map(EscalationDecision::Escalate),
        prop::option::of("[a-z]{0,3}").prop_map(|reason| EscalationDecision::Deny { reason }),
    ]
}

fn outcome() -> impl Strategy<Value = ExecOutcome> {
    prop_oneof![
        (0..256_i32).prop_map(ExecOutcome::Exited),
        (1..65_i32).prop_map(ExecOutcome::Signaled),
        Just(ExecOutcome::Unknown),
    ]
}

/// What may happen, those that end it less often than the others.
fn input() -> impl Strategy<Value = Input> {
    prop_oneof![
        4 => Just(Input::Requested),
        6 => decision().prop_map(|decision| Input::Decided(decision.into())),
        4 => any::<bool>().prop_map(|notices| {
            Input::Collected(Box::new(CommandContext {
                notices,
                ..CommandContext::default()
            }))
        }),
        4 => any::<bool>().prop_map(|own_group| Input::Started { own_group }),
        2 => (1..65_i32, any::<bool>()).prop_map(|(signal, from_terminal)| Input::Forwarded {
            signal,
            from_terminal,
        }),
        2 => (1..65_i32).prop_map(Input::Stopped),
        1 => (126..128_i32).prop_map(|exit_code| Input::NotStarted {
            exit_code,
            reason: "no".to_owned(),
        }),
        1 => outcome().prop_map(|outcome| Input::Ended { outcome, usage: None }),
        1 => Just(Input::Malformed("what".to_owned())),
        1 => Just(Input::Overloaded("full".to_owned())),
        1 => Just(Input::AskerGone),
        1 => prop::option::of(Just("over".to_owned())).prop_map(Input::SessionOver),
    ]
}

/// What has been done so far.
#[derive(Debug, Default)]
struct Done {
    asked: usize,
    answered: usize,
    withdrawn: usize,
    started: usize,
    replied: usize,
    finished: usize,
    escalation: Option<EscalationExecution>,
}

impl Done {
    /// Takes one input to its end, as the server does.
    fn take(&mut self, state: State, input: &Input) -> State {
        let before = state.clone();
        let was_waiting = matches!(before, State::Deciding);
        let (after, actions) = step(state, input.clone());
        for action in actions {
            self.note(&action, input, was_waiting);
        }
        if before == State::Over {
            assert_eq!(after, State::Over, "it begins again");
        }
        after
    }

    fn note(&mut self, action: &Action, input: &Input, was_waiting: bool) {
        match action {
            Action::Decide => self.asked += 1,
            Action::Respond(response, verdict) => {
                self.answered += 1;
                let allows = !matches!(response, WireAction::Deny { .. });
                if allows {
                    assert!(was_waiting, "allowed, and nobody was asked");
                    let Input::Decided(given) = input else {
                        panic!("{input:?} allows");
                    };
                    assert_eq!(given, verdict, "by another verdict");
                }
                match (response, &verdict.decision) {
                    (WireAction::Run, EscalationDecision::Run) => {}
                    (WireAction::Escalate, EscalationDecision::Escalate(execution)) => {
                        self.escalation = Some(execution.clone());
                    }
                    (
                        WireAction::Deny { reason },
                        EscalationDecision::Deny { reason: verdicts },
                    ) => assert_eq!(reason, verdicts),
                    other => panic!("the answer isn't the verdict: {other:?}"),
                }
            }
            Action::Refuse(_) => {
                self.answered += 1;
                assert_eq!(self.asked, 0, "refused, and the policy was asked");
            }
            Action::Start(execution, _) => {
                self.started += 1;
                assert_eq!(Some(execution), self.escalation.as_ref(), "not as decided");
            }
            Action::Withdraw(_) => {
                self.withdrawn += 1;
                assert!(was_waiting, "nothing was to be withdrawn");
            }
            Action::Reply(..) => self.replied += 1,
            Action::Finish(..) => {
                self.finished += 1;
                assert!(self.escalation.is_some(), "an end of what never began");
            }
            Action::Signal(_) | Action::Kill | Action::Notify(_) => {
                assert!(self.started > 0, "{action:?}, and nothing was started");
                assert_eq!(self.finished, 0, "{action:?}, and it has ended");
            }
        }
    }

    /// What holds after each input.
    fn check(&self, state: &State) {
        assert!(self.asked <= 1, "asked twice");
        assert!(self.answered <= 1, "two verdicts");
        assert!(self.started <= 1, "started twice");
        assert!(self.replied <= 1, "two results");
        assert!(self.finished <= 1, "two ends");
        assert!(self.withdrawn + self.answered <= 1, "withdrawn and decided");
        let is_escalated = self.escalation.is_some();
        let is_over = *state == State::Over;
        assert_eq!(self.finished == 1, is_escalated && is_over, "{state:?}");
        if is_over && self.asked == 1 {
            assert_eq!(self.withdrawn + self.answered, 1, "a question is left");
        }
        if matches!(state, State::Running { .. } | State::Starting { .. }) {
            assert_eq!(self.started, 1, "{state:?}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn in_any_order_there_is_one_verdict_at_most_and_nothing_runs_without(
        inputs in prop::collection::vec(input(), 0..24),
    ) {
        let mut done = Done::default();
        let mut state = State::Asking;
        for input in &inputs {
            state = done.take(state, input);
            done.check(&state);
        }
        // Who is gone needs at most the end of what was started.
        for input in [
            Input::AskerGone,
            Input::Started { own_group: true },
            Input::Ended { outcome: ExecOutcome::Signaled(9), usage: None },
        ] {
            state = done.take(state, &input);
            done.check(&state);
        }
        prop_assert_eq!(state, State::Over);
    }
}
