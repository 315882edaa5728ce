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

/// Rules that come into force while the decision is written.
#[tokio::test]
async fn what_the_rules_ask_no_longer_when_it_is_written_is_not_approved() {
    let directory = tempfile::tempdir().expect("a directory");
    let open = || Ledger::open(directory.path(), 100).expect("a ledger");
    let (ledger, loaded) = open();
    let now = SystemTime::now();
    let desk = Desk::new(Some(ledger.clone()), loaded.kept, now);
    let (in_force, followed) = watch::channel(Arc::new(rules(", name = \"kernel\"")));
    desk.follow(followed);
    let mut asker = Asker::new('a');
    assert!(is_pending(&asker.ask(&desk, 1, "x", now)));
    let id = only(&desk).approval_id;
    let path = directory.path().join("operations.sqlite");
    let other = rusqlite::Connection::open(path).expect("a database");
    other.execute_batch("BEGIN IMMEDIATE").expect("a lock");
    let scope = pb::Scope {
        reach: pb::ScopeReach::Session.into(),
        ..pb::Scope::default()
    };
    let mut approving = Box::pin(approve(&desk, &id, &scope));
    // It looks at the rules that are in force now, and then waits for the disk.
    let waits = tokio::time::timeout(Duration::from_millis(50), &mut approving).await;
    waits.expect_err("the disk is locked");
    in_force.send_replace(parsed("prefix_rule([\"uname\"], \"deny\")"));
    other.execute_batch("COMMIT").expect("released");
    let approval = approving.await;
    assert_eq!(approval.state(), pb::ApprovalState::Withdrawn);
    assert_eq!(note(&approval), "the rules ask no longer");
    assert_eq!(desk.grants(), []);
    let Answered::Decided(decided) = anew(&mut asker).answered else {
        panic!("it waits on");
    };
    let decision = decided.verdict.decision;
    assert!(
        matches!(decision, Some(v1::verdict::Decision::Deny(_))),
        "{decision:?}"
    );
    drop(desk);
    ledger.close();
    let (_ledger, loaded) = open();
    let kept = &loaded.kept.approvals[0].approval;
    assert_eq!(kept.state(), pb::ApprovalState::Withdrawn);
    assert!(loaded.kept.grants.is_empty());
}

/// Found before anything is written of the decision.
#[tokio::test]
async fn what_the_rules_ask_no_longer_is_withdrawn_by_a_disk_that_takes_no_decision() {
    let directory = tempfile::tempdir().expect("a directory");
    let (ledger, loaded) = Ledger::open(directory.path(), 100).expect("a ledger");
    let now = SystemTime::now();
    let desk = Desk::new(Some(ledger), loaded.kept, now);
    let (in_force, followed) = watch::channel(Arc::new(rules(", name = \"kernel\"")));
    desk.follow(followed);
    let asker = Asker::new('a');
    assert!(is_pending(&asker.ask(&desk, 1, "x", now)));
    let path = directory.path().join("operations.sqlite");
    let other = rusqlite::Connection::open(path).expect("a database");
    other
        .execute_batch("CREATE TRIGGER broken BEFORE INSERT ON grants BEGIN SELECT RAISE(ABORT, 'no disk'); END")
        .expect("a trigger");
    in_force.send_replace(parsed("prefix_rule([\"uname\"], \"deny\")"));
    let scope = pb::Scope {
        reach: pb::ScopeReach::Session.into(),
        ..pb::Scope::default()
    };
    let approval = approve(&desk, &only(&desk).approval_id, &scope).await;
    assert_eq!(approval.state(), pb::ApprovalState::Withdrawn);
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
    other
        .execute_batch(
            "CREATE TABLE seen (id TEXT);
             CREATE TRIGGER seen_grants AFTER INSERT ON grants BEGIN INSERT INTO seen VALUES (NEW.approval_id); END;
             BEGIN IMMEDIATE",
        )
        .expect("a lock");
    assert!(is_pending(&asker.ask(&desk, 1, "x", now)));
    let id = only(&desk).approval_id;
    // More than the disk takes at once, so that the decision comes behind what it has.
    for exec_id in 2..=129 {
        assert!(is_pending(&asker.ask(&desk, exec_id, "x", now)));
        desk.withdraw(&asker.session.id, exec_id, "gone", now);
    }
    let state = |desk: &Desk| desk.get(&id).expect("it is known").state();
    let operator = Operator::named("ada", Duty::Operate).expect("a name");
    let scope = pb::Scope {
        reach: pb::ScopeReach::Session.into(),
        ..pb::Scope::default()
    };
    let resolved = desk.resolve(&id, pb::Decision::Approve, "", &scope, &operator);
    let error = resolved.await.expect_err("too slow").to_string();
    assert!(error.contains("the disk is too slow"), "{error}");
    assert_eq!(state(&desk), pb::ApprovalState::Pending);
    other.execute_batch("COMMIT").expect("released");
    drop(desk);
    ledger.close();
    let (ledger, loaded) = open();
    let desk = Desk::new(Some(ledger.clone()), loaded.kept, now);
    assert_eq!(state(&desk), pb::ApprovalState::Pending);
    assert_eq!(desk.grants(), []);
    drop(desk);
    ledger.close();
    let seen = other.query_row("SELECT count(*) FROM seen", [], |row| row.get::<_, i64>(0));
    assert_eq!(seen.expect("a number"), 0);
}

#[tokio::test(start_paused = true)]
async fn a_decision_that_was_given_up_while_the_disk_took_it_is_taken_back() {
    let directory = tempfile::tempdir().expect("a directory");
    let open = || Ledger::open(directory.path(), 100).expect("a ledger");
    let (ledger, loaded) = open();
    let now = SystemTime::now();
    let desk = Desk::new(Some(ledger.clone()), loaded.kept, now);
    let asker = Asker::new('a');
    let path = directory.path().join("operations.sqlite");
    let other = rusqlite::Connection::open(path).expect("a database");
    assert!(is_pending(&asker.ask(&desk, 1, "x", now)));
    let count = |what: &str| {
        let query = format!("SELECT count(*) FROM {what}");
        let count = other.query_row(&query, [], |row| row.get::<_, i64>(0));
        count.expect("a number")
    };
    while count("approvals") < 1 {
        std::thread::sleep(Duration::from_millis(1));
    }
    other.execute_batch("BEGIN IMMEDIATE").expect("a lock");
    let id = only(&desk).approval_id;
    let operator = Operator::named("ada", Duty::Operate).expect("a name");
    let scope = pb::Scope {
        reach: pb::ScopeReach::Session.into(),
        ..pb::Scope::default()
    };
    let mut resolving = Box::pin(desk.resolve(&id, pb::Decision::Approve, "", &scope, &operator));
    assert!(futures_util::FutureExt::now_or_never(&mut resolving).is_none());
    // The writer takes it meanwhile, and waits for the lock with it. (Real time; time itself is paused.)
    std::thread::sleep(Duration::from_millis(300));
    resolving.await.expect_err("too slow");
    other.execute_batch("COMMIT").expect("released");
    drop(desk);
    ledger.close();
    let (_ledger, loaded) = open();
    let kept = &loaded.kept.approvals[0].approval;
    assert_eq!(kept.state(), pb::ApprovalState::Pending);
    assert!(loaded.kept.grants.is_empty());
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
    other.execute_batch("BEGIN IMMEDIATE").expect("a lock");
    // Wherever the writer stops for the lock, one of these is written together with what can't be written.
    assert!(is_pending(&Asker::new('c').ask(&desk, 1, "x", now)));
    desk.session_ended(&asker.session.id, now);
    assert!(is_pending(&Asker::new('b').ask(&desk, 1, "x", now)));
    other.execute_batch("COMMIT").expect("released");
    let sweeping = tokio::spawn(desk.clone().keep_swept());
    let count = |what: &str| {
        let query = format!("SELECT count(*) FROM {what}");
        let count = other.query_row(&query, [], |row| row.get::<_, i64>(0));
        count.expect("a number")
    };
    let becomes = async |what: &str, is_done: fn(i64) -> bool| {
        let done = async {
            while !is_done(count(what)) {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        let done = tokio::time::timeout(Duration::from_secs(30), done).await;
        done.unwrap_or_else(|_| panic!("{} {what}", count(what)));
    };
    becomes("approvals", |count| count == 3).await;
    assert_eq!(count("grants"), 1);
    other.execute_batch("DROP TRIGGER broken").expect("dropped");
    becomes("grants", |count| count == 0).await;
    sweeping.abort();
}
