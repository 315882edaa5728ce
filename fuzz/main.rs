//! One target of `execgate::fuzzing` under libFuzzer: the one that the variable `FUZZ_TARGET` names.
#![no_main]

use std::env;
use std::panic;
use std::process;
use std::sync::OnceLock;

use execgate::fuzzing::{TARGETS, Target, target};
use libfuzzer_sys::fuzz_target;

static CHOSEN: OnceLock<Target> = OnceLock::new();

fuzz_target!(
    init: {
        // What a thread's owner makes of its panic is part of what is looked at; a panic of the target itself is
        // a finding without this hook as well.
        drop(panic::take_hook());
        CHOSEN.get_or_init(choose);
    },
    |bytes: &[u8]| CHOSEN.get_or_init(choose)(bytes)
);

fn choose() -> Target {
    let name = env::var("FUZZ_TARGET").unwrap_or_default();
    target(&name).unwrap_or_else(|| {
        let known = TARGETS.map(|(name, _)| name).join(", ");
        eprintln!("FUZZ_TARGET is {name:?}: set it to one of {known}");
        process::exit(2)
    })
}
