//! What was registered about a model beside where it is: its task, and OpenSearch's
//! `model_config`. It wins over every file, since whoever registers a model has seen them.

use serde::Deserialize;
use volley_types::{ParamValue, Parameters, PredictError, Task};

/// The parameter of a model version that holds OpenSearch's `model_config`.
const MODEL_CONFIG: &str = "model_config";
/// The parameter of a model version that says what an encoder does.
const TASK: &str = "task";

/// What was registered.
#[derive(Clone, Debug, Default)]
pub(crate) struct Registered {
    /// What the encoder does.
    pub(crate) task: Option<Task>,
    /// How, where a `model_config` came along.
    pub(crate) config: Option<ModelConfig>,
}

/// The fields of a `model_config` that are of use here.
#[derive(Clone, Debug, Default, Deserialize)]
pub(crate) struct ModelConfig {
    pub(crate) embedding_dimension: Option<usize>,
    pub(crate) pooling_mode: Option<String>,
    pub(crate) normalize_result: Option<bool>,
    pub(crate) model_max_length: Option<usize>,
    pub(crate) query_prefix: Option<String>,
    pub(crate) passage_prefix: Option<String>,
    /// The text of a `config.json`.
    pub(crate) all_config: Option<String>,
}

impl Registered {
    /// Reads the parameters of a version.
    ///
    /// # Errors
    /// `InvalidInput` naming what is malformed.
    pub(crate) fn read(parameters: &Parameters) -> Result<Self, PredictError> {
        let task = parameters.text(TASK);
        let task = task.map(|name| {
            Task::from_name(&name)
                .filter(|task| !matches!(task, Task::Generate | Task::Tensors))
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
            Some(_) => return Err(malformed("it is no object")),
        };
        Ok(Self {
            task: task.transpose()?,
            config,
        })
    }

    /// The text of the `config.json` that was registered.
    pub(crate) fn all_config(&self) -> Option<&str> {
        self.config.as_ref()?.all_config.as_deref()
    }
}

fn malformed(why: &str) -> PredictError {
    PredictError::invalid(format!("the model's 'model_config' is malformed: {why}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(name: &str, value: ParamValue) -> Result<Registered, PredictError> {
        Registered::read(&[(name.to_owned(), value)].into_iter().collect())
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
