use prost::Message;
use prost::bytes::{Buf, BufMut, Bytes};
use tonic::Status;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};

use crate::pb::v1::{SessionRequest, SessionResponse};
use crate::pb::{self, Answer, BrokenAnswer};

/// Largest message either way.
pub(super) const MESSAGE_LIMIT: usize = 16 * 1024 * 1024;

/// Most bytes that a sequence adds to an encoded event: its tag, and a varint of 64 bits.
const SEQUENCE_LENGTH: usize = 1 + 10;

/// Largest encoded event.
pub(super) const BODY_LIMIT: usize = MESSAGE_LIMIT - SEQUENCE_LENGTH;

/// An event that was encoded where it happened, with the sequence that it got after that. A message
/// of protobuf is the concatenation of its fields in any order, so the one goes before the other.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct EncodedEvent {
    pub(super) sequence: u64,
    pub(super) body: Bytes,
}

/// Passes encoded events out, and converts answers as they come in: one that can't be decoded is a
/// value like others, so that it ends no call.
#[derive(Debug, Clone, Copy)]
pub(super) struct LinkCodec;

impl Codec for LinkCodec {
    type Encode = EncodedEvent;
    type Decode = Result<Answer, BrokenAnswer>;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        *self
    }

    fn decoder(&mut self) -> Self {
        *self
    }
}

impl Encoder for LinkCodec {
    type Item = EncodedEvent;
    type Error = Status;

    fn encode(&mut self, item: EncodedEvent, buffer: &mut EncodeBuf<'_>) -> Result<(), Status> {
        buffer.reserve(item.body.len() + SEQUENCE_LENGTH);
        let sequence = SessionRequest {
            sequence: item.sequence,
            ..SessionRequest::default()
        };
        sequence
            .encode(buffer)
            .map_err(|error| Status::internal(error.to_string()))?;
        buffer.put(item.body);
        Ok(())
    }
}

impl Decoder for LinkCodec {
    type Item = Result<Answer, BrokenAnswer>;
    type Error = Status;

    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<Self::Item>, Status> {
        // A slice of the receive buffer, not a copy.
        let bytes = buffer.copy_to_bytes(buffer.remaining());
        Ok(Some(match SessionResponse::decode(bytes.clone()) {
            Ok(response) => pb::answer(response),
            Err(error) => pb::undecodable(&bytes, error),
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http_body_util::BodyExt as _;
    use tonic::codec::EncodeBody;

    use crate::pb::v1::ExecRequested;
    use crate::pb::v1::session_request::Event;

    /// What gRPC puts before a message: whether it is compressed, and its length.
    const PREFIX: usize = 1 + 4;

    /// A question that encodes to so many bytes.
    fn question(length: usize) -> SessionRequest {
        let of = |argument: usize| SessionRequest {
            event: Some(Event::ExecRequested(ExecRequested {
                arguments: vec![vec![b'a'; argument].into()],
                ..ExecRequested::default()
            })),
            ..SessionRequest::default()
        };
        // Lengths around it have as many bytes as its own.
        let around = of(length - 32).encoded_len() - (length - 32);
        of(length - around)
    }

    /// What stands on the wire for an event.
    async fn encoded(sequence: u64, body: &SessionRequest) -> Result<Bytes, Status> {
        let body = body.encode_to_vec().into();
        let events = tokio_stream::once(Ok(EncodedEvent { sequence, body }));
        let body = EncodeBody::new_client(LinkCodec, events, None, Some(MESSAGE_LIMIT));
        Ok(body.collect().await?.to_bytes())
    }

    #[tokio::test]
    async fn sequence_and_body_make_one_message() {
        let lost = pb::events_lost(1, 2, std::time::SystemTime::UNIX_EPOCH);
        let longest = question(BODY_LIMIT);
        assert_eq!(longest.encoded_len(), BODY_LIMIT);
        for (sequence, event) in [(7, lost), (u64::MAX, longest)] {
            let sent = encoded(sequence, &event).await.expect("it fits");
            let decoded = SessionRequest::decode(&sent[PREFIX..]).expect("a message");
            let is_longest = sent.len() == PREFIX + MESSAGE_LIMIT;
            assert_eq!(is_longest, sequence == u64::MAX, "{} bytes", sent.len());
            let expected = SessionRequest { sequence, ..event };
            assert!(decoded == expected, "{} other bytes", sent.len());
        }
        let longer = question(BODY_LIMIT + 1);
        encoded(u64::MAX, &longer).await.expect_err("it is longer");
    }
}
