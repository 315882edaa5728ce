//! What operators decide, of calls that go on whatever they are told: rules and ended sessions come before it.

use std::process::Command;

use execgate::pb::v1;
use serde_json::Value;
use tonic::transport::Channel;
use v1::session_request::Event;
use v1::session_response::Answer;

use crate::process::{Done, EXECGATE, run};
use crate::scenario;
use crate::service::{Place, Service, digest};
use crate::stranger::{Call, SESSION, connect, requested, started};

const ASKS: &str =
    "prefix_rule([\"true\"], \"ask\", execution = \"unsandboxed\", within = \"10m\")";

struct Stage {
    /// What the service is started with besides.
    more: &'static [&'static str],
    place: Place,
    /// There unless it is being started anew.
    service: Option<Service>,
    channel: Channel,
}

fn serve(place: &Place, more: &'static [&'static str]) -> Service {
    let operators = place.path("operators");
    let mut arguments: Vec<&dyn AsRef<std::ffi::OsStr>> = vec![&"--operators", &operators];
    arguments.extend(more.iter().map(|word| word as &dyn AsRef<std::ffi::OsStr>));
    place.serve(&arguments)
}

impl Stage {
    async fn new() -> Self {
        Self::with(&[]).await
    }

    async fn with(more: &'static [&'static str]) -> Self {
        let place = Place::new();
        std::fs::write(place.path("x.rules"), ASKS).expect("rules");
        let line = format!("ada {}\n", digest("op"));
        std::fs::write(place.path("operators"), line).expect("a file");
        place.secret("op.token", "op");
        let service = serve(&place, more);
        let channel = connect(&service.address).await;
        Self {
            more,
            place,
            service: Some(service),
            channel,
        }
    }

    fn service(&self) -> &Service {
        self.service.as_ref().expect("a service")
    }

    async fn restart(&mut self) {
        self.service().signal("TERM");
        self.service().wait_for_log("stopping").await;
        self.service = None;
        let service = serve(&self.place, self.more);
        self.channel = connect(&service.address).await;
        self.service = Some(service);
    }

    async fn open(&self, sequence: u64, opening: Event) -> Call {
        let call = Call::open(self.channel.clone(), None).await;
        let call = call.expect("a call");
        call.tell(sequence, opening).await;
        call
    }

    fn operate(&self, arguments: &[&str]) -> Done {
        let mut command = Command::new(EXECGATE);
        command.args(arguments).env_clear();
        command.args(["--service", &self.service().http()]);
        command.arg("--service-token-file");
        run(command.arg(self.place.path("op.token")))
    }

    fn json(&self, arguments: &[&str]) -> Value {
        let done = self.operate(&[arguments, &["--output", "json"]].concat());
        serde_json::from_str(&done.exits(0).output()).unwrap_or_default()
    }

    /// The one approval that is open.
    fn waiting(&self) -> String {
        let approval = self.json(&["approvals", "list"]);
        approval["approval"].as_str().expect("an id").to_owned()
    }
}

/// The next that is told of an exec or of the session's end.
async fn told(call: &mut Call) -> Answer {
    loop {
        match call.next().await.expect("the call goes on") {
            Some(
                Answer::SessionAccepted(_)
                | Answer::EventsAcknowledged(_)
                | Answer::ForgetVerdicts(_),
            ) => {}
            other => return other.expect("an answer"),
        }
    }
}

async fn pending(call: &mut Call, exec_id: u64) {
    match told(call).await {
        Answer::VerdictPending(pending) => assert_eq!(pending.exec_id, exec_id),
        other => panic!("{other:?}"),
    }
}

/// Of a denial: its code and reason.
async fn denied(call: &mut Call, exec_id: u64) -> (String, String) {
    match told(call).await {
        Answer::Verdict(verdict) => {
            assert_eq!(verdict.exec_id, exec_id);
            match verdict.decision {
                Some(v1::verdict::Decision::Deny(deny)) => (verdict.reason_code, deny.reason),
                other => panic!("{other:?}"),
            }
        }
        other => panic!("{other:?}"),
    }
}

async fn ends(call: &mut Call) {
    match told(call).await {
        Answer::TerminateSession(end) => assert!(end.reason.contains("ended by operator:ada")),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn what_waits_gets_what_rules_say_that_come_into_force_meanwhile() {
    scenario(async {
        let stage = Stage::new().await;
        let mut call = stage.open(1, started(SESSION, None)).await;
        call.tell(2, requested(1)).await;
        pending(&mut call, 1).await;
        let approval = stage.waiting();
        let rules = "prefix_rule([\"true\"], \"deny\", justification = \"Not any more.\")";
        std::fs::write(stage.place.path("x.rules"), rules).expect("rules");
        stage.service().signal("HUP");
        stage.service().wait_for_log("are in force").await;
        let done = stage.operate(&["approvals", "approve", &approval]);
        let said = done.exits(3).output();
        assert!(said.contains("the rules ask no longer"), "{said}");
        let (_, reason) = denied(&mut call, 1).await;
        assert_eq!(reason, "Not any more.");
        // Without anybody who approves, too.
        std::fs::write(stage.place.path("x.rules"), ASKS).expect("rules");
        stage.service().signal("HUP");
        let mut exec_id = 1;
        let approval = loop {
            exec_id += 1;
            call.tell(exec_id + 1, requested(exec_id)).await;
            match told(&mut call).await {
                Answer::VerdictPending(_) => break stage.waiting(),
                // They aren't in force yet.
                Answer::Verdict(_) => {}
                other => panic!("{other:?}"),
            }
        };
        std::fs::write(stage.place.path("x.rules"), rules).expect("rules");
        stage.service().signal("HUP");
        let (_, reason) = denied(&mut call, exec_id).await;
        assert_eq!(reason, "Not any more.");
        let shown = stage.json(&["approvals", "show", &approval]);
        assert_eq!(
            (&shown["state"], &shown["note"]),
            (&"withdrawn".into(), &"the rules ask no longer".into())
        );
    })
    .await;
}

#[tokio::test]
async fn all_calls_of_a_session_that_is_ended_are_told_and_nothing_of_it_is_approved() {
    scenario(async {
        let mut stage = Stage::new().await;
        let mut first = stage.open(1, started(SESSION, None)).await;
        first.tell(2, requested(1)).await;
        pending(&mut first, 1).await;
        let approval = stage.waiting();
        let mut second = stage.open(0, started(SESSION, Some(3))).await;
        assert!(matches!(
            second.next().await,
            Ok(Some(Answer::SessionAccepted(_)))
        ));
        let told = stage.json(&["sessions", "terminate", SESSION]);
        assert_eq!(told["gate_told"], true, "{told}");
        ends(&mut second).await;
        ends(&mut first).await;
        let ended = "session.terminated";
        assert_eq!(denied(&mut first, 1).await.0, ended);
        stage.operate(&["approvals", "approve", &approval]).exits(3);
        for (call, exec_id) in [(&mut first, 2), (&mut second, 3)] {
            call.tell(exec_id + 1, requested(exec_id)).await;
            assert_eq!(denied(call, exec_id).await.0, ended);
        }
        // The later call ends, and the session is there still.
        second.finish().await;
        first.tell(4, requested(4)).await;
        assert_eq!(denied(&mut first, 4).await.0, ended);
        let listed = stage.operate(&["sessions", "list"]).exits(0).output();
        assert!(listed.contains(&SESSION[..8]), "{listed}");
        drop(first);
        stage.restart().await;
        let mut again = stage.open(0, started(SESSION, Some(5))).await;
        ends(&mut again).await;
    })
    .await;
}

#[tokio::test]
async fn a_session_that_had_ended_does_not_go_on_when_an_operator_says_so() {
    scenario(async {
        let mut stage = Stage::new().await;
        let call = stage.open(1, started(SESSION, None)).await;
        let ended = v1::SessionEnded {
            reason: v1::SessionEndReason::Completed.into(),
            ..v1::SessionEnded::default()
        };
        call.tell(2, Event::SessionEnded(ended)).await;
        assert_eq!(call.finish().await, (0, tonic::Code::Ok));
        let before = |stage: &Stage| {
            let told = stage.json(&["sessions", "terminate", SESSION]);
            assert_eq!(told["outcome"], "ended-before", "{told}");
            assert_eq!(told["end_reason"], "completed", "{told}");
            // It had ended by itself.
            assert!(
                told["terminated_by"].as_str().is_none_or(str::is_empty),
                "{told}"
            );
        };
        before(&stage);
        before(&stage);
        for _ in 0..2 {
            let mut again = stage.open(0, started(SESSION, Some(3))).await;
            ends(&mut again).await;
            again.tell(3, requested(1)).await;
            assert_eq!(denied(&mut again, 1).await.0, "session.terminated");
            stage.restart().await;
        }
        before(&stage);
    })
    .await;
}

#[tokio::test]
async fn a_decision_that_was_forgotten_does_not_come_back() {
    scenario(async {
        let mut stage = Stage::new().await;
        let mut call = stage.open(1, started(SESSION, None)).await;
        let mut event = requested(1);
        if let Event::ExecRequested(exec) = &mut event {
            exec.workdir = b"/work"[..].into();
        }
        call.tell(2, event).await;
        pending(&mut call, 1).await;
        let approval = stage.waiting();
        let approve = ["approvals", "approve", &approval, "--scope", "session"];
        stage.operate(&approve).exits(0);
        let path = stage.place.path("data/operations.sqlite");
        let database = rusqlite::Connection::open(path).expect("a database");
        database
            .execute_batch(
                "CREATE TRIGGER broken BEFORE DELETE ON grants BEGIN SELECT RAISE(ABORT, 'no disk'); END",
            )
            .expect("a trigger");
        let forget = ["approvals", "forget", &approval];
        let done = stage.operate(&forget);
        assert!(!done.status.success(), "{done}");
        done.says("the decision holds no longer, but it couldn't be recorded")
            .says("no disk");
        let remembered = ["approvals", "remembered"];
        stage.operate(&remembered).exits(0).prints("none\n");
        database.execute_batch("DROP TRIGGER broken").expect("dropped");
        // Whether the service has written it meanwhile or does now.
        let done = stage.operate(&forget);
        assert!(matches!(done.status.code(), Some(0 | 4)), "{done}");
        stage.restart().await;
        stage.operate(&remembered).exits(0).prints("none\n");
    })
    .await;
}

/// The kill switch waits for no disk, and who uses it is told what a restart would forget.
#[tokio::test]
async fn a_session_is_ended_at_once_though_the_disk_can_not_take_that() {
    scenario(async {
        let mut stage = Stage::new().await;
        let mut call = stage.open(1, started(SESSION, None)).await;
        call.tell(2, requested(1)).await;
        pending(&mut call, 1).await;
        let path = stage.place.path("data/operations.sqlite");
        let database = rusqlite::Connection::open(path).expect("a database");
        database
            .execute_batch(
                "CREATE TRIGGER broken BEFORE INSERT ON terminations BEGIN SELECT RAISE(ABORT, 'no disk'); END",
            )
            .expect("a trigger");
        let terminate = ["sessions", "terminate", SESSION];
        let done = stage.operate(&terminate);
        assert!(!done.status.success(), "{done}");
        done.says("the session is ended, but it couldn't be recorded: ")
            .says("no disk")
            .says("end it once more");
        ends(&mut call).await;
        assert_eq!(denied(&mut call, 1).await.0, "session.terminated");
        call.tell(3, requested(2)).await;
        assert_eq!(denied(&mut call, 2).await.0, "session.terminated");
        database.execute_batch("DROP TRIGGER broken").expect("dropped");
        let told = stage.json(&terminate);
        assert_eq!(told["terminated_by"], "operator:ada", "{told}");
        drop(call);
        stage.restart().await;
        let mut again = stage.open(0, started(SESSION, Some(4))).await;
        ends(&mut again).await;
    })
    .await;
}

/// They were counted when they were asked about first, and come all at once.
#[tokio::test]
async fn what_waits_for_a_person_is_within_the_rate_when_its_gate_comes_back() {
    scenario(async {
        let mut stage = Stage::with(&["--execs-per-second", "1"]).await;
        let mut call = stage.open(1, started(SESSION, None)).await;
        let mut waiting = Vec::new();
        let mut exec_id = 0;
        while waiting.len() < 3 {
            exec_id += 1;
            call.tell(exec_id + 1, requested(exec_id)).await;
            match told(&mut call).await {
                Answer::VerdictPending(_) => waiting.push(exec_id),
                Answer::Verdict(verdict) => assert_eq!(verdict.reason_code, "gate.rate_limited"),
                other => panic!("{other:?}"),
            }
        }
        drop(call);
        stage.restart().await;
        let mut again = stage.open(0, started(SESSION, Some(exec_id + 2))).await;
        for exec_id in &waiting {
            again.tell(0, requested(*exec_id)).await;
            pending(&mut again, *exec_id).await;
        }
        // Whoever asks about the same once more asks as everybody does.
        let mut limited = false;
        for _ in 0..9 {
            again.tell(0, requested(waiting[0])).await;
            match told(&mut again).await {
                Answer::Verdict(verdict) => limited |= verdict.reason_code == "gate.rate_limited",
                Answer::VerdictPending(_) => {}
                other => panic!("{other:?}"),
            }
        }
        assert!(limited);
    })
    .await;
}
