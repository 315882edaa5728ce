//! What a supervisor tells the gate, and how that is sent.

use std::time::Duration;

use super::super::process::ProcessEnd;

/// What a supervisor tells.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Report {
    /// The command runs, as this process.
    Started {
        /// Its process id.
        pid: u32,
        /// Whether it is to get every signal that reaches the wrapper: it is alone with its descendants
        /// in its process group, or the supervisor knows what the group got.
        own_group: bool,
    },
    /// The command couldn't be started.
    NotStarted {
        /// What failed.
        step: Step,
        /// The error number.
        errno: i32,
    },
    /// The command was stopped.
    Stopped {
        /// By this signal.
        signal: i32,
        /// When that was seen, on the system's monotonic clock.
        at: Duration,
    },
    /// The command goes on.
    Continued,
    /// The command ended; processes that it started may still be there.
    Ended {
        /// How.
        end: ProcessEnd,
        /// Whether it left a core dump.
        core_dumped: bool,
        /// Processor time in user mode, its own and that of the children it waited for.
        user: Duration,
        /// Processor time in the kernel, likewise.
        system: Duration,
        /// Largest resident set of any one of them, in bytes.
        peak_memory_bytes: u64,
    },
    /// Processes that could not be ended are left, for they are another user's.
    LeftBehind {
        /// How many, besides their descendants.
        count: u32,
    },
}

/// A step of starting a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// Making a process for it.
    Fork,
    /// Putting its descriptors in place.
    Descriptors,
    /// Entering its directory.
    Directory,
    /// Setting a limit, the nice value, or its signals.
    Context,
    /// Confining it.
    Confinement,
    /// Executing it.
    Exec,
}

impl Step {
    const ALL: [Self; 6] = [
        Self::Fork,
        Self::Descriptors,
        Self::Directory,
        Self::Context,
        Self::Confinement,
        Self::Exec,
    ];

    fn from_raw(raw: i32) -> Option<Self> {
        Self::ALL.into_iter().find(|step| *step as i32 == raw)
    }
}

pub(super) const PACKET: usize = 40;

pub(super) const STARTED: i32 = 1;
pub(super) const NOT_STARTED: i32 = 2;
pub(super) const STOPPED: i32 = 3;
pub(super) const CONTINUED: i32 = 4;
pub(super) const ENDED: i32 = 5;
pub(super) const LEFT_BEHIND: i32 = 6;

/// A report as four integers and three counts, in native byte order: both ends are one program.
#[derive(Default)]
pub(super) struct Packet {
    pub(super) numbers: [i32; 4],
    pub(super) counts: [u64; 3],
}

impl Packet {
    pub(super) fn new(numbers: [i32; 4]) -> Self {
        Self {
            numbers,
            counts: [0; 3],
        }
    }

    pub(super) fn encode(&self) -> [u8; PACKET] {
        let mut bytes = [0; PACKET];
        let (numbers, counts) = bytes.split_at_mut(16);
        for (place, number) in numbers.chunks_exact_mut(4).zip(self.numbers) {
            place.copy_from_slice(&number.to_ne_bytes());
        }
        for (place, count) in counts.chunks_exact_mut(8).zip(self.counts) {
            place.copy_from_slice(&count.to_ne_bytes());
        }
        bytes
    }

    pub(super) fn decode(bytes: &[u8; PACKET]) -> Self {
        let mut packet = Self::default();
        let (numbers, counts) = bytes.split_at(16);
        for (number, place) in packet.numbers.iter_mut().zip(numbers.as_chunks().0) {
            *number = i32::from_ne_bytes(*place);
        }
        for (count, place) in packet.counts.iter_mut().zip(counts.as_chunks().0) {
            *count = u64::from_ne_bytes(*place);
        }
        packet
    }

    pub(super) fn report(&self) -> Option<Report> {
        let [kind, first, second, _] = self.numbers;
        match kind {
            STARTED => Some(Report::Started {
                pid: first.unsigned_abs(),
                own_group: second != 0,
            }),
            NOT_STARTED => Some(Report::NotStarted {
                step: Step::from_raw(first)?,
                errno: second,
            }),
            STOPPED => Some(Report::Stopped {
                signal: first,
                at: Duration::from_nanos(self.counts[0]),
            }),
            CONTINUED => Some(Report::Continued),
            ENDED => Some(Report::Ended {
                end: ProcessEnd::from_wait_status(first)?,
                core_dumped: libc::WIFSIGNALED(first) && libc::WCOREDUMP(first),
                user: Duration::from_micros(self.counts[0]),
                system: Duration::from_micros(self.counts[1]),
                peak_memory_bytes: self.counts[2].saturating_mul(1024),
            }),
            LEFT_BEHIND => Some(Report::LeftBehind {
                count: first.unsigned_abs(),
            }),
            _ => None,
        }
    }
}
