//! Errors in configuration files.

/// An error in a configuration file, with the next step.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// The file is not TOML, or a value has the wrong type.
    #[error("{0}")]
    Toml(String),
    /// The file has unknown or renamed keys: one line for each.
    #[error("{}", .0.join("\n"))]
    Keys(Vec<String>),
    /// The file has no `version`, or one that this binary does not read.
    #[error("{0}")]
    Version(String),
    /// The file cannot be migrated.
    #[error("{0}")]
    Migration(String),
}

impl From<toml::de::Error> for ConfigError {
    fn from(error: toml::de::Error) -> Self {
        Self::Toml(error.to_string())
    }
}
