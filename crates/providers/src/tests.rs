//! Requests to all providers, for all parameters of callers.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};
use volley_backend::items::Item;
use volley_provider_kit::options::RequestOptions;
use volley_provider_kit::parameters::{ParameterTable, RequestFields};
use volley_provider_kit::typed::fields;
use volley_provider_kit::wire::body;
use volley_types::registry::{ConnectorPolicy, ConnectorSpec};
use volley_types::{ConnectorId, Dialect, ErrorCode, ParamValue, Parameters, PredictError};

use super::*;

mod calls;
mod endings;
mod list;
mod reference;
mod tools;

pub(super) fn connector(url: &str) -> ConnectorSpec {
    ConnectorSpec {
        id: ConnectorId::new("c").unwrap(),
        name: "c".to_owned(),
        provider: ProviderName::from_static("openai"),
        url: url.to_owned(),
        model: "m".to_owned(),
        credential: None,
        headers: BTreeMap::new(),
        parameters: Parameters::default(),
        request_body: None,
        policy: ConnectorPolicy::default(),
    }
}

/// Applies `make` to a request with these parameters in `dialect`.
pub(super) fn asking_in<T>(
    dialect: Dialect,
    parameters: &'static ParameterTable,
    fields: Map<String, Value>,
    make: impl FnOnce(RequestFields<'_>) -> Result<T, PredictError>,
) -> Result<T, PredictError> {
    let options = options(dialect, fields);
    let headers = BTreeMap::new();
    make(RequestFields::new(parameters, &options, &headers)?)
}

/// Like [`asking_in`], in Volley's own dialect.
pub(super) fn asking<T>(
    parameters: &'static ParameterTable,
    fields: Map<String, Value>,
    make: impl FnOnce(RequestFields<'_>) -> Result<T, PredictError>,
) -> Result<T, PredictError> {
    asking_in(Dialect::Own, parameters, fields, make)
}

fn options(dialect: Dialect, fields: Map<String, Value>) -> RequestOptions {
    let given = fields.keys().cloned().collect();
    RequestOptions {
        fields,
        given,
        dialect,
        whole: false,
    }
}

fn sent(provider: &str, dialect: Dialect, fields: Value) -> Result<Value, PredictError> {
    let provider = named(provider).unwrap();
    let connector = ConnectorSpec {
        provider: provider.name,
        ..connector("http://127.0.0.1:1/")
    };
    let fields = fields.as_object().cloned().unwrap();
    let item = Item::Prompt("hi".to_owned());
    body(
        provider,
        &connector,
        &item,
        &options(dialect, fields),
        false,
    )
}

/// Parameters of callers, in the normalized format.
fn parameters() -> Vec<(&'static str, Value)> {
    let schema = json!({ "type": "object", "properties": { "a": { "type": "integer" } } });
    let form = json!({ "type": "json_schema", "json_schema": { "name": "s", "schema": schema } });
    vec![
        ("max_tokens", json!(4_321)),
        ("max_completion_tokens", json!(4_321)),
        ("temperature", json!(0.25)),
        ("top_p", json!(0.75)),
        ("top_k", json!(7)),
        ("min_p", json!(0.125)),
        ("stop", json!(["END"])),
        ("seed", json!(7)),
        ("presence_penalty", json!(0.5)),
        ("frequency_penalty", json!(0.5)),
        ("repetition_penalty", json!(1.25)),
        ("logit_bias", json!({ "1": 2 })),
        ("logprobs", json!(true)),
        ("top_logprobs", json!(3)),
        ("response_format", form),
        ("response_format", json!({ "type": "json_object" })),
        ("reasoning_effort", json!("high")),
        ("reasoning_effort", json!("none")),
        (
            "thinking",
            json!({ "type": "enabled", "budget_tokens": 2_048 }),
        ),
        ("thinking", json!({ "type": "disabled" })),
        ("parallel_tool_calls", json!(false)),
        ("tool_choice", json!("required")),
        (
            "tool_choice",
            json!({ "type": "function", "function": { "name": "g" } }),
        ),
        ("user", json!("u-1")),
        ("safety_identifier", json!("u-1")),
        ("metadata", json!({ "team": "x" })),
        ("service_tier", json!("flex")),
        ("service_tier", json!("priority")),
        ("store", json!(true)),
        ("verbosity", json!("low")),
        ("prediction", json!({ "type": "content", "content": "x" })),
        ("prompt_cache_retention", json!("24h")),
        ("guided_json", json!({ "type": "object" })),
        ("ignore_eos", json!(true)),
        ("min_tokens", json!(3)),
        ("temprature", json!(0.5)),
    ]
}

#[test]
fn nothing_that_a_caller_asks_for_is_dropped_on_the_way_to_any_provider() {
    let tool = |name: &str| {
        json!({ "type": "function", "function": {
            "name": name, "parameters": { "type": "object" } } })
    };
    let written = PROVIDERS
        .iter()
        .filter(|provider| !provider.is_configured());
    for provider in written {
        let talks = provider.takes_messages;
        let provider = provider.name.as_str();
        for dialect in Dialect::ALL {
            let base = match talks {
                true => json!({ "tools": [tool("f"), tool("g")] }),
                false => json!({}),
            };
            let plain = sent(provider, dialect, base.clone()).unwrap();
            for (name, value) in parameters() {
                let mut fields = base.clone();
                fields[name] = value.clone();
                let told = format!("{} {dialect:?} {name}: {value}", provider);
                match sent(provider, dialect, fields) {
                    Ok(body) => assert_ne!(body, plain, "dropped: {told}"),
                    Err(error) => {
                        assert_eq!(error.code, ErrorCode::InvalidInput, "{told}");
                        let said = ["stop_sequences", "num_predict", "think", "format", "text"];
                        let other = [
                            "max_output_tokens",
                            "top_logprobs",
                            "reasoning",
                            "repeat_penalty",
                            "k",
                            "p",
                        ];
                        let mut names = said.iter().chain(&other).copied().chain([name]);
                        let named = names.any(|name| error.message.contains(&format!("'{name}'")));
                        assert!(named, "{told}: {}", error.message);
                    }
                }
            }
        }
    }
}

#[test]
fn what_a_provider_takes_is_sent_in_its_own_words() {
    let openai = Dialect::OpenAi;
    for (provider, name, value, path, expected) in [
        (
            "anthropic",
            "stop",
            json!(["x"]),
            "/stop_sequences",
            json!(["x"]),
        ),
        (
            "anthropic",
            "user",
            json!("u"),
            "/metadata/user_id",
            json!("u"),
        ),
        (
            "anthropic",
            "reasoning_effort",
            json!("low"),
            "/output_config/effort",
            json!("low"),
        ),
        (
            "gemini",
            "seed",
            json!(7),
            "/generationConfig/seed",
            json!(7),
        ),
        (
            "gemini",
            "service_tier",
            json!("flex"),
            "/serviceTier",
            json!("FLEX"),
        ),
        (
            "bedrock",
            "top_k",
            json!(7),
            "/additionalModelRequestFields/top_k",
            json!(7),
        ),
        (
            "bedrock",
            "metadata",
            json!({ "a": "b" }),
            "/requestMetadata/a",
            json!("b"),
        ),
        ("cohere", "top_k", json!(7), "/k", json!(7)),
        (
            "cohere",
            "reasoning_effort",
            json!("low"),
            "/thinking/token_budget",
            json!(1_024),
        ),
        ("mistral", "seed", json!(7), "/random_seed", json!(7)),
        (
            "ollama",
            "reasoning_effort",
            json!("none"),
            "/think",
            json!(false),
        ),
        (
            "ollama",
            "max_tokens",
            json!(7),
            "/options/num_predict",
            json!(7),
        ),
        (
            "tgi",
            "max_tokens",
            json!(7),
            "/parameters/max_new_tokens",
            json!(7),
        ),
        (
            "openai_responses",
            "reasoning_effort",
            json!("low"),
            "/reasoning/effort",
            json!("low"),
        ),
    ] {
        let body = sent(provider, openai, json!({ name: value })).unwrap();
        let found = body.pointer(path);
        assert_eq!(found, Some(&expected), "{} {name}: {body}", provider);
    }
}

#[test]
fn what_is_out_of_a_providers_range_is_refused_by_name() {
    for (provider, name, value) in [
        ("anthropic", "temperature", json!(1.5)),
        ("anthropic", "stop", json!([" \n"])),
        ("anthropic", "metadata", json!({ "team": "x" })),
        ("bedrock", "temperature", json!(1.5)),
        ("gemini", "temperature", json!(2.5)),
        ("gemini", "stop", json!(["a", "b", "c", "d", "e", "f"])),
        ("cohere", "presence_penalty", json!(-0.5)),
        ("cohere", "stop", json!(["a", "b", "c", "d", "e", "f"])),
        ("openai_responses", "stop", json!(["a"])),
        ("ollama", "tool_choice", json!("required")),
    ] {
        let error = sent(provider, Dialect::OpenAi, json!({ name: value })).unwrap_err();
        let named = error.message.contains(&format!("'{name}'"));
        assert!(named, "{} {name}: {}", provider, error.message);
    }
}

#[test]
fn a_raw_prompt_of_ollama_is_refused_where_a_template_would_be_applied() {
    let raw = || json!({ "raw": true });
    for provider in ["openai", "ollama", "anthropic", "gemini", "cohere"] {
        let error = sent(provider, Dialect::Ollama, raw()).unwrap_err();
        assert!(error.message.contains("'raw'"), "{}", error.message);
    }
}

#[test]
fn the_newest_version_of_messages_has_no_sampling() {
    let connector = connector("http://127.0.0.1:1/");
    let mut connector = ConnectorSpec {
        provider: ProviderName::from_static("anthropic"),
        ..connector
    };
    let item = Item::Prompt("hi".to_owned());
    let request = |temperature: f64| {
        let fields = json!({ "temperature": temperature });
        options(Dialect::OpenAi, fields.as_object().cloned().unwrap())
    };
    let sent = body(
        &anthropic::PROVIDER,
        &connector,
        &item,
        &request(0.5),
        false,
    )
    .unwrap();
    assert_eq!(sent["temperature"], 0.5);
    let version = ("anthropic-version".to_owned(), "2026-10-21".to_owned());
    connector.headers.extend([version]);
    let error = body(
        &anthropic::PROVIDER,
        &connector,
        &item,
        &request(0.5),
        false,
    )
    .unwrap_err();
    assert!(error.message.contains("'temperature'"));
    let sent = body(
        &anthropic::PROVIDER,
        &connector,
        &item,
        &request(1.0),
        false,
    )
    .unwrap();
    assert!(sent.get("temperature").is_none());
}

fn given(pairs: &[(&str, ParamValue)]) -> Result<Map<String, Value>, PredictError> {
    let pairs = pairs
        .iter()
        .map(|(name, value)| ((*name).to_owned(), value.clone()));
    fields(&pairs.collect())
}

#[test]
fn numbers_may_come_as_text_and_stops_in_every_form() {
    let text = |text: &str| ParamValue::Text(text.to_owned());
    let fields = given(&[
        ("max_tokens", text(" 32 ")),
        ("temperature", text("0.5")),
        ("stop", text("END")),
        ("user", text("7")),
    ]);
    let expected = serde_json::json!({
        "max_tokens": 32, "temperature": 0.5, "stop": ["END"], "user": "7",
    });
    assert_eq!(Value::Object(fields.unwrap()), expected);
}

#[test]
fn openais_own_servers_are_asked_for_events_without_padding() {
    let mut connector = connector("https://api.openai.com/v1/chat/completions");
    let options = |connector: &ConnectorSpec| {
        let item = Item::Prompt("hi".to_owned());
        body(
            &openai::PROVIDER,
            connector,
            &item,
            &RequestOptions::default(),
            false,
        )
        .unwrap()["stream_options"]
            .clone()
    };
    let expected = serde_json::json!({ "include_usage": true, "include_obfuscation": false });
    assert_eq!(options(&connector), expected);
    connector.url = "https://llm.example/v1/chat/completions".to_owned();
    assert_eq!(
        options(&connector),
        serde_json::json!({ "include_usage": true })
    );
}

#[test]
fn a_parameter_of_the_wrong_type_is_named() {
    for (name, value) in [
        ("temperature", ParamValue::Text("hot".to_owned())),
        ("top_p", ParamValue::Float(f64::NAN)),
        ("stop", ParamValue::Int(3)),
        ("n", ParamValue::Int(2)),
    ] {
        let error = given(&[(name, value)]).unwrap_err();
        assert_eq!(error.code, ErrorCode::InvalidInput);
        assert!(error.message.contains(name), "{}", error.message);
    }
}

#[test]
fn two_tags_of_a_user_are_both_sent_or_refused() {
    let both = json!({ "user": "u-1", "safety_identifier": "s-1" });
    let sent = |provider: &str| sent(provider, Dialect::OpenAi, both.clone());
    let expected = json!({ "user": "u-1", "safety_identifier": "s-1" });
    assert_eq!(sent("bedrock").unwrap()["requestMetadata"], expected);
    assert_eq!(sent("mistral").unwrap()["metadata"], expected);
    assert!(sent("anthropic").unwrap_err().message.contains("'user'"));
}

/// A tag that the server does not support is rejected, because it would be lost.
#[test]
fn who_has_no_place_for_a_user_says_so() {
    let tagged = |provider: &str| sent(provider, Dialect::OpenAi, json!({ "user": "u-1" }));
    for provider in [
        "cohere",
        "gemini",
        "vertex",
        "ollama",
        "tgi",
        "open_inference",
    ] {
        let told = provider;
        let error = tagged(provider).unwrap_err();
        assert_eq!(error.code, ErrorCode::InvalidInput, "{told}");
        assert!(
            error.message.contains("'user'"),
            "{told}: {}",
            error.message
        );
    }
    for provider in ["openai", "anthropic", "bedrock", "mistral"] {
        let body = tagged(provider).unwrap().to_string();
        assert!(body.contains("u-1"), "{provider}: {body}");
    }
}
