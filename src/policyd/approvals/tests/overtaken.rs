//! What rules, operators and disks have overtaken: nothing is decided by what held before.

use std::sync::Arc;

use tokio::sync::watch;

use super::*;
use crate::policyd::approvals::desk::Anew;

/// A desk that follows rules, and where they come into force.
fn following(more: &str) -> (Desk, watch::Sender<Arc<Rules>>) {
    let desk = desk();
    let (in_force, followed) = watch::channel(Arc::new(rules(more)));
    desk.follow(followed);
    (desk, in_force)
}

fn parsed(text: &str) -> Arc<Rules> {
    Arc::new(Rules::parse("x.rules", text.to_owned()).expect("rules"))
}

async fn approve(desk: &Desk, id: &str, scope: &pb::Scope) -> pb::Approval {
    let operator = Operator::named("ada", Duty::Operate).expect("a name");
    let resolved = desk.resolve(id, pb::Decision::Approve, "", scope, &operator);
    let resolved = resolved.await.expect("an answer");
    let is_closed = resolved.outcome == pb::ResolveOutcome::ClosedBefore;
    assert_eq!(
        is_closed,
        resolved.approval.state() != pb::ApprovalState::Approved
    );
    resolved.approval
}

fn anew(asker: &mut Asker) -> Anew {
    match asker.controls.try_recv() {
        Ok(Control::Anew(anew)) => *anew,
        other => panic!("{other:?}"),
    }
}

fn note(approval: &pb::Approval) -> &str {
    let resolution = approval.resolution.as_ref();
    resolution.map_or("", |resolution| &resolution.note)
}

/// Nothing has looked at what waits since the rules came into force: approving does.
#[tokio::test]
async fn an_operator_can_not_approve_what_the_rules_ask_no_longer() {
    for (text, is_run) in [
        (
            "prefix_rule([\"uname\"], \"deny\", justification = \"Not now.\")",
            false,
        ),
        ("prefix_rule([\"uname\"], \"run\")", true),
    ] {
        let (desk, in_force) = following(", execution = \"unsandboxed\"");
        let mut asker = Asker::new('a');
        asker.rules = rules(", execution = \"unsandboxed\"");
        assert!(is_pending(&asker.ask(&desk, 1, "x", SystemTime::now())));
        let later = parsed(text);
        in_force.send_replace(Arc::clone(&later));
        let scope = pb::Scope {
            reach: pb::ScopeReach::Session.into(),
            ..pb::Scope::default()
        };
        let approval = approve(&desk, &only(&desk).approval_id, &scope).await;
        assert_eq!(approval.state(), pb::ApprovalState::Withdrawn, "{text}");
        assert_eq!(note(&approval), "the rules ask no longer");
        assert_eq!(desk.grants(), []);
        let told = anew(&mut asker);
        let Answered::Decided(decided) = told.answered else {
            panic!("{told:?}");
        };
        let verdict = decided.verdict;
        assert_eq!((told.exec_id, verdict.exec_id), (1, 1));
        assert_eq!(verdict.policy_revision, later.revision());
        match verdict.decision {
            Some(v1::verdict::Decision::Run(_)) => assert!(is_run),
            Some(v1::verdict::Decision::Deny(deny)) => {
                assert!(!is_run);
                assert_eq!(deny.reason, "Not now.");
            }
            other => panic!("{other:?}"),
        }
        assert!(asker.controls.try_recv().is_err());
    }
}

/// What it comes to, or who is to say so, isn't what the operator saw.
#[tokio::test]
async fn what_the_rules_ask_otherwise_is_another_approval() {
    for more in [
        ", name = \"kernel\", execution = \"unsandboxed\"",
        ", name = \"kernel\", asks = \"another team\"",
        ", name = \"other\"",
    ] {
        let (desk, in_force) = following(", name = \"kernel\"");
        let mut asker = Asker::new('a');
        assert!(is_pending(&asker.ask(&desk, 1, "x", SystemTime::now())));
        let before = only(&desk).approval_id;
        in_force.send_replace(Arc::new(rules(more)));
        let approval = approve(&desk, &before, &pb::Scope::default()).await;
        assert_eq!(approval.state(), pb::ApprovalState::Withdrawn, "{more}");
        let Answered::Pending { approval_id, .. } = anew(&mut asker).answered else {
            panic!("it is asked about: {more}");
        };
        assert_ne!(approval_id, before, "{more}");
        let approval = approve(&desk, &approval_id, &pb::Scope::default()).await;
        assert_eq!(approval.state(), pb::ApprovalState::Approved, "{more}");
        assert_eq!(asker.verdict().reason_code, "approval.approved");
    }
}

#[tokio::test]
async fn what_the_rules_ask_as_before_waits_on_and_is_decided_by_the_rules_in_force() {
    let (desk, in_force) = following(", name = \"kernel\"");
    let mut asker = Asker::new('a');
    assert!(is_pending(&asker.ask(&desk, 1, "x", SystemTime::now())));
    let id = only(&desk).approval_id;
    let later = Arc::new(rules(
        ", name = \"kernel\", justification = \"In other words.\"",
    ));
    in_force.send_replace(Arc::clone(&later));
    let approval = approve(&desk, &id, &pb::Scope::default()).await;
    assert_eq!(approval.state(), pb::ApprovalState::Approved);
    let verdict = asker.verdict();
    assert_eq!(verdict.policy_revision, later.revision());
    assert!(asker.controls.try_recv().is_err());
}

/// Its gate asks again when it comes back, by the rules that are in force then.
#[tokio::test]
async fn an_approval_whose_gate_is_away_is_withdrawn_as_well() {
    let (desk, in_force) = following(", name = \"kernel\"");
    let asker = Asker::new('a');
    let now = SystemTime::now();
    assert!(is_pending(&asker.ask(&desk, 1, "x", now)));
    desk.call_ended(&asker.call, now);
    in_force.send_replace(parsed("prefix_rule([\"uname\"], \"deny\")"));
    let approval = approve(&desk, &only(&desk).approval_id, &pb::Scope::default()).await;
    assert_eq!(approval.state(), pb::ApprovalState::Withdrawn);
    assert_eq!(note(&approval), "the rules ask no longer");
}

#[tokio::test]
async fn what_a_session_waits_for_is_denied_when_an_operator_ends_it() {
    let (desk, mut asker) = (desk(), Asker::new('a'));
    let now = SystemTime::now();
    let other = Asker::new('b');
    assert!(is_pending(&asker.ask(&desk, 1, "x", now)));
    let id = only(&desk).approval_id;
    assert!(is_pending(&other.ask(&desk, 1, "x", now)));
    desk.session_terminated(&asker.session.id, "ended by operator:ada: lunch", now);
    let Answered::Decided(decided) = anew(&mut asker).answered else {
        panic!("it waits on");
    };
    assert_eq!(decided.verdict.reason_code, "session.terminated");
    let approval = approve(&desk, &id, &pb::Scope::default()).await;
    assert_eq!(approval.state(), pb::ApprovalState::Withdrawn);
    assert_eq!(
        note(&approval),
        "the session was ended by operator:ada: lunch"
    );
    assert!(asker.controls.try_recv().is_err());
    assert_eq!(desk.watch().0.len(), 1);
}

/// Whoever was told that nothing is decided finds it so, whenever the disk comes back.
#[tokio::test(start_paused = true)]
async fn a_decision_that_was_given_up_is_not_written_later() {
    let directory = tempfile::tempdir().expect("a directory");
    let open = || Ledger::open(directory.path(), 100).expect("a ledger");
    let (ledger, loaded) = open();
    let now = SystemTime::now();
    let desk = Desk::new(Some(ledger.clone()), loaded.kept, now);
    let asker = Asker::new('a');
    let path = directory.path().join("operations.sqlite");
    let other = rusqlite::Connection::open(path).expect("a database");
    other.execute_batch("BEGIN IMMEDIATE").expect("a lock");
    // The disk has this one, and the decision comes behind it.
    assert!(is_pending(&asker.ask(&desk, 1, "x", now)));
    let id = only(&desk).approval_id;
    let operator = Operator::named("ada", Duty::Operate).expect("a name");
    let scope = pb::Scope {
        reach: pb::ScopeReach::Session.into(),
        ..pb::Scope::default()
    };
    let resolved = desk.resolve(&id, pb::Decision::Approve, "", &scope, &operator);
    let error = resolved.await.expect_err("too slow").to_string();
    assert!(error.contains("the disk is too slow"), "{error}");
    assert_eq!(only(&desk).state(), pb::ApprovalState::Pending);
    other.execute_batch("COMMIT").expect("released");
    drop(desk);
    ledger.close();
    let (ledger, loaded) = open();
    let desk = Desk::new(Some(ledger), loaded.kept, now);
    assert_eq!(only(&desk).state(), pb::ApprovalState::Pending);
    assert_eq!(desk.grants(), []);
}

/// Out of force at once; and until the disk has forgotten it, whoever takes it back is told so.
#[tokio::test]
async fn a_decision_is_forgotten_once_the_disk_has_forgotten_it() {
    let directory = tempfile::tempdir().expect("a directory");
    let open = || Ledger::open(directory.path(), 100).expect("a ledger");
    let (ledger, loaded) = open();
    let now = SystemTime::now();
    let desk = Desk::new(Some(ledger.clone()), loaded.kept, now);
    let mut asker = Asker::new('a');
    assert!(is_pending(&asker.ask(&desk, 1, "x", now)));
    let id = only(&desk).approval_id;
    let scope = pb::Scope {
        reach: pb::ScopeReach::Session.into(),
        ..pb::Scope::default()
    };
    approve(&desk, &id, &scope).await;
    assert_eq!(asker.verdict().reason_code, "approval.approved");
    let other = rusqlite::Connection::open(directory.path().join("operations.sqlite"));
    let other = other.expect("a database");
    other
        .execute_batch("CREATE TRIGGER broken BEFORE DELETE ON grants BEGIN SELECT RAISE(ABORT, 'no disk'); END")
        .expect("a trigger");
    for _ in 0..2 {
        let error = desk
            .revoke(&id)
            .await
            .expect_err("not recorded")
            .to_string();
        for part in ["holds no longer", "no disk", "started anew"] {
            assert!(error.contains(part), "{part}: {error}");
        }
        assert_eq!(desk.grants(), []);
    }
    assert!(is_pending(&asker.ask(&desk, 2, "x", now)));
    other.execute_batch("DROP TRIGGER broken").expect("dropped");
    let grant = desk.revoke(&id).await.expect("it is written");
    assert_eq!(grant.approval_id, id);
    assert!(desk.revoke(&id).await.is_err());
    drop(desk);
    ledger.close();
    assert!(open().1.kept.grants.is_empty());
}

/// Of what is written together, one that can't be written takes nothing with it.
#[tokio::test]
async fn what_a_session_leaves_is_forgotten_when_the_disk_works_again() {
    let directory = tempfile::tempdir().expect("a directory");
    let open = || Ledger::open(directory.path(), 100).expect("a ledger");
    let (ledger, loaded) = open();
    let now = SystemTime::now();
    let desk = Desk::new(Some(ledger.clone()), loaded.kept, now);
    let mut asker = Asker::new('a');
    assert!(is_pending(&asker.ask(&desk, 1, "x", now)));
    let scope = pb::Scope {
        reach: pb::ScopeReach::Session.into(),
        ..pb::Scope::default()
    };
    approve(&desk, &only(&desk).approval_id, &scope).await;
    assert_eq!(asker.verdict().reason_code, "approval.approved");
    let path = directory.path().join("operations.sqlite");
    let other = rusqlite::Connection::open(path).expect("a database");
    other
        .execute_batch("CREATE TRIGGER broken BEFORE DELETE ON grants BEGIN SELECT RAISE(ABORT, 'no disk'); END")
        .expect("a trigger");
    desk.session_ended(&asker.session.id, now);
    assert!(is_pending(&Asker::new('b').ask(&desk, 1, "x", now)));
    let sweeping = tokio::spawn(desk.clone().keep_swept());
    let count = |what: &str| {
        let query = format!("SELECT count(*) FROM {what}");
        let count = other.query_row(&query, [], |row| row.get::<_, i64>(0));
        count.expect("a number")
    };
    while count("approvals") < 2 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(count("grants"), 1);
    other.execute_batch("DROP TRIGGER broken").expect("dropped");
    while count("grants") > 0 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    sweeping.abort();
}
