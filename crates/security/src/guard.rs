//! A cluster seen through a principal's rights. Every edge hands its handlers one of these and
//! never the cluster itself, so that no handler can forget to ask: what a principal may not see
//! does not exist for it, and what it may not do is refused here even if its route was open.

mod rights;
mod share;

use std::sync::Arc;
use std::time::Instant;

use async_trait::async_trait;
use volley_types::control::{ClusterStatus, ModelStatus};
use volley_types::egress::EgressPolicy;
use volley_types::registry::{
    ConnectorSpec, CoordinatorMember, CredentialRef, ModelSource, ModelUrlScheme, RegistryCommand,
    RegistryReply, RegistryState, RolloutAction,
};
use volley_types::{
    ChunkStream, ConnectorCheck, Control, ModelName, ModelRef, NodeId, Predict, PredictError,
    PredictRequest, Role, Signature,
};

use crate::Principal;
use crate::audit::{Action, AuditLog};
use crate::quota::QuotaTracker;

pub use self::share::Share;

/// Models, as a principal may call them.
pub struct GuardedPredict {
    inner: Arc<dyn Predict>,
    principal: Arc<Principal>,
    meters: QuotaTracker,
}

impl GuardedPredict {
    /// `inner`, with the rights of `principal`, whose use is counted in `meters`.
    pub(crate) fn new(
        inner: Arc<dyn Predict>,
        principal: Arc<Principal>,
        meters: QuotaTracker,
    ) -> Self {
        Self {
            inner,
            principal,
            meters,
        }
    }
}

/// Predicts on `inner` as `principal` may, and counts what that uses.
async fn predict<P: Predict + ?Sized>(
    inner: &P,
    principal: &Principal,
    meters: &QuotaTracker,
    mut request: PredictRequest,
) -> Result<ChunkStream, PredictError> {
    principal.admit(&mut request)?;
    let metered = match principal.quota() {
        Some((key, quota)) => meters.begin(key, quota, Instant::now())?,
        None => None,
    };
    let stream = inner.predict(request).await?;
    Ok(match metered {
        Some(metered) => metered.count(stream),
        None => stream,
    })
}

#[async_trait]
impl Predict for GuardedPredict {
    async fn predict(&self, request: PredictRequest) -> Result<ChunkStream, PredictError> {
        predict(&*self.inner, &self.principal, &self.meters, request).await
    }

    async fn signature(&self, model: &ModelRef) -> Result<Signature, PredictError> {
        self.principal.allow(Role::Viewer)?;
        self.principal.see(&model.name)?;
        self.inner.signature(model).await
    }

    async fn models(&self) -> Vec<ModelName> {
        visible(&self.principal, self.inner.models().await)
    }
}

/// A cluster, as a principal may see and change it.
pub struct GuardedControl {
    inner: Arc<dyn Control>,
    principal: Arc<Principal>,
    meters: QuotaTracker,
    egress: Arc<EgressPolicy>,
    share: Share,
    audit: Option<AuditLog>,
}

impl GuardedControl {
    /// `inner`, with the rights of `principal`, whose use is counted in `meters`; what it
    /// registers leads where `egress` allows and is within its `share`, and what it changes goes into
    /// `audit`.
    pub(crate) fn new(
        inner: Arc<dyn Control>,
        principal: Arc<Principal>,
        meters: QuotaTracker,
        egress: Arc<EgressPolicy>,
        share: Share,
        audit: Option<AuditLog>,
    ) -> Self {
        Self {
            inner,
            principal,
            meters,
            egress,
            share,
            audit,
        }
    }

    fn is_viewer(&self) -> bool {
        self.principal.allow(Role::Viewer).is_ok()
    }

    fn sees(&self, model: &ModelName) -> bool {
        self.is_viewer() && self.principal.models().contains(model)
    }

    /// Notes what came of `action`. One that cannot be noted fails, although it was done: an
    /// operator must not go on without the trail.
    async fn note<T>(
        &self,
        action: Action,
        outcome: Result<T, PredictError>,
    ) -> Result<T, PredictError> {
        let Some(audit) = &self.audit else {
            return outcome;
        };
        let result = match &outcome {
            Ok(_) => "ok",
            Err(error) => error.code.as_str(),
        };
        let who = self.principal.who();
        let noted = audit.record(who, action, result.to_owned()).await;
        if let Err(error) = noted {
            tracing::error!(
                error = error.chain(),
                "the audit trail could not be written"
            );
            return outcome.and(Err(error));
        }
        outcome
    }

    fn may_change_cluster(&self) -> Result<(), PredictError> {
        self.principal.allow(Role::ClusterAdmin)?;
        self.principal.reach_all()
    }
}

#[async_trait]
impl Predict for GuardedControl {
    async fn predict(&self, request: PredictRequest) -> Result<ChunkStream, PredictError> {
        predict(&*self.inner, &self.principal, &self.meters, request).await
    }

    async fn signature(&self, model: &ModelRef) -> Result<Signature, PredictError> {
        self.principal.allow(Role::Viewer)?;
        self.principal.see(&model.name)?;
        self.inner.signature(model).await
    }

    async fn models(&self) -> Vec<ModelName> {
        visible(&self.principal, self.inner.models().await)
    }
}

#[async_trait]
impl Control for GuardedControl {
    fn registry(&self) -> Arc<RegistryState> {
        let registry = self.inner.registry();
        if !self.is_viewer() {
            return Arc::new(RegistryState {
                revision: registry.revision,
                ..RegistryState::default()
            });
        }
        if self.principal.models().is_all() {
            return registry;
        }
        Arc::new(rights::seen(&registry, self.principal.models()))
    }

    async fn write(&self, command: RegistryCommand) -> Result<RegistryReply, PredictError> {
        let action = action_of(&command);
        let registry = self.inner.registry();
        let permitted = rights::permit(&command, &self.principal, &registry)
            .and_then(|()| leads(&command, &self.egress))
            .and_then(|()| {
                self.share
                    .check(&command, self.principal.models(), &registry)
            });
        let outcome = match permitted {
            Ok(()) => self.inner.write(command).await,
            Err(error) => Err(error),
        };
        self.note(action, outcome).await
    }

    async fn check_connector(
        &self,
        connector: &ConnectorSpec,
        test: bool,
    ) -> Result<Vec<ConnectorCheck>, PredictError> {
        let mut named = connector.clone();
        for credential in named.credentials_mut() {
            if let CredentialRef::Sealed(name, _) = credential {
                *credential = CredentialRef::Secret(name.clone());
            }
        }
        let command = RegistryCommand::CreateConnector(named);
        rights::permit(&command, &self.principal, &self.inner.registry())?;
        leads(&command, &self.egress)?;
        self.inner.check_connector(connector, test).await
    }

    fn model_status(&self, model: &ModelName) -> Option<ModelStatus> {
        if !self.sees(model) {
            return None;
        }
        self.inner.model_status(model)
    }

    fn status(&self) -> ClusterStatus {
        let mut status = self.inner.status();
        if self.is_viewer() && self.principal.models().is_all() {
            return status;
        }
        for worker in &mut status.workers {
            worker.replicas.retain(|replica| self.sees(&replica.model));
        }
        for drain in &mut status.drains {
            drain.models.retain(|model| self.sees(model));
            drain.active = 0;
        }
        for report in status.reports.values_mut() {
            report.active_streams = 0;
        }
        // How much others do is theirs to know: what runs on the replicas that the caller sees.
        let replicas = status.workers.iter().flat_map(|worker| &worker.replicas);
        let active = replicas.map(|replica| replica.active);
        status.active_streams = active.fold(0, u32::saturating_add);
        status
    }

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
            Ok(()) => self.inner.join(node, address).await,
            Err(error) => Err(error),
        };
        self.note(action, outcome).await
    }

    async fn leave(&self, node: NodeId) -> Result<Vec<CoordinatorMember>, PredictError> {
        let action = Action {
            name: "node.leave",
            target: node.to_string(),
        };
        let outcome = match self.may_change_cluster() {
            Ok(()) => self.inner.leave(node).await,
            Err(error) => Err(error),
        };
        self.note(action, outcome).await
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
            Ok(()) => self.inner.replace(old, node, address).await,
            Err(error) => Err(error),
        };
        self.note(action, outcome).await
    }

    async fn hand_over(&self, to: Option<NodeId>) -> Result<NodeId, PredictError> {
        let action = Action {
            name: "leader.hand_over",
            target: to.map_or_else(|| "any".to_owned(), |node| node.to_string()),
        };
        let outcome = match self.may_change_cluster() {
            Ok(()) => self.inner.hand_over(to).await,
            Err(error) => Err(error),
        };
        self.note(action, outcome).await
    }

    async fn backup(&self) -> Result<Vec<u8>, PredictError> {
        let action = Action {
            name: "registry.backup",
            target: "all".to_owned(),
        };
        let outcome = match self.may_change_cluster() {
            Ok(()) => self.inner.backup().await,
            Err(error) => Err(error),
        };
        self.note(action, outcome).await
    }

    fn ready(&self) -> bool {
        self.inner.ready()
    }
}

fn visible(principal: &Principal, mut models: Vec<ModelName>) -> Vec<ModelName> {
    if principal.allow(Role::Viewer).is_err() {
        return Vec::new();
    }
    models.retain(|model| principal.models().contains(model));
    models
}

/// Whether what `command` registers leads where that is allowed, as far as its URLs tell.
fn leads(command: &RegistryCommand, egress: &EgressPolicy) -> Result<(), PredictError> {
    match command {
        RegistryCommand::CreateConnector(spec) | RegistryCommand::UpdateConnector(spec) => {
            let others = spec.policy.endpoints.iter().map(|endpoint| &endpoint.url);
            let mut all = std::iter::once(&spec.url).chain(others);
            all.try_for_each(|url| egress.check("the connector's URL", url).map(drop))
        }
        RegistryCommand::RegisterModel(_, spec) => match &spec.source {
            // The others name buckets and files, whose servers the workers' configuration names.
            ModelSource::Url { url, .. }
                if matches!(url.scheme(), ModelUrlScheme::Http | ModelUrlScheme::Https) =>
            {
                egress.check("the model's URL", url.as_str()).map(drop)
            }
            _ => Ok(()),
        },
        _ => Ok(()),
    }
}

/// What the audit trail says of `command`.
fn action_of(command: &RegistryCommand) -> Action {
    let (name, target) = match command {
        RegistryCommand::CreateConnector(spec) => ("connector.create", spec.id.to_string()),
        RegistryCommand::DeleteConnector(id) => ("connector.delete", id.to_string()),
        RegistryCommand::RegisterModel(model, _) => ("model.register", model.to_string()),
        RegistryCommand::Deploy {
            model,
            version,
            replicas,
            ..
        } => {
            let reference = ModelRef {
                name: model.clone(),
                version: *version,
            };
            ("model.deploy", format!("{reference} x{replicas}"))
        }
        RegistryCommand::Undeploy(model) => ("model.undeploy", model.to_string()),
        RegistryCommand::DeleteModel(model) => ("model.delete", model.to_string()),
        RegistryCommand::Place(placings) => {
            let models = placings.iter().map(|placing| placing.model.to_string());
            ("model.place", models.collect::<Vec<_>>().join(" "))
        }
        RegistryCommand::Rollout { model, action } => {
            let name = match action {
                RolloutAction::Pause => "model.rollout.pause",
                RolloutAction::Resume => "model.rollout.resume",
                RolloutAction::Rollback { .. } => "model.rollout.rollback",
                RolloutAction::Stop(_) => "model.rollout.stop",
            };
            (name, model.to_string())
        }
        RegistryCommand::Scale {
            model, replicas, ..
        } => ("model.scale", format!("{model} x{replicas}")),
        RegistryCommand::CreateKey(key) => ("key.create", format!("{} role {}", key.id, key.role)),
        RegistryCommand::RotateKey { id, .. } => ("key.rotate", id.to_string()),
        RegistryCommand::LimitKey { id, .. } => ("key.limit", id.to_string()),
        RegistryCommand::RevokeKey(id) => ("key.revoke", id.to_string()),
        RegistryCommand::UpdateConnector(spec) => ("connector.update", spec.id.to_string()),
        RegistryCommand::UpdateModel { model, .. } => ("model.update", model.to_string()),
        RegistryCommand::DeleteTask { task, .. } => ("task.delete", task.clone()),
        RegistryCommand::CreateGroup(group) => ("group.create", group.id.to_string()),
        RegistryCommand::UpdateGroup(group) => ("group.update", group.id.to_string()),
        RegistryCommand::DeleteGroup(id) => ("group.delete", id.to_string()),
        RegistryCommand::ChangeSettings(settings) => {
            let names: Vec<_> = settings.keys().map(String::as_str).collect();
            ("settings.change", names.join(" "))
        }
        RegistryCommand::PutAlias { alias, .. } => ("alias.put", alias.name.to_string()),
        RegistryCommand::DeleteAlias { name, .. } => ("alias.delete", name.to_string()),
        RegistryCommand::PutPipeline { pipeline, .. } => {
            ("pipeline.put", pipeline.name.to_string())
        }
        RegistryCommand::DeletePipeline { name, .. } => ("pipeline.delete", name.to_string()),
        RegistryCommand::PutSecret { name, .. } => ("secret.put", name.to_string()),
        RegistryCommand::RewrapSecret { name, .. } => ("secret.rewrap", name.to_string()),
        RegistryCommand::DeleteSecret(name) => ("secret.delete", name.to_string()),
        RegistryCommand::Drain(node, drain) if drain.force => {
            ("node.drain.force", node.to_string())
        }
        RegistryCommand::Drain(node, _) => ("node.drain", node.to_string()),
        RegistryCommand::Undrain(node) => ("node.undrain", node.to_string()),
        RegistryCommand::PutTask { id, record } => {
            ("task.put", format!("{id} {}", record.state.as_str()))
        }
        RegistryCommand::ForgetTask(id) => ("task.delete", id.clone()),
    };
    Action { name, target }
}
