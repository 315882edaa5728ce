use std::error::Error;
use std::time::Duration;

use super::endpoint::{Endpoint, Pings};

impl Endpoint {
    /// Tries whether something there speaks HTTP/2, `within` at most.
    ///
    /// # Errors
    /// Why not, in words, innermost cause last.
    pub async fn probe(&self, within: Duration) -> Result<(), String> {
        let transport = self
            .prepare(Pings::Often)
            .map_err(|error| error.to_string())?;
        match tokio::time::timeout(within, transport.connect()).await {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(error)) => {
                let mut text = error.to_string();
                let mut cause = error.source();
                while let Some(error) = cause {
                    text = format!("{text}: {error}");
                    cause = error.source();
                }
                Err(text)
            }
            Err(_) => Err(format!("no answer within {} s", within.as_secs())),
        }
    }
}
