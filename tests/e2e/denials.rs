//! `--explain-denials`: what the kernel tells of, in each state that it can be in; and the plain line where it tells
//! nothing.

use std::process::Command;

use serde_json::Value;

use crate::machine::available;
use crate::process::{self, Done, EXECGATE};
use crate::stage::{RUN, Stage, User};

/// Asks the kernel whether its audit record is on, or switches it: what `auditctl -s` and `-e` do.
const AUDIT: &str = r#"
import socket, struct, sys
netlink = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 9)
netlink.bind((0, 0))
netlink.settimeout(5)
if len(sys.argv) > 1:
    status = struct.pack("=II", 1, int(sys.argv[1])) + bytes(36)
    netlink.send(struct.pack("=IHHII", 16 + len(status), 1001, 5, 1, 0) + status)
    netlink.recv(9000)
netlink.send(struct.pack("=IHHII", 16, 1000, 1, 2, 0))
while True:
    answer = netlink.recv(9000)
    if struct.unpack("=H", answer[4:6])[0] == 1000:
        print(struct.unpack("=I", answer[20:24])[0])
        break
"#;

fn audit(arguments: &[&str]) -> Option<String> {
    let output = Command::new("python3")
        .args(["-c", AUDIT])
        .args(arguments)
        .output()
        .ok()?;
    output
        .status
        .success()
        .then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// Leaves the record as it was.
struct AsItWas(String);

impl Drop for AsItWas {
    fn drop(&mut self) {
        let _ = audit(&[&self.0]);
    }
}

fn landlock_tells() -> bool {
    execgate::sandbox::Landlock::find().is_ok_and(|found| found.version >= 7)
}

fn explained(backend: &'static str, user: User, script: &str) -> Option<Done> {
    let stage = Stage::new(backend, user, RUN)?.option(["--explain-denials"]);
    Some(stage.run(script))
}

/// One test, because the record is the whole machine's.
#[test]
fn what_the_kernel_tells_is_told_and_else_why_it_does_not() {
    // Nothing of this depends on the record.
    if let Some(done) = explained("bubblewrap", User::Own, "echo x >/etc/new; true") {
        done.exits(0).says(
            "what the sandbox refused can't be told: only --sandbox landlock has its refusals recorded by the kernel\n",
        );
    }
    if let Some(done) = explained("landlock", User::Nobody, "cat ~/.ssh/id; true") {
        done.exits(0).says(if landlock_tells() {
            "can't be told: only root (CAP_AUDIT_READ, CAP_AUDIT_CONTROL) may read the kernel's audit record\n"
        } else {
            "can't be told: Landlock tells since its version 7, Linux 6.15\n"
        });
    }
    if let Some(done) = explained("none", User::Own, "true") {
        done.exits(125).says("--explain-denials needs a sandbox");
    }
    let is_root = execgate::sys::host::user().id == 0;
    let record = audit(&[]).filter(|_| is_root && landlock_tells());
    let Some(was) = record else {
        let done = explained("landlock", User::Own, "cat ~/.ssh/id; true");
        if let Some(done) = done {
            done.exits(0)
                .says("what the sandbox refused can't be told: ");
        }
        available(false, "root can't switch on the kernel's audit record here");
        return;
    };
    let _as_it_was = AsItWas(was.clone());
    if was == "0" || audit(&["0"]).as_deref() == Some("0") {
        let done = explained("landlock", User::Own, "cat ~/.ssh/id; true");
        if let Some(done) = done {
            done.exits(0).says(
                "can't be told: the kernel's audit record is off; as root, `auditctl -e 1` switches it on\n",
            );
        }
        doctor_says("can't tell what a sandbox refuses: the kernel's audit record is off");
    }
    if audit(&["1"]).as_deref() != Some("1") {
        available(false, "the kernel's audit record can't be switched on here");
        return;
    }
    doctor_says("tells what --sandbox landlock refuses");
    told();
}

fn doctor_says(text: &str) {
    let done = process::run(Command::new(EXECGATE).args(["doctor", "--output", "json"]));
    let json: Value = serde_json::from_slice(&done.stdout).expect("JSON");
    let findings = json["findings"].as_array().expect("findings");
    let found = findings
        .iter()
        .find(|finding| finding["subject"] == "denials")
        .expect("a finding");
    let detail = found["detail"].as_str().expect("a detail");
    assert!(detail.contains(text), "{detail}");
    let remedy = found["remedy"].as_str().unwrap_or_default();
    for (wrong, does) in [
        (
            "audit record is off",
            "as root, `auditctl -e 1` switches it on",
        ),
        ("may read the kernel's", "run it as root"),
        ("Linux 6.15", "use Linux 6.15 or newer"),
    ] {
        assert_eq!(detail.contains(wrong), remedy == does, "{detail}: {remedy}");
    }
}

/// With the record on.
fn told() {
    let Some(stage) = Stage::new("landlock", User::Own, RUN) else {
        return;
    };
    let stage = stage.option(["--explain-denials"]);
    let outside = stage.path("outside").display().to_string();
    let home = stage.path("home").display().to_string();
    // The C library tries the name service's socket, which is no path's matter.
    let done = stage.run("true");
    let errors = done.exits(0).errors();
    assert!(
        !errors.contains("can't be told") && !errors.contains(&home),
        "{done}"
    );
    // The session's shell is still there when each of these is refused; and what the filter refuses is told of a process
    // only while there is one.
    let done = stage.run(
        "cat ~/.ssh/id; cat ~/.ssh/id; echo x >$OUTSIDE/new; echo x >>$OUTSIDE/file; mkdir $OUTSIDE/d; rm -f $OUTSIDE/file
         kill -0 $PPID; mv $OUTSIDE/file .
         python3 -c 'import ctypes, time; c = ctypes.CDLL(None); c.socket(2, 1, 0); c.unshare(0x20000); time.sleep(2)'
         ls ~/.ssh >/dev/null; true",
    );
    done.exits(0).says("execgate: the sandbox refused:\n");
    for line in [
        format!("  reading {home}/.ssh/id (cat), 2 times\n"),
        format!("  writing {outside}/file (bash)\n"),
        format!("making something in {outside} ("),
        format!("removing from {outside} ("),
        "  a signal for ".to_owned(),
        "  a socket that isn't a Unix socket: there is no network (or, with one, a Unix socket) (python3)\n".to_owned(),
        "  new namespaces (or clone3, whose elder is used then)".to_owned(),
    ] {
        assert!(done.errors().contains(&line), "{line}: {done}");
    }
    assert!(!done.errors().contains("can't be told"), "{done}");
    // Names are the sandbox's: nothing of them reaches a terminal as it is.
    stage.write("outside/a\u{1b}[31mb", "mine\n");
    let done = stage.run(
        "cp /bin/tee $'c\\e[32md'; ./c* -a $OUTSIDE/a* 2>/dev/null </dev/null; sleep 0.1; true",
    );
    done.exits(0)
        .says(&format!("  writing {outside}/a\\x1b[31mb (c\\x1b[32md)\n"));
    assert!(!done.errors().contains('\u{1b}'), "{done}");
    // What is escalated into a sandbox of its own is told as well.
    stage.take_rules("prefix_rule([\"tee\"], \"escalate\", execution = \"turn_default\")");
    let done = stage.run("echo x | tee $OUTSIDE/new; sleep 0.1; true");
    let errors = done.exits(0).errors();
    // A command that has ended by the time that the kernel's word is read is counted, and never left out.
    let is_told = errors.contains(&format!("making something in {outside} (tee)"))
        || errors.contains("of which it can't be said whose they were");
    assert!(is_told, "{done}");
}
