//! Peers that speak no gRPC, no HTTP/2, or not all of it: frames and bytes written by hand
//! (RFC 9113, and RFC 7541 for the headers).

use std::future::Future;
use std::time::Duration;

use execgate::pb::v1::SessionRequest;
use execgate::pb::v1::session_request::Event;
use prost::Message as _;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

const PREFACE: usize = 24;

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const GO_AWAY: u8 = 7;

const END_STREAM: u8 = 1;
const ACK: u8 = 1;
const END_HEADERS: u8 = 4;

/// `ENHANCE_YOUR_CALM`.
const CALM: u32 = 0xb;

/// Serves each connection with `serve`; returns the endpoint.
pub(crate) async fn serve<F>(serve: impl Fn(TcpStream) -> F + Send + 'static) -> String
where
    F: Future<Output = ()> + Send + 'static,
{
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.expect("a connection");
            tokio::spawn(serve(stream));
        }
    });
    format!("http://{address}")
}

/// Writes what is no HTTP/2.
pub(crate) async fn garbage(mut stream: TcpStream) {
    let _ = stream.write_all(&[0xff; 4096]).await;
    drain(stream).await;
}

/// Never writes anything.
pub(crate) async fn silence(stream: TcpStream) {
    drain(stream).await;
}

/// Resets the connection as soon as the gate has sent something.
pub(crate) async fn reset(mut stream: TcpStream) {
    let _ = stream.read(&mut [0; 1]).await;
    socket2::SockRef::from(&stream)
        .set_linger(Some(Duration::ZERO))
        .expect("a socket");
}

/// Begins an answer of 100 bytes and ends the response behind ten.
pub(crate) async fn half_a_message(stream: TcpStream) {
    let mut peer = RawPeer::greet(stream).await;
    while let Some(call) = peer.call().await {
        peer.response_headers(call).await;
        let mut message = vec![0, 0, 0, 0, 100];
        message.extend([0; 10]);
        peer.frame(DATA, END_STREAM, call, &message).await;
    }
}

/// Ends the call with a status whose details are no base64.
pub(crate) async fn broken_trailers(stream: TcpStream) {
    let mut peer = RawPeer::greet(stream).await;
    while let Some(call) = peer.call().await {
        peer.response_headers(call).await;
        let mut block = Vec::new();
        literal(&mut block, "grpc-status", "13");
        literal(&mut block, "grpc-status-details-bin", "%%%");
        let flags = END_HEADERS | END_STREAM;
        peer.frame(HEADERS, flags, call, &block).await;
    }
}

/// Ends the connection for too many pings.
pub(crate) async fn calm_down(stream: TcpStream) {
    let mut peer = RawPeer::greet(stream).await;
    peer.call().await.expect("a request");
    peer.object_to_pings().await;
}

/// Says it is a web server.
pub(crate) async fn web_server(mut stream: TcpStream) {
    let _ = stream
        .write_all(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")
        .await;
    drain(stream).await;
}

async fn drain(mut stream: TcpStream) {
    let mut buffer = vec![0; 65536];
    while stream.read(&mut buffer).await.is_ok_and(|read| read > 0) {}
}

/// One that serves connections in turn, frame by frame.
pub(crate) struct Listener(TcpListener);

impl Listener {
    pub(crate) async fn new() -> Self {
        Self(TcpListener::bind("127.0.0.1:0").await.expect("a port"))
    }

    pub(crate) fn endpoint(&self) -> String {
        format!("http://{}", self.0.local_addr().expect("an address"))
    }

    /// The next connection, up to the first message of its call.
    pub(crate) async fn call(&self) -> RawPeer {
        let (stream, _) = self.0.accept().await.expect("a connection");
        let mut peer = RawPeer::greet(stream).await;
        let is_first = |event: &Event| matches!(event, Event::SessionStarted(_));
        peer.pings_before(is_first).await;
        peer
    }
}

pub(crate) struct RawPeer {
    stream: TcpStream,
    /// What was sent in the call, and isn't read yet.
    data: Vec<u8>,
}

impl RawPeer {
    /// Reads up to the question about `exec`; returns how many pings came before it.
    pub(crate) async fn asked(&mut self, exec: u64) -> usize {
        let is_it = |event: &Event| matches!(event, Event::ExecRequested(it) if it.exec_id == exec);
        self.pings_before(is_it).await
    }

    async fn pings_before(&mut self, is_it: impl Fn(&Event) -> bool) -> usize {
        let mut pings = 0;
        loop {
            while let Some(event) = self.event() {
                if is_it(&event) {
                    return pings;
                }
            }
            let frame = self.next().await.expect("a message");
            match frame.kind {
                DATA => self.data.extend(frame.payload),
                PING if frame.flags & ACK == 0 => pings += 1,
                _ => {}
            }
        }
    }

    /// The next of what was sent, if all of it is here.
    fn event(&mut self) -> Option<Event> {
        // Whether it is compressed, and its length.
        let [_, length @ ..] = *self.data.first_chunk::<5>()?;
        let end = 5 + u32::from_be_bytes(length) as usize;
        let message = SessionRequest::decode(self.data.get(5..end)?).expect("a message");
        self.data.drain(..end);
        message.event
    }

    /// Ends the connection for too many pings.
    pub(crate) async fn object_to_pings(mut self) {
        // It has seen no stream, so the gate's fails with these words.
        let mut go_away = 0_u32.to_be_bytes().to_vec();
        go_away.extend(CALM.to_be_bytes());
        go_away.extend(b"too_many_pings");
        self.frame(GO_AWAY, 0, 0, &go_away).await;
        // Closing at once could overtake it: what the gate still writes would fail first.
        drain(self.stream).await;
    }

    async fn greet(mut stream: TcpStream) -> Self {
        let mut preface = [0; PREFACE];
        stream.read_exact(&mut preface).await.expect("a preface");
        let mut peer = Self {
            stream,
            data: Vec::new(),
        };
        peer.frame(SETTINGS, 0, 0, &[]).await;
        peer
    }

    /// Waits for a request; returns the number of its stream, or `None` at the connection's end.
    async fn call(&mut self) -> Option<u32> {
        loop {
            let frame = self.next().await?;
            if frame.kind == HEADERS {
                return Some(frame.stream);
            }
        }
    }

    /// Reads a frame, and says what has to be said to it.
    async fn next(&mut self) -> Option<Frame> {
        let mut header = [0; 9];
        self.stream.read_exact(&mut header).await.ok()?;
        let [a, b, c, kind, flags, stream @ ..] = header;
        let mut payload = vec![0; u32::from_be_bytes([0, a, b, c]) as usize];
        self.stream.read_exact(&mut payload).await.expect("a frame");
        if matches!(kind, SETTINGS | PING) && flags & ACK == 0 {
            let answer = if kind == PING { &payload[..] } else { &[] };
            self.frame(kind, ACK, 0, answer).await;
        }
        Some(Frame {
            kind,
            flags,
            stream: u32::from_be_bytes(stream),
            payload,
        })
    }

    async fn response_headers(&mut self, call: u32) {
        // 0x88 is `:status: 200`.
        let mut block = vec![0x88];
        literal(&mut block, "content-type", "application/grpc");
        self.frame(HEADERS, END_HEADERS, call, &block).await;
    }

    async fn frame(&mut self, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
        let length = u32::try_from(payload.len()).expect("a short payload");
        let mut frame = length.to_be_bytes()[1..].to_vec();
        frame.extend([kind, flags]);
        frame.extend(stream.to_be_bytes());
        frame.extend(payload);
        self.stream.write_all(&frame).await.expect("a gate");
    }
}

/// What of a frame matters here.
struct Frame {
    kind: u8,
    flags: u8,
    stream: u32,
    payload: Vec<u8>,
}

/// Appends a header as a literal without indexing, without Huffman coding.
fn literal(block: &mut Vec<u8>, name: &str, value: &str) {
    block.push(0);
    for text in [name, value] {
        block.push(u8::try_from(text.len()).expect("a short text"));
        block.extend(text.as_bytes());
    }
}
