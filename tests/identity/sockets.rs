//! Unix sockets: each end looks whose process the other is. What needs processes of another user needs
//! root, and says so where it isn't.

use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Command;

use execgate::link::LinkCredentials;
use execgate::model::DecisionCode;

use crate::credentials::{known_as, refused};
use crate::gate::Gate;
use crate::process::{self, Done, EXECGATE};
use crate::scenario;
use crate::service::{Place, Service};

/// A user that nobody is.
const STRANGER: u32 = 54_321;

fn own_user() -> u32 {
    execgate::sys::host::user().id
}

/// Whether processes of another user can be started here.
fn is_root() -> bool {
    let is_root = own_user() == 0;
    if !is_root {
        eprintln!("skipped: processes of another user can be started by root only");
        assert!(std::env::var_os("CI").is_none(), "CI runs this as root");
    }
    is_root
}

/// Copies of the programs where any user can execute them, and a directory for sockets.
struct Open(tempfile::TempDir);

impl Open {
    fn new() -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let mode = std::fs::Permissions::from_mode(0o777);
        std::fs::set_permissions(directory.path(), mode).expect("a mode");
        for (name, program) in [
            ("execgate", EXECGATE),
            ("policyd", env!("CARGO_BIN_EXE_execgate-policyd")),
        ] {
            std::fs::copy(program, directory.path().join(name)).expect("a copy");
        }
        std::fs::write(directory.path().join("x.rules"), crate::service::RULES).expect("a file");
        Self(directory)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn socket(&self) -> String {
        format!("unix:{}", self.path("s").display())
    }

    fn as_stranger(&self, program: &str) -> Command {
        let mut command = Command::new("setpriv");
        command
            .args(["--reuid", &STRANGER.to_string(), "--clear-groups", "--"])
            .arg(self.path(program));
        command
    }

    fn doctor(&self, options: &[&str]) -> Done {
        let mut command = self.as_stranger("execgate");
        command
            .args(["doctor", "--policy", &self.socket()])
            .args(options);
        process::run(command.env_clear().env("PATH", "/usr/bin:/bin"))
    }
}

#[tokio::test]
async fn a_gate_is_known_by_its_user() {
    scenario(async {
        let place = Place::new();
        let socket = format!("unix:{}", place.path("s").display());
        let _service = place.serve_at(&socket, &[]);
        let name = format!("uid:{}", own_user());
        known_as(&name, &socket, LinkCredentials::default()).await;
    })
    .await;
}

#[tokio::test]
async fn where_tokens_are_asked_for_a_user_is_not_enough() {
    scenario(async {
        let place = Place::new();
        let socket = format!("unix:{}", place.path("s").display());
        let tokens = place.tokens(&[("ci", "t")]);
        let _service = place.serve_at(&socket, &[&"--tokens", &tokens]);
        refused("none is shown", &socket, LinkCredentials::default()).await;
        let credentials = LinkCredentials {
            token: Some(place.secret("token", "t")),
            ..LinkCredentials::default()
        };
        known_as("token:ci", &socket, credentials).await;
    })
    .await;
}

#[tokio::test]
async fn a_service_takes_only_the_users_that_it_was_told_of() {
    if !is_root() {
        return;
    }
    scenario(async {
        let open = Open::new();
        let serve = |options: &[&str]| {
            let mut command = Command::new(open.path("policyd"));
            command.arg("--rules").arg(open.path("x.rules"));
            command.args(["--listen", &open.socket()]).args(options);
            Service::start(&mut command)
        };
        // Its socket isn't even to be opened by others.
        let service = serve(&[]);
        assert!(open.doctor(&[]).output().contains("Permission denied"));
        let all = std::fs::Permissions::from_mode(0o666);
        std::fs::set_permissions(open.path("s"), all).expect("a mode");
        let done = open.doctor(&[]);
        assert!(done.output().contains("missing policy service"), "{done}");
        assert!(
            done.output().contains("isn't one that may connect"),
            "{done}"
        );
        service.wait_for_log("a process of the user 54321").await;
        service.wait_for_log("isn't one that may connect").await;
        drop(service);

        let service = serve(&["--allow-uid", "54321"]);
        let done = open.doctor(&[]);
        assert!(done.output().contains("good    policy service"), "{done}");
        drop(service);

        // Those who can open the socket and weren't named are refused as before.
        let service = serve(&["--allow-uid", "54322"]);
        let done = open.doctor(&[]);
        assert!(done.output().contains("missing policy service"), "{done}");
        service.wait_for_log("isn't one that may connect").await;
    })
    .await;
}

#[tokio::test]
async fn a_gate_believes_only_a_service_of_a_user_that_it_trusts() {
    if !is_root() {
        return;
    }
    scenario(async {
        let open = Open::new();
        let mut command = open.as_stranger("policyd");
        command.arg("--rules").arg(open.path("x.rules"));
        command.args(["--listen", &open.socket()]);
        let _service = Service::start(&mut command);
        refused(
            "is a socket of the user 54321, which isn't trusted: only root",
            &open.socket(),
            LinkCredentials::default(),
        )
        .await;
        // Root is trusted by the service, and it by root once it is named.
        let gate = Gate::with(&open.socket(), |options| {
            options.credentials.service_uids = vec![1, STRANGER];
        });
        let reason = gate.ask(1).denied(DecisionCode::Verdict).await;
        assert_eq!(reason, "gate uid:0");
        // The stranger's own gate trusts it without being told.
        let done = open.doctor(&[]);
        assert!(done.output().contains("good    policy service"), "{done}");
    })
    .await;
}
