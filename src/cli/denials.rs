//! `--explain-denials`: what the sandbox refused, as far as the kernel tells.
//!
//! Landlock from version 7 on and the filter of system calls put what they refuse into the kernel's audit
//! record, where that is on; who may read it sees the path, or the call. Nothing else tells: mounts that can't be
//! written don't, and to look at each call from outside would cost more than the sandbox itself.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::io::{self, Write as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::sys::audit::{Lacking, Record, Records};
use crate::sys::process;

/// `linux/audit.h`.
const LANDLOCK_ACCESS: u16 = 1423;
const LANDLOCK_DOMAIN: u16 = 1424;
const SECCOMP: u16 = 1326;
const SYSCALL: u16 = 1300;

/// More different ones are counted, and not listed.
const MOST: usize = 1000;

/// How long nothing more may come until all has been told.
const QUIET: Duration = Duration::from_millis(100);

/// Listens while a session lasts.
pub(super) struct Denials {
    over: Arc<AtomicBool>,
    listener: Option<JoinHandle<Found>>,
    lacking: Option<Unheard>,
}

/// Why nothing is told of what a sandbox refuses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Unheard {
    Backend,
    Version,
    Off,
    NotAllowed,
    NoThread,
}

impl Unheard {
    pub(super) fn why(self) -> &'static str {
        match self {
            Self::Backend => "only --sandbox landlock has its refusals recorded by the kernel",
            Self::Version => "Landlock tells since its version 7, Linux 6.15",
            Self::Off => "the kernel's audit record is off",
            Self::NotAllowed => {
                "only root (CAP_AUDIT_READ, CAP_AUDIT_CONTROL) may read the kernel's audit record"
            }
            Self::NoThread => "there is no thread to be had to listen with",
        }
    }

    /// What to do about that alone.
    pub(super) fn remedy(self) -> &'static str {
        match self {
            Self::Backend => "use --sandbox landlock",
            Self::Version => "use Linux 6.15 or newer",
            Self::Off => "as root, `auditctl -e 1` switches it on",
            Self::NotAllowed => "run it as root",
            Self::NoThread => "see ulimit -u",
        }
    }
}

impl Denials {
    /// Begins to listen, for a sandbox of this backend and version.
    pub(super) fn listen(backend: &str, version: &str) -> Self {
        let over = Arc::new(AtomicBool::new(false));
        let silent = |lacking| Self {
            over: over.clone(),
            listener: None,
            lacking: Some(lacking),
        };
        let records = match records(backend, version) {
            Ok(records) => records,
            Err(lacking) => return silent(lacking),
        };
        let ended = over.clone();
        let listener = std::thread::Builder::new()
            .name("denials".to_owned())
            .spawn(move || follow(&records, &ended));
        match listener {
            Ok(listener) => Self {
                over,
                listener: Some(listener),
                lacking: None,
            },
            Err(_) => silent(Unheard::NoThread),
        }
    }

    /// Says on standard error what was refused.
    pub(super) fn tell(mut self) {
        self.over.store(true, Ordering::Relaxed);
        let text = match (self.listener.take().map(JoinHandle::join), self.lacking) {
            (Some(Ok(found)), _) => found.text(),
            (_, Some(lacking)) => {
                let remedy = match lacking {
                    Unheard::Off => format!("; {}", lacking.remedy()),
                    _ => String::new(),
                };
                format!(
                    "execgate: what the sandbox refused can't be told: {}{remedy}\n",
                    lacking.why()
                )
            }
            _ => {
                "execgate: what the sandbox refused can't be told: its listener failed\n".to_owned()
            }
        };
        let _ = io::stderr().write_all(text.as_bytes());
    }
}

/// The kernel's record, for a sandbox of this backend and version.
///
/// # Errors
/// Why it tells nothing.
fn records(backend: &str, version: &str) -> Result<Records, Unheard> {
    let number = version
        .strip_prefix("landlock ")
        .and_then(|number| number.parse::<u32>().ok());
    if backend != "landlock" {
        return Err(Unheard::Backend);
    }
    if number.is_none_or(|number| number < 7) {
        return Err(Unheard::Version);
    }
    Records::listen().map_err(|lacking| match lacking {
        Lacking::Off => Unheard::Off,
        Lacking::Listener => Unheard::NotAllowed,
    })
}

/// Why nothing is told of a sandbox of this backend and version, if so.
pub(super) fn lacking(backend: &str, version: &str) -> Option<Unheard> {
    records(backend, version).err()
}

fn follow(records: &Records, over: &AtomicBool) -> Found {
    let mut found = Found::default();
    loop {
        match records.next(QUIET) {
            Ok(Some(record)) => found.add(&record, whose),
            Ok(None) if over.load(Ordering::Relaxed) => return found,
            Ok(None) => {}
            Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => found.lost = true,
            Err(_) => {
                found.lost = true;
                return found;
            }
        }
    }
}

/// Whose a process is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Whose {
    /// This gate's sessions'.
    Ours,
    Others,
    /// It is gone, and can't be asked about.
    Gone,
}

fn whose(pid: u32) -> Whose {
    let own = process::own_pid();
    if process::parent_from_proc(pid).is_none() {
        return Whose::Gone;
    }
    // A chain that long has been made to be long.
    let is_ours = std::iter::successors(Some(pid), |pid| process::parent_from_proc(*pid))
        .take(1000)
        .any(|pid| pid == own);
    if is_ours { Whose::Ours } else { Whose::Others }
}

/// What was refused so far.
#[derive(Debug, Default)]
struct Found {
    /// Landlock's domains, and whose they are.
    domains: BTreeMap<String, Whose>,
    /// Refusals in domains that aren't known yet.
    waiting: Vec<(String, String)>,
    /// By the record's serial, to which a later part adds the program.
    serials: BTreeMap<String, String>,
    refused: BTreeMap<String, u64>,
    programs: BTreeMap<String, BTreeSet<String>>,
    /// Those of which it can't be said whose they were.
    unplaced: u64,
    lost: bool,
}

impl Found {
    fn add(&mut self, record: &Record, whose: impl Fn(u32) -> Whose) {
        let field = |name: &str| field(&record.text, name);
        let whose = || {
            let pid = field("pid").and_then(|pid| pid.parse().ok());
            pid.map_or(Whose::Gone, &whose)
        };
        let serial = serial(&record.text);
        match record.kind {
            LANDLOCK_ACCESS => {
                let (Some(domain), Some(blockers)) = (field("domain"), field("blockers")) else {
                    return;
                };
                let what = access(&blockers, &record.text);
                self.serials.insert(serial, what.clone());
                while self.serials.len() > MOST {
                    self.serials.pop_first();
                }
                match self.domains.get(&domain) {
                    Some(whose) => self.place(*whose, what),
                    None if self.waiting.len() < MOST => self.waiting.push((domain, what)),
                    None => self.lost = true,
                }
            }
            LANDLOCK_DOMAIN if field("status").as_deref() == Some("allocated") => {
                let Some(domain) = field("domain") else {
                    return;
                };
                let whose = whose();
                self.domains.insert(domain.clone(), whose);
                let (known, waiting) = std::mem::take(&mut self.waiting)
                    .into_iter()
                    .partition(|(of, _)| *of == domain);
                self.waiting = waiting;
                let known: Vec<(String, String)> = known;
                for (_, what) in known {
                    self.place(whose, what);
                }
            }
            SYSCALL => {
                if let (Some(what), Some(program)) = (self.serials.remove(&serial), field("comm")) {
                    self.name(&what, program);
                }
            }
            SECCOMP => {
                let whose = whose();
                let call = field("syscall").and_then(|number| number.parse().ok());
                let what = call.map_or_else(|| "a system call".to_owned(), system_call);
                self.place(whose, what.clone());
                if let (Whose::Ours, Some(program)) = (whose, field("comm")) {
                    self.name(&what, program);
                }
            }
            _ => {}
        }
    }

    fn place(&mut self, whose: Whose, what: String) {
        match whose {
            Whose::Ours => self.count(what),
            Whose::Others => {}
            Whose::Gone => self.unplaced += 1,
        }
    }

    fn count(&mut self, what: String) {
        if self.refused.len() < MOST || self.refused.contains_key(&what) {
            *self.refused.entry(what).or_default() += 1;
        } else {
            self.lost = true;
        }
    }

    fn name(&mut self, what: &str, program: String) {
        let programs = self.programs.entry(what.to_owned()).or_default();
        if programs.len() < 4 {
            programs.insert(program);
        }
        while self.programs.len() > 2 * MOST {
            self.programs.pop_first();
        }
    }

    fn text(&self) -> String {
        let is_known = !self.refused.is_empty() || self.unplaced > 0 || self.lost;
        let mut text = if is_known {
            "execgate: the sandbox refused:\n".to_owned()
        } else {
            "execgate: the kernel tells of nothing that the sandbox refused\n".to_owned()
        };
        for (what, count) in &self.refused {
            text.push_str("  ");
            text.push_str(what);
            if let Some(programs) = self.programs.get(what) {
                let names: Vec<_> = programs.iter().map(String::as_str).collect();
                let _ = write!(text, " ({})", names.join(", "));
            }
            if *count > 1 {
                let _ = write!(text, ", {count} times");
            }
            text.push('\n');
        }
        // Those that still wait are in domains that were there before: no one's here.
        if self.unplaced > 0 {
            let _ = writeln!(
                text,
                "  and {} of which it can't be said whose they were: their process had ended",
                self.unplaced
            );
        }
        if self.lost {
            text.push_str("  and more, which was lost\n");
        }
        text
    }
}

fn serial(text: &str) -> String {
    let inside = text
        .split_once(':')
        .and_then(|(_, rest)| rest.split_once(')'));
    inside.map_or_else(String::new, |(serial, _)| serial.to_owned())
}

/// A value: in quotes, or else in hexadecimal where it has bytes that quotes can't hold. Whatever isn't
/// plain is escaped: it goes to a terminal.
fn field(text: &str, name: &str) -> Option<String> {
    let value = text
        .split_ascii_whitespace()
        .find_map(|word| word.strip_prefix(name)?.strip_prefix('='))?;
    if value.starts_with('"') {
        // A quoted one has no quotes in it, and may have no spaces either.
        return Some(value.trim_matches('"').escape_debug().to_string());
    }
    let is_text = matches!(name, "path" | "comm" | "ocomm");
    let bytes = is_text.then(|| unhex(value)).flatten();
    Some(match bytes {
        Some(bytes) => bytes.escape_ascii().to_string(),
        None => value.escape_debug().to_string(),
    })
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    let digits = text.as_bytes().as_chunks::<2>();
    if !digits.1.is_empty() || text.is_empty() {
        return None;
    }
    let pair = |pair: &[u8; 2]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
    digits.0.iter().map(pair).collect()
}

/// What Landlock refused, in words.
fn access(blockers: &str, text: &str) -> String {
    let place = || field(text, "path").unwrap_or_else(|| "?".to_owned());
    let words: Vec<_> = blockers
        .split(',')
        .map(|blocker| match blocker {
            "fs.execute" => "executing",
            "fs.write_file" => "writing",
            "fs.read_file" => "reading",
            "fs.read_dir" => "listing",
            "fs.remove_dir" | "fs.remove_file" => "removing from",
            "fs.make_char" | "fs.make_block" => "making a device in",
            "fs.make_dir" | "fs.make_reg" | "fs.make_sock" | "fs.make_fifo" | "fs.make_sym" => {
                "making something in"
            }
            "fs.refer" => "moving between directories, of which one is",
            "fs.truncate" => "emptying",
            "fs.ioctl_dev" => "controlling",
            "scope.signal" => "a signal for",
            "scope.abstract_unix_socket" => "an abstract socket of others:",
            "net.connect_tcp" => "connecting to",
            "net.bind_tcp" => "listening at",
            "ptrace" => "looking into",
            other => other,
        })
        .collect();
    let object = match blockers {
        _ if blockers.starts_with("fs.") => place(),
        _ if blockers.starts_with("net.") => {
            let port = field(text, "dest").or_else(|| field(text, "src"));
            format!("port {}", port.unwrap_or_else(|| "?".to_owned()))
        }
        _ => {
            let other = field(text, "ocomm").or_else(|| field(text, "path"));
            format!(
                "{} outside",
                other.unwrap_or_else(|| "a process".to_owned())
            )
        }
    };
    format!("{} {object}", words.join(" and "))
}

/// What the filter refused, in words.
fn system_call(number: libc::c_long) -> String {
    let name = match number {
        libc::SYS_socket => {
            "a socket that isn't a Unix socket: there is no network (or, with one, a Unix socket)"
        }
        libc::SYS_connect => {
            "connecting a socket: there is no network, and named Unix sockets are out of reach"
        }
        libc::SYS_sendto => "sending to a socket by its address",
        libc::SYS_ptrace => "tracing (ptrace)",
        libc::SYS_process_vm_readv | libc::SYS_process_vm_writev => "another process's memory",
        libc::SYS_io_uring_setup => "io_uring",
        libc::SYS_unshare | libc::SYS_clone | libc::SYS_clone3 => {
            "new namespaces (or clone3, whose elder is used then)"
        }
        libc::SYS_mount | libc::SYS_umount2 | libc::SYS_chroot => "mounts and roots",
        libc::SYS_ioctl => "typing into a terminal, or a file's attributes (ioctl)",
        libc::SYS_fchmod | libc::SYS_fchmodat => "a set-user-id or set-group-id bit",
        libc::SYS_openat2 => "openat2, whose elder is used then",
        _ => return format!("system call {number}"),
    };
    name.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(records: &[(u16, &str)]) -> String {
        let mut found = Found::default();
        for (kind, text) in records {
            let record = Record {
                kind: *kind,
                text: (*text).to_owned(),
            };
            found.add(&record, |pid| match pid {
                1762 => Whose::Ours,
                4 => Whose::Gone,
                _ => Whose::Others,
            });
        }
        found.text()
    }

    #[test]
    fn refusals_of_this_gate_are_told_with_their_programs() {
        let text = found(&[
            (
                1423,
                "audit(1.1:2): domain=12 blockers=fs.read_file path=\"/etc/shadow\" dev=\"vda\" ino=817",
            ),
            (
                1424,
                "audit(1.1:2): domain=12 status=allocated mode=enforcing pid=1762 uid=0 comm=\"exec-supervisor\"",
            ),
            (
                1300,
                "audit(1.1:2): syscall=257 ppid=1762 pid=1764 comm=\"cat\" exe=\"/usr/bin/cat\"",
            ),
            (
                1423,
                "audit(1.2:3): domain=12 blockers=fs.make_reg path=2F612062 dev=\"vda\" ino=3",
            ),
            (
                1423,
                "audit(1.2:4): domain=12 blockers=fs.make_reg path=2F612062 dev=\"vda\" ino=3",
            ),
            (
                1423,
                "audit(1.2:5): domain=99 blockers=fs.read_file path=\"/other\" dev=\"vda\" ino=3",
            ),
            (
                1424,
                "audit(1.2:5): domain=99 status=allocated mode=enforcing pid=7 uid=0 comm=\"x\"",
            ),
            (
                1423,
                "audit(1.3:6): domain=12 blockers=scope.signal opid=1 ocomm=\"gate\"",
            ),
            (
                1326,
                "audit(1.4:7): pid=1762 comm=\"python3\" sig=0 syscall=101 code=0x50000",
            ),
            (
                1326,
                "audit(1.4:8): pid=7 comm=\"python3\" sig=0 syscall=101 code=0x50000",
            ),
            (1424, "audit(1.5:9): domain=12 status=deallocated denials=3"),
        ]);
        assert!(
            text.starts_with("execgate: the sandbox refused:\n"),
            "{text}"
        );
        assert!(text.contains("  reading /etc/shadow (cat)\n"), "{text}");
        assert!(
            text.contains("  making something in /a b, 2 times\n"),
            "{text}"
        );
        assert!(text.contains("  a signal for gate outside\n"), "{text}");
        assert!(!text.contains("/other"), "{text}");
        #[cfg(target_arch = "x86_64")]
        assert!(text.contains("  tracing (ptrace) (python3)\n"), "{text}");
    }

    #[test]
    fn a_refusal_whose_process_is_gone_is_counted_and_not_forgotten() {
        let text = found(&[
            (
                1423,
                "audit(1.1:2): domain=12 blockers=fs.read_file path=\"/secret\" dev=\"vda\"",
            ),
            (1424, "audit(1.1:2): domain=12 status=allocated pid=4"),
            (
                1326,
                "audit(1.4:7): pid=4 comm=\"python3\" sig=0 syscall=101",
            ),
        ]);
        assert!(
            text.contains("  and 2 of which it can't be said whose they were"),
            "{text}"
        );
        assert!(!text.contains("nothing"), "{text}");
        assert!(!text.contains("/secret"), "{text}");
    }

    #[test]
    fn it_is_said_why_the_kernel_tells_nothing() {
        let why = |backend, version| records(backend, version).unwrap_err();
        assert_eq!(why("bubblewrap", "bubblewrap 0.8.0"), Unheard::Backend);
        assert_eq!(why("command", ""), Unheard::Backend);
        for version in ["landlock 6", "landlock", ""] {
            assert_eq!(why("landlock", version), Unheard::Version, "{version}");
        }
    }

    #[test]
    fn what_is_refused_is_in_words() {
        let cases = [
            ("blockers=fs.make_reg path=\"/a\"", "making something in /a"),
            ("blockers=fs.remove_file path=\"/a\"", "removing from /a"),
            (
                "blockers=fs.write_file,fs.truncate path=\"/a\"",
                "writing and emptying /a",
            ),
            ("blockers=net.connect_tcp dest=80", "connecting to port 80"),
            ("blockers=net.bind_tcp src=81", "listening at port 81"),
            ("blockers=net.bind_tcp", "listening at port ?"),
            (
                "blockers=scope.abstract_unix_socket path=00616263",
                "an abstract socket of others: \\x00abc outside",
            ),
            (
                "blockers=ptrace opid=1 ocomm=\"gate\"",
                "looking into gate outside",
            ),
            ("blockers=fs.later path=\"/a\"", "fs.later /a"),
            ("blockers=fs.read_file", "reading ?"),
        ];
        for (record, words) in cases {
            let blockers = field(record, "blockers").unwrap();
            assert_eq!(access(&blockers, record), words);
        }
        assert_eq!(system_call(-1), "system call -1");
    }

    #[test]
    fn nothing_reaches_a_terminal_as_it_is() {
        let text = found(&[
            (1424, "audit(1.1:1): domain=12 status=allocated pid=1762"),
            (
                1423,
                "audit(1.1:2): domain=12 blockers=fs.read_file path=2F1B5B6D0A dev=\"vda\"",
            ),
            (1300, "audit(1.1:2): syscall=257 pid=1764 comm=631B5B6D"),
            (
                1423,
                "audit(1.1:3): domain=12 blockers=scope.signal opid=1 ocomm=671B5B6D",
            ),
            // The kernel writes these in hexadecimal; whatever it writes, none reaches a terminal.
            (
                1423,
                "audit(1.1:4): domain=12 blockers=fs.read_file path=\"/\x1b[m\"",
            ),
            (1423, "audit(1.1:5): domain=12 blockers=fs.\x1b[m"),
            (1326, "audit(1.1:6): pid=1762 comm=\"\x1b[m\" syscall=-1"),
        ]);
        for line in [
            "reading /\\x1b[m\\n (c\\x1b[m)\n",
            "a signal for g\\x1b[m outside\n",
        ] {
            assert!(text.contains(line), "{line}: {text:?}");
        }
        assert!(!text.contains('\x1b'), "{text:?}");
    }
}
