//! `model.toml`: the operator's configuration of a model directory. It overrides the other files,
//! and is overridden by the registration of the version.

use std::collections::BTreeMap;
use std::path::Path;

use serde::Deserialize;
use volley_types::{ParamValue, Parameters, PredictError};

use volley_onnx_runtime::{Device, OnnxConfig};

/// The parameter of a model version that selects one of several graphs.
pub const VARIANT: &str = "variant";
/// The parameter, of a version or a request, with the number of dimensions of the returned vectors.
pub const DIMENSIONS: &str = "dimensions";
/// The file name.
pub const FILE: &str = "model.toml";

/// The kind of model that the file belongs to. Each kind has its own keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ModelKind {
    /// A decoder.
    Decoder,
    /// A text encoder.
    Encoder,
    /// A graph with tensor inputs and outputs.
    Graph,
}

const COMMON: [&str; 4] = ["task", "variant", "device", "threads"];
const DECODER: [&str; 4] = ["max_context", "slots", "prefix_reuse", "parameters"];
const GRAPH: [&str; 5] = [
    "instances",
    "max_rows",
    "max_batch_rows",
    "batch_window_us",
    "shapes",
];
const ENCODER: [&str; 12] = [
    "instances",
    "pooling",
    "normalize",
    "max_length",
    "dimensions",
    "query_prefix",
    "passage_prefix",
    "labels",
    "activation",
    "max_batch_tokens",
    "max_batch_rows",
    "batch_window_us",
];

impl ModelKind {
    fn keys(self) -> &'static [&'static str] {
        match self {
            Self::Decoder => &DECODER,
            Self::Encoder => &ENCODER,
            Self::Graph => &GRAPH,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Decoder => "a decoder",
            Self::Encoder => "a text encoder",
            Self::Graph => "a graph of tensors",
        }
    }
}

/// How token vectors are combined into one vector.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Pooling {
    /// The mean.
    Mean,
    /// The first token's vector.
    Cls,
    /// The last token's vector.
    Last,
    /// The maximum of each dimension.
    Max,
    /// The sum divided by the square root of the number of tokens.
    MeanSqrtLen,
    /// The weighted mean: weight 1 for the first token, 2 for the second, and so on.
    WeightedMean,
}

impl Pooling {
    /// Parses the name that sentence-transformers and OpenSearch use.
    pub fn from_name(name: &str) -> Option<Self> {
        match name {
            "mean" => Some(Self::Mean),
            "cls" => Some(Self::Cls),
            "max" => Some(Self::Max),
            "lasttoken" => Some(Self::Last),
            "mean_sqrt_len" | "mean_sqrt_len_tokens" => Some(Self::MeanSqrtLen),
            "weightedmean" => Some(Self::WeightedMean),
            _ => None,
        }
    }
}

/// How the outputs of a classifier or a ranker become scores.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Activation {
    /// The outputs are scores.
    None,
    /// The sigmoid of each output, from 0 to 1.
    Sigmoid,
    /// The softmax of all outputs, which sum to 1.
    Softmax,
}

/// The content of the file. All fields are optional.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
pub struct Overrides {
    /// The task of the model: a name of [`volley_types::Task`].
    pub task: Option<String>,
    /// The served graph, if there are several.
    pub variant: Option<String>,
    device: Option<String>,
    threads: Option<usize>,
    instances: Option<usize>,
    max_context: Option<usize>,
    slots: Option<usize>,
    prefix_reuse: Option<bool>,
    max_rows: Option<usize>,
    #[serde(default)]
    parameters: BTreeMap<String, toml::Value>,
    /// How token vectors are combined.
    pub pooling: Option<Pooling>,
    /// Whether vectors are scaled to length 1.
    pub normalize: Option<bool>,
    /// Maximum text length in tokens.
    pub max_length: Option<usize>,
    dimensions: Option<u32>,
    /// Prefix of queries.
    pub query_prefix: Option<String>,
    /// Prefix of passages.
    pub passage_prefix: Option<String>,
    /// Class names, in the order of the graph's output.
    pub labels: Option<Vec<String>>,
    /// How outputs become scores.
    pub activation: Option<Activation>,
    /// Maximum number of tokens of one run, including padding.
    pub max_batch_tokens: Option<usize>,
    /// Maximum number of rows of one run.
    pub max_batch_rows: Option<usize>,
    /// Time that an idle model waits for more rows, in microseconds.
    pub batch_window_us: Option<u32>,
    /// Shapes of inputs and outputs for which the graph declares none; -1 for a dynamic dimension.
    #[serde(default)]
    pub shapes: BTreeMap<String, Vec<i64>>,
}

impl Overrides {
    /// Reads the file of a directory. Returns the default if it does not exist.
    ///
    /// # Errors
    /// `InvalidInput` when the file cannot be read, is malformed, or has a key that this kind of
    /// model does not support.
    pub fn read(directory: &Path, kind: ModelKind) -> Result<Self, PredictError> {
        match std::fs::read_to_string(directory.join(FILE)) {
            Ok(text) => Self::parse(&text, kind),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Self::default()),
            Err(error) => Err(PredictError::invalid(format!(
                "{FILE} cannot be read, or is not UTF-8"
            ))
            .with_source(error.to_string())),
        }
    }

    fn parse(text: &str, kind: ModelKind) -> Result<Self, PredictError> {
        let malformed =
            |error: toml::de::Error| PredictError::invalid(format!("{FILE}: {}", error.message()));
        let table: toml::Table = toml::from_str(text).map_err(malformed)?;
        let known = || COMMON.iter().chain(kind.keys());
        if let Some(key) = table.keys().find(|key| !known().any(|known| known == key)) {
            let known: Vec<_> = known().copied().collect();
            return Err(PredictError::invalid(format!(
                "{FILE}: '{key}' is not a key of {}; the keys are {}",
                kind.name(),
                known.join(", ")
            )));
        }
        table.try_into().map_err(malformed)
    }

    /// Applies the settings of the file to the configuration of a worker.
    ///
    /// # Errors
    /// `InvalidInput` when the device is unknown or a number is out of range.
    pub fn apply(&self, mut config: OnnxConfig) -> Result<OnnxConfig, PredictError> {
        if let Some(name) = &self.device {
            config.device = Device::from_name(name).ok_or_else(|| {
                PredictError::invalid(format!("{FILE}: 'device' must be auto, cpu or cuda"))
            })?;
        }
        for (name, value) in [
            ("slots", self.slots),
            ("instances", self.instances),
            ("max_rows", self.max_rows),
            ("max_batch_rows", self.max_batch_rows),
        ] {
            if value == Some(0) {
                let message = format!("{FILE}: '{name}' must be at least 1");
                return Err(PredictError::invalid(message));
            }
        }
        let most = OnnxConfig::MAX_INSTANCES;
        if self.instances.is_some_and(|count| most < count) {
            return Err(PredictError::invalid(format!(
                "{FILE}: 'instances' must be at most {most}"
            )));
        }
        config.instances = self.instances.unwrap_or(config.instances);
        config.threads = self.threads.unwrap_or(config.threads);
        config.slots = self.slots.unwrap_or(config.slots);
        config.max_rows = self.max_rows.unwrap_or(config.max_rows);
        config.max_context = self.max_context.or(config.max_context);
        config.prefix_reuse = self.prefix_reuse.unwrap_or(config.prefix_reuse);
        Ok(config)
    }

    /// Default parameters of requests, and the variant of the graph.
    pub fn parameters(&self) -> Parameters {
        let variant = self.variant.clone();
        let variant = variant.map(|name| (VARIANT.to_owned(), ParamValue::Text(name)));
        let own = self.parameters.iter();
        let dimensions = self.dimensions.map(|count| {
            let count = ParamValue::Int(i64::from(count));
            (DIMENSIONS.to_owned(), count)
        });
        own.map(|(name, value)| (name.clone(), parameter(value)))
            .chain(variant)
            .chain(dimensions)
            .collect()
    }
}

fn parameter(value: &toml::Value) -> ParamValue {
    match value {
        toml::Value::Boolean(value) => ParamValue::Bool(*value),
        toml::Value::Integer(value) => ParamValue::Int(*value),
        toml::Value::Float(value) => ParamValue::Float(*value),
        toml::Value::String(text) => ParamValue::Text(text.clone()),
        toml::Value::Datetime(time) => ParamValue::Text(time.to_string()),
        toml::Value::Array(_) | toml::Value::Table(_) => {
            ParamValue::Json(serde_json::json!(value).to_string())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_has_its_keys_and_is_told_of_others() {
        let text = "variant = 'q4'\nslots = 8\n[parameters]\ntemperature = 0.2\n";
        let own = Overrides::parse(text, ModelKind::Decoder).unwrap();
        let config = own.apply(OnnxConfig::default()).unwrap();
        assert_eq!(config.slots, 8);
        let parameters = own.parameters();
        assert_eq!(parameters.text(VARIANT).as_deref(), Some("q4"));
        let error = Overrides::parse(text, ModelKind::Encoder).unwrap_err();
        assert!(
            error
                .message
                .contains("'parameters' is not a key of a text encoder")
        );
        assert!(Overrides::parse("pooling = 'cls'", ModelKind::Decoder).is_err());
        assert!(Overrides::parse("slots = 'many'", ModelKind::Decoder).is_err());
        assert!(Overrides::parse("", ModelKind::Graph).is_ok());
    }

    #[test]
    fn what_cannot_be_is_refused() {
        let apply = |text| {
            let own = Overrides::parse(text, ModelKind::Decoder).unwrap();
            own.apply(OnnxConfig::default())
        };
        assert!(apply("device = 'tpu'").is_err());
        assert!(apply("slots = 0").is_err());
        let graph = |text| {
            let own = Overrides::parse(text, ModelKind::Graph).unwrap();
            own.apply(OnnxConfig::default())
        };
        assert_eq!(graph("instances = 3").unwrap().instances, 3);
        assert!(graph("instances = 0").is_err());
        assert!(graph("instances = 65").is_err());
    }
}
