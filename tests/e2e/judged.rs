//! What was judged is what runs: programs, interpreters and links that a session changes between question
//! and answer, and programs that it can write at all.
//!
//! Each session is in a sandbox that can write its working directory and nothing else.

use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;

use execgate::pb::v1::escalate::Execution;
use execgate::pb::v1::session_request::Event;
use execgate::pb::v1::session_response::Answer;
use execgate::pb::v1::verdict::Decision;
use execgate::pb::v1::{
    Escalate, ExecRequested, ExecutableDigest, Protection, Run, SessionAccepted,
    UnprotectedPrograms, Unsandboxed,
};

use crate::gate::{Gate, directory};
use crate::machine::{Shell, in_both_shells};
use crate::peer::{Call, Peer};
use crate::stage::bubblewrap;

in_both_shells! {
    what_changes_between_question_and_answer_is_not_what_runs,
    with_a_digest_the_file_that_was_judged_runs_wherever_its_name_leads,
    a_write_that_leaves_no_trace_is_found_by_the_digest,
    links_that_never_stand_still_lead_nowhere_else,
    a_program_that_the_session_can_write_is_not_escalated_unless_the_rule_says_so,
    a_program_that_it_cannot_write_is_executed_by_its_name,
    rules_know_the_file_and_its_digest,
}

const GOOD: &str = "#!/bin/sh\necho good $1\n";
const EVIL: &str = "#!/bin/sh\necho evil $1\n";

fn program(path: &Path, content: &str) {
    std::fs::write(path, content).expect("a file");
    let mode = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(path, mode).expect("its mode");
}

fn escalated() -> Decision {
    Decision::Escalate(Escalate {
        execution: Some(Execution::Unsandboxed(Unsandboxed {})),
        unprotected_programs: UnprotectedPrograms::Allowed.into(),
        ..Escalate::default()
    })
}

/// Reads up to the next question, and tells how the exec before it was decided.
async fn question(call: &mut Call, told: &mut Vec<String>) -> Option<ExecRequested> {
    while let Some(event) = call.event().await {
        match event.event {
            Some(Event::ExecRequested(question)) => return Some(question),
            Some(Event::ExecDecided(decided)) => {
                let code = decided.code().as_str_name();
                told.push(code.trim_start_matches("DECISION_CODE_").to_owned());
            }
            _ => {}
        }
    }
    None
}

/// Escalates each `tool`, after `change` has been made, and runs all else. Tells codes of decisions.
async fn escalate_after(
    mut peer: Peer,
    digest: ExecutableDigest,
    change: impl Fn(&Path),
) -> Vec<String> {
    let mut call = peer.call().await;
    call.answer(Answer::SessionAccepted(SessionAccepted {
        requested_executable_digest: digest.into(),
        ..SessionAccepted::default()
    }))
    .await;
    let mut told = Vec::new();
    while let Some(question) = question(&mut call, &mut told).await {
        let decision = if question.file.ends_with(b"tool") {
            let info = question.executable.expect("the program");
            assert_eq!(info.missing, "");
            // The session can write its working directory, and nothing else.
            let expected = if question.file.starts_with(&question.workdir) {
                Protection::Writable
            } else {
                Protection::Protected
            };
            assert_eq!(info.protection(), expected);
            if digest == ExecutableDigest::Sha256 {
                assert_eq!(info.sha256.len(), 32);
            }
            let work = String::from_utf8(question.workdir.to_vec()).expect("text");
            change(Path::new(&work));
            Some(escalated())
        } else {
            Some(Decision::Run(Run {}))
        };
        call.verdict(question.exec_id, decision).await;
    }
    told
}

fn sandboxed(gate: Gate) -> Gate {
    gate.in_sandbox("bubblewrap")
}

type Change = fn(&Path);

const CHANGES: [(&str, Change); 7] = [
    ("nothing", |_| {}),
    ("edited in place", |work| {
        std::fs::write(work.join("d/tool"), EVIL).expect("written");
    }),
    ("replaced", |work| {
        program(&work.join("new"), EVIL);
        std::fs::rename(work.join("new"), work.join("d/tool")).expect("renamed");
    }),
    ("another link", |work| {
        program(&work.join("new"), EVIL);
        std::fs::remove_file(work.join("d/tool")).expect("removed");
        symlink(work.join("new"), work.join("d/tool")).expect("linked");
    }),
    ("another directory", |work| {
        std::fs::rename(work.join("d"), work.join("old")).expect("renamed");
        std::fs::create_dir(work.join("d")).expect("made");
        program(&work.join("d/tool"), EVIL);
    }),
    ("edited by another name", |work| {
        std::fs::hard_link(work.join("d/tool"), work.join("other")).expect("linked");
        std::fs::write(work.join("other"), EVIL).expect("written");
    }),
    ("gone", |work| {
        std::fs::remove_file(work.join("d/tool")).expect("removed");
    }),
];

fn what_changes_between_question_and_answer_is_not_what_runs(shell: &Shell) {
    if !bubblewrap() {
        return;
    }
    for (what, change) in CHANGES {
        let gate = sandboxed(Gate::with_script(shell, move |peer| {
            escalate_after(peer, ExecutableDigest::Unspecified, change)
        }));
        std::fs::create_dir(gate.path("work/d")).expect("a directory");
        program(&gate.path("work/d/tool"), GOOD);
        let done = gate.exec("d/tool x; echo $?");
        let told = gate.told();
        // A directory changes its name without a trace on what is in it: that is the file that was judged.
        if matches!(what, "nothing" | "another directory") {
            done.exits(0).prints("good x\n0\n");
            assert_eq!(told, ["VERDICT"]);
        } else {
            done.exits(0).prints("1\n");
            done.says("Execution denied: the program isn't what was asked about any more");
            assert_eq!(told, ["PROGRAM_CHANGED"], "{what}");
        }
    }
    // What executes a script counts as much as the script.
    let gate = sandboxed(Gate::with_script(shell, |peer| {
        escalate_after(peer, ExecutableDigest::Unspecified, |work| {
            std::fs::copy("/bin/cat", work.join("d/interpreter")).expect("copied");
        })
    }));
    std::fs::create_dir(gate.path("work/d")).expect("a directory");
    std::fs::copy("/bin/sh", gate.path("work/d/interpreter")).expect("an interpreter");
    let line = format!(
        "#!{}\necho good\n",
        gate.path("work/d/interpreter").display()
    );
    program(&gate.path("work/tool"), &line);
    gate.exec("./tool").exits(1).prints("");
    assert_eq!(gate.told(), ["PROGRAM_CHANGED"]);
    // What the session can't write, others can move: the file is the same, and the way to it another one, of which
    // nobody has judged who could change it.
    let place = directory();
    let at = place.path().join("d");
    let (from, to) = (at.clone(), place.path().join("moved"));
    let gate = sandboxed(Gate::with_script(shell, |peer| {
        escalate_after(peer, ExecutableDigest::Unspecified, move |_| {
            std::fs::rename(&from, &to).expect("renamed");
            symlink(&to, &from).expect("linked");
        })
    }));
    std::fs::create_dir(&at).expect("a directory");
    program(&at.join("tool"), GOOD);
    let done = gate.exec(format!("{}/tool x; echo $?", at.display()));
    done.exits(0).prints("1\n");
    assert_eq!(gate.told(), ["PROGRAM_CHANGED"]);
}

fn with_a_digest_the_file_that_was_judged_runs_wherever_its_name_leads(shell: &Shell) {
    if !bubblewrap() {
        return;
    }
    for (what, change) in CHANGES {
        let gate = sandboxed(Gate::with_script(shell, move |peer| {
            escalate_after(peer, ExecutableDigest::Sha256, change)
        }));
        std::fs::create_dir(gate.path("work/d")).expect("a directory");
        program(&gate.path("work/d/tool"), GOOD);
        // By the time of the second the gate has read what the service wants.
        let done = gate.exec("/bin/true; d/tool x; echo $?");
        let told = gate.told();
        if what.starts_with("edited") {
            done.exits(0).prints("1\n");
            assert_eq!(told, ["VERDICT", "PROGRAM_CHANGED"], "{what}");
        } else {
            done.exits(0).prints("good x\n0\n");
            assert_eq!(told, ["VERDICT", "VERDICT"], "{what}");
        }
    }
    // So does a program of the machine's own language, with the arguments that it was given.
    let gate = sandboxed(Gate::with_script(shell, |peer| {
        escalate_after(peer, ExecutableDigest::Sha256, |work| {
            std::fs::remove_file(work.join("tool")).expect("removed");
            std::fs::copy("/bin/false", work.join("tool")).expect("copied");
        })
    }));
    std::fs::copy("/bin/ls", gate.path("work/tool")).expect("a program");
    let done = gate.exec("/bin/true; ./tool -d /proc/self/fd/60 /; echo $?");
    // No descriptor of the copy is left to it.
    done.exits(0).says("/proc/self/fd/60");
    assert!(done.output().starts_with("/\n"), "{done}");
}

/// A process of the session maps its program, has the page written once, and writes again when told to:
/// no time in the file's description changes by that.
const MAPPING: &str = r#"
import mmap, os, time
with open("tool", "r+b") as file:
    memory = mmap.mmap(file.fileno(), 0)
memory[0:1] = memory[0:1]
open("mapped", "w").close()
while not os.path.exists("go"):
    time.sleep(0.002)
at = memory.find(b"good")
memory[at:at + 4] = b"evil"
os.rename("go", "gone")
"#;

fn a_write_that_leaves_no_trace_is_found_by_the_digest(shell: &Shell) {
    if !bubblewrap() {
        return;
    }
    let gate = sandboxed(Gate::with_script(shell, |peer| {
        escalate_after(peer, ExecutableDigest::Sha256, |work| {
            std::fs::write(work.join("go"), "").expect("a file");
            crate::process::wait_until("the write", || work.join("gone").exists());
        })
    }));
    program(&gate.path("work/tool"), GOOD);
    std::fs::write(gate.path("work/map.py"), MAPPING).expect("a file");
    let done = gate.exec(
        "python3 map.py & while ! test -e mapped; do sleep 0.01; done; ./tool x; echo $?; wait",
    );
    done.exits(0).prints("1\n");
    assert!(gate.told().contains(&"PROGRAM_CHANGED".to_owned()));
}

/// Makes a link lead to one and the other, over and over.
const FLIPPING: &str = r#"
import os
open("flipping", "w").close()
while not os.path.exists("stop"):
    for target in ["good", "evil"]:
        os.symlink(target, "next")
        os.rename("next", "link")
"#;

fn links_that_never_stand_still_lead_nowhere_else(shell: &Shell) {
    if !bubblewrap() {
        return;
    }
    let rules = r#"
def decide(exec):
    if exec.basename == "tool":
        if exec.executable and exec.executable.path.endswith("/good/tool"):
            return escalate(unprotected = "allow")
        return deny("not that one")
    return run()
"#;
    let gate = sandboxed(Gate::with_rules(shell, rules));
    for (name, content) in [("good", GOOD), ("evil", EVIL)] {
        std::fs::create_dir(gate.path("work").join(name)).expect("a directory");
        program(&gate.path("work").join(name).join("tool"), content);
    }
    symlink("good", gate.path("work/link")).expect("a link");
    std::fs::write(gate.path("work/flip.py"), FLIPPING).expect("a file");
    // As often as it takes for it to be the good one when it is judged and when it is executed.
    let done = gate.exec(
        "python3 flip.py & while ! test -e flipping; do sleep 0.01; done
         tries=0; while test $tries -lt 30 || ! test -s said; do
             link/tool $tries 2>/dev/null | tee -a said; tries=$((tries + 1))
         done; touch stop; wait",
    );
    let output = done.exits(0).output();
    assert!(
        output.lines().all(|line| line.starts_with("good")),
        "{done}"
    );
    assert!(!output.is_empty(), "{done}");
}

fn a_program_that_the_session_can_write_is_not_escalated_unless_the_rule_says_so(shell: &Shell) {
    if !bubblewrap() {
        return;
    }
    for (terms, allowed) in [("", false), ("unprotected = \"allow\"", true)] {
        let rules = format!(
            "def decide(exec):\n    return escalate({terms}) if exec.basename == \"tool\" else run()\n"
        );
        let gate = sandboxed(Gate::with_rules(shell, &rules));
        program(&gate.path("work/tool"), GOOD);
        let done = gate.exec("./tool x; echo $?");
        let execs = gate.audit();
        let info = &execs[0].0["executable"];
        assert_eq!(info["protection"], "writable", "{info}");
        assert_eq!(execs[0].text("workdir_protection"), "writable");
        if allowed {
            done.exits(0).prints("good x\n0\n").says_nothing();
            continue;
        }
        done.exits(0)
            .prints("1\n")
            .says("Execution denied: it may not leave the sandbox");
        done.says("unprotected = \"allow\"");
        assert_eq!(execs[0].text("code"), "program-unprotected");
        assert_eq!(execs[0].text("verdict"), "deny");
    }
}

fn a_program_that_it_cannot_write_is_executed_by_its_name(shell: &Shell) {
    if !bubblewrap() {
        return;
    }
    let place = directory();
    let script = place.path().join("script");
    program(&script, "#!/bin/sh\necho $0 $1; dirname $0\n");
    // A text without an interpreter is a shell's as well.
    let text = place.path().join("text");
    program(&text, "echo $0 $1\n");
    let rules = "def decide(exec):\n    return escalate() if exec.executable and exec.executable.protected else deny(\"writable\")\n";
    let gate = sandboxed(Gate::with_rules(shell, rules));
    let (place, here) = (place.path().display(), gate.path("work"));
    let up = "../".repeat(here.components().count() - 2) + "..";
    let done = gate.exec(format!(
        "{place}/script x; {place}/text y; {up}{place}/script z"
    ));
    done.exits(0).prints(&format!(
        "{place}/script x\n{place}\n{place}/text y\n{up}{place}/script z\n{up}{place}\n"
    ));
}

fn rules_know_the_file_and_its_digest(shell: &Shell) {
    if !bubblewrap() {
        return;
    }
    // Of GOOD.
    let digest = sha256(GOOD);
    let rules = format!(
        r#"
request_digests()
def decide(exec):
    if exec.basename != "tool":
        return run()
    if exec.executable.sha256 != "{digest}":
        return deny("unknown content")
    if exec.executable.interpreter.executable.protected and exec.executable.mode == 0o755:
        return escalate(unprotected = "allow")
"#
    );
    let gate = sandboxed(Gate::with_rules(shell, &rules));
    program(&gate.path("work/tool"), GOOD);
    let script = format!(
        "/bin/true; ./tool 1; printf '{}' > tool; ./tool 2",
        EVIL.replace('\n', "\\n")
    );
    let done = gate.exec(script);
    done.exits(1).prints("good 1\n").says("unknown content");
    let execs = gate.audit();
    assert_eq!(execs[1].0["executable"]["sha256"], digest.as_str());
    let interpreter = &execs[1].0["executable"]["interpreter"];
    assert_eq!(interpreter["name"], "/bin/sh");
    assert_eq!(execs[1].text("code"), "verdict");
}

fn sha256(content: &str) -> String {
    use sha2::Digest;
    let digest = sha2::Sha256::digest(content.as_bytes());
    let digits: Vec<_> = digest.iter().map(|byte| format!("{byte:02x}")).collect();
    digits.concat()
}
