//! The program `execgate-policyd`: command line, start, stop, exit codes.

use std::io::Write;
use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use clap::{Parser, ValueEnum};
use sd_notify::NotifyState;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tonic::service::{InterceptorLayer, Routes};
use tonic::transport::Server;
use tonic_health::ServingStatus;
use tonic_health::server::HealthReporter;

use super::accept::{self, Demands, Protocol};
use super::admission::Bounds;
use super::approvals::{Approvals, Desk, Ledger, Loaded, MOST_CLOSED};
use super::audit::StoreAudit;
use super::authenticate::{Authentication, WithoutToken};
use super::console::{self, Console, Cookies};
use super::identity::GateIdentity;
use super::listen::{self, Doors, Exposure, ListenAddress, ListenError, Listener, Missing};
use super::numbers::ServiceNumbers;
use super::operators::Operator;
use super::owners::{self, Owners};
use super::rate::Rates;
use super::reception::{Reception, Room};
use super::reload::{Followed, RulesFiles, TokensFile};
use super::rules::{RuleMode, RulesError};
use super::service::{MAX_MESSAGE_SIZE, RulesService, Setting};
use super::sessions::{Sessions, SessionsService};
use super::store::{Retention, Store, StoreError};
use super::tls::{Tls, TlsFiles, WithoutCertificate};
use super::tokens::Tokens;
use super::webhook::{Webhook, WebhookError};
use crate::logging::{self, FilterError, LogFormat};
use crate::metrics::{MetricsEndpoint, MetricsError};
use crate::pb::approval::v1::approval_service_server::ApprovalServiceServer;
use crate::pb::audit::v1::audit_service_server::AuditServiceServer;
use crate::pb::session::v1::session_service_server::SessionServiceServer;
use crate::pb::v1::policy_service_server::PolicyServiceServer;
use crate::sys::{host, limits};
use crate::transport::CredentialError;

/// Finds connections that died silently.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(30);
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(20);
/// Flow control windows of HTTP/2, in bytes: what of a call, and of a connection, may have been sent and not yet
/// been read. The protocol's own 64 KiB make a large argument list take many round trips; and as each of a gate's
/// 2,048 calls may leave all of its window unread, for as long as the gate reads no answers, twice as much costs
/// twice the memory. With this, 2 MiB of arguments take eight round trips, and those calls 512 MiB.
const STREAM_WINDOW: u32 = 256 << 10;
const CONNECTION_WINDOW: u32 = 1 << 20;
/// Most calls of one connection.
const MAX_STREAMS: u32 = 2_048;
/// Most bytes of one call's headers: a token, and what proxies add.
const MAX_HEADERS: u32 = 16 << 10;
/// Most calls that one connection has opened and ended again without anybody having looked.
const MAX_RESET_STREAMS: usize = 64;
/// The interpreter of rules recurses over nested values.
const STACK_SIZE: usize = 16 << 20;
/// The name by which gRPC's health service says whether the rules' files hold what is in force: NOT_SERVING while
/// they hold what can't be used. The service itself goes on with the last good rules.
const RULES_HEALTH: &str = "execgate.policyd.rules";
/// Largest question of an auditor, in bytes.
const MAX_QUESTION_SIZE: usize = 256 << 10;
/// Between looks at whether there is something that isn't to be kept.
const PRUNING_INTERVAL: Duration = Duration::from_secs(10);
/// Connections of the console at once: a browser has six at most.
const CONSOLE_CONNECTIONS: Bounds = Bounds {
    in_all: 512,
    of_one_peer: 256,
};
/// What is logged where nothing else is said.
const LOG: &str = "info";
/// How long a service that was told to stop waits for its calls to end.
const STOPPING_PATIENCE: Duration = Duration::from_secs(8);

/// The command line of `execgate-policyd`.
#[derive(Debug, Clone, Parser)]
#[command(
    name = "execgate-policyd",
    version,
    about = "The reference policy service: decides, by a file of rules, what may run in sandboxes",
    long_about = "The reference policy service: decides, by a file of rules, what may run in sandboxes.\n\n\
        Gates connect by gRPC and ask before each command; the answer is to run it inside the sandbox, \
        to escalate it (run it outside), or to deny it. What nothing in the rules matches is denied. \
        With --data every event is stored, and `execgate audit` reads it.",
    after_long_help = "EXAMPLES\n\
        \x20 Serve this host:\n\
        \x20   execgate-policyd --rules demo.rules.star --data /var/lib/execgate\n\n\
        \x20 Serve by a socket that only this user can open:\n\
        \x20   execgate-policyd --rules demo.rules.star --listen unix:/run/execgate/policy.sock\n\n\
        \x20 Serve other hosts, to gates whose certificates a CA has signed:\n\
        \x20   execgate-policyd --rules demo.rules.star --listen policy.example:50051 \\\n\
        \x20     --tls-cert service.pem --tls-key service.key --client-ca gates-ca.pem\n\n\
        \x20 Let the kernel choose a port, and tell a script which:\n\
        \x20   execgate-policyd --rules demo.rules.star --listen 127.0.0.1:0 --output json\n\n\
        \x20 Try what the rules would answer, without any service:\n\
        \x20   execgate check --rules demo.rules.star -- git push\n\n\
        RULES\n\
        \x20 prefix_rule(pattern = [\"git\", [\"status\", \"log\"]])\n\
        \x20 prefix_rule(pattern = [\"git\", \"push\"], decision = \"deny\", justification = \"Ask first.\")\n\
        \x20 The strictest rule that matches wins. The file is loaded again when it changes and at\n\
        \x20 SIGHUP; a file with errors changes nothing, and the log says so. The same holds for\n\
        \x20 certificates, keys and tokens.\n\n\
        IDENTITY\n\
        \x20 A gate is who its credential says: the certificate's URI or DNS name, the token's name,\n\
        \x20 the user of its process on a Unix socket. Rules know it as exec.gate. A session is of\n\
        \x20 the gate that started it, and no other gate may go on with it.\n\n\
        SIGNALS\n\
        \x20 TERM, INT  store what was received, and exit\n\
        \x20 HUP        load rules, certificates, keys and tokens again\n\n\
        EXIT CODES\n\
        \x20 0  stopped by a signal\n\
        \x20 1  failed while it served\n\
        \x20 2  the command line is wrong\n\
        \x20 3  the rules can't be used\n\
        \x20 4  the event store can't be used\n\
        \x20 5  the address can't be listened at\n\
        \x20 6  certificates, keys or tokens can't be used"
)]
pub struct PolicydArgs {
    /// File of rules to decide by, or a directory of files whose names end with .rules or .rules.star. May be given
    /// more than once: all rules count, as if they stood in one file.
    #[arg(
        long,
        value_name = "PATH",
        env = "EXECGATE_POLICYD_RULES",
        value_delimiter = ',',
        required = true
    )]
    pub rules: Vec<PathBuf>,

    /// Act on no rule: each command runs inside its sandbox, and the record says what the rules would have done
    /// (`execgate audit --verdict monitored`). Single rules do so by mode = "monitor".
    #[arg(long, env = "EXECGATE_POLICYD_MONITOR")]
    pub monitor: bool,

    /// Where to listen: HOST:PORT (port 0: any that is free), or unix:PATH.
    #[arg(
        long,
        value_name = "ADDRESS",
        env = "EXECGATE_POLICYD_LISTEN",
        default_value = "127.0.0.1:50051",
        value_parser = ListenAddress::parse
    )]
    pub listen: ListenAddress,

    /// Directory to store events in; without it nothing is stored.
    #[arg(
        long,
        value_name = "DIR",
        env = "EXECGATE_POLICYD_DATA",
        help_heading = "The record"
    )]
    pub data: Option<PathBuf>,

    /// Certificate of this service, with those that lead to its root, in PEM: speak TLS.
    #[arg(
        long,
        value_name = "FILE",
        env = "EXECGATE_POLICYD_TLS_CERT",
        requires = "tls_key",
        help_heading = "TLS and gates"
    )]
    pub tls_cert: Option<PathBuf>,

    /// Private key of that certificate, in PEM; a file that no other user can read.
    #[arg(
        long,
        value_name = "FILE",
        env = "EXECGATE_POLICYD_TLS_KEY",
        requires = "tls_cert",
        help_heading = "TLS and gates"
    )]
    pub tls_key: Option<PathBuf>,

    /// Certificates, in PEM, whose holders may sign those of gates. Each gate must show such a
    /// certificate, or, where --tokens is given too, a token.
    #[arg(
        long,
        value_name = "FILE",
        env = "EXECGATE_POLICYD_CLIENT_CA",
        requires = "tls_cert",
        help_heading = "TLS and gates"
    )]
    pub client_ca: Option<PathBuf>,

    /// File of lines NAME SHA256, as `execgate token NAME` writes them. Each gate must show such a
    /// token, unless it shows a certificate.
    #[arg(
        long,
        value_name = "FILE",
        env = "EXECGATE_POLICYD_TOKENS",
        help_heading = "TLS and gates"
    )]
    pub tokens: Option<PathBuf>,

    /// File of lines NAME SHA256, as `execgate token NAME` writes them: the tokens of operators, who
    /// approve what rules ask about (`execgate approvals`) and end sessions (`execgate sessions`). A line
    /// uri:URI or dns:NAME alone is of an operator with that client certificate (--client-ca). None of
    /// them is a gate's. Without it nobody can be asked, and what rules ask about is denied.
    #[arg(
        long,
        value_name = "FILE",
        env = "EXECGATE_POLICYD_OPERATORS",
        help_heading = "Operators and auditors"
    )]
    pub operators: Option<PathBuf>,

    /// Where to POST each approval as it opens and is closed, as JSON: an https:// URL, or an http:// one
    /// of this host.
    #[arg(
        long,
        value_name = "URL",
        env = "EXECGATE_POLICYD_WEBHOOK",
        requires = "webhook_secret",
        requires = "operators",
        help_heading = "Operators and auditors"
    )]
    pub webhook: Option<String>,

    /// Secret that those POSTs are signed with (HMAC-SHA256 of `Execgate-Timestamp`, a dot and the body, in
    /// `Execgate-Signature`); a file of 16 bytes or more that no other user can read.
    #[arg(
        long,
        value_name = "FILE",
        env = "EXECGATE_POLICYD_WEBHOOK_SECRET",
        requires = "webhook",
        help_heading = "Operators and auditors"
    )]
    pub webhook_secret: Option<PathBuf>,

    /// Certificates, in PEM, to trust the receiver by, instead of the system's.
    #[arg(
        long,
        value_name = "FILE",
        env = "EXECGATE_POLICYD_WEBHOOK_CA",
        requires = "webhook",
        help_heading = "Operators and auditors"
    )]
    pub webhook_ca: Option<PathBuf>,

    /// Where to serve the console, a page for browsers: HOST:PORT. Operators log in with their tokens. With
    /// --tls-cert it speaks TLS; without, only loopback addresses are taken.
    #[arg(
        long,
        value_name = "ADDR",
        env = "EXECGATE_POLICYD_CONSOLE",
        value_parser = console_address,
        requires = "operators",
        help_heading = "Operators and auditors"
    )]
    pub console: Option<ListenAddress>,

    /// User id whose processes may connect by the Unix socket, besides root's and this one's. May be
    /// given more than once; the socket can then be opened by every user.
    #[arg(
        long = "allow-uid",
        value_name = "UID",
        env = "EXECGATE_POLICYD_ALLOW_UID",
        value_delimiter = ',',
        help_heading = "TLS and gates"
    )]
    pub allow_uids: Vec<u32>,

    /// Who may read the record over the network (`execgate watch`, `execgate audit --service`), by certificate or
    /// user: uri:URI, dns:NAME or uid:NUMBER. May be given more than once. Operators' tokens say so themselves, by
    /// the word `auditor` at the end of their line. An auditor is no gate.
    #[arg(
        long = "auditor",
        value_name = "IDENTITY",
        env = "EXECGATE_POLICYD_AUDITOR",
        value_delimiter = ',',
        value_parser = auditor,
        help_heading = "Operators and auditors"
    )]
    pub auditors: Vec<GateIdentity>,

    /// Remove events that are older than so much, such as 90d or 12h. Everything is kept if neither this nor
    /// --retain-size is given.
    #[arg(
        long,
        value_name = "AGE",
        env = "EXECGATE_POLICYD_RETAIN_AGE",
        value_parser = retained_age,
        requires = "data",
        help_heading = "The record"
    )]
    pub retain_age: Option<Duration>,

    /// Remove the oldest events while the store takes more than so much, such as 20GiB; 64MiB at least.
    #[arg(
        long,
        value_name = "SIZE",
        env = "EXECGATE_POLICYD_RETAIN_SIZE",
        value_parser = retained_size,
        requires = "data",
        help_heading = "The record"
    )]
    pub retain_size: Option<u64>,

    /// Most execs a second that one gate, by its identity, may ask about, with as many at once; what it asks
    /// beyond that is denied, with the reason code gate.rate_limited [default: no limit]
    #[arg(
        long,
        value_name = "NUMBER",
        env = "EXECGATE_POLICYD_EXECS_PER_SECOND",
        help_heading = "TLS and gates"
    )]
    pub execs_per_second: Option<NonZeroU32>,

    /// Serve numbers for Prometheus at http://ADDRESS:PORT/metrics. Whoever can connect there can read them.
    #[arg(
        long,
        value_name = "ADDRESS:PORT",
        env = "EXECGATE_POLICYD_METRICS",
        value_parser = MetricsEndpoint::parse_address,
        help_heading = "Log and metrics"
    )]
    pub metrics: Option<SocketAddr>,

    /// Allow an address that other hosts can reach without TLS, or without any credential of gates:
    /// whoever reaches it, or stands between, can then read all commands, forge verdicts, or fill the
    /// record with inventions.
    #[arg(long, help_heading = "TLS and gates")]
    pub insecure_listen: bool,

    /// How the one line on standard output, which says where it listens, is written.
    #[arg(long, value_enum, default_value_t = StartOutput::Text)]
    pub output: StartOutput,

    /// What to log to standard error: error, warn, info, debug, trace, or a filter such as
    /// `info,execgate::policyd=debug`.
    #[arg(
        long,
        value_name = "LEVEL",
        env = "EXECGATE_POLICYD_LOG",
        default_value = LOG,
        value_parser = logging::check_filter,
        help_heading = "Log and metrics"
    )]
    pub log: String,

    /// How to log.
    #[arg(
        long,
        value_name = "FORMAT",
        env = "EXECGATE_POLICYD_LOG_FORMAT",
        default_value = "text",
        help_heading = "Log and metrics"
    )]
    pub log_format: LogFormat,
}

fn console_address(text: &str) -> Result<ListenAddress, String> {
    match ListenAddress::parse(text)? {
        ListenAddress::Unix(_) => Err("browsers need HOST:PORT".to_owned()),
        address @ ListenAddress::Tcp(_) => Ok(address),
    }
}

fn auditor(text: &str) -> Result<GateIdentity, String> {
    let identity = GateIdentity::parse(text)?;
    if identity == GateIdentity::anonymous() {
        return Err("whoever has shown nothing can't be an auditor".to_owned());
    }
    Ok(identity)
}

/// The longest that events may be kept by their age; no age says more.
const LONGEST_AGE: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

fn retained_age(text: &str) -> Result<Duration, String> {
    let wrong = || "write an age such as 90d or 12h, and 36500d at most".to_owned();
    let age = humantime::parse_duration(text).map_err(|_| wrong())?;
    if age < Duration::from_secs(1) || age > LONGEST_AGE {
        return Err(wrong());
    }
    Ok(age)
}

/// The least that a store may be kept to.
const LEAST_SIZE: u64 = 64 << 20;

fn retained_size(text: &str) -> Result<u64, String> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    let unit: u64 = match unit.trim() {
        "" | "B" => 1,
        "KiB" | "K" => 1 << 10,
        "MiB" | "M" => 1 << 20,
        "GiB" | "G" => 1 << 30,
        "TiB" | "T" => 1 << 40,
        _ => return Err("write a number and MiB, GiB or TiB".to_owned()),
    };
    let size = number
        .parse::<u64>()
        .ok()
        .and_then(|number| number.checked_mul(unit));
    let size = size.ok_or("write a number and MiB, GiB or TiB")?;
    if size < LEAST_SIZE {
        return Err("it is less than 64MiB, which is the least".to_owned());
    }
    Ok(size)
}

/// How the line that says where the service listens is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum StartOutput {
    /// `listening on ADDRESS`.
    Text,
    /// One JSON object.
    Json,
}

/// Why the service didn't start, or didn't go on.
#[derive(Debug, thiserror::Error)]
pub enum PolicydError {
    /// The log filter is wrong.
    #[error("--log: {0}")]
    Log(#[from] FilterError),
    /// The rules can't be used.
    #[error(transparent)]
    Rules(#[from] RulesError),
    /// The store can't be used.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The address can't be listened at.
    #[error("{option}: {source}")]
    Listen {
        /// What named it.
        option: &'static str,
        /// Why.
        source: ListenError,
    },
    /// Numbers can't be served.
    #[error("--metrics: {0}: {cause}{advice}", cause = metrics_cause(.0), advice = listen::advice(metrics_cause(.0)))]
    Metrics(#[from] MetricsError),
    /// Certificates, keys or tokens can't be used.
    #[error(transparent)]
    Credentials(#[from] CredentialError),
    /// Nobody else can be told of approvals.
    #[error(transparent)]
    Webhook(#[from] WebhookError),
    /// TLS is asked for where none is spoken.
    #[error("--tls-cert: a Unix socket needs no TLS; leave it out, or listen at HOST:PORT")]
    TlsOnSocket,
    /// The runtime can't be started.
    #[error("starting the runtime: {0}")]
    Runtime(#[source] std::io::Error),
    /// Signals can't be watched for.
    #[error("watching for signals: {0}")]
    Signals(#[source] std::io::Error),
    /// The reflection service can't be built.
    #[error("describing the service for reflection: {0}")]
    Reflection(#[source] tonic_reflection::server::Error),
    /// The address can't be announced.
    #[error("writing to standard output: {0}")]
    Announce(#[source] std::io::Error),
    /// Serving failed.
    #[error("serving: {0}")]
    Serve(#[source] tonic::transport::Error),
}

fn metrics_cause(error: &MetricsError) -> &std::io::Error {
    match error {
        MetricsError::Listen { source, .. } | MetricsError::Thread(source) => source,
    }
}

impl PolicydError {
    /// The program's exit code for it.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Runtime(_)
            | Self::Signals(_)
            | Self::Reflection(_)
            | Self::Announce(_)
            | Self::Serve(_) => 1,
            Self::Log(_) | Self::TlsOnSocket | Self::Webhook(WebhookError::Url { .. }) => 2,
            Self::Rules(_) => 3,
            Self::Store(_) => 4,
            Self::Listen { .. } | Self::Metrics(_) => 5,
            Self::Credentials(_) | Self::Webhook(WebhookError::Files(_)) => 6,
        }
    }
}

/// The program.
pub fn main() -> ExitCode {
    let args = PolicydArgs::parse();
    // A variable that is set to nothing isn't a choice.
    let log = Some(args.log.as_str()).filter(|log| !log.is_empty());
    let outcome = logging::start(log.unwrap_or(LOG), args.log_format)
        .map_err(PolicydError::from)
        .and_then(|_writer| run(&args, &mut std::io::stdout()));
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            logging::say("execgate-policyd", &error.to_string(), None);
            ExitCode::from(error.exit_code())
        }
    }
}

/// Serves until a signal says to stop. Writes one line to `out` when it listens.
///
/// # Errors
/// When it can't start, or can't go on.
pub fn run(args: &PolicydArgs, out: &mut dyn Write) -> Result<(), PolicydError> {
    let sources = Sources::load(args)?;
    let descriptors = raise_descriptors();
    let retention = Retention {
        age: args.retain_age,
        size: args.retain_size,
    };
    let open = |directory| Store::open_keeping(directory, retention);
    let store = args.data.as_deref().map(open).transpose()?;
    if let Some(store) = &store {
        tracing::info!(path = %store.path().display(), "events are stored");
    } else {
        tracing::warn!(
            "no --data: events are not stored, and there is nothing to audit afterwards"
        );
    }
    let (ledger, loaded) = match (&args.data, &args.operators) {
        (Some(data), Some(_)) => {
            let (ledger, loaded) = Ledger::open(data, MOST_CLOSED)?;
            (Some(ledger), loaded)
        }
        (None, Some(_)) => {
            tracing::warn!("no --data: approvals are forgotten when the service ends");
            (None, Loaded::default())
        }
        (_, None) => (None, Loaded::default()),
    };
    let webhook = match (&args.webhook, &args.webhook_secret) {
        (Some(url), Some(secret)) => Some(Webhook::new(url, secret, args.webhook_ca.as_ref())?),
        _ => None,
    };
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .thread_stack_size(STACK_SIZE)
        .build()
        .map_err(PolicydError::Runtime)?;
    let kept = Persistence {
        store: store.clone(),
        ledger: ledger.clone(),
        loaded,
        webhook,
    };
    let served = runtime.block_on(serve(args, sources, kept, descriptors, out));
    // Calls that didn't end in time end here, and let go of the store.
    runtime.shutdown_timeout(Duration::from_secs(1));
    if let Some(ledger) = ledger {
        ledger.close();
    }
    if let Some(store) = store {
        store.close();
    }
    served
}

/// Where what happens is kept and told, and what was kept.
struct Persistence {
    store: Option<Store>,
    ledger: Option<Ledger>,
    loaded: Loaded,
    webhook: Option<Webhook>,
}

/// What operators act by.
struct Operating {
    approvals: Arc<Approvals>,
    sessions: Arc<SessionsService>,
    operators: watch::Receiver<Arc<Tokens<Operator>>>,
}

/// What is read from files, and again when they change.
struct Sources {
    rules: Followed<RulesFiles>,
    tls: Option<Followed<TlsFiles>>,
    tokens: Option<Followed<TokensFile<GateIdentity>>>,
    operators: Option<Followed<TokensFile<Operator>>>,
}

impl Sources {
    fn load(args: &PolicydArgs) -> Result<Self, PolicydError> {
        let rules = Followed::load(RulesFiles {
            paths: args.rules.clone(),
            mode: if args.monitor {
                RuleMode::Monitor
            } else {
                RuleMode::Enforce
            },
        })?;
        let tls = match (&args.tls_cert, &args.tls_key) {
            (Some(_), _) if matches!(args.listen, ListenAddress::Unix(_)) => {
                return Err(PolicydError::TlsOnSocket);
            }
            (Some(certificate), Some(key)) => Some(Followed::load(TlsFiles {
                certificate: certificate.clone(),
                key: key.clone(),
                client_ca: args.client_ca.clone(),
                without_certificate: match (&args.tokens, &args.operators) {
                    (None, None) => WithoutCertificate::Refused,
                    _ => WithoutCertificate::MayShowToken,
                },
            })?),
            _ => None,
        };
        let tokens = args
            .tokens
            .clone()
            .map(|path| Followed::load(TokensFile::new(path)));
        let operators = args
            .operators
            .clone()
            .map(|path| Followed::load(TokensFile::<Operator>::new(path)))
            .transpose()?;
        if let Some(operators) = &operators
            && args.client_ca.is_none()
            && operators.in_force().borrow().has_certificates()
        {
            tracing::warn!(
                "--operators names certificates, and without --client-ca nobody can show one"
            );
        }
        Ok(Self {
            rules,
            tls,
            tokens: tokens.transpose()?,
            operators,
        })
    }

    /// Who may be let in by what there is.
    fn exposure(&self, args: &PolicydArgs) -> Exposure {
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
    fn authentication(&self, args: &PolicydArgs) -> Authentication {
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

    fn follow(self) -> std::io::Result<()> {
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

/// Has the process open as many descriptors as it may; tells how many that are.
fn raise_descriptors() -> u64 {
    if let Err(error) = limits::raise_open_files() {
        tracing::warn!("the limit on open files stays low: {error}");
    }
    limits::open_files().map_or(0, |limit| limit.soft)
}

async fn serve(
    args: &PolicydArgs,
    sources: Sources,
    kept: Persistence,
    descriptors: u64,
    out: &mut dyn Write,
) -> Result<(), PolicydError> {
    // Before anything is announced: from then on a signal must not end the process as it would.
    let mut signals = Signals::watch().map_err(PolicydError::Signals)?;
    let doors = if args.allow_uids.is_empty() {
        Doors::Own
    } else {
        Doors::All
    };
    let (listener, bound) = listen::listen(&args.listen, sources.exposure(args), doors)
        .map_err(listening("--listen"))?;
    if args.insecure_listen {
        tracing::warn!(
            "--insecure-listen: commands and verdicts may cross the network in the clear, or for anyone"
        );
    }

    let stopping = CancellationToken::new();
    let in_force = sources.rules.in_force();
    let revision = in_force.borrow().revision().to_owned();
    let prefix_rules = in_force.borrow().prefix_rule_count();
    let authentication = sources.authentication(args);
    let numbers = Arc::new(ServiceNumbers::new(
        kept.store.clone(),
        in_force,
        sources.rules.fault(),
    ));
    let metrics = serve_metrics(args, &numbers)?;
    if let Some(store) = &kept.store
        && (args.retain_age.is_some() || args.retain_size.is_some())
    {
        tokio::spawn(keep_pruned(store.clone()));
    }
    let rates = args.execs_per_second.map(Rates::new);
    let services = Services::new(&sources, kept, rates, numbers, &stopping)?;
    let console = ConsoleDoor::open(args, &sources, &services, &stopping)?;
    let (health, health_service) = tonic_health::server::health_reporter();
    health
        .set_serving::<PolicyServiceServer<RulesService>>()
        .await;
    health.set_serving::<AuditServiceServer<StoreAudit>>().await;
    tokio::spawn(report_rules(sources.rules.fault(), health.clone()));
    let room = Arc::new(Room::new());
    let routes = services
        .routes(&room)?
        .add_service(Reception::new(health_service, &room));
    let router = Server::builder()
        .http2_keepalive_interval(Some(KEEPALIVE_INTERVAL))
        .http2_keepalive_timeout(Some(KEEPALIVE_TIMEOUT))
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        // It would let both grow.
        .http2_adaptive_window(Some(false))
        .max_concurrent_streams(MAX_STREAMS)
        .http2_max_header_list_size(MAX_HEADERS)
        .http2_max_pending_accept_reset_streams(Some(MAX_RESET_STREAMS))
        .layer(InterceptorLayer::new(authentication))
        .add_routes(routes);

    let tls = sources.tls.as_ref().map(Followed::in_force);
    sources.follow().map_err(PolicydError::Signals)?;
    tracing::info!(address = %bound, revision, prefix_rules, "listening");
    let console = console.map(|console| console.serve(tls.clone(), &stopping));
    let started = Started {
        bound: &bound,
        revision: &revision,
        console: console.as_deref(),
        metrics: metrics.as_deref(),
    };
    announce(args.output, &started, out).map_err(PolicydError::Announce)?;
    tell_systemd(NotifyState::Ready);

    let demands = Demands {
        tls,
        users: [0, host::user().id]
            .into_iter()
            .chain(args.allow_uids.iter().copied())
            .collect(),
        protocol: Protocol::Http2,
    };
    let bounds = accept::bounds(descriptors);
    let incoming = accept::connections(listener, demands, bounds, stopping.clone());
    let serving = router.serve_with_incoming_shutdown(
        ReceiverStream::new(incoming),
        stopping.clone().cancelled_owned(),
    );
    let mut serving = tokio::spawn(serving);
    tokio::select! {
        served = &mut serving => return flatten(served),
        () = signals.stop() => {}
    }
    tell_systemd(NotifyState::Stopping);
    health
        .set_service_status("", ServingStatus::NotServing)
        .await;
    health
        .set_not_serving::<PolicyServiceServer<RulesService>>()
        .await;
    stopping.cancel();
    if let Ok(served) = tokio::time::timeout(STOPPING_PATIENCE, &mut serving).await {
        return flatten(served);
    }
    tracing::warn!("some connections didn't end in time; they are cut");
    serving.abort();
    Ok(())
}

/// Signals that the service has a use for, or that mustn't end it.
struct Signals {
    _hangups: Signal,
    terminations: Signal,
    interrupts: Signal,
}

impl Signals {
    fn watch() -> std::io::Result<Self> {
        Ok(Self {
            _hangups: signal(SignalKind::hangup())?,
            terminations: signal(SignalKind::terminate())?,
            interrupts: signal(SignalKind::interrupt())?,
        })
    }

    /// Waits until one says to stop.
    async fn stop(&mut self) {
        tokio::select! {
            _ = self.terminations.recv() => tracing::info!("stopping at SIGTERM"),
            _ = self.interrupts.recv() => tracing::info!("stopping at SIGINT"),
        }
    }
}

/// What gates, auditors and operators call.
struct Services {
    policy: RulesService,
    audit: Arc<StoreAudit>,
    operating: Option<Operating>,
}

impl Services {
    fn new(
        sources: &Sources,
        kept: Persistence,
        rates: Option<Rates>,
        numbers: Arc<ServiceNumbers>,
        stopping: &CancellationToken,
    ) -> Result<Self, PolicydError> {
        let operators = sources.operators.as_ref().map(Followed::in_force);
        let owners = owners(kept.store.as_ref())?;
        let Loaded {
            kept: approvals,
            terminations,
        } = kept.loaded;
        let sessions = Sessions::new(terminations);
        let desk = Desk::new(kept.ledger.clone(), approvals, SystemTime::now());
        let audit = Arc::new(StoreAudit::new(
            kept.store.clone(),
            operators.clone(),
            Arc::clone(&numbers),
            stopping.clone(),
        ));
        let policy = RulesService::new(Setting {
            rules: sources.rules.in_force(),
            tokens: sources.tokens.as_ref().map(Followed::in_force),
            owners: owners.clone(),
            desk: operators.is_some().then(|| desk.clone()),
            numbers,
            rates,
            sessions: sessions.clone(),
            store: kept.store,
            stopping: stopping.clone(),
        });
        let operating = operators.map(|operators| {
            tokio::spawn(desk.clone().keep_swept());
            if let Some(webhook) = kept.webhook {
                tokio::spawn(webhook.run(desk.watch().1));
            }
            Operating {
                approvals: Arc::new(Approvals::new(
                    desk.clone(),
                    operators.clone(),
                    stopping.clone(),
                )),
                sessions: Arc::new(SessionsService {
                    sessions,
                    owners,
                    desk,
                    ledger: kept.ledger,
                }),
                operators,
            }
        });
        Ok(Self {
            policy,
            audit,
            operating,
        })
    }

    /// They, as calls reach them, and what describes them.
    fn routes(self, room: &Arc<Room>) -> Result<Routes, PolicydError> {
        let policy = PolicyServiceServer::new(self.policy)
            .max_decoding_message_size(MAX_MESSAGE_SIZE)
            .max_encoding_message_size(MAX_MESSAGE_SIZE);
        let audit = AuditServiceServer::from_arc(self.audit)
            .max_decoding_message_size(MAX_QUESTION_SIZE)
            .max_encoding_message_size(2 * MAX_MESSAGE_SIZE);
        let mut routes = Routes::new(Reception::new(policy, room));
        routes = routes.add_service(Reception::new(audit, room));
        if let Some(operating) = self.operating {
            let approvals = ApprovalServiceServer::from_arc(operating.approvals)
                .max_encoding_message_size(MAX_MESSAGE_SIZE);
            let sessions = SessionServiceServer::from_arc(operating.sessions)
                .max_encoding_message_size(MAX_MESSAGE_SIZE);
            routes = routes
                .add_service(Reception::new(approvals, room))
                .add_service(Reception::new(sessions, room));
        }
        let describe = || {
            tonic_reflection::server::Builder::configure()
                .register_encoded_file_descriptor_set(crate::pb::FILE_DESCRIPTOR_SET)
                .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
        };
        let (current, before) = (describe().build_v1(), describe().build_v1alpha());
        Ok(routes
            .add_service(Reception::new(
                current.map_err(PolicydError::Reflection)?,
                room,
            ))
            .add_service(Reception::new(
                before.map_err(PolicydError::Reflection)?,
                room,
            )))
    }
}

/// The console, and where it listens.
struct ConsoleDoor {
    console: Console,
    listener: Listener,
    bound: ListenAddress,
}

impl ConsoleDoor {
    /// Listens, where a console is asked for and there are operators to log in.
    fn open(
        args: &PolicydArgs,
        sources: &Sources,
        services: &Services,
        stopping: &CancellationToken,
    ) -> Result<Option<Self>, PolicydError> {
        let (Some(address), Some(operating)) = (&args.console, &services.operating) else {
            return Ok(None);
        };
        let (cookies, exposure) = match sources.tls {
            Some(_) => (Cookies::Secure, Exposure::Anyone),
            None => (Cookies::Loopback, Exposure::Loopback(Missing::Tls)),
        };
        let console = Console::new(console::Parts {
            audit: Arc::clone(&services.audit),
            approvals: Arc::clone(&operating.approvals),
            sessions: Arc::clone(&operating.sessions),
            rules: sources.rules.in_force(),
            rules_fault: sources.rules.fault(),
            operators: operating.operators.clone(),
            cookies,
            stopping: stopping.clone(),
        });
        let (listener, bound) =
            listen::listen(address, exposure, Doors::Own).map_err(listening("--console"))?;
        Ok(Some(Self {
            console,
            listener,
            bound,
        }))
    }

    /// Serves from now on; tells where.
    fn serve(self, tls: Option<watch::Receiver<Arc<Tls>>>, stopping: &CancellationToken) -> String {
        let scheme = if tls.is_some() { "https" } else { "http" };
        let demands = Demands {
            tls,
            users: Vec::new(),
            protocol: Protocol::Http1,
        };
        let connections = accept::connections(
            self.listener,
            demands,
            CONSOLE_CONNECTIONS,
            stopping.clone(),
        );
        tokio::spawn(self.console.serve(connections));
        format!("{scheme}://{}/", self.bound)
    }
}

fn listening(option: &'static str) -> impl FnOnce(ListenError) -> PolicydError {
    move |source| PolicydError::Listen { option, source }
}

/// Removes what isn't to be kept, for as long as the service runs.
async fn keep_pruned(store: Store) {
    let mut interval = tokio::time::interval(PRUNING_INTERVAL);
    loop {
        interval.tick().await;
        store.prune();
    }
}

/// Serves numbers where that is asked for; tells where.
fn serve_metrics(
    args: &PolicydArgs,
    numbers: &Arc<ServiceNumbers>,
) -> Result<Option<String>, PolicydError> {
    let Some(address) = args.metrics else {
        return Ok(None);
    };
    let endpoint = MetricsEndpoint::bind(address)?;
    let address = endpoint.address().map_err(PolicydError::Announce)?;
    tracing::info!(%address, "metrics are served");
    let numbers = Arc::clone(numbers);
    endpoint.serve_text(Arc::new(move || numbers.text()))?;
    Ok(Some(format!("http://{address}/metrics")))
}

/// Tells by the health service whether what the rules' files hold is in force.
async fn report_rules(mut fault: watch::Receiver<Option<String>>, health: HealthReporter) {
    loop {
        let status = match &*fault.borrow_and_update() {
            None => ServingStatus::Serving,
            Some(_) => ServingStatus::NotServing,
        };
        health.set_service_status(RULES_HEALTH, status).await;
        if fault.changed().await.is_err() {
            return;
        }
    }
}

/// Whose the sessions are that the store has.
fn owners(store: Option<&Store>) -> Result<Owners, StoreError> {
    let owners = Owners::default();
    if let Some(store) = store {
        for (session, gate) in store.latest_owners(owners::MOST_REMEMBERED)? {
            // The store has each session once, so nothing is claimed twice.
            let _ = owners.claim(&session, &gate);
        }
    }
    Ok(owners)
}

fn flatten(
    served: Result<Result<(), tonic::transport::Error>, tokio::task::JoinError>,
) -> Result<(), PolicydError> {
    match served {
        Ok(served) => served.map_err(PolicydError::Serve),
        // A panic: there is nothing to go on with.
        Err(error) => Err(PolicydError::Runtime(std::io::Error::other(error))),
    }
}

/// Whether it serves, where systemd asks for that (`Type=notify`); elsewhere this does nothing.
fn tell_systemd(state: NotifyState<'_>) {
    if let Err(error) = sd_notify::notify(&[state]) {
        tracing::warn!("systemd isn't told whether this service is ready: {error}");
    }
}

/// What whoever started the service is told.
struct Started<'a> {
    bound: &'a ListenAddress,
    revision: &'a str,
    console: Option<&'a str>,
    metrics: Option<&'a str>,
}

fn announce(
    output: StartOutput,
    started: &Started<'_>,
    out: &mut dyn Write,
) -> std::io::Result<()> {
    let bound = started.bound;
    match output {
        StartOutput::Text => {
            writeln!(out, "listening on {bound}")?;
            if let Some(console) = started.console {
                writeln!(out, "console at {console}")?;
            }
        }
        StartOutput::Json => {
            let mut line = serde_json::json!({
                "listening": bound.to_string(),
                "rules_revision": started.revision,
            });
            if let Some(console) = started.console {
                line["console"] = console.into();
            }
            if let Some(metrics) = started.metrics {
                line["metrics"] = metrics.into();
            }
            writeln!(out, "{line}")?;
        }
    }
    out.flush()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        use clap::CommandFactory;
        PolicydArgs::command().debug_assert();
    }

    #[test]
    fn an_age_has_bounds() {
        assert_eq!(retained_age("90d"), Ok(Duration::from_secs(90 * 24 * 3600)));
        for wrong in ["", "0s", "1ms", "36501d", "99999999999years", "x"] {
            assert!(retained_age(wrong).is_err(), "{wrong}");
        }
    }
}
