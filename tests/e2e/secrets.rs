//! What leaves the gate, looked for in every byte of it.

use std::os::unix::process::ExitStatusExt;
use std::path::Path;

use execgate::link::REDACTED;
use execgate::pb::v1::session_request::Event;
use execgate::pb::v1::session_response::Answer;
use execgate::pb::v1::{Redaction, Reuse, SessionAccepted, Verdict};

use crate::gate::Gate;
use crate::machine::{Shell, in_both_shells};
use crate::peer::Peer;
use crate::process::wait_until;

in_both_shells! {
    values_of_the_environment_stay_at_home,
    what_is_redacted_is_in_no_byte_that_leaves_the_gate,
    a_service_gets_the_values_that_it_asks_for_and_the_owner_allows,
    rules_decide_by_values_that_they_ask_for_and_the_owner_allows,
    patterns_that_make_no_sense_are_refused,
    patterns_come_by_a_pipe_and_a_signal_ends_the_wait_for_one_that_nobody_writes,
}

const RULES: &str = r#"
prefix_rule(["expr"], "run", reuse = "10m")
prefix_rule(["printf"], "escalate")
prefix_rule(["date"], "deny")
fallback("run")
"#;

const SIGTERM: i32 = 15;

fn has(bytes: &[u8], text: &str) -> bool {
    bytes
        .windows(text.len())
        .any(|window| window == text.as_bytes())
}

/// Whether any file of a directory has the text.
fn any_file_has(directory: &Path, text: &str) -> bool {
    std::fs::read_dir(directory)
        .expect("a directory")
        .any(|entry| {
            let path = entry.expect("an entry").path();
            has(&std::fs::read(path).expect("a file"), text)
        })
}

fn values_of_the_environment_stay_at_home(shell: &Shell) {
    let gate = Gate::with_rules(shell, RULES).option(["--log", "trace"]);
    let (gate, relay) = gate.through_a_relay();
    gate.exec(
        "export PASSWORD; read -r PASSWORD <<< hunt''er2; expr 1; expr 1; printf %s \"$PASSWORD\"",
    )
    .exits(0);
    let sent = relay.sent();
    // An argument is told; that its name is shows that this looks where they would be.
    assert!(has(&sent, "PASSWORD"));
    let done = gate
        .exec("export PASSWORD; read -r PASSWORD <<< hunt''er3; expr 1; expr 1; printf x; date");
    let new = &relay.sent()[sent.len()..];
    assert!(has(new, "PASSWORD") && !has(new, "hunter3"));
    assert!(!has(&done.stderr, "hunter3"));
    assert!(!any_file_has(&gate.path("data"), "hunter3"));
}

fn what_is_redacted_is_in_no_byte_that_leaves_the_gate(shell: &Shell) {
    let script = "expr hunter2 : hunter2; expr hunter2 : hunter2; printf hunter2; date hunter2
        ./missing hunter2; (exec -a hunter2 /bin/true); /bin/echo --password hunter2 hunter3";
    let plain = Gate::with_rules(shell, RULES).option(["--log", "trace"]);
    let (plain, relay) = plain.through_a_relay();
    plain.exec(script).exits(0);
    assert!(has(&relay.sent(), "hunter2") && has(&relay.sent(), "hunter3"));

    let gate = Gate::with_rules(shell, RULES).option(["--log", "trace", "--redact", "hunter2"]);
    let file = gate.path("patterns");
    std::fs::write(
        &file,
        "# After --password.\n\n\\x00--password\\x00[^\\x00]*\\x00(?<secret>[^\\x00]*)\nhunter3",
    )
    .expect("a file");
    let file = file.to_str().expect("text");
    let (gate, relay) = gate.option(["--redact-from", file]).through_a_relay();
    // The commands themselves get what they were given.
    let done = gate.exec(script);
    done.exits(0)
        .prints("7\n7\nhunter2--password hunter2 hunter3\n");
    let sent = relay.sent();
    assert!(has(&sent, REDACTED) && has(&sent, "--password"));
    assert!(!has(&sent, "hunter2") && !has(&sent, "hunter3"));
    assert!(!any_file_has(&gate.path("data"), "hunter2"));
    // What the shell itself says of a missing program has no argument in it.
    assert!(!has(&done.stderr, "hunter2"), "{}", done.errors());
    let execs = gate.audit();
    let echo = execs
        .iter()
        .find(|exec| exec.name() == "echo")
        .expect("an exec");
    assert_eq!(
        echo.0["argv"],
        serde_json::json!(["/bin/echo", "--password", REDACTED, REDACTED])
    );
}

fn a_service_gets_the_values_that_it_asks_for_and_the_owner_allows(shell: &Shell) {
    let gate = Gate::with_script(shell, answer_with_values).option([
        "--allow-environment",
        "CI_*",
        "--allow-environment",
        "UNASKED",
        "--redact",
        "hunter2",
    ]);
    gate.exec(
        "/bin/true; export CI_JOB=7 CI_TOKEN=x-hunter2 UNASKED=1 UNALLOWED=1
         expr 1; expr 1; unset CI_JOB CI_TOKEN; expr 1; expr 1",
    )
    .exits(0)
    .prints("1\n1\n1\n1\n");
    let redacted = format!("CI_JOB=7 CI_TOKEN=x-{REDACTED}!");
    // A verdict on values is for that exec alone.
    assert_eq!(gate.told(), ["", &redacted, &redacted, "", "reused"]);
}

/// Asks for values, answers all with a verdict for reuse, and tells which values came.
async fn answer_with_values(mut peer: Peer) -> Vec<String> {
    let mut call = peer.call().await;
    call.started().await;
    let names = ["CI_JOB", "CI_TOKEN", "UNALLOWED"];
    call.answer(Answer::SessionAccepted(SessionAccepted {
        requested_environment_names: names.map(Into::into).to_vec(),
        ..SessionAccepted::default()
    }))
    .await;
    let mut told = Vec::new();
    while let Some(event) = call.event().await {
        match event.event {
            Some(Event::ExecRequested(question)) => {
                let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
                let variables = question.environment_variables.iter().map(|variable| {
                    let mark = if variable.redaction() == Redaction::Replaced {
                        "!"
                    } else {
                        ""
                    };
                    format!("{}={}{mark}", text(&variable.name), text(&variable.value))
                });
                let mut variables: Vec<_> = variables.collect();
                variables.sort_unstable();
                told.push(variables.join(" "));
                call.answer(Answer::Verdict(Verdict {
                    exec_id: question.exec_id,
                    decision: Some(execgate::pb::v1::verdict::Decision::Run(
                        execgate::pb::v1::Run {},
                    )),
                    reuse: Some(Reuse {
                        valid_for: Some(prost_types::Duration {
                            seconds: 600,
                            nanos: 0,
                        }),
                        scope: execgate::pb::v1::ReuseScope::SameExec.into(),
                        ..Reuse::default()
                    }),
                    ..Verdict::default()
                }))
                .await;
            }
            Some(Event::ExecReused(_)) => told.push("reused".to_owned()),
            _ => {}
        }
    }
    told
}

fn rules_decide_by_values_that_they_ask_for_and_the_owner_allows(shell: &Shell) {
    let rules = r#"
request_environment(["CI_JOB", "SECRET", "HOME"])

def decide(exec):
    if exec.name == "true":
        return run()
    if exec.redacted_environment:
        return deny("redacted: %s, %s" % (exec.redacted_environment, exec.environment["SECRET"]))
    if "HOME" in exec.environment:
        return deny("the owner allows no HOME")
    if exec.environment.get("CI_JOB") == "release":
        return escalate(reuse = "10m")
    return deny("the job is %s" % exec.environment.get("CI_JOB"))
"#;
    let gate = Gate::with_rules(shell, rules).option([
        "--allow-environment",
        "CI_*",
        "--allow-environment",
        "SECRET",
        "--redact",
        "hunter2",
    ]);
    // What the first command is answered shows that the gate knows by then what is asked for.
    let done = gate.exec(
        "/bin/true; export CI_JOB=release-7f3a; /bin/echo 1; CI_JOB=release /bin/echo 2
         /bin/echo 3; SECRET=x-hunter2 /bin/echo 4; unset CI_JOB; /bin/echo 5",
    );
    done.prints("2\n").says("the job is release-7f3a");
    done.says(&format!("redacted: [\"SECRET\"], x-{REDACTED}"));
    done.says("the job is None");
    let told = gate.audit();
    let told = crate::gate::verdicts(&told);
    assert_eq!(
        told,
        [
            "true run",
            "echo deny",
            "echo escalate",
            "echo deny",
            "echo deny",
            "echo deny"
        ]
    );
    // They were for deciding by.
    let store = execgate::policyd::store::open_for_reading(&gate.path("data")).expect("a store");
    let mut events = store
        .prepare("SELECT payload FROM events WHERE kind = 'exec-requested'")
        .expect("a query");
    let events = events
        .query_map([], |row| row.get::<_, Vec<u8>>(0))
        .expect("rows");
    let events: Vec<_> = events.map(|event| event.expect("a row")).collect();
    assert_eq!(events.len(), 6);
    assert!(events.iter().all(|event| !has(event, "release")));

    // Without the owner's leave there are none.
    let gate = Gate::with_rules(shell, rules);
    let done = gate.exec("/bin/true; CI_JOB=release /bin/echo 1");
    done.prints("").says("the job is None");

    let check = |variables: &[&str]| {
        let mut command = std::process::Command::new(crate::process::EXECGATE);
        command
            .args(["check", "--rules"])
            .arg(gate.path("rules.star"));
        for variable in variables {
            command.args(["--environment", variable]);
        }
        crate::process::run(command.args(["--", "/bin/echo"]))
    };
    check(&["CI_JOB=release"]).exits(3);
    assert!(
        check(&["CI_JOB=a=b"])
            .exits(4)
            .output()
            .contains("the job is a=b")
    );
    check(&["OTHER=1"])
        .exits(2)
        .says("--environment OTHER: the rules don't ask for it");
    check(&["CI_JOB"]).exits(2).says("write NAME=VALUE");
}

fn patterns_that_make_no_sense_are_refused(shell: &Shell) {
    let gate = Gate::with_rules(shell, RULES);
    let file = gate.path("patterns");
    std::fs::write(&file, "fine\n(").expect("a file");
    let file = file.to_str().expect("text");
    for (options, said) in [
        (["--redact", "("], "the pattern \"(\" can't be used"),
        (["--redact-from", file], "patterns, line 2: the pattern"),
        (
            ["--redact-from", "/nonexistent"],
            "cannot read the patterns of",
        ),
        (
            ["--redact-from", "/dev/zero"],
            "/dev/zero: it is longer than 4 MiB",
        ),
    ] {
        let gate = Gate::with_rules(shell, RULES).option(options);
        gate.exec("/bin/true").exits(125).says(said);
    }
}

fn patterns_come_by_a_pipe_and_a_signal_ends_the_wait_for_one_that_nobody_writes(shell: &Shell) {
    let gate = Gate::with_rules(shell, RULES);
    let pipe = gate.path("pipe");
    let made = std::process::Command::new("mkfifo").arg(&pipe).status();
    assert!(made.expect("mkfifo").success());
    let option = ["--redact-from", pipe.to_str().expect("text")];
    let gate = gate.option(option);

    let running = gate.start("echo never");
    // From then on it takes signals itself.
    wait_until("it blocks the signal", || {
        let status = std::fs::read_to_string(format!("/proc/{}/status", running.id()));
        let status = status.expect("it runs");
        let blocked = status.lines().find_map(|line| line.strip_prefix("SigBlk:"));
        let blocked = u64::from_str_radix(blocked.expect("a mask").trim(), 16);
        blocked.expect("a mask") & (1 << (SIGTERM - 1)) != 0
    });
    running.signal("TERM");
    let done = running.done();
    assert_eq!(done.status.signal(), Some(SIGTERM), "{done}");
    assert_eq!(done.output(), "");

    let running = gate.start("expr 1");
    std::fs::write(&pipe, "hunter[0-9]\n").expect("somebody reads it");
    running.done().exits(0).prints("1\n");
}
