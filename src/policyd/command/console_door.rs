//! The console, and where it listens.

use std::sync::Arc;

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::error::listening;
use super::services::Services;
use super::sources::Sources;
use super::{PolicydArgs, PolicydError};
use crate::policyd::accept::{self, Demands, Protocol};
use crate::policyd::admission::Bounds;
use crate::policyd::console::{self, Console, Cookies};
use crate::policyd::listen::{self, Doors, Exposure, ListenAddress, Listener, Missing};
use crate::policyd::tls::Tls;

/// Connections of the console at once: a browser has six at most.
const CONSOLE_CONNECTIONS: Bounds = Bounds {
    in_all: 512,
    of_one_peer: 256,
};

/// The console, and where it listens.
pub(super) struct ConsoleDoor {
    console: Console,
    listener: Listener,
    bound: ListenAddress,
}

impl ConsoleDoor {
    /// Listens, where a console is asked for and there are operators to log in.
    pub(super) fn open(
        args: &PolicydArgs,
        sources: &Sources,
        services: &Services,
        stopping: &CancellationToken,
    ) -> Result<Option<Self>, PolicydError> {
        let (Some(address), Some(operating)) = (&args.console, &services.operating) else {
            return Ok(None);
        };
        let (cookies, exposure) = match sources.tls {
            Some(_) => (Cookies::Secure, Exposure::Anyone),
            None => (Cookies::Loopback, Exposure::Loopback(Missing::TlsOfConsole)),
        };
        let console = Console::new(console::Parts {
            audit: Arc::clone(&services.audit),
            approvals: Arc::clone(&operating.approvals),
            sessions: Arc::clone(&operating.sessions),
            rules: sources.rules.in_force(),
            rules_fault: sources.rules.fault(),
            operators: operating.operators.clone(),
            cookies,
            stopping: stopping.clone(),
        });
        let (listener, bound) =
            listen::listen(address, exposure, Doors::Own).map_err(listening("--console"))?;
        Ok(Some(Self {
            console,
            listener,
            bound,
        }))
    }

    /// Serves from now on; tells where.
    pub(super) fn serve(
        self,
        tls: Option<watch::Receiver<Arc<Tls>>>,
        stopping: &CancellationToken,
    ) -> String {
        let scheme = if tls.is_some() { "https" } else { "http" };
        let demands = Demands {
            tls,
            users: Vec::new(),
            protocol: Protocol::Http1,
        };
        let connections = accept::connections(
            self.listener,
            demands,
            CONSOLE_CONNECTIONS,
            stopping.clone(),
        );
        tokio::spawn(self.console.serve(connections));
        format!("{scheme}://{}/", self.bound)
    }
}
