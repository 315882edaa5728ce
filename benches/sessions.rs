//! Many sessions on one policy service: what one takes of the service's memory, and how long verdicts take.
//!
//! Gates are processes, each with its connection and its share of the sessions; sessions ask about a
//! command, and tell its decision and its end, as `execgate exec` does. The service is `execgate-policyd` with
//! rules and store. In turn, in one run:
//!
//! - alone: one session is there, and asks a hundred times a second
//! - calm: all are there, and each asks once a second, at a time of its own
//! - flood: all are there, and each asks again as soon as it has its verdict
//!
//! `make bench` builds what it needs and runs it.
#![allow(
    clippy::expect_used,
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::cast_precision_loss,
    unreachable_pub
)]

mod programs;

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use execgate::link::{LinkOptions, PolicyLink};
use execgate::model::{
    DecisionCode, Environment, ExecId, ExecOutcome, InterceptedExec, ProcessIdentity,
    SandboxReport, SessionDescription, SessionEvent, SessionId,
};
use execgate::server::{EscalationPolicy, SessionContext};
use programs::Served;

const GATES: usize = 4;
const SESSIONS: usize = 1_000;
const LASTS: Duration = Duration::from_secs(15);
/// How often the lone session asks.
const ALONE: Duration = Duration::from_millis(10);
/// How often each of many does.
const CALM: Duration = Duration::from_secs(1);

fn main() {
    let arguments: Vec<_> = std::env::args_os().skip(1).collect();
    let text = |at: usize| arguments.get(at).and_then(|argument| argument.to_str());
    match text(0) {
        Some("gate") => tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap()
            .block_on(gate(text(1).unwrap(), text(2).unwrap().parse().unwrap())),
        _ => measure(),
    }
}

fn measure() {
    let scratch = tempfile::tempdir().unwrap();
    let policyd = Served::policyd(scratch.path());
    let process = policyd.0.id();
    let mut gates: Vec<_> = (0..GATES).map(|n| Gate::start(&policyd.1, n)).collect();

    gates[0].open(1);
    let alone = Latencies::of(&mut gates[..1], ALONE);
    let before = resident_kib(process);
    gates[0].open(SESSIONS / GATES - 1);
    for gate in &mut gates[1..] {
        gate.open(SESSIONS / GATES);
    }
    let open = resident_kib(process);
    let calm = Latencies::of(&mut gates, CALM);
    let after_calm = resident_kib(process);
    let flood = Latencies::of(&mut gates, Duration::ZERO);
    let after_flood = resident_kib(process);

    println!("{SESSIONS} sessions of {GATES} gates on one policy service, {LASTS:?} each");
    println!(
        "{:<8}{:>12}{:>10}{:>10}{:>12}{:>12}",
        "way", "verdicts/s", "p50 us", "p99 us", "p50/alone", "p99/alone"
    );
    for (name, way) in [("alone", &alone), ("calm", &calm), ("flood", &flood)] {
        println!(
            "{name:<8}{:>12.0}{:>10}{:>10}{:>12.2}{:>12.2}",
            way.count as f64 / LASTS.as_secs_f64(),
            way.median,
            way.of_hundred,
            way.median as f64 / alone.median as f64,
            way.of_hundred as f64 / alone.of_hundred as f64
        );
    }
    let each = |kib: u64| kib.saturating_sub(before) as f64 / SESSIONS as f64;
    println!(
        "the service's memory: {} MiB with one session, and for each further one {:.1} KiB when it has asked \
         once, {:.1} KiB after the calm, {:.1} KiB after the flood, what waits for the store included",
        before >> 10,
        each(open),
        each(after_calm),
        each(after_flood)
    );
}

fn resident_kib(process: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let number = line.unwrap().split_whitespace().next().unwrap();
    number.parse().unwrap()
}

/// Microseconds from question to verdict.
struct Latencies {
    count: usize,
    median: u64,
    of_hundred: u64,
}

impl Latencies {
    /// Has all sessions of these gates ask at that interval.
    fn of(gates: &mut [Gate], every: Duration) -> Self {
        for gate in &mut *gates {
            gate.tell(&format!("ask {}", every.as_micros()));
        }
        let mut all: Vec<u64> = Vec::new();
        for gate in gates {
            let line = gate.line();
            all.extend(line.split_whitespace().map(|n| n.parse::<u64>().unwrap()));
        }
        all.sort_unstable();
        Self {
            count: all.len(),
            median: all[all.len() / 2],
            of_hundred: all[all.len() * 99 / 100],
        }
    }
}

/// A gate, as a process.
struct Gate(Child, BufReader<ChildStdout>);

impl Gate {
    fn start(url: &str, number: usize) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["gate", url, &number.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        Self(child, stdout)
    }

    fn tell(&mut self, line: &str) {
        writeln!(self.0.stdin.as_mut().unwrap(), "{line}").unwrap();
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.1.read_line(&mut line).unwrap();
        assert!(line.ends_with('\n'), "a gate is gone");
        line
    }

    /// Opens so many more sessions.
    fn open(&mut self, count: usize) {
        self.tell(&format!("open {count}"));
        self.line();
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// In a gate's process: does what standard input says.
async fn gate(url: &str, number: u8) {
    let link = PolicyLink::new(LinkOptions::new(url.parse().unwrap())).unwrap();
    let mut sessions: Vec<Arc<Session>> = Vec::new();
    // Nothing else happens while a line is waited for.
    for line in std::io::stdin().lines() {
        let line = line.unwrap();
        let (what, count) = line.split_once(' ').unwrap();
        let count: u64 = count.parse().unwrap();
        if what == "open" {
            for _ in 0..count {
                let index = u16::try_from(sessions.len()).unwrap();
                let session = Arc::new(Session::new(&link, number, index));
                session.ask().await;
                sessions.push(session);
            }
            println!();
            continue;
        }
        let every = Duration::from_micros(count);
        let until = Instant::now() + LASTS;
        let total = u32::try_from(sessions.len()).unwrap();
        let asking: Vec<_> = (0..total)
            .zip(&sessions)
            .map(|(index, session)| {
                let session = Arc::clone(session);
                tokio::spawn(async move {
                    tokio::time::sleep(every * index / total).await;
                    session.ask_until(until, every).await
                })
            })
            .collect();
        let mut text = String::new();
        for asking in asking {
            for latency in asking.await.unwrap() {
                text.push_str(&latency.as_micros().to_string());
                text.push(' ');
            }
        }
        println!("{text}");
    }
}

struct Session {
    policy: Arc<dyn EscalationPolicy>,
    execs: std::sync::atomic::AtomicU64,
}

impl Session {
    fn new(link: &PolicyLink, gate: u8, index: u16) -> Self {
        let mut id = [gate; 16];
        id[..2].copy_from_slice(&index.to_be_bytes());
        let context = SessionContext::new(SessionDescription {
            id: SessionId(id),
            labels: BTreeMap::from([("job".to_owned(), "42".to_owned())]),
            workdir: "/work".into(),
            command: vec!["bash".into(), "-c".into(), "make".into()],
            sandbox: SandboxReport::none(),
            started_at: SystemTime::now(),
        });
        Self {
            policy: link.for_session(&context).unwrap(),
            execs: 1.into(),
        }
    }

    async fn ask_until(&self, until: Instant, every: Duration) -> Vec<Duration> {
        let mut latencies = Vec::new();
        let mut next = Instant::now();
        while Instant::now() < until {
            latencies.push(self.ask().await);
            next += every;
            tokio::time::sleep_until(next.into()).await;
        }
        latencies
    }

    async fn ask(&self) -> Duration {
        let id = self
            .execs
            .fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let exec = InterceptedExec {
            executable: execgate::model::Executable::default(),
            workdir_protection: None,
            id: ExecId(id),
            file: "/usr/bin/git".into(),
            argv: vec!["git".into(), "status".into(), "--short".into()],
            workdir: "/sandbox/src".into(),
            env: Environment((0..40).map(|n| format!("NAME_{n}=value").into()).collect()),
            process: ProcessIdentity::default(),
            parent: None,
            asked_at: SystemTime::now(),
        };
        let began = Instant::now();
        let verdict = self.policy.decide(&exec).await.unwrap();
        let latency = began.elapsed();
        assert_eq!(verdict.code, DecisionCode::Verdict, "{verdict:?}");
        self.policy.observe(SessionEvent::ExecDecided {
            environment: None,
            decided_in: std::time::Duration::ZERO,
            exec: exec.id,
            verdict,
            waited: latency,
            at: SystemTime::now(),
        });
        self.policy.observe(SessionEvent::ExecFinished {
            writable_directories: Vec::new(),
            exec: exec.id,
            outcome: ExecOutcome::Exited(0),
            elapsed: latency,
            usage: None,
            pid: 1,
            at: SystemTime::now(),
        });
        latency
    }
}
