//! Requests that are forwarded in their dialect's own format, with the fields that only that format
//! has. Pure.

use http::{HeaderMap, HeaderName, HeaderValue};
use serde_json::{Map, Value};
use volley_types::registry::ConnectorSpec;
use volley_types::{Native, PredictError};

use crate::options::RequestOptions;
use crate::provider::Provider;
use crate::reserved;

/// Fields of a body that the worker sets.
const OURS: [&str; 3] = ["model", "stream", "stream_options"];

/// The dialects whose requests the connector's server accepts unchanged.
pub fn forms(provider: &Provider, connector: &ConnectorSpec) -> &'static [&'static str] {
    if connector.request_body.is_some() {
        return &[];
    }
    provider.native
}

/// Whether images of messages are sent to the connector's server.
pub fn takes_images(provider: &Provider, connector: &ConnectorSpec) -> bool {
    connector.request_body.is_none() && provider.takes_images
}

/// Whether the connector's server accepts the request unchanged.
///
/// # Errors
/// `InvalidInput` if it does not, and the request's rows cannot express the request; the message
/// names what they lack. `InvalidInput` if it does, and the request has a reserved name.
pub fn fits(
    native: &Native,
    provider: &Provider,
    connector: &ConnectorSpec,
) -> Result<bool, PredictError> {
    let fits = forms(provider, connector).contains(&native.format.as_str());
    match &native.lost {
        Some(lost) if !fits => Err(PredictError::invalid(format!(
            "{lost}: it cannot be sent to servers of the provider '{}'",
            provider.name.as_str()
        ))),
        _ if fits => reserved::refuse_fields(&native.body).map(|()| true),
        _ => Ok(false),
    }
}

/// The body of a forwarded request. Defaults of the connector and the model fill absent fields.
pub fn body(
    native: &Native,
    provider: &Provider,
    connector: &ConnectorSpec,
    options: &RequestOptions,
    whole: bool,
) -> Value {
    let mut body = native.body.clone();
    let defaults = options
        .fields
        .iter()
        .filter(|(name, _)| !options.given.contains(*name) && !reserved::is_reserved(name));
    for (name, value) in defaults {
        body.entry(name.clone()).or_insert_with(|| value.clone());
    }
    body.insert("model".to_owned(), connector.model.as_str().into());
    body.insert("stream".to_owned(), (!whole).into());
    for (name, value) in provider.native_defaults {
        body.entry(*name).or_insert_with(|| (*value).into());
    }
    Value::Object(body)
}

/// Whether the native body is the complete request. For a chat completion it has only the messages,
/// because the other fields are parameters with the same names.
pub fn is_whole(native: &Native) -> bool {
    native.format != "openai"
}

/// Replaces fields that were built from rows by those of the native request.
pub fn overlay(body: &mut Map<String, Value>, native: &Native) {
    for (name, value) in &native.body {
        if !OURS.contains(&name.as_str()) {
            body.insert(name.clone(), value.clone());
        }
    }
}

/// Adds the headers of the request. A connector's `anthropic-version` takes precedence;
/// `anthropic-beta` values are combined.
pub fn headers(native: &Native, connector: &ConnectorSpec, headers: &mut HeaderMap) {
    let known = ["anthropic-version", "anthropic-beta"];
    for name in known {
        let Some(given) = native.headers.get(name) else {
            continue;
        };
        let mut own = connector.headers.iter();
        let own = own.find(|(own, _)| own.eq_ignore_ascii_case(name));
        let value = match own {
            Some(_) if name == "anthropic-version" => continue,
            Some((_, own)) => format!("{own},{given}"),
            None => given.clone(),
        };
        if let Ok(value) = HeaderValue::try_from(value) {
            headers.insert(HeaderName::from_static(name), value);
        }
    }
}
