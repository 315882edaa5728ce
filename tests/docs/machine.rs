//! A machine that a page's commands are run on.

use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::page::{Block, Content, How, is_as_shown};
use crate::repository;

/// Nothing takes this long unless it hangs.
const PATIENCE: Duration = Duration::from_secs(90);

/// Namespaces, and a shell in them. Everything in them ends with it.
pub(crate) struct Machine {
    page: String,
    scratch: TempDir,
    shell: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    count: usize,
}

impl Machine {
    /// `None` where there can't be any: without root, or without the installed form.
    pub(crate) fn for_page(page: &str) -> Option<Self> {
        let lacking = if !is_root() {
            "root, to mount what the pages name"
        } else if !repository()
            .join("target/dist/libexec/execgate/bash")
            .is_file()
        {
            "the patched shells: `make build`"
        } else if !repository().join("target/python/installed").is_file() {
            "grpcio in target/python: `make python`"
        } else {
            ""
        };
        if !lacking.is_empty() {
            assert!(std::env::var_os("CI").is_none(), "{lacking}");
            eprintln!("\n*** SKIPPED, nothing of {page} was run: it takes {lacking}\n");
            return None;
        }
        // Not in /tmp, which sandboxes hide.
        let scratch = TempDir::new_in("/var/tmp").expect("a directory");
        std::fs::create_dir(scratch.path().join("upper")).expect("a directory");
        let errors = std::fs::File::create(scratch.path().join("machine.log")).expect("a file");
        // Whoever runs the tests in the background has SIGINT ignored, and pages end what they began by it.
        let mut shell = Command::new("env")
            .args(["--default-signal=INT", "unshare"])
            .args([
                "--mount",
                "--net",
                "--pid",
                "--fork",
                "--kill-child",
                "--mount-proc",
            ])
            .arg("bash")
            .arg(repository().join("tests/docs/machine.sh"))
            .arg(scratch.path())
            .arg(repository())
            .arg(env!("CARGO_BIN_EXE_execgate"))
            .arg(env!("CARGO_BIN_EXE_execgate-policyd"))
            .env_clear()
            .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(errors)
            .spawn()
            .expect("unshare");
        let input = shell.stdin.take().expect("a pipe");
        let output = BufReader::new(shell.stdout.take().expect("a pipe"));
        let mut machine = Self {
            page: page.to_owned(),
            scratch,
            shell,
            input,
            output,
            count: 0,
        };
        assert_eq!(machine.answer(), "ready", "the machine doesn't start");
        Some(machine)
    }

    fn answer(&mut self) -> String {
        let mut line = String::new();
        let read = self.output.read_line(&mut line).expect("an answer");
        if read == 0 {
            let log = std::fs::read_to_string(self.scratch.path().join("machine.log"));
            panic!("{}: its machine is over: {log:?}", self.page);
        }
        line.trim_end().to_owned()
    }

    /// Does what a reader does with a block.
    pub(crate) fn follow(&mut self, block: &Block) {
        match &block.content {
            Content::Text | Content::NotRun(_) => {}
            Content::Commands => {
                let script = format!("trap 'page_failed=\"$BASH_COMMAND\"' ERR\n{}", block.text);
                let (answer, output) = self.run(&script);
                assert_eq!(
                    answer,
                    "done 0",
                    "{}\n{output}",
                    self.at(block, &block.text)
                );
            }
            Content::Dialogue(how) => {
                for exchange in block.exchanges() {
                    let at = self.at(block, &exchange.command);
                    let output = self.say(&exchange.command, &exchange.output, *how);
                    assert!(
                        is_as_shown(&exchange.output, &output),
                        "{at}\n-- shown --\n{}\n-- written --\n{output}--",
                        exchange.output.join("\n")
                    );
                }
            }
            Content::File { is_rules, path } => {
                let name = self.name();
                let kept = self.path(&name);
                std::fs::write(&kept, &block.text).expect("a file");
                let kept = kept.display();
                let place = path.clone().unwrap_or_else(|| format!("{kept}.rules.star"));
                // 2 says that the rules can't be used.
                let check = if *is_rules {
                    format!("execgate check --rules {place} -- true; test $? != 2")
                } else {
                    String::new()
                };
                let script = format!("cp {kept} {place}\n{check}");
                let (answer, output) = self.run(&script);
                assert_eq!(
                    answer,
                    "done 0",
                    "{}\n{output}",
                    self.at(block, &block.text)
                );
            }
        }
    }

    /// What a command of a dialogue writes, in the end.
    fn say(&mut self, command: &str, shown: &[String], how: How) -> String {
        let began = Instant::now();
        if let How::Background | How::Instead = how {
            let what = if how == How::Instead {
                "restart"
            } else {
                "start"
            };
            let (name, _) = self.ask(what, command);
            loop {
                let output = self.output_of(&name);
                if is_as_shown(shown, &output) || began.elapsed() > PATIENCE {
                    return output;
                }
                std::thread::sleep(Duration::from_millis(20));
            }
        }
        loop {
            let (answer, output) = self.run(command);
            let is_right = answer == "done 0" && is_as_shown(shown, &output);
            if is_right || how == How::Once || began.elapsed() > PATIENCE {
                let said = if answer == "done 0" { "" } else { &answer };
                return output + said;
            }
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// The machine's answer, and what was written.
    fn run(&mut self, script: &str) -> (String, String) {
        let (name, answer) = self.ask("run", script);
        (answer, self.output_of(&name))
    }

    fn ask(&mut self, what: &str, script: &str) -> (String, String) {
        let name = self.name();
        std::fs::write(self.path(&name), format!("{script}\n")).expect("a file");
        writeln!(self.input, "{what} {name}").expect("a machine");
        let answer = self.answer();
        (name, answer)
    }

    fn name(&mut self) -> String {
        self.count += 1;
        self.count.to_string()
    }

    fn path(&self, name: &str) -> PathBuf {
        self.scratch.path().join("blocks").join(name)
    }

    fn output_of(&self, name: &str) -> String {
        let output = std::fs::read(self.path(&format!("{name}.out"))).unwrap_or_default();
        String::from_utf8_lossy(&output).into_owned()
    }

    fn at(&self, block: &Block, text: &str) -> String {
        format!(
            "{}:{}: not as the page says:\n{text}",
            self.page, block.line
        )
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        let _ = self.shell.kill();
        let _ = self.shell.wait();
    }
}

fn is_root() -> bool {
    let id = Command::new("id").arg("-u").output().expect("id");
    id.stdout == b"0\n"
}
