//! What a directory says about its encoder: the files that exporters and sentence-transformers
//! write, and `model.toml`, which has the last word.

use std::collections::BTreeMap;
use std::path::Path;

use serde::Deserialize;
use serde::de::DeserializeOwned;
use volley_types::{PredictError, Task};

use super::plan::Budget;

/// The longest text in tokens, where nothing says less.
const MAX_LENGTH: usize = 8_192;
/// Values of `model_max_length` from here on say that nobody knows.
const NO_LENGTH: f64 = 1e6;

/// How an encoder is used.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Settings {
    pub(super) task: Task,
    pub(super) pooling: Pooling,
    /// Whether vectors have length 1.
    pub(super) normalize: bool,
    /// Tokens of one row, special ones included; longer texts are cut.
    pub(super) max_length: usize,
    pub(super) query_prefix: String,
    pub(super) passage_prefix: String,
    /// Names of a classifier's outputs, by index.
    pub(super) labels: Vec<String>,
    pub(super) activation: Activation,
    pub(super) pad_token: u32,
    /// The width of a vector, where the graph does not tell.
    pub(super) hidden_size: Option<usize>,
    pub(super) budget: Budget,
}

/// How the vectors of a text's tokens become one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Pooling {
    /// Their mean.
    Mean,
    /// The first one's.
    Cls,
    /// The last one's.
    Last,
    /// The largest of each number.
    Max,
}

/// How a classifier's or a ranker's numbers become scores.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Activation {
    /// They are scores.
    None,
    /// Each for itself, 0 to 1.
    Sigmoid,
    /// All together sum to 1.
    Softmax,
}

#[derive(Default, Deserialize)]
struct Config {
    #[serde(default)]
    architectures: Vec<String>,
    #[serde(default)]
    id2label: BTreeMap<String, String>,
    problem_type: Option<String>,
    hidden_size: Option<usize>,
    max_position_embeddings: Option<usize>,
    pad_token_id: Option<u32>,
    #[serde(default)]
    model_type: String,
}

#[derive(Default, Deserialize)]
struct PoolingConfig {
    #[serde(default)]
    pooling_mode_cls_token: bool,
    #[serde(default)]
    pooling_mode_max_tokens: bool,
    #[serde(default)]
    pooling_mode_lasttoken: bool,
}

#[derive(Deserialize)]
struct Module {
    #[serde(rename = "type")]
    kind: String,
}

#[derive(Default, Deserialize)]
struct SentenceConfig {
    max_seq_length: Option<usize>,
}

#[derive(Default, Deserialize)]
struct Prompts {
    #[serde(default)]
    prompts: BTreeMap<String, String>,
}

#[derive(Default, Deserialize)]
struct TokenizerConfig {
    model_max_length: Option<f64>,
}

/// `model.toml`: what it says wins over all other files.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Overrides {
    task: Option<String>,
    pooling: Option<Pooling>,
    normalize: Option<bool>,
    max_length: Option<usize>,
    query_prefix: Option<String>,
    passage_prefix: Option<String>,
    labels: Option<Vec<String>>,
    activation: Option<Activation>,
    max_batch_tokens: Option<usize>,
    max_batch_rows: Option<usize>,
}

impl Settings {
    /// Reads a directory.
    ///
    /// # Errors
    /// `InvalidInput` naming the file that is malformed.
    pub(super) fn read(directory: &Path) -> Result<Self, PredictError> {
        let config: Config = json(directory, "config.json")?.unwrap_or_default();
        let own = overrides(directory)?;
        let modules: Option<Vec<Module>> = json(directory, "modules.json")?;
        let pooling: PoolingConfig = json(directory, "1_Pooling/config.json")?.unwrap_or_default();
        let prompts: Prompts =
            json(directory, "config_sentence_transformers.json")?.unwrap_or_default();
        let prompt = |names: &[&str]| {
            let found = names.iter().find_map(|name| prompts.prompts.get(*name));
            found.cloned().unwrap_or_default()
        };
        let known = labels(&config);
        let task = match &own.task {
            Some(name) => task_named(name)?,
            None => task(&config, known.len()),
        };
        let normalizes = |modules: &Vec<Module>| {
            let mut kinds = modules.iter().map(|module| module.kind.as_str());
            kinds.any(|kind| kind.ends_with("Normalize"))
        };
        let budget = Budget::default();
        Ok(Self {
            task,
            pooling: own.pooling.unwrap_or_else(|| pooling.mode()),
            normalize: own
                .normalize
                .unwrap_or_else(|| modules.as_ref().is_none_or(normalizes)),
            max_length: own
                .max_length
                .unwrap_or(max_length(directory, &config)?)
                .max(1),
            query_prefix: own.query_prefix.unwrap_or_else(|| prompt(&["query"])),
            passage_prefix: own
                .passage_prefix
                .unwrap_or_else(|| prompt(&["passage", "document"])),
            activation: own
                .activation
                .unwrap_or_else(|| activation(task, config.problem_type.as_deref())),
            labels: own.labels.unwrap_or(known),
            pad_token: config.pad_token_id.unwrap_or(0),
            hidden_size: config.hidden_size,
            budget: Budget {
                tokens: own.max_batch_tokens.unwrap_or(budget.tokens).max(1),
                rows: own.max_batch_rows.unwrap_or(budget.rows).max(1),
            },
        })
    }
}

impl PoolingConfig {
    fn mode(&self) -> Pooling {
        if self.pooling_mode_cls_token {
            Pooling::Cls
        } else if self.pooling_mode_lasttoken {
            Pooling::Last
        } else if self.pooling_mode_max_tokens {
            Pooling::Max
        } else {
            Pooling::Mean
        }
    }
}

/// The names of outputs in the order of their numbers.
fn labels(config: &Config) -> Vec<String> {
    let mut labels: Vec<(usize, &String)> = config
        .id2label
        .iter()
        .filter_map(|(index, label)| Some((index.parse().ok()?, label)))
        .collect();
    labels.sort_unstable();
    labels.into_iter().map(|(_, label)| label.clone()).collect()
}

/// What an architecture is for. A classifier with one output ranks.
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
        Some(task) if !matches!(task, Task::Generate | Task::Tensors) => Ok(task),
        _ => Err(PredictError::invalid(
            "model.toml: 'task' must be embed, rerank, classify, classify_tokens or encode_sparse",
        )),
    }
}

fn activation(task: Task, problem: Option<&str>) -> Activation {
    match (task, problem) {
        (Task::Rerank, _) | (_, Some("multi_label_classification")) => Activation::Sigmoid,
        (_, Some("regression")) => Activation::None,
        _ => Activation::Softmax,
    }
}

/// The least of what the files say.
fn max_length(directory: &Path, config: &Config) -> Result<usize, PredictError> {
    let sentence: SentenceConfig =
        json(directory, "sentence_bert_config.json")?.unwrap_or_default();
    let tokenizer: TokenizerConfig = json(directory, "tokenizer_config.json")?.unwrap_or_default();
    let told = tokenizer.model_max_length.filter(|told| *told < NO_LENGTH);
    // These count positions from the padding's on.
    let offset = if config.model_type.contains("roberta") {
        2
    } else {
        0
    };
    let positions = config
        .max_position_embeddings
        .map(|positions| positions.saturating_sub(offset));
    let limits = [
        sentence.max_seq_length,
        told.map(|told| told as usize),
        positions,
        Some(MAX_LENGTH),
    ];
    Ok(limits.into_iter().flatten().min().unwrap_or(MAX_LENGTH))
}

fn json<T: DeserializeOwned>(directory: &Path, name: &str) -> Result<Option<T>, PredictError> {
    let Ok(text) = std::fs::read(directory.join(name)) else {
        return Ok(None);
    };
    serde_json::from_slice(&text)
        .map(Some)
        .map_err(|error| PredictError::invalid(format!("{name} is malformed: {error}")))
}

fn overrides(directory: &Path) -> Result<Overrides, PredictError> {
    let Ok(text) = std::fs::read_to_string(directory.join("model.toml")) else {
        return Ok(Overrides::default());
    };
    toml::from_str(&text)
        .map_err(|error| PredictError::invalid(format!("model.toml: {}", error.message())))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(files: &[(&str, &str)]) -> Result<Settings, PredictError> {
        let directory = tempfile::tempdir().unwrap();
        for (name, text) in files {
            let path = directory.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        Settings::read(directory.path())
    }

    #[test]
    fn a_sentence_transformer_is_understood() {
        let settings = read(&[
            ("config.json", r#"{"architectures":["BertModel"],"max_position_embeddings":512,"hidden_size":8}"#),
            ("modules.json", r#"[{"type":"sentence_transformers.models.Transformer"},{"type":"sentence_transformers.models.Pooling"}]"#),
            ("1_Pooling/config.json", r#"{"pooling_mode_cls_token":true,"pooling_mode_mean_tokens":false}"#),
            ("sentence_bert_config.json", r#"{"max_seq_length":256}"#),
            ("tokenizer_config.json", r#"{"model_max_length":1000000000000000019884624838656}"#),
            ("config_sentence_transformers.json", r#"{"prompts":{"query":"query: ","document":"passage: "}}"#),
        ])
        .unwrap();
        assert_eq!(settings.task, Task::Embed);
        assert_eq!(settings.pooling, Pooling::Cls);
        assert!(!settings.normalize, "it has no such module");
        assert_eq!(settings.max_length, 256);
        assert_eq!(settings.query_prefix, "query: ");
        assert_eq!(settings.passage_prefix, "passage: ");
    }

    #[test]
    fn architectures_tell_the_task_and_model_toml_has_the_last_word() {
        let config = |architecture: &str, labels: &str| {
            format!(r#"{{"architectures":["{architecture}"],"id2label":{labels}}}"#)
        };
        let task = |config: &str| read(&[("config.json", config)]).unwrap().task;
        let one = r#"{"0":"LABEL_0"}"#;
        let two = r#"{"1":"good","0":"bad"}"#;
        assert_eq!(
            task(&config("BertForSequenceClassification", one)),
            Task::Rerank
        );
        let classifier = config("BertForSequenceClassification", two);
        assert_eq!(task(&classifier), Task::Classify);
        assert_eq!(
            task(&config("BertForTokenClassification", two)),
            Task::ClassifyTokens
        );
        assert_eq!(task(&config("BertForMaskedLM", "{}")), Task::EncodeSparse);
        let settings = read(&[("config.json", &classifier)]).unwrap();
        assert_eq!(settings.labels, ["bad", "good"]);
        assert_eq!(settings.activation, Activation::Softmax);
        let own = "task = \"rerank\"\nactivation = \"none\"\nmax_length = 9\nmax_batch_tokens = 7";
        let settings = read(&[("config.json", &classifier), ("model.toml", own)]).unwrap();
        assert_eq!((settings.task, settings.max_length), (Task::Rerank, 9));
        assert_eq!(
            (settings.activation, settings.budget.tokens),
            (Activation::None, 7)
        );
    }

    #[test]
    fn what_is_misspelt_is_refused() {
        for (name, text) in [
            ("model.toml", "poling = \"mean\""),
            ("model.toml", "task = \"generate\""),
            ("model.toml", "pooling = \"sum\""),
            ("config.json", "{"),
        ] {
            let error = read(&[(name, text)]).unwrap_err();
            assert!(error.message.contains(name), "{}", error.message);
        }
    }
}
