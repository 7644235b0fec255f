//! Servers of the Open Inference Protocol, version 2: `/v2/models/NAME/generate_stream`.
//!
//! A stream has no final event. It is complete if its HTTP body is complete.

use std::borrow::Cow;

use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};
use volley_backend::items::Item;
use volley_provider_kit::conversation::prompt;
use volley_provider_kit::fault::{self, json_position};
use volley_provider_kit::framing::StreamEnd;
use volley_provider_kit::parameters::{ParameterTable, RequestFields};
use volley_provider_kit::provider::{Page, Provider, part_of_url};
use volley_provider_kit::step::{Delta, Step};
use volley_types::{Dialect, FinishReason, PredictError};

pub(crate) static PROVIDER: Provider = Provider {
    page: Page {
        endpoint: "the Open Inference Protocol, version 2, `…/v2/models/NAME/generate_stream`: \
                   Triton, KServe, another Volley, and with a [template](#templates) of tensors \
                   MLServer; prompts only",
        key: "`Authorization: Bearer`, if there is one",
        url: "path `/v2/models/…/generate_stream`",
    },
    route: "/v2/models/{model}/generate_stream",
    recognizes: |address| {
        let path = address.path;
        path.ends_with("generate_stream")
            && (path.starts_with("v2/models/") || path.contains("/v2/models/"))
    },
    model_of_url: |url| part_of_url(url, "/v2/models/", '/'),
    stream_field: Some(false),
    whole_route: Some(("/generate_stream", "/generate")),
    make_whole,
    ending: StreamEnd::WholeBody,
    takes_images: false,
    takes_messages: false,
    read: |data, _| read(data.as_bytes()),
    read_whole: |body, _| read(body),
    ..Provider::new("open_inference", &PARAMETERS, body)
};

/// Some backends read `stream` from the parameters.
fn make_whole(body: &mut Map<String, Value>) {
    let stream = body
        .get_mut("parameters")
        .and_then(|given| given.get_mut("stream"));
    if let Some(stream) = stream {
        *stream = false.into();
    }
}

/// Parameters belong to the backend, so that all are forwarded. The backend rejects unknown ones.
static PARAMETERS: ParameterTable = ParameterTable {
    server: "the Open Inference Protocol",
    dialects: &Dialect::ALL,
    names: &[
        ("max_tokens", "max_tokens"),
        ("max_completion_tokens", "max_tokens"),
        ("max_new_tokens", "max_tokens"),
    ],
    own: &[
        "bad_words",
        "best_of",
        "frequency_penalty",
        "guided_choice",
        "guided_grammar",
        "guided_json",
        "guided_regex",
        "ignore_eos",
        "length_penalty",
        "min_p",
        "min_tokens",
        "presence_penalty",
        "repeat_penalty",
        "repetition_penalty",
        "seed",
        "stop",
        "stop_sequences",
        "stop_token_ids",
        "structured_outputs",
        "temperature",
        "top_k",
        "top_p",
    ],
    ranges: &[],
    stops: usize::MAX,
};

fn body(_: &str, item: &Item, request: RequestFields<'_>) -> Result<Value, PredictError> {
    let prompt = prompt(item)?;
    let mut fields = request.finish()?;
    // Some backends require the field here too.
    fields.insert("stream".to_owned(), true.into());
    Ok(json!({ "text_input": prompt, "parameters": fields }))
}

#[derive(Deserialize)]
struct Event<'a> {
    /// A text, or a list of texts.
    #[serde(borrow, default)]
    text_output: Option<&'a RawValue>,
    /// Output tensors, which servers such as MLServer send.
    #[serde(borrow, default)]
    outputs: Option<Vec<Output<'a>>>,
    #[serde(borrow, default)]
    details: Option<Details<'a>>,
    #[serde(borrow, default)]
    error: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct Output<'a> {
    #[serde(borrow, default)]
    datatype: Cow<'a, str>,
    #[serde(borrow, default)]
    data: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct Details<'a> {
    #[serde(borrow, default)]
    finish_reason: Option<Cow<'a, str>>,
}

fn read(data: &[u8]) -> Result<Step, String> {
    let event: Event<'_> = serde_json::from_slice(data).map_err(|error| json_position(&error))?;
    if let Some(error) = event.error {
        return Ok(fault::step(error.get()));
    }
    let tensors = event.outputs.into_iter().flatten();
    let texts = tensors.filter(|output| output.datatype == "BYTES");
    let data = texts.filter_map(|output| output.data);
    let mut texts = event.text_output.into_iter().chain(data);
    let text = text(texts.next().ok_or("no 'text_output'")?)?;
    let details = event.details.and_then(|details| details.finish_reason);
    Ok(Step::Delta(Delta {
        text: Some(text),
        finish_reason: details.map(|reason| match reason.as_ref() {
            "length" => FinishReason::Length,
            _ => FinishReason::Stop,
        }),
        ..Delta::default()
    }))
}

fn text(raw: &RawValue) -> Result<String, String> {
    if raw.get().starts_with('[') {
        let texts: Vec<Cow<'_, str>> =
            serde_json::from_str(raw.get()).map_err(|error| json_position(&error))?;
        return Ok(texts.concat());
    }
    serde_json::from_str(raw.get()).map_err(|error| json_position(&error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_of_every_kind_of_server() {
        let text = |data: &str| match read(data.as_bytes()) {
            Ok(Step::Delta(delta)) => delta.text.unwrap(),
            other => panic!("{other:?}"),
        };
        assert_eq!(text(r#"{"model_name":"m","text_output":" hi"}"#), " hi");
        assert_eq!(text(r#"{"text_output":[" hi"," ho"]}"#), " hi ho");
        let tensor = r#"{"outputs":[{"name":"n","datatype":"INT32","shape":[1],"data":[1]},{"name":"output","datatype":"BYTES","shape":[1],"data":["hi"]}]}"#;
        assert_eq!(text(tensor), "hi");
        let end = br#"{"text_output":"","details":{"finish_reason":"length"}}"#;
        let Ok(Step::Delta(end)) = read(end) else {
            panic!()
        };
        assert_eq!(end.finish_reason, Some(FinishReason::Length));
        let failed = read(br#"{"error":"no"}"#);
        assert_eq!(failed, Ok(Step::Failed("no".to_owned())));
        assert!(read(br#"{"outputs":[]}"#).is_err());
        assert!(read(br#"{"text_output":{}}"#).is_err());
    }
}
