//! `audit`: what happened, from the event store of a policy service, or by asking the service.
//!
//! Invariants: what came from a sandbox reaches a terminal escaped; every page and every read is bounded.
//!
//! Not here: how the record is kept and searched (`store`), and how the service is called (`cli`).

#[cfg(any(test, feature = "fuzzing"))]
pub(crate) mod fuzzing;
mod json;
mod request;
mod service;
mod show;
mod verify;

use std::collections::HashSet;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use clap::{Args, ValueEnum};
use rusqlite::Connection;

use super::identity::GateIdentity;
use super::store::{self, Arguments, Link, StoreError, Want};
use crate::pb::audit::v1::{
    Exec, ExecFilter, ExecView, GetSessionRequest, ListRequest, ListResponse, Outcome, Session,
};
pub use json::line as json_line;
pub use request::RequestError;
pub(super) use service::StoreAudit;
pub(super) use show::is_monitored;
pub use show::{Line, LineColors};
pub use verify::verify;

/// The command line of `audit`.
#[derive(Debug, Clone, Args)]
#[command(
    after_long_help = "Lists commands in the order in which the policy service learnt of them. Works \
        while the service runs.\n\n\
        Examples:\n\
        \x20 execgate audit --data /var/lib/execgate\n\
        \x20 execgate audit --data /var/lib/execgate --verdict deny --since 1h\n\
        \x20 execgate audit --data /var/lib/execgate --session 3f2a --tree\n\
        \x20 execgate audit --data /var/lib/execgate --gate token:ci-7 --label job=42 --since 7d\n\
        \x20 execgate audit --data /var/lib/execgate --code timed-out --output json | jq .program\n\
        \x20 execgate audit --data /var/lib/execgate --export > events.jsonl\n\
        \x20 execgate audit head --data /var/lib/execgate\n\
        \x20 execgate audit head --service https://policy.example:7443 --service-token-file auditor.token\n\
        \x20 execgate audit verify --data /var/lib/execgate --anchor 1234:5f7a...\n\n\
        Exit codes:\n\
        \x20 0  listed, also when nothing matched; verified\n\
        \x20 1  the store can't be read, or the list can't be written\n\
        \x20 2  there is no store there, or the command line is wrong\n\
        \x20 3  verify: events were altered or removed, or an anchor isn't met\n\
        \x20 5  the service can't be reached, fails, or doesn't take the credential"
)]
pub struct AuditArgs {
    /// Directory of the event store, as execgate-policyd has it.
    #[arg(long, value_name = "DIR", env = "EXECGATE_POLICYD_DATA")]
    pub data: Option<PathBuf>,

    /// Which commands.
    #[command(flatten)]
    pub filter: FilterArgs,

    /// Only from then on: an age such as 90s, 15m, 2h or 7d, or a time such as 2026-01-31T12:00:00Z.
    #[arg(long, value_name = "TIME", value_parser = since)]
    pub since: Option<Since>,

    /// At most so many; the latest.
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub limit: u32,

    /// Show which command started which, session by session.
    #[arg(long, conflicts_with = "output")]
    pub tree: bool,

    /// Write all that matches as JSON lines, the earliest first, however many there are.
    #[arg(long, conflicts_with_all = ["tree", "limit"])]
    pub export: bool,

    /// How to write the list.
    #[arg(long, value_enum, default_value_t = AuditOutput::Table)]
    pub output: AuditOutput,

    /// When to use colours.
    #[arg(long, value_enum, default_value_t = AuditColor::Auto)]
    pub color: AuditColor,
}

/// Which commands are meant.
#[derive(Debug, Clone, Default, Args)]
pub struct FilterArgs {
    /// Only sessions whose id begins so.
    #[arg(long, value_name = "PREFIX", value_parser = session_prefix)]
    pub session: Option<String>,

    /// Only sessions with this label. May be given more than once: with all of them.
    #[arg(long = "label", value_name = "KEY=VALUE", value_parser = label)]
    pub labels: Vec<(String, String)>,

    /// Only sessions of this gate, as its credential proves it: uri:URI, dns:NAME, token:NAME,
    /// uid:NUMBER or anonymous.
    #[arg(long, value_name = "IDENTITY", value_parser = GateIdentity::parse)]
    pub gate: Option<GateIdentity>,

    /// Only what was decided so.
    #[arg(long, value_enum)]
    pub verdict: Option<AuditVerdict>,

    /// Only this decision code (verdict, timed-out, unreachable, policy-error, ...) or the rules'
    /// reason code.
    #[arg(long, value_name = "CODE")]
    pub code: Option<String>,

    /// Only this program: its name, or its path if it holds a slash.
    #[arg(long, value_name = "NAME")]
    pub program: Option<String>,
}

/// The command line of `audit verify`.
#[derive(Debug, Clone, Args)]
#[command(
    after_long_help = "Each event's hash covers the event and the hash before it, so what was changed, taken out or \
        put in between shows, and so does a list that says otherwise than its events.\n\n\
        Without --anchor it can't show that the store as a whole isn't another one, made by somebody who can write \
        it, nor that the latest events weren't cut off. Note `execgate audit head` elsewhere now and then, and give \
        what was noted.\n\n\
        Exit codes:\n\
        \x20 0  verified\n\
        \x20 1  the store can't be read, or the outcome can't be written\n\
        \x20 2  there is no store there, or the command line is wrong\n\
        \x20 3  events were altered or removed, or an anchor isn't met"
)]
pub struct VerifyArgs {
    /// Directory of the event store, as execgate-policyd has it.
    #[arg(long, value_name = "DIR", env = "EXECGATE_POLICYD_DATA")]
    pub data: PathBuf,

    /// What `execgate audit head` printed once: the chain must still come by it. May be given more than once.
    #[arg(long = "anchor", visible_alias = "head", value_name = "POSITION:HASH", value_parser = Link::parse)]
    pub anchors: Vec<Link>,

    /// How to write the outcome.
    #[arg(long, value_enum, default_value_t = AuditForm::Text)]
    pub output: AuditForm,
}

/// How an outcome is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum AuditForm {
    /// For people.
    Text,
    /// One JSON object.
    Json,
}

/// What was decided.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum AuditVerdict {
    /// To run inside the sandbox.
    Run,
    /// To run outside.
    Escalate,
    /// Refused.
    Deny,
    /// Run, though rules that are only monitored say otherwise.
    Monitored,
    /// A person is asked, and hasn't decided.
    Pending,
}

/// How the list is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum AuditOutput {
    /// An aligned table, for people.
    Table,
    /// One JSON object a line.
    Json,
}

/// When colours are used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum AuditColor {
    /// On a terminal that isn't dumb (`TERM`), unless `NO_COLOR` is set.
    Auto,
    /// Always.
    Always,
    /// Never.
    Never,
}

/// A point in time, as `--since` names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Since {
    /// So long ago.
    Ago(Duration),
    /// Then: nanoseconds since 1970.
    At(i64),
}

/// Why nothing could be listed.
#[derive(Debug, thiserror::Error)]
pub enum AuditError {
    /// There is no store, or it can't be opened.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// Neither a store nor a service is named.
    #[error(
        "nothing to read from: give the store's directory (--data DIR), or a policy service (--service URL)"
    )]
    NoSource,
    /// The request makes no sense, or the store can't be read.
    #[error(transparent)]
    Request(#[from] RequestError),
    /// The service doesn't answer as it should.
    #[error("{message}")]
    Service {
        /// What it did.
        message: String,
        /// What may help.
        hint: Option<String>,
    },
    /// The list can't be written.
    #[error("writing the list: {source}")]
    Write {
        /// Why.
        #[from]
        source: std::io::Error,
    },
    /// Whoever was given what was found wants no more.
    #[error("stopped")]
    Stopped,
    /// Events were removed that an export hadn't come to yet.
    #[error(
        "events up to position {0} were removed by retention while they were exported: what was written lacks some"
    )]
    Overtaken(i64),
    /// The store isn't what it was.
    #[error("the record isn't what it was: {0}")]
    NotVerified(String),
}

impl AuditError {
    /// What may help.
    pub fn hint(&self) -> Option<&str> {
        match self {
            Self::Service { hint, .. } => hint.as_deref(),
            Self::Overtaken(_) => {
                Some("export sooner, or to where it is written faster; or keep more")
            }
            _ => None,
        }
    }

    /// The program's exit code for it.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Store(StoreError::Missing { .. })
            | Self::NoSource
            | Self::Request(RequestError::Invalid(_)) => 2,
            Self::NotVerified(_) => 3,
            Self::Service { .. } => 5,
            Self::Store(_)
            | Self::Request(_)
            | Self::Stopped
            | Self::Write { .. }
            | Self::Overtaken(_) => 1,
        }
    }
}

fn session_prefix(text: &str) -> Result<String, String> {
    let text = text.to_ascii_lowercase();
    if text.is_empty() || text.len() > 32 || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return Err("write the beginning of a session id: up to 32 hexadecimal digits".to_owned());
    }
    Ok(text)
}

pub(super) fn since(text: &str) -> Result<Since, String> {
    let wrong = || "write an age such as 15m, or a time such as 2026-01-31T12:00:00Z".to_owned();
    if let Some((number, unit)) = text
        .char_indices()
        .next_back()
        .map(|(position, unit)| (&text[..position], unit))
        && let Ok(number) = number.parse::<u64>()
    {
        let seconds = match unit {
            's' => 1,
            'm' => 60,
            'h' => 3_600,
            'd' => 86_400,
            _ => return Err(wrong()),
        };
        return number
            .checked_mul(seconds)
            .map(|seconds| Since::Ago(Duration::from_secs(seconds)))
            .ok_or_else(wrong);
    }
    let time: prost_types::Timestamp = text.parse().map_err(|_| wrong())?;
    time.seconds
        .checked_mul(1_000_000_000)
        .and_then(|seconds| seconds.checked_add(time.nanos.into()))
        .map(Since::At)
        .ok_or_else(wrong)
}

impl Since {
    pub(super) fn nanoseconds(self) -> i64 {
        match self {
            Self::At(nanoseconds) => nanoseconds,
            Self::Ago(age) => SystemTime::now()
                .checked_sub(age)
                .and_then(|then| then.duration_since(SystemTime::UNIX_EPOCH).ok())
                .and_then(|since| i64::try_from(since.as_nanos()).ok())
                .unwrap_or(0),
        }
    }
}

fn label(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
        _ => Err("write KEY=VALUE".to_owned()),
    }
}

impl FilterArgs {
    /// As the protocol has it.
    #[must_use]
    pub fn filter(&self, since: Option<Since>) -> ExecFilter {
        let outcome = match self.verdict {
            None => Outcome::Unspecified,
            Some(AuditVerdict::Run) => Outcome::Run,
            Some(AuditVerdict::Escalate) => Outcome::Escalate,
            Some(AuditVerdict::Deny) => Outcome::Deny,
            Some(AuditVerdict::Monitored) => Outcome::Monitored,
            Some(AuditVerdict::Pending) => Outcome::Pending,
        };
        let gate = self.gate.as_ref().map(|gate| gate.as_str().to_owned());
        ExecFilter {
            session_id_prefix: self.session.clone().unwrap_or_default(),
            labels: self.labels.iter().cloned().collect(),
            gate: gate.unwrap_or_default(),
            program: self.program.clone().unwrap_or_default(),
            outcome: outcome.into(),
            code: self.code.clone().unwrap_or_default(),
            since_time: since.map(|since| {
                let nanoseconds = since.nanoseconds();
                prost_types::Timestamp {
                    seconds: nanoseconds.div_euclid(1_000_000_000),
                    nanos: i32::try_from(nanoseconds.rem_euclid(1_000_000_000)).unwrap_or(0),
                }
            }),
        }
    }
}

/// Where the record is read.
pub trait Record {
    /// A page of execs, the latest first.
    ///
    /// # Errors
    /// When it can't be had.
    fn list(&mut self, request: &ListRequest) -> Result<ListResponse, AuditError>;

    /// A session; `None` where there is none.
    ///
    /// # Errors
    /// When it can't be had.
    fn session(&mut self, id: &str) -> Result<Option<Session>, AuditError>;

    /// The last event's place in the chain of hashes.
    ///
    /// # Errors
    /// When it can't be had.
    fn head(&mut self) -> Result<Link, AuditError>;

    /// All execs that there are now and fit, with everything, the earliest first, each given to `take`.
    ///
    /// # Errors
    /// When they can't be had, and what `take` says.
    fn export(
        &mut self,
        filter: &ExecFilter,
        take: &mut dyn FnMut(&Exec) -> Result<(), AuditError>,
    ) -> Result<(), AuditError>;
}

/// The record as a directory of this machine has it.
#[derive(Debug)]
pub struct LocalRecord(Connection);

impl LocalRecord {
    /// Opens it.
    ///
    /// # Errors
    /// When there is none, or it can't be read.
    pub fn open(directory: &Path) -> Result<Self, AuditError> {
        Ok(Self(request::open(directory)?))
    }
}

/// Execs of one read of an export.
const EXPORT_STEP: usize = 256;

impl Record for LocalRecord {
    fn list(&mut self, request: &ListRequest) -> Result<ListResponse, AuditError> {
        Ok(request::list(&self.0, request, Duration::MAX)?)
    }

    fn session(&mut self, id: &str) -> Result<Option<Session>, AuditError> {
        let request = GetSessionRequest {
            session_id: id.to_owned(),
            page_size: 1,
            ..GetSessionRequest::default()
        };
        match request::get_session(&self.0, &request) {
            Ok(found) => Ok(found.session),
            Err(RequestError::NoSession(_)) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    fn head(&mut self) -> Result<Link, AuditError> {
        let (_, head) = store::ends(&self.0).map_err(RequestError::from)?;
        Ok(head)
    }

    fn export(
        &mut self,
        filter: &ExecFilter,
        take: &mut dyn FnMut(&Exec) -> Result<(), AuditError>,
    ) -> Result<(), AuditError> {
        let filter = request::filter(Some(filter))?;
        let want = Want {
            execs: EXPORT_STEP,
            arguments: Arguments::Left,
            within: Duration::MAX,
        };
        let (_, last) = store::ends(&self.0).map_err(RequestError::from)?;
        let mut after = 0;
        while after < last.position {
            let found =
                store::changes(&self.0, &filter, after, want).map_err(RequestError::from)?;
            // What was removed before it began was never there for it.
            if let Some(through) = found.removed.filter(|_| after > 0) {
                return Err(AuditError::Overtaken(through));
            }
            for mut change in found.found {
                // Each once: at its first event.
                if change.position.cast_unsigned() == change.exec.position {
                    store::complete_wholly(&self.0, &mut change.exec)
                        .map_err(RequestError::from)?;
                    take(&change.exec)?;
                }
            }
            after = found.through;
        }
        Ok(())
    }
}

/// Prints where the chain of hashes ends.
///
/// # Errors
/// When the record can't be read, or the result can't be written.
pub fn head(record: &mut dyn Record, out: &mut dyn Write) -> Result<(), AuditError> {
    writeln!(out, "{}", record.head()?)?;
    Ok(out.flush()?)
}

/// Execs of a page, where many are asked for.
const PAGE: u32 = 1_000;
/// Most sessions of which a table says what they lost.
const MOST_SESSIONS: usize = 1_000;

/// Lists what happened.
///
/// # Errors
/// When the record can't be read, or the list can't be written.
pub fn list(
    args: &AuditArgs,
    record: &mut dyn Record,
    out: &mut dyn Write,
) -> Result<(), AuditError> {
    let filter = args.filter.filter(args.since);
    if args.export {
        record.export(&filter, &mut |exec| {
            Ok(writeln!(out, "{}", json_line(exec))?)
        })?;
        return Ok(out.flush()?);
    }
    let view = match args.output {
        AuditOutput::Json => ExecView::Full,
        AuditOutput::Table => ExecView::Basic,
    };
    let mut entries: Vec<Exec> = Vec::new();
    let mut token = String::new();
    loop {
        let left = args.limit
            - u32::try_from(entries.len())
                .unwrap_or(u32::MAX)
                .min(args.limit);
        let page = record.list(&ListRequest {
            filter: Some(filter.clone()),
            page_size: left.min(PAGE),
            page_token: token,
            view: view.into(),
        })?;
        entries.extend(page.execs);
        token = page.next_page_token;
        if token.is_empty() || entries.len() >= args.limit as usize {
            break;
        }
    }
    // The latest first to find them, the earliest first to show them.
    entries.reverse();
    match args.output {
        AuditOutput::Json => {
            for exec in &entries {
                writeln!(out, "{}", json_line(exec))?;
            }
        }
        AuditOutput::Table => {
            let ids: HashSet<_> = entries.iter().map(|exec| &exec.session_id).collect();
            let mut sessions = show::Sessions::new();
            for id in ids.into_iter().take(MOST_SESSIONS) {
                if let Some(session) = record.session(id)? {
                    sessions.insert(id.clone(), session);
                }
            }
            let layout = show::Layout::of(args.color);
            if args.tree {
                show::write_tree(&entries, &sessions, &layout, out)?;
            } else {
                show::write_table(&entries, &layout, out)?;
            }
            show::write_notes(args.limit, &entries, &sessions, out)?;
        }
    }
    out.flush()?;
    Ok(())
}

#[cfg(test)]
mod tests;
