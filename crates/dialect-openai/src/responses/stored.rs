//! `GET` and `DELETE /v1/responses/{id}`, and `GET /v1/responses/{id}/input_items`.

use std::sync::Arc;

use futures::TryStreamExt;
use serde::Deserialize;
use serde_json::{Value, json};
use volley_http_edge::axum::Json;
use volley_http_edge::axum::response::{IntoResponse, Response};
use volley_types::{ErrorCode, PredictError, ResumedStream, StreamId, StreamSource};

use crate::state::ResponsesCaller as Caller;
use volley_http_edge::context::RequestContext;
use volley_http_edge::error::{ApiError, with_code};
use volley_http_edge::extract::{Path, Query};

/// Slack in bytes above the size limit of a stored response.
const AROUND: usize = 1 << 10;

/// A stored response.
#[derive(Debug, Deserialize)]
pub(super) struct StoredResponse {
    pub(super) response: Value,
    /// The whole conversation, including the response.
    pub(super) items: Vec<Value>,
}

/// The id of a response as callers see it, with the prefix `resp_`.
pub(super) fn written(id: &StreamId) -> String {
    id.to_string().replacen('.', "_", 1)
}

fn parse(id: &str) -> Option<StreamId> {
    let (node, token) = id.strip_prefix("resp_")?.split_once('_')?;
    format!("{node}.{token}").parse().ok()
}

fn missing(id: &str) -> PredictError {
    let id: String = id.chars().filter(|c| !c.is_control()).take(100).collect();
    let message = format!(
        "response '{id}' is not stored: it was created with 'store' false, was deleted, has \
         expired, or its coordinator was restarted"
    );
    PredictError::new(ErrorCode::NotFound, message)
}

/// The error for an unknown `previous_response_id`.
pub(super) fn missing_previous() -> PredictError {
    PredictError::invalid(
        "field 'previous_response_id' names a response that is not stored: it was created with \
         'store' false, was deleted, has expired, or its coordinator was restarted; send the \
         whole conversation in 'input'",
    )
}

fn holder(caller: &Caller, id: &str) -> Result<(StreamId, Arc<dyn StreamSource>), PredictError> {
    let held = parse(id).and_then(|id| Some((caller.state.holder(&id)?, id)));
    held.map(|(holder, id)| (id, holder))
        .ok_or_else(|| missing(id))
}

/// A response of the caller, from any coordinator.
///
/// # Errors
/// `NotFound` if the caller has no response with this id; `Unavailable` if its coordinator does not
/// respond.
pub(super) async fn find(caller: &Caller, id: &str) -> Result<StoredResponse, PredictError> {
    let (held, holder) = holder(caller, id)?;
    let resumed = holder.resume(&held, 0, caller.principal.who()).await;
    let ResumedStream::Events(mut pieces) = resumed.map_err(|error| named(error, id))? else {
        return Err(missing(id));
    };
    let (mut text, most) = (Vec::new(), caller.state.responses().largest() + AROUND);
    while let Some(piece) = pieces.try_next().await? {
        text.extend_from_slice(&piece);
        if most < text.len() {
            return Err(PredictError::internal(
                "the response cannot be read",
                "too large",
            ));
        }
    }
    serde_json::from_slice(&text)
        .map_err(|error| PredictError::internal("the response cannot be read", error))
}

fn named(error: PredictError, id: &str) -> PredictError {
    match error.code {
        ErrorCode::NotFound => missing(id),
        _ => error,
    }
}

fn refused(error: PredictError) -> Response {
    let lost = error.code == ErrorCode::NotFound;
    let response = ApiError(error).into_response();
    match lost {
        true => with_code(response, "response_not_found"),
        false => response,
    }
}

/// Query parameters of [`get`].
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RetrieveQuery {
    #[serde(default)]
    stream: bool,
}

/// Returns a stored response.
pub(crate) async fn get(
    caller: Caller,
    context: RequestContext,
    Path(id): Path<String>,
    Query(read): Query<RetrieveQuery>,
) -> Result<Json<Value>, Response> {
    if read.stream {
        return Err(refused(PredictError::invalid(
            "parameter 'stream' is not supported: a stored response is complete",
        )));
    }
    let found = context.in_time(find(&caller, &id)).await;
    found.map(|held| Json(held.response)).map_err(refused)
}

/// Deletes a stored response.
pub(crate) async fn delete(
    caller: Caller,
    context: RequestContext,
    Path(id): Path<String>,
) -> Result<Json<Value>, Response> {
    let forgotten = async {
        let (held, holder) = holder(&caller, &id)?;
        let forgotten = holder.cancel(&held, caller.principal.who()).await;
        forgotten.map_err(|error| named(error, &id))
    };
    context.in_time(forgotten).await.map_err(refused)?;
    Ok(Json(
        json!({ "id": id, "object": "response", "deleted": true }),
    ))
}

/// Query parameters of [`input_items`].
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Page {
    limit: Option<usize>,
    order: Option<String>,
    after: Option<String>,
}

/// Lists the items of the conversation before a response, by default the latest first.
pub(crate) async fn input_items(
    caller: Caller,
    context: RequestContext,
    Path(id): Path<String>,
    Query(page): Query<Page>,
) -> Result<Json<Value>, Response> {
    let found = async {
        let held = find(&caller, &id).await?;
        items(&id, held, &page)
    };
    context.in_time(found).await.map(Json).map_err(refused)
}

fn items(id: &str, held: StoredResponse, page: &Page) -> Result<Value, PredictError> {
    let limit = page.limit.unwrap_or(20);
    if !(1..=100).contains(&limit) {
        return Err(PredictError::invalid("parameter 'limit' must be 1 to 100"));
    }
    let answers = held.response["output"].as_array().map_or(0, Vec::len);
    let mut items = held.items;
    items.truncate(items.len().saturating_sub(answers));
    let name = id.strip_prefix("resp_").unwrap_or(id);
    for (place, item) in items.iter_mut().enumerate() {
        if let Some(item) = item.as_object_mut() {
            item.entry("type").or_insert("message".into());
            let fresh = || Value::from(format!("item_{name}_{place}"));
            item.entry("id").or_insert_with(fresh);
        }
    }
    match page.order.as_deref() {
        None | Some("desc") => items.reverse(),
        Some("asc") => {}
        Some(_) => {
            return Err(PredictError::invalid(
                "parameter 'order' must be 'asc' or 'desc'",
            ));
        }
    }
    let from = match &page.after {
        None => 0,
        Some(after) => {
            let found = items.iter().position(|item| item["id"] == *after);
            found.map(|place| place + 1).ok_or_else(|| {
                PredictError::invalid("parameter 'after' must be the id of one of the items")
            })?
        }
    };
    let has_more = from + limit < items.len();
    let data: Vec<_> = items.into_iter().skip(from).take(limit).collect();
    Ok(json!({
        "object": "list",
        "first_id": data.first().map(|item| item["id"].clone()),
        "last_id": data.last().map(|item| item["id"].clone()),
        "has_more": has_more,
        "data": data,
    }))
}
