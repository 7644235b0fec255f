//! Settings of an encoder, from the files of exporters and sentence-transformers, from
//! `model.toml`, which overrides them, and from the registration, which overrides all.

mod files;

use std::path::Path;
use std::time::Duration;

use volley_types::{PredictError, Task};

use self::files::{
    Config, Module, PoolingConfig, Prompts, SentenceConfig, SpladeConfig, TokenizerConfig, json,
    of_module,
};
use super::plan::Budget;
use super::session_pool::SessionPool;
use volley_model_directory::overrides::{Activation, ModelKind, Overrides, Pooling};
use volley_model_directory::registered::{ModelConfig, RegisteredConfig};
use volley_onnx_runtime::session::ExecutionDevice;

/// Maximum text length in tokens, if no file has a lower limit.
const MAX_LENGTH: usize = 8_192;
/// From this value on, `model_max_length` is a placeholder for an unknown length.
const NO_LENGTH: f64 = 1e6;

/// The settings of an encoder.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct EncoderSettings {
    pub(super) task: Task,
    /// Whether the task is only guessed from the architecture.
    guessed: bool,
    pub(super) pooling: Pooling,
    /// How the scores of tokens become weights of terms.
    pub(super) weighing: TermWeighting,
    /// Whether texts are converted to lower case before tokenisation.
    pub(super) lower_case: bool,
    /// An unsupported module of sentence-transformers after pooling.
    pub(super) beyond: Option<String>,
    /// Whether vectors are scaled to length 1.
    pub(super) normalize: bool,
    /// Maximum tokens of one row, including special ones; longer texts are truncated.
    pub(super) max_length: usize,
    pub(super) query_prefix: String,
    pub(super) passage_prefix: String,
    /// Prefix of texts without an input type.
    pub(super) default_prefix: String,
    /// Names of a classifier's outputs, in order.
    pub(super) labels: Vec<String>,
    pub(super) activation: Activation,
    pub(super) pad_token: u32,
    /// The position of a row's first token, for graphs with an input of positions.
    pub(super) first_position: usize,
    /// Width of a vector, if the graph does not declare it.
    pub(super) hidden_size: Option<usize>,
    /// Maximum size of a run from `model.toml`.
    pub(super) batch_tokens: Option<usize>,
    pub(super) batch_rows: Option<usize>,
    /// Time that an idle model waits for more rows.
    pub(super) window: Duration,
    /// The registered width of a vector.
    embedding_dimension: Option<usize>,
}

/// How the scores of a text's tokens become one weight for each term. The default is the maximum of
/// ln(1 + max(score, 0)) over all tokens (SPLADE v2: Formal et al., 2021).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct TermWeighting {
    /// Uses the sum over all tokens instead of the maximum (SPLADE).
    pub(crate) sums: bool,
    /// Takes the logarithm twice, as OpenSearch's own models do.
    pub(crate) twice: bool,
}

impl EncoderSettings {
    /// Reads the settings from a directory and the registration.
    ///
    /// # Errors
    /// `InvalidInput` with the malformed file.
    pub(super) fn read(
        directory: &Path,
        registered: &RegisteredConfig,
    ) -> Result<Self, PredictError> {
        let told = registered.config.clone().unwrap_or_default();
        let config = config(directory, registered)?;
        let own = Overrides::read(directory, ModelKind::Encoder)?;
        let modules: Option<Vec<Module>> = json(directory, "modules.json")?;
        let listed = modules.as_deref().unwrap_or_default();
        let pooling: PoolingConfig = of_module(directory, listed, "Pooling")?;
        let splade: SpladeConfig = of_module(directory, listed, "SpladePooling")?;
        let sentence: SentenceConfig =
            json(directory, "sentence_bert_config.json")?.unwrap_or_default();
        let prompts: Prompts =
            json(directory, "config_sentence_transformers.json")?.unwrap_or_default();
        let known = labels(&config);
        let kinds: Vec<&str> = modules.iter().flatten().map(Module::name).collect();
        let known_task = known_task(registered.task, own.task.as_deref(), &kinds)?;
        let task = known_task.unwrap_or_else(|| task(&config, known.len()));
        // OpenSearch does not normalize vectors by default.
        let normalizes = match modules {
            Some(_) => kinds.contains(&"Normalize"),
            None => registered.config.is_none(),
        };
        Ok(Self {
            task,
            guessed: known_task.is_none(),
            pooling: match registered_pooling(&told)?.or(own.pooling) {
                Some(pooling) => pooling,
                None => pooling.mode()?,
            },
            weighing: splade.weighing()?,
            lower_case: sentence.do_lower_case,
            beyond: kinds
                .iter()
                .find(|kind| !MODULES.contains(kind))
                .map(|kind| (*kind).to_owned()),
            normalize: told
                .normalize_result
                .or(own.normalize)
                .unwrap_or(normalizes),
            max_length: match told.model_max_length {
                Some(length) => length.max(1),
                None => length(own.max_length, directory, &config, &sentence)?,
            },
            query_prefix: told
                .query_prefix
                .or(own.query_prefix)
                .unwrap_or_else(|| prompts.first(&["query"])),
            passage_prefix: told
                .passage_prefix
                .or(own.passage_prefix)
                .unwrap_or_else(|| prompts.first(&["passage", "document"])),
            default_prefix: prompts.default(),
            activation: match own.activation {
                Some(activation) => activation,
                None => activation(task, &config, known.len())?,
            },
            labels: own.labels.unwrap_or(known),
            pad_token: config.pad_token_id.unwrap_or(0),
            first_position: first_position(&config),
            hidden_size: config.hidden_size.or(told.embedding_dimension),
            embedding_dimension: told.embedding_dimension,
            batch_tokens: own.max_batch_tokens,
            batch_rows: own.max_batch_rows,
            window: Duration::from_micros(own.batch_window_us.unwrap_or(0).into()),
        })
    }

    /// The maximum size of a run on a session at `place`.
    pub(super) fn budget(&self, place: ExecutionDevice, lanes: &SessionPool) -> Budget {
        let usual = Budget::of(place, lanes);
        Budget {
            tokens: self.batch_tokens.unwrap_or(usual.tokens).max(1),
            rows: self.batch_rows.unwrap_or(usual.rows).max(1),
        }
    }

    /// Corrects a guessed task by the graph's outputs. Many embedding models name the architecture
    /// of their pre-training, but do not have its output.
    pub(super) fn suit(&mut self, outputs: &[&str]) {
        let hidden = [
            "last_hidden_state",
            "token_embeddings",
            "sentence_embedding",
        ];
        let embeds = outputs.iter().any(|name| hidden.contains(name));
        if self.guessed && self.task == Task::EncodeSparse && embeds && !outputs.contains(&"logits")
        {
            self.task = Task::Embed;
        }
    }

    /// Rejects vectors of another width than registered, because an index would reject them.
    ///
    /// # Errors
    /// `InvalidInput` with both widths.
    pub(super) fn check_width(&self, width: usize) -> Result<(), PredictError> {
        match self.embedding_dimension {
            Some(told) if self.task == Task::Embed && told != width => {
                Err(PredictError::invalid(format!(
                    "'model_config.embedding_dimension' is {told}, but the model's vectors have \
                     {width} numbers"
                )))
            }
            _ => Ok(()),
        }
    }

    /// Generates labels for a classifier without labels, as exporters omit default names.
    pub(super) fn name_labels(&mut self, width: usize) {
        let classifies = matches!(self.task, Task::Classify | Task::ClassifyTokens);
        if classifies && self.labels.is_empty() {
            self.labels = (0..width).map(|index| format!("LABEL_{index}")).collect();
        }
    }
}

/// The registered `config.json`, else that of the directory.
fn config(directory: &Path, registered: &RegisteredConfig) -> Result<Config, PredictError> {
    match registered.all_config() {
        Some(text) => serde_json::from_str(text).map_err(|error| {
            PredictError::invalid("'model_config.all_config' is not a valid config.json")
                .with_source(error)
        }),
        None => Ok(json(directory, "config.json")?.unwrap_or_default()),
    }
}

/// The pooling in `model_config`; `None` for `none`, which leaves pooling to the graph.
fn registered_pooling(config: &ModelConfig) -> Result<Option<Pooling>, PredictError> {
    let Some(mode) = config.pooling_mode.as_deref() else {
        return Ok(None);
    };
    let mode = mode.to_ascii_lowercase();
    if mode == "none" {
        return Ok(None);
    }
    Pooling::from_name(&mode).map(Some).ok_or_else(|| {
        PredictError::invalid(
            "'model_config.pooling_mode' must be mean, mean_sqrt_len, weightedmean, cls, max, \
             lasttoken or none",
        )
    })
}

/// The supported modules of sentence-transformers.
const MODULES: [&str; 5] = [
    "Transformer",
    "Pooling",
    "Normalize",
    "MLMTransformer",
    "SpladePooling",
];

/// The task that was registered, or else the one that `model.toml` or the modules name.
fn known_task(
    registered: Option<Task>,
    own: Option<&str>,
    kinds: &[&str],
) -> Result<Option<Task>, PredictError> {
    match (registered, own) {
        (Some(task), _) => Ok(Some(task)),
        (None, Some(name)) => task_named(name).map(Some),
        (None, None) => Ok(task_of_modules(kinds)),
    }
}

/// The task of a list of sentence-transformers' modules.
fn task_of_modules(kinds: &[&str]) -> Option<Task> {
    if kinds.contains(&"SpladePooling") {
        Some(Task::EncodeSparse)
    } else {
        kinds.contains(&"Pooling").then_some(Task::Embed)
    }
}

/// The labels of the outputs, in order of their index.
fn labels(config: &Config) -> Vec<String> {
    let mut labels: Vec<(usize, &String)> = config
        .id2label
        .iter()
        .filter_map(|(index, label)| Some((index.parse().ok()?, label)))
        .collect();
    labels.sort_unstable();
    labels.into_iter().map(|(_, label)| label.clone()).collect()
}

/// The task of an architecture. A classifier with one output is a ranker.
fn task(config: &Config, labels: usize) -> Task {
    let name = config.architectures.first().map_or("", String::as_str);
    if name.ends_with("ForSequenceClassification") && labels == 1 {
        Task::Rerank
    } else if name.ends_with("ForSequenceClassification") {
        Task::Classify
    } else if name.ends_with("ForTokenClassification") {
        Task::ClassifyTokens
    } else if name.ends_with("ForMaskedLM") {
        Task::EncodeSparse
    } else {
        Task::Embed
    }
}

fn task_named(name: &str) -> Result<Task, PredictError> {
    match Task::from_name(name) {
        Some(task) if !matches!(task, Task::Generate | Task::Tensors | Task::Events) => Ok(task),
        _ => Err(PredictError::invalid(
            "model.toml: 'task' must be embed, rerank, classify, classify_tokens or encode_sparse",
        )),
    }
}

fn activation(task: Task, config: &Config, labels: usize) -> Result<Activation, PredictError> {
    if task != Task::Rerank {
        return Ok(match config.problem_type.as_deref() {
            Some("multi_label_classification") => Activation::Sigmoid,
            Some("regression") => Activation::None,
            // The softmax of a single number is always 1.
            _ if task == Task::Classify && labels == 1 => Activation::Sigmoid,
            _ => Activation::Softmax,
        });
    }
    let told = config.sentence_transformers.activation_fn.as_ref();
    let told = told.or(config.sbert_ce_default_activation_function.as_ref());
    match told.map(|name| name.rsplit('.').next().unwrap_or_default()) {
        None | Some("Sigmoid") => Ok(Activation::Sigmoid),
        Some("Identity") => Ok(Activation::None),
        Some(_) => Err(PredictError::invalid(
            "config.json names an unknown activation function; set 'activation' in model.toml to \
             none, sigmoid or softmax",
        )),
    }
}

/// The first position: after the padding's position in RoBERTa and its descendants.
fn first_position(config: &Config) -> usize {
    let offset = ["roberta", "camembert", "mpnet"];
    if offset.iter().any(|name| config.model_type.contains(name)) {
        config.pad_token_id.unwrap_or(1) as usize + 1
    } else {
        0
    }
}

/// Number of tokens for which the model has positions.
fn positions(config: &Config) -> Option<usize> {
    let positions = config.max_position_embeddings?;
    Some(positions.saturating_sub(first_position(config)))
}

/// The length in `model.toml`, else the lowest limit in the files.
fn length(
    own: Option<usize>,
    directory: &Path,
    config: &Config,
    sentence: &SentenceConfig,
) -> Result<usize, PredictError> {
    let Some(own) = own else {
        return Ok(max_length(directory, config, sentence)?.max(1));
    };
    match positions(config) {
        _ if own == 0 => Err(PredictError::invalid(
            "model.toml: 'max_length' must be at least 1",
        )),
        Some(positions) if positions < own => Err(PredictError::invalid(format!(
            "model.toml: 'max_length' is {own}, but the model has positions for {positions} tokens"
        ))),
        _ => Ok(own),
    }
}

/// The lowest limit in the files. The limit of sentence-transformers replaces that of the
/// tokenizer.
fn max_length(
    directory: &Path,
    config: &Config,
    sentence: &SentenceConfig,
) -> Result<usize, PredictError> {
    let tokenizer: TokenizerConfig = json(directory, "tokenizer_config.json")?.unwrap_or_default();
    let told = tokenizer.model_max_length.filter(|told| *told < NO_LENGTH);
    let told = told.map(|told| told as usize);
    let limits = [
        sentence.max_seq_length.or(told),
        positions(config),
        Some(MAX_LENGTH),
    ];
    Ok(limits.into_iter().flatten().min().unwrap_or(MAX_LENGTH))
}

#[cfg(test)]
mod tests;
