//! What the program was started with, taken before anything of it is changed.

use std::ffi::{CStr, OsString};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStringExt;

use super::policy::GATES_OWN;
use crate::sys::entry::{self, Invocation};
use crate::sys::spawn::InheritedContext;
use crate::sys::{context, descriptor, limits, signal};

/// Descriptors, environment, signals and limits that a shell is to be handed on.
#[derive(Debug)]
pub(super) struct Startup {
    /// The command line.
    pub(super) arguments: Vec<OsString>,
    /// Environment entries, in order, but for those that say who the gate is.
    pub(super) environment: Vec<OsString>,
    /// Numbers of the open descriptors.
    descriptors: Vec<RawFd>,
    ignored_signals: Vec<i32>,
    blocked_signals: Vec<i32>,
}

impl Startup {
    /// Takes note of everything, and makes the process fit to be a gate: standard descriptors that
    /// nothing else can be taken for, and no signal for a reader that went away.
    pub(super) fn take(invocation: Invocation) -> io::Result<Self> {
        let owned = |string: &CStr| OsString::from_vec(string.to_bytes().to_vec());
        let startup = Self {
            arguments: invocation.arguments().iter().map(owned).collect(),
            environment: invocation
                .environment()
                .iter()
                .filter(|entry| {
                    let entry = entry.to_bytes();
                    !GATES_OWN
                        .iter()
                        .any(|own| entry.starts_with(own.as_bytes()))
                })
                .map(owned)
                .collect(),
            descriptors: descriptor::inheritable()
                .iter()
                .map(AsRawFd::as_raw_fd)
                .collect(),
            ignored_signals: signal::ignored(),
            blocked_signals: signal::blocked(),
        };
        descriptor::fill_standard()?;
        Ok(startup)
    }

    /// Copies of the inherited descriptors, each with its number.
    pub(super) fn descriptors(&self) -> io::Result<Vec<(OwnedFd, RawFd)>> {
        let copy = |number: &RawFd| {
            let fd = entry::inherited(*number)?;
            Ok((fd.try_clone_to_owned()?, *number))
        };
        self.descriptors.iter().map(copy).collect()
    }

    /// What else a shell is to inherit.
    pub(super) fn context(&self) -> InheritedContext {
        InheritedContext {
            umask: Some(context::umask()),
            nice: None,
            limits: limits::open_files_at_start().into_iter().collect(),
            ignored_signals: self.ignored_signals.clone(),
            blocked_signals: self.blocked_signals.clone(),
            ..InheritedContext::default()
        }
    }

    /// Signals that are neither ignored nor blocked: those that the gate has to do something about.
    pub(super) fn acting(&self, signals: &[i32]) -> Vec<i32> {
        let idle = |signal: &i32| {
            self.ignored_signals.contains(signal) || self.blocked_signals.contains(signal)
        };
        signals
            .iter()
            .copied()
            .filter(|signal| !idle(signal))
            .collect()
    }
}
