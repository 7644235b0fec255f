//! The registered configuration of a model version: its task, OpenSearch's `model_config`, and a
//! Triton configuration. It overrides all files, because the person who registers a model knows
//! them.

use std::path::Path;

use serde::Deserialize;
use volley_types::{ParamValue, Parameters, PredictError, Task};

use crate::triton::TritonConfig;

/// The parameter of a model version with OpenSearch's `model_config`.
const MODEL_CONFIG: &str = "model_config";
/// The parameter of a model version with the task of an encoder.
const TASK: &str = "task";
/// The parameter of a model version with a Triton configuration in JSON, which replaces that of a
/// repository.
const TRITON_CONFIG: &str = "triton_config";

/// The registered configuration of a model version.
#[derive(Clone, Debug, Default)]
pub struct RegisteredConfig {
    /// The task of an encoder.
    pub task: Option<Task>,
    /// The `model_config`.
    pub config: Option<ModelConfig>,
    /// A Triton configuration in JSON.
    pub triton: Option<String>,
}

/// The supported fields of a `model_config`.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct ModelConfig {
    /// Number of dimensions of the vectors.
    pub embedding_dimension: Option<usize>,
    /// The pooling of token vectors, by sentence-transformers' name.
    pub pooling_mode: Option<String>,
    /// Whether vectors are scaled to length 1.
    pub normalize_result: Option<bool>,
    /// Maximum text length in tokens.
    pub model_max_length: Option<usize>,
    /// Prefix of queries.
    pub query_prefix: Option<String>,
    /// Prefix of passages.
    pub passage_prefix: Option<String>,
    /// The content of a `config.json`.
    pub all_config: Option<String>,
}

impl RegisteredConfig {
    /// Reads the parameters of a version.
    ///
    /// # Errors
    /// `InvalidInput` with the malformed parameter.
    pub fn read(parameters: &Parameters) -> Result<Self, PredictError> {
        let task = parameters.text(TASK);
        let task = task.map(|name| {
            Task::from_name(&name)
                .filter(|task| !matches!(task, Task::Generate | Task::Tensors | Task::Events))
                .ok_or_else(|| {
                    PredictError::invalid(
                        "the model's parameter 'task' must be embed, rerank, classify, \
                         classify_tokens or encode_sparse",
                    )
                })
        });
        let config = match parameters.get(MODEL_CONFIG) {
            None => None,
            Some(ParamValue::Json(text) | ParamValue::Text(text)) => Some(
                serde_json::from_str(text)
                    .map_err(|error| malformed(&error.to_string()).with_source(error))?,
            ),
            Some(_) => return Err(malformed("it is not an object")),
        };
        let triton = match parameters.get(TRITON_CONFIG) {
            None => None,
            Some(ParamValue::Json(text) | ParamValue::Text(text)) => Some(text.clone()),
            Some(_) => {
                let message = format!("the model's '{TRITON_CONFIG}' is not an object");
                return Err(PredictError::invalid(message));
            }
        };
        Ok(Self {
            task: task.transpose()?,
            config,
            triton,
        })
    }

    /// The Triton configuration: the registered one, else that of the directory.
    ///
    /// # Errors
    /// `InvalidInput` when it is malformed or uses an unsupported feature.
    pub fn declared(&self, path: &Path) -> Result<Option<TritonConfig>, PredictError> {
        match &self.triton {
            Some(json) => TritonConfig::given(json, path).map(Some),
            None => TritonConfig::read(path),
        }
    }

    /// The content of the registered `config.json`.
    pub fn all_config(&self) -> Option<&str> {
        self.config.as_ref()?.all_config.as_deref()
    }
}

fn malformed(why: &str) -> PredictError {
    PredictError::invalid(format!("the model's 'model_config' is malformed: {why}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(name: &str, value: ParamValue) -> Result<RegisteredConfig, PredictError> {
        RegisteredConfig::read(&[(name.to_owned(), value)].into_iter().collect())
    }

    #[test]
    fn what_was_registered_is_read_or_refused_by_name() {
        let config = r#"{"model_type":"bert","pooling_mode":"cls","all_config":"{}"}"#;
        let found = read("model_config", ParamValue::Json(config.to_owned())).unwrap();
        assert_eq!(found.all_config(), Some("{}"));
        let found = read("task", ParamValue::Text("rerank".to_owned())).unwrap();
        assert_eq!(found.task, Some(Task::Rerank));
        for (name, value) in [
            ("task", ParamValue::Text("generate".to_owned())),
            ("model_config", ParamValue::Json("[]".to_owned())),
            ("model_config", ParamValue::Int(7)),
        ] {
            assert!(read(name, value).unwrap_err().message.contains(name));
        }
    }
}
