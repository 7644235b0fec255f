//! The sampling options of a request.

use std::collections::BTreeMap;
use std::sync::Arc;

use volley_types::{ParamValue, Parameters, PredictError};

use super::synonyms::{PENALTIES, named};
use super::{number, range, token_ids};

/// Maximum number of tokens with a bias.
const MAX_BIASES: usize = 1_024;

/// How the next token is chosen.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Sampling {
    /// 0 means greedy.
    pub(crate) temperature: f32,
    /// 0 means no limit.
    pub(crate) top_k: usize,
    /// 1 means no limit.
    pub(crate) top_p: f32,
    /// Minimum probability, relative to the most likely token; 0 means no limit.
    pub(crate) min_p: f32,
    /// 1 means no penalty.
    pub(crate) repetition_penalty: f32,
    /// Subtracted from the logits of tokens that the answer contains; 0 means no penalty.
    pub(crate) presence_penalty: f32,
    /// Subtracted once for each occurrence of the token in the answer; 0 means no penalty.
    pub(crate) frequency_penalty: f32,
    pub(crate) seed: Option<u64>,
    /// Added to the logits of these tokens.
    pub(crate) bias: Arc<[(u32, f32)]>,
    /// If set, only these tokens can be chosen, in ascending order.
    pub(crate) allowed: Option<Arc<[u32]>>,
}

/// Reads the biases of logits by token id.
fn bias(parameters: &Parameters) -> Result<Arc<[(u32, f32)]>, PredictError> {
    let wrong = || {
        range(
            "logit_bias",
            &format!(
                "an object of at most {MAX_BIASES} tokens, by their ids, with numbers from -100 to \
                 100"
            ),
        )
    };
    let Some(text) = parameters.text("logit_bias") else {
        return Ok(Arc::default());
    };
    let biases: BTreeMap<u32, f32> = serde_json::from_str(&text).map_err(|_| wrong())?;
    let fits = biases.values().all(|bias| (-100.0..=100.0).contains(bias));
    if !fits || MAX_BIASES < biases.len() {
        return Err(wrong());
    }
    Ok(biases.into_iter().collect())
}

/// Reads the only tokens that may be chosen.
fn allowed(parameters: &Parameters) -> Result<Option<Arc<[u32]>>, PredictError> {
    let ids = token_ids(parameters, "allowed_token_ids")?;
    match ids {
        Some(ids) if ids.is_empty() => Err(range("allowed_token_ids", "a list of token ids")),
        ids => Ok(ids.map(|mut ids| {
            // Sorted for binary search.
            ids.sort_unstable();
            Arc::from(ids)
        })),
    }
}

/// Reads `top_k`; -1 and 0 mean no limit.
fn top_k(parameters: &Parameters) -> Result<Option<u64>, PredictError> {
    match parameters.get("top_k") {
        Some(ParamValue::Int(-1)) => Ok(Some(0)),
        _ => parameters.unsigned("top_k"),
    }
}

/// Reads the seed. It may be negative, because some callers draw it from all 64 bits.
fn seed(parameters: &Parameters) -> Result<Option<u64>, PredictError> {
    match parameters.get("seed") {
        Some(ParamValue::Int(seed)) => Ok(Some(seed.cast_unsigned())),
        _ => parameters.unsigned("seed"),
    }
}

impl Sampling {
    /// Reads and validates the sampling options.
    ///
    /// # Errors
    /// `InvalidInput` with the parameter and its range.
    pub(super) fn read(parameters: &Parameters) -> Result<Self, PredictError> {
        let temperature = number(parameters, "temperature", 0.0, 100.0)?;
        let top_p = number(parameters, "top_p", 0.0, 1.0)?;
        let min_p = number(parameters, "min_p", 0.0, 1.0)?;
        let penalty = named(parameters, &PENALTIES)?;
        let penalty = number(parameters, penalty, 0.01, 100.0)?;
        let presence = number(parameters, "presence_penalty", -2.0, 2.0)?;
        let frequency = number(parameters, "frequency_penalty", -2.0, 2.0)?;
        let top_k = top_k(parameters)?;
        let seed = seed(parameters)?;
        let sampled = top_p.is_some() || min_p.is_some() || top_k.is_some() || seed.is_some();
        Ok(Self {
            temperature: temperature.unwrap_or(if sampled { 1.0 } else { 0.0 }),
            top_k: top_k.map_or(0, |top_k| usize::try_from(top_k).unwrap_or(usize::MAX)),
            top_p: top_p.unwrap_or(1.0),
            min_p: min_p.unwrap_or(0.0),
            repetition_penalty: penalty.unwrap_or(1.0),
            presence_penalty: presence.unwrap_or(0.0),
            frequency_penalty: frequency.unwrap_or(0.0),
            seed,
            bias: bias(parameters)?,
            allowed: allowed(parameters)?,
        })
    }
}
