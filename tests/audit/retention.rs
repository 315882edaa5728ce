//! What isn't to be kept goes while the service runs, and whoever reads is told where the record begins.

use std::time::{Duration, Instant};

use execgate::pb::audit::v1::watch_response::Update;
use execgate::pb::v1;
use execgate::pb::v1::session_request::Event;

use crate::place::{Gate, ONE, PATIENCE, Place, filled};
use crate::programs::Watching;
use crate::watchers::{after, watch};

/// The end of the chain as `audit head` prints it, and its position.
fn head(place: &Place) -> (String, u64) {
    let (code, head, errors) = place.execgate(&["audit", "head", "--service", &place.url()]);
    assert_eq!(code, 0, "{errors}");
    let position = head.split(':').next().and_then(|text| text.parse().ok());
    (head.trim().to_owned(), position.expect("a position"))
}

/// Behind which position the record begins, as one is told who asks for all of it.
async fn removed_through(place: &Place) -> u64 {
    let mut changes = watch(place, after(0)).await;
    let first = async {
        loop {
            let response = changes.message().await.expect("open").expect("open");
            match response.update {
                Some(Update::EventsRemoved(removed)) => {
                    assert_eq!(response.position, removed.through_position);
                    return removed.through_position;
                }
                Some(Update::ExecChanged(_)) => return 0,
                None => {}
            }
        }
    };
    let first = tokio::time::timeout(PATIENCE, first).await;
    first.expect("an update")
}

#[tokio::test]
async fn what_is_too_old_is_removed_while_the_service_runs_and_who_reads_is_told() {
    let place = Place::with(&["--retain-age", "1s"]);
    let mut gate = place.gate(ONE).await;
    gate.ask(1, "git status").await.expect("an answer");
    gate.stored().await;
    let (noted, _) = head(&place);
    for exec in 2..=5 {
        gate.ask(exec, "make all").await.expect("an answer");
    }
    gate.stored().await;
    let (_, last) = head(&place);
    // Nothing happens any more but that it is removed, which is an event as well, and told as that.
    let mut changes = watch(&place, after(last)).await;
    let moved = async {
        loop {
            let response = changes.message().await.expect("open").expect("open");
            if response.position > last {
                return;
            }
        }
    };
    let moved = tokio::time::timeout(PATIENCE, moved).await;
    moved.expect("something is removed");
    // Some may have been too new for the first time.
    let began = Instant::now();
    while removed_through(&place).await < last {
        assert!(began.elapsed() < PATIENCE, "it isn't removed");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    // Where it ends now can be gone on from.
    let (_, end) = head(&place);
    assert!(end > last);
    drop(watch(&place, after(end)).await);

    let line = Watching::start(&place, &["--after", "0"]).line();
    let told = line.strip_prefix("-- events up to position ");
    let (through, why) = told.and_then(|told| told.split_once(' ')).expect(&line);
    assert!(through.parse::<u64>().expect(&line) >= last, "{line}");
    assert_eq!(why, "were removed for their age or for room --");
    let line = Watching::start(&place, &["--after", "0", "--output", "json"]).line();
    let told: serde_json::Value = serde_json::from_str(&line).expect("JSON");
    let through = told["removed_through_position"].as_u64();
    assert!(through.expect(&line) >= last, "{line}");

    let data = place.data();
    let (code, listed, errors) = place.execgate(&["audit", "--data", &data]);
    assert_eq!(code, 0, "{errors}");
    assert!(listed.ends_with("\nnothing matches\n"), "{listed}");
    let verify = ["audit", "verify", "--data", &data];
    let (code, out, errors) = place.execgate(&verify);
    assert_eq!(code, 0, "{out}{errors}");
    assert!(out.contains("were removed by retention"), "{out}");
    let (code, _, errors) = place.execgate(&[&verify[..], &["--anchor", &noted]].concat());
    assert_eq!(code, 3, "{errors}");
    assert!(errors.contains(&format!("anchor {noted}: ")), "{errors}");
    let why = "the event there was removed for its age or for room, with all up to ";
    assert!(errors.contains(why), "{errors}");
    assert!(errors.contains("give a later anchor"), "{errors}");
}

/// Makes what is stored up to a position as old as can be; nobody has it open.
fn age(place: &Place, through: u64) {
    let database = rusqlite::Connection::open(place.path("data/events.sqlite"));
    let aged = database.expect("a database").execute(
        "UPDATE events SET received_ns = 0 WHERE position <= ?1",
        [i64::try_from(through).expect("small")],
    );
    assert!(aged.expect("they are there") > 0);
}

#[tokio::test]
async fn a_session_that_is_told_of_after_its_end_is_proven_when_the_end_is_removed() {
    let mut place = Place::new();
    let mut gate = place.gate(ONE).await;
    gate.ask(1, "git status").await.expect("an answer");
    let ended = Event::SessionEnded(v1::SessionEnded::default());
    gate.tell(ended).await.expect("told");
    gate.stored().await;
    let (_, end) = head(&place);
    // What a gate's journal does whose last acknowledgement its gate didn't live to see.
    drop(gate);
    let mut gate = Gate::deliver(&place, ONE, 6).await;
    // Of an exec that was asked about before.
    let finished = Event::ExecFinished(v1::ExecFinished {
        exec_id: 1,
        status: Some(v1::exec_finished::Status::ExitCode(3)),
        ..v1::ExecFinished::default()
    });
    gate.tell(finished).await.expect("told");
    gate.stored().await;
    drop(gate);
    place.kill();
    age(&place, end);
    place.kill_and_restart_with(&["--retain-age", "1h"]);
    let began = Instant::now();
    while removed_through(&place).await < end {
        assert!(began.elapsed() < PATIENCE, "it isn't removed");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let verify = ["audit", "verify", "--data", &place.data()];
    let (code, out, errors) = place.execgate(&verify);
    assert_eq!(code, 0, "{out}{errors}");
    let told = "not proven: what lists say of 1 sessions whose beginning was removed";
    assert!(out.contains(told), "{out}");
    let list = ["audit", "--data", &place.data(), "--output", "json"];
    let (code, out, errors) = place.execgate(&list);
    assert_eq!(code, 0, "{errors}");
    let execs: Vec<serde_json::Value> = out
        .lines()
        .map(|line| serde_json::from_str(line).expect(line))
        .collect();
    assert_eq!(execs.len(), 1, "{out}");
    assert_eq!(execs[0]["exit_code"], 3, "{out}");
}

/// Makes the store larger by so much; nobody has it open.
fn weigh_down(place: &Place, mebibytes: u32) {
    let database = rusqlite::Connection::open(place.path("data/events.sqlite"));
    let added = database.expect("a database").execute_batch(&format!(
        "CREATE TABLE IF NOT EXISTS ballast (bytes BLOB);
         INSERT INTO ballast VALUES (zeroblob({mebibytes} << 20))"
    ));
    added.expect("there is room");
}

#[tokio::test]
async fn what_does_not_fit_is_removed_and_what_fits_is_kept() {
    let mut place = filled().await;
    let mut last = 0;
    // Half of what there may be, and then more than that.
    for (session, mebibytes, is_kept) in [("3", 32, true), ("4", 33, false)] {
        place.kill();
        weigh_down(&place, mebibytes);
        place.kill_and_restart_with(&["--retain-size", "64MiB"]);
        // It looks before it writes anything.
        place.gate(&session.repeat(32)).await.stored().await;
        let through = removed_through(&place).await;
        let keeps = through < last.max(1);
        assert_eq!(keeps, is_kept, "{through} of {last}");
        (_, last) = head(&place);
    }
    let (_, out, errors) = place.execgate(&["audit", "verify", "--data", &place.data()]);
    assert!(out.contains("were removed by retention"), "{out}{errors}");
}
