/// What is in the way of calls to a service until somebody changes it: for those who tell people what to change.
/// The words that come with it say what was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Obstacle {
    /// Nobody who is trusted has signed the service's certificate.
    UntrustedService,
    /// The service's certificate is another host's.
    AnotherHost,
    /// The service's certificate has expired, or isn't valid yet.
    ServiceCertificateTime,
    /// The service speaks no TLS where TLS is spoken to it.
    NoTls,
    /// The service speaks TLS where none is spoken to it.
    OnlyTls,
    /// The service asks for a certificate, and none is shown.
    NoCertificate,
    /// The service refuses the certificate that it is shown.
    CertificateRefused,
    /// The certificate that is shown has expired, or isn't valid yet.
    CertificateTime,
    /// The socket is of a user who isn't trusted.
    StrangeUser,
    /// Commands would cross the network in the clear.
    Plaintext,
    /// A file of keys, certificates or tokens can't be used.
    Files,
    /// The service was reached, and refuses whoever calls by what is shown.
    CallerRefused,
    /// No connection comes about.
    Unreachable,
    /// What has the connection doesn't speak as a service does.
    NoService,
}

impl Obstacle {
    /// What becomes of a call to the policy service, in words behind its name.
    pub(super) fn outcome(self) -> &'static str {
        match self {
            Self::UntrustedService
            | Self::AnotherHost
            | Self::ServiceCertificateTime
            | Self::StrangeUser => "isn't trusted",
            Self::NoTls | Self::OnlyTls | Self::Plaintext | Self::Files | Self::NoService => {
                "can't be called"
            }
            Self::Unreachable => "can't be reached",
            Self::NoCertificate
            | Self::CertificateRefused
            | Self::CertificateTime
            | Self::CallerRefused => "refuses this gate",
        }
    }
}
