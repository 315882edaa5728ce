//! Whatever bytes a peer sends, on the session's socket or on the policy link: reading them ends in a value
//! or an error, in memory that grows with the bytes that came, and what comes out keeps its promises.
//! Bytes are arbitrary, or valid messages with a few bytes changed. A program of its own, and its tests one
//! at a time, because memory is counted for the whole process.

#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

use std::sync::{Mutex, MutexGuard, PoisonError};

use execgate::model::{EscalationDecision, EscalationExecution};
use execgate::pb::{self, Answer, TEXT_LIMIT, v1};
use execgate::wire::{
    self, CommandContext, EscalateRequest, EscalateResponse, Forward, FrameReader,
    MAX_FOLLOWING_FRAME, Notice, Refusal, SuperExecMessage, SuperExecResult, WaitNotice,
};
use peak_alloc::PeakAlloc;
use proptest::prelude::*;
use prost::Message;

#[global_allocator]
static ALLOCATED: PeakAlloc = PeakAlloc;

static ALONE: Mutex<()> = Mutex::new(());

fn alone() -> MutexGuard<'static, ()> {
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Each byte may become so many: an element of a list takes two bytes on the link, and a structure in
/// memory; and a list that grows is there twice for a moment.
const PER_BYTE: usize = 256;

/// For an error's text, and what the test's own threads take meanwhile.
const BESIDES: usize = 64 << 10;

/// Runs `read` on bytes, and fails if that takes more memory than they are worth.
fn within_bounds<T>(bytes: &[u8], read: impl FnOnce(&[u8]) -> T) -> T {
    let before = ALLOCATED.current_usage();
    ALLOCATED.reset_peak_usage();
    let read = read(bytes);
    let taken = ALLOCATED.peak_usage().saturating_sub(before);
    let allowed = bytes.len() * PER_BYTE + BESIDES;
    assert!(
        taken <= allowed,
        "{taken} bytes of memory for {}",
        bytes.len()
    );
    read
}

/// A change of a message, at a place that is taken modulo its length.
#[derive(Debug, Clone)]
enum Change {
    Set(usize, u8),
    Insert(usize, Vec<u8>),
    Remove(usize, usize),
    Repeat(usize, usize, usize),
}

fn change() -> impl Strategy<Value = Change> {
    // What means something in either encoding comes up more often.
    let byte = prop_oneof![
        any::<u8>(),
        prop::sample::select(b"{}[]\",:\\0-9eE\x00\x7f\x80\xff".to_vec())
    ];
    prop_oneof![
        (any::<usize>(), byte.clone()).prop_map(|(at, byte)| Change::Set(at, byte)),
        (any::<usize>(), prop::collection::vec(byte, 1..6))
            .prop_map(|(at, bytes)| Change::Insert(at, bytes)),
        (any::<usize>(), 1..40_usize).prop_map(|(at, count)| Change::Remove(at, count)),
        (any::<usize>(), 1..40_usize, 1..40_usize)
            .prop_map(|(at, count, times)| Change::Repeat(at, count, times)),
    ]
}

fn changed(mut bytes: Vec<u8>, changes: Vec<Change>) -> Vec<u8> {
    for change in changes {
        let length = bytes.len();
        match change {
            Change::Set(at, byte) if length > 0 => bytes[at % length] = byte,
            Change::Set(..) => {}
            Change::Insert(at, new) => {
                let at = at % (length + 1);
                bytes.splice(at..at, new);
            }
            Change::Remove(at, count) => {
                let at = at % (length + 1);
                bytes.drain(at..length.min(at + count));
            }
            Change::Repeat(at, count, times) => {
                let at = at % (length + 1);
                let part = bytes[at..length.min(at + count)].repeat(times);
                bytes.splice(at..at, part);
            }
        }
    }
    bytes
}

fn hostile(valid: Vec<Vec<u8>>) -> impl Strategy<Value = Vec<u8>> {
    let mutated = (
        prop::sample::select(valid),
        prop::collection::vec(change(), 1..6),
    )
        .prop_map(|(bytes, changes)| changed(bytes, changes));
    prop_oneof![
        1 => prop::collection::vec(any::<u8>(), 0..300),
        4 => mutated,
    ]
}

/// One of each message of the local protocol, as text.
fn local_messages() -> Vec<Vec<u8>> {
    let context = CommandContext {
        umask: Some(0o22),
        nice: Some(3),
        limits: vec![(7, 1024, u64::MAX)],
        ignored_signals: vec![13],
        cpus: vec![3],
        personality: Some(0),
        ..CommandContext::default()
    };
    let messages = [
        serde_json::json!({
            "file": "/usr/bin/git", "argv": ["git", "push"], "workdir": "/src",
            "env": {"HOME": "/root", "EQ": "a=b"}, "notices": true,
        }),
        serde_json::json!({
            "file": "/bin/\u{fffd}", "argv": ["\u{fffd}"], "workdir": "/", "env": {},
            "raw": {"file": "L2Jpbi//", "argv": ["/w=="], "workdir": "Lw==", "env": ["QT3/"]},
        }),
        serde_json::json!({"action": {"Deny": {"reason": "no"}}}),
        serde_json::json!({"action": "Escalate", "notices": true}),
        serde_json::to_value(SuperExecMessage {
            fds: vec![0, 1, 63],
            context: Some(context),
        })
        .unwrap(),
        serde_json::json!({"signal": 15, "from_terminal": true}),
        serde_json::to_value(SuperExecResult {
            exit_code: 126,
            failure: Some("no".to_owned()),
            refusal: Some(Refusal::of_contents(Some(b"#!/nowhere\n"))),
            ..SuperExecResult::default()
        })
        .unwrap(),
        serde_json::json!({"stopped": 19, "at": 12_345}),
        serde_json::json!({"waiting": "for a person"}),
    ];
    messages
        .iter()
        .map(|message| message.to_string().into_bytes())
        .collect()
}

/// Answers of a policy service, encoded.
fn answers() -> Vec<Vec<u8>> {
    use v1::escalate::Execution;
    use v1::session_response::Answer as Pb;
    use v1::verdict::Decision;
    let verdict = |decision| {
        Pb::Verdict(v1::Verdict {
            exec_id: 7,
            decision: Some(decision),
            rule: "a.star:1".to_owned(),
            reuse: Some(v1::Reuse {
                valid_for: Some(prost_types::Duration {
                    seconds: 5,
                    nanos: 1,
                }),
                scope: 2,
                argument_prefix_length: 2,
                reach: 1,
            }),
            ..v1::Verdict::default()
        })
    };
    let escalate = |execution| {
        verdict(Decision::Escalate(v1::Escalate {
            execution: Some(execution),
            environment: Some(v1::EnvironmentRules {
                kept_names: vec!["LC_*".into()],
                unset_names: vec!["X".into()],
                set_variables: vec![v1::SetVariable {
                    name: "A".into(),
                    value: "b".into(),
                }],
            }),
            unprotected_programs: 2,
        }))
    };
    [
        verdict(Decision::Run(v1::Run {})),
        verdict(Decision::Deny(v1::Deny {
            reason: "nein \u{1f6ab}".to_owned(),
        })),
        escalate(Execution::Unsandboxed(v1::Unsandboxed {})),
        escalate(Execution::Permissions(v1::PermissionProfile {
            network_access: 1,
            readable_paths: vec!["/usr".into()],
            writable_paths: vec!["/src".into(), "/tmp".into()],
        })),
        Pb::SessionAccepted(v1::SessionAccepted {
            event_acknowledgement: 2,
            policy_revision: "r1".to_owned(),
            ..v1::SessionAccepted::default()
        }),
        Pb::VerdictPending(v1::VerdictPending {
            exec_id: 7,
            expected_within: Some(prost_types::Duration {
                seconds: 5,
                nanos: 1,
            }),
            message: "ask".to_owned(),
        }),
    ]
    .map(|answer| {
        v1::SessionResponse {
            answer: Some(answer),
        }
        .encode_to_vec()
    })
    .to_vec()
}

fn has_nul(string: &std::ffi::OsStr) -> bool {
    string.as_encoded_bytes().contains(&0)
}

/// What the gate reads of an answer, as the link does.
fn read_answer(bytes: &[u8]) -> Result<Answer, pb::BrokenAnswer> {
    match v1::SessionResponse::decode(bytes) {
        Ok(response) => pb::answer(response),
        Err(error) => pb::undecodable(bytes, error),
    }
}

fn config() -> ProptestConfig {
    ProptestConfig {
        cases: 512,
        failure_persistence: None,
        ..ProptestConfig::default()
    }
}

#[test]
fn requests_are_what_an_exec_can_be_or_an_error() {
    let _alone = alone();
    proptest!(config(), |(bytes in hostile(local_messages()))| {
        if let Ok(request) = within_bounds(&bytes, EscalateRequest::decode) {
            prop_assert!(!request.file.is_empty());
            prop_assert!(request.workdir.as_encoded_bytes().starts_with(b"/"));
            let strings = [&request.file, &request.workdir].into_iter();
            let mut strings = strings.chain(&request.argv).chain(&request.env.0);
            prop_assert!(!strings.any(|string| has_nul(string)));
        }
    });
}

#[test]
fn what_follows_a_request_is_a_message_or_an_error() {
    let _alone = alone();
    proptest!(config(), |(bytes in hostile(local_messages()))| {
        within_bounds(&bytes, |bytes| wire::decode::<SuperExecMessage>("SuperExecMessage", bytes).is_ok());
        within_bounds(&bytes, |bytes| wire::decode::<Forward>("Forward", bytes).is_ok());
        within_bounds(&bytes, |bytes| wire::decode::<EscalateResponse>("EscalateResponse", bytes).is_ok());
        within_bounds(&bytes, |bytes| wire::decode::<SuperExecResult>("SuperExecResult", bytes).is_ok());
        within_bounds(&bytes, |bytes| wire::decode::<Notice>("Notice", bytes).is_ok());
        within_bounds(&bytes, |bytes| wire::decode::<WaitNotice>("WaitNotice", bytes).is_ok());
    });
}

#[test]
fn frames_are_whole_and_no_longer_than_allowed_or_an_error() {
    let _alone = alone();
    let frames = local_messages().into_iter().map(|message| {
        let length = u32::try_from(message.len()).unwrap().to_le_bytes();
        [&length[..], &message].concat()
    });
    let stream = hostile(frames.collect());
    let streams = prop::collection::vec(stream, 1..4).prop_map(|parts| parts.concat());
    let pieces = prop::collection::vec(1..200_usize, 1..5);
    proptest!(config(), |(stream in streams, pieces in pieces)| {
        within_bounds(&stream, |mut stream| {
            let mut reader = FrameReader::new(MAX_FOLLOWING_FRAME);
            let mut pieces = pieces.iter().copied().cycle();
            loop {
                match reader.take() {
                    Ok(Some(message)) => {
                        assert!(message.len() <= MAX_FOLLOWING_FRAME);
                        continue;
                    }
                    Ok(None) => {}
                    Err(_) => break,
                }
                if stream.is_empty() {
                    break;
                }
                let Ok(buffer) = reader.buffer() else { break };
                let offered = buffer.len();
                let count = pieces.next().unwrap().clamp(1, offered).min(stream.len());
                buffer[..count].copy_from_slice(&stream[..count]);
                reader.filled(offered, count);
                stream = &stream[count..];
            }
        });
    });
}

#[test]
fn answers_of_a_policy_service_decide_only_what_can_be_done() {
    let _alone = alone();
    proptest!(config(), |(bytes in hostile(answers()))| {
        let Ok(answer) = within_bounds(&bytes, read_answer) else {
            return Ok(());
        };
        let one_line = |text: &str| text.len() <= TEXT_LIMIT && !text.chars().any(char::is_control);
        match answer {
            Answer::Verdict { verdict: Ok(verdict), .. } => {
                prop_assert!(one_line(&verdict.rule));
                for (name, value) in &verdict.terms.environment.set {
                    prop_assert!(!name.is_empty() && !name.as_encoded_bytes().contains(&b'='));
                    prop_assert!(!has_nul(name) && !has_nul(value));
                }
                match verdict.decision {
                    EscalationDecision::Escalate(EscalationExecution::Permissions(profile)) => {
                        for path in profile.readable.iter().chain(&profile.writable) {
                            prop_assert!(path.is_absolute() && !has_nul(path.as_os_str()));
                        }
                    }
                    EscalationDecision::Deny { reason: Some(reason) } => {
                        prop_assert!(!reason.is_empty() && one_line(&reason));
                    }
                    _ => {}
                }
            }
            Answer::Pending { message, .. } => prop_assert!(one_line(&message)),
            Answer::Terminated { reason } => prop_assert!(one_line(&reason)),
            Answer::VerdictsForgotten { policy_revision } => prop_assert!(one_line(&policy_revision)),
            _ => {}
        }
    });
}

#[test]
fn valid_messages_are_read() {
    // Else the tests above would look at nothing but errors.
    let _alone = alone();
    let messages = local_messages();
    let decoded = messages
        .iter()
        .filter(|message| EscalateRequest::decode(message).is_ok());
    assert_eq!(decoded.count(), 2);
    for answer in answers() {
        match read_answer(&answer) {
            Ok(Answer::Verdict { verdict, .. }) => drop(verdict.unwrap()),
            Ok(_) => {}
            Err(error) => panic!("{error}"),
        }
    }
}
