//! Formats responses row by row: as events, as JSON lines, or as an Arrow stream.

use std::time::Duration;

use arrow_array::RecordBatch;
use arrow_ipc::writer::StreamWriter;
use async_stream::{stream, try_stream};
use bytes::{BufMut, Bytes, BytesMut};
use futures::{Stream, StreamExt};
use http::{HeaderValue, header};
use serde_json::{Map, Value, json};
use volley_http_edge::axum::response::Response;
use volley_types::{ChunkStream, Citation, GenerationRow, PredictError, Task};

use super::read_ahead::ReadAhead;
use volley_dialect_kit::citations;
use volley_dialect_kit::sse;
use volley_dialect_kit::tensors;
use volley_http_edge::context::{self, RequestContext};

/// Format of a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Format {
    Events,
    Lines,
    Arrow,
}

/// A started response.
pub(super) struct RowsAnswer {
    pub(super) task: Task,
    pub(super) first: Option<RecordBatch>,
    pub(super) chunks: ChunkStream,
    /// Reads the rest of the request's body.
    pub(super) ahead: ReadAhead,
}

impl RowsAnswer {
    /// Streams the response until the deadline.
    pub(super) fn response(
        self,
        format: Format,
        keep_alive: Duration,
        context: &RequestContext,
    ) -> Response {
        let (mut response, media) = match format {
            Format::Events => {
                let pieces = self.written("data: ", "\n\n", context);
                return match &context.sink {
                    Some(sink) => sink.attach(pieces.boxed(), keep_alive, context),
                    None => {
                        let pieces = pieces.map(Ok::<_, PredictError>);
                        let pieces = sse::commented(Box::pin(pieces), keep_alive);
                        sse::body(pieces, context)
                    }
                };
            }
            Format::Lines => {
                let pieces = self.written("", "\n", context).map(Ok::<_, PredictError>);
                (sse::body(pieces, context), "application/x-ndjson")
            }
            Format::Arrow => (sse::body(self.arrow(context), context), super::ARROW),
        };
        let media = HeaderValue::from_static(media);
        response.headers_mut().insert(header::CONTENT_TYPE, media);
        response
    }

    /// All batches, including the first, until the deadline. Also ends if the request's body breaks
    /// off.
    fn batches(
        mut self,
        context: &RequestContext,
    ) -> impl Stream<Item = Result<RecordBatch, PredictError>> + Send + use<> {
        let deadline = context.until();
        try_stream! {
            if let Some(first) = self.first.take() {
                yield first;
            }
            loop {
                let next = tokio::select! {
                    biased;
                    next = self.chunks.next() => next.transpose(),
                    () = tokio::time::sleep_until(deadline) => Err(context::too_late()),
                    error = self.ahead.broken() => Err(error),
                };
                match next? {
                    Some(batch) => yield batch,
                    None => break,
                }
            }
        }
    }

    /// Formats each row as a JSON object. The last object reports the end or the error.
    pub(super) fn objects(
        self,
        context: &RequestContext,
    ) -> impl Stream<Item = Vec<Value>> + Send + use<> {
        let task = self.task;
        let batches = self.batches(context);
        stream! {
            let mut batches = std::pin::pin!(batches);
            let mut rows = Rows { task, count: 0, ended: false };
            while !rows.ended {
                let written = match batches.next().await {
                    Some(batch) => batch.and_then(|batch| rows.read(&batch)),
                    None => rows.end().map(|end| vec![end]),
                };
                yield written.unwrap_or_else(|error| {
                    rows.ended = true;
                    vec![failure(&error)]
                });
            }
        }
    }

    /// Encodes the objects, each between `before` and `behind`.
    fn written(
        self,
        before: &'static str,
        behind: &'static str,
        context: &RequestContext,
    ) -> impl Stream<Item = Bytes> + Send + use<> {
        let objects = self.objects(context).map(move |rows| {
            let mut out = BytesMut::new();
            for row in rows {
                out.put_slice(before.as_bytes());
                out.put_slice(row.to_string().as_bytes());
                out.put_slice(behind.as_bytes());
            }
            out.freeze()
        });
        objects.filter(|out| std::future::ready(!out.is_empty()))
    }

    /// Encodes an Arrow stream. If the response fails, the stream ends without its end mark.
    fn arrow(
        self,
        context: &RequestContext,
    ) -> impl Stream<Item = Result<Bytes, PredictError>> + Send + use<> {
        let schema = self.chunks.schema();
        let batches = self.batches(context);
        try_stream! {
            let unwritten = |error| PredictError::internal("the response cannot be encoded", error);
            let mut writer = StreamWriter::try_new(Vec::new(), &schema).map_err(unwritten)?;
            let mut batches = std::pin::pin!(batches);
            yield Bytes::from(std::mem::take(writer.get_mut()));
            while let Some(batch) = batches.next().await {
                writer.write(&batch?).map_err(unwritten)?;
                yield Bytes::from(std::mem::take(writer.get_mut()));
            }
            writer.finish().map_err(unwritten)?;
            yield Bytes::from(std::mem::take(writer.get_mut()));
        }
    }
}

/// Formats the error of a failed response as its last JSON object.
pub fn failure(error: &PredictError) -> Value {
    json!({
        "error": error.message,
        "code": error.code.as_str(),
        "status": error.code.http_status(),
    })
}

/// Converts rows to JSON.
struct Rows {
    task: Task,
    count: usize,
    ended: bool,
}

impl Rows {
    fn read(&mut self, batch: &RecordBatch) -> Result<Vec<Value>, PredictError> {
        if self.task != Task::Generate {
            let rows = 0..batch.num_rows();
            return rows.map(|row| self.outputs(&batch.slice(row, 1))).collect();
        }
        let mut rows = Vec::with_capacity(batch.num_rows());
        for row in GenerationRow::rows(batch)? {
            rows.push(generated(&row));
            self.ended |= row.last();
        }
        Ok(rows)
    }

    /// Formats one row as a complete response does.
    fn outputs(&mut self, row: &RecordBatch) -> Result<Value, PredictError> {
        let item = self.count;
        self.count += 1;
        Ok(json!({ "item": item, "output": tensors::to_json(std::slice::from_ref(row))? }))
    }

    fn end(&mut self) -> Result<Value, PredictError> {
        self.ended = true;
        if self.task == Task::Generate {
            return Err(sse::silent_end());
        }
        Ok(json!({ "last": true, "items": self.count }))
    }
}

fn generated(row: &GenerationRow<'_>) -> Value {
    let mut told = Map::new();
    told.insert("item".to_owned(), row.item().into());
    if row.choice() != 0 {
        told.insert("choice".to_owned(), row.choice().into());
    }
    let texts = [("text", row.text()), ("thinking", row.thinking())];
    for (name, text) in texts {
        if let Some(text) = text.filter(|text| !text.is_empty()) {
            told.insert(name.to_owned(), text.into());
        }
    }
    if let Some(calls) = row.tool_calls() {
        let calls = serde_json::from_str(calls).unwrap_or_else(|_| calls.into());
        told.insert("tool_calls".to_owned(), calls);
    }
    let cited = citations::of(row);
    if !cited.is_empty() {
        let cited: Vec<_> = cited.iter().map(Citation::value).collect();
        told.insert("citations".to_owned(), cited.into());
    }
    if let Some(logprob) = row.logprob() {
        told.insert("logprob".to_owned(), logprob.into());
    }
    if let Some(reason) = row.finish_reason() {
        told.insert("finish_reason".to_owned(), reason.as_str().into());
    }
    if let Some(usage) = row.usage() {
        let usage = json!({
            "prompt_tokens": usage.prompt_tokens, "completion_tokens": usage.completion_tokens,
        });
        told.insert("usage".to_owned(), usage);
    }
    if let Some((code, message)) = row.error() {
        told.insert("error".to_owned(), message.into());
        told.insert("code".to_owned(), code.into());
        let failure = row.failure().and_then(|error| error.reason);
        if let Some(reason) = failure {
            told.insert("reason".to_owned(), reason.as_str().into());
        }
    }
    if row.last() {
        told.insert("last".to_owned(), true.into());
    }
    Value::Object(told)
}
