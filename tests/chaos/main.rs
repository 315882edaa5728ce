//! Kills and stops the policy service, gates, and both, at random moments during many execs, and then
//! compares three ledgers: what ran, by the side effect of each command; what the gates decided, by
//! what they print at their ends; and what the service has stored.
//!
//! `make chaos` runs the long form. `CHAOS_SEED` repeats the choices of a run, though not the machine's
//! timing; `CHAOS_EXECS` says how many execs there are to be.

#![cfg(feature = "full")]
#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    reason = "what fails here fails the test"
)]

mod ledgers;
mod play;

use std::path::Path;

use play::{Play, Trouble};

/// So many are over in seconds.
const EXECS: u64 = 400;

#[test]
fn whatever_befalls_service_and_gates_the_ledgers_agree() {
    let repository = Path::new(env!("CARGO_MANIFEST_DIR"));
    let shell = repository.join("target/dist/libexec/execgate/bash");
    if !shell.is_file() {
        assert!(std::env::var_os("CI").is_none(), "no patched bash");
        eprintln!("\n*** SKIPPED, nothing was tested: no patched bash: `make shells`\n");
        return;
    }
    let number = |name: &str| {
        let text = std::env::var(name).ok()?;
        Some(text.parse::<u64>().expect("a number"))
    };
    let clock = std::time::SystemTime::UNIX_EPOCH.elapsed();
    let seed =
        number("CHAOS_SEED").unwrap_or_else(|| clock.expect("a clock").subsec_nanos().into());
    let execs = number("CHAOS_EXECS").unwrap_or(EXECS);
    eprintln!("CHAOS_SEED={seed} CHAOS_EXECS={execs}");
    let directory = tempfile::TempDir::new_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory");
    let outcome = Play::new(directory.path(), &shell, seed).run(execs);
    let told: Vec<_> = outcome
        .troubles
        .iter()
        .map(|(trouble, times)| format!("{times} × {trouble:?}"))
        .collect();
    eprintln!("{}", told.join(", "));
    let findings = ledgers::compare(directory.path(), &outcome);
    assert!(
        findings.is_empty(),
        "CHAOS_SEED={seed}, in {}:\n{}",
        directory.keep().display(),
        findings.join("\n")
    );
    let killed = outcome.troubles.get(&Trouble::GateKilled).copied();
    assert!(killed.is_some_and(|times| times > 0), "no gate was killed");
}
