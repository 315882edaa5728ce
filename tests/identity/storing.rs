//! A store that takes nothing for a while: verdicts go on, and memory stays bounded.

use crate::floods::{assert_grown_below, long_exec, serves_others, session};
use crate::scenario;
use crate::service::Place;
use crate::stranger::{Call, connect, started};

/// What the service may grow by, in KiB: 128 MiB for the store, what one gate's messages may take while they are
/// understood, and what the allocator keeps.
const GROWTH_KIB: u64 = 288 << 10;

#[tokio::test]
async fn long_questions_that_cannot_be_stored_are_answered_and_kept_within_bounds() {
    const CALLS: usize = 4;
    /// In each call, with a megabyte each: in all far more than is kept.
    const QUESTIONS: u64 = 120;
    scenario(Box::pin(async {
        let place = Place::new();
        let tokens = place.tokens(&[("greedy", "g"), ("modest", "m")]);
        let service = place.serve(&[&"--tokens", &tokens]);
        let before = service.resident_kib();
        let database = place.path("data").join("events.sqlite");
        let blocker = rusqlite::Connection::open(database).expect("the database");
        let lock = blocker.execute_batch("BEGIN IMMEDIATE");
        lock.expect("the writer's lock");
        let mut flood = tokio::task::JoinSet::new();
        for number in 1..=CALLS {
            let channel = connect(&service.address).await;
            let mut call = Call::open(channel, Some("g")).await.expect("a call");
            flood.spawn(async move {
                call.tell(1, started(&session(number), None)).await;
                for exec in 1..=QUESTIONS {
                    call.tell(exec + 1, long_exec(exec, 1 << 20)).await;
                    assert_eq!(call.verdict().await, "gate token:greedy");
                }
                call
            });
        }
        let mut calls = Vec::new();
        while let Some(call) = flood.join_next().await {
            calls.push(call.expect("no panic"));
        }
        assert_grown_below(&service, before, GROWTH_KIB);
        let said = "events can't be stored as fast as they come";
        service.wait_for_log(said).await;
        serves_others(&service).await;
        assert_eq!(place.count("SELECT count(*) FROM events"), 0);
    }))
    .await;
}
