//! Where attacks are tried: a home with secrets, a policy service, something to attack outside, and sessions.

use std::collections::BTreeMap;
use std::fmt;
use std::io::Write;
use std::net::{TcpListener, UdpSocket};
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::net::{UnixDatagram, UnixListener};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use tempfile::TempDir;

use crate::attack::Attack;
use crate::machine::{Shell, repository};
use crate::process::{self, Done, EXECGATE, Running};
use crate::service::Policyd;
use crate::slow_service::{Slow, SlowService};

/// Who owns nothing: `nobody`.
const NOBODY: u32 = 65534;

/// What an attack is after.
const SECRET: &str = "secret-of-mine\n";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum User {
    /// Who runs the tests.
    Own,
    Nobody,
}

impl User {
    pub(crate) fn is_root(self) -> bool {
        self == Self::Own && execgate::sys::host::user().id == 0
    }

    /// A command of this user's, with as large core dumps as can be had.
    fn command(self, program: &str) -> Command {
        let mut command = Command::new("/bin/bash");
        command.args(["-c", "ulimit -c unlimited 2>/dev/null; exec \"$@\"", "-"]);
        if self == Self::Nobody {
            let user = NOBODY.to_string();
            command.args([
                "setpriv",
                "--reuid",
                &user,
                "--regid",
                &user,
                "--clear-groups",
            ]);
        }
        command.arg(program);
        command
    }
}

/// Whether bubblewrap works for this user.
pub(crate) fn bubblewrap(user: User) -> bool {
    let mut command = user.command("bwrap");
    command.args([
        "--ro-bind",
        "/",
        "/",
        "--unshare-pid",
        "--unshare-net",
        "/bin/true",
    ]);
    command.output().is_ok_and(|output| output.status.success())
}

/// Who decides.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Rules {
    /// `execgate-policyd`, by rules as they should be.
    Real,
    /// The same, by careless ones.
    Loose,
    /// One that takes its time, and escalates then.
    SlowToEscalate,
    /// One that takes its time, and lets the command run inside then.
    SlowToRun,
}

enum Service {
    Policyd(Policyd),
    Slow(SlowService),
}

impl Service {
    fn start(place: &Path, rules: Rules) -> Self {
        let text = match rules {
            Rules::Real => include_str!("programs/real.rules.star"),
            Rules::Loose => include_str!("programs/loose.rules.star"),
            Rules::SlowToEscalate => return Self::Slow(SlowService::start(Slow::Escalates)),
            Rules::SlowToRun => return Self::Slow(SlowService::start(Slow::Runs)),
        };
        let directory = place.join("service");
        std::fs::write(directory.join("rules.star"), text).expect("a file");
        Self::Policyd(Policyd::start(&directory, "127.0.0.1:0"))
    }

    fn url(&self) -> &str {
        match self {
            Self::Policyd(policyd) => &policyd.url,
            Self::Slow(service) => &service.url,
        }
    }
}

pub(crate) type Results = BTreeMap<&'static str, Ended>;

/// How an attack ended.
#[derive(Debug, Clone)]
pub(crate) struct Ended {
    status: i32,
    output: String,
}

impl Ended {
    pub(crate) fn succeeded(&self) -> bool {
        self.status == 0
    }

    pub(crate) fn lacks_its_target(&self) -> bool {
        self.status == 77
    }
}

impl fmt::Display for Ended {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "status {}: {}", self.status, self.output.trim())
    }
}

/// The repository may be where a sandbox shows nothing of it.
fn copy_programs(to: &Path) {
    let programs = std::fs::read_dir(repository().join("tests/attack/programs"));
    for program in programs.expect("programs") {
        let program = program.expect("a program");
        // What Python has made of some may be there too.
        if program.file_type().expect("its type").is_file() {
            std::fs::copy(program.path(), to.join(program.file_name())).expect("a copy");
        }
    }
}

pub(crate) struct Place {
    user: User,
    directory: TempDir,
    service: Service,
    /// Somebody else's process, of the same user.
    victim: Running,
    variables: Vec<(&'static str, String)>,
    _sockets: Sockets,
}

/// What attacks try to reach.
struct Sockets {
    _log: UnixDatagram,
    _hidden: UnixDatagram,
}

impl Place {
    pub(crate) fn new(user: User, rules: Rules) -> Self {
        // Outside of `/tmp`, which a sandbox may replace.
        let directory = TempDir::new_in("/var/tmp").expect("a directory");
        let root = directory.path();
        for name in [
            "",
            "work",
            "home",
            "home/.ssh",
            "home/.aws",
            "outside",
            "outside/journal",
            "service",
            "bin",
            "programs",
        ] {
            std::fs::create_dir_all(root.join(name)).expect("a directory");
        }
        let own = PermissionsExt::from_mode(0o700);
        std::fs::set_permissions(root.join("outside/journal"), own).expect("a mode");
        std::fs::set_permissions(root, PermissionsExt::from_mode(0o755)).expect("a mode");
        for (name, text, mode) in [
            ("home/.ssh/id", SECRET, 0o600),
            (
                "home/.ssh/program",
                "#!/bin/sh\necho secret-of-mine\n",
                0o755,
            ),
            ("home/.aws/credentials", SECRET, 0o600),
            ("home/.netrc", SECRET, 0o600),
            ("outside/file", "there\n", 0o644),
            ("outside/token", "egt_secret-of-mine\n", 0o600),
        ] {
            std::fs::write(root.join(name), text).expect("a file");
            let mode = PermissionsExt::from_mode(mode);
            std::fs::set_permissions(root.join(name), mode).expect("a mode");
        }
        std::fs::hard_link(root.join("home/.netrc"), root.join("outside/other")).expect("a link");
        copy_programs(&root.join("programs"));
        let mut token = Command::new(EXECGATE);
        token
            .args(["token", "olga", "--write"])
            .arg(root.join("operator.token"));
        let line = process::run(&mut token).exits(0).output();
        std::fs::write(root.join("service/operators"), line).expect("a file");
        let service = Service::start(root, rules);

        let mut variables = vec![
            ("HOME", root.join("home").display().to_string()),
            ("OUTSIDE", root.join("outside").display().to_string()),
            ("PROGRAMS", root.join("programs").display().to_string()),
            ("BUILT", root.join("bin").display().to_string()),
            ("EXECGATE", EXECGATE.to_owned()),
            ("SERVICE", service.url().to_owned()),
            (
                "OPERATOR",
                root.join("operator.token").display().to_string(),
            ),
            ("DATA", root.join("service/data").display().to_string()),
        ];
        let sockets = Sockets::open(root, &mut variables);
        compile(root);
        if user == User::Nobody {
            give(root);
        }
        // What isn't the session's user's to write.
        let setuid = root.join("bin/identity");
        if execgate::sys::host::user().id == 0 {
            chown(&setuid, Some(0), Some(0)).expect("an owner");
            std::fs::set_permissions(&setuid, PermissionsExt::from_mode(0o4755)).expect("a mode");
        }
        let mut victim = user.command("python3");
        victim
            .arg(repository().join("tests/attack/programs/victim.py"))
            .env_clear()
            .env("PATH", "/usr/bin:/bin")
            .env("THE_VICTIMS", SECRET.trim())
            .current_dir(root.join("home/.ssh"));
        let mut victim = Running::start(&mut victim);
        victim.wait_for("\n");
        let names = [
            "VICTIM",
            "ADDRESS",
            "DESCRIPTOR",
            "SHARED",
            "MESSAGES",
            "QUEUE",
        ];
        for (name, word) in names.into_iter().zip(victim.stdout().split_whitespace()) {
            variables.push((name, word.to_owned()));
        }
        Self {
            user,
            directory,
            service,
            victim,
            variables,
            _sockets: sockets,
        }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// What is outside, by name and content.
    pub(crate) fn outside(&self) -> Vec<(PathBuf, Option<Vec<u8>>)> {
        let mut found: Vec<_> = std::fs::read_dir(self.path("outside"))
            .expect("a directory")
            .map(|entry| entry.expect("an entry").path())
            .map(|path| (path.clone(), std::fs::read(path).ok()))
            .collect();
        found.sort();
        found
    }

    /// Tries attacks in sessions under a gate.
    pub(crate) fn attack(&self, backend: &str, attacks: &[&'static Attack]) -> Results {
        let (plain, others): (Vec<_>, Vec<_>) =
            (attacks.iter().copied()).partition(|attack| attack.options.is_empty());
        let mut results = self.each_part("plain", &plain, || self.gate(backend, &[], DRIVER));
        if let Some(first) = others.first() {
            assert!(others.iter().all(|attack| attack.options == first.options));
            // Without a sandbox there is nothing to be said of it.
            let options = if backend == "none" {
                &[]
            } else {
                first.options
            };
            results
                .extend(self.each_part("others", &others, || self.gate(backend, options, DRIVER)));
        }
        results
    }

    /// Tries them without a gate.
    pub(crate) fn attack_outside(&self, attacks: &[&'static Attack]) -> Results {
        self.each_part("plain", attacks, || self.no_gate(DRIVER))
    }

    /// Runs a script in a session.
    pub(crate) fn under_a_gate(&self, backend: &str, script: &str) -> Done {
        self.run(self.gate(backend, &[], script), Path::new(""))
    }

    /// Runs a script without a gate.
    pub(crate) fn outside_of_a_gate(&self, script: &str) -> Done {
        self.run(self.no_gate(script), Path::new(""))
    }

    fn gate(&self, backend: &str, options: &[&str], script: &str) -> Command {
        let mut command = self.on_a_terminal(EXECGATE);
        command
            .args(["exec", "--no-login", "--policy", self.service.url()])
            .args(["--sandbox", backend, "--journal"])
            .arg(self.path("outside/journal"))
            .arg("--shell")
            .arg(Shell::find("bash").expect("a shell").path)
            .args(options)
            .args(["--", script]);
        command
    }

    fn no_gate(&self, script: &str) -> Command {
        let mut command = self.on_a_terminal("/bin/bash");
        command.args(["-c", script]);
        command
    }

    fn on_a_terminal(&self, program: &str) -> Command {
        let mut command = self.user.command("python3");
        command
            .arg(repository().join("tests/attack/programs/terminal.py"))
            .arg(program);
        command
    }

    /// A session for each few attacks: the limit on one that hangs is for all of it.
    fn each_part(
        &self,
        group: &str,
        attacks: &[&'static Attack],
        command: impl Fn() -> Command,
    ) -> Results {
        let mut results = Results::new();
        for (part, attacks) in attacks.chunks(30).enumerate() {
            let scripts = self.path(&format!("scripts.{group}.{part}"));
            std::fs::create_dir(&scripts).expect("a directory");
            for (number, attack) in attacks.iter().enumerate() {
                let name = format!("{group}.{part}.{number:02}");
                std::fs::write(scripts.join(name), attack.script()).expect("a file");
            }
            let done = self.run(command(), &scripts);
            let ended = endings(&done);
            for (number, attack) in attacks.iter().enumerate() {
                let ended = ended.get(&format!("{group}.{part}.{number:02}"));
                let ended = ended.unwrap_or_else(|| panic!("{}: {done}", attack.name));
                results.insert(attack.name, ended.clone());
            }
        }
        results
    }

    fn run(&self, mut command: Command, scripts: &Path) -> Done {
        command
            .env_clear()
            .env("PATH", "/usr/local/bin:/usr/bin:/bin")
            .env("LC_ALL", "C.UTF-8")
            .env("PYTHONDONTWRITEBYTECODE", "1")
            .env("EXECGATE_LOG", "warn,execgate::sandbox=error")
            .env("EXECGATE_POLICY_TOKEN_FILE", self.path("outside/token"))
            .envs(self.variables.iter().map(|(name, value)| (name, value)))
            .env("SCRIPTS", scripts)
            .current_dir(self.path("work"));
        process::run(&mut command)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        process::signal(self.victim.id(), "TERM");
    }
}

/// Tries each script in a directory of its own, and says how it ended.
const DRIVER: &str = r#"
work=$PWD
for script in "$SCRIPTS"/*; do
    number=${script##*/}
    mkdir "$number" && cd "$number" || exit 1
    timeout --foreground -k 2 60 "$BASH" "$script" >"../$number.out" 2>&1 </dev/null
    status=$?
    cd "$work" || exit 1
    printf '\n<%s %s\n' "$number" "$status"
    head -1 "$script"
    tail -c 1500 "$number.out"
done
"#;

fn endings(done: &Done) -> BTreeMap<String, Ended> {
    let output = done.exits(0).output();
    let sections = output.split("\n<").skip(1);
    let read = |section: &str| {
        let (head, output) = section.split_once('\n')?;
        let (number, status) = head.split_once(' ')?;
        let ended = Ended {
            status: status.parse().ok()?,
            output: output.to_owned(),
        };
        Some((number.to_owned(), ended))
    };
    sections.filter_map(read).collect()
}

impl Sockets {
    /// Services that tell the secret to whoever asks.
    fn open(root: &Path, variables: &mut Vec<(&'static str, String)>) -> Self {
        use std::os::linux::net::SocketAddrExt;
        use std::os::unix::net::SocketAddr;

        let tcp = TcpListener::bind("127.0.0.1:0").expect("a port");
        let udp = UdpSocket::bind("127.0.0.1:0").expect("a port");
        let name = format!("execgate-attack-{}", root.display());
        let stream = SocketAddr::from_abstract_name(&name).expect("a name");
        let datagram = SocketAddr::from_abstract_name(format!("{name}-log")).expect("a name");
        let port = |address: std::io::Result<std::net::SocketAddr>| {
            address.expect("an address").port().to_string()
        };
        variables.extend([
            ("TCP", port(tcp.local_addr())),
            ("UDP", port(udp.local_addr())),
            ("ABSTRACT", name),
        ]);
        let streams = [
            UnixListener::bind(root.join("outside/bus")).expect("a socket"),
            UnixListener::bind_addr(&stream).expect("a socket"),
        ];
        let log = UnixDatagram::bind(root.join("outside/log")).expect("a socket");
        for name in ["outside/bus", "outside/log"] {
            std::fs::set_permissions(root.join(name), PermissionsExt::from_mode(0o777))
                .expect("a mode");
        }
        std::thread::spawn(move || {
            for mut stream in tcp.incoming().flatten() {
                let _ = stream.write_all(SECRET.as_bytes());
            }
        });
        for listener in streams {
            std::thread::spawn(move || {
                for mut stream in listener.incoming().flatten() {
                    let _ = stream.write_all(SECRET.as_bytes());
                }
            });
        }
        std::thread::spawn(move || {
            while let Ok((_, from)) = udp.recv_from(&mut [0; 64]) {
                let _ = udp.send_to(SECRET.as_bytes(), from);
            }
        });
        Self {
            _log: log,
            _hidden: UnixDatagram::bind_addr(&datagram).expect("a socket"),
        }
    }
}

/// Compiles what isn't in a scripting language.
fn compile(root: &Path) {
    let programs = repository().join("tests/attack/programs");
    for (source, options) in [
        ("preloaded.c", &["-shared", "-fPIC"][..]),
        ("identity.c", &[]),
        ("old_calls.c", &[]),
    ] {
        let name = source.trim_end_matches(".c");
        let mut command = Command::new("cc");
        command
            .args(options)
            .arg("-o")
            .arg(root.join("bin").join(name))
            .arg(programs.join(source))
            .stdin(Stdio::null());
        process::run(&mut command).exits(0);
    }
}

/// Makes all but the policy service's the session's user's.
fn give(path: &Path) {
    if path.ends_with("service") {
        return;
    }
    chown(path, Some(NOBODY), Some(NOBODY)).expect("an owner");
    if path.is_dir() {
        let mode = if path.ends_with("journal") {
            0o700
        } else {
            0o755
        };
        std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).expect("a mode");
        for entry in std::fs::read_dir(path).expect("a directory") {
            give(&entry.expect("an entry").path());
        }
    }
}
