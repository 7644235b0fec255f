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
        "https://host/v1/chat/completions#part",
    ] {
        assert!(check(no_url, named("openai"), false).is_err(), "{no_url}");
    }
    for (url, provider, expected) in [
        (
            "https://a.example/v1/chat/completions",
            "anthropic",
            "'openai'",
        ),
        ("https://a.example/v1/messages", "cohere", "'anthropic'"),
        (
            "https://a.example/v1beta/models",
            "gemini",
            ":streamGenerateContent",
        ),
    ] {
        let message = refused(url, named(provider));
        assert!(message.contains(expected), "{message}");
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
