//! Room for a few more open files than a command's own limit allows.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// More than a wrapper ever opens, beside what its command has open.
const ENOUGH: u64 = 256;

/// A limit on open files that makes room for a few more, while it is there.
#[derive(Debug)]
pub struct RaisedOpenFiles(Rlimit);

impl RaisedOpenFiles {
    /// Raises the limit as far as this process may, if that is any further.
    #[must_use]
    pub fn new() -> Self {
        let before = getrlimit(Resource::Nofile);
        // None is no limit at all.
        let wanted = before.maximum.map(|hard| hard.max(ENOUGH));
        // Above the hard limit it takes a privilege.
        for hard in [wanted, before.maximum] {
            let raised = Rlimit {
                current: hard,
                maximum: hard,
            };
            if setrlimit(Resource::Nofile, raised).is_ok() {
                break;
            }
        }
        Self(before)
    }
}

impl Default for RaisedOpenFiles {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for RaisedOpenFiles {
    fn drop(&mut self) {
        // Lowering is always allowed.
        let _ = setrlimit(Resource::Nofile, self.0);
    }
}
