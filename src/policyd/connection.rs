//! A connection whose peer speaks HTTP/2, and who that peer is.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::{TlsAcceptor, rustls};
use tonic::transport::server::Connected;

use super::accept::Protocol;
use super::admission::Admitted;
use super::identity::GateIdentity;
use crate::transport::{self, Stream};

/// What each client sends first (RFC 9113, section 3.4).
const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// The first byte of a client that speaks TLS: the type of a handshake record (RFC 8446, section 5.1).
const TLS_HANDSHAKE: u8 = 0x16;
/// What tells such a client that there is no TLS here: an empty SETTINGS frame.
const HTTP2_SETTINGS: &[u8] = &[0, 0, 0, 4, 0, 0, 0, 0, 0];
/// What tells a client without TLS that there is: a fatal alert, `unexpected_message`.
const TLS_ALERT: &[u8] = &[21, 3, 3, 0, 2, 2, 10];

/// Why a connection isn't served.
#[derive(Debug, thiserror::Error)]
pub(super) enum Refusal {
    /// Also of those that only look whether the port is open.
    #[error("it ended before anything was said")]
    Silent,
    #[error("it was broken: {0}")]
    Broken(#[source] io::Error),
    #[error(
        "it speaks TLS, and this port doesn't: it has to use http://, or this service --tls-cert and --tls-key"
    )]
    TlsHere,
    #[error("it speaks no TLS, and this port does: it has to use https://")]
    NoTlsHere,
    #[error("it doesn't speak HTTP/2")]
    NoHttp2,
    #[error("the TLS handshake failed: {}", handshake_failure(.0))]
    Handshake(#[source] io::Error),
}

/// What the handshake's failure means here.
fn handshake_failure(error: &io::Error) -> String {
    use rustls::AlertDescription as Alert;
    use rustls::CertificateError as Invalid;
    let cause = error
        .get_ref()
        .and_then(|error| error.downcast_ref::<rustls::Error>());
    match cause {
        Some(rustls::Error::NoCertificatesPresented) => {
            "the gate shows no certificate, and one is required (its --policy-cert and --policy-key)"
                .to_owned()
        }
        Some(rustls::Error::InvalidCertificate(
            Invalid::Expired
            | Invalid::ExpiredContext { .. }
            | Invalid::NotValidYet
            | Invalid::NotValidYetContext { .. },
        )) => format!("the gate's certificate is refused: {error}; renew it, or set this clock"),
        Some(rustls::Error::InvalidCertificate(Invalid::UnknownIssuer)) => {
            format!("the gate's certificate is refused: {error}; --client-ca must hold the CA that signed it")
        }
        Some(rustls::Error::InvalidCertificate(_)) => {
            format!("the gate's certificate is refused: {error}")
        }
        Some(rustls::Error::AlertReceived(
            Alert::UnknownCA
            | Alert::BadCertificate
            | Alert::CertificateExpired
            | Alert::CertificateUnknown,
        )) => format!(
            "the gate refuses this service's certificate: {error}; its --policy-ca (an operator's --service-ca) must \
             hold the CA that signed --tls-cert, which must name this host and be in date"
        ),
        _ => error.to_string(),
    }
}

/// Who is at the other end.
#[derive(Debug, Clone)]
pub(super) struct Peer {
    /// As its connection proves it, if it does.
    pub(super) proven: Option<Proof>,
    /// Its address, for the log.
    pub(super) address: Arc<str>,
}

/// What a connection proves of its peer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Proof {
    Certificate(GateIdentity),
    /// A certificate that names nobody.
    Nameless,
    User(GateIdentity),
    /// A user whose processes may not connect.
    Stranger,
}

/// Whose connections are counted together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Origin {
    /// The first half of an IPv6 address, which one subscriber has all of, or an IPv4 address.
    Network(u64),
    User(u32),
}

/// A connection that has begun as its protocol does.
#[derive(Debug)]
pub(super) struct Connection {
    stream: Stream,
    peer: Peer,
    /// How much of the preface, which has been read, is yet to be read again.
    preface_left: usize,
    _admitted: Admitted<Origin>,
}

/// Does the TLS handshake, and tells what it proves. A stream that is refused is given back, so that
/// its peer can still read why.
pub(super) async fn begin_tls(
    tcp: TcpStream,
    acceptor: TlsAcceptor,
) -> Result<(Stream, Option<Proof>), (Refusal, Option<TcpStream>)> {
    let mut first = [0];
    match tcp.peek(&mut first).await {
        Ok(0) => return Err((Refusal::Silent, None)),
        Ok(_) if first == [TLS_HANDSHAKE] => {}
        Ok(_) => {
            let mut tcp = tcp;
            // Whether it is read or not, the connection ends.
            let _ = tcp.write_all(TLS_ALERT).await;
            return Err((Refusal::NoTlsHere, Some(tcp)));
        }
        Err(error) => return Err((Refusal::Broken(error), None)),
    }
    let tls = acceptor.accept(tcp).into_fallible().await;
    let tls = tls.map_err(|(error, tcp)| (Refusal::Handshake(error), Some(tcp)))?;
    let shown = tls.get_ref().1.peer_certificates().and_then(<[_]>::first);
    let proof = shown.map(|certificate| {
        GateIdentity::of_certificate(certificate).map_or(Proof::Nameless, Proof::Certificate)
    });
    Ok((Stream::Tls(Box::new(tls.into())), proof))
}

/// Reads the preface of HTTP/2.
pub(super) async fn read_preface(stream: &mut Stream) -> Result<(), Refusal> {
    let mut read = [0; PREFACE.len()];
    let mut length = 0;
    while length < read.len() {
        match stream.read(&mut read[length..]).await {
            Ok(0) if length == 0 => return Err(Refusal::Silent),
            Ok(0) => return Err(Refusal::NoHttp2),
            Ok(more) => length += more,
            Err(error) => return Err(Refusal::Broken(error)),
        }
        if read[0] == TLS_HANDSHAKE {
            let _ = stream.write_all(HTTP2_SETTINGS).await;
            return Err(Refusal::TlsHere);
        }
        if read[..length] != PREFACE[..length] {
            return Err(Refusal::NoHttp2);
        }
    }
    Ok(())
}

impl Connection {
    /// A stream whose preface [was read](read_preface), if its protocol has one.
    pub(super) fn new(
        stream: Stream,
        peer: Peer,
        protocol: Protocol,
        admitted: Admitted<Origin>,
    ) -> Self {
        Self {
            stream,
            peer,
            preface_left: match protocol {
                Protocol::Http2 => PREFACE.len(),
                Protocol::Http1 => 0,
            },
            _admitted: admitted,
        }
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if this.preface_left > 0 {
            let left = &PREFACE[PREFACE.len() - this.preface_left..];
            let length = left.len().min(buffer.remaining());
            buffer.put_slice(&left[..length]);
            this.preface_left -= length;
            return Poll::Ready(Ok(()));
        }
        Pin::new(&mut this.stream).poll_read(context, buffer)
    }
}

transport::writes_go_to!(Connection, stream);

impl Connected for Connection {
    type ConnectInfo = Peer;

    fn connect_info(&self) -> Peer {
        self.peer.clone()
    }
}
