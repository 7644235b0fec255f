//! The events of `generate_stream`: one for each piece of text, and no word at the end.

use arrow_array::RecordBatch;
use bytes::{BufMut, BytesMut};
use serde_json::{Value, json};
use volley_types::{GenerationRow, PredictError};

use crate::answer::failure;
use crate::sse::{Events, json_string};

/// Writes the events of one stream.
#[derive(Debug)]
pub(crate) struct GenerateEvents {
    /// Everything in front of the text, which is the same in every event.
    head: String,
    finished: bool,
}

impl GenerateEvents {
    pub(crate) fn new(model: &str, version: &str, id: Option<&str>) -> Self {
        let id = id.map(|id| format!("\"id\":{},", Value::from(id)));
        Self {
            head: format!(
                "data: {{{}\"model_name\":{},\"model_version\":\"{version}\",\"text_output\":",
                id.unwrap_or_default(),
                Value::from(model)
            ),
            finished: false,
        }
    }
}

impl Events for GenerateEvents {
    fn batch(&mut self, batch: &RecordBatch, out: &mut BytesMut) -> Result<(), PredictError> {
        for row in GenerationRow::rows(batch)? {
            failure(&row)?;
            if let Some(text) = row.text().filter(|text| !text.is_empty()) {
                out.put_slice(self.head.as_bytes());
                json_string(text, out);
                out.put_slice(b"}\n\n");
            }
            if row.last() {
                self.finished = true;
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
