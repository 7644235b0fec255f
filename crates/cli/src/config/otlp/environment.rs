//! OpenTelemetry's environment variables.
//!
//! Source: the specifications "SDK environment variables" and "OTLP exporter configuration" of
//! OpenTelemetry. A malformed or unsupported value is rejected with the name of the variable.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use percent_encoding::percent_decode_str;
use volley_telemetry::otlp::{Collector, OtlpConfig, Sampler};

/// Returns the value of a variable.
pub(super) type Lookup<'l> = dyn Fn(&str) -> Option<String> + 'l;

const DEFAULT_ENDPOINT: &str = "http://localhost:4317";
const PREFIX: &str = "OTEL_EXPORTER_OTLP_";

/// Whether `OTEL_SDK_DISABLED` is set.
///
/// # Errors
/// When its value is neither `true` nor `false`.
pub(super) fn is_disabled(variable: &Lookup<'_>) -> anyhow::Result<bool> {
    Ok(boolean(variable, "OTEL_SDK_DISABLED")?.unwrap_or(false))
}

/// The export that the variables configure. The collector in `file` takes precedence. `None` if
/// neither the file nor a variable names a collector.
///
/// # Errors
/// When a value is malformed or not supported.
pub(super) fn read(
    variable: &Lookup<'_>,
    file: Option<Collector>,
) -> anyhow::Result<Option<OtlpConfig>> {
    propagators(variable)?;
    let traces = signal(variable, "TRACES", file.as_ref())?;
    let metrics = signal(variable, "METRICS", file.as_ref())?;
    let Some(any) = traces.clone().or_else(|| metrics.clone()) else {
        return Ok(None);
    };
    let mut config = OtlpConfig {
        traces,
        metrics,
        sampler: sampler(variable)?,
        attributes: pairs(variable, "OTEL_RESOURCE_ATTRIBUTES")?.unwrap_or_default(),
        ..OtlpConfig::new(any)
    };
    let named = |(key, _): &(String, String)| key == "service.name";
    let service = config.attributes.iter().position(named);
    let service = service.map(|at| config.attributes.remove(at).1);
    config.service_name = set(variable, "OTEL_SERVICE_NAME").or(service);
    for (name, span) in [
        ("OTEL_BSP_SCHEDULE_DELAY", &mut config.span_interval),
        ("OTEL_METRIC_EXPORT_INTERVAL", &mut config.metric_interval),
    ] {
        *span = milliseconds(variable, name)?.unwrap_or(*span);
    }
    for (name, count) in [
        ("OTEL_BSP_MAX_QUEUE_SIZE", &mut config.span_queue),
        ("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", &mut config.span_batch),
    ] {
        if let Some(value) = number(variable, name)? {
            ensure!(value <= 1 << 20, "{name}: {value} is more than 1048576");
            *count = value as usize;
        }
    }
    Ok(Some(config))
}

/// The collector of one signal; `None` if the signal is not exported.
fn signal(
    variable: &Lookup<'_>,
    signal: &str,
    file: Option<&Collector>,
) -> anyhow::Result<Option<Collector>> {
    let exporter = format!("OTEL_{signal}_EXPORTER");
    let wanted = match set(variable, &exporter).as_deref() {
        None => false,
        Some("otlp") => true,
        Some("none") => return Ok(None),
        Some(other) => bail!("{exporter}: '{other}' is not supported; set otlp or none"),
    };
    // The variable of a signal takes precedence over the general one.
    let one = |name: &str| {
        let special = format!("{PREFIX}{signal}_{name}");
        let general = format!("{PREFIX}{name}");
        match set(variable, &special) {
            Some(value) => Some((special, value)),
            None => set(variable, &general).map(|value| (general, value)),
        }
    };
    if let Some((name, protocol)) = one("PROTOCOL") {
        ensure!(
            protocol == "grpc",
            "{name}: '{protocol}' is not supported; set grpc, and the address of a gRPC receiver"
        );
    }
    let endpoint = one("ENDPOINT").map(|(_, endpoint)| endpoint);
    let insecure = match one("INSECURE") {
        Some((name, _)) => boolean(variable, &name)?.unwrap_or(false),
        None => false,
    };
    let mut collector = match (file, endpoint) {
        (Some(file), _) => file.clone(),
        (None, Some(endpoint)) => Collector::new(with_scheme(endpoint, insecure)),
        (None, None) if wanted => Collector::new(DEFAULT_ENDPOINT),
        (None, None) => return Ok(None),
    };
    let path = |name: &str| one(name).map(|(_, value)| PathBuf::from(value));
    collector.authority = collector.authority.or_else(|| path("CERTIFICATE"));
    collector.identity = match (path("CLIENT_CERTIFICATE"), path("CLIENT_KEY")) {
        (Some(certificate), Some(key)) => Some((certificate, key)),
        (None, None) => None,
        _ => bail!("{PREFIX}CLIENT_CERTIFICATE and {PREFIX}CLIENT_KEY must be set together"),
    };
    if let Some((name, _)) = one("HEADERS") {
        collector.headers = pairs(variable, &name)?.unwrap_or_default();
    }
    if let Some((name, _)) = one("TIMEOUT") {
        collector.timeout = milliseconds(variable, &name)?.unwrap_or(collector.timeout);
    }
    if let Some((name, compression)) = one("COMPRESSION") {
        ensure!(
            compression == "none",
            "{name}: '{compression}' is not supported; set none"
        );
    }
    Ok(Some(collector))
}

fn with_scheme(endpoint: String, insecure: bool) -> String {
    match (endpoint.contains("://"), insecure) {
        (true, _) => endpoint,
        (false, true) => format!("http://{endpoint}"),
        (false, false) => format!("https://{endpoint}"),
    }
}

fn sampler(variable: &Lookup<'_>) -> anyhow::Result<Sampler> {
    const NAME: &str = "OTEL_TRACES_SAMPLER";
    const ARGUMENT: &str = "OTEL_TRACES_SAMPLER_ARG";
    let Some(name) = set(variable, NAME) else {
        return Ok(Sampler::default());
    };
    let (parent_based, kind) = match name.strip_prefix("parentbased_") {
        Some(kind) => (true, kind),
        None => (false, name.as_str()),
    };
    let ratio = match kind {
        "always_on" => 1.0,
        "always_off" => 0.0,
        "traceidratio" => match set(variable, ARGUMENT) {
            None => 1.0,
            Some(text) => text
                .parse()
                .ok()
                .filter(|ratio| (0.0..=1.0).contains(ratio))
                .with_context(|| format!("{ARGUMENT}: '{text}' is not between 0 and 1"))?,
        },
        _ => bail!(
            "{NAME}: '{name}' is not supported; set always_on, always_off or traceidratio, or one \
             of these with parentbased_ before it"
        ),
    };
    Ok(Sampler {
        ratio,
        parent_based,
    })
}

fn propagators(variable: &Lookup<'_>) -> anyhow::Result<()> {
    const NAME: &str = "OTEL_PROPAGATORS";
    let named = set(variable, NAME).unwrap_or_default();
    let mut named = named.split(',').map(str::trim);
    // Only the trace context is propagated. Baggage is accepted in the list but not forwarded.
    let other = named.find(|name| !["", "tracecontext", "baggage"].contains(name));
    match other {
        Some(other) => bail!("{NAME}: '{other}' is not supported; set tracecontext"),
        None => Ok(()),
    }
}

fn set(variable: &Lookup<'_>, name: &str) -> Option<String> {
    let value = variable(name)?.trim().to_owned();
    (!value.is_empty()).then_some(value)
}

fn boolean(variable: &Lookup<'_>, name: &str) -> anyhow::Result<Option<bool>> {
    let Some(value) = set(variable, name) else {
        return Ok(None);
    };
    match value.to_ascii_lowercase().as_str() {
        "true" => Ok(Some(true)),
        "false" => Ok(Some(false)),
        _ => bail!("{name}: '{value}' must be true or false"),
    }
}

fn number(variable: &Lookup<'_>, name: &str) -> anyhow::Result<Option<u64>> {
    let Some(value) = set(variable, name) else {
        return Ok(None);
    };
    let parsed = value.parse().ok().filter(|number| 0 < *number);
    parsed
        .map(Some)
        .with_context(|| format!("{name}: '{value}' is not a whole number above 0"))
}

fn milliseconds(variable: &Lookup<'_>, name: &str) -> anyhow::Result<Option<Duration>> {
    Ok(number(variable, name)?.map(Duration::from_millis))
}

/// Parses `key=value,key=value` with percent-encoded values.
fn pairs(variable: &Lookup<'_>, name: &str) -> anyhow::Result<Option<Vec<(String, String)>>> {
    let Some(text) = set(variable, name) else {
        return Ok(None);
    };
    let pair = |pair: &str| {
        let (key, value) = pair.split_once('=')?;
        let value = percent_decode_str(value.trim()).decode_utf8().ok()?;
        let key = key.trim();
        (!key.is_empty()).then(|| (key.to_owned(), value.into_owned()))
    };
    // The message must not repeat the value, which may be a token.
    let entries = text.split(',').filter(|entry| !entry.trim().is_empty());
    entries
        .map(|entry| pair(entry).with_context(|| format!("{name}: an entry is not KEY=VALUE")))
        .collect::<anyhow::Result<Vec<_>>>()
        .map(Some)
}
