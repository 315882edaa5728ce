//! Attacks on a gate from inside its sandbox: short programs that try what a defence is there to prevent.
//!
//! Each is proved real first, by its control: the same program, where the one defence is missing, succeeds. Then it
//! has to fail in a session of a real gate with a real policy service, as root and as an ordinary user, under
//! Landlock and under bubblewrap. What isn't stopped is in a table in `SECURITY.md`, which is held to the truth
//! here.
//!
//! An attack is a script for the patched shell in its own directory below the working directory. It ends with
//! status 0 if it has succeeded, 77 where the machine lacks what it attacks, and something else if it was stopped.

#![cfg(feature = "full")]
#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    reason = "what fails here fails the test"
)]

mod attack;
mod environment;
mod files;
mod kernel;
mod leftovers;
#[path = "../e2e/machine.rs"]
#[allow(
    dead_code,
    unused_imports,
    unused_macros,
    reason = "other tests use the rest"
)]
mod machine;
#[path = "../link/peer.rs"]
#[allow(dead_code, reason = "the tests of the link use the rest")]
mod peer;
mod place;
#[path = "../e2e/process.rs"]
#[allow(dead_code, reason = "other tests use the rest")]
mod process;
mod processes;
mod requests;
mod secrets;
#[path = "../e2e/service.rs"]
#[allow(dead_code, reason = "other tests use the rest")]
mod service;
mod slow_service;
mod sockets;
mod swaps;

use std::sync::OnceLock;

use attack::{Attack, Control, Held, Who};
use machine::{available, repository};
use place::{Place, Results, Rules, User};

fn attacks() -> Vec<&'static Attack> {
    [
        secrets::ATTACKS,
        files::ATTACKS,
        processes::ATTACKS,
        sockets::ATTACKS,
        kernel::ATTACKS,
        environment::ATTACKS,
        requests::ATTACKS,
        swaps::ATTACKS,
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// Those that this user can try.
fn attacks_of(user: User) -> Vec<&'static Attack> {
    let is_root = user.is_root();
    let tries = |attack: &&Attack| match attack.who {
        Who::Anybody => true,
        Who::Root => is_root,
        Who::Ordinary => !is_root,
    };
    attacks().into_iter().filter(tries).collect()
}

/// Without any sandbox, and without a gate: the same for all backends.
fn outside(user: User) -> &'static Results {
    static OWN: OnceLock<Results> = OnceLock::new();
    static NOBODY: OnceLock<Results> = OnceLock::new();
    let results = match user {
        User::Own => &OWN,
        User::Nobody => &NOBODY,
    };
    results.get_or_init(|| {
        let with = |control| {
            let mut chosen = attacks_of(user);
            chosen.retain(|attack| attack.control == control);
            chosen
        };
        let mut results = Place::new(user, Rules::Real).attack("none", &with(Control::NoSandbox));
        results.extend(Place::new(user, Rules::Real).attack_outside(&with(Control::NoGate)));
        results
    })
}

fn defended(user: User, backend: &'static str) {
    if !can_be_tried(user, backend) {
        return;
    }
    let chosen = attacks_of(user);
    let (swaps, others): (Vec<_>, Vec<_>) =
        (chosen.iter().copied()).partition(|attack| attack.control == Control::Run);
    let mut loose = others.clone();
    loose.retain(|attack| attack.control == Control::LooseRules);
    let mut controls = outside(user).clone();
    controls.extend(Place::new(user, Rules::Loose).attack(backend, &loose));
    controls.extend(Place::new(user, Rules::SlowToRun).attack(backend, &swaps));
    let place = Place::new(user, Rules::Real);
    let before = place.outside();
    let mut real = place.attack(backend, &others);
    real.extend(Place::new(user, Rules::SlowToEscalate).attack(backend, &swaps));

    let mut faults = Vec::new();
    let mut proved = 0;
    for attack in &chosen {
        let (control, real) = (&controls[attack.name], &real[attack.name]);
        if control.lacks_its_target() {
            eprintln!("SKIPPED: {}: {control}", attack.name);
            continue;
        }
        if !control.succeeded() {
            faults.push(format!("{}: the control fails: {control}", attack.name));
            continue;
        }
        proved += 1;
        let is_stopped = attack.is_stopped(backend, user);
        if real.succeeded() == is_stopped {
            let expected = if is_stopped { "is stopped" } else { "isn't" };
            faults.push(format!(
                "{}: not so, that it {expected}: {real}",
                attack.name
            ));
        }
    }
    if place.outside() != before {
        faults.push("files outside of the sandbox are others than before".to_owned());
    }
    assert!(faults.is_empty(), "{}", faults.join("\n\n"));
    assert!(proved >= 30, "only {proved} attacks were possible here");
    eprintln!("{proved} attacks were possible");
}

/// Whether sessions of this user in this sandbox can be had here.
fn can_be_tried(user: User, backend: &str) -> bool {
    let is_root = execgate::sys::host::user().id == 0;
    if user == User::Nobody && !available(is_root, "only root can be another user") {
        return false;
    }
    if !is_root {
        eprintln!("SKIPPED: what only root can try");
    }
    if machine::Shell::find("bash").is_none() {
        return false;
    }
    if backend != "bubblewrap" || place::bubblewrap(user) {
        return true;
    }
    if user == User::Nobody {
        // Distributions may keep namespaces from ordinary users.
        eprintln!("SKIPPED: bubblewrap can't make a sandbox for ordinary users: `execgate doctor`");
        return false;
    }
    available(false, "bubblewrap can't make a sandbox: `execgate doctor`")
}

mod landlock {
    use super::{User, defended};

    #[test]
    fn stops_its_own_user() {
        defended(User::Own, "landlock");
    }

    #[test]
    fn stops_nobody() {
        defended(User::Nobody, "landlock");
    }
}

mod bubblewrap {
    use super::{User, defended};

    #[test]
    fn stops_its_own_user() {
        defended(User::Own, "bubblewrap");
    }

    #[test]
    fn stops_nobody() {
        defended(User::Nobody, "bubblewrap");
    }
}

/// The table of `SECURITY.md` that begins with this line.
const TABLE: &str = "| attack | landlock | bubblewrap | why |";

#[test]
fn what_is_not_stopped_is_in_the_table_of_the_documentation() {
    let document = std::fs::read_to_string(repository().join("SECURITY.md")).expect("a file");
    let (_, table) = document.split_once(TABLE).expect("the table");
    let stated: Vec<_> = table
        .lines()
        .skip(2)
        .take_while(|line| line.starts_with('|'))
        .map(str::to_owned)
        .collect();
    let expected: Vec<_> = attacks()
        .into_iter()
        .filter(|attack| attack.landlock != Held::Yes || attack.bubblewrap != Held::Yes)
        .map(Attack::row)
        .collect();
    assert_eq!(
        stated,
        expected,
        "the table should be:\n{}",
        expected.join("\n")
    );
}

#[test]
fn no_two_attacks_have_the_same_name() {
    let mut names: Vec<_> = attacks().iter().map(|attack| attack.name).collect();
    let count = names.len();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), count);
}
