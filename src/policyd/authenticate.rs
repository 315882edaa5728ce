//! Says who makes a call, before anything looks at it.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tonic::service::Interceptor;
use tonic::{Request, Status};

use super::connection::{Peer, Proof};
use super::identity::GateIdentity;
use super::throttle::Throttle;
use super::tokens::{TokenDigest, Tokens};

/// Longest token, in bytes.
const MAX_TOKEN: usize = 4_096;

static REFUSED: Throttle = Throttle::new(Duration::from_secs(1));

/// What somebody may do here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    /// Ask for verdicts, and tell what happened.
    Gate,
    /// Read what is on record.
    Auditor,
}

/// Who makes a call. Each call that reaches a service has it.
#[derive(Debug, Clone)]
pub(super) struct Caller {
    pub(super) gate: GateIdentity,
    pub(super) role: Role,
    /// The token that says so, where one does: the call ends when it is no longer valid.
    pub(super) token: Option<TokenDigest>,
}

/// Where tokens are asked for, a call needs one, unless its connection came with a certificate.
#[derive(Debug, Clone)]
pub(super) struct Authentication {
    pub(super) tokens: Option<watch::Receiver<Arc<Tokens>>>,
    /// Who is an auditor, besides those whose token says so.
    pub(super) auditors: Arc<[GateIdentity]>,
}

impl Authentication {
    fn is(&self, gate: GateIdentity, token: Option<(TokenDigest, Role)>) -> Caller {
        let is_auditor =
            self.auditors.contains(&gate) || token.is_some_and(|(_, role)| role == Role::Auditor);
        Caller {
            gate,
            role: if is_auditor {
                Role::Auditor
            } else {
                Role::Gate
            },
            token: token.map(|(token, _)| token),
        }
    }

    fn caller(&self, request: &Request<()>) -> Result<Caller, &'static str> {
        let peer = request.extensions().get::<Peer>();
        let proven = peer.and_then(|peer| peer.proven.clone());
        let certificate = match &proven {
            Some(Proof::Nameless) => {
                return Err(
                    "the gate's certificate has neither a URI nor a DNS name (subjectAltName) to be known by",
                );
            }
            Some(Proof::Stranger) => {
                return Err("the user of the gate's process isn't one that may connect here");
            }
            Some(Proof::Certificate(gate)) => Some(gate.clone()),
            Some(Proof::User(_)) | None => None,
        };
        let Some(tokens) = &self.tokens else {
            let gate = match proven {
                Some(Proof::Certificate(gate) | Proof::User(gate)) => gate,
                _ => GateIdentity::anonymous(),
            };
            return Ok(self.is(gate, None));
        };
        let mut shown = request.metadata().get_all("authorization").iter();
        match (shown.next(), shown.next()) {
            (Some(shown), None) => {
                let digest = bearer(shown.as_encoded_bytes())?;
                let known = {
                    let tokens = tokens.borrow();
                    tokens.owner(digest).cloned().zip(tokens.role(digest))
                };
                let (owner, role) =
                    known.ok_or("the token isn't one that the policy service knows")?;
                Ok(match certificate {
                    Some(gate) => self.is(gate, None),
                    None => self.is(owner, Some((digest, role))),
                })
            }
            (Some(_), Some(_)) => Err("it has more than one authorization"),
            (None, _) => match certificate {
                Some(gate) => Ok(self.is(gate, None)),
                None => Err("the policy service asks for a token, and the gate shows none"),
            },
        }
    }
}

fn bearer(authorization: &[u8]) -> Result<TokenDigest, &'static str> {
    const SCHEME: &[u8] = b"bearer ";
    let token = match authorization.split_at_checked(SCHEME.len()) {
        Some((scheme, token)) if scheme.eq_ignore_ascii_case(SCHEME) => token,
        _ => return Err("its authorization isn't a bearer token"),
    };
    if token.is_empty() || token.len() > MAX_TOKEN {
        return Err("its token is empty, or longer than any");
    }
    Ok(TokenDigest::of(token))
}

/// Completes when the token of a call is no longer valid.
pub(super) async fn revoked(
    token: Option<TokenDigest>,
    tokens: &mut Option<watch::Receiver<Arc<Tokens>>>,
) {
    let (Some(token), Some(tokens)) = (token, tokens) else {
        return std::future::pending().await;
    };
    let role = tokens.borrow().role(token);
    while tokens.changed().await.is_ok() {
        let now = tokens.borrow_and_update().role(token);
        if now.is_none() || now != role {
            return;
        }
    }
    // Nothing is revoked any more: the service ends.
    std::future::pending::<()>().await;
}

impl Interceptor for Authentication {
    fn call(&mut self, mut request: Request<()>) -> Result<Request<()>, Status> {
        match self.caller(&request) {
            Ok(caller) => {
                request.extensions_mut().insert(caller);
                Ok(request)
            }
            Err(reason) => {
                if let Some(held_back) = REFUSED.admit() {
                    let peer = request.extensions().get::<Peer>();
                    let peer = peer.map_or("?", |peer| &peer.address);
                    tracing::warn!(peer, held_back, "refused a call: {reason}");
                }
                Err(Status::unauthenticated(reason))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn caller(tokens: bool, proven: Option<Proof>, shown: &[&str]) -> Result<String, &'static str> {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("tokens");
        std::fs::write(&path, format!("ci {}", TokenDigest::of(b"t"))).expect("a file");
        let tokens = tokens.then(|| {
            watch::Sender::new(Arc::new(Tokens::load(&path).expect("tokens"))).subscribe()
        });
        let mut request = Request::new(());
        request.extensions_mut().insert(Peer {
            proven,
            address: "here".into(),
        });
        for shown in shown {
            let shown = shown.parse().expect("ASCII");
            request.metadata_mut().append("authorization", shown);
        }
        let auditors = Arc::new([]);
        let caller = Authentication { tokens, auditors }.caller(&request)?;
        Ok(caller.gate.to_string())
    }

    #[test]
    fn a_certificate_comes_before_a_token_and_a_token_before_a_user() {
        let certificate = || GateIdentity::parse("dns:gate.example").expect("a name");
        let certificate = || Some(Proof::Certificate(certificate()));
        let user = || Some(Proof::User(GateIdentity::uid(7)));
        let is = |name: &str| Ok(name.to_owned());
        assert_eq!(caller(false, None, &[]), is("anonymous"));
        assert_eq!(caller(false, None, &["Bearer t"]), is("anonymous"));
        assert_eq!(caller(false, user(), &[]), is("uid:7"));
        assert_eq!(caller(false, certificate(), &[]), is("dns:gate.example"));
        assert_eq!(caller(true, None, &["Bearer t"]), is("token:ci"));
        assert_eq!(caller(true, user(), &["bearer t"]), is("token:ci"));
        assert_eq!(
            caller(true, certificate(), &["Bearer t"]),
            is("dns:gate.example")
        );
        assert_eq!(caller(true, certificate(), &[]), is("dns:gate.example"));
        for tokens in [false, true] {
            assert!(caller(tokens, Some(Proof::Stranger), &["Bearer t"]).is_err());
            assert!(caller(tokens, Some(Proof::Nameless), &["Bearer t"]).is_err());
        }
        // A user's processes are many, sandboxed ones among them.
        assert!(caller(true, user(), &[]).is_err());
        for wrong in [
            &[][..],
            &["Bearer x"],
            &["Bearer "],
            &["Bearer"],
            &["Basic t"],
            &["t"],
            &["Bearer t", "Bearer t"],
        ] {
            assert!(caller(true, None, wrong).is_err(), "{wrong:?}");
        }
        assert!(caller(true, certificate(), &["Bearer x"]).is_err());
    }
}
