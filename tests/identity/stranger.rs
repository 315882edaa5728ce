//! A client that says what a test has it say, well-behaved or not.

use std::time::{Duration, SystemTime};

use execgate::pb::v1;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Status, Streaming};
use v1::policy_service_client::PolicyServiceClient;
use v1::session_request::Event;
use v1::session_response::Answer;

/// How long anything may take that is bound to happen.
const PATIENCE: Duration = Duration::from_secs(30);

pub(crate) const SESSION: &str = "00112233445566778899aabbccddeeff";

/// One call.
pub(crate) struct Call {
    pub(crate) events: mpsc::Sender<v1::SessionRequest>,
    answers: Streaming<v1::SessionResponse>,
}

pub(crate) async fn connect(address: &str) -> Channel {
    endpoint(address).connect().await.expect("a connection")
}

/// A connection of whose calls no more than so many bytes of answers arrive before they are read.
pub(crate) async fn connect_with_window(address: &str, bytes: u32) -> Channel {
    let endpoint = endpoint(address).initial_stream_window_size(bytes);
    endpoint.connect().await.expect("a connection")
}

fn endpoint(address: &str) -> Endpoint {
    Endpoint::from_shared(format!("http://{address}")).expect("an address")
}

impl Call {
    pub(crate) async fn open(channel: Channel, token: Option<&str>) -> Result<Self, Status> {
        Self::open_with(channel, token, None).await
    }

    /// The same with one more header of a call, whatever it says.
    pub(crate) async fn open_with(
        channel: Channel,
        token: Option<&str>,
        more: Option<&str>,
    ) -> Result<Self, Status> {
        let (events, stream) = mpsc::channel(16);
        let mut request = Request::new(ReceiverStream::new(stream));
        if let Some(token) = token {
            let value = format!("Bearer {token}").parse().expect("ASCII");
            request.metadata_mut().insert("authorization", value);
        }
        if let Some(more) = more {
            let value = more.parse().expect("ASCII");
            request.metadata_mut().insert("x-more", value);
        }
        let mut client = PolicyServiceClient::new(channel).max_encoding_message_size(64 << 20);
        let response = tokio::time::timeout(PATIENCE, client.session(request)).await;
        let answers = response.expect("headers come at once")?.into_inner();
        Ok(Self { events, answers })
    }

    pub(crate) async fn tell(&self, sequence: u64, event: Event) {
        let request = v1::SessionRequest {
            sequence,
            event_time: Some(SystemTime::now().into()),
            event: Some(event),
        };
        // A call that has ended says why when it is read.
        let _ = self.events.send(request).await;
    }

    pub(crate) async fn next(&mut self) -> Result<Option<Answer>, Status> {
        tokio::time::timeout(PATIENCE, self.answers.message())
            .await
            .expect("something comes")
            .map(|response| response.and_then(|response| response.answer))
    }

    /// The reason that the next verdict gives.
    pub(crate) async fn verdict(&mut self) -> String {
        loop {
            match self.next().await {
                Ok(Some(Answer::Verdict(verdict))) => match verdict.decision {
                    Some(v1::verdict::Decision::Deny(deny)) => return deny.reason,
                    other => panic!("{other:?}"),
                },
                Ok(Some(Answer::SessionAccepted(_) | Answer::EventsAcknowledged(_))) => {}
                other => panic!("{other:?}"),
            }
        }
    }

    pub(crate) async fn acknowledged(&mut self, through: u64) {
        loop {
            match self.next().await {
                Ok(Some(Answer::EventsAcknowledged(events)))
                    if events.through_sequence >= through =>
                {
                    return;
                }
                Ok(Some(_)) => {}
                other => panic!("{other:?}"),
            }
        }
    }

    /// The status that the call ends with, after whatever is left to come.
    pub(crate) async fn end(&mut self) -> Status {
        loop {
            match self.next().await {
                Ok(Some(_)) => {}
                Ok(None) => return Status::ok(""),
                Err(status) => return status,
            }
        }
    }

    /// Says that there is nothing more, and reads to the end: how many verdicts came, and how it ended.
    pub(crate) async fn finish(self) -> (usize, tonic::Code) {
        let Self { events, answers } = self;
        drop(events);
        let (rest, _) = mpsc::channel(1);
        let mut call = Self {
            events: rest,
            answers,
        };
        let mut verdicts = 0;
        loop {
            match call.next().await {
                Ok(Some(Answer::Verdict(_))) => verdicts += 1,
                Ok(Some(_)) => {}
                Ok(None) => return (verdicts, tonic::Code::Ok),
                Err(status) => return (verdicts, status.code()),
            }
        }
    }
}

pub(crate) fn started(session: &str, resumed_at: Option<u64>) -> Event {
    Event::SessionStarted(v1::SessionStarted {
        session_id: session.to_owned(),
        resumption: resumed_at.map(|next_sequence| v1::Resumption {
            attempt: 2,
            next_sequence,
            ..v1::Resumption::default()
        }),
        ..v1::SessionStarted::default()
    })
}

pub(crate) fn requested(exec_id: u64) -> Event {
    Event::ExecRequested(v1::ExecRequested {
        exec_id,
        file: b"/usr/bin/true"[..].into(),
        ..v1::ExecRequested::default()
    })
}
