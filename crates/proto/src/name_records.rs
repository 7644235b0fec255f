//! Conversions of all aliases and pipelines, and of the commands that change them: wire ⇄
//! [`volley_types::registry`].

use std::collections::BTreeMap;
use std::sync::Arc;

use volley_types::registry::{AliasEntry, AliasSpec, PipelineEntry, PipelineSpec, RegistryCommand};
use volley_types::{ModelName, PredictError, Revision};

use crate::alias_records::{
    alias_entry_from_wire, alias_entry_to_wire, alias_from_wire, alias_to_wire,
};
use crate::pipeline_records::{
    pipeline_entry_from_wire, pipeline_entry_to_wire, pipeline_from_wire, pipeline_to_wire,
};
use crate::registry::v1 as wire;
use crate::registry::v1::command::Command;

pub(crate) fn aliases_to_wire(all: &BTreeMap<ModelName, AliasEntry>) -> Vec<wire::AliasRecord> {
    all.values().map(alias_entry_to_wire).collect()
}

pub(crate) fn aliases_from_wire(
    all: Vec<wire::AliasRecord>,
) -> Result<BTreeMap<ModelName, AliasEntry>, PredictError> {
    let entries = all.into_iter().map(|record| {
        let entry = alias_entry_from_wire(record)?;
        Ok((entry.spec.name.clone(), entry))
    });
    entries.collect()
}

pub(crate) fn pipelines_to_wire(
    all: &BTreeMap<ModelName, PipelineEntry>,
) -> Vec<wire::PipelineRecord> {
    all.values().map(pipeline_entry_to_wire).collect()
}

pub(crate) fn pipelines_from_wire(
    all: Vec<wire::PipelineRecord>,
) -> Result<BTreeMap<ModelName, PipelineEntry>, PredictError> {
    let entries = all.into_iter().map(|record| {
        let entry = pipeline_entry_from_wire(record)?;
        Ok((entry.spec.name.clone(), entry))
    });
    entries.collect()
}

pub(crate) fn put_alias(alias: &AliasSpec, expected: Option<Revision>) -> Command {
    Command::PutAlias(wire::PutAlias {
        alias: Some(alias_to_wire(alias)),
        expected: expected.map(|revision| revision.0),
    })
}

pub(crate) fn put_alias_from_wire(put: wire::PutAlias) -> Result<RegistryCommand, PredictError> {
    Ok(RegistryCommand::PutAlias {
        alias: alias_from_wire(put.alias.ok_or_else(|| missing("alias"))?)?,
        expected: put.expected.map(Revision),
    })
}

pub(crate) fn delete_alias(name: &ModelName, expected: Option<Revision>) -> Command {
    Command::DeleteAlias(delete(name, expected))
}

pub(crate) fn delete_alias_from_wire(
    delete: wire::DeleteNamed,
) -> Result<RegistryCommand, PredictError> {
    Ok(RegistryCommand::DeleteAlias {
        name: ModelName::new(delete.name)?,
        expected: delete.expected.map(Revision),
    })
}

pub(crate) fn put_pipeline(pipeline: &PipelineSpec, expected: Option<Revision>) -> Command {
    Command::PutPipeline(wire::PutPipeline {
        pipeline: Some(pipeline_to_wire(pipeline)),
        expected: expected.map(|revision| revision.0),
    })
}

pub(crate) fn put_pipeline_from_wire(
    put: wire::PutPipeline,
) -> Result<RegistryCommand, PredictError> {
    let spec = put.pipeline.ok_or_else(|| missing("pipeline"))?;
    Ok(RegistryCommand::PutPipeline {
        pipeline: Arc::new(pipeline_from_wire(spec)?),
        expected: put.expected.map(Revision),
    })
}

pub(crate) fn delete_pipeline(name: &ModelName, expected: Option<Revision>) -> Command {
    Command::DeletePipeline(delete(name, expected))
}

pub(crate) fn delete_pipeline_from_wire(
    delete: wire::DeleteNamed,
) -> Result<RegistryCommand, PredictError> {
    Ok(RegistryCommand::DeletePipeline {
        name: ModelName::new(delete.name)?,
        expected: delete.expected.map(Revision),
    })
}

fn delete(name: &ModelName, expected: Option<Revision>) -> wire::DeleteNamed {
    wire::DeleteNamed {
        name: name.to_string(),
        expected: expected.map(|revision| revision.0),
    }
}

fn missing(what: &str) -> PredictError {
    PredictError::invalid(format!("a registry command has no {what}"))
}
