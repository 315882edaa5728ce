//! Scripts that are easily got wrong.

use crate::harness::{Shell, script};

#[tokio::test]
async fn pipelines() {
    script("printf 'a\\nb\\nc\\n' | sort -r | head -n 2 | tr a-z A-Z")
        .is_the_same()
        .await;
    script("yes | head -n 1").is_the_same().await;
    script("seq 1 300000 | cat | cat | tail -n 1; true | false; echo $?")
        .is_the_same()
        .await;
}

#[tokio::test]
async fn substitutions_that_leave_a_child() {
    // The first waits for the child that holds its pipe; the second has none.
    script("x=$(/bin/sh -c '(sleep 0.3; echo late) & echo early'); echo \"$x\"")
        .is_the_same()
        .await;
    script("x=$(/bin/sh -c 'sleep 600 >/dev/null 2>&1 & echo $! >pid; echo early'); echo \"$x\"; kill $(cat pid)")
        .is_the_same()
        .await;
    script(
        "/bin/sh -c 'sleep 600 >/dev/null 2>&1 </dev/null & echo $! >pid' | cat; kill $(cat pid)",
    )
    .is_the_same()
    .await;
}

#[tokio::test]
async fn names_that_differ_from_the_file() {
    script(
        "(exec -a other \"$PROBE\" $$ x); (exec -l \"$PROBE\" $$ x); (exec -a '' \"$PROBE\" $$)",
    )
    .is_the_same_in(Shell::Bash)
    .await;
    script("(exec -a other \"$PROBE\" $$ x); (exec -l \"$PROBE\" $$ x); ARGV0=zero \"$PROBE\" $$; - \"$PROBE\" $$")
        .is_the_same_in(Shell::Zsh)
        .await;
}

#[tokio::test]
async fn scripts_and_their_names() {
    let tell = "#!/bin/sh\necho \"$0\" \"$@\"\n";
    script("./tell a; d/../tell b; PATH=.:$PATH; tell c; exec ./tell d")
        .file("tell", tell, 0o755)
        .started(&|command| {
            let work = command.get_current_dir().unwrap().to_owned();
            std::fs::create_dir(work.join("d")).unwrap();
        })
        .is_the_same()
        .await;
    script("./python a; ./env b")
        .file(
            "python",
            "#!/usr/bin/python3 -S\nimport sys\nprint(sys.argv)\n",
            0o755,
        )
        .file(
            "env",
            "#!/usr/bin/env -S sh -u\necho \"$0\" \"$@\"\n",
            0o755,
        )
        .is_the_same()
        .await;
}

#[tokio::test]
async fn programs_that_cannot_be_executed() {
    script("nonexistent-command; echo $?; ./nowhere; echo $?; /etc; echo $?; ./plain; echo $?; ./noload; echo $?; cat /dev/null")
        .file("plain", "echo\n", 0o644)
        .file("noload", "#!/no/such/interpreter\n", 0o755)
        .is_the_same()
        .await;
    script("./text a b; echo $?; ./empty; echo $?; ./binary; echo $?; cat /dev/null")
        .file("text", "echo text \"$@\"; exit 3\n", 0o755)
        .file("empty", "", 0o755)
        .file("binary", b"\x7fELF\0\0\0\0\n".to_vec(), 0o755)
        .is_the_same()
        .await;
}

#[tokio::test]
async fn paths_of_one_command_and_stale_hashes() {
    script("PATH=/nowhere ls; echo $?; PATH=/nowhere:/bin /bin/echo x; PATH=$PWD tool; echo $?; tool; echo $?")
        .file("tool", "#!/bin/sh\necho tool\n", 0o755)
        .is_the_same()
        .await;
    script(
        "mkdir a b; cp tool a; cp tool b; PATH=$PWD/a:$PWD/b:$PATH; tool; rm a/tool; tool; echo $?",
    )
    .file("tool", "#!/bin/sh\necho \"${0##*work/}\"\n", 0o755)
    .is_the_same()
    .await;
}

#[tokio::test]
async fn low_limits() {
    script("ulimit -n 5; /bin/true; echo $?; /bin/sh -c 'ulimit -n'")
        .is_the_same()
        .await;
    // zsh itself needs more than that.
    script("ulimit -Sn 4; /bin/true; echo $?; /bin/sh -c 'ulimit -n'")
        .is_the_same_in(Shell::Bash)
        .await;
    script("ulimit -u 1; /bin/true; echo $?; exec /bin/sh -c 'ulimit -p 2>/dev/null; echo x'")
        .is_the_same()
        .await;
    script("ulimit -f 0; ulimit -c 0; ulimit -v 100000; ulimit -d 50000; ulimit -s 256; ulimit -l 0; /bin/true; echo $?")
        .is_the_same()
        .await;
}

#[tokio::test]
async fn here_documents_and_process_substitution() {
    script("cat <<X\nhere\nX\ncat <<<string; diff <(echo a) <(echo b); echo $?; tee >(tr a-z A-Z) </dev/null; echo x | tee >(cat >&2) | cat; sleep 0.1")
        .is_the_same()
        .await;
}

#[tokio::test]
async fn ends_by_exit_code_and_signal() {
    script(
        "for s in 0 1 2 100 125 126 127 128 130 137 255; do /bin/sh -c \"exit $s\"; echo $?; done",
    )
    .is_the_same()
    .await;
    script("for s in HUP INT QUIT ILL TRAP ABRT BUS FPE KILL USR1 SEGV USR2 PIPE ALRM TERM XCPU IO; do /bin/sh -c \"kill -$s \\$\\$\"; echo $?; done 2>&1 | sed 's/[0-9][0-9]* *\\(Hang\\|Kill\\|[A-Z]\\)/\\1/'")
        .is_the_same()
        .await;
}

#[tokio::test]
async fn the_same_wait_status() {
    script("exec 2>messages; /bin/sh -c 'kill -SEGV $$' & wait $!; echo $?; /bin/sh -c 'exit 7' & wait $!; echo $?; set -o pipefail; /bin/sh -c 'kill -TERM $$' | cat; echo $?; sed 's/:  *[0-9][0-9]* /: PID /' messages")
        .is_the_same_in(Shell::Bash)
        .await;
}
