//! Any HTTP server. The connector's template builds the body, and its paths locate values in the
//! answer.

use std::sync::Arc;

use serde_json::{Map, Value};
use volley_backend::items::Item;
use volley_provider_kit::calls::{ToolCallAccumulator, numbered};
use volley_provider_kit::citations::annotation;
use volley_provider_kit::fault::{json_position, text as error_text};
use volley_provider_kit::framing::{BodyFraming, StreamEnd};
use volley_provider_kit::parameters::RequestFields;
use volley_provider_kit::paths::Path;
use volley_provider_kit::provider::{Page, Provider, ReadAnswer};
use volley_provider_kit::step::{Delta, Step};
use volley_types::registry::ConnectorSpec;
use volley_types::{Citation, FinishReason, ParamValue, Parameters, PredictError};

use crate::openai;

/// A request body is always built from the connector's template.
pub(crate) static PROVIDER: Provider = Provider {
    page: Page {
        endpoint: "[any HTTP server](#any-http-server)",
        key: "`Authorization: Bearer`, or the header in `credential_header`",
        ..Page::NONE
    },
    at_root: true,
    media: "text/event-stream, application/x-ndjson, application/json",
    stream_field: None,
    takes_images: false,
    configure: Some(configure),
    ..Provider::new("http", &openai::request::PARAMETERS, without_template)
};

fn configure(connector: &ConnectorSpec) -> Result<Arc<dyn ReadAnswer>, PredictError> {
    match connector.request_body {
        Some(_) => Ok(Arc::new(Custom::of(&connector.parameters)?)),
        None => Err(no_template()),
    }
}

fn without_template(_: &str, _: &Item, _: RequestFields<'_>) -> Result<Value, PredictError> {
    Err(no_template())
}

/// The error for a connector without a template: no other body fits all servers.
fn no_template() -> PredictError {
    PredictError::invalid(
        "a connector of provider 'http' needs 'request_body', a template of the request to its \
         server",
    )
}

/// Connector parameter that describes the answers of its server.
const RESPONSE: &str = "response";
/// OpenSearch's parameter with the path of the text.
const FILTER: &str = "response_filter";

/// A connector's description of its server's answers.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Custom {
    shape: Option<BodyFraming>,
    text: Path,
    thinking: Option<Path>,
    tool_calls: Option<Path>,
    citations: Option<Path>,
    finish_reason: Option<Path>,
    prompt_tokens: Option<Path>,
    completion_tokens: Option<Path>,
    error: Option<Path>,
    /// Path to a value that is neither null nor false in the final event.
    done: Option<Path>,
    /// Complete data of the final event.
    terminator: Option<String>,
}

impl Custom {
    /// Parses the parameters `response` and `response_filter`.
    ///
    /// # Errors
    /// `InvalidInput` naming a missing or unknown field, or an invalid path.
    fn of(parameters: &Parameters) -> Result<Self, PredictError> {
        let given = match parameters.get(RESPONSE) {
            None => Map::new(),
            Some(ParamValue::Json(text) | ParamValue::Text(text)) => serde_json::from_str(text)
                .map_err(|_| PredictError::invalid("parameter 'response' must be an object"))?,
            Some(_) => {
                let message = "parameter 'response' must be an object";
                return Err(PredictError::invalid(message));
            }
        };
        let mut given = Fields(given);
        let filter = match parameters.get(FILTER) {
            Some(ParamValue::Text(text)) => Some(Path::parse(text, FILTER)?),
            _ => None,
        };
        let shape = match given.text("format")? {
            None => None,
            Some(name) => Some(BodyFraming::of_name(&name).ok_or_else(|| {
                PredictError::invalid("'response.format' must be 'json', 'sse' or 'ndjson'")
            })?),
        };
        let custom = Self {
            shape,
            text: given.path("text")?.or(filter).ok_or_else(|| {
                PredictError::invalid(
                    "a connector of provider 'http' needs parameter 'response_filter', or 'text' \
                     in parameter 'response': the path to the answer's text",
                )
            })?,
            thinking: given.path("thinking")?,
            tool_calls: given.path("tool_calls")?,
            citations: given.path("citations")?,
            finish_reason: given.path("finish_reason")?,
            prompt_tokens: given.path("prompt_tokens")?,
            completion_tokens: given.path("completion_tokens")?,
            error: given.path("error")?,
            done: given.path("done")?,
            terminator: given.text("terminator")?,
        };
        match given.0.keys().next() {
            Some(name) => Err(PredictError::invalid(format!(
                "'{name}' is not a field of parameter 'response'"
            ))),
            None => Ok(custom),
        }
    }

    fn step(&self, event: &Value, calls: &mut ToolCallAccumulator) -> Result<Step, String> {
        let first = |path: &Option<Path>| path.as_ref().and_then(|path| path.first(event));
        if let Some(error) = first(&self.error) {
            return Ok(Step::Failed(error_text(&error.to_string())));
        }
        let count = |path: &Option<Path>| {
            let count = first(path)?.as_u64()?;
            Some(u32::try_from(count).unwrap_or(u32::MAX))
        };
        let reason = first(&self.finish_reason).and_then(Value::as_str);
        let thinking = self.thinking.as_ref();
        let called = first(&self.tool_calls).filter(|calls| calls.is_array());
        let told = self.citations.as_ref().map(|path| cited(path, event));
        let citations = told.and_then(|told| calls.passages.fresh(told));
        let mut delta = Delta {
            citations,
            text: texts(&self.text, event),
            thinking: thinking.and_then(|path| texts(path, event)),
            tool_calls: called.map(Value::to_string),
            prompt_tokens: count(&self.prompt_tokens),
            completion_tokens: count(&self.completion_tokens),
            ..Delta::default()
        };
        // Some servers send such a word instead of null.
        let told =
            reason.filter(|told| !["", "null", "none"].contains(&&*told.to_ascii_lowercase()));
        if let Some(told) = told {
            delta.finish(told, finish_reason(told));
        }
        numbered(Step::Delta(delta), calls)
    }
}

impl ReadAnswer for Custom {
    fn shape(&self, media: &str) -> Option<BodyFraming> {
        self.shape.or_else(|| BodyFraming::of_media(media))
    }

    fn ending(&self) -> StreamEnd {
        if self.terminator.is_some() || self.done.is_some() {
            StreamEnd::Event
        } else if self.finish_reason.is_some() {
            StreamEnd::BodyAfterReason
        } else {
            StreamEnd::WholeBody
        }
    }

    fn read(&self, data: &str, calls: &mut ToolCallAccumulator) -> Result<Step, String> {
        if self.terminator.as_deref() == Some(data) {
            return Ok(Step::End);
        }
        let event: Value = serde_json::from_str(data).map_err(|error| json_position(&error))?;
        let is_last = self.done.as_ref().and_then(|path| path.first(&event));
        let step = self.step(&event, calls)?;
        Ok(match step {
            Step::Delta(delta) if is_last.is_some_and(|last| *last != false) => Step::Last(delta),
            step => step,
        })
    }

    fn read_whole(&self, body: &[u8], calls: &mut ToolCallAccumulator) -> Result<Step, String> {
        let body: Value = serde_json::from_slice(body).map_err(|error| json_position(&error))?;
        self.step(&body, calls)
    }
}

/// Reads citations from URLs of sources, or from annotations in OpenAI's format with or without a
/// type.
fn cited(path: &Path, event: &Value) -> Vec<Citation> {
    let found = path.find(event).into_iter();
    let found = found.flat_map(|found| match found {
        Value::Array(list) => list.as_slice(),
        one => std::slice::from_ref(one),
    });
    let cited = found.filter_map(|found| match found {
        Value::String(url) => Some(Citation {
            url: Some(url.clone()),
            ..Citation::default()
        }),
        Value::Object(told) if !told.contains_key("type") => {
            let mut told = told.clone();
            told.insert("type".to_owned(), "url_citation".into());
            annotation(&Value::Object(told))
        }
        told => annotation(told),
    });
    cited.collect()
}

/// Joins all matches into one text. Values that are not strings are inserted as JSON.
fn texts(path: &Path, event: &Value) -> Option<String> {
    let found = path
        .find(event)
        .into_iter()
        .filter(|found| !found.is_null());
    let texts = found.map(|found| match found {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    });
    texts.reduce(|all, text| all + &text)
}

/// Parts of finish reasons after which an answer is unusable. A server that its operator describes
/// may have any word for a good end.
const BAD_ENDS: [&str; 7] = [
    "abort",
    "cancel",
    "error",
    "fail",
    "malformed",
    "timeout",
    "unexpected",
];

/// Converts the finish reasons of all providers; `None` for a failure.
fn finish_reason(reason: &str) -> Option<FinishReason> {
    let reason = reason.to_ascii_lowercase();
    Some(match reason.as_str() {
        "length" | "max_tokens" | "model_length" => FinishReason::Length,
        "tool_calls" | "tool_use" | "tool_call" | "function_call" => FinishReason::ToolCalls,
        "content_filter" | "safety" | "refusal" | "content_filtered" => FinishReason::ContentFilter,
        other if BAD_ENDS.iter().any(|bad| other.contains(bad)) => return None,
        _ => FinishReason::Stop,
    })
}

/// The fields of parameter `response` that have not been read.
struct Fields(Map<String, Value>);

impl Fields {
    fn text(&mut self, name: &str) -> Result<Option<String>, PredictError> {
        match self.0.remove(name) {
            None | Some(Value::Null) => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(_) => Err(PredictError::invalid(format!(
                "'response.{name}' must be text"
            ))),
        }
    }

    fn path(&mut self, name: &str) -> Result<Option<Path>, PredictError> {
        let text = self.text(name)?;
        text.map(|text| Path::parse(&text, &format!("response.{name}")))
            .transpose()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use volley_provider_kit::framing::Framing;

    use super::*;

    fn custom(response: Value) -> Result<Custom, PredictError> {
        let response = ParamValue::Json(response.to_string());
        Custom::of(&[("response".to_owned(), response)].into_iter().collect())
    }

    #[test]
    fn paths_find_what_there_is() {
        let custom = custom(json!({
            "text": "$.choices[*].piece", "citations": "$.sources", "finish_reason": "$.why", "prompt_tokens": "$.n.in",
            "completion_tokens": "n.out", "error": "$.fault", "done": "$.final",
        }));
        let custom = custom.unwrap();
        let calls = &mut ToolCallAccumulator::new(1);
        let event = r#"{"choices":[{"piece":"a"},{"piece":"b"}],"sources":["https://a.example",{"url":"https://b.example","title":"b"}],"why":null,"final":false}"#;
        let Ok(Step::Delta(delta)) = custom.read(event, calls) else {
            panic!()
        };
        assert_eq!(delta.text.as_deref(), Some("ab"));
        let cited = delta.citations.unwrap();
        let urls: Vec<_> = cited.iter().map(Citation::uri).collect();
        assert_eq!(urls, ["https://a.example", "https://b.example"]);
        let again = custom.read(event, calls).unwrap();
        assert!(
            matches!(
                again,
                Step::Delta(Delta {
                    citations: None,
                    ..
                })
            ),
            "once"
        );
        let last = r#"{"why":"MAX_TOKENS","n":{"in":2,"out":3},"final":true}"#;
        let Ok(Step::Last(last)) = custom.read(last, calls) else {
            panic!()
        };
        assert_eq!(last.finish_reason, Some(FinishReason::Length));
        assert_eq!(
            (last.prompt_tokens, last.completion_tokens),
            (Some(2), Some(3))
        );
        let failed = custom.read(r#"{"fault":{"message":"no"}}"#, calls);
        assert_eq!(failed, Ok(Step::Failed("no".to_owned())));
        assert!(custom.read("no JSON", calls).is_err());
    }

    #[test]
    fn what_ends_an_answer_is_what_the_connector_tells() {
        let ending = |response| custom(response).unwrap().ending();
        assert_eq!(ending(json!({ "text": "$.t" })), StreamEnd::WholeBody);
        let reason = json!({ "text": "$.t", "finish_reason": "$.f" });
        assert_eq!(ending(reason), StreamEnd::BodyAfterReason);
        let terminated = json!({ "text": "$.t", "terminator": "[DONE]" });
        assert_eq!(ending(terminated.clone()), StreamEnd::Event);
        let end = custom(terminated)
            .unwrap()
            .read("[DONE]", &mut ToolCallAccumulator::default());
        assert_eq!(end, Ok(Step::End));
    }

    #[test]
    fn what_is_wrong_in_a_connector_is_named() {
        for (response, name) in [
            (json!({}), "response_filter"),
            (json!({ "text": "$.a[" }), "response.text"),
            (json!({ "text": 7 }), "response.text"),
            (json!({ "text": "$.a", "format": "xml" }), "response.format"),
            (json!({ "text": "$.a", "texts": "$.b" }), "'texts'"),
            (json!([]), "'response'"),
        ] {
            let error = custom(response).unwrap_err();
            assert!(error.message.contains(name), "{}", error.message);
        }
        let filter = ParamValue::Text("$.a".to_owned());
        let parameters = [("response_filter".to_owned(), filter)];
        let custom = Custom::of(&parameters.into_iter().collect()).unwrap();
        assert_eq!(custom.shape("application/x-ndjson; x"), None);
        let lines = Some(BodyFraming::Stream(Framing::Lines));
        assert_eq!(custom.shape("application/x-ndjson"), lines);
    }
}
