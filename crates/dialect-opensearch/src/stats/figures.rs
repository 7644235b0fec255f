//! Statistics of each model on this coordinator, read from its own metrics.

use std::collections::BTreeMap;

use serde_json::{Value, json};

/// Statistics of one model since the start of the process.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Figures {
    /// Number of completed predictions, including failed ones.
    pub(super) requests: u64,
    /// Number of failed predictions.
    pub(super) failures: u64,
    /// Number of running predictions.
    pub(super) active: u64,
    /// Number of measured durations, and their sum in seconds.
    measured: u64,
    seconds: f64,
    /// Upper bounds of the buckets in seconds, with cumulative counts.
    buckets: Vec<(f64, u64)>,
}

/// Parses the statistics of each model from a text in the OpenMetrics format.
pub(super) fn read(text: &str) -> BTreeMap<String, Figures> {
    let mut all: BTreeMap<String, Figures> = BTreeMap::new();
    for line in text.lines().filter(|line| line.starts_with("volley_")) {
        let Some((name, labels, value)) = sample(line) else {
            continue;
        };
        let Some(model) = label(labels, "model") else {
            continue;
        };
        let figures = all.entry(model.to_owned()).or_default();
        // Counters are integers, but the format writes them as floating-point numbers.
        let count = value as u64;
        match name {
            "volley_requests_total" => {
                figures.requests += count;
                if label(labels, "code") != Some("ok") {
                    figures.failures += count;
                }
            }
            "volley_active_streams" => figures.active = count,
            "volley_request_duration_seconds_count" => figures.measured = count,
            "volley_request_duration_seconds_sum" => figures.seconds = value,
            "volley_request_duration_seconds_bucket" => {
                let end = label(labels, "le").and_then(|end| end.parse().ok());
                figures.buckets.push((end.unwrap_or(f64::INFINITY), count));
            }
            _ => {}
        }
    }
    all
}

/// Splits a line into name, labels and value.
fn sample(line: &str) -> Option<(&str, &str, f64)> {
    let (name, rest) = line.split_once('{')?;
    let (labels, value) = rest.rsplit_once("} ")?;
    let value = value.split(' ').next()?.parse().ok()?;
    Some((name, labels, value))
}

/// The value of a label. Model names contain no quotes, so a label ends at the next quote.
fn label<'l>(labels: &'l str, name: &str) -> Option<&'l str> {
    labels.split(',').find_map(|label| {
        let value = label.strip_prefix(name)?.strip_prefix("=\"")?;
        value.strip_suffix('"')
    })
}

impl Figures {
    /// `predict_request_stats` in milliseconds; `None` if nothing was measured. Percentiles are
    /// interpolated in the buckets.
    pub(super) fn latency(&self) -> Option<Value> {
        if self.measured == 0 {
            return None;
        }
        let average = self.seconds * 1_000.0 / self.measured as f64;
        Some(json!({
            "count": self.measured,
            "average": average,
            "p50": self.percentile(0.5),
            "p90": self.percentile(0.9),
            "p99": self.percentile(0.99),
        }))
    }

    fn percentile(&self, share: f64) -> f64 {
        let wanted = share * self.measured as f64;
        let (mut start, mut before) = (0.0, 0);
        for (end, count) in &self.buckets {
            if wanted <= *count as f64 {
                if !end.is_finite() {
                    break;
                }
                let inside = (*count - before).max(1) as f64;
                let part = (wanted - before as f64).max(0.0) / inside;
                return (start + (end - start) * part) * 1_000.0;
            }
            (start, before) = (*end, *count);
        }
        // The duration exceeds the last finite bound, which is therefore only a lower bound.
        start * 1_000.0
    }
}

#[cfg(test)]
mod tests;
