//! Converts a model's configuration, in JSON in Triton's format, to its message.

use serde_json::Value;

use crate::inference::triton::model_ensembling::Step;
use crate::inference::triton::model_input::Format;
use crate::inference::triton::model_instance_group::Kind;
use crate::inference::triton::model_queue_policy::TimeoutAction;
use crate::inference::triton::model_sequence_batching::{
    StrategyChoice, StrategyDirect, StrategyOldest,
};
use crate::inference::triton::model_version_policy::{All, Latest, PolicyChoice, Specific};
use crate::inference::triton::{
    DataType, ModelConfig, ModelDynamicBatching, ModelEnsembling, ModelInput, ModelInstanceGroup,
    ModelOutput, ModelParameter, ModelQueuePolicy, ModelSequenceBatching, ModelTensorReshape,
    ModelTransactionPolicy, ModelVersionPolicy,
};

/// Converts `config`. Fields that the message does not have are left out.
#[must_use]
pub fn message(config: &Value) -> ModelConfig {
    let parameters = config.get("parameters").and_then(Value::as_object);
    let parameters = parameters.into_iter().flatten().map(|(name, value)| {
        let string_value = text(value, "string_value");
        (name.clone(), ModelParameter { string_value })
    });
    ModelConfig {
        name: text(config, "name"),
        platform: text(config, "platform"),
        version_policy: config.get("version_policy").map(version_policy),
        max_batch_size: number(config, "max_batch_size"),
        input: list(config, "input").map(input).collect(),
        output: list(config, "output").map(output).collect(),
        instance_group: list(config, "instance_group").map(group).collect(),
        default_model_filename: text(config, "default_model_filename"),
        dynamic_batching: config.get("dynamic_batching").map(dynamic_batching),
        sequence_batching: config.get("sequence_batching").map(sequence_batching),
        ensemble_scheduling: config.get("ensemble_scheduling").map(ensemble),
        parameters: parameters.collect(),
        backend: text(config, "backend"),
        model_transaction_policy: Some(ModelTransactionPolicy {
            decoupled: config["model_transaction_policy"]["decoupled"] == true,
        }),
    }
}

fn text(object: &Value, field: &str) -> String {
    let text = object.get(field).and_then(Value::as_str);
    text.unwrap_or_default().to_owned()
}

fn number<T: TryFrom<i64> + Default>(object: &Value, field: &str) -> T {
    let number = object.get(field).and_then(Value::as_i64);
    number
        .and_then(|number| number.try_into().ok())
        .unwrap_or_default()
}

fn flag(object: &Value, field: &str) -> bool {
    object.get(field) == Some(&Value::Bool(true))
}

fn list<'v>(object: &'v Value, field: &str) -> impl Iterator<Item = &'v Value> + use<'v> {
    object
        .get(field)
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
}

fn numbers<T: TryFrom<i64>>(object: &Value, field: &str) -> Vec<T> {
    let numbers = list(object, field).filter_map(Value::as_i64);
    numbers
        .filter_map(|number| number.try_into().ok())
        .collect()
}

fn data_type(tensor: &Value) -> i32 {
    let name = tensor.get("data_type").and_then(Value::as_str);
    let found = name.and_then(DataType::from_str_name);
    found.unwrap_or(DataType::TypeInvalid).into()
}

fn reshape(tensor: &Value) -> Option<ModelTensorReshape> {
    let shape = numbers(tensor.get("reshape")?, "shape");
    Some(ModelTensorReshape { shape })
}

fn input(tensor: &Value) -> ModelInput {
    let format = tensor.get("format").and_then(Value::as_str);
    let format = format.and_then(Format::from_str_name);
    ModelInput {
        name: text(tensor, "name"),
        data_type: data_type(tensor),
        format: format.unwrap_or_default().into(),
        dims: numbers(tensor, "dims"),
        reshape: reshape(tensor),
        optional: flag(tensor, "optional"),
    }
}

fn output(tensor: &Value) -> ModelOutput {
    ModelOutput {
        name: text(tensor, "name"),
        data_type: data_type(tensor),
        dims: numbers(tensor, "dims"),
        label_filename: text(tensor, "label_filename"),
        reshape: reshape(tensor),
    }
}

fn group(group: &Value) -> ModelInstanceGroup {
    let kind = group.get("kind").and_then(Value::as_str);
    ModelInstanceGroup {
        name: text(group, "name"),
        count: number(group, "count"),
        gpus: numbers(group, "gpus"),
        kind: kind
            .and_then(Kind::from_str_name)
            .unwrap_or_default()
            .into(),
    }
}

fn version_policy(policy: &Value) -> ModelVersionPolicy {
    let choice = if let Some(latest) = policy.get("latest") {
        let num_versions = number(latest, "num_versions");
        Some(PolicyChoice::Latest(Latest { num_versions }))
    } else if let Some(specific) = policy.get("specific") {
        let versions = numbers(specific, "versions");
        Some(PolicyChoice::Specific(Specific { versions }))
    } else {
        policy.get("all").map(|_| PolicyChoice::All(All {}))
    };
    ModelVersionPolicy {
        policy_choice: choice,
    }
}

fn queue_policy(policy: &Value) -> ModelQueuePolicy {
    let action = policy.get("timeout_action").and_then(Value::as_str);
    let action = action.and_then(TimeoutAction::from_str_name);
    ModelQueuePolicy {
        timeout_action: action.unwrap_or_default().into(),
        default_timeout_microseconds: number(policy, "default_timeout_microseconds"),
        allow_timeout_override: flag(policy, "allow_timeout_override"),
        max_queue_size: number(policy, "max_queue_size"),
    }
}

fn dynamic_batching(batching: &Value) -> ModelDynamicBatching {
    let levels = batching
        .get("priority_queue_policy")
        .and_then(Value::as_object);
    let levels = levels.into_iter().flatten();
    let levels =
        levels.filter_map(|(level, policy)| Some((level.parse().ok()?, queue_policy(policy))));
    ModelDynamicBatching {
        preferred_batch_size: numbers(batching, "preferred_batch_size"),
        max_queue_delay_microseconds: number(batching, "max_queue_delay_microseconds"),
        preserve_ordering: flag(batching, "preserve_ordering"),
        priority_levels: number(batching, "priority_levels"),
        default_priority_level: number(batching, "default_priority_level"),
        default_queue_policy: batching.get("default_queue_policy").map(queue_policy),
        priority_queue_policy: levels.collect(),
    }
}

fn ensemble(scheduling: &Value) -> ModelEnsembling {
    let map = |step: &Value, field: &str| {
        let map = step.get(field).and_then(Value::as_object);
        let entries = map.into_iter().flatten();
        let entries = entries.map(|(name, tensor)| {
            let tensor = tensor.as_str().unwrap_or_default();
            (name.clone(), tensor.to_owned())
        });
        entries.collect()
    };
    let steps = list(scheduling, "step").map(|step| Step {
        model_name: text(step, "model_name"),
        model_version: step
            .get("model_version")
            .and_then(Value::as_i64)
            .unwrap_or(-1),
        input_map: map(step, "input_map"),
        output_map: map(step, "output_map"),
    });
    ModelEnsembling {
        step: steps.collect(),
    }
}

fn sequence_batching(batching: &Value) -> ModelSequenceBatching {
    let oldest = batching.get("oldest").map(|oldest| {
        StrategyChoice::Oldest(StrategyOldest {
            max_candidate_sequences: number(oldest, "max_candidate_sequences"),
            preferred_batch_size: numbers(oldest, "preferred_batch_size"),
            max_queue_delay_microseconds: number(oldest, "max_queue_delay_microseconds"),
        })
    });
    let direct = || {
        let direct = batching.get("direct")?;
        let max_queue_delay_microseconds = number(direct, "max_queue_delay_microseconds");
        Some(StrategyChoice::Direct(StrategyDirect {
            max_queue_delay_microseconds,
        }))
    };
    ModelSequenceBatching {
        max_sequence_idle_microseconds: number(batching, "max_sequence_idle_microseconds"),
        strategy_choice: oldest.or_else(direct),
    }
}
