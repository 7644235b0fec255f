//! The files of a generation model's directory: `genai_config.json` (layout, as the builder of
//! ONNX Runtime GenAI writes it), `tokenizer.json`, and the chat template.

use std::path::Path;

use serde::Deserialize;
use serde::de::DeserializeOwned;
use tokenizers::Tokenizer;
use volley_types::PredictError;

use super::template::ChatTemplate;
use super::text::TokenTexts;

#[derive(Deserialize)]
struct Config {
    model: Model,
}

#[derive(Deserialize)]
struct Model {
    context_length: usize,
    eos_token_id: TokenIds,
    vocab_size: usize,
    decoder: Decoder,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum TokenIds {
    One(u32),
    Many(Vec<u32>),
}

#[derive(Deserialize)]
struct Decoder {
    filename: String,
    head_size: usize,
    num_hidden_layers: usize,
    num_key_value_heads: usize,
    inputs: Inputs,
    outputs: Outputs,
}

#[derive(Deserialize)]
struct Inputs {
    input_ids: String,
    attention_mask: String,
    past_key_names: String,
    past_value_names: String,
}

#[derive(Deserialize)]
struct Outputs {
    logits: String,
    present_key_names: String,
    present_value_names: String,
}

#[derive(Default, Deserialize)]
struct TokenizerConfig {
    chat_template: Option<String>,
    bos_token: Option<serde_json::Value>,
    eos_token: Option<serde_json::Value>,
}

/// The names of a decoder's inputs and outputs.
#[derive(Clone, Debug)]
pub(crate) struct Names {
    pub(crate) input_ids: String,
    pub(crate) attention_mask: String,
    pub(crate) logits: String,
    /// (past, present) of each layer's keys and values.
    pub(crate) caches: Vec<(String, String)>,
}

/// What is known of a generation model besides its weights.
pub(crate) struct ModelFiles {
    pub(crate) onnx: String,
    pub(crate) names: Names,
    pub(crate) context: usize,
    /// A prompt of more bytes than this has too many tokens, without counting them.
    pub(crate) prompt_bytes: usize,
    pub(crate) vocabulary: usize,
    pub(crate) kv_heads: usize,
    pub(crate) head_size: usize,
    pub(crate) eos: Vec<u32>,
    pub(crate) texts: TokenTexts,
    pub(crate) chat: Option<ChatTemplate>,
}

/// A token stands for fewer bytes than this, unless the vocabulary has a longer one.
const TOKEN_BYTES: usize = 64;

impl ModelFiles {
    /// Reads a directory.
    ///
    /// # Errors
    /// `InvalidInput` naming the file that is missing or malformed.
    pub(crate) fn read(directory: &Path, max_context: Option<usize>) -> Result<Self, PredictError> {
        let config: Config = json(directory, "genai_config.json")?;
        let Model {
            context_length,
            eos_token_id,
            vocab_size,
            decoder,
        } = config.model;
        if decoder.filename.contains(['/', '\\']) {
            return Err(PredictError::invalid(
                "genai_config.json: 'filename' must be a plain name",
            ));
        }
        let context = max_context.map_or(context_length, |limit| limit.min(context_length));
        let sizes = [
            vocab_size,
            decoder.num_hidden_layers,
            decoder.num_key_value_heads,
            decoder.head_size,
        ];
        if context < 2 || sizes.contains(&0) {
            return Err(PredictError::invalid(
                "genai_config.json: a size is zero, or the context is below 2 tokens",
            ));
        }
        let layer = |template: &str, index: usize| template.replace("%d", &index.to_string());
        let caches = (0..decoder.num_hidden_layers).flat_map(|index| {
            [
                (
                    layer(&decoder.inputs.past_key_names, index),
                    layer(&decoder.outputs.present_key_names, index),
                ),
                (
                    layer(&decoder.inputs.past_value_names, index),
                    layer(&decoder.outputs.present_value_names, index),
                ),
            ]
        });
        let names = Names {
            caches: caches.collect(),
            input_ids: decoder.inputs.input_ids,
            attention_mask: decoder.inputs.attention_mask,
            logits: decoder.outputs.logits,
        };
        let tokenizer =
            Tokenizer::from_file(directory.join("tokenizer.json")).map_err(|error| {
                PredictError::invalid("tokenizer.json is missing or malformed")
                    .with_source(error.to_string())
            })?;
        let vocabulary = tokenizer.get_vocab(true);
        let longest = vocabulary.keys().map(String::len).max().unwrap_or(0);
        Ok(Self {
            prompt_bytes: context.saturating_mul(longest.max(TOKEN_BYTES)),
            onnx: decoder.filename,
            names,
            context,
            vocabulary: vocab_size,
            kv_heads: decoder.num_key_value_heads,
            head_size: decoder.head_size,
            eos: match eos_token_id {
                TokenIds::One(id) => vec![id],
                TokenIds::Many(ids) => ids,
            },
            texts: TokenTexts::new(tokenizer, vocab_size),
            chat: chat_template(directory)?,
        })
    }
}

fn json<T: DeserializeOwned>(directory: &Path, name: &str) -> Result<T, PredictError> {
    let text = std::fs::read(directory.join(name)).map_err(|error| {
        PredictError::invalid(format!("{name} cannot be read")).with_source(error)
    })?;
    serde_json::from_slice(&text)
        .map_err(|error| PredictError::invalid(format!("{name} is malformed: {error}")))
}

fn chat_template(directory: &Path) -> Result<Option<ChatTemplate>, PredictError> {
    let config = if directory.join("tokenizer_config.json").is_file() {
        json(directory, "tokenizer_config.json")?
    } else {
        TokenizerConfig::default()
    };
    let file = std::fs::read_to_string(directory.join("chat_template.jinja")).ok();
    let Some(source) = file.or(config.chat_template) else {
        return Ok(None);
    };
    let bos = token_text(config.bos_token.as_ref());
    let eos = token_text(config.eos_token.as_ref());
    ChatTemplate::new(source, bos, eos).map(Some)
}

/// A token in `tokenizer_config.json`: text, or an object with `content`.
fn token_text(value: Option<&serde_json::Value>) -> String {
    let value = value.map(|value| value.get("content").unwrap_or(value));
    value
        .and_then(|value| value.as_str())
        .unwrap_or_default()
        .to_owned()
}
