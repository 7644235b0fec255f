//! The files of a generation model's directory: the description of the model ([`genai`] or
//! [`hugging_face`]), `tokenizer.json`, and the chat template.

mod genai;
mod hugging_face;

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use serde::Deserialize;
use serde::de::DeserializeOwned;
use volley_tokens::tokenizers::Tokenizer;
use volley_types::{ParamValue, Parameters, PredictError};

use super::reasoning::{Reasoning, Tags};
use volley_chat_template::ChatTemplate;
use volley_constraints::{Constraint, ConstraintForm, Constraints};
use volley_model_directory::layout::DecoderGraphs;
use volley_onnx_runtime::OnnxConfig;
use volley_tokens::text::{Decode, TokenTexts};
use volley_tokens::token_bytes::TokenBytes;
use volley_tool_calls::CallStyle;

#[derive(Default, Deserialize)]
struct TokenizerConfig {
    chat_template: Option<Templates>,
    bos_token: Option<serde_json::Value>,
    eos_token: Option<serde_json::Value>,
}

/// One chat template, or several named ones.
#[derive(Deserialize)]
#[serde(untagged)]
enum Templates {
    One(String),
    Named(Vec<NamedTemplate>),
}

#[derive(Deserialize)]
struct NamedTemplate {
    name: String,
    template: String,
}

impl Templates {
    /// The default template, and the template for conversations with tools.
    fn split(self) -> (Option<String>, Option<String>) {
        let named = match self {
            Self::One(template) => return (Some(template), None),
            Self::Named(named) => named,
        };
        let find = |name: &str| {
            let found = named.iter().find(|one| one.name == name);
            found.map(|one| one.template.clone())
        };
        let usual = find("default").or_else(|| Some(named.first()?.template.clone()));
        (usual, find("tool_use"))
    }
}

/// The names of a decoder's inputs and outputs.
#[derive(Clone, Debug)]
pub(crate) struct Names {
    pub(crate) input_ids: String,
    pub(crate) attention_mask: String,
    /// An optional input.
    pub(crate) position_ids: String,
    pub(crate) logits: String,
    /// The names (past, present) of each layer's keys and values.
    pub(crate) caches: Vec<(String, String)>,
}

/// The description of a generation model without its weights.
pub(crate) struct ModelFiles {
    /// Path of the graph, relative to the directory.
    pub(crate) onnx: PathBuf,
    /// Path of a separate graph for whole prompts, if there is one.
    pub(crate) prompts: Option<PathBuf>,
    /// Name of the file that describes the model.
    pub(crate) described_by: &'static str,
    pub(crate) names: Names,
    /// Whether past and present may share one buffer.
    pub(crate) shared: bool,
    /// Sampling parameters that the model's authors recommend.
    pub(crate) recommended: Parameters,
    pub(crate) context: usize,
    /// A prompt with more bytes than this has too many tokens, so it is rejected without
    /// tokenisation.
    pub(crate) prompt_bytes: usize,
    pub(crate) vocabulary: usize,
    pub(crate) kv_heads: usize,
    pub(crate) head_size: usize,
    pub(crate) eos: Vec<u32>,
    pub(crate) texts: TokenTexts,
    pub(crate) chat: Option<ChatTemplate>,
    /// The tags of reasoning in its chat template.
    tags: Option<Tags>,
    pub(crate) constraints: Constraints,
    spellings: OnceLock<TokenBytes>,
}

/// Assumed maximum bytes of a token, unless the vocabulary has a longer one.
const TOKEN_BYTES: usize = 64;

impl ModelFiles {
    /// Reads a directory.
    ///
    /// # Errors
    /// `InvalidInput` with the file that is missing or malformed.
    pub(crate) fn read(
        directory: &Path,
        variant: Option<&str>,
        max_context: Option<usize>,
    ) -> Result<Self, PredictError> {
        let described = describe(directory, variant)?;
        let ModelDescription {
            file,
            context,
            vocabulary,
            kv_heads,
            head_size,
            ..
        } = described;
        let context = max_context.map_or(context, |limit| limit.min(context));
        let sizes = [
            vocabulary,
            described.names.caches.len(),
            kv_heads,
            head_size,
        ];
        if context < 2 || sizes.contains(&0) {
            return Err(PredictError::invalid(format!(
                "{file}: a size is zero, or the context is below 2 tokens"
            )));
        }
        let tokenizer =
            Tokenizer::from_file(directory.join("tokenizer.json")).map_err(|error| {
                PredictError::invalid("tokenizer.json is missing or malformed")
                    .with_source(error.to_string())
            })?;
        let tokens = tokenizer.get_vocab(true);
        let longest = tokens.keys().map(String::len).max().unwrap_or(0);
        let chat = chat_template(directory)?;
        let tags = chat.as_ref().and_then(|chat| Tags::of(chat.source()));
        Ok(Self {
            prompt_bytes: context.saturating_mul(longest.max(TOKEN_BYTES)),
            onnx: described.onnx,
            prompts: described.prompts,
            described_by: file,
            names: described.names,
            shared: described.shared,
            recommended: described.recommended,
            context,
            vocabulary,
            kv_heads,
            head_size,
            eos: described.eos,
            texts: TokenTexts::new(tokenizer, vocabulary),
            chat,
            tags,
            constraints: Constraints::default(),
            spellings: OnceLock::new(),
        })
    }

    /// Creates the constraint that limits an answer of this model to `form`.
    ///
    /// # Errors
    /// `InvalidInput` with the defect of the form.
    pub(crate) fn constraint(&self, form: &ConstraintForm) -> Result<Constraint, PredictError> {
        let style = self.chat.as_ref().map(ChatTemplate::call_style);
        let style = style.unwrap_or(CallStyle::Bare);
        let eos = self.eos.first().copied();
        let mark = |name: &str| self.texts.mark_id(name);
        let spellings = self.spellings();
        self.constraints.make(form, (style, &mark), spellings, eos)
    }

    /// Creates the counter of reasoning in an answer to `prompt`, if the model marks reasoning.
    pub(crate) fn reasoning(&self, prompt: &str) -> Option<Reasoning> {
        let tags = self.tags.as_ref()?;
        Some(Reasoning::begin(*tags, prompt))
    }

    /// Number of reasoning tokens among an answer's `tokens`.
    pub(crate) fn reasoned(&self, prompt: &str, tokens: &[u32]) -> u32 {
        let Some(mut reasoning) = self.reasoning(prompt) else {
            return 0;
        };
        let tokens = tokens.iter().filter(|token| !self.eos.contains(token));
        for token in tokens {
            reasoning.push(&self.written(*token));
        }
        reasoning.count()
    }

    /// The text of a token. Tags of reasoning have a text even if they are special tokens.
    pub(crate) fn written(&self, token: u32) -> String {
        let name = self.texts.tokenizer().id_to_token(token);
        let name = name.filter(|name| self.tags.is_some_and(|tags| tags.has(name)));
        name.unwrap_or_else(|| self.texts.decode_one(token))
    }

    /// The bytes of each token. The first call is slow, because it builds the table.
    pub(crate) fn spellings(&self) -> &TokenBytes {
        let made = || TokenBytes::new(self.texts.tokenizer(), self.vocabulary);
        self.spellings.get_or_init(made)
    }

    /// Bytes of a KV cache with `slots` sequences of maximum context.
    pub(crate) fn cache_bytes(&self, slots: usize, value_bytes: usize) -> usize {
        let sizes = [
            self.names.caches.len(),
            self.kv_heads,
            self.context,
            self.head_size,
            value_bytes,
        ];
        product(slots, &sizes)
    }
}

fn product(first: usize, sizes: &[usize]) -> usize {
    let each = sizes.iter();
    each.fold(first, |product, size| product.saturating_mul(*size))
}

/// The graphs of a directory, and the number of elements of its completely used KV cache.
///
/// # Errors
/// `InvalidInput` when the description is missing or malformed.
pub(crate) fn sizes(
    directory: &Path,
    variant: Option<&str>,
    config: &OnnxConfig,
) -> Result<(DecoderGraphs, usize), PredictError> {
    let described = describe(directory, variant)?;
    let context = config.max_context.unwrap_or(usize::MAX);
    let sizes = [
        described.names.caches.len(),
        described.kv_heads,
        described.context.min(context),
        described.head_size,
    ];
    let graphs = DecoderGraphs {
        steps: described.onnx,
        prompts: described.prompts,
    };
    Ok((graphs, product(config.slots.max(1), &sizes)))
}

/// The description of a model in its directory.
struct ModelDescription {
    file: &'static str,
    onnx: PathBuf,
    prompts: Option<PathBuf>,
    names: Names,
    shared: bool,
    context: usize,
    vocabulary: usize,
    kv_heads: usize,
    head_size: usize,
    eos: Vec<u32>,
    recommended: Parameters,
}

fn describe(directory: &Path, variant: Option<&str>) -> Result<ModelDescription, PredictError> {
    if directory.join(genai::FILE).is_file() {
        genai::describe(directory)
    } else {
        hugging_face::describe(directory, variant)
    }
}

/// One or several token ids, as `eos_token_id` allows.
#[derive(Deserialize)]
#[serde(untagged)]
enum TokenIds {
    One(u32),
    Many(Vec<u32>),
}

impl TokenIds {
    fn list(self) -> Vec<u32> {
        match self {
            Self::One(id) => vec![id],
            Self::Many(ids) => ids,
        }
    }
}

/// The sampling that a model's authors recommend.
#[derive(Default, Deserialize)]
struct Sampling {
    #[serde(default)]
    do_sample: bool,
    temperature: Option<f64>,
    top_k: Option<i64>,
    top_p: Option<f64>,
    repetition_penalty: Option<f64>,
}

impl Sampling {
    /// Converts it to request parameters. Without `do_sample` sampling is greedy, and the other
    /// sampling fields are ignored.
    fn parameters(&self) -> Parameters {
        let float = |name: &str, value: Option<f64>| {
            value.map(|value| (name.to_owned(), ParamValue::Float(value)))
        };
        let penalty = self.repetition_penalty.filter(|penalty| *penalty != 1.0);
        let mut given = vec![float("repetition_penalty", penalty)];
        if self.do_sample {
            given.push(float("temperature", self.temperature.or(Some(1.0))));
            given.push(float("top_p", self.top_p));
            let top_k = self.top_k.filter(|top_k| 0 <= *top_k);
            given.push(top_k.map(|top_k| ("top_k".to_owned(), ParamValue::Int(top_k))));
        }
        given.into_iter().flatten().collect()
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
    let file = |name: &str| std::fs::read_to_string(directory.join(name)).ok();
    let (usual, with_tools) = match file("chat_template.jinja") {
        Some(usual) => (
            Some(usual),
            file("additional_chat_templates/tool_use.jinja"),
        ),
        None => config.chat_template.map_or((None, None), Templates::split),
    };
    let Some(source) = usual else {
        return Ok(None);
    };
    let bos = token_text(config.bos_token.as_ref());
    let eos = token_text(config.eos_token.as_ref());
    let template = ChatTemplate::new(source, bos, eos)?;
    let template = match with_tools {
        Some(source) => template.with_tools(source)?,
        None => template,
    };
    template.tried().map(Some)
}

/// The text of a token in `tokenizer_config.json`, which is a string or an object with `content`.
fn token_text(value: Option<&serde_json::Value>) -> String {
    let value = value.map(|value| value.get("content").unwrap_or(value));
    value
        .and_then(|value| value.as_str())
        .unwrap_or_default()
        .to_owned()
}
