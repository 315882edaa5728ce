use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::{Duration, SystemTime};

use prost::bytes::{Bytes, BytesMut};

use super::executable::{environment_difference, executable_info, protection};
use super::v1;
use super::v1::session_request::Event;
use crate::model::{
    DecisionCode, Enforcement, EscalationDecision, ExecId, ExecOutcome, InterceptedExec,
    SessionDescription, SessionEndReason, SessionEvent, Verdict, WithdrawalReason,
};

/// For reserving space only.
const USUAL_NAME_LENGTH: usize = 16;

/// The question for a verdict on `exec`. Its sequence is left unset.
#[must_use]
pub fn exec_requested(exec: &InterceptedExec, time_allowed: Duration) -> v1::SessionRequest {
    let question = v1::ExecRequested {
        deadline: exec
            .asked_at
            .checked_add(time_allowed)
            .map(prost_types::Timestamp::from),
        time_allowed: Some(duration(time_allowed)),
        ..exec_described(exec)
    };
    request(exec.asked_at, Event::ExecRequested(question))
}

/// All that is said of an exec, with no time for a verdict.
fn exec_described(exec: &InterceptedExec) -> v1::ExecRequested {
    let file = exec.file.as_os_str().as_bytes();
    let workdir = exec.workdir.as_os_str().as_bytes();

    // One buffer for all of it, of which each field is a slice.
    let expected = file.len()
        + workdir.len()
        + exec
            .argv
            .iter()
            .map(|argument| argument.len())
            .sum::<usize>()
        + exec.env.0.len() * USUAL_NAME_LENGTH;
    let mut copy = BytesMut::with_capacity(expected);
    let mut lengths = Vec::with_capacity(exec.argv.len() + exec.env.0.len());
    copy.extend_from_slice(file);
    copy.extend_from_slice(workdir);
    for argument in &exec.argv {
        copy.extend_from_slice(argument.as_bytes());
        lengths.push(argument.len());
    }
    for name in exec.env.names() {
        copy.extend_from_slice(name);
        lengths.push(name.len());
    }
    let mut copy = copy.freeze();
    let file = copy.split_to(file.len());
    let workdir = copy.split_to(workdir.len());
    let (arguments, names) = lengths.split_at(exec.argv.len());
    let mut slices = |lengths: &[usize]| -> Vec<Bytes> {
        lengths
            .iter()
            .map(|length| copy.split_to(*length))
            .collect()
    };

    v1::ExecRequested {
        exec_id: exec.id.0,
        file,
        workdir,
        arguments: slices(arguments),
        environment_names: slices(names),
        process: Some(v1::ProcessInfo {
            process_id: exec.process.pid,
            parent_process_id: exec.process.parent_pid,
            user_id: exec.process.uid,
            group_id: exec.process.gid,
        }),
        parent_exec_id: exec.parent.map_or(0, |parent| parent.0),
        deadline: None,
        time_allowed: None,
        redacted_arguments: Vec::new(),
        environment_variables: Vec::new(),
        executable: Some(executable_info(&exec.executable)),
        workdir_protection: exec
            .workdir_protection
            .as_ref()
            .map_or(v1::Protection::Unspecified, protection)
            .into(),
    }
}

/// The first message of a session's first call. Its sequence is left unset.
#[must_use]
pub fn session_started(
    session: &SessionDescription,
    gate: v1::GateInfo,
    user: Option<v1::UserInfo>,
) -> v1::SessionRequest {
    let started = v1::SessionStarted {
        session_id: session.id.to_string(),
        gate: Some(gate),
        resumption: None,
        labels: session.labels.clone().into_iter().collect(),
        workdir: path(&session.workdir),
        user,
        command: session.command.iter().map(|part| os(part)).collect(),
        sandbox: Some(v1::SandboxInfo {
            backend: session.sandbox.backend.clone(),
            enforcement: match session.sandbox.enforcement {
                Enforcement::Full => v1::Enforcement::Full,
                Enforcement::Partial => v1::Enforcement::Partial,
                Enforcement::None => v1::Enforcement::None,
            }
            .into(),
            profile: session.sandbox.profile.clone(),
            unenforced_parts: session.sandbox.not_enforced.clone(),
            version: session.sandbox.version.clone(),
            limits: session.sandbox.limits.clone(),
            ungranted_parts: session.sandbox.not_granted.clone(),
        }),
        start_time: Some(session.started_at.into()),
    };
    request(session.started_at, Event::SessionStarted(started))
}

/// `first`, made by [`session_started`], as the first message of a later call of that session.
#[must_use]
pub fn resumed(
    first: &v1::SessionRequest,
    resumption: v1::Resumption,
    at: SystemTime,
) -> v1::SessionRequest {
    let mut message = first.clone();
    message.event_time = Some(at.into());
    if let Some(Event::SessionStarted(started)) = &mut message.event {
        started.resumption = Some(resumption);
    }
    message
}

/// What happened in a session. Its sequence is left unset.
#[must_use]
pub fn session_event(event: SessionEvent) -> v1::SessionRequest {
    match event {
        SessionEvent::ExecReused { exec, origin } => {
            let reused = v1::ExecReused {
                exec: Some(exec_described(&exec)),
                verdict_session_id: origin.session.to_string(),
                verdict_exec_id: origin.exec.0,
            };
            request(exec.asked_at, Event::ExecReused(reused))
        }
        SessionEvent::ExecWithdrawn { exec, reason, at } => exec_withdrawn(exec, reason, at),
        SessionEvent::ExecDecided {
            exec,
            verdict,
            environment,
            waited,
            at,
            ..
        } => {
            let decided = v1::ExecDecided {
                environment: environment.map(|difference| environment_difference(*difference)),
                ..exec_decided(exec, verdict, waited)
            };
            request(at, Event::ExecDecided(decided))
        }
        SessionEvent::ExecFinished {
            exec,
            outcome,
            elapsed,
            usage,
            pid,
            writable_directories,
            at,
        } => {
            use v1::exec_finished::Status;
            let (status, replaced_by) = match outcome {
                ExecOutcome::Exited(code) => (Some(Status::ExitCode(code)), 0),
                ExecOutcome::Signaled(signal) => (Some(Status::Signal(signal)), 0),
                ExecOutcome::NotStarted(reason) => (Some(Status::StartError(reason)), 0),
                ExecOutcome::Replaced(by) => (None, by.0),
                ExecOutcome::Unknown => (None, 0),
            };
            let finished = v1::ExecFinished {
                exec_id: exec.0,
                status,
                elapsed: Some(duration(elapsed)),
                user_time: usage.map(|usage| duration(usage.user)),
                system_time: usage.map(|usage| duration(usage.system)),
                peak_memory_bytes: usage.map_or(0, |usage| usage.peak_memory_bytes),
                process_id: pid,
                replaced_by_exec_id: replaced_by,
                writable_directory_descriptors: writable_directories,
            };
            request(at, Event::ExecFinished(finished))
        }
        SessionEvent::SessionEnded {
            reason,
            detail,
            shell,
            at,
        } => {
            use v1::session_ended::Status;
            let reason = match reason {
                SessionEndReason::Completed => v1::SessionEndReason::Completed,
                SessionEndReason::Cancelled => v1::SessionEndReason::Cancelled,
                SessionEndReason::TimedOut => v1::SessionEndReason::TimedOut,
                SessionEndReason::Terminated => v1::SessionEndReason::Terminated,
                SessionEndReason::GateFailed => v1::SessionEndReason::GateFailed,
            };
            let status = match shell {
                Some(ExecOutcome::Exited(code)) => Some(Status::ExitCode(code)),
                Some(ExecOutcome::Signaled(signal)) => Some(Status::Signal(signal)),
                Some(
                    ExecOutcome::NotStarted(_) | ExecOutcome::Replaced(_) | ExecOutcome::Unknown,
                )
                | None => None,
            };
            let ended = v1::SessionEnded {
                reason: reason.into(),
                detail,
                status,
            };
            request(at, Event::SessionEnded(ended))
        }
    }
}

/// That an exec needs no verdict any more. Its sequence is left unset.
#[must_use]
pub fn exec_withdrawn(
    exec: ExecId,
    reason: WithdrawalReason,
    at: SystemTime,
) -> v1::SessionRequest {
    let reason = match reason {
        WithdrawalReason::AskerGone => v1::WithdrawalReason::AskerGone,
        WithdrawalReason::SessionEnded => v1::WithdrawalReason::SessionEnded,
        WithdrawalReason::DeadlinePassed => v1::WithdrawalReason::DeadlinePassed,
    };
    let withdrawn = v1::ExecWithdrawn {
        exec_id: exec.0,
        reason: reason.into(),
    };
    request(at, Event::ExecWithdrawn(withdrawn))
}

/// That the events from `first` to `last` were dropped. Its sequence is left unset.
#[must_use]
pub fn events_lost(first: u64, last: u64, at: SystemTime) -> v1::SessionRequest {
    let event = v1::EventsLost {
        first_sequence: first,
        last_sequence: last,
        count: last.saturating_sub(first).saturating_add(1),
    };
    request(at, Event::EventsLost(event))
}

fn exec_decided(exec: ExecId, verdict: Verdict, waited: Duration) -> v1::ExecDecided {
    let (action, reason) = match verdict.decision {
        EscalationDecision::Run => (v1::Action::Run, String::new()),
        EscalationDecision::Escalate(_) => (v1::Action::Escalate, String::new()),
        EscalationDecision::Deny { reason } => (v1::Action::Deny, reason.unwrap_or_default()),
    };
    let code = match verdict.code {
        DecisionCode::Verdict => v1::DecisionCode::Verdict,
        DecisionCode::Reused => v1::DecisionCode::Reused,
        DecisionCode::TimedOut => v1::DecisionCode::TimedOut,
        DecisionCode::Unreachable => v1::DecisionCode::Unreachable,
        DecisionCode::PolicyError => v1::DecisionCode::PolicyError,
        DecisionCode::Overloaded => v1::DecisionCode::Overloaded,
        DecisionCode::SessionEnded => v1::DecisionCode::SessionEnded,
        DecisionCode::InvalidRequest => v1::DecisionCode::InvalidRequest,
        DecisionCode::Unrecorded => v1::DecisionCode::Unrecorded,
        DecisionCode::ProgramChanged => v1::DecisionCode::ProgramChanged,
        DecisionCode::ProgramUnprotected => v1::DecisionCode::ProgramUnprotected,
        DecisionCode::ProgramUnidentified => v1::DecisionCode::ProgramUnidentified,
    };
    v1::ExecDecided {
        exec_id: exec.0,
        action: action.into(),
        code: code.into(),
        reason,
        rule: verdict.rule,
        policy_revision: verdict.policy_revision,
        reason_code: verdict.reason_code,
        waited: Some(duration(waited)),
        environment: None,
    }
}

fn request(at: SystemTime, event: Event) -> v1::SessionRequest {
    v1::SessionRequest {
        sequence: 0,
        event_time: Some(at.into()),
        event: Some(event),
    }
}

fn path(path: &Path) -> Bytes {
    os(path.as_os_str())
}

fn os(text: &OsStr) -> Bytes {
    Bytes::copy_from_slice(text.as_bytes())
}

/// A span too long for the wire, beyond 10,000 years, becomes the longest that fits.
fn duration(span: Duration) -> prost_types::Duration {
    prost_types::Duration::try_from(span).unwrap_or(prost_types::Duration {
        seconds: i64::MAX,
        nanos: 0,
    })
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;
    use std::os::unix::ffi::OsStringExt;
    use std::time::UNIX_EPOCH;

    use super::*;
    use crate::model::{Environment, ExecUsage, ProcessIdentity};

    const AT: SystemTime = UNIX_EPOCH;

    #[test]
    fn a_question_carries_bytes_as_they_are_and_names_only() {
        let exec = InterceptedExec {
            id: ExecId(7),
            file: OsString::from_vec(b"/bin/\xff".to_vec()).into(),
            argv: vec![OsString::new(), OsString::from_vec(b"\xfe\n".to_vec())],
            workdir: "/work".into(),
            env: Environment(vec!["TOKEN=secret".into(), "EMPTY=".into()]),
            process: ProcessIdentity {
                pid: 10,
                parent_pid: 9,
                uid: 1000,
                gid: 100,
            },
            parent: Some(ExecId(3)),
            asked_at: AT + Duration::from_secs(100),
            executable: crate::model::Executable::default(),
            workdir_protection: None,
        };
        let message = exec_requested(&exec, Duration::from_secs(5));
        let Some(Event::ExecRequested(question)) = message.event else {
            panic!("not a question: {message:?}");
        };
        assert_eq!(message.sequence, 0);
        assert_eq!(question.exec_id, 7);
        assert_eq!(question.file, &b"/bin/\xff"[..]);
        assert_eq!(question.workdir, &b"/work"[..]);
        assert_eq!(question.arguments, [&b""[..], b"\xfe\n"]);
        assert_eq!(question.environment_names, [&b"TOKEN"[..], b"EMPTY"]);
        assert_eq!(question.parent_exec_id, 3);
        assert_eq!(question.deadline.map(|at| at.seconds), Some(105));
        assert_eq!(question.time_allowed.map(|span| span.seconds), Some(5));
        let process = question.process.expect("a process");
        assert_eq!((process.process_id, process.parent_process_id), (10, 9));
        assert_eq!((process.user_id, process.group_id), (1000, 100));
    }

    #[test]
    fn a_finished_exec_says_only_what_is_known() {
        let finished = |outcome, usage| {
            let message = session_event(SessionEvent::ExecFinished {
                exec: ExecId(1),
                outcome,
                elapsed: Duration::from_millis(1500),
                usage,
                pid: 4,
                writable_directories: vec![3],
                at: AT,
            });
            match message.event {
                Some(Event::ExecFinished(finished)) => finished,
                other => panic!("not a finished exec: {other:?}"),
            }
        };
        let unknown = finished(ExecOutcome::Unknown, None);
        assert_eq!((unknown.status, unknown.user_time), (None, None));
        let replaced = finished(ExecOutcome::Replaced(ExecId(2)), None);
        assert_eq!((replaced.status, replaced.replaced_by_exec_id), (None, 2));
        let usage = ExecUsage {
            user: Duration::from_secs(1),
            system: Duration::ZERO,
            peak_memory_bytes: 4096,
        };
        let exited = finished(ExecOutcome::Exited(3), Some(usage));
        assert_eq!(exited.status, Some(v1::exec_finished::Status::ExitCode(3)));
        assert_eq!(exited.peak_memory_bytes, 4096);
        assert_eq!(exited.writable_directory_descriptors, [3]);
        assert_eq!(exited.elapsed.map(|span| span.nanos), Some(500_000_000));
    }

    #[test]
    fn a_decision_names_its_action_and_code() {
        let verdict = Verdict::denied(DecisionCode::TimedOut, "too slow");
        let decided = exec_decided(ExecId(5), verdict, Duration::ZERO);
        assert_eq!(decided.action(), v1::Action::Deny);
        assert_eq!(decided.code(), v1::DecisionCode::TimedOut);
        assert_eq!(decided.reason, "too slow");
    }

    #[test]
    fn lost_events_are_counted_with_both_ends() {
        let Some(Event::EventsLost(lost)) = events_lost(3, 7, AT).event else {
            panic!("not lost events");
        };
        assert_eq!(lost.count, 5);
    }
}
