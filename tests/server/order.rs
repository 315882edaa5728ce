//! A policy knows what was decided before the process that asked does.

use std::path::PathBuf;
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use execgate::model::{
    EscalationDecision, ExecOutcome, InterceptedExec, SessionEvent, Verdict, WithdrawalReason,
};
use execgate::server::{BoxFuture, EscalationPolicy, PolicyError};

use crate::support::{ESCALATE, Scripted, deny, output, start, wrapped};

/// Does something when it is told that an exec was decided.
struct Told<F> {
    policy: Arc<Scripted>,
    act: F,
}

impl<F: Fn() + Send + Sync + 'static> EscalationPolicy for Told<F> {
    fn decide<'a>(
        &'a self,
        exec: &'a InterceptedExec,
    ) -> BoxFuture<'a, Result<Verdict, PolicyError>> {
        self.policy.decide(exec)
    }

    fn observe(&self, event: SessionEvent) {
        let is_decided = matches!(event, SessionEvent::ExecDecided { .. });
        self.policy.observe(event);
        if is_decided {
            (self.act)();
        }
    }
}

#[tokio::test]
async fn what_a_command_does_comes_after_its_record() {
    for decision in [EscalationDecision::Run, ESCALATE] {
        let directory = tempfile::tempdir().unwrap();
        let made = directory.path().join("made");
        let was_there = Arc::new(Mutex::new(Vec::new()));
        let (look, noted): (PathBuf, _) = (made.clone(), Arc::clone(&was_there));
        let policy = Scripted::always(decision.clone());
        let session = start(Arc::new(Told {
            policy,
            act: move || {
                // Whoever had the answer would be through with it by then.
                std::thread::sleep(Duration::from_millis(300));
                noted.lock().unwrap().push(look.exists());
            },
        }));
        let name = made.to_str().unwrap();
        let got = output(wrapped(&session, "/usr/bin/touch", &["touch", name])).await;
        assert!(got.status.success(), "{decision:?}: {got:?}");
        assert!(made.exists(), "{decision:?}");
        assert_eq!(*was_there.lock().unwrap(), [false], "{decision:?}");
    }
}

/// It was decided, and the process that asked was killed before it had the answer.
#[tokio::test]
async fn a_command_whose_asker_went_before_its_answer_was_not_started() {
    for decision in [EscalationDecision::Run, ESCALATE, deny("not here")] {
        let policy = Scripted::always(decision.clone());
        let asked = Arc::clone(&policy);
        let session = start(Arc::new(Told {
            policy: Arc::clone(&policy),
            act: move || {
                let pid = asked.asked.lock().unwrap()[0].process.pid;
                let killed = Command::new("kill").args(["-9", &pid.to_string()]).status();
                assert!(killed.unwrap().success());
                // Its descriptors are closed when it is a zombie, or gone.
                let lives = || {
                    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"));
                    stat.is_ok_and(|stat| !stat.contains(") Z "))
                };
                while lives() {
                    std::thread::sleep(Duration::from_millis(1));
                }
            },
        }));
        let got = output(wrapped(&session, "/bin/echo", &["echo", "x"])).await;
        assert!(got.stdout.is_empty(), "{decision:?}: {got:?}");
        if !matches!(decision, EscalationDecision::Deny { .. }) {
            let outcome = policy
                .wait_for(|event| match event {
                    SessionEvent::ExecFinished { outcome, .. } => Some(outcome.clone()),
                    _ => None,
                })
                .await;
            assert_eq!(
                outcome,
                ExecOutcome::NotStarted("the asking process went away".to_owned()),
                "{decision:?}"
            );
        }
        session
            .end(
                execgate::model::SessionEndReason::Completed,
                String::new(),
                None,
            )
            .await;
        let told = policy.told.lock().unwrap();
        let withdrawn = told.iter().find(|event| {
            matches!(
                event,
                SessionEvent::ExecWithdrawn {
                    reason: WithdrawalReason::AskerGone,
                    ..
                }
            )
        });
        assert!(withdrawn.is_none(), "{decision:?}: {told:?}");
    }
}
