//! The section `otlp` of a node's file.

use std::path::PathBuf;

use anyhow::ensure;
use serde::Deserialize;
use volley_telemetry::otlp::OtlpConfig;

/// Where telemetry goes, as it is written.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct OtlpSection {
    endpoint: String,
    authority: Option<PathBuf>,
    sample_ratio: Option<f64>,
}

impl OtlpSection {
    pub(crate) fn plan(self) -> anyhow::Result<OtlpConfig> {
        let sample_ratio = self.sample_ratio.unwrap_or(1.0);
        ensure!(
            (0.0..=1.0).contains(&sample_ratio),
            "'otlp.sample_ratio' must be between 0 and 1"
        );
        Ok(OtlpConfig {
            endpoint: self.endpoint,
            authority: self.authority,
            sample_ratio,
        })
    }
}
