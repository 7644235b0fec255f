//! Anthropic's dialect: `POST /v1/messages`, `POST /v1/messages/count_tokens`, and Anthropic's
//! format of the list of models.
//!
//! Messages are converted to OpenAI's format: a `tool_use` block becomes a call of an assistant's
//! message, and a `tool_result` block becomes a message with the role `tool`.

mod content;
pub mod dialect;
pub mod error;
pub(crate) mod events;
pub mod models;
pub(crate) mod operations;
mod request;

use http::HeaderMap;
use serde_json::{Value, json};
use volley_http_edge::axum::Json;
use volley_http_edge::axum::response::Response;
use volley_types::params::COUNT_TOKENS;
use volley_types::{
    ChunkStream, Details, Dialect, FinishReason, GenerationRow, Input, PredictError,
    PredictRequest, Task, Usage,
};

use self::events::MessageEvents;
use self::request::{Limit, MessagesRequest};
use volley_dialect_kit::answer::{self, Choice};
use volley_dialect_kit::blocks::{self, is_stop_sequence, stop_reason};
use volley_dialect_kit::chat;
use volley_dialect_kit::parameters;
use volley_dialect_kit::pieces::CallPiece;
use volley_dialect_kit::sse;
use volley_dialect_kit::supplement;
use volley_http_edge::body::JsonMessages;
use volley_http_edge::context::RequestContext;
use volley_http_edge::edge::Caller;
use volley_http_edge::error::ApiError;

/// Name of the provider whose format this dialect uses.
const FORMAT: &str = "anthropic";

/// Creates a message, complete or streamed.
pub(crate) async fn create(
    caller: Caller,
    context: RequestContext,
    headers: HeaderMap,
    JsonMessages(body): JsonMessages,
) -> Result<Response, ApiError> {
    let asked = request::read(body, Limit::Needed, &headers)?;
    let id = format!("msg_{}", context.request_id);
    let begun = begin(&caller, &asked, &context);
    if asked.stream {
        let first = async {
            let mut chunks = begun.await?;
            let first = sse::first(&mut chunks).await?;
            GenerationRow::rows(&first)?
                .next()
                .map_or(Ok(()), |row| answer::failure(&row))?;
            Ok((first, chunks))
        };
        let (first, chunks) = context.in_time(first).await?;
        let events = MessageEvents::new(&id, &asked.name);
        let keep_alive = caller.config.keep_alive;
        return Ok(sse::response(first, chunks, events, keep_alive, &context));
    }
    let whole = async { answer::choices(&answer::collect(begun.await?).await?) };
    let choice = context.in_time(whole).await?.into_iter().next();
    let choice = choice.ok_or_else(sse::silent_end)?;
    Ok(blocks::body(&message(&id, &asked.name, choice)?))
}

/// Counts the prompt tokens of a message with the model's own tokenizer.
pub(crate) async fn count_tokens(
    caller: Caller,
    context: RequestContext,
    headers: HeaderMap,
    JsonMessages(body): JsonMessages,
) -> Result<Json<Value>, ApiError> {
    let mut asked = request::read(body, Limit::Open, &headers)?;
    asked
        .parameters
        .insert(COUNT_TOKENS.to_owned(), true.into());
    let counted = async {
        let chunks = begin(&caller, &asked, &context).await?;
        answer::prompt_tokens(&answer::collect(chunks).await?)
    };
    let tokens = context.in_time(counted).await?;
    Ok(Json(json!({ "input_tokens": tokens })))
}

async fn begin(
    caller: &Caller,
    asked: &MessagesRequest,
    context: &RequestContext,
) -> Result<ChunkStream, PredictError> {
    let signature = caller.cluster.inference.signature(&asked.model).await?;
    if signature.task != Task::Generate {
        return Err(PredictError::invalid(format!(
            "model '{}' has the task '{}', and this route needs '{}'",
            asked.name,
            signature.task.as_str(),
            Task::Generate.as_str()
        )));
    }
    let (rows, native) = chat::native_rows(&signature, &asked.messages, asked.native.clone())?;
    let mut request = PredictRequest::new(asked.model.clone(), Input::Batch(rows));
    request.request_id = context.request_id.clone();
    request.trace = context.trace;
    request.session = context.session.clone();
    request.deadline = Some(context.deadline);
    request.dialect = Dialect::Anthropic;
    request.whole = !asked.stream;
    request.parameters = parameters::from_json(&asked.parameters)?;
    if let Some(native) = native {
        native.put(&mut request.parameters)?;
    }
    caller.cluster.inference.predict(request).await
}

/// Formats a complete message.
fn message(id: &str, model: &str, choice: Choice) -> Result<Value, PredictError> {
    let mut message = json!({
        "id": id,
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": content::blocks(id, &choice)?,
    });
    let ending = ending(
        choice.finish_reason,
        &choice.details,
        !choice.refusal.is_empty(),
    );
    if let (Value::Object(message), Value::Object(ending)) = (&mut message, ending) {
        message.extend(ending);
    }
    message["usage"] = usage(choice.usage, Some(&choice.details));
    if let Some(given) = supplement::of(&choice.details, FORMAT) {
        supplement::supplement(&mut message, given);
    }
    Ok(message)
}

/// The id of a call; a generated id if the model gave none. The provider's signature becomes part
/// of the id, because clients return ids unchanged.
fn call_id(call: &CallPiece, message: &str) -> String {
    let id = match call.id.as_deref().filter(|id| !id.is_empty()) {
        Some(id) => id.to_owned(),
        None => format!(
            "toolu_{}_{}",
            message.trim_start_matches("msg_"),
            call.index
        ),
    };
    match &call.signature {
        Some(signature) => chat::signed_id(&id, signature),
        None => id,
    }
}

/// The finish reason and its details. An upstream of this format supplies its own.
fn ending(reason: Option<FinishReason>, details: &Details, refused: bool) -> Value {
    let native = details.format.as_deref() == Some(FORMAT);
    let own = details.stop_reason.as_deref().filter(|_| native);
    let reason = match (own, reason) {
        (Some("tool_use" | "end_turn"), reason) if !refused => stop_reason(reason),
        (Some(own), _) => own,
        (None, _) if refused => "refusal",
        (None, Some(FinishReason::Stop) | None) if is_stop_sequence(details) => "stop_sequence",
        (None, reason) => stop_reason(reason),
    };
    let sequence = details.stop_sequence.as_ref();
    let sequence = sequence.filter(|_| reason == "stop_sequence");
    let mut ending = json!({ "stop_reason": reason, "stop_sequence": sequence });
    if let Some(told) = details.stop_details.as_ref().filter(|_| native) {
        ending["stop_details"] = told.clone();
    }
    if let Some(Value::Object(fields)) = details.fields.as_ref().filter(|_| native) {
        for (name, value) in fields {
            ending[name.as_str()] = value.clone();
        }
    }
    ending
}

/// The usage of a message. `input_tokens` excludes the tokens that were read from or written to a
/// cache. Unknown counts are null.
fn usage(usage: Option<Usage>, details: Option<&Details>) -> Value {
    let Some(usage) = usage else {
        return json!({ "input_tokens": null, "output_tokens": null });
    };
    let mut told = blocks::usage(usage);
    let native = details.filter(|details| details.format.as_deref() == Some(FORMAT));
    let native = native.and_then(|details| details.usage.as_ref());
    for (name, value) in native.and_then(Value::as_object).into_iter().flatten() {
        if told.get(name).is_none() {
            told[name.as_str()] = value.clone();
        }
    }
    told
}
