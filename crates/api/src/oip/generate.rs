//! `generate` and `generate_stream`: text in, text out.

use std::sync::Arc;

use axum::Json;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use serde_json::{Map, Value, json};
use volley_types::{GenerationRow, Input, PredictError, PredictRequest, Task};

use super::events::GenerateEvents;
use super::texts::has_tensors;
use super::{Found, Named, answering_version, infer, infer_stream};
use crate::app::App;
use crate::body::{Fields, Tensors, UntypedJsonObject};
use crate::context::RequestContext;
use crate::error::ApiError;
use crate::extract::{Path, State};
use crate::{answer, chat, parameters, sse};

/// One whole text; or tensors as `infer` has them, where the body has them.
pub(crate) async fn generate(
    State(app): State<Arc<App>>,
    Path(named): Path<Named>,
    context: RequestContext,
    UntypedJsonObject(body): UntypedJsonObject,
) -> Result<Response, ApiError> {
    if has_tensors(&body) {
        let body = Tensors::Told(body, Bytes::new());
        return infer::infer(State(app), Path(named), context, body).await;
    }
    let work = async {
        let asked = Asked::read(&app, &named, body, &context).await?;
        let chunks = app.control.predict(asked.request).await?;
        let version = answering_version(&chunks, asked.found.version);
        let choices = answer::choices(&answer::collect(chunks).await?)?;
        let choice = choices.into_iter().next().ok_or_else(sse::silent_end)?;
        let mut told = json!({
            "model_name": asked.found.model.name.as_str(),
            "model_version": version,
            "text_output": choice.text,
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

/// A text as it comes; or tensors as `infer_stream` has them, where the body has them.
pub(crate) async fn stream(
    State(app): State<Arc<App>>,
    Path(named): Path<Named>,
    context: RequestContext,
    UntypedJsonObject(body): UntypedJsonObject,
) -> Result<Response, ApiError> {
    if has_tensors(&body) {
        let body = Tensors::Told(body, Bytes::new());
        return Ok(infer_stream::stream(&app, &named, &context, body).await?);
    }
    let begun = async {
        let asked = Asked::read(&app, &named, body, &context).await?;
        let mut chunks = app.control.predict(asked.request).await?;
        let version = answering_version(&chunks, asked.found.version);
        let name = asked.found.model.name.as_str();
        let events = GenerateEvents::new(name, &version, asked.id.as_deref());
        let first = sse::first(&mut chunks).await?;
        GenerationRow::rows(&first)?
            .next()
            .map_or(Ok(()), |row| answer::failure(&row))?;
        Ok((first, chunks, events))
    };
    let (first, chunks, events) = context.in_time(begun).await?;
    let keep_alive = app.config.keep_alive;
    Ok(sse::response(first, chunks, events, keep_alive, &context))
}

struct Asked {
    found: Found,
    request: PredictRequest,
    id: Option<String>,
    details: bool,
}

impl Asked {
    /// The prompt is `text_input`. All else, beside `parameters` or in it, are parameters.
    async fn read(
        app: &App,
        named: &Named,
        mut body: Map<String, Value>,
        context: &RequestContext,
    ) -> Result<Self, PredictError> {
        let found = Found::find(app, named).await?;
        if found.signature.task != Task::Generate {
            return Err(PredictError::invalid(format!(
                "model '{}' has the task '{}', and this route needs 'generate'; use infer",
                found.model.name,
                found.signature.task.as_str()
            )));
        }
        let text = body.text("text_input")?;
        let text = text.ok_or_else(|| PredictError::invalid("field 'text_input' is missing"))?;
        let rows = chat::prompts(&[text])?;
        let id = body.text("id")?.map(str::to_owned);
        for read in ["text_input", "id", "stream"] {
            body.remove(read);
        }
        let mut given = body.object("parameters")?.cloned().unwrap_or_default();
        body.remove("parameters");
        given.extend(body);
        let details = given.remove("details") == Some(Value::Bool(true));
        let mut request = PredictRequest::new(found.model.clone(), Input::Batch(rows));
        request.request_id = context.request_id.clone();
        request.trace = context.trace;
        request.session = context.session.clone();
        request.deadline = Some(context.deadline);
        request.parameters = parameters::from_json(&given)?;
        Ok(Self {
            found,
            request,
            id,
            details,
        })
    }
}
