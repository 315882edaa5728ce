//! A small disk of a test's own, for what happens when it is full. It takes privileges.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A file system in memory, until it is dropped.
pub(crate) struct Disk(PathBuf);

impl Disk {
    /// Mounts it on a directory, which it makes. `None`: this machine doesn't allow it.
    pub(crate) fn mount(at: PathBuf, options: &str) -> Option<Self> {
        std::fs::create_dir(&at).expect("a directory");
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", options, "none"])
            .arg(&at)
            .output()
            .expect("mount");
        mounted.status.success().then_some(Self(at))
    }

    fn filler(&self) -> PathBuf {
        self.0.join("filler")
    }

    /// Takes all the room that there is.
    pub(crate) fn fill(&self) {
        let mut filler = std::fs::File::create(self.filler()).expect("a file");
        for size in [1 << 20, 4 << 10] {
            let piece = vec![0; size];
            while filler.write_all(&piece).is_ok() {}
        }
    }

    pub(crate) fn make_room(&self) {
        std::fs::remove_file(self.filler()).expect("a file");
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}
