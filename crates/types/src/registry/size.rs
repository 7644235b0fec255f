//! Size of definitions in bytes for the limits of the registry: their texts, and a fixed
//! overestimate for the rest of each record. All coordinators must compute the same sizes.

use std::collections::BTreeMap;

use super::alias::AliasSpec;
use super::connector::{ConnectorSpec, CredentialRef};
use super::pipeline::{Branch, Inputs, PipelineSpec, PipelineStep, StepKind};
use super::{
    ModelEntry, ModelGroup, ModelSource, ModelVersionSpec, RegistryState, SealedSecret, TaskRecord,
    TaskState,
};
use crate::access::{ApiKey, ModelPattern};
use crate::params::{ParamValue, Parameters};

/// Overestimate of a record's size without its texts, in bytes.
const RECORD: usize = 128;
/// Overestimate of the size of a text in a list, without its characters, in bytes.
const TEXT: usize = 16;

/// Cached size of all definitions in bytes. It is not part of the state: it is neither compared nor
/// replicated.
#[derive(Clone, Copy, Debug, Default)]
pub struct DefinitionBytes(Option<usize>);

impl PartialEq for DefinitionBytes {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl RegistryState {
    /// Size of everything but deployments, placements and drained nodes, in bytes. The first call
    /// computes it. A caller that changes a definition must then call [`RegistryState::resized`].
    pub fn size(&mut self) -> usize {
        if let Some(size) = self.counted.0 {
            return size;
        }
        let size = self.count();
        self.counted = DefinitionBytes(Some(size));
        size
    }

    /// As [`RegistryState::size`], without the cache.
    #[must_use]
    pub fn count(&self) -> usize {
        let models = self.models.values().map(|model| model.bytes());
        let connectors = self.connectors.values().map(ConnectorSpec::bytes);
        let aliases = self.aliases.values().map(|entry| entry.spec.bytes());
        let pipelines = self.pipelines.values().map(|entry| entry.spec.bytes());
        let secrets = self.secrets.values().map(SealedSecret::bytes);
        let groups = self.groups.values().map(ModelGroup::bytes);
        let keys = self.keys.values().map(ApiKey::bytes);
        let named = models.chain(connectors).chain(aliases).chain(pipelines);
        let all = named.chain(secrets).chain(groups).chain(keys);
        all.sum::<usize>() + setting_bytes(&self.settings) + task_bytes(&self.tasks)
    }

    /// Updates the cached size: a definition changed from `before` to `after` bytes; 0 means that
    /// it does not exist.
    pub fn resized(&mut self, before: usize, after: usize) {
        if let Some(size) = &mut self.counted.0 {
            *size = (*size + after).saturating_sub(before);
        }
    }
}

impl ModelEntry {
    /// Size of all versions and of the ids of deleted tasks, in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let versions = self.versions.values().map(ModelVersionSpec::bytes);
        let deleted = self.deleted_tasks.iter().map(|id| deleted_task_bytes(id));
        versions.chain(deleted).sum()
    }
}

impl SealedSecret {
    /// Bytes of this secret.
    #[must_use]
    pub fn bytes(&self) -> usize {
        RECORD + self.master.len() + self.key.len() + self.text.len()
    }
}

impl ModelGroup {
    /// Bytes of this group.
    #[must_use]
    pub fn bytes(&self) -> usize {
        RECORD + self.name.len() + self.description.len()
    }
}

impl ApiKey {
    /// Bytes of this key. A rotation and a new quota do not change them.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let models = self.models.patterns().iter().map(|pattern| match pattern {
            ModelPattern::Name(name) | ModelPattern::Prefix(name) => name.as_str().len() + TEXT,
        });
        3 * RECORD + self.name.len() + models.sum::<usize>()
    }
}

impl ModelVersionSpec {
    /// Size of the definition in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        RECORD + self.description.len() + path_bytes(self) + parameter_bytes(&self.parameters)
    }
}

impl ConnectorSpec {
    /// Size of the definition in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let headers = self.headers.iter();
        let headers: usize = headers.map(|(name, value)| name.len() + value.len()).sum();
        RECORD
            + self.url.len()
            + self.name.len()
            + self.model.len()
            + credential_bytes(self)
            + headers
            + self.request_body.as_ref().map_or(0, String::len)
            + parameter_bytes(&self.parameters)
    }
}

impl AliasSpec {
    /// Size of the definition in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        RECORD * (1 + self.names().count()) + self.description.len()
    }
}

impl PipelineSpec {
    /// Size of the definition in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let inputs: usize = self.inputs.keys().map(String::len).sum();
        let steps: usize = self.steps.iter().map(step_bytes).sum();
        let ensemble = self.ensemble.as_ref().map_or(0, |it| it.config.len());
        RECORD + self.description.len() + self.output.len() + inputs + steps + ensemble
    }
}

fn step_bytes(step: &PipelineStep) -> usize {
    let columns: usize = step
        .columns()
        .iter()
        .map(|column| column.step.len() + column.column.len())
        .sum();
    let of = |steps: &[String]| steps.iter().map(String::len).sum::<usize>();
    let names = |inputs: &Inputs| inputs.keys().map(String::len).sum::<usize>();
    let texts = match &step.kind {
        StepKind::Model {
            inputs, parameters, ..
        } => names(inputs) + parameter_bytes(parameters),
        StepKind::Template {
            template,
            inputs,
            column,
            ..
        } => template.len() + names(inputs) + column.len(),
        StepKind::Branch(Branch::When { expression, inputs }) => expression.len() + names(inputs),
        StepKind::Compute {
            expression,
            inputs,
            column,
        } => expression.len() + names(inputs) + column.len(),
        StepKind::Select(inputs) => names(inputs),
        StepKind::Merge(steps) | StepKind::Branch(Branch::Otherwise(steps)) => of(steps),
        StepKind::Explode { column, .. } | StepKind::Similarity { column, .. } => column.len(),
        StepKind::TopK { .. } => 0,
    };
    let over = step.over.as_ref().map_or(0, String::len);
    RECORD + step.name.len() + over + columns + texts
}

/// Bytes of the id of a deleted task.
#[must_use]
pub fn deleted_task_bytes(id: &str) -> usize {
    TEXT + id.len()
}

/// Bytes of cluster settings.
#[must_use]
pub fn setting_bytes(settings: &BTreeMap<String, String>) -> usize {
    let sizes = settings
        .iter()
        .map(|(name, value)| 2 * TEXT + name.len() + value.len());
    sizes.sum()
}

/// Bytes of tasks.
#[must_use]
pub fn task_bytes(tasks: &BTreeMap<String, TaskRecord>) -> usize {
    let sizes = tasks.iter().map(|(id, task)| {
        let why = match &task.state {
            TaskState::Failed(why) => why.len(),
            TaskState::Running | TaskState::Completed | TaskState::Cancelled => 0,
        };
        3 * RECORD + id.len() + why
    });
    sizes.sum()
}

/// Size of a version's source in bytes.
#[must_use]
pub fn path_bytes(spec: &ModelVersionSpec) -> usize {
    match &spec.source {
        ModelSource::Path(path) => path.len(),
        ModelSource::Url { url, .. } => url.as_str().len() + 32,
        ModelSource::None | ModelSource::Connector(_) => 0,
    }
}

/// Size of a connector's credential reference in bytes.
#[must_use]
pub fn credential_bytes(spec: &ConnectorSpec) -> usize {
    match &spec.credential {
        Some(CredentialRef::Env(text) | CredentialRef::File(text)) => text.len(),
        Some(CredentialRef::Secret(name) | CredentialRef::Sealed(name, _)) => name.as_str().len(),
        None => 0,
    }
}

/// Size of the parameters in bytes, names and values.
#[must_use]
pub fn parameter_bytes(parameters: &Parameters) -> usize {
    let sizes = parameters.iter().map(|(name, value)| {
        let value = match value {
            ParamValue::Text(text) | ParamValue::Json(text) => text.len(),
            ParamValue::Bool(_) | ParamValue::Int(_) | ParamValue::Float(_) => 8,
        };
        name.len() + value
    });
    sizes.sum()
}
