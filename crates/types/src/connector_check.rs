//! Whether a connector can be used where it would be: on the workers.

use async_trait::async_trait;

use crate::error::PredictError;
use crate::ids::WorkerId;
use crate::registry::ConnectorSpec;

/// Whoever can tell whether a connector works from where it stands.
#[async_trait]
pub trait CheckConnector: Send + Sync + 'static {
    /// Checks that the connector's servers may be called and its credentials are there. With
    /// `test`, its first server is called too, with a short request that its owner may bill.
    ///
    /// # Errors
    /// What is wrong, naming the connector and the host; never a secret. `Unimplemented` where
    /// this is not known here.
    async fn check_connector(
        &self,
        connector: &ConnectorSpec,
        test: bool,
    ) -> Result<(), PredictError>;
}

/// What one worker says of a connector.
#[derive(Debug)]
pub struct ConnectorCheck {
    /// The worker.
    pub worker: WorkerId,
    /// What is wrong with it there.
    pub outcome: Result<(), PredictError>,
}
