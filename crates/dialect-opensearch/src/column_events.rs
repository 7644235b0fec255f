//! The events of `_predict/stream` of a model that streams columns: each has the form of a response
//! of `_predict` with the outputs of one event.

use arrow_array::RecordBatch;
use bytes::{BufMut, BytesMut};
use serde_json::json;
use volley_dialect_kit::sse::Events;
use volley_dialect_kit::{answer, tensors};
use volley_types::PredictError;

use crate::events;

/// Writes one event for each batch with rows.
#[derive(Debug, Default)]
pub(crate) struct ColumnEvents;

impl Events for ColumnEvents {
    fn batch(&mut self, batch: &RecordBatch, out: &mut BytesMut) -> Result<(), PredictError> {
        // A stream without events begins with a batch without rows.
        if batch.num_rows() == 0 {
            return Ok(());
        }
        let mut result = json!({ "output": null, "status_code": 200 });
        let outputs = tensors::to_json(std::slice::from_ref(batch))?;
        answer::put(&mut result, "output", outputs);
        let mut told = json!({});
        answer::put(&mut told, "inference_results", vec![result]);
        out.put_slice(format!("data: {told}\n\n").as_bytes());
        Ok(())
    }

    fn finished(&self) -> bool {
        false
    }

    fn may_just_end(&self) -> bool {
        true
    }

    fn error(&mut self, error: &PredictError, out: &mut BytesMut) {
        events::error(error, out);
    }
}
