//! Two hosts, as far as the network goes: a namespace for each, and a cable between them that can be spoilt.
//!
//! ```text
//! gates' namespace: gate0 ── relay.py ── service0 :service's namespace
//! ```
//!
//! Nothing of it is left when the test is gone, however that ended: a namespace lasts as long as its
//! processes, and these end with their standard input.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;

/// Addresses that lead nowhere else: the namespaces have no other device.
const GATES: &str = "fd00::1";
pub(crate) const SERVICE: &str = "fd00::2";

/// What the cable does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Weather {
    Fair,
    /// Packets are dropped in silence.
    Cut,
    Foul {
        /// Each way.
        delay: Duration,
        /// Of the packets each way.
        loss_percent: u32,
    },
}

pub(crate) struct Network {
    gates: Peer,
    service: Peer,
    relay: Peer,
}

impl Network {
    /// # Errors
    /// Why this machine can't have one: no privileges, no TUN, a program that isn't there.
    pub(crate) fn new(seed: u64) -> Result<Self, String> {
        let relay = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/chaos/relay.py");
        let mut command = namespace();
        command.arg("python3").arg(relay);
        command.args(["gate0", "service0", &seed.to_string()]);
        let network = Self {
            relay: Peer::start(command)?,
            gates: Peer::holding()?,
            service: Peer::holding()?,
        };
        for (peer, device, address, other) in [
            (&network.gates, "gate0", GATES, SERVICE),
            (&network.service, "service0", SERVICE, GATES),
        ] {
            let to = peer.0.id().to_string();
            let relay = &network.relay;
            done(
                relay
                    .command("ip")
                    .args(["link", "set", device])
                    .args(["netns", &to]),
            )?;
            let ip = || peer.command("ip");
            done(ip().args(["link", "set", "lo", "up"]))?;
            done(ip().args(["link", "set", device, "up"]))?;
            let pair = [address, "peer", other, "dev", device, "nodad"];
            done(ip().args(["address", "add"]).args(pair))?;
        }
        Ok(network)
    }

    /// A program on the gates' host.
    pub(crate) fn of_gates(&self, program: impl AsRef<OsStr>) -> Command {
        self.gates.command(program)
    }

    /// A program on the service's host.
    pub(crate) fn of_service(&self, program: impl AsRef<OsStr>) -> Command {
        self.service.command(program)
    }

    /// From now on the cable does this. Tells how many packets it has dropped so far.
    pub(crate) fn set(&mut self, weather: Weather) -> u64 {
        let (delay, loss_percent, state) = match weather {
            Weather::Fair => (Duration::ZERO, 0, "whole"),
            Weather::Cut => (Duration::ZERO, 0, "cut"),
            Weather::Foul {
                delay,
                loss_percent,
            } => (delay, loss_percent, "whole"),
        };
        let stdin = self.relay.0.stdin.as_mut().expect("a pipe");
        // In one piece.
        let line = format!("{} {loss_percent} {state}\n", delay.as_millis());
        let _ = stdin.write_all(line.as_bytes());
        let line = self.relay.line();
        let dropped = line.split_whitespace().nth(1);
        let Some(dropped) = dropped else {
            panic!("the relay is gone: {}", self.relay.errors());
        };
        dropped.parse().expect("a number")
    }
}

/// A process with a network namespace of its own.
struct Peer(Child, BufReader<ChildStdout>);

impl Peer {
    fn holding() -> Result<Self, String> {
        let mut command = namespace();
        command.args(["sh", "-c", "echo ready; exec cat"]);
        Self::start(command)
    }

    fn start(mut command: Command) -> Result<Self, String> {
        let child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn();
        let mut child = child.map_err(|error| format!("{command:?}: {error}"))?;
        let stdout = BufReader::new(child.stdout.take().expect("a pipe"));
        let mut peer = Self(child, stdout);
        if peer.line().trim_end() == "ready" {
            return Ok(peer);
        }
        let errors = peer.errors();
        let last = errors
            .trim_end()
            .lines()
            .last()
            .unwrap_or("it ended at once");
        Err(last.to_owned())
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.1.read_line(&mut line).expect("text");
        line
    }

    /// What a process that has ended wrote.
    fn errors(&mut self) -> String {
        let mut errors = String::new();
        let stderr = self.0.stderr.as_mut().expect("a pipe");
        stderr.read_to_string(&mut errors).expect("text");
        errors
    }

    /// A program in this namespace.
    fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new("nsenter");
        command.arg(format!("--net=/proc/{}/ns/net", self.0.id()));
        command.arg("--").arg(program);
        command
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn namespace() -> Command {
    let mut command = Command::new("unshare");
    command.args(["--net", "--"]);
    command
}

fn done(command: &mut Command) -> Result<(), String> {
    let output = command.output();
    let output = output.map_err(|error| format!("{command:?}: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    let errors = String::from_utf8_lossy(&output.stderr);
    Err(format!("{command:?}: {}", errors.trim_end()))
}
