//! What the record costs, and how soon it answers.
//!
//! - `verdicts`: how long a verdict takes while 5,000 events a second come in, with a store and without one, in turn:
//!   the ratio of both is what storing adds. Without one the service decodes, judges and drops the same events of the same
//!   generator, which takes processor time from it in both. How long a verdict takes while next to nothing comes in says
//!   what the load does by itself. Ends when all is acknowledged. Processor time is told as well, because other
//!   work on the machine doesn't change it much.
//! - `queries`: how long a page of 100 takes in a store of 10 million events, by different filters.
//!
//! `cargo bench --bench event_store -- [verdicts|queries] [EVENTS]`
#![allow(
    clippy::expect_used,
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    clippy::cast_sign_loss
)]

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use execgate::pb::audit::v1::audit_service_client::AuditServiceClient;
use execgate::pb::audit::v1::{ExecFilter, ListRequest, Outcome};
use execgate::pb::v1;
use execgate::pb::v1::policy_service_client::PolicyServiceClient;
use execgate::pb::v1::session_request::Event;
use execgate::pb::v1::session_response::Answer;
use execgate::policyd::store::Store;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Streaming;
use tonic::transport::{Channel, Endpoint};

/// Each exec is three events.
const EVENTS_PER_SECOND: u64 = 5_001;
const SESSIONS: usize = 8;
/// Of one look at a service; and of the one at a service that has nothing else to do. Short, and many, because what
/// else the machine does changes.
const SECONDS: u64 = 2;
const QUIET_SECONDS: u64 = 1;
const QUIET_EVENTS_PER_SECOND: u64 = 300;
const ROUNDS: usize = 9;

fn main() {
    let arguments: Vec<_> = std::env::args_os()
        .skip(1)
        .filter(|argument| argument != "--bench")
        .map(|argument| argument.into_string().expect("text"))
        .collect();
    let mode = arguments.first().map(String::as_str);
    let events = arguments
        .get(1)
        .map_or(10_000_000, |n| n.parse().expect("a number"));
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap();
    if mode != Some("queries") {
        runtime.block_on(verdicts());
    }
    if mode != Some("verdicts") {
        runtime.block_on(queries(events));
    }
}

struct Policyd {
    child: Child,
    address: String,
}

impl Drop for Policyd {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Policyd {
    fn start(directory: &Path, arguments: &[&str]) -> Self {
        std::fs::write(
            directory.join("rules"),
            "prefix_rule([\"git\"], name = \"git\")",
        )
        .unwrap();
        let mut child = Command::new(env!("CARGO_BIN_EXE_execgate-policyd"))
            .args(["--listen", "127.0.0.1:0", "--log", "error", "--rules"])
            .arg(directory.join("rules"))
            .args(arguments)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap())
            .read_line(&mut line)
            .unwrap();
        let address = line
            .trim_end()
            .strip_prefix("listening on ")
            .expect("an address");
        Self {
            address: address.to_owned(),
            child,
        }
    }

    async fn channel(&self) -> Channel {
        let endpoint = Endpoint::from_shared(format!("http://{}", self.address)).unwrap();
        endpoint.connect().await.unwrap()
    }
}

struct Gate {
    events: mpsc::Sender<v1::SessionRequest>,
    answers: Streaming<v1::SessionResponse>,
    sequence: u64,
    acknowledged: u64,
}

impl Gate {
    async fn start(channel: Channel, session: u128) -> Self {
        let (events, stream) = mpsc::channel(1_024);
        let mut client = PolicyServiceClient::new(channel);
        let answers = client
            .session(ReceiverStream::new(stream))
            .await
            .unwrap()
            .into_inner();
        let mut gate = Self {
            events,
            answers,
            sequence: 0,
            acknowledged: 0,
        };
        gate.tell(Event::SessionStarted(v1::SessionStarted {
            session_id: format!("{session:032x}"),
            ..v1::SessionStarted::default()
        }))
        .await;
        gate
    }

    async fn tell(&mut self, event: Event) {
        self.sequence += 1;
        let request = v1::SessionRequest {
            sequence: self.sequence,
            event_time: Some(std::time::SystemTime::now().into()),
            event: Some(event),
        };
        self.events.send(request).await.unwrap();
    }

    async fn exec(&mut self, exec_id: u64) -> Duration {
        let words = [
            "git",
            "commit",
            "-m",
            "a message of some length",
            "--author",
            "somebody",
        ];
        let began = Instant::now();
        self.tell(Event::ExecRequested(v1::ExecRequested {
            exec_id,
            file: b"/usr/bin/git"[..].into(),
            arguments: words.iter().map(|w| w.as_bytes().into()).collect(),
            environment_names: (0..20).map(|n| format!("VARIABLE_{n}").into()).collect(),
            workdir: b"/srv/project"[..].into(),
            ..v1::ExecRequested::default()
        }))
        .await;
        loop {
            match self.answers.message().await.unwrap().unwrap().answer {
                Some(Answer::Verdict(_)) => break,
                Some(Answer::EventsAcknowledged(events)) => {
                    self.acknowledged = events.through_sequence;
                }
                _ => {}
            }
        }
        let took = began.elapsed();
        self.tell(Event::ExecDecided(v1::ExecDecided {
            exec_id,
            action: v1::Action::Run.into(),
            code: v1::DecisionCode::Verdict.into(),
            rule: "git".to_owned(),
            ..v1::ExecDecided::default()
        }))
        .await;
        self.tell(Event::ExecFinished(v1::ExecFinished {
            exec_id,
            status: Some(v1::exec_finished::Status::ExitCode(0)),
            ..v1::ExecFinished::default()
        }))
        .await;
        took
    }
}

/// What a service was like under a load.
#[derive(Default)]
struct Look {
    /// Latencies of verdicts, sorted.
    times: Vec<Duration>,
    /// Until all was acknowledged, at most.
    rest: Duration,
    events: u64,
    seconds: u64,
    /// Processor time of the service, of its thread that writes the store, and of the generator.
    service: Duration,
    writer: Duration,
    generator: Duration,
}

impl Look {
    fn at(&self, share: f64) -> Duration {
        self.times[((self.times.len() - 1) as f64 * share) as usize]
    }

    fn shares(&self) -> [Duration; 3] {
        [0.5, 0.9, 0.99].map(|share| self.at(share))
    }

    fn add(&mut self, other: Self) {
        self.times.extend(other.times);
        self.times.sort_unstable();
        self.rest = self.rest.max(other.rest);
        self.events += other.events;
        self.seconds += other.seconds;
        self.service += other.service;
        self.writer += other.writer;
        self.generator += other.generator;
    }

    fn tell(&self, name: &str) {
        let each = |time: Duration| time.as_secs_f64() * 1e6 / self.events as f64;
        println!(
            "  {name}: {} events/s; median, 90 %, 99 %: {:?}; acknowledged after {:?}; processor time of an event: \
             service {:.1} us, of these its writer {:.1} us; generator {:.1} us",
            self.events / self.seconds,
            self.shares(),
            self.rest,
            each(self.service),
            each(self.writer),
            each(self.generator),
        );
    }
}

/// Processor time of a process, or of its threads of one name.
fn processor_time(process: u32, thread: Option<&str>) -> Duration {
    let of = |path: std::path::PathBuf| {
        let stat = std::fs::read_to_string(path.join("stat")).unwrap_or_default();
        // Behind the name, which may hold anything; in hundredths of a second.
        let fields: Vec<&str> = stat.rsplit(')').next().unwrap().split(' ').collect();
        let number = |at: usize| fields.get(at).map_or(0, |n| n.parse::<u64>().unwrap_or(0));
        Duration::from_millis(10 * (number(12) + number(13)))
    };
    let process = Path::new("/proc").join(process.to_string());
    let Some(name) = thread else {
        return of(process);
    };
    std::fs::read_dir(process.join("task"))
        .unwrap()
        .map(|task| task.unwrap().path())
        .filter(|task| {
            std::fs::read_to_string(task.join("comm")).is_ok_and(|own| own.trim_end() == name)
        })
        .map(of)
        .sum()
}

/// Has so many events a second come in, for so long.
async fn loaded(policyd: &Policyd, is_stored: bool, events_per_second: u64, seconds: u64) -> Look {
    // A session is told once.
    static STARTED: AtomicU64 = AtomicU64::new(1);
    let used = || {
        [
            processor_time(policyd.child.id(), None),
            processor_time(policyd.child.id(), Some("store")),
            processor_time(std::process::id(), None),
        ]
    };
    let before = used();
    let mut gates = Vec::new();
    for number in 0..SESSIONS {
        let session = STARTED.fetch_add(1, Ordering::Relaxed);
        let mut gate = Gate::start(policyd.channel().await, session.into()).await;
        gates.push(tokio::spawn(async move {
            let mut times = Vec::new();
            let pause = Duration::from_secs_f64(3.0 * SESSIONS as f64 / events_per_second as f64);
            // One after the other, not all at once.
            let first = tokio::time::Instant::now() + pause * number as u32 / SESSIONS as u32;
            let mut turns = tokio::time::interval_at(first, pause);
            turns.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Burst);
            let began = Instant::now();
            let mut exec = 0;
            while began.elapsed() < Duration::from_secs(seconds) {
                turns.tick().await;
                exec += 1;
                times.push(gate.exec(exec).await);
            }
            let sent = Instant::now();
            while is_stored && gate.acknowledged < gate.sequence {
                if let Some(Answer::EventsAcknowledged(events)) =
                    gate.answers.message().await.unwrap().unwrap().answer
                {
                    gate.acknowledged = events.through_sequence;
                }
            }
            (times, sent.elapsed(), gate.sequence)
        }));
    }
    let (mut times, mut rest, mut events) = (Vec::new(), Duration::ZERO, 0);
    for gate in gates {
        let (own, after, sent) = gate.await.unwrap();
        times.extend(own);
        rest = rest.max(after);
        events += sent;
    }
    times.sort_unstable();
    let after = used();
    let [service, writer, generator] = [0, 1, 2].map(|n| after[n].saturating_sub(before[n]));
    Look {
        times,
        rest,
        events,
        seconds,
        service,
        writer,
        generator,
    }
}

async fn verdicts() {
    println!("verdicts, while {EVENTS_PER_SECOND} events/s come by {SESSIONS} sessions:");
    let directory = tempfile::tempdir().unwrap();
    let data = directory.path().join("data");
    let (mut quiet, mut dropped, mut stored) = <(Look, Look, Look)>::default();
    for round in 0..ROUNDS {
        let policyd = Policyd::start(directory.path(), &[]);
        quiet.add(loaded(&policyd, false, QUIET_EVENTS_PER_SECOND, QUIET_SECONDS).await);
        drop(policyd);
        // Each of both is the first as often as the other.
        for is_stored in [round % 2 == 0, round % 2 == 1] {
            let arguments = ["--data", data.to_str().unwrap()];
            let arguments = if is_stored { &arguments[..] } else { &[] };
            let policyd = Policyd::start(directory.path(), arguments);
            let look = loaded(&policyd, is_stored, EVENTS_PER_SECOND, SECONDS).await;
            if is_stored {
                stored.add(look);
            } else {
                dropped.add(look);
            }
        }
    }
    quiet.tell("quiet");
    dropped.tell("dropped");
    stored.tell("stored");
    for (what, one, other) in [
        ("dropped to quiet", &dropped, &quiet),
        ("stored to dropped", &stored, &dropped),
    ] {
        let (one, other) = (one.shares(), other.shares());
        for (n, name) in ["median", "90 %", "99 %"].iter().enumerate() {
            let ratio = one[n].as_secs_f64() / other[n].as_secs_f64();
            println!("ratio, {what}, {name}: {ratio:.2}");
        }
    }
}

/// Fills a store as so many events would, without their chain.
fn fill(directory: &Path, events: u64) {
    Store::open(directory).expect("a store").close();
    let store = rusqlite::Connection::open(directory.join("events.sqlite")).unwrap();
    let execs = events / 3;
    store
        .execute_batch(&format!(
            "PRAGMA synchronous = OFF; PRAGMA cache_size = -1000000;
             BEGIN;
             INSERT INTO sessions (session_id, started_ns, received_ns, calls, labels, gate)
                 WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i < {execs} / 1000)
                 SELECT printf('%032x', i * 7919), i, i, 1,
                     json_object('job', '' || i, 'team', 'team-' || (i % 10)), 'token:gate-' || (i % 20) FROM n;
             INSERT INTO session_labels
                 SELECT session_id, j.key, j.value FROM sessions, json_each(labels) j;
             INSERT INTO session_labels
                 SELECT session_id, 'wave', 'first' FROM sessions ORDER BY rowid LIMIT 40;
             INSERT INTO events
                 WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i < 3 * {execs} - 1)
                 SELECT i + 1, printf('%032x', i / 3000 * 7919), i % 3000 + 2, i * 1000000, i * 1000000,
                     CASE i % 3 WHEN 0 THEN 'exec-requested' WHEN 1 THEN 'exec-decided' ELSE 'exec-finished' END,
                     i / 3 % 1000 + 1, NULL, zeroblob(CASE i % 3 WHEN 0 THEN 400 ELSE 40 END), NULL, zeroblob(32)
                 FROM n;
             INSERT INTO execs (session_id, exec_id, request_sequence, requested_ns, received_ns, program,
                     program_name, command_line, argument_count, workdir, process_id, answers, answered_ns, answer,
                     answer_rule, decided_ns, action, code, reason_code, rule, finished_ns, exit_code, position, gate)
                 WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i < {execs} - 1)
                 SELECT printf('%032x', i / 1000 * 7919), i % 1000 + 1, i % 1000 * 3 + 2, i * 3000000, i * 3000000,
                     CAST('/usr/bin/program-' || (i * 31 % 200) AS BLOB), 'program-' || (i * 31 % 200),
                     '/usr/bin/program-' || (i * 31 % 200) || ' with some arguments of its own', 5, x'2f', 1, 1, i,
                     CASE WHEN i % 100 = 7 THEN 'deny' ELSE 'run' END, 'a rule', i,
                     CASE WHEN i % 100 = 7 THEN 'deny' ELSE 'run' END,
                     CASE WHEN i % 100000 = 7 THEN 'timed-out' ELSE 'verdict' END,
                     CASE WHEN i % 50000 = 3 THEN 'rare' ELSE 'usual' END, 'a rule', i, 0, 3 * i + 1,
                     'token:gate-' || (i / 1000 % 20)
                 FROM n;
             COMMIT;"
        ))
        .expect("a filled store");
}

#[allow(clippy::too_many_lines, reason = "one measurement after the other")]
async fn queries(events: u64) {
    let directory = tempfile::tempdir().unwrap();
    let data = directory.path().join("data");
    let began = Instant::now();
    fill(&data, events);
    let size = std::fs::metadata(data.join("events.sqlite")).unwrap().len() >> 20;
    println!(
        "queries: {events} events, {size} MiB, made in {:?}",
        began.elapsed()
    );
    let tokens = directory.path().join("tokens");
    // SHA-256 of "t".
    let digest = "e3b98a4da31a127d4bde6e43033f66ba274cab0eb7eb1c70ec41402bf6273dd8";
    std::fs::write(&tokens, format!("auditor {digest} auditor\n")).unwrap();
    let arguments = [
        "--data",
        data.to_str().unwrap(),
        "--operators",
        tokens.to_str().unwrap(),
    ];
    let policyd = Policyd::start(directory.path(), &arguments);
    let mut client =
        AuditServiceClient::new(policyd.channel().await).max_decoding_message_size(32 << 20);
    let last = events / 3 / 1000 - 1;
    let label = |key: &str, value: String| [(key.to_owned(), value)].into();
    let all = ExecFilter::default;
    for (name, filter) in [
        ("everything", all()),
        (
            "denied",
            ExecFilter {
                outcome: Outcome::Deny.into(),
                ..all()
            },
        ),
        (
            "a program",
            ExecFilter {
                program: "program-7".to_owned(),
                ..all()
            },
        ),
        (
            "no such program",
            ExecFilter {
                program: "nothing".to_owned(),
                ..all()
            },
        ),
        (
            "a code, rare",
            ExecFilter {
                code: "timed-out".to_owned(),
                ..all()
            },
        ),
        (
            "a code, of all",
            ExecFilter {
                code: "verdict".to_owned(),
                ..all()
            },
        ),
        (
            "a reason, rare",
            ExecFilter {
                code: "rare".to_owned(),
                ..all()
            },
        ),
        (
            "a gate",
            ExecFilter {
                gate: "token:gate-3".to_owned(),
                ..all()
            },
        ),
        (
            "a session",
            ExecFilter {
                session_id_prefix: format!("{:032x}", last / 2 * 7919),
                ..all()
            },
        ),
        (
            "a label of one",
            ExecFilter {
                labels: label("job", (last / 3).to_string()),
                ..all()
            },
        ),
        (
            "a label of many",
            ExecFilter {
                labels: label("team", "team-3".to_owned()),
                ..all()
            },
        ),
        (
            "a label of many and denied",
            ExecFilter {
                labels: label("team", "team-3".to_owned()),
                outcome: Outcome::Deny.into(),
                ..all()
            },
        ),
        (
            "a label of long ago",
            ExecFilter {
                labels: label("wave", "first".to_owned()),
                ..all()
            },
        ),
        (
            "a label of long ago and a gate",
            ExecFilter {
                labels: label("wave", "first".to_owned()),
                gate: "token:gate-3".to_owned(),
                ..all()
            },
        ),
        (
            "a gate and a label of others",
            ExecFilter {
                labels: label("team", "team-4".to_owned()),
                gate: "token:gate-3".to_owned(),
                ..all()
            },
        ),
        (
            "the latest hundredth, denied",
            ExecFilter {
                since_time: Some(prost_types::Timestamp {
                    seconds: i64::try_from(events / 1_000 / 100 * 99).unwrap(),
                    nanos: 0,
                }),
                outcome: Outcome::Deny.into(),
                ..all()
            },
        ),
        (
            "two that exclude each other",
            ExecFilter {
                program: "program-7".to_owned(),
                outcome: Outcome::Escalate.into(),
                ..all()
            },
        ),
        (
            "a program, never denied",
            ExecFilter {
                program: "program-3".to_owned(),
                outcome: Outcome::Deny.into(),
                ..all()
            },
        ),
    ] {
        let (mut first, mut whole, mut pages, mut found) = (Duration::ZERO, Duration::ZERO, 0, 0);
        let mut token = String::new();
        // Until a page is full: one may end early.
        loop {
            let began = Instant::now();
            let mut request = tonic::Request::new(ListRequest {
                filter: Some(filter.clone()),
                page_token: token,
                ..ListRequest::default()
            });
            request
                .metadata_mut()
                .insert("authorization", "Bearer t".parse().unwrap());
            let page = client.list(request).await.unwrap().into_inner();
            let took = began.elapsed();
            (pages, found, whole) = (pages + 1, found + page.execs.len(), whole + took);
            first = first.max(took);
            token = page.next_page_token;
            if token.is_empty() || found >= 100 {
                break;
            }
        }
        println!("  {name}: {found} execs, {pages} pages, {whole:?}; longest page {first:?}");
    }
}
