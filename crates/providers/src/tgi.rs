//! Text Generation Inference's `/generate_stream`. Chats need its OpenAI interface.

use std::borrow::Cow;

use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use volley_backend::items::Item;
use volley_provider_kit::conversation::prompt;
use volley_provider_kit::fault::{self, json_position, text as error_text};
use volley_provider_kit::normalize::{ResponseFormat, take_response_format};
use volley_provider_kit::parameters::{ParameterTable, RequestFields};
use volley_provider_kit::provider::{Page, Provider};
use volley_provider_kit::rows::post_process::PostProcess;
use volley_provider_kit::rows::pre_process::PreProcess;
use volley_provider_kit::step::{Delta, Step};
use volley_types::registry::ConnectorSpec;
use volley_types::{Dialect, ErrorCode, FinishReason, PredictError};

pub(crate) static PROVIDER: Provider = Provider {
    aliases: &["tei"],
    page: Page {
        endpoint: "Text Generation Inference, `…/generate_stream`; prompts only, its chats are \
                   `openai`. Text Embeddings Inference, `…/embed` or `…/rerank`",
        key: "`Authorization: Bearer`, if there is one",
        url: "path ends in `/generate_stream`",
    },
    route: "/generate_stream",
    at_root: true,
    recognizes: |address| address.path.ends_with("generate_stream"),
    // A server has one model; its OpenAI interface uses this name.
    model_of_url: |_| Some("tgi"),
    whole_route: Some(("/generate_stream", "/generate")),
    native: &["tgi"],
    takes_images: false,
    takes_messages: false,
    rows,
    read: |data, _| read(data),
    read_whole: |body, _| read_whole(body),
    ..Provider::new("tgi", &PARAMETERS, body)
};

static PARAMETERS: ParameterTable = ParameterTable {
    server: "Text Generation Inference",
    dialects: &[Dialect::TextGeneration, Dialect::Own],
    names: &[
        ("max_tokens", "max_new_tokens"),
        ("max_completion_tokens", "max_new_tokens"),
        ("max_new_tokens", "max_new_tokens"),
        ("stop_sequences", "stop"),
        ("truncate_prompt_tokens", "truncate"),
    ],
    own: &[
        "adapter_id",
        "best_of",
        "decoder_input_details",
        "details",
        "do_sample",
        "frequency_penalty",
        "grammar",
        "repetition_penalty",
        "return_full_text",
        "seed",
        "stop",
        "temperature",
        "top_k",
        "top_n_tokens",
        "top_p",
        "truncate",
        "typical_p",
        "watermark",
    ],
    ranges: &[],
    stops: usize::MAX,
};

/// Row formats of Text Embeddings Inference.
fn rows(connector: &ConnectorSpec) -> Option<(PreProcess, PostProcess)> {
    let url = connector.url.split(['?', '#']).next()?;
    if url.ends_with("/embed") {
        return Some((PreProcess::Inputs, PostProcess::Bare));
    }
    let ranks = url.ends_with("/rerank");
    ranks.then_some((PreProcess::QueryTexts, PostProcess::BareScores))
}

fn body(_: &str, item: &Item, mut request: RequestFields<'_>) -> Result<Value, PredictError> {
    let prompt = prompt(item)?;
    let form = take_response_format(&mut request.fields);
    let mut fields = request.finish()?;
    let schema = match form {
        Some(ResponseFormat::Object) => Some(json!({ "type": "object" })),
        Some(ResponseFormat::Schema(schema)) => Some(schema),
        Some(ResponseFormat::Text) | None => None,
    };
    if let Some(schema) = schema {
        fields
            .entry("grammar")
            .or_insert(json!({ "type": "json", "value": schema }));
    }
    // `details` adds the token counts and the finish reason.
    fields.entry("details").or_insert(true.into());
    Ok(json!({ "inputs": prompt, "parameters": fields }))
}

#[derive(Deserialize)]
struct Event<'a> {
    #[serde(borrow, default)]
    token: Option<Token<'a>>,
    /// The whole text, only in the last event.
    #[serde(borrow, default)]
    generated_text: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    details: Option<Details<'a>>,
    #[serde(borrow, default)]
    error: Option<&'a RawValue>,
    #[serde(borrow, default)]
    error_type: Option<Cow<'a, str>>,
}

#[derive(Deserialize)]
struct Token<'a> {
    #[serde(borrow, default)]
    text: Cow<'a, str>,
    #[serde(default)]
    special: bool,
}

#[derive(Deserialize)]
struct Details<'a> {
    #[serde(borrow, default)]
    finish_reason: Option<Cow<'a, str>>,
    #[serde(default)]
    generated_tokens: Option<u32>,
    #[serde(default)]
    input_length: Option<u32>,
}

fn read(data: &str) -> Result<Step, String> {
    let event: Event<'_> = serde_json::from_str(data).map_err(|error| json_position(&error))?;
    if let Some(step) = failure(&event) {
        return Ok(step);
    }
    if event.token.is_none() && event.generated_text.is_none() {
        return Err("no token".to_owned());
    }
    let is_last = event.generated_text.is_some();
    let mut delta = ending(event.details);
    let shown = event.token.filter(|token| !token.special);
    delta.text = shown.map(|token| token.text.into_owned());
    keep(data, is_last, &mut delta);
    Ok(match is_last {
        true => Step::Last(delta),
        false => Step::Delta(delta),
    })
}

/// Keeps the event for callers of the same dialect. A last event without text belongs to the end
/// of the answer.
fn keep(data: &str, is_last: bool, delta: &mut Delta) {
    let Ok(event) = serde_json::from_str::<Value>(data) else {
        return;
    };
    let is_end = is_last && delta.text.as_deref().unwrap_or_default().is_empty();
    let details = if is_end { delta.end() } else { delta.details() };
    details.format = Some("tgi".to_owned());
    match is_end {
        true => details.fields = Some(json!({ "event": event })),
        false => details.events.push(event),
    }
}

/// Reads the object of `/generate`, or the list of one object of `/`.
fn read_whole(body: &[u8]) -> Result<Step, String> {
    let event: Event<'_> = if body.trim_ascii_start().starts_with(b"[") {
        let list: Vec<Event<'_>> =
            serde_json::from_slice(body).map_err(|error| json_position(&error))?;
        list.into_iter()
            .next()
            .ok_or("the answer is an empty list")?
    } else {
        serde_json::from_slice(body).map_err(|error| json_position(&error))?
    };
    if let Some(step) = failure(&event) {
        return Ok(step);
    }
    let text = event.generated_text.ok_or("no generated text")?;
    let mut delta = ending(event.details);
    delta.text = Some(text.into_owned());
    Ok(Step::Delta(delta))
}

/// Reads an error after the status 200.
fn failure(event: &Event<'_>) -> Option<Step> {
    let message = error_text(event.error?.get());
    Some(match event.error_type.as_deref() {
        Some("overloaded") => Step::Refused(ErrorCode::Overloaded, message),
        Some(kind) if fault::REQUEST_ERRORS.contains(&kind) => {
            Step::Refused(ErrorCode::InvalidInput, message)
        }
        _ => Step::Failed(message),
    })
}

fn ending(details: Option<Details<'_>>) -> Delta {
    let Some(details) = details else {
        return Delta::default();
    };
    let mut delta = Delta {
        prompt_tokens: details.input_length,
        completion_tokens: details.generated_tokens,
        ..Delta::default()
    };
    if let Some(told) = details.finish_reason {
        delta.mark_stop_sequence(Some(&told));
        let reason = match told.as_ref() {
            "length" => Some(FinishReason::Length),
            "eos" | "eos_token" | "stop" | "stop_sequence" => Some(FinishReason::Stop),
            _ => None,
        };
        delta.finish(&told, reason);
    }
    delta
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::{asking, asking_in};

    #[test]
    fn events_of_every_kind() {
        let token = r#"{"index":1,"token":{"id":3,"text":" hi","logprob":-0.1,"special":false},"generated_text":null,"details":null}"#;
        let Ok(Step::Delta(delta)) = read(token) else {
            panic!()
        };
        assert_eq!(delta.text.as_deref(), Some(" hi"));
        assert_eq!(delta.details.unwrap().events[0]["token"]["id"], 3);
        let last = r#"{"index":2,"token":{"id":2,"text":"</s>","special":true},"generated_text":" hi","details":{"finish_reason":"eos_token","generated_tokens":2,"seed":null}}"#;
        let Ok(Step::Last(delta)) = read(last) else {
            panic!()
        };
        assert_eq!((delta.text, delta.completion_tokens), (None, Some(2)));
        assert!(delta.details.is_none(), "no row without text");
        let end = delta.end.unwrap();
        assert_eq!(end.fields.unwrap()["event"]["index"], 2);
        assert_eq!(delta.finish_reason, Some(FinishReason::Stop));
        for (kind, expected) in [
            (
                "overloaded",
                Step::Refused(ErrorCode::Overloaded, "no".to_owned()),
            ),
            (
                "validation",
                Step::Refused(ErrorCode::InvalidInput, "no".to_owned()),
            ),
            ("generation", Step::Failed("no".to_owned())),
        ] {
            let error = format!(r#"{{"error":"no","error_type":"{kind}"}}"#);
            assert_eq!(read(&error), Ok(expected));
        }
        assert!(read("{}").is_err());
    }

    #[test]
    fn parameters_of_the_servers_own_dialect_are_sent_unchanged() {
        let given = json!({
            "adapter_id": "a", "best_of": 2, "decoder_input_details": true, "do_sample": true,
            "frequency_penalty": 0.5, "grammar": { "type": "regex", "value": "a+" },
            "max_new_tokens": 7, "newest": 1, "repetition_penalty": 1.0, "return_full_text": false,
            "seed": 3, "stop": ["x"], "temperature": 0.5, "top_k": 3, "top_n_tokens": 2,
            "top_p": 0.5, "truncate": 5, "typical_p": 1.0, "watermark": false,
        });
        let item = Item::Prompt("hi".to_owned());
        let fields = given.as_object().cloned().unwrap();
        let dialect = Dialect::TextGeneration;
        let made = asking_in(dialect, &PARAMETERS, fields, |it| body("m", &item, it)).unwrap();
        let mut expected = given;
        expected["details"] = true.into();
        assert_eq!(made["parameters"], expected);
    }

    #[test]
    fn a_prompt_is_sent_with_its_parameters_and_a_chat_is_not() {
        let fields = json!({ "max_tokens": 9, "stream": true, "n": 1, "stop": ["x"] });
        let fields = fields.as_object().cloned().unwrap();
        let item = Item::Prompt("hi".to_owned());
        let made = asking(&PARAMETERS, fields, |request| body("m", &item, request)).unwrap();
        let parameters = json!({ "max_new_tokens": 9, "stop": ["x"], "details": true });
        assert_eq!(made, json!({ "inputs": "hi", "parameters": parameters }));
        let talk = Item::Chat(Vec::new());
        let none = serde_json::Map::new();
        let error = asking(&PARAMETERS, none, |request| body("m", &talk, request)).unwrap_err();
        assert!(error.message.contains("'messages'"), "{error:?}");
    }
}
