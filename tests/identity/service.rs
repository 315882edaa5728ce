//! The reference policy service as a process, with the credentials of a test.

use std::fmt::Write as _;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use execgate::link::CertificateFiles;
use sha2::{Digest, Sha256};

use crate::pki::{Authority, Validity, here, write_secret};
use crate::process::{PATIENCE, Running};

/// Tells who asks, in the reason of a denial.
pub(crate) const RULES: &str = "def decide(exec):\n    return deny(\"gate \" + exec.gate)\n";

/// Directory of one test.
pub(crate) struct Place(tempfile::TempDir);

impl Place {
    pub(crate) fn new() -> Self {
        let place = Self(tempfile::tempdir().expect("a directory"));
        std::fs::write(place.path("x.rules"), RULES).expect("a file");
        place
    }

    pub(crate) fn directory(&self) -> &Path {
        self.0.path()
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// A CA, and a certificate of it for this host.
    pub(crate) fn authority(&self) -> (Authority, CertificateFiles) {
        let ca = Authority::new(self.directory(), "ca");
        let host = ca.issue(self.directory(), "host", &here(), Validity::Now);
        (ca, host)
    }

    /// A file of tokens, each with its name.
    pub(crate) fn tokens(&self, tokens: &[(&str, &str)]) -> PathBuf {
        let path = self.path("tokens");
        let lines: Vec<_> = tokens
            .iter()
            .map(|(name, token)| format!("{name} {}\n", digest(token)))
            .collect();
        replace(&path, &lines.concat());
        path
    }

    pub(crate) fn secret(&self, name: &str, content: &str) -> PathBuf {
        let path = self.path(name);
        write_secret(&path, content);
        path
    }

    pub(crate) fn serve(&self, arguments: &[&dyn AsRef<std::ffi::OsStr>]) -> Service {
        self.serve_at("127.0.0.1:0", arguments)
    }

    /// One more beside those that are there: each has a record of its own.
    pub(crate) fn serve_beside(&self, arguments: &[&dyn AsRef<std::ffi::OsStr>]) -> Service {
        let data = tempfile::tempdir_in(self.directory()).expect("a directory");
        self.serve_with(&data.keep(), "127.0.0.1:0", arguments)
    }

    pub(crate) fn serve_at(
        &self,
        listen: &str,
        arguments: &[&dyn AsRef<std::ffi::OsStr>],
    ) -> Service {
        self.serve_with(&self.path("data"), listen, arguments)
    }

    fn serve_with(
        &self,
        data: &Path,
        listen: &str,
        arguments: &[&dyn AsRef<std::ffi::OsStr>],
    ) -> Service {
        let mut command = Command::new(env!("CARGO_BIN_EXE_execgate-policyd"));
        command.arg("--rules").arg(self.path("x.rules"));
        command.arg("--data").arg(data);
        command.arg("--listen").arg(listen);
        command.args(arguments.iter().map(AsRef::as_ref));
        Service::start(&mut command)
    }

    /// What the store says to a query for one number.
    pub(crate) fn count(&self, query: &str) -> i64 {
        execgate::policyd::store::open_for_reading(&self.path("data"))
            .expect("a store")
            .query_row(query, [], |row| row.get(0))
            .expect("a number")
    }
}

fn replace(path: &Path, content: &str) {
    let beside = path.with_extension("new");
    std::fs::write(&beside, content).expect("a file");
    std::fs::rename(&beside, path).expect("renamed");
}

pub(crate) fn digest(token: &str) -> String {
    let digest = Sha256::digest(token.as_bytes());
    digest.iter().fold(String::new(), |mut text, byte| {
        write!(text, "{byte:02x}").expect("text");
        text
    })
}

/// The options of a service that speaks TLS.
pub(crate) fn tls(files: &CertificateFiles) -> [&dyn AsRef<std::ffi::OsStr>; 4] {
    [&"--tls-cert", &files.certificate, &"--tls-key", &files.key]
}

/// The options of one that has gates show certificates of this CA, too.
pub(crate) fn mutual<'a>(
    files: &'a CertificateFiles,
    client_ca: &'a dyn AsRef<std::ffi::OsStr>,
) -> Vec<&'a dyn AsRef<std::ffi::OsStr>> {
    let mut options = tls(files).to_vec();
    options.extend([&"--client-ca" as &dyn AsRef<_>, client_ca]);
    options
}

pub(crate) struct Service {
    running: Running,
    /// As it says where it listens.
    pub(crate) address: String,
}

impl Service {
    pub(crate) fn start(command: &mut Command) -> Self {
        command.env_clear().process_group(0);
        let mut running = Running::start(command);
        running.wait_for("\n");
        let line = running.stdout();
        let address = line.trim_end().strip_prefix("listening on ");
        let address = address.unwrap_or_else(|| panic!("{line:?}"));
        Self {
            address: address.to_owned(),
            running,
        }
    }

    pub(crate) fn http(&self) -> String {
        format!("http://{}", self.address)
    }

    pub(crate) fn https(&self) -> String {
        format!("https://{}", self.address)
    }

    pub(crate) fn signal(&self, name: &str) {
        self.running.signal(name);
    }

    /// Memory that it occupies.
    pub(crate) fn resident_kib(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.running.id()));
        let status = status.expect("it is running");
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let number = line.and_then(|line| line.split_whitespace().next());
        number.expect("a number").parse().expect("a number")
    }

    pub(crate) fn log(&self) -> String {
        self.running.stderr()
    }

    pub(crate) async fn wait_for_log(&self, text: &str) {
        let began = Instant::now();
        while !self.log().contains(text) {
            assert!(
                began.elapsed() < PATIENCE / 4,
                "no {text:?} in:\n{}",
                self.log()
            );
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}
