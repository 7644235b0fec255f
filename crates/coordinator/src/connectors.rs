//! What the workers say of a connector before it is made.

use std::sync::Arc;

use futures::future::join_all;
use volley_types::control::Liveness;
use volley_types::registry::ConnectorSpec;
use volley_types::{CheckConnector, ConnectorCheck, ErrorCode, Registry};

use crate::{Coordinator, status};

/// The way to ask the worker at an address (`host:port`).
pub type AskWorker = Arc<dyn Fn(&str) -> Option<Arc<dyn CheckConnector>> + Send + Sync>;

/// Workers that are asked; the others are configured alike.
const MAX_ASKED: usize = 64;

impl Coordinator {
    /// Asks workers about connectors in this way from now on; before, nobody is asked.
    pub fn ask_workers(&self, ask: AskWorker) {
        // A second way would be the same.
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
            // One call is enough to know the server.
            let test = test && index == 0;
            async move {
                let outcome = way?.check_connector(connector, test).await;
                // One of an older version cannot be asked.
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
