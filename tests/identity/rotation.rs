//! Certificates and tokens that are replaced while both ends run.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::process::Command;
use std::time::{Duration, Instant};

use execgate::link::LinkCredentials;
use execgate::model::DecisionCode;
use tonic::Code;

use crate::credentials::{known_as, refused};
use crate::gate::Gate;
use crate::pki::{Authority, Validity, dns, here, write_secret};
use crate::process::{EXECGATE, PATIENCE, run};
use crate::scenario;
use crate::service::{Place, Service, digest, mutual, tls};
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
async fn a_hangup_has_all_files_read_again_though_none_shows_a_change() {
    scenario(async {
        let place = Place::new();
        let (_ca, host) = place.authority();
        let tokens = place.tokens(&[("ci", "t")]);
        let operators = place.path("operators");
        std::fs::write(&operators, format!("ada {}\n", digest("op"))).expect("a file");
        let mut arguments = tls(&host).to_vec();
        arguments.extend([&"--tokens" as &dyn AsRef<_>, &tokens]);
        arguments.extend([&"--operators" as &dyn AsRef<_>, &operators]);
        let service = place.serve(&arguments);
        assert!(!service.log().contains("are as they were"));
        service.signal("HUP");
        for said in [
            "the rules are as they were: revision ",
            "the certificates are as they were: ",
            "the tokens are as they were: 1 tokens, ",
            "the operators' tokens are as they were: 1 tokens, ",
        ] {
            service.wait_for_log(said).await;
        }
    })
    .await;
}

#[tokio::test]
async fn a_gate_shows_on_its_next_connection_what_its_files_have_then() {
    scenario(async {
        let place = Place::new();
        let directory = place.directory();
        let (ca, host) = place.authority();
        let (old, new) = (
            Authority::new(directory, "old"),
            Authority::new(directory, "new"),
        );
        let port = free_port();
        let serve = |clients: &Authority| {
            let arguments = mutual(&host, &clients.file);
            place.serve_at(&format!("127.0.0.1:{port}"), &arguments)
        };
        let service = serve(&old);
        let names = [dns("a.example")];
        let gate = old.issue(directory, "gate", &names, Validity::Now);
        let gate = Gate::with(&service.https(), |options| {
            options.credentials = LinkCredentials {
                ca: Some(ca.file.clone()),
                certificate: Some(gate),
                ..LinkCredentials::default()
            };
        });
        let asked = |exec| gate.ask(exec).denied(DecisionCode::Verdict);
        assert_eq!(asked(1).await, "gate dns:a.example");
        // Renewed for the same name, by a CA without which the next service trusts nobody.
        new.issue(directory, "gate", &names, Validity::Now);
        drop(service);
        let service = serve(&new);
        assert_eq!(asked(2).await, "gate dns:a.example");
        // And then a key that can't be read.
        write_secret(&place.path("gate.key"), "nonsense");
        drop(service);
        let _service = serve(&new);
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
        std::fs::write(&tokens, "new").expect("a file");
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

#[tokio::test]
async fn the_last_token_can_be_taken_away_too() {
    scenario(async {
        let place = Place::new();
        let (tokens, operators) = (place.tokens(&[("ci", "a")]), place.path("operators"));
        std::fs::write(&operators, format!("ada {}\n", digest("op"))).expect("a file");
        let operator = place.secret("op.token", "op");
        let arguments: [&dyn AsRef<_>; 4] = [&"--tokens", &tokens, &"--operators", &operators];
        let service = place.serve(&arguments);
        let list = |service: &Service| {
            let mut command = Command::new(EXECGATE);
            command.args(["approvals", "list", "--service", &service.http()]);
            command.arg("--service-token-file").arg(&operator);
            run(command.env_clear())
        };
        let refused = async |service: &Service| {
            for token in [Some("a"), None] {
                let opened = Call::open(connect(&service.address).await, token).await;
                let status = opened.err().expect("refused");
                assert_eq!(status.code(), Code::Unauthenticated, "{status}");
            }
        };
        list(&service).exits(0);
        let channel = connect(&service.address).await;
        let mut call = Call::open(channel, Some("a")).await.expect("a call");
        call.tell(1, started(SESSION, None)).await;

        std::fs::write(&tokens, "").expect("a file");
        let status = call.end().await;
        assert_eq!(status.code(), Code::Unavailable, "{status}");
        let said = format!("{} holds no tokens", tokens.display());
        service.wait_for_log(&said).await;
        refused(&service).await;
        list(&service).exits(0);

        std::fs::write(&operators, "# ada has left\n").expect("a file");
        service
            .wait_for_log("new operators' tokens are in force: 0 tokens")
            .await;
        list(&service).exits(5);

        // The same files are no reason not to start, and let nobody in who comes without any.
        drop(service);
        let service = place.serve(&arguments);
        refused(&service).await;
        list(&service).exits(5);
        place.tokens(&[("ci", "b")]);
        service
            .wait_for_log("new tokens are in force: 1 tokens")
            .await;
        let channel = connect(&service.address).await;
        assert!(Call::open(channel.clone(), Some("b")).await.is_ok());
        refused(&service).await;

        // A file that is gone says nothing of whom it named.
        std::fs::remove_file(&tokens).expect("removed");
        service.wait_for_log("so the last good tokens").await;
        assert!(Call::open(channel, Some("b")).await.is_ok());
    })
    .await;
}

#[tokio::test]
async fn numbers_say_which_files_can_not_be_used() {
    scenario(async {
        let place = Place::new();
        let (_ca, host) = place.authority();
        let (tokens, operators) = (place.tokens(&[("ci", "t")]), place.path("operators"));
        let ada = format!("ada {}\n", digest("op"));
        std::fs::write(&operators, &ada).expect("a file");
        let mut arguments = tls(&host).to_vec();
        arguments.extend([&"--tokens" as &dyn AsRef<_>, &tokens]);
        arguments.extend([&"--operators" as &dyn AsRef<_>, &operators]);
        arguments.extend([&"--metrics" as &dyn AsRef<_>, &"127.0.0.1:0"]);
        let service = place.serve(&arguments);
        let failed = async |kinds: &[&str]| {
            let began = Instant::now();
            loop {
                let text = metrics(&service);
                let right = ["rules", "certificates", "tokens", "operators"]
                    .iter()
                    .all(|kind| {
                        let value = u8::from(kinds.contains(kind));
                        text.contains(&format!(
                            "\nexecgate_policyd_{kind}_reload_failed {value}\n"
                        ))
                    });
                if right {
                    return;
                }
                assert!(began.elapsed() < PATIENCE, "not {kinds:?}: {text}");
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        };
        failed(&[]).await;
        let certificate = std::fs::read(&host.certificate).expect("a file");
        std::fs::write(&host.certificate, "nonsense").expect("a file");
        failed(&["certificates"]).await;
        std::fs::remove_file(&tokens).expect("removed");
        failed(&["certificates", "tokens"]).await;
        std::fs::write(&operators, "ada").expect("a file");
        failed(&["certificates", "tokens", "operators"]).await;
        std::fs::write(&host.certificate, certificate).expect("a file");
        failed(&["tokens", "operators"]).await;
        std::fs::write(&operators, ada).expect("a file");
        place.tokens(&[]);
        failed(&[]).await;
    })
    .await;
}

/// What a service with `--metrics` counts.
fn metrics(service: &Service) -> String {
    let log = service.log();
    let line = log.lines().find(|line| line.contains("metrics are served"));
    let address = line.and_then(|line| line.split_once("address="));
    let (_, address) = address.unwrap_or_else(|| panic!("{log}"));
    let mut stream = TcpStream::connect(address.trim()).expect("a connection");
    stream.set_read_timeout(Some(PATIENCE)).expect("set");
    stream
        .write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        .expect("asked");
    let mut text = String::new();
    stream.read_to_string(&mut text).expect("an answer");
    text
}

fn free_port() -> u16 {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    listener.local_addr().expect("an address").port()
}
