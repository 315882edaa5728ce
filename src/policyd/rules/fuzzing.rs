use std::mem::{Discriminant, discriminant};

use super::{ExecFacts, Rules, Ruling, SessionFacts, Strictness};
use crate::model::{EscalationDecision, ExecId, ProcessIdentity};
use crate::pb::{self, Answer, v1};
use crate::policyd::service;

/// Files of rules, with a NUL between them: they are refused, or decide what a gate can do, and the same in any
/// order of the files.
pub(crate) fn rules(bytes: &[u8]) {
    let Ok(text) = str::from_utf8(bytes) else {
        return;
    };
    let mut files: Vec<_> = text
        .split('\0')
        .take(3)
        .enumerate()
        .map(|(number, content)| (format!("/{number}.rules"), content.to_owned()))
        .collect();
    let rules = Rules::parse_all(files.clone());
    if files.len() > 1 {
        files.reverse();
        let reversed = Rules::parse_all(files);
        match (&rules, reversed) {
            (Ok(rules), Ok(reversed)) => {
                for (one, other) in rulings(rules).iter().zip(&rulings(&reversed)) {
                    assert_eq!(kind(one), kind(other), "another order of the files");
                    assert_eq!(one.matched.len(), other.matched.len(), "other rules match");
                }
            }
            (one, other) => assert_eq!(one.is_ok(), other.is_ok(), "{one:?} {other:?}"),
        }
    }
    let Ok(rules) = rules else {
        return;
    };
    assert!(rules.listing().len() >= rules.prefix_rule_count());
    for ruling in rulings(&rules) {
        if let Some(winner) = ruling.winner {
            let strictness = |at: usize| ruling.matched[at].answer.strictness();
            let most = (0..ruling.matched.len()).map(strictness).max();
            assert_eq!(Some(strictness(winner)), most, "a less strict answer wins");
        }
        can_be_acted_on(ruling);
    }
}

/// What is done, and how strict that is. Of answers that are as strict the first wins, so paths may differ.
fn kind(ruling: &Ruling) -> (Discriminant<EscalationDecision>, Option<Strictness>) {
    let winner = ruling.winner.map(|winner| &ruling.matched[winner]);
    (
        discriminant(&ruling.decision),
        winner.map(|winner| winner.answer.strictness()),
    )
}

/// A gate takes the decision for what it is.
fn can_be_acted_on(ruling: Ruling) {
    let sent = v1::SessionResponse {
        answer: Some(v1::session_response::Answer::Verdict(v1::Verdict {
            exec_id: 7,
            decision: Some(service::decision_message(
                ruling.decision.clone(),
                ruling.terms,
            )),
            ..v1::Verdict::default()
        })),
    };
    let Ok(Answer::Verdict {
        verdict: Ok(verdict),
        ..
    }) = pb::answer(sent)
    else {
        assert!(
            matches!(ruling.decision, EscalationDecision::Deny { .. }),
            "no gate understands {:?}",
            ruling.decision
        );
        return;
    };
    match (&verdict.decision, &ruling.decision) {
        (EscalationDecision::Deny { .. }, EscalationDecision::Deny { .. }) => {}
        (got, meant) => assert_eq!(got, meant),
    }
}

/// What is said of a few execs.
fn rulings(rules: &Rules) -> Vec<Ruling> {
    let session = SessionFacts::default();
    let commands: [&[&[u8]]; 5] = [
        &[b"/usr/bin/git", b"push"],
        &[b"/bin/a", b"x", b"x"],
        &[b"/bin/a"],
        &[b"/tmp/\xff", b"\xfe", b""],
        &[b"/usr/bin/make"],
    ];
    let ruling = |argv: &&[&[u8]]| {
        rules.evaluate(&ExecFacts {
            id: ExecId(7),
            file: argv[0],
            argv: argv.to_vec(),
            workdir: b"/work",
            environment_names: vec![b"HOME", b"LD_PRELOAD"],
            environment: Vec::new(),
            redacted_arguments: &[],
            executable: None,
            workdir_protection: v1::Protection::Unspecified,
            process: ProcessIdentity {
                pid: 10,
                parent_pid: 9,
                uid: 1000,
                gid: 1000,
            },
            parent: None,
            session: &session,
        })
    };
    commands.iter().map(ruling).collect()
}
