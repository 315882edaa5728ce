//! Each way for credentials to be right or wrong, with what either side then says.

use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use execgate::link::{LinkCredentials, LinkOptions};
use execgate::model::DecisionCode;

use crate::gate::Gate;
use crate::pki::{Authority, Validity, dns, here, uri};
use crate::scenario;
use crate::service::{Place, mutual, tls};

/// What the user of a gate with these credentials is told about a command.
pub(crate) async fn told(endpoint: &str, credentials: LinkCredentials) -> (DecisionCode, String) {
    // Each in a session of its own: another gate's is refused.
    static SESSIONS: AtomicU8 = AtomicU8::new(1);
    let session = SESSIONS.fetch_add(1, Ordering::Relaxed);
    let gate = Gate::with_session(endpoint, session, |options: &mut LinkOptions| {
        options.credentials = credentials;
    });
    let verdict = gate.ask(1).verdict().await;
    if verdict.code == DecisionCode::Unreachable {
        // Whoever refused it may have been sent what happened, and hasn't taken it: the owner is told.
        gate.end();
        gate.link.drain(Duration::from_secs(10)).await;
        let lost = gate.link.counters().lost_events;
        assert!(lost >= 2, "{lost} events were lost: {verdict:?}");
    }
    match verdict.decision {
        execgate::model::EscalationDecision::Deny { reason } => {
            (verdict.code, reason.unwrap_or_default())
        }
        other => panic!("not denied: {other:?}"),
    }
}

/// The service knows the gate as `name`.
pub(crate) async fn known_as(name: &str, endpoint: &str, credentials: LinkCredentials) {
    let expected = (DecisionCode::Verdict, format!("gate {name}"));
    assert_eq!(told(endpoint, credentials).await, expected);
}

/// No verdict can be had, and the user is told why in one line.
pub(crate) async fn refused(why: &str, endpoint: &str, credentials: LinkCredentials) {
    let (code, reason) = told(endpoint, credentials).await;
    assert_eq!(code, DecisionCode::Unreachable, "{reason}");
    assert!(reason.contains(why), "no {why:?} in {reason:?}");
    assert!(!reason.contains('\n') && reason.len() < 300, "{reason:?}");
}

/// The same, where the service was reached: it refuses the gate, and the denial says so.
pub(crate) async fn refused_there(why: &str, endpoint: &str, credentials: LinkCredentials) {
    let (_, reason) = told(endpoint, credentials).await;
    let words = format!("the policy service refuses this gate: {endpoint}: ");
    assert!(
        reason.starts_with(&words) && reason.contains(why),
        "{reason}"
    );
}

fn trusting(ca: &Authority) -> LinkCredentials {
    LinkCredentials {
        ca: Some(ca.file.clone()),
        ..LinkCredentials::default()
    }
}

#[tokio::test]
async fn a_gate_is_known_by_the_uri_or_the_dns_name_of_its_certificate() {
    scenario(async {
        let place = Place::new();
        let directory = place.directory();
        let (ca, host) = place.authority();
        let arguments = mutual(&host, &ca.file);
        let service = place.serve(&arguments);
        for (names, known) in [
            (vec![dns("Gate.example")], "dns:gate.example"),
            (
                vec![dns("gate.example"), uri("spiffe://test/gate/1")],
                "uri:spiffe://test/gate/1",
            ),
        ] {
            let mut credentials = trusting(&ca);
            credentials.certificate = Some(ca.issue(directory, "gate", &names, Validity::Now));
            known_as(known, &service.https(), credentials).await;
        }
        let mut credentials = trusting(&ca);
        credentials.certificate = Some(ca.issue(directory, "gate", &[], Validity::Now));
        refused(
            "neither a URI nor a DNS name",
            &service.https(),
            credentials,
        )
        .await;
        service.wait_for_log("neither a URI nor a DNS name").await;
    })
    .await;
}

#[tokio::test]
async fn a_gate_without_a_good_certificate_is_refused_and_told_why() {
    scenario(async {
        let place = Place::new();
        let directory = place.directory();
        let ca = Authority::new(directory, "ca");
        let other = Authority::new(directory, "other");
        let host = ca.issue(directory, "host", &here(), Validity::Now);
        let names = [dns("gate.example")];
        for (certificate, gate_says, service_says) in [
            (
                None,
                "the service asks for a certificate, and none is shown",
                "the gate shows no certificate",
            ),
            (
                Some(other.issue(directory, "foreign", &names, Validity::Now)),
                "no CA that it trusts has signed it",
                "the gate's certificate is refused: invalid peer certificate: UnknownIssuer",
            ),
            (
                Some(ca.issue(directory, "old", &names, Validity::Past)),
                "it has expired, or isn't valid yet",
                "certificate expired",
            ),
            (
                Some(ca.issue(directory, "young", &names, Validity::Future)),
                "it has expired, or isn't valid yet",
                "certificate not valid yet",
            ),
        ] {
            let arguments = mutual(&host, &ca.file);
            let service = place.serve(&arguments);
            let mut credentials = trusting(&ca);
            credentials.certificate = certificate;
            refused_there(gate_says, &service.https(), credentials).await;
            service.wait_for_log(service_says).await;
            assert_eq!(place.count("SELECT count(*) FROM events"), 0);
        }
    })
    .await;
}

#[tokio::test]
async fn a_service_without_a_good_certificate_is_told_nothing() {
    scenario(async {
        let place = Place::new();
        let directory = place.directory();
        let ca = Authority::new(directory, "ca");
        let other = Authority::new(directory, "other");
        let elsewhere = [dns("elsewhere.example")];
        for (files, gate_says, service_says) in [
            (
                other.issue(directory, "foreign", &here(), Validity::Now),
                "no CA that is trusted here has signed the service's certificate",
                "the gate refuses this service's certificate",
            ),
            (
                ca.issue(directory, "old", &here(), Validity::Past),
                "the service's certificate has expired",
                "the gate refuses this service's certificate",
            ),
            (
                ca.issue(directory, "young", &here(), Validity::Future),
                "the service's certificate isn't valid yet",
                "the gate refuses this service's certificate",
            ),
            (
                ca.issue(directory, "lost", &elsewhere, Validity::Now),
                "the service's certificate is another host's",
                "the gate refuses this service's certificate",
            ),
        ] {
            let tokens = place.tokens(&[("ci", "t")]);
            let mut arguments = tls(&files).to_vec();
            arguments.extend([&"--tokens" as &dyn AsRef<_>, &tokens]);
            let service = place.serve(&arguments);
            let mut credentials = trusting(&ca);
            credentials.token = Some(place.secret("token", "t"));
            let gate_says = format!("isn't trusted: {}: {gate_says}", service.https());
            refused(&gate_says, &service.https(), credentials).await;
            service.wait_for_log(service_says).await;
        }
    })
    .await;
}

#[tokio::test]
async fn a_port_with_tls_and_a_gate_without_say_so_both_ways() {
    scenario(async {
        let place = Place::new();
        let (ca, host) = place.authority();
        let service = place.serve(&tls(&host));
        refused(
            "the service speaks TLS there: use https://",
            &service.http(),
            LinkCredentials::default(),
        )
        .await;
        service
            .wait_for_log("it speaks no TLS, and this port does")
            .await;

        let service = place.serve_beside(&[]);
        refused(
            "the service speaks no TLS there",
            &service.https(),
            trusting(&ca),
        )
        .await;
        service
            .wait_for_log("it speaks TLS, and this port doesn't")
            .await;
    })
    .await;
}

#[tokio::test]
async fn a_token_says_who_a_gate_is_over_tls_and_on_loopback() {
    scenario(async {
        let place = Place::new();
        let (ca, host) = place.authority();
        let tokens = place.tokens(&[("ci-7", "first"), ("ci-7", "second"), ("lab", "third")]);
        let mut arguments = tls(&host).to_vec();
        arguments.extend([&"--tokens" as &dyn AsRef<_>, &tokens]);
        let with_tls = place.serve(&arguments);
        let on_loopback = place.serve_beside(&[&"--tokens", &tokens]);
        for endpoint in [with_tls.https(), on_loopback.http()] {
            let with = |token: &str| LinkCredentials {
                token: Some(place.secret("token", token)),
                ..trusting(&ca)
            };
            known_as("token:ci-7", &endpoint, with("first")).await;
            known_as("token:lab", &endpoint, with("third\n")).await;
            known_as("token:ci-7", &endpoint, with("second")).await;
            refused_there(
                "the token isn't one that the policy service knows",
                &endpoint,
                with("fourth"),
            )
            .await;
            refused_there("none is shown", &endpoint, trusting(&ca)).await;
        }
        for service in [with_tls, on_loopback] {
            service
                .wait_for_log("refused a call: the token isn't")
                .await;
            let log = service.log();
            assert!(!log.contains("fourth") && !log.contains("first"), "{log}");
        }
    })
    .await;
}

#[tokio::test]
async fn either_a_certificate_or_a_token_will_do_where_both_are_asked_for() {
    scenario(async {
        let place = Place::new();
        let directory = place.directory();
        let (ca, host) = place.authority();
        let tokens = place.tokens(&[("ci", "t")]);
        let mut arguments = mutual(&host, &ca.file);
        arguments.extend([&"--tokens" as &dyn AsRef<_>, &tokens]);
        let service = place.serve(&arguments);
        let certificate = ca.issue(directory, "gate", &[dns("gate.example")], Validity::Now);

        let mut credentials = trusting(&ca);
        refused("none is shown", &service.https(), credentials.clone()).await;
        credentials.token = Some(place.secret("token", "t"));
        known_as("token:ci", &service.https(), credentials.clone()).await;
        credentials.certificate = Some(certificate);
        known_as("dns:gate.example", &service.https(), credentials).await;
    })
    .await;
}

#[test]
fn files_that_can_not_be_used_are_said_at_the_start() {
    use execgate::link::PolicyLink;
    let place = Place::new();
    let directory = place.directory();
    let ca = Authority::new(directory, "ca");
    let one = ca.issue(directory, "one", &here(), Validity::Now);
    let mut mixed = ca.issue(directory, "two", &here(), Validity::Now);
    mixed.certificate = one.certificate;
    let prepared = |endpoint: &str, credentials: LinkCredentials| {
        let mut options = LinkOptions::new(endpoint.parse().expect("an endpoint"));
        options.credentials = credentials;
        PolicyLink::new(options)
            .map(|_| ())
            .map_err(|error| error.to_string())
    };
    let error = |endpoint: &str, credentials| prepared(endpoint, credentials).expect_err("wrong");
    let https = "https://localhost:1";

    let missing = LinkCredentials {
        ca: Some(place.path("missing.pem")),
        ..LinkCredentials::default()
    };
    assert!(error(https, missing).contains("missing.pem"));
    let inconsistent = LinkCredentials {
        certificate: Some(mixed),
        ..trusting(&ca)
    };
    assert!(error(https, inconsistent).contains("can't be used"));
    let elsewhere = "http://policy.example:1";
    let exposed = error(elsewhere, LinkCredentials::default());
    assert!(exposed.contains("use https://"), "{exposed}");
    let told_so = LinkCredentials {
        plaintext: execgate::link::Plaintext::Anywhere,
        ..LinkCredentials::default()
    };
    prepared(elsewhere, told_so).expect("as it was told");
    for here in ["http://127.0.0.1:1", "http://[::1]:1", "http://localhost:1"] {
        prepared(here, LinkCredentials::default()).expect(here);
    }
}
