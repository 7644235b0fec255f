//! `POST /v1/responses`: what a chat completion does, in OpenAI's newer form.
//!
//! Items become the pipeline's messages ([`request`]); rows become items ([`output`]), whole or
//! as a sequence of typed events ([`events`]). Nothing is stored.

mod events;
mod output;
mod request;
mod tools;

use std::sync::Arc;

use axum::Json;
use axum::response::{IntoResponse, Response};
use serde_json::{Map, Value, json};
use volley_types::params::COUNT_TOKENS;
use volley_types::{PredictError, PredictRequest, Task};

use self::events::ResponseEvents;
use self::output::Draft;
use super::{chat, model, now};
use crate::answer;
use crate::app::App;
use crate::body::JsonObject;
use crate::context::RequestContext;
use crate::error::ApiError;
use crate::extract::State;
use crate::sse;

/// A response, whole or streamed.
pub(crate) async fn create(
    State(app): State<Arc<App>>,
    context: RequestContext,
    JsonObject(mut body): JsonObject,
) -> Result<Response, ApiError> {
    let begun = read(&app, &mut body, &context);
    let (request, draft, stream) = context.in_time(begun).await?;
    if stream {
        let events = ResponseEvents::new(draft);
        return chat::stream(&app, request, events, &context).await;
    }
    let whole = async {
        let chunks = app.control.predict(request).await?;
        let choices = answer::choices(&answer::collect(chunks).await?)?;
        let choice = choices.into_iter().next().ok_or_else(sse::silent_end)?;
        Ok(draft.whole(choice, now()))
    };
    Ok(Json(context.in_time(whole).await?).into_response())
}

/// How many tokens a response's input has, as the model's own tokenizer counts them.
pub(crate) async fn count(
    State(app): State<Arc<App>>,
    context: RequestContext,
    JsonObject(mut body): JsonObject,
) -> Result<Json<Value>, ApiError> {
    body.insert(COUNT_TOKENS.to_owned(), true.into());
    let counted = async {
        let (request, ..) = read(&app, &mut body, &context).await?;
        let chunks = app.control.predict(request).await?;
        answer::prompt_tokens(&answer::collect(chunks).await?)
    };
    let tokens = context.in_time(counted).await?;
    let body = json!({ "object": "response.input_tokens", "input_tokens": tokens });
    Ok(Json(body))
}

async fn read(
    app: &App,
    body: &mut Map<String, Value>,
    context: &RequestContext,
) -> Result<(PredictRequest, Draft, bool), PredictError> {
    let (name, model, signature) = model(app, body).await?;
    super::expect(&name, &signature, Task::Generate)?;
    let asked = request::read(std::mem::take(body))?;
    let rows = crate::chat::conversation(&asked.messages)?;
    let request = super::request(model, rows, &asked.parameters, context)?;
    let draft = Draft::new(context.request_id.as_str(), &name, now(), asked.echo);
    Ok((request, draft, asked.stream))
}
