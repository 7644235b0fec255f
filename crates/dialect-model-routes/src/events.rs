//! The events of a model's own route: `data:` with a text or JSON, then `data: [DONE]`.

use arrow_array::RecordBatch;
use bytes::{BufMut, BytesMut};
use serde_json::{Map, Value, json};
use volley_dialect_kit::sse::{self, Events};
use volley_dialect_kit::{answer, refusal, tensors};
use volley_types::{Details, GenerationRow, PredictError};

const DONE: &[u8] = b"data: [DONE]\n\n";
/// Name of the only column of a model whose values have no names.
const OUTPUT: &str = "output";

/// Fails for a generation that failed before its first chunk.
///
/// # Errors
/// The error of the generation.
pub(crate) fn check_first(first: &RecordBatch) -> Result<(), PredictError> {
    let row = GenerationRow::rows(first)?.next();
    row.map_or(Ok(()), |row| answer::failure(&row))
}

/// Writes the events of one stream.
pub(crate) struct RouteEvents {
    is_text: bool,
    finished: bool,
}

impl RouteEvents {
    /// The pieces of a generated text.
    pub(crate) fn texts() -> Self {
        Self {
            is_text: true,
            finished: false,
        }
    }

    /// An event of columns for each batch.
    pub(crate) fn columns() -> Self {
        Self {
            is_text: false,
            finished: false,
        }
    }

    fn pieces(&mut self, batch: &RecordBatch, out: &mut BytesMut) -> Result<(), PredictError> {
        for row in GenerationRow::rows(batch)? {
            answer::failure(&row)?;
            if let Some(text) = row.text().filter(|text| !text.is_empty()) {
                text_event(text, out);
            }
            if row.last() {
                let details = row.details().map(Details::from_json).unwrap_or_default();
                refusal::filtered(row.finish_reason(), &details)?;
                out.put_slice(DONE);
                self.finished = true;
                break;
            }
        }
        Ok(())
    }
}

impl Events for RouteEvents {
    fn batch(&mut self, batch: &RecordBatch, out: &mut BytesMut) -> Result<(), PredictError> {
        if self.is_text {
            return self.pieces(batch, out);
        }
        // A stream without events begins with a batch without rows.
        if batch.num_rows() == 0 {
            return Ok(());
        }
        match event(batch)? {
            Value::String(text) => text_event(&text, out),
            value => out.put_slice(format!("data: {value}\n\n").as_bytes()),
        }
        Ok(())
    }

    fn finished(&self) -> bool {
        self.finished
    }

    fn may_just_end(&self) -> bool {
        !self.is_text
    }

    fn end(&mut self, out: &mut BytesMut) {
        out.put_slice(DONE);
    }

    fn error(&mut self, error: &PredictError, out: &mut BytesMut) {
        let body = json!({ "error": error.message, "code": error.code.as_str() });
        sse::named_event("error", &body, out);
    }
}

/// A text, each of whose lines is a `data:` line.
fn text_event(text: &str, out: &mut BytesMut) {
    for line in text.replace("\r\n", "\n").split(['\n', '\r']) {
        out.put_slice(b"data: ");
        out.put_slice(line.as_bytes());
        out.put_u8(b'\n');
    }
    out.put_u8(b'\n');
}

/// One row as an object, or several as a list of them. A row of the only column `output` is its
/// value.
fn event(batch: &RecordBatch) -> Result<Value, PredictError> {
    let rows = (0..batch.num_rows()).map(|row| object(&batch.slice(row, 1)));
    let mut rows: Vec<_> = rows.collect::<Result<_, _>>()?;
    Ok(match rows.as_mut_slice() {
        [row] => row.take(),
        _ => Value::Array(rows),
    })
}

fn object(row: &RecordBatch) -> Result<Value, PredictError> {
    let mut fields = Map::new();
    if let Value::Array(outputs) = tensors::to_json(std::slice::from_ref(row))? {
        for mut output in outputs {
            let name = output["name"].as_str().unwrap_or_default().to_owned();
            let shape = output["shape"].as_array().into_iter().flatten().skip(1);
            let shape: Vec<usize> = shape
                .filter_map(|length| usize::try_from(length.as_u64()?).ok())
                .collect();
            let data = match output["data"].take() {
                Value::Array(data) => data,
                single => vec![single],
            };
            fields.insert(name, nested(data, &shape));
        }
    }
    if fields.len() == 1
        && let Some(value) = fields.remove(OUTPUT)
    {
        return Ok(value);
    }
    Ok(Value::Object(fields))
}

/// The values as lists of the shape; one value where the shape has no dimension.
fn nested(data: Vec<Value>, shape: &[usize]) -> Value {
    match shape {
        [] => data.into_iter().next().unwrap_or_default(),
        [_] => Value::Array(data),
        [length, rest @ ..] => {
            let size = (data.len() / (*length).max(1)).max(1);
            let parts = data.chunks(size).map(|part| nested(part.to_vec(), rest));
            parts.collect()
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow_array::{ArrayRef, Int64Array, StringArray};

    use super::*;

    fn written(columns: Vec<(&str, ArrayRef)>) -> String {
        let (mut out, mut events) = (BytesMut::new(), RouteEvents::columns());
        let batch = RecordBatch::try_from_iter(columns).unwrap();
        events.batch(&batch, &mut out).unwrap();
        events.end(&mut out);
        String::from_utf8(out.to_vec()).unwrap()
    }

    #[test]
    fn an_event_is_an_object_a_list_or_a_text() {
        let tokens: ArrayRef = Arc::new(StringArray::from(vec!["a"]));
        assert_eq!(
            written(vec![("token", tokens)]),
            "data: {\"token\":\"a\"}\n\ndata: [DONE]\n\n"
        );
        assert_eq!(
            written(vec![("output", Arc::new(Int64Array::from(vec![1, 2])))]),
            "data: [1,2]\n\ndata: [DONE]\n\n"
        );
        let lines: ArrayRef = Arc::new(StringArray::from(vec![" one\r\ntwo\n"]));
        assert_eq!(
            written(vec![("output", lines)]),
            "data:  one\ndata: two\ndata: \n\ndata: [DONE]\n\n"
        );
    }

    #[test]
    fn tensors_are_nested_lists() {
        let values = |count: i64| (0..count).map(Value::from).collect::<Vec<_>>();
        assert_eq!(nested(values(4), &[2, 2]), json!([[0, 1], [2, 3]]));
        assert_eq!(nested(values(2), &[2]), json!([0, 1]));
        assert_eq!(nested(values(1), &[]), json!(0));
    }
}
