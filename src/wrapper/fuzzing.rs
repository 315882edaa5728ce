use alloc::ffi::CString;
use alloc::format;
use alloc::vec::Vec;

use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType, send, socketpair};

use super::Errand;
use super::ask::{one_line, read_frame};
use crate::wire::{EscalateResponse, FrameReader, WaitNotice, decode};

/// Most bytes that a socket takes for sure while nobody reads.
const FITS: usize = 32 << 10;

/// What a gate sends, by a socket: whole messages, and of what a person would be told, one line of text.
pub(crate) fn answers(bytes: &[u8]) -> Vec<Vec<u8>> {
    let mut messages = Vec::new();
    let (domain, kind) = (AddressFamily::UNIX, SocketType::STREAM);
    let Ok((ours, gates)) = socketpair(domain, kind, SocketFlags::CLOEXEC, None) else {
        return messages;
    };
    let bytes = &bytes[..bytes.len().min(FITS)];
    let sent = send(&gates, bytes, SendFlags::NOSIGNAL);
    assert_eq!(sent, Ok(bytes.len()), "a socket that takes it all");
    drop(gates);
    let mut reader = FrameReader::default();
    while let Ok(message) = read_frame(&ours, &mut reader) {
        let answer = decode::<EscalateResponse>("EscalateResponse", &message);
        if answer.is_err()
            && let Ok(notice) = decode::<WaitNotice>("WaitNotice", &message)
        {
            let line = one_line(&notice.waiting);
            let most = notice.waiting.chars().count();
            assert!(line.chars().count() <= most, "longer than what was sent");
            assert!(!line.chars().any(char::is_control), "{line:?}");
        }
        messages.push(message);
    }
    messages
}

/// Argument zero of what the wrapper becomes: no errand, or one that is written so that it is read as the same.
pub(crate) fn errand(bytes: &[u8]) {
    let end = bytes.iter().position(|byte| *byte == 0);
    let Ok(own) = CString::new(&bytes[..end.unwrap_or(bytes.len())]) else {
        return;
    };
    let Some(errand) = Errand::parse(&own) else {
        return;
    };
    let written = CString::new(format!("{errand}")).unwrap_or_default();
    assert_eq!(Errand::parse(&written), Some(errand), "{written:?}");
}
