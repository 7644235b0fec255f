//! Cluster settings under OpenSearch's names (`/_cluster/settings`). Settings with a meaning here
//! take effect, settings that cannot change Volley's behaviour are stored and ignored, and all
//! others are rejected.

mod names;

use std::collections::BTreeMap;

use regex::{Regex, RegexBuilder};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use volley_http_edge::axum::Json;
use volley_types::PredictError;
use volley_types::registry::{ConnectorSpec, RegistryCommand, RegistryState};

pub(crate) use self::names::{
    CUSTOM_PLAN, LOCAL_ENABLED, MAX_BATCHES, REMOTE_ENABLED, STREAM_ENABLED, TRUSTED_ENDPOINTS,
    TRUSTED_URLS, VIA_LOCAL_FILE, VIA_URL,
};
use self::names::{SETTINGS, SettingKind};
use volley_http_edge::body::{Fields, JsonObject};
use volley_http_edge::edge::Caller;
use volley_http_edge::error::ApiError;
use volley_http_edge::extract::Query;

/// Maximum length of a pattern, as in OpenSearch, and maximum number of patterns.
const MAX_PATTERN: usize = 256;
const MAX_PATTERNS: usize = 128;
/// Maximum length of a setting's name in bytes.
const MAX_NAME: usize = 256;
const MAX_COMPILED_BYTES: usize = 1 << 20;

/// Query parameters. Timeouts are accepted and ignored, because Volley has its own.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct SettingsQuery {
    #[serde(default)]
    flat_settings: bool,
    #[serde(default)]
    include_defaults: bool,
    #[serde(rename = "timeout")]
    _timeout: Option<String>,
    #[serde(rename = "master_timeout")]
    _master_timeout: Option<String>,
    #[serde(rename = "cluster_manager_timeout")]
    _manager_timeout: Option<String>,
    #[serde(rename = "local")]
    _local: Option<bool>,
}

pub(crate) async fn get(
    caller: Caller,
    Query(query): Query<SettingsQuery>,
) -> Result<Json<Value>, ApiError> {
    let registry = caller.cluster.registry.state();
    let set = registry.settings.iter();
    let set = set.map(|(name, value)| (name.clone(), parsed(value)));
    let mut told = json!({
        "persistent": shaped(set.collect(), query.flat_settings),
        "transient": {},
    });
    if query.include_defaults {
        let defaults = SETTINGS
            .iter()
            .filter(|it| registry.setting(it.name).is_none());
        let defaults = defaults.map(|it| (it.name.to_owned(), parsed(it.default)));
        told["defaults"] = shaped(defaults.collect(), query.flat_settings);
    }
    Ok(Json(told))
}

pub(crate) async fn change(
    caller: Caller,
    Query(query): Query<SettingsQuery>,
    JsonObject(body): JsonObject,
) -> Result<Json<Value>, ApiError> {
    let change = read(&body)?;
    caller
        .cluster
        .registry
        .write(RegistryCommand::ChangeSettings(change.clone()))
        .await?;
    let set = change.into_iter();
    let set = set.filter_map(|(name, value)| Some((name, parsed(&value?))));
    Ok(Json(json!({
        "acknowledged": true,
        "persistent": shaped(set.collect(), query.flat_settings),
        "transient": {},
    })))
}

type Change = BTreeMap<String, Option<String>>;

/// The changes in a body: full names, with JSON values or `None` for a reset.
fn read(body: &Map<String, Value>) -> Result<Change, PredictError> {
    body.only("the cluster's settings", &["persistent", "transient"])?;
    if body.object("transient")?.is_some_and(|it| !it.is_empty()) {
        return Err(PredictError::invalid(
            "all settings survive restarts: send them in 'persistent'",
        ));
    }
    let mut flat = BTreeMap::new();
    if let Some(persistent) = body.object("persistent")? {
        flatten("", persistent, &mut flat)?;
    }
    if flat.is_empty() {
        return Err(PredictError::invalid(
            "no settings to update: send them in 'persistent'",
        ));
    }
    let checked = flat.into_iter().map(|(name, value)| {
        let value = check(&name, value)?;
        Ok((name, value.map(|value| value.to_string())))
    });
    checked.collect()
}

/// Flattens nested objects to names with dots. A name that is too long is rejected immediately,
/// because every name below it would be at least as long.
fn flatten<'b>(
    before: &str,
    body: &'b Map<String, Value>,
    flat: &mut BTreeMap<String, &'b Value>,
) -> Result<(), PredictError> {
    for (name, value) in body {
        if MAX_NAME < before.len() + name.len() {
            let whole = format!("{before}.{name:.MAX_NAME$}");
            return Err(unknown(whole.trim_start_matches('.')));
        }
        let name = match before {
            "" => name.clone(),
            before => format!("{before}.{name}"),
        };
        match value {
            Value::Object(inner) => flatten(&name, inner, flat)?,
            value => {
                flat.insert(name, value);
            }
        }
    }
    Ok(())
}

fn unknown(name: &str) -> PredictError {
    let name: String = name.chars().filter(|c| !c.is_control()).take(128).collect();
    PredictError::invalid(format!("persistent setting [{name}], not recognized"))
}

/// Checks and converts a value; `None` resets the setting.
fn check(name: &str, value: &Value) -> Result<Option<Value>, PredictError> {
    let Some(setting) = SETTINGS.iter().find(|it| it.name == name) else {
        return Err(unknown(name));
    };
    if value.is_null() {
        return Ok(None);
    }
    let wrong = |what: &str| {
        Err(PredictError::invalid(format!(
            "setting '{name}' must be {what}"
        )))
    };
    match setting.kind {
        SettingKind::Flag => match flag_of(value) {
            Some(flag) => Ok(Some(Value::from(flag))),
            None => wrong("true or false"),
        },
        SettingKind::Count { least } => match count_of(value).filter(|count| least <= *count) {
            Some(count) => Ok(Some(Value::from(count))),
            None => wrong(&format!("a whole number of at least {least}")),
        },
        SettingKind::Pattern => match value.as_str() {
            Some(text) => {
                pattern(name, text)?;
                Ok(Some(value.clone()))
            }
            None => wrong("a pattern"),
        },
        SettingKind::Patterns => {
            let texts = value.as_array().filter(|texts| texts.len() <= MAX_PATTERNS);
            let texts = texts.map(|texts| texts.iter().map(Value::as_str));
            let Some(texts) = texts.and_then(Iterator::collect::<Option<Vec<_>>>) else {
                return wrong(&format!("a list of at most {MAX_PATTERNS} patterns"));
            };
            for text in texts {
                pattern(name, text)?;
            }
            Ok(Some(value.clone()))
        }
        SettingKind::Strategy => {
            let known = names::strategies();
            match value.as_str().filter(|text| known.contains(text)) {
                Some(_) => Ok(Some(value.clone())),
                None => wrong(&known.join(" or ")),
            }
        }
        SettingKind::ReadOver => match value {
            Value::Bool(_) | Value::Number(_) | Value::String(_) => Ok(Some(value.clone())),
            _ => wrong("a value, not a list"),
        },
        SettingKind::Only { value: only, why } => {
            let same = flag_of(value).is_some_and(|flag| flag == only);
            match same {
                true => Ok(Some(Value::from(only))),
                false => Err(PredictError::invalid(format!("setting '{name}' {why}"))),
            }
        }
        SettingKind::Refused { why } => {
            Err(PredictError::invalid(format!("setting '{name}' {why}")))
        }
    }
}

fn flag_of(value: &Value) -> Option<bool> {
    match value {
        Value::Bool(flag) => Some(*flag),
        Value::String(text) => text.parse().ok(),
        _ => None,
    }
}

fn count_of(value: &Value) -> Option<u64> {
    match value {
        Value::String(text) => text.parse().ok(),
        value => value.as_u64(),
    }
}

/// Compiles a pattern that must match a complete text. Matching takes time linear in the text, for
/// any pattern.
fn pattern(name: &str, text: &str) -> Result<Regex, PredictError> {
    let regex = (text.len() <= MAX_PATTERN).then(|| {
        RegexBuilder::new(&format!("^(?:{text})$"))
            .size_limit(MAX_COMPILED_BYTES)
            .build()
    });
    match regex {
        Some(Ok(regex)) => Ok(regex),
        _ => Err(PredictError::invalid(format!(
            "setting '{name}' must be a regular expression of at most {MAX_PATTERN} bytes, without \
             back references or look-around"
        ))),
    }
}

fn parsed(value: &str) -> Value {
    serde_json::from_str(value).unwrap_or_default()
}

/// Formats settings as OpenSearch does: flat or as nested objects, with text values.
fn shaped(settings: Vec<(String, Value)>, flat: bool) -> Value {
    let mut shaped = Map::new();
    for (name, value) in settings {
        let value = text_of(value);
        if flat {
            shaped.insert(name, value);
        } else {
            nest(&mut shaped, &name, value);
        }
    }
    Value::Object(shaped)
}

fn text_of(value: Value) -> Value {
    match value {
        Value::Array(values) => values.into_iter().map(text_of).collect(),
        Value::String(_) => value,
        other => Value::from(other.to_string()),
    }
}

fn nest(into: &mut Map<String, Value>, name: &str, value: Value) {
    match name.split_once('.') {
        None => {
            into.insert(name.to_owned(), value);
        }
        Some((first, rest)) => {
            let inner = into.entry(first).or_insert_with(|| json!({}));
            match inner.as_object_mut() {
                Some(inner) => nest(inner, rest, value),
                // A setting whose name is the prefix of another setting's name stays flat.
                None => {
                    into.insert(name.to_owned(), value);
                }
            }
        }
    }
}

/// Whether a setting is on; `default` if it is not set.
pub(crate) fn is_on(registry: &RegistryState, name: &str, default: bool) -> bool {
    let set = registry.setting(name);
    set.map_or(default, |value| value == "true")
}

/// Rejects an operation that a setting disables, in OpenSearch's wording.
///
/// # Errors
/// `PermissionDenied` if the setting is off.
pub(crate) fn demand(registry: &RegistryState, name: &str, what: &str) -> Result<(), PredictError> {
    if is_on(registry, name, true) {
        return Ok(());
    }
    Err(PredictError::new(
        volley_types::ErrorCode::PermissionDenied,
        format!(
            "{what} is currently disabled. To enable it, update the setting \"{name}\" to true."
        ),
    ))
}

/// Rejects a connector to an untrusted server, if the setting of trusted endpoints is set.
///
/// # Errors
/// `InvalidInput` in OpenSearch's wording.
pub(crate) fn trust_connector(
    registry: &RegistryState,
    spec: &ConnectorSpec,
) -> Result<(), PredictError> {
    let Some(Value::Array(patterns)) = registry.setting(TRUSTED_ENDPOINTS).map(parsed) else {
        return Ok(());
    };
    let texts = patterns.iter().filter_map(Value::as_str);
    let patterns = texts.map(|text| pattern(TRUSTED_ENDPOINTS, text));
    let patterns: Vec<_> = patterns.collect::<Result<_, _>>()?;
    let others = spec.policy.endpoints.iter().map(|endpoint| &endpoint.url);
    for url in std::iter::once(&spec.url).chain(others) {
        if !patterns.iter().any(|pattern| pattern.is_match(url)) {
            return Err(PredictError::invalid(format!(
                "Connector URL is not matching the trusted connector endpoint regex; the cluster \
                 setting '{TRUSTED_ENDPOINTS}' lists the trusted ones"
            )));
        }
    }
    Ok(())
}

/// Rejects a model from an untrusted URL, if the setting of trusted URLs is set.
///
/// # Errors
/// `InvalidInput` for an untrusted URL.
pub(crate) fn trust_url(registry: &RegistryState, url: &str) -> Result<(), PredictError> {
    let Some(Value::String(text)) = registry.setting(TRUSTED_URLS).map(parsed) else {
        return Ok(());
    };
    if pattern(TRUSTED_URLS, &text)?.is_match(url) {
        return Ok(());
    }
    Err(PredictError::invalid(format!(
        "this url is not trusted; the cluster setting '{TRUSTED_URLS}' lists the trusted ones"
    )))
}

#[cfg(test)]
mod tests;
