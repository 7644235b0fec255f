//! Checks of a connector on workers before it is created.

use std::sync::Arc;

use futures::future::join_all;
use volley_types::control::Liveness;
use volley_types::registry::ConnectorSpec;
use volley_types::{CheckConnector, ConnectorCheck, ErrorCode, Registry};

use crate::{Coordinator, status};

/// Returns the connector check of the worker at an address (`host:port`).
pub type AskWorker = Arc<dyn Fn(&str) -> Option<Arc<dyn CheckConnector>> + Send + Sync>;

/// Maximum number of checked workers; the others usually have the same configuration.
const MAX_ASKED: usize = 64;

impl Coordinator {
    /// Sets the connector check. Without it, no worker is checked.
    pub fn ask_workers(&self, ask: AskWorker) {
        // A second call would set the same value.
        let _ = self.0.ask_worker.set(ask);
    }

    pub(crate) async fn ask_of_connector(
        &self,
        connector: &ConnectorSpec,
        test: bool,
    ) -> Vec<ConnectorCheck> {
        let Some(ask) = self.0.ask_worker.get() else {
            return Vec::new();
        };
        let connector = self.state().with_secrets(connector);
        let now = std::time::Instant::now();
        let workers = status::workers(&self.0.live.read(), now);
        let alive = workers
            .into_iter()
            .filter(|it| it.liveness == Liveness::Alive);
        let asked = alive.take(MAX_ASKED).enumerate().map(|(index, worker)| {
            let (way, connector) = (ask(&worker.address), &connector);
            // One test call to the server is enough.
            let test = test && index == 0;
            async move {
                let outcome = way?.check_connector(connector, test).await;
                // Workers of older versions do not support the check.
                let known =
                    !matches!(&outcome, Err(error) if error.code == ErrorCode::Unimplemented);
                known.then_some(ConnectorCheck {
                    worker: worker.id,
                    outcome,
                })
            }
        });
        join_all(asked).await.into_iter().flatten().collect()
    }
}
