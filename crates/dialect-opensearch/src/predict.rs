//! `_predict` and `_predict/stream`.

use arrow_array::RecordBatch;
use futures::TryStreamExt;
use serde_json::{Value, json};
use volley_http_edge::axum::extract::{FromRequest, Request};
use volley_http_edge::axum::response::Response;
use volley_types::{
    Citation, GenerationRow, Input, ModelRef, Predict, PredictError, PredictRequest, Signature,
    Task,
};

use crate::column_events::ColumnEvents;
use crate::events::OpenSearchEvents;
use crate::prediction::Prediction;
use crate::request;
use crate::upstream_dialect::UpstreamDialect;
use crate::{settings, texts};
use volley_dialect_kit::answer;
use volley_dialect_kit::answer::Choice;
use volley_dialect_kit::blocks;
use volley_dialect_kit::events;
use volley_dialect_kit::refusal;
use volley_dialect_kit::sse;
use volley_dialect_kit::tensors;
use volley_http_edge::body;
use volley_http_edge::context::RequestContext;
use volley_http_edge::edge::Caller;
use volley_http_edge::edge::Edge;
use volley_http_edge::error::ApiError;
use volley_http_edge::extract::Path;

impl<S: AsRef<Edge> + Send + Sync> FromRequest<S> for Prediction {
    type Rejection = Response;

    async fn from_request(request: Request, state: &S) -> Result<Self, Response> {
        let media = body::other_media(request.headers());
        let held = body::held(&request);
        let edge = state.as_ref();
        let limit = edge.config().max_body_bytes;
        let (bytes, mut share) = body::read(request, edge, limit).await?;
        let read = Self::read(&bytes, &mut share);
        held.keep(share, bytes.len());
        read.map_err(|error| body::malformed(error, media))
    }
}

/// Streams a generation, or events of columns. The status is sent with the first chunk, so that an early failure has its
/// own status.
pub(crate) async fn stream(
    caller: Caller,
    Path(model): Path<String>,
    context: RequestContext,
    body: Prediction,
) -> Result<Response, ApiError> {
    let begun = async {
        let registry = caller.cluster.registry.state();
        settings::demand(&registry, settings::STREAM_ENABLED, "Streaming")?;
        request::known_interface(&body.fields)?;
        let (signature, request) = request(&caller, &model, &context, &body).await?;
        let keep_alive = caller.config.keep_alive;
        if signature.task == Task::Events {
            let chunks = caller.cluster.inference.predict(request).await?;
            let mut chunks = events::whole(chunks, &signature);
            let first = chunks.try_next().await?;
            let first = first.unwrap_or_else(|| RecordBatch::new_empty(chunks.schema()));
            let events = ColumnEvents;
            return Ok(sse::response(first, chunks, events, keep_alive, &context));
        }
        if signature.task != Task::Generate {
            return Err(PredictError::invalid(
                "this model returns tensors, which are not streamed as events; use _predict",
            ));
        }
        let mut chunks = caller.cluster.inference.predict(request).await?;
        let first = sse::first(&mut chunks).await?;
        GenerationRow::rows(&first)?
            .next()
            .map_or(Ok(()), |row| answer::failure(&row))?;
        let events = OpenSearchEvents::default();
        Ok(sse::response(first, chunks, events, keep_alive, &context))
    };
    Ok(context.in_time(begun).await?)
}

/// Returns a complete response.
pub(crate) async fn predict(
    caller: Caller,
    Path(model): Path<String>,
    context: RequestContext,
    body: Prediction,
) -> Result<Response, ApiError> {
    let whole = async {
        let (signature, request) = request(&caller, &model, &context, &body).await?;
        let form = UpstreamDialect::of(
            &body.fields,
            &caller.cluster.registry.state(),
            &request.model,
        );
        self::whole(&*caller.cluster.inference, &signature, request, form).await
    };
    Ok(blocks::body(&context.in_time(whole).await?))
}

/// Runs a prediction and formats its complete response. `form` adds a generation's response in the
/// format of the upstream.
///
/// # Errors
/// Errors of the prediction.
pub(crate) async fn whole(
    inference: &dyn Predict,
    signature: &Signature,
    mut request: PredictRequest,
    form: Option<UpstreamDialect>,
) -> Result<Value, PredictError> {
    request.whole = true;
    let chunks = inference.predict(request).await?;
    let batches = match signature.task {
        Task::Events => {
            let events = events::whole(chunks, signature);
            vec![events::only(events, "'_predict/stream'").await?]
        }
        _ => answer::collect(chunks).await?,
    };
    let whole = |output: Value| {
        let mut result = json!({ "output": null, "status_code": 200 });
        answer::put(&mut result, "output", output);
        vec![result]
    };
    let results = match signature.task {
        Task::Generate => whole(generation(&batches, form)?),
        Task::Tensors | Task::Events => whole(tensors::to_json(&batches)?),
        task => texts::results(task, &batches)?,
    };
    let mut told = json!({});
    answer::put(&mut told, "inference_results", results);
    Ok(told)
}

/// As [`predict`], under a path with the algorithm, which the plugin's older clients call. The
/// algorithm is ignored, because the model determines it.
pub(crate) async fn predict_as(
    caller: Caller,
    Path((_algorithm, model)): Path<(String, String)>,
    context: RequestContext,
    body: Prediction,
) -> Result<Response, ApiError> {
    predict(caller, Path(model), context, body).await
}

pub(crate) async fn request(
    caller: &Caller,
    model: &str,
    context: &RequestContext,
    body: &Prediction,
) -> Result<(Signature, PredictRequest), PredictError> {
    let model: ModelRef = model.parse()?;
    let signature = caller.cluster.inference.signature(&model).await?;
    let (rows, parameters) = request::read(body, &signature)?;
    let mut request = PredictRequest::new(model, Input::Batch(rows));
    request.request_id = context.request_id.clone();
    request.trace = context.trace;
    request.session = context.session.clone();
    request.deadline = Some(context.deadline);
    request.parameters = parameters;
    Ok((signature, request))
}

/// Formats each answer of a generation as one output.
fn generation(
    batches: &[RecordBatch],
    form: Option<UpstreamDialect>,
) -> Result<Value, PredictError> {
    let choices = answer::choices(batches)?;
    let outputs = choices.into_iter().map(|choice| output(choice, form));
    outputs.collect()
}

fn output(choice: Choice, form: Option<UpstreamDialect>) -> Result<Value, PredictError> {
    let mut map = json!({ "response": choice.text });
    if let Some(reason) = choice.finish_reason {
        map["finish_reason"] = reason.as_str().into();
    }
    let explained = refusal::explanation(&choice.details).unwrap_or_default();
    let refused = format!("{}{explained}", choice.refusal);
    if !refused.is_empty() {
        map["refusal"] = refused.into();
    }
    if let Some(usage) = choice.usage {
        map["usage"] = json!({
            "prompt_tokens": usage.prompt_tokens,
            "completion_tokens": usage.completion_tokens,
            "total_tokens": u64::from(usage.prompt_tokens) + u64::from(usage.completion_tokens),
        });
        let counts = [
            (
                "prompt_tokens_details",
                "cached_tokens",
                usage.cached_tokens,
            ),
            (
                "prompt_tokens_details",
                "cache_write_tokens",
                usage.cache_write_tokens,
            ),
            (
                "completion_tokens_details",
                "reasoning_tokens",
                usage.reasoning_tokens,
            ),
        ];
        for (object, name, count) in counts.into_iter().filter(|(.., count)| *count != 0) {
            map["usage"][object][name] = count.into();
        }
    }
    if !choice.thinking.is_empty() {
        map["thinking"] = choice.thinking.as_str().into();
    }
    if let Some(form) = form {
        form.write_into(&choice, &mut map)?;
    }
    if !choice.citations.is_empty() {
        map["citations"] = choice.citations.iter().map(Citation::value).collect();
    }
    if !choice.tool_calls.is_empty() {
        map["tool_calls"] = choice.tool_calls.into();
    }
    Ok(json!({ "name": "response", "dataAsMap": map }))
}
