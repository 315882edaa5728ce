//! Whatever bytes a peer sends, on the session's socket or on the policy link: reading them ends in a value
//! or an error, in memory that grows with the bytes that came, and what comes out keeps its promises.
//! Bytes are arbitrary, or valid messages with a few bytes changed. A program of its own, and its tests one
//! at a time, because memory is counted for the whole process.

#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

use std::sync::{Mutex, MutexGuard, PoisonError};

use execgate::model::{EscalationDecision, EscalationExecution};
use execgate::pb::{self, Answer, TEXT_LIMIT, v1};
use execgate::wire::{
    self, CommandContext, EscalateRequest, EscalateResponse, Forward, FrameError, FrameReader,
    MAX_FOLLOWING_FRAME, MAX_FRAME, Notice, PREFIX, Refusal, RequestFields, SuperExecMessage,
    SuperExecResult, WaitNotice,
};
use peak_alloc::PeakAlloc;
use proptest::prelude::*;
use prost::Message;
use serde::Serialize;
use serde::de::DeserializeOwned;

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
    within(bytes.len() * PER_BYTE + BESIDES, bytes, read)
}

fn within<T>(allowed: usize, bytes: &[u8], read: impl FnOnce(&[u8]) -> T) -> T {
    let before = ALLOCATED.current_usage();
    ALLOCATED.reset_peak_usage();
    let read = read(bytes);
    let taken = ALLOCATED.peak_usage().saturating_sub(before);
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

/// Strings that an exec, a path or a variable can have, and such as it can't.
fn string() -> impl Strategy<Value = &'static [u8]> {
    let wrong: [&[u8]; 9] = [
        b"", b"\0", b"/a\0b", b"git", b"./x", b"=x", b"A=b", b"\xff", b"/\xff",
    ];
    prop_oneof![
        4 => prop::sample::select(vec![&b"/usr/bin/git"[..], b"/", b"/src"]),
        1 => prop::sample::select(wrong.to_vec()),
    ]
}

fn strings() -> impl Strategy<Value = Vec<&'static [u8]>> {
    prop::collection::vec(string(), 0..3)
}

/// What a service may say in words.
fn text() -> impl Strategy<Value = String> {
    let long = "\u{fc}".repeat(TEXT_LIMIT);
    let texts = ["no", "", "two\nlines", "\x1b[2J\u{9b}2J", "\0", &long];
    prop::sample::select(texts.map(str::to_owned).to_vec())
}

/// Answers with what an exec can't do, as a service without malice might send them; and whether they have any of it.
fn doubtful_answers() -> impl Strategy<Value = (v1::SessionResponse, bool)> {
    use v1::escalate::Execution;
    use v1::session_response::Answer as Pb;
    use v1::verdict::Decision;
    let bytes = |strings: Vec<&'static [u8]>| strings.into_iter().map(Into::into).collect();
    let permissions = (1..3_i32, strings(), strings());
    let permissions = permissions.prop_map(move |(network_access, readable, writable)| {
        let can_be = |path: &&[u8]| path.starts_with(b"/") && !path.contains(&0);
        let is_wrong = !readable.iter().chain(&writable).all(can_be);
        let profile = v1::PermissionProfile {
            network_access,
            readable_paths: bytes(readable),
            writable_paths: bytes(writable),
        };
        (Execution::Permissions(profile), is_wrong)
    });
    let variables = prop::collection::vec((string(), string()), 0..3);
    let escalate = (permissions, variables).prop_map(|((execution, is_wrong), variables)| {
        let can_be = |(name, value): &(&[u8], &[u8])| {
            !name.is_empty()
                && !name.iter().any(|byte| matches!(byte, 0 | b'='))
                && !value.contains(&0)
        };
        let is_wrong = is_wrong || !variables.iter().all(can_be);
        let variables = variables.into_iter().map(|(name, value)| v1::SetVariable {
            name: name.into(),
            value: value.into(),
        });
        let escalate = v1::Escalate {
            execution: Some(execution),
            environment: Some(v1::EnvironmentRules {
                set_variables: variables.collect(),
                ..v1::EnvironmentRules::default()
            }),
            ..v1::Escalate::default()
        };
        (Decision::Escalate(escalate), is_wrong)
    });
    let deny = text().prop_map(|reason| (Decision::Deny(v1::Deny { reason }), false));
    let verdict = (prop_oneof![3 => escalate, 1 => deny], text(), text());
    let verdict = verdict.prop_map(|((decision, is_wrong), rule, reason_code)| {
        let verdict = v1::Verdict {
            exec_id: 7,
            decision: Some(decision),
            rule,
            reason_code,
            ..v1::Verdict::default()
        };
        (Pb::Verdict(verdict), is_wrong)
    });
    let words = text().prop_flat_map(|text| {
        let pending = v1::VerdictPending {
            message: text.clone(),
            ..v1::VerdictPending::default()
        };
        let forget = v1::ForgetVerdicts {
            policy_revision: text.clone(),
        };
        let terminate = v1::TerminateSession { reason: text };
        prop::sample::select(vec![
            Pb::VerdictPending(pending),
            Pb::ForgetVerdicts(forget),
            Pb::TerminateSession(terminate),
        ])
    });
    let words = words.prop_map(|answer| (answer, false));
    prop_oneof![3 => verdict, 1 => words].prop_map(|(answer, is_wrong)| {
        let answer = Some(answer);
        (v1::SessionResponse { answer }, is_wrong)
    })
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
    // Well-formed, of strings that an exec can have, and such as it can't: read as they are, or not at all.
    proptest!(config(), |(file in string(), argv in strings(), workdir in string(), env in strings())| {
        let frame = wire::encode(&RequestFields {
            file,
            argv: argv.clone(),
            workdir,
            env: env.clone(),
            notices: false,
        })
        .unwrap();
        let mut all = [file, workdir].into_iter().chain(argv.clone()).chain(env.clone());
        let can_be = !file.is_empty()
            && workdir.starts_with(b"/")
            && !all.any(|string| string.contains(&0));
        let read = within_bounds(&frame[PREFIX..], EscalateRequest::decode);
        prop_assert_eq!(read.is_ok(), can_be, "{:?}", read);
        if let Ok(request) = read {
            let bytes = |strings: &[std::ffi::OsString]| -> Vec<_> {
                strings.iter().map(|string| string.as_encoded_bytes().to_vec()).collect()
            };
            prop_assert_eq!(request.file.as_encoded_bytes(), file);
            prop_assert_eq!(request.workdir.as_encoded_bytes(), workdir);
            prop_assert_eq!(bytes(&request.argv), argv);
            prop_assert_eq!(bytes(&request.env.0), env);
        }
    });
}

/// Whatever is taken for a message can be said again, and is the same message then.
fn said_again<T>(name: &'static str, bytes: &[u8])
where
    T: Serialize + DeserializeOwned + PartialEq + std::fmt::Debug,
{
    let read = within_bounds(bytes, |bytes| wire::decode::<T>(name, bytes));
    if let Ok(message) = read {
        let frame = wire::encode(&message).unwrap();
        let again = wire::decode::<T>(name, &frame[PREFIX..]).unwrap();
        assert_eq!(again, message, "{}", String::from_utf8_lossy(bytes));
    }
}

#[test]
fn what_follows_a_request_is_a_message_or_an_error() {
    let _alone = alone();
    proptest!(config(), |(bytes in hostile(local_messages()))| {
        said_again::<SuperExecMessage>("SuperExecMessage", &bytes);
        said_again::<Forward>("Forward", &bytes);
        said_again::<EscalateResponse>("EscalateResponse", &bytes);
        said_again::<SuperExecResult>("SuperExecResult", &bytes);
        said_again::<Notice>("Notice", &bytes);
        said_again::<WaitNotice>("WaitNotice", &bytes);
    });
}

/// What a stream has in it: whole messages, and perhaps a length behind them that is too much.
fn frames_in(mut stream: &[u8], longest: usize) -> (Vec<Vec<u8>>, Option<FrameError>) {
    let mut messages = Vec::new();
    while let Some((prefix, rest)) = stream.split_first_chunk::<PREFIX>() {
        let length = u32::from_le_bytes(*prefix) as usize;
        if length > longest {
            return (messages, Some(FrameError::TooLong { length, longest }));
        }
        let Some((message, rest)) = rest.split_at_checked(length) else {
            break;
        };
        messages.push(message.to_vec());
        stream = rest;
    }
    (messages, None)
}

/// The same by a reader that gets the stream in pieces.
fn read_frames(
    mut stream: &[u8],
    longest: usize,
    pieces: &[usize],
) -> (Vec<Vec<u8>>, Option<FrameError>) {
    // However long it is, it comes in some hundreds at most.
    let scale = 1 + stream.len() / 500;
    let mut pieces = pieces.iter().map(|piece| piece * scale).cycle();
    let mut reader = FrameReader::new(longest);
    let mut messages = Vec::new();
    loop {
        match reader.take() {
            Ok(Some(message)) => {
                messages.push(message);
                continue;
            }
            Ok(None) => {}
            Err(error) => return (messages, Some(error)),
        }
        if stream.is_empty() {
            return (messages, None);
        }
        let buffer = match reader.buffer() {
            Ok(buffer) => buffer,
            Err(error) => return (messages, Some(error)),
        };
        let offered = buffer.len();
        let count = pieces.next().unwrap().clamp(1, offered).min(stream.len());
        buffer[..count].copy_from_slice(&stream[..count]);
        reader.filled(offered, count);
        stream = &stream[count..];
    }
}

fn framed(message: &[u8]) -> Vec<u8> {
    let length = u32::try_from(message.len()).unwrap().to_le_bytes();
    [&length[..], message].concat()
}

#[test]
fn frames_are_whole_and_no_longer_than_allowed_or_an_error() {
    let _alone = alone();
    let frames = local_messages().into_iter().map(|message| framed(&message));
    let near = [-1, 0, 1, 5_000].map(|more| MAX_FOLLOWING_FRAME.saturating_add_signed(more));
    let long = prop::sample::select(near.to_vec()).prop_map(|length| framed(&vec![b'x'; length]));
    // Lengths of which little or nothing follows.
    let claims = [1 << 20, MAX_FRAME, MAX_FRAME + 1, u32::MAX as usize];
    let claims = prop::sample::select(claims.map(|claim| u32::try_from(claim).unwrap()).to_vec());
    let claimed = (claims, prop::collection::vec(any::<u8>(), 0..300))
        .prop_map(|(claim, bytes)| [&claim.to_le_bytes()[..], &bytes].concat());
    let stream = prop_oneof![8 => hostile(frames.collect()), 1 => long, 1 => claimed];
    let streams = prop::collection::vec(stream, 1..4).prop_map(|parts| parts.concat());
    let pieces = prop::collection::vec(1..200_usize, 1..5);
    proptest!(config(), |(stream in streams, pieces in pieces)| {
        for longest in [MAX_FOLLOWING_FRAME, MAX_FRAME] {
            // What has come, some times over while a buffer grows; and the first one that a length gets.
            let allowed = 8 * stream.len() + 4 * (64 << 10);
            let read = within(allowed, &stream, |stream| read_frames(stream, longest, &pieces));
            prop_assert_eq!(read, frames_in(&stream, longest));
        }
    });
}

#[test]
fn answers_of_a_policy_service_decide_only_what_can_be_done() {
    let _alone = alone();
    proptest!(config(), |(bytes in hostile(answers()))| {
        if let Ok(answer) = within_bounds(&bytes, read_answer) {
            can_be_done(answer)?;
        }
    });
    proptest!(config(), |((response, is_wrong) in doubtful_answers())| {
        let answer = within_bounds(&response.encode_to_vec(), read_answer).unwrap();
        if let Answer::Verdict { verdict, .. } = &answer {
            prop_assert_eq!(verdict.is_err(), is_wrong, "{:?}", verdict);
        }
        can_be_done(answer)?;
    });
}

fn can_be_done(answer: Answer) -> Result<(), TestCaseError> {
    let one_line = |text: &str| text.len() <= TEXT_LIMIT && !text.chars().any(char::is_control);
    match answer {
        Answer::Verdict {
            verdict: Ok(verdict),
            ..
        } => {
            prop_assert!(one_line(&verdict.rule) && one_line(&verdict.reason_code));
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
                EscalationDecision::Deny {
                    reason: Some(reason),
                } => {
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
    Ok(())
}

/// How many of these can be read as such a message.
fn count<T: DeserializeOwned>(messages: &[Vec<u8>]) -> usize {
    let read = |message: &&Vec<u8>| wire::decode::<T>("", message).is_ok();
    messages.iter().filter(read).count()
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
    assert_eq!(count::<EscalateResponse>(&messages), 2);
    assert_eq!(count::<SuperExecMessage>(&messages), 1);
    assert_eq!(count::<SuperExecResult>(&messages), 1);
    assert_eq!(count::<WaitNotice>(&messages), 1);
    assert_eq!(count::<Notice>(&messages), 1);
    // Whose fields may all be missing; `workdir` means something else in a request.
    assert_eq!(count::<Forward>(&messages), messages.len() - 2);
    for answer in answers() {
        match read_answer(&answer) {
            Ok(Answer::Verdict { verdict, .. }) => drop(verdict.unwrap()),
            Ok(_) => {}
            Err(error) => panic!("{error}"),
        }
    }
}
