//! A policy service that answers about some programs only when the session has changed something.

use std::path::{Path, PathBuf};
use std::time::Duration;

use execgate::pb::v1::escalate::Execution;
use execgate::pb::v1::session_request::Event;
use execgate::pb::v1::session_response::Answer;
use execgate::pb::v1::verdict::Decision;
use execgate::pb::v1::{
    Escalate, ExecRequested, ExecutableDigest, Run, SessionAccepted, UnprotectedPrograms,
    Unsandboxed,
};

use crate::peer::{Call, Peer};

/// What it answers then.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Slow {
    Escalates,
    Runs,
}

pub(crate) struct SlowService {
    pub(crate) url: String,
    _runtime: tokio::runtime::Runtime,
}

impl SlowService {
    pub(crate) fn start(answer: Slow) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .expect("a runtime");
        let mut peer = runtime.block_on(Peer::start());
        let url = peer.endpoint.clone();
        runtime.spawn(async move {
            loop {
                let call = peer.call().await;
                tokio::spawn(serve(call, answer));
            }
        });
        Self {
            url,
            _runtime: runtime,
        }
    }
}

/// Answers each question; those about a `tool` when there is a file `changed` in its directory. That it has been
/// asked is told by a file `asked` there.
async fn serve(mut call: Call, answer: Slow) {
    call.answer(Answer::SessionAccepted(SessionAccepted {
        requested_executable_digest: ExecutableDigest::Sha256.into(),
        ..SessionAccepted::default()
    }))
    .await;
    let mut waiting: Vec<(u64, PathBuf)> = Vec::new();
    loop {
        let event = tokio::select! {
            event = call.event() => event,
            () = tokio::time::sleep(Duration::from_millis(5)) => {
                for (exec, directory) in std::mem::take(&mut waiting) {
                    if directory.join("changed").exists() {
                        call.verdict(exec, Some(decision(answer))).await;
                    } else {
                        waiting.push((exec, directory));
                    }
                }
                continue;
            }
        };
        let Some(event) = event else { return };
        if let Some(Event::ExecRequested(question)) = event.event {
            if question.file.ends_with(b"/tool") {
                let directory = directory(&question);
                std::fs::write(directory.join("asked"), "").expect("a file");
                waiting.push((question.exec_id, directory));
            } else {
                call.verdict(question.exec_id, Some(Decision::Run(Run {})))
                    .await;
            }
        }
    }
}

fn directory(question: &ExecRequested) -> PathBuf {
    let text = std::str::from_utf8(&question.workdir).expect("text");
    Path::new(text).to_owned()
}

fn decision(answer: Slow) -> Decision {
    match answer {
        Slow::Runs => Decision::Run(Run {}),
        Slow::Escalates => Decision::Escalate(Escalate {
            execution: Some(Execution::Unsandboxed(Unsandboxed {})),
            unprotected_programs: UnprotectedPrograms::Allowed.into(),
            ..Escalate::default()
        }),
    }
}
