//! Authentication on a coordinator, and its client for connector checks on workers.

use std::path::Path;
use std::sync::Arc;

use volley_cluster::Cluster;
use volley_coordinator::AskWorker;
use volley_flight::client::{FlightClient, FlightClientConfig};
use volley_security::Authenticator;
use volley_security::audit::AuditLog;
use volley_security::nodes::Dialer;
use volley_types::CheckConnector;

use crate::config::security::SecurityPlan;

/// Name of the audit log in the data directory.
const AUDIT_TRAIL: &str = "audit.jsonl";

/// The authenticator for the keys in the registry, with an audit log.
pub(super) fn gate(
    security: &SecurityPlan,
    cluster: &Cluster,
    data_dir: &Path,
) -> anyhow::Result<Arc<Authenticator>> {
    let registry = cluster.registry();
    let gate = security.authenticator(Arc::new(move || registry.borrow().clone()))?;
    let audit = AuditLog::open(&data_dir.join(AUDIT_TRAIL))?;
    let cluster = cluster.clone();
    let members = cluster.clone();
    let gate = gate
        .while_in_service(Arc::new(move || cluster.healthy()))
        .with_members(Arc::new(move |node| members.is_member(node)));
    Ok(Arc::new(gate.with_audit(audit)))
}

/// Asks workers to check connectors.
pub(super) fn ask_workers(dialer: Dialer) -> AskWorker {
    let config = FlightClientConfig {
        connections: 1,
        dialer,
        ..FlightClientConfig::default()
    };
    Arc::new(move |address| {
        let client = FlightClient::new(address, config.clone()).ok()?;
        Some(Arc::new(client) as Arc<dyn CheckConnector>)
    })
}
