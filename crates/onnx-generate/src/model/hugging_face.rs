//! Directories that are exported from Hugging Face models: `config.json`, optionally
//! `generation_config.json`, and the graph, whose inputs and outputs have fixed names.

use std::path::Path;

use serde::Deserialize;
use volley_types::PredictError;

use super::{ModelDescription, Names, Sampling, TokenIds, json};
use volley_model_directory::layout;

const FILE: &str = "config.json";
const GENERATION_FILE: &str = "generation_config.json";

/// Aliases are the names in the oldest models.
#[derive(Deserialize)]
struct Config {
    vocab_size: usize,
    #[serde(alias = "n_layer")]
    num_hidden_layers: usize,
    #[serde(alias = "n_head")]
    num_attention_heads: usize,
    num_key_value_heads: Option<usize>,
    #[serde(alias = "n_embd")]
    hidden_size: usize,
    head_dim: Option<usize>,
    #[serde(alias = "n_positions", alias = "n_ctx")]
    max_position_embeddings: usize,
    eos_token_id: Option<TokenIds>,
}

#[derive(Default, Deserialize)]
struct Generation {
    eos_token_id: Option<TokenIds>,
    #[serde(flatten)]
    sampling: Sampling,
}

/// Reads the description.
///
/// # Errors
/// `InvalidInput` when a file is missing or malformed.
pub(super) fn describe(
    directory: &Path,
    variant: Option<&str>,
) -> Result<ModelDescription, PredictError> {
    let config: Config = json(directory, FILE)?;
    let generation: Generation = if directory.join(GENERATION_FILE).is_file() {
        json(directory, GENERATION_FILE)?
    } else {
        Generation::default()
    };
    let heads = config.num_attention_heads.max(1);
    let caches = (0..config.num_hidden_layers).flat_map(|layer| {
        ["key", "value"].map(|part| {
            (
                format!("past_key_values.{layer}.{part}"),
                format!("present.{layer}.{part}"),
            )
        })
    });
    let graphs = layout::decoder_graphs(directory, variant)?;
    Ok(ModelDescription {
        file: FILE,
        onnx: graphs.steps,
        prompts: graphs.prompts,
        names: Names {
            input_ids: "input_ids".to_owned(),
            attention_mask: "attention_mask".to_owned(),
            position_ids: "position_ids".to_owned(),
            logits: "logits".to_owned(),
            caches: caches.collect(),
        },
        shared: false,
        context: config.max_position_embeddings,
        vocabulary: config.vocab_size,
        kv_heads: config.num_key_value_heads.unwrap_or(heads),
        head_size: config.head_dim.unwrap_or(config.hidden_size / heads),
        eos: generation
            .eos_token_id
            .or(config.eos_token_id)
            .map_or_else(Vec::new, TokenIds::list),
        recommended: generation.sampling.parameters(),
    })
}
