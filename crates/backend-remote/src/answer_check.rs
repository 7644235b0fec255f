//! Checks what a server could not be asked to guarantee: the answer is the input of one tool, has
//! at most one call, or matches a schema. Pure.

use serde_json::{Map, Value, json};
use volley_provider_kit::names;
use volley_provider_kit::provider::{ANSWER_TOOL, Provider};
use volley_provider_kit::step::Delta;
use volley_remote_http::upstream::{error, unusable};
use volley_types::{Dialect, ErrorCode, ErrorReason, FinishReason, PredictError};

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
    /// Text before the first call. It is dropped if that is the call of the answer tool.
    held: String,
    /// Indexes of the calls of the caller's tools.
    called: Vec<u64>,
    /// The required form and the text so far.
    form: Option<Box<RequiredForm>>,
    /// Whether the caller's dialect is not that of chats, which alone has audio and images.
    reads_only: bool,
    /// Whether the answer has audio.
    has_audio: bool,
    /// Whether the answer has text.
    has_text: bool,
    /// The names of tools that the server got, and the caller's names.
    names: Vec<(String, String)>,
    /// A warning about the translation of the request, until it is in the details of the end.
    warning: Option<String>,
}

/// A form of the answer that the server may not enforce completely.
#[derive(Clone, Debug, Default, PartialEq)]
struct RequiredForm {
    /// The caller's schema; `None` for any object.
    schema: Option<Value>,
    text: String,
}

impl RequiredForm {
    /// Describes why the text does not have the form; `None` if it does.
    fn fault(&self) -> Option<String> {
        let Ok(answer) = serde_json::from_str::<Value>(&self.text) else {
            return Some("it is not valid JSON".to_owned());
        };
        match &self.schema {
            Some(schema) => schema::fault(schema, &answer),
            None => (!answer.is_object()).then(|| "it is not an object".to_owned()),
        }
    }
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
        let schema = form(provider, fields);
        let form = (answer_tool || schema.is_some()).then(|| {
            let text = String::new();
            Box::new(RequiredForm { schema, text })
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

    /// Adapts the checks to the caller's dialect.
    pub(crate) fn for_caller(self, dialect: Dialect) -> Self {
        Self {
            reads_only: dialect != Dialect::OpenAi,
            ..self
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
        if self.reads_only {
            self.transcribe(delta)?;
        }
        if self.answer_tool {
            self.hold(delta)?;
        }
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
        self.release(delta);
        delta.text.as_deref().map_or(Ok(()), |text| self.said(text))
    }

    /// Adds text of the answer.
    ///
    /// # Errors
    /// `TooLarge` if the text is too long to be checked.
    pub(crate) fn said(&mut self, text: &str) -> Result<(), PredictError> {
        self.has_text |= !text.is_empty();
        if let Some(form) = &mut self.form {
            if MAX_FORM_BYTES < form.text.len() + text.len() {
                return Err(too_long());
            }
            form.text.push_str(text);
        }
        Ok(())
    }

    /// Checks a complete answer.
    ///
    /// # Errors
    /// `UpstreamFailed` if it does not match the caller's schema, or is audio without a transcript.
    pub(crate) fn finish(&self, reason: FinishReason) -> Result<(), PredictError> {
        if self.has_audio && !self.has_text {
            return Err(foreign("audio"));
        }
        let is_answer = match reason {
            FinishReason::Stop => true,
            // The model ended for a call that it did not make.
            FinishReason::ToolCalls => self.answer_tool && self.called.is_empty(),
            FinishReason::Length | FinishReason::ContentFilter | FinishReason::Error => false,
        };
        let form = self.form.as_ref().filter(|_| is_answer);
        let Some((form, wrong)) = form.and_then(|form| Some((form, form.fault()?))) else {
            return Ok(());
        };
        let form = match form.schema {
            Some(_) => "does not fit the schema of",
            None => "is not the JSON object of",
        };
        Err(rejected(format!(
            "the remote model's answer {form} 'response_format': {wrong}"
        )))
    }

    /// Holds text back until the first call, because text before the call of the answer tool is not
    /// part of the answer.
    fn hold(&mut self, delta: &mut Delta) -> Result<(), PredictError> {
        if !self.called.is_empty() {
            return Ok(());
        }
        let text = delta.text.take().unwrap_or_default();
        if MAX_FORM_BYTES < self.held.len() + text.len() {
            return Err(too_long());
        }
        self.held.push_str(&text);
        Ok(())
    }

    /// Returns the held text if a tool of the caller was called, or if the answer was cut off.
    fn release(&mut self, delta: &mut Delta) {
        let is_cut = matches!(
            delta.finish_reason,
            Some(FinishReason::Length | FinishReason::ContentFilter | FinishReason::Error)
        );
        if self.answer.is_some() {
            self.held.clear();
        } else if !self.held.is_empty() && (is_cut || !self.called.is_empty()) {
            let held = std::mem::take(&mut self.held);
            delta.text.get_or_insert_default().insert_str(0, &held);
        }
    }

    /// Replaces the audio of a chat by its transcript, for callers of other dialects.
    fn transcribe(&mut self, delta: &mut Delta) -> Result<(), PredictError> {
        let details = delta.details.as_deref();
        let Some(details) = details.filter(|it| it.format.as_deref() == Some("openai")) else {
            return Ok(());
        };
        let mut said = String::new();
        for message in details.blocks.iter().map(|block| &block["delta"]) {
            let images = message["images"].as_array();
            if images.is_some_and(|images| !images.is_empty()) {
                return Err(foreign("images"));
            }
            let audio = &message["audio"];
            self.has_audio |= audio.is_object();
            said.push_str(audio["transcript"].as_str().unwrap_or_default());
        }
        if delta.text.as_ref().is_none_or(String::is_empty) && !said.is_empty() {
            delta.text = Some(said);
        }
        Ok(())
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
            return Err(rejected(
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

fn too_long() -> PredictError {
    error(
        ErrorCode::TooLarge,
        "the remote model's answer is too long to be checked against its schema",
    )
}

/// The error for an answer that the caller does not accept. The server is not to blame.
fn rejected(message: impl Into<String>) -> PredictError {
    error(ErrorCode::UpstreamFailed, message).with_reason(ErrorReason::AnswerUnusable)
}

/// The error for content that the caller's dialect cannot express.
fn foreign(kind: &str) -> PredictError {
    let mut delta = Delta::default();
    delta.lacks_form(kind);
    unusable(&delta.unusable.unwrap_or_default())
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
    fn audio_is_its_transcript_and_an_image_is_an_error_outside_chats() {
        let of = |message: Value| {
            let mut delta = Delta::default();
            let details = delta.details();
            details.format = Some("openai".to_owned());
            details
                .blocks
                .push(json!({ "choice": {}, "delta": message }));
            delta
        };
        let check = |dialect| {
            AnswerCheck::of(provider("openai"), &json!({}), &Map::new()).for_caller(dialect)
        };
        for (dialect, said) in [(Dialect::OpenAi, None), (Dialect::Anthropic, Some("hello"))] {
            let mut check = check(dialect);
            let mut spoken = of(json!({ "audio": { "data": "eA==", "transcript": "hello" } }));
            check.apply(&mut spoken).unwrap();
            assert_eq!(spoken.text.as_deref(), said);
            check.finish(FinishReason::Stop).unwrap();
        }
        let mut mute = check(Dialect::Cohere);
        mute.apply(&mut of(json!({ "audio": { "data": "eA==" } })))
            .unwrap();
        let error = mute.finish(FinishReason::Stop).unwrap_err();
        assert!(error.message.contains("'audio'"), "{error:?}");
        let drawn = check(Dialect::Own).apply(&mut of(json!({ "images": [{}] })));
        assert!(drawn.unwrap_err().message.contains("'images'"));
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

    fn said(text: &str) -> Delta {
        Delta {
            text: Some(text.to_owned()),
            ..Delta::default()
        }
    }

    fn ended(reason: FinishReason) -> Delta {
        Delta {
            finish_reason: Some(reason),
            ..Delta::default()
        }
    }

    /// Text before the answer tool is dropped, text before a caller's tool is not, and an answer
    /// without a call is an error.
    #[test]
    fn an_object_comes_alone_or_the_answer_is_an_error() {
        let body = json!({ "tools": [{ "name": ANSWER_TOOL }, { "name": "f" }] });
        let form = json!({ "response_format": { "type": "json_object" } });
        let form = form.as_object().unwrap();
        let call = |name: &str, arguments: &str| {
            let call = json!([{ "index": 0, "id": "a", "function": {
                "name": name, "arguments": arguments } }]);
            delta(&call, Some(FinishReason::ToolCalls))
        };
        let check = || AnswerCheck::of(provider("anthropic"), &body, form);
        for (arguments, is_object) in [("{\"a\":1}", true), ("7", false), ("{", false)] {
            let mut check = check();
            let mut before = said("Sure");
            check.apply(&mut before).unwrap();
            assert_eq!(before.text, None);
            let mut answer = call(ANSWER_TOOL, arguments);
            check.apply(&mut answer).unwrap();
            assert_eq!(answer.text.as_deref(), Some(arguments));
            let finished = check.finish(FinishReason::Stop);
            assert_eq!(finished.is_ok(), is_object, "{finished:?}");
        }
        let mut own = check();
        own.apply(&mut said("I look.")).unwrap();
        let mut called = call("f", "{}");
        own.apply(&mut called).unwrap();
        assert_eq!(called.text.as_deref(), Some("I look."));
        own.finish(FinishReason::ToolCalls).unwrap();
        for (reason, text) in [
            (FinishReason::Stop, None),
            (FinishReason::ToolCalls, None),
            (FinishReason::ContentFilter, Some("Sure")),
            (FinishReason::Length, Some("Sure")),
        ] {
            let mut check = check();
            check.apply(&mut said("Sure")).unwrap();
            let mut end = ended(reason);
            check.apply(&mut end).unwrap();
            assert_eq!(end.text.as_deref(), text, "{reason:?}");
            let finished = check.finish(reason);
            assert_eq!(finished.is_err(), text.is_none(), "{reason:?}");
            if let Err(error) = finished {
                assert_eq!(error.code, ErrorCode::UpstreamFailed);
                assert_eq!(error.reason, Some(ErrorReason::AnswerUnusable));
            }
        }
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
