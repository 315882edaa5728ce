//! Below gRPC, for what no client of it sends: bytes in the place of messages, and HTTP/2 by hand (RFC 9113).

use http_body_util::StreamBody;
use hyper::body::{Bytes, Frame};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio_stream::StreamExt;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Status;
use tonic::transport::Channel;
use tower::{Service, ServiceExt};

/// What a client begins with: the preface, and an empty frame of settings.
pub(crate) const BEGINNING: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
const PATH: &str = "/execgate.policy.v1.PolicyService/Session";

const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const PING: u8 = 6;
const GOAWAY: u8 = 7;
/// Of a ping.
const ACK: u8 = 1;
const END_HEADERS: u8 = 4;
const CANCEL: u32 = 8;

/// What has become of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fate {
    /// It is answered.
    Lives,
    Ended,
}

/// A call as bytes: messages as they come from the channel, in a body that has no end as long as that is open.
pub(crate) async fn call_of_bytes(channel: &Channel) -> mpsc::Sender<Bytes> {
    let (bytes, body) = mpsc::channel::<Bytes>(4);
    let body = ReceiverStream::new(body).map(|bytes| Ok::<_, Status>(Frame::data(bytes)));
    let request = hyper::Request::post(PATH)
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .header("authorization", "Bearer g")
        .body(tonic::body::Body::new(StreamBody::new(body)))
        .expect("a request");
    let mut channel = channel.clone();
    let ready = channel.ready().await.expect("a connection");
    let response = ready.call(request);
    // Whatever it is, nobody reads it.
    tokio::spawn(async move {
        if let Ok(response) = response.await {
            std::future::pending::<()>().await;
            drop(response);
        }
    });
    bytes
}

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).expect("small").to_be_bytes();
    let head = [&length[1..], &[kind, flags], &stream.to_be_bytes()].concat();
    [head, payload.to_vec()].concat()
}

/// Makes so many calls on a connection of its own, all of them in one go, and gives each up at once.
pub(crate) async fn made_and_given_up(address: &str, calls: usize) -> Fate {
    let mut sent = BEGINNING.to_vec();
    for stream in (1..).step_by(2).take(calls) {
        // POST by http, and a path and a host by themselves (RFC 7541, appendix A).
        let mut headers = vec![0x83, 0x86];
        for (name, value) in [(4, PATH), (1, "localhost")] {
            headers.extend([name, u8::try_from(value.len()).expect("short")]);
            headers.extend(value.as_bytes());
        }
        sent.extend(frame(HEADERS, END_HEADERS, stream, &headers));
        sent.extend(frame(RST_STREAM, 0, stream, &CANCEL.to_be_bytes()));
    }
    sent.extend(frame(PING, 0, 0, &[0; 8]));
    let connection = TcpStream::connect(address).await.expect("connected");
    let (mut reader, mut writer) = connection.into_split();
    tokio::spawn(async move {
        // It may be over before all is sent. Where it isn't, it stays open on this side.
        let _ = writer.write_all(&sent).await;
        std::future::pending::<()>().await;
    });
    loop {
        let mut head = [0; 9];
        if reader.read_exact(&mut head).await.is_err() {
            return Fate::Ended;
        }
        let [a, b, c, kind, flags, ..] = head;
        let length = u32::from_be_bytes([0, a, b, c]);
        let mut payload = vec![0; length as usize];
        if reader.read_exact(&mut payload).await.is_err() || kind == GOAWAY {
            return Fate::Ended;
        }
        if (kind, flags) == (PING, ACK) {
            return Fate::Lives;
        }
    }
}
