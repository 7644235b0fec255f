//! Configuration files: TOML, every key known, durations as `30s` or `1m 30s`.

pub(crate) mod coordinator;
pub(crate) mod worker;

use std::path::Path;
use std::time::Duration;

use anyhow::Context;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer};

/// A duration as people write it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Span(pub(crate) Duration);

impl<'de> Deserialize<'de> for Span {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let duration = humantime::parse_duration(&text).map_err(|error| {
            serde::de::Error::custom(format!("'{text}' is no duration such as \"30s\": {error}"))
        })?;
        Ok(Self(duration))
    }
}

/// Sets `target` where the file has a value.
pub(crate) fn set<T>(target: &mut T, value: Option<T>) {
    if let Some(value) = value {
        *target = value;
    }
}

/// As [`set`], for durations.
pub(crate) fn set_span(target: &mut Duration, value: Option<Span>) {
    set(target, value.map(|span| span.0));
}

fn read_toml<T: DeserializeOwned>(path: &Path) -> anyhow::Result<T> {
    let text = std::fs::read_to_string(path)
        .with_context(|| format!("reading the configuration {}", path.display()))?;
    toml::from_str(&text).with_context(|| format!("in the configuration {}", path.display()))
}
