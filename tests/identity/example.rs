//! What the README tells people to do between hosts, done.

use std::process::Command;

use execgate::link::{CertificateFiles, LinkCredentials};

use crate::credentials::{known_as, refused};
use crate::process::{self, EXECGATE};
use crate::scenario;
use crate::service::{Place, tls};

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
