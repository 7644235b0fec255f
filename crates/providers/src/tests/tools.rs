//! Tool choices and roles that a server has no form for.

use volley_types::ChatMessage;

use super::*;

fn tool(name: &str) -> Value {
    json!({ "type": "function", "function": { "name": name } })
}

#[test]
fn a_choice_without_its_tool_is_refused_by_name() {
    let allowed = json!({ "type": "allowed_tools", "allowed_tools": {
        "mode": "auto", "tools": [tool("g")] } });
    for provider in [
        "anthropic",
        "bedrock",
        "gemini",
        "cohere",
        "mistral",
        "ollama",
    ] {
        for fields in [
            json!({ "tool_choice": "required" }),
            json!({ "tools": [tool("f")], "tool_choice": tool("g") }),
            json!({ "tools": [tool("f")], "tool_choice": allowed }),
        ] {
            let error = sent(provider, Dialect::OpenAi, fields).unwrap_err();
            let named = error.message.contains("'tool_choice'");
            assert!(named, "{provider}: {}", error.message);
        }
    }
}

#[test]
fn no_call_has_no_limit_of_calls() {
    let fields = json!({
        "tools": [tool("f")], "tool_choice": "none", "parallel_tool_calls": false,
    });
    let body = sent("anthropic", Dialect::OpenAi, fields).unwrap();
    assert_eq!(body["tool_choice"], json!({ "type": "none" }));
}

#[test]
fn all_tokens_are_coheres_default() {
    let p = |p: f64| sent("cohere", Dialect::OpenAi, json!({ "top_p": p }));
    assert!(p(1.0).unwrap().get("p").is_none());
    assert_eq!(p(0.99).unwrap()["p"], 0.99);
    for wrong in [0.995, 0.0, 1.5] {
        assert!(p(wrong).unwrap_err().message.contains("'top_p'"), "{wrong}");
    }
}

#[test]
fn a_developer_is_the_system_where_there_is_no_such_role() {
    for provider in ["cohere", "mistral", "ollama"] {
        let provider = named(provider).unwrap();
        let connector = ConnectorSpec {
            provider: provider.name,
            ..connector("http://127.0.0.1:1/")
        };
        let item = Item::Chat(vec![
            ChatMessage::new("developer", "be brief"),
            ChatMessage::new("user", "hi"),
        ]);
        let options = options(Dialect::OpenAi, Map::new());
        let body = body(provider, &connector, &item, &options, false).unwrap();
        assert_eq!(body["messages"][0]["role"], "system", "{provider:?}");
    }
}

#[test]
fn marks_for_a_cache_of_tools_reach_servers_that_know_them() {
    let mut tool = tool("f");
    tool["cache_control"] = json!({ "type": "ephemeral" });
    for (provider, dialect, is_sent) in [
        ("openai", Dialect::OpenAi, true),
        ("openai", Dialect::Anthropic, false),
        ("openai_responses", Dialect::Anthropic, false),
        ("mistral", Dialect::Anthropic, false),
        ("anthropic", Dialect::Anthropic, true),
    ] {
        let body = sent(provider, dialect, json!({ "tools": [tool] })).unwrap();
        let told = body["tools"][0].get("cache_control").is_some();
        assert_eq!(told, is_sent, "{provider} {dialect:?}");
    }
}
