//! The files of a generation model's directory: `genai_config.json` (layout, as the builder of
//! ONNX Runtime GenAI writes it), `tokenizer.json`, and the chat template.

use std::path::Path;

use minijinja::Environment;
use minijinja::syntax::SyntaxConfig;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use tokenizers::Tokenizer;
use volley_types::PredictError;

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
    pub(crate) vocabulary: usize,
    pub(crate) kv_heads: usize,
    pub(crate) head_size: usize,
    pub(crate) eos: Vec<u32>,
    pub(crate) tokenizer: Tokenizer,
    pub(crate) chat: Option<ChatTemplate>,
}

/// A chat template with the special tokens that it may name.
pub(crate) struct ChatTemplate {
    pub(crate) environment: Environment<'static>,
    pub(crate) bos: String,
    pub(crate) eos: String,
}

/// The name of the one template in its environment.
pub(crate) const TEMPLATE: &str = "chat";

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
        if context < 2 || vocab_size == 0 || decoder.num_hidden_layers == 0 {
            return Err(PredictError::invalid("genai_config.json: a size is zero"));
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
        Ok(Self {
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
            tokenizer,
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
    let mut environment = Environment::new();
    // As the templates' own library sets it up.
    let syntax = SyntaxConfig::builder()
        .trim_blocks(true)
        .lstrip_blocks(true)
        .build();
    environment.set_syntax(syntax.map_err(|error| {
        PredictError::internal("the template syntax could not be set up", error)
    })?);
    environment
        .add_template_owned(TEMPLATE, source)
        .map_err(|error| {
            PredictError::invalid("the chat template is malformed").with_source(error)
        })?;
    Ok(Some(ChatTemplate {
        environment,
        bos: token_text(config.bos_token.as_ref()),
        eos: token_text(config.eos_token.as_ref()),
    }))
}

/// A token in `tokenizer_config.json`: text, or an object with `content`.
fn token_text(value: Option<&serde_json::Value>) -> String {
    let value = value.map(|value| value.get("content").unwrap_or(value));
    value
        .and_then(|value| value.as_str())
        .unwrap_or_default()
        .to_owned()
}
