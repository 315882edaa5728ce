//! How much one event may say, besides what it is about.
//!
//! Paths, arguments and names of variables are as large as the kernel takes them, which is what bounds a
//! whole message. Everything else is a name or a sentence.

use crate::pb::v1;
use crate::pb::v1::session_request::Event;

/// Longest name: of a host, a user, a platform, a version, a backend.
const NAME: usize = 1 << 10;
/// Longest sentence: a reason, a detail, a rule's name.
const TEXT: usize = 64 << 10;
/// Most labels, and most bytes of all of them.
const LABELS: usize = 1_000;
const LABEL_BYTES: usize = 256 << 10;
/// Most that a sandbox doesn't enforce.
const SHORTCOMINGS: usize = 64;
/// Longest path of a session's directory.
const PATH: usize = 64 << 10;

/// What of an event is larger than it can be, if something is.
pub(super) fn excess(event: &Event) -> Option<&'static str> {
    let name = |text: &str| text.len() > NAME;
    let text = |text: &str| text.len() > TEXT;
    match event {
        Event::SessionStarted(started) => {
            let gate = started.gate.as_ref();
            let user = started.user.as_ref();
            let sandbox = started.sandbox.as_ref();
            let label_bytes: usize = started
                .labels
                .iter()
                .map(|(key, value)| key.len() + value.len())
                .sum();
            [
                (
                    "gate.hostname",
                    gate.is_some_and(|gate| name(&gate.hostname)),
                ),
                (
                    "gate.platform",
                    gate.is_some_and(|gate| name(&gate.platform)),
                ),
                ("gate.version", gate.is_some_and(|gate| name(&gate.version))),
                ("user.name", user.is_some_and(|user| name(&user.name))),
                (
                    "sandbox.backend",
                    sandbox.is_some_and(|sandbox| name(&sandbox.backend)),
                ),
                (
                    "sandbox.profile",
                    sandbox.is_some_and(|sandbox| name(&sandbox.profile)),
                ),
                (
                    "sandbox.version",
                    sandbox.is_some_and(|sandbox| name(&sandbox.version)),
                ),
                (
                    "sandbox.unenforced_parts",
                    sandbox.is_some_and(|sandbox| {
                        let list = &sandbox.unenforced_parts;
                        list.len() > SHORTCOMINGS || list.iter().any(|what| name(what))
                    }),
                ),
                (
                    "sandbox.limits",
                    sandbox.is_some_and(|sandbox| {
                        let list = &sandbox.limits;
                        list.len() > SHORTCOMINGS || list.iter().any(|what| name(what))
                    }),
                ),
                (
                    "sandbox.ungranted_parts",
                    sandbox.is_some_and(|sandbox| {
                        let list = &sandbox.ungranted_parts;
                        list.len() > SHORTCOMINGS || list.iter().any(|what| name(what))
                    }),
                ),
                (
                    "labels",
                    started.labels.len() > LABELS || label_bytes > LABEL_BYTES,
                ),
                ("workdir", started.workdir.len() > PATH),
            ]
            .into_iter()
            .find_map(|(field, is_excessive)| is_excessive.then_some(field))
        }
        Event::ExecDecided(decided) => [
            ("reason", text(&decided.reason)),
            ("reason_code", text(&decided.reason_code)),
            ("rule", text(&decided.rule)),
            ("policy_revision", text(&decided.policy_revision)),
        ]
        .into_iter()
        .find_map(|(field, is_excessive)| is_excessive.then_some(field)),
        Event::ExecFinished(finished) => match &finished.status {
            Some(v1::exec_finished::Status::StartError(error)) if text(error) => {
                Some("start_error")
            }
            _ => None,
        },
        Event::SessionEnded(ended) => text(&ended.detail).then_some("detail"),
        Event::ExecReused(reused) => {
            name(&reused.verdict_session_id).then_some("verdict_session_id")
        }
        Event::ExecRequested(_) | Event::ExecWithdrawn(_) | Event::EventsLost(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_sentences_have_bounds_and_commands_have_the_kernels() {
        let huge = || "x".repeat(4 << 20);
        let started = |change: &dyn Fn(&mut v1::SessionStarted)| {
            let mut started = v1::SessionStarted::default();
            change(&mut started);
            excess(&Event::SessionStarted(started))
        };
        assert_eq!(started(&|_| {}), None);
        assert_eq!(
            started(&|started| started.gate.get_or_insert_default().hostname = huge()),
            Some("gate.hostname")
        );
        assert_eq!(
            started(&|started| started.user.get_or_insert_default().name = huge()),
            Some("user.name")
        );
        assert_eq!(
            started(&|started| {
                started.labels.insert("k".to_owned(), huge());
            }),
            Some("labels")
        );
        assert_eq!(
            started(&|started| {
                started.labels = (0..=LABELS)
                    .map(|n| (n.to_string(), String::new()))
                    .collect();
            }),
            Some("labels")
        );
        assert_eq!(
            started(&|started| started.command = vec![huge().into_bytes().into()]),
            None
        );
        let decided = v1::ExecDecided {
            rule: huge(),
            ..v1::ExecDecided::default()
        };
        assert_eq!(excess(&Event::ExecDecided(decided)), Some("rule"));
        let ended = v1::SessionEnded {
            detail: huge(),
            ..v1::SessionEnded::default()
        };
        assert_eq!(excess(&Event::SessionEnded(ended)), Some("detail"));
        let requested = v1::ExecRequested {
            arguments: vec![huge().into_bytes().into()],
            ..v1::ExecRequested::default()
        };
        assert_eq!(excess(&Event::ExecRequested(requested)), None);
    }
}
