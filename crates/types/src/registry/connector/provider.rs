//! Names of providers.

use std::fmt;

use crate::error::PredictError;

/// The name of a provider, whose wire format a remote model's server speaks: 1 to 31 lower-case
/// letters, digits and `_`.
///
/// The registry takes any name. Which names have a meaning is for each worker to know, so that a
/// version which adds a provider shares a cluster with versions that do not have it yet.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ProviderName {
    bytes: [u8; Self::MAX_LEN],
    length: u8,
}

impl ProviderName {
    /// The longest name, in bytes.
    pub const MAX_LEN: usize = 31;

    /// Validates `name`.
    ///
    /// # Errors
    /// `InvalidInput` when the name is not well formed.
    pub fn new(name: &str) -> Result<Self, PredictError> {
        Self::parse(name).ok_or_else(|| {
            PredictError::invalid(format!(
                "a provider's name must be 1 to {} lower-case letters, digits and '_'",
                Self::MAX_LEN
            ))
        })
    }

    /// The name that stands in a source file. In a constant a malformed one fails to compile.
    ///
    /// # Panics
    /// When the name is not well formed.
    #[must_use]
    pub const fn from_static(name: &'static str) -> Self {
        match Self::parse(name) {
            Some(name) => name,
            None => panic!("a provider's name is malformed"),
        }
    }

    const fn parse(name: &str) -> Option<Self> {
        let given = name.as_bytes();
        if given.is_empty() || Self::MAX_LEN < given.len() {
            return None;
        }
        let mut bytes = [0; Self::MAX_LEN];
        let mut at = 0;
        while at < given.len() {
            if !matches!(given[at], b'a'..=b'z' | b'0'..=b'9' | b'_') {
                return None;
            }
            bytes[at] = given[at];
            at += 1;
        }
        // At most MAX_LEN.
        let length = given.len() as u8;
        Some(Self { bytes, length })
    }

    /// The name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        let bytes = &self.bytes[..usize::from(self.length)];
        // It was validated as ASCII.
        std::str::from_utf8(bytes).unwrap_or_default()
    }
}

impl fmt::Display for ProviderName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Debug for ProviderName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.as_str())
    }
}

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
