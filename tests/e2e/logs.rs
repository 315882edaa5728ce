//! Logs as JSON: whatever a program writes about itself is an object a line. And logs that nobody reads: they hold up
//! nothing.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, ExitStatus, Stdio};

use serde_json::Value;

use crate::gate::Gate;
use crate::machine::{Shell, in_both_shells, in_shell};
use crate::process::{self, EXECGATE, Running, wait_until};
use crate::service::POLICYD;

in_both_shells! {
    each_line_of_a_log_is_an_object_that_says_what_it_is_about,
    what_a_gate_fails_of_is_an_object_too,
}

const RULES: &str = r#"
def decide(exec):
    if exec.name == "false":
        return 1
    return escalate() if exec.name == "expr" else run()
"#;

const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";

#[track_caller]
fn objects(log: &str) -> Vec<Value> {
    let object = |line: &str| -> Value {
        let value: Value =
            serde_json::from_str(line).unwrap_or_else(|error| panic!("{line}: {error}"));
        for name in ["timestamp", "level", "message"] {
            assert!(value[name].is_string() || name == "message", "{line}");
        }
        value
    };
    log.lines().map(object).collect()
}

#[track_caller]
fn about<'l>(log: &'l [Value], message: &str) -> &'l Value {
    let mut found = log.iter().filter(|line| {
        let said = line["message"].as_str();
        said.is_some_and(|said| said.starts_with(message))
    });
    found
        .next()
        .unwrap_or_else(|| panic!("no {message:?} in {log:?}"))
}

fn each_line_of_a_log_is_an_object_that_says_what_it_is_about(shell: &Shell) {
    let plain = Gate::with_rules(shell, RULES);
    let mut command = Command::new(POLICYD);
    command
        .args(["--rules", "../rules.star", "--listen", "127.0.0.1:0"])
        .args(["--log", "trace", "--log-format", "json"]);
    plain.settle(&mut command);
    let mut service = Running::start(&mut command);
    service.wait_for("\n");
    let said = service.stdout();
    let address = said.trim_end().strip_prefix("listening on ");
    let gate = Gate::with_policy(shell, &format!("http://{}", address.expect("an address")));
    let mut command =
        gate.command("expr 1; /bin/true $'\\n\"\\xff'; /bin/false 2>/dev/null; expr 2");
    command
        .env("EXECGATE_LOG", "trace")
        .env("EXECGATE_LOG_FORMAT", "json")
        .env("TRACEPARENT", format!("00-{TRACE}-b7ad6b7169203331-01"));
    let done = process::run(&mut command);
    done.exits(0).prints("1\n2\n");
    let log = objects(&done.errors());
    let session = about(&log, "a session begins")["session"].as_str();
    let session = session.expect("a session").to_owned();
    assert_eq!(about(&log, "a session begins")["trace"], TRACE);
    let acted: Vec<_> = log
        .iter()
        .filter(|line| line["message"] == "acted on an exec")
        .map(|line| {
            assert_eq!(line["session"], session.as_str());
            format!("{} {}", line["exec"], line["verdict"]).replace('"', "")
        })
        .collect();
    assert_eq!(acted, ["1 escalate", "2 run", "3 deny", "4 escalate"]);

    wait_until("the session's end", || {
        service.stderr().contains("session disconnected")
    });
    service.signal("TERM");
    let log = objects(&service.done().exits(0).errors());
    for message in ["session connected", "session disconnected"] {
        let line = about(&log, message);
        assert_eq!(line["session"], session.as_str());
        assert_eq!(
            (&line["gate"], &line["trace"]),
            (&"anonymous".into(), &TRACE.into())
        );
    }
    let failure = about(&log, "decide() failed");
    assert_eq!(failure["session"], session.as_str());
    assert_eq!(
        (&failure["exec"], &failure["gate"]),
        (&"3".into(), &"anonymous".into())
    );
    assert_eq!(failure["place"], "rules.star:2");
}

fn what_a_gate_fails_of_is_an_object_too(shell: &Shell) {
    let gate = Gate::with_policy(shell, "nonsense").option(["--log-format", "json"]);
    let done = gate.exec("/bin/true");
    let log = objects(&done.exits(125).errors());
    assert_eq!(
        (log.len(), &log[0]["level"]),
        (1, &"ERROR".into()),
        "{done}"
    );
    assert_eq!(log[0]["program"], "execgate");

    let gate = Gate::with_rules(shell, "fallback(\"run\")").option([
        "--log-format",
        "json",
        "--timeout",
        "1s",
    ]);
    let done = gate.exec("/bin/sleep 100");
    let log = objects(&done.exits(124).errors());
    assert_eq!(about(&log, "the time limit was reached")["level"], "ERROR");

    let mut command = Command::new(POLICYD);
    command
        .args(["--rules", "/nonexistent\n"])
        .env("EXECGATE_POLICYD_LOG_FORMAT", "json");
    let log = objects(&process::run(&mut command).exits(3).errors());
    assert_eq!(
        (log.len(), &log[0]["program"]),
        (1, &"execgate-policyd".into())
    );

    let mut command = Command::new(EXECGATE);
    command.args(["--log-format", "yaml", "doctor"]);
    process::run(&mut command)
        .exits(2)
        .says("[possible values: text, json]");
}

/// A program whose standard error is a pipe that nobody reads. Killed when dropped.
struct Unread(Child);

impl Unread {
    fn start(command: &mut Command) -> Self {
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        Self(command.stderr(Stdio::piped()).spawn().expect("a program"))
    }

    /// Waits for its end. Gives how it ended, and how much it had written on standard error by then.
    fn ended(&mut self) -> (ExitStatus, usize) {
        let mut status = None;
        wait_until("its end", || {
            status = self.0.try_wait().expect("a child");
            status.is_some()
        });
        let mut errors = Vec::new();
        let mut pipe = self.0.stderr.take().expect("a pipe");
        pipe.read_to_end(&mut errors).expect("what is left");
        (status.expect("a status"), errors.len())
    }
}

impl Drop for Unread {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_log_that_nobody_reads_holds_up_no_verdict() {
    /// Each is some dozens of lines in either log: several times what waits to be written.
    const EXECS: u32 = 400;
    /// A pipe that is full has more than that in it.
    const FULL: usize = 32 << 10;
    in_shell("bash", |shell| {
        let plain = Gate::with_rules(shell, "fallback(\"run\")");
        let mut command = Command::new(POLICYD);
        command
            .args(["--rules", "../rules.star", "--listen", "127.0.0.1:0"])
            .args(["--log", "trace"]);
        plain.settle(&mut command);
        let mut service = Unread::start(&mut command);
        let mut said = String::new();
        let output = service.0.stdout.take().expect("a pipe");
        BufReader::new(output).read_line(&mut said).expect("a line");
        let address = said.trim_end().strip_prefix("listening on ");
        let url = format!("http://{}", address.expect("an address"));

        let gate = Gate::with_policy(shell, &url).option(["--log", "trace"]);
        let script = format!("for i in {{1..{EXECS}}}; do /bin/true || exit; done; echo done");
        let mut running = Unread::start(&mut gate.command(script));
        let (status, length) = running.ended();
        let mut printed = String::new();
        let mut output = running.0.stdout.take().expect("a pipe");
        output.read_to_string(&mut printed).expect("text");
        assert_eq!((status.code(), &*printed), (Some(0), "done\n"));
        assert!(length > FULL, "only {length} bytes were written");

        process::signal(service.0.id(), "TERM");
        let (status, length) = service.ended();
        assert_eq!(status.code(), Some(0));
        assert!(length > FULL, "only {length} bytes were written");
    });
}
