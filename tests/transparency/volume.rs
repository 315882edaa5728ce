//! Much at once, and much at a time.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use execgate::model::{EscalationDecision, InterceptedExec, SessionEvent, Verdict};
use execgate::server::{BoxFuture, EscalationPolicy, PolicyError};
use tokio::sync::Semaphore;

use crate::endings::{processes_with, until};
use crate::gates::Service;
use crate::harness::{Place, Shell, script, shells, spawn, wait, wait_with_policy};
use crate::support::{ESCALATE, PATIENCE, WRAPPER, text};

#[tokio::test]
async fn ten_megabytes_arrive_as_they_were_sent() {
    let mut content = vec![0; 10 << 20];
    let mut random = std::fs::File::open("/dev/urandom").unwrap();
    std::io::Read::read_exact(&mut random, &mut content).unwrap();
    script("sha256sum <data; cat <data | cat | sha256sum; cat data | tee copy | sha256sum; cmp data copy; echo $?; diff <(cat data) <(cat copy); echo $?; sha256sum <<<\"$(od data)\"")
        .file("data", content, 0o644)
        .is_the_same()
        .await;
}

/// Lets nobody pass until it is opened.
struct Barrier {
    decision: EscalationDecision,
    arrived: AtomicUsize,
    open: Semaphore,
}

impl EscalationPolicy for Barrier {
    fn decide<'a>(
        &'a self,
        exec: &'a InterceptedExec,
    ) -> BoxFuture<'a, Result<Verdict, PolicyError>> {
        Box::pin(async {
            if exec.file.ends_with("true") {
                self.arrived.fetch_add(1, Ordering::Relaxed);
                let _ = self.open.acquire().await;
            }
            Ok(self.decision.clone().into())
        })
    }

    fn observe(&self, _: SessionEvent) {}
}

/// Ids of the wrappers with this home directory.
fn waiting(home: &Path) -> Vec<i32> {
    let wrapper = Path::new(WRAPPER).canonicalize().unwrap();
    let home = format!("HOME={}", home.display());
    let mut wrappers = processes_with(&home);
    wrappers.retain(|pid| {
        std::fs::read_link(format!("/proc/{pid}/exe")).is_ok_and(|exe| exe == wrapper)
    });
    wrappers
}

/// Processor time of these processes, in clock ticks, and memory that they and this process occupy, in
/// pages.
fn spent(pids: &[i32]) -> (u64, u64) {
    let number = |pid: &str, file: &str, fields: &[usize]| -> u64 {
        let text = std::fs::read_to_string(format!("/proc/{pid}/{file}")).unwrap_or_default();
        let text = text.rsplit(')').next().unwrap_or_default();
        let numbers: Vec<_> = text.split_whitespace().collect();
        let numbers = fields
            .iter()
            .filter_map(|at| numbers.get(*at)?.parse::<u64>().ok());
        numbers.sum()
    };
    let pids: Vec<_> = pids.iter().map(i32::to_string).collect();
    // After the name in parentheses: user and system time are the twelfth and the thirteenth.
    let ticks = pids.iter().map(|pid| number(pid, "stat", &[11, 12])).sum();
    let pages = pids.iter().map(String::as_str).chain(["self"]);
    (ticks, pages.map(|pid| number(pid, "statm", &[1])).sum())
}

/// Waits until the wrappers have come to rest: a time in which they use no processor at all, and no
/// memory is added, neither theirs nor the gate's.
async fn idle(home: &Path) {
    let wrappers = waiting(home);
    let rest = async {
        loop {
            let before = spent(&wrappers);
            tokio::time::sleep(Duration::from_millis(500)).await;
            let after = spent(&wrappers);
            if after.0 == before.0 && after.1 <= before.1 {
                return;
            }
        }
    };
    let rested = tokio::time::timeout(PATIENCE, rest).await;
    assert!(rested.is_ok(), "the wrappers never come to rest");
}

#[tokio::test]
async fn five_hundred_wait_at_once() {
    const MANY: usize = 500;
    let crowd = "i=0; while [ $i -lt 500 ]; do /bin/true & p=\"$p $!\"; i=$((i+1)); done; echo >started; for q in $(echo $p); do wait $q || echo failed; done; echo end";
    for shell in shells() {
        for decision in [EscalationDecision::Run, ESCALATE] {
            let place = Place::new();
            let policy = Arc::new(Barrier {
                decision,
                arrived: AtomicUsize::new(0),
                open: Semaphore::new(0),
            });
            let wait = wait_with_policy(crowd, shell, &place, policy.clone());
            let release = async {
                let started = place.work().join("started");
                while !started.exists() {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
                assert!(policy.arrived.load(Ordering::Relaxed) > 0);
                let home = place.work();
                until("not all wrappers are there", || {
                    waiting(&home).len() == MANY
                })
                .await;
                idle(&home).await;
                policy.open.close();
            };
            let (output, ()) = tokio::join!(wait, release);
            assert_eq!(text(&output.stdout), "end\n", "{shell:?} {output:?}");
            assert_eq!(policy.arrived.load(Ordering::Relaxed), MANY);
        }
    }
}

#[tokio::test]
async fn two_hundred_escalations_under_a_gate_with_few_descriptors() {
    let crowd = "i=0; while [ $i -lt 200 ]; do /bin/sh -c 'exit 3' & p=\"$p $!\"; i=$((i+1)); done; for q in $(echo $p); do wait $q; echo $?; done >list; sort <list | uniq -c";
    // Each hands over nearly as many as it may; zsh redirects single digits only.
    let many = "exec 3</dev/null 4<&3 5<&3 6<&3 7<&3 8<&3 9<&3; ";
    let more = "exec 20<&3 21<&3 22<&3; ";
    for shell in shells() {
        let place = Place::new();
        let service = Service::deciding(&ESCALATE, &place);
        let gate = service.gate("exec", shell, &place.work());
        let more = if shell == Shell::Bash { more } else { "" };
        let mut limited = std::process::Command::new("/bin/sh");
        limited
            .args(["-c", "ulimit -n 64; exec \"$@\"", "sh"])
            .arg(gate.get_program())
            .args(gate.get_args())
            .args(["--no-login", "--", &format!("{many}{more}{crowd}")])
            .env_clear()
            .env("PATH", "/usr/bin:/bin")
            .current_dir(place.work())
            .stdin(std::process::Stdio::null())
            .stdout(std::process::Stdio::piped())
            .stderr(std::process::Stdio::piped());
        let output = wait(spawn(&mut limited)).await;
        let words: Vec<_> = text(&output.stdout).split_whitespace().collect();
        assert_eq!(words, ["200", "3"], "{shell:?} {output:?}");
    }
}
