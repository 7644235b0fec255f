//! `POST /v1/responses`: generation in OpenAI's newer format.
//!
//! `request` converts items to the messages of a request, `output` converts rows to items, and
//! `events` converts rows to a sequence of typed events. `store` keeps responses for a while, so
//! that a later request can continue from one; `stored` serves them.

mod events;
mod items;
mod nested;
mod output;
mod request;
pub mod store;
pub(crate) mod stored;
mod tools;

use serde_json::{Map, Value, json};
use volley_http_edge::axum::Json;
use volley_http_edge::axum::response::{IntoResponse, Response};
use volley_types::params::COUNT_TOKENS;
use volley_types::{Dialect, ErrorCode, PredictError, PredictRequest, Task};

use self::events::ResponseEvents;
use self::output::{Draft, StoreTarget};
use crate::state::ResponsesCaller as Caller;
use volley_dialect_kit::answer;
use volley_dialect_kit::clock::now;
use volley_dialect_kit::generation;
use volley_dialect_kit::requests::{self, model_for};
use volley_http_edge::body::{Fields, JsonObject};
use volley_http_edge::context::RequestContext;
use volley_http_edge::error::{ApiError, with_code};

/// Name of the provider whose format this dialect uses.
const FORMAT: &str = "openai_responses";

/// Creates a response, complete or streamed.
pub(crate) async fn create(
    caller: Caller,
    context: RequestContext,
    JsonObject(mut body): JsonObject,
) -> Result<Response, ApiError> {
    let earlier = match context.in_time(earlier(&caller, &body)).await? {
        Ok(earlier) => earlier,
        Err(lost) => return Ok(lost),
    };
    let store = take_store(&mut body)?;
    let begun = read(&caller, &mut body, &context, earlier, store);
    let (request, draft, stream) = context.in_time(begun).await?;
    if stream {
        let events = ResponseEvents::new(draft);
        return generation::stream(&caller, request, events, &context).await;
    }
    let whole = async {
        let chunks = caller.cluster.inference.predict(request).await?;
        let batches = answer::collect(chunks).await?;
        ResponseEvents::new(draft).whole(&batches)
    };
    Ok(Json(context.in_time(whole).await?).into_response())
}

/// Counts the input tokens of a response with the model's own tokenizer.
pub(crate) async fn count(
    caller: Caller,
    context: RequestContext,
    JsonObject(mut body): JsonObject,
) -> Result<Json<Value>, ApiError> {
    body.insert(COUNT_TOKENS.to_owned(), true.into());
    take_store(&mut body)?;
    let counted = async {
        let earlier = match earlier(&caller, &body).await? {
            Ok(earlier) => earlier,
            Err(_) => return Err(stored::missing_previous()),
        };
        let (request, ..) = read(&caller, &mut body, &context, earlier, false).await?;
        let chunks = caller.cluster.inference.predict(request).await?;
        answer::prompt_tokens(&answer::collect(chunks).await?)
    };
    let tokens = context.in_time(counted).await?;
    let body = json!({ "object": "response.input_tokens", "input_tokens": tokens });
    Ok(Json(body))
}

/// Removes `store`. Returns whether to store the response, which is the default.
fn take_store(body: &mut Map<String, Value>) -> Result<bool, PredictError> {
    match body.remove("store") {
        None | Some(Value::Null) => Ok(true),
        Some(Value::Bool(store)) => Ok(store),
        Some(_) => Err(PredictError::invalid("field 'store' must be true or false")),
    }
}

/// The items of the conversation before this response, if the body references a previous one. The
/// inner error is the response for an unknown id.
async fn earlier(
    caller: &Caller,
    body: &Map<String, Value>,
) -> Result<Result<Vec<Value>, Response>, PredictError> {
    let Some(id) = body.text("previous_response_id")? else {
        return Ok(Ok(Vec::new()));
    };
    match stored::find(caller, id).await {
        Ok(held) => Ok(Ok(held.items)),
        Err(error) if error.code == ErrorCode::NotFound => {
            let refused = ApiError(stored::missing_previous()).into_response();
            Ok(Err(with_code(refused, "previous_response_not_found")))
        }
        Err(error) => Err(error),
    }
}

async fn read(
    caller: &Caller,
    body: &mut Map<String, Value>,
    context: &RequestContext,
    earlier: Vec<Value>,
    store: bool,
) -> Result<(PredictRequest, Draft, bool), PredictError> {
    let (name, model, signature) = model_for(caller, body, Task::Generate).await?;
    let asked = request::read(std::mem::take(body), earlier)?;
    if let (Some(unknown), false) = (&asked.unknown, signature.takes_native(FORMAT)) {
        return Err(PredictError::invalid(format!("{unknown}; leave it out")));
    }
    let (rows, native) =
        volley_dialect_kit::chat::native_rows(&signature, &asked.messages, Some(asked.native))?;
    let mut request = requests::request(model, rows, &asked.parameters, context)?;
    request.dialect = Dialect::OpenAiResponses;
    request.whole = !asked.stream;
    if let Some(native) = native {
        native.put(&mut request.parameters)?;
    }
    let responses = caller.state.responses();
    let keeping = match store {
        false => None,
        true => Some(StoreTarget {
            responses: responses.clone(),
            id: responses.fresh_id()?,
            owner: caller.owner(),
            items: asked.items,
        }),
    };
    let id = match &keeping {
        Some(keeping) => stored::written(&keeping.id),
        None => context.request_id.to_string(),
    };
    let draft = Draft::new(&id, &name, now(), asked.echo, keeping);
    Ok((request, draft, asked.stream))
}
