//! Where the wrapper and the shells are: relative to the program itself.

use std::path::{Path, PathBuf};

use super::Failure;
use crate::wire::WRAPPER_VARIABLE;

/// Directory of the wrapper and the shells, from that of the programs.
const LIBEXEC: &str = "../libexec/execgate";

const WRAPPER: &str = "execgate-wrapper";

const HOW_TO_BUILD: &str = "`make build` in the source tree makes it, `make install` installs it";

/// The directory of the running program.
fn own_directory() -> Option<PathBuf> {
    let program = std::fs::canonicalize(std::env::current_exe().ok()?).ok()?;
    Some(program.parent()?.to_owned())
}

/// The directory of the wrapper and the shells, where this program is installed.
fn libexec() -> Option<PathBuf> {
    std::fs::canonicalize(own_directory()?.join(LIBEXEC)).ok()
}

/// The wrapper: in the directory of the shells, or beside the program in a development build.
pub(super) fn wrapper() -> Result<PathBuf, Failure> {
    let candidates = [libexec(), own_directory()];
    let found = candidates
        .into_iter()
        .flatten()
        .map(|directory| directory.join(WRAPPER))
        .find(|path| path.is_file());
    found.ok_or_else(|| {
        Failure::saying(format!(
            "{WRAPPER} is neither in {LIBEXEC} nor beside the program"
        ))
        .hint(HOW_TO_BUILD)
    })
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

/// Whether a shell knows of wrappers. An unpatched one would run everything, and nobody would ask. It
/// isn't a check of who made it: whoever names a shell is trusted.
fn is_patched(shell: &Path) -> std::io::Result<bool> {
    let bytes = std::fs::read(shell)?;
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
