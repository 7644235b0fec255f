//! Names of providers.

use crate::registry::short_name::short_name;

short_name!(
    /// The name of a provider, the wire format of a remote model's server: 1 to 31 lower-case
    /// letters, digits and `_`.
    ///
    /// The registry accepts any name. Each worker decides which names it supports, so a version
    /// with a new provider can share a cluster with versions that lack it.
    ProviderName,
    "a provider's name"
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_short_words_in_lower_case() {
        for good in ["openai", "open_inference", "a1", &"x".repeat(31)] {
            assert_eq!(ProviderName::new(good).unwrap().as_str(), good);
        }
        for bad in ["", "OpenAI", "a b", "a-b", "\u{e4}", &"x".repeat(32)] {
            let error = ProviderName::new(bad).unwrap_err();
            assert!(error.message.contains("1 to 31"), "{bad}");
        }
    }
}
