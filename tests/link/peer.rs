//! A policy service that does what a test says, message by message.

use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};

use execgate::pb::v1::session_request::Event;
use execgate::pb::v1::session_response::Answer;
use execgate::pb::v1::verdict::Decision;
use execgate::pb::v1::{
    Deny, EventAcknowledgement, EventsAcknowledged, ExecRequested, Run, SessionAccepted,
    SessionRequest, SessionResponse, SessionStarted, Verdict,
};
use prost::Message;
use prost::bytes::{Buf, BufMut, Bytes};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::mpsc;
use tokio_stream::wrappers::{ReceiverStream, TcpListenerStream, UnixListenerStream};
use tokio_stream::{Stream, StreamExt as _};
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::codegen::{Service, http};
use tonic::transport::server::Connected;
use tonic::{Request, Response, Status, Streaming};

const LIMIT: usize = 16 * 1024 * 1024;

/// When a peer sends the headers of its response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Headers {
    AtOnce,
    WithFirstMessage,
}

pub(crate) struct Peer {
    pub(crate) endpoint: String,
    calls: mpsc::Receiver<Call>,
    connections: Arc<AtomicUsize>,
    server: tokio::task::JoinHandle<()>,
}

/// One call of a gate.
pub(crate) struct Call {
    events: Streaming<SessionRequest>,
    answers: mpsc::Sender<Result<Bytes, Status>>,
}

impl Peer {
    pub(crate) async fn start() -> Self {
        Self::start_with(Headers::AtOnce).await
    }

    pub(crate) async fn start_with(headers: Headers) -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0")
            .await
            .expect("a port");
        let address = listener.local_addr().expect("an address");
        let incoming = TcpListenerStream::new(listener);
        Self::serve(format!("http://{address}"), incoming, headers)
    }

    pub(crate) fn start_at(socket: &Path) -> Self {
        let listener = tokio::net::UnixListener::bind(socket).expect("a socket");
        let incoming = UnixListenerStream::new(listener);
        let endpoint = format!("unix:{}", socket.display());
        Self::serve(endpoint, incoming, Headers::AtOnce)
    }

    fn serve<S>(
        endpoint: String,
        incoming: impl Stream<Item = io::Result<S>> + Send + Unpin + 'static,
        headers: Headers,
    ) -> Self
    where
        S: AsyncRead + AsyncWrite + Connected + Send + Unpin + 'static,
    {
        let (service, calls) = service(headers);
        let connections = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&connections);
        let incoming = incoming.map(move |connection| {
            counted.fetch_add(1, Ordering::Relaxed);
            connection
        });
        Self {
            endpoint,
            calls,
            connections,
            server: tokio::spawn(async move {
                let server = tonic::transport::Server::builder().add_service(service);
                server.serve_with_incoming(incoming).await.expect("serves");
            }),
        }
    }

    /// How many connections gates have made so far.
    pub(crate) fn connections(&self) -> usize {
        self.connections.load(Ordering::Relaxed)
    }

    /// The next call that a gate makes.
    pub(crate) async fn call(&mut self) -> Call {
        self.calls.recv().await.expect("a call")
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        self.server.abort();
    }
}

impl Call {
    /// The next event; `None` when the gate has half-closed the call.
    pub(crate) async fn event(&mut self) -> Option<SessionRequest> {
        self.events.message().await.expect("an event or the end")
    }

    pub(crate) async fn next(&mut self) -> (u64, Event) {
        let event = self.event().await.expect("an event");
        (event.sequence, event.event.expect("a known event"))
    }

    pub(crate) async fn started(&mut self) -> (u64, SessionStarted) {
        match self.next().await {
            (sequence, Event::SessionStarted(started)) => (sequence, started),
            other => panic!("not a started session: {other:?}"),
        }
    }

    /// The next event, which has to be a question.
    pub(crate) async fn question(&mut self) -> (u64, ExecRequested) {
        match self.next().await {
            (sequence, Event::ExecRequested(question)) => (sequence, question),
            other => panic!("not a question: {other:?}"),
        }
    }

    /// Reads up to the question about `exec`.
    pub(crate) async fn asked(&mut self, exec: u64) -> u64 {
        loop {
            if let (sequence, Event::ExecRequested(question)) = self.next().await
                && question.exec_id == exec
            {
                return sequence;
            }
        }
    }

    pub(crate) async fn send_bytes(&self, bytes: impl Into<Bytes>) {
        self.answers.send(Ok(bytes.into())).await.expect("a gate");
    }

    pub(crate) async fn answer(&self, answer: Answer) {
        let response = SessionResponse {
            answer: Some(answer),
        };
        self.send_bytes(response.encode_to_vec()).await;
    }

    pub(crate) async fn verdict(&self, exec_id: u64, decision: Option<Decision>) {
        let verdict = Verdict {
            exec_id,
            decision,
            ..Verdict::default()
        };
        self.answer(Answer::Verdict(verdict)).await;
    }

    pub(crate) async fn run(&self, exec_id: u64) {
        self.verdict(exec_id, Some(Decision::Run(Run {}))).await;
    }

    pub(crate) async fn deny(&self, exec_id: u64, reason: &str) {
        let reason = reason.to_owned();
        self.verdict(exec_id, Some(Decision::Deny(Deny { reason })))
            .await;
    }

    /// Says that events will be acknowledged.
    pub(crate) async fn accept_and_store(&self) {
        let accepted = SessionAccepted {
            event_acknowledgement: EventAcknowledgement::Stored.into(),
            ..SessionAccepted::default()
        };
        self.answer(Answer::SessionAccepted(accepted)).await;
    }

    pub(crate) async fn acknowledge(&self, through_sequence: u64) {
        self.answer(Answer::EventsAcknowledged(EventsAcknowledged {
            through_sequence,
        }))
        .await;
    }

    /// Ends the call with an error.
    pub(crate) async fn fail(self, status: Status) {
        self.answers.send(Err(status)).await.expect("a gate");
    }

    /// Ends the call with OK.
    pub(crate) fn end(self) {
        drop(self);
    }
}

fn service(headers: Headers) -> (PeerService, mpsc::Receiver<Call>) {
    let (calls, receiver) = mpsc::channel(16);
    (PeerService { headers, calls }, receiver)
}

#[derive(Clone)]
struct PeerService {
    headers: Headers,
    calls: mpsc::Sender<Call>,
}

impl tonic::server::NamedService for PeerService {
    const NAME: &'static str = "execgate.policy.v1.PolicyService";
}

type BoxFuture<T> = Pin<Box<dyn Future<Output = T> + Send>>;
type Answers = Pin<Box<dyn tokio_stream::Stream<Item = Result<Bytes, Status>> + Send>>;

impl Service<http::Request<tonic::body::Body>> for PeerService {
    type Response = http::Response<tonic::body::Body>;
    type Error = Infallible;
    type Future = BoxFuture<Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<tonic::body::Body>) -> Self::Future {
        assert_eq!(
            request.uri().path(),
            "/execgate.policy.v1.PolicyService/Session"
        );
        let method = Method(self.clone());
        Box::pin(async move {
            let mut grpc = tonic::server::Grpc::new(PeerCodec)
                .max_decoding_message_size(LIMIT)
                .max_encoding_message_size(2 * LIMIT);
            Ok(grpc.streaming(method, request).await)
        })
    }
}

struct Method(PeerService);

impl tonic::server::StreamingService<SessionRequest> for Method {
    type Response = Bytes;
    type ResponseStream = Answers;
    type Future = BoxFuture<Result<Response<Answers>, Status>>;

    fn call(&mut self, request: Request<Streaming<SessionRequest>>) -> Self::Future {
        let PeerService { headers, calls } = self.0.clone();
        Box::pin(async move {
            let (answers, receiver) = mpsc::channel(1024);
            let call = Call {
                events: request.into_inner(),
                answers,
            };
            calls.send(call).await.expect("the test goes on");
            let mut stream = ReceiverStream::new(receiver);
            if headers == Headers::AtOnce {
                return Ok(Response::new(Box::pin(stream) as Answers));
            }
            let first = stream.next().await;
            let stream = tokio_stream::iter(first).chain(stream);
            Ok(Response::new(Box::pin(stream) as Answers))
        })
    }
}

/// Events decoded, answers as the test encodes them.
#[derive(Clone, Copy)]
struct PeerCodec;

impl Codec for PeerCodec {
    type Encode = Bytes;
    type Decode = SessionRequest;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        *self
    }

    fn decoder(&mut self) -> Self {
        *self
    }
}

impl Encoder for PeerCodec {
    type Item = Bytes;
    type Error = Status;

    fn encode(&mut self, item: Bytes, buffer: &mut EncodeBuf<'_>) -> Result<(), Status> {
        buffer.put(item);
        Ok(())
    }
}

impl Decoder for PeerCodec {
    type Item = SessionRequest;
    type Error = Status;

    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<SessionRequest>, Status> {
        let bytes = buffer.copy_to_bytes(buffer.remaining());
        let event = SessionRequest::decode(bytes).expect("a gate sends whole messages");
        Ok(Some(event))
    }
}

/// A peer that answers every question of every call with [`Run`], and keeps what it received.
pub(crate) fn run_everything(mut peer: Peer) -> Arc<std::sync::Mutex<Vec<SessionRequest>>> {
    let received = Arc::new(std::sync::Mutex::new(Vec::new()));
    let log = Arc::clone(&received);
    tokio::spawn(async move {
        loop {
            let mut call = peer.call().await;
            while let Ok(Some(event)) = call.events.message().await {
                if let Some(Event::ExecRequested(question)) = &event.event {
                    call.run(question.exec_id).await;
                }
                log.lock().expect("no test panicked").push(event);
            }
        }
    });
    received
}
