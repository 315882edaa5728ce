//! The play: gates that execute, and what befalls them.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::disk::Disk;
use crate::ledgers::Verdicts;

/// How many gates are there at a time, and how many commands each executes.
const GATES: u64 = 3;
const COMMANDS: u64 = 40;
/// No gate takes this long unless it hangs; nor does anything else.
const PATIENCE: Duration = Duration::from_secs(180);

/// Room for some gates' journals.
const DISK: &str = "size=64m,mode=0700";

/// How many there are: the kinds of trouble, and a gate killed together with the service.
const TROUBLES: u64 = 7;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Trouble {
    ServiceKilled,
    ServiceStopped,
    GateKilled,
    GateStopped,
    BothStopped,
    DiskFilled,
}

impl Trouble {
    const ALL: [Self; 6] = [
        Self::ServiceKilled,
        Self::ServiceStopped,
        Self::GateKilled,
        Self::GateStopped,
        Self::BothStopped,
        Self::DiskFilled,
    ];
}

/// What became of a gate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    Reached,
    /// There was no room for its journal.
    NotBegun,
}

/// What the gates say of themselves.
#[derive(Debug, Default)]
pub(crate) struct Outcome {
    /// What the gates that came to their ends say they decided.
    pub(crate) decided: BTreeMap<String, Verdicts>,
    pub(crate) killed: BTreeSet<String>,
    /// What shouldn't have happened.
    pub(crate) findings: Vec<String>,
    pub(crate) troubles: BTreeMap<Trouble, u64>,
    /// With what codes execs may be denied.
    pub(crate) may_deny: &'static [&'static str],
}

pub(crate) struct Play {
    directory: PathBuf,
    shell: PathBuf,
    random: u64,
    /// Where the journal is. `None` where none could be mounted: then it's in the directory.
    disk: Option<Disk>,
    /// Until when the disk is, or was, full.
    full_until: Mutex<Option<Instant>>,
    /// Gates that are running. Their processes are waited for under this lock, and signalled too.
    gates: Mutex<BTreeMap<String, Child>>,
    outcome: Mutex<Outcome>,
    started: AtomicU64,
}

impl Play {
    pub(crate) fn new(directory: &Path, shell: &Path, seed: u64) -> Self {
        std::fs::write(directory.join("rules.star"), "fallback(\"run\")\n").expect("rules");
        std::fs::write(ledger(directory), "").expect("a ledger");
        let pause = Command::new("mkfifo").arg(directory.join("pause")).status();
        assert!(pause.expect("mkfifo").success());
        let disk = Disk::mount(directory.join("disk"), DISK);
        if disk.is_none() {
            eprintln!("\n*** LEFT OUT: a full disk under the journal; mounting takes privileges\n");
        }
        Self {
            directory: directory.to_owned(),
            shell: shell.to_owned(),
            random: seed,
            disk,
            full_until: Mutex::default(),
            gates: Mutex::default(),
            outcome: Mutex::new(Outcome {
                // On a slow machine restarts of the service add up to an outage that isn't tolerated.
                may_deny: &["unrecorded", "unreachable"],
                ..Outcome::default()
            }),
            started: AtomicU64::new(0),
        }
    }

    pub(crate) fn run(mut self, execs: usize) -> Outcome {
        let mut random = Random(self.random | 1);
        let mut service = Some(self.service());
        std::thread::scope(|scope| {
            let workers: Vec<_> = (0..GATES)
                .map(|_| scope.spawn(|| self.work(execs)))
                .collect();
            let mut dealt = Vec::new();
            while !workers
                .iter()
                .all(std::thread::ScopedJoinHandle::is_finished)
            {
                std::thread::sleep(Duration::from_millis(random.below(350)));
                // None befalls anybody twice before each did once.
                if dealt.is_empty() {
                    dealt = random.shuffled(TROUBLES);
                }
                let trouble = dealt.pop().expect("there are some");
                self.trouble(trouble, &mut random, &mut service);
            }
        });
        self.deliver_the_rest();
        if let Some(mut service) = service {
            signal(service.id(), "TERM");
            let _ = service.wait();
        }
        let mut outcome = std::mem::take(self.outcome.get_mut().expect("no panic"));
        outcome.findings.extend(left_running(&self.directory));
        outcome
    }

    fn journal(&self) -> PathBuf {
        let disk = self.disk.as_ref().map(Disk::path);
        disk.unwrap_or(&self.directory).join("journal")
    }

    /// One gate after another.
    fn work(&self, execs: usize) {
        loop {
            // A gate that is killed leaves commands out: others execute as many.
            let ran = std::fs::read_to_string(ledger(&self.directory)).expect("a ledger");
            if ran.lines().count() >= execs && self.has_seen_all() {
                return;
            }
            let number = self.started.fetch_add(1, Ordering::Relaxed);
            let name = format!("g{number}");
            let script = format!(
                "i=0; while [ $i -lt {COMMANDS} ]; do \
                     /bin/sh -c \"echo {name}-$i >>{}\" || {{ [ $? = 1 ] || exit 2; \
                     read -rt 0.1 _ <>pause; }}; i=$((i+1)); \
                 done",
                ledger(&self.directory).display()
            );
            loop {
                let began = Instant::now();
                let child = self.gate(&name, &script);
                self.gates
                    .lock()
                    .expect("no panic")
                    .insert(name.clone(), child);
                if self.see_to_its_end(&name, began) == End::Reached {
                    break;
                }
            }
        }
    }

    /// A quick machine executes what it should before everything befell it.
    fn has_seen_all(&self) -> bool {
        let outcome = self.outcome.lock().expect("no panic");
        let mut kinds = Trouble::ALL.iter();
        kinds.all(|trouble| {
            outcome.troubles.contains_key(trouble)
                || (*trouble == Trouble::DiskFilled && self.disk.is_none())
        })
    }

    fn gate(&self, name: &str, script: &str) -> Child {
        let output = |end: &str| {
            std::fs::File::create(self.directory.join(format!("{name}.{end}"))).expect("a file")
        };
        Command::new(env!("CARGO_BIN_EXE_execgate"))
            .args([
                "exec",
                "--output",
                "json",
                "--no-login",
                "--sandbox",
                "none",
            ])
            .args(["--verdict-timeout", "120s", "--label"])
            .arg(format!("gate={name}"))
            .arg("--policy")
            .arg(format!("unix:{}", self.directory.join("s").display()))
            .arg("--journal")
            .arg(self.journal())
            .args(["--audit", "strict", "--shell"])
            .arg(&self.shell)
            .args(["--", script])
            .current_dir(&self.directory)
            .stdin(Stdio::null())
            .stdout(output("out"))
            .stderr(output("err"))
            .process_group(0)
            .spawn()
            .expect("a gate")
    }

    fn see_to_its_end(&self, name: &str, began: Instant) -> End {
        let status = loop {
            {
                let mut gates = self.gates.lock().expect("no panic");
                let child = gates.get_mut(name).expect("it is this worker's");
                if let Some(status) = child.try_wait().expect("a child") {
                    gates.remove(name);
                    break status;
                }
                if began.elapsed() > PATIENCE {
                    let _ = child.kill();
                    self.found(format!("{name} hangs"));
                }
            }
            std::thread::sleep(Duration::from_millis(2));
        };
        let full_until = *self.full_until.lock().expect("no panic");
        let was_full = full_until.is_some_and(|until| until > began);
        let mut outcome = self.outcome.lock().expect("no panic");
        if outcome.killed.contains(name) {
            return End::Reached;
        }
        let read = |end: &str| {
            let output = std::fs::read_to_string(self.directory.join(format!("{name}.{end}")));
            output.expect("a file")
        };
        let (output, errors) = (read("out"), read("err"));
        // A strict gate needs room for its journal.
        if was_full && status.code() == Some(125) && output.is_empty() && errors.contains("full") {
            return End::NotBegun;
        }
        let decided = Verdicts::printed(&output);
        if !status.success() || decided.is_none() {
            outcome.findings.push(format!(
                "{name} ended with {status} and {decided:?}: {errors}"
            ));
        }
        outcome
            .decided
            .insert(name.to_owned(), decided.unwrap_or_default());
        End::Reached
    }

    /// Something befalls somebody.
    fn trouble(&self, number: u64, random: &mut Random, service: &mut Option<Child>) {
        match number {
            0 => self.kill_the_service(random, service),
            1 => {
                let id = service.as_ref().expect("a service").id();
                self.count(Trouble::ServiceStopped);
                signal(id, "STOP");
                std::thread::sleep(Duration::from_millis(random.below(1_500)));
                signal(id, "CONT");
            }
            2 => {
                self.kill_a_gate(random);
            }
            3 => {
                let Some(name) = self.signal_a_gate(random, "STOP") else {
                    return;
                };
                self.count(Trouble::GateStopped);
                std::thread::sleep(Duration::from_millis(random.below(800)));
                let gates = self.gates.lock().expect("no panic");
                if let Some(child) = gates.get(&name) {
                    signal(child.id(), "CONT");
                }
            }
            4 => {
                self.kill_a_gate(random);
                self.kill_the_service(random, service);
            }
            5 => {
                let id = service.as_ref().expect("a service").id();
                let Some(name) = self.signal_a_gate(random, "STOP") else {
                    return;
                };
                signal(id, "STOP");
                self.count(Trouble::BothStopped);
                std::thread::sleep(Duration::from_millis(random.below(1_500)));
                let mut go_on = [Some(id), None];
                let gates = self.gates.lock().expect("no panic");
                go_on[1] = gates.get(&name).map(Child::id);
                // Either may be the first.
                let first = usize::from(random.below(2) == 0);
                for process in [go_on[first], go_on[1 - first]].into_iter().flatten() {
                    signal(process, "CONT");
                }
            }
            _ => self.fill_the_disk(random),
        }
    }

    fn fill_the_disk(&self, random: &mut Random) {
        let Some(disk) = &self.disk else { return };
        self.count(Trouble::DiskFilled);
        let set_full_until = |until| {
            *self.full_until.lock().expect("no panic") = Some(until);
        };
        set_full_until(Instant::now() + 2 * PATIENCE);
        disk.fill();
        std::thread::sleep(Duration::from_millis(random.below(700)));
        if random.below(2) == 0 {
            self.kill_a_gate(random);
        }
        std::thread::sleep(Duration::from_millis(random.below(700)));
        disk.make_room();
        set_full_until(Instant::now());
    }

    fn kill_the_service(&self, random: &mut Random, service: &mut Option<Child>) {
        self.count(Trouble::ServiceKilled);
        let mut child = service.take().expect("a service");
        child.kill().expect("a child");
        child.wait().expect("a child");
        std::thread::sleep(Duration::from_millis(random.below(300)));
        *service = Some(self.service());
    }

    fn kill_a_gate(&self, random: &mut Random) {
        let gates = self.gates.lock().expect("no panic");
        let Some((name, child)) = pick(&gates, random) else {
            return;
        };
        // Noted before it can be seen.
        let mut outcome = self.outcome.lock().expect("no panic");
        outcome.killed.insert(name.clone());
        drop(outcome);
        self.count(Trouble::GateKilled);
        signal(child.id(), "KILL");
    }

    fn signal_a_gate(&self, random: &mut Random, name: &str) -> Option<String> {
        let gates = self.gates.lock().expect("no panic");
        let (gate, child) = pick(&gates, random)?;
        signal(child.id(), name);
        Some(gate.clone())
    }

    fn service(&self) -> Child {
        let errors = std::fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(self.directory.join("policyd.err"))
            .expect("a file");
        let mut child = Command::new(env!("CARGO_BIN_EXE_execgate-policyd"))
            .args(["--rules", "rules.star", "--data", "data", "--log", "warn"])
            .arg("--listen")
            .arg(format!("unix:{}", self.directory.join("s").display()))
            .current_dir(&self.directory)
            .process_group(0)
            .stdout(Stdio::piped())
            .stderr(errors)
            .spawn()
            .expect("a service");
        let mut line = String::new();
        BufReader::new(child.stdout.take().expect("a pipe"))
            .read_line(&mut line)
            .expect("a line");
        assert!(line.starts_with("listening on "), "{line:?}");
        child
    }

    /// Starts gates, as somebody would, until nothing is left in the journal.
    fn deliver_the_rest(&self) {
        let began = Instant::now();
        let mut number = 0;
        let is_left = || {
            let entries = std::fs::read_dir(self.journal());
            entries.is_ok_and(|mut entries| entries.next().is_some())
        };
        while is_left() {
            if began.elapsed() > PATIENCE {
                self.found("the journal isn't delivered".to_owned());
                return;
            }
            let mut child = self.gate(&format!("last{number}"), "/bin/true");
            let _ = child.wait();
            number += 1;
        }
    }

    fn count(&self, trouble: Trouble) {
        let mut outcome = self.outcome.lock().expect("no panic");
        *outcome.troubles.entry(trouble).or_default() += 1;
    }

    fn found(&self, finding: String) {
        let mut outcome = self.outcome.lock().expect("no panic");
        outcome.findings.push(finding);
    }
}

pub(crate) fn ledger(directory: &Path) -> PathBuf {
    directory.join("ledger")
}

/// Processes that name the directory and don't come to their ends. None is left as a rule.
pub(crate) fn left_running(directory: &Path) -> Option<String> {
    let began = Instant::now();
    let marker = directory.to_string_lossy().into_owned();
    loop {
        let entries = std::fs::read_dir("/proc").expect("/proc");
        let there: Vec<_> = entries
            .filter_map(|entry| std::fs::read(entry.ok()?.path().join("cmdline")).ok())
            .map(|line| String::from_utf8_lossy(&line).replace('\0', " "))
            .filter(|line| line.contains(&marker))
            .collect();
        if there.is_empty() {
            return None;
        }
        if began.elapsed() > Duration::from_secs(20) {
            return Some(format!("still there: {there:?}"));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn pick<'a>(
    gates: &'a BTreeMap<String, Child>,
    random: &mut Random,
) -> Option<(&'a String, &'a Child)> {
    let count = u64::try_from(gates.len()).expect("few").max(1);
    gates
        .iter()
        .nth(usize::try_from(random.below(count)).expect("few"))
}

fn signal(process: u32, name: &str) {
    let status = Command::new("kill")
        .args([format!("-{name}"), process.to_string()])
        .status();
    assert!(status.expect("kill").success(), "kill -{name} {process}");
}

/// xorshift64*, so that a seed gives the same choices everywhere.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 16) % bound
    }

    /// The numbers below this one, each once.
    fn shuffled(&mut self, count: u64) -> Vec<u64> {
        let mut left: Vec<u64> = (0..count).collect();
        let mut shuffled = Vec::new();
        while !left.is_empty() {
            let place = self.below(u64::try_from(left.len()).expect("few"));
            shuffled.push(left.swap_remove(usize::try_from(place).expect("few")));
        }
        shuffled
    }
}
