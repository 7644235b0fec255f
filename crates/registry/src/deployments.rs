//! Deployments, their placement and rollouts.

use std::collections::BTreeSet;
use std::sync::Arc;

use volley_types::registry::{
    DeployOptions, Deployment, ModelEntry, PlacementDecision, RegistryReply, RegistryState,
    Rollout, RolloutAction,
};
use volley_types::{ErrorCode, ModelName, ModelVersion, PredictError, Revision, WorkerId};

use super::limits::{MAX_LABELS, MAX_REPLICAS, MAX_TEXT, within};
use super::{changed, conflict, next, not_found, unchanged};

/// Fields of a `Deploy` command.
pub(super) struct DeployRequest<'a> {
    version: Option<ModelVersion>,
    replicas: u32,
    overcommit: bool,
    workers: &'a [WorkerId],
    options: &'a DeployOptions,
}

impl<'a> DeployRequest<'a> {
    /// The fields as the command has them.
    pub(super) fn new(
        version: Option<ModelVersion>,
        replicas: u32,
        overcommit: bool,
        workers: &'a [WorkerId],
        options: &'a DeployOptions,
    ) -> Self {
        Self {
            version,
            replicas,
            overcommit,
            workers,
            options,
        }
    }
}

pub(super) fn deploy(
    state: &mut RegistryState,
    model: &ModelName,
    asked: &DeployRequest<'_>,
) -> Result<RegistryReply, PredictError> {
    let replicas = checked(asked)?;
    let revision = next(state);
    let unchanged_revision = state.revision;
    let entry = entry(state, model)?;
    let version = known_version(entry, asked.version)?;
    let deployment = Deployment {
        overcommit: asked.overcommit,
        workers: asked.workers.to_vec(),
        options: asked.options.clone(),
        ..Deployment::new(version, replicas, revision)
    };
    let same = entry
        .deployment
        .as_ref()
        .is_some_and(|current| asks_for_the_same(current, &deployment));
    if same {
        return Ok(RegistryReply {
            revision: unchanged_revision,
            version: Some(version),
        });
    }
    can_stand_beside(entry, &deployment)?;
    replace(entry, deployment);
    entry.ever_deployed = true;
    changed(state, Some(version))
}

fn known_version(
    entry: &ModelEntry,
    asked: Option<ModelVersion>,
) -> Result<ModelVersion, PredictError> {
    let newest = entry.versions.keys().next_back().copied();
    let version = asked
        .or(newest)
        .ok_or_else(|| not_found("version of model", &entry.name))?;
    if !entry.versions.contains_key(&version) {
        let message = format!("no version '{version}' of model '{}' exists", entry.name);
        return Err(PredictError::new(ErrorCode::NotFound, message));
    }
    Ok(version)
}

/// Rejects `keep_previous` without another deployed version to keep.
fn can_stand_beside(entry: &ModelEntry, asked: &Deployment) -> Result<(), PredictError> {
    if asked.options.keep_previous == 0 {
        return Ok(());
    }
    let other = entry
        .deployment
        .as_ref()
        .is_some_and(|current| current.version != asked.version || current.rollout.is_some());
    if other {
        return Ok(());
    }
    Err(conflict(format!(
        "model '{}' has no other deployed version to keep beside version {}; deploy that one first",
        entry.name, asked.version
    )))
}

/// Compares two deployments. With scaling, the current number of replicas is not part of the
/// request.
fn asks_for_the_same(current: &Deployment, asked: &Deployment) -> bool {
    let replicas = asked.options.scaling.is_some() || current.replicas == asked.replicas;
    replicas
        && current.version == asked.version
        && current.overcommit == asked.overcommit
        && current.workers == asked.workers
        && current.options == asked.options
}

/// Checks the limits of a request, and returns the initial number of replicas.
fn checked(asked: &DeployRequest<'_>) -> Result<u32, PredictError> {
    let options = asked.options;
    Deployment::check_replicas(asked.replicas)?;
    let distinct: BTreeSet<_> = asked.workers.iter().collect();
    let enough = asked.workers.is_empty() || asked.replicas as usize <= distinct.len();
    if distinct.len() != asked.workers.len() || !enough {
        return Err(PredictError::invalid(
            "a list of workers must name each worker once, and have at least as many workers as \
             replicas",
        ));
    }
    let named = distinct.len();
    within("the number of workers", named, MAX_REPLICAS as usize)?;
    within("the number of labels", options.labels.len(), MAX_LABELS)?;
    for (name, value) in &options.labels {
        within("a label", name.len() + value.len(), MAX_TEXT)?;
    }
    let spread = options.spread.as_ref().map_or(0, String::len);
    within("the name of the label to spread over", spread, MAX_TEXT)?;
    if options.max_surge == 0 && options.max_unavailable == 0 {
        return Err(PredictError::invalid(
            "one of 'max_surge' and 'max_unavailable' must be at least 1, otherwise no version \
             could replace another",
        ));
    }
    within(
        "'keep_previous'",
        options.keep_previous as usize,
        MAX_REPLICAS as usize,
    )?;
    if options.keep_previous != 0 && options.scaling.is_some() {
        return Err(PredictError::invalid(
            "versions that serve beside each other need fixed numbers of replicas; leave \
             'max_replicas' out, or 'keep_previous'",
        ));
    }
    let Some(scaling) = &options.scaling else {
        return Ok(asked.replicas);
    };
    let bounds = scaling.min_replicas..=scaling.max_replicas;
    if scaling.max_replicas == 0 || MAX_REPLICAS < scaling.max_replicas || bounds.is_empty() {
        return Err(PredictError::invalid(format!(
            "'max_replicas' must be 1 to {MAX_REPLICAS} and at least 'min_replicas'"
        )));
    }
    if scaling.target_percent == 0 || 100 < scaling.target_percent {
        return Err(PredictError::invalid("'target_percent' must be 1 to 100"));
    }
    let first = asked.replicas.max(scaling.min_replicas);
    Ok(first.min(scaling.max_replicas))
}

/// Replaces the deployment by `asked`. Replicas of another version continue to serve until the new
/// ones have replaced them.
fn replace(entry: &mut ModelEntry, mut asked: Deployment) {
    let Some(current) = entry.deployment.take() else {
        entry.deployment = Some(asked);
        return;
    };
    if current.version == asked.version {
        asked.replaced = current.replaced;
        asked.replaced_replicas = current.replaced_replicas;
        let stays = asked.options.keep_previous != 0;
        asked.rollout = current
            .rollout
            .filter(|rollout| stays || !rollout.previous.is_empty());
        if asked.options.scaling.is_some() && current.options.scaling.is_some() {
            let scaling = asked.options.scaling.unwrap_or_default();
            asked.replicas = current
                .replicas
                .clamp(scaling.min_replicas, scaling.max_replicas);
        }
    } else {
        let placed = std::mem::take(&mut entry.placement);
        let fixed = Some(current.replicas).filter(|_| current.options.scaling.is_none());
        let numbers = [
            (Some(current.version), fixed),
            (current.replaced, current.replaced_replicas),
        ];
        let (from, previous) = match current.rollout {
            // Return to the previous version: the rollout starts with its remaining replicas.
            Some(rollout) if rollout.from == asked.version => {
                entry.placement = rollout.previous;
                (current.version, placed)
            }
            // A third version replaces the one that is kept beside another.
            Some(rollout) if current.options.keep_previous != 0 => (rollout.from, rollout.previous),
            // A third version replaces the one of the two that serves more.
            Some(rollout) if !rollout.moves() || placed.len() <= rollout.previous.len() => {
                (rollout.from, rollout.previous)
            }
            _ => (current.version, placed),
        };
        asked.replaced = Some(from);
        let number = numbers.iter().find(|(version, _)| *version == Some(from));
        asked.replaced_replicas = number.and_then(|(_, replicas)| *replicas);
        let stays = asked.options.keep_previous != 0;
        asked.rollout = (stays || !previous.is_empty()).then_some(Rollout {
            from,
            previous,
            paused: false,
            stopped: None,
        });
    }
    entry.deployment = Some(asked);
}

pub(super) fn place(
    state: &mut RegistryState,
    placings: &[PlacementDecision],
) -> Result<RegistryReply, PredictError> {
    // Check all decisions first: a rejected command changes nothing.
    for placing in placings {
        check_placing(state, placing)?;
    }
    let mut any = false;
    for placing in placings {
        any |= place_one(state, placing);
    }
    if any {
        changed(state, None)
    } else {
        unchanged(state)
    }
}

fn current<'a>(state: &'a RegistryState, placing: &PlacementDecision) -> Option<&'a Deployment> {
    let deployment = state.models.get(&placing.model)?.deployment.as_ref()?;
    (deployment.revision == placing.deployment).then_some(deployment)
}

fn check_placing(state: &RegistryState, placing: &PlacementDecision) -> Result<(), PredictError> {
    let Some(current) = current(state, placing) else {
        return Ok(());
    };
    let most = current.replicas as usize + usize::from(placing.moving);
    let distinct =
        |workers: &[WorkerId]| workers.iter().collect::<BTreeSet<_>>().len() == workers.len();
    // A drained worker keeps its replica until another one is ready.
    let working = |worker: &&WorkerId| state.worker_drain(worker).is_none();
    let working = placing.workers.iter().filter(working).count();
    if working <= most && distinct(&placing.workers) && distinct(&placing.previous) {
        return Ok(());
    }
    Err(PredictError::invalid(
        "a placement must name each worker once, and have at most as many workers as replicas",
    ))
}

fn place_one(state: &mut RegistryState, placing: &PlacementDecision) -> bool {
    if current(state, placing).is_none() {
        return false;
    }
    let Some(entry) = state.models.get_mut(&placing.model).map(Arc::make_mut) else {
        return false;
    };
    let mut any = entry.placement != placing.workers;
    entry.placement.clone_from(&placing.workers);
    let deployment = entry.deployment.as_mut();
    if let Some(deployment) = deployment
        && let Some(rollout) = &mut deployment.rollout
    {
        any |= rollout.previous != placing.previous;
        rollout.previous.clone_from(&placing.previous);
        // The last replica of the old version was removed: the rollout is complete.
        if rollout.previous.is_empty() && deployment.options.keep_previous == 0 {
            deployment.rollout = None;
        }
    }
    any
}

pub(super) fn scale(
    state: &mut RegistryState,
    model: &ModelName,
    deployment: Revision,
    replicas: u32,
) -> Result<RegistryReply, PredictError> {
    let current = state.models.get_mut(model).map(Arc::make_mut);
    let current = current.and_then(|entry| entry.deployment.as_mut());
    let Some(current) = current.filter(|current| current.revision == deployment) else {
        return unchanged(state);
    };
    let Some(scaling) = current.options.scaling else {
        return unchanged(state);
    };
    let replicas = replicas.clamp(scaling.min_replicas, scaling.max_replicas);
    if replicas == current.replicas {
        return unchanged(state);
    }
    current.replicas = replicas;
    changed(state, None)
}

pub(super) fn roll(
    state: &mut RegistryState,
    model: &ModelName,
    action: &RolloutAction,
) -> Result<RegistryReply, PredictError> {
    if let RolloutAction::Rollback { replicas } = action {
        return roll_back(state, model, *replicas);
    }
    let entry = entry(state, model)?;
    let deployment = entry.deployment.as_mut();
    let Some(rollout) = deployment.and_then(|deployment| deployment.rollout.as_mut()) else {
        let message = format!("model '{model}' has no running rollout");
        return Err(conflict(message));
    };
    if let (Some(reason), RolloutAction::Resume) = (&rollout.stopped, action) {
        let message = format!(
            "the new version of model '{model}' cannot be loaded: {reason}. Roll back, or deploy \
             another version"
        );
        return Err(conflict(message));
    }
    let before = rollout.clone();
    match action {
        RolloutAction::Pause => rollout.paused = true,
        RolloutAction::Resume => rollout.paused = false,
        RolloutAction::Stop(reason) => rollout.stopped = Some(shortened(reason)),
        RolloutAction::Rollback { .. } => {}
    }
    if *rollout == before {
        unchanged(state)
    } else {
        changed(state, None)
    }
}

fn roll_back(
    state: &mut RegistryState,
    model: &ModelName,
    replicas: Option<u32>,
) -> Result<RegistryReply, PredictError> {
    replicas.map_or(Ok(()), Deployment::check_replicas)?;
    let revision = next(state);
    let entry = entry(state, model)?;
    let Some(current) = &entry.deployment else {
        return Err(conflict(format!("model '{model}' is not deployed")));
    };
    let before = current.replaced;
    let before = before.filter(|version| entry.versions.contains_key(version));
    let Some(version) = before else {
        let message = format!("model '{model}' has no previous version to return to");
        return Err(conflict(message));
    };
    let mut asked = Deployment {
        version,
        revision,
        rollout: None,
        ..current.clone()
    };
    if let Some(replicas) = replicas.filter(|_| asked.options.scaling.is_none()) {
        asked.replicas = replicas;
        // A worker list that is too short was made for the other version.
        if asked.workers.len() < replicas as usize {
            asked.workers.clear();
        }
    }
    // The version that was kept gets its own number of replicas back, and serves alone.
    let stayed = std::mem::take(&mut asked.options.keep_previous);
    if stayed != 0 {
        asked.replicas = stayed;
        asked.workers.clear();
    }
    replace(entry, asked);
    changed(state, Some(version))
}

/// Truncates a worker's reason to the limit of the registry.
fn shortened(reason: &str) -> String {
    reason.chars().take(500).collect()
}

pub(super) fn undeploy(
    state: &mut RegistryState,
    model: &ModelName,
) -> Result<RegistryReply, PredictError> {
    let entry = entry(state, model)?;
    if entry.deployment.take().is_none() {
        return unchanged(state);
    }
    entry.placement.clear();
    changed(state, None)
}

fn entry<'a>(
    state: &'a mut RegistryState,
    model: &ModelName,
) -> Result<&'a mut ModelEntry, PredictError> {
    state
        .models
        .get_mut(model)
        .map(Arc::make_mut)
        .ok_or_else(|| not_found("model", model))
}
