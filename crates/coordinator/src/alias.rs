//! Resolution of aliases for requests, and mirrored requests. The choice of a target is pure
//! ([`AliasSpec::choose`]).

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::StreamExt;
use volley_types::control::ModelStatus;
use volley_types::registry::{
    AliasEntry, AliasSpec, MAX_NAME_DEPTH, ModelState, PipelineSpec, RegistryState, choice_hash,
    no_versions,
};
use volley_types::{
    Deadline, ErrorCode, ModelName, ModelRef, PredictError, PredictRequest, Priority, Signature,
};

use crate::Coordinator;

/// Maximum number of concurrent mirrored requests; further ones are skipped.
pub(crate) const MAX_COPIES: usize = 64;
/// Time limit of a mirrored request.
const COPY_TIMEOUT: Duration = Duration::from_secs(60);

/// Result of resolving a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ResolvedAlias {
    /// The model or version that answers.
    pub(crate) model: ModelRef,
    /// Models that receive a mirrored request.
    pub(crate) copies: Vec<ModelRef>,
}

/// Whether aliases mirror this request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mirroring {
    Enabled,
    /// The request is itself a mirrored request.
    Disabled,
}

/// Keys of one request for choices.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StickinessKeys {
    /// Hash of the request id, unique for each request.
    id: u64,
    /// Hash of the sticky value, or of the id.
    target: u64,
}

impl StickinessKeys {
    pub(crate) fn of(request: &PredictRequest) -> Self {
        let id = choice_hash(request.request_id.as_str().as_bytes());
        Self {
            id,
            target: request.affinity.unwrap_or(id),
        }
    }
}

/// Follows aliases from `model` to a model or pipeline.
///
/// # Errors
/// `NotFound` for a version of an alias; `Conflict` when an alias leads to no model.
pub(crate) fn resolve(
    registry: &RegistryState,
    model: &ModelRef,
    keys: StickinessKeys,
) -> Result<ResolvedAlias, PredictError> {
    let mut resolved = ResolvedAlias {
        model: model.clone(),
        copies: Vec::new(),
    };
    // Writes enforce this limit, but a restored registry may have longer chains.
    for _ in 0..=MAX_NAME_DEPTH {
        let Some(AliasEntry { spec, .. }) = registry.aliases.get(&resolved.model.name) else {
            return Ok(resolved);
        };
        if resolved.model.version.is_some() {
            return Err(no_versions(&resolved.model.name));
        }
        resolved.copies.extend(spec.mirrored(keys.id).cloned());
        let next = spec.choose(keys.target).ok_or_else(|| endless(model))?;
        resolved.model = next.clone();
    }
    Err(endless(model))
}

fn endless(model: &ModelRef) -> PredictError {
    let message = format!("alias '{model}' leads to no model; update its targets");
    PredictError::new(ErrorCode::Conflict, message)
}

/// All models that an alias may lead to, in the order of its targets.
fn ends<'r>(registry: &'r RegistryState, alias: &'r AliasSpec, depth: usize) -> Vec<&'r ModelRef> {
    let mut found = Vec::new();
    for target in alias.targets.iter().filter(|target| target.weight != 0) {
        match registry.aliases.get(&target.model.name) {
            None => found.push(&target.model),
            Some(entry) if depth < MAX_NAME_DEPTH => {
                found.extend(ends(registry, &entry.spec, depth + 1));
            }
            Some(_) => {}
        }
    }
    found
}

/// The models that a name leads to; a name that is not an alias leads to itself.
fn ends_of<'r>(registry: &'r RegistryState, name: &'r ModelRef) -> Vec<&'r ModelRef> {
    match registry.aliases.get(&name.name) {
        Some(alias) => ends(registry, &alias.spec, 0),
        None => vec![name],
    }
}

impl Coordinator {
    /// The signature of an alias: that of its first available target.
    pub(crate) fn alias_signature(
        &self,
        registry: &RegistryState,
        alias: &AliasSpec,
    ) -> Result<Signature, PredictError> {
        let mut refusal = None;
        for model in ends(registry, alias, 0) {
            match self.end_signature(registry, model) {
                Ok(signature) => return Ok(signature),
                Err(error) => refusal = refusal.or(Some(error)),
            }
        }
        Err(refusal.unwrap_or_else(|| endless(&ModelRef::deployed(alias.name.clone()))))
    }

    /// Activates the models that determine the signature of an alias or a pipeline: the first
    /// available target, or all models of a pipeline.
    ///
    /// # Errors
    /// The errors of activating a model, if no target is available.
    pub(crate) async fn activate_targets(
        &self,
        registry: &RegistryState,
        name: &ModelRef,
    ) -> Result<(), PredictError> {
        let mut refusal = None;
        for end in ends_of(registry, name) {
            let activated = match registry.pipelines.get(&end.name) {
                None => self.activate(&end.name, None).await,
                Some(pipeline) => self.activate_steps(registry, &pipeline.spec).await,
            };
            match activated {
                Ok(()) if self.end_signature(registry, end).is_ok() => return Ok(()),
                Ok(()) => {}
                Err(error) => refusal = refusal.or(Some(error)),
            }
        }
        refusal.map_or(Ok(()), Err)
    }

    /// Activates the models of a pipeline. For a step with an alias, it activates the first
    /// available target.
    async fn activate_steps(
        &self,
        registry: &RegistryState,
        pipeline: &PipelineSpec,
    ) -> Result<(), PredictError> {
        pipeline.check_loaded()?;
        for step in pipeline.names() {
            let mut refusal = None;
            for end in ends_of(registry, step) {
                match self.activate(&end.name, None).await {
                    Ok(()) => {
                        refusal = None;
                        break;
                    }
                    Err(error) => refusal = Some(error),
                }
            }
            if let Some(refusal) = refusal {
                return Err(refusal);
            }
        }
        Ok(())
    }

    /// Rejects an answer whose schema differs from the alias's signature.
    pub(crate) fn check_fits(
        &self,
        registry: &RegistryState,
        asked: &ModelRef,
        signature: &Signature,
    ) -> Result<(), PredictError> {
        let Some(alias) = registry.aliases.get(&asked.name) else {
            return Ok(());
        };
        let told = self.alias_signature(registry, &alias.spec)?;
        if told.stands_for(signature) {
            return Ok(());
        }
        let message = format!(
            "the targets of alias '{}' no longer have the same inputs and outputs; set targets \
             that do",
            asked.name
        );
        Err(PredictError::new(ErrorCode::Conflict, message))
    }

    /// Rejects an alias whose running targets have different signatures.
    pub(crate) fn check_alias(&self, alias: &AliasSpec) -> Result<(), PredictError> {
        let registry = self.0.cluster.registry().borrow().clone();
        let known = alias.names().filter_map(|model| {
            let signature = self.name_signature(&registry, model).ok()?;
            Some((model, signature))
        });
        let known: Vec<_> = known.collect();
        let Some((first, told)) = known.first() else {
            return Ok(());
        };
        let other = known.iter().find(|(_, other)| !told.stands_for(other));
        let Some((other, signature)) = other else {
            return Ok(());
        };
        Err(PredictError::invalid(format!(
            "'{first}' ({}) and '{other}' ({}) have different inputs or outputs and cannot share \
             one name",
            told.task.as_str(),
            signature.task.as_str()
        )))
    }

    /// State of an alias, derived from its targets.
    pub(crate) fn alias_status(&self, registry: &RegistryState, alias: &AliasSpec) -> ModelStatus {
        let ends = ends(registry, alias, 0);
        let there = ends.iter().filter(|model| {
            let signature = self.end_signature(registry, model);
            signature.is_ok()
        });
        let there = there.count();
        let state = match there {
            0 => ModelState::Undeployed,
            some if some == ends.len() => ModelState::Deployed,
            _ => ModelState::PartiallyDeployed,
        };
        ModelStatus {
            state,
            desired_replicas: 0,
            version: None,
            replicas: Vec::new(),
            serving: Vec::new(),
            unplaced: None,
        }
    }

    /// The aliases that can be called now.
    pub(crate) fn callable_aliases(&self, registry: &RegistryState) -> Vec<ModelName> {
        let aliases = registry.aliases.values().map(|entry| &entry.spec);
        let callable = aliases.filter(|alias| {
            ends(registry, alias, 0).iter().any(|model| {
                let entry = registry.models.get(&model.name);
                let deployed = entry.is_some_and(|entry| entry.deployment.is_some());
                deployed || registry.pipelines.contains_key(&model.name)
            })
        });
        callable.map(|alias| alias.name.clone()).collect()
    }

    /// Sends mirrored requests and discards their responses. It never waits: if too many are
    /// running, or the request's rows are streamed, it sends none.
    pub(crate) fn mirror(&self, request: &PredictRequest, copies: Vec<ModelRef>) {
        for model in copies {
            let Ok(place) = Arc::clone(&self.0.copies).try_acquire_owned() else {
                tracing::debug!(%model, "mirrored request skipped: too many are running");
                continue;
            };
            let Some(mut copy) = request.try_clone() else {
                tracing::debug!(%model, "mirrored request skipped: its rows are streamed");
                continue;
            };
            let latest = Deadline::after(Instant::now(), COPY_TIMEOUT);
            copy.deadline = Some(copy.deadline.map_or(latest, |it| it.earlier(latest)));
            copy.priority = Priority::Low;
            copy.model = model;
            let coordinator = self.clone();
            self.spawn(async move {
                let model = copy.model.clone();
                if let Err(error) = coordinator.drain_copy(copy).await {
                    tracing::debug!(%model, error = error.chain(), "mirrored request failed");
                }
                drop(place);
            });
        }
    }

    async fn drain_copy(&self, copy: PredictRequest) -> Result<(), PredictError> {
        let mut answer = self.answer(copy, None, Mirroring::Disabled)?;
        while let Some(batch) = answer.next().await {
            batch?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
