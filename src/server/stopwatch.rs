use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

/// A clock for the run time of a session, with an optional limit, that can be paused.
///
/// Pauses are counted: it runs again when the last of several overlapping pauses ends. Clones are
/// the same clock.
#[derive(Debug, Clone)]
pub struct Stopwatch {
    limit: Option<Duration>,
    state: Arc<Mutex<State>>,
    /// Tells waiters that a pause began or the last one ended.
    changed: watch::Sender<()>,
}

#[derive(Debug)]
struct State {
    /// Run time up to the last pause.
    elapsed: Duration,
    /// When it began to run; `None` while paused.
    running_since: Option<Instant>,
    pauses: usize,
}

impl State {
    fn elapsed(&self, now: Instant) -> Duration {
        self.elapsed
            + self
                .running_since
                .map_or(Duration::ZERO, |since| now.saturating_duration_since(since))
    }
}

impl Stopwatch {
    /// A clock that runs from now on and, if `limit` is given, [expires](Self::expired).
    #[must_use]
    pub fn new(limit: Option<Duration>) -> Self {
        Self {
            limit,
            state: Arc::new(Mutex::new(State {
                elapsed: Duration::ZERO,
                running_since: Some(Instant::now()),
                pauses: 0,
            })),
            changed: watch::Sender::new(()),
        }
    }

    /// Run time so far, without pauses.
    #[must_use]
    pub fn elapsed(&self) -> Duration {
        self.lock().elapsed(Instant::now())
    }

    /// Stops the clock until the returned value is dropped.
    #[must_use = "the clock runs again as soon as the pause is dropped"]
    pub fn pause(&self) -> Pause {
        {
            let mut state = self.lock();
            state.pauses += 1;
            if state.pauses == 1 {
                state.elapsed = state.elapsed(Instant::now());
                state.running_since = None;
            }
        }
        self.changed.send_replace(());
        Pause {
            stopwatch: self.clone(),
        }
    }

    /// Completes when the run time has reached the limit; never without a limit.
    pub async fn expired(&self) {
        let Some(limit) = self.limit else {
            return std::future::pending().await;
        };
        let mut changed = self.changed.subscribe();
        loop {
            let (elapsed, running) = {
                let state = self.lock();
                (state.elapsed(Instant::now()), state.running_since.is_some())
            };
            if elapsed >= limit {
                return;
            }
            // The sender lives in `self`, so a change can't fail to come.
            if running {
                let left = tokio::time::sleep(limit.saturating_sub(elapsed));
                tokio::select! {
                    () = left => {}
                    _ = changed.changed() => {}
                }
            } else {
                let _ = changed.changed().await;
            }
        }
    }

    fn resume(&self) {
        {
            let mut state = self.lock();
            state.pauses -= 1;
            if state.pauses == 0 {
                state.running_since = Some(Instant::now());
            }
        }
        self.changed.send_replace(());
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        // The state is whole between any two statements, so a panic elsewhere can't spoil it.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A pause of a [`Stopwatch`]; ends when dropped.
#[derive(Debug)]
pub struct Pause {
    stopwatch: Stopwatch,
}

impl Drop for Pause {
    fn drop(&mut self) {
        self.stopwatch.resume();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[tokio::test(start_paused = true)]
    async fn expires_at_its_limit() {
        let stopwatch = Stopwatch::new(Some(5 * SECOND));
        let begin = Instant::now();
        stopwatch.expired().await;
        assert_eq!(begin.elapsed().as_secs(), 5);
    }

    #[tokio::test(start_paused = true)]
    async fn overlapping_pauses_stand_still_until_the_last_ends() {
        let stopwatch = Stopwatch::new(Some(5 * SECOND));
        let begin = Instant::now();
        let waiter = tokio::spawn({
            let stopwatch = stopwatch.clone();
            async move { stopwatch.expired().await }
        });
        tokio::time::sleep(SECOND).await;
        let first = stopwatch.pause();
        tokio::time::sleep(10 * SECOND).await;
        let second = stopwatch.pause();
        drop(first);
        tokio::time::sleep(10 * SECOND).await;
        assert_eq!(stopwatch.elapsed().as_secs(), 1);
        drop(second);
        waiter.await.expect("the waiter ends");
        assert_eq!(begin.elapsed().as_secs(), 25);
    }

    #[tokio::test(start_paused = true)]
    async fn without_a_limit_it_never_expires() {
        let stopwatch = Stopwatch::new(None);
        let expired = tokio::time::timeout(1000 * SECOND, stopwatch.expired()).await;
        assert!(expired.is_err());
        assert_eq!(stopwatch.elapsed().as_secs(), 1000);
    }
}
