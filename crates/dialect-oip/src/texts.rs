//! Tensors of a generation in JSON: texts in, and texts out, complete or in pieces. Pure.

use arrow_array::RecordBatch;
use serde_json::{Map, Value, json};
use volley_types::signature::PROMPT;
use volley_types::{FinishReason, GenerationRow, Input, PredictError, PredictRequest, Task, Usage};

use super::coded::is_base64;
use super::describe::{TEXT_INPUT, TEXT_OUTPUT};
use super::outputs::{no_output, once};
use super::tensors::printable;
use super::{ResolvedModel, known, nested, reserved, text_parameters};
use volley_dialect_kit::answer::Choice;
use volley_dialect_kit::chat;
use volley_dialect_kit::parameters;
use volley_http_edge::body::Fields;
use volley_http_edge::context::RequestContext;
use volley_shared_memory::REGION;

/// Fields of a request. KServe's client repeats the path's model in `model_name`.
pub(super) const FIELDS: [&str; 5] = ["id", "model_name", "parameters", "inputs", "outputs"];

/// Input with the messages of a chat in place of a text: a JSON list of messages.
const MESSAGES: &str = "messages";

/// Whether a body has tensors, which MLServer's clients send to a route that other clients also
/// use.
pub(super) fn has_tensors(body: &Map<String, Value>) -> bool {
    let inputs = body.get("inputs").and_then(Value::as_array);
    inputs.is_some_and(|inputs| {
        let tensor = |input: &Value| input.get("datatype").is_some();
        !inputs.is_empty() && inputs.iter().all(tensor)
    })
}

/// A parsed generation.
#[derive(Debug)]
pub(super) struct Texts {
    /// One row for each text.
    pub(super) rows: RecordBatch,
    /// Shape of the input tensor, which is also that of the output.
    pub(super) shape: Vec<usize>,
}

impl Texts {
    /// Parses a body, and builds its request. `streams` is whether the response is a stream.
    ///
    /// # Errors
    /// `InvalidInput` naming the fault.
    pub(super) fn request(
        body: &Map<String, Value>,
        found: &ResolvedModel,
        context: &RequestContext,
        streams: bool,
    ) -> Result<(Self, PredictRequest), PredictError> {
        body.only("a request", &FIELDS)?;
        check_outputs(body)?;
        let mut given = body.object("parameters")?.cloned().unwrap_or_default();
        known::take_codecs(&mut given, false)?;
        let inputs = inputs(body, false)?;
        known::inputs(inputs)?;
        let texts = Self::read(inputs, &mut given, streams)?;
        text_parameters::take_stream(&mut given, streams)?;
        let rows = Input::Batch(texts.rows.clone());
        let mut request = PredictRequest::new(found.model.clone(), rows);
        request.request_id = context.request_id.clone();
        request.trace = context.trace;
        request.session = context.session.clone();
        let given = parameters::from_json(&given)?;
        reserved::put(&mut request, given, context.deadline, Task::Generate, false)?;
        text_parameters::one_answer(&request.parameters)?;
        Ok((texts, request))
    }

    /// Number of texts.
    pub(super) fn count(&self) -> usize {
        self.rows.num_rows()
    }

    /// Formats the answers to all texts as an output.
    ///
    /// # Errors
    /// `InvalidInput` if a text has more than one answer.
    pub(super) fn outputs(&self, choices: &[Choice]) -> Result<Value, PredictError> {
        if choices.len() != self.count() {
            return Err(text_parameters::several());
        }
        let texts: Vec<_> = choices.iter().map(|choice| choice.text.as_str()).collect();
        Ok(output(&self.shape, &texts))
    }

    /// Parses the `inputs` of a request. Other inputs with one element are added to `parameters`.
    ///
    /// # Errors
    /// `InvalidInput` naming the input.
    pub(super) fn read(
        inputs: &[Value],
        parameters: &mut Map<String, Value>,
        streams: bool,
    ) -> Result<Self, PredictError> {
        let mut texts: Option<Self> = None;
        for input in inputs {
            let name = input.get("name").and_then(Value::as_str);
            let name = name.ok_or_else(|| PredictError::invalid("an input has no 'name'"))?;
            let wrong =
                |what: &str| PredictError::invalid(format!("input '{}': {what}", printable(name)));
            if is_base64(input.get("parameters")) {
                return Err(wrong(
                    "must be text; 'content_type: base64' is not supported here",
                ));
            }
            let (shape, elements) = tensor(input).map_err(|what| wrong(&what))?;
            let rows = match name {
                TEXT_INPUT | PROMPT => {
                    let given: Option<Vec<_>> = elements.iter().map(|text| text.as_str()).collect();
                    let given = given.filter(|given| !given.is_empty());
                    chat::prompts(&given.ok_or_else(|| wrong("must contain texts"))?)?
                }
                MESSAGES => conversation(&elements)
                    .ok_or_else(|| wrong("must be one JSON list of chat messages"))??,
                // The route determines whether the response is a stream.
                "stream" | "streaming" => {
                    let [value] = elements.as_slice() else {
                        return Err(wrong("must have one element"));
                    };
                    text_parameters::stream(name, value, streams)?;
                    continue;
                }
                _ => {
                    let [value] = elements.as_slice() else {
                        return Err(wrong("must have one element"));
                    };
                    text_parameters::add(parameters, name, (*value).clone())?;
                    continue;
                }
            };
            if texts.replace(Self { rows, shape }).is_some() {
                let message =
                    format!("give either '{TEXT_INPUT}' or '{MESSAGES}', and give it once");
                return Err(PredictError::invalid(message));
            }
        }
        texts.ok_or_else(|| PredictError::invalid(format!("input '{TEXT_INPUT}' is missing")))
    }
}

/// Rejects an output that a generation does not have.
fn check_outputs(body: &Map<String, Value>) -> Result<(), PredictError> {
    let outputs = match body.get("outputs") {
        None | Some(Value::Null) => return Ok(()),
        Some(Value::Array(outputs)) => outputs,
        Some(_) => {
            let message = "field 'outputs' must be a list of objects with a 'name'";
            return Err(PredictError::invalid(message));
        }
    };
    let name = |output: &Value| {
        output
            .get("name")
            .and_then(Value::as_str)
            .map(str::to_owned)
    };
    outputs.iter().try_for_each(as_text)?;
    let other = |name: &Option<String>| name.as_deref() != Some(TEXT_OUTPUT);
    match outputs.iter().map(name).find(other) {
        None => once(
            outputs
                .iter()
                .filter_map(|output| output.get("name")?.as_str()),
        ),
        Some(name) => Err(no_output(&name.unwrap_or_default())),
    }
}

/// Refuses forms of an output that a text does not have.
fn as_text(output: &Value) -> Result<(), PredictError> {
    known::output(output)?;
    let parameters = output.get("parameters");
    let said = |name: &str| parameters.and_then(|given| given.get(name));
    let none = |value: &Value| value.is_null() || value.as_u64() == Some(0);
    if said("classification").is_some_and(|classes| !none(classes)) {
        let message = "texts have no classes; leave 'classification' out";
        return Err(PredictError::invalid(message));
    }
    if said(REGION).is_some_and(|region| !region.is_null()) {
        let message = "texts cannot be written to shared memory; leave its parameters out";
        return Err(PredictError::invalid(message));
    }
    if is_base64(parameters) {
        let message = "texts are not base64; leave 'content_type' of the output out";
        return Err(PredictError::invalid(message));
    }
    Ok(())
}

fn conversation(elements: &[&Value]) -> Option<Result<RecordBatch, PredictError>> {
    let [given] = elements else { return None };
    let messages: Vec<Value> = serde_json::from_str(given.as_str()?).ok()?;
    let messages: Option<Vec<_>> = messages.iter().map(chat::openai_message).collect();
    let messages = messages.filter(|messages| !messages.is_empty())?;
    Some(chat::conversation(&messages))
}

/// The shape of a tensor and its elements, which may be nested lists.
fn tensor(input: &Value) -> Result<(Vec<usize>, Vec<&Value>), String> {
    let shape = input.get("shape").and_then(Value::as_array);
    let sizes = shape.and_then(|shape| {
        let size = |size: &Value| usize::try_from(size.as_u64()?).ok();
        shape.iter().map(size).collect::<Option<Vec<_>>>()
    });
    let shape = sizes.ok_or("'shape' must be a list of sizes")?;
    let data = input.get("data").filter(|data| data.is_array());
    let elements = nested::elements(data.ok_or("'data' must be a list")?, &shape)?;
    match shape.as_slice() {
        [] | [_] | [_, 1] => Ok((shape, elements)),
        _ => Err(format!("its shape {shape:?} is not that of a list")),
    }
}

/// Formats texts as the output of a generation.
pub(super) fn output(shape: &[usize], texts: &[&str]) -> Value {
    json!({
        "name": TEXT_OUTPUT,
        "datatype": "BYTES",
        "shape": shape,
        "parameters": { "content_type": "str" },
        "data": texts,
    })
}

/// Finish reason and usage of a generation, as far as known.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct GenerationEnd {
    reason: Option<FinishReason>,
    usage: Option<Usage>,
}

impl GenerationEnd {
    /// Adds the values of a row.
    pub(super) fn read(&mut self, row: &GenerationRow<'_>) {
        self.reason = row.finish_reason().or(self.reason);
        self.usage = row.usage().or(self.usage);
    }

    /// The known values as `parameters` of a response.
    pub(super) fn parameters(self) -> Value {
        let mut told = json!({});
        if let Some(reason) = self.reason {
            told["finish_reason"] = reason.as_str().into();
        }
        if let Some(usage) = self.usage {
            told["prompt_tokens"] = usage.prompt_tokens.into();
            told["completion_tokens"] = usage.completion_tokens.into();
        }
        told
    }
}

/// The inputs of a request. The list may only be empty for a model without inputs.
pub(super) fn inputs(
    body: &Map<String, Value>,
    may_be_none: bool,
) -> Result<&[Value], PredictError> {
    match body.get("inputs") {
        None | Some(Value::Null) if may_be_none => Ok(&[]),
        Some(Value::Array(inputs)) if may_be_none || !inputs.is_empty() => Ok(inputs),
        _ => Err(PredictError::invalid(
            "field 'inputs' must be a list of at least one tensor",
        )),
    }
}

#[cfg(test)]
mod tests;
