//! Requests to a model that streams events: all rows of a request are one call.

use std::borrow::Cow;

use arrow_array::RecordBatch;
use arrow_schema::SchemaRef;
use async_stream::try_stream;
use futures::TryStreamExt;
use volley_types::signature::events::marks;
use volley_types::{ChunkStream, ErrorCode, Input, PredictError, Signature};

use super::{Caller, decoded, malformed};
use crate::session::AnswerPart;

/// Maximum size in bytes of a request.
const MAX_INPUT: usize = 64 << 20;

/// Streams the events of one call. Dropping the stream cancels the call.
pub(super) fn stream(caller: Caller, input: Input, signature: Signature) -> ChunkStream {
    let (output, declared) = (signature.output.clone(), signature.declared_output());
    ChunkStream::new(
        output.clone(),
        try_stream! {
            let rows = collect(input).await?;
            let mut call = caller.rows(&rows, &signature)?;
            let mut number = 0_u32;
            while let Some(part) = call.next().await? {
                let events = rows_of_events(&part)?;
                yield marked(&decoded(&part, &declared)?, number, &events, &output)?;
                number = number.wrapping_add(count(&events));
            }
        },
    )
}

/// The rows of a request in one batch.
async fn collect(input: Input) -> Result<RecordBatch, PredictError> {
    let (schema, mut batches) = (input.schema(), input.into_stream());
    let (mut rows, mut bytes) = (Vec::new(), 0);
    while let Some(batch) = batches.try_next().await? {
        bytes += batch.get_array_memory_size();
        if MAX_INPUT < bytes && !rows.is_empty() {
            let message = "a request to a model that streams events is over the limit of 64 MiB";
            return Err(PredictError::new(ErrorCode::TooLarge, message));
        }
        if batch.num_rows() != 0 {
            rows.push(batch);
        }
    }
    match rows.len() {
        0 => Err(PredictError::invalid(
            "the request has no rows; send at least one",
        )),
        1 => rows.pop().ok_or_else(|| malformed("no rows")),
        _ => arrow_select::concat::concat_batches(&schema, &rows).map_err(|error| {
            PredictError::invalid("the rows of the request do not have the same columns")
                .with_source(error)
        }),
    }
}

/// The rows of each event of a part.
fn rows_of_events(part: &AnswerPart) -> Result<Cow<'_, [usize]>, PredictError> {
    let events = match &part.events {
        Some(events) => Cow::Borrowed(events.as_slice()),
        None => Cow::Owned(vec![part.rows]),
    };
    let sum = events
        .iter()
        .try_fold(0_usize, |sum, rows| sum.checked_add(*rows));
    match events.contains(&0) || sum != Some(part.rows) {
        true => Err(malformed("an event without rows")),
        false => Ok(events),
    }
}

fn count(events: &[usize]) -> u32 {
    u32::try_from(events.len()).unwrap_or(u32::MAX)
}

/// Events with the columns that mark them.
fn marked(
    rows: &RecordBatch,
    number: u32,
    events: &[usize],
    schema: &SchemaRef,
) -> Result<RecordBatch, PredictError> {
    let columns = rows.columns().iter().cloned();
    let columns = columns.chain(marks(number, events)).collect();
    RecordBatch::try_new(schema.clone(), columns)
        .map_err(|_| malformed("the columns of an event do not fit together"))
}
