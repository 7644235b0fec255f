//! Parsing of a configuration file.

use serde::Deserialize;
use toml::de::DeTable;

use crate::coordinator::CoordinatorFile;
use crate::error::ConfigError;
use crate::kind::FileKind;
use crate::schema::Schema;
use crate::unknown;
use crate::version::{FORMAT_VERSION, MIGRATE, is_named};
use crate::worker::WorkerFile;

/// Parses the text of a file.
///
/// # Errors
/// When the text is not TOML, when `version` is missing or differs from [`FORMAT_VERSION`], when
/// `T` does not have a key, or when a value has the wrong type. The error for an unknown key
/// contains its line and the most similar key, or the new name of a renamed key. If `version` is
/// missing, the error names the command that migrates the file.
pub(crate) fn parse<T: for<'de> Deserialize<'de>>(
    text: &str,
    kind: FileKind,
) -> Result<T, ConfigError> {
    let table = DeTable::parse(text)?;
    let is_named = is_named(table.get_ref())?;
    let schema = Schema::of::<T>();
    let mut problems = unknown::problems(table.get_ref(), text, &schema, kind);
    if !is_named {
        let missing = format!(
            "'version = {FORMAT_VERSION}' is missing at the top of the file; {MIGRATE} adds it, \
             renames keys from before this version, and keeps comments"
        );
        if problems.is_empty() {
            return Err(ConfigError::Version(missing));
        }
        problems.insert(0, missing);
    }
    if !problems.is_empty() {
        return Err(ConfigError::Keys(problems));
    }
    Ok(toml::from_str(text)?)
}

// Not generic, so that this crate compiles the deserializers, and no crate after it.
impl CoordinatorFile {
    /// Reads the text of a coordinator's file.
    ///
    /// # Errors
    /// When the text is not TOML, has no `version` or an unknown one, has an unknown key, or has a
    /// value of the wrong type. The error names the key with its line, and the nearest key.
    pub fn parse(text: &str) -> Result<Self, ConfigError> {
        parse(text, FileKind::Coordinator)
    }
}

impl WorkerFile {
    /// Reads the text of a worker's file.
    ///
    /// # Errors
    /// As [`CoordinatorFile::parse`].
    pub fn parse(text: &str) -> Result<Self, ConfigError> {
        parse(text, FileKind::Worker)
    }
}

#[cfg(test)]
mod tests;
