//! Whatever either side says, the other reads as it was meant, however the bytes arrive.

use std::ffi::OsString;
use std::fmt::Debug;
use std::os::unix::ffi::OsStringExt;

use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use serde::de::DeserializeOwned;

use super::*;

/// One message of either side.
#[derive(Debug, Clone)]
enum Message {
    Request(Vec<Vec<u8>>, Vec<Vec<u8>>, bool),
    Wait(WaitNotice),
    Response(EscalateResponse),
    Super(Box<SuperExecMessage>),
    Forward(Forward),
    Notice(Notice),
    Result(Box<SuperExecResult>),
}

impl Message {
    fn encoded(&self) -> Vec<u8> {
        let frame = match self {
            Self::Request(argv, env, notices) => encode(&RequestFields {
                file: argv.first().map_or(b"x", Vec::as_slice),
                argv: argv.iter().map(Vec::as_slice).collect(),
                workdir: b"/",
                env: env.iter().map(Vec::as_slice).collect(),
                notices: *notices,
            }),
            Self::Wait(message) => encode(message),
            Self::Response(message) => encode(message),
            Self::Super(message) => encode(message),
            Self::Forward(message) => encode(message),
            Self::Notice(message) => encode(message),
            Self::Result(message) => encode(message),
        };
        frame.expect("a frame")
    }

    /// Fails where bytes are read as something else.
    fn is_read_from(&self, json: &[u8]) {
        fn same<T: DeserializeOwned + PartialEq + Debug>(json: &[u8], message: &T) {
            assert_eq!(&decode::<T>("message", json).expect("it is read"), message);
        }
        match self {
            Self::Request(argv, env, notices) => {
                let request = EscalateRequest::decode(json).expect("it is read");
                let bytes = |strings: Vec<OsString>| -> Vec<_> {
                    strings.into_iter().map(OsString::into_vec).collect()
                };
                assert_eq!(&bytes(request.argv), argv);
                assert_eq!(&bytes(request.env.0), env);
                assert_eq!(request.notices, *notices);
            }
            Self::Wait(message) => same(json, message),
            Self::Response(message) => same(json, message),
            Self::Super(message) => same(json, &**message),
            Self::Forward(message) => same(json, message),
            Self::Notice(message) => same(json, message),
            Self::Result(message) => same(json, &**message),
        }
    }
}

fn strings() -> impl Strategy<Value = Vec<Vec<u8>>> {
    vec(vec(1_u8.., 1..12), 0..4)
}

fn context() -> impl Strategy<Value = CommandContext> {
    let inherited = (
        any::<Option<u32>>(),
        any::<Option<i32>>(),
        vec(any::<(u32, u64, u64)>(), 0..3),
        vec(any::<i32>(), 0..3),
        vec(any::<i32>(), 0..3),
        vec(any::<u64>(), 0..3),
    );
    let numbers = (
        any::<Option<i32>>(),
        any::<Option<i32>>(),
        any::<Option<u64>>(),
        any::<Option<i32>>(),
        any::<Option<u32>>(),
        any::<Option<u32>>(),
    );
    let whether = any::<(bool, bool, bool, bool)>();
    (inherited, numbers, whether).prop_map(|(inherited, numbers, whether)| CommandContext {
        umask: inherited.0,
        nice: inherited.1,
        limits: inherited.2,
        ignored_signals: inherited.3,
        blocked_signals: inherited.4,
        cpus: inherited.5,
        scheduler: numbers.0,
        io_priority: numbers.1,
        timer_slack: numbers.2,
        oom_score_adj: numbers.3,
        core_dump_filter: numbers.4,
        personality: numbers.5,
        workdir_follows: whether.0,
        notices: whether.1,
        no_new_privileges: whether.2,
        refusals: whether.3,
    })
}

fn result() -> impl Strategy<Value = SuperExecResult> {
    let refusal = (any::<i32>(), any::<(bool, bool)>(), vec(any::<u8>(), 0..40)).prop_map(
        |(errno, (is_directory, is_executable), beginning)| Refusal {
            errno,
            is_directory,
            is_executable,
            ..Refusal::of_contents(Some(&beginning))
        },
    );
    let (exit_code, signal) = (any::<i32>(), any::<Option<i32>>());
    let parts = (
        exit_code,
        signal,
        any::<bool>(),
        option::of(".{0,9}"),
        option::of(refusal),
    );
    parts.prop_map(
        |(exit_code, signal, core_dumped, failure, refusal)| SuperExecResult {
            exit_code,
            signal,
            core_dumped,
            failure,
            refusal,
        },
    )
}

fn message() -> impl Strategy<Value = Message> {
    let action = prop_oneof![
        Just(Action::Run),
        Just(Action::Escalate),
        option::of(".{0,9}").prop_map(|reason| Action::Deny { reason }),
    ];
    prop_oneof![
        (strings(), strings(), any::<bool>())
            .prop_map(|(argv, env, notices)| Message::Request(argv, env, notices)),
        ".{0,9}".prop_map(|waiting| Message::Wait(WaitNotice { waiting })),
        (action, any::<Option<bool>>())
            .prop_map(|(action, notices)| Message::Response(EscalateResponse { action, notices })),
        (vec(any::<i32>(), 0..5), option::of(context()))
            .prop_map(|(fds, context)| Message::Super(SuperExecMessage { fds, context }.into())),
        any::<(Option<i32>, Option<bool>, Option<bool>)>().prop_map(
            |(signal, from_terminal, workdir)| Message::Forward(Forward {
                signal,
                from_terminal,
                workdir,
            })
        ),
        any::<(i32, Option<u64>)>()
            .prop_map(|(stopped, at)| Message::Notice(Notice { stopped, at })),
        result().prop_map(|result| Message::Result(result.into())),
    ]
}

proptest! {
    #[test]
    fn messages_of_any_kind_arrive_as_they_were_meant_in_any_pieces(
        messages in vec(message(), 1..6),
        pieces in vec(1..80_usize, 1..8),
    ) {
        let stream: Vec<_> = messages.iter().flat_map(Message::encoded).collect();
        let mut rest = &stream[..];
        let mut pieces = pieces.into_iter().cycle();
        let mut reader = FrameReader::new(MAX_FOLLOWING_FRAME);
        for message in &messages {
            let json = loop {
                if let Some(json) = reader.take().expect("frames") {
                    break json;
                }
                let buffer = reader.buffer().expect("frames");
                let offered = buffer.len();
                let count = pieces.next().expect("endless").min(offered).min(rest.len());
                prop_assert!(count > 0, "a message is missing");
                buffer[..count].copy_from_slice(&rest[..count]);
                reader.filled(offered, count);
                rest = &rest[count..];
            };
            message.is_read_from(&json);
        }
        prop_assert!(rest.is_empty() && reader.is_empty(), "something is left");
    }
}
