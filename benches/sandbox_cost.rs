//! What each sandbox costs: on the start of a session, on an exec that runs in it, and on one that is
//! escalated into it afresh; as ratios to the same without a sandbox, measured in turn in one run.
//!
//! `cargo bench --bench sandbox_cost` runs it; it needs the programs that `make build` makes.
#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "a bench that can't go on ends"
)]

#[allow(dead_code, unreachable_pub, reason = "other benches use the rest")]
mod programs;

use std::path::Path;
use std::process::Command;
use std::time::Instant;

use programs::{Served, dist};

const ROUNDS: usize = 9;
const EXECS: usize = 200;

const BACKENDS: [&str; 3] = ["none", "landlock", "bubblewrap"];

/// `true` runs in the sandbox; the others are escalated into one of their own.
const RULES: &str = "\
prefix_rule([\"true\"])
prefix_rule([\"false\"], \"escalate\", execution = \"turn_default\")
prefix_rule([\"test\"], \"escalate\", execution = permissions(network = \"denied\", write = [\"/var/tmp\"]))
";

/// What is measured, what a session does for it, and for which backends: without a sandbox no permissions can be
/// enforced, and they are compared with what is escalated out of none.
struct Way {
    name: &'static str,
    script: String,
    unsandboxed: String,
}

fn main() {
    let place = tempfile::tempdir_in("/var/tmp").expect("a directory");
    let rules = place.path().join("rules.star");
    std::fs::write(&rules, RULES).expect("a file");
    let mut policyd = Command::new(dist("bin/execgate-policyd"));
    policyd
        .args(["--log", "error", "--listen", "127.0.0.1:0", "--rules"])
        .arg(&rules);
    let service = Served::start(policyd);
    let way = |name, command: &str, unsandboxed: &str| Way {
        name,
        script: timed(command),
        unsandboxed: timed(unsandboxed),
    };
    let ways = [
        Way {
            name: "start of a session",
            script: ":".to_owned(),
            unsandboxed: ":".to_owned(),
        },
        way("run", "/bin/true", "/bin/true"),
        way("turn_default", "/bin/false", "/bin/false"),
        way("permissions", "/usr/bin/test x", "/bin/false"),
    ];
    let here = BACKENDS.map(|backend| is_here(place.path(), &service.1, backend));
    println!(
        "milliseconds, and how many times as long as without a sandbox; medians of {ROUNDS} rounds"
    );
    println!(
        "{:<20}{:>10}{:>18}{:>18}",
        "", BACKENDS[0], BACKENDS[1], BACKENDS[2]
    );
    for way in &ways {
        let mut times = BACKENDS.map(|_| Vec::new());
        let mut ratios = BACKENDS.map(|_| Vec::new());
        for _ in 0..ROUNDS {
            let mut plain = 0.0;
            for (at, backend) in BACKENDS.iter().enumerate().filter(|(at, _)| here[*at]) {
                let script = if at == 0 {
                    &way.unsandboxed
                } else {
                    &way.script
                };
                let time = once(place.path(), &service.1, backend, script);
                if at == 0 {
                    plain = time;
                }
                times[at].push(time);
                ratios[at].push(time / plain);
            }
        }
        print!("{:<20}", way.name);
        for (at, (times, ratios)) in times.into_iter().zip(ratios).enumerate() {
            match (median(times), median(ratios)) {
                (Some(time), _) if at == 0 => print!("{time:>10.2}"),
                (Some(time), Some(ratio)) => print!("{time:>10.2} ({ratio:>4.2}x)"),
                _ => print!("{:>18}", "not here"),
            }
        }
        println!();
    }
}

fn median(mut numbers: Vec<f64>) -> Option<f64> {
    numbers.sort_by(f64::total_cmp);
    numbers.get(numbers.len() / 2).copied()
}

/// A loop that prints how many microseconds it took, once all that is looked at has been looked at once.
fn timed(command: &str) -> String {
    format!(
        "{command}; b=${{EPOCHREALTIME/[.,]/}}; for i in {{1..{EXECS}}}; do {command}; done; \
         echo $(( ${{EPOCHREALTIME/[.,]/}} - b ))"
    )
}

fn session(place: &Path, url: &str, backend: &str, script: &str) -> Command {
    let mut command = Command::new(dist("bin/execgate"));
    command
        .args(["--log", "error", "exec", "--no-login", "--policy", url])
        .args(["--sandbox", backend, "--shell"])
        .arg(dist("libexec/execgate/bash"))
        .args(["--", script])
        .current_dir(place);
    command
}

/// Whether this machine has it.
fn is_here(place: &Path, url: &str, backend: &str) -> bool {
    let output = session(place, url, backend, ":").output().expect("a gate");
    if !output.status.success() {
        println!(
            "no {backend}: {}",
            String::from_utf8_lossy(&output.stderr).trim()
        );
    }
    output.status.success()
}

/// Milliseconds: what the script says for each of its execs, or else the whole time.
fn once(place: &Path, url: &str, backend: &str, script: &str) -> f64 {
    let began = Instant::now();
    let output = session(place, url, backend, script)
        .output()
        .expect("a gate");
    let whole = began.elapsed().as_secs_f64() * 1e3;
    assert!(output.status.success(), "{backend}: {script}: {output:?}");
    // What an exec is refused is no measure of it.
    assert!(output.stderr.is_empty(), "{backend}: {script}: {output:?}");
    let text = String::from_utf8_lossy(&output.stdout);
    #[allow(clippy::cast_precision_loss, reason = "hundreds")]
    let execs = EXECS as f64;
    match text.trim().parse::<f64>() {
        Ok(microseconds) => microseconds / 1e3 / execs,
        Err(_) => whole,
    }
}
