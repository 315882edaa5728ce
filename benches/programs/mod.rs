//! Programs that the benchmarks start.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// A file of what `make build` makes.
pub fn dist(path: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("target/dist")
        .join(path);
    assert!(
        path.exists(),
        "{} is missing: `make build` makes it",
        path.display()
    );
    path
}

/// A service, and the URL where it is. Killed when dropped.
pub struct Served(pub Child, pub String);

impl Served {
    pub fn start(mut command: Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().unwrap())
            .read_line(&mut line)
            .unwrap();
        let address = line.trim().rsplit(' ').next().unwrap().to_owned();
        let address = address.trim_start_matches("http://").to_owned();
        Self(child, format!("http://{address}"))
    }

    /// `execgate-policyd` with the rules of the demo, and its store in the directory.
    pub fn policyd(directory: &Path) -> Self {
        let mut policyd = Command::new(dist("bin/execgate-policyd"));
        policyd.args(["--log", "warn", "--listen", "127.0.0.1:0", "--rules"]);
        policyd.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/rules/demo.rules.star"));
        policyd.arg("--data").arg(directory.join("data"));
        Self::start(policyd)
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
