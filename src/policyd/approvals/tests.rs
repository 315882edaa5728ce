mod bounds;
mod calls;
mod overtaken;
mod remembered;

use std::time::{Duration, SystemTime};

use tokio::sync::mpsc;

use super::approval::Question;
use super::desk::{Answered, Control, Desk, WAITING_OF_ONE_SESSION};
use super::ledger::{Kept, Ledger};
use crate::model::ExecId;
use crate::pb::approval::v1 as pb;
use crate::pb::v1;
use crate::policyd::identity::GateIdentity;
use crate::policyd::operators::{Duty, Operator};
use crate::policyd::rules::{ExecFacts, Rules, Ruling, SessionFacts};

struct Asker {
    rules: Rules,
    session: SessionFacts,
    call: mpsc::Sender<Control>,
    controls: mpsc::Receiver<Control>,
}

impl Asker {
    fn new(session: char) -> Self {
        let (call, controls) = mpsc::channel(8);
        Self {
            rules: rules(", name = \"kernel\""),
            session: SessionFacts {
                id: session.to_string().repeat(32),
                gate: GateIdentity::token("ci").expect("a name"),
                ..SessionFacts::default()
            },
            call,
            controls,
        }
    }

    /// As a gate that connects again.
    fn reconnect(&mut self) {
        (self.call, self.controls) = mpsc::channel(8);
    }

    fn ruling(&self) -> Ruling {
        self.rules.evaluate(&ExecFacts {
            id: ExecId(1),
            file: b"/usr/bin/uname",
            argv: Vec::new(),
            workdir: b"/",
            environment_names: Vec::new(),
            environment: Vec::new(),
            process: crate::model::ProcessIdentity::default(),
            parent: None,
            session: &self.session,
            redacted_arguments: &[],
            executable: None,
            workdir_protection: v1::Protection::Unspecified,
        })
    }

    fn ask(&self, desk: &Desk, exec_id: u64, argument: &str, now: SystemTime) -> Answered {
        self.put(desk, &exec(exec_id, argument), now)
    }

    fn put(&self, desk: &Desk, exec: &v1::ExecRequested, now: SystemTime) -> Answered {
        let ruling = self.ruling();
        let question = Question {
            session: &self.session,
            exec,
            ruling: &ruling,
            ask: ruling.ask.as_ref().expect("a question"),
            revision: "r",
        };
        desk.ask(&question, &self.call, now)
    }

    fn verdict(&mut self) -> v1::Verdict {
        match self.controls.try_recv() {
            Ok(Control::Verdict(decided)) => decided.verdict,
            other => panic!("{other:?}"),
        }
    }
}

/// Rules that ask about the one program, and say more of it besides.
fn rules(more: &str) -> Rules {
    let rules = format!("prefix_rule([\"uname\"], \"ask\", within = \"2m\"{more})");
    Rules::parse("x.rules", rules).expect("rules")
}

fn exec(exec_id: u64, argument: &str) -> v1::ExecRequested {
    v1::ExecRequested {
        exec_id,
        file: b"/usr/bin/uname"[..].into(),
        arguments: vec![b"uname"[..].into(), argument.to_owned().into_bytes().into()],
        workdir: b"/work"[..].into(),
        ..v1::ExecRequested::default()
    }
}

fn desk() -> Desk {
    Desk::new(None, Kept::default(), SystemTime::now())
}

fn is_pending(answered: &Answered) -> bool {
    matches!(answered, Answered::Pending { .. })
}

fn code(answered: Answered) -> String {
    match answered {
        Answered::Decided(decided) => {
            let verdict = decided.verdict;
            assert!(
                !matches!(verdict.decision, Some(v1::verdict::Decision::Deny(_)))
                    || verdict.reason_code != "approval.approved"
            );
            verdict.reason_code
        }
        Answered::Pending { .. } => panic!("{answered:?}"),
    }
}

fn only(desk: &Desk) -> pb::Approval {
    let (mut found, more) = desk.list(None, u64::MAX, 10, usize::MAX);
    assert_eq!((found.len(), more), (1, None));
    found.remove(0)
}

async fn resolve(desk: &Desk, decision: pb::Decision, scope: pb::Scope) -> pb::ResolveOutcome {
    let (open, _) = desk.watch();
    let id = open
        .first()
        .map_or_else(|| only(desk).approval_id, |it| it.approval_id.clone());
    let operator = Operator::named("ada", Duty::Operate).expect("a name");
    let resolved = desk.resolve(&id, decision, "", &scope, &operator).await;
    resolved.expect("a decision").outcome
}

#[test]
fn what_nobody_decides_expires_and_says_so() {
    let (desk, mut asker) = (desk(), Asker::new('a'));
    let now = SystemTime::now();
    assert!(is_pending(&asker.ask(&desk, 1, "x", now)));
    desk.sweep(now + Duration::from_secs(119));
    assert!(asker.controls.try_recv().is_err());
    desk.sweep(now + Duration::from_secs(120));
    let verdict = asker.verdict();
    assert_eq!(verdict.reason_code, "approval.expired");
    assert!(matches!(
        verdict.decision,
        Some(v1::verdict::Decision::Deny(_))
    ));
    // Asked again by a gate that missed it.
    assert_eq!(code(asker.ask(&desk, 1, "x", now)), "approval.expired");
}

#[tokio::test]
async fn a_gate_that_comes_back_finds_its_approval_or_what_was_decided() {
    let (desk, mut asker) = (desk(), Asker::new('a'));
    let now = SystemTime::now();
    assert!(is_pending(&asker.ask(&desk, 1, "x", now)));
    desk.call_ended(&asker.call, now);
    asker.reconnect();
    assert!(is_pending(&asker.ask(&desk, 1, "x", now)));
    let id = only(&desk).approval_id;
    // It doesn't count as away any more: a minute after it went, nothing has been withdrawn.
    desk.sweep(now + Duration::from_secs(61));
    assert_eq!(only(&desk).state(), pb::ApprovalState::Pending);

    desk.call_ended(&asker.call, now);
    let scope = pb::Scope::default();
    let outcome = resolve(&desk, pb::Decision::Approve, scope).await;
    assert_eq!(outcome, pb::ResolveOutcome::Resolved);
    asker.reconnect();
    assert_eq!(code(asker.ask(&desk, 1, "x", now)), "approval.approved");
    // The same number for another command is another question.
    assert!(is_pending(&asker.ask(&desk, 1, "y", now)));
    assert_ne!(desk.watch().0[0].approval_id, id);
}

/// A person decides what was shown: nothing else follows from it, though it is asked under the same number.
#[tokio::test]
async fn what_is_asked_anew_and_differently_withdraws_what_was_open() {
    for change in ["command", "rule", "people", "effect"] {
        let (desk, mut asker) = (desk(), Asker::new('a'));
        let now = SystemTime::now();
        assert!(is_pending(&asker.ask(&desk, 1, "x", now)));
        let before = only(&desk).approval_id;
        let mut argument = "x";
        match change {
            "command" => argument = "y",
            "rule" => asker.rules = rules(", name = \"other\""),
            "people" => asker.rules = rules(", name = \"kernel\", asks = \"another team\""),
            _ => asker.rules = rules(", name = \"kernel\", execution = \"unsandboxed\""),
        }
        assert!(is_pending(&asker.ask(&desk, 1, argument, now)), "{change}");
        let (open, _) = desk.watch();
        assert_eq!(open.len(), 1, "{change}");
        assert_ne!(open[0].approval_id, before, "{change}");
        let closed = desk.get(&before).expect("it is known");
        assert_eq!(closed.state(), pb::ApprovalState::Withdrawn, "{change}");
        let note = closed.resolution.expect("how it was closed").note;
        assert_eq!(note, "it was asked about anew, and differently");
        // Whoever saw it meanwhile decides nothing.
        let operator = Operator::named("ada", Duty::Operate).expect("a name");
        let scope = pb::Scope::default();
        let resolved = desk.resolve(&before, pb::Decision::Approve, "", &scope, &operator);
        let outcome = resolved.await.expect("it was closed").outcome;
        assert_eq!(outcome, pb::ResolveOutcome::ClosedBefore, "{change}");
        assert!(asker.controls.try_recv().is_err(), "{change}");
    }
}

#[test]
fn an_approval_whose_gate_stays_away_is_withdrawn() {
    let (desk, asker) = (desk(), Asker::new('a'));
    let now = SystemTime::now();
    assert!(is_pending(&asker.ask(
        &desk,
        1,
        "x",
        now - Duration::from_secs(1)
    )));
    desk.call_ended(&asker.call, now - Duration::from_secs(1));
    desk.sweep(now + Duration::from_secs(58));
    assert_eq!(only(&desk).state(), pb::ApprovalState::Pending);
    desk.sweep(now + Duration::from_secs(59));
    assert_eq!(only(&desk).state(), pb::ApprovalState::Withdrawn);
    // Should it come back after all, it asks anew.
    assert!(is_pending(&asker.ask(&desk, 1, "x", now)));
    desk.session_ended(&asker.session.id, now);
    assert!(desk.watch().0.is_empty());
}

#[test]
fn what_waits_is_bounded_and_closing_makes_room() {
    let (desk, asker) = (desk(), Asker::new('a'));
    let now = SystemTime::now();
    for exec in 0..WAITING_OF_ONE_SESSION as u64 {
        assert!(is_pending(&asker.ask(&desk, exec, "x", now)), "{exec}");
    }
    assert_eq!(
        code(asker.ask(&desk, 9_999, "x", now)),
        "approval.overloaded"
    );
    let other = Asker::new('b');
    assert!(is_pending(&other.ask(&desk, 1, "x", now)));
    desk.withdraw(&asker.session.id, 7, "gone", now);
    assert!(is_pending(&asker.ask(&desk, 9_999, "x", now)));
    desk.session_ended(&asker.session.id, now);
    assert_eq!(desk.watch().0.len(), 1);
    let huge = "x".repeat(64 << 10);
    assert_eq!(
        code(asker.ask(&desk, 10_000, &huge, now)),
        "approval.too_long"
    );
}

#[tokio::test]
async fn a_remembered_denial_denies_and_ends_with_its_session() {
    let (desk, mut asker) = (desk(), Asker::new('a'));
    let now = SystemTime::now();
    assert!(is_pending(&asker.ask(&desk, 1, "x", now)));
    let scope = pb::Scope {
        reach: pb::ScopeReach::Session.into(),
        ..pb::Scope::default()
    };
    resolve(&desk, pb::Decision::Deny, scope).await;
    assert_eq!(asker.verdict().reason_code, "approval.denied");
    assert_eq!(
        code(asker.ask(&desk, 2, "x", now)),
        "approval.remembered_denial"
    );
    assert!(is_pending(&asker.ask(&desk, 3, "y", now)));
    assert!(is_pending(&Asker::new('b').ask(&desk, 1, "x", now)));
    desk.session_ended(&asker.session.id, now);
    assert!(is_pending(&asker.ask(&desk, 4, "x", now)));
    assert_eq!(desk.grants(), []);
}

#[tokio::test]
async fn a_ledger_gives_back_what_is_open_what_was_decided_and_what_is_remembered() {
    let directory = tempfile::tempdir().expect("a directory");
    let now = SystemTime::now();
    let mut asker = Asker::new('a');
    let later = now + Duration::from_secs(1);
    let open = || {
        let (ledger, loaded) = Ledger::open(directory.path(), 100).expect("a ledger");
        (Desk::new(Some(ledger.clone()), loaded.kept, now), ledger)
    };
    let (desk, ledger) = open();
    assert!(is_pending(&asker.ask(&desk, 1, "x", now)));
    let scope = pb::Scope {
        reach: pb::ScopeReach::Gate.into(),
        valid_for: Some(prost_types::Duration {
            seconds: 3_600,
            nanos: 0,
        }),
        ..pb::Scope::default()
    };
    resolve(&desk, pb::Decision::Approve, scope).await;
    assert!(is_pending(&asker.ask(&desk, 2, "y", later)));
    let (before, grants) = (desk.list(None, u64::MAX, 10, usize::MAX), desk.grants());
    drop(desk);
    ledger.close();

    let (desk, _ledger) = open();
    let after = desk.list(None, u64::MAX, 10, usize::MAX);
    assert_eq!(after.0, before.0);
    assert_eq!(desk.grants(), grants);
    asker.reconnect();
    assert_eq!(code(asker.ask(&desk, 1, "x", now)), "approval.approved");
    assert_eq!(code(asker.ask(&desk, 3, "x", now)), "approval.remembered");
    assert!(is_pending(&asker.ask(&desk, 2, "y", now)));
    assert_eq!(desk.watch().0.len(), 1);
}

#[tokio::test]
async fn a_decision_that_can_not_be_recorded_is_none() {
    let directory = tempfile::tempdir().expect("a directory");
    let (ledger, loaded) = Ledger::open(directory.path(), 100).expect("a ledger");
    let now = SystemTime::now();
    let desk = Desk::new(Some(ledger), loaded.kept, now);
    let mut asker = Asker::new('a');
    assert!(is_pending(&asker.ask(&desk, 1, "x", now)));
    let other = rusqlite::Connection::open(directory.path().join("operations.sqlite"));
    let other = other.expect("a database");
    other
        .execute_batch("CREATE TRIGGER broken BEFORE INSERT ON approvals WHEN NEW.state <> 1 BEGIN SELECT RAISE(ABORT, 'no disk'); END")
        .expect("a trigger");
    let id = only(&desk).approval_id;
    let operator = Operator::named("ada", Duty::Operate).expect("a name");
    let scope = pb::Scope::default();
    let resolve = || desk.resolve(&id, pb::Decision::Approve, "", &scope, &operator);
    let error = resolve().await.expect_err("not recorded").to_string();
    assert!(error.contains("no disk"), "{error}");
    assert!(asker.controls.try_recv().is_err());
    assert_eq!(only(&desk).state(), pb::ApprovalState::Pending);
    other.execute_batch("DROP TRIGGER broken").expect("dropped");
    resolve().await.expect("recorded");
    assert_eq!(asker.verdict().reason_code, "approval.approved");
}

#[tokio::test]
async fn a_decision_whose_database_was_removed_is_none() {
    let directory = tempfile::tempdir().expect("a directory");
    let (ledger, loaded) = Ledger::open(directory.path(), 100).expect("a ledger");
    let now = SystemTime::now();
    let desk = Desk::new(Some(ledger), loaded.kept, now);
    let mut asker = Asker::new('a');
    assert!(is_pending(&asker.ask(&desk, 1, "x", now)));
    let (path, away) = ("operations.sqlite", "away");
    let (path, away) = (directory.path().join(path), directory.path().join(away));
    std::fs::rename(&path, &away).expect("moved");
    let id = only(&desk).approval_id;
    let operator = Operator::named("ada", Duty::Operate).expect("a name");
    let scope = pb::Scope::default();
    let resolve = || desk.resolve(&id, pb::Decision::Approve, "", &scope, &operator);
    let error = resolve().await.expect_err("not recorded").to_string();
    assert!(error.contains("operations.sqlite was removed"), "{error}");
    assert_eq!(only(&desk).state(), pb::ApprovalState::Pending);
    std::fs::rename(&away, &path).expect("moved back");
    resolve().await.expect("recorded");
    assert_eq!(asker.verdict().reason_code, "approval.approved");
}

#[test]
fn what_can_not_be_opened_is_called_by_its_name() {
    let directory = tempfile::tempdir().expect("a directory");
    std::fs::create_dir(directory.path().join("operations.sqlite")).expect("in its place");
    let error = Ledger::open(directory.path(), 100).expect_err("a directory");
    let error = error.to_string();
    assert!(
        error.starts_with("creating the store of approvals and ended sessions /"),
        "{error}"
    );
}
