//! `config.pbtxt`: what a Triton repository says of a model. What Volley does as well is taken
//! over, what the graph contradicts is refused, and what would change the answers and is not
//! known here is refused too. Everything else, such as optimisations, says nothing here.

mod text;

use std::path::Path;
use std::time::Duration;

use ort::value::{Outlet, TensorElementType, ValueType};
use volley_types::PredictError;

use self::text::{Message, Value};
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
    /// Whether the rows of several requests may be in one run, and how long an idle model waits for
    /// more of them.
    pub(crate) merges: Option<Duration>,
    /// What is taken over, or has no effect, for people.
    pub(crate) details: Vec<(&'static str, String)>,
}

/// Which of the numbered versions are served.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
enum Versions {
    #[default]
    Newest,
    Specific(Vec<u64>),
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Tensor {
    name: String,
    kind: TensorElementType,
    dims: Vec<i64>,
}

impl Declared {
    /// The file of a repository's directory; `None` where there is none.
    ///
    /// # Errors
    /// `InvalidInput` when it cannot be read, or is not for ONNX Runtime, or asks for what is not
    /// offered.
    pub(crate) fn read(directory: &Path) -> Result<Option<Self>, PredictError> {
        match std::fs::read_to_string(directory.join(FILE)) {
            Ok(text) => Self::parse(&text).map(Some).map_err(wrong),
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
        let mut declared = Self {
            max_batch_size: number(&message, "max_batch_size")?.unwrap_or(0),
            inputs: tensors(&message, "input")?,
            outputs: tensors(&message, "output")?,
            graph: string(&message, "default_model_filename")?,
            versions: versions(&message)?,
            ..Self::default()
        };
        declared.instances(&message)?;
        declared.batching(&message)?;
        if 0 < declared.max_batch_size {
            let size = declared.max_batch_size.to_string();
            declared.details.push(("rows of a run", size));
        }
        Ok(declared)
    }

    fn instances(&mut self, message: &Message) -> Result<(), String> {
        let mut count = 0;
        for group in messages(message, "instance_group")? {
            count += number(group, "count")?.unwrap_or(1).max(1);
            self.device = match word(group, "kind")?.as_deref() {
                None | Some("KIND_AUTO") => self.device,
                Some("KIND_CPU") => Some(Device::Cpu),
                Some("KIND_GPU") => Some(Device::Cuda),
                Some(other) => {
                    return Err(format!(
                        "'instance_group' has the kind {other}, not KIND_CPU, KIND_GPU or KIND_AUTO"
                    ));
                }
            };
            self.gpu = number(group, "gpus")?.or(self.gpu);
        }
        if 1 < count {
            let told =
                format!("{count} asked for; a replica has one session, deploy more replicas");
            self.details.push(("instances", told));
        }
        Ok(())
    }

    fn batching(&mut self, message: &Message) -> Result<(), String> {
        for batching in messages(message, "dynamic_batching")? {
            let sizes: Vec<String> = batching
                .all("preferred_batch_size")
                .map(|value| Ok(plain::<usize>(value, "preferred_batch_size")?.to_string()))
                .collect::<Result<_, String>>()?;
            let delay: Option<u64> = number(batching, "max_queue_delay_microseconds")?;
            let delay = delay.unwrap_or(0);
            self.merges = Some(Duration::from_micros(delay));
            let mut told = match self.max_batch_size {
                0 => "none without a 'max_batch_size'".to_owned(),
                _ => "rows of requests that wait run together".to_owned(),
            };
            if !sizes.is_empty() {
                let sizes = sizes.join(", ");
                told.push_str(&format!("; preferred sizes {sizes} have no effect"));
            }
            if 0 < delay {
                told.push_str(&format!("; an idle model waits {delay} µs for more"));
            }
            self.details.push(("dynamic batching", told));
        }
        Ok(())
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
        config
    }

    /// Compares what is declared with the graph.
    ///
    /// # Errors
    /// `InvalidInput` naming what is not there or of another type or shape.
    pub(crate) fn check(&self, inputs: &[Outlet], outputs: &[Outlet]) -> Result<(), PredictError> {
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
                if let ValueType::Tensor { ty, shape, .. } = outlet.dtype() {
                    tensor
                        .check(*ty, shape, 0 < self.max_batch_size)
                        .map_err(wrong)?;
                }
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

impl Tensor {
    fn check(&self, kind: TensorElementType, shape: &[i64], batched: bool) -> Result<(), String> {
        let Self { name, dims, .. } = self;
        if self.kind != kind {
            let told = format!(
                "'{name}' is declared as {}, and is {kind} in the graph",
                self.kind
            );
            return Err(told);
        }
        let shape = match (batched, shape.split_first()) {
            (false, _) => shape,
            (true, Some((first, rest))) if *first < 0 => rest,
            (true, _) => {
                return Err(format!(
                    "'max_batch_size' is set, but the first dimension of '{name}' is no batch in \
                     the graph; set it to 0"
                ));
            }
        };
        // A scalar for each row is declared as one number.
        let scalars = shape.is_empty() && dims[..] == [1];
        let fits = |(dim, own): (&i64, &i64)| *dim < 0 || *own < 0 || dim == own;
        if scalars || (dims.len() == shape.len() && dims.iter().zip(shape).all(fits)) {
            return Ok(());
        }
        Err(format!(
            "'{name}' is declared as {dims:?}, and is {shape:?} in the graph"
        ))
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

fn tensors(message: &Message, field: &str) -> Result<Vec<Tensor>, String> {
    let read = |tensor: &Message| {
        let name = string(tensor, "name")?.ok_or_else(|| format!("an {field} has no name"))?;
        if tensor.last("reshape").is_some() {
            return Err(format!("'reshape' of '{name}' is not offered"));
        }
        let dims = tensor.all("dims").map(|value| plain(value, "dims"));
        let kind = word(tensor, "data_type")?.unwrap_or_default();
        Ok(Tensor {
            dims: dims.collect::<Result<_, _>>()?,
            kind: element(&kind)
                .ok_or_else(|| format!("'{name}' has the data type '{kind}', which is none"))?,
            name,
        })
    };
    messages(message, field)?.into_iter().map(read).collect()
}

fn element(name: &str) -> Option<TensorElementType> {
    Some(match name {
        "TYPE_BOOL" => TensorElementType::Bool,
        "TYPE_UINT8" => TensorElementType::Uint8,
        "TYPE_UINT16" => TensorElementType::Uint16,
        "TYPE_UINT32" => TensorElementType::Uint32,
        "TYPE_UINT64" => TensorElementType::Uint64,
        "TYPE_INT8" => TensorElementType::Int8,
        "TYPE_INT16" => TensorElementType::Int16,
        "TYPE_INT32" => TensorElementType::Int32,
        "TYPE_INT64" => TensorElementType::Int64,
        "TYPE_FP16" => TensorElementType::Float16,
        "TYPE_FP32" => TensorElementType::Float32,
        "TYPE_FP64" => TensorElementType::Float64,
        "TYPE_BF16" => TensorElementType::Bfloat16,
        "TYPE_STRING" => TensorElementType::String,
        _ => return None,
    })
}

fn messages<'a>(message: &'a Message, field: &str) -> Result<Vec<&'a Message>, String> {
    let named = message.0.iter().filter(|(name, _)| name == field);
    let each = named.map(|(_, value)| match value {
        Value::Message(message) => Ok(message),
        Value::Word(_) | Value::Text(_) => Err(format!("'{field}' is no message")),
    });
    each.collect()
}

fn string(message: &Message, field: &str) -> Result<Option<String>, String> {
    match message.last(field) {
        None => Ok(None),
        Some(Value::Text(text)) => Ok(Some(text.clone())),
        Some(_) => Err(format!("'{field}' is no string")),
    }
}

fn word(message: &Message, field: &str) -> Result<Option<String>, String> {
    match message.last(field) {
        None => Ok(None),
        Some(Value::Word(word)) => Ok(Some(word.clone())),
        Some(_) => Err(format!("'{field}' is no name")),
    }
}

fn number<T: std::str::FromStr>(message: &Message, field: &str) -> Result<Option<T>, String> {
    message
        .last(field)
        .map(|value| plain(value, field))
        .transpose()
}

fn plain<T: std::str::FromStr>(value: &Value, field: &str) -> Result<T, String> {
    let number = match value {
        Value::Word(word) => word.parse().ok(),
        Value::Text(_) | Value::Message(_) => None,
    };
    number.ok_or_else(|| format!("'{field}' is no number, or none that it can be"))
}

fn wrong(what: impl std::fmt::Display) -> PredictError {
    PredictError::invalid(format!("{FILE}: {what}"))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SAMPLE: &str = r#"
        name: "classifier"
        platform: "onnxruntime_onnx"
        max_batch_size: 8
        input [ { name: "x" data_type: TYPE_FP32 dims: [ 3, -1 ] } ]
        output [ { name: "y" data_type: TYPE_INT64 dims: [ 1 ] label_filename: "labels.txt" } ]
        dynamic_batching { preferred_batch_size: [ 4, 8 ] max_queue_delay_microseconds: 100 }
        instance_group [ { count: 2 kind: KIND_CPU } ]
        version_policy { specific { versions: [ 1, 3 ] } }
        optimization { graph { level: 1 } }
    "#;

    #[test]
    fn a_configuration_is_understood() {
        let declared = Declared::parse(SAMPLE).unwrap();
        assert_eq!(declared.max_batch_size, 8);
        assert_eq!(declared.inputs[0].dims, [3, -1]);
        assert_eq!(declared.outputs[0].kind, TensorElementType::Int64);
        let config = declared.apply(OnnxConfig::default());
        assert_eq!(config.device, Device::Cpu);
        assert_eq!(declared.version(&[1, 2, 3, 4]).unwrap(), Some(3));
        assert!(declared.version(&[2, 4]).is_err());
        let told: Vec<_> = declared.details.iter().map(|(name, _)| *name).collect();
        assert_eq!(told, ["instances", "dynamic batching", "rows of a run"]);
    }

    #[test]
    fn what_is_not_offered_is_refused_by_its_name() {
        for (text, told) in [
            ("platform: 'tensorflow_savedmodel'", "tensorflow_savedmodel"),
            ("backend: 'python'", "'python'"),
            ("ensemble_scheduling { }", "ensemble_scheduling"),
            (
                "model_operations { op_library_filename: 'a.so' }",
                "model_operations",
            ),
            ("input { name: 'x' data_type: TYPE_FP8 }", "TYPE_FP8"),
            ("input { data_type: TYPE_FP32 }", "no name"),
            (
                "input { name: 'x' data_type: TYPE_FP32 reshape { shape: [] } }",
                "reshape",
            ),
            ("instance_group { kind: KIND_MODEL }", "KIND_MODEL"),
            ("max_batch_size: many", "max_batch_size"),
            ("max_batch_size: -1", "max_batch_size"),
            ("input: 3", "'input' is no message"),
        ] {
            let error = Declared::parse(text).unwrap_err();
            assert!(error.contains(told), "{text}: {error}");
        }
    }

    #[test]
    fn types_and_shapes_are_those_of_the_graph() {
        let tensor = |dims: &[i64]| Tensor {
            name: "x".to_owned(),
            kind: TensorElementType::Float32,
            dims: dims.to_vec(),
        };
        let check = |dims: &[i64], shape: &[i64], batched| {
            tensor(dims).check(TensorElementType::Float32, shape, batched)
        };
        assert!(check(&[3, -1], &[-1, 3, 5], true).is_ok());
        assert!(check(&[1], &[-1], true).is_ok());
        assert!(check(&[2, 3], &[2, -1], false).is_ok());
        assert!(
            check(&[3], &[4, 3], true)
                .unwrap_err()
                .contains("max_batch_size")
        );
        assert!(check(&[4], &[-1, 3], true).unwrap_err().contains("[4]"));
        let other = tensor(&[1]).check(TensorElementType::Int8, &[1], false);
        assert!(other.unwrap_err().contains("declared as"));
    }

    proptest! {
        #[test]
        fn any_text_is_understood_or_refused(
            fields in proptest::collection::vec(
                ("(platform|input|dims|version_policy|instance_group|name|max_batch_size|specific)",
                 "(: 1|: 'x'| \\{|\\}|: \\[1\\]|: TYPE_FP32)"), 0..12),
        ) {
            let text: String = fields.iter().map(|(name, rest)| format!("{name}{rest} ")).collect();
            let _ = Declared::parse(&text);
        }
    }
}
