//! Certificates and tokens that are replaced while both ends run.

use execgate::link::LinkCredentials;
use execgate::model::DecisionCode;
use tonic::Code;

use crate::credentials::{known_as, refused};
use crate::gate::Gate;
use crate::pki::{Authority, Validity, dns, here, write_secret};
use crate::scenario;
use crate::service::{Place, mutual, tls};
use crate::stranger::{Call, SESSION, connect, requested, started};

#[tokio::test]
async fn a_service_shows_its_new_certificate_and_keeps_the_old_one_where_the_new_is_broken() {
    scenario(async {
        let place = Place::new();
        let directory = place.directory();
        let (old, new) = (
            Authority::new(directory, "old"),
            Authority::new(directory, "new"),
        );
        let host = old.issue(directory, "host", &here(), Validity::Now);
        let service = place.serve(&tls(&host));
        let trusting = |ca: &Authority| LinkCredentials {
            ca: Some(ca.file.clone()),
            ..LinkCredentials::default()
        };
        known_as("anonymous", &service.https(), trusting(&old)).await;

        std::fs::write(&host.certificate, "nonsense").expect("a file");
        service.signal("HUP");
        service.wait_for_log("so the last good certificates").await;
        known_as("anonymous", &service.https(), trusting(&old)).await;

        // Without a signal: certificate and key of the same names, by another CA.
        new.issue(directory, "host", &here(), Validity::Now);
        service.wait_for_log("new certificates are in force").await;
        known_as("anonymous", &service.https(), trusting(&new)).await;
        refused(
            "no CA that is trusted here",
            &service.https(),
            trusting(&old),
        )
        .await;
    })
    .await;
}

#[tokio::test]
async fn a_service_trusts_gates_by_the_ca_that_its_file_has_now() {
    scenario(async {
        let place = Place::new();
        let directory = place.directory();
        let (old, new) = (
            Authority::new(directory, "old"),
            Authority::new(directory, "new"),
        );
        let host = old.issue(directory, "host", &here(), Validity::Now);
        let clients = place.path("clients.pem");
        std::fs::copy(&old.file, &clients).expect("a copy");
        let arguments = mutual(&host, &clients);
        let service = place.serve(&arguments);
        let by = |ca: &Authority| LinkCredentials {
            ca: Some(old.file.clone()),
            certificate: Some(ca.issue(directory, "gate", &[dns("gate.example")], Validity::Now)),
            ..LinkCredentials::default()
        };
        known_as("dns:gate.example", &service.https(), by(&old)).await;
        refused("no CA that it trusts", &service.https(), by(&new)).await;
        std::fs::copy(&new.file, &clients).expect("a copy");
        service.signal("HUP");
        service.wait_for_log("new certificates are in force").await;
        known_as("dns:gate.example", &service.https(), by(&new)).await;
        refused("no CA that it trusts", &service.https(), by(&old)).await;
    })
    .await;
}

#[tokio::test]
async fn a_gate_shows_on_its_next_connection_what_its_files_have_then() {
    scenario(async {
        let place = Place::new();
        let directory = place.directory();
        let (ca, host) = place.authority();
        let port = free_port();
        let serve = || {
            let arguments = mutual(&host, &ca.file);
            place.serve_at(&format!("127.0.0.1:{port}"), &arguments)
        };
        let service = serve();
        let gate = ca.issue(directory, "gate", &[dns("a.example")], Validity::Now);
        let gate = Gate::with(&service.https(), |options| {
            options.credentials = LinkCredentials {
                ca: Some(ca.file.clone()),
                certificate: Some(gate),
                ..LinkCredentials::default()
            };
        });
        let asked = |exec| gate.ask(exec).denied(DecisionCode::Verdict);
        assert_eq!(asked(1).await, "gate dns:a.example");
        // Renewed: another certificate for the same name; and then one that can't be read.
        ca.issue(directory, "gate", &[dns("a.example")], Validity::Now);
        drop(service);
        let service = serve();
        assert_eq!(asked(2).await, "gate dns:a.example");
        write_secret(&place.path("gate.key"), "nonsense");
        drop(service);
        let _service = serve();
        assert_eq!(asked(3).await, "gate dns:a.example");
    })
    .await;
}

#[tokio::test]
async fn tokens_are_replaced_without_a_failed_exec() {
    scenario(async {
        let place = Place::new();
        let tokens = place.tokens(&[("ci", "old")]);
        let token = place.secret("token", "old");
        let service = place.serve(&[&"--tokens", &tokens]);
        let gate = Gate::with(&service.http(), |options| {
            options.credentials.token = Some(token.clone());
        });
        let asked = |exec| gate.ask(exec).denied(DecisionCode::Verdict);
        assert_eq!(asked(1).await, "gate token:ci");
        place.tokens(&[("ci", "old"), ("ci", "new")]);
        service
            .wait_for_log("new tokens are in force: 2 tokens")
            .await;
        assert_eq!(asked(2).await, "gate token:ci");
        write_secret(&token, "new");
        place.tokens(&[("ci", "new")]);
        service
            .wait_for_log("new tokens are in force: 1 tokens")
            .await;
        // The call that was made with the old one has ended, and another was made with the new.
        service
            .wait_for_log("the token of this call isn't valid any more")
            .await;
        assert_eq!(asked(3).await, "gate token:ci");

        // A file that can't be used changes nothing.
        std::fs::write(&tokens, "").expect("a file");
        service.wait_for_log("so the last good tokens").await;
        let channel = connect(&service.address).await;
        assert!(Call::open(channel.clone(), Some("new")).await.is_ok());
        let old = Call::open(channel, Some("old"))
            .await
            .err()
            .expect("refused");
        assert_eq!(old.code(), Code::Unauthenticated);
    })
    .await;
}

#[tokio::test]
async fn a_token_that_is_taken_away_ends_its_calls() {
    scenario(async {
        let place = Place::new();
        let tokens = place.tokens(&[("ci", "a"), ("lab", "b")]);
        let service = place.serve(&[&"--tokens", &tokens]);
        let channel = connect(&service.address).await;
        let mut revoked = Call::open(channel.clone(), Some("a"))
            .await
            .expect("a call");
        revoked.tell(1, started(SESSION, None)).await;
        let mut kept = Call::open(channel.clone(), Some("b"))
            .await
            .expect("a call");
        kept.tell(1, started(&SESSION.replace('0', "f"), None))
            .await;
        place.tokens(&[("lab", "b")]);
        service.signal("HUP");
        let status = revoked.end().await;
        assert_eq!(status.code(), Code::Unavailable, "{status}");
        kept.tell(2, requested(1)).await;
        assert_eq!(kept.verdict().await, "gate token:lab");
        assert!(Call::open(channel, Some("a")).await.is_err());
    })
    .await;
}

fn free_port() -> u16 {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    listener.local_addr().expect("an address").port()
}
