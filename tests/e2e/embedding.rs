//! `examples/embed.rs`: a gate in another program, with a policy of its own.

use std::process::Command;

use crate::machine::{Shell, in_both_shells, repository};
use crate::process;

in_both_shells! {
    another_program_gates_a_shell_by_itself,
}

fn another_program_gates_a_shell_by_itself(shell: &Shell) {
    let mut command = Command::new(env!("CARGO"));
    command
        .args(["run", "--quiet", "--locked", "--example", "embed", "--"])
        .arg(&shell.path)
        .arg(crate::process::WRAPPER)
        .arg("uname; date; echo $?; /bin/true; exit 3")
        .current_dir(repository());
    let done = process::run(&mut command);
    done.exits(3)
        .says("Execution denied: this example has no time\n");
    let output = done.output();
    let lines: Vec<_> = output.lines().collect();
    let [outside, kernel, refused, status, ran, last] = lines[..] else {
        panic!("{done}");
    };
    assert!(
        outside.starts_with("outside: ") && outside.ends_with("uname"),
        "{done}"
    );
    assert!(
        refused.starts_with("refused: ") && ran.starts_with("inside:  "),
        "{done}"
    );
    assert_eq!((kernel, status), ("Linux", "1"), "{done}");
    assert_eq!(last, "status 3, 1 inside, 1 outside, 1 refused", "{done}");
}
