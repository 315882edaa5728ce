//! The server and the real wrapper, without a shell between them: the three verdicts, what a command
//! gets, what its policy is told.

mod copies;
mod order;
mod supervisors;
#[path = "../support/mod.rs"]
mod support;

use std::ffi::{CStr, CString, OsStr, OsString};
use std::io::{Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::process::ExitStatusExt;
use std::sync::Arc;
use std::time::Duration;

use execgate::model::{
    DecisionCode, EscalationDecision, ExecOutcome, SessionEndReason, SessionEvent, WithdrawalReason,
};
use execgate::server::{EscalateServer, SessionParams, WrapperAlias};
use execgate::sys::spawn::{self, Directory, InheritedContext, ProcessGroup, Supervisor};
use support::peer::{frame, handshake};
use support::{Direct, ESCALATE, PATIENCE, Scripted, deny, output, start, text, wrapped};
use tokio_util::sync::CancellationToken;

fn finished(name: &str, policy: &Scripted) -> impl Fn(&SessionEvent) -> Option<ExecOutcome> {
    let id = policy.exec_of(name);
    move |event| match event {
        SessionEvent::ExecFinished { exec, outcome, .. } if *exec == id => Some(outcome.clone()),
        _ => None,
    }
}

#[tokio::test]
async fn run_becomes_the_command() {
    let policy = Scripted::always(EscalationDecision::Run);
    let session = start(policy.clone());
    let got = output(wrapped(
        &session,
        "/bin/sh",
        &["sh", "-c", "echo $0 $1; exit 3", "a", "b"],
    ))
    .await;
    assert_eq!(text(&got.stderr), "");
    assert_eq!(text(&got.stdout), "a b\n");
    assert_eq!(got.status.code(), Some(3));
    let outcome = policy.wait_for(finished("sh", &policy)).await;
    assert_eq!(outcome, ExecOutcome::Exited(3));
}

#[tokio::test]
async fn deny_says_why_and_exits_with_1() {
    let policy = Scripted::always(deny("not here"));
    let session = start(policy.clone());
    let got = output(wrapped(&session, "/bin/echo", &["echo", "x"])).await;
    assert_eq!(text(&got.stderr), "Execution denied: not here\n");
    assert_eq!(text(&got.stdout), "");
    assert_eq!(got.status.code(), Some(1));

    let session = start(Scripted::always(EscalationDecision::Deny { reason: None }));
    let got = output(wrapped(&session, "/bin/echo", &["echo", "x"])).await;
    assert_eq!(text(&got.stderr), "Execution denied\n");
}

#[tokio::test]
async fn a_denial_without_standard_descriptors_is_one_all_the_same() {
    for (decision, expected) in [
        (deny("not here"), (Some(1), false)),
        (EscalationDecision::Run, (Some(0), true)),
    ] {
        let session = start(Scripted::always(decision));
        let directory = tempfile::tempdir().unwrap();
        let made = directory.path().join("made");
        let script = format!(
            "{} /usr/bin/touch touch {} <&- >&- 2>&-; exit $?",
            support::WRAPPER,
            made.display()
        );
        let mut shell = std::process::Command::new("/bin/sh");
        shell.args(["-c", &script]).envs(session.env());
        let code = output(shell).await.status.code();
        assert_eq!((code, made.exists()), expected);
    }
}

#[tokio::test]
async fn escalate_runs_the_command_outside_and_hands_back_its_status() {
    let policy = Scripted::always(ESCALATE);
    let session = start(policy.clone());
    let script = "echo out; echo err >&2; exit 42";
    let got = output(wrapped(&session, "/bin/sh", &["sh", "-c", script])).await;
    assert_eq!(text(&got.stdout), "out\n");
    assert_eq!(text(&got.stderr), "err\n");
    assert_eq!(got.status.code(), Some(42));
    let outcome = policy.wait_for(finished("sh", &policy)).await;
    assert_eq!(outcome, ExecOutcome::Exited(42));
    let usage = policy
        .wait_for(|event| match event {
            SessionEvent::ExecFinished { usage, .. } => *usage,
            _ => None,
        })
        .await;
    assert!(usage.peak_memory_bytes > 0);
}

#[tokio::test]
async fn older_shells_find_the_wrapper_by_their_name_for_it_where_that_is_wanted() {
    for (alias, wrapper) in [
        (WrapperAlias::None, None),
        (WrapperAlias::Bash, Some(support::WRAPPER)),
    ] {
        let policy = Scripted::always(EscalationDecision::Run);
        let session = EscalateServer::new("/bin/sh", support::WRAPPER, policy.clone())
            .with_alias(alias)
            .start_session(
                SessionParams::default(),
                Arc::new(Direct),
                &CancellationToken::new(),
            )
            .unwrap();
        let value = |name: &str| session.env().get(OsStr::new(name)).map(OsString::as_os_str);
        assert_eq!(value("EXEC_WRAPPER"), Some(OsStr::new(support::WRAPPER)));
        assert_eq!(value("BASH_EXEC_WRAPPER"), wrapper.map(OsStr::new));
        // Both are the session's: nobody is asked about them.
        let got = output(wrapped(&session, "/bin/true", &["true"])).await;
        assert!(got.status.success(), "{got:?}");
        let asked = policy.asked.lock().unwrap();
        let names: Vec<_> = asked[0].env.names().collect();
        assert_eq!(names, [b"PATH"]);
    }
}

#[tokio::test]
async fn an_escalated_command_gets_the_requests_environment_and_no_more() {
    let session = start(Scripted::always(ESCALATE).changing_nothing());
    let mut command = wrapped(&session, "/usr/bin/env", &["env"]);
    command
        .env("MARK", "a=b")
        .env("LD_LIBRARY_PATH", "/x")
        .current_dir("/");
    let got = output(command).await;
    let expected = "LD_LIBRARY_PATH=/x\nMARK=a=b\nPATH=/usr/bin:/bin\n";
    assert_eq!(text(&got.stdout), expected);
}

#[tokio::test]
async fn death_by_signal_is_handed_on() {
    let policy = Scripted::always(ESCALATE);
    let session = start(policy.clone());
    let got = output(wrapped(&session, "/bin/sh", &["sh", "-c", "kill -TERM $$"])).await;
    assert_eq!(got.status.signal(), Some(15), "{got:?}");
    let outcome = policy.wait_for(finished("sh", &policy)).await;
    assert_eq!(outcome, ExecOutcome::Signaled(15));
}

#[tokio::test]
async fn a_program_that_is_not_there_ends_as_in_a_shell() {
    for decision in [EscalationDecision::Run, ESCALATE] {
        let session = start(Scripted::always(decision.clone()));
        let got = output(wrapped(&session, "/nonexistent/program", &["program"])).await;
        assert_eq!(got.status.code(), Some(127), "{decision:?} {got:?}");
        assert!(
            text(&got.stderr).contains("No such file or directory"),
            "{got:?}"
        );
        let got = output(wrapped(&session, "/etc/passwd", &["passwd"])).await;
        assert_eq!(got.status.code(), Some(126), "{decision:?} {got:?}");
    }
}

/// Of a wrapper that no patched shell has started.
#[tokio::test]
async fn a_script_without_interpreter_is_read_by_the_systems_shell() {
    let directory = tempfile::tempdir().unwrap();
    let tool = directory.path().join("tool");
    std::fs::write(&tool, "echo read \"$@\"; exit 3\n").unwrap();
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(&tool, mode).unwrap();
    for decision in [EscalationDecision::Run, ESCALATE] {
        let session = start(Scripted::always(decision).changing_nothing());
        let command = wrapped(&session, tool.to_str().unwrap(), &["tool", "a", "b c"]);
        let got = output(command).await;
        assert_eq!(text(&got.stdout), "read a b c\n", "{got:?}");
        assert_eq!(got.status.code(), Some(3));
    }
}

#[tokio::test]
async fn arguments_are_the_commands_whatever_they_look_like() {
    for argv in [
        &["--help"][..],
        &["-x"],
        &["--"],
        &["--", "--version"],
        &[""],
    ] {
        let policy = Scripted::always(EscalationDecision::Run);
        let session = start(policy.clone());
        let got = output(wrapped(&session, "/bin/true", argv)).await;
        assert!(got.status.success(), "{argv:?} {got:?}");
        let asked = policy.asked.lock().unwrap();
        assert_eq!(asked[0].argv, argv);
    }
}

#[tokio::test]
async fn an_asker_that_dies_is_withdrawn() {
    let policy = Scripted::new(|_| None);
    let session = start(policy.clone());
    let mut asker = wrapped(&session, "/bin/true", &["true"]).spawn().unwrap();
    policy.wait_until_asked(1).await;
    asker.kill().unwrap();
    asker.wait().unwrap();
    let reason = policy
        .wait_for(|event| match event {
            SessionEvent::ExecWithdrawn { reason, .. } => Some(*reason),
            _ => None,
        })
        .await;
    assert_eq!(reason, WithdrawalReason::AskerGone);
}

#[tokio::test]
async fn the_end_of_a_session_ends_all_waiting() {
    let policy = Scripted::new(|_| None);
    let session = start(policy.clone());
    let asker = tokio::spawn(output(wrapped(&session, "/bin/true", &["true"])));
    policy.wait_until_asked(1).await;
    session
        .end(SessionEndReason::Completed, String::new(), None)
        .await;
    let got = asker.await.unwrap();
    assert_eq!(got.status.code(), Some(125));
    assert!(text(&got.stderr).contains("nothing was run"), "{got:?}");
    let told = policy.told.lock().unwrap();
    assert!(matches!(
        told[0],
        SessionEvent::ExecWithdrawn {
            reason: WithdrawalReason::SessionEnded,
            ..
        }
    ));
    assert!(matches!(
        told[1],
        SessionEvent::SessionEnded {
            reason: SessionEndReason::Completed,
            ..
        }
    ));
    assert_eq!(told.len(), 2);
}

#[tokio::test]
async fn a_policy_can_end_its_session() {
    let policy = Scripted::new(|_| None);
    let session = start(policy.clone());
    let asker = tokio::spawn(output(wrapped(&session, "/bin/true", &["true"])));
    policy.wait_until_asked(1).await;
    session.context().terminator.terminate("enough");
    let got = asker.await.unwrap();
    assert_eq!(
        text(&got.stderr),
        "Execution denied: the session was ended: enough\n"
    );
    let code = policy
        .wait_for(|event| match event {
            SessionEvent::ExecDecided { verdict, .. } => Some(verdict.code),
            _ => None,
        })
        .await;
    assert_eq!(code, DecisionCode::SessionEnded);
}

#[tokio::test]
async fn no_process_of_an_escalated_command_outlives_its_session() {
    let policy = Scripted::always(ESCALATE);
    let session = start(policy.clone());
    // In its own terminal session, its parent gone: only descent tells whose it is. The time is this
    // process's alone, to be found by.
    let time = format!("1000.{}", std::process::id());
    let script = format!("(setsid sleep {time} </dev/null >/dev/null 2>&1 &)");
    let got = output(wrapped(&session, "/bin/sh", &["sh", "-c", &script])).await;
    assert!(got.status.success(), "{got:?}");
    let line = format!("sleep\0{time}\0").into_bytes();
    let sleeper = || {
        std::fs::read_dir("/proc").unwrap().any(|entry| {
            let cmdline = entry.unwrap().path().join("cmdline");
            std::fs::read(cmdline).is_ok_and(|found| found == line)
        })
    };
    // What a command leaves behind goes on while the session does.
    let appears = async {
        while !sleeper() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(PATIENCE, appears).await.unwrap();
    session
        .end(SessionEndReason::Completed, String::new(), None)
        .await;
    assert!(!sleeper(), "it has ended with the session");
}

#[tokio::test]
async fn what_detached_itself_is_asked_to_end_before_it_is_killed() {
    let session = start(Scripted::always(ESCALATE));
    let directory = tempfile::tempdir().unwrap();
    let [ready, asked] = ["ready", "asked"].map(|name| directory.path().join(name));
    let script = format!(
        "setsid sh -c 'trap \"echo > {}; exit\" TERM; echo > {}; sleep 1000 & wait' \
         </dev/null >/dev/null 2>&1 &",
        asked.display(),
        ready.display()
    );
    let got = output(wrapped(&session, "/bin/sh", &["sh", "-c", &script])).await;
    assert!(got.status.success(), "{got:?}");
    let appears = async {
        while !ready.exists() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(PATIENCE, appears).await.unwrap();
    session
        .end(SessionEndReason::Completed, String::new(), None)
        .await;
    assert!(asked.exists(), "it was killed unasked");
}

#[tokio::test]
async fn a_stopped_command_is_asked_to_end_before_it_is_killed() {
    // The session often ends before the gate has heard that the command was started: that once left it.
    for _ in 0..10 {
        let policy = Scripted::always(ESCALATE);
        let session = start(policy.clone());
        let directory = tempfile::tempdir().expect("a directory");
        let [stops, asked] = ["stops", "asked"].map(|name| directory.path().join(name));
        let script = format!(
            "trap 'echo > {}; exit' TERM; echo $$ > {}; kill -STOP $$; sleep 1000",
            asked.display(),
            stops.display()
        );
        let asker = wrapped(&session, "/bin/sh", &["sh", "-c", &script]).spawn();
        let stopped = async {
            loop {
                let pid = std::fs::read_to_string(&stops).unwrap_or_default();
                let status = std::fs::read_to_string(format!("/proc/{}/status", pid.trim()));
                if status.is_ok_and(|status| status.contains("State:\tT")) {
                    break;
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        let stopped = tokio::time::timeout(PATIENCE, stopped).await;
        stopped.expect("it stops");
        session
            .end(SessionEndReason::Completed, String::new(), None)
            .await;
        assert!(asked.exists(), "it was killed unasked");
        let mut asker = asker.expect("a wrapper");
        let _ = asker.kill();
        asker.wait().expect("its end");
    }
}

#[tokio::test]
async fn who_goes_without_reading_the_answer_has_gone_away() {
    let policy = Scripted::always(ESCALATE);
    let session = start(policy.clone());
    let mut stream = handshake(&session);
    let request = br#"{"file":"/bin/true","argv":["true"],"workdir":"/","env":{}}"#;
    stream.write_all(&frame(request)).unwrap();
    let is_decided =
        |event: &SessionEvent| matches!(event, SessionEvent::ExecDecided { .. }).then_some(());
    policy.wait_for(is_decided).await;
    // What wasn't read makes its end a reset.
    drop(stream);
    let outcome = policy.wait_for(finished("true", &policy)).await;
    let expected = ExecOutcome::NotStarted("the asking process went away".to_owned());
    assert_eq!(outcome, expected);
}

#[tokio::test]
async fn descriptors_can_change_places() {
    let directory = tempfile::tempdir().unwrap();
    let file = |name: &str| {
        let path = directory.path().join(name);
        std::fs::write(&path, name).unwrap();
        OwnedFd::from(std::fs::File::open(path).unwrap())
    };
    let [one, two, three] = ["one ", "two ", "three "].map(file);
    let numbers = [&one, &two, &three].map(AsRawFd::as_raw_fd);
    let (mut reader, writer) = std::io::pipe().unwrap();
    let script = numbers.map(|number| format!("/proc/self/fd/{number}"));
    let script = CString::new(format!("cat {}", script.join(" "))).unwrap();
    let supervisor = Supervisor::start(spawn::Command {
        descriptors: vec![
            (writer.into(), 1),
            (one, numbers[1]),
            (two, numbers[2]),
            (three, numbers[0]),
        ],
        ..shell_script(&script)
    })
    .unwrap();
    let said = tokio::task::spawn_blocking(move || {
        let mut said = String::new();
        reader.read_to_string(&mut said).unwrap();
        said
    });
    assert_eq!(said.await.unwrap(), "three one two ");
    supervisor.end();
    supervisor.reap();
}

#[tokio::test]
async fn execs_of_a_session_form_a_tree() {
    let policy = Scripted::always(EscalationDecision::Run);
    let session = start(policy.clone());
    // The shell is a command of the session; its children ask through the wrapper themselves.
    let wrapper = support::WRAPPER;
    let script = format!(
        "{wrapper} /bin/true true; ({wrapper} /bin/ls ls / >/dev/null); exec {wrapper} /bin/cat cat /dev/null"
    );
    let got = output(wrapped(&session, "/bin/sh", &["sh", "-c", &script])).await;
    assert!(got.status.success(), "{got:?}");
    let asked = policy.asked.lock().unwrap().clone();
    let names: Vec<_> = asked
        .iter()
        .map(|exec| exec.file.to_str().unwrap())
        .collect();
    assert_eq!(names, ["/bin/sh", "/bin/true", "/bin/ls", "/bin/cat"]);
    assert_eq!(asked[0].parent, None);
    for exec in &asked[1..] {
        assert_eq!(exec.parent, Some(asked[0].id), "{exec:?}");
        assert_ne!(exec.process.parent_pid, 0);
    }
    // The shell's process became cat: the shell ended by that.
    assert_eq!(asked[3].process.pid, asked[0].process.pid);
    let outcome = policy.wait_for(finished("sh", &policy)).await;
    assert_eq!(outcome, ExecOutcome::Replaced(asked[3].id));
    let outcome = policy.wait_for(finished("cat", &policy)).await;
    assert_eq!(outcome, ExecOutcome::Exited(0));
}

#[tokio::test]
async fn the_path_that_is_judged_is_the_path_that_runs() {
    let policy = Scripted::always(deny("no"));
    let session = start(policy.clone());
    for (file, judged) in [
        ("link/../tool", "/tmp/link/../tool"),
        ("~/tool", "/tmp/~/tool"),
        ("./tool", "/tmp/./tool"),
        ("/usr//bin/x", "/usr//bin/x"),
    ] {
        let mut command = wrapped(&session, file, &["tool"]);
        command.current_dir("/tmp");
        output(command).await;
        let asked = policy.asked.lock().unwrap();
        assert_eq!(asked.last().unwrap().file.as_os_str(), judged);
    }
}

#[tokio::test]
async fn what_the_asker_is_does_not_end_the_session() {
    let policy = Scripted::always(EscalationDecision::Run);
    let session = start(policy.clone());
    let mut command = wrapped(&session, "/bin/true", &["true"]);
    command.env("CODEX_ESCALATE_SOCKET", "1");
    let got = output(command).await;
    assert_eq!(got.status.code(), Some(125));
    assert!(
        text(&got.stderr).contains("not the session's socket"),
        "{got:?}"
    );
    let got = output(wrapped(&session, "/bin/true", &["true"])).await;
    assert!(got.status.success(), "{got:?}");
}

#[tokio::test]
async fn what_is_to_be_closed_by_exec_the_command_does_not_have() {
    let (mut reader, writer) = std::io::pipe().unwrap();
    let file = || OwnedFd::from(std::fs::File::open("/dev/null").unwrap());
    let script = c"cd /proc/$$/fd; for i in 8 9; do test -e $i && echo $i; done";
    let supervisor = Supervisor::start(spawn::Command {
        descriptors: vec![(writer.into(), 1), (file(), 8), (file(), 9)],
        closed_by_exec: vec![9],
        ..shell_script(script)
    })
    .unwrap();
    let said = tokio::task::spawn_blocking(move || {
        let mut said = String::new();
        reader.read_to_string(&mut said).unwrap();
        said
    });
    assert_eq!(said.await.unwrap(), "8\n");
    supervisor.end();
    supervisor.reap();
}

/// A script, about to be run by a supervisor.
fn shell_script(script: &CStr) -> spawn::Command {
    spawn::Command {
        program: c"/bin/sh".to_owned(),
        argv: [c"sh", c"-c", script].map(CStr::to_owned).to_vec(),
        env: vec![c"PATH=/usr/bin:/bin".to_owned()],
        directory: Directory::Named(c"/".to_owned()),
        descriptors: Vec::new(),
        closed_by_exec: Vec::new(),
        group: ProcessGroup::New,
        context: InheritedContext::default(),
        confinement: None,
        told_descriptors: Vec::new(),
        told_signals: None,
        is_script: false,
    }
}
