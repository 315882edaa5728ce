//! What a session leaves behind where it has processes of several users, by who the gate is.
//!
//! Only root can set that up; elsewhere these tests are skipped, and say so.

use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::{Command, Stdio};

use crate::endings::{kill, marked, nothing_left, until};
use crate::gates::Service;
use crate::harness::{Place, Shell, VERDICTS, shells, spawn, wait};
use crate::support::text;

/// Who owns nothing: `nobody`.
const NOBODY: u32 = 65534;

/// A gate, started as a user by way of `setpriv`, that tells all.
fn gate_as(user: u32, service: &Service, shell: Shell, place: &Place, script: &str) -> Command {
    let gate = service.gate("exec", shell, &place.work());
    let mut command = as_user(user, gate.get_program().as_ref());
    command
        .args(["--log", "info"])
        .args(gate.get_args())
        .args(["--no-login", "--", script])
        .env_clear()
        .env("PATH", "/usr/bin:/bin")
        .env("MARK", place.work())
        .current_dir(place.work())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

fn as_user(user: u32, program: &Path) -> Command {
    let user = user.to_string();
    let mut command = Command::new("setpriv");
    command
        .args(["--reuid", &user, "--regid", &user, "--clear-groups", "--"])
        .arg(program);
    command
}

/// Whether this can be tested: processes of two users are to be had, and both can use what was built.
fn is_possible() -> bool {
    let program = Path::new(env!("CARGO_BIN_EXE_execgate"));
    let possible = execgate::sys::host::user().id == 0
        && as_user(NOBODY, program)
            .arg("--version")
            .stdout(Stdio::null())
            .status()
            .is_ok_and(|status| status.success());
    if !possible {
        eprintln!("SKIPPED: only root can start processes of several users");
    }
    possible
}

/// Makes the place and the service in it everybody's, and puts a program there that makes whoever
/// starts it root.
fn open(place: &Place) {
    let work = place.work();
    let become_root = work.join("become-root");
    std::fs::copy("/usr/bin/setpriv", &become_root).unwrap();
    for (path, mode) in [
        (work.parent().unwrap(), 0o755),
        (&work, 0o777),
        (&work.join("policy.sock"), 0o666),
        (&become_root, 0o4755),
    ] {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    }
}

#[tokio::test]
async fn an_ordinary_users_gate_says_what_it_cannot_end_and_ends_the_rest() {
    if !is_possible() {
        return;
    }
    for verdict in VERDICTS {
        // As a job too, of which the supervisor has a witness.
        let cases = shells().into_iter().map(|shell| (shell, ""));
        let jobs = shells().contains(&Shell::Bash);
        let jobs = jobs.then_some((Shell::Bash, "set -m; "));
        for (shell, before) in cases.chain(jobs) {
            let place = Place::new();
            let service = Service::deciding(&verdict, &place);
            open(&place);
            let script = "/bin/sh -c 'setsid sleep 987 & \
                ./become-root --reuid 0 --regid 0 --clear-groups -- /bin/sh -c \"
                    trap : TERM; echo >ready; while :; do sleep 1; done\" >/dev/null 2>&1'; true";
            let script = format!("{before}{script}");
            let child = spawn(&mut gate_as(NOBODY, &service, shell, &place, &script));
            let ready = place.work().join("ready");
            until("the command never got ready", || ready.exists()).await;
            kill(child.id(), "TERM");
            let output = wait(child).await;
            let mark = place.work().display().to_string();
            let left = marked(&mark);
            let owners: Vec<_> = left
                .iter()
                .filter_map(|pid| Some(std::fs::metadata(format!("/proc/{pid}")).ok()?.uid()))
                .collect();
            for pid in left {
                // One of them may have ended by itself.
                let _ = Command::new("kill")
                    .args(["-KILL", &pid.to_string()])
                    .status();
            }
            nothing_left(&mark).await;
            assert_eq!(output.status.code(), Some(143), "{output:?}");
            assert!(!owners.is_empty() && owners.iter().all(|owner| *owner == 0));
            let log = text(&output.stderr);
            assert!(log.contains("but for processes of other users"), "{log}");
            assert!(log.contains("they are another user's"), "{log}");
        }
    }
}

#[tokio::test]
async fn roots_gate_ends_whatever_has_become_another_users() {
    if !is_possible() {
        return;
    }
    for verdict in VERDICTS {
        for shell in shells() {
            let place = Place::new();
            let service = Service::deciding(&verdict, &place);
            open(&place);
            let script = "/bin/sh -c 'trap \"\" TERM; \
                setsid setpriv --reuid 65534 --regid 65534 --clear-groups -- \
                    /bin/sh -c \"echo >ready; exec sleep 987\"'; true";
            let child = spawn(&mut gate_as(0, &service, shell, &place, script));
            let ready = place.work().join("ready");
            until("the command never got ready", || ready.exists()).await;
            kill(child.id(), "TERM");
            let output = wait(child).await;
            assert_eq!(output.status.code(), Some(143), "{output:?}");
            nothing_left(&place.work().display().to_string()).await;
            let log = text(&output.stderr);
            assert!(log.contains("by subreapers, whoever's it is"), "{log}");
            assert!(!log.contains("are left"), "{log}");
        }
    }
}

#[tokio::test]
async fn low_limits_of_an_ordinary_user() {
    if !is_possible() {
        return;
    }
    for shell in shells() {
        let mut scripts = vec![
            "(ulimit -u 1; exec /bin/echo x); echo $?",
            "(ulimit -u 1; exec /bin/sh -c '/bin/true; echo $?' 2>/dev/null); echo $?",
            "(ulimit -n 6; exec /bin/echo x); echo $?",
            "(ulimit -Sn 5; exec /bin/echo x); echo $?",
        ];
        if shell == Shell::Zsh {
            // bash tries to fork again for a quarter of a minute.
            scripts.push("ulimit -u 1; /bin/true; echo $?; exec /bin/echo x");
        }
        for script in scripts {
            let place = Place::new();
            let mut native = as_user(NOBODY, &shell.path());
            native
                .args(["-c", script])
                .env_clear()
                .env("PATH", "/usr/bin:/bin")
                .current_dir("/")
                .stdin(Stdio::null())
                .stdout(Stdio::piped())
                .stderr(Stdio::piped());
            let native = wait(spawn(&mut native)).await;
            for verdict in VERDICTS {
                let service = Service::deciding(&verdict, &place);
                open(&place);
                let gated =
                    wait(spawn(&mut gate_as(NOBODY, &service, shell, &place, script))).await;
                assert_eq!(
                    text(&gated.stdout),
                    text(&native.stdout),
                    "{script} {gated:?}"
                );
                assert_eq!(gated.status, native.status, "{script} {gated:?}");
            }
        }
    }
}
