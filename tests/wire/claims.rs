//! What a wrapper says of the command's surroundings is a claim: none gets it more than the gate has,
//! or another place than was judged.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::net::UnixStream;

use execgate::sys::socket::{self, Wait};

use crate::REQUEST;
use crate::support::peer::{frame, handshake, read_frame, send_by_hand, session_socket};
use crate::support::{ESCALATE, PATIENCE, Scripted, start};

/// Asks for a shell script in `workdir`, and gives what the gate answered to `message` in the end. A
/// directory that follows is `/`.
async fn escalated(
    workdir: &str,
    script: &str,
    message: serde_json::Value,
    descriptors: &[BorrowedFd<'_>],
) -> String {
    let root = File::open("/").unwrap();
    escalated_with(workdir, script, message, descriptors, &root).await
}

/// The same, with the directory that follows where `message` says that one does.
async fn escalated_with(
    workdir: &str,
    script: &str,
    message: serde_json::Value,
    descriptors: &[BorrowedFd<'_>],
    directory: &File,
) -> String {
    let session = start(Scripted::always(ESCALATE));
    let mut stream = handshake(&session);
    let request = serde_json::json!({
        "file": "/bin/sh", "argv": ["sh", "-c", script], "workdir": workdir,
        "env": {"PATH": "/usr/bin:/bin"},
    });
    stream
        .write_all(&frame(request.to_string().as_bytes()))
        .unwrap();
    read_frame(&stream).await;
    send(&stream, &message, descriptors);
    if message["context"]["workdir_follows"] == true {
        let follows = serde_json::json!({"workdir": true});
        send(&stream, &follows, &[directory.as_fd()]);
    }
    read_frame(&stream).await
}

fn send(stream: &UnixStream, message: &serde_json::Value, descriptors: &[BorrowedFd<'_>]) {
    let message = frame(message.to_string().as_bytes());
    socket::send(stream.as_fd(), &message, descriptors, Wait::Blocking).unwrap();
}

#[tokio::test]
async fn nothing_better_than_the_gates_own_is_granted() {
    let script = "nice; ionice -p $$; chrt -p $$ | sed 's/.*: //'
        cat /proc/self/personality /proc/self/oom_score_adj
        cut -c 1-26,48-66 /proc/self/limits";
    // Most users can get back to where they were: the kernel alone doesn't keep the command from it.
    std::fs::write("/proc/self/oom_score_adj", "300").unwrap();
    let natively = std::process::Command::new("/bin/sh")
        .args(["-c", script])
        .env_clear()
        .env("PATH", "/usr/bin:/bin")
        .output()
        .unwrap();
    let (mut reader, writer) = std::io::pipe().unwrap();
    // Of limits and priorities the highest there are; FIFO is 1; of a domain that there is something at
    // address 0.
    let limits: Vec<_> = (0..16).map(|limit| (limit, u64::MAX, u64::MAX)).collect();
    let message = serde_json::json!({"fds": [1], "context": {
        "nice": -20, "io_priority": (1 << 13) | 4, "scheduler": 1, "personality": 0x0010_0000,
        "oom_score_adj": 100, "limits": limits,
    }});
    let answer = escalated("/", script, message, &[writer.as_fd()]).await;
    drop(writer);
    let mut said = String::new();
    reader.read_to_string(&mut said).unwrap();
    assert_eq!(answer, r#"{"exit_code":0}"#, "{said}");
    assert_eq!(said, String::from_utf8(natively.stdout).unwrap());
}

#[tokio::test]
async fn what_is_no_better_than_the_gates_own_is_granted() {
    let script = "umask; nice; ionice -p $$; chrt -p $$ | sed 's/.*: //'
        cd /proc/self; cat timerslack_ns oom_score_adj coredump_filter personality
        sed -n 's/^NoNewPrivs:.//p; s/^Cpus_allowed_list:.//p' status
        ulimit -n; trap 'echo not ignored' USR1; kill -USR1 $$";
    let (mut reader, writer) = std::io::pipe().unwrap();
    // 10 is USR1, 7 the number of open files, 3 the scheduler's BATCH.
    let message = serde_json::json!({"fds": [1], "context": {
        "umask": 0o27, "nice": 19, "io_priority": (2 << 13) | 7, "scheduler": 3, "timer_slack": 123_456,
        "oom_score_adj": 321, "core_dump_filter": 1, "personality": 0x0002_0000, "no_new_privileges": true,
        "cpus": [1], "limits": [[7, 99, 100]], "ignored_signals": [10],
    }});
    let answer = escalated("/", script, message, &[writer.as_fd()]).await;
    drop(writer);
    let mut said = String::new();
    reader.read_to_string(&mut said).unwrap();
    assert_eq!(answer, r#"{"exit_code":0}"#, "{said}");
    let said: Vec<_> = said.split_whitespace().collect();
    let expected = "0027 19 best-effort: prio 7 SCHED_BATCH 0 123456 321 00000001 00020000 1 0 99";
    assert_eq!(said.join(" "), expected);
}

#[tokio::test]
async fn who_says_nothing_of_its_file_mode_mask_gets_the_usual_one() {
    let (mut reader, writer) = std::io::pipe().unwrap();
    let message = serde_json::json!({"fds": [1]});
    escalated("/", "umask", message, &[writer.as_fd()]).await;
    drop(writer);
    let mut said = String::new();
    reader.read_to_string(&mut said).unwrap();
    assert_eq!(said, "0022\n");
}

#[tokio::test]
async fn an_open_directory_is_no_way_to_another_than_was_judged() {
    let directory = tempfile::tempdir().unwrap();
    let here = directory.path().join("here (deleted)");
    std::fs::create_dir(&here).unwrap();
    let gone = directory.path().join("gone (deleted)");
    let message = || serde_json::json!({"fds": [], "context": {"workdir_follows": true}});
    // Nothing has this name, and what is open never had it.
    let answer = escalated(gone.to_str().unwrap(), "exit 7", message(), &[]).await;
    let said = format!("cannot enter the working directory {}", gone.display());
    assert!(answer.contains(&said), "{answer}");
    // A name that leads somewhere is where it leads.
    let script = format!("test \"$(pwd -P)\" = '{}'", here.display());
    let answer = escalated(here.to_str().unwrap(), &script, message(), &[]).await;
    assert_eq!(answer, r#"{"exit_code":0}"#);
    // Nor is it a deleted one of which the kernel says that very name.
    let deleted = directory.path().join("here");
    std::fs::create_dir(&deleted).unwrap();
    let open = File::open(&deleted).unwrap();
    std::fs::remove_dir(&deleted).unwrap();
    let named = format!("/proc/self/fd/{}", open.as_raw_fd());
    assert_eq!(std::fs::read_link(named).unwrap(), here);
    let answer = escalated_with(here.to_str().unwrap(), &script, message(), &[], &open).await;
    assert_eq!(answer, r#"{"exit_code":0}"#);
}

#[tokio::test]
async fn more_descriptors_than_a_message_may_carry_start_nothing() {
    let session = start(Scripted::always(ESCALATE));
    let mut stream = handshake(&session);
    stream.write_all(&frame(REQUEST)).unwrap();
    read_frame(&stream).await;
    // As many are declared as there is room for, so only the kernel knows of the other one.
    let message = frame(format!("{{\"fds\":{:?}}}", (3..19).collect::<Vec<_>>()).as_bytes());
    send_by_hand(stream.as_fd(), &message, 17);
    let answer = read_frame(&stream).await;
    assert!(
        answer.contains("a message carries more than 16 descriptors"),
        "{answer}"
    );
}

#[tokio::test]
async fn only_a_local_stream_in_a_proper_handshake_is_a_request() {
    let policy = Scripted::always(ESCALATE);
    let session = start(policy.clone());
    // Nobody could tell who is at the other end of a network's stream.
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let mut network = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    network.set_read_timeout(Some(PATIENCE)).unwrap();
    network.write_all(&frame(REQUEST)).unwrap();
    let gates = listener.accept().unwrap().0;
    socket::send(
        session_socket(&session),
        &[0],
        &[gates.as_fd()],
        Wait::Blocking,
    )
    .unwrap();
    drop(gates);
    let said = tokio::task::spawn_blocking(move || {
        let mut said = Vec::new();
        // What wasn't read makes its end a reset.
        let _ = network.read_to_end(&mut said);
        said
    });
    assert_eq!(String::from_utf8(said.await.unwrap()).unwrap(), "");

    for handshake in [&[1][..], &[0, 0]] {
        let (mut stream, gates) = UnixStream::pair().unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.write_all(&frame(REQUEST)).unwrap();
        socket::send(
            session_socket(&session),
            handshake,
            &[gates.as_fd()],
            Wait::Blocking,
        )
        .unwrap();
        drop(gates);
        assert_eq!(read_frame(&stream).await, "");
    }
    assert_eq!(policy.asked.lock().unwrap().len(), 0);
}
