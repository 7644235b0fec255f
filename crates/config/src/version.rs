//! The format version of configuration files.

use serde::{Deserialize, Deserializer, Serialize};
use toml::de::{DeTable, DeValue};

use crate::error::ConfigError;

/// The format version that this binary reads and writes.
pub const FORMAT_VERSION: u32 = 1;

/// The command that migrates a file.
pub(crate) const MIGRATE: &str = "`volley config migrate FILE`";

/// The key `version` of a file: always [`FORMAT_VERSION`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FormatVersion;

impl<'de> Deserialize<'de> for FormatVersion {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let version = i64::deserialize(deserializer)?;
        match judge(Some(version)) {
            Ok(()) => Ok(Self),
            Err(message) => Err(serde::de::Error::custom(message)),
        }
    }
}

impl Serialize for FormatVersion {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        FORMAT_VERSION.serialize(serializer)
    }
}

/// Checks that this binary reads files of `version`.
///
/// # Errors
/// A message with the next step, if it does not.
pub(crate) fn judge(version: Option<i64>) -> Result<(), String> {
    match version {
        Some(version) if version == i64::from(FORMAT_VERSION) => Ok(()),
        Some(version) if i64::from(FORMAT_VERSION) < version => Err(format!(
            "the file has format version {version}, and this version of Volley reads format \
             version {FORMAT_VERSION}: start a later version of Volley, or rewrite the file for \
             this version"
        )),
        _ => Err(format!(
            "'version' must be {FORMAT_VERSION}: it is the version of the file's format"
        )),
    }
}

/// Whether the file has the key `version`.
///
/// # Errors
/// When the version is one that this binary does not read.
pub(crate) fn is_named(table: &DeTable<'_>) -> Result<bool, ConfigError> {
    let value = table.iter().find(|(key, _)| key.get_ref() == "version");
    let Some((_, value)) = value else {
        return Ok(false);
    };
    let version = match value.get_ref() {
        DeValue::Integer(number) => i64::from_str_radix(number.as_str(), number.radix()).ok(),
        _ => None,
    };
    judge(version).map_err(ConfigError::Version)?;
    Ok(true)
}
