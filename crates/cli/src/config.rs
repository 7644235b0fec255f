//! Configuration files: TOML, every key known, durations as `30s` or `1m 30s`.

pub(crate) mod coordinator;
pub(crate) mod otlp;
pub(crate) mod security;
pub(crate) mod worker;

use std::path::Path;
use std::time::Duration;

use anyhow::Context;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer};
use volley_gateway::Origins;
use volley_types::PredictError;
use volley_types::egress::HostPattern;

const LONGEST: Duration = Duration::from_secs(30 * 24 * 3_600);
const MOST: usize = 1_000_000_000;

/// Hosts that may be called.
///
/// # Errors
/// When one is none, with the setting's name.
fn hosts(setting: &str, written: Option<Vec<String>>) -> anyhow::Result<Option<Vec<HostPattern>>> {
    let read = |hosts: Vec<String>| hosts.iter().map(|host| host.parse()).collect();
    let hosts = written.map(read).transpose();
    hosts.map_err(|error: PredictError| anyhow::anyhow!("'{setting}': {}", error.message))
}

/// Origins of the command line.
///
/// # Errors
/// When one is none.
pub(crate) fn cors_origins(written: &[String]) -> anyhow::Result<Origins> {
    Origins::new(written).map_err(|error| anyhow::anyhow!("--cors-origin: {}", error.message))
}

/// A duration as people write it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Span(pub(crate) Duration);

impl<'de> Deserialize<'de> for Span {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let duration = humantime::parse_duration(&text).map_err(|error| {
            serde::de::Error::custom(format!("'{text}' is no duration such as \"30s\": {error}"))
        })?;
        if duration.is_zero() || LONGEST < duration {
            return Err(serde::de::Error::custom(format!(
                "'{text}' is not between 1ms and 30 days"
            )));
        }
        Ok(Self(duration))
    }
}

/// A number of things, at least one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Count(pub(crate) usize);

impl<'de> Deserialize<'de> for Count {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let count = usize::deserialize(deserializer)?;
        if count == 0 || MOST < count {
            return Err(serde::de::Error::custom(format!(
                "{count} is not between 1 and {MOST}"
            )));
        }
        Ok(Self(count))
    }
}

/// A number of bytes as people write it: `12GiB`, `512 MiB`, or a plain number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Size(pub(crate) u64);

impl<'de> Deserialize<'de> for Size {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged, expecting = "expected a size such as \"12GiB\"")]
        enum Written {
            Bytes(u64),
            Text(String),
        }
        let bytes = match Written::deserialize(deserializer)? {
            Written::Bytes(bytes) => Ok(bytes),
            Written::Text(text) => parse_size(&text)
                .ok_or_else(|| format!("'{text}' is no size such as \"12GiB\" or \"512MiB\"")),
        };
        match bytes {
            Ok(0) => Err(serde::de::Error::custom("a size of 0 bytes is none")),
            bytes => bytes.map(Self).map_err(serde::de::Error::custom),
        }
    }
}

fn parse_size(text: &str) -> Option<u64> {
    let text = text.trim();
    let digits = text
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let shift = match unit.trim() {
        "" | "B" => 0,
        "KiB" => 10,
        "MiB" => 20,
        "GiB" => 30,
        "TiB" => 40,
        _ => return None,
    };
    number.parse::<u64>().ok()?.checked_mul(1 << shift)
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

/// As [`set`], for counts.
pub(crate) fn set_count(target: &mut usize, value: Option<Count>) {
    set(target, value.map(|count| count.0));
}

fn read_toml<T: DeserializeOwned>(path: &Path) -> anyhow::Result<T> {
    let text = std::fs::read_to_string(path)
        .with_context(|| format!("reading the configuration {}", path.display()))?;
    toml::from_str(&text).with_context(|| format!("in the configuration {}", path.display()))
}
