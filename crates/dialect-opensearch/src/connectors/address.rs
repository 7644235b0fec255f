//! What a connector's URL must be before anybody calls it.

use url::Url;
use volley_providers::Provider;
use volley_types::PredictError;

/// Paths under which servers have no route for requests: what SDKs take as a base URL.
const BASES: [&str; 6] = ["", "/v1", "/v2", "/api", "/api/v1", "/openai/v1"];

/// Checks that `url` names a route of a server, and not the server, and that the provider has the
/// format of that route. The connector may have its own request body (`templated`).
///
/// # Errors
/// `InvalidInput` where it is no HTTP URL, the base URL of an SDK, or a route of another format,
/// with the URL that is meant.
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
    let path = parsed.path().trim_end_matches('/');
    other_route(path, provider, templated)?;
    // Where a URL holds a credential, the rules of egress refuse it without repeating it.
    let has_user = !parsed.username().is_empty() || parsed.password().is_some();
    if !BASES.contains(&path) || parsed.query().is_some() || has_user {
        return Ok(());
    }
    // Some servers have no route but the root.
    if provider.at_root {
        return Ok(());
    }
    let route = provider.route;
    if route.contains('{') {
        return Err(PredictError::invalid(format!(
            "field 'url' has no path: requests are sent to '{shown}' unchanged, so give the \
             complete URL of the route"
        )));
    }
    let meant = parsed.join(route).map(|url| url.to_string());
    Err(PredictError::invalid(format!(
        "field 'url' has no path: requests are sent to '{shown}' unchanged; did you mean '{}'?",
        meant.unwrap_or_else(|_| route.to_owned())
    )))
}

/// Rejects a route of the server with a format that the provider does not read.
fn other_route(path: &str, provider: &Provider, templated: bool) -> Result<(), PredictError> {
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

#[cfg(test)]
mod tests {
    use super::*;

    fn named(name: &str) -> &'static Provider {
        volley_providers::named(name).unwrap()
    }

    #[test]
    fn a_base_url_is_rejected_with_the_route_that_is_meant() {
        let refused = |url: &str, provider| check(url, provider, false).unwrap_err().message;
        let openai = refused("https://api.openai.com/v1", named("openai"));
        assert!(
            openai.contains("https://api.openai.com/v1/chat/completions"),
            "{openai}"
        );
        let ollama = refused("http://127.0.0.1:11434/", named("ollama"));
        assert!(
            ollama.contains("http://127.0.0.1:11434/api/chat"),
            "{ollama}"
        );
        let claude = refused("https://api.anthropic.com", named("anthropic"));
        assert!(
            claude.contains("https://api.anthropic.com/v1/messages"),
            "{claude}"
        );
        for no_url in [
            "llm.example/v1/chat",
            "ftp://host/v1/x",
            "/v1/chat/completions",
            "http:///x",
        ] {
            assert!(check(no_url, named("openai"), false).is_err(), "{no_url}");
        }
        for (url, provider) in [
            ("https://llm.example/v1/chat/completions", named("openai")),
            ("http://gateway.example/team/llm", named("openai")),
            ("http://127.0.0.1:9000/", named("http")),
        ] {
            assert_eq!(
                check(url, provider, false).map_err(|error| error.message),
                Ok(())
            );
        }
    }

    #[test]
    fn a_route_of_another_format_is_rejected_by_name() {
        for (url, provider) in [
            ("https://api.openai.com/v1/completions", "openai"),
            (
                "https://a.openai.azure.com/openai/deployments/m/completions?api-version=1",
                "azure",
            ),
            ("https://api.mistral.ai/v1/fim/completions", "mistral"),
            ("http://127.0.0.1:11434/api/generate", "ollama"),
        ] {
            let error = check(url, named(provider), false).unwrap_err();
            assert!(error.message.contains("field 'url' ends in"), "{error}");
            let templated = check(url, named(provider), true);
            assert_eq!(templated.is_ok(), provider == "ollama", "{url}");
        }
        for url in [
            "https://api.openai.com/v1/chat/completions",
            "https://a.openai.azure.com/openai/deployments/m/chat/completions",
        ] {
            assert!(check(url, named("azure"), false).is_ok(), "{url}");
        }
    }
}
