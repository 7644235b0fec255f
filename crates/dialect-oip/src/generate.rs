//! `generate` and `generate_stream`: text in and text out, or flat objects for tensor models.

use bytes::Bytes;
use serde_json::{Map, Value, json};
use volley_http_edge::axum::Json;
use volley_http_edge::axum::response::{IntoResponse, Response};
use volley_types::{GenerationRow, Input, PredictError, PredictRequest, Task};

use super::events::GenerateEvents;
use super::flat::{self, FlatAnswer, FlatEvents};
use super::texts::has_tensors;
use super::{ModelPath, ResolvedModel, infer, infer_stream, reserved, text_parameters};
use crate::state::OipCaller;
use volley_dialect_kit::answer;
use volley_dialect_kit::chat;
use volley_dialect_kit::parameters;
use volley_dialect_kit::refusal;
use volley_dialect_kit::sse;
use volley_http_edge::body::{Fields, Tensors, UntypedJsonObject, take_flag};
use volley_http_edge::context::RequestContext;
use volley_http_edge::error::ApiError;
use volley_http_edge::extract::Path;

/// Generates a complete text. A body with tensors is handled like one of `infer`.
pub(crate) async fn generate(
    caller: OipCaller,
    Path(named): Path<ModelPath>,
    context: RequestContext,
    UntypedJsonObject(body): UntypedJsonObject,
) -> Result<Response, ApiError> {
    if has_tensors(&body) {
        let body = Tensors::Told(body, Bytes::new());
        return infer::infer(caller, Path(named), context, body).await;
    }
    let work = async {
        let found = ResolvedModel::find(&caller, &named).await?;
        if found.signature.task != Task::Generate {
            let (mut request, mut answer) = flat_request(body, &found, &context, false)?;
            request.whole = found.signature.task == Task::Events;
            let chunks = found.predict(&caller, request).await?;
            answer.version = found.answering(&caller, &chunks);
            return answer.object(&found.collect(chunks).await?);
        }
        let mut asked = ParsedGenerate::read(found, body, &context, false)?;
        asked.request.whole = true;
        let chunks = asked.found.predict(&caller, asked.request).await?;
        let version = asked.found.answering(&caller, &chunks);
        let mut choices = answer::choices(&answer::collect(chunks).await?)?.into_iter();
        let choice = choices.next().ok_or_else(sse::silent_end)?;
        if choices.next().is_some() {
            return Err(text_parameters::several());
        }
        // Without details, the answer has no field for the finish reason.
        if !asked.details {
            refusal::filtered(choice.finish_reason, &choice.details)?;
        }
        let mut told = json!({
            "model_name": asked.found.model.name.as_str(),
            "model_version": version,
            "text_output": choice.text_or_note(),
        });
        if asked.details {
            let reason = choice.finish_reason.map(|reason| reason.as_str());
            told["details"] = json!({ "finish_reason": reason });
        }
        if let Some(id) = asked.id {
            told["id"] = id.into();
        }
        Ok(told)
    };
    Ok(Json(context.in_time(work).await?).into_response())
}

/// Streams a generated text. A body with tensors is handled like one of `infer_stream`.
pub(crate) async fn stream(
    caller: OipCaller,
    Path(named): Path<ModelPath>,
    context: RequestContext,
    UntypedJsonObject(body): UntypedJsonObject,
) -> Result<Response, ApiError> {
    if has_tensors(&body) {
        let body = Tensors::Told(body, Bytes::new());
        return Ok(infer_stream::stream(&caller, &named, &context, body).await?);
    }
    let keep_alive = caller.config.keep_alive;
    let begun = async {
        let found = ResolvedModel::find(&caller, &named).await?;
        if found.signature.task != Task::Generate {
            let (request, mut answer) = flat_request(body, &found, &context, true)?;
            let mut chunks = found.predict(&caller, request).await?;
            answer.version = found.answering(&caller, &chunks);
            let first = infer_stream::first(&mut chunks, found.signature.task).await?;
            let events = FlatEvents {
                answer,
                skips_empty: found.signature.task == Task::Events,
            };
            return Ok(sse::response(first, chunks, events, keep_alive, &context));
        }
        let asked = ParsedGenerate::read(found, body, &context, true)?;
        let mut chunks = asked.found.predict(&caller, asked.request).await?;
        let version = asked.found.answering(&caller, &chunks);
        let name = asked.found.model.name.as_str();
        let events = GenerateEvents::new(name, &version, asked.id.as_deref(), asked.details);
        let first = sse::first(&mut chunks).await?;
        GenerationRow::rows(&first)?
            .next()
            .map_or(Ok(()), |row| answer::failure(&row))?;
        Ok(sse::response(first, chunks, events, keep_alive, &context))
    };
    Ok(context.in_time(begun).await?)
}

/// Converts a flat body to a request for a tensor model, and returns the format of its response.
fn flat_request(
    body: Map<String, Value>,
    found: &ResolvedModel,
    context: &RequestContext,
    streams: bool,
) -> Result<(PredictRequest, FlatAnswer), PredictError> {
    let body = flat::tensors(body, found, streams)?;
    let asked = infer::InferRequest::read(Tensors::Told(body, Bytes::new()), found)?;
    let answer = FlatAnswer {
        model: found.model.name.as_str().to_owned(),
        version: found.version.clone(),
        id: asked.id.clone(),
        schema: found.signature.declared_output(),
        batched: asked.batched,
    };
    Ok((asked.request(found, context)?, answer))
}

struct ParsedGenerate {
    found: ResolvedModel,
    request: PredictRequest,
    id: Option<String>,
    details: bool,
}

impl ParsedGenerate {
    /// Parses a body. The prompt is `text_input`. All other fields, inside or outside of
    /// `parameters`, are parameters.
    fn read(
        found: ResolvedModel,
        mut body: Map<String, Value>,
        context: &RequestContext,
        streams: bool,
    ) -> Result<Self, PredictError> {
        let text = body.text("text_input")?;
        let text = text.ok_or_else(|| PredictError::invalid("field 'text_input' is missing"))?;
        let rows = chat::prompts(&[text])?;
        let id = body.text("id")?.map(str::to_owned);
        for read in ["text_input", "id"] {
            body.remove(read);
        }
        let mut given = body.object("parameters")?.cloned().unwrap_or_default();
        body.remove("parameters");
        for (name, value) in body {
            text_parameters::add(&mut given, &name, value)?;
        }
        text_parameters::take_stream(&mut given, streams)?;
        let details = take_flag(&mut given, "details")?;
        let mut request = PredictRequest::new(found.model.clone(), Input::Batch(rows));
        request.request_id = context.request_id.clone();
        request.trace = context.trace;
        request.session = context.session.clone();
        let given = parameters::from_json(&given)?;
        reserved::put(&mut request, given, context.deadline, Task::Generate, false)?;
        text_parameters::one_answer(&request.parameters)?;
        Ok(Self {
            found,
            request,
            id,
            details,
        })
    }
}
