//! Feature levels: the commands that a version of Volley supports.
//!
//! While a cluster is upgraded, coordinators of two versions share one registry. Each coordinator
//! reports its level. A command of a higher level is rejected until all coordinators support it.
//! After the first such command, coordinators of a lower level cannot join.

use crate::access::{ModelPattern, ModelScope};
use crate::ids::{ModelName, ModelRef};
use crate::registry::{ColumnType, PipelineSpec, RegistryCommand, RolloutAction};

/// The level of this version. A version that adds a command, or a field to one, adds a level.
///
/// - 1: the first level.
/// - 2: [`RegistryCommand::Drain`] and
///   [`DeployOptions::keep_previous`](super::DeployOptions::keep_previous).
/// - 3: [`RegistryCommand::PutTask`].
/// - 4: [`PlacementDecision::moving`](super::PlacementDecision::moving).
/// - 5: model names with a `/`, and rollbacks with a number of replicas
///   ([`RolloutAction::Rollback`]).
/// - 6: incarnations of coordinators.
/// - 7: pipelines of tensors, and ensembles.
/// - 8: [`RegistryCommand::BeginTask`].
pub const LEVEL: u32 = 8;

/// First level with migrations of replicas between live workers.
pub const MOVING_LEVEL: u32 = 4;

/// First level with model names of several parts.
pub const PARTS_LEVEL: u32 = 5;

/// First level at which coordinators identify themselves to each other, and the membership has the
/// incarnations of their data directories.
pub const MEMBER_LEVEL: u32 = 6;

/// First level with pipelines of tensors and ensembles.
pub const ENSEMBLE_LEVEL: u32 = 7;

impl RegistryCommand {
    /// Lowest level that supports all of this command.
    #[must_use]
    pub fn level(&self) -> u32 {
        match self {
            Self::PutPipeline { pipeline, .. } if takes_tensors(pipeline) => ENSEMBLE_LEVEL,
            Self::BeginTask { .. } => 8,
            _ if self.names_parts() => PARTS_LEVEL,
            Self::Drain(..) | Self::Undrain(_) => 2,
            Self::PutTask { .. } | Self::ForgetTask(_) => 3,
            Self::Place(placings) if placings.iter().any(|it| it.moving) => MOVING_LEVEL,
            Self::Rollout {
                action: RolloutAction::Rollback { replicas: Some(_) },
                ..
            } => 5,
            // An older version would ignore the option and replace the previous version.
            Self::Deploy { options, .. } if options.keep_previous != 0 => 2,
            _ => 1,
        }
    }
}

impl RegistryCommand {
    /// Whether a name in the command has several parts, which older versions cannot decode.
    fn names_parts(&self) -> bool {
        let refer = |mut names: Box<dyn Iterator<Item = &ModelRef> + '_>| {
            names.any(|model| model.name.has_parts())
        };
        match self {
            Self::RegisterModel(name, _)
            | Self::Deploy { model: name, .. }
            | Self::Rollout { model: name, .. }
            | Self::Scale { model: name, .. }
            | Self::UpdateModel { model: name, .. }
            | Self::DeleteTask { model: name, .. }
            | Self::Undeploy(name)
            | Self::DeleteModel(name)
            | Self::DeletePipeline { name, .. }
            | Self::DeleteAlias { name, .. } => name.has_parts(),
            Self::PutTask { record, .. } | Self::BeginTask { record, .. } => {
                record.model.has_parts()
            }
            Self::Place(placings) => placings.iter().any(|it| it.model.has_parts()),
            Self::CreateKey(key) => scope_has_parts(&key.models),
            Self::PutAlias { alias, .. } => {
                alias.name.has_parts() || refer(Box::new(alias.names()))
            }
            Self::PutPipeline { pipeline, .. } => {
                pipeline.name.has_parts() || refer(Box::new(pipeline.names()))
            }
            _ => false,
        }
    }
}

fn takes_tensors(pipeline: &PipelineSpec) -> bool {
    let mut kinds = pipeline.inputs.values();
    pipeline.ensemble.is_some() || kinds.any(|kind| *kind == ColumnType::Tensor)
}

fn scope_has_parts(scope: &ModelScope) -> bool {
    let of = |pattern: &ModelPattern| match pattern {
        ModelPattern::Name(name) | ModelPattern::Prefix(name) => ModelName::has_parts(name),
    };
    scope.patterns().iter().any(of)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_a_slash_waits_for_the_level_that_reads_it() {
        let delete = |name: &str| RegistryCommand::DeleteModel(ModelName::new(name).unwrap());
        assert_eq!(delete("storyteller").level(), 1);
        assert_eq!(delete("Qwen/Qwen3-8B").level(), PARTS_LEVEL);
        let name = ModelName::new("chat").unwrap();
        let target = super::super::AliasTarget {
            model: "Qwen/Qwen3-8B".parse().unwrap(),
            weight: 1,
        };
        let alias = super::super::AliasSpec {
            name,
            targets: vec![target],
            mirror: None,
            sticky_header: None,
            description: String::new(),
        };
        let put = RegistryCommand::PutAlias {
            alias,
            expected: None,
        };
        assert_eq!(put.level(), PARTS_LEVEL);
        assert!(scope_has_parts(&ModelScope::read(["Qwen/*"]).unwrap()));
    }
}
