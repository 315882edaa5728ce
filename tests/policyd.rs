//! The policy service as a process: what a gate and an operator see of it.

#![allow(
    clippy::expect_used,
    clippy::panic,
    reason = "clippy takes what tests call for something else than tests"
)]

use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use clap::Parser;
use execgate::pb::v1;
use execgate::policyd::audit;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status, Streaming};
use v1::policy_service_client::PolicyServiceClient;
use v1::session_request::Event;
use v1::session_response::Answer;

/// How long anything may take that is bound to happen. Only failures take as long.
const PATIENCE: Duration = Duration::from_secs(30);
const SESSION: &str = "00112233445566778899aabbccddeeff";
const RULES: &str = r#"
prefix_rule(["git", "status"], name = "reads", reason_code = "git.read")
prefix_rule(["make"], "escalate", name = "builds")
prefix_rule(["curl"], "deny", justification = "No network here.")
"#;

/// A running service, killed when dropped.
struct Policyd {
    child: Child,
    address: String,
    log: Arc<Mutex<String>>,
}

impl Policyd {
    fn start(arguments: &[&str]) -> Self {
        Self::start_as(&mut command(arguments))
    }

    fn start_as(command: &mut Command) -> Self {
        let mut child = command
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the program starts");
        let log = Arc::new(Mutex::new(String::new()));
        let lines = BufReader::new(child.stderr.take().expect("a pipe")).lines();
        let sink = Arc::clone(&log);
        std::thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                let mut log = sink.lock().expect("the log");
                log.push_str(&line);
                log.push('\n');
            }
        });
        let mut line = String::new();
        BufReader::new(child.stdout.take().expect("a pipe"))
            .read_line(&mut line)
            .expect("a line");
        let policyd = Self {
            child,
            address: line
                .trim_end()
                .strip_prefix("listening on ")
                .unwrap_or_default()
                .to_owned(),
            log,
        };
        assert!(!policyd.address.is_empty(), "{line:?}\n{}", policyd.log());
        policyd
    }

    fn log(&self) -> String {
        self.log.lock().expect("the log").clone()
    }

    async fn wait_for_log(&self, what: &str) {
        let seen = async {
            while !self.log().contains(what) {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        let seen = tokio::time::timeout(PATIENCE, seen).await;
        assert!(seen.is_ok(), "no {what:?} in the log:\n{}", self.log());
    }

    fn signal(&self, name: &str) {
        let status = Command::new("kill")
            .args([format!("-{name}"), self.child.id().to_string()])
            .status()
            .expect("kill runs");
        assert!(status.success());
    }

    /// Waits until it ends by itself.
    async fn ended(&mut self) -> ExitStatus {
        let ended = async {
            loop {
                if let Some(status) = self.child.try_wait().expect("a child") {
                    return status;
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        tokio::time::timeout(PATIENCE, ended)
            .await
            .expect("it ends")
    }

    async fn connect(&self) -> Channel {
        match self.address.strip_prefix("unix:") {
            None => Endpoint::from_shared(format!("http://{}", self.address))
                .expect("an address")
                .connect()
                .await
                .expect("a connection"),
            Some(path) => {
                let path = PathBuf::from(path);
                let connector = tower::service_fn(move |_| {
                    let path = path.clone();
                    async move {
                        tokio::net::UnixStream::connect(path)
                            .await
                            .map(hyper_util::rt::TokioIo::new)
                    }
                });
                Endpoint::from_static("http://policy")
                    .connect_with_connector(connector)
                    .await
                    .expect("a connection")
            }
        }
    }
}

impl Drop for Policyd {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_execgate-policyd"));
    for name in [
        "RULES",
        "LISTEN",
        "DATA",
        "LOG",
        "TLS_CERT",
        "TLS_KEY",
        "CLIENT_CA",
        "TOKENS",
        "OPERATORS",
        "WEBHOOK",
        "WEBHOOK_SECRET",
        "WEBHOOK_CA",
        "ALLOW_UID",
    ] {
        command.env_remove(format!("EXECGATE_POLICYD_{name}"));
    }
    command.args(arguments).stdin(Stdio::null());
    command
}

/// What a program says that is to end by itself. One that doesn't is ended, and fails.
#[track_caller]
fn output(command: &mut Command) -> Output {
    let child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program starts");
    let process = child.id().to_string();
    let (sender, ended) = std::sync::mpsc::sync_channel(1);
    std::thread::spawn(move || sender.send(child.wait_with_output()));
    if let Ok(output) = ended.recv_timeout(PATIENCE) {
        return output.expect("its output");
    }
    // Nobody has waited for it, so the number is still its own.
    let killed = Command::new("kill").args(["-KILL", &process]).status();
    let said = ended.recv_timeout(PATIENCE);
    panic!("it went on instead ({killed:?}): {command:?}\n{said:?}");
}

/// A gate's side of one call.
struct Gate {
    events: mpsc::Sender<v1::SessionRequest>,
    answers: Streaming<v1::SessionResponse>,
    sequence: u64,
}

impl Gate {
    async fn open(policyd: &Policyd) -> Self {
        Self::open_on(policyd.connect().await).await
    }

    async fn open_on(channel: Channel) -> Self {
        let (events, stream) = mpsc::channel(16);
        let mut client = PolicyServiceClient::new(channel)
            .max_decoding_message_size(16 << 20)
            .max_encoding_message_size(64 << 20);
        // Nothing has been sent yet: the headers must come all the same.
        let response = tokio::time::timeout(PATIENCE, client.session(ReceiverStream::new(stream)))
            .await
            .expect("headers come at once")
            .expect("the call is taken");
        Self {
            events,
            answers: response.into_inner(),
            sequence: 0,
        }
    }

    async fn start(policyd: &Policyd) -> Self {
        let mut gate = Self::open(policyd).await;
        gate.tell(started(SESSION, None)).await;
        gate
    }

    async fn send(&self, sequence: u64, event: Event) {
        let request = v1::SessionRequest {
            sequence,
            event_time: Some(SystemTime::now().into()),
            event: Some(event),
        };
        self.events.send(request).await.expect("the call is open");
    }

    async fn tell(&mut self, event: Event) {
        self.sequence += 1;
        self.send(self.sequence, event).await;
    }

    async fn receive(&mut self) -> Result<Option<Answer>, Status> {
        tokio::time::timeout(PATIENCE, self.answers.message())
            .await
            .expect("something comes")
            .map(|response| response.and_then(|response| response.answer))
    }

    async fn accepted(&mut self) -> v1::SessionAccepted {
        match self.receive().await {
            Ok(Some(Answer::SessionAccepted(accepted))) => accepted,
            other => panic!("{other:?}"),
        }
    }

    /// The next verdict; acknowledgements, and that rules have changed, may come at any time.
    async fn verdict(&mut self) -> v1::Verdict {
        loop {
            match self.receive().await {
                Ok(Some(Answer::Verdict(verdict))) => return verdict,
                Ok(Some(Answer::EventsAcknowledged(_) | Answer::ForgetVerdicts(_))) => {}
                other => panic!("{other:?}"),
            }
        }
    }

    async fn acknowledged_through(&mut self, sequence: u64) {
        loop {
            match self.receive().await {
                Ok(Some(Answer::EventsAcknowledged(events))) => {
                    assert!(events.through_sequence <= self.sequence);
                    if events.through_sequence >= sequence {
                        return;
                    }
                }
                other => panic!("{other:?}"),
            }
        }
    }

    /// How the call ends, after whatever is left to come.
    async fn end(&mut self) -> Result<(), Status> {
        while self.receive().await?.is_some() {}
        Ok(())
    }

    async fn ask(&mut self, exec_id: u64, file: &str, arguments: &[&str]) -> v1::Verdict {
        self.tell(requested(exec_id, file, arguments)).await;
        self.verdict().await
    }
}

fn started(session: &str, resumption: Option<v1::Resumption>) -> Event {
    Event::SessionStarted(v1::SessionStarted {
        session_id: session.to_owned(),
        resumption,
        ..v1::SessionStarted::default()
    })
}

fn requested(exec_id: u64, file: &str, arguments: &[&str]) -> Event {
    let arguments = std::iter::once(file)
        .chain(arguments.iter().copied())
        .map(|word| word.as_bytes().to_vec().into())
        .collect();
    Event::ExecRequested(v1::ExecRequested {
        exec_id,
        file: file.as_bytes().to_vec().into(),
        arguments,
        workdir: b"/work"[..].into(),
        ..v1::ExecRequested::default()
    })
}

fn decided(exec_id: u64, verdict: &v1::Verdict) -> Event {
    let action = match verdict.decision {
        Some(v1::verdict::Decision::Run(_)) => v1::Action::Run,
        Some(v1::verdict::Decision::Escalate(_)) => v1::Action::Escalate,
        _ => v1::Action::Deny,
    };
    Event::ExecDecided(v1::ExecDecided {
        exec_id,
        action: action.into(),
        code: v1::DecisionCode::Verdict.into(),
        rule: verdict.rule.clone(),
        reason_code: verdict.reason_code.clone(),
        ..v1::ExecDecided::default()
    })
}

fn session_ended() -> Event {
    Event::SessionEnded(v1::SessionEnded {
        reason: v1::SessionEndReason::Completed.into(),
        ..v1::SessionEnded::default()
    })
}

fn is_run(verdict: &v1::Verdict) -> bool {
    matches!(verdict.decision, Some(v1::verdict::Decision::Run(_)))
}

fn denial(verdict: &v1::Verdict) -> &str {
    match &verdict.decision {
        Some(v1::verdict::Decision::Deny(deny)) => &deny.reason,
        other => panic!("{other:?}"),
    }
}

/// Rules and data of one test.
struct Place {
    directory: tempfile::TempDir,
}

impl Place {
    fn new(rules: &str) -> Self {
        let place = Self {
            directory: tempfile::tempdir().expect("a directory"),
        };
        place.write_rules(rules);
        place
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn text(&self, name: &str) -> String {
        self.path(name).to_str().expect("text").to_owned()
    }

    fn write_rules(&self, rules: &str) {
        std::fs::write(self.path("x.rules"), rules).expect("a file");
    }

    fn serve(&self) -> Policyd {
        self.serve_at("127.0.0.1:0")
    }

    fn serve_at(&self, address: &str) -> Policyd {
        Policyd::start(&[
            "--rules",
            &self.text("x.rules"),
            "--data",
            &self.text("data"),
            "--listen",
            address,
        ])
    }

    fn audit(&self) -> Vec<serde_json::Value> {
        audit(&self.path("data"))
    }

    fn count_events(&self) -> i64 {
        execgate::policyd::store::open_for_reading(&self.path("data"))
            .expect("a store")
            .query_row(
                "SELECT count(*) FROM events WHERE sequence IS NOT NULL",
                [],
                |row| row.get(0),
            )
            .expect("a number")
    }
}

fn audit(data: &Path) -> Vec<serde_json::Value> {
    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        audit: audit::AuditArgs,
    }
    let cli = Cli::parse_from(["audit", "--output", "json"]);
    let mut record = audit::LocalRecord::open(data).expect("a store");
    let mut out = Vec::new();
    audit::list(&cli.audit, &mut record, &mut out).expect("a list");
    String::from_utf8(out)
        .expect("text")
        .lines()
        .map(|line| serde_json::from_str(line).expect("JSON"))
        .collect()
}

async fn converse(policyd: &Policyd) {
    let mut gate = Gate::start(policyd).await;
    let accepted = gate.accepted().await;
    assert_eq!(
        accepted.event_acknowledgement(),
        v1::EventAcknowledgement::Stored
    );
    assert_eq!(accepted.policy_revision.len(), 12);

    let verdict = gate.ask(1, "/usr/bin/git", &["status"]).await;
    assert!(is_run(&verdict), "{verdict:?}");
    assert_eq!((verdict.exec_id, verdict.rule.as_str()), (1, "reads"));
    assert_eq!(verdict.reason_code, "git.read");
    assert_eq!(verdict.policy_revision, accepted.policy_revision);
    gate.tell(decided(1, &verdict)).await;

    let verdict = gate.ask(2, "/usr/bin/make", &[]).await;
    assert!(matches!(
        verdict.decision,
        Some(v1::verdict::Decision::Escalate(v1::Escalate {
            execution: Some(v1::escalate::Execution::Unsandboxed(_)),
            ..
        }))
    ));
    let verdict = gate.ask(3, "/usr/bin/curl", &["x"]).await;
    assert_eq!(denial(&verdict), "No network here.");
    let verdict = gate.ask(4, "/tmp/git", &["status"]).await;
    assert_eq!(denial(&verdict), "no rule matches /tmp/git");

    gate.tell(Event::ExecFinished(v1::ExecFinished {
        exec_id: 1,
        status: Some(v1::exec_finished::Status::ExitCode(7)),
        ..v1::ExecFinished::default()
    }))
    .await;
    gate.tell(session_ended()).await;
    let last = gate.sequence;
    gate.acknowledged_through(last).await;
    let Gate {
        events, answers, ..
    } = gate;
    drop(events);
    let mut gate = Gate {
        events: mpsc::channel(1).0,
        answers,
        sequence: last,
    };
    gate.end().await.expect("the call ends well");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_a_session_and_records_it() {
    for address in ["127.0.0.1:0", "unix"] {
        let place = Place::new(RULES);
        let address = match address {
            "unix" => format!("unix:{}", place.text("policy.sock")),
            tcp => tcp.to_owned(),
        };
        let policyd = place.serve_at(&address);
        converse(&policyd).await;

        // Read while the service runs.
        let execs = place.audit();
        let seen: Vec<_> = execs
            .iter()
            .map(|exec| {
                (
                    exec["exec_id"].as_u64(),
                    exec["answered"]["verdict"].as_str(),
                )
            })
            .collect();
        assert_eq!(
            seen,
            [
                (Some(1), Some("run")),
                (Some(2), Some("escalate")),
                (Some(3), Some("deny")),
                (Some(4), Some("deny"))
            ]
        );
        assert_eq!(execs[0]["verdict"], "run");
        assert_eq!(execs[0]["rule"], "reads");
        assert_eq!(execs[0]["exit_code"], 7);
        assert_eq!(execs[2]["argv"], serde_json::json!(["/usr/bin/curl", "x"]));
    }
}

#[tokio::test]
async fn tells_its_health_and_describes_itself() {
    use tonic_health::pb::health_check_response::ServingStatus;
    use tonic_health::pb::{HealthCheckRequest, health_client::HealthClient};
    use tonic_reflection::pb::{v1 as reflection, v1alpha as reflection_alpha};

    let place = Place::new(RULES);
    let policyd = place.serve();
    let channel = policyd.connect().await;
    for service in ["", "execgate.policy.v1.PolicyService"] {
        let request = HealthCheckRequest {
            service: service.to_owned(),
        };
        let health = HealthClient::new(channel.clone())
            .check(request)
            .await
            .expect("a service that is known")
            .into_inner();
        assert_eq!(health.status(), ServingStatus::Serving);
    }

    let request = reflection::ServerReflectionRequest {
        host: String::new(),
        message_request: Some(
            reflection::server_reflection_request::MessageRequest::FileContainingSymbol(
                "execgate.policy.v1.PolicyService".to_owned(),
            ),
        ),
    };
    let mut answers =
        reflection::server_reflection_client::ServerReflectionClient::new(channel.clone())
            .server_reflection_info(tokio_stream::once(request))
            .await
            .expect("a stream")
            .into_inner();
    let answer = answers.message().await.expect("a message").expect("one");
    assert!(matches!(
        answer.message_response,
        Some(reflection::server_reflection_response::MessageResponse::FileDescriptorResponse(_))
    ));

    let request = reflection_alpha::ServerReflectionRequest {
        host: String::new(),
        message_request: Some(
            reflection_alpha::server_reflection_request::MessageRequest::ListServices(String::new()),
        ),
    };
    let mut answers =
        reflection_alpha::server_reflection_client::ServerReflectionClient::new(channel)
            .server_reflection_info(tokio_stream::once(request))
            .await
            .expect("a stream")
            .into_inner();
    let answer = answers.message().await.expect("a message").expect("one");
    let Some(reflection_alpha::server_reflection_response::MessageResponse::ListServicesResponse(
        list,
    )) = answer.message_response
    else {
        panic!("{answer:?}")
    };
    let names: Vec<_> = list.service.iter().map(|service| &service.name).collect();
    assert!(
        names.contains(&&"execgate.policy.v1.PolicyService".to_owned()),
        "{names:?}"
    );
}

#[tokio::test]
async fn refuses_calls_that_begin_wrong() {
    let place = Place::new(RULES);
    let policyd = place.serve();
    let wrong = [
        requested(1, "/usr/bin/git", &["status"]),
        session_ended(),
        started("", None),
        started("00112233445566778899AABBCCDDEEFF", None),
        started("00112233445566778899aabbccddee", None),
    ];
    for event in wrong {
        let mut gate = Gate::open(&policyd).await;
        gate.tell(event.clone()).await;
        let status = gate.end().await.expect_err("it is refused");
        assert_eq!(status.code(), Code::InvalidArgument, "{event:?}: {status}");
    }

    // An event from the future can't open a call either, and neither can silence.
    let mut gate = Gate::open(&policyd).await;
    let unknown = v1::SessionRequest {
        sequence: 1,
        ..v1::SessionRequest::default()
    };
    gate.events.send(unknown.clone()).await.expect("open");
    assert_eq!(
        gate.end().await.expect_err("refused").code(),
        Code::InvalidArgument
    );

    let mut gate = Gate::start(&policyd).await;
    gate.accepted().await;
    // In a call it is passed over.
    gate.sequence += 1;
    let sequence = gate.sequence;
    gate.events
        .send(v1::SessionRequest {
            sequence,
            ..unknown
        })
        .await
        .expect("open");
    assert!(is_run(&gate.ask(1, "/usr/bin/git", &["status"]).await));
    gate.tell(started(SESSION, None)).await;
    assert_eq!(
        gate.end().await.expect_err("refused").code(),
        Code::InvalidArgument
    );
}

#[tokio::test]
async fn takes_the_largest_argument_lists() {
    let place = Place::new(RULES);
    let policyd = place.serve();
    let mut gate = Gate::start(&policyd).await;
    gate.accepted().await;
    let many: Vec<String> = (0..50_000).map(|number| format!("{number:0100}")).collect();
    let mut arguments: Vec<&str> = vec!["status"];
    arguments.extend(many.iter().map(String::as_str));
    assert!(is_run(&gate.ask(1, "/usr/bin/git", &arguments).await));
    let last = gate.sequence;
    gate.acknowledged_through(last).await;
    let argv = place.audit()[0]["argv"].clone();
    assert_eq!(argv.as_array().expect("a list").len(), 50_002);

    let huge = "x".repeat(17 << 20);
    gate.tell(requested(2, "/usr/bin/git", &[&huge])).await;
    let status = gate.end().await.expect_err("too large");
    assert_eq!(status.code(), Code::InvalidArgument, "{status}");
    let mut gate = Gate::start(&policyd).await;
    gate.accepted().await;
    assert!(is_run(&gate.ask(3, "/usr/bin/git", &["status"]).await));
}

#[tokio::test]
async fn arguments_that_are_not_text_are_taken_as_they_are() {
    let place = Place::new(RULES);
    let policyd = place.serve();
    let mut gate = Gate::start(&policyd).await;
    gate.accepted().await;
    gate.tell(Event::ExecRequested(v1::ExecRequested {
        exec_id: 1,
        file: b"/tmp/\xff\x1b[2J"[..].into(),
        arguments: vec![b"\xfe"[..].into()],
        environment_names: vec![b"\x80"[..].into()],
        ..v1::ExecRequested::default()
    }))
    .await;
    let verdict = gate.verdict().await;
    let says = r"no rule matches $'/tmp/\xff\x1b[2J' by the name of $'\xfe'";
    assert_eq!(denial(&verdict), says);
    let last = gate.sequence;
    gate.acknowledged_through(last).await;
    assert!(place.audit()[0]["program_base64"].is_string());
}

#[tokio::test]
async fn new_rules_come_into_force_and_broken_ones_do_not() {
    let place = Place::new(RULES);
    let policyd = place.serve();
    let mut gate = Gate::start(&policyd).await;
    let first = gate.accepted().await.policy_revision;
    assert!(!is_run(&gate.ask(1, "/usr/bin/true", &[]).await));

    place.write_rules("prefix_rule([");
    policyd.signal("HUP");
    policyd.wait_for_log("the last good rules").await;
    let verdict = gate.ask(2, "/usr/bin/git", &["status"]).await;
    assert!(is_run(&verdict));
    assert_eq!(verdict.policy_revision, first);

    // Without a signal: the change is seen.
    place.write_rules("prefix_rule([\"true\"])");
    policyd.wait_for_log("new rules are in force").await;
    let verdict = gate.ask(3, "/usr/bin/true", &[]).await;
    assert!(is_run(&verdict));
    assert_ne!(verdict.policy_revision, first);
    drop(gate);

    // They are no news to a session that begins under them: what its gate may reuse stays.
    let mut gate = Gate::open(&policyd).await;
    gate.tell(started(&SESSION.replace('0', "1"), None)).await;
    assert_eq!(
        gate.accepted().await.policy_revision,
        verdict.policy_revision
    );
    for exec in 1..=30 {
        gate.tell(requested(exec, "/usr/bin/true", &[])).await;
        loop {
            match gate.receive().await {
                Ok(Some(Answer::Verdict(_))) => break,
                Ok(Some(Answer::EventsAcknowledged(_))) => {}
                other => panic!("{other:?}"),
            }
        }
    }
}

/// Makes something of a path that rules can't be read from.
type Spoil = Box<dyn Fn(&Path)>;

#[tokio::test]
async fn rules_that_loop_nest_or_can_not_be_read_are_told_of_and_verdicts_go_on() {
    let place = Place::new("");
    let rules = place.path("rules.d");
    std::fs::create_dir(&rules).expect("a directory");
    std::fs::write(rules.join("10.rules"), RULES).expect("a file");
    let policyd = Policyd::start(&["--rules", &place.text("rules.d"), "--listen", "127.0.0.1:0"]);
    let mut gate = Gate::start(&policyd).await;
    gate.accepted().await;
    let text = |text: String| -> Spoil {
        Box::new(move |path| std::fs::write(path, &text).expect("a file"))
    };
    let pipe: Spoil = Box::new(|path| {
        let made = Command::new("mkfifo")
            .arg(path)
            .status()
            .expect("mkfifo runs");
        assert!(made.success());
    });
    let link: Spoil =
        Box::new(|path| std::os::unix::fs::symlink("20.rules", path).expect("a link"));
    let mut exec = 0;
    for (spoil, says) in [
        (
            text(format!("x = {}", "(".repeat(500_000))),
            "nests more than",
        ),
        (
            text("prefix_rule([\"git\", \"x\" * 1000000])".to_owned()),
            "20.rules:1:1: a word of the pattern has 1000000 bytes",
        ),
        (text("#".repeat((1 << 20) + 1)), "is larger than"),
        (pipe, "20.rules: it isn't a regular file"),
        (link, "Too many levels of symbolic links"),
        // What takes longest last.
        (
            text("def f():\n    for i in range(1000000000):\n        pass\nf()\n".to_owned()),
            "shorten its loops",
        ),
    ] {
        let path = rules.join("20.rules");
        spoil(&path);
        policyd.signal("HUP");
        let began = std::time::Instant::now();
        // Verdicts by the last good rules, all the while.
        loop {
            exec += 1;
            assert!(is_run(&gate.ask(exec, "/usr/bin/git", &["status"]).await));
            let log = policyd.log();
            if log.contains(says) {
                assert!(log.contains("stay in force"), "{log}");
                break;
            }
            assert!(began.elapsed() < PATIENCE * 4, "no {says:?}:\n{log}");
        }
        std::fs::remove_file(&path).expect("removed");
    }
    std::fs::write(rules.join("20.rules"), "prefix_rule([\"true\"])").expect("a file");
    policyd.wait_for_log("new rules are in force").await;
    assert!(is_run(&gate.ask(exec + 1, "/usr/bin/true", &[]).await));
}

#[tokio::test]
async fn a_decide_that_loops_denies_its_exec_and_others_get_their_verdicts() {
    // Steps that take long, so that it is cut off after a second of the processor's time.
    let place = Place::new(
        "MANY = list(range(500))\n\
         def decide(exec):\n    if exec.name == \"loop\":\n        for i in range(5000, 1000000000):\n            \
         if i in MANY:\n                break\n\
         fallback(\"run\")\n",
    );
    let (rules, data) = (place.text("x.rules"), place.text("data"));
    let arguments = [
        "--rules",
        &rules,
        "--data",
        &data,
        "--listen",
        "127.0.0.1:0",
    ];
    let mut command = command(&arguments);
    // With one thread for all calls, whatever holds it up holds up all of them.
    let policyd = Policyd::start_as(command.env("TOKIO_WORKER_THREADS", "1"));
    let is_cut_off = |verdict: &v1::Verdict| {
        assert!(denial(verdict).contains("decide() failed"), "{verdict:?}");
        assert_eq!(verdict.reason_code, "rules.decide_failed");
    };
    let denied = Arc::new(AtomicUsize::new(0));
    let mut looping = Vec::new();
    for number in 1..=2 {
        let mut gate = Gate::open(&policyd).await;
        gate.tell(started(&format!("{number:032}"), None)).await;
        gate.accepted().await;
        if number == 1 {
            // From the first one on it is known how long these rules may take.
            is_cut_off(&gate.ask(1, "/usr/bin/loop", &[]).await);
        }
        // Without waiting for any.
        for exec in 2..=3 {
            gate.tell(requested(exec, "/usr/bin/loop", &[])).await;
        }
        let denied = Arc::clone(&denied);
        looping.push(tokio::spawn(async move {
            for _ in 2..=3 {
                is_cut_off(&gate.verdict().await);
                denied.fetch_add(1, Ordering::Relaxed);
            }
        }));
    }
    let mut gate = Gate::start(&policyd).await;
    gate.accepted().await;
    for exec in 1..=100 {
        assert!(is_run(&gate.ask(exec, "/usr/bin/true", &[]).await));
    }
    let denied = denied.load(Ordering::Relaxed);
    assert!(denied < 4, "others waited behind all of them");
    for looping in looping {
        looping.await.expect("each is denied");
    }
}

#[tokio::test]
async fn where_rules_ask_a_person_and_nobody_can_answer_that_is_said() {
    let asks = "prefix_rule([\"git\"])\nprefix_rule([\"make\"], \"ask\")\n";
    let place = Place::new(asks);
    let warning = "the rules ask a person (x.rules:2), and nobody can be asked";
    let policyd = place.serve();
    policyd.wait_for_log(warning).await;
    let mut gate = Gate::start(&policyd).await;
    gate.accepted().await;
    let verdict = gate.ask(1, "/usr/bin/make", &[]).await;
    assert_eq!(verdict.reason_code, "approval.unavailable");
    assert!(
        denial(&verdict).contains("nobody can be asked"),
        "{verdict:?}"
    );
    policyd
        .wait_for_log("without --operators nobody can be asked")
        .await;

    // Rules that begin to ask, later.
    let place = Place::new(RULES);
    let policyd = place.serve();
    assert!(!policyd.log().contains("ask a person"), "{}", policyd.log());
    place.write_rules(asks);
    policyd.wait_for_log(warning).await;
    // What is only monitored asks nobody.
    let watched = Place::new("prefix_rule([\"make\"], \"ask\", mode = \"monitor\")\n");
    let policyd = watched.serve();
    let mut gate = Gate::start(&policyd).await;
    gate.accepted().await;
    assert!(is_run(&gate.ask(1, "/usr/bin/make", &[]).await));
    assert!(!policyd.log().contains("a person"), "{}", policyd.log());

    // Who only reads can't answer.
    let token = |role: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_execgate"));
        let name = format!("{role}.token");
        command.args([
            "token",
            "ada",
            "--role",
            role,
            "--write",
            &place.text(&name),
        ]);
        output(&mut command).stdout
    };
    let serve = || {
        Policyd::start(&[
            "--rules",
            &place.text("x.rules"),
            "--operators",
            &place.text("operators"),
            "--listen",
            "127.0.0.1:0",
        ])
    };
    std::fs::write(place.path("operators"), token("auditor")).expect("a file");
    let policyd = serve();
    policyd
        .wait_for_log("--operators names nobody who may answer")
        .await;
    std::fs::write(place.path("operators"), token("operator")).expect("a file");
    let policyd = serve();
    let mut gate = Gate::start(&policyd).await;
    gate.accepted().await;
    assert!(!policyd.log().contains("a person"), "{}", policyd.log());
}

#[tokio::test]
async fn what_was_acknowledged_survives_a_kill() {
    let place = Place::new(RULES);
    let mut policyd = place.serve();
    let mut gate = Gate::start(&policyd).await;
    gate.accepted().await;
    for exec_id in 1..=50 {
        gate.ask(exec_id, "/usr/bin/git", &["status"]).await;
    }
    gate.acknowledged_through(51).await;
    policyd.child.kill().expect("killed");
    policyd.child.wait().expect("gone");
    gate.end().await.expect_err("the connection is gone");
    drop(policyd);

    let policyd = place.serve();
    assert_eq!(place.count_events(), 51);
    let mut gate = Gate::open(&policyd).await;
    let resumption = v1::Resumption {
        attempt: 2,
        next_sequence: 10,
        ..v1::Resumption::default()
    };
    gate.sequence = 53;
    gate.send(0, started(SESSION, Some(resumption))).await;
    gate.accepted().await;
    // An open question under its old number, repeats, and what is new: all are answered.
    for (sequence, exec_id) in [(10, 9), (50, 49), (51, 50), (52, 51), (53, 52)] {
        gate.send(sequence, requested(exec_id, "/usr/bin/git", &["status"]))
            .await;
        assert_eq!(gate.verdict().await.exec_id, exec_id);
    }
    gate.send(54, session_ended()).await;
    gate.sequence = 54;
    gate.acknowledged_through(54).await;
    assert_eq!(place.count_events(), 54);
    let execs = place.audit();
    assert_eq!(execs.len(), 52);
    let answers: Vec<_> = execs
        .iter()
        .filter(|exec| exec["answered"]["times"] == 2)
        .filter_map(|exec| exec["exec_id"].as_u64())
        .collect();
    assert_eq!(answers, [9, 49, 50]);
}

/// The gate was killed when it had told more than its journal has, and the service has just got it.
#[tokio::test]
async fn what_a_gate_left_is_taken_without_verdicts_behind_all_that_is_stored() {
    let place = Place::new(RULES);
    let policyd = place.serve();
    let mut gate = Gate::start(&policyd).await;
    gate.accepted().await;
    for exec_id in 1..=5 {
        gate.ask(exec_id, "/usr/bin/git", &["status"]).await;
    }
    drop(gate);

    let delivery = v1::Resumption {
        attempt: 0,
        next_sequence: 3,
        reason: v1::ResumptionReason::Delivery.into(),
    };
    let mut gate = Gate::open(&policyd).await;
    gate.send(0, started(SESSION, Some(delivery))).await;
    assert_eq!(gate.accepted().await.stored_sequence, 6);
    // A repeat, which changes nothing and is not answered; something new, which isn't answered either.
    gate.send(6, requested(5, "/usr/bin/git", &["status"]))
        .await;
    gate.send(7, requested(6, "/usr/bin/git", &["status"]))
        .await;
    gate.send(8, session_ended()).await;
    gate.sequence = 8;
    gate.acknowledged_through(8).await;
    assert_eq!(place.count_events(), 8);
    let execs = place.audit();
    let times: Vec<_> = execs
        .iter()
        .map(|exec| exec["answered"]["times"].as_u64())
        .collect();
    assert_eq!(times, [1, 1, 1, 1, 1, 0].map(Some));
}

#[tokio::test]
async fn verdicts_go_on_while_nothing_can_be_stored() {
    let place = Place::new(RULES);
    let policyd = place.serve();
    let mut gate = Gate::start(&policyd).await;
    gate.accepted().await;
    gate.acknowledged_through(1).await;

    let blocker =
        rusqlite::Connection::open(place.path("data/events.sqlite")).expect("the database");
    blocker
        .execute_batch("BEGIN IMMEDIATE")
        .expect("the writer's lock");
    for exec_id in 1..=100 {
        gate.tell(requested(exec_id, "/usr/bin/git", &["status"]))
            .await;
        // An acknowledgement of something after 1 would fail here: nothing can have been stored.
        match gate.receive().await {
            Ok(Some(Answer::Verdict(verdict))) => assert_eq!(verdict.exec_id, exec_id),
            other => panic!("{other:?}"),
        }
    }
    policyd
        .wait_for_log("another process holds it locked")
        .await;
    blocker.execute_batch("ROLLBACK").expect("released");
    gate.acknowledged_through(101).await;
    assert_eq!(place.count_events(), 101);
}

/// What is written to a file that has no name any more, nobody sees.
#[tokio::test]
async fn a_record_that_is_taken_away_is_not_written_on() {
    for taken in ["data", "data/events.sqlite", "data/events.sqlite-wal"] {
        let place = Place::new(RULES);
        let policyd = place.serve();
        let mut gate = Gate::start(&policyd).await;
        gate.accepted().await;
        gate.acknowledged_through(1).await;

        let (taken, away) = (place.path(taken), place.path("away"));
        std::fs::rename(&taken, &away).expect("moved");
        if away.is_file() {
            std::fs::copy(&away, &taken).expect("something else there");
        }
        for exec_id in 1..=10 {
            if exec_id == 10 {
                let said = "was removed, moved or replaced";
                policyd.wait_for_log(said).await;
                policyd.wait_for_log(taken.to_str().expect("text")).await;
                policyd.wait_for_log("restart execgate-policyd").await;
            }
            gate.tell(requested(exec_id, "/usr/bin/git", &["status"]))
                .await;
            // An acknowledgement would fail here.
            match gate.receive().await {
                Ok(Some(Answer::Verdict(verdict))) => assert_eq!(verdict.exec_id, exec_id),
                other => panic!("{other:?}"),
            }
        }
        std::fs::rename(&away, &taken).expect("moved back");
        gate.acknowledged_through(11).await;
        assert_eq!(place.count_events(), 11);
    }
}

#[tokio::test]
async fn stops_in_order_when_told_to() {
    for signal in ["TERM", "INT"] {
        let place = Place::new(RULES);
        let address = format!("unix:{}", place.text("policy.sock"));
        let mut policyd = place.serve_at(&address);
        let mut gate = Gate::start(&policyd).await;
        gate.accepted().await;
        for exec_id in 1..=20 {
            gate.ask(exec_id, "/usr/bin/git", &["status"]).await;
        }
        policyd.signal(signal);
        let status = gate.end().await.expect_err("the call is ended");
        assert_eq!(status.code(), Code::Unavailable);
        drop(gate);
        let status = policyd.ended().await;
        assert_eq!(status.code(), Some(0), "{}", policyd.log());
        assert!(!place.path("policy.sock").exists());
        assert_eq!(place.count_events(), 21);
    }
}

#[tokio::test]
async fn without_a_data_directory_nothing_is_stored() {
    let place = Place::new(RULES);
    let policyd = Policyd::start(&["--rules", &place.text("x.rules"), "--listen", "127.0.0.1:0"]);
    let mut gate = Gate::start(&policyd).await;
    assert_eq!(
        gate.accepted().await.event_acknowledgement(),
        v1::EventAcknowledgement::None
    );
    assert!(is_run(&gate.ask(1, "/usr/bin/git", &["status"]).await));
    policyd.wait_for_log("events are not stored").await;
}

#[tokio::test]
async fn a_socket_that_a_killed_service_left_is_taken_over() {
    let place = Place::new(RULES);
    let address = format!("unix:{}", place.text("policy.sock"));
    drop(place.serve_at(&address));
    assert!(place.path("policy.sock").exists());
    let policyd = place.serve_at(&address);
    let mut gate = Gate::start(&policyd).await;
    gate.accepted().await;
}

#[test]
fn other_hosts_are_let_in_only_with_tls_and_credentials() {
    let place = Place::new(RULES);
    let names = vec!["localhost".to_owned()];
    let made = rcgen::generate_simple_self_signed(names).expect("a certificate");
    let (certificate, key) = (place.text("c.pem"), place.text("c.key"));
    std::fs::write(&certificate, made.cert.pem()).expect("a file");
    std::fs::write(&key, made.signing_key.serialize_pem()).expect("a file");
    let set_mode = |mode| {
        let mode = std::os::unix::fs::PermissionsExt::from_mode(mode);
        std::fs::set_permissions(&key, mode).expect("a mode");
    };
    let tokens = place.text("tokens");
    std::fs::write(&tokens, format!("ci {}\n", "0".repeat(64))).expect("a file");
    let rules = place.text("x.rules");
    let (everywhere, tls) = (
        ["--rules", &rules, "--listen", "0.0.0.0:0"],
        ["--tls-cert", &certificate, "--tls-key", &key],
    );
    let refused = |options: &[&str], code, says: &str| {
        let output = output(&mut command(&[&everywhere, options].concat()));
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{options:?}: {error}");
        assert!(error.contains(says), "{options:?}: {error}");
    };
    set_mode(0o600);
    refused(&[], 5, "without TLS");
    refused(&["--tokens", &tokens], 5, "without TLS");
    refused(&tls, 5, "without authentication of gates");
    refused(&["--tls-cert", &certificate], 2, "--tls-key");
    refused(&["--client-ca", &certificate], 2, "--tls-cert");
    refused(&["--tls-cert", "missing", "--tls-key", &key], 6, "missing");
    refused(&["--tokens", &certificate], 6, "line 1");
    set_mode(0o644);
    refused(&tls, 6, "chmod 600");
    set_mode(0o600);
    drop(Policyd::start(
        &[&everywhere[..], &tls, &["--tokens", &tokens]].concat(),
    ));
    drop(Policyd::start(
        &[&everywhere[..], &["--insecure-listen"]].concat(),
    ));
    let socket = format!("unix:{}", place.text("s"));
    let arguments = [&["--rules", &rules, "--listen", &socket], &tls[..]].concat();
    assert_eq!(output(&mut command(&arguments)).status.code(), Some(2));
}

#[test]
fn a_console_that_others_could_reach_is_refused_with_what_helps_a_console() {
    let place = Place::new(RULES);
    let (rules, operators) = (place.text("x.rules"), place.text("operators"));
    std::fs::write(&operators, format!("ada {}\n", "0".repeat(64))).expect("a file");
    let exposed = [
        "--rules",
        &rules,
        "--operators",
        &operators,
        "--listen",
        "127.0.0.1:0",
        "--console",
        "0.0.0.0:0",
    ];
    for more in [&[][..], &["--insecure-listen"]] {
        let output = output(&mut command(&[&exposed, more].concat()));
        assert_eq!(output.status.code(), Some(5), "{more:?}");
        let error = String::from_utf8_lossy(&output.stderr);
        let said = error.lines().find(|line| line.contains("--console: "));
        let said = said.unwrap_or_else(|| panic!("{error}"));
        let helps =
            "give --tls-cert and --tls-key. Or give an address of this host alone, 127.0.0.1:PORT";
        assert!(said.contains(helps), "{said}");
        for in_vain in ["--insecure-listen", "unix:", "--client-ca", "--tokens"] {
            assert!(!said.contains(in_vain), "{said}");
        }
    }
}

#[test]
fn says_why_it_does_not_start() {
    let place = Place::new(RULES);
    let rules = place.text("x.rules");
    std::fs::write(place.path("broken.rules"), "\nprefix_rule([])\n").expect("a file");
    std::fs::create_dir(place.path("bad")).expect("a directory");
    std::fs::write(
        place.path("bad/events.sqlite"),
        "not a database, not at all",
    )
    .expect("a file");
    let (broken, bad, missing) = (
        place.text("broken.rules"),
        place.text("bad"),
        place.text("missing.rules"),
    );
    let not_a_socket = format!("unix:{rules}");
    for (arguments, code, says) in [
        (
            &["--rules", &broken][..],
            3,
            "broken.rules:2:1: pattern is empty",
        ),
        (&["--rules", &missing], 3, "missing.rules"),
        (
            &["--rules", &rules, "--data", &bad],
            4,
            "move the file away",
        ),
        (
            &["--rules", &rules, "--listen", "0.0.0.0:0"],
            5,
            "--insecure-listen",
        ),
        (
            &["--rules", &rules, "--listen", &not_a_socket],
            5,
            "isn't a socket",
        ),
        (&["--rules", &rules, "--listen", "nonsense"], 2, "HOST:PORT"),
        (&["--rules", &rules, "--log", "=="], 2, "--log"),
        (&[], 2, "--rules"),
    ] {
        let output = output(&mut command(arguments));
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {error}");
        assert!(error.contains(says), "{arguments:?}: {error}");
        assert!(output.stdout.is_empty());
    }
}

/// Two writers of one store would each go on where the other has gone on already.
#[tokio::test]
async fn a_store_is_written_by_one_service_and_read_beside_it() {
    let place = Place::new(RULES);
    let mut first = place.serve();
    let (rules, data) = (place.text("x.rules"), place.text("data"));
    let arguments = [
        "--rules",
        &*rules,
        "--listen",
        "127.0.0.1:0",
        "--data",
        &*data,
    ];
    let refused = output(&mut command(&arguments));
    let error = String::from_utf8_lossy(&refused.stderr);
    assert_eq!(refused.status.code(), Some(4), "{error}");
    assert!(refused.stdout.is_empty());
    for says in [
        &*data,
        "in use",
        &format!("process {}", first.child.id()),
        "--data",
    ] {
        assert!(error.contains(says), "{says}: {error}");
    }
    // Who reads isn't in the way, and nothing is in theirs.
    let mut gate = Gate::start(&first).await;
    gate.accepted().await;
    gate.ask(1, "/usr/bin/git", &["status"]).await;
    gate.acknowledged_through(2).await;
    for arguments in [
        &["audit", "--data", &*data][..],
        &["audit", "--data", &*data, "--export"],
        &["audit", "verify", "--data", &*data],
        &["audit", "head", "--data", &*data],
        &["replay", "--rules", &*rules, "--data", &*data],
        &["suggest", "--data", &*data],
    ] {
        let output = output(Command::new(env!("CARGO_BIN_EXE_execgate")).args(arguments));
        assert!(output.status.success(), "{arguments:?}: {output:?}");
    }
    gate.ask(2, "/usr/bin/git", &["status"]).await;
    gate.acknowledged_through(3).await;
    // Nothing that a killed one left stands in the way of the next.
    first.child.kill().expect("killed");
    first.child.wait().expect("gone");
    drop(first);
    let second = place.serve();
    let mut gate = Gate::open(&second).await;
    let resumption = v1::Resumption {
        attempt: 2,
        next_sequence: 4,
        ..v1::Resumption::default()
    };
    gate.send(0, started(SESSION, Some(resumption))).await;
    gate.accepted().await;
}

#[test]
fn tells_scripts_where_it_listens() {
    let place = Place::new(RULES);
    let mut child = command(&[
        "--rules",
        &place.text("x.rules"),
        "--listen",
        "127.0.0.1:0",
        "--output",
        "json",
    ])
    .stdout(Stdio::piped())
    .stderr(Stdio::null())
    .spawn()
    .expect("it starts");
    let mut stdout = BufReader::new(child.stdout.take().expect("a pipe"));
    let mut line = String::new();
    stdout.read_line(&mut line).expect("a line");
    child.kill().expect("killed");
    child.wait().expect("gone");
    let told: serde_json::Value = serde_json::from_str(&line).expect("JSON");
    let address = told["listening"].as_str().expect("an address");
    assert!(
        address.starts_with("127.0.0.1:") && !address.ends_with(":0"),
        "{line}"
    );
    let mut rest = String::new();
    stdout.read_to_string(&mut rest).expect("the end");
    assert_eq!(rest, "");
}
