//! Operators and gates at one port, by TLS: neither passes for the other.

use std::ffi::OsStr;
use std::path::Path;
use std::process::Command;

use execgate::link::{CertificateFiles, LinkCredentials};
use execgate::model::DecisionCode;

use crate::credentials::{known_as, refused, refused_there};
use crate::gate::Gate;
use crate::pki::{Authority, Validity, dns, here, uri};
use crate::process::{Done, EXECGATE, run};
use crate::scenario;
use crate::service::{Place, digest, mutual, tls};
use crate::stranger::{Call, SESSION, connect, requested, started};

fn list(url: &str, ca: &Path, token: &Path) -> Done {
    let mut command = Command::new(EXECGATE);
    command.args(["approvals", "list", "--service", url]);
    command
        .arg("--service-ca")
        .arg(ca)
        .arg("--service-token-file")
        .arg(token);
    run(command.env_clear())
}

#[tokio::test]
async fn where_gates_have_certificates_operators_have_tokens_and_neither_is_the_other() {
    scenario(async {
        let place = Place::new();
        let directory = place.directory();
        let (ca, host) = place.authority();
        let operators = place.path("operators");
        std::fs::write(&operators, format!("ada {}\n", digest("op"))).expect("a file");
        let operators_option: [&dyn AsRef<OsStr>; 2] = [&"--operators", &operators];
        let mut arguments = mutual(&host, &ca.file);
        arguments.extend(operators_option);
        let service = place.serve(&arguments);
        let url = service.https();

        let operator = place.secret("op.token", "op");
        let stranger = place.secret("x.token", "x");
        assert_eq!(list(&url, &ca.file, &operator).exits(0).output(), "none\n");
        list(&url, &ca.file, &stranger)
            .exits(5)
            .says("hint: show an operator's token by --service-token-file")
            .says("--role operator");

        let trusting = LinkCredentials {
            ca: Some(ca.file.clone()),
            ..LinkCredentials::default()
        };
        let mut credentials = trusting.clone();
        let names = [dns("gate.example")];
        credentials.certificate = Some(ca.issue(directory, "gate", &names, Validity::Now));
        known_as("dns:gate.example", &url, credentials.clone()).await;
        // With an operator's token it isn't that gate any more, nor any.
        credentials.token = Some(operator.clone());
        refused_there("this credential isn't a gate's", &url, credentials).await;
        refused("shows no certificate", &url, trusting.clone()).await;
        let mut credentials = trusting;
        credentials.token = Some(stranger);
        refused("shows no certificate", &url, credentials).await;
    })
    .await;
}

#[tokio::test]
async fn an_operator_may_have_a_certificate_which_is_then_no_gates() {
    scenario(async {
        let place = Place::new();
        let directory = place.directory();
        let (ca, host) = place.authority();
        let operators = place.path("operators");
        let lines = "uri:spiffe://example/ada\ndns:eve.example auditor\n";
        std::fs::write(&operators, lines).expect("a file");
        let mut arguments = mutual(&host, &ca.file);
        arguments.extend([&"--operators" as &dyn AsRef<OsStr>, &operators]);
        let service = place.serve(&arguments);
        let url = service.https();
        let issue = |name: &str, names: &[_]| ca.issue(directory, name, names, Validity::Now);
        let ada = issue("ada", &[uri("spiffe://example/ada"), dns("gate.example")]);
        let eve = issue("eve", &[dns("eve.example")]);
        let gate = issue("gate", &[dns("gate.example")]);
        // Whose authority isn't trusted here.
        let forged = Authority::new(directory, "another");
        let forged = [uri("spiffe://example/ada")]
            .map(|name| forged.issue(directory, "forged", &[name], Validity::Now));
        let call = |arguments: &[&str], files: &CertificateFiles| {
            let mut command = Command::new(EXECGATE);
            command.args(arguments).args(["--service", &url]);
            command.arg("--service-ca").arg(&ca.file);
            command.arg("--service-cert").arg(&files.certificate);
            run(command.arg("--service-key").arg(&files.key).env_clear())
        };
        let approvals = ["approvals", "list"];
        call(&approvals, &ada).exits(0).prints("none\n");
        call(&["audit", "--output", "json"], &ada)
            .exits(0)
            .prints("");
        call(&approvals, &eve)
            .exits(5)
            .says("operator's token or certificate")
            .says("dns:eve.example may only read")
            .says("--role operator");
        call(&["audit", "--output", "json"], &eve)
            .exits(0)
            .prints("");
        call(&approvals, &gate)
            .exits(5)
            .says("operator's token or certificate")
            .says("dns:gate.example is a gate");
        assert!(!call(&approvals, &forged[0]).status.success());

        let credentials = |files: &CertificateFiles| LinkCredentials {
            ca: Some(ca.file.clone()),
            certificate: Some(files.clone()),
            ..LinkCredentials::default()
        };
        for files in [&ada, &eve] {
            refused("this credential isn't a gate's", &url, credentials(files)).await;
        }
        known_as("dns:gate.example", &url, credentials(&gate)).await;

        // Taken back. The same certificate is a gate's from then on, as any other is.
        std::fs::write(&operators, "dns:eve.example auditor\n").expect("a file");
        service.signal("HUP");
        service.wait_for_log("are in force").await;
        call(&approvals, &ada)
            .exits(5)
            .says("operator's token or certificate");
        known_as("uri:spiffe://example/ada", &url, credentials(&ada)).await;
    })
    .await;
}

/// Whose certificate or token becomes an operator's is no gate from then on, in the sessions that it has too.
#[tokio::test]
async fn a_gate_that_becomes_an_operator_loses_its_sessions() {
    scenario(async {
        let place = Place::new();
        let directory = place.directory();
        let ca = Authority::new(directory, "ca");
        let host = ca.issue(directory, "host", &here(), Validity::Now);
        let operators = place.path("operators");
        std::fs::write(&operators, "dns:eve.example auditor\n").expect("a file");
        let mut arguments = tls(&host).to_vec();
        arguments.extend([&"--client-ca" as &dyn AsRef<OsStr>, &ca.file]);
        arguments.extend([&"--operators" as &dyn AsRef<OsStr>, &operators]);
        let service = place.serve(&arguments);
        let gate = |number: u8, name: &str| {
            let files = ca.issue(directory, name, &[dns(name)], Validity::Now);
            Gate::with_session(&service.https(), number, |options| {
                options.credentials = LinkCredentials {
                    ca: Some(ca.file.clone()),
                    certificate: Some(files),
                    ..LinkCredentials::default()
                };
            })
        };
        let (promoted, kept) = (gate(1, "a.example"), gate(2, "b.example"));
        for (gate, name) in [(&promoted, "a"), (&kept, "b")] {
            let reason = gate.ask(1).denied(DecisionCode::Verdict).await;
            assert_eq!(reason, format!("gate dns:{name}.example"));
        }
        let lines = "dns:eve.example auditor\ndns:a.example auditor\n";
        std::fs::write(&operators, lines).expect("a file");
        service.signal("HUP");
        // It has asked nothing meanwhile.
        service.wait_for_log("this credential isn't a gate's").await;
        let reason = promoted.ask(2).denied(DecisionCode::Unreachable).await;
        assert!(reason.contains("isn't a gate's"), "{reason}");
        let reason = kept.ask(2).denied(DecisionCode::Verdict).await;
        assert_eq!(reason, "gate dns:b.example");
    })
    .await;
}

#[tokio::test]
async fn a_token_that_becomes_an_operators_ends_its_calls() {
    scenario(async {
        let place = Place::new();
        let operators = place.path("operators");
        std::fs::write(&operators, format!("ada {}\n", digest("op"))).expect("a file");
        let tokens = place.tokens(&[("ci", "a"), ("lab", "b")]);
        let service = place.serve(&[&"--tokens", &tokens, &"--operators", &operators]);
        let channel = connect(&service.address).await;
        let open = async |token, session: &str| {
            let mut call = Call::open(channel.clone(), Some(token))
                .await
                .expect("a call");
            call.tell(1, started(session, None)).await;
            call.tell(2, requested(1)).await;
            call.verdict().await;
            call
        };
        let mut promoted = open("a", SESSION).await;
        let mut kept = open("b", &SESSION.replace('0', "f")).await;
        let lines = format!("ada {}\nbob {}\n", digest("op"), digest("a"));
        std::fs::write(&operators, lines).expect("a file");
        service.signal("HUP");
        let status = promoted.end().await;
        assert_eq!(status.code(), tonic::Code::PermissionDenied, "{status}");
        kept.tell(3, requested(2)).await;
        assert_eq!(kept.verdict().await, "gate token:lab");
    })
    .await;
}

#[tokio::test]
async fn where_both_have_tokens_one_that_is_both_is_neither() {
    scenario(async {
        let place = Place::new();
        let operators = place.path("operators");
        let lines = format!("ada {}\nbob {}\n", digest("op"), digest("both"));
        std::fs::write(&operators, lines).expect("a file");
        let tokens = place.tokens(&[("ci", "gate"), ("mixed", "both")]);
        let service = place.serve(&[&"--tokens", &tokens, &"--operators", &operators]);
        let url = service.http();
        let call = |token: &str| {
            let file = place.secret(&format!("{token}.token"), token);
            let mut command = Command::new(EXECGATE);
            command.args([
                "approvals",
                "list",
                "--service",
                &url,
                "--service-token-file",
            ]);
            run(command.arg(file).env_clear())
        };
        call("op").exits(0).prints("none\n");
        call("gate")
            .exits(5)
            .says("operator's token")
            .says("token:ci is a gate")
            .says("--role operator");
        call("both").exits(5).says("a gate's and an operator's");
        let as_gate = |token: &str| LinkCredentials {
            token: Some(place.path(&format!("{token}.token"))),
            ..LinkCredentials::default()
        };
        known_as("token:ci", &url, as_gate("gate")).await;
        refused("this credential isn't a gate's", &url, as_gate("op")).await;
        refused("--role gate", &url, as_gate("op")).await;
        refused("a gate's and an operator's", &url, as_gate("both")).await;
    })
    .await;
}

/// Whoever can't connect is told which of the own options to change, the gate's owner and the operator alike.
#[tokio::test]
async fn what_is_wrong_with_tls_is_said_with_the_option_that_mends_it() {
    scenario(async {
        let place = Place::new();
        let directory = place.directory();
        let ca = Authority::new(directory, "ca");
        let other = Authority::new(directory, "other");
        let host = ca.issue(directory, "host", &here(), Validity::Now);
        let old = ca.issue(directory, "old", &here(), Validity::Past);
        let lost = ca.issue(directory, "lost", &[dns("lost.example")], Validity::Now);
        let names = [dns("gate.example")];
        let stale = ca.issue(directory, "stale", &names, Validity::Past);
        let foreign = other.issue(directory, "foreign", &names, Validity::Now);
        let client_ca: [&dyn AsRef<OsStr>; 2] = [&"--client-ca", &ca.file];
        let plain = place.serve(&[]);
        let speaks = place.serve_beside(&tls(&host));
        let expired = place.serve_beside(&tls(&old));
        let elsewhere = place.serve_beside(&tls(&lost));
        // Each logs a refusal at most once in a while: what differs is asked of another.
        let asks_too = place.serve_beside(&[&tls(&host)[..], &client_ca[..]].concat());
        let asks = place.serve_beside(&[&tls(&host)[..], &client_ca[..]].concat());
        let show = |files: &CertificateFiles| {
            let path = |path: &Path| path.display().to_string();
            (path(&files.certificate), path(&files.key))
        };
        for (url, ca, shown, service_says, remedy) in [
            (
                speaks.https(),
                &other.file,
                None,
                "no CA that is trusted here",
                "name the CA that has signed the service's certificate: --OPTION-ca FILE (VARIABLE_CA)",
            ),
            (expired.https(), &ca.file, None, "has expired", "set this machine's clock: it says 2"),
            (
                elsewhere.https(),
                &ca.file,
                None,
                "is another host's",
                "call the service in --OPTION (VARIABLE) by a name that its certificate has",
            ),
            (plain.https(), &ca.file, None, "speaks no TLS", "write http:// in --OPTION (VARIABLE)"),
            (speaks.http(), &ca.file, None, "speaks TLS there", "write https:// in --OPTION (VARIABLE)"),
            (
                asks.https(),
                &ca.file,
                None,
                "asks for a certificate",
                "show a certificate: --OPTION-cert FILE and --OPTION-key FILE",
            ),
            (
                asks_too.https(),
                &ca.file,
                Some(show(&foreign)),
                "no CA that it trusts has signed it",
                "show one by --OPTION-cert that a CA in execgate-policyd's --client-ca has signed",
            ),
            (
                asks.https(),
                &ca.file,
                Some(show(&stale)),
                "it has expired",
                "renew the certificate that --OPTION-cert names",
            ),
        ] {
            for (arguments, option, variable) in [
                (&["doctor"][..], "policy", "EXECGATE_POLICY"),
                (&["audit"], "service", "EXECGATE_SERVICE"),
                (&["watch"], "service", "EXECGATE_SERVICE"),
                (&["sessions", "list"], "service", "EXECGATE_SERVICE"),
            ] {
                let mut command = Command::new(EXECGATE);
                command.args(arguments).env_clear();
                command.env(variable, &url).env(format!("{variable}_CA"), ca);
                if let Some((certificate, key)) = &shown {
                    command.env(format!("{variable}_CERT"), certificate);
                    command.env(format!("{variable}_KEY"), key);
                }
                let done = run(&mut command);
                let remedy = remedy.replace("OPTION", option).replace("VARIABLE", variable);
                let text = done.output() + &done.errors();
                assert!(text.contains(service_says), "{service_says}: {done}");
                assert!(text.contains(&remedy), "{remedy}: {done}");
                if option == "service" {
                    done.exits(5).prints("");
                }
            }
        }
        // The service's own log says what its owner can do.
        speaks.wait_for_log("its --policy-ca").await;
        asks_too.wait_for_log("--client-ca must hold the CA that signed it").await;
        asks.wait_for_log("its --policy-cert and --policy-key").await;
    })
    .await;
}
