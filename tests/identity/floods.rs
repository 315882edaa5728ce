//! Peers that send as much as they can, and read nothing, or never finish what they began: the service's
//! memory stays bounded, and other gates have their verdicts meanwhile.

use std::time::Duration;

use execgate::pb::v1;
use hyper::body::Bytes;
use prost::Message;
use v1::session_request::Event;
use v1::session_response::Answer;

use crate::frames::{Fate, call_of_bytes, made_and_given_up};
use crate::scenario;
use crate::service::{Place, Service, digest};
use crate::stranger::{Call, SESSION, connect, connect_with_window, requested, started};

/// What the service may grow by in a flood, in KiB: what waits for the store, and what is on its way.
const GROWTH_KIB: u64 = 768 << 10;
/// The same in one whose calls read everything, so that nothing of it stays: what one gate's messages may take while they
/// are understood, 128 MiB for the store, and what the allocator keeps.
const GROWTH_OF_READERS_KIB: u64 = 512 << 10;
/// The same where nothing is said that could stay.
const GROWTH_OF_NOTHING_KIB: u64 = 96 << 10;
/// The same where one message comes after the other.
const GROWTH_OF_ONE_KIB: u64 = 288 << 10;

pub(crate) fn session(number: usize) -> String {
    format!("{number:032x}")
}

/// An exec with an argument of so many bytes.
pub(crate) fn long_exec(exec_id: u64, size: usize) -> Event {
    let Event::ExecRequested(mut exec) = requested(exec_id) else {
        panic!("another event");
    };
    exec.arguments = vec![b"true"[..].into(), vec![b'x'; size].into()];
    Event::ExecRequested(exec)
}

/// Another gate has a verdict.
pub(crate) async fn serves_others(service: &Service) {
    let channel = connect(&service.address).await;
    let mut modest = Call::open(channel, Some("m")).await.expect("a call");
    modest.tell(1, started(SESSION, None)).await;
    modest.tell(2, requested(1)).await;
    assert_eq!(modest.verdict().await, "gate token:modest");
}

fn assert_bounded(service: &Service, before: u64) {
    assert_grown_below(service, before, GROWTH_KIB);
}

pub(crate) fn assert_grown_below(service: &Service, before: u64, bound_kib: u64) {
    let grown = service.resident_kib().saturating_sub(before);
    assert!(grown < bound_kib, "it grew by {} MiB", grown >> 10);
}

#[tokio::test]
async fn questions_without_end_whose_answers_nobody_reads() {
    /// Answers that may wait in the service for a gate.
    const WAITING: u64 = 64;
    /// Questions of each call that are taken at most: as many answers may be on their way, and questions as well.
    const TAKEN: u64 = 4 * WAITING;
    scenario(async {
        let place = Place::new();
        let tokens = place.tokens(&[("greedy", "g"), ("modest", "m")]);
        let service = place.serve(&[&"--tokens", &tokens]);
        let before = service.resident_kib();
        let mut calls = Vec::new();
        let mut flood = tokio::task::JoinSet::new();
        for connection in 0..4 {
            // A handful of answers.
            let channel = connect_with_window(&service.address, 1 << 10).await;
            for number in 0..4 {
                let call = Call::open(channel.clone(), Some("g"))
                    .await
                    .expect("a call");
                let events = call.events.clone();
                calls.push(call);
                flood.spawn(async move {
                    let mut sent = 0_u64;
                    let session = session(connection * 4 + number + 1);
                    let mut event = started(&session, None);
                    // At some time nothing more is taken.
                    loop {
                        sent += 1;
                        let request = v1::SessionRequest {
                            sequence: sent,
                            event_time: None,
                            event: Some(event),
                        };
                        let sending = events.send(request);
                        match tokio::time::timeout(Duration::from_secs(3), sending).await {
                            Ok(Ok(())) => event = long_exec(sent, 256 << 10),
                            Ok(Err(_)) | Err(_) => return sent,
                        }
                        if sent == 2 * TAKEN {
                            return sent;
                        }
                    }
                });
            }
        }
        let mut sent = 0;
        while let Some(count) = flood.join_next().await {
            let count = count.expect("no panic");
            assert!(count <= TAKEN, "{count} questions of one call were taken");
            sent += count;
        }
        assert!(sent > 8 * WAITING, "no flood: {sent} messages");
        assert_bounded(&service, before);
        serves_others(&service).await;
        drop(calls);
        serves_others(&service).await;
    })
    .await;
}

#[tokio::test]
async fn messages_that_are_never_finished() {
    /// Almost as large as a message may be.
    const SIZE: usize = 15 << 20;
    scenario(async {
        let place = Place::new();
        let tokens = place.tokens(&[("greedy", "g"), ("modest", "m")]);
        let service = place.serve(&[&"--tokens", &tokens]);
        let before = service.resident_kib();
        let piece = Bytes::from(vec![b'x'; 1 << 20]);
        let mut calls = Vec::new();
        for connection in 0..3 {
            let channel = connect(&service.address).await;
            for number in 0..24 {
                let call = call_of_bytes(&channel).await;
                let start = v1::SessionRequest {
                    sequence: 1,
                    event_time: None,
                    event: Some(started(&session(connection * 24 + number + 1), None)),
                };
                let start = start.encode_to_vec();
                let prefix = |length: usize| {
                    let length = u32::try_from(length).expect("small").to_be_bytes();
                    Bytes::from([&[0], &length[..]].concat())
                };
                let mut pieces = vec![prefix(start.len()), start.into(), prefix(SIZE)];
                pieces.extend(std::iter::repeat_n(piece.clone(), SIZE >> 20));
                // All but the last byte.
                let last = pieces.pop().expect("a piece");
                pieces.push(last.slice(1..));
                for piece in pieces {
                    let sending = call.send(piece);
                    // Nothing more is taken, or the call is over.
                    let sent = tokio::time::timeout(Duration::from_millis(100), sending).await;
                    if !matches!(sent, Ok(Ok(()))) {
                        break;
                    }
                }
                calls.push(call);
            }
            assert_bounded(&service, before);
        }
        assert_bounded(&service, before);
        serves_others(&service).await;
        drop(calls);
        serves_others(&service).await;
    })
    .await;
}

#[tokio::test]
async fn calls_that_are_opened_and_given_up_at_once() {
    scenario(async {
        let place = Place::new();
        let tokens = place.tokens(&[("greedy", "g"), ("modest", "m")]);
        let service = place.serve(&[&"--tokens", &tokens]);
        let before = service.resident_kib();
        let mut flood = tokio::task::JoinSet::new();
        for _ in 0..4 {
            let address = service.address.clone();
            flood.spawn(async move {
                let channel = connect(&address).await;
                for _ in 0..1_000 {
                    let call = Call::open(channel.clone(), Some("g"));
                    // Most are given up before they are answered.
                    let _ = tokio::time::timeout(Duration::from_micros(200), call).await;
                }
                // And these as soon as they are: in all more than a gate may have, so that each has to give its place
                // back. The first connection may be over.
                let channel = connect(&address).await;
                let mut answered = 0;
                while answered < 550 {
                    match Call::open(channel.clone(), Some("g")).await {
                        Ok(_call) => answered += 1,
                        // Those before may not have been seen to yet.
                        Err(status) => {
                            let code = status.code();
                            assert_eq!(code, tonic::Code::ResourceExhausted, "{status}");
                        }
                    }
                }
            });
        }
        serves_others(&service).await;
        while let Some(done) = flood.join_next().await {
            done.expect("no panic");
        }
        assert_grown_below(&service, before, GROWTH_OF_NOTHING_KIB);
        serves_others(&service).await;
        // So many at once that nobody could look at one before the next end their connection; a few don't.
        let fate = made_and_given_up(&service.address, 48).await;
        assert_eq!(fate, Fate::Lives);
        let fate = made_and_given_up(&service.address, 1_000).await;
        assert_eq!(fate, Fate::Ended);
        serves_others(&service).await;
    })
    .await;
}

#[tokio::test]
async fn more_execs_a_second_than_a_gate_may_ask_about() {
    const EXECS: u64 = 300;
    scenario(async {
        let place = Place::new();
        let tokens = place.tokens(&[("greedy", "g"), ("modest", "m")]);
        let service = place.serve(&[&"--tokens", &tokens, &"--execs-per-second", &"20"]);
        let channel = connect(&service.address).await;
        let began = std::time::Instant::now();
        let (mut decided, mut limited) = (0, 0);
        // One call after another has no more than one call.
        for number in 1..=3 {
            let mut call = Call::open(channel.clone(), Some("g"))
                .await
                .expect("a call");
            let events = call.events.clone();
            let session = session(number);
            tokio::spawn(async move {
                let questions = (1..=EXECS).map(requested);
                let stream = std::iter::once(started(&session, None)).chain(questions);
                for (sequence, event) in (1..).zip(stream) {
                    let request = v1::SessionRequest {
                        sequence,
                        event_time: None,
                        event: Some(event),
                    };
                    events.send(request).await.expect("it is taken");
                }
            });
            for _ in 0..EXECS {
                match call.verdict().await.as_str() {
                    "gate token:greedy" => decided += 1,
                    "more than 20 commands a second ask the policy service; try again in a moment" => {
                        limited += 1;
                    }
                    other => panic!("{other:?}"),
                }
            }
        }
        let most = 20 * (began.elapsed().as_secs() + 2);
        assert!((20..=most).contains(&decided), "{decided}, {most} at most");
        assert_eq!(decided + limited, 3 * EXECS);
        assert!(limited > 0);
        service.wait_for_log("asks about more than 20 a second").await;
        serves_others(&service).await;
        // In a moment it may again.
        let mut call = Call::open(channel, Some("g")).await.expect("a call");
        call.tell(1, started(&session(9), None)).await;
        let mut exec_id = 0;
        loop {
            exec_id += 1;
            call.tell(exec_id + 1, requested(exec_id)).await;
            if call.verdict().await == "gate token:greedy" {
                break;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await;
}

/// Sends what there is as fast as it goes, and reads all answers.
async fn pour(mut call: Call, events: impl Iterator<Item = Event> + Send + 'static) -> Call {
    let sender = call.events.clone();
    let sending = tokio::spawn(async move {
        for (sequence, event) in (1..).zip(events) {
            let request = v1::SessionRequest {
                sequence,
                event_time: None,
                event: Some(event),
            };
            if sender.send(request).await.is_err() {
                break;
            }
        }
    });
    while !sending.is_finished() {
        // An answer, or a moment without one.
        let _ = tokio::time::timeout(Duration::from_millis(50), call.next()).await;
    }
    call
}

#[tokio::test]
async fn events_as_fast_as_they_go() {
    /// Of each of some calls.
    const EVENTS: u64 = 20_000;
    scenario(async {
        let place = Place::new();
        let tokens = place.tokens(&[("greedy", "g"), ("modest", "m")]);
        let service = place.serve(&[&"--tokens", &tokens]);
        let before = service.resident_kib();
        let channel = connect(&service.address).await;
        let mut flood = tokio::task::JoinSet::new();
        for number in 1..=4 {
            let call = Call::open(channel.clone(), Some("g"))
                .await
                .expect("a call");
            let finished = |exec_id| {
                Event::ExecFinished(v1::ExecFinished {
                    exec_id,
                    status: Some(v1::exec_finished::Status::ExitCode(0)),
                    ..v1::ExecFinished::default()
                })
            };
            let events = std::iter::once(started(&session(number), None));
            flood.spawn(pour(call, events.chain((1..=EVENTS).map(finished))));
        }
        // Meanwhile as well as afterwards.
        for _ in 0..5 {
            serves_others(&service).await;
        }
        let mut ends = Vec::new();
        while let Some(call) = flood.join_next().await {
            let (_, code) = call.expect("no panic").finish().await;
            ends.push(code);
        }
        assert_grown_below(&service, before, GROWTH_OF_NOTHING_KIB);
        serves_others(&service).await;
        // Whoever is told that all is well has all of it on record; the others are told to come again.
        let well = ends.iter().filter(|code| **code == tonic::Code::Ok).count();
        let known = [tonic::Code::Ok, tonic::Code::Unavailable];
        assert!(ends.iter().all(|code| known.contains(code)), "{ends:?}");
        let whole = place.count(&format!(
            "SELECT count(*) FROM (SELECT 1 FROM events WHERE gate = 'token:greedy'
                 GROUP BY session_id HAVING count(*) = 1 + {EVENTS})"
        ));
        assert!(
            whole >= i64::try_from(well).expect("small"),
            "{ends:?}, {whole} whole"
        );
    })
    .await;
}

#[tokio::test]
async fn strings_of_megabytes_one_after_another() {
    scenario(async {
        let place = Place::new();
        let tokens = place.tokens(&[("greedy", "g"), ("modest", "m")]);
        let service = place.serve(&[&"--tokens", &tokens]);
        let before = service.resident_kib();
        let mut flood = tokio::task::JoinSet::new();
        for number in 0..12 {
            let address = service.address.clone();
            flood.spawn(async move {
                let channel = connect(&address).await;
                if number % 2 == 0 {
                    // Arguments that a kernel would take.
                    let call = Call::open(channel, Some("g")).await.expect("a call");
                    let events = std::iter::once(started(&session(number + 1), None));
                    let long = (1..=10).map(|exec_id| long_exec(exec_id, 4 << 20));
                    drop(pour(call, events.chain(long)).await);
                    return;
                }
                // A sentence that nobody says, again and again.
                for _ in 0..10 {
                    let mut call = Call::open(channel.clone(), Some("g"))
                        .await
                        .expect("a call");
                    call.tell(1, started(&session(number + 1), None)).await;
                    let decided = v1::ExecDecided {
                        exec_id: 1,
                        reason: "x".repeat(4 << 20),
                        ..v1::ExecDecided::default()
                    };
                    call.tell(2, Event::ExecDecided(decided)).await;
                    let status = call.end().await;
                    assert_eq!(status.code(), tonic::Code::InvalidArgument, "{status}");
                }
            });
        }
        serves_others(&service).await;
        while let Some(done) = flood.join_next().await {
            done.expect("no panic");
        }
        assert_bounded(&service, before);
        service.wait_for_log("refused a call").await;
        serves_others(&service).await;
        assert_eq!(
            place.count(
                "SELECT count(*) FROM events WHERE kind = 'exec-decided'
                     AND length(payload) > 1000000"
            ),
            0
        );
    })
    .await;
}

/// The variables that the service is shown, each as short as it can be: in memory they take far more than on the way.
fn empty_variables(exec_id: u64, count: usize) -> Event {
    let Event::ExecRequested(mut exec) = requested(exec_id) else {
        panic!("another event");
    };
    exec.environment_variables = vec![v1::EnvironmentVariable::default(); count];
    Event::ExecRequested(exec)
}

/// A question of which most is the value of a variable, almost as much as goes into a message.
fn long_variable(exec_id: u64) -> Event {
    let Event::ExecRequested(mut exec) = requested(exec_id) else {
        panic!("another event");
    };
    exec.arguments = vec![b"true"[..].into()];
    exec.environment_variables = vec![v1::EnvironmentVariable {
        name: b"LONG"[..].into(),
        value: vec![b'x'; 15 << 20].into(),
        ..v1::EnvironmentVariable::default()
    }];
    Event::ExecRequested(exec)
}

/// Each call asks once about something huge, is answered, and stays.
#[tokio::test]
async fn calls_that_had_a_huge_question_once_keep_nothing_of_it() {
    scenario(Box::pin(async {
        let place = Place::new();
        let tokens = place.tokens(&[("greedy", "g"), ("modest", "m")]);
        let service = place.serve(&[&"--tokens", &tokens]);
        let before = service.resident_kib();
        let mut calls = Vec::new();
        for number in 0..24 {
            let channel = connect(&service.address).await;
            let mut call = Call::open(channel, Some("g")).await.expect("a call");
            call.tell(1, started(&session(number + 1), None)).await;
            call.tell(2, long_variable(1)).await;
            assert_eq!(call.verdict().await, "gate token:greedy");
            calls.push(call);
            assert_grown_below(&service, before, GROWTH_OF_ONE_KIB);
        }
        serves_others(&service).await;
        // They are as good as before.
        for call in &mut calls {
            call.tell(3, requested(2)).await;
            assert_eq!(call.verdict().await, "gate token:greedy");
        }
    }))
    .await;
}

/// What waits for a person is what that person is shown.
#[tokio::test]
async fn huge_questions_that_would_wait_for_a_person() {
    scenario(Box::pin(async {
        let place = Place::new();
        let rules = "prefix_rule([\"true\"], \"ask\", within = \"10m\")\n";
        std::fs::write(place.path("x.rules"), rules).expect("a file");
        let tokens = place.tokens(&[("greedy", "g")]);
        let operators = place.path("operators");
        std::fs::write(&operators, format!("ada {}\n", digest("op"))).expect("a file");
        let service = place.serve(&[&"--tokens", &tokens, &"--operators", &operators]);
        let before = service.resident_kib();
        let channel = connect(&service.address).await;
        let mut call = Call::open(channel, Some("g")).await.expect("a call");
        call.tell(1, started(&session(1), None)).await;
        for exec_id in 1..=24 {
            call.tell(exec_id + 1, long_variable(exec_id)).await;
            loop {
                match call.next().await.expect("open").expect("open") {
                    // Rules that come later would be asked about all of it.
                    Answer::Verdict(verdict) => {
                        assert_eq!(verdict.exec_id, exec_id);
                        assert_eq!(verdict.reason_code, "approval.too_long");
                        break;
                    }
                    Answer::VerdictPending(pending) => panic!("{pending:?}"),
                    _ => {}
                }
            }
            assert_grown_below(&service, before, GROWTH_OF_ONE_KIB);
        }
    }))
    .await;
}

/// Messages of which most is how many things they name.
#[tokio::test]
async fn questions_that_are_larger_when_they_are_understood() {
    scenario(Box::pin(async {
        let place = Place::new();
        let tokens = place.tokens(&[("greedy", "g"), ("modest", "m")]);
        let service = place.serve(&[&"--tokens", &tokens]);
        let before = service.resident_kib();
        // As many as a command can have are answered.
        let channel = connect(&service.address).await;
        let mut call = Call::open(channel, Some("g")).await.expect("a call");
        call.tell(1, started(&session(99), None)).await;
        call.tell(2, empty_variables(1, 1_000_000)).await;
        assert_eq!(call.verdict().await, "gate token:greedy");
        drop(call);
        // More aren't, however many come at once: as many as go into one message, each of two bytes.
        let variables = [0x5a, 0].repeat(7 << 20);
        let mut request = vec![0x22];
        prost::encoding::encode_varint(variables.len() as u64, &mut request);
        request.extend(variables);
        let request = Bytes::from(request);
        let mut calls = Vec::new();
        for number in 0..12 {
            let call = call_of_bytes(&connect(&service.address).await).await;
            let start = v1::SessionRequest {
                sequence: 1,
                event_time: None,
                event: Some(started(&session(number + 1), None)),
            };
            let start = start.encode_to_vec();
            let lengths = [start.len(), request.len()];
            let [first, second] = lengths.map(|length| {
                let length = u32::try_from(length).expect("small").to_be_bytes();
                Bytes::from([&[0], &length[..]].concat())
            });
            for piece in [first, start.into(), second, request.clone()] {
                call.send(piece).await.expect("it is taken");
            }
            calls.push(call);
        }
        for call in calls {
            // Until the service has ended it.
            while tokio::time::timeout(Duration::from_millis(5), call.closed())
                .await
                .is_err()
            {
                assert_grown_below(&service, before, GROWTH_OF_READERS_KIB);
            }
        }
        service.wait_for_log("names more than 1048576").await;
        serves_others(&service).await;
    }))
    .await;
}

/// Sessions that say much of themselves, and live.
#[tokio::test]
async fn sessions_whose_commands_are_huge() {
    scenario(Box::pin(async {
        let place = Place::new();
        let tokens = place.tokens(&[("greedy", "g"), ("modest", "m")]);
        let service = place.serve(&[&"--tokens", &tokens]);
        let before = service.resident_kib();
        let huge = async |number: usize| {
            let channel = connect(&service.address).await;
            let mut call = Call::open(channel, Some("g")).await.expect("a call");
            let Event::SessionStarted(mut start) = started(&session(number), None) else {
                panic!("another event");
            };
            start.command = vec![vec![b'x'; 15 << 20].into()];
            call.tell(1, Event::SessionStarted(start)).await;
            match call.next().await {
                Ok(_) => Some(call),
                Err(status) => {
                    assert_eq!(status.code(), tonic::Code::ResourceExhausted, "{status}");
                    None
                }
            }
        };
        let mut calls = Vec::new();
        for number in 1..=24 {
            calls.extend(huge(number).await);
            assert_bounded(&service, before);
        }
        assert!((2..24).contains(&calls.len()), "{} are served", calls.len());
        service.wait_for_log("say more of themselves").await;
        serves_others(&service).await;
        // Whoever goes makes room.
        drop(calls);
        while huge(99).await.is_none() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }))
    .await;
}
