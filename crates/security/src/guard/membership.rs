//! Membership changes with the rights of a principal.

use std::sync::Arc;

use async_trait::async_trait;
use volley_types::registry::CoordinatorMember;
use volley_types::{Membership, NodeId, PredictError, Role};

use super::GuardedCluster;
use crate::audit::Action;

impl GuardedCluster {
    /// Whether the principal may change the cluster, and the membership for the change.
    fn change(&self) -> (Result<(), PredictError>, Arc<dyn Membership>) {
        let role = self.principal.allow(Role::ClusterAdmin);
        let permitted = role.and_then(|()| self.principal.reach_all());
        (permitted, self.inner.membership.clone())
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
        let (permitted, membership) = self.change();
        let change = async move {
            permitted?;
            membership.join(node, address).await
        };
        self.audited(action, change).await
    }

    async fn leave(&self, node: NodeId) -> Result<Vec<CoordinatorMember>, PredictError> {
        let action = Action {
            name: "node.leave",
            target: node.to_string(),
        };
        let (permitted, membership) = self.change();
        let change = async move {
            permitted?;
            membership.leave(node).await
        };
        self.audited(action, change).await
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
        let (permitted, membership) = self.change();
        let change = async move {
            permitted?;
            membership.replace(old, node, address).await
        };
        self.audited(action, change).await
    }

    async fn transfer_leadership(&self, to: Option<NodeId>) -> Result<NodeId, PredictError> {
        let action = Action {
            name: "leader.transfer",
            target: to.map_or_else(|| "any".to_owned(), |node| node.to_string()),
        };
        let (permitted, membership) = self.change();
        let change = async move {
            permitted?;
            membership.transfer_leadership(to).await
        };
        self.audited(action, change).await
    }

    async fn backup(&self) -> Result<Vec<u8>, PredictError> {
        let action = Action {
            name: "registry.backup",
            target: "all".to_owned(),
        };
        let (permitted, membership) = self.change();
        let change = async move {
            permitted?;
            membership.backup().await
        };
        self.audited(action, change).await
    }
}
