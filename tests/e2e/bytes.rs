//! What the kernel takes as a command: large, empty, not text, without a directory.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use serde_json::json;

use crate::gate::{Gate, verdicts};
use crate::machine::{Shell, in_both_shells};

/// `/bin/...` runs, `/usr/bin/...` is escalated.
const RULES: &str = r#"
def decide(exec):
    return escalate() if exec.program.startswith("/usr/bin/") else run()
"#;

in_both_shells! {
    a_megabyte_and_a_half_of_arguments,
    more_arguments_than_the_kernel_takes_fail_as_without_a_gate,
    a_megabyte_of_environment,
    arguments_and_environment_that_are_not_text,
    an_empty_argument_list,
    empty_arguments_and_those_that_look_like_options,
    a_directory_that_was_deleted,
    a_directory_whose_name_is_not_text,
}

fn a_megabyte_and_a_half_of_arguments(shell: &Shell) {
    let gate = Gate::with_rules(shell, RULES);
    let long = "x=$(printf '%0100000d' 0); set -- $x $x $x $x $x $x $x $x $x $x $x $x $x $x $x; ";
    for program in ["/bin/printf", "/usr/bin/printf"] {
        gate.exec(format!("{long} {program} %s \"$@\" | wc -c"))
            .exits(0)
            .says_nothing()
            .prints("1500000\n");
    }
    let length = |exec: &crate::gate::Exec| exec.0["argv"].as_array().map(Vec::len);
    let execs = gate.audit();
    assert_eq!(
        execs
            .iter()
            .filter(|exec| exec.name() == "printf" && length(exec) == Some(17))
            .count(),
        2
    );
}

fn more_arguments_than_the_kernel_takes_fail_as_without_a_gate(shell: &Shell) {
    let gate = Gate::with_rules(shell, RULES);
    let script = "x=$(printf '%0100000d' 0); for i in {1..6}; do set -- $x \"$@\" \"$@\"; done; \
        /bin/printf %s \"$@\"; echo $?; /bin/pwd; /usr/bin/printf %s \"$@\"; echo $?; /usr/bin/pwd";
    let (gated, ungated) = (gate.exec(script), gate.ungated(script));
    gated.exits(0).says_times(2, "rgument list too long");
    assert_eq!(gated.output(), ungated.output(), "{gated}{ungated}");
    assert_eq!(gated.errors(), ungated.errors(), "{gated}{ungated}");
    // The shell was gated, and nobody was asked about what the kernel can't take.
    assert_eq!(verdicts(&gate.audit()), ["pwd run", "pwd escalate"]);
}

fn a_megabyte_of_environment(shell: &Shell) {
    let gate = Gate::with_rules(shell, RULES);
    for program in ["/bin/env", "/usr/bin/env"] {
        let script = format!(
            "x=$(printf '%0100000d' 0); for i in {{1..10}}; do export BIG_$i=$x; done; {program} | grep ^BIG_ | wc -c"
        );
        gate.exec(script)
            .exits(0)
            .says_nothing()
            .prints("1000071\n");
    }
}

fn arguments_and_environment_that_are_not_text(shell: &Shell) {
    let gate = Gate::with_rules(shell, RULES);
    for directory in ["/bin", "/usr/bin"] {
        let script = [
            &b"export X=$'\\xff\\xfe'; "[..],
            format!("{directory}/printf '[%s]' $'\\xfe' $'a\\nb' '").as_bytes(),
            b"\xe9'; ",
            format!("{directory}/env | grep -a ^X=").as_bytes(),
        ]
        .concat();
        let done = gate.exec(OsStr::from_bytes(&script));
        done.exits(0).says_nothing();
        assert_eq!(done.stdout, b"[\xfe][a\nb][\xe9]X=\xff\xfe\n", "{done}");
        let execs = gate.audit();
        let printf = execs
            .iter()
            .find(|exec| exec.name() == "printf")
            .expect("printf");
        assert_eq!(printf.0["argv"][2], "\u{fffd}");
        assert_eq!(printf.0["argv_base64"][2], json!("/g=="));
    }
}

fn an_empty_argument_list(shell: &Shell) {
    let gate = Gate::with_rules(shell, RULES);
    for program in ["/bin/env", "/usr/bin/env"] {
        // The wrapper is asked for as a command, and started so it has no arguments for its own.
        let done = gate.exec(format!("MARK=1 \"$EXEC_WRAPPER\" {program}; echo $?"));
        done.exits(0).says_nothing();
        assert!(
            done.output().contains("MARK=1\n") && done.output().ends_with("\n0\n"),
            "{done}"
        );
        let execs = gate.audit();
        assert_eq!(execs[1].0["argv"], json!([]), "{execs:?}");
        assert_eq!(execs[1].name(), "env");
    }
}

fn empty_arguments_and_those_that_look_like_options(shell: &Shell) {
    let gate = Gate::with_rules(shell, RULES);
    for program in ["/bin/printf", "/usr/bin/printf"] {
        gate.exec(format!("{program} '[%s]' '' -- --help -x ''"))
            .exits(0)
            .prints("[][--][--help][-x][]");
        gate.exec(format!(
            "(exec -a --help {program} x); (exec -a -- {program} y)"
        ))
        .exits(0)
        .prints("xy");
    }
}

fn a_directory_that_was_deleted(shell: &Shell) {
    let gate = Gate::with_rules(shell, RULES);
    for program in [
        "/bin/true",
        "/usr/bin/true",
        "/bin/pwd",
        "/usr/bin/pwd",
        "/bin/ls",
        "/usr/bin/ls",
    ] {
        let script = format!("mkdir d; cd d; rmdir ../d; {program}; echo $?");
        let (gated, ungated) = (gate.exec(&script), gate.ungated(&script));
        assert_eq!(gated.output(), ungated.output(), "{gated}{ungated}");
        assert_eq!(gated.errors(), ungated.errors(), "{gated}{ungated}");
    }
}

fn a_directory_whose_name_is_not_text(shell: &Shell) {
    let gate = Gate::with_rules(shell, RULES);
    let name = OsStr::from_bytes(b"not \xff text");
    std::fs::create_dir(gate.path("work").join(name)).expect("a directory");
    gate.exec("cd not*; /bin/ls -d . && /usr/bin/ls -d .")
        .exits(0)
        .prints(".\n.\n")
        .says_nothing();
    assert_eq!(verdicts(&gate.audit()), ["ls run", "ls escalate"]);
    let mut command = gate.command("/bin/true");
    let done = crate::process::run(command.current_dir(gate.path("work").join(name)));
    done.exits(0);
    assert!(!gate.audit()[0].text("workdir_base64").is_empty());
}
