//! Programs that are run to their end, with a limit that only hanging ones reach.

use std::ffi::OsStr;
use std::fmt;
use std::io::{Read, Write};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Nothing takes this long unless it hangs.
pub(crate) const PATIENCE: Duration = Duration::from_secs(120);

pub(crate) const EXECGATE: &str = env!("CARGO_BIN_EXE_execgate");

/// As it is installed: without a C library, which a build with all features has.
pub(crate) const WRAPPER: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/target/dist/libexec/execgate/execgate-wrapper"
);

/// Waits until `condition` holds.
#[track_caller]
pub(crate) fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let began = Instant::now();
    while !condition() {
        assert!(began.elapsed() < PATIENCE, "waited in vain: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A program that is running, with its output so far. Killed when dropped.
pub(crate) struct Running {
    command: String,
    directory: PathBuf,
    child: Child,
    stdout: Pipe,
    stderr: Pipe,
}

struct Pipe {
    read: Arc<Mutex<Vec<u8>>>,
    reader: JoinHandle<()>,
}

impl Pipe {
    fn read(mut source: impl Read + Send + 'static) -> Self {
        let read = Arc::new(Mutex::new(Vec::new()));
        let sink = Arc::clone(&read);
        let reader = std::thread::spawn(move || {
            let mut buffer = vec![0; 64 << 10];
            while let Ok(length @ 1..) = source.read(&mut buffer) {
                sink.lock()
                    .expect("output")
                    .extend_from_slice(&buffer[..length]);
            }
        });
        Self { read, reader }
    }

    fn so_far(&self) -> Vec<u8> {
        self.read.lock().expect("output").clone()
    }
}

impl Running {
    pub(crate) fn start(command: &mut Command) -> Self {
        let shown = std::iter::once(command.get_program())
            .chain(command.get_args())
            .map(OsStr::to_string_lossy)
            .collect::<Vec<_>>()
            .join(" ");
        let directory = command
            .get_current_dir()
            .map_or_else(PathBuf::new, Into::into);
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap_or_else(|error| panic!("{shown}: {error}"));
        Self {
            command: shown.chars().take(2_000).collect(),
            directory,
            stdout: Pipe::read(child.stdout.take().expect("a pipe")),
            stderr: Pipe::read(child.stderr.take().expect("a pipe")),
            child,
        }
    }

    pub(crate) fn stdout(&self) -> String {
        lossy(&self.stdout.so_far())
    }

    pub(crate) fn stderr(&self) -> String {
        lossy(&self.stderr.so_far())
    }

    /// Waits until standard output has `text`.
    #[track_caller]
    pub(crate) fn wait_for(&mut self, text: &str) {
        let began = Instant::now();
        while !self.stdout().contains(text) {
            let over = self.child.try_wait().expect("a child").is_some();
            if over || began.elapsed() > PATIENCE {
                let (output, errors) = (self.stdout(), self.stderr());
                panic!("no {text:?} from {}:\n{output}\n{errors}", self.command);
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Writes a line to standard input.
    /// Waits until it has written a text on standard error.
    #[track_caller]
    pub(crate) fn wait_for_error(&self, text: &str) {
        wait_until(text, || self.stderr().contains(text));
    }

    pub(crate) fn tell(&mut self, line: &str) {
        let stdin = self.child.stdin.as_mut().expect("a pipe");
        writeln!(stdin, "{line}").expect("a reader");
    }

    /// Whether all that it had to say has been read.
    pub(crate) fn is_over(&self) -> bool {
        self.stdout.reader.is_finished()
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn signal(&self, name: &str) {
        signal(self.id(), name);
    }

    /// Waits for its end, and for that of its output.
    #[track_caller]
    pub(crate) fn done(mut self) -> Done {
        drop(self.child.stdin.take());
        let began = Instant::now();
        let status = loop {
            let status = self.child.try_wait().expect("a child");
            let read = self.stdout.reader.is_finished() && self.stderr.reader.is_finished();
            if let (Some(status), true) = (status, read) {
                break status;
            }
            assert!(
                began.elapsed() < PATIENCE,
                "it hangs ({status:?}): {}\n{}\n{}",
                self.command,
                self.stdout(),
                self.stderr()
            );
            std::thread::sleep(Duration::from_millis(5));
        };
        Done {
            command: std::mem::take(&mut self.command),
            directory: std::mem::take(&mut self.directory),
            status,
            stdout: self.stdout.so_far(),
            stderr: self.stderr.so_far(),
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub(crate) fn signal(process: u32, name: &str) {
    let status = Command::new("kill")
        .args([format!("-{name}"), process.to_string()])
        .status()
        .expect("kill");
    assert!(status.success(), "kill -{name} {process}");
}

/// Runs a program to its end.
#[track_caller]
pub(crate) fn run(command: &mut Command) -> Done {
    Running::start(command).done()
}

/// A program that has ended. What it is asked about it shows whole where the answer is wrong.
pub(crate) struct Done {
    command: String,
    directory: PathBuf,
    pub(crate) status: ExitStatus,
    pub(crate) stdout: Vec<u8>,
    pub(crate) stderr: Vec<u8>,
}

impl Done {
    #[track_caller]
    pub(crate) fn exits(&self, code: i32) -> &Self {
        assert!(
            self.status.code() == Some(code),
            "not status {code}: {self}"
        );
        self
    }

    /// Standard output is exactly this.
    #[track_caller]
    pub(crate) fn prints(&self, text: &str) -> &Self {
        assert!(self.stdout == text.as_bytes(), "not {text:?}: {self}");
        self
    }

    /// Standard error has this in it.
    #[track_caller]
    pub(crate) fn says(&self, text: &str) -> &Self {
        assert!(self.errors().contains(text), "doesn't say {text:?}: {self}");
        self
    }

    /// Standard error has this in it so many times.
    #[track_caller]
    pub(crate) fn says_times(&self, times: usize, text: &str) -> &Self {
        let said = self.errors().matches(text).count();
        assert!(said == times, "{text:?} {said} times, not {times}: {self}");
        self
    }

    #[track_caller]
    pub(crate) fn says_nothing(&self) -> &Self {
        assert!(self.stderr.is_empty(), "says something: {self}");
        self
    }

    pub(crate) fn output(&self) -> String {
        lossy(&self.stdout)
    }

    pub(crate) fn errors(&self) -> String {
        lossy(&self.stderr)
    }
}

impl fmt::Display for Done {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let most = |text: String| text.chars().take(10_000).collect::<String>();
        write!(
            formatter,
            "\ncommand:   {}\ndirectory: {}\nstatus:    {}\n-- stdout --\n{}\n-- stderr --\n{}\n--",
            self.command,
            self.directory.display(),
            self.status,
            most(self.output()),
            most(self.errors()),
        )
    }
}

pub(crate) fn lossy(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
