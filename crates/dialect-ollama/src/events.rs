//! The JSON lines of a stream.

use arrow_array::RecordBatch;
use bytes::{BufMut, BytesMut};
use serde_json::{Value, json};
use volley_types::{Details, FinishReason, GenerationRow, PredictError, Usage, exact};

use super::{Times, calls, done_reason, now};
use volley_dialect_kit::answer::{self, failure, merge_tool_calls};
use volley_dialect_kit::refusal;
use volley_dialect_kit::sse::Events;

/// The route that a stream belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EventsInterface {
    Chat,
    Generate,
}

impl EventsInterface {
    /// Formats an object of a response, complete or one line of a stream.
    pub(super) fn object(self, model: &str, text: &str, thinking: &str, done: bool) -> Value {
        let mut object = json!({ "model": model, "created_at": now(), "done": done });
        let place = match self {
            Self::Chat => {
                object["message"] = json!({ "role": "assistant", "content": text });
                &mut object["message"]
            }
            Self::Generate => {
                object["response"] = text.into();
                &mut object
            }
        };
        if !thinking.is_empty() {
            place["thinking"] = thinking.into();
        }
        object
    }
}

/// Writes the lines of one stream.
#[derive(Debug)]
pub(super) struct Lines {
    kind: EventsInterface,
    model: String,
    times: Times,
    /// Calls so far. Ollama's format has complete calls only, so they are written at the end.
    calls: Vec<Value>,
    /// Whether there was any text.
    said: bool,
    refused: bool,
    usage: Option<Usage>,
    reason: Option<FinishReason>,
    finished: bool,
}

impl Lines {
    pub(super) fn new(kind: EventsInterface, model: &str, times: Times) -> Self {
        Self {
            kind,
            model: model.to_owned(),
            times,
            calls: Vec::new(),
            said: false,
            refused: false,
            usage: None,
            reason: None,
            finished: false,
        }
    }

    fn row(&mut self, row: &GenerationRow<'_>, out: &mut BytesMut) {
        self.times.heard();
        if let Some(told) = row.usage() {
            *self.usage.get_or_insert_default() += told;
        }
        self.reason = row.finish_reason().or(self.reason);
        if let Some(deltas) = row.tool_calls() {
            merge_tool_calls(&mut self.calls, deltas);
        }
        let text = row.text().unwrap_or_default();
        self.said |= !text.is_empty();
        self.refused |= row
            .details()
            .is_some_and(|told| Details::from_json(told).refusal);
        let thinking = row.thinking().unwrap_or_default();
        let told = answer::tokens(row);
        if text.is_empty() && thinking.is_empty() && told.is_empty() {
            return;
        }
        let mut line = self.kind.object(&self.model, text, thinking, false);
        if !told.is_empty() {
            line["logprobs"] = told.into();
        }
        write(&line, out);
    }

    fn end(&mut self, details: &Details, out: &mut BytesMut) -> Result<(), PredictError> {
        let told = match self.kind {
            EventsInterface::Chat => calls(&self.calls, self.reason)?,
            EventsInterface::Generate => json!([]),
        };
        if told != json!([]) {
            let mut line = self.kind.object(&self.model, "", "", false);
            line["message"]["tool_calls"] = told;
            write(&line, out);
        }
        if let Some(note) = refusal::note(self.reason, details, !self.said) {
            write(&self.kind.object(&self.model, note, "", false), out);
        }
        let mut line = self.kind.object(&self.model, "", "", true);
        line["done_reason"] = done_reason(self.reason, self.refused).into();
        self.times.write_into(self.usage, details, &mut line);
        write(&line, out);
        self.finished = true;
        Ok(())
    }
}

fn write(line: &Value, out: &mut BytesMut) {
    out.put_slice(exact::write(line).as_bytes());
    out.put_u8(b'\n');
}

impl Events for Lines {
    fn batch(&mut self, batch: &RecordBatch, out: &mut BytesMut) -> Result<(), PredictError> {
        for row in GenerationRow::rows(batch)? {
            failure(&row)?;
            self.row(&row, out);
            if row.last() {
                let details = row.details().map(Details::from_json);
                self.end(&details.unwrap_or_default(), out)?;
                break;
            }
        }
        Ok(())
    }

    fn finished(&self) -> bool {
        self.finished
    }

    fn error(&mut self, error: &PredictError, out: &mut BytesMut) {
        write(&json!({ "error": error.message }), out);
    }
}
