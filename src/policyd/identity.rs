//! Who a gate is.

use std::sync::Arc;

use tokio_rustls::rustls::pki_types::CertificateDer;
use webpki::EndEntityCert;

/// Longest name, in bytes.
const MAX_NAME: usize = 512;

/// Who a gate is, as its credential proves it, and never as it says itself: `uri:...` or `dns:...` of
/// its certificate, `token:NAME`, `uid:NUMBER` of its process, or `anonymous`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct GateIdentity(Arc<str>);

impl GateIdentity {
    /// What a gate that has shown nothing is called.
    pub(super) const ANONYMOUS: &str = "anonymous";

    /// Of a gate that has shown nothing.
    #[must_use]
    pub fn anonymous() -> Self {
        Self(Self::ANONYMOUS.into())
    }

    pub(super) fn uid(uid: u32) -> Self {
        Self(format!("uid:{uid}").into())
    }

    /// `None` where the name isn't fit for one.
    pub(super) fn token(name: &str) -> Option<Self> {
        Self::of_kind("token", name)
    }

    /// The first URI of a certificate that was verified, or else its first DNS name. A common name
    /// doesn't count.
    pub(super) fn of_certificate(certificate: &CertificateDer<'_>) -> Option<Self> {
        let certificate = EndEntityCert::try_from(certificate).ok()?;
        let uri = certificate
            .valid_uri_names()
            .find_map(|name| Self::of_kind("uri", name));
        let dns = || {
            certificate
                .valid_dns_names()
                .filter(|name| !name.starts_with('*'))
                .find_map(|name| Self::of_kind("dns", &name.to_ascii_lowercase()))
        };
        uri.or_else(dns)
    }

    fn of_kind(kind: &str, name: &str) -> Option<Self> {
        let is_fit = !name.is_empty()
            && name.len() <= MAX_NAME
            && name.bytes().all(|byte| byte.is_ascii_graphic());
        is_fit.then(|| Self(format!("{kind}:{name}").into()))
    }

    /// Reads one as it is written in rules and on command lines.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let read = match text.split_once(':') {
            None if text == Self::ANONYMOUS => Some(Self::anonymous()),
            Some(("uid", number)) => number.parse().ok().map(Self::uid),
            Some((kind @ ("uri" | "dns" | "token"), name)) => Self::of_kind(kind, name),
            _ => None,
        };
        read.ok_or_else(|| {
            "write uri:URI, dns:NAME, token:NAME, uid:NUMBER or anonymous".to_owned()
        })
    }

    /// As it is written in rules, on command lines and in the store.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl From<String> for GateIdentity {
    /// As the store has it.
    fn from(text: String) -> Self {
        Self(text.into())
    }
}

impl std::fmt::Display for GateIdentity {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_back() {
        for text in [
            "uri:spiffe://example/gate/7",
            "dns:gate-7.example",
            "token:ci-7",
            "uid:1000",
            "anonymous",
        ] {
            assert_eq!(GateIdentity::parse(text).expect(text).as_str(), text);
        }
        for wrong in [
            "",
            "x",
            "token:",
            "token:a b",
            "uid:x",
            "uid:-1",
            "cn:x",
            "token:\u{1b}[2J",
            "token",
        ] {
            assert!(GateIdentity::parse(wrong).is_err(), "{wrong:?}");
        }
        assert!(GateIdentity::token(&"x".repeat(MAX_NAME + 1)).is_none());
    }

    fn of(names: Vec<rcgen::SanType>) -> Option<GateIdentity> {
        let mut params = rcgen::CertificateParams::default();
        params.subject_alt_names = names;
        let key = rcgen::KeyPair::generate().expect("a key");
        let certificate = params.self_signed(&key).expect("a certificate");
        GateIdentity::of_certificate(certificate.der())
    }

    #[test]
    fn a_certificate_is_named_by_its_first_uri_or_else_its_first_dns_name() {
        use rcgen::SanType;
        let dns = |name: &str| SanType::DnsName(name.try_into().expect("ASCII"));
        let uri = |name: &str| SanType::URI(name.try_into().expect("ASCII"));
        let named = |names| of(names).expect("a name").as_str().to_owned();
        assert_eq!(
            named(vec![
                dns("Gate.example"),
                uri("spiffe://x/1"),
                uri("spiffe://x/2")
            ]),
            "uri:spiffe://x/1"
        );
        assert_eq!(
            named(vec![dns("*.example"), dns("Gate.example")]),
            "dns:gate.example"
        );
        for nameless in [
            vec![],
            vec![SanType::IpAddress([127, 0, 0, 1].into())],
            vec![dns("*.example")],
            vec![uri("spiffe://a b")],
        ] {
            assert_eq!(of(nameless), None);
        }
    }
}
