//! Generations as streams of a dialect's events.

use volley_http_edge::axum::response::Response;
use volley_types::{GenerationRow, PredictRequest};

use crate::answer;
use crate::sse;
use crate::sse::Events;
use volley_http_edge::context::RequestContext;
use volley_http_edge::edge::Caller;
use volley_http_edge::error::ApiError;

/// Streams a generation. The status is 200 only after the first chunk has arrived.
pub async fn stream(
    caller: &Caller,
    request: PredictRequest,
    events: impl Events,
    context: &RequestContext,
) -> Result<Response, ApiError> {
    let begun = async {
        let mut chunks = caller.cluster.inference.predict(request).await?;
        let first = sse::first(&mut chunks).await?;
        GenerationRow::rows(&first)?
            .next()
            .map_or(Ok(()), |row| answer::failure(&row))?;
        Ok((first, chunks))
    };
    let (first, chunks) = context.in_time(begun).await?;
    let keep_alive = caller.config.keep_alive;
    Ok(sse::response(first, chunks, events, keep_alive, context))
}
