//! Nothing that was acknowledged is lost, whenever the service is killed.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;

use crate::place::{PATIENCE, Place};

#[tokio::test]
async fn what_was_acknowledged_outlives_kills_at_any_moment_and_the_chain_is_whole() {
    let mut place = Place::new();
    let mut acknowledged = Vec::new();
    for round in 0..12_u32 {
        let sessions: Vec<_> = (0..4)
            .map(|number| format!("{:032x}", round * 4 + number + 1))
            .collect();
        let mut gates = Vec::new();
        for session in &sessions {
            gates.push(place.gate(session).await);
        }
        let stored = Arc::new(Notify::new());
        let working: Vec<_> = gates
            .into_iter()
            .map(|mut gate| {
                let stored = Arc::clone(&stored);
                tokio::spawn(async move {
                    let mut exec = 0;
                    loop {
                        exec += 1;
                        if gate.ask(exec, "git status").await.is_none() {
                            return gate.acknowledged;
                        }
                        if gate.acknowledged > 0 {
                            stored.notify_one();
                        }
                    }
                })
            })
            .collect();
        // Commits gather for 200 ms: at other moments of that each time, and of what comes before the first one.
        if round > 1 {
            let first = tokio::time::timeout(PATIENCE, stored.notified());
            first.await.expect("something is stored");
        }
        tokio::time::sleep(Duration::from_millis(17 * u64::from(round))).await;
        place.kill_and_restart();
        for (session, working) in sessions.into_iter().zip(working) {
            acknowledged.push((session, working.await.expect("no panic")));
        }
    }
    place.kill();
    let store = rusqlite::Connection::open(place.path("data/events.sqlite")).expect("the store");
    let mut sum = 0;
    for (session, through) in acknowledged {
        let stored: u64 = store
            .query_row(
                "SELECT count(*) FROM events WHERE session_id = ?1 AND sequence <= ?2",
                (&session, through.cast_signed()),
                |row| row.get::<_, i64>(0),
            )
            .expect("a number")
            .cast_unsigned();
        assert_eq!(stored, through, "session {session}");
        sum += through;
    }
    assert!(sum > 0, "nothing was ever acknowledged");
    let (code, out, errors) = place.execgate(&["audit", "verify", "--data", &place.data()]);
    assert_eq!(code, 0, "{out}{errors}");
}
