//! `_predict` and `_predict/stream`.

use std::sync::Arc;

use arrow_array::RecordBatch;
use axum::Json;
use axum::extract::State;
use axum::response::Response;
use futures::TryStreamExt;
use serde_json::{Map, Value, json};
use volley_types::{
    ChunkStream, ErrorCode, GenerationRow, Input, ModelRef, PredictError, PredictRequest,
    Signature, Task,
};

use crate::app::App;
use crate::body::JsonObject;
use crate::context::RequestContext;
use crate::error::ApiError;
use crate::extract::Path;
use crate::opensearch::events::{self, OpenSearchEvents};
use crate::opensearch::request;
use crate::{sse, tensors};

/// The most that an answer which is not streamed may hold, in bytes of Arrow memory.
const MAX_ANSWER_BYTES: usize = 64 << 20;

/// Streams a generation. The status is 200 only once the first chunk is there.
pub(crate) async fn stream(
    State(app): State<Arc<App>>,
    Path(model): Path<String>,
    context: RequestContext,
    JsonObject(body): JsonObject,
) -> Result<Response, ApiError> {
    let begun = async {
        let (signature, request) = request(&app, &model, &context, &body).await?;
        if signature.task != Task::Generate {
            return Err(PredictError::invalid(
                "this model gives tensors, which are not streamed as events; use _predict",
            ));
        }
        let mut chunks = app.control.predict(request).await?;
        let first = sse::first(&mut chunks).await?;
        GenerationRow::rows(&first)?
            .next()
            .map_or(Ok(()), |row| events::failure(&row))?;
        Ok((first, chunks))
    };
    let (first, chunks) = context.in_time(begun).await?;
    let events = OpenSearchEvents::default();
    let keep_alive = app.config.keep_alive;
    Ok(sse::response(first, chunks, events, keep_alive, &context))
}

/// Answers whole.
pub(crate) async fn predict(
    State(app): State<Arc<App>>,
    Path(model): Path<String>,
    context: RequestContext,
    JsonObject(body): JsonObject,
) -> Result<Json<Value>, ApiError> {
    let whole = async {
        let (signature, request) = request(&app, &model, &context, &body).await?;
        let batches = collect(app.control.predict(request).await?).await?;
        match signature.task {
            Task::Generate => generation(&batches),
            Task::Tensors => tensors::to_json(&batches),
        }
    };
    let output = context.in_time(whole).await?;
    Ok(Json(
        json!({ "inference_results": [{ "output": output, "status_code": 200 }] }),
    ))
}

async fn request(
    app: &App,
    model: &str,
    context: &RequestContext,
    body: &Map<String, Value>,
) -> Result<(Signature, PredictRequest), PredictError> {
    let model: ModelRef = model.parse()?;
    let signature = app.control.signature(&model).await?;
    let (rows, parameters) = request::read(body, &signature)?;
    let mut request = PredictRequest::new(model, Input::Batch(rows));
    request.request_id = context.request_id.clone();
    request.trace = context.trace;
    request.deadline = Some(context.deadline);
    request.parameters = parameters;
    Ok((signature, request))
}

async fn collect(mut chunks: ChunkStream) -> Result<Vec<RecordBatch>, PredictError> {
    let (mut batches, mut bytes) = (Vec::new(), 0);
    while let Some(batch) = chunks.try_next().await? {
        bytes += batch.get_array_memory_size();
        if MAX_ANSWER_BYTES < bytes {
            return Err(PredictError::new(
                ErrorCode::TooLarge,
                format!(
                    "the answer is over the limit of {MAX_ANSWER_BYTES} bytes; stream it, or use \
                     Arrow Flight"
                ),
            ));
        }
        batches.push(batch);
    }
    Ok(batches)
}

/// All text of a generation as one output.
fn generation(batches: &[RecordBatch]) -> Result<Value, PredictError> {
    let (mut text, mut tool_calls) = (String::new(), Vec::new());
    let (mut finish_reason, mut usage, mut ended) = (None, None, false);
    for batch in batches {
        for row in GenerationRow::rows(batch)? {
            events::failure(&row)?;
            text.push_str(row.text().unwrap_or_default());
            tool_calls.extend(row.tool_calls().map(str::to_owned));
            finish_reason = row.finish_reason().or(finish_reason);
            usage = row.usage().or(usage);
            ended |= row.last();
        }
    }
    if !ended {
        return Err(sse::silent_end());
    }
    let mut map = json!({ "response": text });
    if let Some(reason) = finish_reason {
        map["finish_reason"] = reason.as_str().into();
    }
    if let Some(usage) = usage {
        map["usage"] = json!({
            "prompt_tokens": usage.prompt_tokens,
            "completion_tokens": usage.completion_tokens,
            "total_tokens": u64::from(usage.prompt_tokens) + u64::from(usage.completion_tokens),
        });
    }
    if !tool_calls.is_empty() {
        map["tool_calls"] = tool_calls.into();
    }
    Ok(json!([{ "name": "response", "dataAsMap": map }]))
}
