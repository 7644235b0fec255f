//! The request parameters of text encoders.

use volley_types::params::{ROW_DETAILS, TOKEN_INPUTS, TOKEN_VECTORS};
use volley_types::{Parameters, PredictError, Task, unknown_parameter};

use volley_model_directory::overrides::DIMENSIONS;

/// Whether vectors are scaled to length 1.
const NORMALIZE: &str = "normalize";
/// Whether texts that are too long are truncated instead of rejected.
const TRUNCATE: &str = "truncate";
/// Whether scores are returned without the model's activation.
const RAW_SCORES: &str = "raw_scores";
/// Whether terms are identified by their ids in the vocabulary instead of their texts.
const TERM_IDS: &str = "term_ids";

/// Parameters for callers or other servers, which encoders ignore. An alias can lead to remote
/// models, which have details, and to an encoder.
const UNUSED: [&str; 3] = ["user", "model", ROW_DETAILS];

/// The parameters of one request. `None` means the model's default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct EncodeParameters {
    /// Number of dimensions of each vector.
    pub(super) dimensions: Option<usize>,
    pub(super) normalize: Option<bool>,
    pub(super) raw_scores: Option<bool>,
    pub(super) whole: bool,
    pub(super) term_ids: bool,
    pub(super) token_inputs: bool,
    pub(super) token_vectors: bool,
}

impl EncodeParameters {
    /// Reads the parameters of a request to a model with this task.
    ///
    /// # Errors
    /// `InvalidInput` with the parameter that is unknown, malformed, or belongs to another task.
    pub(super) fn read(parameters: &Parameters, task: Task) -> Result<Self, PredictError> {
        let flags = [
            (NORMALIZE, task == Task::Embed),
            (TRUNCATE, true),
            (RAW_SCORES, matches!(task, Task::Rerank | Task::Classify)),
            (TERM_IDS, task == Task::EncodeSparse),
            (TOKEN_INPUTS, task == Task::Embed),
            (TOKEN_VECTORS, task == Task::Embed),
        ];
        for (name, _) in parameters.iter() {
            let known = name == DIMENSIONS || UNUSED.contains(&name);
            match flags.iter().find(|(flag, _)| *flag == name) {
                Some((_, true)) => {}
                Some((_, false)) => return Err(misplaced(name, task)),
                None if known => {}
                None => return Err(unknown(name)),
            }
        }
        let flag = |name: &str| parameters.boolean(name);
        Ok(Self {
            dimensions: None,
            normalize: flag(NORMALIZE)?,
            raw_scores: flag(RAW_SCORES)?,
            whole: flag(TRUNCATE)? == Some(false),
            term_ids: flag(TERM_IDS)?.unwrap_or(false),
            token_inputs: flag(TOKEN_INPUTS)?.unwrap_or(false),
            token_vectors: flag(TOKEN_VECTORS)?.unwrap_or(false),
        })
    }
}

fn misplaced(name: &str, task: Task) -> PredictError {
    PredictError::invalid(format!(
        "parameter '{name}' does not apply to a model with the task '{}'",
        task.as_str()
    ))
}

fn unknown(name: &str) -> PredictError {
    let known = [
        DIMENSIONS,
        NORMALIZE,
        TRUNCATE,
        RAW_SCORES,
        TERM_IDS,
        TOKEN_INPUTS,
        TOKEN_VECTORS,
    ];
    let mut error = unknown_parameter(name, known);
    let names = known.map(|name| format!("'{name}'")).join(", ");
    error.message = format!(
        "{}; the parameters of a text encoder are {names}",
        error.message
    );
    error
}

#[cfg(test)]
mod tests {
    use volley_types::ParamValue;

    use super::*;

    fn read(name: &str, value: ParamValue, task: Task) -> Result<EncodeParameters, PredictError> {
        let mut parameters = Parameters::default();
        parameters.set(name, value)?;
        EncodeParameters::read(&parameters, task)
    }

    #[test]
    fn parameters_are_read_and_what_says_nothing_is_refused_by_name() {
        let whole = read(TRUNCATE, ParamValue::Bool(false), Task::Embed).unwrap();
        assert!(whole.whole && whole.normalize.is_none());
        assert!(
            !read(TRUNCATE, ParamValue::Bool(true), Task::Rerank)
                .unwrap()
                .whole
        );
        let raw = read(RAW_SCORES, ParamValue::Bool(true), Task::Rerank).unwrap();
        assert_eq!(raw.raw_scores, Some(true));
        for (name, value, task) in [
            ("temprature", ParamValue::Float(0.5), Task::Embed),
            (RAW_SCORES, ParamValue::Bool(true), Task::Embed),
            (NORMALIZE, ParamValue::Bool(true), Task::Rerank),
            (
                TRUNCATE,
                ParamValue::Text("perhaps".to_owned()),
                Task::Embed,
            ),
        ] {
            let error = read(name, value, task).unwrap_err();
            assert!(error.message.contains(&format!("'{name}'")), "{error:?}");
        }
    }
}
