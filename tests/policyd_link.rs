//! A gate's policy link and the policy service, over kills of the service.

#![allow(
    clippy::expect_used,
    clippy::panic,
    reason = "clippy takes what tests call for something else than tests"
)]

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use execgate::link::{Drained, LinkOptions, PolicyLink};
use execgate::model::{
    DecisionCode, Environment, EscalationDecision, ExecId, InterceptedExec, ProcessIdentity,
    SandboxReport, SessionDescription, SessionEndReason, SessionEvent, SessionId,
};
use execgate::policyd::store::open_for_reading;
use execgate::server::{EscalationPolicy, SessionContext};

/// Long enough never to be reached.
const EVER: Duration = Duration::from_secs(120);
const EXECS: u64 = 400;

struct Policyd(Child);

impl Policyd {
    fn start(directory: &Path) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_execgate-policyd"))
            .arg("--rules")
            .arg(directory.join("x.rules"))
            .arg("--data")
            .arg(directory.join("data"))
            .arg("--listen")
            .arg(format!("unix:{}", directory.join("s").display()))
            .arg("--log")
            .arg("error")
            .stdout(Stdio::piped())
            .spawn()
            .expect("the program starts");
        let mut line = String::new();
        BufReader::new(child.stdout.take().expect("a pipe"))
            .read_line(&mut line)
            .expect("a line");
        assert!(line.starts_with("listening on "), "{line:?}");
        Self(child)
    }
}

impl Drop for Policyd {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn context() -> SessionContext {
    SessionContext::new(SessionDescription {
        id: SessionId([7; 16]),
        labels: BTreeMap::new(),
        workdir: "/work".into(),
        command: vec!["zsh".into()],
        sandbox: SandboxReport::none(),
        started_at: SystemTime::now(),
    })
}

fn exec(id: u64) -> InterceptedExec {
    let name = if id.is_multiple_of(2) { "git" } else { "curl" };
    InterceptedExec {
        id: ExecId(id),
        file: format!("/usr/bin/{name}").into(),
        argv: vec![name.into()],
        workdir: "/work".into(),
        env: Environment::default(),
        process: ProcessIdentity::default(),
        parent: None,
        asked_at: SystemTime::now(),
        executable: execgate::model::Executable::default(),
        workdir_protection: None,
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_lost_or_left_undecided_over_kills() {
    let directory = tempfile::tempdir().expect("a directory");
    std::fs::write(
        directory.path().join("x.rules"),
        "prefix_rule([\"git\"])\nprefix_rule([\"curl\"], \"deny\")\n",
    )
    .expect("rules");
    let mut policyd = Policyd::start(directory.path());
    let endpoint = format!("unix:{}", directory.path().join("s").display());
    let mut options = LinkOptions::new(endpoint.parse().expect("an endpoint"));
    options.verdict_deadline = EVER;
    options.outage_tolerance = EVER;
    options.flush_window = EVER;
    let link = PolicyLink::new(options).expect("a link");
    let session = link.for_session(&context()).expect("a session");

    let mut id = 0;
    while id < EXECS {
        // Four at once, and the service is killed among them now and then.
        let asked: Vec<_> = (id + 1..=id + 4)
            .map(|id| {
                let session = Arc::clone(&session);
                tokio::spawn(async move {
                    let verdict = session.decide(&exec(id)).await.expect("no policy error");
                    assert_eq!(verdict.code, DecisionCode::Verdict, "{verdict:?}");
                    let is_run = verdict.decision == EscalationDecision::Run;
                    assert_eq!(is_run, id.is_multiple_of(2), "{verdict:?}");
                    session.observe(SessionEvent::ExecDecided {
                        exec: ExecId(id),
                        verdict,
                        environment: None,
                        waited: Duration::ZERO,
                        decided_in: Duration::ZERO,
                        at: SystemTime::now(),
                    });
                })
            })
            .collect();
        if id.is_multiple_of(100) {
            drop(policyd);
            policyd = Policyd::start(directory.path());
        }
        for asked in asked {
            asked.await.expect("decided");
        }
        id += 4;
    }
    session.observe(SessionEvent::SessionEnded {
        reason: SessionEndReason::Completed,
        detail: String::new(),
        shell: None,
        at: SystemTime::now(),
    });
    assert_eq!(link.drain(EVER).await, Drained::Completely);

    let store = open_for_reading(&directory.path().join("data")).expect("a store");
    let number = |query: &str| -> u64 {
        store
            .query_row(query, [], |row| row.get::<_, i64>(0))
            .expect("a number")
            .cast_unsigned()
    };
    assert_eq!(number("SELECT count(*) FROM execs"), EXECS);
    assert_eq!(
        number("SELECT count(*) FROM execs WHERE action = answer AND code = 'verdict'"),
        EXECS
    );
    // The first event isn't sent again by contract, so it may be missing; nothing else may.
    let last = 1 + 2 * EXECS + 1;
    assert_eq!(number("SELECT max(sequence) FROM events"), last);
    let missing = last - number("SELECT count(sequence) FROM events");
    assert!(
        missing <= 1,
        "{missing} events are missing, and {} of them the first",
        number("SELECT count(*) = 0 FROM events WHERE sequence = 1")
    );
    assert_eq!(number("SELECT count(*) FROM losses"), 0);
    assert_eq!(
        number("SELECT count(*) FROM sessions WHERE end_reason = 'completed'"),
        1
    );
}
