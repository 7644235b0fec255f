//! Generates `docs/reference/metrics.md` from the registered metrics.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant, SystemTime};

use volley_types::registry::{ConnectorPolicy, ConnectorSpec, ProviderName};
use volley_types::{ConnectorId, ErrorCode, GpuReport, ModelName, Parameters};

use self::page::assert_current;
use super::{Metrics, WorkerCounts};

#[path = "../../../../tests/reference/page.rs"]
mod page;

/// The reference page must match the exported metrics.
#[test]
fn the_page_of_metrics_is_generated_from_their_definitions() {
    let text = sampled().encode();
    let mut rows = BTreeMap::new();
    let (mut help, mut kind) = ("", "");
    let mut samples = text.lines().peekable();
    while let Some(line) = samples.next() {
        if let Some(line) = line.strip_prefix("# HELP ") {
            help = line.split_once(' ').unwrap().1;
        }
        if let Some((name, is)) = line
            .strip_prefix("# TYPE ")
            .and_then(|it| it.split_once(' '))
        {
            kind = is;
            let sample = samples
                .peek()
                .unwrap_or_else(|| panic!("no sample of {name}"));
            assert!(sample.starts_with(name), "no sample of {name}");
            let labels: Vec<_> = labels(sample).into_iter().collect();
            let row = format!(
                "| `{name}` | {kind} | {} | {} | {help} |",
                unit(name),
                labels.join(", ")
            );
            rows.insert(name.to_owned(), row);
        }
    }
    assert!(!kind.is_empty());
    assert_current("metrics", rows);
}

/// All metrics, with a sample of each.
fn sampled() -> Metrics {
    let metrics = Metrics::new();
    let model = ModelName::new("m").unwrap();
    let now = Instant::now();
    let mut stream = crate::StreamRecord::begin(&metrics, &model, now);
    stream.batch(1, now);
    drop(stream);
    metrics.retried(&model);
    metrics.queue_wait(&model, Duration::ZERO);
    metrics.set_workers(WorkerCounts::default());
    metrics.set_memory(2, 1, &BTreeMap::from([(model.clone(), 1)]));
    metrics.set_evicted_replicas(&BTreeMap::from([(model.clone(), 1)]));
    metrics.set_ready_replicas(&BTreeMap::from([(model.clone(), 1)]));
    metrics.evicted(&model);
    metrics.reloaded(&model);
    metrics.model_process_ended(&model);
    metrics.routed("only");
    metrics.ejected(&model);
    metrics.hedged(&model);
    metrics.continued("continued");
    metrics.moved("room", "done");
    metrics.set_certificate_ends(&[("edge", SystemTime::UNIX_EPOCH)]);
    metrics.set_gpus(&[GpuReport {
        index: 0,
        name: "GPU".to_owned(),
        used_bytes: 1,
        total_bytes: 2,
        utilization_percent: 3,
    }]);
    metrics.fetched(None);
    let id = ConnectorId::new("c").unwrap();
    let server = ConnectorSpec {
        id: id.clone(),
        name: String::new(),
        provider: ProviderName::from_static("openai"),
        url: "https://host/v1".to_owned(),
        model: "m".to_owned(),
        credential: None,
        headers: BTreeMap::new(),
        parameters: Parameters::default(),
        request_body: None,
        policy: ConnectorPolicy::default(),
    };
    metrics.upstream_called(&server, Some(ErrorCode::Unavailable));
    metrics.upstream_retried(&id);
    metrics.upstream_fell_back(&id);
    metrics.upstream_circuit_open(&id);
    metrics.upstream_tokens(&id, "prompt", 1);
    metrics.upstream_usage_missing(&id);
    metrics.upstream_unterminated(&id);
    metrics.upstream_cost(&id, 1.0);
    metrics
}

fn labels(sample: &str) -> BTreeSet<String> {
    let written = sample
        .split_once('{')
        .and_then(|(_, rest)| rest.split_once('}'));
    let written = written.map_or("", |(labels, _)| labels);
    let names = written.split(',').filter_map(|label| label.split_once('='));
    // `le`, the bound of a histogram bucket, is part of the format.
    let names = names.filter(|(name, _)| *name != "le");
    names.map(|(name, _)| format!("`{name}`")).collect()
}

/// The unit, taken from the suffix of the name.
fn unit(name: &str) -> &'static str {
    let units = [
        ("_seconds", "seconds"),
        ("_bytes", "bytes"),
        ("_ratio", "ratio"),
        ("_rows", "rows"),
    ];
    let of = units.into_iter().find(|(suffix, _)| name.ends_with(suffix));
    of.map_or("", |(_, unit)| unit)
}
