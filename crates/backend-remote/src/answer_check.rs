//! Checks what a server could not be asked to guarantee: the answer is the input of one tool, has
//! at most one call, or matches a schema. Pure.

use serde_json::{Map, Value, json};
use volley_provider_kit::names;
use volley_provider_kit::provider::{ANSWER_TOOL, Provider};
use volley_provider_kit::step::Delta;
use volley_remote_http::upstream::error;
use volley_types::{ErrorCode, FinishReason, PredictError};

use crate::schema;

/// Maximum length of an answer that is checked by a schema, in bytes.
const MAX_FORM_BYTES: usize = 8 << 20;

/// Checks of an answer, and their state.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct AnswerCheck {
    /// The input of [`ANSWER_TOOL`] is the answer.
    answer_tool: bool,
    /// The caller allows one call only.
    one_call: bool,
    /// Index of the call of the answer tool.
    answer: Option<u64>,
    /// Indexes of the calls of the caller's tools.
    called: Vec<u64>,
    /// The names of tools that the server got, and the caller's names.
    names: Vec<(String, String)>,
    /// A warning about the translation of the request, until it is in the details of the end.
    warning: Option<String>,
    /// The schema and the text so far.
    form: Option<Box<ReducedSchema>>,
}

/// A schema that the server may not enforce completely.
#[derive(Clone, Debug, Default, PartialEq)]
struct ReducedSchema {
    schema: Value,
    text: String,
}

impl AnswerCheck {
    /// Derives the checks from `body`, the request with these parameters.
    pub(crate) fn of(provider: &Provider, body: &Value, fields: &Map<String, Value>) -> Self {
        let tools = body
            .pointer("/toolConfig/tools")
            .or_else(|| body.get("tools"));
        let tools = tools.and_then(Value::as_array).into_iter().flatten();
        let names = tools.filter_map(|tool| {
            let name = tool.pointer("/toolSpec/name").or_else(|| tool.get("name"));
            name.and_then(Value::as_str)
        });
        let answer_tool = names.into_iter().any(|name| name == ANSWER_TOOL);
        let alone = fields.get("parallel_tool_calls") == Some(&Value::Bool(false));
        let form = form(provider, fields).map(|schema| {
            let text = String::new();
            Box::new(ReducedSchema { schema, text })
        });
        let tools = fields.get("tools").unwrap_or(&Value::Null);
        let rules = provider.names;
        Self {
            form,
            names: rules.map_or_else(Vec::new, |rules| names::changed(rules, tools)),
            answer_tool,
            one_call: !provider.limits_calls && alone,
            ..Self::default()
        }
    }

    /// Sets a warning about the translation of the request.
    pub(crate) fn warned(self, warning: Option<&str>) -> Self {
        let warning = warning.map(str::to_owned);
        Self { warning, ..self }
    }

    /// Whether the server's answer is unchanged.
    pub(crate) fn is_plain(&self) -> bool {
        !self.answer_tool && self.names.is_empty()
    }

    /// Applies the checks to a delta: converts calls of the answer tool to text.
    ///
    /// # Errors
    /// `UpstreamFailed` for more calls than allowed, and those of [`Self::said`].
    pub(crate) fn apply(&mut self, delta: &mut Delta) -> Result<(), PredictError> {
        if self.answer_tool || self.one_call {
            self.check_calls(delta)?;
        }
        if !self.names.is_empty() {
            self.restore_names(delta);
        }
        if let Some(warning) = self.warning.take() {
            let fields = delta.end().fields.get_or_insert_with(|| json!({}));
            fields["volley-warning"] = warning.into();
        }
        delta.text.as_deref().map_or(Ok(()), |text| self.said(text))
    }

    /// Adds text of the answer.
    ///
    /// # Errors
    /// `TooLarge` if the text is too long to be checked.
    pub(crate) fn said(&mut self, text: &str) -> Result<(), PredictError> {
        if let Some(form) = &mut self.form {
            if MAX_FORM_BYTES < form.text.len() + text.len() {
                return Err(error(
                    ErrorCode::TooLarge,
                    "the remote model's answer is too long to be checked against its schema",
                ));
            }
            form.text.push_str(text);
        }
        Ok(())
    }

    /// Checks a complete answer.
    ///
    /// # Errors
    /// `UpstreamFailed` if it does not match the caller's schema.
    pub(crate) fn finish(&self, reason: FinishReason) -> Result<(), PredictError> {
        let form = self.form.as_ref().filter(|_| reason == FinishReason::Stop);
        let Some(form) = form else {
            return Ok(());
        };
        let wrong = match serde_json::from_str(&form.text) {
            Ok(answer) => schema::fault(&form.schema, &answer),
            Err(_) => Some("it is not valid JSON".to_owned()),
        };
        wrong.map_or(Ok(()), |wrong| {
            Err(error(
                ErrorCode::UpstreamFailed,
                format!(
                    "the remote model's answer does not fit the schema of 'response_format': \
                     {wrong}"
                ),
            ))
        })
    }

    /// Restores the caller's names of tools.
    fn restore_names(&self, delta: &mut Delta) {
        let Some(calls) = delta.tool_calls.take() else {
            return;
        };
        let mut calls: Value = serde_json::from_str(&calls).unwrap_or_default();
        for call in calls.as_array_mut().into_iter().flatten() {
            let Some(name) = call.pointer_mut("/function/name") else {
                continue;
            };
            let mut known = self.names.iter();
            if let Some((_, own)) = known.find(|(sent, _)| *name == sent.as_str()) {
                *name = own.as_str().into();
            }
        }
        delta.tool_calls = Some(calls.to_string());
    }

    fn check_calls(&mut self, delta: &mut Delta) -> Result<(), PredictError> {
        if let Some(calls) = delta.tool_calls.take() {
            let calls: Vec<Value> = serde_json::from_str(&calls).unwrap_or_default();
            let left: Vec<_> = calls
                .into_iter()
                .filter_map(|call| self.call(call, delta))
                .collect();
            delta.tool_calls = (!left.is_empty()).then(|| Value::Array(left).to_string());
        }
        if self.one_call && 1 < self.called.len() {
            return Err(error(
                ErrorCode::UpstreamFailed,
                "the remote model called several tools, and parameter 'parallel_tool_calls' is \
                 false",
            ));
        }
        let answered = self.answer.is_some() && self.called.is_empty();
        if answered && delta.finish_reason == Some(FinishReason::ToolCalls) {
            delta.finish_reason = Some(FinishReason::Stop);
        }
        Ok(())
    }

    /// Returns a call of the caller's tools. The input of the answer tool becomes text.
    fn call(&mut self, mut call: Value, delta: &mut Delta) -> Option<Value> {
        let place = call["index"].as_u64().unwrap_or(0);
        let name = call["function"]["name"].as_str();
        if self.answer_tool && name == Some(ANSWER_TOOL) {
            self.answer = Some(place);
        }
        if self.answer == Some(place) {
            let piece = call["function"]["arguments"].as_str().unwrap_or_default();
            delta.text.get_or_insert_default().push_str(piece);
            return None;
        }
        if !self.called.contains(&place) {
            self.called.push(place);
        }
        let number = self.called.iter().position(|known| *known == place)?;
        if self.answer.is_some() {
            call["index"] = number.into();
        }
        Some(call)
    }
}

/// The schema by which an answer is checked, if the server may not enforce all of it. `None` if the
/// caller set `strict` to false.
fn form(provider: &Provider, fields: &Map<String, Value>) -> Option<Value> {
    let form = fields
        .get("response_format")
        .filter(|_| !provider.keeps_schemas)?;
    let form = form.get("json_schema")?;
    let schema = form.get("schema")?;
    (form.get("strict") != Some(&Value::Bool(false))).then(|| schema.clone())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::provider;

    fn delta(calls: &Value, finish: Option<FinishReason>) -> Delta {
        Delta {
            tool_calls: Some(calls.to_string()),
            finish_reason: finish,
            ..Delta::default()
        }
    }

    #[test]
    fn the_input_of_the_tool_is_the_answer() {
        let body = json!({ "tools": [{ "name": ANSWER_TOOL }] });
        let mut check = AnswerCheck::of(provider("anthropic"), &body, &Map::new());
        let begun = json!([{ "index": 0, "id": "a", "function": {
            "name": ANSWER_TOOL, "arguments": "" } }]);
        let mut first = delta(&begun, None);
        check.apply(&mut first).unwrap();
        assert_eq!(first.tool_calls, None);
        let more = json!([{ "index": 0, "function": { "arguments": "{\"a\":1}" } }]);
        let mut more = delta(&more, None);
        check.apply(&mut more).unwrap();
        assert_eq!(more.text.as_deref(), Some("{\"a\":1}"));
        let mut end = Delta {
            finish_reason: Some(FinishReason::ToolCalls),
            ..Delta::default()
        };
        check.apply(&mut end).unwrap();
        assert_eq!(end.finish_reason, Some(FinishReason::Stop));
    }

    #[test]
    fn the_callers_tools_are_called_as_ever() {
        let body = json!({ "toolConfig": { "tools": [
            { "toolSpec": { "name": ANSWER_TOOL } }, { "toolSpec": { "name": "f" } }] } });
        let mut check = AnswerCheck::of(provider("bedrock"), &body, &Map::new());
        let call =
            json!([{ "index": 0, "id": "a", "function": { "name": "f", "arguments": "{}" } }]);
        let mut called = delta(&call, Some(FinishReason::ToolCalls));
        let before = called.clone();
        check.apply(&mut called).unwrap();
        assert_eq!(called.finish_reason, before.finish_reason);
        let call: Value = serde_json::from_str(&called.tool_calls.unwrap()).unwrap();
        assert_eq!(
            (&call[0]["index"], &call[0]["id"]),
            (&json!(0), &json!("a"))
        );
    }

    #[test]
    fn a_second_call_against_the_callers_word_is_an_error() {
        let fields = json!({ "parallel_tool_calls": false })
            .as_object()
            .cloned()
            .unwrap();
        let mut check = AnswerCheck::of(provider("gemini"), &json!({}), &fields);
        let call = |index: u32| json!([{ "index": index, "id": "a", "function": { "name": "f", "arguments": "{}" } }]);
        assert!(check.apply(&mut delta(&call(0), None)).is_ok());
        let error = check.apply(&mut delta(&call(1), None)).unwrap_err();
        assert_eq!(error.code, ErrorCode::UpstreamFailed);
        let mut told = AnswerCheck::of(provider("openai"), &json!({}), &fields);
        assert!(told.apply(&mut delta(&call(1), None)).is_ok());
    }

    #[test]
    fn the_callers_names_of_tools_return() {
        let tools = json!([{ "function": { "name": "files.read" } }]);
        let fields = json!({ "tools": tools }).as_object().cloned().unwrap();
        let mut check = AnswerCheck::of(provider("bedrock"), &json!({}), &fields);
        assert!(!check.is_plain());
        let sent = provider("bedrock").names.unwrap().tools.fit("files.read");
        let call = json!([{ "index": 0, "id": "c", "function": { "name": sent } }]);
        let mut delta = delta(&call, None);
        check.apply(&mut delta).unwrap();
        assert!(delta.tool_calls.unwrap().contains("\"files.read\""));
    }

    #[test]
    fn a_warning_is_in_the_details_of_the_end_once() {
        let check = AnswerCheck::of(provider("gemini"), &json!({}), &Map::new());
        let mut check = check.warned(Some("moved"));
        let (mut first, mut second) = (Delta::default(), Delta::default());
        check.apply(&mut first).unwrap();
        check.apply(&mut second).unwrap();
        let fields = first.end.unwrap().fields.unwrap();
        assert_eq!(fields["volley-warning"], "moved");
        assert!(second.end.is_none());
    }
}
