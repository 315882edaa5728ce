//! Certificates, made for one test.

use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use execgate::link::CertificateFiles;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, KeyUsagePurpose, SanType,
    date_time_ymd,
};

/// When a certificate is valid.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Validity {
    Now,
    Past,
    Future,
}

pub(crate) struct Authority {
    issuer: Issuer<'static, KeyPair>,
    /// Its certificate's file.
    pub(crate) file: PathBuf,
}

impl Authority {
    pub(crate) fn new(directory: &Path, name: &str) -> Self {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let key = KeyPair::generate().expect("a key");
        let certificate = params.self_signed(&key).expect("a certificate");
        let file = directory.join(format!("{name}.pem"));
        std::fs::write(&file, certificate.pem()).expect("a file");
        Self {
            issuer: Issuer::new(params, key),
            file,
        }
    }

    /// Signs a certificate for names, and writes it and its key to files called `name`.
    pub(crate) fn issue(
        &self,
        directory: &Path,
        name: &str,
        names: &[SanType],
        validity: Validity,
    ) -> CertificateFiles {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        params.subject_alt_names = names.to_vec();
        let (from, until) = match validity {
            Validity::Now => (1990, 4000),
            Validity::Past => (1990, 2000),
            Validity::Future => (3990, 4000),
        };
        params.not_before = date_time_ymd(from, 1, 1);
        params.not_after = date_time_ymd(until, 1, 1);
        let key = KeyPair::generate().expect("a key");
        let certificate = params.signed_by(&key, &self.issuer).expect("a certificate");
        let files = CertificateFiles {
            certificate: directory.join(format!("{name}.pem")),
            key: directory.join(format!("{name}.key")),
        };
        std::fs::write(&files.certificate, certificate.pem()).expect("a file");
        write_secret(&files.key, &key.serialize_pem());
        files
    }
}

pub(crate) fn dns(name: &str) -> SanType {
    SanType::DnsName(name.try_into().expect("ASCII"))
}

pub(crate) fn uri(name: &str) -> SanType {
    SanType::URI(name.try_into().expect("ASCII"))
}

/// Names of the host that the tests are on.
pub(crate) fn here() -> [SanType; 2] {
    [
        dns("localhost"),
        SanType::IpAddress(std::net::Ipv4Addr::LOCALHOST.into()),
    ]
}

/// Writes a file that is private, whole, in place of what was there.
pub(crate) fn write_secret(path: &Path, content: &str) {
    let _ = std::fs::remove_file(path);
    std::fs::OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)
        .and_then(|mut file| file.write_all(content.as_bytes()))
        .expect("a file");
}
