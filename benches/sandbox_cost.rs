//! What each sandbox costs: on the start of a session, on an exec that runs in it, and on one that is
//! escalated into it afresh. Measured in turn, several times over, in one run; medians.
//!
//! `cargo bench --bench sandbox_cost` runs it; it needs the patched shells that `make build` makes.
#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "a bench that can't go on ends"
)]

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Instant;

const ROUNDS: usize = 9;
const EXECS: usize = 200;

const BACKENDS: [&str; 3] = ["none", "landlock", "bubblewrap"];

/// `/bin/true` runs in the sandbox, `/bin/false` is escalated.
const RULES: &str = "\
prefix_rule([\"true\"])
prefix_rule([\"false\"], \"escalate\", execution = \"turn_default\")
prefix_rule([\"test\"], \"escalate\", execution = permissions(network = \"denied\", write = [\"/var/tmp\"]))
";

struct Service(Child);

impl Drop for Service {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn main() {
    let place = tempfile::tempdir_in("/var/tmp").expect("a directory");
    let rules = place.path().join("rules.star");
    std::fs::write(&rules, RULES).expect("a file");
    let mut child = Command::new(env!("CARGO_BIN_EXE_execgate-policyd"))
        .args(["--log", "error", "--listen", "127.0.0.1:0", "--rules"])
        .arg(&rules)
        .stdout(Stdio::piped())
        .spawn()
        .expect("a policy service");
    let mut line = String::new();
    BufReader::new(child.stdout.as_mut().expect("a pipe"))
        .read_line(&mut line)
        .expect("a line");
    let _service = Service(child);
    let url = format!(
        "http://{}",
        line.trim().rsplit(' ').next().expect("an address")
    );

    let ways = [
        ("session", ":".to_owned()),
        ("run", timed("/bin/true")),
        ("turn_default", timed("/bin/false")),
        ("permissions", timed("/usr/bin/test x")),
    ];
    println!(
        "milliseconds{:>12}{:>12}{:>12}",
        BACKENDS[0], BACKENDS[1], BACKENDS[2]
    );
    for (name, script) in &ways {
        let mut times = BACKENDS.map(|_| Vec::new());
        for _ in 0..ROUNDS {
            for (backend, times) in BACKENDS.iter().zip(&mut times) {
                // No permissions can be enforced without a sandbox.
                if (*name, *backend) != ("permissions", "none") {
                    times.push(once(place.path(), &url, backend, script));
                }
            }
        }
        print!("{name:<12}");
        for mut times in times {
            times.sort_by(f64::total_cmp);
            match times.get(times.len() / 2) {
                Some(median) => print!("{median:>12.2}"),
                None => print!("{:>12}", "-"),
            }
        }
        println!();
    }
}

/// A loop that prints how many microseconds it took.
fn timed(command: &str) -> String {
    format!(
        "{command}; b=${{EPOCHREALTIME/[.,]/}}; for i in {{1..{EXECS}}}; do {command}; done; \
         echo $(( ${{EPOCHREALTIME/[.,]/}} - b ))"
    )
}

/// Milliseconds: what the script says for each of its execs, or else the whole time.
fn once(place: &Path, url: &str, backend: &str, script: &str) -> f64 {
    let shell = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/dist/libexec/execgate/bash");
    assert!(shell.exists(), "no patched bash: `make build` makes it");
    let began = Instant::now();
    let output = Command::new(env!("CARGO_BIN_EXE_execgate"))
        .args([
            "--log",
            "error",
            "exec",
            "--no-login",
            "--policy",
            url,
            "--sandbox",
            backend,
            "--shell",
        ])
        .arg(shell)
        .args(["--", script])
        .current_dir(place)
        .output()
        .expect("a gate");
    let whole = began.elapsed().as_secs_f64() * 1e3;
    let text = String::from_utf8_lossy(&output.stdout);
    #[allow(clippy::cast_precision_loss, reason = "hundreds")]
    let execs = EXECS as f64;
    if let Ok(microseconds) = text.trim().parse::<f64>() {
        microseconds / 1e3 / execs
    } else {
        assert!(output.status.success(), "{backend}: {script}: {output:?}");
        whole
    }
}
