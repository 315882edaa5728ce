use std::time::{Duration, SystemTime};

use prost::Message;
use sha2::{Digest, Sha256};

use crate::model::Enforcement;
use crate::pb::approval::v1::{self as pb, approval::Effect};
use crate::pb::v1;
use crate::policyd::rules::{Ask, Ruling, SessionFacts, another_name};
use crate::policyd::service::decision_message;
use crate::policyd::text;

/// Reason code of what a person approved.
pub(super) const CODE_APPROVED: &str = "approval.approved";
/// Reason code of what a person denied.
pub(super) const CODE_DENIED: &str = "approval.denied";
/// Reason code of what nobody decided in time.
pub(super) const CODE_EXPIRED: &str = "approval.expired";
/// Reason code of what a person approved earlier, for later execs as well.
pub(super) const CODE_REMEMBERED: &str = "approval.remembered";
/// Reason code of what a person denied earlier, for later execs as well.
pub(super) const CODE_REMEMBERED_DENIAL: &str = "approval.remembered_denial";
/// Reason code of what isn't asked about because too much waits already.
pub(super) const CODE_OVERLOADED: &str = "approval.overloaded";
/// Reason code of what is too long for a person to judge.
pub(super) const CODE_TOO_LONG: &str = "approval.too_long";

/// Most bytes of a command that a person is asked about: more can't be judged, and part of it must not be.
pub(super) const LONGEST_COMMAND: usize = 64 << 10;
/// Most arguments of one: those that are empty have next to no bytes, and are no easier to judge.
const MOST_ARGUMENTS: usize = 4_096;
/// Most bytes of names of environment variables, and of labels, that are shown, and most such names; more are left out.
const SHOWN_NAMES: usize = 16 << 10;
const MOST_NAMES: usize = 1_024;
const SHOWN_LABELS: usize = 16 << 10;
/// Longest sentence of a rule that is shown, in bytes.
const SHOWN_REASON: usize = 4 << 10;

/// Names of variables that come and go as a shell does its work, and that no program is led astray by.
const SHELLS_OWN: [&[u8]; 4] = [b"_", b"OLDPWD", b"PWD", b"SHLVL"];

/// SHA-256 of all that makes two execs the same for whoever decides.
pub(in crate::policyd) type QuestionDigest = [u8; 32];

/// What is asked of a person.
#[derive(Debug, Clone, Copy)]
pub(in crate::policyd) struct Question<'a> {
    pub(in crate::policyd) session: &'a SessionFacts,
    pub(in crate::policyd) exec: &'a v1::ExecRequested,
    pub(in crate::policyd) ruling: &'a Ruling,
    pub(in crate::policyd) ask: &'a Ask,
    pub(in crate::policyd) revision: &'a str,
}

/// Names what is asked: equal for the same command in the same place by the same user.
pub(in crate::policyd) fn digest_of(exec: &v1::ExecRequested) -> QuestionDigest {
    let user = exec.process.unwrap_or_default().user_id;
    let mut digest = Sha256::new();
    let mut part = |bytes: &[u8]| {
        digest.update((bytes.len() as u64).to_le_bytes());
        digest.update(bytes);
    };
    part(&user.to_le_bytes());
    part(&exec.file);
    part(&exec.workdir);
    part(&(exec.arguments.len() as u64).to_le_bytes());
    for argument in &exec.arguments {
        part(argument);
    }
    part(&circumstances_digest(exec));
    digest.finalize().into()
}

/// Names what else a command depends on: the set of names in its environment, but for those that shells set
/// and take away by themselves, what it is called where that isn't its own name, and which files the program and the
/// interpreters of a script are.
pub(super) fn circumstances_digest(exec: &v1::ExecRequested) -> [u8; 32] {
    let mut names: Vec<&[u8]> = exec
        .environment_names
        .iter()
        .map(|name| &name[..])
        .filter(|name| !SHELLS_OWN.contains(name))
        .collect();
    names.sort_unstable();
    names.dedup();
    let mut digest = Sha256::new();
    // With its length before it each part is itself alone.
    let mut part = |bytes: &[u8]| {
        digest.update((bytes.len() as u64).to_le_bytes());
        digest.update(bytes);
    };
    part(&(names.len() as u64).to_le_bytes());
    for name in names {
        part(name);
    }
    // Some programs are another by it.
    part(another_name(&exec.file, &exec.arguments).unwrap_or_default());
    let mut next = exec.executable.as_ref();
    while let Some(executable) = next {
        part(&executable.real_path);
        part(&executable.file_version.unwrap_or_default().encode_to_vec());
        let interpreter = executable.interpreter.as_deref();
        next = interpreter.and_then(|interpreter| interpreter.executable.as_deref());
    }
    digest.finalize().into()
}

/// Why a command is too long for a person to judge, in words; `None` if it isn't.
pub(super) fn too_long(exec: &v1::ExecRequested) -> Option<String> {
    let count = exec.arguments.len();
    if count > MOST_ARGUMENTS {
        return Some(format!(
            "the command has {count} arguments, and a person is asked about {MOST_ARGUMENTS} at most"
        ));
    }
    let arguments: usize = exec.arguments.iter().map(|word| word.len() + 1).sum();
    let size = exec.file.len() + exec.workdir.len() + arguments;
    if size > LONGEST_COMMAND {
        return Some(format!(
            "the command has {size} bytes, and a person is asked about {LONGEST_COMMAND} at most"
        ));
    }
    let program = exec.executable.as_ref().map_or(0, program_size);
    (program > LONGEST_COMMAND).then(|| {
        format!(
            "what is told of the command's program has {program} bytes, and a person is asked about \
             {LONGEST_COMMAND} at most"
        )
    })
}

/// Bytes of what is told of a program and of those that interpret it.
fn program_size(program: &v1::ExecutableInfo) -> usize {
    let mut size = 0;
    let mut next = Some(program);
    while let Some(file) = next {
        size += file.missing.len()
            + file.real_path.len()
            + file.writable_path.len()
            + file.sha256.len();
        let interpreter = file.interpreter.as_deref();
        size += interpreter.map_or(0, |it| it.name.len() + it.argument.len());
        next = interpreter.and_then(|it| it.executable.as_deref());
    }
    size
}

/// The approval that is opened for a question.
pub(super) fn opened(question: &Question<'_>, id: String, now: SystemTime) -> pb::Approval {
    let Question {
        session,
        exec,
        ruling,
        ask,
        revision,
    } = *question;
    let process = exec.process.unwrap_or_default();
    let mut names = SHOWN_NAMES;
    let mut labels = SHOWN_LABELS;
    pb::Approval {
        approval_id: id,
        state: pb::ApprovalState::Pending.into(),
        opened_at: Some(now.into()),
        expires_at: Some((now + ask.within).into()),
        asked: ask.asked.clone().unwrap_or_default(),
        rule: shortened(&ruling.rule),
        reason: shortened(&ruling.reason),
        policy_revision: revision.to_owned(),
        effect: effect_of(question),
        exec: Some(apart(&pb::AskedExec {
            exec_id: exec.exec_id,
            file: exec.file.clone(),
            arguments: exec.arguments.clone(),
            workdir: exec.workdir.clone(),
            environment_names: exec
                .environment_names
                .iter()
                .take(MOST_NAMES)
                .take_while(|name| takes(&mut names, name.len()))
                .cloned()
                .collect(),
            user_id: process.user_id,
            process_id: process.process_id,
            executable: exec.executable.clone(),
        })),
        session: Some(pb::AskedSession {
            session_id: session.id.clone(),
            gate: session.gate.to_string(),
            hostname: session.hostname.clone(),
            labels: session
                .labels
                .iter()
                .take_while(|(key, value)| takes(&mut labels, key.len() + value.len()))
                .map(|(key, value)| (key.clone(), value.clone()))
                .collect(),
            user_name: if session.user.uid == process.user_id {
                session.user.name.clone()
            } else {
                String::new()
            },
            sandbox: session.sandbox.clone(),
            enforcement: match session.enforcement {
                Enforcement::Full => "full",
                Enforcement::Partial => "partial",
                Enforcement::None => "none",
            }
            .to_owned(),
        }),
        resolution: None,
    }
}

/// The same in memory of its own: the parts of an event refer to the message that it came in, which may be many times
/// as large, and would stay as long as one of them.
pub(super) fn apart<M: Message + Default>(message: &M) -> M {
    // What was encoded can be decoded.
    M::decode(prost::bytes::Bytes::from(message.encode_to_vec())).unwrap_or_default()
}

fn takes(budget: &mut usize, bytes: usize) -> bool {
    let fits = *budget > bytes;
    *budget = budget.saturating_sub(bytes + 1);
    fits
}

fn shortened(sentence: &str) -> String {
    let mut end = sentence.len().min(SHOWN_REASON);
    while !sentence.is_char_boundary(end) {
        end -= 1;
    }
    sentence[..end].to_owned()
}

/// What an approval leads to; `None` for a denial, to which none leads.
pub(super) fn effect_of(question: &Question<'_>) -> Option<Effect> {
    let (decision, terms) = (question.ask.effect.decision(), &question.ruling.terms);
    match decision_message(decision, terms.clone()) {
        v1::verdict::Decision::Run(run) => Some(Effect::Run(run)),
        v1::verdict::Decision::Escalate(escalate) => Some(Effect::Escalate(escalate)),
        v1::verdict::Decision::Deny(_) => None,
    }
}

/// What a verdict says for an approval's effect; without one it denies.
pub(super) fn decision_of(effect: Option<&Effect>) -> v1::verdict::Decision {
    match effect {
        Some(Effect::Run(run)) => v1::verdict::Decision::Run(*run),
        Some(Effect::Escalate(escalate)) => v1::verdict::Decision::Escalate(escalate.clone()),
        None => denial("the approval says nothing of what it is for".to_owned()),
    }
}

pub(super) fn denial(reason: String) -> v1::verdict::Decision {
    v1::verdict::Decision::Deny(v1::Deny { reason })
}

/// A verdict, and whose it is.
#[derive(Debug, Clone, Default, PartialEq)]
pub(in crate::policyd) struct Decided {
    pub(in crate::policyd) verdict: v1::Verdict,
    /// The approval that it comes from; empty: it comes from none.
    pub(in crate::policyd) approval_id: String,
    /// The operator who decided; empty: no operator did.
    pub(in crate::policyd) operator: String,
}

impl From<v1::Verdict> for Decided {
    /// One that nobody was asked for.
    fn from(verdict: v1::Verdict) -> Self {
        Self {
            verdict,
            ..Self::default()
        }
    }
}

/// What a closed approval says; `None` while it is open, and where nobody waits for a verdict.
pub(super) fn decided(approval: &pb::Approval) -> Option<Decided> {
    let resolution = approval.resolution.clone().unwrap_or_default();
    let (decision, code) = match approval.state() {
        pb::ApprovalState::Approved => (decision_of(approval.effect.as_ref()), CODE_APPROVED),
        pb::ApprovalState::Denied => (
            denial(denied_by(&resolution.resolved_by, &resolution.note)),
            CODE_DENIED,
        ),
        pb::ApprovalState::Expired => (denial(resolution.note.clone()), CODE_EXPIRED),
        pb::ApprovalState::Unspecified
        | pb::ApprovalState::Pending
        | pb::ApprovalState::Withdrawn => return None,
    };
    Some(Decided {
        verdict: v1::Verdict {
            exec_id: approval.exec.as_ref().map_or(0, |exec| exec.exec_id),
            decision: Some(decision),
            reason_code: code.to_owned(),
            rule: approval.rule.clone(),
            policy_revision: approval.policy_revision.clone(),
            ..v1::Verdict::default()
        },
        approval_id: approval.approval_id.clone(),
        operator: resolution.resolved_by,
    })
}

pub(super) fn denied_by(who: &str, note: &str) -> String {
    match note {
        "" => format!("denied by {who}"),
        note => format!("denied by {who}: {note}"),
    }
}

/// The command of an approval, on one line, fit for a terminal.
pub(super) fn command_line(approval: &pb::Approval, limit: usize) -> String {
    let exec = approval.exec.clone().unwrap_or_default();
    let called = another_name(&exec.file, &exec.arguments);
    let called = called.map(|name| [&b"exec"[..], b"-a", name]);
    let arguments = exec.arguments.iter().skip(1).map(|word| &word[..]);
    let words = called.into_iter().flatten().chain([&exec.file[..]]);
    text::command_line(words.chain(arguments), limit)
}

/// Who is asked, in words, where the rule names somebody or nobody.
pub(crate) fn asked(named: &str) -> String {
    match named {
        "" => "an operator".to_owned(),
        named => text::shown(named.as_bytes()),
    }
}

/// What the waiting user is told.
pub(super) fn waiting(approval: &pb::Approval, within: Duration) -> String {
    let whose = asked(&approval.asked);
    let reason = match approval.reason.as_str() {
        "" => String::new(),
        reason => format!(
            " ({})",
            text::shortened(&text::shown(reason.as_bytes()), 120)
        ),
    };
    format!(
        "waiting for {whose} to approve {}{reason}, for {} at most; approval {}",
        command_line(approval, 120),
        humantime::format_duration(Duration::from_secs(within.as_secs().max(1))),
        approval.approval_id
    )
}

/// A time of the contract, as the clock has it.
pub(super) fn time(time: Option<prost_types::Timestamp>) -> SystemTime {
    time.and_then(|time| SystemTime::try_from(time).ok())
        .unwrap_or(SystemTime::UNIX_EPOCH)
}
