//! How many things a message names, before it is understood.
//!
//! A field of two bytes may become a value of dozens, so it is the number of fields that bounds what a message takes in
//! memory.

use prost::bytes::{Buf, Bytes};
use prost::encoding::{WireType, decode_key, decode_varint};

use crate::pb::v1;

/// Most fields of an event: as many arguments or variables as a request has at most.
pub(super) const MOST_ELEMENTS: usize = 1 << 20;
/// What one of them may take, in bytes.
pub(super) const LARGEST_ELEMENT: usize = size_of::<v1::EnvironmentVariable>();
const _: () = assert!(LARGEST_ELEMENT >= size_of::<Bytes>());
const _: () = assert!(LARGEST_ELEMENT >= size_of::<String>());

/// Fields of `SessionRequest` whose messages have one that again has as many fields as it likes, and that one.
const WIDE: [(u32, u32); 2] = [
    // ExecReused, and the exec in it.
    (10, 1),
    // SessionStarted, and the sandbox.
    (3, 8),
];

/// Whether a `SessionRequest` has no more fields than may be, at each depth where their number isn't given.
pub(super) fn are_few(request: &[u8]) -> bool {
    let mut left = MOST_ELEMENTS;
    each(request, &mut left, |tag, event, left| {
        each(event, left, |inner, message, left| {
            if WIDE.contains(&(tag, inner)) {
                each(message, left, |_, _, _| Some(()))
            } else {
                Some(())
            }
        })
    })
    .is_some()
}

/// Goes through the fields of a message; `None` where there are more than are left, or they make no sense.
fn each(
    mut message: &[u8],
    left: &mut usize,
    mut look: impl FnMut(u32, &[u8], &mut usize) -> Option<()>,
) -> Option<()> {
    while message.has_remaining() {
        *left = left.checked_sub(1)?;
        let (tag, wire_type) = decode_key(&mut message).ok()?;
        let length = match wire_type {
            WireType::Varint => {
                decode_varint(&mut message).ok()?;
                continue;
            }
            WireType::SixtyFourBit => 8,
            WireType::ThirtyTwoBit => 4,
            WireType::LengthDelimited => usize::try_from(decode_varint(&mut message).ok()?).ok()?,
            WireType::StartGroup | WireType::EndGroup => return None,
        };
        let (value, rest) = message.split_at_checked(length)?;
        if wire_type == WireType::LengthDelimited {
            look(tag, value, left)?;
        }
        message = rest;
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use prost::Message;
    use v1::session_request::Event;

    use super::*;

    fn encoded(event: Event) -> Vec<u8> {
        let request = v1::SessionRequest {
            sequence: 7,
            event_time: Some(std::time::SystemTime::now().into()),
            event: Some(event),
        };
        request.encode_to_vec()
    }

    fn exec(variables: usize) -> v1::ExecRequested {
        v1::ExecRequested {
            exec_id: 1,
            arguments: vec![Bytes::new(); 3],
            environment_variables: vec![v1::EnvironmentVariable::default(); variables],
            ..v1::ExecRequested::default()
        }
    }

    #[test]
    fn fields_are_counted_wherever_there_may_be_many() {
        let reused = |exec| {
            Event::ExecReused(v1::ExecReused {
                exec: Some(exec),
                ..v1::ExecReused::default()
            })
        };
        let limits = |count| {
            let sandbox = v1::SandboxInfo {
                limits: vec![String::new(); count],
                ..v1::SandboxInfo::default()
            };
            Event::SessionStarted(v1::SessionStarted {
                sandbox: Some(sandbox),
                ..v1::SessionStarted::default()
            })
        };
        for (few, many) in [
            (
                Event::ExecRequested(exec(MOST_ELEMENTS - 10)),
                Event::ExecRequested(exec(MOST_ELEMENTS)),
            ),
            (
                reused(exec(MOST_ELEMENTS - 10)),
                reused(exec(MOST_ELEMENTS)),
            ),
            (limits(MOST_ELEMENTS - 10), limits(MOST_ELEMENTS)),
        ] {
            assert!(are_few(&encoded(few)));
            assert!(!are_few(&encoded(many)));
        }
    }

    #[test]
    fn long_arguments_are_no_fields_and_nonsense_is_refused() {
        let mut long = exec(0);
        long.arguments = vec![vec![b'x'; 4 << 20].into()];
        let long = encoded(Event::ExecRequested(long));
        assert!(are_few(&long));
        assert!(!are_few(&long[..long.len() - 1]));
        assert!(!are_few(&[0x0b, 0x0c]));
        assert!(are_few(&[]));
    }
}
