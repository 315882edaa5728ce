//! What can't be executed: the status and the message are the shell's own, for every kind of failure, however
//! the program is named.

use std::ffi::OsStr;
use std::fmt::Write as _;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;

use execgate::model::EscalationDecision;

use crate::harness::{Case, Place, Shell, VERDICTS, script, shells, wait_with_policy};
use crate::support::Scripted;

struct Failure {
    /// Which file in the working directory.
    file: &'static str,
    arguments: &'static str,
}

const fn failure(file: &'static str) -> Failure {
    Failure {
        file,
        arguments: "a b",
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
    failure("missing"),
    failure("plain"),
    failure("directory"),
    failure("plain/below"),
    failure("directory/missing"),
    failure("loop"),
    failure("dangling"),
    failure(LONG_NAME),
    failure("no-interpreter"),
    failure("directory-as-interpreter"),
    failure("plain-as-interpreter"),
    failure("its-own-interpreter"),
    failure("text"),
    failure("empty"),
    failure("binary"),
    Failure {
        file: "good",
        // `E2BIG`: one argument may have 128 KiB.
        arguments: "\"$long\"",
    },
    // From here on: what the shell doesn't see before it executes.
    failure("busy"),
    failure("foreign"),
    failure("busy-interpreter"),
    failure("foreign-interpreter"),
    failure("windows"),
    failure("windows-line"),
    failure("windows-script"),
    failure("archive"),
    failure("$'busy\\x1b[1m\\n\\tit'"),
    failure("$'busy\\x1fit'"),
    failure("$'busy-\\xff\\xc3\\xa9'"),
    failure("$'no\\x1b[1m\\x7f\\n\\tinterpreter'"),
];

/// Each failure, with the program named by its absolute path, by a relative one and by a search, as a command
/// and as the last of a subshell.
fn attempts(failure: &Failure) -> Vec<String> {
    let Failure { file, arguments } = failure;
    let (directory, name) = file.rsplit_once('/').unwrap_or(("", file));
    vec![
        format!("\"$PWD\"/{file} {arguments}"),
        format!("./{file} {arguments}"),
        format!("PATH=$PWD/{directory} {name} {arguments}"),
        format!("(exec ./{file} {arguments})"),
    ]
}

fn lay_out(command: &mut Command) {
    let work = command.get_current_dir().unwrap();
    std::fs::create_dir(work.join("directory")).unwrap();
    symlink("loop", work.join("loop")).unwrap();
    symlink("nowhere", work.join("dangling")).unwrap();
    let busy = work.join("busy");
    std::fs::copy("/bin/true", &busy).unwrap();
    for name in OTHER_NAMES {
        std::fs::hard_link(&busy, work.join(OsStr::from_bytes(name))).unwrap();
    }
    // A program for another kind of machine.
    let mut program = std::fs::read("/bin/true").unwrap();
    program[18..20].copy_from_slice(&FOREIGN_MACHINE.to_le_bytes());
    let foreign = work.join("foreign");
    std::fs::write(&foreign, program).unwrap();
    std::fs::set_permissions(&foreign, PermissionsExt::from_mode(0o755)).unwrap();
}

/// Of the busy file, as they come out in a message.
const OTHER_NAMES: [&[u8]; 3] = [b"busy\x1b[1m\n\tit", b"busy\x1fit", b"busy-\xff\xc3\xa9"];

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
        // A line ends at a newline, and a name at a space or tab.
        .file(
            "no\x1b[1m\x7f\n\tinterpreter",
            "#!./no\x1b[1m\x01\x7f-such\n",
            0o755,
        )
        .file("busy-interpreter", "#!./busy -x\n", 0o755)
        .file(
            "foreign-interpreter",
            "#!./foreign\necho read \"$0\" $#; exit 4\n",
            0o755,
        )
        // What a handler of the kernel's could be registered for: where that can't be seen, it is tried.
        .file("windows", b"MZ\x90\0\n".to_vec(), 0o755)
        .file("windows-line", b"MZ=1\n\0\nexit 5\n".to_vec(), 0o755)
        .file(
            "windows-script",
            b"MZ=1\necho read \"$0\" $#; exit 6\n\0".to_vec(),
            0o755,
        )
        .file("archive", b"PK\x03\x04\n\0".to_vec(), 0o755)
        .file("good", "#!/bin/sh\necho good $#\n", 0o755)
}

/// What became of each attempt: what was said, and the status.
fn outcomes(output: &[u8]) -> Vec<String> {
    // A character for each byte: a name need not be text.
    let output: String = output.iter().copied().map(char::from).collect();
    output
        .split("== ")
        .skip(1)
        .map(|part| part.split_once('\n').unwrap().1.to_owned())
        .collect()
}

/// A script that makes each attempt, in one shell.
fn script_of(attempts: &[String]) -> String {
    let mut lines = String::from("exec 2>&1 9>>busy; long=$(printf %0200000d 0)\n");
    for (at, command) in attempts.iter().enumerate() {
        let _ = writeln!(lines, "echo '== {at}'\n{command}\necho \"status $?\"");
    }
    lines.push_str("cat /dev/null\n");
    lines
}

async fn outcomes_are_the_same(
    case: &Case<'_>,
    shell: Shell,
    verdicts: &[EscalationDecision],
    attempts: &[String],
) {
    let place = Place::new();
    let native = outcomes(&case.native(shell, &place).await.stdout);
    assert_eq!(native.len(), attempts.len());
    for verdict in verdicts {
        let (gated, asked) = case.gated(shell, &place, verdict.clone()).await;
        assert!(asked > 0);
        let gated = outcomes(&gated.stdout);
        assert_eq!(gated.len(), attempts.len(), "{shell:?} under {verdict:?}");
        for (command, (native, gated)) in attempts.iter().zip(native.iter().zip(&gated)) {
            assert_eq!(gated, native, "{command} in {shell:?} under {verdict:?}");
        }
    }
}

#[tokio::test]
async fn the_message_and_status_of_each_failure_are_the_shells() {
    let attempts: Vec<_> = FAILURES.iter().flat_map(attempts).collect();
    let lines = script_of(&attempts);
    for shell in shells() {
        outcomes_are_the_same(&case(&lines), shell, &VERDICTS, &attempts).await;
    }
}

/// The preloaded library that has executing fail, compiled once.
fn refusing() -> &'static Path {
    static LIBRARY: LazyLock<PathBuf> = LazyLock::new(|| {
        let library = Path::new(env!("CARGO_TARGET_TMPDIR")).join("refuse.so");
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/transparency/refuse.c");
        let status = Command::new("cc")
            .args([
                "-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-o",
            ])
            .args([&library, &source])
            .arg("-ldl")
            .status()
            .expect("a C compiler");
        assert!(status.success());
        library
    });
    &LIBRARY
}

/// Whatever `execve(2)` can fail with. A refusal by a security module is `EACCES` or `EPERM`.
const ERRORS: [i32; 18] = [
    libc::EPERM,
    libc::ENOENT,
    libc::EIO,
    libc::E2BIG,
    libc::ENOEXEC,
    libc::EAGAIN,
    libc::ENOMEM,
    libc::EACCES,
    libc::EFAULT,
    libc::ENOTDIR,
    libc::EISDIR,
    libc::EINVAL,
    libc::ENFILE,
    libc::EMFILE,
    libc::ETXTBSY,
    libc::ENAMETOOLONG,
    libc::ELOOP,
    libc::ELIBBAD,
];

#[tokio::test]
async fn whatever_executing_fails_with_is_told_as_by_the_shell() {
    let prepare = |command: &mut Command| {
        let work = command.get_current_dir().unwrap();
        std::fs::copy("/bin/true", work.join("refused")).unwrap();
        command.env("LD_PRELOAD", refusing());
    };
    for shell in shells() {
        let refused = |errno: &i32| {
            let names: &[_] = match (*errno, shell) {
                // zsh executes the interpreter itself then. No kernel that refuses the script takes it.
                (libc::ENOEXEC, Shell::Zsh) => &["refused"],
                _ => &["refused", "refused-script"],
            };
            let attempt = |name: &&'static str| attempts(&failure(name));
            let attempts: Vec<_> = names.iter().flat_map(attempt).collect();
            let errno = *errno;
            attempts
                .into_iter()
                // Nothing can be preloaded into the wrapper that is installed.
                .map(move |command| {
                    let wrapper = env!("CARGO_BIN_EXE_execgate-wrapper");
                    format!(
                        "export REFUSE_WITH={errno}; EXEC_WRAPPER=${{EXEC_WRAPPER:+{wrapper}}}; {command}"
                    )
                })
        };
        let attempts: Vec<_> = ERRORS.iter().flat_map(refused).collect();
        let lines = script_of(&attempts);
        let case = script(&lines).started(&prepare).file(
            "refused-script",
            "#!/bin/sh -e\necho script \"$0\" $#\nexit 7\n",
            0o755,
        );
        // What is escalated is executed by the gate, which isn't preloaded.
        outcomes_are_the_same(&case, shell, &[EscalationDecision::Run], &attempts).await;
    }
}

/// A program that is busy, where messages begin in another way each time.
#[tokio::test]
async fn a_message_begins_as_the_shells_own() {
    let source = "\n\n./busy from a file\nf() {\n  ./busy in a function\n}\n";
    let lines = "exec 2>&1 9>>busy\n\
        ./busy; echo $?\n\
        . ./source.sh; f; echo $?\n\
        $SELF ./source.sh; echo $?\n\
        $SELF <source.sh; echo $?\n\
        $SELF -c './busy' $'name\\e[1m of\\nmine'; echo $?\n\
        eval $'\\n\\n./busy'; echo $?\n\
        (exec -a other ./busy); echo $?\n\
        (exec -l ./busy); echo $?\n\
        (exec -c ./busy); echo $?\n\
        ARGV0=other ./busy; echo $?\n\
        command ./busy; echo $?\n\
        ./busy | cat; echo $(./busy) $?\n\
        ./busy & wait $!; echo $?\n\
        cat <(./busy)\n\
        (set -e; ./busy; echo not here); echo $?\n\
        trap 'echo bye' EXIT; ./busy\n";
    script(lines)
        .started(&|command| {
            let work = command.get_current_dir().unwrap();
            std::fs::copy("/bin/true", work.join("busy")).unwrap();
        })
        .file("source.sh", source, 0o644)
        .is_the_same()
        .await;
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
    std::fs::write(work.join("unreadable-text"), "echo text\n").unwrap();
    open(&work.join("unreadable-text"), 0o711);
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

/// Under a gate that may read it, it is a script like any other if it is escalated.
#[tokio::test]
async fn a_script_that_cannot_be_read_is_none() {
    let lines = "./unreadable-text; echo $?; (exec ./unreadable-text a); echo $?\n\
                 PATH=$PWD unreadable-text b; echo $?; cat /dev/null";
    let case = script(lines).started(&as_another_user);
    for shell in shells() {
        let place = Place::new();
        let native = case.native(shell, &place).await;
        let (gated, _) = case.gated(shell, &place, EscalationDecision::Run).await;
        assert_eq!(gated, native, "{shell:?}");
    }
}

/// Becomes something else.
type Change = fn(&Path);

/// What a program can have become between the verdict and its execution.
const CHANGES: [Change; 7] = [
    |file| std::fs::remove_file(file).unwrap(),
    |file| std::fs::set_permissions(file, PermissionsExt::from_mode(0o644)).unwrap(),
    |file| {
        std::fs::remove_file(file).unwrap();
        std::fs::create_dir(file).unwrap();
    },
    |file| std::fs::write(file, "#!/no/such/interpreter -x\n").unwrap(),
    |file| std::fs::write(file, "echo text \"$0\" \"$@\"; exit 3\n").unwrap(),
    |file| std::fs::write(file, "").unwrap(),
    |file| std::fs::write(file, b"\x7fELF\0\0\0\0\n").unwrap(),
];

/// What is escalated isn't executed where it has become something else.
#[tokio::test]
async fn what_a_program_becomes_after_its_verdict_is_told_as_if_it_had_been() {
    for shell in shells() {
        for (at, change) in CHANGES.into_iter().enumerate() {
            // bash looks before it executes: what it finds by a search is there, or it isn't found at all.
            let commands: &[_] = match shell {
                Shell::Bash => &["./changing a"],
                Shell::Zsh => &["./changing a", "PATH=$PWD changing a"],
            };
            for command in commands {
                let place = Place::new();
                let file = place.work().join("changing");
                let lay_out = || {
                    let _ = std::fs::remove_dir(&file);
                    std::fs::copy("/bin/true", &file).unwrap();
                };
                let lines = format!("{command}; echo \"status $?\"");

                lay_out();
                change(&file);
                let before = script(&lines).left_as_it_is(shell, &place).await;

                lay_out();
                let changing = file.clone();
                let policy = Scripted::new(move |exec| {
                    if exec.file.ends_with("changing") {
                        change(&changing);
                    }
                    Some(EscalationDecision::Run)
                });
                let after = wait_with_policy(&lines, shell, &place, policy).await;
                assert_eq!(after, before, "{at}: {command} in {shell:?}");
            }
        }
    }
}
