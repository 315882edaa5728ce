//! What can't be executed: the status and the message are the shell's own, for every kind of failure, however
//! the program is named.

use std::fmt::Write as _;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use crate::harness::{Case, Place, Shell, VERDICTS, script, shells};
use crate::support::text;

/// Who says that a program can't be executed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Said {
    /// The shell, which sees it beforehand.
    ByTheShell,
    /// The wrapper or the gate, since only executing shows it: without the shell's name and line, and with
    /// status 126.
    ByTheWrapper(&'static str),
}

struct Failure {
    /// Which file in the working directory.
    file: &'static str,
    arguments: &'static str,
    said: Said,
}

const fn shell(file: &'static str) -> Failure {
    Failure {
        file,
        arguments: "a b",
        said: Said::ByTheShell,
    }
}

const fn wrapper(file: &'static str, reason: &'static str) -> Failure {
    Failure {
        file,
        arguments: "",
        said: Said::ByTheWrapper(reason),
    }
}

/// `ENAMETOOLONG`: a name may have 255 bytes.
const LONG_NAME: &str = concat!(
    "0123456789012345678901234567890123456789012345678901234567890123",
    "0123456789012345678901234567890123456789012345678901234567890123",
    "0123456789012345678901234567890123456789012345678901234567890123",
    "0123456789012345678901234567890123456789012345678901234567890123",
);

const FAILURES: &[Failure] = &[
    shell("missing"),
    shell("plain"),
    shell("directory"),
    shell("plain/below"),
    shell("directory/missing"),
    shell("loop"),
    shell("dangling"),
    shell(LONG_NAME),
    shell("no-interpreter"),
    shell("directory-as-interpreter"),
    shell("plain-as-interpreter"),
    shell("its-own-interpreter"),
    shell("text"),
    shell("empty"),
    shell("binary"),
    Failure {
        file: "good",
        // `E2BIG`: one argument may have 128 KiB.
        arguments: "\"$long\"",
        said: Said::ByTheShell,
    },
    wrapper("busy", "Text file busy"),
    wrapper("foreign", "cannot execute binary file: Exec format error"),
];

/// Each failure, with the program named by its absolute path, by a relative one and by a search, as a command
/// and as the last of a subshell.
fn attempts() -> Vec<(String, &'static Failure)> {
    let named = |failure: &'static Failure| {
        let Failure {
            file, arguments, ..
        } = failure;
        let (directory, name) = file.rsplit_once('/').unwrap_or(("", file));
        [
            format!("$PWD/{file} {arguments}"),
            format!("./{file} {arguments}"),
            format!("PATH=$PWD/{directory} {name} {arguments}"),
            format!("(exec ./{file} {arguments})"),
        ]
        .map(|command| (command, failure))
    };
    FAILURES.iter().flat_map(named).collect()
}

fn lay_out(command: &mut Command) {
    let work = command.get_current_dir().unwrap();
    std::fs::create_dir(work.join("directory")).unwrap();
    symlink("loop", work.join("loop")).unwrap();
    symlink("nowhere", work.join("dangling")).unwrap();
    std::fs::copy("/bin/true", work.join("busy")).unwrap();
    // A program for another kind of machine.
    let mut program = std::fs::read("/bin/true").unwrap();
    program[18..20].copy_from_slice(&FOREIGN_MACHINE.to_le_bytes());
    let foreign = work.join("foreign");
    std::fs::write(&foreign, program).unwrap();
    std::fs::set_permissions(&foreign, PermissionsExt::from_mode(0o755)).unwrap();
}

/// `EM_ALPHA`, a machine of which no kernel that this is built for knows.
const FOREIGN_MACHINE: u16 = 0x9026;

fn case(script_text: &str) -> Case<'_> {
    script(script_text)
        .started(&lay_out)
        .file("plain", "echo plain\n", 0o644)
        .file("no-interpreter", "#!/no/such/interpreter -x\n", 0o755)
        .file("directory-as-interpreter", "#!/etc\n", 0o755)
        .file("plain-as-interpreter", "#!./plain\n", 0o755)
        .file("its-own-interpreter", "#!./its-own-interpreter\n", 0o755)
        .file("text", "echo text \"$0\" \"$@\"; exit 3\n", 0o755)
        .file("empty", "", 0o755)
        .file("binary", b"\x7fELF\0\0\0\0\n".to_vec(), 0o755)
        .file("good", "#!/bin/sh\necho good $#\n", 0o755)
}

/// What became of each attempt: what was said, and the status.
fn outcomes(output: &str) -> Vec<String> {
    output
        .split("== ")
        .skip(1)
        .map(|part| part.split_once('\n').unwrap().1.to_owned())
        .collect()
}

#[tokio::test]
async fn the_message_and_status_of_each_failure_are_the_shells() {
    let attempts = attempts();
    let mut lines = String::from("exec 2>&1 9>>busy; long=$(printf %0200000d 0)\n");
    for (at, (command, _)) in attempts.iter().enumerate() {
        let _ = writeln!(lines, "echo '== {at}'\n{command}\necho \"status $?\"");
    }
    lines.push_str("cat /dev/null\n");
    let case = case(&lines);
    for shell in shells() {
        let place = Place::new();
        let native = outcomes(text(&case.native(shell, &place).await.stdout));
        assert_eq!(native.len(), attempts.len());
        for verdict in VERDICTS {
            let (gated, asked) = case.gated(shell, &place, verdict.clone()).await;
            assert!(asked > 0);
            let gated = outcomes(text(&gated.stdout));
            assert_eq!(gated.len(), attempts.len(), "{shell:?} under {verdict:?}");
            for ((command, failure), (native, gated)) in
                attempts.iter().zip(native.iter().zip(&gated))
            {
                let how = format!("{command} in {shell:?} under {verdict:?}");
                match failure.said {
                    Said::ByTheShell => assert_eq!(gated, native, "{how}"),
                    Said::ByTheWrapper(reason) => {
                        assert!(is_told_by_a_shell(shell, native, reason), "{how}: {native}");
                        let told = format!("{}: {reason}\nstatus 126\n", failure.file);
                        let (_, said) = gated.rsplit_once('/').unwrap();
                        assert_eq!(said, told, "{how}: {gated}");
                        assert_eq!(gated.lines().count(), 2, "{how}: {gated}");
                    }
                }
            }
        }
    }
}

/// Whether a shell said so natively: zsh has the words the other way round, and another status for some.
fn is_told_by_a_shell(shell: Shell, output: &str, reason: &str) -> bool {
    match shell {
        Shell::Bash => output.contains(reason) && output.ends_with("status 126\n"),
        Shell::Zsh => {
            let words = reason.rsplit(": ").next().unwrap_or(reason).to_lowercase();
            let status = if words == "text file busy" { 127 } else { 126 };
            output.contains(&words) && output.ends_with(&format!("status {status}\n"))
        }
    }
}

/// Root may enter every directory: what it may not is tried as another user.
fn as_another_user(command: &mut Command) {
    let work = command.get_current_dir().unwrap().to_owned();
    let open = |path: &Path, mode| {
        std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
    };
    open(work.parent().unwrap(), 0o755);
    open(&work, 0o755);
    std::fs::create_dir(work.join("closed")).unwrap();
    std::fs::copy("/bin/true", work.join("closed/true")).unwrap();
    std::fs::copy("/bin/true", work.join("unreadable")).unwrap();
    open(&work.join("closed"), 0);
    open(&work.join("unreadable"), 0o711);
    if std::fs::metadata("/proc/self").unwrap().uid() == 0 {
        command.uid(65534).gid(65534);
    }
}

#[tokio::test]
async fn a_closed_directory_is_no_place_to_execute_from() {
    script("./closed/true; echo $?; $PWD/closed/true; echo $?; PATH=$PWD/closed true-x; echo $?\n\
            PATH=$PWD/closed:/bin ls -d .; (exec ./closed/true); echo $?; ./closed; echo $?; ./unreadable; echo $?; cat /dev/null")
        .started(&as_another_user)
        .is_the_same()
        .await;
}
