//! `_predict` bodies into request rows.

use arrow_array::RecordBatch;
use serde_json::{Map, Value};
use volley_types::{Parameters, PredictError, Signature, Task};

use crate::prediction::Prediction;
use crate::texts;
use volley_dialect_kit::chat;
use volley_dialect_kit::parameters;
use volley_http_edge::body::Fields;

/// Fields of `parameters` that tell an ml-commons server how to stream; here it is known.
const STREAM_HINTS: [&str; 2] = ["stream", "_llm_interface"];

/// The interfaces that a stream's request may name. Which one the model's server has is known
/// from its connector; a local model has none.
const INTERFACES: [&str; 5] = [
    "openai/v1/chat/completions",
    "bedrock/converse",
    "bedrock/converse/claude",
    "bedrock/converse/deepseek_r1",
    "gemini/v1beta/generatecontent",
];

/// Refuses a stream of an interface that nobody has heard of.
///
/// # Errors
/// `InvalidInput` with the list of those that are known.
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

/// What a body holds: rows for the model, and parameters.
pub(crate) fn read(
    body: &Prediction,
    signature: &Signature,
) -> Result<(RecordBatch, Parameters), PredictError> {
    let own: &[&str] = match signature.task {
        Task::Generate => &[],
        Task::Tensors => &["inputs"],
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
        Task::Tensors => {
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

/// One row from `prompt`, `inputs` or `messages`.
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

/// Messages as JSON, or as the text of JSON (a client of ml-commons may send either).
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
