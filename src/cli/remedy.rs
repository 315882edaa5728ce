//! What to do where a policy service doesn't take a call: which option, and whose credential.

use std::time::SystemTime;

use tonic::{Code, Status};

use super::Failure;
use crate::link::{Obstacle, PrepareError, ServiceCaller};

/// Who calls a policy service. Each has a credential of its own kind, and options of its own names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    Gate,
    Operator,
    Auditor,
}

impl Role {
    /// What its options are called by: `--policy-ca`, `--service-ca`.
    fn option(self) -> &'static str {
        match self {
            Self::Gate => "policy",
            Self::Operator | Self::Auditor => "service",
        }
    }

    fn variable(self) -> &'static str {
        match self {
            Self::Gate => "EXECGATE_POLICY",
            Self::Operator | Self::Auditor => "EXECGATE_SERVICE",
        }
    }

    /// How it gets a credential that the service takes.
    pub(super) fn credential(self) -> String {
        let (option, variable) = (self.option(), self.variable());
        let (whose, role, file) = match self {
            Self::Gate => ("a gate's", "", "--tokens"),
            Self::Operator => ("an operator's", " --role operator", "--operators"),
            Self::Auditor => (
                "an auditor's or operator's",
                " --role auditor",
                "--operators; its --auditor names certificates and users",
            ),
        };
        format!(
            "show {whose} token by --{option}-token-file FILE ({variable}_TOKEN_FILE), or certificate by \
             --{option}-cert and --{option}-key; `execgate token NAME{role}` makes a token, and the line for the \
             file that execgate-policyd has as {file}"
        )
    }

    /// How a service is to be had at all.
    pub(super) fn service(self) -> String {
        let (option, variable) = (self.option(), self.variable());
        format!(
            "start the service (`execgate-policyd --rules FILE` is one), or correct --{option} or {variable}"
        )
    }

    /// What removes an obstacle.
    pub(super) fn remedy(self, obstacle: Obstacle) -> String {
        let (option, variable) = (self.option(), self.variable());
        match obstacle {
            Obstacle::UntrustedService => format!(
                "name the CA that has signed the service's certificate: --{option}-ca FILE ({variable}_CA)"
            ),
            Obstacle::AnotherHost => format!(
                "call the service in --{option} ({variable}) by a name that its certificate has, or give it \
                 one for that name (execgate-policyd --tls-cert)"
            ),
            Obstacle::ServiceCertificateTime => format!(
                "renew the service's certificate (execgate-policyd --tls-cert), or set this machine's clock: it \
                 says {}",
                humantime::format_rfc3339_seconds(SystemTime::now())
            ),
            Obstacle::NoTls => format!(
                "write http:// in --{option} ({variable}), or start the service with --tls-cert and --tls-key"
            ),
            Obstacle::OnlyTls => format!(
                "write https:// in --{option} ({variable}), and name the CA that has signed the service's \
                 certificate by --{option}-ca FILE"
            ),
            Obstacle::NoCertificate => {
                format!("show a certificate: --{option}-cert FILE and --{option}-key FILE")
            }
            Obstacle::CertificateRefused => format!(
                "show one by --{option}-cert that a CA in execgate-policyd's --client-ca has signed"
            ),
            Obstacle::CertificateTime => format!(
                "renew the certificate that --{option}-cert names, or set the clock of the service's machine"
            ),
            Obstacle::StrangeUser => {
                format!("if the user is trusted, say so: --{option}-uid UID ({variable}_UID)")
            }
            Obstacle::Plaintext => {
                format!("use https://, or --insecure-{option} if nobody can stand between")
            }
            Obstacle::Files => format!(
                "look at the files of --{option}-ca, --{option}-cert, --{option}-key and --{option}-token-file \
                 ({variable}_CA and so on)"
            ),
            Obstacle::CallerRefused => self.credential(),
            Obstacle::Unreachable => self.service(),
            Obstacle::NoService => format!(
                "name the service's address in --{option} or {variable}: of execgate-policyd that of --listen, \
                 and neither that of --console nor that of --metrics"
            ),
        }
    }

    /// What to do where a call ended so, if anything is known to help.
    pub(super) fn after(self, caller: &ServiceCaller, status: &Status) -> Option<String> {
        if let Some(obstacle) = caller.obstacle(status) {
            return Some(self.remedy(obstacle));
        }
        match status.code() {
            Code::Unavailable | Code::DeadlineExceeded => Some(self.service()),
            Code::Unimplemented => Some(match self {
                Self::Gate => self.service(),
                Self::Operator => "start execgate-policyd with --operators FILE".to_owned(),
                Self::Auditor => "start execgate-policyd with --data DIR".to_owned(),
            }),
            _ => None,
        }
    }

    /// Why a service can't be called at all.
    pub(super) fn unprepared(self, error: &PrepareError) -> Failure {
        Failure::new(error).hint(self.remedy(error.obstacle()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::link::{Endpoint, LinkCredentials};

    #[test]
    fn each_is_told_its_own_options_and_its_own_kind_of_credential() {
        assert!(
            Role::Gate
                .remedy(Obstacle::UntrustedService)
                .contains("--policy-ca FILE (EXECGATE_POLICY_CA)")
        );
        for role in [Role::Operator, Role::Auditor] {
            let remedy = role.remedy(Obstacle::UntrustedService);
            assert!(
                remedy.contains("--service-ca FILE (EXECGATE_SERVICE_CA)"),
                "{remedy}"
            );
            assert!(
                role.remedy(Obstacle::Plaintext)
                    .contains("--insecure-service")
            );
        }
        assert!(Role::Gate.credential().contains("`execgate token NAME`"));
        assert!(Role::Operator.credential().contains("--role operator"));
        assert!(Role::Auditor.credential().contains("--role auditor"));
    }

    #[test]
    fn no_remedy_names_options_that_the_caller_does_not_have() {
        let gates = ["--policy", "EXECGATE_POLICY", "--insecure-policy"];
        let others = ["--service", "EXECGATE_SERVICE", "--insecure-service"];
        for (role, own, foreign) in [
            (Role::Gate, gates, others),
            (Role::Operator, others, gates),
            (Role::Auditor, others, gates),
        ] {
            for obstacle in [
                Obstacle::UntrustedService,
                Obstacle::AnotherHost,
                Obstacle::ServiceCertificateTime,
                Obstacle::NoTls,
                Obstacle::OnlyTls,
                Obstacle::NoCertificate,
                Obstacle::CertificateRefused,
                Obstacle::CertificateTime,
                Obstacle::StrangeUser,
                Obstacle::Plaintext,
                Obstacle::Files,
                Obstacle::CallerRefused,
                Obstacle::Unreachable,
                Obstacle::NoService,
            ] {
                let remedy = role.remedy(obstacle);
                for name in foreign {
                    assert!(!remedy.contains(name), "{role:?} {obstacle:?}: {remedy}");
                }
                // A service's own certificate is renewed without any of them.
                let names_own = own.iter().any(|name| remedy.contains(name));
                assert!(
                    names_own || obstacle == Obstacle::ServiceCertificateTime,
                    "{role:?} {obstacle:?}: {remedy}"
                );
            }
            let [option, variable, _] = own;
            let remedy = role.service();
            assert!(remedy.ends_with(&format!("correct {option} or {variable}")));
        }
    }

    #[test]
    fn a_service_without_what_is_asked_of_it_is_started_with_that() {
        let endpoint: Endpoint = "http://127.0.0.1:1".parse().unwrap();
        let caller = endpoint.caller(&LinkCredentials::default()).unwrap();
        for (role, option) in [
            (Role::Operator, "--operators FILE"),
            (Role::Auditor, "--data DIR"),
        ] {
            let remedy = role.after(&caller, &Status::unimplemented("x"));
            let names_it = remedy.is_some_and(|remedy| remedy.ends_with(option));
            assert!(names_it, "{role:?}");
            let remedy = role.after(&caller, &Status::unavailable("x"));
            assert_eq!(remedy, Some(role.service()));
            assert_eq!(role.after(&caller, &Status::not_found("x")), None);
        }
    }
}
