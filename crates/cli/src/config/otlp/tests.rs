use std::collections::BTreeMap;
use std::time::Duration;

use super::*;

fn planned(
    section: Option<OtlpSection>,
    variables: &[(&str, &str)],
) -> anyhow::Result<Option<OtlpConfig>> {
    let variables: BTreeMap<_, _> = variables.iter().copied().collect();
    merge(section, &|name| {
        variables.get(name).map(|value| (*value).to_owned())
    })
}

fn rejection(variables: &[(&str, &str)]) -> String {
    planned(None, variables).unwrap_err().to_string()
}

#[test]
fn without_a_collector_nothing_is_exported() {
    assert_eq!(planned(None, &[]).unwrap(), None);
    let service = [
        ("OTEL_SERVICE_NAME", "search"),
        ("OTEL_TRACES_EXPORTER", ""),
    ];
    assert_eq!(planned(None, &service).unwrap(), None);
}

#[test]
fn the_standard_variables_configure_both_signals() {
    let config = planned(
        None,
        &[
            ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://collector:4317"),
            (
                "OTEL_EXPORTER_OTLP_HEADERS",
                "api-key=a%20b, x-team = search",
            ),
            ("OTEL_EXPORTER_OTLP_TIMEOUT", "2500"),
            ("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", "http://metrics:4317"),
            ("OTEL_SERVICE_NAME", "search"),
            (
                "OTEL_RESOURCE_ATTRIBUTES",
                "service.name=other,deployment.environment.name=prod",
            ),
            ("OTEL_TRACES_SAMPLER", "parentbased_traceidratio"),
            ("OTEL_TRACES_SAMPLER_ARG", "0.25"),
            ("OTEL_BSP_SCHEDULE_DELAY", "200"),
            ("OTEL_BSP_MAX_QUEUE_SIZE", "64"),
        ],
    );
    let config = config.unwrap().expect("a collector");
    let traces = config.traces.expect("traces");
    assert_eq!(traces.endpoint, "http://collector:4317");
    assert_eq!(traces.timeout, Duration::from_millis(2_500));
    let pair = |key: &str, value: &str| (key.to_owned(), value.to_owned());
    assert_eq!(
        traces.headers,
        [pair("api-key", "a b"), pair("x-team", "search")]
    );
    let metrics = config.metrics.expect("metrics");
    assert_eq!(metrics.endpoint, "http://metrics:4317");
    assert_eq!(config.service_name.as_deref(), Some("search"));
    assert_eq!(
        config.attributes,
        [pair("deployment.environment.name", "prod")]
    );
    assert_eq!(
        (config.sampler.ratio, config.sampler.parent_based),
        (0.25, true)
    );
    assert_eq!(config.span_interval, Duration::from_millis(200));
    assert_eq!(config.span_queue, 64);
}

#[test]
fn the_file_wins_and_the_variables_fill_in() {
    let section = OtlpSection {
        endpoint: "http://file:4317".to_owned(),
        authority: None,
        sample_ratio: Some(0.5),
    };
    let config = planned(
        Some(section),
        &[
            ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://variable:4317"),
            ("OTEL_TRACES_SAMPLER", "always_off"),
            ("OTEL_METRICS_EXPORTER", "none"),
        ],
    );
    let config = config.unwrap().expect("a collector");
    assert_eq!(config.traces.expect("traces").endpoint, "http://file:4317");
    assert_eq!(
        (config.sampler.ratio, config.sampler.parent_based),
        (0.5, true)
    );
    assert_eq!(config.metrics, None);
}

#[test]
fn the_sdk_can_be_disabled() {
    let endpoint = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://collector:4317");
    assert_eq!(
        planned(None, &[endpoint, ("OTEL_SDK_DISABLED", "true")]).unwrap(),
        None
    );
    assert!(
        planned(None, &[endpoint, ("OTEL_SDK_DISABLED", "false")])
            .unwrap()
            .is_some()
    );
}

#[test]
fn what_is_not_supported_is_rejected_by_name() {
    let endpoint = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://collector:4317");
    for (name, value) in [
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf"),
        ("OTEL_EXPORTER_OTLP_COMPRESSION", "gzip"),
        ("OTEL_TRACES_EXPORTER", "zipkin"),
        ("OTEL_TRACES_SAMPLER", "jaeger_remote"),
        ("OTEL_PROPAGATORS", "tracecontext,b3"),
        ("OTEL_BSP_SCHEDULE_DELAY", "soon"),
        ("OTEL_SDK_DISABLED", "1"),
        ("OTEL_RESOURCE_ATTRIBUTES", "no pair"),
        ("OTEL_EXPORTER_OTLP_CLIENT_KEY", "key.pem"),
    ] {
        let message = rejection(&[endpoint, (name, value)]);
        assert!(message.contains(name), "{name}: {message}");
    }
    let secret = [endpoint, ("OTEL_EXPORTER_OTLP_HEADERS", "sk-secret")];
    assert!(!rejection(&secret).contains("sk-secret"));
}
