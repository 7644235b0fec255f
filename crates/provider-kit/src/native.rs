//! Requests that are forwarded in their dialect's own format, with the fields that only that format
//! has. Pure.

use http::{HeaderMap, HeaderName, HeaderValue};
use serde_json::{Map, Value};
use volley_backend::items::Item;
use volley_types::registry::ConnectorSpec;
use volley_types::{Native, PredictError};

use crate::names::{NameRules, fit_chat};
use crate::options::RequestOptions;
use crate::parameters::RequestFields;
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
///
/// # Errors
/// `InvalidInput` naming a default that the server does not support.
pub fn body(
    native: &Native,
    provider: &Provider,
    connector: &ConnectorSpec,
    options: &RequestOptions,
    whole: bool,
) -> Result<Value, PredictError> {
    let mut body = native.body.clone();
    fill(&mut body, defaults(provider, connector, options)?, provider);
    body.insert("model".to_owned(), connector.model.as_str().into());
    body.insert("stream".to_owned(), (!whole).into());
    for (name, value) in provider.native_defaults {
        body.entry(*name).or_insert_with(|| (*value).into());
    }
    Ok(Value::Object(body))
}

/// The fields that the defaults of the connector and the model add to a body, under the server's
/// names: the difference between the bodies of an empty prompt with them and without them.
fn defaults(
    provider: &Provider,
    connector: &ConnectorSpec,
    options: &RequestOptions,
) -> Result<Map<String, Value>, PredictError> {
    let mut fields = options.fields.clone();
    fields.retain(|name, _| !options.given.contains(name) && !reserved::is_reserved(name));
    if fields.is_empty() {
        return Ok(fields);
    }
    let build = |fields: Map<String, Value>| {
        let options = RequestOptions {
            fields,
            ..RequestOptions::default()
        };
        let request = RequestFields::new(provider.parameters, &options, &connector.headers)?;
        (provider.body)(&connector.model, &Item::Prompt(String::new()), request)
    };
    let plain = build(Map::new())?;
    let Value::Object(mut made) = build(fields)? else {
        return Ok(Map::new());
    };
    made.retain(|name, value| plain.get(name) != Some(value));
    Ok(made)
}

/// Adds the fields that `body` lacks, also within objects that consist of parameters.
fn fill(body: &mut Map<String, Value>, fields: Map<String, Value>, provider: &Provider) {
    let paths = provider.parameters.names.iter();
    let roots = paths.filter_map(|(_, path)| path.split_once('.'));
    for (name, value) in fields {
        let is_root = roots.clone().any(|(root, _)| root == name);
        match (body.get_mut(&name), value) {
            (None, value) => _ = body.insert(name, value),
            (Some(Value::Object(own)), Value::Object(more)) if is_root => {
                for (name, value) in more {
                    own.entry(name).or_insert(value);
                }
            }
            (Some(_), _) => {}
        }
    }
}

/// Whether the native body is the complete request. For a chat completion it has only the messages,
/// because the other fields are parameters with the same names.
pub fn is_whole(native: &Native) -> bool {
    native.format != "openai"
}

/// Replaces fields that were built from rows by those of the native request, and the names in
/// messages by those that the server accepts.
pub fn overlay(body: &mut Map<String, Value>, native: &Native, rules: Option<NameRules>) {
    for (name, value) in &native.body {
        if !OURS.contains(&name.as_str()) {
            body.insert(name.clone(), value.clone());
        }
    }
    if let (Some(rules), Some(messages)) = (rules, body.get_mut("messages")) {
        fit_chat(rules, messages);
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
