//! What gating adds to one exec, as ratios measured in one run.
//!
//! Each way runs the same loop of `/bin/true` in the same patched bash, in turn, several times over;
//! the loop times itself, so that starting a session isn't counted. What a way adds is its time less
//! that of the plain loop.
//!
//! - plain: no wrapper
//! - floor: one extra static exec, one local round trip, one bare gRPC echo round trip
//! - local: execgate with a policy in the gate's process
//! - remote: execgate with a trivial policy service over loopback TCP
//! - policyd: execgate with execgate-policyd over loopback TCP, rules and store included
//! - journal: the same, and the gate has a journal
//!
//! `make bench` builds what it needs and runs it.
#![allow(
    clippy::expect_used,
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    unreachable_pub
)]

mod programs;

use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::process::{Command, Stdio};
use std::sync::Arc;

use execgate::model::{EscalationDecision, InterceptedExec, Verdict};
use execgate::pb::v1;
use execgate::pb::v1::policy_service_server::{PolicyService, PolicyServiceServer};
use execgate::server::{
    BoxFuture, EscalateServer, EscalatedExec, EscalationPolicy, ExecutorError, PolicyError,
    PreparedExec, SessionParams, ShellCommand, ShellCommandExecutor, ShellOutput,
};
use execgate::sys::readiness;
use execgate::sys::socket::{self, Kind, Wait};
use programs::{Served, dist};
use tokio::io::Interest;
use tokio_stream::{Stream, StreamExt};
use tokio_util::sync::CancellationToken;

const ROUNDS: usize = 9;
const EXECS: usize = 500;

fn main() {
    let arguments: Vec<_> = std::env::args_os().skip(1).collect();
    match arguments.first().and_then(|mode| mode.to_str()) {
        Some("serve") => runtime(true).block_on(serve()),
        Some("floor") => runtime(false).block_on(floor(
            arguments[1].to_str().unwrap().to_owned(),
            PathBuf::from(&arguments[2]),
        )),
        Some("local") => runtime(false).block_on(local()),
        _ => measure(),
    }
}

/// How to start one way's shell.
type Way<'a> = Box<dyn Fn() -> Command + 'a>;

fn runtime(threads: bool) -> tokio::runtime::Runtime {
    let mut builder = if threads {
        tokio::runtime::Builder::new_multi_thread()
    } else {
        tokio::runtime::Builder::new_current_thread()
    };
    builder.enable_all().build().unwrap()
}

/// The loop, which prints how many microseconds it took.
fn script() -> String {
    format!(
        "/bin/true; b=${{EPOCHREALTIME/[.,]/}}; for i in {{1..{EXECS}}}; do /bin/true; done; \
         echo $(( ${{EPOCHREALTIME/[.,]/}} - b ))"
    )
}

fn shell() -> Command {
    let mut command = Command::new(dist("libexec/execgate/bash"));
    command.args(["-c", &script()]);
    command
}

/// Runs a way once: microseconds for each exec.
fn once(mut command: Command) -> f64 {
    let output = command.stderr(Stdio::inherit()).output().unwrap();
    assert!(
        output.status.success(),
        "{command:?} ended with {}",
        output.status
    );
    let text = String::from_utf8(output.stdout).unwrap();
    let total: f64 = text.trim().parse().unwrap();
    #[allow(clippy::cast_precision_loss, reason = "hundreds")]
    let execs = EXECS as f64;
    total / execs
}

fn measure() {
    let this = std::env::current_exe().unwrap();
    let scratch = tempfile::tempdir().unwrap();
    let floor_wrapper = scratch.path().join("floor");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("benches/floor.c");
    let compiled = Command::new("cc")
        .args(["-O2", "-static", "-o"])
        .arg(&floor_wrapper)
        .arg(source)
        .status();
    assert!(compiled.unwrap().success(), "cc failed");
    let mut serve = Command::new(&this);
    serve.arg("serve");
    let trivial = Served::start(serve);
    let policyd = Served::policyd(scratch.path());
    let journal = scratch.path().join("journal");

    let gated = |url: &str, journal: Option<&Path>| {
        let mut command = Command::new(dist("bin/execgate"));
        command.args(["exec", "--no-login", "--sandbox", "none", "--policy", url]);
        if let Some(journal) = journal {
            command.arg("--journal").arg(journal);
        }
        command.args(["--", &script()]);
        command
    };
    let ways: [(&str, Way<'_>); 6] = [
        ("plain", Box::new(shell)),
        (
            "floor",
            Box::new(|| {
                let mut command = Command::new(&this);
                command.args(["floor", &trivial.1]).arg(&floor_wrapper);
                command
            }),
        ),
        (
            "local",
            Box::new(|| {
                let mut command = Command::new(&this);
                command.arg("local");
                command
            }),
        ),
        ("remote", Box::new(|| gated(&trivial.1, None))),
        ("policyd", Box::new(|| gated(&policyd.1, None))),
        ("journal", Box::new(|| gated(&policyd.1, Some(&journal)))),
    ];
    let mut times = vec![Vec::new(); ways.len()];
    for _ in 0..ROUNDS {
        for ((_, way), times) in ways.iter().zip(&mut times) {
            times.push(once(way()));
        }
    }
    let medians: Vec<f64> = times
        .iter_mut()
        .map(|times| {
            times.sort_by(f64::total_cmp);
            times[times.len() / 2]
        })
        .collect();
    let floor = medians[1] - medians[0];
    println!("one exec of /bin/true, {EXECS} in a row, median of {ROUNDS} rounds");
    println!(
        "{:<10}{:>12}{:>12}{:>16}",
        "way", "us/exec", "added us", "added/floor"
    );
    for ((name, _), median) in ways.iter().zip(&medians) {
        let added = median - medians[0];
        println!(
            "{name:<10}{median:>12.0}{added:>12.0}{:>16.2}",
            added / floor
        );
    }
    let with_journal = medians[5] / medians[4];
    println!("an exec with a journal takes {with_journal:.2} times as long as without");
}

/// A policy service that answers at once.
struct Trivial;

#[tonic::async_trait]
impl PolicyService for Trivial {
    type SessionStream =
        Pin<Box<dyn Stream<Item = Result<v1::SessionResponse, tonic::Status>> + Send>>;

    async fn session(
        &self,
        request: tonic::Request<tonic::Streaming<v1::SessionRequest>>,
    ) -> Result<tonic::Response<Self::SessionStream>, tonic::Status> {
        let answers = request.into_inner().filter_map(|event| {
            let Ok(v1::SessionRequest {
                event: Some(v1::session_request::Event::ExecRequested(asked)),
                ..
            }) = event
            else {
                return None;
            };
            Some(Ok(v1::SessionResponse {
                answer: Some(v1::session_response::Answer::Verdict(v1::Verdict {
                    exec_id: asked.exec_id,
                    decision: Some(v1::verdict::Decision::Run(v1::Run {})),
                    ..Default::default()
                })),
            }))
        });
        Ok(tonic::Response::new(Box::pin(answers)))
    }
}

async fn serve() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    println!("listening on {}", listener.local_addr().unwrap());
    let incoming = tonic::transport::server::TcpIncoming::from(listener).with_nodelay(Some(true));
    tonic::transport::Server::builder()
        .add_service(PolicyServiceServer::new(Trivial))
        .serve_with_incoming(incoming)
        .await
        .unwrap();
}

/// A gate that does no more than pass one message on, and one byte back.
async fn floor(url: String, wrapper: PathBuf) {
    let channel = tonic::transport::Endpoint::new(url)
        .unwrap()
        .tcp_nodelay(true)
        .connect()
        .await
        .unwrap();
    let mut client = v1::policy_service_client::PolicyServiceClient::new(channel);
    let (questions, outgoing) = tokio::sync::mpsc::channel(1024);
    let mut answers = client
        .session(tokio_stream::wrappers::ReceiverStream::new(outgoing))
        .await
        .unwrap()
        .into_inner();
    let (server, clients) = socket::pair(Kind::Datagram).unwrap();
    let clients = execgate::sys::descriptor::duplicate_from(clients.as_fd(), 100).unwrap();
    let server = readiness::watch(server, Interest::READABLE).unwrap();
    let waiting = Arc::new(std::sync::Mutex::new(
        std::collections::VecDeque::<OwnedFd>::new(),
    ));
    tokio::spawn({
        let waiting = waiting.clone();
        async move {
            loop {
                let received = server
                    .async_io(Interest::READABLE, |server| {
                        let mut buffer = [0; 16];
                        socket::receive(server.as_fd(), &mut buffer, Wait::Never)
                    })
                    .await
                    .unwrap();
                waiting.lock().unwrap().extend(received.descriptors);
                let asked = v1::SessionRequest {
                    event: Some(v1::session_request::Event::ExecRequested(
                        v1::ExecRequested {
                            exec_id: 1,
                            ..Default::default()
                        },
                    )),
                    ..Default::default()
                };
                questions.send(asked).await.unwrap();
            }
        }
    });
    tokio::spawn(async move {
        while let Ok(Some(_)) = answers.message().await {
            let asker = waiting.lock().unwrap().pop_front().unwrap();
            let _ = socket::send(asker.as_fd(), b"r", &[], Wait::Never);
        }
    });
    let mut command = shell();
    command
        .env("EXEC_WRAPPER", wrapper)
        .env("CODEX_ESCALATE_SOCKET", clients.as_raw_fd().to_string());
    let status = tokio::process::Command::from(command)
        .status()
        .await
        .unwrap();
    std::process::exit(status.code().unwrap());
}

struct RunEverything;

impl EscalationPolicy for RunEverything {
    fn decide<'a>(&'a self, _: &'a InterceptedExec) -> BoxFuture<'a, Result<Verdict, PolicyError>> {
        Box::pin(std::future::ready(Ok(EscalationDecision::Run.into())))
    }
}

struct NoExecutor;

impl ShellCommandExecutor for NoExecutor {
    fn run(
        &self,
        _: ShellCommand,
        _: CancellationToken,
    ) -> BoxFuture<'_, Result<ShellOutput, ExecutorError>> {
        unreachable!()
    }

    fn prepare_escalated_exec(
        &self,
        _: EscalatedExec,
    ) -> BoxFuture<'_, Result<PreparedExec, ExecutorError>> {
        unreachable!()
    }
}

async fn local() {
    let server = EscalateServer::new(
        dist("libexec/execgate/bash"),
        dist("libexec/execgate/execgate-wrapper"),
        Arc::new(RunEverything),
    );
    let session = server
        .start_session(
            SessionParams::default(),
            Arc::new(NoExecutor),
            &CancellationToken::new(),
        )
        .unwrap();
    let mut command = shell();
    command.envs(session.env());
    let mut child = tokio::process::Command::from(command).spawn().unwrap();
    session.close_client_socket();
    let status = child.wait().await.unwrap();
    std::process::exit(status.code().unwrap());
}
