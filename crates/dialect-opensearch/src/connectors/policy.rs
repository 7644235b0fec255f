//! Parses and renders the policy of a connector: `client_config`, `weight` and `endpoints`.

use serde_json::{Map, Value, json};
use volley_types::PredictError;
use volley_types::registry::{ConnectorEndpoint, ConnectorPolicy};

use super::{credential, credential_text, headers, provider};
use volley_http_edge::body::Fields;

/// Fields of `client_config`, with OpenSearch's names if it has them.
const CONFIG: [&str; 6] = [
    "max_connection",
    "max_requests_per_minute",
    "max_retry_times",
    "retry_backoff_millis",
    "breaker_window",
    "breaker_open_millis",
];
const ENDPOINT: [&str; 8] = [
    "url",
    "model",
    "provider",
    "protocol",
    "credential",
    "headers",
    "weight",
    "fallback",
];

const MAX_RETRIES: u32 = 10;
const MAX_MILLIS: u32 = 3_600_000;
const MAX_COUNT: u32 = 1_000_000;
const MAX_ENDPOINTS: usize = 64;

/// Parses the policy in a connector's body; `model` is the connector's own.
pub(super) fn read(
    body: &Map<String, Value>,
    model: &str,
) -> Result<ConnectorPolicy, PredictError> {
    let empty = Map::new();
    let config = body.object("client_config")?.unwrap_or(&empty);
    config.only("'client_config'", &CONFIG)?;
    let default = ConnectorPolicy::default();
    let number = |name: &str, least: u32, most: u32| number(config, name, least, most);
    let endpoints = match body.get("endpoints") {
        None | Some(Value::Null) => &[],
        Some(Value::Array(endpoints)) if endpoints.len() <= MAX_ENDPOINTS => endpoints.as_slice(),
        Some(_) => {
            let message = format!("field 'endpoints' must be a list of at most {MAX_ENDPOINTS}");
            return Err(PredictError::invalid(message));
        }
    };
    let endpoints = endpoints.iter().map(|given| endpoint(given, model));
    let seconds_of = |name, default| number(name, 0, MAX_MILLIS).map(|it| it.unwrap_or(default));
    Ok(ConnectorPolicy {
        max_concurrent: number("max_connection", 1, MAX_COUNT)?,
        max_per_minute: number("max_requests_per_minute", 1, MAX_COUNT)?,
        max_retries: number("max_retry_times", 0, MAX_RETRIES)?.unwrap_or(default.max_retries),
        retry_backoff_ms: seconds_of("retry_backoff_millis", default.retry_backoff_ms)?,
        breaker_window: number("breaker_window", 0, MAX_COUNT)?.unwrap_or(default.breaker_window),
        breaker_open_ms: seconds_of("breaker_open_millis", default.breaker_open_ms)?,
        weight: weight(body)?,
        endpoints: endpoints.collect::<Result<_, _>>()?,
    })
}

fn endpoint(given: &Value, model: &str) -> Result<ConnectorEndpoint, PredictError> {
    let given = given
        .as_object()
        .ok_or_else(|| PredictError::invalid("each of 'endpoints' must be an object"))?;
    given.only("an endpoint", &ENDPOINT)?;
    let url = given.required("url")?;
    let provider = provider(given, url)?;
    let named = given
        .text("model")?
        .or_else(|| (provider.model_of_url)(url));
    let fallback = match given.get("fallback") {
        None | Some(Value::Null) => false,
        Some(Value::Bool(fallback)) => *fallback,
        Some(_) => {
            return Err(PredictError::invalid(
                "field 'fallback' must be true or false",
            ));
        }
    };
    Ok(ConnectorEndpoint {
        provider: provider.name,
        url: url.to_owned(),
        model: named.unwrap_or(model).to_owned(),
        credential: credential(given)?,
        headers: headers(given, None, provider)?,
        weight: weight(given)?,
        fallback,
    })
}

fn weight(body: &Map<String, Value>) -> Result<u32, PredictError> {
    Ok(number(body, "weight", 1, MAX_COUNT)?.unwrap_or(1))
}

fn number(
    body: &Map<String, Value>,
    name: &str,
    least: u32,
    most: u32,
) -> Result<Option<u32>, PredictError> {
    let Some(given) = body.count(name)? else {
        return Ok(None);
    };
    let number = u32::try_from(given).ok();
    let number = number.filter(|number| (least..=most).contains(number));
    number.map(Some).ok_or_else(|| {
        PredictError::invalid(format!("field '{name}' must be from {least} to {most}"))
    })
}

/// Renders `client_config` in the format that [`read`] parses.
pub(super) fn render_config(policy: &ConnectorPolicy) -> Value {
    json!({
        "max_connection": policy.max_concurrent,
        "max_requests_per_minute": policy.max_per_minute,
        "max_retry_times": policy.max_retries,
        "retry_backoff_millis": policy.retry_backoff_ms,
        "breaker_window": policy.breaker_window,
        "breaker_open_millis": policy.breaker_open_ms,
    })
}

/// Renders `endpoints` in the format that [`read`] parses.
pub(super) fn render_endpoints(policy: &ConnectorPolicy) -> Value {
    let endpoints = policy.endpoints.iter().map(|endpoint| {
        json!({
            "provider": endpoint.provider.as_str(),
            "url": endpoint.url,
            "model": endpoint.model,
            "credential": credential_text(endpoint.credential.as_ref()),
            "headers": endpoint.headers,
            "weight": endpoint.weight,
            "fallback": endpoint.fallback,
        })
    });
    endpoints.collect()
}
