//! The token counts of an answer.

use serde::Deserialize;
use volley_provider_kit::step::Delta;

#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Tokens {
    #[serde(default)]
    input_tokens: Option<u32>,
    #[serde(default)]
    output_tokens: Option<u32>,
    #[serde(default)]
    cache_read_input_tokens: Option<u32>,
    #[serde(default)]
    cache_write_input_tokens: Option<u32>,
}

/// Adds the tokens read from or written to a cache, which the server counts separately.
pub(super) fn tokens(delta: &mut Delta, tokens: Option<Tokens>) {
    let Some(tokens) = tokens else { return };
    let cached = [
        tokens.cache_read_input_tokens,
        tokens.cache_write_input_tokens,
    ];
    let cached = cached.into_iter().flatten().fold(0, u32::saturating_add);
    delta.prompt_tokens = tokens
        .input_tokens
        .map(|tokens| tokens.saturating_add(cached));
    delta.completion_tokens = tokens.output_tokens;
    delta.cached_tokens = tokens.cache_read_input_tokens;
    delta.cache_write_tokens = tokens.cache_write_input_tokens;
}
