//! Gates and a service on two hosts, and what the network between them does.
//!
//! Two gates execute at all times. The hasty one waits for verdicts as long as gates do by default, and the
//! patient one longer than any weather lasts: of its execs none times out. Both deny with another code where the
//! service can't be reached for longer than outages are tolerated. Each command notes its status, so that one
//! that hangs or vanishes is missed.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use execgate::link::CertificateFiles;
use rcgen::SanType;

use crate::ledgers::{self, Verdicts};
use crate::network::{Network, SERVICE, Weather};
use crate::pki::{Authority, Validity, dns};
use crate::play::{Outcome, ledger, left_running};

/// Nothing takes this long unless it hangs.
const PATIENCE: Duration = Duration::from_secs(180);
/// Loops of execs in each gate.
const LOOPS: usize = 3;
/// So many more commands run once the weather is fair again before a row comes to its end.
const AFTERWARDS: usize = 30;

/// How a gate waits for verdicts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Temper {
    /// As by default.
    Hasty,
    /// Longer than the weather lasts.
    Patient,
}

impl Temper {
    fn name(self) -> &'static str {
        match self {
            Self::Hasty => "hasty",
            Self::Patient => "patient",
        }
    }
}

/// What a row saw.
#[derive(Debug)]
pub(crate) struct Seen {
    /// What doesn't agree. Empty: all does.
    pub(crate) findings: Vec<String>,
    pub(crate) dropped_packets: u64,
    /// Commands that ran in the weather.
    pub(crate) ran_meanwhile: usize,
    /// By code: execs that were denied.
    pub(crate) denied: BTreeMap<String, u64>,
}

/// Has gates execute before, in and after a spell of weather, and compares the ledgers.
pub(crate) fn endure(
    mut network: Network,
    directory: &Path,
    shell: &Path,
    weather: Weather,
    lasts: Duration,
) -> Seen {
    let place = Place::new(directory, shell);
    let (service, address) = place.service(&network);
    let gates = [Temper::Hasty, Temper::Patient].map(|temper| {
        let gate = place.gate(
            &network,
            &address,
            temper.name(),
            temper,
            &place.script(temper),
        );
        (temper, gate)
    });
    let mut outcome = Outcome {
        may_deny: &["timed-out", "unreachable"],
        ..Outcome::default()
    };
    place.wait_for_commands(AFTERWARDS, &mut outcome);

    network.set(weather);
    let before = place.ran();
    std::thread::sleep(lasts);
    let ran_meanwhile = place.ran() - before;
    let dropped_packets = network.set(Weather::Fair);
    place.wait_for_commands(place.ran() + AFTERWARDS, &mut outcome);

    std::fs::write(place.path("over"), "").expect("a file");
    for (temper, gate) in gates {
        place.see_to_its_end(temper, gate, &mut outcome);
    }
    place.deliver_the_rest(&network, &address, &mut outcome);
    drop(service);
    outcome.findings.extend(left_running(directory));

    let mut findings = ledgers::compare(directory, &outcome);
    let denied = place.compare_statuses(&mut findings);
    Seen {
        findings,
        dropped_packets,
        ran_meanwhile,
        denied,
    }
}

/// A program that doesn't outlive a row that fails.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

struct Place {
    directory: PathBuf,
    shell: PathBuf,
    ca: PathBuf,
    of_service: CertificateFiles,
    of_gate: CertificateFiles,
}

impl Place {
    fn new(directory: &Path, shell: &Path) -> Self {
        std::fs::write(directory.join("rules.star"), "fallback(\"run\")\n").expect("rules");
        std::fs::write(ledger(directory), "").expect("a ledger");
        let pause = Command::new("mkfifo").arg(directory.join("pause")).status();
        assert!(pause.expect("mkfifo").success());
        let ca = Authority::new(directory, "ca");
        let service = SERVICE.parse().expect("an address");
        let service = [SanType::IpAddress(service)];
        Self {
            directory: directory.to_owned(),
            shell: shell.to_owned(),
            of_service: ca.issue(directory, "service", &service, Validity::Now),
            of_gate: ca.issue(directory, "gate", &[dns("gate.example")], Validity::Now),
            ca: ca.file,
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    /// Loops that execute until they are told that it's over, and have `read` wait in between.
    fn script(&self, temper: Temper) -> String {
        let name = temper.name();
        let loops: Vec<_> = (0..LOOPS)
            .map(|number| format!("work {name}{number} & "))
            .collect();
        format!(
            "exec 3<>pause
             work() {{
                 i=0
                 while ! [ -e over ]; do
                     /bin/sh -c \"echo $1-$i >>{}\"
                     echo $1-$i $? >>statuses
                     i=$((i+1))
                     read -rt 0.02 -u 3 _
                 done
             }}
             {} wait",
            ledger(&self.directory).display(),
            loops.concat()
        )
    }

    fn service(&self, network: &Network) -> (Process, String) {
        let mut command = network.of_service(env!("CARGO_BIN_EXE_execgate-policyd"));
        let errors = std::fs::File::create(self.path("policyd.err")).expect("a file");
        let mut child = command
            .args(["--rules", "rules.star", "--data", "data", "--log", "warn"])
            .args(["--listen", &format!("[{SERVICE}]:0"), "--tls-cert"])
            .arg(&self.of_service.certificate)
            .arg("--tls-key")
            .arg(&self.of_service.key)
            .arg("--client-ca")
            .arg(&self.ca)
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
        let address = line.trim_end().strip_prefix("listening on ");
        let address = address.unwrap_or_else(|| panic!("{line:?}")).to_owned();
        (Process(child), address)
    }

    fn gate(
        &self,
        network: &Network,
        address: &str,
        name: &str,
        temper: Temper,
        script: &str,
    ) -> Process {
        let output =
            |end: &str| std::fs::File::create(self.path(&format!("{name}.{end}"))).expect("a file");
        let mut command = network.of_gates(env!("CARGO_BIN_EXE_execgate"));
        command.args([
            "exec",
            "--output",
            "json",
            "--no-login",
            "--sandbox",
            "none",
            "--label",
        ]);
        command.arg(format!("gate={name}"));
        if temper == Temper::Patient {
            command.args(["--verdict-timeout", "120s"]);
        }
        let options: [(&str, OsString); 6] = [
            ("--policy", format!("https://{address}").into()),
            ("--policy-ca", self.ca.clone().into()),
            ("--policy-cert", self.of_gate.certificate.clone().into()),
            ("--policy-key", self.of_gate.key.clone().into()),
            ("--journal", self.path("journal").into()),
            ("--shell", self.shell.clone().into()),
        ];
        for (option, value) in options {
            command.arg(option).arg(value);
        }
        let child = command
            .args(["--audit", "strict", "--", script])
            .current_dir(&self.directory)
            .stdin(Stdio::null())
            .stdout(output("out"))
            .stderr(output("err"))
            .process_group(0)
            .spawn();
        Process(child.expect("a gate"))
    }

    fn ran(&self) -> usize {
        let ledger = std::fs::read_to_string(ledger(&self.directory));
        ledger.expect("a ledger").lines().count()
    }

    fn wait_for_commands(&self, count: usize, outcome: &mut Outcome) {
        let began = Instant::now();
        while self.ran() < count {
            if began.elapsed() > PATIENCE {
                let ran = self.ran();
                let finding = format!("{ran} commands ran, and no more of {count}");
                outcome.findings.push(finding);
                return;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    fn see_to_its_end(&self, temper: Temper, mut gate: Process, outcome: &mut Outcome) {
        let name = temper.name();
        let began = Instant::now();
        let status = loop {
            if let Some(status) = gate.0.try_wait().expect("a child") {
                break status;
            }
            if began.elapsed() > PATIENCE {
                outcome.findings.push(format!("{name} hangs"));
                let _ = gate.0.kill();
            }
            std::thread::sleep(Duration::from_millis(5));
        };
        let read = |end: &str| std::fs::read_to_string(self.path(&format!("{name}.{end}")));
        let decided = Verdicts::printed(&read("out").expect("a file"));
        if !status.success() || decided.is_none() {
            let errors = read("err").expect("a file");
            let finding = format!("{name} ended with {status} and {decided:?}: {errors}");
            outcome.findings.push(finding);
        }
        let decided = decided.unwrap_or_default();
        outcome.decided.insert(name.to_owned(), decided);
    }

    /// Starts gates, as somebody would, until nothing is left in the journal.
    fn deliver_the_rest(&self, network: &Network, address: &str, outcome: &mut Outcome) {
        let began = Instant::now();
        let is_left = || {
            let entries = std::fs::read_dir(self.path("journal"));
            entries.is_ok_and(|mut entries| entries.next().is_some())
        };
        while is_left() {
            if began.elapsed() > PATIENCE {
                let finding = "the journal isn't delivered".to_owned();
                outcome.findings.push(finding);
                return;
            }
            let mut gate = self.gate(network, address, "last", Temper::Patient, "/bin/true");
            gate.0.wait().expect("a child");
        }
    }

    /// Holds what each command ended with against what ran and what is stored. By code: what was denied.
    fn compare_statuses(&self, findings: &mut Vec<String>) -> BTreeMap<String, u64> {
        let ran = std::fs::read_to_string(ledger(&self.directory)).expect("a ledger");
        let ran: BTreeSet<_> = ran.lines().collect();
        let stored = ledgers::stored(&self.directory);
        let statuses = std::fs::read_to_string(self.path("statuses")).expect("statuses");
        let mut told = BTreeSet::new();
        let mut denied = BTreeMap::new();
        for line in statuses.lines() {
            let (id, status) = line.split_once(' ').expect("an id and a status");
            told.insert(id.to_owned());
            let exec = stored.get(id);
            let field = |name: &str| {
                exec.and_then(|exec| exec[name].as_str())
                    .unwrap_or_default()
            };
            let agrees = match status {
                "0" => field("verdict") == "run" && field("code") == "verdict" && ran.contains(id),
                "1" => {
                    *denied.entry(field("code").to_owned()).or_default() += 1;
                    let is_patient = id.starts_with(Temper::Patient.name());
                    field("verdict") == "deny"
                        && !ran.contains(id)
                        && !(is_patient && field("code") == "timed-out")
                }
                _ => false,
            };
            if !agrees {
                findings.push(format!(
                    "{id} ended with {status}, and is stored as {exec:?}"
                ));
            }
        }
        for id in stored.keys().filter(|id| !told.contains(*id)) {
            findings.push(format!("{id} is stored, and never came to its end"));
        }
        denied
    }
}
