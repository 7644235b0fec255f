//! Rates from two readings of the metrics. Pure.

use std::collections::BTreeMap;
use std::time::Duration;

/// The counters of coordinators since their start, by model.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Counts(BTreeMap<String, Count>);

#[derive(Clone, Debug, Default, PartialEq)]
struct Count {
    requests: f64,
    failures: f64,
    chunks: f64,
    /// Requests by the upper bound of their time to the first chunk, in seconds. The key is the bit
    /// pattern of the bound, which sorts correctly because bounds are not negative.
    first_chunks: BTreeMap<u64, f64>,
}

/// Rates per second between two readings.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Rates {
    /// The sum of all models.
    pub(super) all: Rate,
    models: BTreeMap<String, Rate>,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Rate {
    pub(super) requests: f64,
    pub(super) failures: f64,
    pub(super) chunks: f64,
    first_chunks: Vec<(f64, f64)>,
}

impl Counts {
    /// Adds the metrics of one coordinator. Unknown lines are ignored: they belong to other metrics
    /// or to a later version.
    pub(super) fn add(&mut self, text: &str) {
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            let Some(sample) = Sample::parse(line) else {
                continue;
            };
            let Some(model) = sample.label("model") else {
                continue;
            };
            let count = self.0.entry(model.to_owned()).or_default();
            match sample.name {
                "volley_requests_total" => {
                    count.requests += sample.value;
                    if !matches!(sample.label("code"), Some("ok" | "cancelled")) {
                        count.failures += sample.value;
                    }
                }
                "volley_chunks_total" => count.chunks += sample.value,
                "volley_time_to_first_chunk_seconds_bucket" => {
                    let bound = sample.label("le").and_then(|bound| match bound {
                        "+Inf" => Some(f64::INFINITY),
                        bound => bound.parse().ok(),
                    });
                    if let Some(bound) = bound.filter(|bound: &f64| 0.0 <= *bound) {
                        *count.first_chunks.entry(bound.to_bits()).or_default() += sample.value;
                    }
                }
                _ => {}
            }
        }
    }

    /// The rates since an earlier reading. A counter that decreased, because a coordinator
    /// restarted, has the rate zero.
    pub(super) fn since(&self, before: &Self, elapsed: Duration) -> Rates {
        let seconds = elapsed.as_secs_f64().max(0.001);
        let nothing = Count::default();
        let mut rates = Rates::default();
        for (model, now) in &self.0 {
            let before = before.0.get(model).unwrap_or(&nothing);
            let per_second = |now: f64, before: f64| (now - before).max(0.0) / seconds;
            let rate = Rate {
                requests: per_second(now.requests, before.requests),
                failures: per_second(now.failures, before.failures),
                chunks: per_second(now.chunks, before.chunks),
                first_chunks: now
                    .first_chunks
                    .iter()
                    .map(|(bound, count)| {
                        let earlier = before.first_chunks.get(bound).copied().unwrap_or(0.0);
                        (f64::from_bits(*bound), (count - earlier).max(0.0))
                    })
                    .collect(),
            };
            rates.all.requests += rate.requests;
            rates.all.failures += rate.failures;
            rates.all.chunks += rate.chunks;
            rates.models.insert(model.clone(), rate);
        }
        rates
    }
}

impl Rates {
    pub(super) fn model(&self, model: &str) -> Rate {
        self.models.get(model).cloned().unwrap_or_default()
    }
}

impl Rate {
    /// The time in seconds within which the fraction `share` of first chunks arrived: the upper
    /// bound of the histogram bucket. `None` without first chunks.
    pub(super) fn first_chunk(&self, share: f64) -> Option<f64> {
        let all = self.first_chunks.last().map(|(_, count)| *count)?;
        if all <= 0.0 {
            return None;
        }
        let enough = |(_, count): &&(f64, f64)| share * all <= *count;
        self.first_chunks
            .iter()
            .find(enough)
            .map(|(bound, _)| *bound)
    }
}

/// One line in the OpenMetrics text format.
struct Sample<'a> {
    name: &'a str,
    labels: Vec<(&'a str, String)>,
    value: f64,
}

impl<'a> Sample<'a> {
    fn parse(line: &'a str) -> Option<Self> {
        let name_end = line.find(['{', ' '])?;
        let (name, rest) = line.split_at(name_end);
        let (labels, rest) = match rest.strip_prefix('{') {
            Some(rest) => read_labels(rest)?,
            None => (Vec::new(), rest),
        };
        let value = rest.split_whitespace().next()?.parse().ok()?;
        Some(Self {
            name,
            labels,
            value,
        })
    }

    fn label(&self, name: &str) -> Option<&str> {
        let found = self.labels.iter().find(|(label, _)| *label == name);
        found.map(|(_, value)| value.as_str())
    }
}

type Labels<'a> = Vec<(&'a str, String)>;

/// Parses `a="x",b="y"} …` into the labels and the text after the brace.
fn read_labels(mut text: &str) -> Option<(Labels<'_>, &str)> {
    let mut labels = Vec::new();
    loop {
        if let Some(rest) = text.strip_prefix('}') {
            return Some((labels, rest));
        }
        let (name, rest) = text.split_once("=\"")?;
        let mut value = String::new();
        let mut chars = rest.char_indices();
        let end = loop {
            match chars.next()? {
                (at, '"') => break at + 1,
                (_, '\\') => value.push(match chars.next()?.1 {
                    'n' => '\n',
                    other => other,
                }),
                (_, other) => value.push(other),
            }
        };
        labels.push((name.trim_start_matches(','), value));
        text = &rest[end..];
    }
}

#[cfg(test)]
mod tests;
