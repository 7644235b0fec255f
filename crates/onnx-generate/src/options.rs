//! The options of a generation request.

mod known;
mod rendering;
mod sampling;
mod synonyms;
mod tools;

use std::sync::Arc;

use serde_json::Value;
use volley_types::params::{ECHO, TOKEN_INPUTS};
use volley_types::{ParamValue, Parameters, PredictError};

pub(crate) use self::known::check_names;
pub(crate) use self::sampling::Sampling;
pub(crate) use self::synonyms::or_defaults;
use self::synonyms::{LENGTHS, named};
use self::tools::Tools;
use volley_chat_template::Rendering;
use volley_constraints::ConstraintForm;

/// Limits of stop strings: their number, and the bytes of each.
const MAX_STOPS: usize = 16;
const MAX_STOP_BYTES: usize = 256;
/// Maximum number of answers to one prompt.
const MAX_CHOICES: u64 = 16;
/// Maximum number of alternatives that are returned for a token.
const MAX_ALTERNATIVES: u64 = 20;
/// Maximum length of a list of tokens.
const MAX_IDS: usize = 4_096;
/// Limits of forbidden words: their number, and the bytes of each.
const MAX_BAD_WORDS: usize = 256;
const MAX_BAD_WORD_BYTES: usize = 256;

/// The options of a generation request.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Options {
    /// Maximum number of generated tokens; at most the model's context.
    pub(crate) max_tokens: usize,
    /// Until the answer has this many tokens, only its constraint may end it.
    pub(crate) min_tokens: usize,
    pub(crate) sampling: Sampling,
    pub(crate) stop: Vec<String>,
    /// Whether the answer includes the stop string that ended it.
    pub(crate) include_stop: bool,
    /// Additional tokens that end the answer.
    pub(crate) stop_tokens: Vec<u32>,
    /// Words that the answer must not contain.
    pub(crate) bad_words: Vec<String>,
    pub(crate) ignore_eos: bool,
    /// Whether the prompt bypasses the chat template.
    pub(crate) raw: bool,
    /// Whether prompts are lists of token ids.
    pub(crate) token_inputs: bool,
    /// Whether the answer starts with its prompt.
    pub(crate) echo: bool,
    /// How prompts are rendered for the model.
    pub(crate) rendering: Rendering,
    /// Number of answers to each prompt.
    pub(crate) choices: u32,
    /// Number of alternatives with log probabilities for each token; `None` for no log
    /// probabilities.
    pub(crate) logprobs: Option<usize>,
    /// The required form of the answer.
    pub(crate) form: Option<ConstraintForm>,
    /// The tools that the model may call: a JSON array in OpenAI's format.
    pub(crate) tools: Option<Arc<Value>>,
    /// Whether the answer ends after its first call.
    pub(crate) one_call: bool,
}

impl Options {
    /// Reads and validates the parameters of a request. Sampling is on if any of `temperature`,
    /// `top_k`, `top_p`, `min_p` and `seed` is set, and `temperature` is not 0; otherwise it is
    /// greedy.
    ///
    /// # Errors
    /// `InvalidInput` with the parameter and its range.
    pub(crate) fn read(parameters: &Parameters, context: usize) -> Result<Self, PredictError> {
        let tools = Tools::read(parameters)?;
        let form = match tools.call {
            Some(call) => Some(call),
            None => ConstraintForm::read(parameters)?,
        };
        let flag = |name: &str| Ok(parameters.boolean(name)?.unwrap_or(false));
        let (raw, echo) = (flag("raw")?, flag(ECHO)?);
        let max_tokens = max_tokens(parameters, context, raw || echo)?;
        Ok(Self {
            min_tokens: min_tokens(parameters, max_tokens)?,
            max_tokens,
            sampling: Sampling::read(parameters)?,
            stop: short_texts(parameters, "stop", MAX_STOPS, MAX_STOP_BYTES)?,
            include_stop: flag("include_stop_str_in_output")?,
            stop_tokens: token_ids(parameters, "stop_token_ids")?.unwrap_or_default(),
            bad_words: short_texts(parameters, "bad_words", MAX_BAD_WORDS, MAX_BAD_WORD_BYTES)?,
            ignore_eos: flag("ignore_eos")?,
            raw,
            token_inputs: flag(TOKEN_INPUTS)?,
            echo,
            rendering: rendering::read(parameters)?,
            choices: choices(parameters)?,
            logprobs: logprobs(parameters)?,
            form,
            tools: tools.list,
            one_call: !tools.parallel,
        })
    }

    /// Number of alternatives that are returned for each token.
    pub(crate) fn alternatives(&self) -> usize {
        self.logprobs.unwrap_or(0)
    }

    /// Whether the log probability of each prompt token is returned.
    pub(crate) fn scores_prompt(&self) -> bool {
        self.echo && self.logprobs.is_some()
    }

    /// Rejects tokens that a vocabulary of this size does not have.
    ///
    /// # Errors
    /// `InvalidInput`.
    pub(crate) fn check(&self, vocabulary: usize) -> Result<(), PredictError> {
        let biased = self.sampling.bias.iter();
        let biased = biased.map(|(id, _)| ("logit_bias", *id));
        let stops = self.stop_tokens.iter().map(|id| ("stop_token_ids", *id));
        let allowed = self.sampling.allowed.iter().flat_map(|ids| ids.iter());
        let allowed = allowed.map(|id| ("allowed_token_ids", *id));
        let mut named = biased.chain(stops).chain(allowed);
        match named.find(|(_, id)| vocabulary <= *id as usize) {
            Some((name, id)) => Err(PredictError::invalid(format!(
                "parameter '{name}' has the token {id}, but the model's vocabulary has \
                 {vocabulary} tokens"
            ))),
            None => Ok(()),
        }
    }

    /// Sets the seed if the request has none. Greedy requests stay greedy.
    pub(crate) fn or_seed(mut self, seed: Option<u64>) -> Self {
        self.sampling.seed = self.sampling.seed.or(seed);
        self
    }

    /// The options of one of several answers, each of which samples with its own seed.
    pub(crate) fn of_choice(&self, choice: u32) -> Self {
        let mut options = self.clone();
        let seed = &mut options.sampling.seed;
        *seed = seed.map(|seed| seed.wrapping_add(u64::from(choice)));
        options
    }
}

/// Maximum length of the answer: the model's context if the parameter is missing, -1 or larger.
fn max_tokens(parameters: &Parameters, context: usize, zero: bool) -> Result<usize, PredictError> {
    let name = named(parameters, &LENGTHS)?;
    if parameters.get(name) == Some(&ParamValue::Int(-1)) {
        return Ok(context);
    }
    match parameters.unsigned(name)? {
        Some(0) if !zero => Err(range(name, "at least 1, or -1 for the model's context")),
        Some(given) => Ok(usize::try_from(given).unwrap_or(usize::MAX).min(context)),
        None => Ok(context),
    }
}

fn min_tokens(parameters: &Parameters, most: usize) -> Result<usize, PredictError> {
    let given = parameters.unsigned("min_tokens")?.unwrap_or(0);
    match usize::try_from(given) {
        Ok(given) if given <= most => Ok(given),
        _ => Err(range(
            "min_tokens",
            &format!("0 to 'max_tokens', which is {most} here"),
        )),
    }
}

fn short_texts(
    parameters: &Parameters,
    name: &str,
    most: usize,
    longest: usize,
) -> Result<Vec<String>, PredictError> {
    let texts = parameters.strings(name)?;
    let fits = |text: &String| !text.is_empty() && text.len() <= longest;
    if most < texts.len() || !texts.iter().all(fits) {
        return Err(range(
            name,
            &format!("at most {most} strings of 1 to {longest} bytes"),
        ));
    }
    Ok(texts)
}

fn choices(parameters: &Parameters) -> Result<u32, PredictError> {
    match parameters.unsigned("n")? {
        Some(choices) if choices == 0 || MAX_CHOICES < choices => {
            Err(range("n", &format!("1 to {MAX_CHOICES}")))
        }
        choices => Ok(choices.map_or(1, |choices| choices as u32)),
    }
}

/// Number of alternatives for each token; `None` without log probabilities. An integer `logprobs`
/// is a number of alternatives, as in OpenAI's completions API.
fn logprobs(parameters: &Parameters) -> Result<Option<usize>, PredictError> {
    let (name, told) = match parameters.get("logprobs") {
        Some(ParamValue::Int(_)) => ("logprobs", true),
        _ => (
            "top_logprobs",
            parameters.boolean("logprobs")?.unwrap_or(false),
        ),
    };
    match parameters.unsigned(name)? {
        Some(count) if MAX_ALTERNATIVES < count => {
            Err(range(name, &format!("0 to {MAX_ALTERNATIVES}")))
        }
        Some(count) if 0 < count => Ok(Some(count as usize)),
        _ => Ok(told.then_some(0)),
    }
}

/// Reads a list of token ids in JSON.
fn token_ids(parameters: &Parameters, name: &str) -> Result<Option<Vec<u32>>, PredictError> {
    let Some(text) = parameters.text(name) else {
        return Ok(None);
    };
    match serde_json::from_str::<Vec<u32>>(&text) {
        Ok(ids) if ids.len() <= MAX_IDS => Ok(Some(ids)),
        _ => Err(range(
            name,
            &format!("a list of at most {MAX_IDS} token ids"),
        )),
    }
}

fn number(
    parameters: &Parameters,
    name: &str,
    low: f64,
    high: f64,
) -> Result<Option<f32>, PredictError> {
    match parameters.float(name)? {
        Some(value) if value < low || high < value => Err(range(name, &format!("{low} to {high}"))),
        value => Ok(value.map(|value| value as f32)),
    }
}

fn range(name: &str, allowed: &str) -> PredictError {
    PredictError::invalid(format!("parameter '{name}' must be {allowed}"))
}

#[cfg(test)]
mod tests;
