//! The providers of remote models: one module for each, and one list.
//!
//! A module defines its [`Provider`]: how requests are written, how events of answers are read, and
//! the properties that the rest of Volley uses. All modules are pure. To add a provider, write its
//! module and add a line to the list below; see `docs/contributing/add-a-provider.md`.

pub use volley_provider_kit::provider::{Address, AnswerForm, Page, Provider};
use volley_types::PredictError;
use volley_types::registry::ProviderName;

/// Declares the modules and the list of their providers.
macro_rules! providers {
    ($($module:ident: $($provider:ident),+;)+) => {
        $(mod $module;)+

        /// All providers. The first one that recognizes a URL is chosen, so providers that check
        /// the path come before those that check the host.
        pub static PROVIDERS: &[&Provider] = &[$($(&$module::$provider),+),+];
    };
}

providers! {
    openai: PROVIDER;
    gemini: PROVIDER, VERTEX;
    anthropic: PROVIDER;
    bedrock: PROVIDER;
    responses: PROVIDER;
    cohere: PROVIDER;
    ollama: PROVIDER;
    open_inference: PROVIDER;
    tgi: PROVIDER;
    azure: PROVIDER;
    mistral: PROVIDER;
    custom: PROVIDER;
}

/// Returns the provider with a name or an alias.
#[must_use]
pub fn named(name: &str) -> Option<&'static Provider> {
    let mut all = PROVIDERS.iter().copied();
    all.find(|provider| provider.name.as_str() == name || provider.aliases.contains(&name))
}

/// Returns the provider of a connector, on a worker that calls it.
///
/// # Errors
/// `InvalidInput` with the next step if this version does not support the provider.
pub fn known(name: ProviderName) -> Result<&'static Provider, PredictError> {
    named(name.as_str()).ok_or_else(|| {
        PredictError::invalid(format!(
            "this worker's version, {}, does not support the provider '{name}': upgrade the \
             worker, or set the connector's provider to one of {}",
            env!("CARGO_PKG_VERSION"),
            names()
        ))
    })
}

/// The names of all providers, separated by commas, for messages.
#[must_use]
pub fn names() -> String {
    let names = PROVIDERS.iter().map(|provider| provider.name.as_str());
    names.collect::<Vec<_>>().join(", ")
}

/// Returns the provider of a URL, for connectors that do not name one. The default is OpenAI.
#[must_use]
pub fn of_url(url: &str) -> &'static Provider {
    let address = Address::of(url);
    let mut all = PROVIDERS.iter().copied();
    all.find(|provider| (provider.recognizes)(&address))
        .unwrap_or(&openai::PROVIDER)
}

#[cfg(test)]
mod tests;
