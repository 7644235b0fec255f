//! Directories that the model builder of ONNX Runtime GenAI writes.

use std::path::{Path, PathBuf};

use serde::Deserialize;
use volley_types::PredictError;

use super::{ModelDescription, Names, Sampling, TokenIds, json};

/// The file that describes the model.
pub(super) const FILE: &str = "genai_config.json";

#[derive(Deserialize)]
struct Config {
    model: Model,
    #[serde(default)]
    search: Search,
}

#[derive(Deserialize)]
struct Model {
    context_length: usize,
    eos_token_id: TokenIds,
    vocab_size: usize,
    decoder: Decoder,
}

#[derive(Deserialize)]
struct Decoder {
    filename: String,
    head_size: usize,
    num_hidden_layers: usize,
    num_key_value_heads: usize,
    inputs: Inputs,
    outputs: Outputs,
    #[serde(default)]
    session_options: SessionOptions,
}

#[derive(Default, Deserialize)]
struct SessionOptions {
    #[serde(default)]
    custom_ops_library: Option<String>,
}

#[derive(Deserialize)]
struct Inputs {
    input_ids: String,
    attention_mask: String,
    #[serde(default = "position_ids")]
    position_ids: String,
    past_key_names: String,
    past_value_names: String,
}

fn position_ids() -> String {
    "position_ids".to_owned()
}

#[derive(Deserialize)]
struct Outputs {
    logits: String,
    present_key_names: String,
    present_value_names: String,
}

#[derive(Default, Deserialize)]
struct Search {
    #[serde(default)]
    past_present_share_buffer: bool,
    #[serde(flatten)]
    sampling: Sampling,
}

/// Reads the description.
///
/// # Errors
/// `InvalidInput` when it is malformed.
pub(super) fn describe(directory: &Path) -> Result<ModelDescription, PredictError> {
    let Config { model, search } = json(directory, FILE)?;
    let decoder = model.decoder;
    if decoder.filename.contains(['/', '\\']) {
        return Err(PredictError::invalid(format!(
            "{FILE}: 'filename' must be a plain name"
        )));
    }
    if decoder.session_options.custom_ops_library.is_some() {
        return Err(PredictError::invalid(format!(
            "{FILE}: the model needs a custom operator library, and workers load no code from a \
             model"
        )));
    }
    let (inputs, outputs) = (&decoder.inputs, &decoder.outputs);
    let layer = |template: &str, index: usize| template.replace("%d", &index.to_string());
    let caches = (0..decoder.num_hidden_layers).flat_map(|index| {
        [
            (
                layer(&inputs.past_key_names, index),
                layer(&outputs.present_key_names, index),
            ),
            (
                layer(&inputs.past_value_names, index),
                layer(&outputs.present_value_names, index),
            ),
        ]
    });
    Ok(ModelDescription {
        file: FILE,
        names: Names {
            caches: caches.collect(),
            input_ids: decoder.inputs.input_ids,
            attention_mask: decoder.inputs.attention_mask,
            position_ids: decoder.inputs.position_ids,
            logits: decoder.outputs.logits,
        },
        onnx: PathBuf::from(decoder.filename),
        prompts: None,
        shared: search.past_present_share_buffer,
        context: model.context_length,
        vocabulary: model.vocab_size,
        kv_heads: decoder.num_key_value_heads,
        head_size: decoder.head_size,
        eos: model.eos_token_id.list(),
        recommended: search.sampling.parameters(),
    })
}
