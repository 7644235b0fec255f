//! [`Registry`], [`ClusterView`] and [`Membership`] for the edges.

use std::sync::Arc;
use std::time::{Instant, SystemTime};

use async_trait::async_trait;
use volley_cluster::backup;
use volley_types::control::{ClusterStatus, ModelStatus};
use volley_types::registry::{
    ConnectorSpec, CoordinatorMember, RegistryCommand, RegistryReply, RegistryState,
};
use volley_types::{
    ClusterView, ConnectorCheck, Membership, ModelName, NodeId, PredictError, Registry,
};

use crate::drain::{self, Coordinators};
use crate::scaler::signal::signal;
use crate::{Coordinator, status};

#[async_trait]
impl Registry for Coordinator {
    fn state(&self) -> Arc<RegistryState> {
        self.0.cluster.registry().borrow().clone()
    }

    async fn write(&self, command: RegistryCommand) -> Result<RegistryReply, PredictError> {
        match &command {
            RegistryCommand::PutAlias { alias, .. } => self.check_alias(alias)?,
            RegistryCommand::PutPipeline { pipeline, .. } => self.check_pipeline(pipeline)?,
            RegistryCommand::Drain(..) => self.check_drain(&command)?,
            _ => {}
        }
        self.0.cluster.write_visibly(command).await
    }

    async fn check_connector(
        &self,
        connector: &ConnectorSpec,
        test: bool,
    ) -> Result<Vec<ConnectorCheck>, PredictError> {
        Ok(self.ask_of_connector(connector, test).await)
    }
}

impl ClusterView for Coordinator {
    fn model_status(&self, model: &ModelName) -> Option<ModelStatus> {
        let registry = self.state();
        if let Some(alias) = registry.aliases.get(model) {
            return Some(self.alias_status(&registry, &alias.spec));
        }
        if let Some(pipeline) = registry.pipelines.get(model) {
            return Some(self.pipeline_status(&registry, &pipeline.spec));
        }
        let entry = registry.models.get(model)?;
        Some(status::model(entry, &registry, &self.0.live.read()))
    }

    fn status(&self) -> ClusterStatus {
        let registry = self.state();
        let (raft, reports) = (
            self.0.cluster.raft().borrow().clone(),
            self.0.cluster.reports(),
        );
        let coordinators = Coordinators {
            leader: raft.leader,
            reports: &reports,
        };
        // One read lock only: a second one would deadlock while a writer waits.
        let (scale, workers, drains) = {
            let live = self.0.live.read();
            let workers = status::workers(&live, Instant::now());
            let drains = drain::statuses(&registry, &live, &coordinators);
            (signal(&registry, &live), workers, drains)
        };
        ClusterStatus {
            scale,
            raft,
            workers,
            drains,
            reports,
            level: self.0.cluster.level(),
            active_streams: u32::try_from(self.active_streams()).unwrap_or(u32::MAX),
        }
    }

    fn ready(&self) -> bool {
        self.invites() && self.0.cluster.healthy()
    }
}

#[async_trait]
impl Membership for Coordinator {
    async fn join(
        &self,
        node: NodeId,
        address: String,
    ) -> Result<Vec<CoordinatorMember>, PredictError> {
        self.0.cluster.join(node, address).await
    }

    async fn leave(&self, node: NodeId) -> Result<Vec<CoordinatorMember>, PredictError> {
        self.0.cluster.leave(node).await
    }

    async fn replace(
        &self,
        old: NodeId,
        node: NodeId,
        address: String,
    ) -> Result<Vec<CoordinatorMember>, PredictError> {
        self.0.cluster.replace(old, node, address).await
    }

    async fn transfer_leadership(&self, to: Option<NodeId>) -> Result<NodeId, PredictError> {
        self.0.cluster.transfer_leadership(to).await
    }

    async fn backup(&self) -> Result<Vec<u8>, PredictError> {
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let now_ms = since.map_or(0, |since| since.as_millis());
        Ok(backup::encode(
            &self.state(),
            u64::try_from(now_ms).unwrap_or(u64::MAX),
        ))
    }
}
