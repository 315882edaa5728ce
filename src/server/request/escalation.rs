//! What is executed for an exec that a verdict escalates; else why nothing is.

use tokio::sync::OwnedSemaphorePermit;

use super::Shared;
use crate::model::{
    DecisionCode, Environment, EnvironmentDifference, Executable, InterceptedExec, Protection,
    Unprotected, Verdict,
};
use crate::program::{self, Execution};
use crate::server::environment;
use crate::sys::place::Place;

/// What is executed for an exec that is escalated.
pub(super) struct Escalation {
    pub(super) execution: Execution,
    pub(super) env: Environment,
    pub(super) difference: EnvironmentDifference,
    /// The right to the memory that copies of the program take.
    pub(super) copies: Option<OwnedSemaphorePermit>,
}

impl Shared {
    /// What is executed for an exec that a verdict escalates; else why nothing is.
    pub(super) async fn escalation(
        &self,
        exec: &InterceptedExec,
        verdict: &Verdict,
        places: Vec<Place>,
    ) -> Result<Escalation, (DecisionCode, String)> {
        let unprotected = verdict.terms.unprotected;
        let copies = self.room_for_copies(&exec.executable, unprotected)?;
        let names = (&*exec.file, &*exec.workdir);
        let execution = self
            .examiner
            .verify(names, &exec.executable, places, &exec.process, unprotected)
            .await
            .map_err(refused)?;
        let rules = &verdict.terms.environment;
        let (env, difference) = environment::escalated(&exec.env, rules, &self.owner);
        Ok(Escalation {
            execution,
            env,
            difference,
            copies,
        })
    }

    fn room_for_copies(
        &self,
        executable: &Executable,
        unprotected: Unprotected,
    ) -> Result<Option<OwnedSemaphorePermit>, (DecisionCode, String)> {
        let (Executable::Found(file), Unprotected::Allowed) = (executable, unprotected) else {
            return Ok(None);
        };
        let sizes: Vec<_> = file
            .chain()
            .unwrap_or_default()
            .iter()
            .filter(|file| matches!(file.own_protection, Protection::Writable(_)))
            .map(|file| file.version.size)
            .collect();
        // However much memory there is.
        if sizes.iter().any(|size| *size > program::LARGEST_COPY) {
            return Err(refused(program::Refusal::too_large()));
        }
        let size: u64 = sizes.iter().sum();
        if size == 0 {
            return Ok(None);
        }
        let permits = u32::try_from(size).ok();
        permits
            .and_then(|size| self.copies.clone().try_acquire_many_owned(size).ok())
            .map(Some)
            .ok_or_else(|| {
                let reason = "copies of escalated programs take too much memory already";
                (DecisionCode::Overloaded, reason.to_owned())
            })
    }
}

/// Why a program isn't escalated, in words for whoever asked.
fn refused(refusal: program::Refusal) -> (DecisionCode, String) {
    match refusal {
        program::Refusal::Changed(what) => (
            DecisionCode::ProgramChanged,
            format!("the program isn't what was asked about any more ({what}); ask again"),
        ),
        program::Refusal::Unprotected(path) => (
            DecisionCode::ProgramUnprotected,
            format!(
                "it may not leave the sandbox, because the session can write {}: the rule has to allow \
                 it by unprotected = \"allow\", or the program be where no session can write",
                path.display()
            ),
        ),
        program::Refusal::Unidentified(why) => (
            DecisionCode::ProgramUnidentified,
            format!("it may not leave the sandbox, because its program isn't known: {why}"),
        ),
    }
}
