//! Keeps rules as their file is.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio::signal::unix::Signal;
use tokio::sync::watch;

use super::rules::{Rules, RulesError};

/// Between looks at the file.
const INTERVAL: Duration = Duration::from_secs(1);

/// What tells one state of a file from another without reading it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Stamp {
    device: u64,
    inode: u64,
    size: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

impl Stamp {
    fn of(path: &Path) -> Option<Self> {
        let metadata = std::fs::metadata(path).ok()?;
        Some(Self {
            device: metadata.dev(),
            inode: metadata.ino(),
            size: metadata.size(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
        })
    }
}

/// A rules file whose rules are in force.
#[derive(Debug)]
pub(super) struct RulesFile {
    path: PathBuf,
    // Taken before the file is read: what changes meanwhile shows at the next look.
    stamp: Option<Stamp>,
    in_force: watch::Sender<Arc<Rules>>,
}

impl RulesFile {
    pub(super) fn load(path: &Path) -> Result<Self, RulesError> {
        let stamp = Stamp::of(path);
        let rules = Rules::load(path)?;
        Ok(Self {
            path: path.to_owned(),
            stamp,
            in_force: watch::Sender::new(Arc::new(rules)),
        })
    }

    pub(super) fn in_force(&self) -> watch::Receiver<Arc<Rules>> {
        self.in_force.subscribe()
    }

    /// Loads the file again whenever it changes, and at each of the signals. Never returns.
    pub(super) async fn follow(mut self, mut hangups: Signal) {
        let mut look = tokio::time::interval(INTERVAL);
        look.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            let trigger = tokio::select! {
                _ = look.tick() => Trigger::Look,
                Some(()) = hangups.recv() => Trigger::Asked,
            };
            // Reading a file and evaluating it may take a while.
            let reloading = tokio::task::spawn_blocking(move || {
                self.reload(trigger);
                self
            });
            match reloading.await {
                Ok(file) => self = file,
                Err(error) => {
                    tracing::error!("reloading the rules failed: {error}; they stay as they are");
                    return std::future::pending().await;
                }
            }
        }
    }

    /// Loads the file again if there is cause to. A file that can't be used changes nothing.
    fn reload(&mut self, trigger: Trigger) {
        let stamp = Stamp::of(&self.path);
        if trigger == Trigger::Look && stamp == self.stamp {
            return;
        }
        self.stamp = stamp;
        let before = self.in_force.borrow().revision().to_owned();
        match Rules::load(&self.path) {
            Ok(rules) if rules.revision() == before => {
                tracing::info!(revision = before, "the rules file is as it was");
            }
            Ok(rules) => {
                tracing::info!(
                    revision = rules.revision(),
                    before,
                    prefix_rules = rules.prefix_rule_count(),
                    "new rules are in force"
                );
                self.in_force.send_replace(Arc::new(rules));
            }
            Err(error) => {
                tracing::error!(
                    "the rules file can't be used, so the last good rules (revision {before}) stay in \
                     force: {error}"
                );
            }
        }
    }
}

/// Why the file is looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Trigger {
    Look,
    Asked,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_broken_file_leaves_the_last_good_rules_in_force() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("x.rules");
        std::fs::write(&path, "prefix_rule([\"a\"])").expect("a file");
        let mut file = RulesFile::load(&path).expect("rules");
        let in_force = file.in_force();
        let revision = || in_force.borrow().revision().to_owned();
        let first = revision();

        std::fs::write(&path, "prefix_rule(").expect("a file");
        file.reload(Trigger::Look);
        assert_eq!(revision(), first);

        std::fs::remove_file(&path).expect("removed");
        file.reload(Trigger::Look);
        assert_eq!(revision(), first);

        std::fs::write(&path, "prefix_rule([\"b\"])").expect("a file");
        file.reload(Trigger::Look);
        let second = revision();
        assert_ne!(second, first);

        // Nothing changes without cause.
        file.reload(Trigger::Look);
        file.reload(Trigger::Asked);
        assert_eq!(revision(), second);
    }
}
