//! Says who makes a call, before anything looks at it.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tonic::service::Interceptor;
use tonic::{Request, Status};

use super::connection::{Peer, Proof};
use super::identity::GateIdentity;
use super::operators::{Duty, Operator};
use super::throttle::Throttle;
use super::tokens::{Credential, Holder, TokenDigest, Tokens};

/// Longest token, in bytes.
const MAX_TOKEN: usize = 4_096;

static REFUSED: Throttle = Throttle::new(Duration::from_secs(1));

/// The gate that makes a call. Each call of a gate has it as an extension, and no other call has.
#[derive(Debug, Clone)]
pub(super) struct Caller {
    pub(super) gate: GateIdentity,
    /// The token that says so, where one does: the call ends when it is no longer valid.
    pub(super) token: Option<Credential>,
    /// The token or certificate that says so: the call ends when it becomes an operator's.
    pub(super) credential: Option<Credential>,
}

/// The operator who makes a call. Each call of an operator has it as an extension, and no other call has.
#[derive(Debug, Clone)]
pub(super) struct OperatorCaller {
    pub(super) operator: Operator,
    /// The call ends when it is no longer valid.
    pub(super) credential: Credential,
}

/// Who may read what is on record: an operator, or one whose connection proves to be an auditor's. Each such
/// call has it as an extension, and no other call has.
#[derive(Debug, Clone)]
pub(super) struct Reader {
    pub(super) name: Arc<str>,
    /// The operator's credential, where one says so: the call ends when it is no longer valid.
    pub(super) credential: Option<Credential>,
}

/// Who makes a call: one of these, and never two. An operator may be a reader besides.
#[derive(Debug, Clone)]
enum Who {
    Gate(Caller),
    Operator(OperatorCaller),
    Reader(Reader),
}

/// Where tokens are asked for, a gate's call needs one, unless its connection came with a certificate. An
/// operator's call has an operator's token, whatever the connection came with, or its connection came with an
/// operator's certificate. Such a certificate is never a gate's.
#[derive(Debug, Clone)]
pub(super) struct Authentication {
    pub(super) tokens: Option<watch::Receiver<Arc<Tokens>>>,
    pub(super) operators: Option<watch::Receiver<Arc<Tokens<Operator>>>>,
    /// Who only reads what is on record, besides those whose token says so.
    pub(super) auditors: Arc<[GateIdentity]>,
    /// What a gate must have that shows no token.
    pub(super) without_token: WithoutToken,
}

/// What becomes of a gate's call without a token, where none is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum WithoutToken {
    /// Its connection must have come with a certificate. TLS sees to that by itself, unless operators may
    /// connect without one.
    NeedsCertificate,
    /// It may be anybody's.
    Admitted,
}

impl Authentication {
    fn who(&self, request: &Request<()>) -> Result<Who, &'static str> {
        let peer = request.extensions().get::<Peer>();
        let proven = peer.and_then(|peer| peer.proven.clone());
        match &proven {
            Some(Proof::Nameless) => {
                return Err(
                    "the gate's certificate has neither a URI nor a DNS name (subjectAltName) to be known by",
                );
            }
            Some(Proof::Stranger) => {
                return Err("the user of the gate's process isn't one that may connect here");
            }
            Some(Proof::Certificate(_) | Proof::User(_)) | None => {}
        }
        let shown = self.shown(request)?;
        let Some((credential, operator)) = self.operator(proven.as_ref(), shown) else {
            return self.connected(proven, shown);
        };
        let is_gates =
            |tokens: &watch::Receiver<Arc<Tokens>>| tokens.borrow().holder(&credential).is_some();
        if self.tokens.as_ref().is_some_and(is_gates) {
            return Err("its token is a gate's and an operator's: give each one of their own");
        }
        Ok(match operator.duty() {
            Duty::Operate => Who::Operator(OperatorCaller {
                operator,
                credential,
            }),
            Duty::Audit => Who::Reader(Reader {
                name: operator.as_str().into(),
                credential: Some(credential),
            }),
        })
    }

    /// Who shows an operator's token, or else has an operator's certificate.
    fn operator(
        &self,
        proven: Option<&Proof>,
        shown: Option<TokenDigest>,
    ) -> Option<(Credential, Operator)> {
        let operators = self.operators.as_ref()?.borrow();
        let certificate = match proven {
            Some(Proof::Certificate(identity)) => Some(Credential::Certificate(identity.clone())),
            _ => None,
        };
        [shown.map(Credential::Token), certificate]
            .into_iter()
            .flatten()
            .find_map(|credential| {
                let operator = operators.holder(&credential)?.clone();
                Some((credential, operator))
            })
    }

    /// Who shows no operator's credential.
    fn connected(
        &self,
        proven: Option<Proof>,
        shown: Option<TokenDigest>,
    ) -> Result<Who, &'static str> {
        if let Some(Proof::Certificate(identity) | Proof::User(identity)) = &proven
            && self.auditors.contains(identity)
        {
            return Ok(Who::Reader(Reader {
                name: identity.as_str().into(),
                credential: None,
            }));
        }
        self.gate(proven, shown).map(Who::Gate)
    }

    /// The token that a call shows. Where none is asked for, what else it may show is passed over.
    fn shown(&self, request: &Request<()>) -> Result<Option<TokenDigest>, &'static str> {
        let mut shown = request.metadata().get_all("authorization").iter();
        match (shown.next(), shown.next()) {
            _ if self.tokens.is_none() && self.operators.is_none() => Ok(None),
            (Some(shown), None) => bearer(shown.as_encoded_bytes()).map(Some),
            (Some(_), Some(_)) => Err("it has more than one authorization"),
            (None, _) => Ok(None),
        }
    }

    fn gate(
        &self,
        proven: Option<Proof>,
        shown: Option<TokenDigest>,
    ) -> Result<Caller, &'static str> {
        let credential = match &proven {
            Some(Proof::Certificate(gate)) => Some(Credential::Certificate(gate.clone())),
            _ => None,
        };
        let by_connection = |gate| Caller {
            gate,
            token: None,
            credential,
        };
        let Some(tokens) = &self.tokens else {
            return match proven {
                Some(Proof::Certificate(gate)) => Ok(by_connection(gate)),
                _ if self.without_token == WithoutToken::NeedsCertificate => {
                    Err("the gate shows no certificate, and one is required")
                }
                Some(Proof::User(gate)) => Ok(by_connection(gate)),
                _ => Ok(by_connection(GateIdentity::anonymous())),
            };
        };
        let owner = match shown {
            Some(digest) => {
                let owner = tokens.borrow().owner(digest).cloned();
                Some(owner.ok_or("the token isn't one that the policy service knows")?)
            }
            None => None,
        };
        match (proven, owner) {
            (Some(Proof::Certificate(gate)), _) => Ok(by_connection(gate)),
            (_, Some(gate)) => Ok(Caller {
                gate,
                token: shown.map(Credential::Token),
                credential: shown.map(Credential::Token),
            }),
            (_, None) => Err("the policy service asks for a token, and none is shown"),
        }
    }
}

/// What an operator's call needs that isn't one.
fn not_an_operator<T>(request: &Request<T>) -> Status {
    let shown = if let Some(reader) = request.extensions().get::<Reader>() {
        format!("{} may only read", reader.name)
    } else {
        shown_instead(request)
    };
    Status::permission_denied(format!(
        "this takes an operator's token or certificate, and {shown}"
    ))
}

/// Whose the credential of a call is that is neither an operator's nor an auditor's.
fn shown_instead<T>(request: &Request<T>) -> String {
    let caller = request.extensions().get::<Caller>();
    match caller.filter(|caller| caller.gate != GateIdentity::anonymous()) {
        Some(caller) => format!("{} is a gate", caller.gate),
        None if request.metadata().contains_key("authorization") => {
            "the token that was shown is none that the policy service knows".to_owned()
        }
        None => "nothing was shown".to_owned(),
    }
}

/// What a gate's call needs that isn't one.
pub(super) fn not_a_gate() -> Status {
    Status::permission_denied(
        "this credential isn't a gate's: only gates have sessions; `execgate token NAME` (--role gate) makes a gate's \
         token, and the line for the file of execgate-policyd --tokens",
    )
}

/// Who the operator is that makes a call.
pub(super) fn operator<T>(request: &Request<T>) -> Result<OperatorCaller, Status> {
    let caller = request.extensions().get::<OperatorCaller>();
    caller.cloned().ok_or_else(|| not_an_operator(request))
}

/// Who it is that reads what is on record.
pub(super) fn reader<T>(request: &Request<T>) -> Result<Reader, Status> {
    request
        .extensions()
        .get::<Reader>()
        .cloned()
        .ok_or_else(|| {
            if let Some(held_back) = REFUSED.admit() {
                let gate = request
                    .extensions()
                    .get::<Caller>()
                    .map(|caller| &caller.gate);
                let caller = gate.map_or("?", GateIdentity::as_str);
                tracing::warn!(
                    caller,
                    held_back,
                    "refused to show the record to who isn't an auditor"
                );
            }
            Status::permission_denied(format!(
                "the record is for operators and auditors, and {}",
                shown_instead(request)
            ))
        })
}

/// Completes when the credential of a call is no longer valid.
pub(super) async fn revoked<H: Holder>(
    credential: Option<&Credential>,
    tokens: &mut Option<watch::Receiver<Arc<Tokens<H>>>>,
) {
    let (Some(credential), Some(tokens)) = (credential, tokens) else {
        return std::future::pending().await;
    };
    let holder = tokens.borrow().holder(credential).cloned();
    while tokens.changed().await.is_ok() {
        let now = tokens.borrow_and_update().holder(credential).cloned();
        if now.is_none() || now != holder {
            return;
        }
    }
    // Nothing is revoked any more: the service ends.
    std::future::pending::<()>().await;
}

/// Completes when the credential of a gate's call is an operator's: it is no gate's any more.
pub(super) async fn promoted(
    credential: Option<&Credential>,
    operators: &mut Option<watch::Receiver<Arc<Tokens<Operator>>>>,
) {
    let (Some(credential), Some(operators)) = (credential, operators) else {
        return std::future::pending().await;
    };
    let is_operators = |operators: &Arc<Tokens<Operator>>| operators.holder(credential).is_some();
    if operators.wait_for(is_operators).await.is_err() {
        // Nobody becomes an operator any more: the service ends.
        std::future::pending::<()>().await;
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

impl Interceptor for Authentication {
    fn call(&mut self, mut request: Request<()>) -> Result<Request<()>, Status> {
        match self.who(&request) {
            Ok(Who::Gate(caller)) => {
                request.extensions_mut().insert(caller);
                Ok(request)
            }
            Ok(Who::Operator(caller)) => {
                request.extensions_mut().insert(Reader {
                    name: caller.operator.as_str().into(),
                    credential: Some(caller.credential.clone()),
                });
                request.extensions_mut().insert(caller);
                Ok(request)
            }
            Ok(Who::Reader(reader)) => {
                request.extensions_mut().insert(reader);
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

    #[test]
    fn a_credential_that_nobody_knows_is_told_from_none() {
        let mut request = Request::new(());
        let refused = |request: &Request<()>| {
            let reader = reader(request).map(drop).expect_err("refused");
            let operator = operator(request).map(drop).expect_err("refused");
            [reader, operator].map(|status| status.message().to_owned())
        };
        for message in refused(&request) {
            assert!(message.ends_with(", and nothing was shown"), "{message}");
        }
        let token = "Bearer x".parse().expect("a value");
        request.metadata_mut().insert("authorization", token);
        for message in refused(&request) {
            let says = ", and the token that was shown is none that the policy service knows";
            assert!(message.ends_with(says), "{message}");
        }
    }

    /// What a caller may do, and its name.
    fn who(
        tokens: bool,
        operators: bool,
        without_token: WithoutToken,
        proven: Option<Proof>,
        shown: &[&str],
    ) -> Result<String, &'static str> {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("tokens");
        let line = |name, token: &str| format!("{name} {}\n", TokenDigest::of(token.as_bytes()));
        let gates = line("ci", "t") + &line("mixed", "both");
        std::fs::write(&path, gates).expect("a file");
        let tokens = tokens.then(|| {
            watch::Sender::new(Arc::new(Tokens::load(&path).expect("tokens"))).subscribe()
        });
        let auditor = format!("eve {} auditor\n", TokenDigest::of(b"eve"));
        std::fs::write(
            &path,
            line("ada", "ada") + &line("mixed", "both") + &auditor,
        )
        .expect("a file");
        let operators = operators.then(|| {
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
        match (Authentication {
            tokens,
            operators,
            auditors: Arc::new([GateIdentity::uid(9)]),
            without_token,
        })
        .who(&request)?
        {
            Who::Reader(reader) => Ok(format!("reader {}", reader.name)),
            Who::Gate(caller) => Ok(format!("gate {}", caller.gate)),
            Who::Operator(caller) => Ok(format!("operator {}", caller.operator)),
        }
    }

    fn caller(tokens: bool, proven: Option<Proof>, shown: &[&str]) -> Result<String, &'static str> {
        who(tokens, false, WithoutToken::Admitted, proven, shown)
    }

    #[test]
    fn an_operators_token_makes_an_operator_and_never_a_gate() {
        let certificate = || {
            let gate = GateIdentity::parse("dns:gate.example").expect("a name");
            Some(Proof::Certificate(gate))
        };
        let user = || Some(Proof::User(GateIdentity::uid(7)));
        let is = |who: &str| Ok(who.to_owned());
        for tokens in [false, true] {
            let ask =
                |proven, shown: &[&str]| who(tokens, true, WithoutToken::Admitted, proven, shown);
            for proven in [None, user(), certificate()] {
                assert_eq!(
                    ask(proven.clone(), &["Bearer ada"]),
                    is("operator operator:ada")
                );
                assert_eq!(ask(proven, &["Bearer eve"]), is("reader auditor:eve"));
            }
            assert_eq!(
                ask(Some(Proof::User(GateIdentity::uid(9))), &[]),
                is("reader uid:9")
            );
            assert!(ask(Some(Proof::Stranger), &["Bearer ada"]).is_err());
            assert!(ask(None, &["Bearer ada", "Bearer ada"]).is_err());
            assert_eq!(ask(certificate(), &[]), is("gate dns:gate.example"));
        }
        let ask = |shown: &[&str]| who(true, true, WithoutToken::Admitted, None, shown);
        assert_eq!(ask(&["Bearer t"]), is("gate token:ci"));
        assert!(ask(&["Bearer both"]).is_err());
        assert!(ask(&[]).is_err());
        // Without a certificate only operators are let in where gates need one.
        let ask = |proven, shown: &[&str]| {
            who(false, true, WithoutToken::NeedsCertificate, proven, shown)
        };
        assert_eq!(ask(None, &["Bearer ada"]), is("operator operator:ada"));
        assert_eq!(ask(certificate(), &[]), is("gate dns:gate.example"));
        for shown in [&[][..], &["Bearer x"]] {
            assert!(ask(None, shown).is_err(), "{shown:?}");
        }
    }

    #[test]
    fn a_certificate_comes_before_a_token_and_a_token_before_a_user() {
        let certificate = || GateIdentity::parse("dns:gate.example").expect("a name");
        let certificate = || Some(Proof::Certificate(certificate()));
        let user = || Some(Proof::User(GateIdentity::uid(7)));
        let is = |gate: &str| Ok(format!("gate {gate}"));
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
            // As long as the right one.
            &["Digest t"],
            &["Bearer:t"],
            &["t"],
            &["Bearer t", "Bearer t"],
        ] {
            assert!(caller(true, None, wrong).is_err(), "{wrong:?}");
        }
        assert!(caller(true, certificate(), &["Bearer x"]).is_err());
    }
}
