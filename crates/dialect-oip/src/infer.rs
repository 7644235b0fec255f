//! `POST /v2/models/{model}/infer`.

use arrow_array::RecordBatch;
use http::{HeaderValue, header};
use serde_json::json;
use volley_http_edge::axum::body::Body;
use volley_http_edge::axum::response::{IntoResponse, Response};
use volley_types::{Input, Parameters, PredictError, PredictRequest, Task};

use super::outputs::{self, Outputs, RequestedOutputs};
use super::statistics::RequestTimer;
use super::tensors::{self, TensorRows};
use super::texts::{FIELDS, Texts, inputs};
use super::{ModelPath, ResolvedModel, binary, known, reserved};
use crate::state::OipCaller;
use volley_dialect_kit::answer;
use volley_http_edge::body::{BINARY_TENSORS, Fields, Tensors};
use volley_http_edge::context::RequestContext;
use volley_http_edge::error::ApiError;
use volley_http_edge::extract::Path;

/// Runs a prediction of tensors.
pub(crate) async fn infer(
    caller: OipCaller,
    Path(named): Path<ModelPath>,
    context: RequestContext,
    body: Tensors,
) -> Result<Response, ApiError> {
    let work = async {
        let found = ResolvedModel::find(&caller, &named).await?;
        let body = filled(body, &caller)?;
        let mut run = caller
            .state
            .statistics()
            .start(&found.model.name, &found.version);
        if found.signature.task == Task::Generate {
            let answer = texts(&caller, &found, body, &context, &mut run).await?;
            run.is_done();
            return Ok(answer);
        }
        let asked = InferRequest::read(body, &found)?;
        run.is_read(asked.rows.num_rows());
        let (wanted, batched, id) = (asked.wanted.clone(), asked.batched, asked.id.clone());
        let mut request = asked.request(&found, &context)?;
        request.whole = found.signature.task == Task::Events;
        let chunks = found.predict(&caller, request).await?;
        let version = found.answering(&caller, &chunks);
        let batches = found.collect(chunks).await?;
        run.is_inferred();
        let schema = &found.signature.declared_output();
        let outputs = outputs::outputs(&batches, schema, &wanted, batched)?;
        for (slice, bytes) in &outputs.shared {
            caller.state.shared_memory().write(slice, bytes)?;
        }
        let answer = respond(&found, &version, id, outputs)?;
        run.is_done();
        Ok(answer)
    };
    Ok(context.in_time(work).await?)
}

/// The response of a generation model, with its texts as a tensor.
async fn texts(
    caller: &OipCaller,
    found: &ResolvedModel,
    body: Tensors,
    context: &RequestContext,
    run: &mut RequestTimer<'_>,
) -> Result<Response, PredictError> {
    let body = match body {
        Tensors::Told(body, raw) => binary::told(body, raw)?,
        Tensors::Raw(bytes) => binary::text(&bytes)?,
    };
    let (texts, mut request) = Texts::request(&body, found, context, false)?;
    request.whole = true;
    run.is_read(texts.count());
    let chunks = found.predict(caller, request).await?;
    let version = found.answering(caller, &chunks);
    let batches = answer::collect(chunks).await?;
    run.is_inferred();
    let outputs = Outputs {
        told: vec![texts.outputs(&answer::choices(&batches)?)?],
        ..Outputs::default()
    };
    let id = body.text("id")?.map(str::to_owned);
    respond(found, &version, id, outputs)
}

/// Fills `body` with the tensors that are in shared memory.
///
/// # Errors
/// `InvalidInput` naming the tensor whose region is not registered.
pub(super) fn filled(body: Tensors, caller: &OipCaller) -> Result<Tensors, PredictError> {
    match body {
        Tensors::Told(mut body, raw) => {
            let raw = caller.state.shared_memory().fill(&mut body, raw)?;
            Ok(Tensors::Told(body, raw))
        }
        raw @ Tensors::Raw(_) => Ok(raw),
    }
}

/// A parsed request, and the format of its response.
pub(super) struct InferRequest {
    rows: RecordBatch,
    pub(super) batched: bool,
    pub(super) wanted: RequestedOutputs,
    pub(super) id: Option<String>,
    parameters: Parameters,
}

impl InferRequest {
    pub(super) fn read(body: Tensors, found: &ResolvedModel) -> Result<Self, PredictError> {
        let input = &found.signature.input;
        let (body, raw) = match body {
            Tensors::Told(body, raw) => (body, raw),
            Tensors::Raw(bytes) => {
                let TensorRows { batch, batched, .. } = tensors::raw_rows(bytes, input)?;
                return Ok(Self {
                    rows: batch,
                    batched,
                    wanted: RequestedOutputs::all_binary(),
                    id: None,
                    parameters: Parameters::default(),
                });
            }
        };
        body.only("a request", &FIELDS)?;
        let inputs = inputs(&body, input.fields().is_empty())?;
        known::inputs(inputs)?;
        let TensorRows {
            batch,
            batched,
            empty,
        } = tensors::rows(inputs, raw, input)?;
        let mut given = body.object("parameters")?.cloned().unwrap_or_default();
        let wanted = RequestedOutputs::read(&body, &found.signature.declared_output())?.of(empty);
        let is_table = matches!(found.signature.task, Task::Tensors | Task::Events);
        known::take_codecs(&mut given, is_table)?;
        Ok(Self {
            rows: batch,
            batched,
            wanted,
            id: body.text("id")?.map(str::to_owned),
            parameters: reserved::from_json(given)?,
        })
    }
}

impl InferRequest {
    /// Builds the request to the model.
    ///
    /// # Errors
    /// `InvalidInput` for a parameter that violates the protocol.
    pub(super) fn request(
        self,
        found: &ResolvedModel,
        context: &RequestContext,
    ) -> Result<PredictRequest, PredictError> {
        let mut request = PredictRequest::new(found.model.clone(), Input::Batch(self.rows));
        request.request_id = context.request_id.clone();
        request.trace = context.trace;
        request.session = context.session.clone();
        let task = found.signature.task;
        let waits = found.has_queues();
        reserved::put(&mut request, self.parameters, context.deadline, task, waits)?;
        Ok(request)
    }
}

/// Formats JSON, followed by the bytes of binary outputs.
fn respond(
    found: &ResolvedModel,
    version: &str,
    id: Option<String>,
    outputs: Outputs,
) -> Result<Response, PredictError> {
    let mut head = json!({
        "model_name": found.model.name.as_str(),
        "model_version": version,
        "outputs": null,
    });
    answer::put(&mut head, "outputs", outputs.told);
    if let Some(id) = id {
        head["id"] = id.into();
    }
    let Some(bytes) = outputs.bytes else {
        return Ok(volley_http_edge::axum::Json(head).into_response());
    };
    let mut body = head.to_string().into_bytes();
    let length = HeaderValue::from(body.len());
    body.extend_from_slice(&bytes);
    let mut response = Response::new(Body::from(body));
    let headers = response.headers_mut();
    headers.insert(BINARY_TENSORS, length);
    let media = HeaderValue::from_static("application/octet-stream");
    headers.insert(header::CONTENT_TYPE, media);
    Ok(response)
}
