//! One intercepted exec, as a pure state machine: no sockets, no clock.
//!
//! ```text
//! Asking ──request──► Deciding ──run/deny──────────────────────────► Over
//!                        │ └─────escalate──► Collecting ──descriptors──► Starting
//!                        │                                                  │
//!                        └──asker gone, session over──► Over      started ──┤── failed ──► Over
//!                                                                           ▼
//!                                        Over ◄──ended── Running ──asker gone──► (killed)
//! ```

use crate::model::{
    DecisionCode, EscalationDecision, EscalationExecution, ExecOutcome, ExecUsage, Verdict,
    WithdrawalReason,
};
use crate::wire::{Action as WireAction, CommandContext};

/// Where an intercepted exec stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum State {
    /// Its request is awaited.
    Asking,
    /// Its verdict is awaited.
    Deciding,
    /// It is escalated, and its descriptors are awaited.
    Collecting(EscalationExecution),
    /// Its command is being started.
    Starting {
        /// As in [`State::Running`].
        notices: bool,
        /// Whether the wrapper went away meanwhile.
        abandoned: bool,
    },
    /// Its command runs.
    Running {
        /// Whether the command has a process group of its own, apart from the wrapper's, or its
        /// supervisor knows what the shared one gets.
        own_group: bool,
        /// Whether the wrapper wants to be told when it stops.
        notices: bool,
    },
    /// Nothing is awaited any more.
    Over,
}

/// What happens to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Input {
    /// A valid request has arrived.
    Requested,
    /// What has arrived is no valid message; the reason in words.
    Malformed(String),
    /// There was no room for what was to arrive; the reason in words.
    Overloaded(String),
    /// The policy has decided, or failed to, which is a denial by now.
    Decided(Verdict),
    /// Descriptors and context have arrived.
    Collected(Box<CommandContext>),
    /// The wrapper forwards a signal.
    Forwarded {
        /// Its number.
        signal: i32,
        /// Whether its process group got it from the terminal.
        from_terminal: bool,
    },
    /// The command runs.
    Started {
        /// As in [`State::Running`].
        own_group: bool,
    },
    /// The command couldn't be started: the shell's status for that, and the reason in words.
    NotStarted {
        /// 126 or 127.
        exit_code: i32,
        /// For the user.
        reason: String,
    },
    /// The command was stopped by a signal.
    Stopped(i32),
    /// The command ended.
    Ended {
        /// How.
        outcome: ExecOutcome,
        /// What it used.
        usage: Option<ExecUsage>,
    },
    /// The wrapper's end of the stream is closed, or can't be written to.
    AskerGone,
    /// The session is over; the policy's reason where it was the policy that ended it.
    SessionOver(Option<String>),
}

/// What is to be done about it, in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Action {
    /// Ask the policy.
    Decide,
    /// Answer the wrapper, and once that is done tell the policy of the verdict acted on.
    Respond(WireAction, Verdict),
    /// Answer the wrapper with a denial that nobody asked the policy about.
    Refuse(String),
    /// Start the command.
    Start(EscalationExecution, Box<CommandContext>),
    /// Send the command a signal.
    Signal(i32),
    /// End the command and all that it started.
    Kill,
    /// Tell the wrapper that the command was stopped.
    Notify(i32),
    /// Tell the wrapper how the command ended: exit code, signal, why it never started.
    Reply(i32, Option<i32>, Option<String>),
    /// Tell the policy that no verdict is needed any more.
    Withdraw(WithdrawalReason),
    /// Tell the policy how the command ended.
    Finish(ExecOutcome, Option<ExecUsage>),
}

/// Exit code of a command that has none of its own.
const NO_EXIT_CODE: i32 = 127;
/// A shell's exit status for a command that can't be executed.
const CANNOT_EXECUTE: i32 = 126;

/// What follows from `input` in `state`. An input that makes no sense in a state changes nothing.
pub(super) fn step(state: State, input: Input) -> (State, Vec<Action>) {
    match (state, input) {
        (State::Asking, Input::Requested) => (State::Deciding, vec![Action::Decide]),
        (State::Asking, Input::Malformed(reason)) => (
            State::Over,
            vec![Action::Refuse(format!("invalid request: {reason}"))],
        ),
        (State::Asking, Input::Overloaded(reason)) => {
            decided(Verdict::denied(DecisionCode::Overloaded, reason))
        }
        (State::Asking, Input::AskerGone | Input::SessionOver(_)) => (State::Over, vec![]),

        (State::Deciding, Input::Decided(verdict)) => decided(verdict),
        (State::Deciding, Input::AskerGone | Input::Malformed(_)) => (
            State::Over,
            vec![Action::Withdraw(WithdrawalReason::AskerGone)],
        ),
        (State::Deciding, Input::SessionOver(None)) => (
            State::Over,
            vec![Action::Withdraw(WithdrawalReason::SessionEnded)],
        ),
        (State::Deciding, Input::SessionOver(Some(reason))) => {
            let reason = format!("the session was ended: {reason}");
            decided(Verdict::denied(DecisionCode::SessionEnded, reason))
        }

        (State::Collecting(execution), Input::Collected(context)) => (
            State::Starting {
                notices: context.notices,
                abandoned: false,
            },
            vec![Action::Start(execution, context)],
        ),
        (State::Collecting(_), Input::Malformed(reason)) => {
            let reason = format!("invalid request: {reason}");
            (
                State::Over,
                vec![
                    Action::Reply(NO_EXIT_CODE, None, Some(format!("execgate: {reason}"))),
                    Action::Finish(ExecOutcome::NotStarted(reason), None),
                ],
            )
        }
        (State::Collecting(_), Input::AskerGone | Input::SessionOver(_)) => (
            State::Over,
            vec![Action::Finish(
                ExecOutcome::NotStarted("the asking process went away".to_owned()),
                None,
            )],
        ),

        (
            State::Starting { notices, .. },
            Input::AskerGone | Input::Malformed(_) | Input::SessionOver(_),
        ) => (
            State::Starting {
                notices,
                abandoned: true,
            },
            vec![],
        ),
        (State::Starting { notices, abandoned }, Input::Started { own_group }) => (
            State::Running { own_group, notices },
            if abandoned {
                vec![Action::Kill]
            } else {
                vec![]
            },
        ),
        // By its terminal, before it was executed.
        (
            State::Starting {
                notices: true,
                abandoned,
            },
            Input::Stopped(signal),
        ) => (
            State::Starting {
                notices: true,
                abandoned,
            },
            vec![Action::Notify(signal)],
        ),
        (State::Starting { .. }, Input::NotStarted { exit_code, reason }) => (
            State::Over,
            vec![
                Action::Reply(exit_code, None, Some(reason.clone())),
                Action::Finish(ExecOutcome::NotStarted(reason), None),
            ],
        ),
        // Its supervisor was killed, or had no room to work in.
        (State::Starting { .. }, Input::Ended { .. }) => {
            let reason = "execgate: cannot start the command: its supervisor ended".to_owned();
            (
                State::Over,
                vec![
                    Action::Reply(CANNOT_EXECUTE, None, Some(reason.clone())),
                    Action::Finish(ExecOutcome::NotStarted(reason), None),
                ],
            )
        }
        (state, input) => running(state, input),
    }
}

/// The part of [`step`] for a command that runs.
fn running(state: State, input: Input) -> (State, Vec<Action>) {
    let State::Running { own_group, notices } = state else {
        return (state, vec![]);
    };
    let actions = match input {
        // The command shares the wrapper's process group, and has got it from the terminal itself.
        Input::Forwarded {
            from_terminal: true,
            ..
        } if !own_group => vec![],
        Input::Forwarded { signal, .. } => vec![Action::Signal(signal)],
        Input::Stopped(signal) if notices => vec![Action::Notify(signal)],
        Input::AskerGone | Input::Malformed(_) | Input::SessionOver(_) => vec![Action::Kill],
        Input::Ended { outcome, usage } => {
            let (exit_code, signal) = match outcome {
                ExecOutcome::Exited(code) => (code, None),
                ExecOutcome::Signaled(signal) => (NO_EXIT_CODE, Some(signal)),
                _ => (NO_EXIT_CODE, None),
            };
            return (
                State::Over,
                vec![
                    Action::Reply(exit_code, signal, None),
                    Action::Finish(outcome, usage),
                ],
            );
        }
        _ => vec![],
    };
    (State::Running { own_group, notices }, actions)
}

fn decided(verdict: Verdict) -> (State, Vec<Action>) {
    match verdict.decision.clone() {
        EscalationDecision::Run => (State::Over, vec![Action::Respond(WireAction::Run, verdict)]),
        EscalationDecision::Escalate(execution) => (
            State::Collecting(execution),
            vec![Action::Respond(WireAction::Escalate, verdict)],
        ),
        EscalationDecision::Deny { reason } => (
            State::Over,
            vec![Action::Respond(WireAction::Deny { reason }, verdict)],
        ),
    }
}

#[cfg(test)]
mod properties;

#[cfg(test)]
mod tests {
    use super::*;

    fn verdict(decision: EscalationDecision) -> Input {
        Input::Decided(decision.into())
    }

    fn collected(notices: bool) -> Input {
        Input::Collected(Box::new(CommandContext {
            notices,
            ..CommandContext::default()
        }))
    }

    fn collecting() -> State {
        State::Collecting(EscalationExecution::Unsandboxed)
    }

    fn is_silent(state: &State, input: Input) -> bool {
        let (after, actions) = step(state.clone(), input);
        after == *state && actions.is_empty()
    }

    #[test]
    fn nothing_but_a_verdict_to_run_answers_run() {
        let runs = |state: State, input: Input| {
            let (_, actions) = step(state, input);
            actions
                .iter()
                .any(|action| matches!(action, Action::Respond(WireAction::Run, _)))
        };
        assert!(runs(State::Deciding, verdict(EscalationDecision::Run)));
        let others = [
            Input::Requested,
            Input::Malformed("x".into()),
            Input::AskerGone,
            Input::SessionOver(None),
            Input::SessionOver(Some("x".into())),
            Input::Started { own_group: true },
            collected(true),
            verdict(EscalationDecision::Deny { reason: None }),
            verdict(EscalationDecision::Escalate(
                EscalationExecution::TurnDefault,
            )),
        ];
        for input in others {
            for state in [State::Asking, State::Deciding, collecting(), State::Over] {
                assert!(!runs(state, input.clone()), "{input:?}");
            }
        }
        // Nor does a verdict count before the question, or twice.
        for state in [State::Asking, collecting(), State::Over] {
            assert!(is_silent(&state, verdict(EscalationDecision::Run)));
        }
    }

    #[test]
    fn a_malformed_request_is_refused_without_asking() {
        let (state, actions) = step(State::Asking, Input::Malformed("no JSON".into()));
        assert_eq!(state, State::Over);
        assert_eq!(
            actions,
            [Action::Refuse("invalid request: no JSON".to_owned())]
        );
    }

    #[test]
    fn an_asker_that_is_gone_withdraws() {
        let (state, actions) = step(State::Deciding, Input::AskerGone);
        assert_eq!(state, State::Over);
        assert_eq!(actions, [Action::Withdraw(WithdrawalReason::AskerGone)]);
    }

    #[test]
    fn a_session_ended_by_its_policy_denies_what_waits() {
        let (_, actions) = step(State::Deciding, Input::SessionOver(Some("enough".into())));
        let [Action::Respond(WireAction::Deny { reason }, verdict)] = &actions[..] else {
            panic!("{actions:?}");
        };
        assert_eq!(reason.as_deref(), Some("the session was ended: enough"));
        assert_eq!(verdict.code, DecisionCode::SessionEnded);
    }

    #[test]
    fn death_by_signal_is_127_and_the_signal() {
        let running = State::Running {
            own_group: true,
            notices: true,
        };
        let input = Input::Ended {
            outcome: ExecOutcome::Signaled(15),
            usage: None,
        };
        let (state, actions) = step(running, input);
        assert_eq!(state, State::Over);
        assert_eq!(actions[0], Action::Reply(127, Some(15), None));
    }

    #[test]
    fn a_terminals_signal_is_not_sent_twice_to_a_shared_group() {
        let state = |own_group| State::Running {
            own_group,
            notices: true,
        };
        let from_terminal = Input::Forwarded {
            signal: 2,
            from_terminal: true,
        };
        assert!(is_silent(&state(false), from_terminal.clone()));
        let (_, actions) = step(state(true), from_terminal);
        assert_eq!(actions, [Action::Signal(2)]);
        let from_process = Input::Forwarded {
            signal: 2,
            from_terminal: false,
        };
        let (_, actions) = step(state(false), from_process);
        assert_eq!(actions, [Action::Signal(2)]);
    }

    #[test]
    fn every_state_of_a_command_ends_with_its_supervisor() {
        let states = [
            State::Starting {
                notices: true,
                abandoned: false,
            },
            State::Starting {
                notices: false,
                abandoned: true,
            },
            State::Running {
                own_group: true,
                notices: true,
            },
        ];
        for state in states {
            let gone = Input::Ended {
                outcome: ExecOutcome::Unknown,
                usage: None,
            };
            let (after, actions) = step(state, gone);
            assert_eq!(after, State::Over);
            assert!(matches!(actions[0], Action::Reply(..)), "{actions:?}");
            assert!(matches!(actions[1], Action::Finish(..)), "{actions:?}");
        }
    }

    #[test]
    fn only_wrappers_that_want_notices_get_them() {
        let state = |notices| State::Running {
            own_group: true,
            notices,
        };
        assert!(is_silent(&state(false), Input::Stopped(20)));
        let (_, actions) = step(state(true), Input::Stopped(20));
        assert_eq!(actions, [Action::Notify(20)]);
    }

    #[test]
    fn a_command_can_be_stopped_before_it_is_executed() {
        let (state, _) = step(collecting(), collected(true));
        let (after, actions) = step(state.clone(), Input::Stopped(20));
        assert_eq!(after, state);
        assert_eq!(actions, [Action::Notify(20)]);
        let (silent, _) = step(collecting(), collected(false));
        assert!(is_silent(&silent, Input::Stopped(20)));
    }

    #[test]
    fn an_asker_that_leaves_while_its_command_starts_has_it_killed() {
        let (state, _) = step(collecting(), collected(false));
        let (state, actions) = step(state, Input::AskerGone);
        assert!(actions.is_empty());
        let (state, actions) = step(state, Input::Started { own_group: true });
        assert_eq!(actions, [Action::Kill]);
        let ended = Input::Ended {
            outcome: ExecOutcome::Signaled(9),
            usage: None,
        };
        let (state, actions) = step(state, ended);
        assert_eq!(state, State::Over);
        assert!(matches!(actions[1], Action::Finish(..)));
    }
}
