//! The events of `generate_stream`: one for each piece of text; the last one has the finish reason.

use arrow_array::RecordBatch;
use bytes::{BufMut, BytesMut};
use serde_json::{Value, json};
use volley_types::{Details, GenerationRow, PredictError};

use volley_dialect_kit::answer::failure;
use volley_dialect_kit::refusal;
use volley_dialect_kit::sse::{Events, json_string};

/// Writes the events of one stream.
#[derive(Debug)]
pub(crate) struct GenerateEvents {
    /// The part before the text, which is the same in every event.
    head: String,
    /// Whether the last event also has the finish reason in the protocol's `details`.
    details: bool,
    /// Whether there was any text.
    said: bool,
    finished: bool,
}

impl GenerateEvents {
    pub(crate) fn new(model: &str, version: &str, id: Option<&str>, details: bool) -> Self {
        let id = id.map(|id| format!("\"id\":{},", Value::from(id)));
        Self {
            head: format!(
                "data: {{{}\"model_name\":{},\"model_version\":{},\"text_output\":",
                id.unwrap_or_default(),
                Value::from(model),
                Value::from(version)
            ),
            details,
            said: false,
            finished: false,
        }
    }
}

impl Events for GenerateEvents {
    fn batch(&mut self, batch: &RecordBatch, out: &mut BytesMut) -> Result<(), PredictError> {
        for row in GenerationRow::rows(batch)? {
            failure(&row)?;
            let mut text = row.text().unwrap_or_default();
            self.said |= !text.is_empty();
            let told = row.details().map(Details::from_json).unwrap_or_default();
            if text.is_empty() {
                let note = refusal::note(row.finish_reason(), &told, !self.said);
                text = note.unwrap_or_default();
            }
            if text.is_empty() && !row.last() {
                continue;
            }
            out.put_slice(self.head.as_bytes());
            json_string(text, out);
            if row.last() {
                let reason = Value::from(row.finish_reason().map(|reason| reason.as_str()));
                out.put_slice(format!(",\"finish_reason\":{reason}").as_bytes());
                if self.details {
                    let details = json!({ "finish_reason": reason });
                    out.put_slice(format!(",\"details\":{details}").as_bytes());
                }
                self.finished = true;
            }
            out.put_slice(b"}\n\n");
            if self.finished {
                break;
            }
        }
        Ok(())
    }

    fn finished(&self) -> bool {
        self.finished
    }

    fn error(&mut self, error: &PredictError, out: &mut BytesMut) {
        let body = json!({ "error": error.message });
        out.put_slice(format!("data: {body}\n\n").as_bytes());
    }
}
