//! The events of `_predict/stream`, byte for byte as the ml-commons plugin writes them.

use arrow_array::RecordBatch;
use bytes::{BufMut, BytesMut};
use serde_json::{Value, json};
use volley_types::{Citation, Details, GenerationRow, PredictError};

use volley_dialect_kit::answer::failure;
use volley_dialect_kit::citations;
use volley_dialect_kit::refusal;
use volley_dialect_kit::sse::{Events, json_string};
use volley_http_edge::error::own;

const HEAD: &[u8] =
    br#"data: {"inference_results":[{"output":[{"name":"response","dataAsMap":{"content":"#;
const MORE: &[u8] = b",\"is_last\":false}}]}]}\n\n";
const LAST: &[u8] = b"data: {\"inference_results\":[{\"output\":[{\"name\":\"response\",\"dataAsMap\":{\"content\":\"\",\"is_last\":true}}]}]}\n\n";

/// Writes one event for each row with text or tool calls, and a last event.
#[derive(Debug, Default)]
pub(crate) struct OpenSearchEvents {
    finished: bool,
}

impl Events for OpenSearchEvents {
    fn batch(&mut self, batch: &RecordBatch, out: &mut BytesMut) -> Result<(), PredictError> {
        for row in GenerationRow::rows(batch)? {
            failure(&row)?;
            // The dialect has no field for tool calls, so they are sent as text.
            for content in [row.text(), row.tool_calls()].into_iter().flatten() {
                if !content.is_empty() {
                    content_event(content, out);
                }
            }
            let cited = citations::of(&row);
            if !cited.is_empty() {
                let told: Vec<_> = cited.iter().map(Citation::value).collect();
                let told = format!("\"\",\"citations\":{}", Value::from(told));
                out.put_slice(HEAD);
                out.put_slice(told.as_bytes());
                out.put_slice(MORE);
            }
            if row.last() {
                // The stream has no field for the finish reason.
                let details = row.details().map(Details::from_json).unwrap_or_default();
                refusal::filtered(row.finish_reason(), &details)?;
                out.put_slice(LAST);
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
        self::error(error, out);
    }
}

/// Writes the event of an error.
pub(crate) fn error(error: &PredictError, out: &mut BytesMut) {
    let body = json!({
        "error": error.message,
        "type": own::kind(error.code),
        "code": error.code.as_str(),
        "status": error.code.http_status(),
    });
    out.put_slice(b"data: ");
    out.put_slice(body.to_string().as_bytes());
    out.put_slice(b"\n\n");
}

fn content_event(content: &str, out: &mut BytesMut) {
    out.reserve(HEAD.len() + content.len() + 2 + MORE.len());
    out.put_slice(HEAD);
    json_string(content, out);
    out.put_slice(MORE);
}

#[cfg(test)]
mod tests;
