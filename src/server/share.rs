//! Bounds that all sessions of a gate have in common.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::Notify;

/// So much of something for all sessions of a gate together. Clones are the same pool.
///
/// A session may have half of what the others leave, and no more than its own bound: whatever the others do,
/// something is left for the next. Where `n` sessions take all that they get, each ends with a part in `n + 1`.
#[derive(Debug, Clone)]
pub struct Pool(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    most: usize,
    used: AtomicUsize,
    /// Tells those who wait that some was given back.
    freed: Notify,
}

/// One session's part of a [`Pool`]; what it has is given back when it is dropped.
#[derive(Debug)]
pub struct Share {
    pool: Pool,
    most: usize,
    used: AtomicUsize,
}

/// What a session has taken; given back when it is dropped.
#[derive(Debug)]
pub struct Held {
    share: Arc<Share>,
    amount: usize,
}

/// That a session may have no more at present.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Full;

impl Pool {
    /// A pool of so much.
    #[must_use]
    pub fn new(most: usize) -> Self {
        Self(Arc::new(Inner {
            most,
            used: AtomicUsize::new(0),
            freed: Notify::new(),
        }))
    }

    /// The part of a session that may never have more than `most`.
    #[must_use]
    pub fn share(&self, most: usize) -> Share {
        Share {
            pool: self.clone(),
            most,
            used: AtomicUsize::new(0),
        }
    }

    /// How much there is for all.
    #[must_use]
    pub fn most(&self) -> usize {
        self.0.most
    }

    fn give_back(&self, amount: usize) {
        self.0.used.fetch_sub(amount, Ordering::Relaxed);
        self.0.freed.notify_waiters();
    }

    /// How much all sessions have.
    #[must_use]
    pub fn used(&self) -> usize {
        self.0.used.load(Ordering::Relaxed)
    }
}

impl Share {
    /// How much the session may have now. Less than it has, perhaps, where others came later.
    #[must_use]
    pub fn allowed(&self) -> usize {
        let own = self.used.load(Ordering::Relaxed);
        let others = self.pool.used().saturating_sub(own);
        self.most.min(self.pool.most().saturating_sub(others) / 2)
    }

    /// Takes so much.
    ///
    /// # Errors
    /// Where that is more than the session may have.
    pub fn take(&self, amount: usize) -> Result<(), Full> {
        let own = self.used.fetch_add(amount, Ordering::Relaxed) + amount;
        self.pool.0.used.fetch_add(amount, Ordering::Relaxed);
        if own > self.allowed() {
            // In silence: who waits would wake the others who wait, and they it.
            self.used.fetch_sub(amount, Ordering::Relaxed);
            self.pool.0.used.fetch_sub(amount, Ordering::Relaxed);
            return Err(Full);
        }
        Ok(())
    }

    /// Gives back so much of what was taken.
    pub fn give_back(&self, amount: usize) {
        self.used.fetch_sub(amount, Ordering::Relaxed);
        self.pool.give_back(amount);
    }

    /// Takes so much, until what is returned is dropped. Waits where that is more than the session may have;
    /// who waits isn't in turn, so that what is small gets by what is large.
    pub async fn hold(self: &Arc<Self>, amount: usize) -> Held {
        loop {
            let mut freed = pin!(self.pool.0.freed.notified());
            // Before it is tried, so that nothing is given back unnoticed in between.
            freed.as_mut().enable();
            if self.take(amount).is_ok() {
                return Held {
                    share: Arc::clone(self),
                    amount,
                };
            }
            freed.await;
        }
    }

    /// Says that the session has `now` of it instead of `before`, without asking.
    pub fn set(&self, before: usize, now: usize) {
        if now > before {
            self.used.fetch_add(now - before, Ordering::Relaxed);
            self.pool.0.used.fetch_add(now - before, Ordering::Relaxed);
        } else if before > now {
            self.give_back(before - now);
        }
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.pool.give_back(self.used.load(Ordering::Relaxed));
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.share.give_back(self.amount);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fill(share: &Share) -> usize {
        let mut taken = 0;
        while share.take(1).is_ok() {
            taken += 1;
        }
        taken
    }

    #[test]
    fn one_that_takes_all_it_gets_leaves_something_for_the_next() {
        let pool = Pool::new(120);
        let shares: Vec<_> = (0..5).map(|_| pool.share(1_000)).collect();
        let taken: Vec<_> = shares.iter().map(fill).collect();
        assert_eq!(taken, [60, 30, 15, 7, 4]);
        assert!(pool.used() < pool.most());
        // Who came first has to let go of some before it gets more.
        assert_eq!(shares[0].allowed(), 32);
        shares[0].give_back(60);
        assert_eq!(fill(&shares[0]), 32);
    }

    #[test]
    fn nobody_gets_more_than_its_own_bound() {
        let pool = Pool::new(1_000);
        let share = pool.share(10);
        assert_eq!(fill(&share), 10);
        assert_eq!(share.take(1), Err(Full));
        assert_eq!(pool.used(), 10);
        drop(share);
        assert_eq!(pool.used(), 0);
    }

    #[tokio::test]
    async fn who_waits_gets_what_another_session_gives_back() {
        let pool = Pool::new(100);
        let (one, other) = (Arc::new(pool.share(100)), Arc::new(pool.share(100)));
        let first = one.hold(50).await;
        assert_eq!(other.take(30), Err(Full));
        let waiting = tokio::spawn(async move { other.hold(30).await });
        tokio::task::yield_now().await;
        assert!(!waiting.is_finished());
        drop(first);
        let held = waiting.await.expect("it is there");
        assert_eq!(pool.used(), 30);
        drop(held);
        assert_eq!(pool.used(), 0);
    }

    #[test]
    fn what_is_said_counts_like_what_is_taken() {
        let pool = Pool::new(100);
        let (one, other) = (pool.share(100), pool.share(100));
        one.set(0, 80);
        assert_eq!((one.allowed(), other.allowed()), (50, 10));
        one.set(80, 20);
        assert_eq!((pool.used(), other.allowed()), (20, 40));
    }
}
