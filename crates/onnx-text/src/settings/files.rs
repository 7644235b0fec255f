//! The files of an encoder's directory, with the fields that are used.

use std::collections::BTreeMap;
use std::path::{Component, Path};

use serde::Deserialize;
use serde::de::DeserializeOwned;
use volley_types::PredictError;

use super::TermWeighting;
use volley_model_directory::overrides::Pooling;

#[derive(Default, Deserialize)]
pub(super) struct Config {
    #[serde(default)]
    pub(super) architectures: Vec<String>,
    #[serde(default)]
    pub(super) id2label: BTreeMap<String, String>,
    pub(super) problem_type: Option<String>,
    pub(super) hidden_size: Option<usize>,
    pub(super) max_position_embeddings: Option<usize>,
    pub(super) pad_token_id: Option<u32>,
    #[serde(default)]
    pub(super) model_type: String,
    #[serde(default)]
    pub(super) sentence_transformers: RankerConfig,
    /// The field of older versions of sentence-transformers.
    pub(super) sbert_ce_default_activation_function: Option<String>,
}

#[derive(Default, Deserialize)]
pub(super) struct RankerConfig {
    pub(super) activation_fn: Option<String>,
}

#[derive(Default, Deserialize)]
pub(super) struct PoolingConfig {
    #[serde(default)]
    pub(super) pooling_mode_cls_token: bool,
    #[serde(default)]
    pub(super) pooling_mode_max_tokens: bool,
    #[serde(default)]
    pub(super) pooling_mode_lasttoken: bool,
    #[serde(default)]
    pub(super) pooling_mode_mean_tokens: bool,
    #[serde(default)]
    pub(super) pooling_mode_mean_sqrt_len_tokens: bool,
    #[serde(default)]
    pub(super) pooling_mode_weightedmean_tokens: bool,
    /// The same as a single field.
    pub(super) pooling_mode: Option<String>,
    pub(super) include_prompt: Option<bool>,
}

#[derive(Deserialize)]
pub(super) struct Module {
    #[serde(rename = "type")]
    pub(super) kind: String,
    #[serde(default)]
    path: String,
}

/// How the scores of a text's tokens become weights of terms.
#[derive(Default, Deserialize)]
pub(super) struct SpladeConfig {
    pooling_strategy: Option<String>,
    activation_function: Option<String>,
}

impl SpladeConfig {
    pub(super) fn weighing(&self) -> Result<TermWeighting, PredictError> {
        let unknown = |what: &str| {
            PredictError::invalid(format!(
                "the configuration of SpladePooling has a '{what}' that is not known"
            ))
        };
        Ok(TermWeighting {
            sums: match self.pooling_strategy.as_deref() {
                None | Some("max") => false,
                Some("sum") => true,
                Some(_) => return Err(unknown("pooling_strategy")),
            },
            twice: match self.activation_function.as_deref() {
                None | Some("relu") => false,
                Some("log1p_relu") => true,
                Some(_) => return Err(unknown("activation_function")),
            },
        })
    }
}

#[derive(Default, Deserialize)]
pub(super) struct SentenceConfig {
    pub(super) max_seq_length: Option<usize>,
    #[serde(default)]
    pub(super) do_lower_case: bool,
}

#[derive(Default, Deserialize)]
pub(super) struct Prompts {
    #[serde(default)]
    prompts: BTreeMap<String, String>,
    default_prompt_name: Option<String>,
}

impl Prompts {
    /// The prompt with the first of these names that exists, else an empty text.
    pub(super) fn first(&self, names: &[&str]) -> String {
        let found = names.iter().find_map(|name| self.prompts.get(*name));
        found.cloned().unwrap_or_default()
    }

    /// The prefix of texts without an input type.
    pub(super) fn default(&self) -> String {
        let name = self.default_prompt_name.as_deref();
        name.map(|name| self.first(&[name])).unwrap_or_default()
    }
}

#[derive(Default, Deserialize)]
pub(super) struct TokenizerConfig {
    pub(super) model_max_length: Option<f64>,
}

impl Module {
    /// The name of its class.
    pub(super) fn name(&self) -> &str {
        self.kind.rsplit('.').next().unwrap_or_default()
    }
}

/// Reads the configuration of the module `kind`, from its folder in `modules`, or else from the
/// usual folder.
///
/// # Errors
/// `InvalidInput` when the file is malformed, or its path leaves the directory.
pub(super) fn of_module<T: DeserializeOwned + Default>(
    directory: &Path,
    modules: &[Module],
    kind: &str,
) -> Result<T, PredictError> {
    let module = modules.iter().find(|module| module.name() == kind);
    let folder = module.map(|module| module.path.as_str());
    let folder = folder.filter(|folder| !folder.is_empty());
    let folder = folder.map_or_else(|| format!("1_{kind}"), str::to_owned);
    let plain = |part| matches!(part, Component::Normal(_));
    if !Path::new(&folder).components().all(plain) {
        return Err(PredictError::invalid(
            "modules.json has a path that leaves the directory",
        ));
    }
    let name = Path::new(&folder).join("config.json");
    Ok(json(directory, &name.to_string_lossy())?.unwrap_or_default())
}

impl PoolingConfig {
    pub(super) fn mode(&self) -> Result<Pooling, PredictError> {
        let flags = [
            (self.pooling_mode_cls_token, Pooling::Cls),
            (self.pooling_mode_lasttoken, Pooling::Last),
            (self.pooling_mode_max_tokens, Pooling::Max),
            (self.pooling_mode_mean_tokens, Pooling::Mean),
            (self.pooling_mode_mean_sqrt_len_tokens, Pooling::MeanSqrtLen),
            (self.pooling_mode_weightedmean_tokens, Pooling::WeightedMean),
        ];
        let flags: Vec<_> = flags
            .into_iter()
            .filter_map(|(set, mode)| set.then_some(mode))
            .collect();
        let mode = match (self.pooling_mode.as_deref(), flags.as_slice()) {
            _ if self.include_prompt == Some(false) => None,
            (Some(name), _) => Pooling::from_name(name),
            (None, []) => Some(Pooling::Mean),
            (None, [mode]) => Some(*mode),
            (None, _) => None,
        };
        mode.ok_or_else(|| {
            PredictError::invalid(
                "1_Pooling/config.json names an unknown pooling; set 'pooling' in model.toml to \
                 mean, cls, last, max, mean_sqrt_len or weighted_mean",
            )
        })
    }
}

/// Parses a JSON file; `None` if it does not exist.
pub(super) fn json<T: DeserializeOwned>(
    directory: &Path,
    name: &str,
) -> Result<Option<T>, PredictError> {
    let Some(text) = text(directory, name)? else {
        return Ok(None);
    };
    serde_json::from_str(&text)
        .map(Some)
        .map_err(|error| PredictError::invalid(format!("{name} is malformed: {error}")))
}

/// Reads a file; `None` if it does not exist.
fn text(directory: &Path, name: &str) -> Result<Option<String>, PredictError> {
    match std::fs::read_to_string(directory.join(name)) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(
            PredictError::invalid(format!("{name} cannot be read, or is not UTF-8"))
                .with_source(error.to_string()),
        ),
    }
}
