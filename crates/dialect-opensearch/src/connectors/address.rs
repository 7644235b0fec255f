//! A connector's URL: its placeholders, and its checks before it is called.

use serde_json::{Map, Value};
use url::Url;
use volley_providers::Provider;
use volley_types::PredictError;

/// Base URLs that SDKs accept, under which servers have no route for requests.
const BASES: [&str; 6] = ["", "/v1", "/v2", "/api", "/api/v1", "/openai/v1"];
/// Paths that stand for one format of requests, with the providers that have it.
const ROUTES: [(&str, &[&str]); 4] = [
    ("/v1/chat/completions", &["openai", "mistral", "azure"]),
    ("/v1/responses", &["openai_responses"]),
    ("/v1/messages", &["anthropic"]),
    ("/v2/chat", &["cohere"]),
];

/// Checks that `url` is the URL of a route of `provider`, and not the base URL of a server or the
/// route of another provider. The connector may have its own request body (`templated`).
///
/// # Errors
/// `InvalidInput` if the URL is not an HTTP URL; if it is a base URL, with the complete URL; if its
/// path has another format than the provider's, with the format that is meant; if the path lacks
/// the method that the provider's routes end in.
pub(super) fn check(url: &str, provider: &Provider, templated: bool) -> Result<(), PredictError> {
    let shown: String = url
        .chars()
        .filter(|it| !it.is_control())
        .take(200)
        .collect();
    let parsed = Url::parse(url).ok();
    let parsed = parsed.filter(|url| matches!(url.scheme(), "http" | "https") && url.has_host());
    let Some(parsed) = parsed else {
        return Err(PredictError::invalid(
            "field 'url' must be a complete http:// or https:// URL with a host, as \
             https://host/v1/chat/completions",
        ));
    };
    if parsed.fragment().is_some() {
        return Err(PredictError::invalid(
            "field 'url' has a fragment, the part from '#', which is never sent to a server: leave \
             it out",
        ));
    }
    let path = parsed.path().trim_end_matches('/');
    check_route(path, provider)?;
    check_other_routes(path, provider, templated)?;
    // A URL with a credential is rejected by the egress rules, whose error does not repeat it.
    let has_user = !parsed.username().is_empty() || parsed.password().is_some();
    if !BASES.contains(&path) || parsed.query().is_some() || has_user {
        return Ok(());
    }
    // The route of some servers is `/`.
    if provider.at_root {
        return Ok(());
    }
    let route = provider.route;
    if route.contains('{') {
        return Err(PredictError::invalid(format!(
            "field 'url' is a base URL and no route: requests are sent to '{shown}' unchanged, so give the \
             complete URL of the route"
        )));
    }
    let meant = parsed.join(route).map(|url| url.to_string());
    Err(PredictError::invalid(format!(
        "field 'url' is a base URL and no route: requests are sent to '{shown}' unchanged; did you mean '{}'?",
        meant.unwrap_or_else(|_| route.to_owned())
    )))
}

/// Checks that a path is not the route of another provider, and has the method of its own.
fn check_route(path: &str, provider: &Provider) -> Result<(), PredictError> {
    if provider.is_configured() {
        return Ok(());
    }
    let own = provider.name.as_str();
    let other = ROUTES.iter().find(|(route, _)| path.ends_with(route));
    if let Some((route, owners)) = other
        && !owners.contains(&own)
    {
        return Err(PredictError::invalid(format!(
            "field 'url' ends in '{route}', which is a route of the provider '{}' and not of \
             '{own}'; correct the URL or the field 'provider'",
            owners[0]
        )));
    }
    let method = provider
        .route
        .rsplit_once("{model}:")
        .map(|(_, method)| method);
    match method {
        Some(method) if path.contains("/models") && !path.contains(':') => {
            Err(PredictError::invalid(format!(
                "field 'url' has no model and method: its path must end in '/MODEL:{method}'"
            )))
        }
        _ => Ok(()),
    }
}

/// Rejects a route of the same server with a format that the provider does not read.
fn check_other_routes(
    path: &str,
    provider: &Provider,
    templated: bool,
) -> Result<(), PredictError> {
    if path.ends_with("/chat/completions") {
        return Ok(());
    }
    let mut others = provider.other_routes.iter();
    let found = others.find(|(route, readable)| path.ends_with(route) && !(*readable && templated));
    let Some((route, readable)) = found else {
        return Ok(());
    };
    let also = match readable {
        true => "a 'request_body' of the connector's own",
        false => "the provider 'http' with a 'request_body' and paths",
    };
    Err(PredictError::invalid(format!(
        "field 'url' ends in '{route}', which has another format than the provider '{}': give the \
         URL of '{}', or use {also}",
        provider.name.as_str(),
        provider.route
    )))
}

/// Replaces `${parameters.x}` in a URL. Also returns the names of the replaced parameters.
pub(super) fn fill(
    template: &str,
    parameters: &Map<String, Value>,
) -> Result<(String, Vec<String>), PredictError> {
    let mut used = Vec::new();
    let mut url = String::with_capacity(template.len());
    let mut rest = template;
    while let Some((before, after)) = rest.split_once("${parameters.") {
        let (name, after) = after.split_once('}').ok_or_else(|| {
            PredictError::invalid("the connector's URL has a placeholder without a closing brace")
        })?;
        let value = parameters
            .get(name)
            .and_then(Value::as_str)
            .ok_or_else(|| {
                PredictError::invalid(format!("the connector's URL needs parameter '{name}'"))
            })?;
        url.push_str(before);
        url.push_str(value);
        used.push(name.to_owned());
        rest = after;
    }
    url.push_str(rest);
    Ok((url, used))
}

#[cfg(test)]
mod tests;
