//! The command line of `execgate-policyd`.

use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Parser, ValueEnum};

use crate::logging::{self, LogFormat};
use crate::metrics::MetricsEndpoint;
use crate::policyd::identity::GateIdentity;
use crate::policyd::listen::ListenAddress;

/// What is logged where nothing else is said.
pub(super) const LOG: &str = "info";

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
    after_long_help = "Examples:\n\
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
        Rules:\n\
        \x20 prefix_rule(pattern = [\"git\", [\"status\", \"log\"]])\n\
        \x20 prefix_rule(pattern = [\"git\", \"push\"], decision = \"deny\", justification = \"Ask first.\")\n\
        \x20 The strictest rule that matches wins. The file is loaded again when it changes and at\n\
        \x20 SIGHUP; a file with errors changes nothing, and the log says so. The same holds for\n\
        \x20 certificates, keys and tokens.\n\n\
        Identity:\n\
        \x20 A gate is who its credential says: the certificate's URI or DNS name, the token's name,\n\
        \x20 the user of its process on a Unix socket. Rules know it as exec.gate. A session is of\n\
        \x20 the gate that started it, and no other gate may go on with it.\n\n\
        Signals:\n\
        \x20 TERM, INT  store what was received, and exit\n\
        \x20 HUP        load rules, certificates, keys and tokens again\n\n\
        Exit codes:\n\
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
        long, value_name = "ADDRESS:PORT", env = "EXECGATE_POLICYD_METRICS",
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

/// How the line that says where the service listens is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum StartOutput {
    /// `listening on ADDRESS`.
    Text,
    /// One JSON object.
    Json,
}

/// The longest that events may be kept by their age; no age says more.
const LONGEST_AGE: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

/// The least that a store may be kept to.
const LEAST_SIZE: u64 = 64 << 20;

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

fn retained_age(text: &str) -> Result<Duration, String> {
    let wrong = || "write an age such as 90d or 12h, and 36500d at most".to_owned();
    let age = humantime::parse_duration(text).map_err(|_| wrong())?;
    if age < Duration::from_secs(1) || age > LONGEST_AGE {
        return Err(wrong());
    }
    Ok(age)
}

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

    #[test]
    fn a_size_has_a_unit_and_a_least() {
        for (text, size) in [
            ("67108864", 64 << 20),
            ("67108864B", 64 << 20),
            ("65536K", 64 << 20),
            ("65537KiB", 65_537 << 10),
            ("64M", 64 << 20),
            ("64MiB", 64 << 20),
            ("100 MiB", 100 << 20),
            ("20G", 20 << 30),
            ("20GiB", 20 << 30),
            ("3T", 3 << 40),
            ("16777215TiB", 16_777_215 << 40),
        ] {
            assert_eq!(retained_size(text), Ok(size), "{text}");
        }
        for (wrong, says) in [
            ("", "a number and MiB"),
            ("MiB", "a number and MiB"),
            ("-64MiB", "a number and MiB"),
            ("64.5GiB", "a number and MiB"),
            ("64MB", "a number and MiB"),
            ("64mib", "a number and MiB"),
            ("64MiB more", "a number and MiB"),
            // More than there are numbers for.
            ("16777216TiB", "a number and MiB"),
            ("18446744073709551616", "a number and MiB"),
            ("67108863", "less than 64MiB"),
            ("63MiB", "less than 64MiB"),
            ("0T", "less than 64MiB"),
        ] {
            let error = retained_size(wrong).expect_err(wrong);
            assert!(error.contains(says), "{wrong}: {error}");
        }
    }
}
