//! Where the wrapper and the shells are: relative to the program itself.

use std::io::Read;
use std::path::{Path, PathBuf};

use super::Failure;
use crate::wire::WRAPPER_VARIABLE;

/// Directory of the wrapper and the shells, from that of the programs; in the source tree, from that of a
/// development build.
const LIBEXEC: [&str; 2] = ["../libexec/execgate", "../dist/libexec/execgate"];

const WRAPPER: &str = "execgate-wrapper";

/// What the wrapper becomes where a command doesn't simply run, beside it.
const STAND_IN: &str = "execgate-stand-in";

const HOW_TO_BUILD: &str = "`make build` in the source tree makes it, `make install` installs it";

/// The directory of the running program.
fn own_directory() -> Option<PathBuf> {
    let program = std::fs::canonicalize(std::env::current_exe().ok()?).ok()?;
    Some(program.parent()?.to_owned())
}

/// The directory of the wrapper and the shells, where this program is installed.
fn libexec() -> Option<PathBuf> {
    let own = own_directory()?;
    LIBEXEC
        .iter()
        .find_map(|directory| std::fs::canonicalize(own.join(directory)).ok())
}

/// The wrapper, in the directory of the shells.
pub(super) fn wrapper() -> Result<PathBuf, Failure> {
    let found = libexec()
        .and_then(|directory| std::fs::canonicalize(directory.join(WRAPPER)).ok())
        .filter(|path| path.with_file_name(STAND_IN).is_file());
    found.ok_or_else(|| {
        let [installed, _] = LIBEXEC;
        Failure::saying(format!(
            "{WRAPPER}, with {STAND_IN} beside it, is not in {installed}, from the program's own directory"
        ))
        .hint(HOW_TO_BUILD)
    })
}

/// What starts commands in sandboxes of bubblewrap, beside the wrapper.
pub(super) fn stand_in() -> Result<PathBuf, Failure> {
    Ok(wrapper()?.with_file_name(STAND_IN))
}

/// The patched shell of this name, or at this path.
pub(super) fn shell(name: &Path) -> Result<PathBuf, Failure> {
    let found = if name.components().count() > 1 || name.is_absolute() {
        std::fs::canonicalize(name).ok()
    } else {
        libexec()
            .map(|directory| directory.join(name))
            .filter(|path| path.is_file())
    };
    let hint = format!("name one of bash and zsh, or the path of a patched shell; {HOW_TO_BUILD}");
    let Some(path) = found else {
        let message = format!("no patched shell {}", name.display());
        return Err(Failure::saying(message).hint(hint));
    };
    if !path.is_file() {
        let message = format!("{} isn't a regular file, and no shell", path.display());
        return Err(Failure::saying(message).hint(hint));
    }
    match is_patched(&path) {
        Ok(true) => Ok(path),
        Ok(false) => Err(Failure::saying(format!(
            "{} isn't a patched shell: its execs could not be gated",
            path.display()
        ))
        .hint(hint)),
        Err(error) => Err(Failure::saying(format!(
            "cannot read {}: {error}",
            path.display()
        ))),
    }
}

/// As much of a shell's file is looked at, in bytes. Shells have a few million.
const MOST_OF_A_SHELL: u64 = 64 << 20;

/// Whether a shell knows of wrappers. An unpatched one would run everything, and nobody would ask. It
/// isn't a check of who made it: whoever names a shell is trusted.
fn is_patched(shell: &Path) -> std::io::Result<bool> {
    let mut bytes = Vec::new();
    std::fs::File::open(shell)?
        .take(MOST_OF_A_SHELL)
        .read_to_end(&mut bytes)?;
    let variable = WRAPPER_VARIABLE.as_bytes();
    Ok(bytes
        .windows(variable.len())
        .any(|window| window == variable))
}

/// A program of this name in `PATH`.
pub(super) fn find_in_path(name: &str) -> Option<PathBuf> {
    std::env::split_paths(&std::env::var_os("PATH")?)
        .filter(|directory| directory.is_absolute())
        .map(|directory| directory.join(name))
        .find(|path| path.is_file())
}
