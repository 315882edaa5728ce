//! Keeps rules, certificates and tokens as their files are.

use std::marker::PhantomData;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio::signal::unix::Signal;
use tokio::sync::watch;

use super::rules::{self, RuleMode, Rules, RulesError};
use super::tls::{Tls, TlsFiles};
use super::tokens::{Holder, Tokens};
use crate::transport::CredentialError;

/// Between looks at the files.
const INTERVAL: Duration = Duration::from_secs(1);

/// How long a file of tokens must have been without any to be taken at its word: whoever writes one in its place,
/// as a shell's `>` does, empties it first.
const SETTLING: Duration = Duration::from_millis(250);

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

/// Something that is read from files, and read again when they change.
pub(super) trait Source: Send + 'static {
    /// What is read.
    type Value: Send + Sync + 'static;
    /// Why it can't be.
    type Error: std::fmt::Display;
    /// What it is called in the log; a plural.
    const NAME: &'static str;

    /// The files.
    fn files(&self) -> Vec<PathBuf>;
    /// Reads them.
    fn load(&self) -> Result<Self::Value, Self::Error>;
    /// What tells one value from another, for the log; equal for values that are.
    fn describe(value: &Self::Value) -> String;
}

/// What was read last, and could be used, is in force.
#[derive(Debug)]
pub(super) struct Followed<S: Source> {
    source: S,
    // Taken before the files are read: what changes meanwhile shows at the next look.
    stamps: Vec<Option<Stamp>>,
    in_force: watch::Sender<Arc<S::Value>>,
    /// Why what the files hold now isn't in force; `None`: it is.
    fault: watch::Sender<Option<String>>,
}

impl<S: Source> Followed<S> {
    pub(super) fn load(source: S) -> Result<Self, S::Error> {
        let stamps = stamps(&source);
        let value = source.load()?;
        Ok(Self {
            source,
            stamps,
            in_force: watch::Sender::new(Arc::new(value)),
            fault: watch::Sender::default(),
        })
    }

    pub(super) fn in_force(&self) -> watch::Receiver<Arc<S::Value>> {
        self.in_force.subscribe()
    }

    /// Tells why what the files hold now isn't in force, if it isn't.
    pub(super) fn fault(&self) -> watch::Receiver<Option<String>> {
        self.fault.subscribe()
    }

    /// Reads the files again whenever one changes, and at each of the signals. Never returns.
    pub(super) async fn follow(mut self, mut hangups: Signal) {
        let mut look = tokio::time::interval(INTERVAL);
        look.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            let trigger = tokio::select! {
                _ = look.tick() => Trigger::Look,
                Some(()) = hangups.recv() => Trigger::Asked,
            };
            // Reading files and making sense of them may take a while.
            let reloading = tokio::task::spawn_blocking(move || {
                self.reload(trigger);
                self
            });
            match reloading.await {
                Ok(followed) => self = followed,
                Err(error) => {
                    tracing::error!(
                        "reloading the {} failed: {error}; they stay as they are",
                        S::NAME
                    );
                    return std::future::pending().await;
                }
            }
        }
    }

    /// Reads the files again if there is cause to. What can't be used changes nothing.
    fn reload(&mut self, trigger: Trigger) {
        let stamps = stamps(&self.source);
        if trigger == Trigger::Look && stamps == self.stamps {
            return;
        }
        self.stamps = stamps;
        let (name, before) = (S::NAME, S::describe(&self.in_force.borrow()));
        match self.source.load() {
            Ok(value) => {
                self.fault.send_replace(None);
                let now = S::describe(&value);
                if now == before {
                    tracing::info!("the {name} are as they were: {now}");
                } else {
                    self.in_force.send_replace(Arc::new(value));
                    tracing::info!("new {name} are in force: {now}; before: {before}");
                }
            }
            Err(error) => {
                self.fault.send_replace(Some(error.to_string()));
                tracing::error!(
                    "the new {name} can't be used, so the last good {name} ({before}) stay in force: \
                     {error}"
                );
            }
        }
    }
}

fn stamps<S: Source>(source: &S) -> Vec<Option<Stamp>> {
    source.files().iter().map(|path| Stamp::of(path)).collect()
}

/// Why the files are looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Trigger {
    Look,
    Asked,
}

/// Files of rules, and directories of such.
#[derive(Debug)]
pub(super) struct RulesFiles {
    pub(super) paths: Vec<PathBuf>,
    pub(super) mode: RuleMode,
    pub(super) asked: Asked,
}

/// Who answers where rules have a person asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Asked {
    Operators,
    Nobody,
}

impl Source for RulesFiles {
    type Value = Rules;
    type Error = RulesError;
    const NAME: &'static str = "rules";

    /// Also directories: one changes when a file is added to it or removed.
    fn files(&self) -> Vec<PathBuf> {
        let found = rules::files(&self.paths).unwrap_or_default();
        self.paths.iter().cloned().chain(found).collect()
    }

    fn load(&self) -> Result<Rules, RulesError> {
        let rules = Rules::load_all(&self.paths)?.in_mode(self.mode);
        if self.asked == Asked::Nobody
            && let Some(place) = rules.first_that_asks()
        {
            tracing::warn!(
                "the rules ask a person ({place}), and nobody can be asked, so that what they ask about is denied; name \
                 who may answer by --operators"
            );
        }
        Ok(rules)
    }

    fn describe(rules: &Rules) -> String {
        format!(
            "revision {}, {} prefix rules{}",
            rules.revision(),
            rules.prefix_rule_count(),
            match rules.mode() {
                RuleMode::Enforce => "",
                RuleMode::Monitor => ", monitored only",
            }
        )
    }
}

/// A file of tokens.
#[derive(Debug)]
pub(super) struct TokensFile<H> {
    path: PathBuf,
    holder: PhantomData<fn() -> H>,
}

impl<H> TokensFile<H> {
    pub(super) fn new(path: PathBuf) -> Self {
        Self {
            path,
            holder: PhantomData,
        }
    }
}

impl<H: Holder> Source for TokensFile<H> {
    type Value = Tokens<H>;
    type Error = CredentialError;
    const NAME: &'static str = H::NAME;

    fn files(&self) -> Vec<PathBuf> {
        vec![self.path.clone()]
    }

    fn load(&self) -> Result<Tokens<H>, CredentialError> {
        let mut tokens = Tokens::load(&self.path)?;
        if tokens.is_empty() {
            std::thread::sleep(SETTLING);
            tokens = Tokens::load(&self.path)?;
        }
        if tokens.is_empty() {
            tracing::warn!(
                "{} holds no {}, so nobody is let in by one; `execgate token NAME` makes one, and its line",
                self.path.display(),
                H::NAME
            );
        }
        Ok(tokens)
    }

    fn describe(tokens: &Tokens<H>) -> String {
        format!("{} tokens, {}", tokens.len(), tokens.revision())
    }
}

impl Source for TlsFiles {
    type Value = Tls;
    type Error = CredentialError;
    const NAME: &'static str = "certificates";

    fn files(&self) -> Vec<PathBuf> {
        let files = [&self.certificate, &self.key];
        files.into_iter().chain(&self.client_ca).cloned().collect()
    }

    fn load(&self) -> Result<Tls, CredentialError> {
        TlsFiles::load(self)
    }

    fn describe(tls: &Tls) -> String {
        tls.revision.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_broken_file_leaves_the_last_good_rules_in_force() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("x.rules");
        std::fs::write(&path, "prefix_rule([\"a\"])").expect("a file");
        let source = RulesFiles {
            paths: vec![path.clone()],
            mode: RuleMode::Enforce,
            asked: Asked::Operators,
        };
        let mut file = Followed::load(source).expect("rules");
        let in_force = file.in_force();
        let revision = || in_force.borrow().revision().to_owned();
        let first = revision();

        std::fs::write(&path, "prefix_rule(").expect("a file");
        file.reload(Trigger::Look);
        assert_eq!(revision(), first);
        let fault = file.fault();
        let said = fault.borrow().clone().expect("a fault");
        assert!(said.contains("x.rules:1"), "{said}");

        std::fs::remove_file(&path).expect("removed");
        file.reload(Trigger::Look);
        assert_eq!(revision(), first);

        std::fs::write(&path, "prefix_rule([\"b\"])").expect("a file");
        file.reload(Trigger::Look);
        let second = revision();
        assert_ne!(second, first);
        assert_eq!(*fault.borrow(), None);

        // Nothing changes without cause.
        file.reload(Trigger::Look);
        file.reload(Trigger::Asked);
        assert_eq!(revision(), second);
    }
}
