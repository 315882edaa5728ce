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
const WIDE: [(u32, u32); 3] = [
    // ExecReused, and the exec in it.
    (10, 1),
    // SessionStarted, and the sandbox.
    (3, 8),
    // ExecDecided, and how the environment differs.
    (6, 9),
];
/// Fields of events, and of what is in [`WIDE`] ones, that have numbers in a row: each of their bytes may be one.
const ROWS: [&[u32]; 3] = [
    // ExecRequested, redacted_arguments.
    &[4, 10],
    // ExecFinished.
    &[7, 11],
    &[10, 1, 10],
];

/// Whether a `SessionRequest` has no more fields than may be, at each depth where their number isn't given.
pub(super) fn are_few(request: &[u8]) -> bool {
    let mut left = MOST_ELEMENTS;
    each(request, &mut left, |tag, event, left| {
        each(event, left, |inner, message, left| {
            if WIDE.contains(&(tag, inner)) {
                each(message, left, |last, value, left| {
                    row(&[tag, inner, last], value, left)
                })
            } else {
                row(&[tag, inner], message, left)
            }
        })
    })
    .is_some()
}

/// Counts the numbers of a field that has many in a row.
fn row(path: &[u32], value: &[u8], left: &mut usize) -> Option<()> {
    if ROWS.contains(&path) {
        *left = left.checked_sub(value.len())?;
    }
    Some(())
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
        let changed = |count| {
            let environment = v1::EnvironmentDifference {
                set_variables: vec![v1::EnvironmentVariable::default(); count],
                ..v1::EnvironmentDifference::default()
            };
            Event::ExecDecided(v1::ExecDecided {
                environment: Some(environment),
                ..v1::ExecDecided::default()
            })
        };
        let redacted = |count| v1::ExecRequested {
            redacted_arguments: vec![1; count],
            ..exec(0)
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
            (changed(MOST_ELEMENTS - 10), changed(MOST_ELEMENTS)),
            (
                Event::ExecRequested(redacted(MOST_ELEMENTS - 20)),
                Event::ExecRequested(redacted(MOST_ELEMENTS)),
            ),
            (
                reused(redacted(MOST_ELEMENTS - 20)),
                reused(redacted(MOST_ELEMENTS)),
            ),
        ] {
            assert!(are_few(&encoded(few)));
            assert!(!are_few(&encoded(many)));
        }
    }

    /// What the contract has is counted: one more field is to be added above, and fails here until it is.
    #[test]
    fn all_that_may_be_many_is_looked_into() {
        let set = prost_types::FileDescriptorSet::decode(crate::pb::FILE_DESCRIPTOR_SET)
            .expect("a descriptor set");
        let fields_of = |name: &str| {
            let package = ".execgate.policy.v1.";
            let message = set
                .file
                .iter()
                .filter(|file| file.package() == "execgate.policy.v1")
                .flat_map(|file| &file.message_type)
                .find(|message| Some(message.name()) == name.strip_prefix(package));
            message.map_or(&[][..], |message| &message.field)
        };
        let mut rows = Vec::new();
        let mut wide = Vec::new();
        let mut paths = vec![(Vec::new(), ".execgate.policy.v1.SessionRequest")];
        while let Some((path, message)) = paths.pop() {
            for field in fields_of(message) {
                use prost_types::field_descriptor_proto::{Label, Type};
                let number = field.number().unsigned_abs();
                let is_repeated = field.label() == Label::Repeated;
                let path = [&path[..], &[number]].concat();
                match field.r#type() {
                    // Messages hold executables, which hold their interpreters', each once.
                    Type::Message if path.len() < 5 => {
                        paths.push((path.clone(), field.type_name()));
                    }
                    Type::Message | Type::String | Type::Bytes => {}
                    _ if is_repeated => rows.push(path.clone()),
                    _ => {}
                }
                if is_repeated && path.len() > 2 {
                    wide.push(path[..path.len() - 1].to_vec());
                }
            }
        }
        wide.sort();
        wide.dedup();
        let mut looked_into: Vec<_> = WIDE.iter().map(|(tag, inner)| vec![*tag, *inner]).collect();
        looked_into.sort();
        assert_eq!(wide, looked_into);
        rows.sort();
        assert_eq!(rows, ROWS);
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
