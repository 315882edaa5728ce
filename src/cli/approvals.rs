//! `approvals`: what waits for a person, and its resolution.

use std::ffi::c_int;
use std::io::{self, IsTerminal, Write};
use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};
use serde_json::json;

use super::operator::{CLOSED_BEFORE, Operator, REFUSED, left, table, unwritten};
use super::output;
use super::service::ServiceOptions;
use super::{Failure, OutputForm, OutputOption, SUCCESS};
use crate::pb::approval::v1 as pb;
use crate::pb::approval::v1::approval_service_client::ApprovalServiceClient;
use crate::policyd::approvals::asked;
use crate::policyd::approvals::json::{
    self, command_line, decision_name, effect_name, state_name, time,
};
use crate::policyd::text;

/// Most columns of a command in a table.
const COMMAND_WIDTH: usize = 100;
/// The largest answer that is read, in bytes.
const LARGEST: usize = 16 << 20;

const EXIT_CODES: &str = "\
Exit codes:
  0  done, or it was so already
  1  the service failed, or the result couldn't be written
  2  the command line is wrong, or the service says that it makes no sense
  3  it was closed before, and not as asked: nothing has changed
  4  there is no such approval
  5  the service can't be reached, or doesn't take the token
";

/// The command line of `approvals`.
#[derive(Debug, Args)]
#[command(after_help = EXIT_CODES)]
pub(super) struct ApprovalsArguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// List what waits for a person, or was decided lately
    #[command(after_help = EXIT_CODES)]
    List(ListArguments),
    /// Show one approval, whole
    #[command(after_help = EXIT_CODES)]
    Show(ShowArguments),
    /// Let a command run
    #[command(after_help = EXIT_CODES)]
    Approve(ResolveArguments),
    /// Refuse a command
    #[command(after_help = EXIT_CODES)]
    Deny(ResolveArguments),
    /// Tell of what waits, and of all that comes and is decided, until it is interrupted
    #[command(after_help = EXIT_CODES)]
    Watch(WatchArguments),
    /// List the decisions that hold for later commands as well
    #[command(after_help = EXIT_CODES)]
    Remembered(WatchArguments),
    /// Have a decision hold no longer for later commands
    #[command(after_help = EXIT_CODES)]
    Forget(ShowArguments),
}

#[derive(Debug, Args)]
struct ListArguments {
    /// Those that are open, or the latest of all
    #[arg(long, value_name = "STATE", default_value = "pending")]
    state: ListState,

    /// At most so many
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    limit: u32,

    #[command(flatten)]
    output: OutputOption,

    #[command(flatten)]
    service: ServiceOptions,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum ListState {
    Pending,
    Approved,
    Denied,
    Expired,
    Withdrawn,
    All,
}

#[derive(Debug, Args)]
struct ShowArguments {
    /// Its id, as `execgate approvals list` has it
    #[arg(value_name = "APPROVAL")]
    approval: String,

    #[command(flatten)]
    output: OutputOption,

    #[command(flatten)]
    service: ServiceOptions,
}

#[derive(Debug, Args)]
struct WatchArguments {
    #[command(flatten)]
    output: OutputOption,

    #[command(flatten)]
    service: ServiceOptions,
}

#[derive(Debug, Args)]
struct ResolveArguments {
    /// Its id, as `execgate approvals list` has it
    #[arg(value_name = "APPROVAL")]
    approval: String,

    /// Why, for the record; the user reads it where the command is denied
    #[arg(long, value_name = "TEXT", default_value = "")]
    note: String,

    /// For this command once, or for the same one later as well: in its session, or in all of its gate's
    #[arg(long, value_name = "SCOPE", default_value = "once")]
    scope: ScopeName,

    /// Of later commands, so many first arguments must be the same, in any directory; all arguments and
    /// the directory, unless given
    #[arg(long, value_name = "N")]
    prefix: Option<u32>,

    /// For how long it holds for later commands, such as 30m or 8h; must be given with --scope gate
    #[arg(long = "for", value_name = "TIME", value_parser = super::time::parse)]
    valid_for: Option<Duration>,

    #[command(flatten)]
    output: OutputOption,

    #[command(flatten)]
    service: ServiceOptions,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum ScopeName {
    Once,
    Session,
    Gate,
}

/// Runs `approvals`.
pub(super) fn approvals(arguments: &ApprovalsArguments) -> Result<c_int, Failure> {
    match &arguments.command {
        Command::List(arguments) => list(arguments),
        Command::Show(arguments) => show(arguments),
        Command::Approve(arguments) => resolve(arguments, pb::Decision::Approve),
        Command::Deny(arguments) => resolve(arguments, pb::Decision::Deny),
        Command::Watch(arguments) => watch(arguments),
        Command::Remembered(arguments) => remembered(arguments),
        Command::Forget(arguments) => forget(arguments),
    }
}

fn client(channel: tonic::transport::Channel) -> ApprovalServiceClient<tonic::transport::Channel> {
    ApprovalServiceClient::new(channel).max_decoding_message_size(LARGEST)
}

fn list(arguments: &ListArguments) -> Result<c_int, Failure> {
    let operator = Operator::new(&arguments.service)?;
    let state = match arguments.state {
        ListState::Pending => pb::ApprovalState::Pending,
        ListState::Approved => pb::ApprovalState::Approved,
        ListState::Denied => pb::ApprovalState::Denied,
        ListState::Expired => pb::ApprovalState::Expired,
        ListState::Withdrawn => pb::ApprovalState::Withdrawn,
        ListState::All => pb::ApprovalState::Unspecified,
    };
    let mut approvals = Vec::new();
    let mut page_token = String::new();
    let most = usize::try_from(arguments.limit).unwrap_or(usize::MAX);
    loop {
        let request = pb::ListApprovalsRequest {
            state: state.into(),
            page_size: 0,
            page_token,
        };
        let page = operator.call(request, |channel, request| async move {
            client(channel).list_approvals(request).await
        })?;
        approvals.extend(page.approvals);
        page_token = page.next_page_token;
        if approvals.len() >= most || page_token.is_empty() {
            break;
        }
    }
    approvals.truncate(most);
    // What waits longest is last on the screen otherwise, and most urgent.
    approvals.reverse();
    let mut out = output::stdout();
    let written = match arguments.output.output {
        OutputForm::Json => approvals.iter().try_for_each(|approval| {
            writeln!(out, "{}", text::plain_json(&json::approval(approval)))
        }),
        OutputForm::Text if approvals.is_empty() => writeln!(out, "none"),
        OutputForm::Text => {
            let rows: Vec<_> = approvals.iter().map(row).collect();
            let heading = [
                "APPROVAL", "STATE", "LEFT", "ASKED", "GATE", "COMMAND", "RULE",
            ];
            table(&mut out, heading, &rows)
        }
    };
    written
        .and_then(|()| out.flush())
        .map_err(|error| unwritten(&error))?;
    Ok(SUCCESS)
}

fn row(approval: &pb::Approval) -> [String; 7] {
    let shown = |words: &str| text::shown(words.as_bytes());
    let session = approval.session.clone().unwrap_or_default();
    let left = match approval.state() {
        pb::ApprovalState::Pending => left(approval.expires_at),
        _ => String::new(),
    };
    [
        shown(&approval.approval_id),
        state_name(approval.state()).to_owned(),
        left,
        text::shortened(&asked(&approval.asked), 30),
        text::shortened(&shown(&session.gate), 30),
        text::shortened(&command_line(approval), COMMAND_WIDTH),
        text::shortened(&shown(&approval.rule), 30),
    ]
}

fn write_one(approval: &pb::Approval, form: OutputForm, out: &mut dyn Write) -> io::Result<()> {
    if form == OutputForm::Json {
        return writeln!(out, "{}", text::plain_json(&json::approval(approval)));
    }
    let shown = |words: &str| text::shown(words.as_bytes());
    let exec = approval.exec.clone().unwrap_or_default();
    let session = approval.session.clone().unwrap_or_default();
    let resolution = approval.resolution.clone().unwrap_or_default();
    let names = text::command_line(exec.environment_names.iter().map(|name| &name[..]), 4_096);
    let labels: Vec<_> = {
        let mut labels: Vec<_> = session.labels.iter().collect();
        labels.sort();
        let label = |(key, value): &(&String, &String)| format!("{}={}", shown(key), shown(value));
        labels.iter().map(label).collect()
    };
    let state = match approval.state() {
        pb::ApprovalState::Pending => format!("pending, for {}", left(approval.expires_at)),
        state => state_name(state).to_owned(),
    };
    let rows = [
        ("approval", shown(&approval.approval_id)),
        ("state", state),
        ("command", command_line(approval)),
        ("directory", text::quoted(&exec.workdir)),
        (
            "writable",
            json::writable_path(approval).map_or_else(String::new, |path| {
                format!(
                    "the session can write {}, and so may have made the program",
                    text::quoted(path)
                )
            }),
        ),
        ("if approved", effect_name(approval.effect.as_ref())),
        ("rule", shown(&approval.rule)),
        ("reason", shown(&approval.reason)),
        ("asks", asked(&approval.asked)),
        (
            "user",
            format!("{} ({})", exec.user_id, shown(&session.user_name)),
        ),
        ("gate", shown(&session.gate)),
        ("host", shown(&session.hostname)),
        ("session", shown(&session.session_id)),
        ("labels", labels.join(" ")),
        (
            "sandbox",
            format!(
                "{} ({})",
                shown(&session.sandbox),
                shown(&session.enforcement)
            ),
        ),
        ("variables", names),
        ("opened", time(approval.opened_at)),
        ("expires", time(approval.expires_at)),
        ("decided by", shown(&resolution.resolved_by)),
        ("decided", time(resolution.resolved_at)),
        ("note", shown(&resolution.note)),
        (
            "remembered",
            resolution
                .grant
                .as_ref()
                .map_or_else(String::new, grant_words),
        ),
    ];
    for (what, words) in rows.iter().filter(|(_, words)| !words.is_empty()) {
        writeln!(out, "{what:<13}{words}")?;
    }
    Ok(())
}

fn grant_words(grant: &pb::Grant) -> String {
    let place = match grant.session_id.as_str() {
        "" => "every session of the gate".to_owned(),
        session => format!("the session {}", text::shown(session.as_bytes())),
    };
    format!("until {}, in {place}", time(grant.expires_at))
}

fn show(arguments: &ShowArguments) -> Result<c_int, Failure> {
    let operator = Operator::new(&arguments.service)?;
    let request = pb::GetApprovalRequest {
        approval_id: arguments.approval.clone(),
    };
    let response = operator.call(request, |channel, request| async move {
        client(channel).get_approval(request).await
    })?;
    let approval = response.approval.unwrap_or_default();
    let mut out = output::stdout();
    write_one(&approval, arguments.output.output, &mut out)
        .and_then(|()| out.flush())
        .map_err(|error| unwritten(&error))?;
    Ok(SUCCESS)
}

fn scope(arguments: &ResolveArguments) -> Result<Option<pb::Scope>, Failure> {
    if arguments.scope == ScopeName::Once {
        return if arguments.prefix.is_some() || arguments.valid_for.is_some() {
            Err(Failure::saying(
                "--prefix and --for are about later commands: give --scope session or --scope gate",
            )
            .exiting(super::USAGE))
        } else {
            Ok(None)
        };
    }
    if arguments.scope == ScopeName::Gate && arguments.valid_for.is_none() {
        return Err(
            Failure::saying("--scope gate: say for how long it holds, such as --for 8h")
                .exiting(super::USAGE),
        );
    }
    let valid_for = arguments.valid_for.map(prost_types::Duration::try_from);
    let valid_for = valid_for.transpose().map_err(|_| {
        Failure::saying("--for: that is longer than any decision holds").exiting(super::USAGE)
    })?;
    Ok(Some(pb::Scope {
        reach: match arguments.scope {
            ScopeName::Once => pb::ScopeReach::Unspecified,
            ScopeName::Session => pb::ScopeReach::Session,
            ScopeName::Gate => pb::ScopeReach::Gate,
        }
        .into(),
        valid_for,
        argument_match: match arguments.prefix {
            None => pb::ArgumentMatch::Same,
            Some(_) => pb::ArgumentMatch::Prefix,
        }
        .into(),
        argument_prefix_length: arguments.prefix.unwrap_or_default(),
    }))
}

fn resolve(arguments: &ResolveArguments, decision: pb::Decision) -> Result<c_int, Failure> {
    let scope = scope(arguments)?;
    let operator = Operator::new(&arguments.service)?;
    let request = pb::ResolveApprovalRequest {
        approval_id: arguments.approval.clone(),
        decision: decision.into(),
        note: arguments.note.clone(),
        scope,
    };
    let response = operator.call(request, |channel, request| async move {
        client(channel).resolve_approval(request).await
    })?;
    let approval = response.approval.clone().unwrap_or_default();
    let wanted = match decision {
        pb::Decision::Approve => pb::ApprovalState::Approved,
        pb::Decision::Deny | pb::Decision::Unspecified => pb::ApprovalState::Denied,
    };
    let mut out = output::stdout();
    let written = match arguments.output.output {
        OutputForm::Json => {
            let mut object = json::approval(&approval);
            object["closed_before"] =
                (response.outcome() == pb::ResolveOutcome::ClosedBefore).into();
            writeln!(out, "{}", text::plain_json(&object))
        }
        OutputForm::Text => writeln!(out, "{}", outcome_words(response.outcome(), &approval)),
    };
    written
        .and_then(|()| out.flush())
        .map_err(|error| unwritten(&error))?;
    Ok(if approval.state() == wanted {
        SUCCESS
    } else {
        CLOSED_BEFORE
    })
}

fn outcome_words(outcome: pb::ResolveOutcome, approval: &pb::Approval) -> String {
    let shown = |words: &str| text::shown(words.as_bytes());
    let resolution = approval.resolution.clone().unwrap_or_default();
    let by = match resolution.resolved_by.as_str() {
        "" => String::new(),
        who => format!(" by {}", shown(who)),
    };
    let note = match resolution.note.as_str() {
        "" => String::new(),
        note => format!(": {}", shown(note)),
    };
    let state = state_name(approval.state());
    let id = shown(&approval.approval_id);
    if outcome == pb::ResolveOutcome::ClosedBefore {
        let at = time(resolution.resolved_at);
        return format!("nothing changed: {id} was {state}{by} before, at {at}{note}");
    }
    let remembered = resolution.grant.as_ref().map(grant_words);
    let remembered = remembered.map_or_else(String::new, |words| format!("; holds {words}"));
    format!("{id} {state}{by}{remembered}")
}

fn watch(arguments: &WatchArguments) -> Result<c_int, Failure> {
    let operator = Operator::new(&arguments.service)?;
    let form = arguments.output.output;
    let response = operator.call(
        pb::WatchApprovalsRequest {},
        |channel, request| async move { client(channel).watch_approvals(request).await },
    )?;
    let mut changes = response;
    let bell = if io::stdout().is_terminal() {
        "\x07"
    } else {
        ""
    };
    loop {
        let change = operator
            .block_on(changes.message())
            .map_err(|status| operator.failure(status))?;
        let Some(change) = change else {
            return Err(
                Failure::saying("the policy service ended the watch; watch again").exiting(REFUSED),
            );
        };
        let name = match change.change() {
            pb::ApprovalChange::Existing => "pending",
            pb::ApprovalChange::CaughtUp => "caught-up",
            pb::ApprovalChange::Opened => "opened",
            pb::ApprovalChange::Closed => "closed",
            pb::ApprovalChange::Unspecified => "unknown",
        };
        let mut out = output::stdout();
        let written = match (form, &change.approval) {
            (OutputForm::Json, approval) => {
                let approval = approval.as_ref().map(json::approval);
                let change = json!({"change": name, "approval": approval});
                writeln!(out, "{}", text::plain_json(&change))
            }
            (OutputForm::Text, None) => Ok(()),
            (OutputForm::Text, Some(approval)) => {
                let [id, state, left, asked, gate, command, rule] = row(approval);
                if approval.state() == pb::ApprovalState::Pending {
                    writeln!(
                        out,
                        "{bell}{id}  pending for {left}  {command}  [{rule}; gate {gate}; asks {asked}]"
                    )
                } else {
                    let resolution = approval.resolution.clone().unwrap_or_default();
                    let by = text::shown(resolution.resolved_by.as_bytes());
                    writeln!(out, "{id}  {state} {by}  {command}")
                }
            }
        };
        written
            .and_then(|()| out.flush())
            .map_err(|error| unwritten(&error))?;
    }
}

fn remembered(arguments: &WatchArguments) -> Result<c_int, Failure> {
    let operator = Operator::new(&arguments.service)?;
    let response = operator.call(pb::ListGrantsRequest {}, |channel, request| async move {
        client(channel).list_grants(request).await
    })?;
    let mut out = output::stdout();
    let written = match arguments.output.output {
        OutputForm::Json => response
            .grants
            .iter()
            .try_for_each(|grant| writeln!(out, "{}", text::plain_json(&json::grant(grant)))),
        OutputForm::Text if response.grants.is_empty() => writeln!(out, "none"),
        OutputForm::Text => {
            let rows: Vec<_> = response.grants.iter().map(grant_row).collect();
            let heading = [
                "APPROVAL", "DECISION", "BY", "LEFT", "IN", "USES", "COMMAND",
            ];
            table(&mut out, heading, &rows)
        }
    };
    written
        .and_then(|()| out.flush())
        .map_err(|error| unwritten(&error))?;
    Ok(SUCCESS)
}

fn grant_row(grant: &pb::Grant) -> [String; 7] {
    let shown = |words: &str| text::shown(words.as_bytes());
    let words = std::iter::once(&grant.file).chain(&grant.arguments);
    let mut command = text::command_line(words.map(|word| &word[..]), 4_096);
    if grant.workdir.is_empty() {
        command.push_str(" ...");
    }
    [
        shown(&grant.approval_id),
        decision_name(grant.decision()).to_owned(),
        text::shortened(&shown(&grant.granted_by), 30),
        left(grant.expires_at),
        match grant.session_id.as_str() {
            "" => text::shortened(&shown(&grant.gate), 30),
            session => format!("session {}", text::shortened(&shown(session), 12)),
        },
        grant.uses.to_string(),
        text::shortened(&command, COMMAND_WIDTH),
    ]
}

fn forget(arguments: &ShowArguments) -> Result<c_int, Failure> {
    let operator = Operator::new(&arguments.service)?;
    let request = pb::RevokeGrantRequest {
        approval_id: arguments.approval.clone(),
    };
    let response = operator.call(request, |channel, request| async move {
        client(channel).revoke_grant(request).await
    })?;
    let grant = response.grant.unwrap_or_default();
    let mut out = output::stdout();
    let written = match arguments.output.output {
        OutputForm::Json => writeln!(out, "{}", text::plain_json(&json::grant(&grant))),
        OutputForm::Text => writeln!(
            out,
            "{} holds no longer for later commands",
            text::shown(grant.approval_id.as_bytes())
        ),
    };
    written
        .and_then(|()| out.flush())
        .map_err(|error| unwritten(&error))?;
    Ok(SUCCESS)
}
