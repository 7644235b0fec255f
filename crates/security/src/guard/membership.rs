//! Membership changes with the rights of a principal.

use async_trait::async_trait;
use volley_types::registry::CoordinatorMember;
use volley_types::{Membership, NodeId, PredictError, Role};

use super::GuardedCluster;
use crate::audit::Action;

impl GuardedCluster {
    fn may_change_cluster(&self) -> Result<(), PredictError> {
        self.principal.allow(Role::ClusterAdmin)?;
        self.principal.reach_all()
    }
}

#[async_trait]
impl Membership for GuardedCluster {
    async fn join(
        &self,
        node: NodeId,
        address: String,
    ) -> Result<Vec<CoordinatorMember>, PredictError> {
        let action = Action {
            name: "node.join",
            target: node.to_string(),
        };
        let outcome = match self.may_change_cluster() {
            Ok(()) => self.inner.membership.join(node, address).await,
            Err(error) => Err(error),
        };
        self.audit(action, outcome).await
    }

    async fn leave(&self, node: NodeId) -> Result<Vec<CoordinatorMember>, PredictError> {
        let action = Action {
            name: "node.leave",
            target: node.to_string(),
        };
        let outcome = match self.may_change_cluster() {
            Ok(()) => self.inner.membership.leave(node).await,
            Err(error) => Err(error),
        };
        self.audit(action, outcome).await
    }

    async fn replace(
        &self,
        old: NodeId,
        node: NodeId,
        address: String,
    ) -> Result<Vec<CoordinatorMember>, PredictError> {
        let action = Action {
            name: "node.replace",
            target: format!("{old} by {node}"),
        };
        let outcome = match self.may_change_cluster() {
            Ok(()) => self.inner.membership.replace(old, node, address).await,
            Err(error) => Err(error),
        };
        self.audit(action, outcome).await
    }

    async fn transfer_leadership(&self, to: Option<NodeId>) -> Result<NodeId, PredictError> {
        let action = Action {
            name: "leader.transfer",
            target: to.map_or_else(|| "any".to_owned(), |node| node.to_string()),
        };
        let outcome = match self.may_change_cluster() {
            Ok(()) => self.inner.membership.transfer_leadership(to).await,
            Err(error) => Err(error),
        };
        self.audit(action, outcome).await
    }

    async fn backup(&self) -> Result<Vec<u8>, PredictError> {
        let action = Action {
            name: "registry.backup",
            target: "all".to_owned(),
        };
        let outcome = match self.may_change_cluster() {
            Ok(()) => self.inner.membership.backup().await,
            Err(error) => Err(error),
        };
        self.audit(action, outcome).await
    }
}
