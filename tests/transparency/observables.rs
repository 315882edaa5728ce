//! What a command can know about itself.

use std::process::Output;

use execgate::model::EscalationDecision;

use crate::harness::{Place, Shell, probe, script, shells, wait_with_policy};
use crate::support::{ESCALATE, Scripted};

#[tokio::test]
async fn a_plain_command() {
    script("\"$PROBE\" $$ a 'b c' '' -x --").is_the_same().await;
}

#[tokio::test]
async fn the_last_command_which_replaces_the_shell() {
    script("exec \"$PROBE\" $$").is_the_same().await;
}

#[tokio::test]
async fn arguments_and_environment_are_bytes_in_their_order() {
    script("export Z=1 A=2; B=$'\\xff\\xfe' C=$'new\\nline' D= E=ö \"$PROBE\" $$ $'\\xc3\\x28' $'\\x01' '' 'ü'")
        .is_the_same_in(Shell::Bash)
        .await;
    script("export Z=1 A=2; B=$'\\xff\\xfe' C=$'new\\nline' D= \"$PROBE\" $$ $'\\xc3\\x28' $'\\x01' '' 'ü'")
        .is_the_same()
        .await;
}

#[tokio::test]
async fn umask_limits_and_nice_value() {
    script("umask 027; ulimit -n 77; ulimit -c 0; ulimit -Ss 4096; ulimit -v 4000000; ulimit -t 1000; nice -n 5 true; \"$PROBE\" $$")
        .is_the_same()
        .await;
    script("renice -n 7 $$ >/dev/null; \"$PROBE\" $$")
        .is_the_same()
        .await;
}

#[tokio::test]
async fn what_only_the_kernel_knows() {
    for change in [
        "taskset -pc 0 $$ >/dev/null",
        "echo 321 >/proc/$$/oom_score_adj",
        "ionice -c 2 -n 6 -p $$",
        "ionice -c 3 -p $$",
        "chrt --batch -p 0 $$",
        "chrt --idle -p 0 $$",
        "echo 123456 >/proc/$$/timerslack_ns",
        "echo 0x31 >/proc/$$/coredump_filter",
    ] {
        script(&format!("{change}; \"$PROBE\" $$"))
            .is_the_same()
            .await;
    }
}

/// Programs that change something about themselves, and become what they are told to.
const FRONTS: [&str; 7] = [
    "setpriv --no-new-privs",
    "setarch --addr-no-randomize",
    "chrt --batch 0",
    "nohup",
    "setsid --wait",
    // Signals blocked, a real-time one among them.
    "python3 -c 'import os, signal, sys; signal.pthread_sigmask(signal.SIG_BLOCK, [10, 17, 40]); \
     os.execv(sys.argv[1], sys.argv[1:])'",
    // A pipe that doesn't block, which is so for all who have it.
    "python3 -c 'import os, sys; r, w = os.pipe(); os.set_blocking(r, False); os.dup2(r, 0); \
     os.dup2(w, 7); os.execv(sys.argv[1], sys.argv[1:])'",
];

/// The probe, twice: what a command leaves behind, another one sees.
fn behind(front: &str, shell: Shell) -> String {
    let plain = shell.plain().join(" ");
    let own = shell.path();
    let own = own.display();
    format!("{front} {own} {plain} -c '\"$PROBE\" $$; \"$PROBE\" $$; true'")
}

#[tokio::test]
async fn what_a_program_in_front_of_the_shell_has_set() {
    for front in FRONTS {
        for shell in shells() {
            script(&behind(front, shell)).is_the_same_in(shell).await;
        }
    }
}

/// All runs in the session, and what the shell behind it starts is escalated. Into another terminal session
/// nothing can be put from outside.
#[tokio::test]
async fn what_a_program_in_front_has_set_for_what_is_escalated() {
    for front in FRONTS
        .into_iter()
        .filter(|front| !front.starts_with("setsid"))
    {
        for shell in shells() {
            let text = behind(front, shell);
            let place = Place::new();
            let native = script(&text).native(shell, &place).await;
            let policy = Scripted::new(|exec| {
                let is_probe = exec.file == probe();
                Some(if is_probe {
                    ESCALATE
                } else {
                    EscalationDecision::Run
                })
            })
            .changing_nothing();
            let gated = wait_with_policy(&text, shell, &place, policy).await;
            assert!(native.stdout.len() > 1000, "{native:?}");
            let lines = |output: &Output| -> Vec<String> {
                let bytes = [&output.stdout[..], &output.stderr].concat();
                let text = String::from_utf8_lossy(&bytes).into_owned();
                text.lines().map(str::to_owned).collect()
            };
            for (gated, native) in lines(&gated).iter().zip(&lines(&native)) {
                assert_eq!(gated, native, "{front} {shell:?}");
            }
            assert_eq!(
                lines(&gated).len(),
                lines(&native).len(),
                "{front} {shell:?}"
            );
            assert_eq!(gated.status, native.status, "{front} {shell:?}");
        }
    }
}

#[tokio::test]
async fn signals_that_are_ignored() {
    script("trap '' INT TERM USR1 CHLD PIPE; \"$PROBE\" $$")
        .is_the_same()
        .await;
    script("trap 'echo caught' INT TERM USR1; \"$PROBE\" $$")
        .is_the_same()
        .await;
    script("\"$PROBE\" $$ </dev/null & wait")
        .is_the_same()
        .await;
}

#[tokio::test]
async fn process_groups_of_jobs() {
    // zsh has jobs on a terminal only.
    script("set -m; \"$PROBE\" $$; \"$PROBE\" $$ & wait; \"$PROBE\" $$ | cat")
        .is_the_same_in(Shell::Bash)
        .await;
}

#[tokio::test]
async fn working_directories() {
    script("mkdir -p a/b; cd a; ln -s b l; cd l; \"$PROBE\" $$")
        .is_the_same()
        .await;
    script("mkdir gone; cd gone; rmdir ../gone; \"$PROBE\" $$; /bin/pwd -P; echo $?")
        .is_the_same()
        .await;
    script("mkdir $'b\\xffd'; cd $'b\\xffd'; \"$PROBE\" $$")
        .is_the_same()
        .await;
}

#[tokio::test]
async fn descriptors_and_their_flags() {
    script("exec 5<>file 9>>other </dev/zero; echo x >&5; \"$PROBE\" $$ 7<file 2>&1 | cat")
        .is_the_same()
        .await;
    script("\"$PROBE\" $$ <&-; \"$PROBE\" $$ 2>&-; \"$PROBE\" $$ <&- 2>&- 3</dev/null")
        .is_the_same()
        .await;
    script("\"$PROBE\" $$ >out <&- 2>&-; cat out; \"$PROBE\" $$ >out 0<out; cat out")
        .is_the_same()
        .await;
}

#[tokio::test]
async fn files_by_relative_names() {
    script("cp \"$PROBE\" here; ./here $$; mkdir d; cd d; ../here $$; PATH=..:$PATH; here $$")
        .is_the_same()
        .await;
}
