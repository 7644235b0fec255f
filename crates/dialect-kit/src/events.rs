//! Streams of events of columns ([`Task::Events`](volley_types::Task::Events)): whole events, made
//! of batches with any borders.

use arrow_array::RecordBatch;
use arrow_array::cast::AsArray;
use arrow_schema::SchemaRef;
use async_stream::try_stream;
use futures::TryStreamExt;
use volley_types::signature::events::EVENT_END;
use volley_types::{ChunkStream, ErrorCode, PredictError, Signature};

/// Maximum size in bytes of one event.
const MAX_EVENT_BYTES: usize = 64 << 20;

/// Converts the response of a model that streams events: each batch is one whole event, with the
/// columns that the model declares. An event is returned as soon as its last row has arrived.
///
/// Dropping the stream drops `chunks`.
///
/// # Errors
/// Those of `chunks`; `TooLarge` for an event over 64 MiB; `Internal` when the response has no marks
/// of events, or ends within an event.
#[must_use]
pub fn whole(mut chunks: ChunkStream, signature: &Signature) -> ChunkStream {
    let schema = signature.declared_output();
    let answered_by = chunks.answered_by().cloned();
    let mut reader = EventReader::new(schema.clone());
    let events = try_stream! {
        while let Some(batch) = chunks.try_next().await? {
            for event in reader.read(&batch)? {
                yield event;
            }
        }
        reader.check_end()?;
    };
    let stream = ChunkStream::new(schema, events);
    match answered_by {
        Some(model) => stream.with_answered_by(model),
        None => stream,
    }
}

/// The only event of a response, for a caller that takes one. `route` names the way to stream.
/// Drops the rest of the response.
///
/// # Errors
/// `InvalidInput` with `route` if there is no event, or more than one; those of [`whole`].
pub async fn only(mut events: ChunkStream, route: &str) -> Result<RecordBatch, PredictError> {
    let first = events.try_next().await?.ok_or_else(|| {
        PredictError::invalid(format!(
            "the model streamed no event, and this call returns exactly one; use {route}"
        ))
    })?;
    match events.try_next().await? {
        None => Ok(first),
        Some(_) => Err(PredictError::invalid(format!(
            "the model streams more than one event, and this call returns exactly one; use {route}"
        ))),
    }
}

/// Collects the rows of events.
struct EventReader {
    schema: SchemaRef,
    /// Indices of the declared columns in a batch.
    columns: Vec<usize>,
    rows: Vec<RecordBatch>,
    bytes: usize,
}

impl EventReader {
    fn new(schema: SchemaRef) -> Self {
        Self {
            // The declared columns are the first ones.
            columns: (0..schema.fields().len()).collect(),
            schema,
            rows: Vec::new(),
            bytes: 0,
        }
    }

    /// The events that end in `batch`.
    fn read(&mut self, batch: &RecordBatch) -> Result<Vec<RecordBatch>, PredictError> {
        let ends = batch.column_by_name(EVENT_END);
        let ends = ends.and_then(|column| column.as_boolean_opt());
        let ends = ends.ok_or_else(|| malformed("no marks of events"))?;
        let own = batch.project(&self.columns);
        let own = own.map_err(|error| malformed(&error.to_string()))?;
        let (mut events, mut start) = (Vec::new(), 0);
        for end in (0..batch.num_rows()).filter(|row| ends.value(*row)) {
            self.add(own.slice(start, end + 1 - start))?;
            events.push(self.event()?);
            start = end + 1;
        }
        if start < batch.num_rows() {
            self.add(own.slice(start, batch.num_rows() - start))?;
        }
        Ok(events)
    }

    fn add(&mut self, rows: RecordBatch) -> Result<(), PredictError> {
        self.bytes = self.bytes.saturating_add(rows.get_array_memory_size());
        // One batch is in memory anyway.
        if MAX_EVENT_BYTES < self.bytes && !self.rows.is_empty() {
            let message = "an event of the model is over the limit of 64 MiB";
            return Err(PredictError::new(ErrorCode::TooLarge, message));
        }
        self.rows.push(rows);
        Ok(())
    }

    fn event(&mut self) -> Result<RecordBatch, PredictError> {
        self.bytes = 0;
        let mut rows = std::mem::take(&mut self.rows);
        match rows.as_mut_slice() {
            [_] => rows.pop().ok_or_else(|| malformed("no rows")),
            _ => arrow_select::concat::concat_batches(&self.schema, &rows)
                .map_err(|error| malformed(&error.to_string())),
        }
    }

    fn check_end(&self) -> Result<(), PredictError> {
        match self.rows.is_empty() {
            true => Ok(()),
            false => Err(malformed("it ends within an event")),
        }
    }
}

fn malformed(cause: &str) -> PredictError {
    PredictError::internal(
        "the model's stream of events is malformed",
        cause.to_owned(),
    )
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow_array::types::Int64Type;
    use arrow_array::{ArrayRef, Int64Array};
    use arrow_schema::{DataType, Field, Schema};
    use futures::{StreamExt, stream};
    use volley_types::signature::events::marks;

    use super::*;

    fn signature() -> Signature {
        let field = Field::new("n", DataType::Int64, false);
        let schema = Arc::new(Schema::new(vec![field]));
        Signature::events(schema.clone(), &schema).unwrap()
    }

    /// The rows of events with these values.
    fn rows(events: &[&[i64]]) -> RecordBatch {
        let batches = (0_u32..).zip(events).map(|(number, values)| {
            let values: ArrayRef = Arc::new(Int64Array::from(values.to_vec()));
            let columns = [
                vec![values.clone()],
                marks(number, &[values.len()]).to_vec(),
            ]
            .concat();
            RecordBatch::try_new(signature().output, columns).unwrap()
        });
        let batches: Vec<_> = batches.collect();
        arrow_select::concat::concat_batches(&signature().output, &batches).unwrap()
    }

    async fn read(batches: Vec<RecordBatch>) -> Vec<Result<Vec<i64>, ErrorCode>> {
        let chunks = ChunkStream::new(signature().output, stream::iter(batches).map(Ok));
        let events = whole(chunks, &signature()).map(|event| {
            let event = event.map_err(|error| error.code)?;
            assert_eq!(event.num_columns(), 1);
            Ok(event
                .column(0)
                .as_primitive::<Int64Type>()
                .values()
                .to_vec())
        });
        events.collect().await
    }

    #[tokio::test]
    async fn events_are_whole_however_batches_are_cut() {
        let all = rows(&[&[1], &[2, 3, 4], &[5, 6]]);
        let expected = [Ok(vec![1]), Ok(vec![2, 3, 4]), Ok(vec![5, 6])];
        for cut in 0..=6 {
            let parts = vec![all.slice(0, cut), all.slice(cut, 6 - cut)];
            assert_eq!(read(parts).await, expected, "cut at {cut}");
        }
        assert_eq!(
            read(vec![all.slice(0, 3)]).await,
            [Ok(vec![1]), Err(ErrorCode::Internal)]
        );
    }

    #[tokio::test]
    async fn one_event_is_an_answer_and_two_are_an_error_with_the_route() {
        let only = async |events: &[&[i64]]| {
            let batches = vec![Ok(rows(events))];
            let chunks = ChunkStream::new(signature().output, stream::iter(batches));
            super::only(whole(chunks, &signature()), "infer_stream").await
        };
        assert_eq!(only(&[&[1, 2]]).await.unwrap().num_rows(), 2);
        let error = only(&[&[1], &[2]]).await.unwrap_err();
        assert_eq!(error.code, ErrorCode::InvalidInput);
        assert!(
            error.message.contains("use infer_stream"),
            "{}",
            error.message
        );
    }
}
