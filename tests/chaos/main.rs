//! What can go wrong around execs, and what became of each: whatever happens, three ledgers agree, of what ran,
//! by the side effect of each command; of what the gates decided, by what they print at their ends; and of
//! what the service has stored.
//!
//! - Kills and stops of the policy service, gates, and both, at random moments, and a full disk under the
//!   journal.
//! - A network between gates and service that is cut, slow, lossy.
//!
//! `make chaos` runs the long form. `CHAOS_SEED` repeats the choices of a run, though not the machine's
//! timing; `CHAOS_EXECS` says how many commands are to run among the kills, and has the cable pulled for
//! longer.

#![cfg(feature = "full")]
#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    reason = "what fails here fails the test"
)]

#[path = "../e2e/disk.rs"]
mod disk;
mod ledgers;
mod network;
#[path = "../identity/pki.rs"]
#[allow(dead_code, reason = "the tests of identities use the rest")]
mod pki;
mod play;
mod weather;

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use network::{Network, Weather};
use play::{Play, Trouble};

/// So many are over in seconds.
const EXECS: u64 = 400;

fn number(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().expect("a number"))
}

fn seed() -> u64 {
    let clock = SystemTime::UNIX_EPOCH.elapsed().expect("a clock");
    number("CHAOS_SEED").unwrap_or_else(|| clock.subsec_nanos().into())
}

/// The first in the short form, the second in the long one.
fn seconds(short: u64, long: u64) -> Duration {
    let is_long = number("CHAOS_EXECS").is_some();
    Duration::from_secs(if is_long { long } else { short })
}

/// Says loudly what is left out; fails where a machine is to lack nothing.
fn skip(lacking: &str) {
    assert!(std::env::var_os("CI").is_none(), "{lacking}");
    eprintln!("\n*** SKIPPED, nothing was tested: {lacking}\n");
}

fn shell() -> Option<PathBuf> {
    let repository = Path::new(env!("CARGO_MANIFEST_DIR"));
    let shell = repository.join("target/dist/libexec/execgate/bash");
    if shell.is_file() {
        return Some(shell);
    }
    skip("no patched bash: `make shells`");
    None
}

fn place() -> tempfile::TempDir {
    tempfile::TempDir::new_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory")
}

fn assert_agreement(findings: &[String], seed: u64, directory: tempfile::TempDir) {
    assert!(
        findings.is_empty(),
        "CHAOS_SEED={seed}, in {}:\n{}",
        directory.keep().display(),
        findings.join("\n")
    );
}

#[test]
fn whatever_befalls_service_and_gates_the_ledgers_agree() {
    let Some(shell) = shell() else { return };
    let seed = seed();
    let execs = number("CHAOS_EXECS").unwrap_or(EXECS);
    let execs = usize::try_from(execs).expect("a number");
    eprintln!("CHAOS_SEED={seed} CHAOS_EXECS={execs}");
    let directory = place();
    let outcome = Play::new(directory.path(), &shell, seed).run(execs);
    let told: Vec<_> = outcome
        .troubles
        .iter()
        .map(|(trouble, times)| format!("{times} × {trouble:?}"))
        .collect();
    eprintln!("{}", told.join(", "));
    let findings = ledgers::compare(directory.path(), &outcome);
    assert_agreement(&findings, seed, directory);
    assert!(
        outcome.troubles.contains_key(&Trouble::GateKilled),
        "no gate was killed"
    );
}

/// One row: what the weather is, for how long; and what must have been seen, so that it is known that it was there.
fn row(weather: Weather, lasts: Duration, check: fn(&weather::Seen)) {
    let Some(shell) = shell() else { return };
    let seed = seed();
    let network = match Network::new(seed) {
        Ok(network) => network,
        Err(lacking) => return skip(&format!("no network of its own: {lacking}")),
    };
    let directory = place();
    let seen = weather::endure(network, directory.path(), &shell, weather, lasts);
    eprintln!(
        "CHAOS_SEED={seed}, {weather:?} for {lasts:?}: {} packets dropped, {} commands ran meanwhile, \
         denied: {:?}",
        seen.dropped_packets, seen.ran_meanwhile, seen.denied
    );
    assert_agreement(&seen.findings, seed, directory);
    check(&seen);
}

#[test]
fn a_cable_pulled_for_less_than_it_takes_to_notice() {
    row(Weather::Cut, Duration::from_secs(3), |seen| {
        assert!(seen.dropped_packets > 0, "nothing was cut");
        let noticed = seen.denied.get("unreachable");
        assert_eq!(noticed, None, "it was noticed");
    });
}

#[test]
fn a_cable_pulled_for_longer() {
    row(Weather::Cut, seconds(14, 30), |seen| {
        assert!(seen.dropped_packets > 0, "nothing was cut");
        assert!(!seen.denied.is_empty(), "nobody noticed");
    });
}

#[test]
fn a_service_far_away() {
    let weather = Weather::Foul {
        delay: Duration::from_millis(200),
        loss_percent: 0,
    };
    row(weather, seconds(8, 30), |seen| {
        assert!(seen.ran_meanwhile > 0, "nothing ran");
    });
}

#[test]
fn a_network_that_loses_packets() {
    let weather = Weather::Foul {
        delay: Duration::ZERO,
        loss_percent: 5,
    };
    row(weather, seconds(8, 30), |seen| {
        assert!(seen.dropped_packets > 0, "nothing was lost");
        assert!(seen.ran_meanwhile > 0, "nothing ran");
    });
}

#[test]
fn a_service_far_away_by_a_network_that_loses_packets() {
    let weather = Weather::Foul {
        delay: Duration::from_millis(200),
        loss_percent: 5,
    };
    row(weather, seconds(12, 60), |seen| {
        assert!(seen.dropped_packets > 0, "nothing was lost");
        assert!(seen.ran_meanwhile > 0, "nothing ran");
    });
}
