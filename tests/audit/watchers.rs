//! Watch: from any position, live, and at nobody's cost.

use std::time::{Duration, Instant};

use execgate::pb::audit::v1::{
    ExecChange, ExecFilter, GetHeadRequest, Outcome, WatchRequest, WatchResponse, watch_request,
    watch_response,
};
use execgate::pb::v1::{self, session_request::Event};
use tonic::Streaming;

use crate::place::{ONE, PATIENCE, Place, TWO, filled};

/// Shorter than the 15 seconds after which a watcher that there is nothing for gets a sign of life.
const SOON: Duration = Duration::from_secs(10);

pub(crate) async fn watch(place: &Place, request: WatchRequest) -> Streaming<WatchResponse> {
    let mut auditor = place.auditor().await;
    let watching = auditor.watch(place.showing("auditor", request)).await;
    watching.expect("a call").into_inner()
}

pub(crate) fn after(position: u64) -> WatchRequest {
    WatchRequest {
        start: Some(watch_request::Start::AfterPosition(position)),
        ..WatchRequest::default()
    }
}

/// The next change: position, what it was, session, exec, program.
async fn next(changes: &mut Streaming<WatchResponse>) -> (u64, ExecChange, String, u64) {
    let next = async {
        loop {
            let response = changes.message().await.expect("open").expect("open");
            if let Some(watch_response::Update::ExecChanged(changed)) = response.update {
                let change = changed.change();
                let exec = changed.exec.expect("an exec");
                return (response.position, change, exec.session_id, exec.exec_id);
            }
        }
    };
    tokio::time::timeout(PATIENCE, next)
        .await
        .expect("a change")
}

#[tokio::test]
async fn a_watcher_sees_what_is_on_record_and_then_what_happens_in_order_and_once() {
    let place = filled().await;
    let mut changes = watch(&place, after(0)).await;
    let mut seen = Vec::new();
    // Two commands were denied: they never ended.
    for _ in 0..3 * 31 + 2 * 2 {
        seen.push(next(&mut changes).await);
    }
    assert!(
        seen.windows(2).all(|pair| pair[0].0 < pair[1].0),
        "{seen:?}"
    );
    // A second one goes on where the first was, in the midst of it.
    let mut again = watch(&place, after(seen[40].0)).await;
    for expected in &seen[41..] {
        assert_eq!(next(&mut again).await, *expected);
    }
    let mut live = watch(&place, WatchRequest::default()).await;
    let mut gate = place.gate("33333333333333333333333333333333").await;
    gate.ask(1, "make").await.expect("an answer");
    for changes in [&mut changes, &mut again, &mut live] {
        for expected in [
            ExecChange::Requested,
            ExecChange::Decided,
            ExecChange::Finished,
        ] {
            let (_, change, session, exec) = next(changes).await;
            assert_eq!((change, &session[..2], exec), (expected, "33", 1));
        }
    }
}

#[tokio::test]
async fn a_filter_lets_through_what_fits_and_the_position_moves_on() {
    let place = filled().await;
    let filter = ExecFilter {
        outcome: Outcome::Deny.into(),
        labels: [("job".to_owned(), "22".to_owned())].into(),
        code: "net".to_owned(),
        ..ExecFilter::default()
    };
    let request = WatchRequest {
        filter: Some(filter),
        ..after(0)
    };
    let mut changes = watch(&place, request).await;
    let (_, change, session, exec) = next(&mut changes).await;
    assert_eq!((change, &*session, exec), (ExecChange::Requested, TWO, 2));
    assert_eq!(next(&mut changes).await.1, ExecChange::Decided);
    let mut gate = place.gate("44444444444444444444444444444444").await;
    let moved = async {
        loop {
            let response = changes.message().await.expect("open").expect("open");
            if response.update.is_none() && response.position > 100 {
                return;
            }
        }
    };
    // Something happens all the while: what is told where nothing does isn't waited for.
    let busy = async {
        for exec in 1.. {
            gate.ask(exec, "make").await.expect("an answer");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let told = async {
        tokio::select! {
            () = moved => {}
            () = busy => {}
        }
    };
    tokio::time::timeout(PATIENCE, told)
        .await
        .expect("a position");
}

#[tokio::test]
async fn who_watches_from_now_on_is_told_at_once_where_that_is() {
    let place = filled().await;
    // Nothing that happens fits.
    let request = WatchRequest {
        filter: Some(ExecFilter {
            program: "nothing".to_owned(),
            ..ExecFilter::default()
        }),
        ..WatchRequest::default()
    };
    let mut changes = watch(&place, request).await;
    let mut gate = place.gate("44444444444444444444444444444444").await;
    gate.ask(1, "make").await.expect("an answer");
    let mut next = async || {
        let message = tokio::time::timeout(PATIENCE, changes.message()).await;
        let response = message.expect("a message").expect("open").expect("open");
        assert_eq!(response.update, None);
        response.position
    };
    // Two sessions' beginnings, 33 execs, of which 31 have three events and two have two.
    let now = 2 + 31 * 3 + 2 * 2;
    assert_eq!(next().await, now);
    assert!(next().await > now);
}

/// Whoever reads up to the record's end, as `audit --export`, `replay` and `suggest` do, needs it: the last events
/// may be none that there is anything to tell of.
#[tokio::test]
async fn who_watches_is_told_of_the_end_of_the_record_whatever_it_is() {
    let place = filled().await;
    let mut gate = place.gate("44444444444444444444444444444444").await;
    gate.ask(1, "make").await.expect("an answer");
    let ended = v1::SessionEnded::default();
    gate.tell(Event::SessionEnded(ended)).await.expect("told");
    gate.stored().await;
    let mut auditor = place.auditor().await;
    let head = auditor
        .get_head(place.showing("auditor", GetHeadRequest {}))
        .await
        .expect("an answer")
        .into_inner();
    let head = head.head.expect("a head").position;
    for program in ["", "git", "nothing"] {
        let request = WatchRequest {
            filter: Some(ExecFilter {
                program: program.to_owned(),
                ..ExecFilter::default()
            }),
            ..after(0)
        };
        let mut changes = watch(&place, request).await;
        let reached = async {
            let mut last = None;
            while last != Some(head) {
                let response = changes.message().await.expect("open").expect("open");
                // It isn't told twice either: what comes again is a sign of life, and was waited for.
                assert!(last.is_none_or(|last| response.position > last), "{last:?}");
                last = Some(response.position);
            }
        };
        let reached = tokio::time::timeout(SOON, reached).await;
        reached.unwrap_or_else(|_| panic!("{program:?}: it waits for a sign of life"));
    }
}

#[tokio::test]
async fn watchers_that_do_not_read_hold_up_no_verdict_and_get_all_of_it_later() {
    let place = Place::new();
    let mut stopped = Vec::new();
    for _ in 0..4 {
        stopped.push(watch(&place, after(0)).await);
    }
    let mut gate = place.gate(ONE).await;
    let began = Instant::now();
    // More than all buffers on the way hold.
    for exec in 1..=1_500 {
        let command = format!("git status {}", "x".repeat(2_000));
        gate.ask(exec, &command).await.expect("an answer");
    }
    gate.stored().await;
    assert!(began.elapsed() < PATIENCE, "{:?}", began.elapsed());
    for mut changes in stopped {
        let mut last = 0;
        for _ in 0..4_500 {
            let (position, ..) = next(&mut changes).await;
            assert!(position > last);
            last = position;
        }
    }
}

#[tokio::test]
async fn watchers_are_bounded_and_room_is_made_when_one_goes() {
    let place = Place::new();
    let mut watching = Vec::new();
    for _ in 0..16 {
        watching.push(watch(&place, WatchRequest::default()).await);
    }
    let refused = async || {
        let mut auditor = place.auditor().await;
        let asked = place.showing("auditor", WatchRequest::default());
        auditor.watch(asked).await.err().map(|status| status.code())
    };
    assert_eq!(refused().await, Some(tonic::Code::ResourceExhausted));
    watching.pop();
    let began = Instant::now();
    while refused().await.is_some() {
        assert!(began.elapsed() < PATIENCE);
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test]
async fn who_is_no_auditor_any_more_sees_no_more() {
    let place = filled().await;
    let mut changes = watch(&place, WatchRequest::default()).await;
    // The file has to hold a token: another's.
    let other = format!("somebody {:064x} auditor\n", 7);
    std::fs::write(place.path("operators"), other).expect("a file");
    let ended = async {
        loop {
            match changes.message().await {
                Ok(Some(_)) => {}
                Ok(None) => panic!("it ended without a reason"),
                Err(status) => return status.code(),
            }
        }
    };
    let code = tokio::time::timeout(PATIENCE, ended).await.expect("an end");
    assert_eq!(code, tonic::Code::Unauthenticated);
}
