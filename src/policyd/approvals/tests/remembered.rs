//! What a decision that is remembered covers, and for how long.

use super::*;
use crate::policyd::approvals::grants::Remembered;

const SECOND: Duration = Duration::from_secs(1);
const HOUR: Duration = Duration::from_secs(3_600);

/// One that asks as user 1000, with a variable and a program whose file is known.
fn known(exec_id: u64) -> v1::ExecRequested {
    v1::ExecRequested {
        environment_names: vec![b"HOME"[..].into(), b"TERM"[..].into()],
        process: Some(v1::ProcessInfo {
            process_id: 10,
            user_id: 1_000,
            ..v1::ProcessInfo::default()
        }),
        executable: Some(v1::ExecutableInfo {
            real_path: b"/usr/bin/uname"[..].into(),
            file_version: Some(v1::FileVersion {
                size: 7,
                inode: 8,
                ..v1::FileVersion::default()
            }),
            interpreter: Some(Box::new(v1::Interpreter {
                name: b"/bin/sh"[..].into(),
                executable: Some(Box::new(v1::ExecutableInfo {
                    real_path: b"/usr/bin/dash"[..].into(),
                    ..v1::ExecutableInfo::default()
                })),
                ..v1::Interpreter::default()
            })),
            ..v1::ExecutableInfo::default()
        }),
        ..exec(exec_id, "x")
    }
}

fn scope(reach: pb::ScopeReach, valid_for: Option<Duration>) -> pb::Scope {
    pb::Scope {
        reach: reach.into(),
        valid_for: valid_for.map(|time| time.try_into().expect("a time")),
        ..pb::Scope::default()
    }
}

/// What the gate is told of the same command, when something about it is another.
type Change = fn(&mut Asker, &mut v1::ExecRequested);

/// A desk where an operator has approved the one command so, and the gate that asked.
async fn decided(scope: pb::Scope) -> (Desk, Asker) {
    let (desk, mut asker) = (desk(), Asker::new('a'));
    assert!(is_pending(&asker.put(&desk, &known(1), SystemTime::now())));
    resolve(&desk, pb::Decision::Approve, scope).await;
    assert_eq!(asker.verdict().reason_code, "approval.approved");
    (desk, asker)
}

fn changed(desk: &Desk, exec_id: u64, change: Change) -> Answered {
    let (mut asker, mut exec) = (Asker::new('a'), known(exec_id));
    change(&mut asker, &mut exec);
    asker.put(desk, &exec, SystemTime::now())
}

#[tokio::test]
#[allow(clippy::too_many_lines, reason = "a row for each difference")]
async fn nothing_is_covered_that_the_operator_did_not_see() {
    let others: [(&str, Change); 24] = [
        ("user", |_, exec| {
            exec.process.get_or_insert_default().user_id = 0;
        }),
        ("no user", |_, exec| exec.process = None),
        ("rule", |asker, _| asker.rules = rules(", name = \"other\"")),
        ("people", |asker, _| {
            asker.rules = rules(", name = \"kernel\", asks = \"another team\"");
        }),
        ("effect", |asker, _| {
            asker.rules = rules(", name = \"kernel\", execution = \"unsandboxed\"");
        }),
        ("gate", |asker, _| {
            asker.session.gate = GateIdentity::token("other").expect("a name");
        }),
        ("gate, of another kind", |asker, _| {
            asker.session.gate = GateIdentity::uid(0);
        }),
        ("program", |_, exec| exec.file = b"/tmp/uname"[..].into()),
        ("name that the program is told", |_, exec| {
            exec.arguments[0] = b"other"[..].into();
        }),
        ("login shell", |_, exec| {
            exec.arguments[0] = b"-uname"[..].into();
        }),
        ("argument", |_, exec| exec.arguments[1] = b"y"[..].into()),
        ("argument more", |_, exec| {
            exec.arguments.push(b"y"[..].into());
        }),
        ("argument less", |_, exec| exec.arguments.truncate(1)),
        ("directory", |_, exec| exec.workdir = b"/"[..].into()),
        ("variable more", |_, exec| {
            exec.environment_names.push(b"LD_PRELOAD"[..].into());
        }),
        ("variable less", |_, exec| {
            exec.environment_names.truncate(1);
        }),
        ("two variables for one", |_, exec| {
            exec.environment_names = vec![b"HOMETERM"[..].into()];
        }),
        ("names cut elsewhere", |_, exec| {
            exec.environment_names = vec![b"HOMET"[..].into(), b"ERM"[..].into()];
        }),
        ("file at the path", |_, exec| {
            let executable = exec.executable.get_or_insert_default();
            executable.real_path = b"/opt/uname"[..].into();
        }),
        ("version of the file", |_, exec| {
            let executable = exec.executable.get_or_insert_default();
            executable.file_version.get_or_insert_default().inode = 9;
        }),
        ("file without a version", |_, exec| {
            exec.executable.get_or_insert_default().file_version = None;
        }),
        ("interpreter", |_, exec| {
            let executable = exec.executable.get_or_insert_default();
            let interpreter = executable.interpreter.get_or_insert_default();
            let file = interpreter.executable.get_or_insert_default();
            file.real_path = b"/tmp/dash"[..].into();
        }),
        ("no interpreter", |_, exec| {
            exec.executable.get_or_insert_default().interpreter = None;
        }),
        ("unknown file", |_, exec| exec.executable = None),
    ];
    let same: [(&str, Change); 6] = [
        ("nothing", |_, _| {}),
        ("process", |_, exec| {
            exec.process.get_or_insert_default().process_id = 11;
        }),
        ("way to its name", |_, exec| {
            exec.arguments[0] = b"../bin/uname"[..].into();
        }),
        ("variables of the shell's own", |_, exec| {
            for name in [&b"_"[..], b"PWD", b"OLDPWD", b"SHLVL"] {
                exec.environment_names.push(name.into());
            }
        }),
        ("order of variables", |_, exec| {
            exec.environment_names.reverse();
        }),
        ("host", |asker, _| asker.session.hostname = "b".to_owned()),
    ];
    let gate = scope(pb::ScopeReach::Gate, Some(HOUR));
    let session = scope(pb::ScopeReach::Session, None);
    for scope in [gate, session] {
        let (desk, _) = decided(scope).await;
        let mut exec_id = 1;
        for (what, change) in same {
            exec_id += 1;
            let answered = changed(&desk, exec_id, change);
            assert_eq!(code(answered), "approval.remembered", "{what}");
        }
        for (what, change) in others {
            exec_id += 1;
            let answered = changed(&desk, exec_id, change);
            assert!(is_pending(&answered), "another {what}: {answered:?}");
        }
        // Another session of the gate: only if that was said.
        let answered = changed(&desk, 1, |asker, _| {
            asker.session.id = "b".repeat(32);
        });
        assert_eq!(
            !is_pending(&answered),
            scope.reach() == pb::ScopeReach::Gate
        );
        assert_eq!(
            desk.grants()[0].uses,
            same.len() as u64 + u64::from(!is_pending(&answered))
        );
    }
}

#[tokio::test]
async fn a_decision_for_a_prefix_covers_its_first_arguments_in_any_directory() {
    let prefix = pb::Scope {
        argument_match: pb::ArgumentMatch::Prefix.into(),
        argument_prefix_length: 1,
        ..scope(pb::ScopeReach::Session, None)
    };
    let (desk, _) = decided(prefix).await;
    let rows: [(&str, Change, bool); 7] = [
        ("more", |_, exec| exec.arguments.push(b"y"[..].into()), true),
        ("elsewhere", |_, exec| exec.workdir = b"/"[..].into(), true),
        ("less", |_, exec| exec.arguments.truncate(1), false),
        (
            "what only begins so",
            |_, exec| exec.arguments[1] = b"xy"[..].into(),
            false,
        ),
        (
            "behind another",
            |_, exec| exec.arguments.insert(1, b"y"[..].into()),
            false,
        ),
        (
            "another user",
            |_, exec| exec.process.get_or_insert_default().user_id = 0,
            false,
        ),
        (
            "another variable",
            |_, exec| exec.environment_names.push(b"LD_PRELOAD"[..].into()),
            false,
        ),
    ];
    for (exec_id, (what, change, is_covered)) in (2..).zip(rows) {
        let answered = changed(&desk, exec_id, change);
        assert_eq!(!is_pending(&answered), is_covered, "{what}: {answered:?}");
    }
}

#[tokio::test]
async fn a_decision_holds_as_long_as_was_said_and_in_a_session_a_day() {
    for (scope, holds) in [
        (scope(pb::ScopeReach::Gate, Some(HOUR)), HOUR),
        (scope(pb::ScopeReach::Session, Some(HOUR)), HOUR),
        (scope(pb::ScopeReach::Session, None), 24 * HOUR),
    ] {
        let (desk, asker) = decided(scope).await;
        let grants = desk.grants();
        let [grant] = &grants[..] else {
            panic!("{grants:?}");
        };
        let time = |time: Option<prost_types::Timestamp>| {
            SystemTime::try_from(time.expect("a time")).expect("a time")
        };
        let (begins, ends) = (time(grant.granted_at), time(grant.expires_at));
        assert_eq!(ends.duration_since(begins).expect("later"), holds);
        let answered = asker.put(&desk, &known(2), ends - SECOND);
        assert_eq!(code(answered), "approval.remembered");
        // Also before anybody has looked at what is over.
        let answered = asker.put(&desk, &known(3), ends);
        assert!(is_pending(&answered), "{answered:?}");
        desk.sweep(ends - SECOND);
        assert_eq!(desk.grants().len(), 1);
        desk.sweep(ends);
        assert_eq!(desk.grants(), []);
    }
}

#[tokio::test]
async fn a_scope_that_says_too_much_or_nothing_decides_nothing() {
    let (session, gate) = (pb::ScopeReach::Session, pb::ScopeReach::Gate);
    let day = 24 * HOUR;
    let prefix = |length: u32| pb::Scope {
        argument_match: pb::ArgumentMatch::Prefix.into(),
        argument_prefix_length: length,
        ..scope(session, None)
    };
    let with_time = |seconds: i64| pb::Scope {
        valid_for: Some(prost_types::Duration { seconds, nanos: 0 }),
        ..scope(session, None)
    };
    let nothing: Change = |_, _| {};
    let anonymous: Change = |asker, _| asker.session.gate = GateIdentity::anonymous();
    let nowhere: Change = |_, exec| exec.workdir = prost::bytes::Bytes::new();
    for (scope, change, says) in [
        (
            scope(gate, Some(HOUR)),
            anonymous,
            Some("has shown no credential"),
        ),
        (scope(session, None), anonymous, None),
        (scope(gate, None), nothing, Some("say for how long")),
        (
            scope(gate, Some(30 * day + SECOND)),
            nothing,
            Some("30days at most"),
        ),
        (scope(gate, Some(30 * day)), nothing, None),
        (
            scope(session, Some(day + SECOND)),
            nothing,
            Some("1day at most"),
        ),
        (scope(session, Some(day)), nothing, None),
        (with_time(0), nothing, Some("isn't positive")),
        (with_time(-1), nothing, Some("isn't positive")),
        (
            scope(pb::ScopeReach::Unspecified, Some(HOUR)),
            nothing,
            Some("needs a reach"),
        ),
        (prefix(2), nothing, Some("1 arguments, fewer than the 2")),
        (prefix(1), nothing, None),
        (
            pb::Scope {
                argument_match: pb::ArgumentMatch::Same.into(),
                ..prefix(1)
            },
            nothing,
            Some("belongs to a prefix"),
        ),
        // It would be taken for a prefix, which holds in any directory.
        (scope(session, None), nowhere, Some("directory isn't known")),
        (pb::Scope::default(), nowhere, None),
    ] {
        let (desk, mut asker, mut exec) = (desk(), Asker::new('a'), known(1));
        change(&mut asker, &mut exec);
        assert!(is_pending(&asker.put(&desk, &exec, SystemTime::now())));
        let id = only(&desk).approval_id;
        let operator = Operator::named("ada", Duty::Operate).expect("a name");
        let resolved = desk
            .resolve(&id, pb::Decision::Approve, "", &scope, &operator)
            .await;
        match (resolved, says) {
            (Ok(_), None) => assert_eq!(asker.verdict().reason_code, "approval.approved"),
            (Err(error), Some(says)) => {
                assert!(error.to_string().contains(says), "{scope:?}: {error}");
                assert!(asker.controls.try_recv().is_err());
                assert_eq!(only(&desk).state(), pb::ApprovalState::Pending);
                assert_eq!(desk.grants(), []);
            }
            (resolved, _) => panic!("{scope:?}: {resolved:?}"),
        }
    }
}

/// More than there may be: the earliest is forgotten, in memory and on disk, and asked about again.
#[tokio::test]
async fn beyond_so_many_the_earliest_decision_is_forgotten_for_good() {
    let directory = tempfile::tempdir().expect("a directory");
    let now = SystemTime::now();
    let open = || Ledger::open(directory.path(), 100).expect("a ledger");
    let session = || scope(pb::ScopeReach::Session, None);
    let (ledger, loaded) = open();
    let desk = Desk::new(Some(ledger.clone()), loaded.kept, now);
    let mut asker = Asker::new('a');
    assert!(is_pending(&asker.put(&desk, &known(1), now)));
    resolve(&desk, pb::Decision::Approve, session()).await;
    assert_eq!(
        code(asker.put(&desk, &known(2), now)),
        "approval.remembered"
    );
    drop(desk);
    ledger.close();

    let (ledger, loaded) = open();
    let mut kept = loaded.kept;
    let [earliest] = &kept.grants[..] else {
        panic!("{:?}", kept.grants);
    };
    let earliest: Remembered = earliest.clone();
    // As many as there may be, of other sessions.
    kept.grants.extend((1..4_096).map(|number| {
        let mut other = earliest.clone();
        other.grant.approval_id = format!("other-{number}");
        other.grant.session_id = format!("{number:032}");
        other
    }));
    let desk = Desk::new(Some(ledger.clone()), kept, now);
    asker.reconnect();
    assert_eq!(
        code(asker.put(&desk, &known(3), now)),
        "approval.remembered"
    );
    assert_eq!(desk.grants().len(), 4_096);
    let mut newest = Asker::new('b');
    assert!(is_pending(&newest.put(&desk, &known(1), now)));
    resolve(&desk, pb::Decision::Approve, session()).await;
    assert_eq!(newest.verdict().reason_code, "approval.approved");
    let grants = desk.grants();
    assert_eq!(grants.len(), 4_096);
    let is_earliest = |grant: &pb::Grant| grant.approval_id == earliest.grant.approval_id;
    assert!(!grants.iter().any(is_earliest));
    assert!(is_pending(&asker.put(&desk, &known(4), now)));
    assert_eq!(
        code(newest.put(&desk, &known(2), now)),
        "approval.remembered"
    );
    drop(desk);
    ledger.close();

    let (_ledger, loaded) = open();
    let kept: Vec<_> = loaded.kept.grants.iter().map(|kept| &kept.grant).collect();
    assert_eq!(kept.len(), 1, "{kept:?}");
    assert_eq!(kept[0].session_id, newest.session.id);
}
