//! The token counts of a response.

use serde::Deserialize;
use volley_provider_kit::step::Delta;

#[derive(Clone, Copy, Deserialize)]
pub(super) struct ResponseTokens {
    #[serde(default)]
    input_tokens: Option<u32>,
    #[serde(default)]
    output_tokens: Option<u32>,
    #[serde(default)]
    input_tokens_details: Option<InputTokens>,
    #[serde(default)]
    output_tokens_details: Option<OutputTokens>,
}

#[derive(Clone, Copy, Deserialize)]
struct InputTokens {
    #[serde(default)]
    cached_tokens: Option<u32>,
    #[serde(default)]
    cache_write_tokens: Option<u32>,
}

#[derive(Clone, Copy, Deserialize)]
struct OutputTokens {
    #[serde(default)]
    reasoning_tokens: Option<u32>,
}

pub(super) fn tokens(delta: &mut Delta, tokens: Option<ResponseTokens>) {
    let Some(tokens) = tokens else { return };
    delta.prompt_tokens = tokens.input_tokens;
    delta.completion_tokens = tokens.output_tokens;
    let details = tokens.input_tokens_details;
    delta.cached_tokens = details.and_then(|details| details.cached_tokens);
    delta.cache_write_tokens = details.and_then(|details| details.cache_write_tokens);
    let details = tokens.output_tokens_details;
    delta.reasoning_tokens = details.and_then(|details| details.reasoning_tokens);
}
