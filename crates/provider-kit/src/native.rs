//! Requests that go to a server as their dialect has them, and parts of answers that only one
//! format knows. Pure.

use http::{HeaderMap, HeaderName, HeaderValue};
use serde_json::{Map, Value};
use volley_types::registry::ConnectorSpec;
use volley_types::{Native, PredictError};

use crate::options::RequestOptions;
use crate::provider::Provider;
use crate::reserved;

/// Fields of a body that are the worker's own to say.
const OURS: [&str; 3] = ["model", "stream", "stream_options"];

/// The forms in which servers of that provider take requests as they are.
pub fn forms(provider: &Provider, connector: &ConnectorSpec) -> &'static [&'static str] {
    if connector.request_body.is_some() {
        return &[];
    }
    provider.native
}

/// Whether that server is sent the images of messages.
pub fn takes_images(provider: &Provider, connector: &ConnectorSpec) -> bool {
    connector.request_body.is_none() && provider.takes_images
}

/// Whether that server takes the request as it is.
///
/// # Errors
/// `InvalidInput` naming what the request's rows lack of it, where it does not.
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
        _ => Ok(fits),
    }
}

/// The body of a request that is sent as it is, with the defaults of the connector and the model
/// for what it does not say.
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

/// Whether all of a body is in the request. That of a chat completion has only the messages, as its
/// other fields are parameters by their own names.
pub fn is_whole(native: &Native) -> bool {
    native.format != "openai"
}

/// Puts the fields of the request in place of those that were made of its rows.
pub fn overlay(body: &mut Map<String, Value>, native: &Native) {
    for (name, value) in &native.body {
        if !OURS.contains(&name.as_str()) {
            body.insert(name.clone(), value.clone());
        }
    }
}

/// Adds the headers of the request. A connector's own version wins; features are asked for
/// together.
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
