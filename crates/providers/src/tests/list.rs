//! Properties of all providers in the list.

use volley_provider_kit::hosted;
use volley_provider_kit::reserved::PROVIDER_TOOLS;

use super::*;

#[test]
fn a_url_tells_the_format_and_at_times_the_model() {
    let gemini = "models/gemini-x:streamGenerateContent";
    let google = format!("https://generativelanguage.googleapis.com/v1beta/{gemini}?alt=sse");
    let vertex =
        format!("https://europe-west4-aiplatform.googleapis.com/v1/publishers/google/{gemini}");
    let azure = "https://us.openai.azure.com/openai/deployments/d/chat/completions?api-version=1";
    for (url, kind, model) in [
        ("https://llm.example/v1/chat/completions", "openai", None),
        ("llm.example", "openai", None),
        ("", "openai", None),
        ("http://llm.example/v1/messages?x=1", "anthropic", None),
        ("https://api.cohere.com/v2/chat", "cohere", None),
        ("http://localhost:11434/api/chat", "ollama", None),
        (
            "https://api.mistral.ai/v1/chat/completions",
            "mistral",
            None,
        ),
        ("https://notmistral.ai/v1/chat/completions", "openai", None),
        (&google, "gemini", Some("gemini-x")),
        (&vertex, "vertex", Some("gemini-x")),
        (
            "https://g.example/v1beta/models/e:batchEmbedContents",
            "gemini",
            Some("e"),
        ),
        (
            "https://us-aiplatform.googleapis.com/v1/publishers/google/models/e:predict",
            "vertex",
            Some("e"),
        ),
        (azure, "azure", Some("d")),
        (
            "http://t/v2/models/llm/versions/1/generate_stream",
            "open_inference",
            Some("llm"),
        ),
        (
            "https://bedrock-runtime.eu-west-1.amazonaws.com/model/acme.x-v1:0/converse-stream",
            "bedrock",
            Some("acme.x-v1:0"),
        ),
        ("https://llm.example/v1/responses", "openai_responses", None),
        ("http://t/generate_stream", "tgi", Some("tgi")),
    ] {
        let provider = of_url(url);
        assert_eq!(provider.name.as_str(), kind, "{url}");
        assert_eq!((provider.model_of_url)(url), model, "{url}");
    }
}

#[test]
fn what_runs_at_the_provider_is_told_from_what_runs_at_the_caller() {
    let anthropic = "anthropic";
    for (provider, body, part) in [
        (
            anthropic,
            json!({ "tools": [{ "type": "web_search_20260209" }] }),
            "web_search",
        ),
        (
            anthropic,
            json!({ "mcp_servers": [{ "url": "x" }] }),
            "'mcp_servers'",
        ),
        (
            "openai",
            json!({ "web_search_options": {} }),
            "'web_search_options'",
        ),
        (
            "openai_responses",
            json!({ "tools": [{ "type": "mcp" }] }),
            "'mcp'",
        ),
        (
            "gemini",
            json!({ "tools": [{ "googleSearch": {} }] }),
            "'googleSearch'",
        ),
    ] {
        let error = hosted::refuse(&body, named(provider).unwrap().hosted_tool).unwrap_err();
        assert!(error.message.contains(part), "{error}");
    }
    for (provider, body) in [
        (
            anthropic,
            json!({ "tools": [{ "name": "f", "input_schema": {} }, { "type": "custom" },
            { "type": "bash_20250124" }], "mcp_servers": [] }),
        ),
        (
            "openai_responses",
            json!({ "tools": [{ "type": "function" },
            { "type": "computer_use_preview" }, { "type": "local_shell" }] }),
        ),
        (
            "gemini",
            json!({ "tools": [{ "functionDeclarations": [] }] }),
        ),
    ] {
        assert!(
            hosted::refuse(&body, named(provider).unwrap().hosted_tool).is_ok(),
            "{body}"
        );
    }
}

#[test]
fn the_connector_says_whether() {
    let of = |word: &str| {
        let value = ParamValue::Text(word.to_owned());
        [(PROVIDER_TOOLS.to_owned(), value)].into_iter().collect()
    };
    assert!(
        hosted::allowed(&Parameters::default()).unwrap() && hosted::allowed(&of("allow")).unwrap()
    );
    assert!(!hosted::allowed(&of("reject")).unwrap());
    assert!(hosted::allowed(&of("maybe")).is_err());
}

#[test]
fn every_provider_has_a_name_a_route_and_a_row_of_its_own() {
    for provider in PROVIDERS {
        let name = provider.name.as_str();
        for given in provider.aliases.iter().chain([&name]) {
            let found = named(given).is_some_and(|found| std::ptr::eq(found, *provider));
            assert!(found, "another provider is called {given} too");
        }
        assert!(
            provider.route.starts_with('/'),
            "{name}: {}",
            provider.route
        );
        assert!(
            !provider.page.endpoint.is_empty(),
            "{name} has no row in the reference"
        );
    }
}

#[test]
fn a_provider_of_a_later_version_is_named_with_what_to_do() {
    let later = ProviderName::from_static("of_a_later_version");
    let error = known(later).unwrap_err();
    assert_eq!(error.code, ErrorCode::InvalidInput);
    for part in [
        "'of_a_later_version'",
        env!("CARGO_PKG_VERSION"),
        "upgrade the worker",
        "openai, gemini",
    ] {
        assert!(error.message.contains(part), "{part}: {}", error.message);
    }
}
