//! `infer_stream`: tensors in and tensors out, in server-sent events as the model returns them.
//! MLServer also serves it as `generate_stream`.

use arrow_array::RecordBatch;
use arrow_schema::SchemaRef;
use bytes::{BufMut, Bytes, BytesMut};
use serde_json::{Map, Value, json};
use volley_http_edge::axum::response::Response;
use volley_types::{ChunkStream, GenerationRow, PredictError, PredictRequest, Task};

use super::infer::{InferRequest, filled};
use super::outputs::{self, RequestedOutputs};
use super::texts::{self, GenerationEnd, Texts};
use super::{ModelPath, ResolvedModel, binary};
use crate::state::OipCaller;
use volley_dialect_kit::answer::failure;
use volley_dialect_kit::sse::{self, Events};
use volley_http_edge::body::{Fields, Tensors};
use volley_http_edge::context::RequestContext;
use volley_http_edge::error::ApiError;
use volley_http_edge::extract::Path;

/// Streams tensors.
pub(crate) async fn infer_stream(
    caller: OipCaller,
    Path(named): Path<ModelPath>,
    context: RequestContext,
    body: Tensors,
) -> Result<Response, ApiError> {
    Ok(stream(&caller, &named, &context, body).await?)
}

/// Streams the response to a body that has been read.
pub(super) async fn stream(
    caller: &OipCaller,
    named: &ModelPath,
    context: &RequestContext,
    body: Tensors,
) -> Result<Response, PredictError> {
    let begun = async {
        let found = ResolvedModel::find(caller, named).await?;
        let body = filled(body, caller)?;
        let Tensors::Told(body, raw) = body else {
            let message = "a raw request cannot be answered with events; send the inputs in JSON";
            return Err(PredictError::invalid(message));
        };
        let mut asked = InferStreamRequest::read(&body, raw, &found, context)?;
        let mut chunks = found.predict(caller, asked.request).await?;
        let version = found.answering(caller, &chunks);
        asked.events.head["model_version"] = version.into();
        let first = first(&mut chunks, found.signature.task).await?;
        Ok((first, chunks, asked.events))
    };
    let (first, chunks, events) = context.in_time(begun).await?;
    let keep_alive = caller.config.keep_alive;
    Ok(sse::response(first, chunks, events, keep_alive, context))
}

/// The first batch, so that an early failure has its own status. A response of tensors may have no
/// rows.
pub(super) async fn first(
    chunks: &mut ChunkStream,
    task: Task,
) -> Result<RecordBatch, PredictError> {
    if task != Task::Generate {
        let schema = chunks.schema();
        let first = futures::StreamExt::next(chunks).await.transpose()?;
        return Ok(first.unwrap_or_else(|| RecordBatch::new_empty(schema)));
    }
    let first = sse::first(chunks).await?;
    if let Some(row) = GenerationRow::rows(&first)?.next() {
        failure(&row)?;
    }
    Ok(first)
}

/// A parsed request, and the format of its response.
struct InferStreamRequest {
    request: PredictRequest,
    events: InferEvents,
}

impl InferStreamRequest {
    fn read(
        body: &Map<String, Value>,
        raw: Bytes,
        found: &ResolvedModel,
        context: &RequestContext,
    ) -> Result<Self, PredictError> {
        let (request, form) = if found.signature.task == Task::Generate {
            let body = binary::told(body.clone(), raw)?;
            let (texts, request) = Texts::request(&body, found, context, true)?;
            if texts.count() != 1 {
                let message = "a stream accepts one prompt per request; send several requests";
                return Err(PredictError::invalid(message));
            }
            (
                request,
                StreamFormat::Texts(texts.shape, GenerationEnd::default()),
            )
        } else {
            tensors(body, raw, found, context)?
        };
        let id = body.text("id")?.unwrap_or(context.request_id.as_str());
        let head = json!({
            "model_name": found.model.name.as_str(),
            "model_version": found.version,
            "id": id,
        });
        let events = InferEvents {
            head,
            form,
            finished: false,
            skips_empty: found.signature.task == Task::Events,
        };
        Ok(Self { request, events })
    }
}

fn tensors(
    body: &Map<String, Value>,
    raw: Bytes,
    found: &ResolvedModel,
    context: &RequestContext,
) -> Result<(PredictRequest, StreamFormat), PredictError> {
    let schema = found.signature.declared_output();
    let asked = InferRequest::read(Tensors::Told(body.clone(), raw), found)?;
    let wanted = asked.wanted.clone().in_json()?;
    let form = StreamFormat::Tensors {
        schema,
        wanted,
        batched: asked.batched,
    };
    Ok((asked.request(found, context)?, form))
}

/// Format of the events.
enum StreamFormat {
    Tensors {
        schema: SchemaRef,
        wanted: RequestedOutputs,
        batched: bool,
    },
    Texts(Vec<usize>, GenerationEnd),
}

/// Writes the events of one stream. Each has the format of a response of `infer` with the rows that
/// arrived.
struct InferEvents {
    head: Value,
    form: StreamFormat,
    finished: bool,
    /// Whether a batch without rows is no event: a stream of events may have none.
    skips_empty: bool,
}

impl InferEvents {
    fn put(&self, outputs: Vec<Value>, parameters: Option<Value>, out: &mut BytesMut) {
        let mut told = self.head.clone();
        if let Some(parameters) = parameters {
            told["parameters"] = parameters;
        }
        told["outputs"] = outputs.into();
        put(&told, out);
    }
}

fn put(told: &Value, out: &mut BytesMut) {
    out.put_slice(format!("data: {told}\n\n").as_bytes());
}

impl Events for InferEvents {
    fn batch(&mut self, batch: &RecordBatch, out: &mut BytesMut) -> Result<(), PredictError> {
        let (shape, mut end) = match &self.form {
            StreamFormat::Tensors {
                schema,
                wanted,
                batched,
            } => {
                if self.skips_empty && batch.num_rows() == 0 {
                    return Ok(());
                }
                let batches = std::slice::from_ref(batch);
                let outputs = outputs::outputs(batches, schema, wanted, *batched)?;
                self.put(outputs.told, None, out);
                return Ok(());
            }
            StreamFormat::Texts(shape, end) => (shape.clone(), *end),
        };
        for row in GenerationRow::rows(batch)? {
            failure(&row)?;
            end.read(&row);
            let (text, last) = (row.text().unwrap_or_default(), row.last());
            if last || !text.is_empty() {
                let parameters = last.then(|| end.parameters());
                self.put(vec![texts::output(&shape, &[text])], parameters, out);
            }
            if last {
                self.finished = true;
                break;
            }
        }
        self.form = StreamFormat::Texts(shape, end);
        Ok(())
    }

    fn finished(&self) -> bool {
        self.finished
    }

    fn may_just_end(&self) -> bool {
        matches!(self.form, StreamFormat::Tensors { .. })
    }

    fn error(&mut self, error: &PredictError, out: &mut BytesMut) {
        put(&json!({ "error": error.message }), out);
    }
}
