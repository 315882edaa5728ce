//! What the calls of those who decide get.

use std::sync::Arc;

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tonic::{Code, Request, Status};

use super::*;
use crate::pb::approval::v1::approval_service_server::ApprovalService;
use crate::policyd::approvals::Approvals;
use crate::policyd::authenticate::OperatorCaller;
use crate::policyd::tokens::{Credential, TokenDigest, Tokens};

/// Only failures take as long.
const PATIENCE: Duration = Duration::from_secs(30);

/// The service, and what keeps its operators known.
fn service(desk: &Desk) -> (Approvals, watch::Sender<Arc<Tokens<Operator>>>) {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("operators");
    let line = format!("ada {}\n", TokenDigest::of(b"a token"));
    std::fs::write(&path, line).expect("a file");
    let (known, operators) = watch::channel(Arc::new(Tokens::load(&path).expect("tokens")));
    let service = Approvals::new(desk.clone(), operators, CancellationToken::new());
    (service, known)
}

fn by_ada<T>(message: T) -> Request<T> {
    let mut request = Request::new(message);
    request.extensions_mut().insert(OperatorCaller {
        operator: Operator::named("ada", Duty::Operate).expect("a name"),
        credential: Credential::Token(TokenDigest::of(b"a token")),
    });
    request
}

type Told = Result<pb::WatchApprovalsResponse, Status>;

async fn next(changes: &mut mpsc::Receiver<Told>) -> Told {
    let next = tokio::time::timeout(PATIENCE, changes.recv()).await;
    next.expect("something comes").expect("it doesn't just end")
}

#[tokio::test]
async fn a_watcher_may_be_behind_and_is_told_when_it_has_missed_something() {
    let (desk, asker) = (desk(), Asker::new('a'));
    let now = SystemTime::now();
    assert!(is_pending(&asker.ask(&desk, 0, "x", now)));
    let (service, _known) = service(&desk);
    let request = by_ada(pb::WatchApprovalsRequest::default());
    let changes = service.watch_approvals(request).await.expect("a stream");
    let mut changes = changes.into_inner().into_inner();
    for expected in [pb::ApprovalChange::Existing, pb::ApprovalChange::CaughtUp] {
        assert_eq!(next(&mut changes).await.expect("news").change(), expected);
    }
    // Two changes each, while nobody reads: nothing else has its turn until something is waited for.
    let happen = |numbers: std::ops::Range<u64>| {
        for exec_id in numbers {
            assert!(
                is_pending(&asker.ask(&desk, exec_id, "x", now)),
                "{exec_id}"
            );
            desk.withdraw(&asker.session.id, exec_id, "gone", now);
        }
    };
    happen(1..501);
    for exec_id in 1..501 {
        for expected in [pb::ApprovalChange::Opened, pb::ApprovalChange::Closed] {
            let told = next(&mut changes).await.expect("news");
            let exec = told
                .approval
                .as_ref()
                .and_then(|approval| approval.exec.as_ref());
            assert_eq!(
                (told.change(), exec.map(|exec| exec.exec_id)),
                (expected, Some(exec_id))
            );
        }
    }
    happen(501..1_201);
    let status = next(&mut changes).await.expect_err("it has missed some");
    assert_eq!(status.code(), Code::DataLoss, "{status}");
    assert!(
        status.message().contains("were missed; watch again"),
        "{status}"
    );
}

/// As one who is none any more, and not told any other way than who calls now.
#[tokio::test]
async fn a_watcher_who_becomes_an_auditor_watches_no_longer() {
    let (desk, asker) = (desk(), Asker::new('a'));
    let (service, known) = service(&desk);
    let request = by_ada(pb::WatchApprovalsRequest::default());
    let changes = service.watch_approvals(request).await.expect("a stream");
    let mut changes = changes.into_inner().into_inner();
    let caught_up = next(&mut changes).await.expect("news");
    assert_eq!(caught_up.change(), pb::ApprovalChange::CaughtUp);
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("operators");
    let line = format!("ada {} auditor\n", TokenDigest::of(b"a token"));
    std::fs::write(&path, line).expect("a file");
    known.send_replace(Arc::new(Tokens::load(&path).expect("tokens")));
    let status = next(&mut changes).await.expect_err("the end");
    assert_eq!(status.code(), Code::PermissionDenied, "{status}");
    assert!(status.message().contains("an auditor's now"), "{status}");
    assert!(is_pending(&asker.ask(&desk, 1, "x", SystemTime::now())));
    assert!(changes.recv().await.is_none());
}

#[tokio::test]
async fn a_note_has_a_bound_and_a_longer_one_decides_nothing() {
    let (desk, mut asker) = (desk(), Asker::new('a'));
    assert!(is_pending(&asker.ask(&desk, 1, "x", SystemTime::now())));
    let (service, _known) = service(&desk);
    let deny = |length: usize| {
        service.resolve_approval(by_ada(pb::ResolveApprovalRequest {
            approval_id: only(&desk).approval_id,
            decision: pb::Decision::Deny.into(),
            note: "x".repeat(length),
            scope: None,
        }))
    };
    let status = deny(1_025).await.expect_err("it is too long");
    assert_eq!(status.code(), Code::InvalidArgument, "{status}");
    assert!(status.message().contains("1024 at most"), "{status}");
    assert_eq!(only(&desk).state(), pb::ApprovalState::Pending);
    assert!(asker.controls.try_recv().is_err());
    deny(1_024).await.expect("it is taken");
    assert_eq!(asker.verdict().reason_code, "approval.denied");
}
