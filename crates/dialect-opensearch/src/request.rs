//! Converts bodies of `_predict` to request rows.

use arrow_array::RecordBatch;
use serde_json::{Map, Value};
use volley_types::{Parameters, PredictError, Signature, Task};

use crate::prediction::Prediction;
use crate::texts;
use volley_dialect_kit::chat;
use volley_dialect_kit::parameters;
use volley_http_edge::body::Fields;

/// Fields of `parameters` that select the streaming of an ml-commons server. They are not needed
/// here.
const STREAM_HINTS: [&str; 2] = ["stream", "_llm_interface"];

/// Interfaces that a streaming request may name. The connector determines the actual interface, and
/// a local model has none.
const INTERFACES: [&str; 5] = [
    "openai/v1/chat/completions",
    "bedrock/converse",
    "bedrock/converse/claude",
    "bedrock/converse/deepseek_r1",
    "gemini/v1beta/generatecontent",
];

/// Rejects a streaming request for an unknown interface.
///
/// # Errors
/// `InvalidInput` with the list of known interfaces.
pub(crate) fn known_interface(body: &Map<String, Value>) -> Result<(), PredictError> {
    let parameters = body.object("parameters")?;
    let named = parameters.and_then(|parameters| parameters.get("_llm_interface"));
    let known = match named {
        None | Some(Value::Null) => true,
        Some(Value::String(text)) => {
            let text = text.trim().to_ascii_lowercase();
            INTERFACES.contains(&text.as_str())
        }
        Some(_) => false,
    };
    if known {
        return Ok(());
    }
    Err(PredictError::invalid(format!(
        "'parameters._llm_interface' may be left out, or be one of {}",
        INTERFACES.join(", ")
    )))
}

/// Parses a body to rows for the model and parameters.
pub(crate) fn read(
    body: &Prediction,
    signature: &Signature,
) -> Result<(RecordBatch, Parameters), PredictError> {
    let own: &[&str] = match signature.task {
        Task::Generate => &[],
        Task::Tensors | Task::Events => &["inputs"],
        _ => &[
            "inputs",
            "text_docs",
            "query_text",
            "return_number",
            "return_bytes",
            "target_response",
        ],
    };
    let fields = &body.fields;
    fields.only("a prediction", &[&["parameters"], own].concat())?;
    let mut given = fields.object("parameters")?.cloned().unwrap_or_default();
    for hint in STREAM_HINTS {
        given.remove(hint);
    }
    let rows = match signature.task {
        Task::Generate => generation(&mut given)?,
        Task::Tensors | Task::Events => {
            given.remove("inputs");
            let inputs = body.inputs()?.ok_or_else(|| {
                PredictError::invalid(
                    "field 'inputs' is missing: an object with one array of rows for each input \
                     of the model",
                )
            })?;
            texts::columns(inputs, signature)?
        }
        _ => texts::rows(body, &mut given, signature)?,
    };
    Ok((rows, parameters::from_json(&given)?))
}

/// Builds one row from `prompt`, `inputs` or `messages`.
fn generation(given: &mut Map<String, Value>) -> Result<RecordBatch, PredictError> {
    let prompt = given.remove("prompt");
    let inputs = given.remove("inputs");
    let messages = given.remove("messages");
    match (prompt.or(inputs), messages) {
        (Some(Value::String(prompt)), None) => chat::prompts(&[prompt]),
        (None, Some(messages)) => chat(messages),
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

/// Builds one row from messages, given as JSON or as JSON text. Clients of ml-commons send either.
fn chat(messages: Value) -> Result<RecordBatch, PredictError> {
    let wrong = || {
        PredictError::invalid(
            "'parameters.messages' must be a list of objects with the strings 'role' and 'content'",
        )
    };
    let messages = match messages {
        Value::String(text) => serde_json::from_str(&text).map_err(|_| wrong())?,
        messages => messages,
    };
    let messages = messages.as_array().filter(|messages| !messages.is_empty());
    let messages = messages.ok_or_else(wrong)?.iter();
    let messages: Option<Vec<_>> = messages.map(chat::openai_message).collect();
    chat::conversation(&messages.ok_or_else(wrong)?)
}
