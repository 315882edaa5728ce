//! What gRPC's health service says of this one.

use tokio::sync::watch;
use tonic_health::ServingStatus;
use tonic_health::server::HealthReporter;

use crate::pb::audit::v1::audit_service_server::AuditServiceServer;
use crate::pb::v1::policy_service_server::PolicyServiceServer;
use crate::policyd::audit::StoreAudit;
use crate::policyd::service::RulesService;

/// The name by which gRPC's health service says whether the rules' files hold what is in force: NOT_SERVING while
/// they hold what can't be used. The service itself goes on with the last good rules.
const RULES_HEALTH: &str = "execgate.policyd.rules";
/// Says that the service serves, and from now on whether what the rules' files hold is in force.
pub(super) async fn begin(health: &HealthReporter, fault: watch::Receiver<Option<String>>) {
    health
        .set_serving::<PolicyServiceServer<RulesService>>()
        .await;
    health.set_serving::<AuditServiceServer<StoreAudit>>().await;
    tokio::spawn(report_rules(fault, health.clone()));
}

/// Says that gates have to look for another one.
pub(super) async fn end(health: &HealthReporter) {
    health
        .set_service_status("", ServingStatus::NotServing)
        .await;
    health
        .set_not_serving::<PolicyServiceServer<RulesService>>()
        .await;
}

/// Tells by the health service whether what the rules' files hold is in force.
async fn report_rules(mut fault: watch::Receiver<Option<String>>, health: HealthReporter) {
    loop {
        let status = match &*fault.borrow_and_update() {
            None => ServingStatus::Serving,
            Some(_) => ServingStatus::NotServing,
        };
        health.set_service_status(RULES_HEALTH, status).await;
        if fault.changed().await.is_err() {
            return;
        }
    }
}
