//! A policy service with a gate's and an auditor's token, and a gate that talks to it.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use execgate::pb::audit::v1::audit_service_client::AuditServiceClient;
use execgate::pb::v1;
use execgate::pb::v1::policy_service_client::PolicyServiceClient;
use execgate::pb::v1::session_request::Event;
use execgate::pb::v1::session_response::Answer;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Streaming};

/// How long anything may take that is bound to happen. Only failures take as long.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

const RULES: &str = r#"
prefix_rule(["git", "status"], name = "reads", reason_code = "git.read")
prefix_rule(["make"], "escalate", name = "builds")
prefix_rule(["curl"], "deny", justification = "No network here.", reason_code = "net")
"#;

pub(crate) struct Place {
    pub(crate) directory: tempfile::TempDir,
    pub(crate) service: Child,
    pub(crate) address: String,
}

impl Place {
    pub(crate) fn new() -> Self {
        Self::with(&[])
    }

    pub(crate) fn with(arguments: &[&str]) -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        std::fs::write(directory.path().join("rules"), RULES).expect("a file");
        let mut operators = Vec::new();
        for (name, role) in [
            ("gate", "gate"),
            ("auditor", "auditor"),
            ("ada", "operator"),
        ] {
            let made = Command::new(env!("CARGO_BIN_EXE_execgate"))
                .args(["token", name, "--role", role, "--write"])
                .arg(directory.path().join(name))
                .output()
                .expect("a token");
            assert!(made.status.success(), "{made:?}");
            if role == "gate" {
                std::fs::write(directory.path().join("tokens"), made.stdout).expect("a file");
            } else {
                operators.extend(made.stdout);
            }
        }
        std::fs::write(directory.path().join("operators"), operators).expect("a file");
        let (service, address) = start(directory.path(), "127.0.0.1:0", arguments);
        Self {
            directory,
            service,
            address,
        }
    }

    /// Kills the service as `kill -9` does, and starts it again at the same address.
    pub(crate) fn kill_and_restart(&mut self) {
        self.kill_and_restart_with(&[]);
    }

    pub(crate) fn kill_and_restart_with(&mut self, arguments: &[&str]) {
        self.kill();
        let (service, _) = start(self.directory.path(), &self.address, arguments);
        self.service = service;
    }

    pub(crate) fn kill(&mut self) {
        self.service.kill().expect("killed");
        self.service.wait().expect("ended");
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    pub(crate) async fn channel(&self) -> Channel {
        Endpoint::from_shared(self.url())
            .expect("an address")
            .connect()
            .await
            .expect("a connection")
    }

    /// Shows a token: that of a file, or one that nobody knows.
    pub(crate) fn showing<T>(&self, name: &str, message: T) -> Request<T> {
        let token = std::fs::read_to_string(self.path(name)).unwrap_or("unknown".to_owned());
        let mut request = Request::new(message);
        let shown = format!("Bearer {}", token.trim()).parse().expect("ASCII");
        request.metadata_mut().insert("authorization", shown);
        request
    }

    pub(crate) async fn auditor(&self) -> AuditServiceClient<Channel> {
        AuditServiceClient::new(self.channel().await).max_decoding_message_size(32 << 20)
    }

    pub(crate) async fn gate(&self, session: &str) -> Gate {
        Gate::start(self, session).await
    }

    /// What a program of ours says, with its exit code.
    pub(crate) fn execgate(&self, arguments: &[&str]) -> (i32, String, String) {
        let done = self.command(arguments).output().expect("it runs");
        let text = |bytes| String::from_utf8(bytes).expect("text");
        (
            done.status.code().unwrap_or(-1),
            text(done.stdout),
            text(done.stderr),
        )
    }

    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_execgate"));
        command
            .args(arguments)
            .env("EXECGATE_SERVICE_TOKEN_FILE", self.path("auditor"))
            .stdin(Stdio::null());
        command
    }

    pub(crate) fn data(&self) -> String {
        self.path("data").to_str().expect("text").to_owned()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = self.service.kill();
        let _ = self.service.wait();
    }
}

fn start(directory: &Path, listen: &str, arguments: &[&str]) -> (Child, String) {
    let began = std::time::Instant::now();
    loop {
        let mut child = Command::new(env!("CARGO_BIN_EXE_execgate-policyd"))
            .arg("--rules")
            .arg(directory.join("rules"))
            .arg("--tokens")
            .arg(directory.join("tokens"))
            .arg("--operators")
            .arg(directory.join("operators"))
            .arg("--data")
            .arg(directory.join("data"))
            .args(["--listen", listen, "--log", "error"])
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the program starts");
        let mut line = String::new();
        BufReader::new(child.stdout.take().expect("a pipe"))
            .read_line(&mut line)
            .expect("a line");
        if let Some(address) = line.trim_end().strip_prefix("listening on ") {
            return (child, address.to_owned());
        }
        if let Ok(said) = serde_json::from_str::<serde_json::Value>(&line) {
            let text = |name: &str| said[name].as_str().unwrap_or_default().to_owned();
            for place in ["metrics", "console"] {
                std::fs::write(directory.join(place), text(place)).expect("a file");
            }
            return (child, text("listening"));
        }
        child.wait().expect("ended");
        // Its address may be taken for a moment by the connections of its predecessor.
        assert!(began.elapsed() < PATIENCE, "it doesn't listen");
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// A gate's side of one call.
pub(crate) struct Gate {
    events: mpsc::Sender<v1::SessionRequest>,
    answers: Streaming<v1::SessionResponse>,
    pub(crate) sequence: u64,
    pub(crate) acknowledged: u64,
}

impl Gate {
    async fn start(place: &Place, session: &str) -> Self {
        Self::open(place, session, None).await
    }

    /// Goes on with a session, as a journal does that delivers what its gate couldn't.
    pub(crate) async fn deliver(place: &Place, session: &str, next_sequence: u64) -> Self {
        let resumption = v1::Resumption {
            attempt: 2,
            next_sequence,
            reason: v1::ResumptionReason::Delivery.into(),
        };
        Self::open(place, session, Some(resumption)).await
    }

    async fn open(place: &Place, session: &str, resumption: Option<v1::Resumption>) -> Self {
        let (events, stream) = mpsc::channel(64);
        let mut client = PolicyServiceClient::new(place.channel().await);
        let response = client.session(place.showing("gate", ReceiverStream::new(stream)));
        let mut gate = Self {
            events,
            answers: response.await.expect("a call").into_inner(),
            sequence: 0,
            acknowledged: 0,
        };
        let labels = [("job".to_owned(), session[..2].to_owned())];
        let next = resumption
            .as_ref()
            .map(|resumption| resumption.next_sequence);
        let started = v1::SessionStarted {
            session_id: session.to_owned(),
            labels: labels.into_iter().collect(),
            resumption,
            ..v1::SessionStarted::default()
        };
        // What goes on with a session has no place in its history.
        let opening = v1::SessionRequest {
            sequence: u64::from(next.is_none()),
            event_time: Some(std::time::SystemTime::now().into()),
            event: Some(Event::SessionStarted(started)),
        };
        gate.events.send(opening).await.expect("told");
        gate.sequence = next.map_or(1, |next| next - 1);
        gate
    }

    /// Tells an event; `None` where the service is gone.
    pub(crate) async fn tell(&mut self, event: Event) -> Option<()> {
        self.sequence += 1;
        let request = v1::SessionRequest {
            sequence: self.sequence,
            event_time: Some(std::time::SystemTime::now().into()),
            event: Some(event),
        };
        self.events.send(request).await.ok()
    }

    pub(crate) async fn ask(&mut self, exec_id: u64, command: &str) -> Option<v1::Verdict> {
        self.ask_below(exec_id, 0, command).await
    }

    /// Asks, and tells that the answer was followed and the command ended.
    pub(crate) async fn ask_below(
        &mut self,
        exec_id: u64,
        parent: u64,
        command: &str,
    ) -> Option<v1::Verdict> {
        let words: Vec<&str> = command.split(' ').collect();
        let file = format!("/usr/bin/{}", words[0]);
        self.tell(Event::ExecRequested(v1::ExecRequested {
            exec_id,
            parent_exec_id: parent,
            file: file.into(),
            arguments: words
                .iter()
                .map(|word| word.as_bytes().to_vec().into())
                .collect(),
            workdir: b"/work"[..].into(),
            ..v1::ExecRequested::default()
        }))
        .await?;
        let verdict = loop {
            match self.answers.message().await.ok()??.answer? {
                Answer::Verdict(verdict) => break verdict,
                Answer::EventsAcknowledged(events) => self.acknowledged = events.through_sequence,
                _ => {}
            }
        };
        let action = match verdict.decision {
            Some(v1::verdict::Decision::Run(_)) => v1::Action::Run,
            Some(v1::verdict::Decision::Escalate(_)) => v1::Action::Escalate,
            _ => v1::Action::Deny,
        };
        self.tell(Event::ExecDecided(v1::ExecDecided {
            exec_id,
            action: action.into(),
            code: v1::DecisionCode::Verdict.into(),
            rule: verdict.rule.clone(),
            reason_code: verdict.reason_code.clone(),
            ..v1::ExecDecided::default()
        }))
        .await?;
        if action != v1::Action::Deny {
            self.tell(Event::ExecFinished(v1::ExecFinished {
                exec_id,
                status: Some(v1::exec_finished::Status::ExitCode(0)),
                elapsed: Some(prost_types::Duration {
                    seconds: 1,
                    nanos: 0,
                }),
                ..v1::ExecFinished::default()
            }))
            .await?;
        }
        Some(verdict)
    }

    /// Waits until all that was told is stored.
    pub(crate) async fn stored(&mut self) {
        let all = async {
            while self.acknowledged < self.sequence {
                let answer = self.answers.message().await.expect("open").expect("open");
                if let Some(Answer::EventsAcknowledged(events)) = answer.answer {
                    self.acknowledged = events.through_sequence;
                }
            }
        };
        tokio::time::timeout(PATIENCE, all).await.expect("stored");
    }
}

pub(crate) const ONE: &str = "11111111111111111111111111111111";
pub(crate) const TWO: &str = "22222222222222222222222222222222";

/// Two sessions with what there is to find.
pub(crate) async fn filled() -> Place {
    let place = Place::new();
    let mut one = place.gate(ONE).await;
    for exec in 1..=30 {
        one.ask_below(exec, exec / 2, "git status")
            .await
            .expect("an answer");
    }
    one.ask(31, "curl example").await.expect("an answer");
    one.stored().await;
    let mut two = place.gate(TWO).await;
    two.ask(1, "make all").await.expect("an answer");
    two.ask(2, "curl elsewhere").await.expect("an answer");
    two.stored().await;
    place
}
