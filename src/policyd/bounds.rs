//! How much one event may say, besides what it is about.
//!
//! Arguments and names of variables, and the paths that a program says, are as large as the kernel takes them, which is
//! what bounds a whole message. Everything else is a name, a sentence, or what a gate has found itself.

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
/// Longest path that a name leads to: as many steps as bytes of a name, each of the longest entry and its slash.
const FOUND_PATH: usize = 4_096 * 256;
/// Longest name and argument of a script's interpreter, far above the kernel's 256 bytes together.
const INTERPRETER: usize = 4 << 10;
/// Longest digest.
const DIGEST: usize = 64;
/// Most files that one exec leads through, above the kernel's 6.
const FILES: usize = 8;

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
        Event::ExecRequested(requested) => {
            requested.executable.as_ref().and_then(excess_of_program)
        }
        Event::ExecWithdrawn(_) | Event::EventsLost(_) => None,
    }
}

/// The same of a program and those that interpret it.
fn excess_of_program(program: &v1::ExecutableInfo) -> Option<&'static str> {
    let mut next = Some(program);
    for _ in 0..FILES {
        let file = next?;
        let interpreter = file.interpreter.as_deref();
        let field = [
            ("executable.missing", file.missing.len() > TEXT),
            ("executable.real_path", file.real_path.len() > FOUND_PATH),
            (
                "executable.writable_path",
                file.writable_path.len() > FOUND_PATH,
            ),
            ("executable.sha256", file.sha256.len() > DIGEST),
            (
                "executable.interpreter.name",
                interpreter.is_some_and(|it| it.name.len() > INTERPRETER),
            ),
            (
                "executable.interpreter.argument",
                interpreter.is_some_and(|it| it.argument.len() > INTERPRETER),
            ),
        ]
        .into_iter()
        .find_map(|(field, is_excessive)| is_excessive.then_some(field));
        if field.is_some() {
            return field;
        }
        next = interpreter.and_then(|it| it.executable.as_deref());
    }
    next.map(|_| "executable.interpreter")
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

    #[test]
    fn what_a_gate_finds_of_a_program_has_bounds_at_each_of_its_interpreters() {
        type Change = fn(&mut v1::ExecutableInfo, usize);
        let of = |depth: usize, change: Change, size: usize| {
            let mut program = v1::ExecutableInfo::default();
            change(&mut program, size);
            for _ in 1..depth {
                program = v1::ExecutableInfo {
                    interpreter: Some(Box::new(v1::Interpreter {
                        executable: Some(Box::new(program)),
                        ..v1::Interpreter::default()
                    })),
                    ..v1::ExecutableInfo::default()
                };
            }
            excess(&Event::ExecRequested(v1::ExecRequested {
                executable: Some(program),
                ..v1::ExecRequested::default()
            }))
        };
        let changes: [(&str, usize, Change); 6] = [
            ("executable.missing", 64 << 10, |it, size| {
                it.missing = "x".repeat(size);
            }),
            ("executable.real_path", 1 << 20, |it, size| {
                it.real_path = vec![b'x'; size].into();
            }),
            ("executable.writable_path", 1 << 20, |it, size| {
                it.writable_path = vec![b'x'; size].into();
            }),
            ("executable.sha256", 64, |it, size| {
                it.sha256 = vec![b'x'; size].into();
            }),
            ("executable.interpreter.name", 4 << 10, |it, size| {
                it.interpreter.get_or_insert_default().name = vec![b'x'; size].into();
            }),
            ("executable.interpreter.argument", 4 << 10, |it, size| {
                it.interpreter.get_or_insert_default().argument = vec![b'x'; size].into();
            }),
        ];
        for (field, most, change) in changes {
            for depth in [1, 2, 6] {
                assert_eq!(of(depth, change, most), None, "{field}, {depth}");
                let excess = of(depth, change, most + 1);
                assert_eq!(excess, Some(field), "{depth}");
            }
        }
        assert_eq!(of(8, |_, _| {}, 0), None);
        assert_eq!(of(9, |_, _| {}, 0), Some("executable.interpreter"));
    }
}
