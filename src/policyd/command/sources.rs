//! What is read from files, and again when they change; and what follows from there being such files.

use tokio::signal::unix::{SignalKind, signal};

use super::{PolicydArgs, PolicydError, error};
use crate::policyd::authenticate::{Authentication, WithoutToken};
use crate::policyd::identity::GateIdentity;
use crate::policyd::listen::{Exposure, ListenAddress, Missing};
use crate::policyd::numbers::Reload;
use crate::policyd::operators::Operator;
use crate::policyd::reload::{Asked, Followed, RulesFiles, TokensFile};
use crate::policyd::rules::RuleMode;
use crate::policyd::tls::{TlsFiles, WithoutCertificate};

/// What is read from files, and again when they change.
pub(super) struct Sources {
    pub(super) rules: Followed<RulesFiles>,
    pub(super) tls: Option<Followed<TlsFiles>>,
    pub(super) tokens: Option<Followed<TokensFile<GateIdentity>>>,
    pub(super) operators: Option<Followed<TokensFile<Operator>>>,
}

impl Sources {
    pub(super) fn load(args: &PolicydArgs) -> Result<Self, PolicydError> {
        let rules = Followed::load(RulesFiles {
            paths: args.rules.clone(),
            mode: if args.monitor {
                RuleMode::Monitor
            } else {
                RuleMode::Enforce
            },
            asked: match &args.operators {
                Some(_) => Asked::Operators,
                None => Asked::Nobody,
            },
        })?;
        let tls = match (&args.tls_cert, &args.tls_key) {
            (Some(_), _) if matches!(args.listen, ListenAddress::Unix(_)) => {
                return Err(PolicydError::TlsOnSocket);
            }
            (Some(certificate), Some(key)) => Some(
                Followed::load(TlsFiles {
                    certificate: certificate.clone(),
                    key: key.clone(),
                    client_ca: args.client_ca.clone(),
                    without_certificate: match (&args.tokens, &args.operators) {
                        (None, None) => WithoutCertificate::Refused,
                        _ => WithoutCertificate::MayShowToken,
                    },
                })
                .map_err(error::credentials("--tls-cert"))?,
            ),
            _ => None,
        };
        let tokens = args
            .tokens
            .clone()
            .map(|path| Followed::load(TokensFile::new(path)))
            .transpose()
            .map_err(error::credentials("--tokens"))?;
        let operators = args
            .operators
            .clone()
            .map(|path| Followed::load(TokensFile::<Operator>::new(path)))
            .transpose()
            .map_err(error::credentials("--operators"))?;
        if let Some(operators) = &operators
            && args.client_ca.is_none()
            && operators.in_force().borrow().has_certificates()
        {
            tracing::warn!(
                "--operators names certificates, and without --client-ca nobody can show one"
            );
        }
        if let Some(operators) = &operators
            && let Some(place) = rules.in_force().borrow().first_that_asks()
            && !operators.in_force().borrow().has_somebody_who_decides()
        {
            tracing::warn!(
                "the rules ask a person ({place}), and --operators names nobody who may answer, so that what they ask \
                 about waits in vain; add a line, as `execgate token NAME --role operator` writes it"
            );
        }
        Ok(Self {
            rules,
            tls,
            tokens,
            operators,
        })
    }

    /// Who may be let in by what there is.
    pub(super) fn exposure(&self, args: &PolicydArgs) -> Exposure {
        if args.insecure_listen {
            Exposure::Anyone
        } else if self.tls.is_none() {
            Exposure::Loopback(Missing::Tls)
        } else if args.client_ca.is_none() && self.tokens.is_none() {
            Exposure::Loopback(Missing::ClientAuthentication)
        } else {
            Exposure::Anyone
        }
    }

    /// Who a caller is, by what it shows.
    pub(super) fn authentication(&self, args: &PolicydArgs) -> Authentication {
        Authentication {
            tokens: self.tokens.as_ref().map(Followed::in_force),
            operators: self.operators.as_ref().map(Followed::in_force),
            auditors: args.auditors.clone().into(),
            without_token: match &args.client_ca {
                Some(_) => WithoutToken::NeedsCertificate,
                None => WithoutToken::Admitted,
            },
        }
    }

    /// Whether each is what its files hold, as numbers.
    pub(super) fn reloads(&self) -> Vec<Reload> {
        let tls = self.tls.as_ref().map(Followed::fault);
        let tokens = self.tokens.as_ref().map(Followed::fault);
        let operators = self.operators.as_ref().map(Followed::fault);
        [
            (
                "rules_reload_failed",
                "1 while the rules' files hold what can't be used, and the last good rules are in force; else 0",
                Some(self.rules.fault()),
            ),
            (
                "certificates_reload_failed",
                "1 while the files of certificates and keys hold what can't be used, and the last good ones are in \
                 force; else 0",
                tls,
            ),
            (
                "tokens_reload_failed",
                "1 while the file of gates' tokens can't be used, and the last good tokens are in force; else 0",
                tokens,
            ),
            (
                "operators_reload_failed",
                "1 while the file of operators can't be used, and the last good lines are in force; else 0",
                operators,
            ),
        ]
        .into_iter()
        .filter_map(|(name, help, fault)| Some(Reload { name, help, fault: fault? }))
        .collect()
    }

    /// Follows them from now on: looks at each when it changes, and at SIGHUP.
    pub(super) fn follow(self) -> std::io::Result<()> {
        let hangups = || signal(SignalKind::hangup());
        tokio::spawn(self.rules.follow(hangups()?));
        if let Some(tls) = self.tls {
            tokio::spawn(tls.follow(hangups()?));
        }
        if let Some(tokens) = self.tokens {
            tokio::spawn(tokens.follow(hangups()?));
        }
        if let Some(operators) = self.operators {
            tokio::spawn(operators.follow(hangups()?));
        }
        Ok(())
    }
}
