#![allow(
    clippy::expect_used,
    reason = "a target says by a panic that it can't run"
)]

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::time::Duration;

use prost::Message;
use rusqlite::Connection;

use super::request::{RequestError, get_session, list};
use super::show::{Colors, Layout, write_table};
use super::{Line, LineColors, json_line};
use crate::pb::audit::v1::{
    Exec, ExecFilter, ExecView, GetSessionRequest, ListRequest, ListResponse, StoredAnswer,
};
use crate::pb::v1;
use crate::pb::v1::session_request::Event;
use crate::policyd::identity::GateIdentity;
use crate::policyd::rules::{Rules, SessionFacts};
use crate::policyd::store::fuzzing::{empty, store, write};
use crate::policyd::{bounds, service, text};

const SESSION: &str = "0123456789abcdef0123456789abcdef";

/// Rules that look at all that they may.
const RULES: &str = r#"
prefix_rule(["make"])
prefix_rule(["git", "push"], "deny")
prefix_rule(["install"], "escalate", execution = "unsandboxed")
def decide(exec):
    if exec.args and exec.args[0] == "x" and not exec.is_exact:
        return "deny"
    return None
"#;

/// Events of a gate, each behind its length: what is within the bounds is decided and kept, and shown as text
/// that does nothing to a terminal.
pub(crate) fn events(mut bytes: &[u8]) {
    thread_local! {
        static STORE: RefCell<(Connection, Rules)> = RefCell::new((
            store(),
            Rules::parse("fuzzing.rules", RULES.to_owned()).expect("rules"),
        ));
    }
    let gate = GateIdentity::anonymous();
    let mut session = SessionFacts {
        id: SESSION.to_owned(),
        ..SessionFacts::default()
    };
    STORE.with_borrow_mut(|(connection, rules)| {
        let mut told = Vec::new();
        while let Ok(request) = v1::SessionRequest::decode_length_delimited(&mut bytes) {
            if request.event.as_ref().and_then(bounds::excess).is_some() {
                break;
            }
            let mut answer = None;
            match &request.event {
                Some(Event::SessionStarted(started)) if told.is_empty() => {
                    let Ok(facts) = service::session_facts(started, &gate) else {
                        break;
                    };
                    session = facts;
                }
                Some(Event::SessionStarted(_)) => break,
                Some(Event::ExecRequested(exec)) => {
                    answer = Some(answered(rules, &session, exec));
                }
                _ => {}
            }
            told.push((request, answer));
            if bytes.is_empty() {
                break;
            }
        }
        write(connection, &session.id, &gate, &told);
        let request = GetSessionRequest {
            session_id: session.id.clone(),
            view: ExecView::Full.into(),
            ..GetSessionRequest::default()
        };
        match get_session(connection, &request) {
            Ok(found) => found.execs.iter().for_each(is_shown),
            Err(RequestError::NoSession(_)) => {}
            Err(error) => unreadable(&error),
        }
        let found = list(connection, &ListRequest::default(), Duration::MAX);
        match found {
            Ok(found) => found.execs.iter().for_each(is_shown),
            Err(error) => unreadable(&error),
        }
        empty(connection);
    });
}

fn unreadable(error: &RequestError) {
    assert!(
        matches!(error, RequestError::Invalid(_)),
        "the record can't be read: {error}"
    );
}

fn answered(rules: &Rules, session: &SessionFacts, exec: &v1::ExecRequested) -> StoredAnswer {
    let ruling = service::ruling(rules, session, exec);
    StoredAnswer::from(v1::Verdict {
        exec_id: exec.exec_id,
        decision: Some(service::decision_message(ruling.decision, ruling.terms)),
        rule: ruling.rule,
        reason_code: ruling.reason_code,
        ..v1::Verdict::default()
    })
}

/// Each way of showing an exec is text, and nothing of it moves a cursor.
fn is_shown(exec: &Exec) {
    let json = json_line(exec);
    serde_json::from_str::<serde_json::Value>(&json).expect("JSON");
    let line = Line(exec, LineColors::Plain).to_string();
    let mut table = Vec::new();
    let layout = Layout {
        columns: Some(80),
        colors: Colors::Plain,
    };
    write_table(std::slice::from_ref(exec), &layout, &mut table).expect("memory");
    let table = String::from_utf8(table).expect("text");
    for line in [&*json, &*line].into_iter().chain(table.lines()) {
        assert!(line.chars().all(text::is_plain), "{line:?}");
    }
}

/// A request of an auditor, behind a byte that says which: it is refused, or what it finds is what it asked for,
/// page by page, each once.
pub(crate) fn filters(bytes: &[u8]) {
    thread_local! {
        static STORE: Connection = filled();
    }
    let Some((kind, request)) = bytes.split_first() else {
        return;
    };
    STORE.with(|connection| {
        if kind % 2 == 1 {
            if let Ok(request) = GetSessionRequest::decode(request)
                && let Err(RequestError::Read(error)) = get_session(connection, &request)
            {
                unreadable(&error.into());
            }
            return;
        }
        if let Ok(mut request) = ListRequest::decode(request) {
            pages(connection, &mut request);
        }
    });
}

fn pages(connection: &Connection, request: &mut ListRequest) {
    let mut seen = BTreeSet::new();
    let first = request.page_token.clone();
    loop {
        let ListResponse {
            execs,
            next_page_token,
        } = match list(connection, request, Duration::MAX) {
            Ok(found) => found,
            Err(error) => {
                unreadable(&error);
                assert_eq!(request.page_token, first, "its own token isn't taken");
                return;
            }
        };
        let filter = request.filter.clone().unwrap_or_default();
        for exec in &execs {
            assert!(seen.insert(exec.position), "found twice");
            fits(&filter, exec);
        }
        if next_page_token.is_empty() {
            break;
        }
        request.page_token = next_page_token;
    }
    if first.is_empty() && request.filter.is_none() {
        assert_eq!(seen.len(), EXECS, "not all are found");
    }
}

/// What an exec shows of itself is what was asked for.
fn fits(filter: &ExecFilter, exec: &Exec) {
    let prefix = filter.session_id_prefix.to_ascii_lowercase();
    assert!(exec.session_id.starts_with(&prefix), "another session");
    let is = |asked: &str, found: &str| asked.is_empty() || asked == found;
    assert!(is(&filter.gate, &exec.gate), "another gate");
    let program = filter.program.as_bytes();
    let is_program = if program.contains(&b'/') {
        exec.program[..] == *program
    } else {
        program.is_empty() || exec.program.rsplit(|byte| *byte == b'/').next() == Some(program)
    };
    assert!(is_program, "another program: {:?}", exec.program);
}

/// Sessions and execs of the store that is asked.
const SESSIONS: u64 = 3;
const EXECS_OF_ONE: u64 = 4;
#[allow(clippy::cast_possible_truncation, reason = "twelve")]
const EXECS: usize = (SESSIONS * EXECS_OF_ONE) as usize;

fn filled() -> Connection {
    let mut connection = store();
    for number in 0..SESSIONS {
        let id = format!("{number:032x}");
        let event = |sequence, event| {
            let request = v1::SessionRequest {
                sequence,
                event_time: None,
                event: Some(event),
            };
            (request, None)
        };
        let mut events = vec![event(
            1,
            Event::SessionStarted(v1::SessionStarted {
                session_id: id.clone(),
                labels: [("team".to_owned(), format!("{}", number % 2))].into(),
                ..v1::SessionStarted::default()
            }),
        )];
        for exec_id in 1..=EXECS_OF_ONE {
            let file = if exec_id == 3 { "/bin/rare" } else { "/bin/a" };
            let action = match exec_id {
                1 => v1::Action::Deny,
                2 => v1::Action::Escalate,
                _ => v1::Action::Run,
            };
            events.push(event(
                2 * exec_id,
                Event::ExecRequested(v1::ExecRequested {
                    exec_id,
                    file: file.into(),
                    arguments: vec![file.into(), b"\xfe"[..].into()],
                    ..v1::ExecRequested::default()
                }),
            ));
            events.push(event(
                2 * exec_id + 1,
                Event::ExecDecided(v1::ExecDecided {
                    exec_id,
                    action: action.into(),
                    code: v1::DecisionCode::Verdict.into(),
                    reason_code: "code".to_owned(),
                    ..v1::ExecDecided::default()
                }),
            ));
        }
        let gate = ["token:a", "token:b"][usize::from(number == 0)];
        let gate = GateIdentity::parse(gate).expect("a gate");
        write(&mut connection, &id, &gate, &events);
    }
    connection
}
