//! What the README tells people to do between hosts, done.

use std::fs::Permissions;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::Path;
use std::process::Command;

use execgate::link::{CertificateFiles, LinkCredentials};

use crate::credentials::{known_as, refused};
use crate::process::{self, EXECGATE};
use crate::scenario;
use crate::service::{Place, tls};

fn make_certificates(directory: &Path) -> process::Done {
    let script = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/examples/identity/certificates.sh"
    );
    let mut command = Command::new(script);
    command.arg(directory);
    process::run(command.args(["policy.example", "gate-7.example"]))
}

/// A gate of an ordinary user reads the CA, the service's user the key that its group was given, and none loses that
/// when certificates are renewed.
#[test]
fn certificates_are_for_everybody_and_what_is_renewed_keeps_its_readers() {
    let place = Place::new();
    let directory = place.path("made/certificates");
    make_certificates(&directory).exits(0);
    let state = |name: &str| {
        let metadata = std::fs::metadata(directory.join(name)).expect("a file");
        (metadata.mode() & 0o7777, metadata.uid(), metadata.gid())
    };
    let mode = |name: &str| state(name).0;
    assert_eq!((mode("."), mode("..")), (0o755, 0o755));
    for name in ["ca", "policy.example", "gate-7.example"] {
        assert_eq!(mode(&format!("{name}.pem")), 0o644, "{name}");
        assert_eq!(mode(&format!("{name}.key")), 0o600, "{name}");
    }
    assert_eq!(std::fs::read_dir(&directory).expect("entries").count(), 6);

    let set = |name: &str, mode| {
        let permissions = Permissions::from_mode(mode);
        std::fs::set_permissions(directory.join(name), permissions).expect("a mode");
    };
    // Only root can give files away.
    if state(".").1 == 0 {
        for name in ["policy.example.key", "gate-7.example.pem"] {
            chown(directory.join(name), Some(7), Some(9)).expect("given away");
        }
    }
    set("policy.example.key", 0o640);
    set("gate-7.example.pem", 0o604);
    set(".", 0o750);
    let all = || {
        let names = std::fs::read_dir(&directory).expect("entries");
        let names = names.map(|entry| entry.expect("an entry").file_name());
        let mut all: Vec<_> = names
            .map(|name| {
                let state = state(name.to_str().expect("text"));
                let content = std::fs::read(directory.join(&name)).expect("a file");
                (name, state, content)
            })
            .collect();
        all.sort();
        all
    };
    let (before, around) = (all(), state("."));
    make_certificates(&directory).exits(0);
    let after = all();
    assert_eq!((state("."), after.len()), (around, before.len()));
    for ((name, state, content), (_, state_now, content_now)) in before.iter().zip(&after) {
        assert_eq!(state, state_now, "{}", name.display());
        let is_ca = name.to_str().is_some_and(|name| name.starts_with("ca."));
        assert_eq!(content == content_now, is_ca, "{}", name.display());
    }

    // Where the key is kept elsewhere, no other CA takes its place.
    std::fs::remove_file(directory.join("ca.key")).expect("removed");
    let left = all();
    make_certificates(&directory)
        .exits(1)
        .says("ca.pem without ca.key: bring the key");
    assert_eq!(all(), left);
}

#[tokio::test]
async fn certificates_of_the_example_and_tokens_of_the_command_do() {
    scenario(async {
        let place = Place::new();
        let made = || {
            let script = concat!(
                env!("CARGO_MANIFEST_DIR"),
                "/examples/identity/certificates.sh"
            );
            let mut command = Command::new(script);
            command.arg(place.path("certificates"));
            process::run(command.args(["127.0.0.1", "gate-7.example"])).exits(0);
        };
        made();
        let file = |name: &str| place.path("certificates").join(name);
        let pair = |name: &str| CertificateFiles {
            certificate: file(&format!("{name}.pem")),
            key: file(&format!("{name}.key")),
        };
        let token = |name: &str| {
            let mut command = Command::new(EXECGATE);
            command
                .args(["token", name, "--write"])
                .arg(place.path(name));
            process::run(&mut command).exits(0).output()
        };
        let tokens = place.path("tokens");
        std::fs::write(&tokens, token("ci-7")).expect("a file");

        let (host, ca) = (pair("127.0.0.1"), file("ca.pem"));
        let mut arguments = tls(&host).to_vec();
        arguments.extend([&"--client-ca" as &dyn AsRef<_>, &ca]);
        arguments.extend([&"--tokens" as &dyn AsRef<_>, &tokens]);
        let service = place.serve(&arguments);
        let trusting = || LinkCredentials {
            ca: Some(ca.clone()),
            ..LinkCredentials::default()
        };
        let by_certificate = || LinkCredentials {
            certificate: Some(pair("gate-7.example")),
            ..trusting()
        };
        known_as("dns:gate-7.example", &service.https(), by_certificate()).await;
        let by_token = LinkCredentials {
            token: Some(place.path("ci-7")),
            ..trusting()
        };
        known_as("token:ci-7", &service.https(), by_token).await;
        refused("none is shown", &service.https(), trusting()).await;

        // Renewed, by the same command.
        made();
        service.wait_for_log("new certificates are in force").await;
        known_as("dns:gate-7.example", &service.https(), by_certificate()).await;

        let mut doctor = Command::new(EXECGATE);
        doctor.env_clear();
        doctor
            .args(["doctor", "--policy", &service.https(), "--policy-ca"])
            .arg(&ca);
        let done = process::run(&mut doctor);
        assert!(done.output().contains("missing policy service"), "{done}");
        assert!(done.output().contains("none is shown"), "{done}");
        doctor.arg("--policy-token-file").arg(place.path("ci-7"));
        let done = process::run(&mut doctor);
        assert!(done.output().contains("good    policy service"), "{done}");
    })
    .await;
}
