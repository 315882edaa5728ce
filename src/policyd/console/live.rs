//! What happens, as it happens: a stream of server-sent events for each open page.

use std::convert::Infallible;
use std::time::Duration;

use axum::extract::State;
use axum::response::sse::{Event, KeepAlive, Sse};
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tokio_stream::{Stream, StreamExt};
use tonic::{Code, Status};

use super::api::Problem;
use super::login::LoggedIn;
use super::{Console, show};
use crate::pb::approval::v1 as approval;
use crate::pb::approval::v1::approval_service_server::ApprovalService;
use crate::pb::audit::v1 as record;
use crate::pb::audit::v1::audit_service_server::AuditService;
use crate::policyd::operators::Duty;

/// How much of the past a page begins with, in events on record.
const LATEST_EVENTS: u64 = 1_000;
/// How long execs are gathered before they are sent, and at most how many, and about how many bytes of them: a page draws
/// them together.
const GATHERING: Duration = Duration::from_millis(100);
const GATHERED: usize = 500;
const GATHERED_BYTES: usize = 256 << 10;
/// Between two looks at the service's state.
const STATUS_INTERVAL: Duration = Duration::from_secs(5);
/// Messages that may wait for a page that doesn't read them. What waits behind them is on record.
const QUEUED: usize = 8;

/// The page is gone, or a stream has ended.
struct Over;

pub(super) async fn events(
    State(console): State<Console>,
    login: LoggedIn,
) -> Result<Sse<impl Stream<Item = Result<Event, Infallible>>>, Problem> {
    let asked = record::WatchRequest {
        start: Some(record::watch_request::Start::LatestEvents(LATEST_EVENTS)),
        filter: None,
        view: record::ExecView::Basic.into(),
    };
    let execs = match console.0.audit.watch(login.call(asked)).await {
        Ok(changes) => Some(changes.into_inner()),
        // Nothing is stored here: approvals are still to be seen.
        Err(status) if status.code() == Code::FailedPrecondition => None,
        Err(status) => return Err(status.into()),
    };
    let approvals = match login.operator.duty() {
        Duty::Operate => {
            let asked = login.call(approval::WatchApprovalsRequest {});
            Some(
                console
                    .0
                    .approvals
                    .watch_approvals(asked)
                    .await?
                    .into_inner(),
            )
        }
        Duty::Audit => None,
    };
    let (sender, events) = mpsc::channel(QUEUED);
    let page = Page { console, sender };
    tokio::spawn(page.tell(execs, approvals));
    Ok(Sse::new(ReceiverStream::new(events)).keep_alive(KeepAlive::default()))
}

/// What a stream says next; where there is none, nothing ever.
async fn next<T>(stream: &mut Option<ReceiverStream<T>>) -> Option<T> {
    match stream {
        Some(stream) => stream.next().await,
        None => std::future::pending().await,
    }
}

/// Execs that are sent together, as JSON.
#[derive(Debug, Default)]
struct Gathered {
    count: usize,
    json: String,
}

impl Gathered {
    fn has_room(&self) -> bool {
        self.count < GATHERED && self.json.len() < GATHERED_BYTES
    }

    fn add(&mut self, exec: &Value) {
        self.json.push(if self.count == 0 { '[' } else { ',' });
        self.json.push_str(&exec.to_string());
        self.count += 1;
    }

    /// All of them, if there are any.
    fn list(mut self) -> Option<String> {
        if self.count == 0 {
            return None;
        }
        self.json.push(']');
        Some(self.json)
    }
}

struct Page {
    console: Console,
    sender: mpsc::Sender<Result<Event, Infallible>>,
}

impl Page {
    /// Ends with the page, with the login's token, and with the service.
    async fn tell(
        self,
        mut execs: Option<ReceiverStream<Result<record::WatchResponse, Status>>>,
        mut approvals: Option<ReceiverStream<Result<approval::WatchApprovalsResponse, Status>>>,
    ) {
        let mut gathered = Gathered::default();
        let mut flush = tokio::time::interval(GATHERING);
        flush.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut look = tokio::time::interval(STATUS_INTERVAL);
        let stopping = self.console.0.stopping.clone();
        let mut rules_fault = self.console.0.rules_fault.clone();
        loop {
            let told = tokio::select! {
                change = next(&mut execs), if gathered.has_room() => match change {
                    Some(Ok(change)) => {
                        if let Some(record::watch_response::Update::ExecChanged(changed)) = change.update
                            && let Some(exec) = &changed.exec
                        {
                            gathered.add(&show::exec(exec));
                        }
                        Ok(())
                    }
                    Some(Err(_)) | None => Err(Over),
                },
                change = next(&mut approvals) => match change {
                    Some(Ok(change)) => match &change.approval {
                        Some(approval) => self.send("approval", &show::approval(approval)).await,
                        None => Ok(()),
                    },
                    Some(Err(_)) | None => Err(Over),
                },
                _ = flush.tick() => {
                    match std::mem::take(&mut gathered).list() {
                        Some(execs) => self.send_text("execs", &execs).await,
                        None => Ok(()),
                    }
                }
                _ = look.tick() => self.send("status", &self.status()).await,
                Ok(()) = rules_fault.changed() => self.send("status", &self.status()).await,
                () = self.sender.closed() => Err(Over),
                () = stopping.cancelled() => Err(Over),
            };
            if told.is_err() {
                return;
            }
        }
    }

    fn status(&self) -> Value {
        json!({
            "revision": self.console.0.rules.borrow().revision(),
            "rules_error": *self.console.0.rules_fault.borrow(),
        })
    }

    async fn send(&self, name: &str, value: &Value) -> Result<(), Over> {
        self.send_text(name, &value.to_string()).await
    }

    async fn send_text(&self, name: &str, json: &str) -> Result<(), Over> {
        let event = Event::default().event(name).data(json);
        self.sender.send(Ok(event)).await.map_err(|_| Over)
    }
}
