//! What outlives the service: the store of events, and the ledger of approvals; and whom it tells of these.

use std::time::Duration;

use super::{PolicydArgs, PolicydError};
use crate::policyd::approvals::{Ledger, Loaded, MOST_CLOSED};
use crate::policyd::store::{Retention, Store};
use crate::policyd::webhook::Webhook;

/// Between looks at whether there is something that isn't to be kept.
const PRUNING_INTERVAL: Duration = Duration::from_secs(10);

/// Where what happens is kept and told, and what was kept.
pub(super) struct Persistence {
    pub(super) kept: Kept,
    pub(super) loaded: Loaded,
    pub(super) webhook: Option<Webhook>,
}

/// Where what happens is kept. Clones are the same.
#[derive(Clone)]
pub(super) struct Kept {
    pub(super) store: Option<Store>,
    pub(super) ledger: Option<Ledger>,
}

impl Persistence {
    pub(super) fn open(args: &PolicydArgs) -> Result<Self, PolicydError> {
        let store = open_store(args)?;
        let (ledger, loaded) = open_ledger(args)?;
        let webhook = match (&args.webhook, &args.webhook_secret) {
            (Some(url), Some(secret)) => Some(Webhook::new(url, secret, args.webhook_ca.as_ref())?),
            _ => None,
        };
        Ok(Self {
            kept: Kept { store, ledger },
            loaded,
            webhook,
        })
    }
}

impl Kept {
    /// Removes what isn't to be kept, for as long as the service runs.
    pub(super) fn begin_pruning(&self, args: &PolicydArgs) {
        if let Some(store) = &self.store
            && (args.retain_age.is_some() || args.retain_size.is_some())
        {
            tokio::spawn(keep_pruned(store.clone()));
        }
    }

    /// Waits until all that was taken is on disk.
    pub(super) fn close(self) {
        if let Some(ledger) = self.ledger {
            ledger.close();
        }
        if let Some(store) = self.store {
            store.close();
        }
    }
}

fn open_store(args: &PolicydArgs) -> Result<Option<Store>, PolicydError> {
    let Some(directory) = &args.data else {
        tracing::warn!(
            "no --data: events are not stored, and there is nothing to audit afterwards"
        );
        return Ok(None);
    };
    let retention = Retention {
        age: args.retain_age,
        size: args.retain_size,
    };
    let store = Store::open_keeping(directory, retention)?;
    tracing::info!(path = %store.path().display(), "events are stored");
    Ok(Some(store))
}

fn open_ledger(args: &PolicydArgs) -> Result<(Option<Ledger>, Loaded), PolicydError> {
    match (&args.data, &args.operators) {
        (Some(data), Some(_)) => {
            let (ledger, loaded) = Ledger::open(data, MOST_CLOSED)?;
            Ok((Some(ledger), loaded))
        }
        (None, Some(_)) => {
            tracing::warn!("no --data: approvals are forgotten when the service ends");
            Ok((None, Loaded::default()))
        }
        (_, None) => Ok((None, Loaded::default())),
    }
}

async fn keep_pruned(store: Store) {
    let mut interval = tokio::time::interval(PRUNING_INTERVAL);
    loop {
        interval.tick().await;
        store.prune();
    }
}
