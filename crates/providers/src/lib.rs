//! The providers of remote models: a file for each, and one list.
//!
//! A file has its provider's [`Format`]: how a request is written, and what an event of an answer
//! means. All of it is pure.

mod anthropic;
mod azure;
mod bedrock;
mod cohere;
mod custom;
mod gemini;
mod mistral;
mod ollama;
mod open_inference;
mod openai;
mod responses;
mod tgi;
mod wire;

#[cfg(test)]
mod tests;

use volley_provider_kit::format::Format;
use volley_types::registry::ProviderKind;

pub use crate::wire::{Wire, body, url, whole_url};

/// The format of that provider.
#[must_use]
pub fn format(provider: ProviderKind) -> &'static Format {
    match provider {
        ProviderKind::OpenAi => &openai::FORMAT,
        ProviderKind::Anthropic => &anthropic::FORMAT,
        ProviderKind::Cohere => &cohere::FORMAT,
        ProviderKind::Mistral => &mistral::FORMAT,
        ProviderKind::Ollama => &ollama::FORMAT,
        ProviderKind::Gemini => &gemini::FORMAT,
        ProviderKind::Vertex => &gemini::ON_VERTEX,
        ProviderKind::Azure => &azure::FORMAT,
        ProviderKind::Tgi => &tgi::FORMAT,
        ProviderKind::OpenInference => &open_inference::FORMAT,
        ProviderKind::Bedrock => &bedrock::FORMAT,
        ProviderKind::OpenAiResponses => &responses::FORMAT,
        ProviderKind::Http => &custom::FORMAT,
    }
}
