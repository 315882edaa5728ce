use std::ffi::OsString;
use std::fmt::Debug;
use std::os::unix::ffi::OsStrExt;

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::{
    EscalateRequest, EscalateResponse, Forward, FrameError, FrameReader, MAX_FOLLOWING_FRAME,
    Notice, PREFIX, RequestFields, SuperExecMessage, SuperExecResult, WaitNotice, decode, encode,
};

/// A stream of messages, in pieces as long as its first byte says: in any pieces it is the same messages, and
/// each is an error, or what its own encoding is read as again.
pub(crate) fn frames(bytes: &[u8]) {
    let Some((piece, stream)) = bytes.split_first() else {
        return;
    };
    let (messages, end) = read(stream, usize::MAX);
    assert_eq!(
        read(stream, usize::from(*piece)),
        (messages.clone(), end),
        "in pieces of {piece}"
    );
    for message in &messages {
        request(message);
        again::<SuperExecMessage>(message);
        again::<Forward>(message);
        again::<EscalateResponse>(message);
        again::<WaitNotice>(message);
        again::<Notice>(message);
        again::<SuperExecResult>(message);
    }
}

fn read(mut stream: &[u8], piece: usize) -> (Vec<Vec<u8>>, Result<(), FrameError>) {
    let mut reader = FrameReader::new(MAX_FOLLOWING_FRAME);
    let mut messages = Vec::new();
    loop {
        match reader.take() {
            Ok(Some(message)) => {
                assert!(message.len() <= MAX_FOLLOWING_FRAME, "too long a message");
                messages.push(message);
                continue;
            }
            Ok(None) => {}
            Err(error) => return (messages, Err(error)),
        }
        if stream.is_empty() {
            return (messages, reader.end());
        }
        let buffer = match reader.buffer() {
            Ok(buffer) => buffer,
            Err(error) => return (messages, Err(error)),
        };
        let offered = buffer.len();
        assert!(offered > 0, "nothing is wanted, and there is no message");
        let count = piece.clamp(1, offered).min(stream.len());
        buffer[..count].copy_from_slice(&stream[..count]);
        reader.filled(offered, count);
        stream = &stream[count..];
    }
}

/// A message that can be read can be sent, and is the same then.
fn again<T: Serialize + DeserializeOwned + PartialEq + Debug>(message: &[u8]) {
    let Ok(value) = decode::<T>("message", message) else {
        return;
    };
    let frame = encode(&value).unwrap_or_default();
    let read = decode::<T>("message", &frame[PREFIX.min(frame.len())..]);
    assert_eq!(read.ok(), Some(value), "is read as another");
}

/// A request is one that an exec can make, and its encoding the same request.
fn request(message: &[u8]) {
    let Ok(request) = EscalateRequest::decode(message) else {
        return;
    };
    let bytes = |string: &OsString| string.as_bytes().to_vec();
    let argv: Vec<_> = request.argv.iter().map(bytes).collect();
    let env: Vec<_> = request.env.0.iter().map(bytes).collect();
    assert!(!request.file.is_empty(), "no file");
    assert!(request.workdir.as_bytes().starts_with(b"/"), "no workdir");
    let has_nul = |string: &[u8]| string.contains(&0);
    assert!(
        !has_nul(request.file.as_bytes())
            && !has_nul(request.workdir.as_bytes())
            && !argv.iter().chain(&env).any(|string| has_nul(string)),
        "a NUL"
    );
    let fields = RequestFields {
        file: request.file.as_bytes(),
        argv: argv.iter().map(Vec::as_slice).collect(),
        workdir: request.workdir.as_bytes(),
        env: env.iter().map(Vec::as_slice).collect(),
        notices: request.notices,
    };
    let frame = encode(&fields).unwrap_or_default();
    let read = EscalateRequest::decode(&frame[PREFIX.min(frame.len())..]);
    assert_eq!(read.ok().as_ref(), Some(&request), "is read as another");
}
