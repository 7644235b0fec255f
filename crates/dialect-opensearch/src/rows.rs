//! Requests whose rows arrive while responses are sent: a body of JSON lines or an Arrow stream is
//! consumed while rows go back as events, lines or an Arrow stream.
//!
//! This is the route of the dialect's own streams. A JSON body that is answered with events is
//! handled by `predict`.

mod answer;
mod arrow;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing;
mod ndjson;
mod pieces;
mod read_ahead;

use std::time::Duration;

use futures::{Stream, StreamExt};
use http::{HeaderMap, header};
use serde_json::Value;
use volley_http_edge::axum::body::Body;
use volley_http_edge::axum::extract::{FromRequest, Request};
use volley_http_edge::axum::response::{IntoResponse, Response};
use volley_types::{
    ChunkStream, GenerationRow, Input, ModelRef, Parameters, PredictError, PredictRequest, Share,
    Task,
};

use self::answer::Format;
use self::pieces::Pieces;
use self::read_ahead::ReadAhead;
use crate::predict;
use crate::prediction::Prediction;
use crate::state::OpenSearchCaller;
use volley_http_edge::body;
use volley_http_edge::context::RequestContext;
use volley_http_edge::edge::Edge;
use volley_http_edge::error::ApiError;
use volley_http_edge::extract::Path;

const NDJSON: [&str; 4] = [
    "application/x-ndjson",
    "application/ndjson",
    "application/jsonl",
    "application/x-jsonlines",
];
const ARROW: &str = "application/vnd.apache.arrow.stream";
/// Time after which a caller that sends rows slowly receives a status. Some clients do not send
/// more rows before they have one.
const STATUS_GRACE: Duration = Duration::from_secs(1);

pub use self::answer::failure;
pub use self::ndjson::batch_of;

/// Formats a response as JSON objects, one for each row, until the deadline. The stream never
/// fails: its last object reports the end or the error. Dropping the stream cancels the prediction.
pub fn objects(
    task: Task,
    chunks: ChunkStream,
    context: &RequestContext,
) -> impl Stream<Item = Vec<Value>> + Send + use<> {
    let answer = answer::RowsAnswer {
        task,
        first: None,
        chunks,
        ahead: ReadAhead::none(),
    };
    answer.objects(context)
}

/// The body of a request, by its media type.
pub(crate) enum RequestBody {
    Json(Prediction),
    Lines(Body, Share),
    Arrow(Body, Share),
}

impl<S: AsRef<Edge> + Send + Sync> FromRequest<S> for RequestBody {
    type Rejection = Response;

    async fn from_request(request: Request, state: &S) -> Result<Self, Response> {
        let media = media(request.headers(), &header::CONTENT_TYPE).next();
        let media = media.as_deref().unwrap_or_default();
        let of: fn(Body, Share) -> Self = if NDJSON.contains(&media) {
            Self::Lines
        } else if media == ARROW {
            Self::Arrow
        } else {
            return Prediction::from_request(request, state)
                .await
                .map(Self::Json);
        };
        match body::unknown_encoding(request.headers()) {
            Some(refusal) => Err(refusal),
            None => Ok(of(request.into_body(), state.as_ref().intake().share())),
        }
    }
}

/// The media types in a header, in order, without parameters.
fn media<'h>(
    headers: &'h HeaderMap,
    name: &header::HeaderName,
) -> impl Iterator<Item = String> + use<'h> {
    let values = headers.get_all(name).iter();
    let values = values.filter_map(|value| value.to_str().ok());
    let all = values.flat_map(|value| value.split(','));
    all.filter_map(|media| Some(media.split(';').next()?.trim().to_ascii_lowercase()))
}

fn accepted(headers: &HeaderMap) -> Format {
    let known = |media: String| {
        if NDJSON.contains(&media.as_str()) {
            Some(Format::Lines)
        } else if media == ARROW {
            Some(Format::Arrow)
        } else if media == "text/event-stream" {
            Some(Format::Events)
        } else {
            None
        }
    };
    let mut all = media(headers, &header::ACCEPT).filter_map(known);
    all.next().unwrap_or(Format::Events)
}

/// Streams a response in the accepted format.
pub(crate) async fn stream(
    caller: OpenSearchCaller,
    Path(model): Path<String>,
    context: RequestContext,
    headers: HeaderMap,
    given: RequestBody,
) -> Result<Response, ApiError> {
    let format = accepted(&headers);
    if context.sink.is_some() && format != Format::Events {
        let message = "only streams of events can be resumed: leave out the header \
                       'x-volley-stream', or accept 'text/event-stream'";
        return Err(ApiError(PredictError::invalid(message)));
    }
    let (mut ahead, given) = ReadAhead::of(given);
    let begun = async {
        let (task, request, open) = match given {
            RequestBody::Json(body) => {
                let (signature, request) =
                    predict::request(&caller, &model, &context, &body).await?;
                (signature.task, request, false)
            }
            RequestBody::Lines(body, share) => {
                let (model, signature) = find(&caller, &model).await?;
                let limit = caller.config.max_body_bytes;
                let body = Pieces::new(body, share);
                let lines =
                    ndjson::read(body, signature.clone(), limit, caller.config.body_timeout);
                let (parameters, input) = lines.await?;
                let request = request(model, parameters, input, &context);
                (signature.task, request, true)
            }
            RequestBody::Arrow(body, share) => {
                let (model, signature) = find(&caller, &model).await?;
                let body = Pieces::new(body, share);
                let reader = caller.state.arrow.as_ref().map(|open| open());
                let rows = arrow::read(body, reader, caller.config.body_timeout);
                let request = request(model, Parameters::default(), rows.await?, &context);
                (signature.task, request, true)
            }
        };
        let mut chunks = caller.cluster.inference.predict(request).await?;
        let first = first(&mut chunks, task, open).await?;
        Ok((task, first, chunks))
    };
    let begun = async {
        tokio::select! {
            biased;
            begun = begun => begun,
            error = ahead.broken() => Err(error),
        }
    };
    match context.in_time(begun).await {
        Ok((task, first, chunks)) => {
            let keep_alive = caller.config.keep_alive;
            let answer = answer::RowsAnswer {
                task,
                first,
                chunks,
                ahead,
            };
            Ok(answer.response(format, keep_alive, &context))
        }
        Err(error) => Ok(ApiError(error).into_response()),
    }
}

/// Handles `_predict/stream`. A JSON body that accepts events gets the dialect's own events; all
/// other combinations are streams of rows.
pub(crate) async fn stream_any(
    caller: OpenSearchCaller,
    path: Path<String>,
    context: RequestContext,
    headers: HeaderMap,
    given: RequestBody,
) -> Result<Response, ApiError> {
    match (given, accepted(&headers)) {
        (RequestBody::Json(body), Format::Events) => {
            predict::stream(caller.caller, path, context, body).await
        }
        (given, _) => stream(caller, path, context, headers, given).await,
    }
}

async fn find(
    caller: &OpenSearchCaller,
    model: &str,
) -> Result<(ModelRef, volley_types::Signature), PredictError> {
    let model: ModelRef = model.parse()?;
    let signature = caller.cluster.inference.signature(&model).await?;
    Ok((model, signature))
}

fn request(
    model: ModelRef,
    parameters: Parameters,
    input: Input,
    context: &RequestContext,
) -> PredictRequest {
    let mut request = PredictRequest::new(model, input);
    request.request_id = context.request_id.clone();
    request.trace = context.trace;
    request.session = context.session.clone();
    request.deadline = Some(context.deadline);
    request.parameters = parameters;
    request
}

/// The first batch of a response, so that an early failure has its own status. `None` if the caller
/// still sends rows and no batch arrives within [`STATUS_GRACE`].
async fn first(
    chunks: &mut ChunkStream,
    task: Task,
    open: bool,
) -> Result<Option<arrow_array::RecordBatch>, PredictError> {
    let next = async {
        while let Some(batch) = chunks.next().await.transpose()? {
            if batch.num_rows() != 0 {
                return Ok(Some(batch));
            }
        }
        Ok(None)
    };
    let first = if open {
        match tokio::time::timeout(STATUS_GRACE, next).await {
            Ok(first) => first?,
            Err(_) => return Ok(None),
        }
    } else {
        next.await?
    };
    if let (Some(batch), Task::Generate) = (&first, task)
        && batch.num_rows() == 1
        && let Some(row) = GenerationRow::rows(batch)?.next()
        && row.last()
    {
        volley_dialect_kit::answer::failure(&row)?;
    }
    Ok(first)
}
