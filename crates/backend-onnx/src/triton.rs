//! `config.pbtxt`: what a Triton repository says of a model. What Volley does as well is taken
//! over, what the graph contradicts is refused, and what would change the answers and is not
//! known here is refused too. Everything else, such as optimisations, has no effect, and is told.

mod fields;
mod tensor;
mod text;
mod warm;

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use ort::value::Outlet;
use volley_types::PredictError;

use self::fields::{messages, number, plain, string, word};
use self::tensor::Tensor;
use self::text::Message;
pub(crate) use self::warm::Sample;
use crate::{Device, OnnxConfig};

/// The file's name.
const FILE: &str = "config.pbtxt";

/// Fields without which a model would answer otherwise.
const NOT_KNOWN: [&str; 5] = [
    "ensemble_scheduling",
    "sequence_batching",
    "batch_input",
    "batch_output",
    "model_operations",
];

/// Fields that are taken over, or say nothing that could have an effect.
const KNOWN: [&str; 12] = [
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
    "model_warmup",
    "parameters",
];
/// The parameter of ONNX Runtime's backend that says how many threads a session has.
const THREADS: &str = "intra_op_thread_count";

/// What the file says, as far as it matters here.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Declared {
    /// Rows of one run, at most; 0 where the first dimension is no batch.
    pub(crate) max_batch_size: usize,
    inputs: Vec<Tensor>,
    outputs: Vec<Tensor>,
    /// The graph's name.
    pub(crate) graph: Option<String>,
    versions: Versions,
    device: Option<Device>,
    gpu: Option<i32>,
    instances: Option<usize>,
    threads: Option<usize>,
    /// Sizes of a run that are wanted, in rows.
    pub(crate) preferred: Vec<usize>,
    /// The names of outputs' values.
    labels: Vec<(String, Vec<String>)>,
    /// Runs before the first request.
    pub(crate) warm_up: Vec<Sample>,
    /// Whether the rows of several requests may be in one run, and how long an idle model waits for
    /// more of them.
    pub(crate) merges: Option<Duration>,
    /// What is taken over for graphs, for people.
    details: Vec<(&'static str, String)>,
    /// What has no effect.
    idle: Vec<String>,
}

/// Which of the numbered versions are served.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
enum Versions {
    #[default]
    Newest,
    Specific(Vec<u64>),
}

impl Declared {
    /// The file of a repository's directory; `None` where there is none.
    ///
    /// # Errors
    /// `InvalidInput` when it cannot be read, or is not for ONNX Runtime, or asks for what is not
    /// offered.
    pub(crate) fn read(directory: &Path) -> Result<Option<Self>, PredictError> {
        match std::fs::read_to_string(directory.join(FILE)) {
            Ok(text) => {
                let mut declared = Self::parse(&text).map_err(wrong)?;
                declared.read_labels(directory).map_err(wrong)?;
                Ok(Some(declared))
            }
            Err(error) if error.kind() == std::io::ErrorKind::InvalidData => {
                Err(wrong("it is not UTF-8"))
            }
            Err(_) => Ok(None),
        }
    }

    fn parse(text: &str) -> Result<Self, String> {
        let message = text::parse(text)?;
        if let Some(field) = NOT_KNOWN.iter().find(|field| message.last(field).is_some()) {
            return Err(format!("'{field}' is not offered"));
        }
        let platform = string(&message, "platform")?.unwrap_or_default();
        let backend = string(&message, "backend")?.unwrap_or_default();
        if !matches!(&*platform, "" | "onnxruntime_onnx")
            || !matches!(&*backend, "" | "onnxruntime")
        {
            let name = if backend.is_empty() {
                platform
            } else {
                backend
            };
            return Err(format!(
                "it is for '{name}'; only ONNX Runtime's models are served"
            ));
        }
        let mut idle = Vec::new();
        let mut declared = Self {
            max_batch_size: number(&message, "max_batch_size")?.unwrap_or(0),
            inputs: Tensor::all(&message, "input", &mut idle)?,
            outputs: Tensor::all(&message, "output", &mut idle)?,
            graph: string(&message, "default_model_filename")?,
            versions: versions(&message)?,
            warm_up: Sample::all(&message)?,
            idle,
            ..Self::default()
        };
        declared.instances(&message)?;
        declared.batching(&message)?;
        declared.parameters(&message)?;
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
            let delay = delay.unwrap_or(0);
            self.merges = Some(Duration::from_micros(delay));
            let mut told = match most {
                0 => "none without a 'max_batch_size'".to_owned(),
                _ => "rows of requests that wait run together".to_owned(),
            };
            if !self.preferred.is_empty() && 0 < most {
                let sizes: Vec<String> = self.preferred.iter().map(usize::to_string).collect();
                told.push_str(&format!(", {} where they can be", sizes.join(" or ")));
            }
            if 0 < delay {
                told.push_str(&format!("; an idle model waits {delay} µs for more"));
            }
            self.details.push(("dynamic batching", told));
            let known = [
                "preferred_batch_size",
                "max_queue_delay_microseconds",
                "preserve_ordering",
            ];
            let others = batching.0.iter().map(|(field, _)| field.as_str());
            let others = others.filter(|field| !known.contains(field));
            let others = others.map(|field| format!("dynamic_batching.{field}"));
            self.idle.extend(others);
        }
        Ok(())
    }

    /// Parameters of the backend: a map of names to texts.
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
                    let told = || format!("the parameter '{THREADS}' is no number of threads");
                    self.threads = Some(count.ok_or_else(told)?);
                }
                _ => self.idle.push(format!("parameters.{name}")),
            }
        }
        Ok(())
    }

    fn read_labels(&mut self, directory: &Path) -> Result<(), String> {
        for output in &self.outputs {
            if let Some(labels) = output.read_labels(directory)? {
                let told = format!("{} of '{}'", labels.len(), output.name);
                self.details.push(("labels", told));
                self.labels.push((output.name.clone(), labels));
            }
        }
        Ok(())
    }

    /// The names of an output's values.
    pub(crate) fn labels_of(&self, output: &str) -> Option<&[String]> {
        let found = self.labels.iter().find(|(name, _)| name == output);
        found.map(|(_, labels)| labels.as_slice())
    }

    /// The shape that the graph should have for an input or output, with the rows.
    pub(crate) fn shape_of(&self, name: &str) -> Option<Vec<i64>> {
        let mut tensors = self.inputs.iter().chain(&self.outputs);
        let tensor = tensors.find(|tensor| tensor.name == name)?;
        let rows = (0 < self.max_batch_size).then_some(-1);
        let dims = tensor.inner.as_ref().unwrap_or(&tensor.dims);
        Some(rows.into_iter().chain(dims.iter().copied()).collect())
    }

    /// The shape of a row as it is declared, and as the graph has it, where the file says that
    /// they differ.
    pub(crate) fn reshape_of(&self, name: &str) -> Option<(&[i64], &[i64])> {
        let mut tensors = self.inputs.iter().chain(&self.outputs);
        let tensor = tensors.find(|tensor| tensor.name == name)?;
        Some((&tensor.dims, tensor.inner.as_deref()?))
    }

    /// For people: what was taken over for a graph of tensors or for another kind of model, and
    /// what has no effect on it.
    pub(crate) fn details(&self, graph: bool) -> Vec<(&'static str, String)> {
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

    /// Which of the versions that are `there` is served.
    ///
    /// # Errors
    /// `InvalidInput` when it is none of them.
    pub(crate) fn version(&self, there: &[u64]) -> Result<Option<u64>, PredictError> {
        let Versions::Specific(wanted) = &self.versions else {
            return Ok(there.iter().max().copied());
        };
        let found = there
            .iter()
            .filter(|version| wanted.contains(version))
            .max();
        found
            .copied()
            .map(Some)
            .ok_or_else(|| wrong("'version_policy' names versions that are not there"))
    }

    /// A worker's knobs, as far as the file does not set them.
    pub(crate) fn apply(&self, mut config: OnnxConfig) -> OnnxConfig {
        config.device = self.device.unwrap_or(config.device);
        config.gpu = self.gpu.unwrap_or(config.gpu);
        config.instances = self.instances.unwrap_or(config.instances);
        config.threads = self.threads.unwrap_or(config.threads);
        config
    }

    /// Compares what is declared with the graph.
    ///
    /// # Errors
    /// `InvalidInput` naming what is not there or of another type or shape.
    pub(crate) fn check(
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
        // An output may be left out: it is served all the same. An input may not.
        let missing = inputs.iter().find(|outlet| {
            !self.inputs.is_empty() && !self.inputs.iter().any(|it| it.name == outlet.name())
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

fn versions(message: &Message) -> Result<Versions, String> {
    let Some(policy) = messages(message, "version_policy")?.pop() else {
        return Ok(Versions::Newest);
    };
    let Some(specific) = messages(policy, "specific")?.pop() else {
        // Of all, or of the newest few, one is served under one name: the newest.
        return Ok(Versions::Newest);
    };
    let versions = specific
        .all("versions")
        .map(|value| plain(value, "versions"));
    versions.collect::<Result<_, _>>().map(Versions::Specific)
}

fn wrong(what: impl std::fmt::Display) -> PredictError {
    PredictError::invalid(format!("{FILE}: {what}"))
}

#[cfg(test)]
mod tests;
