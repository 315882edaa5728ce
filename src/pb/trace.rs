use std::str::FromStr;

use tonic::metadata::{Ascii, MetadataValue};

use crate::model::SessionId;

/// The name of the call's metadata that carries a trace context.
pub const TRACEPARENT: &str = "traceparent";

/// A trace context, as W3C's recommendation "Trace Context" writes it: version, trace, parent, flags.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TraceParent(String);

/// A text that is no trace context.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("it is no trace context: 00-TRACE-PARENT-FLAGS, in lowercase hexadecimal digits")]
pub struct NoTraceParent;

impl FromStr for TraceParent {
    type Err = NoTraceParent;

    fn from_str(text: &str) -> Result<Self, NoTraceParent> {
        let is_field = |field: Option<&str>, length: usize| {
            field.is_some_and(|field| {
                field.len() == length
                    && field
                        .bytes()
                        .all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
            })
        };
        let is_set =
            |field: Option<&str>| field.is_some_and(|field| field.bytes().any(|byte| byte != b'0'));
        let mut fields = text.split('-');
        let (version, trace, parent) = (fields.next(), fields.next(), fields.next());
        let flags = fields.next();
        let is_valid = version == Some("00")
            && is_field(trace, 32)
            && is_set(trace)
            && is_field(parent, 16)
            && is_set(parent)
            && is_field(flags, 2)
            && fields.next().is_none();
        is_valid.then(|| Self(text.to_owned())).ok_or(NoTraceParent)
    }
}

impl TraceParent {
    /// The context of a session that is in no wider trace: its id is the trace's.
    #[must_use]
    pub fn of_session(session: SessionId) -> Self {
        let trace = session.to_string();
        let parent = &trace[..16];
        Self(format!("00-{trace}-{parent}-00"))
    }

    /// The trace's id: 32 hexadecimal digits.
    #[must_use]
    pub fn trace(&self) -> &str {
        &self.0[3..35]
    }

    /// As metadata of a call.
    #[must_use]
    pub fn metadata(&self) -> Option<MetadataValue<Ascii>> {
        MetadataValue::try_from(self.0.as_str()).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_written_as_it_should_be_is_a_context() {
        let valid = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
        let read: TraceParent = valid.parse().expect("a context");
        assert_eq!(read.trace(), "4bf92f3577b34da6a3ce929d0e0e4736");
        assert_eq!(read.metadata().expect("metadata"), valid);
        for wrong in [
            "",
            "00",
            "01-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            "00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01",
            "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-1",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-x",
            "00-4bf92f3577b34da6a3ce929d0e0e473\u{e9}-00f067aa0ba902b7-01",
        ] {
            assert_eq!(
                wrong.parse::<TraceParent>(),
                Err(NoTraceParent),
                "{wrong:?}"
            );
        }
    }

    #[test]
    fn a_session_is_a_trace_of_its_own() {
        let context = TraceParent::of_session(SessionId([0xab; 16]));
        assert_eq!(context.trace(), "ab".repeat(16));
        assert_eq!(context.0.parse(), Ok(context.clone()));
    }
}
