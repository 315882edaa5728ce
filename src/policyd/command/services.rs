//! What gates, auditors and operators call.

use std::sync::Arc;
use std::time::SystemTime;

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tonic::service::Routes;

use super::persistence::Persistence;
use super::sources::Sources;
use super::{PolicydArgs, PolicydError};
use crate::pb::approval::v1::approval_service_server::ApprovalServiceServer;
use crate::pb::audit::v1::audit_service_server::AuditServiceServer;
use crate::pb::session::v1::session_service_server::SessionServiceServer;
use crate::pb::v1::policy_service_server::PolicyServiceServer;
use crate::policyd::approvals::{Approvals, Desk, Loaded};
use crate::policyd::audit::StoreAudit;
use crate::policyd::numbers::ServiceNumbers;
use crate::policyd::operators::Operator;
use crate::policyd::owners::{self, Owners};
use crate::policyd::rate::Rates;
use crate::policyd::reception::{Reception, Room};
use crate::policyd::reload::Followed;
use crate::policyd::service::{MAX_MESSAGE_SIZE, RulesService, Setting};
use crate::policyd::sessions::{Sessions, SessionsService};
use crate::policyd::store::{Store, StoreError};
use crate::policyd::tokens::Tokens;

/// What the sessions that are connected may take by what they say of themselves, in KiB: those of a gate, and all.
const SESSIONS_OF_ONE_GATE: usize = 256 << 10;
const SESSIONS_IN_ALL: usize = 512 << 10;

/// Largest question of an auditor, in bytes.
const MAX_QUESTION_SIZE: usize = 256 << 10;

/// What gates, auditors and operators call.
pub(super) struct Services {
    pub(super) policy: RulesService,
    pub(super) audit: Arc<StoreAudit>,
    pub(super) operating: Option<Operating>,
}

/// What operators act by.
pub(super) struct Operating {
    pub(super) approvals: Arc<Approvals>,
    pub(super) sessions: Arc<SessionsService>,
    pub(super) operators: watch::Receiver<Arc<Tokens<Operator>>>,
}

impl Services {
    pub(super) fn new(
        args: &PolicydArgs,
        sources: &Sources,
        persistence: Persistence,
        numbers: Arc<ServiceNumbers>,
        stopping: &CancellationToken,
    ) -> Result<Self, PolicydError> {
        let operators = sources.operators.as_ref().map(Followed::in_force);
        let Persistence {
            kept,
            loaded:
                Loaded {
                    kept: approvals,
                    terminations,
                },
            webhook,
        } = persistence;
        let owners = owners(kept.store.as_ref())?;
        let sessions = Sessions::new(terminations);
        let desk = Desk::new(kept.ledger.clone(), approvals, SystemTime::now());
        desk.follow(sources.rules.in_force());
        let audit = Arc::new(StoreAudit::new(
            kept.store.clone(),
            operators.clone(),
            Arc::clone(&numbers),
            stopping.clone(),
        ));
        let policy = RulesService::new(Setting {
            rules: sources.rules.in_force(),
            tokens: sources.tokens.as_ref().map(Followed::in_force),
            operators: operators.clone(),
            owners: owners.clone(),
            desk: operators.is_some().then(|| desk.clone()),
            numbers,
            rates: args.execs_per_second.map(Rates::new),
            sessions: sessions.clone(),
            room_of_sessions: Arc::new(Room::of_size(SESSIONS_OF_ONE_GATE, SESSIONS_IN_ALL)),
            store: kept.store.clone(),
            stopping: stopping.clone(),
        });
        let operating = operators.map(|operators| {
            tokio::spawn(desk.clone().keep_swept());
            if let Some(webhook) = webhook {
                tokio::spawn(webhook.run(desk.watch().1));
            }
            Operating {
                approvals: Arc::new(Approvals::new(
                    desk.clone(),
                    operators.clone(),
                    stopping.clone(),
                )),
                sessions: Arc::new(SessionsService {
                    sessions,
                    owners,
                    desk,
                    ledger: kept.ledger,
                    store: kept.store,
                }),
                operators,
            }
        });
        Ok(Self {
            policy,
            audit,
            operating,
        })
    }

    /// They, as calls reach them, and what describes them.
    pub(super) fn routes(self, room: &Arc<Room>) -> Result<Routes, PolicydError> {
        let policy = PolicyServiceServer::new(self.policy)
            .max_decoding_message_size(MAX_MESSAGE_SIZE)
            .max_encoding_message_size(MAX_MESSAGE_SIZE);
        let audit = AuditServiceServer::from_arc(self.audit)
            .max_decoding_message_size(MAX_QUESTION_SIZE)
            .max_encoding_message_size(2 * MAX_MESSAGE_SIZE);
        let mut routes = Routes::new(Reception::apart(policy, room));
        routes = routes.add_service(Reception::new(audit, room));
        if let Some(operating) = self.operating {
            let approvals = ApprovalServiceServer::from_arc(operating.approvals)
                .max_encoding_message_size(MAX_MESSAGE_SIZE);
            let sessions = SessionServiceServer::from_arc(operating.sessions)
                .max_encoding_message_size(MAX_MESSAGE_SIZE);
            routes = routes
                .add_service(Reception::new(approvals, room))
                .add_service(Reception::new(sessions, room));
        }
        let describe = || {
            tonic_reflection::server::Builder::configure()
                .register_encoded_file_descriptor_set(crate::pb::FILE_DESCRIPTOR_SET)
                .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
        };
        let (current, before) = (describe().build_v1(), describe().build_v1alpha());
        Ok(routes
            .add_service(Reception::new(
                current.map_err(PolicydError::Reflection)?,
                room,
            ))
            .add_service(Reception::new(
                before.map_err(PolicydError::Reflection)?,
                room,
            )))
    }
}

/// Whose the sessions are that the store has.
fn owners(store: Option<&Store>) -> Result<Owners, StoreError> {
    let owners = Owners::default();
    if let Some(store) = store {
        for (session, gate) in store.latest_owners(owners::MOST_REMEMBERED)? {
            // The store has each session once, so nothing is claimed twice.
            let _ = owners.claim(&session, &gate);
        }
    }
    Ok(owners)
}
