//! Attacks on the end of a session: processes that would outlive it, inside of the sandbox and escalated.
//!
//! Nothing bounds how many there are while it lasts; when it ends, none is left.

use std::collections::BTreeSet;
use std::process::Command;

use crate::place::{Place, Rules, User};
use crate::process::wait_until;

const HOW: [&str; 3] = ["daemon", "zombies", "bomb"];

/// Starts all of them, and ends when they are there.
const SCRIPT: &str = r"
for how in daemon zombies bomb; do
    python3 $PROGRAMS/leftovers.py $how $PWD/left >/dev/null 2>&1 </dev/null &
    python3 $PROGRAMS/leftovers.py $how $PWD/escalated >/dev/null 2>&1 </dev/null &
done
for how in daemon zombies bomb; do
    for mark in left escalated; do
        while ! test -e $mark.$how; do sleep 0.02; done
    done
done
";

/// Processes that have the mark of this place in their command line.
fn left(place: &Place) -> BTreeSet<String> {
    let mark = place.path("work").display().to_string();
    let entries = std::fs::read_dir("/proc").expect("/proc").flatten();
    entries
        .filter(|entry| {
            let line = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
            let line = String::from_utf8_lossy(&line).into_owned();
            line.contains("leftovers.py") && line.contains(&mark)
        })
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect()
}

fn end_with_their_session(user: User, backend: &'static str) {
    if !super::can_be_tried(user, backend) {
        return;
    }
    // Without a gate they stay.
    let place = Place::new(user, Rules::Real);
    place.outside_of_a_gate(SCRIPT).exits(0);
    let are_there = !left(&place).is_empty();
    wait_until("their end", || {
        let left = left(&place);
        // Those that are never there for long have to be caught standing still.
        for signal in ["-STOP", "-KILL"] {
            let _ = Command::new("kill").arg(signal).args(&left).output();
        }
        left.is_empty()
    });
    assert!(are_there, "they ended without a gate");

    let place = Place::new(user, Rules::Real);
    place.under_a_gate(backend, SCRIPT).exits(0);
    for how in HOW {
        assert!(place.path("work").join(format!("escalated.{how}")).exists());
    }
    // What was ended last may still be on its way out.
    wait_until("their end", || left(&place).is_empty());
}

#[test]
fn under_landlock_nothing_outlives_its_session() {
    end_with_their_session(User::Own, "landlock");
}

#[test]
fn under_landlock_nothing_of_nobodys_outlives_its_session() {
    end_with_their_session(User::Nobody, "landlock");
}

#[test]
fn under_bubblewrap_nothing_outlives_its_session() {
    end_with_their_session(User::Own, "bubblewrap");
}

#[test]
fn under_bubblewrap_nothing_of_nobodys_outlives_its_session() {
    end_with_their_session(User::Nobody, "bubblewrap");
}
