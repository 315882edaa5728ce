//! A gate inside another program: no policy service, no sandbox, and no gRPC.
//!
//!     cargo run --example embed -- SHELL WRAPPER 'uname; date; /bin/true'
//!
//! SHELL is a patched bash or zsh, WRAPPER is `execgate-wrapper`; `make build` leaves both in
//! `target/dist/libexec/execgate`. A program that embeds a gate writes two things: a policy, which
//! decides, and an executor, which starts processes.

use std::ffi::OsString;
use std::io::{self, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use execgate::model::{
    EscalationDecision, EscalationExecution, ExecOutcome, InterceptedExec, SandboxReport, Verdict,
};
use execgate::server::{
    BoxFuture, EscalateServer, EscalatedExec, EscalationPolicy, ExecParams, ExecutorError, Login,
    PolicyError, PreparedExec, ShellCommand, ShellCommandExecutor, ShellOutput,
};
use tokio_util::sync::CancellationToken;

/// Decides by the name of the program. A real policy looks at more: see `SECURITY.md`.
struct ByName;

impl EscalationPolicy for ByName {
    fn decide<'a>(
        &'a self,
        exec: &'a InterceptedExec,
    ) -> BoxFuture<'a, Result<Verdict, PolicyError>> {
        Box::pin(async {
            let name = exec.file.file_name().unwrap_or_default();
            let (what, decision) = match name.to_str() {
                Some("uname") => (
                    "outside:",
                    EscalationDecision::Escalate(EscalationExecution::Unsandboxed),
                ),
                Some("date") => (
                    "refused:",
                    EscalationDecision::Deny {
                        reason: Some("this example has no time".to_owned()),
                    },
                ),
                _ => ("inside: ", EscalationDecision::Run),
            };
            // An error denies, as all errors do.
            writeln!(io::stdout(), "{what} {}", exec.file.display())
                .map_err(|error| PolicyError(error.into()))?;
            Ok(decision.into())
        })
    }
}

/// Starts processes as they are. One with a sandbox starts the shell inside it, and escalated
/// commands outside.
struct Direct;

impl ShellCommandExecutor for Direct {
    /// Runs the session's shell to its end.
    fn run(
        &self,
        shell: ShellCommand,
        cancelled: CancellationToken,
    ) -> BoxFuture<'_, Result<ShellOutput, ExecutorError>> {
        let failed = |source| ExecutorError {
            attempted: "run the shell".to_owned(),
            source,
        };
        Box::pin(async move {
            let started = tokio::process::Command::new(&shell.argv[0])
                .args(&shell.argv[1..])
                .current_dir(shell.workdir)
                .envs(shell.env_overlay)
                .kill_on_drop(true)
                .spawn();
            // From here on the shell alone has the session's socket.
            (shell.after_spawn)();
            let mut child = started.map_err(failed)?;
            let status = tokio::select! {
                status = child.wait() => status.map_err(failed)?,
                () = cancelled.cancelled() => {
                    child.kill().await.map_err(failed)?;
                    child.wait().await.map_err(failed)?
                }
            };
            Ok(ShellOutput {
                outcome: match (status.code(), status.signal()) {
                    (Some(code), _) => ExecOutcome::Exited(code),
                    (None, Some(signal)) => ExecOutcome::Signaled(signal),
                    (None, None) => ExecOutcome::Unknown,
                },
                stdout: vec![],
                stderr: vec![],
                output: vec![],
                truncated: false,
            })
        })
    }

    /// Says what to execute for a command that the policy escalates; the gate then executes it.
    fn prepare_escalated_exec(
        &self,
        exec: EscalatedExec,
    ) -> BoxFuture<'_, Result<PreparedExec, ExecutorError>> {
        Box::pin(async {
            Ok(PreparedExec {
                program: exec.file,
                argv: exec.argv,
                workdir: exec.workdir,
                env: exec.env,
                confinement: None,
                told_descriptors: Vec::new(),
                told_signals: None,
            })
        })
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<ExitCode, Box<dyn std::error::Error>> {
    let arguments: Vec<OsString> = std::env::args_os().skip(1).collect();
    let [shell, wrapper, command] = arguments
        .try_into()
        .map_err(|_| "usage: embed SHELL WRAPPER COMMAND")?;
    let (shell, wrapper) = (PathBuf::from(shell), PathBuf::from(wrapper));
    let server = EscalateServer::new(
        shell.canonicalize()?,
        wrapper.canonicalize()?,
        Arc::new(ByName),
    );
    let params = ExecParams {
        command,
        workdir: std::env::current_dir()?,
        login: Login::No,
        ..ExecParams::default()
    };
    // What is really enforced, for the policy and its records.
    let sandbox = SandboxReport::none();
    // Cancel it to end the session, with all that it started.
    let cancelled = CancellationToken::new();
    let result = server
        .exec(params, sandbox, Arc::new(Direct), &cancelled)
        .await?;
    let counts = result.verdicts;
    writeln!(
        io::stdout(),
        "status {}, {} inside, {} outside, {} refused",
        result.exit_code,
        counts.run,
        counts.escalate,
        counts.deny,
    )?;
    Ok(u8::try_from(result.exit_code).map_or(ExitCode::FAILURE, ExitCode::from))
}
