//! One test for each row of the failure table: how a call can end.

use std::time::Duration;

use execgate::link::OnUnavailable;
use execgate::model::DecisionCode;
use tonic::{Code, Status};

use crate::gate::Gate;
use crate::peer::Peer;
use crate::scenario;

/// A call that ends with `code` decides nothing: the exec is denied as unreachable once the outage
/// isn't tolerated any more. The next exec is asked on a new call.
async fn ends_and_is_called_again(code: Code) {
    let mut peer = Peer::start().await;
    let gate = Gate::with(&peer.endpoint, |options| {
        options.outage_tolerance = Duration::ZERO;
    });
    let asked = gate.ask(1);
    let mut call = peer.call().await;
    call.started().await;
    call.question().await;
    match code {
        Code::Ok => call.end(),
        code => call.fail(Status::new(code, "row \u{7}")).await,
    }
    let reason = asked.is_denied(DecisionCode::Unreachable).await;
    assert!(!reason.contains('\u{7}'), "{reason:?}");

    let asked = gate.ask(2);
    let mut call = peer.call().await;
    call.asked(2).await;
    call.run(2).await;
    asked.runs(DecisionCode::Verdict).await;
    assert_eq!(gate.link.counters().unreachable, 1);
}

/// A service that refuses calls with `code` fails execs at once, whatever outage is tolerated.
async fn refuses(code: Code) {
    let mut peer = Peer::start().await;
    let gate = Gate::new(&peer.endpoint);
    let asked = gate.ask(1);
    peer.call().await.fail(Status::new(code, "go away")).await;
    let reason = asked.is_denied(DecisionCode::Unreachable).await;
    assert!(reason.contains("go away"), "{reason:?}");
    gate.ask(2).is_denied(DecisionCode::Unreachable).await;
}

macro_rules! rows {
    ($($name:ident: $row:ident($code:ident),)*) => {
        $(
            #[tokio::test]
            async fn $name() {
                scenario($row(Code::$code)).await;
            }
        )*
    };
}

rows! {
    clean_end: ends_and_is_called_again(Ok),
    cancelled: ends_and_is_called_again(Cancelled),
    unknown: ends_and_is_called_again(Unknown),
    invalid_argument: refuses(InvalidArgument),
    deadline_exceeded: ends_and_is_called_again(DeadlineExceeded),
    not_found: ends_and_is_called_again(NotFound),
    already_exists: ends_and_is_called_again(AlreadyExists),
    permission_denied: refuses(PermissionDenied),
    resource_exhausted: ends_and_is_called_again(ResourceExhausted),
    failed_precondition: ends_and_is_called_again(FailedPrecondition),
    aborted: ends_and_is_called_again(Aborted),
    out_of_range: ends_and_is_called_again(OutOfRange),
    unimplemented: refuses(Unimplemented),
    internal: ends_and_is_called_again(Internal),
    unavailable: ends_and_is_called_again(Unavailable),
    data_loss: ends_and_is_called_again(DataLoss),
    unauthenticated: refuses(Unauthenticated),
}

#[tokio::test]
async fn on_unavailable_run_runs_what_a_refusing_service_leaves_undecided() {
    scenario(async {
        let mut peer = Peer::start().await;
        let gate = Gate::with(&peer.endpoint, |options| {
            options.on_unavailable = OnUnavailable::Run;
        });
        let asked = gate.ask(1);
        let call = peer.call().await;
        call.fail(Status::unimplemented("no")).await;
        asked.runs(DecisionCode::Unreachable).await;
    })
    .await;
}
