//! Converts ensembles of a Triton repository to pipelines.

mod read;

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value, json};
use volley_types::registry::{
    ColumnRef, ColumnType, Ensemble, Inputs, PipelineSpec, PipelineStep, REQUEST, StepKind,
};
use volley_types::signature::SERVED_VERSION;
use volley_types::{ModelName, ModelRef, ParamValue, Parameters, PredictError, Task};

use self::read::{EnsembleStep, Port, is_nothing, ports, snaked, steps, unique, wrong};
use super::describe::{self, TensorForm};
use super::tensors::printable;
use super::{ModelPath, ResolvedModel};
use volley_http_edge::edge::Caller;

type Object = Map<String, Value>;

/// Configuration field that only ensembles have.
pub(crate) const SCHEDULING: &str = "ensemble_scheduling";
/// Maximum size of a configuration in bytes. It is limited because the registry stores it.
pub(crate) const MAX_CONFIG_BYTES: usize = 64 << 10;
/// Configuration fields that an ensemble cannot have, because it runs no graph of its own.
const OF_MODELS: [&str; 9] = [
    "batch_input",
    "batch_output",
    "default_model_filename",
    "dynamic_batching",
    "instance_group",
    "model_operations",
    "model_warmup",
    "optimization",
    "sequence_batching",
];
/// A parsed configuration.
#[derive(Debug)]
struct Plan {
    inputs: Vec<Port>,
    outputs: Vec<Port>,
    steps: Vec<EnsembleStep>,
    /// The complete configuration, which is returned to callers.
    config: Value,
}

/// Converts the configuration of an ensemble to a pipeline. Cancel safe: nothing is written.
///
/// # Errors
/// `InvalidInput` naming the model or the tensor that does not match; `TooLarge` for a
/// configuration over the size limit.
pub async fn pipeline(
    caller: &Caller,
    name: ModelName,
    config: &Object,
) -> Result<PipelineSpec, PredictError> {
    let plan = Plan::read(config)?;
    let registry = caller.cluster.registry.state();
    let mut steps = Vec::new();
    for (number, step) in plan.steps.iter().enumerate() {
        if step.model != name && !registry.has_name(&step.model) {
            return Err(wrong(format_args!(
                "step {} calls the model '{}', which is not registered",
                number + 1,
                step.model
            )));
        }
        let mut model = ModelRef::deployed(step.model.clone());
        let mut parameters = Parameters::default();
        let version = step.version.map(|version| version.to_string());
        let named = ModelPath {
            model: step.model.to_string(),
            version: version.clone(),
        };
        // The tensors of a model that is not running are unknown.
        match ResolvedModel::find(caller, &named).await {
            Ok(found) => {
                plan.check_types(step, &found)?;
                if let (Some(version), Some(_)) = (&version, &found.inner) {
                    parameters.set(SERVED_VERSION, ParamValue::Text(version.clone()))?;
                } else if version.is_some() {
                    model = found.model;
                }
            }
            Err(_) => {
                if let Some(version) = version {
                    let any = ModelPath {
                        version: None,
                        ..named
                    };
                    if ResolvedModel::find(caller, &any).await.is_ok() {
                        return Err(wrong(format_args!(
                            "version {version} of the model '{}' is not loaded",
                            step.model
                        )));
                    }
                    parameters.set(SERVED_VERSION, ParamValue::Text(version))?;
                }
            }
        }
        steps.push((model, parameters));
    }
    plan.pipeline(name, steps)
}

impl Plan {
    fn read(config: &Object) -> Result<Self, PredictError> {
        let mut config = snaked(config);
        for field in OF_MODELS {
            if config.get(field).is_some_and(|value| !is_nothing(value)) {
                let told = format_args!(
                    "'{field}' is not supported for an ensemble; set it for the models of its steps"
                );
                return Err(wrong(told));
            }
            config.remove(field);
        }
        let platform = config.get("platform").and_then(Value::as_str);
        let backend = config.get("backend").and_then(Value::as_str);
        if !matches!(platform, None | Some("" | "ensemble")) || !matches!(backend, None | Some(""))
        {
            return Err(wrong(
                "its platform must be 'ensemble', and it has no backend",
            ));
        }
        config.insert("platform".to_owned(), "ensemble".into());
        for (name, value) in [
            ("backend", json!("")),
            ("max_batch_size", json!(0)),
            ("version_policy", json!({ "latest": { "num_versions": 1 } })),
        ] {
            config.entry(name).or_insert(value);
        }
        let plan = Self {
            inputs: ports(&config, "input")?,
            outputs: ports(&config, "output")?,
            steps: steps(&config)?,
            config: Value::Null,
        };
        plan.check()?;
        Ok(Self {
            config: config.into(),
            ..plan
        })
    }

    /// The step output that supplies each tensor of the ensemble. Inputs come from the request.
    fn sources(&self) -> Result<BTreeMap<&str, ColumnRef>, PredictError> {
        let mut sources = BTreeMap::new();
        for port in &self.inputs {
            let column = ColumnRef {
                step: REQUEST.to_owned(),
                column: port.name.clone(),
            };
            if sources.insert(port.name.as_str(), column).is_some() {
                let name = printable(&port.name);
                return Err(wrong(format_args!("two inputs have the name '{name}'")));
            }
        }
        for step in &self.steps {
            for (output, tensor) in &step.outputs {
                let column = ColumnRef {
                    step: step.name.clone(),
                    column: output.clone(),
                };
                if sources.insert(tensor, column).is_some() {
                    return Err(wrong(format_args!(
                        "the tensor '{}' is produced twice, the second time by the model '{}'",
                        printable(tensor),
                        step.model
                    )));
                }
            }
        }
        Ok(sources)
    }

    fn check(&self) -> Result<(), PredictError> {
        let sources = self.sources()?;
        let mut taken = BTreeSet::new();
        for step in &self.steps {
            for (input, tensor) in &step.inputs {
                taken.insert(tensor.as_str());
                if !sources.contains_key(tensor.as_str()) {
                    return Err(wrong(format_args!(
                        "the input '{}' of the model '{}' is the tensor '{}', which is neither an \
                         input of the ensemble nor the output of a step",
                        printable(input),
                        step.model,
                        printable(tensor)
                    )));
                }
            }
        }
        let unused = self.inputs.iter().find(|it| !taken.contains(&*it.name));
        if let Some(port) = unused {
            let name = printable(&port.name);
            return Err(wrong(format_args!("no step uses the input '{name}'")));
        }
        let given = |port: &&Port| sources.contains_key(port.name.as_str());
        if let Some(port) = self.outputs.iter().find(|port| !given(port)) {
            let name = printable(&port.name);
            return Err(wrong(format_args!("no step produces the output '{name}'")));
        }
        Ok(())
    }

    /// Checks that a running model has the mapped tensors with the declared types.
    fn check_types(&self, step: &EnsembleStep, found: &ResolvedModel) -> Result<(), PredictError> {
        if found.signature.task == Task::Generate {
            // The columns of a generation are fixed, and the pipeline checks them.
            return Ok(());
        }
        let check = |map: &BTreeMap<String, String>, own: &[Port], forms: Vec<TensorForm>, what| {
            for (name, tensor) in map {
                let form = forms.iter().find(|form| form.name == *name);
                let form = form.ok_or_else(|| {
                    let names: Vec<_> = forms.iter().map(|form| form.name.as_str()).collect();
                    wrong(format_args!(
                        "the model '{}' has no {what} '{}'; it has {}",
                        step.model,
                        printable(name),
                        names.join(", ")
                    ))
                })?;
                let data_type = describe::config_type(form.datatype);
                let declared = own.iter().find(|port| port.name == *tensor);
                if let Some(port) = declared.filter(|port| port.data_type != data_type) {
                    return Err(wrong(format_args!(
                        "the {what} '{}' is {}, and that of the model '{}' is {data_type}",
                        printable(tensor),
                        port.data_type,
                        step.model
                    )));
                }
            }
            Ok(())
        };
        let (inputs, outputs) = (
            describe::inputs(&found.signature),
            describe::outputs(&found.signature),
        );
        let missing = inputs
            .iter()
            .find(|form| !form.optional && !step.inputs.contains_key(&form.name));
        if let Some(form) = missing {
            return Err(wrong(format_args!(
                "no tensor is mapped to the input '{}' of the model '{}'",
                form.name, step.model
            )));
        }
        check(&step.inputs, &self.inputs, inputs, "input")?;
        check(&step.outputs, &self.outputs, outputs, "output")
    }

    /// Builds the pipeline with these models and parameters in its steps.
    fn pipeline(
        &self,
        name: ModelName,
        models: Vec<(ModelRef, Parameters)>,
    ) -> Result<PipelineSpec, PredictError> {
        let config = self.config.to_string();
        if MAX_CONFIG_BYTES < config.len() {
            return Err(too_large());
        }
        let sources = self.sources()?;
        let columns = |map: &BTreeMap<String, String>| -> Inputs {
            let columns = map.iter();
            let columns = columns.filter_map(|(name, tensor)| {
                Some((name.clone(), sources.get(tensor.as_str())?.clone()))
            });
            columns.collect()
        };
        let calls = self.steps.iter().zip(models);
        let calls = calls.map(|(step, (model, parameters))| PipelineStep {
            name: step.name.clone(),
            over: None,
            kind: StepKind::Model {
                model,
                inputs: columns(&step.inputs),
                parameters,
            },
        });
        let mut steps: Vec<_> = calls.collect();
        let names = self.steps.iter().map(|step| step.name.as_str());
        let output = unique("outputs", &names.collect());
        let given = self.outputs.iter();
        let given = given.map(|port| (port.name.clone(), port.name.clone()));
        steps.push(PipelineStep {
            name: output.clone(),
            over: None,
            kind: StepKind::Select(columns(&given.collect())),
        });
        let inputs = self.inputs.iter();
        let spec = PipelineSpec {
            name,
            task: Task::Tensors,
            inputs: inputs
                .map(|port| (port.name.clone(), ColumnType::Tensor))
                .collect(),
            steps,
            output,
            description: String::new(),
            ensemble: Some(Ensemble {
                config,
                loaded: true,
            }),
        };
        spec.check().map_err(|error| wrong(&error.message))?;
        Ok(spec)
    }
}

/// The error for a configuration over the size limit.
pub(super) fn too_large() -> PredictError {
    let message = "the configuration of a load is larger than 64 KiB";
    PredictError::new(volley_types::ErrorCode::TooLarge, message)
}

#[cfg(test)]
mod tests;
