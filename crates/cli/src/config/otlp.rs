//! The section `otlp` of a node's file, with OpenTelemetry's environment variables as defaults.

mod environment;

use anyhow::ensure;
use volley_config::OtlpSection;
use volley_telemetry::otlp::{Collector, OtlpConfig};

/// The telemetry export of this process. The file takes precedence over OpenTelemetry's environment
/// variables. `None` exports nothing.
///
/// # Errors
/// When a value is malformed or not supported, with the name of its key or variable.
pub(crate) fn plan(section: Option<OtlpSection>) -> anyhow::Result<Option<OtlpConfig>> {
    // A value that is not UTF-8 is not valid for any of the variables.
    let variable = |name: &str| std::env::var_os(name).map(|value| value.to_string_lossy().into());
    merge(section, &variable)
}

fn merge(
    section: Option<OtlpSection>,
    variable: &environment::Lookup<'_>,
) -> anyhow::Result<Option<OtlpConfig>> {
    if environment::is_disabled(variable)? {
        return Ok(None);
    }
    let Some(section) = section else {
        return environment::read(variable, None);
    };
    let ratio = section.sample_ratio;
    ensure!(
        ratio.is_none_or(|ratio| (0.0..=1.0).contains(&ratio)),
        "'otlp.sample_ratio' must be between 0 and 1"
    );
    let mut collector = Collector::new(section.endpoint);
    collector.authority = section.authority;
    let mut config = environment::read(variable, Some(collector))?;
    if let (Some(config), Some(ratio)) = (&mut config, ratio) {
        config.sampler.ratio = ratio;
        config.sampler.parent_based = true;
    }
    Ok(config)
}

#[cfg(test)]
mod tests;
