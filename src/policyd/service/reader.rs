//! Whether a gate reads its answers.

use std::time::Duration;

use tokio::sync::mpsc;

/// How long answers wait. A gate reads all the time, or it is no more.
pub(super) const READING_PATIENCE: Duration = Duration::from_secs(30);

/// Why an answer can't be sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Unsent {
    /// The gate is gone.
    Gone,
    /// It reads nothing, though it has had its time.
    Unread,
}

/// Sends an answer as soon as there is room for it.
pub(super) async fn send<T>(answers: &mpsc::Sender<T>, answer: T) -> Result<(), Unsent> {
    match tokio::time::timeout(READING_PATIENCE, answers.send(answer)).await {
        Ok(sent) => sent.map_err(|_| Unsent::Gone),
        Err(_) => Err(Unsent::Unread),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn answers_wait_for_whoever_reads_late_and_not_for_whoever_never_does() {
        let (answers, mut reading) = mpsc::channel(1);
        assert_eq!(send(&answers, 1).await, Ok(()));
        assert_eq!(send(&answers, 2).await, Err(Unsent::Unread));
        let late = tokio::spawn(async move {
            tokio::time::sleep(READING_PATIENCE.mul_f64(0.9)).await;
            let read = reading.recv().await;
            (read, reading)
        });
        assert_eq!(send(&answers, 3).await, Ok(()));
        let (read, reading) = late.await.expect("no panic");
        assert_eq!(read, Some(1));
        drop(reading);
        assert_eq!(send(&answers, 4).await, Err(Unsent::Gone));
    }
}
