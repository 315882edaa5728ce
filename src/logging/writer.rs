//! Writing the log in a thread of its own, so that whoever logs never waits for whoever reads.

use std::io::{self, Write};
use std::sync::mpsc::{SyncSender, TrySendError, sync_channel};
use std::time::{Duration, Instant};

/// Lines that wait to be written at most; later ones are dropped.
const WAITING_LINES: usize = 4096;

/// How long the end of the program waits until what was logged before is written.
const ENDING_PATIENCE: Duration = Duration::from_secs(1);

/// Between attempts to find room for the last word.
const PAUSE: Duration = Duration::from_millis(10);

enum Message {
    Line(Vec<u8>),
    /// Is answered when all before it is written.
    End(SyncSender<()>),
}

/// Where lines are put, to be written by a thread of its own. Never waits.
#[derive(Debug, Clone)]
pub(super) struct Lines(SyncSender<Message>);

impl Write for Lines {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        // What finds no room is lost.
        let _ = self.0.try_send(Message::Line(line.to_vec()));
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// When this is dropped, what was logged before has been written, or couldn't be for a second.
#[derive(Debug)]
pub struct Written(SyncSender<Message>);

impl Drop for Written {
    fn drop(&mut self) {
        let until = Instant::now() + ENDING_PATIENCE;
        let (written, all) = sync_channel(1);
        let mut end = Message::End(written);
        loop {
            match self.0.try_send(end) {
                Ok(()) => break,
                Err(TrySendError::Full(back)) if Instant::now() < until => end = back,
                Err(_) => return,
            }
            std::thread::sleep(PAUSE);
        }
        let _ = all.recv_timeout(until.saturating_duration_since(Instant::now()));
    }
}

/// Begins to write lines. Without a thread they are lost, as is the program, which needs others.
pub(super) fn to(mut output: impl Write + Send + 'static) -> (Lines, Written) {
    let (lines, waiting) = sync_channel(WAITING_LINES);
    let _ = std::thread::Builder::new()
        .name("log".to_owned())
        .spawn(move || {
            for message in waiting {
                match message {
                    // What nobody can read isn't written.
                    Message::Line(line) => {
                        let _ = output.write_all(&line);
                    }
                    Message::End(written) => {
                        let _ = written.send(());
                    }
                }
            }
        });
    (Lines(lines.clone()), Written(lines))
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;

    /// Keeps what is written, as soon as it may.
    struct Kept(Arc<Mutex<Vec<u8>>>);

    impl Write for Kept {
        fn write(&mut self, line: &[u8]) -> io::Result<usize> {
            self.0.lock().expect("no panic").extend(line);
            Ok(line.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn what_is_logged_before_the_end_is_written_in_its_order() {
        let kept = Arc::default();
        let (mut lines, written) = to(Kept(Arc::clone(&kept)));
        for number in 0..1_000 {
            writeln!(lines, "{number:03}").expect("it never fails");
        }
        drop(written);
        let kept = kept.lock().expect("no panic");
        assert_eq!(kept.len(), 4_000);
        assert!(kept.chunks(4).is_sorted(), "{kept:?}");
    }

    #[test]
    fn whoever_logs_does_not_wait_for_an_output_that_is_stuck_nor_does_the_end() {
        let kept = Arc::default();
        let (mut lines, written) = to(Kept(Arc::clone(&kept)));
        let stuck = kept.lock().expect("no panic");
        for _ in 0..3 * WAITING_LINES {
            lines.write_all(b"x").expect("it never fails");
        }
        drop(written);
        drop(stuck);
        // What had room is written once it can be.
        drop(Written(lines.0));
        let count = kept.lock().expect("no panic").len();
        // One was being written already.
        assert!(
            (WAITING_LINES..=WAITING_LINES + 1).contains(&count),
            "{count}"
        );
    }
}
