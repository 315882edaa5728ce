//! Events that outlive their gate: kills, services that aren't there, disks that are full or broken.

use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::disk::Disk;
use crate::gate::{Gate, verdicts};
use crate::machine::{Shell, in_both_shells, in_shell};
use crate::process::{self, Done, EXECGATE, wait_until};

in_both_shells! {
    what_a_killed_gate_had_not_delivered_the_next_delivers,
    what_a_service_did_not_take_the_next_gate_delivers,
    a_doctor_says_what_is_in_a_journal_and_changes_nothing,
}

const RULES: &str = "fallback(\"run\")";

fn with_journal(gate: Gate) -> Gate {
    let journal = gate.path("journal");
    let journal = journal.to_str().expect("text").to_owned();
    gate.option(["--journal", &journal])
}

fn files(directory: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(directory).expect("a directory");
    entries
        .map(|entry| entry.expect("an entry").path())
        .collect()
}

/// Each session's end, once.
fn ends(gate: &Gate) -> Vec<String> {
    let query = "SELECT coalesce(end_reason, 'none') FROM sessions ORDER BY rowid";
    rows(gate, query)
}

/// Sessions whose events aren't one unbroken history from its beginning to its end. The first event
/// isn't sent again by contract, so that it may be missing.
fn broken(gate: &Gate) -> Vec<String> {
    rows(
        gate,
        "SELECT session_id || ': ' || count(sequence) || ' of ' || max(sequence) || ', end at ' ||
             coalesce((SELECT group_concat(sequence) FROM events AS e
                       WHERE e.session_id = events.session_id AND kind = 'session-ended'), 'none')
         FROM events GROUP BY session_id
         HAVING count(sequence) + (min(sequence) = 2) <> max(sequence) OR min(sequence) > 2
             OR max(sequence) <> (SELECT max(sequence) FROM events AS e
                 WHERE e.session_id = events.session_id AND kind = 'session-ended')",
    )
}

fn rows(gate: &Gate, query: &str) -> Vec<String> {
    let store = execgate::policyd::store::open_for_reading(&gate.path("data")).expect("a store");
    let mut statement = store.prepare(query).expect("a query");
    let rows = statement.query_map([], |row| row.get(0)).expect("rows");
    rows.map(|row| row.expect("a row")).collect()
}

fn what_a_killed_gate_had_not_delivered_the_next_delivers(shell: &Shell) {
    let gate = with_journal(Gate::with_rules_on_a_socket(shell, RULES).option([
        "--on-unavailable",
        "run",
        "--verdict-timeout",
        "500ms",
    ]));
    let mut running =
        gate.start("/bin/true; echo ready; read -r go; /bin/echo alone; echo done; read -r go");
    running.wait_for("ready");
    gate.kill_policyd();
    running.tell("go");
    running.wait_for("done");
    // The command's end is told as well.
    let journal = gate.path("journal");
    wait_until("a file", || !files(&journal).is_empty());
    std::thread::sleep(std::time::Duration::from_millis(300));
    running.signal("KILL");
    drop(running);
    assert!(!files(&journal).is_empty());

    gate.restart_policyd();
    gate.exec("/bin/echo next")
        .exits(0)
        .prints("next\n")
        .says_nothing();
    let execs = gate.audit();
    let alone = execs.iter().filter(|exec| exec.0["argv"][1] == "alone");
    let alone: Vec<_> = alone.collect();
    assert_eq!(alone.len(), 1, "{execs:?}");
    assert_eq!(alone[0].text("verdict"), "run");
    assert_eq!(alone[0].text("code"), "unreachable");
    assert!(!alone[0].text("finished_at").is_empty(), "{execs:?}");
    // Nobody waited for a verdict any more.
    assert_eq!(alone[0].0["answered"]["times"], 0, "{execs:?}");
    let mut ends = ends(&gate);
    ends.sort_unstable();
    assert_eq!(ends, ["completed", "gate-failed"]);
    assert_eq!(broken(&gate), Vec::<String>::new());
    assert_eq!(files(&journal), Vec::<PathBuf>::new());
}

fn what_a_service_did_not_take_the_next_gate_delivers(shell: &Shell) {
    let gate = with_journal(Gate::with_rules_on_a_socket(shell, RULES).option([
        "--on-unavailable",
        "run",
        "--verdict-timeout",
        "300ms",
    ]));
    gate.kill_policyd();
    for number in 0..3 {
        gate.exec(format!("/bin/echo {number}"))
            .exits(0)
            .prints(&format!("{number}\n"));
    }
    assert_eq!(files(&gate.path("journal")).len(), 3);
    gate.restart_policyd();
    gate.exec("/bin/true").exits(0).says_nothing();
    let mut execs = verdicts(&gate.audit());
    execs.sort_unstable();
    assert_eq!(execs, ["echo run", "echo run", "echo run", "true run"]);
    assert_eq!(ends(&gate), ["completed"; 4]);
    assert_eq!(broken(&gate), Vec::<String>::new());
    assert_eq!(files(&gate.path("journal")), Vec::<PathBuf>::new());
}

/// Gates at once and in a row, and one that lives through all of them: a file is its gate's until that is
/// no more, and each session is delivered once and whole.
#[test]
fn many_gates_share_a_journal() {
    in_shell("bash", |shell| {
        let gate = with_journal(Gate::with_rules_on_a_socket(shell, RULES).option([
            "--on-unavailable",
            "run",
            "--verdict-timeout",
            "300ms",
        ]));
        let mut alive = gate.start("/bin/true; echo ready; read -r go; /bin/echo last");
        alive.wait_for("ready");
        gate.kill_policyd();
        for _ in 0..2 {
            let started: Vec<_> = (0..4).map(|_| gate.start("/bin/true; /bin/true")).collect();
            for running in started {
                running.done().exits(0);
            }
        }
        // One that was killed amidst.
        let mut killed = gate.start("/bin/true; echo ready; read -r go");
        killed.wait_for("ready");
        killed.signal("KILL");
        drop(killed);
        assert_eq!(
            files(&gate.path("journal"))
                .iter()
                .filter(|path| path.extension().is_some_and(|it| it == "sqlite"))
                .count(),
            10
        );
        gate.restart_policyd();
        let started: Vec<_> = (0..4).map(|_| gate.start("/bin/true")).collect();
        for running in started {
            running.done().exits(0).says_nothing();
        }
        // What was being delivered when its gate ended is there still, and the one that lives has a look.
        wait_until("all is delivered", || {
            ends(&gate).iter().filter(|end| *end == "completed").count() == 12
        });
        alive.tell("go");
        alive.done().exits(0);
        assert_eq!(
            ends(&gate)
                .iter()
                .filter(|end| *end == "gate-failed")
                .count(),
            1
        );
        assert_eq!(ends(&gate).len(), 14);
        assert_eq!(broken(&gate), Vec::<String>::new());
        wait_until("nothing is left", || {
            gate.exec("/bin/true").exits(0);
            files(&gate.path("journal")).is_empty()
        });
        assert_eq!(
            rows(&gate, "SELECT session_id FROM losses"),
            Vec::<String>::new()
        );
    });
}

#[test]
fn a_journal_that_is_not_its_users_alone_is_refused() {
    in_shell("bash", |shell| {
        let gate = with_journal(Gate::with_rules(shell, RULES));
        let journal = gate.path("journal");
        let elsewhere = gate.path("elsewhere");
        std::fs::create_dir(&elsewhere).expect("a directory");
        std::fs::set_permissions(&elsewhere, PermissionsExt::from_mode(0o700)).expect("a mode");
        symlink(&elsewhere, &journal).expect("a link");
        gate.exec("/bin/true").exits(125).says("a symbolic link");
        std::fs::remove_file(&journal).expect("a link");
        std::fs::write(&journal, "").expect("a file");
        gate.exec("/bin/true").exits(125).says("is a file");
        std::fs::remove_file(&journal).expect("a file");
        std::fs::create_dir(&journal).expect("a directory");
        std::fs::set_permissions(&journal, PermissionsExt::from_mode(0o750)).expect("a mode");
        gate.exec("/bin/true")
            .exits(125)
            .says("open to other users (mode 0750)")
            .says("chmod 700");
        std::fs::remove_dir(&journal).expect("a directory");
        let mut running = gate.start("/bin/true; echo ready; read -r go");
        running.wait_for("ready");
        let mode = |path: &Path| {
            std::fs::metadata(path)
                .expect("a file")
                .permissions()
                .mode()
                & 0o7777
        };
        assert_eq!(mode(&journal), 0o700);
        for file in files(&journal) {
            assert_eq!(mode(&file), 0o600, "{}", file.display());
        }
        running.tell("go");
        running.done().exits(0).says_nothing();
        Gate::with_rules(shell, RULES)
            .option(["--audit", "strict"])
            .exec("/bin/true")
            .exits(125)
            .says("--audit strict needs a journal");
    });
}

#[test]
fn what_cannot_be_read_is_set_aside_and_said() {
    in_shell("bash", |shell| {
        let gate = with_journal(Gate::with_rules(shell, RULES));
        let journal = gate.path("journal");
        gate.exec("/bin/true").exits(0).says_nothing();
        let name = format!("gate-{}.sqlite", "0".repeat(32));
        std::fs::write(
            journal.join(&name),
            "SQLite format 3\0 and then garbage ".repeat(500),
        )
        .expect("a file");
        let done = gate.exec("/bin/true; /bin/sleep 0.2");
        done.exits(0).says("can't be read").says("set aside");
        assert_eq!(files(&journal), [journal.join(format!("{name}.corrupt"))]);
        gate.exec("/bin/true").exits(0).says_nothing();
    });
}

/// A service that is away, a journal that can't grow any more, and what the owner has chosen for that.
fn cannot_grow(
    gate: &Gate,
    start: impl FnOnce(&str) -> process::Running,
    fill: impl FnOnce(),
    make_room: Option<&dyn Fn()>,
    expected: &str,
) {
    let mut running = start(
        "/bin/true; echo begin; read -r go; \
         /bin/echo $(/usr/bin/head -c 100000 /dev/zero | /usr/bin/tr '\\0' x) | /usr/bin/wc -c; \
         echo ready; read -r go; /bin/echo refused; echo $?; echo again; read -r go; /bin/echo run",
    );
    running.wait_for("begin");
    gate.policyd(|policyd| policyd.signal("STOP"));
    fill();
    running.tell("go");
    running.wait_for("ready");
    wait_until("trouble", || {
        running.stderr().contains("events can't be kept: ")
    });
    running.tell("go");
    running.wait_for("again");
    let output = running.stdout();
    assert!(
        output.contains(expected),
        "{output:?}: {:?}",
        running.stderr()
    );
    if expected.starts_with("1\n") {
        let denial = "Execution denied: events can't be kept: ";
        assert!(running.stderr().contains(denial), "{:?}", running.stderr());
    }
    if let Some(make_room) = make_room {
        make_room();
        wait_until("room", || {
            running.stderr().contains("events are being kept again")
        });
    }
    gate.policyd(|policyd| policyd.signal("CONT"));
    running.tell("go");
    let done = running.done();
    if make_room.is_some() {
        assert!(done.output().ends_with("again\nrun\n"), "{done}");
    }
}

fn options(gate: Gate, audit: &str) -> Gate {
    with_journal(gate).option([
        "--on-unavailable",
        "run",
        "--verdict-timeout",
        "200ms",
        "--audit",
        audit,
    ])
}

/// A limit on the size of files is a disk that is full, and a signal besides.
#[test]
fn a_journal_that_cannot_grow_refuses_execs_or_goes_on_as_the_owner_has_chosen() {
    in_shell("bash", |shell| {
        for (audit, expected) in [("strict", "1\nagain"), ("best-effort", "refused\n0\nagain")] {
            let gate = options(Gate::with_rules(shell, RULES), audit);
            let start = |script: &str| {
                let gated = gate.command(script);
                let mut command = Command::new("bash");
                command
                    .args(["-c", "ulimit -f 90; exec \"$@\"", "limited"])
                    .arg(gated.get_program())
                    .args(gated.get_args());
                gate.settle(&mut command);
                process::Running::start(&mut command)
            };
            cannot_grow(&gate, start, || {}, None, expected);
            if audit == "strict" {
                let code = "SELECT code FROM execs WHERE action = 'deny'";
                assert!(rows(&gate, code).contains(&"unrecorded".to_owned()));
            }
        }
    });
}

#[test]
fn a_disk_that_is_full_is_no_place_for_a_journal_until_there_is_room() {
    in_shell("bash", |shell| {
        for (audit, expected) in [("strict", "1\nagain"), ("best-effort", "refused\n0\nagain")] {
            let gate = options(Gate::with_rules(shell, RULES), audit);
            let Some(disk) = Disk::mount(gate.path("journal"), "size=300k,mode=0700") else {
                eprintln!("not tested: mounting takes privileges");
                return;
            };
            cannot_grow(
                &gate,
                |script| gate.start(script),
                || disk.fill(),
                Some(&|| disk.make_room()),
                expected,
            );
        }
    });
}

#[test]
fn a_disk_that_cannot_be_written_has_no_strict_gate_start() {
    in_shell("bash", |shell| {
        let gate = with_journal(Gate::with_rules(shell, RULES));
        let Some(_disk) = Disk::mount(gate.path("journal"), "ro,mode=0700") else {
            eprintln!("not tested: mounting takes privileges");
            return;
        };
        gate.exec("/bin/echo run")
            .exits(0)
            .prints("run\n")
            .says("this gate has no journal");
        let gate = gate.option(["--audit", "strict"]);
        gate.exec("/bin/echo run")
            .exits(125)
            .prints("")
            .says("ead-only file system");
    });
}

/// Files in memory of gates that use a journal.
fn tails(journal: &Path) -> Vec<PathBuf> {
    let numbers: Vec<_> = files(journal)
        .iter()
        .filter_map(|file| {
            let name = file.file_name()?.to_str()?;
            Some(
                name.strip_prefix("gate-")?
                    .strip_suffix(".sqlite")?
                    .to_owned(),
            )
        })
        .collect();
    let in_memory = files(Path::new("/dev/shm")).into_iter();
    in_memory
        .filter(|file| {
            let name = file.to_string_lossy();
            numbers.iter().any(|number| name.contains(number))
        })
        .collect()
}

/// The journal's thread gets nothing onto its disk, the service answers nothing, and both are killed: what ran
/// meanwhile is on record nevertheless.
#[test]
fn what_was_decided_is_kept_though_gate_and_service_are_killed_before_the_journal_has_it() {
    in_shell("bash", |shell| {
        let gate = options(Gate::with_rules_on_a_socket(shell, RULES), "best-effort");
        let journal = gate.path("journal");
        let Some(disk) = Disk::mount(journal.clone(), "size=300k,mode=0700") else {
            eprintln!("not tested: mounting takes privileges");
            return;
        };
        let mut running = gate.start(
            "/bin/true; echo begin; read -r go; \
             /bin/echo $(/usr/bin/head -c 100000 /dev/zero | /usr/bin/tr '\\0' x) | /usr/bin/wc -c; \
             /bin/echo one; /bin/false; /bin/echo two; echo done; read -r go",
        );
        running.wait_for("begin");
        gate.policyd(|policyd| policyd.signal("STOP"));
        disk.fill();
        running.tell("go");
        running.wait_for("done");
        wait_until("trouble", || {
            running.stderr().contains("events can't be kept: ")
        });
        let in_memory = tails(&journal).len();
        running.signal("KILL");
        gate.kill_policyd();
        assert!(running.stdout().contains("one\ntwo\ndone\n"));
        drop(running);
        disk.make_room();

        gate.restart_policyd();
        gate.exec("/bin/echo next")
            .exits(0)
            .prints("next\n")
            .says_nothing();
        let execs = gate.audit();
        let of_both = ["one", "two"].map(|argument| {
            let mut those = execs.iter().filter(|exec| exec.0["argv"][1] == argument);
            let exec = those
                .next()
                .unwrap_or_else(|| panic!("{argument}: {execs:?}"));
            assert!(those.next().is_none(), "{execs:?}");
            assert_eq!(
                (exec.text("verdict"), exec.text("code")),
                ("run", "timed-out")
            );
            exec
        });
        assert!(!of_both[0].text("finished_at").is_empty(), "{execs:?}");
        assert_eq!(broken(&gate), Vec::<String>::new());
        assert_eq!(
            rows(&gate, "SELECT session_id FROM losses"),
            Vec::<String>::new()
        );
        let mut ends = ends(&gate);
        ends.sort_unstable();
        assert_eq!(ends, ["completed", "gate-failed"]);
        assert_eq!(files(&journal), Vec::<PathBuf>::new());
        assert_eq!((in_memory, tails(&journal).len()), (2, 0));
    });
}

/// The programs as they are installed, so that a doctor finds nothing else to see to.
struct Installed(tempfile::TempDir);

impl Installed {
    fn new(shell: &Shell) -> Self {
        let place = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory");
        let libexec = place.path().join("libexec/execgate");
        std::fs::create_dir_all(place.path().join("bin")).expect("a directory");
        std::fs::create_dir_all(&libexec).expect("a directory");
        // The same file, because it looks for the others beside its real place.
        std::fs::hard_link(EXECGATE, place.path().join("bin/execgate")).expect("a link");
        let wrapper = crate::process::WRAPPER;
        symlink(wrapper, libexec.join("execgate-wrapper")).expect("a link");
        symlink(&shell.path, libexec.join("bash")).expect("a link");
        Self(place)
    }

    fn doctor(&self, journal: &Path) -> Done {
        let mut command = Command::new(self.0.path().join("bin/execgate"));
        command
            .args(["doctor", "--output", "json", "--journal"])
            .arg(journal)
            .env_remove("EXECGATE_POLICY");
        process::run(&mut command)
    }
}

/// `SUBJECT STATUS DETAIL` of what was found in a journal.
fn found(done: &Done) -> Vec<String> {
    let json: serde_json::Value = serde_json::from_slice(&done.stdout).expect("JSON");
    let findings = json["findings"].as_array().expect("findings");
    let text = |finding: &serde_json::Value, field: &str| {
        finding[field].as_str().expect("text").to_owned()
    };
    findings
        .iter()
        .map(|finding| {
            ["subject", "status", "detail"]
                .map(|field| text(finding, field))
                .join(" ")
        })
        .filter(|line| line.starts_with("journal"))
        .collect()
}

fn a_doctor_says_what_is_in_a_journal_and_changes_nothing(shell: &Shell) {
    let installed = Installed::new(shell);
    let gate = with_journal(Gate::with_rules_on_a_socket(shell, RULES).option([
        "--on-unavailable",
        "run",
        "--verdict-timeout",
        "200ms",
    ]));
    let journal = gate.path("journal");
    let done = installed.doctor(&journal);
    assert!(
        found(done.exits(0))[0].contains("isn't there yet"),
        "{done}"
    );
    assert!(!journal.exists());

    // One gate is killed, and another lives.
    let mut killed = gate.start("echo ready; read -r go; /bin/echo alone; echo done; read -r go");
    killed.wait_for("ready");
    gate.kill_policyd();
    killed.tell("go");
    killed.wait_for("done");
    wait_until("events on disk", || {
        let log = files(&journal);
        let mut logs = log
            .iter()
            .filter(|file| file.extension().is_some_and(|end| end == "sqlite-wal"));
        logs.any(|log| std::fs::metadata(log).is_ok_and(|log| log.len() > 0))
    });
    std::thread::sleep(std::time::Duration::from_millis(300));
    killed.signal("KILL");
    drop(killed);
    let before = contents(&journal);
    let done = installed.doctor(&journal);
    let lines = found(done.exits(0));
    assert!(lines[0].contains("no gate uses it now"), "{done}");
    assert!(
        lines[1].starts_with("journal events weak gates that are no more have left ")
            && lines[1].contains(" events of 1 sessions, in 1 files; the oldest was last written "),
        "{done}"
    );
    assert!(lines[3].starts_with("journal room good "), "{done}");
    let memory = "journal memory good what gates tell last outlives them in /dev/shm";
    assert_eq!(lines[4], memory, "{done}");
    assert_eq!(lines.len(), 5, "{done}");
    assert_eq!(contents(&journal), before, "it has changed something");

    // What can't be read, and what was set aside, somebody has to see to.
    let broken = journal.join(format!("gate-{:032x}.sqlite", 1));
    std::fs::write(
        &broken,
        "no database, and longer than a header of one would be".repeat(4),
    )
    .expect("a file");
    std::fs::write(journal.join(format!("gate-{:032x}.sqlite.corrupt", 2)), "x").expect("a file");
    let before = contents(&journal);
    let done = installed.doctor(&journal);
    let lines = found(done.exits(1));
    assert!(
        lines[5]
            .starts_with("journal file broken what a gate that is no more has left can't be read"),
        "{done}"
    );
    assert!(lines[6].contains(".sqlite.corrupt was set aside"), "{done}");
    assert_eq!(contents(&journal), before, "it has changed something");
    std::fs::remove_file(&broken).expect("a file");

    gate.restart_policyd();
    let mut lives = gate.start("echo ready; read -r go");
    lives.wait_for("ready");
    wait_until("the delivery", || {
        let done = installed.doctor(&journal);
        let lines = found(&done);
        lines[0].contains("one gate uses it now") && lines[1].ends_with("have left nothing")
    });
    lives.tell("go");
    lives.done().exits(0);
    // What the killed gate had told, and not delivered, was still there.
    assert_eq!(self::broken(&gate), Vec::<String>::new());

    for (change, said) in [
        (0o755, "is open to other users"),
        (0o700, "no gate uses it now"),
    ] {
        std::fs::set_permissions(&journal, std::fs::Permissions::from_mode(change)).expect("set");
        let done = installed.doctor(&journal);
        assert!(found(&done)[0].contains(said), "{done}");
    }
}

/// Names and bytes of all files.
fn contents(directory: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let mut files = files(directory);
    files.sort_unstable();
    files
        .into_iter()
        .map(|file| {
            let bytes = std::fs::read(&file).expect("a file");
            (file, bytes)
        })
        .collect()
}
