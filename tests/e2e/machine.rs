//! What this machine has of what the tests need.

use std::path::{Path, PathBuf};

/// A patched shell.
#[derive(Debug, Clone)]
pub(crate) struct Shell {
    pub(crate) path: PathBuf,
}

impl Shell {
    pub(crate) fn find(name: &str) -> Option<Self> {
        let path = repository().join("target/dist/libexec/execgate").join(name);
        available(path.is_file(), &format!("no patched {name}: `make shells`"))
            .then_some(Self { path })
    }
}

/// Makes tests of scenarios, in each shell: `NAME::bash` and `NAME::zsh`.
macro_rules! in_both_shells {
    ($($scenario:ident,)*) => {$(
        mod $scenario {
            #[test]
            fn bash() {
                crate::machine::in_shell("bash", super::$scenario);
            }

            #[test]
            fn zsh() {
                crate::machine::in_shell("zsh", super::$scenario);
            }
        }
    )*};
}
pub(crate) use in_both_shells;

pub(crate) fn in_shell(name: &str, scenario: fn(&Shell)) {
    if let Some(shell) = Shell::find(name) {
        scenario(&shell);
    }
}

/// Returns whether it is `there`. Where it isn't, says so loudly, and fails in CI.
pub(crate) fn available(there: bool, lacking: &str) -> bool {
    if !there {
        assert!(std::env::var_os("CI").is_none(), "{lacking}");
        eprintln!("\n*** SKIPPED, nothing was tested: {lacking}\n");
    }
    there
}

pub(crate) fn repository() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Command lines of all processes, arguments separated by NUL.
pub(crate) fn command_lines() -> Vec<Vec<u8>> {
    let entries = std::fs::read_dir("/proc").expect("/proc");
    let read = |entry: std::io::Result<std::fs::DirEntry>| {
        std::fs::read(entry.ok()?.path().join("cmdline")).ok()
    };
    entries.filter_map(read).collect()
}

/// Whether a process has `argument` among its arguments.
pub(crate) fn is_running(argument: &str) -> bool {
    let has = |line: &Vec<u8>| {
        line.split(|byte| *byte == 0)
            .any(|it| it == argument.as_bytes())
    };
    command_lines().iter().any(has)
}
