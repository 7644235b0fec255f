//! `config.pbtxt`: a model's configuration in a Triton repository. Supported fields are applied.
//! Fields that contradict the graph, or that would change answers and are not supported, are
//! rejected. All other fields, such as optimizations, have no effect and are listed for the
//! operator.

mod fields;
mod json;
mod policy;
pub mod python;
mod sequence;
mod tensor;
mod text;
mod versions;
mod warm;

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use volley_onnx_runtime::ort::value::Outlet;
use volley_types::PredictError;

use self::fields::{messages, number, once, one_of, plain, string, word};
pub use self::policy::{LONGEST_WINDOW, QueuePolicies};
pub use self::sequence::{Control, ControlKind, Sequences};
use self::tensor::Tensor;
use self::text::Message;
use self::versions::Versions;
pub use self::versions::order;
pub use self::warm::Sample;
use volley_onnx_runtime::{Device, OnnxConfig};

/// The file name.
const FILE: &str = "config.pbtxt";

/// Unsupported fields that would change the answers.
const NOT_KNOWN: [&str; 3] = ["batch_input", "batch_output", "model_operations"];

/// Fields that are applied, or that cannot have an effect.
const KNOWN: [&str; 13] = [
    "name",
    "platform",
    "backend",
    "max_batch_size",
    "input",
    "output",
    "version_policy",
    "default_model_filename",
    "instance_group",
    "dynamic_batching",
    "sequence_batching",
    "model_warmup",
    "parameters",
];
/// The parameter of Triton's ONNX Runtime backend for the number of threads of a session.
const THREADS: &str = "intra_op_thread_count";

/// The configuration of an ensemble in JSON; `None` if the directory is not an ensemble.
///
/// # Errors
/// `InvalidInput` when the file is malformed.
pub fn ensemble(
    directory: &Path,
) -> Result<Option<serde_json::Map<String, serde_json::Value>>, PredictError> {
    let Ok(text) = std::fs::read_to_string(directory.join(FILE)) else {
        return Ok(None);
    };
    let message = text::parse(&text).map_err(wrong)?;
    let is_ensemble = message.last("ensemble_scheduling").is_some()
        || string(&message, "platform").map_err(wrong)?.as_deref() == Some("ensemble");
    Ok(is_ensemble.then(|| json::to_json(&message)))
}

/// The supported parts of the configuration.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TritonConfig {
    /// Maximum number of rows of one run; 0 if the first dimension is not a batch.
    pub max_batch_size: usize,
    inputs: Vec<Tensor>,
    outputs: Vec<Tensor>,
    /// File name of the graph.
    pub graph: Option<String>,
    versions: Versions,
    device: Option<Device>,
    gpu: Option<i32>,
    instances: Option<usize>,
    threads: Option<usize>,
    /// Preferred sizes of a run, in rows.
    pub preferred: Vec<usize>,
    /// Labels of the values of outputs.
    labels: Vec<(String, Vec<String>)>,
    /// Warm-up runs before the first request.
    pub warm_up: Vec<Sample>,
    /// `Some` if one run may take the rows of several requests: the time that an idle model waits
    /// for more of them.
    pub merges: Option<Duration>,
    /// Queue policies of requests.
    pub queue: QueuePolicies,
    /// The configuration of sequences, if the model has any.
    pub sequences: Option<Sequences>,
    /// The whole configuration, for clients.
    json: serde_json::Map<String, serde_json::Value>,
    /// The applied fields for graphs, for people.
    details: Vec<(&'static str, String)>,
    /// The fields without effect.
    idle: Vec<String>,
}

impl TritonConfig {
    /// Reads the file in a repository's directory; `None` if there is none.
    ///
    /// # Errors
    /// `InvalidInput` when the file is malformed, is not for ONNX Runtime, or uses an unsupported
    /// feature.
    pub fn read(directory: &Path) -> Result<Option<Self>, PredictError> {
        match std::fs::read_to_string(directory.join(FILE)) {
            Ok(text) => {
                let mut declared = Self::parse(&text).map_err(wrong)?;
                declared.read_files(directory).map_err(wrong)?;
                Ok(Some(declared))
            }
            Err(error) if error.kind() == std::io::ErrorKind::InvalidData => {
                Err(wrong("it is not UTF-8"))
            }
            Err(_) => Ok(None),
        }
    }

    /// Reads a configuration in JSON, which replaces the file in a repository's directory.
    ///
    /// # Errors
    /// As [`TritonConfig::read`].
    pub fn given(json: &str, directory: &Path) -> Result<Self, PredictError> {
        let read = || {
            let object = serde_json::from_str(json);
            let object: serde_json::Map<_, _> =
                object.map_err(|error| format!("not valid JSON: {error}"))?;
            let mut declared = Self::of(&json::from_json(&object, 0)?)?;
            declared.read_files(directory)?;
            Ok(declared)
        };
        read().map_err(|what: String| {
            PredictError::invalid(format!("the configuration that was given: {what}"))
        })
    }

    fn parse(text: &str) -> Result<Self, String> {
        Self::of(&text::parse(text)?)
    }

    fn of(message: &Message) -> Result<Self, String> {
        if message.last("ensemble_scheduling").is_some() {
            return Err(
                "'ensemble_scheduling' defines an ensemble, which has no graph; register it with \
                 `volley model register --repository`, or load it with its configuration over \
                 /v2/repository"
                    .to_owned(),
            );
        }
        once(message)?;
        one_of(message, &["dynamic_batching", "sequence_batching"])?;
        if let Some(field) = NOT_KNOWN.iter().find(|field| message.last(field).is_some()) {
            return Err(format!("'{field}' is not supported"));
        }
        let platform = string(message, "platform")?.unwrap_or_default();
        let backend = string(message, "backend")?.unwrap_or_default();
        if !matches!(&*platform, "" | "onnxruntime_onnx")
            || !matches!(&*backend, "" | "onnxruntime")
        {
            let name = if backend.is_empty() {
                platform
            } else {
                backend
            };
            return Err(format!(
                "it is for '{name}'; only models of ONNX Runtime are served"
            ));
        }
        let mut idle = Vec::new();
        let mut declared = Self {
            max_batch_size: number(message, "max_batch_size")?.unwrap_or(0),
            inputs: Tensor::all(message, "input", &mut idle)?,
            outputs: Tensor::all(message, "output", &mut idle)?,
            graph: string(message, "default_model_filename")?,
            versions: Versions::read(message)?,
            warm_up: Sample::all(message)?,
            sequences: Sequences::read(message)?,
            json: json::to_json(message),
            idle,
            ..Self::default()
        };
        declared.instances(message)?;
        declared.batching(message)?;
        declared.parameters(message)?;
        if let Some(sequences) = &declared.sequences {
            let told = sequences.told();
            declared.details.push(("sequences", told));
        }
        let others = message.0.iter().map(|(field, _)| field);
        let others = others.filter(|field| !KNOWN.contains(&field.as_str()));
        declared.idle.extend(others.cloned());
        declared.idle.sort();
        declared.idle.dedup();
        if 0 < declared.max_batch_size {
            let size = declared.max_batch_size.to_string();
            declared.details.push(("rows of a run", size));
        }
        if !declared.warm_up.is_empty() {
            let runs: usize = declared.warm_up.iter().map(|sample| sample.runs).sum();
            let told = format!("{runs} runs over zeros");
            declared.details.push(("warm-up", told));
        }
        Ok(declared)
    }

    fn instances(&mut self, message: &Message) -> Result<(), String> {
        let groups = messages(message, "instance_group")?;
        let mut count = 0_usize;
        for group in &groups {
            count = count.saturating_add(number(group, "count")?.unwrap_or(1).max(1));
            let device = match word(group, "kind")?.as_deref() {
                None | Some("KIND_AUTO") => None,
                Some("KIND_CPU") => Some(Device::Cpu),
                Some("KIND_GPU") => Some(Device::Cuda),
                Some(other) => {
                    return Err(format!(
                        "'instance_group' has the kind {other}, not KIND_CPU, KIND_GPU or KIND_AUTO"
                    ));
                }
            };
            if device.is_some() && self.device.is_some_and(|other| Some(other) != device) {
                return Err("'instance_group' has two kinds; a replica has one device".to_owned());
            }
            self.device = device.or(self.device);
            self.gpu = number(group, "gpus")?.or(self.gpu);
            let more = [
                "secondary_devices",
                "rate_limiter",
                "profile",
                "host_policy",
                "passive",
            ];
            let more = more.iter().filter(|field| group.last(field).is_some());
            let more = more.map(|field| format!("instance_group.{field}"));
            self.idle.extend(more);
            if 1 < group.all("gpus").count() {
                self.idle
                    .push("instance_group.gpus but the first".to_owned());
            }
        }
        if OnnxConfig::MAX_INSTANCES < count {
            return Err(format!(
                "'instance_group' has {count} instances; a replica has {} at most",
                OnnxConfig::MAX_INSTANCES
            ));
        }
        if !groups.is_empty() {
            self.instances = Some(count);
        }
        Ok(())
    }

    fn batching(&mut self, message: &Message) -> Result<(), String> {
        for batching in messages(message, "dynamic_batching")? {
            let sizes = batching.all("preferred_batch_size");
            let sizes = sizes.map(|value| plain(value, "preferred_batch_size"));
            self.preferred = sizes.collect::<Result<_, String>>()?;
            let most = self.max_batch_size;
            let wrong = |size: &&usize| **size == 0 || (0 < most && most < **size);
            if let Some(size) = self.preferred.iter().find(wrong) {
                return Err(format!(
                    "'preferred_batch_size' {size} is not between 1 and 'max_batch_size'"
                ));
            }
            let delay: Option<u64> = number(batching, "max_queue_delay_microseconds")?;
            let delay = Duration::from_micros(delay.unwrap_or(0)).min(LONGEST_WINDOW);
            self.merges = Some(delay);
            let mut told = match most {
                0 => "none without a 'max_batch_size'".to_owned(),
                _ => "rows of requests that wait run together".to_owned(),
            };
            if !self.preferred.is_empty() && 0 < most {
                let sizes: Vec<String> = self.preferred.iter().map(usize::to_string).collect();
                told.push_str(&format!(", {} where they can be", sizes.join(" or ")));
            }
            if !delay.is_zero() {
                let delay = delay.as_micros();
                told.push_str(&format!("; an idle model waits {delay} µs for more"));
            }
            self.queue = QueuePolicies::read(batching)?;
            let waits = self.queue.told();
            if !waits.is_empty() {
                told.push_str(&format!("; {waits}"));
            }
            self.details.push(("dynamic batching", told));
            self.idle.extend(policy::without_effect(batching));
        }
        Ok(())
    }

    /// Reads the parameters of the backend: a map from names to texts.
    fn parameters(&mut self, message: &Message) -> Result<(), String> {
        for entry in messages(message, "parameters")? {
            let name = string(entry, "key")?.unwrap_or_default();
            let value = messages(entry, "value")?.pop();
            let value = value
                .map(|value| string(value, "string_value"))
                .transpose()?;
            match (name.as_str(), value.flatten()) {
                (THREADS, Some(count)) => {
                    let count = count.trim().parse().ok();
                    let told = || format!("the parameter '{THREADS}' must be a number of threads");
                    self.threads = Some(count.ok_or_else(told)?);
                }
                _ => self.idle.push(format!("parameters.{name}")),
            }
        }
        Ok(())
    }

    fn read_files(&mut self, directory: &Path) -> Result<(), String> {
        if let Some(sequences) = &mut self.sequences {
            sequences.read_files(directory)?;
        }
        for output in &self.outputs {
            if let Some(labels) = output.read_labels(directory)? {
                let told = format!("{} of '{}'", labels.len(), output.name);
                self.details.push(("labels", told));
                self.labels.push((output.name.clone(), labels));
            }
        }
        Ok(())
    }

    /// The labels of an output's values.
    pub fn labels_of(&self, output: &str) -> Option<&[String]> {
        let found = self.labels.iter().find(|(name, _)| name == output);
        found.map(|(_, labels)| labels.as_slice())
    }

    /// The expected shape of an input or output in the graph, including the batch dimension.
    pub fn shape_of(&self, name: &str) -> Option<Vec<i64>> {
        let mut tensors = self.inputs.iter().chain(&self.outputs);
        let tensor = tensors.find(|tensor| tensor.name == name)?;
        let rows = (0 < self.max_batch_size).then_some(-1);
        let dims = tensor.inner.as_ref().unwrap_or(&tensor.dims);
        Some(rows.into_iter().chain(dims.iter().copied()).collect())
    }

    /// The declared shape of a row and its shape in the graph, if the file has a `reshape`.
    pub fn reshape_of(&self, name: &str) -> Option<(&[i64], &[i64])> {
        let mut tensors = self.inputs.iter().chain(&self.outputs);
        let tensor = tensors.find(|tensor| tensor.name == name)?;
        Some((&tensor.dims, tensor.inner.as_deref()?))
    }

    /// For people: the applied settings of a graph or of another kind of model, and the fields
    /// without effect on it.
    pub fn details(&self, graph: bool) -> Vec<(&'static str, String)> {
        let mut details = if graph {
            self.details.clone()
        } else {
            Vec::new()
        };
        if let Some(count) = self.instances.filter(|count| 1 < *count) {
            details.push(("instances", count.to_string()));
        }
        let mut idle = self.idle.clone();
        if !graph {
            let tensors = [
                "max_batch_size",
                "input",
                "output",
                "dynamic_batching",
                "model_warmup",
            ];
            idle.extend(tensors.map(str::to_owned));
        }
        if !idle.is_empty() {
            details.push(("without effect", idle.join(", ")));
        }
        details
    }

    /// The served versions among the existing ones `there`. The default version is last.
    ///
    /// # Errors
    /// `InvalidInput` when a declared version does not exist.
    pub fn versions(&self, there: &[String]) -> Result<Vec<String>, PredictError> {
        self.versions.of(there).map_err(wrong)
    }

    /// The configuration for clients, as a JSON object in Triton's format. Missing fields have
    /// Triton's defaults. Missing inputs and outputs are those of the `graph`: `ports`,
    /// each with its name, type and shape.
    pub fn config(
        &self,
        graph: &Path,
        ports: [Vec<(String, String, Vec<i64>)>; 2],
    ) -> serde_json::Value {
        let mut json = self.json.clone();
        let graph = graph.file_name().unwrap_or_default().to_string_lossy();
        let missing = [
            ("platform", serde_json::json!("onnxruntime_onnx")),
            ("backend", serde_json::json!("onnxruntime")),
            ("max_batch_size", self.max_batch_size.into()),
            (
                "version_policy",
                serde_json::json!({ "latest": { "num_versions": 1 } }),
            ),
            ("default_model_filename", graph.into()),
        ];
        for (name, value) in missing {
            json.entry(name).or_insert(value);
        }
        for (name, ports) in ["input", "output"].into_iter().zip(ports) {
            let tensors = json.entry(name).or_insert_with(|| {
                let tensors = ports.into_iter().map(|(name, data_type, dims)| {
                    serde_json::json!({ "name": name, "data_type": data_type, "dims": dims })
                });
                tensors.collect()
            });
            for tensor in tensors.as_array_mut().into_iter().flatten() {
                if name == "input" && tensor.get("format").is_none() {
                    tensor["format"] = "FORMAT_NONE".into();
                }
                if name == "output" && tensor.get("label_filename").is_none() {
                    tensor["label_filename"] = "".into();
                }
            }
        }
        json.into()
    }

    /// Applies the settings of the file to the configuration of a worker.
    pub fn apply(&self, mut config: OnnxConfig) -> OnnxConfig {
        config.device = self.device.unwrap_or(config.device);
        config.gpu = self.gpu.unwrap_or(config.gpu);
        config.instances = self.instances.unwrap_or(config.instances);
        config.threads = self.threads.unwrap_or(config.threads);
        config
    }

    /// Checks that the declarations fit the graph.
    ///
    /// # Errors
    /// `InvalidInput` with the input or output that is missing or has another type or shape.
    pub fn check(
        &self,
        inputs: &[Outlet],
        outputs: &[Outlet],
        shapeless: &BTreeSet<String>,
    ) -> Result<(), PredictError> {
        for (what, declared, there) in [
            ("input", &self.inputs, inputs),
            ("output", &self.outputs, outputs),
        ] {
            for tensor in declared {
                let found = there.iter().find(|outlet| outlet.name() == tensor.name);
                let Some(outlet) = found else {
                    let names: Vec<_> = there.iter().map(Outlet::name).collect();
                    let names = names.join(", ");
                    let told = format!("the graph has no {what} '{}'; it has {names}", tensor.name);
                    return Err(wrong(told));
                };
                let batched = 0 < self.max_batch_size;
                let open = shapeless.contains(&tensor.name);
                tensor.check(outlet, batched, open).map_err(wrong)?;
            }
        }
        let hidden = |name: &str| self.sequences.as_ref().is_some_and(|it| it.gives(name));
        if let Some(sequences) = &self.sequences {
            sequences.check(inputs, outputs).map_err(wrong)?;
        }
        // The file may omit outputs, which are served anyway, but not inputs.
        let missing = inputs.iter().find(|outlet| {
            !self.inputs.is_empty()
                && !hidden(outlet.name())
                && !self.inputs.iter().any(|it| it.name == outlet.name())
        });
        match missing {
            Some(outlet) => {
                let name = outlet.name();
                Err(wrong(format!("the graph's input '{name}' is not declared")))
            }
            None => Ok(()),
        }
    }
}

fn wrong(what: impl std::fmt::Display) -> PredictError {
    PredictError::invalid(format!("{FILE}: {what}"))
}

#[cfg(test)]
mod tests;
