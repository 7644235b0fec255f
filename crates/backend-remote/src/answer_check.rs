//! Checks what a server could not be asked to guarantee: the answer is the input of one tool, has
//! at most one call, or matches a schema. Pure.

use serde_json::{Map, Value, json};
use volley_provider_kit::names::{self, NameRules};
use volley_provider_kit::provider::{ANSWER_TOOL, Provider};
use volley_provider_kit::step::Delta;
use volley_remote_http::upstream::{error, unusable};
use volley_types::{Dialect, ErrorCode, ErrorReason, FinishReason, PredictError, WARNING};

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
    /// The caller's dialect; `None` if content is not converted for it.
    caller: Option<Dialect>,
    /// Whether the answer has audio.
    has_audio: bool,
    /// Whether the answer has text.
    has_text: bool,
    /// The names of tools that the server got, and the caller's names.
    names: Vec<(String, String)>,
    /// Whether the caller asked for the server's details of each token.
    token_details: bool,
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
        Self {
            form,
            answer_tool,
            one_call: !provider.limits_calls && alone,
            token_details: fields.get("details") == Some(&Value::Bool(true)),
            ..Self::default()
        }
    }

    /// Restores the names of tools in `fields` that the server got under others.
    pub(crate) fn restoring(self, rules: Option<NameRules>, fields: &Map<String, Value>) -> Self {
        let tools = fields.get("tools").unwrap_or(&Value::Null);
        let names = rules.map_or_else(Vec::new, |rules| names::changed(rules, tools));
        Self { names, ..self }
    }

    /// Adapts the checks to the caller's dialect.
    pub(crate) fn for_caller(self, dialect: Dialect) -> Self {
        Self {
            caller: Some(dialect),
            token_details: self.token_details || dialect == Dialect::TextGeneration,
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
        if let Some(caller) = self.caller {
            refuse_media(delta, caller)?;
            // Only chats have audio and images.
            if caller != Dialect::OpenAi {
                self.transcribe(delta)?;
            }
        }
        if !self.token_details {
            drop_tokens(delta);
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
            fields[WARNING] = warning.into();
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

/// Removes the events with which Text Generation Inference describes each token.
fn drop_tokens(delta: &mut Delta) {
    for slot in [&mut delta.details, &mut delta.end] {
        let Some(details) = slot.as_mut() else {
            continue;
        };
        if details.format.as_deref() != Some("tgi") {
            continue;
        }
        details.events.clear();
        details.fields = None;
        if details.is_empty() {
            *slot = None;
        }
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

/// Rejects images and files in blocks of another dialect than the caller's.
fn refuse_media(delta: &Delta, caller: Dialect) -> Result<(), PredictError> {
    let Some(details) = delta.details.as_deref() else {
        return Ok(());
    };
    let (own, kinds): (_, &[&str]) = match details.format.as_deref() {
        Some("anthropic") => (Dialect::Anthropic, &["image", "document", "audio", "video"]),
        Some("openai_responses") => (Dialect::OpenAiResponses, &["image_generation_call"]),
        _ => return Ok(()),
    };
    let blocks = details.blocks.iter().filter(|_| caller != own);
    // A failed generation has no image.
    let mut blocks = blocks.filter(|block| !block.get("result").is_some_and(Value::is_null));
    let kind = blocks.find_map(|block| {
        let kind = block["type"].as_str()?;
        kinds.contains(&kind).then_some(kind)
    });
    kind.map_or(Ok(()), |kind| Err(foreign(kind)))
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
    // A schema beside the type is llama.cpp's form.
    let form = form.get("json_schema").unwrap_or(form);
    let schema = form.get("schema")?;
    (form.get("strict") != Some(&Value::Bool(false))).then(|| schema.clone())
}

#[cfg(test)]
mod tests;
