use super::*;

fn named(name: &str) -> &'static Provider {
    volley_providers::named(name).unwrap()
}

#[test]
fn a_base_url_is_rejected_with_the_route_that_is_meant() {
    let refused = |url: &str, provider| check(url, provider).unwrap_err().message;
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
        assert!(check(no_url, named("openai")).is_err(), "{no_url}");
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
        assert_eq!(check(url, provider).map_err(|error| error.message), Ok(()));
    }
}
