mod answers;
mod bounds;
mod deciding;
mod files;
mod patterns;
mod precedence;

use super::*;
use crate::model::{EscalationExecution, ExecId, NetworkAccess, ProcessIdentity};

fn rules(content: &str) -> Rules {
    Rules::parse("/etc/policy/test.rules", content.to_owned())
        .unwrap_or_else(|error| panic!("{error}"))
}

fn refusal(content: &str) -> String {
    Rules::parse("test.rules", content.to_owned())
        .expect_err("the file is wrong")
        .to_string()
}

fn ask_bytes(rules: &Rules, file: &[u8], argv: &[&[u8]]) -> Ruling {
    ask_in(&[b"HOME", b"LD_PRELOAD"], rules, file, argv)
}

fn ask_in(environment: &[&[u8]], rules: &Rules, file: &[u8], argv: &[&[u8]]) -> Ruling {
    let session = SessionFacts {
        labels: [("team".to_owned(), "blue".to_owned())].into(),
        user: UserFacts {
            uid: 1000,
            gid: 1000,
            name: "ada".to_owned(),
        },
        workdir: b"/work".to_vec(),
        ..SessionFacts::default()
    };
    rules.evaluate(&ExecFacts {
        id: ExecId(7),
        file,
        argv: argv.to_vec(),
        workdir: b"/work",
        environment_names: environment.to_vec(),
        environment: Vec::new(),
        redacted_arguments: &[],
        executable: None,
        workdir_protection: crate::pb::v1::Protection::Unspecified,
        process: ProcessIdentity {
            pid: 10,
            parent_pid: 9,
            uid: 1000,
            gid: 1000,
        },
        parent: Some(ExecId(3)),
        session: &session,
    })
}

fn ask(rules: &Rules, file: &str, arguments: &[&str]) -> Ruling {
    let argv: Vec<&[u8]> = std::iter::once(file)
        .chain(arguments.iter().copied())
        .map(str::as_bytes)
        .collect();
    ask_bytes(rules, file.as_bytes(), &argv)
}

fn is_denied(ruling: &Ruling) -> bool {
    matches!(ruling.decision, EscalationDecision::Deny { .. })
}

fn ruled(rules: &Rules, file: &str) -> Ruling {
    ask(rules, file, &[])
}

fn denies(decision: &EscalationDecision) -> bool {
    matches!(decision, EscalationDecision::Deny { .. })
}

fn ask_about(rules: &Rules, info: Option<&crate::pb::v1::ExecutableInfo>, argv: &[&str]) -> Ruling {
    let session = SessionFacts::default();
    rules.evaluate(&ExecFacts {
        id: ExecId(1),
        file: b"/sandbox/tool",
        argv: argv.iter().map(|word| word.as_bytes()).collect(),
        workdir: b"/work",
        environment_names: Vec::new(),
        environment: Vec::new(),
        redacted_arguments: &[],
        executable: info,
        workdir_protection: crate::pb::v1::Protection::Writable,
        process: ProcessIdentity::default(),
        parent: None,
        session: &session,
    })
}
