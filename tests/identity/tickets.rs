//! Each connection of a gate is verified anew: TLS keeps nothing by which an earlier one could be resumed.

use std::sync::Arc;

use execgate::transport;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::{ClientConfig, HandshakeKind, version};

use crate::frames::BEGINNING;
use crate::pki::{Validity, dns};
use crate::scenario;
use crate::service::{Place, mutual};

#[tokio::test]
async fn a_gate_that_would_resume_a_session_of_tls_is_verified_again() {
    scenario(async {
        let place = Place::new();
        let (ca, host) = place.authority();
        let arguments = mutual(&host, &ca.file);
        let service = place.serve(&arguments);
        let names = [dns("gate.example")];
        let gate = ca.issue(place.directory(), "gate", &names, Validity::Now);
        for version in [&version::TLS12, &version::TLS13] {
            // As it is by default, it remembers sessions and shows tickets.
            let mut config = ClientConfig::builder_with_provider(transport::cryptography())
                .with_protocol_versions(&[version])
                .expect("a version")
                .with_root_certificates(transport::trusted(&ca.file).expect("a CA"))
                .with_client_auth_cert(
                    transport::certificates(&gate.certificate).expect("a certificate"),
                    transport::private_key(&gate.key).expect("a key"),
                )
                .expect("a pair");
            config.alpn_protocols = vec![transport::HTTP2.to_vec()];
            let connector = TlsConnector::from(Arc::new(config));
            for _ in 0..2 {
                let tcp = TcpStream::connect(&service.address)
                    .await
                    .expect("connected");
                let name = "localhost".try_into().expect("a name");
                let mut stream = connector.connect(name, tcp).await.expect("trusted");
                stream.write_all(BEGINNING).await.expect("written");
                // What HTTP/2 begins with comes behind all tickets.
                stream.read_exact(&mut [0; 9]).await.expect("settings");
                let (_, tls) = stream.get_ref();
                assert_eq!(tls.handshake_kind(), Some(HandshakeKind::Full));
                assert_eq!(tls.tls13_tickets_received(), 0);
            }
        }
    })
    .await;
}
