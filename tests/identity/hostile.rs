//! Peers that mean harm: bounded, refused, and told of in the log.

use std::time::{Duration, Instant};

use execgate::pb::v1;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tonic::Code;
use v1::session_request::Event;
use v1::session_response::Answer;

use crate::scenario;
use crate::service::{Place, digest};
use crate::stranger::{Call, SESSION, connect, requested, started};

/// What the service allows one gate.
const SESSIONS_OF_A_GATE: usize = 2_048;

#[tokio::test]
async fn without_a_credential_nothing_of_the_service_answers() {
    use tonic_health::pb::{HealthCheckRequest, health_client::HealthClient};

    scenario(async {
        let place = Place::new();
        let tokens = place.tokens(&[("ci", "t")]);
        let service = place.serve(&[&"--tokens", &tokens]);
        let channel = connect(&service.address).await;
        for token in [None, Some("x"), Some("")] {
            let status = Call::open(channel.clone(), token)
                .await
                .err()
                .expect("refused");
            assert_eq!(status.code(), Code::Unauthenticated, "{status}");
        }
        let health = HealthClient::new(channel.clone())
            .check(HealthCheckRequest::default())
            .await;
        assert_eq!(health.expect_err("refused").code(), Code::Unauthenticated);
        let status =
            tonic_reflection::pb::v1::server_reflection_client::ServerReflectionClient::new(
                channel.clone(),
            )
            .server_reflection_info(tokio_stream::empty())
            .await
            .expect_err("refused");
        assert_eq!(status.code(), Code::Unauthenticated);
        service.wait_for_log("refused a call").await;

        // However often it is tried, the log has a line a second.
        let began = Instant::now();
        for _ in 0..2_000 {
            assert!(Call::open(channel.clone(), Some("guess")).await.is_err());
        }
        let most = usize::try_from(began.elapsed().as_secs()).expect("a number") + 3;
        let lines = service.log().matches("refused a call").count();
        assert!(lines <= most, "{lines} lines, {most} expected at most");
        assert!(!service.log().contains("guess"));
        assert!(Call::open(channel, Some("t")).await.is_ok());
    })
    .await;
}

#[tokio::test]
async fn one_gate_can_not_take_the_place_of_others() {
    scenario(async {
        let place = Place::new();
        let tokens = place.tokens(&[("greedy", "g"), ("modest", "m")]);
        let service = place.serve(&[&"--tokens", &tokens]);
        let channels = [
            connect(&service.address).await,
            connect(&service.address).await,
        ];
        let mut calls = Vec::new();
        let refusal = loop {
            let channel = channels[calls.len() % 2].clone();
            match Call::open(channel, Some("g")).await {
                Ok(call) => calls.push(call),
                Err(status) => break status,
            }
            assert!(calls.len() <= SESSIONS_OF_A_GATE, "there is no bound");
        };
        assert_eq!(refusal.code(), Code::ResourceExhausted, "{refusal}");
        assert_eq!(calls.len(), SESSIONS_OF_A_GATE);
        service
            .wait_for_log("sessions of this gate are connected already")
            .await;

        let channel = connect(&service.address).await;
        let mut modest = Call::open(channel, Some("m")).await.expect("a call");
        modest.tell(1, started(SESSION, None)).await;
        modest.tell(2, requested(1)).await;
        assert_eq!(modest.verdict().await, "gate token:modest");
    })
    .await;
}

#[tokio::test]
async fn names_and_sentences_of_megabytes_are_refused() {
    scenario(async {
        let place = Place::new();
        let service = place.serve(&[]);
        let channel = connect(&service.address).await;
        let huge = || "x".repeat(4 << 20);
        let started_with = |change: &dyn Fn(&mut v1::SessionStarted)| {
            let Event::SessionStarted(mut message) = started(SESSION, None) else {
                panic!("another event");
            };
            change(&mut message);
            Event::SessionStarted(message)
        };
        for (event, field) in [
            (
                started_with(&|message| message.session_id = huge()),
                "session_id",
            ),
            (
                started_with(&|message| message.gate.get_or_insert_default().hostname = huge()),
                "gate.hostname",
            ),
            (
                started_with(&|message| {
                    message.labels.insert("job".to_owned(), huge());
                }),
                "labels",
            ),
        ] {
            let mut call = Call::open(channel.clone(), None).await.expect("a call");
            call.tell(1, event).await;
            let status = call.end().await;
            assert_eq!(status.code(), Code::InvalidArgument, "{status}");
            assert!(status.message().contains(field), "{status}");
        }
        let mut call = Call::open(channel.clone(), None).await.expect("a call");
        call.tell(1, started(SESSION, None)).await;
        let decided = v1::ExecDecided {
            exec_id: 1,
            reason: huge(),
            ..v1::ExecDecided::default()
        };
        call.tell(2, Event::ExecDecided(decided)).await;
        let status = call.end().await;
        assert_eq!(status.code(), Code::InvalidArgument, "{status}");
        service.wait_for_log("refused a call").await;
        assert_eq!(
            place.count("SELECT count(*) FROM events WHERE length(payload) > 1000000"),
            0
        );
        let Event::ExecRequested(mut exec) = requested(1) else {
            panic!("another event");
        };
        exec.executable = Some(v1::ExecutableInfo {
            real_path: huge().into_bytes().into(),
            ..v1::ExecutableInfo::default()
        });
        let mut call = Call::open(channel.clone(), None).await.expect("a call");
        call.tell(1, started(SESSION, None)).await;
        call.tell(2, Event::ExecRequested(exec)).await;
        let status = call.end().await;
        assert_eq!(status.code(), Code::InvalidArgument, "{status}");
        let says = "executable.real_path is longer than any";
        assert!(status.message().contains(says), "{status}");
        // An argument of that size is one that the kernel takes.
        let mut call = Call::open(channel, None).await.expect("a call");
        call.tell(0, started(SESSION, Some(2))).await;
        let Event::ExecRequested(mut exec) = requested(1) else {
            panic!("another event");
        };
        exec.arguments = vec![b"true"[..].into(), huge().into_bytes().into()];
        call.tell(2, Event::ExecRequested(exec)).await;
        assert_eq!(call.verdict().await, "gate anonymous");
    })
    .await;
}

#[tokio::test]
async fn connections_that_do_not_begin_are_ended_and_hold_up_nobody() {
    scenario(async {
        let place = Place::new();
        let service = place.serve(&[]);
        let mut idle = Vec::new();
        for _ in 0..300 {
            idle.push(
                TcpStream::connect(&service.address)
                    .await
                    .expect("connected"),
            );
        }
        // Half a preface, and then nothing.
        let mut slow = TcpStream::connect(&service.address)
            .await
            .expect("connected");
        slow.write_all(b"PRI * HT").await.expect("written");
        let mut other = TcpStream::connect(&service.address)
            .await
            .expect("connected");
        other
            .write_all(b"GET / HTTP/1.1\r\n\r\n")
            .await
            .expect("written");

        let channel = connect(&service.address).await;
        let mut call = Call::open(channel, None).await.expect("a call");
        call.tell(1, started(SESSION, None)).await;
        call.tell(2, requested(1)).await;
        assert_eq!(call.verdict().await, "gate anonymous");

        let ended = async {
            let mut buffer = Vec::new();
            // A reset is an end as well.
            for connection in idle.iter_mut().chain([&mut slow, &mut other]) {
                let _ = connection.read_to_end(&mut buffer).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(30), ended)
            .await
            .expect("all are ended");
        service.wait_for_log("to begin").await;
        // The one that has begun goes on.
        call.tell(3, requested(2)).await;
        assert_eq!(call.verdict().await, "gate anonymous");
    })
    .await;
}

#[tokio::test]
async fn connections_are_bounded_by_descriptors_and_a_flood_of_them_passes() {
    scenario(async {
        let place = Place::new();
        let mut command = std::process::Command::new("prlimit");
        command
            .arg("--nofile=128:128")
            .arg(env!("CARGO_BIN_EXE_execgate-policyd"))
            .arg("--rules")
            .arg(place.path("x.rules"))
            .args(["--listen", "127.0.0.1:0"]);
        let service = crate::service::Service::start(&mut command);
        let channel = connect(&service.address).await;
        let mut call = Call::open(channel, None).await.expect("a call");
        call.tell(1, started(SESSION, None)).await;

        let mut flood = Vec::new();
        for _ in 0..400 {
            flood.push(
                TcpStream::connect(&service.address)
                    .await
                    .expect("connected"),
            );
        }
        service.wait_for_log("as many as there may be").await;
        call.tell(2, requested(1)).await;
        assert_eq!(call.verdict().await, "gate anonymous");
        assert!(
            !service.log().contains("Too many open files"),
            "{}",
            service.log()
        );
        drop(flood);
        // Once they are gone there is room.
        loop {
            let mut connection = TcpStream::connect(&service.address)
                .await
                .expect("connected");
            connection
                .write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
                .await
                .expect("written");
            if matches!(connection.read(&mut [0; 9]).await, Ok(1..)) {
                break;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    })
    .await;
}

/// Words without a letter, as any shell makes them: next to no bytes of a message, and 32 each in memory.
#[tokio::test]
async fn what_one_session_asks_a_person_leaves_others_of_its_gate_and_other_gates_room() {
    /// Why it isn't asked about; `None` if somebody is asked.
    async fn ask(call: &mut Call, exec_id: u64) -> Option<String> {
        let Event::ExecRequested(mut exec) = requested(exec_id) else {
            panic!("another event");
        };
        exec.arguments = vec![hyper::body::Bytes::new(); 4_096];
        exec.arguments[0] = b"true"[..].into();
        call.tell(exec_id + 1, Event::ExecRequested(exec)).await;
        loop {
            match call.next().await.expect("an answer").expect("an answer") {
                Answer::VerdictPending(_) => return None,
                Answer::Verdict(verdict) => match verdict.decision {
                    Some(v1::verdict::Decision::Deny(deny)) => return Some(deny.reason),
                    other => panic!("{other:?}"),
                },
                _ => {}
            }
        }
    }
    async fn fill(call: &mut Call) -> String {
        call.tell(1, started(SESSION, None)).await;
        for exec_id in 1..256 {
            if let Some(reason) = ask(call, exec_id).await {
                return reason;
            }
        }
        panic!("nothing but their number bounds them");
    }

    scenario(async {
        let place = Place::new();
        std::fs::write(place.path("x.rules"), "prefix_rule([\"true\"], \"ask\")\n").expect("rules");
        let tokens = place.tokens(&[("greedy", "g"), ("modest", "m")]);
        let operators = place.path("operators");
        std::fs::write(&operators, format!("ada {}\n", digest("op"))).expect("a file");
        let service = place.serve(&[&"--tokens", &tokens, &"--operators", &operators]);
        let channel = connect(&service.address).await;
        let open = async |token| Call::open(channel.clone(), Some(token)).await;
        let mut greedy = open("g").await.expect("a call");
        let reason = fill(&mut greedy).await;
        assert!(
            reason.starts_with("commands of this session of 8 MiB wait"),
            "{reason}"
        );
        for (token, session) in [("g", "1"), ("m", "2")] {
            let mut other = open(token).await.expect("a call");
            other.tell(1, started(&session.repeat(32), None)).await;
            assert_eq!(ask(&mut other, 1).await, None, "{token}");
        }
    })
    .await;
}

#[tokio::test]
async fn headers_of_megabytes_end_the_call_and_not_the_service() {
    scenario(async {
        let place = Place::new();
        // Tokens that the file has: it is the length of what is shown that refuses one.
        let (longest, longer) = ("x".repeat(4_096), "x".repeat(4_097));
        let tokens = place.tokens(&[("ci", &longest), ("ci", &longer)]);
        let service = place.serve(&[&"--tokens", &tokens]);
        let channel = connect(&service.address).await;
        let mut call = Call::open(channel.clone(), Some(&longest))
            .await
            .expect("a call");
        call.tell(1, started(SESSION, None)).await;
        let status = Call::open(channel.clone(), Some(&longer))
            .await
            .err()
            .expect("refused");
        assert_eq!(status.code(), Code::Unauthenticated, "{status}");
        let with_header_of = async |bytes: usize| {
            let more = "x".repeat(bytes);
            let mut call = Call::open_with(channel.clone(), Some(&longest), Some(&more)).await?;
            call.tell(1, started(&SESSION.replace('0', "f"), None))
                .await;
            call.next().await
        };
        assert!(with_header_of(8 << 10).await.is_ok());
        assert!(with_header_of(20 << 10).await.is_err());
        // Of the other calls of this connection nothing was ended.
        call.tell(2, requested(1)).await;
        assert_eq!(call.verdict().await, "gate token:ci");
        // So much ends the connection.
        assert!(with_header_of(1 << 20).await.is_err());
        let channel = connect(&service.address).await;
        assert!(Call::open(channel, Some(&longest)).await.is_ok());
    })
    .await;
}
