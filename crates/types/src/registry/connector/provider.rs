//! Names of providers.

use crate::registry::short_name::short_name;

short_name!(
    /// The name of a provider, whose wire format a remote model's server speaks: 1 to 31 lower-case
    /// letters, digits and `_`.
    ///
    /// The registry takes any name. Which names have a meaning is for each worker to know, so that a
    /// version which adds a provider shares a cluster with versions that do not have it yet.
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
