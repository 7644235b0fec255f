//! The section `[otlp]` of a node's file.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// The section `[otlp]`: traces and metrics for an OpenTelemetry collector.
#[derive(Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct OtlpSection {
    /// The collector's gRPC address, such as `"http://127.0.0.1:4317"`.
    pub endpoint: String,
    /// PEM file that verifies the collector's certificate. Required for `https`.
    pub authority: Option<PathBuf>,
    /// Share of new traces that is recorded, from 0 to 1. A trace that the caller records is always
    /// recorded. Use the same value on all nodes.
    /// Default: `1.0`
    pub sample_ratio: Option<f64>,
}
