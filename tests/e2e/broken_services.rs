//! Policy services that break the contract, as the user of the shell sees it: the command is denied,
//! the message says why, the gate's log and the service are told, and the script goes on.

use execgate::pb::v1::session_request::Event;
use execgate::pb::v1::session_response::Answer;
use execgate::pb::v1::verdict::Decision;
use execgate::pb::v1::{Action, DecisionCode, Escalate, TerminateSession};
use tonic::Status;

use crate::gate::Gate;
use crate::machine::{Shell, in_both_shells};
use crate::peer::{Call, Peer};

in_both_shells! {
    a_verdict_that_says_nothing_denies,
    an_escalation_that_does_not_say_how_denies,
    bytes_that_are_no_answer_decide_nothing,
    a_second_verdict_is_ignored,
    a_late_verdict_is_ignored,
    a_verdict_that_crosses_its_withdrawal_is_nobodys_fault,
    verdicts_for_execs_that_were_never_asked_are_ignored,
    verdicts_may_come_in_any_order,
    a_call_that_ends_decides_nothing,
    a_service_that_speaks_something_else_denies,
    what_is_no_policy_service_is_named_and_what_it_took_is_told_as_lost,
    what_a_service_refuses_is_told_as_lost,
    a_service_that_ends_the_session_ends_the_shell,
    a_service_that_keeps_no_events_keeps_no_gate_and_is_told_of,
    whatever_a_service_says_is_safe_for_a_terminal,
}

const TWO: &str = "/bin/echo one; echo $?; /bin/echo two";

/// Answers each further question with run. Returns, for each exec that was decided, what was done
/// and why.
async fn run_the_rest(mut call: Call) -> Vec<String> {
    let mut told = Vec::new();
    while let Some(event) = call.event().await {
        match event.event {
            Some(Event::ExecRequested(question)) => call.run(question.exec_id).await,
            Some(Event::ExecDecided(decided)) => {
                let action = Action::try_from(decided.action).expect("an action");
                let code = DecisionCode::try_from(decided.code).expect("a code");
                let words = [action.as_str_name(), code.as_str_name()];
                let words = words.map(|word| word.trim_start_matches("DECISION_CODE_"));
                told.push(format!("{} {}", decided.exec_id, words.join(" ")));
            }
            _ => {}
        }
    }
    told
}

/// The first question, of the first call.
async fn first(mut peer: Peer) -> (Peer, Call) {
    let mut call = peer.call().await;
    call.asked(1).await;
    (peer, call)
}

fn a_verdict_that_says_nothing_denies(shell: &Shell) {
    let gate = Gate::with_script(shell, async |peer| {
        let (_peer, call) = first(peer).await;
        call.verdict(1, None).await;
        run_the_rest(call).await
    });
    let done = gate.exec(TWO);
    done.exits(0).prints("1\ntwo\n");
    done.says("Execution denied: ")
        .says("WARN")
        .says(" exec=1 ");
    assert_eq!(
        gate.told(),
        ["1 ACTION_DENY POLICY_ERROR", "2 ACTION_RUN VERDICT"]
    );
}

fn an_escalation_that_does_not_say_how_denies(shell: &Shell) {
    let gate = Gate::with_script(shell, async |peer| {
        let (_peer, call) = first(peer).await;
        let decision = Decision::Escalate(Escalate::default());
        call.verdict(1, Some(decision)).await;
        run_the_rest(call).await
    });
    let done = gate.exec(TWO);
    done.exits(0).prints("1\ntwo\n").says("Execution denied: ");
    assert_eq!(
        gate.told(),
        ["1 ACTION_DENY POLICY_ERROR", "2 ACTION_RUN VERDICT"]
    );
}

fn bytes_that_are_no_answer_decide_nothing(shell: &Shell) {
    let gate = Gate::with_script(shell, async |peer| {
        let (_peer, call) = first(peer).await;
        call.send_bytes(vec![0xff; 100]).await;
        call.send_bytes(vec![]).await;
        call.deny(1, "at last").await;
        run_the_rest(call).await
    });
    let done = gate.exec(TWO);
    done.exits(0).prints("1\ntwo\n");
    done.says("Execution denied: at last\n")
        .says("WARN")
        .says("ignored an answer");
    assert_eq!(
        gate.told(),
        ["1 ACTION_DENY VERDICT", "2 ACTION_RUN VERDICT"]
    );
}

fn a_second_verdict_is_ignored(shell: &Shell) {
    let gate = Gate::with_script(shell, async |peer| {
        let (_peer, call) = first(peer).await;
        call.deny(1, "first").await;
        call.run(1).await;
        run_the_rest(call).await
    });
    let done = gate.exec(TWO);
    done.exits(0)
        .prints("1\ntwo\n")
        .says("Execution denied: first\n");
    done.says("ignored an answer: exec 1 isn't open any more");
    assert_eq!(
        gate.told(),
        ["1 ACTION_DENY VERDICT", "2 ACTION_RUN VERDICT"]
    );
}

fn a_late_verdict_is_ignored(shell: &Shell) {
    let gate = Gate::with_script(shell, async |mut peer| {
        let mut call = peer.call().await;
        // Its verdict comes only when the gate has given up.
        loop {
            if let (_, Event::ExecDecided(decided)) = call.next().await {
                assert_eq!(decided.code(), DecisionCode::TimedOut);
                break;
            }
        }
        call.run(1).await;
        run_the_rest(call).await
    })
    .option(["--verdict-timeout", "3s"]);
    let done = gate.exec(TWO);
    done.exits(0).prints("1\ntwo\n");
    done.says("Execution denied: the policy service gave no verdict in time: http://127.0.0.1:");
    done.says("ignored an answer: exec 1 isn't open any more");
    assert_eq!(gate.told(), ["2 ACTION_RUN VERDICT"]);
}

fn a_verdict_that_crosses_its_withdrawal_is_nobodys_fault(shell: &Shell) {
    let directory = tempfile::tempdir().expect("a directory");
    let asked = directory.path().join("asked");
    let script = format!(
        "/bin/sleep 9 & until [ -e {} ]; do :; done; kill -9 $!; wait; /bin/echo two",
        asked.display()
    );
    let gate = Gate::with_script(shell, move |peer| async move {
        let (_peer, mut call) = first(peer).await;
        std::fs::write(asked, "").expect("a file");
        while !matches!(call.next().await, (_, Event::ExecWithdrawn(_))) {}
        call.run(1).await;
        run_the_rest(call).await
    });
    // Killed while it waits for its verdict.
    let done = gate.exec(&script);
    done.exits(0).prints("two\n");
    assert!(!done.errors().contains("WARN"), "{}", done.errors());
    assert_eq!(gate.told(), ["2 ACTION_RUN VERDICT"]);
}

fn verdicts_for_execs_that_were_never_asked_are_ignored(shell: &Shell) {
    let gate = Gate::with_script(shell, async |peer| {
        let (_peer, call) = first(peer).await;
        call.run(2).await;
        call.run(0).await;
        call.run(u64::MAX).await;
        call.deny(1, "asked").await;
        run_the_rest(call).await
    });
    let done = gate.exec(TWO);
    done.exits(0)
        .prints("1\ntwo\n")
        .says("Execution denied: asked\n");
    done.says("ignored an answer: exec 2 was never asked");
    assert_eq!(
        gate.told(),
        ["1 ACTION_DENY VERDICT", "2 ACTION_RUN VERDICT"]
    );
}

fn verdicts_may_come_in_any_order(shell: &Shell) {
    let gate = Gate::with_script(shell, async |peer| {
        let (_peer, mut call) = first(peer).await;
        call.asked(2).await;
        call.asked(3).await;
        for exec in [3, 1, 2] {
            call.run(exec).await;
        }
        run_the_rest(call).await
    });
    let done = gate.exec("for i in 1 2 3; do /bin/echo $i & done; wait; /bin/echo end");
    let output = done.exits(0).says_nothing().output();
    assert_eq!(output.len(), "1\n2\n3\nend\n".len(), "{done}");
    assert_eq!(gate.told().len(), 4);
}

fn a_call_that_ends_decides_nothing(shell: &Shell) {
    for status in [
        None,
        Some(Status::unavailable("restarting")),
        Some(Status::internal("bug")),
    ] {
        let gate = Gate::with_script(shell, move |peer| async move {
            let (mut peer, call) = first(peer).await;
            match status {
                None => call.end(),
                Some(status) => call.fail(status).await,
            }
            // The question is asked again.
            let mut call = peer.call().await;
            call.asked(1).await;
            call.deny(1, "second call").await;
            run_the_rest(call).await
        });
        let done = gate.exec(TWO);
        done.exits(0)
            .prints("1\ntwo\n")
            .says("Execution denied: second call\n");
        done.says("WARN").says("it is tried again until it is back");
        assert_eq!(
            gate.told(),
            ["1 ACTION_DENY VERDICT", "2 ACTION_RUN VERDICT"]
        );
    }
}

fn a_service_that_speaks_something_else_denies(shell: &Shell) {
    let gate = Gate::with_script(shell, async |mut peer| {
        peer.call()
            .await
            .fail(Status::unimplemented("not here"))
            .await;
        // Whatever is asked later is refused as well.
        loop {
            let call = tokio::time::timeout(std::time::Duration::from_secs(5), peer.call()).await;
            match call {
                Ok(call) => call.fail(Status::unimplemented("not here")).await,
                Err(_) => return vec![],
            }
        }
    });
    let done = gate.exec("/bin/echo one; echo $?");
    done.exits(0).prints("1\n");
    done.says("Execution denied: the policy service can't be reached: ")
        .says("not here");

    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let url = format!("http://{}", listener.local_addr().expect("an address"));
    std::thread::spawn(move || {
        use std::io::Write;
        for stream in listener.incoming() {
            let _ = stream
                .expect("a connection")
                .write_all(b"HTTP/1.1 404 Not Found\r\n\r\n");
        }
    });
    let gate = Gate::with_policy(shell, &url).option(["--verdict-timeout", "1s"]);
    let done = gate.exec("/bin/echo one; echo $?");
    done.exits(0)
        .prints("1\n")
        .says("Execution denied: the policy service can't be ")
        .says(&url);
}

/// What listens at a port, and does so with each connection until the test ends.
fn listening(act: impl Fn(std::net::TcpStream) + Send + 'static) -> String {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let url = format!("http://{}", listener.local_addr().expect("an address"));
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            act(stream.expect("a connection"));
        }
    });
    url
}

/// Answers whatever begins there, and ends its side.
fn answers(mut stream: &std::net::TcpStream, answer: &[u8]) {
    use std::io::{Read, Write};
    let _ = stream.read(&mut [0; 4096]);
    let _ = stream.write_all(answer);
    let _ = stream.shutdown(std::net::Shutdown::Write);
    // What isn't read would have the connection be reset.
    let _ = std::io::copy(&mut stream, &mut std::io::sink());
}

fn what_is_no_policy_service_is_named_and_what_it_took_is_told_as_lost(shell: &Shell) {
    let (kept, _connections) = std::sync::mpsc::sync_channel(1024);
    let silent = listening(move |stream| kept.send(stream).expect("the test goes on"));
    let closing = listening(|stream| answers(&stream, b""));
    let another = listening(|stream| answers(&stream, b"HTTP/1.1 400 Bad Request\r\n\r\n"));
    let nobody = {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        format!("http://{}", listener.local_addr().expect("an address"))
    };
    for (url, outcome, why, hint) in [
        (
            &silent,
            "gave no verdict in time",
            "what is there takes the connection, and says nothing",
            "neither that of --console nor that of --metrics",
        ),
        (
            &closing,
            "can't be called",
            "what is there takes the connection, and says nothing",
            "neither that of --console nor that of --metrics",
        ),
        (
            &another,
            "can't be called",
            "what is there speaks HTTP/1",
            "neither that of --console nor that of --metrics",
        ),
        (
            &nobody,
            "can't be reached",
            "Connection refused",
            "start the service",
        ),
    ] {
        let gate = Gate::with_policy(shell, url).option(["--verdict-timeout", "1s"]);
        let done = gate.exec("/bin/echo one; echo $?");
        done.exits(0).prints("1\n");
        done.says(&format!(
            "Execution denied: the policy service {outcome}: {url}: "
        ));
        done.says(&format!("WARN the policy service {outcome}: {url}: "));
        done.says(why).says("hint=").says(hint);
        // Its beginning, the question, the decision, that it is withdrawn, and the end.
        done.says("WARN events were lost: the session ended before they could be delivered")
            .says("lost=5\n");
    }
}

fn what_a_service_refuses_is_told_as_lost(shell: &Shell) {
    let gate = Gate::with_script(shell, async |mut peer| {
        peer.call()
            .await
            .fail(Status::unauthenticated("the token isn't known"))
            .await;
        Vec::new()
    });
    let done = gate.exec("/bin/echo one; echo $?");
    done.exits(0).prints("1\n");
    done.says("Execution denied: the policy service refuses this gate: http://127.0.0.1:")
        .says("the token isn't known")
        .says("WARN events were lost: the session ended before they could be delivered");
}

fn a_service_that_ends_the_session_ends_the_shell(shell: &Shell) {
    let gate = Gate::with_script(shell, async |peer| {
        let (_peer, call) = first(peer).await;
        let reason = "enough".to_owned();
        call.answer(Answer::TerminateSession(TerminateSession { reason }))
            .await;
        run_the_rest(call).await
    });
    let done = gate.exec("/bin/echo one; while :; do :; done");
    assert!(!done.status.success(), "{done}");
    assert_eq!(gate.told(), ["1 ACTION_DENY SESSION_ENDED"]);
}

fn a_service_that_keeps_no_events_keeps_no_gate_and_is_told_of(shell: &Shell) {
    let gate = Gate::with_script(shell, async |peer| {
        let (_peer, call) = first(peer).await;
        // It says that it will acknowledge events, and then it doesn't.
        call.accept_and_store().await;
        call.run(1).await;
        std::future::pending().await
    });
    gate.exec("/bin/echo one; exit 3")
        .exits(3)
        .prints("one\n")
        .says("WARN events were lost: the session ended before they could be delivered");
}

fn whatever_a_service_says_is_safe_for_a_terminal(shell: &Shell) {
    let gate = Gate::with_script(shell, async |peer| {
        let (_peer, call) = first(peer).await;
        call.deny(
            1,
            &format!("\x1b[2J\r\nline\u{9b}2J{}", "long ".repeat(10_000)),
        )
        .await;
        run_the_rest(call).await
    });
    let done = gate.exec(TWO);
    done.exits(0).prints("1\ntwo\n");
    assert!(!done.errors().contains(['\x1b', '\r', '\u{9b}']), "{done}");
    assert!(done.stderr.len() < 5_000, "{done}");
    assert_eq!(gate.told().len(), 2);
}
