//! Parsing of a configuration file.

use serde::Deserialize;
use toml::de::DeTable;

use crate::error::ConfigError;
use crate::kind::FileKind;
use crate::schema::Schema;
use crate::unknown;
use crate::version::{FORMAT_VERSION, MIGRATE, is_named};

/// Parses the text of a file.
///
/// # Errors
/// When the text is not TOML, when `version` is missing or differs from [`FORMAT_VERSION`], when
/// `T` does not have a key, or when a value has the wrong type. The error for an unknown key
/// contains its line and the most similar key, or the new name of a renamed key. If `version` is
/// missing, the error names the command that migrates the file.
pub fn parse<T: for<'de> Deserialize<'de>>(text: &str, kind: FileKind) -> Result<T, ConfigError> {
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

#[cfg(test)]
mod tests;
