//! The events of a call, short and long, and what of a session is kept.

use prost::Message;
use tonic::{Status, Streaming};

use crate::pb::v1;
use crate::policyd::arrival::{LongMessage, LongMessages};
use crate::policyd::elements::{self, MOST_ELEMENTS};
use crate::policyd::reception::Held;
use crate::policyd::rules::SessionFacts;

/// The next event, with the room that it has where it is a long one.
pub(super) async fn next(
    events: &mut Streaming<v1::SessionRequest>,
    long: &LongMessages,
) -> Result<Option<(v1::SessionRequest, Option<Held>)>, Status> {
    let Some(short) = events.message().await? else {
        return Ok(None);
    };
    Ok(Some(match long.take() {
        None => (short, None),
        Some(LongMessage { bytes, held }) => {
            if !elements::are_few(&bytes) {
                return Err(Status::invalid_argument(format!(
                    "it is garbled, or names more than {MOST_ELEMENTS} things"
                )));
            }
            let event = v1::SessionRequest::decode(bytes)
                .map_err(|error| Status::invalid_argument(error.to_string()))?;
            (event, Some(held))
        }
    }))
}

/// What a session takes by what it says of itself: for itself, and for operators to be shown.
pub(in crate::policyd) fn size_of_facts(session: &SessionFacts) -> usize {
    let words = session
        .command
        .iter()
        .map(|word| word.len() + size_of::<Vec<u8>>());
    let labels = session
        .labels
        .iter()
        .map(|(key, value)| key.len() + value.len() + 2 * size_of::<String>());
    let texts = [
        &session.not_enforced,
        &session.sandbox_limits,
        &session.not_granted,
    ];
    let texts = texts.into_iter().flatten();
    let texts = texts.map(|text| text.len() + size_of::<String>());
    let names = [
        &session.hostname,
        &session.user.name,
        &session.sandbox,
        &session.sandbox_version,
        &session.profile,
    ];
    let names = names.into_iter().map(String::len);
    let parts = [words.sum::<usize>(), labels.sum(), texts.sum(), names.sum()];
    2 * (session.workdir.len() + parts.iter().sum::<usize>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whatever_a_session_says_of_itself_has_a_size() {
        type Change = fn(&mut SessionFacts, &str);
        let changes: [Change; 11] = [
            |it, text| it.workdir = text.into(),
            |it, text| it.command.push(text.into()),
            |it, text| drop(it.labels.insert(text.to_owned(), String::new())),
            |it, text| drop(it.labels.insert(String::new(), text.to_owned())),
            |it, text| text.clone_into(&mut it.hostname),
            |it, text| text.clone_into(&mut it.user.name),
            |it, text| text.clone_into(&mut it.sandbox),
            |it, text| text.clone_into(&mut it.sandbox_version),
            |it, text| text.clone_into(&mut it.profile),
            |it, text| it.sandbox_limits.push(text.to_owned()),
            |it, text| {
                it.not_enforced.push(text.to_owned());
                it.not_granted.push(text.to_owned());
            },
        ];
        let empty = size_of_facts(&SessionFacts::default());
        for (number, change) in changes.into_iter().enumerate() {
            let mut facts = SessionFacts::default();
            change(&mut facts, &"x".repeat(1_000));
            assert!(size_of_facts(&facts) >= empty + 2_000, "{number}");
        }
    }
}
