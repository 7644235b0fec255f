//! Plans of nodes from their configuration files.

pub(crate) mod coordinator;
pub(crate) mod otlp;
pub(crate) mod security;
pub(crate) mod worker;

use std::path::Path;
use std::time::Duration;

use anyhow::Context;
use volley_config::{ConfigError, Count, Size, TimeSpan};
use volley_gateway::Origins;
use volley_types::PredictError;
use volley_types::egress::HostPattern;

/// Parses a list of allowed hosts.
///
/// # Errors
/// When an entry is malformed, with the name of the setting.
fn hosts(setting: &str, written: Option<Vec<String>>) -> anyhow::Result<Option<Vec<HostPattern>>> {
    let read = |hosts: Vec<String>| hosts.iter().map(|host| host.parse()).collect();
    let hosts = written.map(read).transpose();
    hosts.map_err(|error: PredictError| anyhow::anyhow!("'{setting}': {}", error.message))
}

/// Parses the origins of `--cors-origin`.
///
/// # Errors
/// When an origin is malformed.
pub(crate) fn cors_origins(written: &[String]) -> anyhow::Result<Origins> {
    Origins::new(written).map_err(|error| anyhow::anyhow!("--cors-origin: {}", error.message))
}

/// Sets `target` if the file has a value.
pub(crate) fn set<T>(target: &mut T, value: Option<T>) {
    if let Some(value) = value {
        *target = value;
    }
}

/// Like [`set`], for durations.
pub(crate) fn set_span(target: &mut Duration, value: Option<TimeSpan>) {
    set(target, value.map(|span| span.0));
}

/// Like [`set`], for sizes in memory.
pub(crate) fn set_size(target: &mut usize, value: Option<Size>) {
    set(target, value.map(Size::as_usize));
}

/// Like [`set`], for counts.
pub(crate) fn set_count(target: &mut usize, value: Option<Count>) {
    set(target, value.map(|count| count.0));
}

fn read_file<T>(path: &Path, parse: fn(&str) -> Result<T, ConfigError>) -> anyhow::Result<T> {
    let text = std::fs::read_to_string(path)
        .with_context(|| format!("reading the configuration {}", path.display()))?;
    let file = parse(&text);
    file.with_context(|| format!("in the configuration {}", path.display()))
}
