use std::ffi::{CStr, CString, c_int};
use std::io;

use crate::sys::entry::Invocation;
use crate::sys::exec;
use crate::wire::{Contents, Refusal};
use crate::wrapper::SEPARATOR;

/// The most bytes that a shell says of itself (`EW_MAX_FIELDS`).
const MOST_BYTES: usize = 8192;

/// The shell that started this wrapper, as far as it says how it tells that a command can't be executed.
///
/// It does so in argument zero, behind the wrapper's own path or what stands there: `bash`, or `bash exec` for the builtin, the name
/// that begins its messages, what it adds of the line, the program to read a script with and argument zero for
/// that; or `zsh`, what begins its messages, and the command as it was typed. [`SEPARATOR`] is before each. A
/// shell that says nothing of the kind has the wrapper's path alone there, or whatever it likes.
pub(super) enum Asker {
    Bash(Bash),
    Zsh {
        before: &'static [u8],
        command: &'static [u8],
    },
}

pub(super) struct Bash {
    executed: Executed,
    name: &'static [u8],
    line: &'static [u8],
    reader: Reader,
}

/// What a bash executes something for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Executed {
    AsCommand,
    /// The builtin `exec`, which repeats the error.
    ByBuiltin,
    /// The same where it counts `SHLVL` again before that, which leaves it no error to repeat.
    ByBuiltinInLevel,
}

/// Who reads a script that the kernel has no format for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Reader {
    pub(super) program: CString,
    pub(super) name: CString,
}

/// What becomes of a command that couldn't be executed.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// The shell's message, which may be empty, and its status.
    Failed(Vec<u8>, c_int),
    /// It is a script for this program.
    Script(Reader),
}

impl Asker {
    /// Reads argument zero.
    pub(super) fn of(invocation: Invocation) -> Option<Self> {
        let bytes = invocation.arguments().iter().next()?.to_bytes();
        // Before that is the errand.
        let begin = bytes.iter().position(|byte| *byte == SEPARATOR)?;
        let said = &bytes[begin + 1..];
        if said.len() >= MOST_BYTES {
            return None;
        }
        let fields: Vec<_> = said.split(|byte| *byte == SEPARATOR).collect();
        let asker = match fields[..] {
            [kind @ (b"bash" | b"bash exec"), name, line, program, reader] => Self::Bash(Bash {
                executed: match kind {
                    b"bash" => Executed::AsCommand,
                    _ if invocation.environment().iter().any(has_level) => {
                        Executed::ByBuiltinInLevel
                    }
                    _ => Executed::ByBuiltin,
                },
                name,
                line,
                reader: Reader {
                    program: CString::new(program).ok()?,
                    name: CString::new(reader).ok()?,
                },
            }),
            [b"zsh", before, command] => Self::Zsh { before, command },
            _ => return None,
        };
        Some(asker)
    }

    /// What the shell does where executing `file` fails so.
    pub(super) fn outcome(&self, file: &CStr, refusal: &Refusal) -> Outcome {
        let outcome = match self {
            Self::Bash(bash) => bash.outcome(file, refusal),
            Self::Zsh { before, command } => zsh(before, command, file, refusal),
        };
        match outcome {
            // It can't be executed itself.
            Outcome::Script(reader) if *reader.program == *file => {
                let binary = Refusal {
                    contents: Contents::Binary,
                    ..refusal.clone()
                };
                self.outcome(file, &binary)
            }
            outcome => outcome,
        }
    }
}

impl Bash {
    /// `shell_execve()` in bash's `execute_cmd.c`, and what `exec_builtin()` says behind it.
    fn outcome(&self, file: &CStr, refusal: &Refusal) -> Outcome {
        let words = words(refusal.errno);
        let file = file.to_bytes();
        let mut said = match (refusal.errno, &refusal.interpreter) {
            (libc::ENOEXEC, _) => match refusal.contents {
                Contents::Empty => Vec::new(),
                Contents::Binary => {
                    self.message(&[file, b": cannot execute binary file: ", words.as_bytes()])
                }
                Contents::Text | Contents::FirstLine | Contents::Unreadable => {
                    return Outcome::Script(self.reader.clone());
                }
            },
            _ if refusal.is_directory => self.message(&[file, b": Is a directory"]),
            (libc::ENOENT, _) if refusal.is_executable => {
                self.message(&[file, b": cannot execute: required file not found"])
            }
            (errno, Some(interpreter))
                if refusal.is_executable && !matches!(errno, libc::E2BIG | libc::ENOMEM) =>
            {
                // The one without the line.
                let words = words.as_bytes();
                [
                    self.name,
                    b": ",
                    file,
                    b": ",
                    interpreter,
                    b": bad interpreter: ",
                    words,
                    b"\n",
                ]
                .concat()
            }
            _ => self.message(&[file, b": ", words.as_bytes()]),
        };
        let status = match (refusal.errno, refusal.contents) {
            (libc::ENOENT, _) => 127,
            (libc::ENOEXEC, Contents::Empty) => 0,
            _ => 126,
        };
        if status != 127 && refusal.is_executable {
            match self.executed {
                Executed::AsCommand => {}
                Executed::ByBuiltin => said.extend(self.message(&[file, b": ", words.as_bytes()])),
                Executed::ByBuiltinInLevel => said.extend(self.message(&[file, b": Success"])),
            }
        }
        Outcome::Failed(said, status)
    }

    fn message(&self, words: &[&[u8]]) -> Vec<u8> {
        let colon: &[u8] = if self.line.is_empty() { b"" } else { b":" };
        let before = [self.name, colon, self.line, b": "];
        [&before[..], words, &[b"\n"]].concat().concat()
    }
}

/// `zexecve()` and `execute()` in zsh's `exec.c`.
fn zsh(before: &[u8], command: &[u8], file: &CStr, refusal: &Refusal) -> Outcome {
    let mut errno = refusal.errno;
    let mut said = before.to_vec();
    match (errno, refusal.contents, &refusal.interpreter) {
        (libc::ENOEXEC, Contents::Unreadable, _) => errno = libc::EACCES,
        (libc::ENOEXEC, Contents::Empty | Contents::Text, None) => {
            return Outcome::Script(Reader {
                program: c"/bin/sh".to_owned(),
                name: c"sh".to_owned(),
            });
        }
        _ => {}
    }
    let mut words = words(errno);
    if errno != libc::EIO
        && let Some(first) = words.get_mut(..1)
    {
        first.make_ascii_lowercase();
    }
    let searched = !command.contains(&b'/');
    match (errno, &refusal.interpreter) {
        (libc::ENOENT, Some(interpreter)) => {
            said.extend(visible(file.to_bytes()));
            said.extend(b": bad interpreter: ");
            said.extend(visible(interpreter));
            said.extend([b": ", words.as_bytes()].concat());
        }
        (libc::ENOENT | libc::ENOTDIR, _) if searched => {
            said.extend([b"command not found: ", command].concat());
        }
        _ => said.extend([words.as_bytes(), b": ", command].concat()),
    }
    said.push(b'\n');
    let status = match errno {
        libc::EACCES | libc::ENOEXEC => 126,
        _ => 127,
    };
    Outcome::Failed(said, status)
}

/// Control characters as zsh shows them.
fn visible(bytes: &[u8]) -> Vec<u8> {
    let show = |byte: &u8| match *byte {
        b'\n' => b"\\n".to_vec(),
        b'\t' => b"\\t".to_vec(),
        control @ (..0x20 | 0x7f) => vec![b'^', control ^ 0x40],
        other => vec![other],
    };
    bytes.iter().flat_map(show).collect()
}

/// Whether an entry of the environment says how many shells are one in the other.
fn has_level(entry: &CStr) -> bool {
    let value = entry.to_bytes().strip_prefix(b"SHLVL=");
    value.is_some_and(|level| !level.is_empty())
}

fn words(errno: c_int) -> String {
    exec::message(&io::Error::from_raw_os_error(errno))
}
