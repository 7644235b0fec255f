//! Cohere's dialect: `POST /v2/chat`, and `POST /v1/embed` and `POST /v2/embed`. Its reranking
//! stands in OpenAI's, as Jina has it too.
//!
//! Messages have OpenAI's form but for the content of tools' results, and for what an assistant
//! plans before its calls.

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

/// The name of the provider whose form this is.
const FORMAT: &str = "cohere";

/// A chat, whole or streamed.
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
    let (thinking, plan) = thoughts(&choice.pieces);
    if !thinking.is_empty() {
        content.push(json!({ "type": "thinking", "thinking": thinking }));
    }
    let place = content.len();
    if !choice.text.is_empty() || choice.tool_calls.is_empty() {
        content.push(json!({ "type": "text", "text": choice.text }));
    }
    let mut message = json!({ "role": "assistant", "content": content });
    if !plan.is_empty() {
        message["tool_plan"] = plan.into();
    }
    // A server of this form names several sources of one passage together.
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
        "finish_reason": finish_reason(choice.finish_reason, &choice.details),
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
        // Citations, and the numbers of tokens, are the server's own.
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

/// What was thought, and what of it is a plan for the calls.
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

/// Whether the reasoning in front is a plan for the calls that follow.
fn is_plan(details: &Details) -> bool {
    details.format.as_deref() == Some(FORMAT) && details.item.as_deref() == Some("tool_plan")
}

/// A whole call in OpenAI's form, which is Cohere's; some models leave the type out. What its
/// provider wants back goes along with the id.
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

/// The id of a call in a stream; one of ours where its model gave it none.
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

/// Why an answer ended: in its server's own words where those are of this dialect. What its filter
/// cut has the word of its first version.
fn finish_reason(reason: Option<FinishReason>, details: &Details) -> String {
    let native = details.format.as_deref() == Some(FORMAT);
    let own = details.stop_reason.as_deref().filter(|_| native);
    let reason = match (reason, own) {
        (Some(FinishReason::ToolCalls), _) => "TOOL_CALL",
        (_, Some(own)) => own,
        (Some(FinishReason::Length), _) => "MAX_TOKENS",
        (Some(FinishReason::ContentFilter), _) => "ERROR_TOXIC",
        (Some(FinishReason::Error), _) => "ERROR",
        (Some(FinishReason::Stop) | None, _) => match details.stop_sequence {
            Some(_) => "STOP_SEQUENCE",
            None => "COMPLETE",
        },
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

/// Tokens with their probabilities, and with their numbers where the server tells them.
fn logprobs(tokens: &[Value]) -> Value {
    let texts = tokens.iter().filter_map(|token| token["token"].as_str());
    let numbers = tokens.iter().map(|token| &token["token_id"]);
    json!({
        "text": texts.collect::<String>(),
        "token_ids": numbers.filter(|number| number.is_number()).collect::<Vec<_>>(),
        "logprobs": tokens.iter().map(|token| &token["logprob"]).collect::<Vec<_>>(),
    })
}

/// The citations of a piece in the form of a Cohere server.
fn own_citations(piece: &Piece) -> Vec<&Value> {
    match piece {
        Piece::Details(details) => events::cited(details),
        _ => Vec::new(),
    }
}

/// A citation of the part of the content at `place`, whose text is known as far as `text` goes.
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
