//! Conversions of deployments, their options and their rollouts: wire ⇄ [`volley_types::registry`].

use volley_types::registry::{
    DeployOptions, Deployment, PlacementDecision, RegistryCommand, Rollout, RolloutAction, Scaling,
};
use volley_types::{ModelName, ModelVersion, PredictError, Revision, WorkerId};

use crate::registry::v1 as wire;
use crate::registry::v1::command::Command;

pub(crate) fn deployment_to_wire(deployment: &Deployment) -> wire::Deployment {
    wire::Deployment {
        version: deployment.version.0,
        replicas: deployment.replicas,
        revision: deployment.revision.0,
        overcommit: deployment.overcommit,
        workers: deployment.workers.iter().map(ToString::to_string).collect(),
        options: Some(options_to_wire(&deployment.options)),
        rollout: deployment.rollout.as_ref().map(rollout_to_wire),
        replaced: deployment.replaced.map_or(0, |version| version.0),
        replaced_replicas: deployment.replaced_replicas.unwrap_or(0),
    }
}

pub(crate) fn deployment_from_wire(
    deployment: wire::Deployment,
) -> Result<Deployment, PredictError> {
    Ok(Deployment {
        version: ModelVersion(deployment.version),
        replicas: deployment.replicas,
        revision: Revision(deployment.revision),
        overcommit: deployment.overcommit,
        workers: worker_ids(deployment.workers)?,
        options: options_from_wire(deployment.options),
        rollout: deployment.rollout.map(rollout_from_wire).transpose()?,
        replaced: Some(ModelVersion(deployment.replaced)).filter(|version| version.0 != 0),
        replaced_replicas: Some(deployment.replaced_replicas).filter(|replicas| *replicas != 0),
    })
}

/// The command of a peer that deploys a model.
pub(crate) fn deploy_from_wire(deploy: wire::Deploy) -> Result<RegistryCommand, PredictError> {
    Ok(RegistryCommand::Deploy {
        model: ModelName::new(deploy.model)?,
        version: Some(ModelVersion(deploy.version)).filter(|version| version.0 != 0),
        replicas: deploy.replicas,
        overcommit: deploy.overcommit,
        options: options_from_wire(deploy.options),
        workers: worker_ids(deploy.workers)?,
    })
}

/// The command that scales a deployment, as it travels.
pub(crate) fn scale_to_wire(model: &ModelName, deployment: Revision, replicas: u32) -> Command {
    Command::Scale(wire::Scale {
        model: model.to_string(),
        deployment: deployment.0,
        replicas,
    })
}

/// The command of a peer that scales a deployment.
pub(crate) fn scale_from_wire(scale: wire::Scale) -> Result<RegistryCommand, PredictError> {
    Ok(RegistryCommand::Scale {
        model: ModelName::new(scale.model)?,
        deployment: Revision(scale.deployment),
        replicas: scale.replicas,
    })
}

pub(crate) fn options_to_wire(options: &DeployOptions) -> wire::DeployOptions {
    wire::DeployOptions {
        labels: options.labels.clone().into_iter().collect(),
        spread: options.spread.clone().unwrap_or_default(),
        memory_bytes: options.memory_bytes,
        scaling: options.scaling.map(|scaling| wire::Scaling {
            min_replicas: scaling.min_replicas,
            max_replicas: scaling.max_replicas,
            target_percent: scaling.target_percent,
            queue_wait_ms: scaling.queue_wait_ms,
            idle_ms: scaling.idle_ms,
        }),
        max_surge: options.max_surge,
        max_unavailable: options.max_unavailable,
        keep_previous: options.keep_previous,
    }
}

/// Records of earlier versions have no options.
fn options_from_wire(options: Option<wire::DeployOptions>) -> DeployOptions {
    let Some(options) = options else {
        return DeployOptions::default();
    };
    DeployOptions {
        labels: options.labels.into_iter().collect(),
        spread: Some(options.spread).filter(|label| !label.is_empty()),
        memory_bytes: options.memory_bytes,
        scaling: options.scaling.map(|scaling| Scaling {
            min_replicas: scaling.min_replicas,
            max_replicas: scaling.max_replicas,
            target_percent: scaling.target_percent,
            queue_wait_ms: scaling.queue_wait_ms,
            idle_ms: scaling.idle_ms,
        }),
        max_surge: options.max_surge,
        max_unavailable: options.max_unavailable,
        keep_previous: options.keep_previous,
    }
}

fn rollout_to_wire(rollout: &Rollout) -> wire::Rollout {
    wire::Rollout {
        from: rollout.from.0,
        previous: rollout.previous.iter().map(ToString::to_string).collect(),
        paused: rollout.paused,
        stopped: rollout.stopped.clone().unwrap_or_default(),
    }
}

fn rollout_from_wire(rollout: wire::Rollout) -> Result<Rollout, PredictError> {
    Ok(Rollout {
        from: ModelVersion(rollout.from),
        previous: worker_ids(rollout.previous)?,
        paused: rollout.paused,
        stopped: Some(rollout.stopped).filter(|reason| !reason.is_empty()),
    })
}

fn placement_to_wire(decision: &PlacementDecision) -> wire::Placement {
    wire::Placement {
        model: decision.model.to_string(),
        deployment: decision.deployment.0,
        workers: decision.workers.iter().map(ToString::to_string).collect(),
        previous: decision.previous.iter().map(ToString::to_string).collect(),
        moving: decision.moving,
    }
}

pub(crate) fn placement_from_wire(
    placement: wire::Placement,
) -> Result<PlacementDecision, PredictError> {
    Ok(PlacementDecision {
        model: ModelName::new(placement.model)?,
        deployment: Revision(placement.deployment),
        workers: worker_ids(placement.workers)?,
        previous: worker_ids(placement.previous)?,
        moving: placement.moving,
    })
}

/// The placement decisions of one command, as they travel.
pub(crate) fn placements_to_wire(decisions: &[PlacementDecision]) -> Command {
    Command::Placements(wire::Placements {
        placements: decisions.iter().map(placement_to_wire).collect(),
    })
}

/// The command of a peer that places replicas.
pub(crate) fn placements_from_wire(
    placements: wire::Placements,
) -> Result<RegistryCommand, PredictError> {
    let decisions = placements.placements.into_iter().map(placement_from_wire);
    Ok(RegistryCommand::Place(decisions.collect::<Result<_, _>>()?))
}

pub(crate) fn rollout_step(model: &ModelName, action: &RolloutAction) -> wire::RolloutStep {
    let (action, reason, replicas) = match action {
        RolloutAction::Pause => ("pause", String::new(), None),
        RolloutAction::Resume => ("resume", String::new(), None),
        RolloutAction::Rollback { replicas } => ("rollback", String::new(), *replicas),
        RolloutAction::Stop(reason) => ("stop", reason.clone(), None),
    };
    wire::RolloutStep {
        model: model.to_string(),
        action: action.to_owned(),
        reason,
        replicas: replicas.unwrap_or(0),
    }
}

/// The command of a peer that steers a rollout.
pub(crate) fn rollout_step_from_wire(
    step: wire::RolloutStep,
) -> Result<RegistryCommand, PredictError> {
    Ok(RegistryCommand::Rollout {
        model: ModelName::new(step.model.clone())?,
        action: rollout_action(step)?,
    })
}

fn rollout_action(step: wire::RolloutStep) -> Result<RolloutAction, PredictError> {
    Ok(match step.action.as_str() {
        "pause" => RolloutAction::Pause,
        "resume" => RolloutAction::Resume,
        "rollback" => RolloutAction::Rollback {
            replicas: Some(step.replicas).filter(|replicas| *replicas != 0),
        },
        "stop" => RolloutAction::Stop(step.reason),
        _ => return Err(PredictError::invalid("a rollout's action is unknown")),
    })
}

pub(crate) fn worker_ids(ids: Vec<String>) -> Result<Vec<WorkerId>, PredictError> {
    ids.into_iter().map(WorkerId::new).collect()
}
