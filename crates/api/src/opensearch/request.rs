//! `_predict` bodies into request rows.

use std::sync::Arc;

use arrow_array::builder::{ArrayBuilder, ListBuilder, StringBuilder, StructBuilder};
use arrow_array::{ArrayRef, RecordBatch, StringArray};
use arrow_schema::{DataType, Field};
use serde_json::{Map, Value};
use volley_types::signature::{MESSAGES, PROMPT, message_fields};
use volley_types::{Parameters, PredictError, Signature, Task};

use crate::body::Fields;
use crate::{opensearch, tensors};

/// Fields of `parameters` that tell an ml-commons server how to stream; here it is known.
const STREAM_HINTS: [&str; 2] = ["stream", "_llm_interface"];

/// What a body holds: rows for the model, and parameters.
pub(crate) fn read(
    body: &Map<String, Value>,
    signature: &Signature,
) -> Result<(RecordBatch, Parameters), PredictError> {
    body.only("a prediction", &["parameters", "inputs"])?;
    let mut given = body.object("parameters")?.cloned().unwrap_or_default();
    for hint in STREAM_HINTS {
        given.remove(hint);
    }
    let rows = match signature.task {
        Task::Generate => generation(&mut given)?,
        Task::Tensors => {
            let inside = given.remove("inputs");
            let inputs = body.get("inputs").or(inside.as_ref()).ok_or_else(|| {
                PredictError::invalid(
                    "field 'inputs' is missing: an object with one array of rows for each input \
                     of the model",
                )
            })?;
            tensors::from_json(inputs, &signature.input)?
        }
    };
    Ok((rows, opensearch::parameters(&given)?))
}

/// One row from `prompt`, `inputs` or `messages`.
fn generation(given: &mut Map<String, Value>) -> Result<RecordBatch, PredictError> {
    let prompt = given.remove("prompt");
    let inputs = given.remove("inputs");
    let messages = given.remove("messages");
    match (prompt.or(inputs), messages) {
        (Some(Value::String(prompt)), None) => {
            let column: ArrayRef = Arc::new(StringArray::from(vec![prompt]));
            batch(PROMPT, column)
        }
        (None, Some(messages)) => batch(MESSAGES, chat(messages)?),
        (Some(_), None) => Err(PredictError::invalid(
            "'parameters.prompt' must be a string",
        )),
        (Some(_), Some(_)) => Err(PredictError::invalid(
            "give either 'parameters.prompt' or 'parameters.messages', not both",
        )),
        (None, None) => Err(PredictError::invalid(
            "'parameters' must have 'prompt' (a string) or 'messages' (a list of objects with \
             'role' and 'content')",
        )),
    }
}

fn batch(name: &str, column: ArrayRef) -> Result<RecordBatch, PredictError> {
    RecordBatch::try_from_iter_with_nullable([(name, column, true)])
        .map_err(|error| PredictError::internal("the request's row cannot be built", error))
}

/// Messages as JSON, or as the text of JSON (a client of ml-commons may send either).
fn chat(messages: Value) -> Result<ArrayRef, PredictError> {
    let wrong = || {
        PredictError::invalid(
            "'parameters.messages' must be a list of objects with the strings 'role' and 'content'",
        )
    };
    let messages = match messages {
        Value::String(text) => serde_json::from_str(&text).map_err(|_| wrong())?,
        messages => messages,
    };
    let Value::Array(messages) = messages else {
        return Err(wrong());
    };
    if messages.is_empty() {
        return Err(wrong());
    }
    let text = || Box::new(StringBuilder::new()) as Box<dyn ArrayBuilder>;
    let item = Field::new("item", DataType::Struct(message_fields()), false);
    let mut list = ListBuilder::new(StructBuilder::new(message_fields(), vec![text(), text()]))
        .with_field(item);
    for message in &messages {
        let role = message
            .get("role")
            .and_then(Value::as_str)
            .ok_or_else(wrong)?;
        let content = match message.get("content") {
            None | Some(Value::Null) => None,
            Some(Value::String(content)) => Some(content.clone()),
            Some(Value::Array(parts)) => Some(text_parts(parts).ok_or_else(wrong)?),
            Some(_) => return Err(wrong()),
        };
        let row = list.values();
        let columns = [Some(role.to_owned()), content];
        for (index, value) in columns.into_iter().enumerate() {
            let column = row
                .field_builder::<StringBuilder>(index)
                .ok_or_else(wrong)?;
            column.append_option(value);
        }
        row.append(true);
    }
    list.append(true);
    Ok(Arc::new(list.finish()))
}

/// The text of a content that comes in parts; `None` when a part is no text.
fn text_parts(parts: &[Value]) -> Option<String> {
    parts
        .iter()
        .map(|part| part.get("text").and_then(Value::as_str))
        .collect()
}
