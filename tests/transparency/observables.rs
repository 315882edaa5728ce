//! What a command can know about itself.

use crate::harness::{Shell, script};

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

#[tokio::test]
async fn what_a_program_in_front_of_the_shell_has_set() {
    for (front, shell_arguments) in [
        ("setpriv --no-new-privs", ""),
        ("setarch --addr-no-randomize", ""),
        ("chrt --batch 0", ""),
        ("nohup", ""),
        ("setsid --wait", ""),
    ] {
        for shell in crate::harness::shells() {
            let own = shell.path();
            let plain = shell.plain().join(" ");
            let inner = format!(
                "{front} {} {plain} {shell_arguments} -c '\"$PROBE\" $$; true'",
                own.display()
            );
            script(&inner).is_the_same_in(shell).await;
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
