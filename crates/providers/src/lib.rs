//! The providers of remote models: a file for each, and one list.
//!
//! A file has its [`Provider`]: how a request is written, what an event of an answer means, and
//! what the rest of Volley has to know of it. All of it is pure. To add one, write its file and
//! add its line to the list below; `docs/contributing/add-a-provider.md` is the guide.

pub use volley_provider_kit::provider::{Address, AnswerForm, Page, Provider};
use volley_types::PredictError;
use volley_types::registry::ProviderName;

/// Declares a module for each file, and the list of the providers in them.
macro_rules! providers {
    ($($module:ident: $($provider:ident),+;)+) => {
        $(mod $module;)+

        /// All providers. Of those that recognize a URL the first one counts, so what is told by a
        /// path stands before what is told by a host.
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

/// The provider of that name, or that other name of it.
#[must_use]
pub fn named(name: &str) -> Option<&'static Provider> {
    let mut all = PROVIDERS.iter().copied();
    all.find(|provider| provider.name.as_str() == name || provider.aliases.contains(&name))
}

/// The provider of a connector, on a worker that has to call it.
///
/// # Errors
/// `InvalidInput` that says what to do, where this version does not have it.
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

/// The names of all, for messages.
#[must_use]
pub fn names() -> String {
    let names = PROVIDERS.iter().map(|provider| provider.name.as_str());
    names.collect::<Vec<_>>().join(", ")
}

/// The provider that a connector's URL tells, where it names none. What no other recognizes is of
/// OpenAI's format.
#[must_use]
pub fn of_url(url: &str) -> &'static Provider {
    let address = Address::of(url);
    let mut all = PROVIDERS.iter().copied();
    all.find(|provider| (provider.recognizes)(&address))
        .unwrap_or(&openai::PROVIDER)
}

#[cfg(test)]
mod tests;
