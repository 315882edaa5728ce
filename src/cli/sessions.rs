//! `sessions`: which are connected to a policy service, and how one is ended.

use std::ffi::c_int;
use std::io::Write;

use clap::{Args, Subcommand};
use serde_json::json;

use super::operator::{Operator, SENSELESS, UNKNOWN, table, unwritten};
use super::output;
use super::service::ServiceOptions;
use super::{Failure, OutputForm, OutputOption, SUCCESS};
use crate::pb::session::v1 as pb;
use crate::pb::session::v1::session_service_client::SessionServiceClient;
use crate::pb::v1::Enforcement;
use crate::policyd::approvals::json::time;
use crate::policyd::{described, text};

/// The largest answer that is read, in bytes.
const LARGEST: usize = 16 << 20;

const EXIT_CODES: &str = "\
Exit codes:
  0  done; the session's gate has been told, or is told when it connects; or it had ended before
  1  the service failed, or the result couldn't be written
  2  the command line is wrong, or the beginning of an id is that of several sessions
  4  there is no such session
  5  the service can't be reached, or doesn't take the token
";

/// The command line of `sessions`.
#[derive(Debug, Args)]
#[command(after_help = EXIT_CODES)]
pub(super) struct SessionsArguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// List the sessions whose gates are connected
    #[command(after_help = EXIT_CODES)]
    List(ListArguments),
    /// End a session: its gate ends all that runs in it, and every exec that it still asks for is denied
    #[command(after_help = EXIT_CODES)]
    Terminate(TerminateArguments),
}

#[derive(Debug, Args)]
struct ListArguments {
    #[command(flatten)]
    output: OutputOption,

    #[command(flatten)]
    service: ServiceOptions,
}

#[derive(Debug, Args)]
struct TerminateArguments {
    /// Its id, or the beginning of one that is connected: 4 characters at least
    #[arg(value_name = "SESSION")]
    session: String,

    /// Why; the session's owner is told
    #[arg(long, value_name = "TEXT", default_value = "")]
    reason: String,

    #[command(flatten)]
    output: OutputOption,

    #[command(flatten)]
    service: ServiceOptions,
}

/// Runs `sessions`.
pub(super) fn sessions(arguments: &SessionsArguments) -> Result<c_int, Failure> {
    match &arguments.command {
        Command::List(arguments) => list(arguments),
        Command::Terminate(arguments) => terminate(arguments),
    }
}

fn client(channel: tonic::transport::Channel) -> SessionServiceClient<tonic::transport::Channel> {
    SessionServiceClient::new(channel).max_decoding_message_size(LARGEST)
}

fn all(operator: &Operator) -> Result<Vec<pb::Session>, Failure> {
    let mut sessions = Vec::new();
    let mut page_token = String::new();
    loop {
        let request = pb::ListSessionsRequest {
            page_size: 1_000,
            page_token,
        };
        let page = operator.call(request, |channel, request| async move {
            client(channel).list_sessions(request).await
        })?;
        sessions.extend(page.sessions);
        page_token = page.next_page_token;
        if page_token.is_empty() {
            return Ok(sessions);
        }
    }
}

fn list(arguments: &ListArguments) -> Result<c_int, Failure> {
    let operator = Operator::new(&arguments.service)?;
    let sessions = all(&operator)?;
    let mut out = output::stdout();
    let lossy = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let written = match arguments.output.output {
        OutputForm::Json => sessions.iter().try_for_each(|session| {
            let object = json!({
                "session": session.session_id,
                "gate": session.gate,
                "hostname": session.hostname,
                "labels": session.labels,
                "user_id": session.user_id,
                "user_name": session.user_name,
                "workdir": lossy(&session.workdir),
                "command": session.command.iter().map(|word| lossy(word)).collect::<Vec<_>>(),
                "sandbox": session.sandbox,
                "sandbox_info": described::sandbox(session.sandbox_info.as_ref()),
                "connected_at": time(session.connected_at),
                "pending_approvals": session.pending_approvals,
            });
            writeln!(out, "{}", text::plain_json(&object))
        }),
        OutputForm::Text if sessions.is_empty() => writeln!(out, "none"),
        OutputForm::Text => {
            let rows: Vec<_> = sessions.iter().map(row).collect();
            let heading = [
                "SESSION", "GATE", "HOST", "USER", "SANDBOX", "SINCE", "WAITING", "LABELS",
                "COMMAND",
            ];
            table(&mut out, heading, &rows)
        }
    };
    written
        .and_then(|()| out.flush())
        .map_err(|error| unwritten(&error))?;
    Ok(SUCCESS)
}

fn row(session: &pb::Session) -> [String; 9] {
    let shown = |words: &str| text::shown(words.as_bytes());
    let mut labels: Vec<_> = session.labels.iter().collect();
    labels.sort();
    let label = |(key, value): &(&String, &String)| format!("{}={}", shown(key), shown(value));
    let labels: Vec<_> = labels.iter().map(label).collect();
    let user = match session.user_name.as_str() {
        "" => session.user_id.to_string(),
        name => shown(name),
    };
    let command = text::command_line(session.command.iter().map(|word| &word[..]), 4_096);
    [
        shown(&session.session_id),
        text::shortened(&shown(&session.gate), 30),
        text::shortened(&shown(&session.hostname), 30),
        user,
        sandbox(session),
        time(session.connected_at),
        session.pending_approvals.to_string(),
        text::shortened(&labels.join(" "), 40),
        text::shortened(&command, 60),
    ]
}

/// The backend, and how much of it is in force unless all is.
fn sandbox(session: &pb::Session) -> String {
    let name = text::shortened(&text::shown(session.sandbox.as_bytes()), 30);
    let info = session.sandbox_info.clone().unwrap_or_default();
    match info.enforcement() {
        Enforcement::Partial => format!("{name} (partial)"),
        Enforcement::Full | Enforcement::None | Enforcement::Unspecified => name,
    }
}

fn terminate(arguments: &TerminateArguments) -> Result<c_int, Failure> {
    let operator = Operator::new(&arguments.service)?;
    let session = whole_id(&operator, &arguments.session)?;
    let request = pb::TerminateSessionRequest {
        session_id: session.clone(),
        reason: arguments.reason.clone(),
    };
    let ended = operator.call(request, |channel, request| async move {
        client(channel).terminate_session(request).await
    })?;
    let mut out = output::stdout();
    let written = match arguments.output.output {
        OutputForm::Json => writeln!(
            out,
            "{}",
            text::plain_json(&json!({
                "session": session,
                "outcome": outcome_name(ended.outcome()),
                "gate_told": ended.outcome() == pb::TerminateOutcome::Told,
                "terminated_by": set(&ended.terminated_by),
                "terminated_at": ended.terminated_at.map(|at| time(Some(at))),
                "reason": set(&ended.reason),
                "ended_at": ended.ended_at.map(|at| time(Some(at))),
                "end_reason": set(&ended.end_reason),
            }))
        ),
        OutputForm::Text => writeln!(out, "{session} {}", outcome(&ended)),
    };
    written
        .and_then(|()| out.flush())
        .map_err(|error| unwritten(&error))?;
    Ok(SUCCESS)
}

/// A text, unless it is empty.
fn set(text: &str) -> Option<&str> {
    (!text.is_empty()).then_some(text)
}

fn outcome_name(outcome: pb::TerminateOutcome) -> &'static str {
    match outcome {
        pb::TerminateOutcome::Unspecified => "unspecified",
        pb::TerminateOutcome::Told => "told",
        pb::TerminateOutcome::GateAway => "gate-away",
        pb::TerminateOutcome::EndedBefore => "ended-before",
        pb::TerminateOutcome::TerminatedBefore => "terminated-before",
    }
}

/// What has come of it, in words behind the session's id.
fn outcome(ended: &pb::TerminateSessionResponse) -> String {
    let shown = |words: &str| text::shown(words.as_bytes());
    let by = shown(&ended.terminated_by);
    let first = || {
        let because = set(&ended.reason).map_or(String::new(), |reason| {
            format!(", because: {}", shown(reason))
        });
        format!("ended by {by} at {}{because}", time(ended.terminated_at))
    };
    match ended.outcome() {
        pb::TerminateOutcome::Told => format!("ended by {by}"),
        pb::TerminateOutcome::GateAway | pb::TerminateOutcome::Unspecified => {
            format!("ended by {by}; its gate isn't connected, and is told when it is")
        }
        pb::TerminateOutcome::EndedBefore => {
            let at = time(ended.ended_at);
            let why =
                set(&ended.end_reason).map_or(String::new(), |why| format!(" ({})", shown(why)));
            if by.is_empty() {
                format!("had ended by itself, at {at}{why}; nothing was changed")
            } else {
                let first = first();
                format!("had ended already, at {at}{why}, {first}; nothing was changed")
            }
        }
        pb::TerminateOutcome::TerminatedBefore => {
            let first = first();
            format!("was already {first}; its gate hasn't told its end yet; nothing was changed")
        }
    }
}

/// The id that is meant: a whole one, or that of the one session which begins so.
fn whole_id(operator: &Operator, given: &str) -> Result<String, Failure> {
    let is_digit = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    if !given.bytes().all(is_digit) || given.len() < 4 || given.len() > 32 {
        return Err(Failure::saying(
            "a session's id has 32 lowercase hexadecimal digits; give it, or 4 or more of its first ones",
        )
        .exiting(SENSELESS));
    }
    if given.len() == 32 {
        return Ok(given.to_owned());
    }
    let mut found: Vec<_> = all(operator)?
        .into_iter()
        .map(|session| session.session_id)
        .filter(|id| id.starts_with(given))
        .collect();
    match (found.pop(), found.len()) {
        (Some(id), 0) => Ok(id),
        (None, _) => Err(Failure::saying(format!(
            "no session that is connected begins with {given}; give its whole id if its gate is away"
        ))
        .exiting(UNKNOWN)),
        (Some(_), more) => Err(Failure::saying(format!(
            "{} sessions begin with {given}: give more of the id",
            more + 1
        ))
        .exiting(SENSELESS)),
    }
}
