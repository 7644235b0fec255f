//! Metrics of OpenTelemetry's semantic conventions for generative AI.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::time::Duration;

use opentelemetry_proto::tonic::metrics::v1::metric::Data;
use opentelemetry_proto::tonic::metrics::v1::{
    AggregationTemporality, Histogram as HistogramMessage, HistogramDataPoint, Metric,
};
use volley_types::chunk::Usage;

use super::attributes;
use super::clock::now;

/// Maximum number of pairs of model and outcome. Further ones are counted as `_other`.
const MOST_SERIES: usize = 4_096;

/// The bucket bounds of the conventions, in seconds.
const DURATION: &[f64] = &[
    0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92,
];
const FIRST_TOKEN: &[f64] = &[
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
];
/// The bucket bounds of the conventions, in tokens.
const TOKENS: &[f64] = &[
    1.0,
    4.0,
    16.0,
    64.0,
    256.0,
    1_024.0,
    4_096.0,
    16_384.0,
    65_536.0,
    262_144.0,
    1_048_576.0,
    4_194_304.0,
    16_777_216.0,
    67_108_864.0,
];
const PER_TOKEN: &[f64] = &[
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5,
];

/// The outcome of one request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RequestOutcome<'a> {
    pub(crate) model: &'a str,
    /// The stable name of the error, if the request failed.
    pub(crate) error: Option<&'static str>,
    pub(crate) duration: Duration,
    pub(crate) first_chunk: Option<Duration>,
    pub(crate) chunks: u64,
    /// The token usage, if the model reported it.
    pub(crate) usage: Option<Usage>,
}

/// All histograms of one node.
pub(crate) struct GenAi {
    since: u64,
    series: Mutex<BTreeMap<(String, &'static str), Series>>,
}

impl Default for GenAi {
    fn default() -> Self {
        Self {
            since: now(),
            series: Mutex::default(),
        }
    }
}

struct Series {
    duration: Histogram,
    first_token: Histogram,
    per_token: Histogram,
    input_tokens: Histogram,
    output_tokens: Histogram,
}

/// A histogram of a series, and the token type that it counts.
type HistogramOf = (&'static str, fn(&Series) -> &Histogram);

struct Histogram {
    bounds: &'static [f64],
    counts: Vec<u64>,
    sum: f64,
}

impl Histogram {
    fn new(bounds: &'static [f64]) -> Self {
        Self {
            bounds,
            counts: vec![0; bounds.len() + 1],
            sum: 0.0,
        }
    }

    fn observe(&mut self, value: f64) {
        let bucket = self.bounds.partition_point(|bound| *bound < value);
        self.counts[bucket] += 1;
        self.sum += value;
    }
}

impl GenAi {
    /// Records a finished request.
    pub(crate) fn observe(&self, outcome: RequestOutcome<'_>) {
        let Ok(mut series) = self.series.lock() else {
            return;
        };
        let mut key = (outcome.model.to_owned(), outcome.error.unwrap_or_default());
        if MOST_SERIES <= series.len() && !series.contains_key(&key) {
            key.0 = "_other".to_owned();
        }
        let series = series.entry(key).or_insert_with(|| Series {
            duration: Histogram::new(DURATION),
            first_token: Histogram::new(FIRST_TOKEN),
            per_token: Histogram::new(PER_TOKEN),
            input_tokens: Histogram::new(TOKENS),
            output_tokens: Histogram::new(TOKENS),
        });
        series.duration.observe(outcome.duration.as_secs_f64());
        if let Some(usage) = outcome.usage {
            series.input_tokens.observe(usage.prompt_tokens.into());
            series.output_tokens.observe(usage.completion_tokens.into());
        }
        let Some(first) = outcome.first_chunk else {
            return;
        };
        series.first_token.observe(first.as_secs_f64());
        if 1 < outcome.chunks {
            let rest = outcome.duration.saturating_sub(first).as_secs_f64();
            series.per_token.observe(rest / (outcome.chunks - 1) as f64);
        }
    }

    /// The current values as OTLP messages; empty before the first request.
    pub(super) fn metrics(&self) -> Vec<Metric> {
        let Ok(series) = self.series.lock() else {
            return Vec::new();
        };
        if series.is_empty() {
            return Vec::new();
        }
        let time = now();
        let metric = |name: &str, description: &str, unit: &str, of: &[HistogramOf]| {
            let points = series.iter().flat_map(|((model, error), series)| {
                let each = of.iter();
                each.map(|(kind, of)| self.point((model, error, kind), of(series), time))
            });
            histogram(name, description, unit, points)
        };
        let duration = "From acceptance to the end of the stream";
        let first = "From acceptance to the first chunk";
        // The conventions define separate names for servers and for clients. Volley is both, so it
        // exports the same values under both names.
        vec![
            metric(
                "gen_ai.server.request.duration",
                duration,
                "s",
                &[("", |of| &of.duration)],
            ),
            metric(
                "gen_ai.server.time_to_first_token",
                first,
                "s",
                &[("", |of| &of.first_token)],
            ),
            metric(
                "gen_ai.server.time_per_output_token",
                "Between two chunks after the first",
                "s",
                &[("", |of| &of.per_token)],
            ),
            metric(
                "gen_ai.client.operation.duration",
                duration,
                "s",
                &[("", |of| &of.duration)],
            ),
            metric(
                "gen_ai.client.operation.time_to_first_chunk",
                first,
                "s",
                &[("", |of| &of.first_token)],
            ),
            metric(
                "gen_ai.client.token.usage",
                "Tokens of prompts and of answers, where models tell",
                "{token}",
                &[
                    ("input", |of| &of.input_tokens),
                    ("output", |of| &of.output_tokens),
                ],
            ),
        ]
    }

    fn point(
        &self,
        (model, error, kind): (&str, &str, &str),
        histogram: &Histogram,
        time: u64,
    ) -> HistogramDataPoint {
        let mut told = vec![
            attributes::text("gen_ai.operation.name", "predict"),
            attributes::text("gen_ai.provider.name", "volley"),
            attributes::text("gen_ai.request.model", model),
        ];
        if !error.is_empty() {
            told.push(attributes::text("error.type", error));
        }
        if !kind.is_empty() {
            told.push(attributes::text("gen_ai.token.type", kind));
        }
        HistogramDataPoint {
            start_time_unix_nano: self.since,
            time_unix_nano: time,
            count: histogram.counts.iter().sum(),
            sum: Some(histogram.sum),
            bucket_counts: histogram.counts.clone(),
            explicit_bounds: histogram.bounds.to_vec(),
            attributes: told,
            ..HistogramDataPoint::default()
        }
    }
}

/// A histogram as it is sent, without the points that count nothing.
fn histogram(
    name: &str,
    description: &str,
    unit: &str,
    points: impl Iterator<Item = HistogramDataPoint>,
) -> Metric {
    Metric {
        name: name.to_owned(),
        description: description.to_owned(),
        unit: unit.to_owned(),
        data: Some(Data::Histogram(HistogramMessage {
            data_points: points.filter(|point| point.count != 0).collect(),
            // Since the node's start.
            aggregation_temporality: AggregationTemporality::Cumulative.into(),
        })),
        ..Metric::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outcomes_fall_into_their_buckets_and_series_are_bounded() {
        let metrics = GenAi::default();
        assert!(metrics.metrics().is_empty());
        let mut outcome = RequestOutcome {
            model: "m",
            error: None,
            duration: Duration::from_millis(1_010),
            first_chunk: Some(Duration::from_millis(10)),
            chunks: 11,
            usage: Some(Usage {
                prompt_tokens: 9,
                completion_tokens: 300,
                ..Usage::default()
            }),
        };
        metrics.observe(outcome);
        outcome.error = Some("unavailable");
        outcome.first_chunk = None;
        outcome.usage = None;
        metrics.observe(outcome);
        let sent = metrics.metrics();
        let points = |index: usize| match &sent[index].data {
            Some(Data::Histogram(histogram)) => &histogram.data_points,
            other => panic!("{other:?}"),
        };
        assert_eq!(points(0).len(), 2);
        assert_eq!((points(1).len(), points(1)[0].bucket_counts[2]), (1, 1));
        assert!((points(2)[0].sum.unwrap() - 0.1).abs() < 1e-9);
        let tokens = sent.last().unwrap();
        assert_eq!(
            (tokens.name.as_str(), tokens.unit.as_str()),
            ("gen_ai.client.token.usage", "{token}")
        );
        let counted = points(sent.len() - 1).iter();
        let sums: Vec<_> = counted.map(|point| point.sum).collect();
        assert_eq!(sums, [Some(9.0), Some(300.0)], "input, then output");
        for index in 0..2 * MOST_SERIES {
            let model = format!("m{index}");
            metrics.observe(RequestOutcome {
                model: &model,
                ..outcome
            });
        }
        assert!(metrics.series.lock().unwrap().len() <= MOST_SERIES + 2);
    }
}
