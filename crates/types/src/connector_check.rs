//! Checks of connectors on the workers that use them.

use async_trait::async_trait;

use crate::error::PredictError;
use crate::ids::WorkerId;
use crate::registry::ConnectorSpec;

/// Checks whether a connector works from this node.
#[async_trait]
pub trait CheckConnector: Send + Sync + 'static {
    /// Checks that the connector's servers may be called and that its credentials exist. With
    /// `test`, the check also sends a short request to the first server, which the provider may
    /// bill.
    ///
    /// # Errors
    /// The fault, with the connector and the host, but without secrets. `Unimplemented` if this
    /// node has no such check.
    ///
    /// # Cancel safety
    /// Cancel safe, except that a test request may already have been sent and billed.
    async fn check_connector(
        &self,
        connector: &ConnectorSpec,
        test: bool,
    ) -> Result<(), PredictError>;
}

/// Result of the check on one worker.
#[derive(Debug)]
pub struct ConnectorCheck {
    /// The worker.
    pub worker: WorkerId,
    /// The fault of the connector on that worker.
    pub outcome: Result<(), PredictError>,
}
