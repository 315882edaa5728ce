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
    2 * (session.workdir.len() + words.sum::<usize>() + labels.sum::<usize>())
}
