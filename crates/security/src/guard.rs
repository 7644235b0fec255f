//! A cluster restricted to the rights of a principal. Edges pass only this type to handlers, so
//! that no handler can skip a check. Invisible objects appear not to exist. Forbidden actions are
//! rejected here even if the route is open.

mod action;
mod inference;
mod membership;
mod registry;
mod rights;
mod share;
mod view;

use std::sync::Arc;

use tracing::Instrument;
use volley_types::egress::EgressPolicy;
use volley_types::{ClusterHandle, ErrorCode, ModelName, PredictError, Role};

use crate::Principal;
use crate::audit::{Action, AuditLog};

pub(crate) use self::inference::GuardedInference;
pub use self::share::Share;

/// The registry, view and membership of a cluster with the rights of one principal.
pub(crate) struct GuardedCluster {
    pub(crate) inner: ClusterHandle,
    pub(crate) principal: Arc<Principal>,
    /// Allowed URLs of connectors and models.
    pub(crate) egress: Arc<EgressPolicy>,
    /// The part of the registry that a tenant may use.
    pub(crate) share: Share,
    pub(crate) audit: Option<AuditLog>,
}

impl GuardedCluster {
    fn is_viewer(&self) -> bool {
        self.principal.allow(Role::Viewer).is_ok()
    }

    fn sees(&self, model: &ModelName) -> bool {
        self.is_viewer() && self.principal.models().contains(model)
    }

    /// Runs `change` and records its outcome as `action`. If the record cannot be written, the call
    /// fails although the action was done: changes without an audit record must not go unnoticed.
    ///
    /// # Cancel safety
    /// With an audit log, the change and its record run to their end in a task of their own, so a
    /// client that disconnects cannot leave a change without a record.
    async fn audited<T: Send + 'static>(
        &self,
        action: Action,
        change: impl Future<Output = Result<T, PredictError>> + Send + 'static,
    ) -> Result<T, PredictError> {
        let Some(audit) = self.audit.clone() else {
            return change.await;
        };
        let who = self.principal.who().to_owned();
        let work = async move { record(&audit, &who, action, change.await).await };
        let done = tokio::spawn(work.in_current_span()).await;
        done.unwrap_or_else(|error| {
            let error = PredictError::new(ErrorCode::Internal, "the change did not finish")
                .with_source(error.to_string());
            tracing::error!(error = error.chain(), "audited change failed");
            Err(error)
        })
    }
}

async fn record<T>(
    audit: &AuditLog,
    who: &str,
    action: Action,
    outcome: Result<T, PredictError>,
) -> Result<T, PredictError> {
    let result = match &outcome {
        Ok(_) => "ok",
        Err(error) => error.code.as_str(),
    };
    let recorded = audit.record(who, action, result.to_owned()).await;
    if let Err(error) = recorded {
        tracing::error!(error = error.chain(), "audit log write failed");
        return outcome.and(Err(error));
    }
    outcome
}
