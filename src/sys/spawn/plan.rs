//! Everything that supervisor and command need, laid out before the fork.

use std::cell::Cell;
use std::ffi::{CString, c_char};
use std::io;
use std::os::fd::{AsRawFd, RawFd};

use super::super::context;
use super::super::signal::{self, KernelSet};
use super::{Command, Directory};

/// Everything that the two processes need, laid out so that they only read it.
pub(super) struct Plan {
    pub(super) command: Command,
    pub(super) argv: Vec<*const c_char>,
    pub(super) envp: Vec<*const c_char>,
    /// Destinations in ascending order.
    pub(super) destinations: Vec<RawFd>,
    /// What the two processes need of the gate's descriptors, in ascending order: all sources, what may
    /// be in its place already, the directory, the control socket.
    pub(super) needed: Vec<RawFd>,
    /// Room for where each descriptor is on its way to its number.
    pub(super) copies: Vec<Cell<RawFd>>,
    pub(super) ignored: KernelSet,
    pub(super) blocked: KernelSet,
    /// What a shell would do with a text file that has no `#!` line.
    pub(super) script: Option<Vec<*const c_char>>,
    pub(super) oom_score_adj: Option<Decimal>,
    pub(super) core_dump_filter: Option<Decimal>,
}

/// A number as text, without a heap.
#[derive(Clone, Copy)]
pub(super) struct Decimal {
    pub(super) digits: [u8; 12],
    pub(super) length: usize,
}

impl Decimal {
    fn new(number: impl std::fmt::Display) -> Self {
        let text = number.to_string();
        let mut digits = [0; 12];
        let length = text.len().min(digits.len());
        digits[..length].copy_from_slice(&text.as_bytes()[..length]);
        Self { digits, length }
    }
}

impl Plan {
    pub(super) fn new(mut command: Command, control: RawFd) -> io::Result<Self> {
        tell_descriptors(&mut command)?;
        let blocked = tell_signals(&mut command)?;
        let mut destinations: Vec<_> = command.descriptors.iter().map(|(_, to)| *to).collect();
        destinations.sort_unstable();
        let repeats = destinations.windows(2).any(|pair| pair[0] == pair[1]);
        if repeats || destinations.first().is_some_and(|number| *number < 0) {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "the descriptors' numbers must be different, and none below zero",
            ));
        }
        let sources = command.descriptors.iter().map(|(from, _)| from.as_raw_fd());
        let mut needed: Vec<_> = sources.chain(destinations.iter().copied()).collect();
        needed.push(control);
        if let Some(ruleset) = command
            .confinement
            .as_ref()
            .and_then(|it| it.ruleset.as_ref())
        {
            needed.push(ruleset.as_raw_fd());
        }
        if let Directory::Open(directory) = &command.directory {
            needed.push(directory.as_raw_fd());
        }
        needed.sort_unstable();
        let pointers = |strings: &[CString]| {
            let pointers = strings.iter().map(|string| string.as_ptr());
            pointers.chain([std::ptr::null()]).collect()
        };
        Ok(Self {
            argv: pointers(&command.argv),
            envp: pointers(&command.env),
            destinations,
            needed,
            copies: vec![Cell::new(-1); command.descriptors.len()],
            ignored: signal::kernel_set(command.context.ignored_signals.iter().copied()),
            blocked,
            script: command.is_script.then(|| {
                let arguments = command.argv.iter().skip(1).map(|string| string.as_ptr());
                [c"sh".as_ptr(), command.program.as_ptr()]
                    .into_iter()
                    .chain(arguments)
                    .chain([std::ptr::null()])
                    .collect()
            }),
            oom_score_adj: command
                .context
                .oom_score_adj
                .map(|score| Decimal::new(score.max(context::oom_score_adj().unwrap_or(score)))),
            core_dump_filter: command.context.core_dump_filter.map(Decimal::new),
            command,
        })
    }
}

/// The signals that are blocked when the program is executed, once those that the command has blocked are in the arguments.
fn tell_signals(command: &mut Command) -> io::Result<KernelSet> {
    let blocked = signal::kernel_set(command.context.blocked_signals.iter().copied());
    let Some(place) = command.told_signals else {
        return Ok(blocked);
    };
    let word = command.argv.get_mut(place);
    *word.ok_or(io::ErrorKind::InvalidInput)? = CString::new(format!("{blocked:x}"))?;
    // What stops the command stops what starts it, so that it is seen.
    let stops = [libc::SIGTSTP, libc::SIGTTIN, libc::SIGTTOU];
    Ok(blocked | !signal::kernel_set(stops))
}

/// Gives descriptors that are to be told free numbers, and writes these into the arguments.
fn tell_descriptors(command: &mut Command) -> io::Result<()> {
    for (fd, place) in std::mem::take(&mut command.told_descriptors) {
        let taken = |number: &RawFd| command.descriptors.iter().any(|(_, to)| to == number);
        let number = (3..RawFd::MAX)
            .find(|number| !taken(number))
            .unwrap_or(RawFd::MAX);
        let word = command
            .argv
            .get_mut(place)
            .ok_or(io::ErrorKind::InvalidInput)?;
        let text = word.to_str().map_err(io::Error::other)?;
        *word = CString::new(text.replace('?', &number.to_string()))?;
        command.descriptors.push((fd, number));
    }
    Ok(())
}
