//! Cohere's dialect: `POST /v2/chat`, `POST /v1/embed` and `POST /v2/embed`. Cohere's reranking is
//! in the shared dialect kit, because other servers have the same format.
//!
//! Messages have OpenAI's format, except for the content of tool results and an assistant's plan
//! for its calls.

pub mod dialect;
pub(crate) mod embed;
pub mod error;
mod events;
pub(crate) mod operations;
mod request;

use serde_json::{Map, Value, json};
use volley_http_edge::axum::Json;
use volley_http_edge::axum::response::{IntoResponse, Response};
use volley_types::{
    Citation, Details, Dialect, FinishReason, PredictError, PredictRequest, Task, Usage,
};

use self::events::ChatEvents;
use volley_dialect_kit::answer::{self, Choice};
use volley_dialect_kit::blocks::is_stop_sequence;
use volley_dialect_kit::chat;
use volley_dialect_kit::generation::stream;
use volley_dialect_kit::pieces::{CallPiece, Piece};
use volley_dialect_kit::requests;
use volley_dialect_kit::sse;
use volley_dialect_kit::supplement;
use volley_http_edge::body::JsonObject;
use volley_http_edge::context::RequestContext;
use volley_http_edge::edge::Caller;
use volley_http_edge::error::ApiError;

/// Name of the provider whose format this dialect uses.
const FORMAT: &str = "cohere";

/// Creates a chat response, complete or streamed.
pub(crate) async fn chat(
    caller: Caller,
    context: RequestContext,
    JsonObject(mut body): JsonObject,
) -> Result<Response, ApiError> {
    let id = context.request_id.to_string();
    let begun = read(&caller, &mut body, &context);
    let (request, streams) = context.in_time(begun).await?;
    if streams {
        return stream(&caller, request, ChatEvents::new(&id), &context).await;
    }
    let whole = async {
        let chunks = caller.cluster.inference.predict(request).await?;
        let choices = answer::choices(&answer::collect(chunks).await?)?;
        choices.into_iter().next().ok_or_else(sse::silent_end)
    };
    let choice = context.in_time(whole).await?;
    Ok(Json(message(&id, choice)).into_response())
}

async fn read(
    caller: &Caller,
    body: &mut Map<String, Value>,
    context: &RequestContext,
) -> Result<(PredictRequest, bool), PredictError> {
    let (name, model, signature) = requests::model(caller, body).await?;
    requests::expect(&name, &signature, Task::Generate)?;
    let asked = request::read(std::mem::take(body))?;
    let (rows, native) = chat::native_rows(&signature, &asked.messages, Some(asked.native))?;
    let mut request = requests::request(model, rows, &asked.parameters, context)?;
    request.dialect = Dialect::Cohere;
    request.whole = !asked.stream;
    if let Some(native) = native {
        native.put(&mut request.parameters)?;
    }
    Ok((request, asked.stream))
}

fn message(id: &str, choice: Choice) -> Value {
    let mut content = Vec::new();
    let refused = !choice.refusal.is_empty();
    let (thinking, plan) = thoughts(&choice.pieces);
    if !thinking.is_empty() {
        content.push(json!({ "type": "thinking", "thinking": thinking }));
    }
    let place = content.len();
    let text = choice.text_or_note();
    if !text.is_empty() || choice.tool_calls.is_empty() {
        content.push(json!({ "type": "text", "text": text }));
    }
    let mut message = json!({ "role": "assistant", "content": content });
    if !plan.is_empty() {
        message["tool_plan"] = plan.into();
    }
    // An upstream of this format may cite several sources for one passage, which the shared format
    // cannot represent.
    let own: Vec<_> = choice.pieces.iter().flat_map(own_citations).collect();
    if !own.is_empty() {
        message["citations"] = own.into_iter().cloned().collect();
    } else if !choice.citations.is_empty() {
        let told = choice.citations.iter();
        message["citations"] = told
            .map(|cited| citation(cited, &choice.text, place))
            .collect();
    }
    if !choice.tool_calls.is_empty() {
        message["tool_calls"] = choice.tool_calls.into_iter().map(call).collect();
    }
    let mut told = json!({
        "id": id,
        "finish_reason": finish_reason(choice.finish_reason, &choice.details, refused),
        "message": message,
    });
    if let Some(used) = choice.usage {
        told["usage"] = usage(used, &choice.details);
    }
    if !choice.tokens.is_empty() {
        let tokens = choice.tokens.chunks(1);
        told["logprobs"] = tokens.map(logprobs).collect();
    }
    if let Some(given) = supplement::of(&choice.details, FORMAT) {
        // The citations and log probabilities of the upstream's own response replace those built
        // here, because they have its sources and token ids.
        if let Some(message) = told["message"].as_object_mut() {
            message.remove("citations");
        }
        told["logprobs"] = Value::Null;
        supplement::supplement(&mut told, given);
        if let Some(told) = told
            .as_object_mut()
            .filter(|told| told["logprobs"].is_null())
        {
            told.remove("logprobs");
        }
    }
    told
}

/// Returns the reasoning, and the part of it that is a plan for calls.
fn thoughts(pieces: &[Piece]) -> (String, String) {
    let (mut thinking, mut plan) = (String::new(), String::new());
    for (at, piece) in pieces.iter().enumerate() {
        let Piece::Thinking(text) = piece else {
            continue;
        };
        match pieces.get(at + 1) {
            Some(Piece::Details(details)) if is_plan(details) => plan.push_str(text),
            _ => thinking.push_str(text),
        }
    }
    (thinking, plan)
}

/// Whether the reasoning before these details is a plan for the calls that follow.
fn is_plan(details: &Details) -> bool {
    details.format.as_deref() == Some(FORMAT) && details.item.as_deref() == Some("tool_plan")
}

/// Formats a complete call. OpenAI's format is also Cohere's, but some models omit the type. The
/// provider's signature becomes part of the id.
fn call(mut call: Value) -> Value {
    call["type"] = "function".into();
    let signature = call.pointer("/extra_content/google/thought_signature");
    let signature = signature.and_then(Value::as_str);
    if let (Some(id), Some(signature)) = (call["id"].as_str(), signature) {
        let id = chat::signed_id(id, signature);
        call["id"] = id.into();
    }
    if let Some(fields) = call.as_object_mut() {
        fields.remove("extra_content");
    }
    call
}

/// The id of a call in a stream; a generated id if the model gave none.
fn call_id(call: &CallPiece, message: &str) -> String {
    let id = match call.id.as_deref().filter(|id| !id.is_empty()) {
        Some(id) => id.to_owned(),
        None => format!("call_{message}_{}", call.index),
    };
    match &call.signature {
        Some(signature) => chat::signed_id(&id, signature),
        None => id,
    }
}

/// The finish reason. An upstream of this format supplies its own. A content filter and a refusal
/// are reported as `ERROR_TOXIC`, the value of Cohere's version 1.
fn finish_reason(reason: Option<FinishReason>, details: &Details, refused: bool) -> String {
    let native = details.format.as_deref() == Some(FORMAT);
    let own = details.stop_reason.as_deref().filter(|_| native);
    let reason = match (reason, own) {
        (Some(FinishReason::ToolCalls), _) => "TOOL_CALL",
        (_, Some(own)) => own,
        (Some(FinishReason::Length), _) => "MAX_TOKENS",
        (Some(FinishReason::ContentFilter), _) => "ERROR_TOXIC",
        (Some(FinishReason::Error), _) => "ERROR",
        (Some(FinishReason::Stop) | None, _) if refused => "ERROR_TOXIC",
        (Some(FinishReason::Stop) | None, _) if is_stop_sequence(details) => "STOP_SEQUENCE",
        (Some(FinishReason::Stop) | None, _) => "COMPLETE",
    };
    reason.to_owned()
}

fn usage(usage: Usage, details: &Details) -> Value {
    if let (Some(FORMAT), Some(native @ Value::Object(_))) =
        (details.format.as_deref(), &details.usage)
    {
        return native.clone();
    }
    let counts = json!({
        "input_tokens": usage.prompt_tokens, "output_tokens": usage.completion_tokens,
    });
    let mut told = json!({ "tokens": counts });
    if usage.cached_tokens != 0 {
        told["cached_tokens"] = usage.cached_tokens.into();
    }
    told
}

/// Log probabilities of tokens, with the token ids if the upstream reports them.
fn logprobs(tokens: &[Value]) -> Value {
    let texts = tokens.iter().filter_map(|token| token["token"].as_str());
    let numbers = tokens.iter().map(|token| &token["token_id"]);
    json!({
        "text": texts.collect::<String>(),
        "token_ids": numbers.filter(|number| number.is_number()).collect::<Vec<_>>(),
        "logprobs": tokens.iter().map(|token| &token["logprob"]).collect::<Vec<_>>(),
    })
}

/// The citations of a piece in Cohere's format.
fn own_citations(piece: &Piece) -> Vec<&Value> {
    match piece {
        Piece::Details(details) => events::cited(details),
        _ => Vec::new(),
    }
}

/// Converts a citation. `text` is the answer so far, and `place` the index of its content part.
fn citation(cited: &Citation, text: &str, place: usize) -> Value {
    let number = |place: Option<u32>| place.and_then(|place| usize::try_from(place).ok());
    let (start, end) = (number(cited.start).unwrap_or(0), number(cited.end));
    let length = end.map_or(usize::MAX, |end| end.saturating_sub(start));
    let passage: String = text.chars().skip(start).take(length).collect();
    let document = [
        ("title", &cited.title),
        ("url", &cited.url),
        ("snippet", &cited.quote),
    ];
    let document = document
        .into_iter()
        .filter_map(|(name, value)| Some((name.to_owned(), Value::from(value.as_deref()?))));
    let id = cited.source.clone().unwrap_or_else(|| cited.uri());
    json!({
        "start": start,
        "end": end.unwrap_or_else(|| start + passage.chars().count()),
        "text": passage,
        "sources": [{
            "type": "document", "id": id, "document": document.collect::<Map<_, _>>(),
        }],
        "content_index": place,
        "type": "TEXT_CONTENT",
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn citations_tell_their_passage_and_their_source() {
        let cited = Citation {
            url: Some("https://a.example".to_owned()),
            title: Some("A".to_owned()),
            start: Some(4),
            end: Some(5),
            ..Citation::default()
        };
        let told = citation(&cited, "Ein 🦊 lief.", 1);
        assert_eq!(
            (&told["text"], &told["end"], &told["content_index"]),
            (&json!("🦊"), &json!(5), &json!(1))
        );
        let source = &told["sources"][0];
        assert_eq!(source["id"], "https://a.example");
        assert_eq!(
            source["document"],
            json!({ "title": "A", "url": "https://a.example" })
        );
        let open = citation(&Citation::default(), "fox", 0);
        assert_eq!((&open["text"], &open["end"]), (&json!("fox"), &json!(3)));
        let past = Citation {
            start: Some(9),
            end: Some(2),
            ..cited
        };
        assert_eq!(citation(&past, "fox", 0)["text"], "");
    }
}
