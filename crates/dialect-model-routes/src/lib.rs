//! Routes that models declare: `/models/{model}/{route}`.
//!
//! A model with a route of its own is called by programs with `POST` and a JSON object, and by a
//! browser's `EventSource` with `GET` and a query. Both name inputs and parameters of the model. The
//! response is a stream of `data:` events, which ends with `data: [DONE]`.

mod events;
mod input;

use arrow_array::RecordBatch;
use futures::TryStreamExt;
use http::Uri;
use serde::Deserialize;
use serde_json::{Map, Value};
use volley_dialect_kit::{events as column_events, requests, sse};
use volley_http_edge::auth::PREDICT;
use volley_http_edge::axum::response::Response;
use volley_http_edge::body::UntypedJsonObject;
use volley_http_edge::context::RequestContext;
use volley_http_edge::dialect::Dialect;
use volley_http_edge::edge::{Caller, Edge};
use volley_http_edge::error::ApiError;
use volley_http_edge::extract::Path;
use volley_http_edge::operation::{self, Operation};
use volley_http_edge::routes::{Routes, get_stream, post_stream};
use volley_types::signature::route_of;
use volley_types::{ErrorCode, PredictError, Task};

use crate::events::RouteEvents;

/// The routes of models.
#[derive(Clone)]
pub struct ModelRoutes(Edge);

impl ModelRoutes {
    /// The routes at `edge`.
    #[must_use]
    pub fn new(edge: &Edge) -> Self {
        Self(edge.clone())
    }
}

const PATH: &str = "/models/{model}/{route}";

impl Dialect for ModelRoutes {
    fn operations(&self) -> &'static [Operation] {
        const OPERATIONS: &[Operation] = &[
            operation::post(
                PATH,
                "Calls a model on the route that it declares, with named inputs and parameters.",
                "Anything",
                "text/event-stream",
            )
            .streamed(),
            operation::get(
                PATH,
                "The same for a browser's EventSource, with the inputs and parameters in the query.",
                "text/event-stream",
            )
            .streamed(),
        ];
        OPERATIONS
    }

    fn routes(&self) -> Routes<()> {
        let methods = post_stream(PREDICT, &self.0, post).and(get_stream(PREDICT, &self.0, get));
        Routes::new()
            .route(PATH, methods)
            .with_state(self.0.clone())
    }
}

/// The model and the route in a path.
#[derive(Debug, Deserialize)]
struct RoutePath {
    model: String,
    route: String,
}

async fn post(
    caller: Caller,
    Path(path): Path<RoutePath>,
    context: RequestContext,
    UntypedJsonObject(body): UntypedJsonObject,
) -> Result<Response, ApiError> {
    answer(&caller, &path, &context, RouteFields::Json(body)).await
}

async fn get(
    caller: Caller,
    Path(path): Path<RoutePath>,
    context: RequestContext,
    uri: Uri,
) -> Result<Response, ApiError> {
    answer(&caller, &path, &context, RouteFields::Query(uri)).await
}

/// The inputs and parameters of a request.
enum RouteFields {
    Json(Map<String, Value>),
    Query(Uri),
}

/// Streams the response. The status is sent with the first event, so that an early failure has its
/// own status.
async fn answer(
    caller: &Caller,
    path: &RoutePath,
    context: &RequestContext,
    fields: RouteFields,
) -> Result<Response, ApiError> {
    let begun = async {
        let model = requests::reference(&path.model)?;
        let signature = caller.cluster.inference.signature(&model).await?;
        if route_of(&signature) != Some(path.route.as_str()) {
            return Err(no_route(path));
        }
        let fields = match fields {
            RouteFields::Json(fields) => fields,
            RouteFields::Query(uri) => input::of_query(&uri, &signature)?,
        };
        let (rows, parameters) = input::rows(fields, &signature)?;
        let request = requests::request(model, rows, &parameters, context)?;
        let mut chunks = caller.cluster.inference.predict(request).await?;
        if signature.task == Task::Events {
            chunks = column_events::whole(chunks, &signature);
            let first = chunks.try_next().await?;
            let first = first.unwrap_or_else(|| RecordBatch::new_empty(chunks.schema()));
            return Ok((first, chunks, RouteEvents::columns()));
        }
        let first = sse::first(&mut chunks).await?;
        events::check_first(&first)?;
        Ok((first, chunks, RouteEvents::texts()))
    };
    let (first, chunks, events) = context.in_time(begun).await?;
    let keep_alive = caller.config.keep_alive;
    Ok(sse::response(first, chunks, events, keep_alive, context))
}

fn no_route(path: &RoutePath) -> PredictError {
    let printable = |text: &str| -> String {
        let text = text.chars().filter(|c| !c.is_control());
        text.take(128).collect()
    };
    let message = format!(
        "model '{}' declares no route '/{}'; a Python model declares one with the attribute 'route'",
        printable(&path.model),
        printable(&path.route)
    );
    PredictError::new(ErrorCode::NotFound, message)
}
