//! Columns left out. Most messages of a generation say something in two of its eighteen columns; to
//! write, send, check and read the other sixteen is most of what such a message costs. Where the
//! caller understands it, a message holds the columns that say something, and its application
//! metadata says which of the schema's those are. Whoever reads it makes the others again.

use std::sync::Arc;

use arrow_array::{ArrayRef, RecordBatch, RecordBatchOptions};
use arrow_schema::{ArrowError, Schema, SchemaRef};
use bytes::Bytes;
use volley_types::PredictError;
use volley_types::chunk::{blank, is_blank};

use crate::ingress::malformed;

/// What the application metadata of such a message begins with; the columns follow as the bits of
/// eight bytes, the schema's first column as the lowest bit of the first byte.
const MARK: &[u8] = b"col";

/// Columns of a schema, as a set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Columns(u64);

impl Columns {
    /// Those of `batch` that say something; `None` where all do, where none does, or where there
    /// are too many to tell them so.
    pub(crate) fn said(batch: &RecordBatch) -> Option<Self> {
        let all = batch.num_columns();
        if u64::BITS as usize <= all {
            return None;
        }
        let schema = batch.schema_ref();
        let columns = schema.fields().iter().zip(batch.columns());
        let said = columns
            .enumerate()
            .filter(|(_, (field, column))| !is_blank(field, column));
        let said = said.fold(0, |said, (index, _)| said | 1 << index);
        (said != 0 && said != (1 << all) - 1).then_some(Self(said))
    }

    /// The set that a message's application metadata names; `None` where it names none.
    pub(crate) fn named(metadata: &[u8]) -> Option<Self> {
        let bits = metadata.strip_prefix(MARK)?.try_into().ok()?;
        Some(Self(u64::from_le_bytes(bits)))
    }

    /// As application metadata.
    pub(crate) fn name(self) -> Bytes {
        [MARK, &self.0.to_le_bytes()].concat().into()
    }

    fn has(self, index: usize) -> bool {
        index < u64::BITS as usize && self.0 >> index & 1 == 1
    }

    /// The batch of these columns alone.
    ///
    /// # Errors
    /// None, for columns that the batch has.
    pub(crate) fn of(self, batch: &RecordBatch) -> Result<RecordBatch, ArrowError> {
        let indices: Vec<_> = (0..batch.num_columns())
            .filter(|it| self.has(*it))
            .collect();
        batch.project(&indices)
    }

    /// The schema of these columns alone.
    ///
    /// # Errors
    /// `InvalidInput` when `schema` does not have them all, or one that is left out cannot be.
    pub(crate) fn schema(self, schema: &Schema) -> Result<SchemaRef, PredictError> {
        let fields = schema.fields();
        if self
            .0
            .checked_shr(u32::try_from(fields.len()).unwrap_or(u32::MAX))
            .unwrap_or(0)
            != 0
        {
            return Err(malformed("columns that its schema does not have"));
        }
        let mut kept = Vec::with_capacity(self.0.count_ones() as usize);
        for (index, field) in fields.iter().enumerate() {
            if self.has(index) {
                kept.push(field.clone());
            } else if blank(field, 0).is_none() {
                return Err(malformed("too few columns for its schema"));
            }
        }
        Ok(Arc::new(Schema::new(kept)))
    }

    /// `batch` of these columns alone, with the others of `schema` made again.
    ///
    /// # Errors
    /// `InvalidInput` when they cannot be.
    pub(crate) fn fill(
        self,
        batch: &RecordBatch,
        schema: &SchemaRef,
    ) -> Result<RecordBatch, PredictError> {
        let rows = batch.num_rows();
        let mut said = batch.columns().iter();
        let column = |(index, field): (usize, &Arc<_>)| match self.has(index) {
            true => said.next().cloned(),
            false => blank(field, rows),
        };
        let columns: Option<Vec<ArrayRef>> =
            schema.fields().iter().enumerate().map(column).collect();
        let columns = columns.ok_or_else(|| malformed("too few columns for its schema"))?;
        let options = RecordBatchOptions::new().with_row_count(Some(rows));
        RecordBatch::try_new_with_options(schema.clone(), columns, &options)
            .map_err(|error| malformed("columns that do not fit its schema").with_source(error))
    }
}

/// `batches` of `schema` as one. A column that says nothing in any of them is not copied.
///
/// # Errors
/// Arrow's, where they are not of that schema.
pub(crate) fn concat(
    schema: &SchemaRef,
    batches: &[RecordBatch],
) -> Result<RecordBatch, ArrowError> {
    let rows = batches.iter().map(RecordBatch::num_rows).sum();
    let columns = schema.fields().iter().enumerate().map(|(index, field)| {
        if batches
            .iter()
            .all(|batch| is_blank(field, batch.column(index)))
            && let Some(blank) = blank(field, rows)
        {
            return Ok(blank);
        }
        let parts: Vec<_> = batches
            .iter()
            .map(|batch| batch.column(index).as_ref())
            .collect();
        arrow_select::concat::concat(&parts)
    });
    let columns = columns.collect::<Result<_, _>>()?;
    let options = RecordBatchOptions::new().with_row_count(Some(rows));
    RecordBatch::try_new_with_options(schema.clone(), columns, &options)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use volley_types::{GenerationChunk, GenerationChunks, Usage};

    use super::*;
    use crate::egress::Encoder;
    use crate::ingress::{Decoder, Ingress};

    fn rows(chunks: &[GenerationChunk]) -> RecordBatch {
        let mut rows = GenerationChunks::default();
        chunks.iter().for_each(|chunk| rows.push(chunk));
        rows.finish()
    }

    fn chunk() -> impl Strategy<Value = GenerationChunk> {
        let numbers = (0..2_u32, any::<u32>(), any::<Option<u32>>(), any::<bool>());
        let texts = (proptest::option::of(".{0,9}"), proptest::option::of("x?"));
        (numbers, texts).prop_map(|(numbers, texts)| GenerationChunk {
            item: numbers.0,
            sequence: numbers.1,
            token_id: numbers.2,
            last: numbers.3,
            usage: numbers.3.then(Usage::default),
            text: texts.0,
            thinking: texts.1,
            ..GenerationChunk::default()
        })
    }

    fn sent(batch: &RecordBatch) -> Vec<arrow_flight::FlightData> {
        let mut encoder = Encoder::new(1 << 20).leaving_out(true);
        let mut messages = vec![encoder.schema(&batch.schema())];
        encoder.batch(batch, &mut messages).unwrap();
        messages
    }

    proptest! {
        #[test]
        fn what_is_left_out_is_made_again(chunks in proptest::collection::vec(chunk(), 1..6)) {
            let batch = rows(&chunks);
            let mut decoder = Decoder::default().with_columns_left_out();
            let mut read = Vec::new();
            for message in sent(&batch) {
                if let Ingress::Batch { batch, .. } = decoder.decode(&message).unwrap() {
                    read.push(batch);
                }
            }
            prop_assert_eq!(read, [batch]);
        }

        #[test]
        fn batches_are_joined_as_arrow_joins_them(
            parts in proptest::collection::vec(proptest::collection::vec(chunk(), 1..4), 1..5),
        ) {
            let parts: Vec<_> = parts.iter().map(|chunks| rows(chunks)).collect();
            let schema = parts[0].schema();
            let joined = arrow_select::concat::concat_batches(&schema, &parts).unwrap();
            prop_assert_eq!(concat(&schema, &parts).unwrap(), joined);
        }

        #[test]
        fn any_metadata_is_refused_or_read(bits: u64, other: Vec<u8>) {
            let batch = rows(&[GenerationChunk::default()]);
            for metadata in [Columns(bits).name(), other.into()] {
                let mut messages = sent(&batch);
                messages[1].app_metadata = metadata;
                let mut decoder = Decoder::default().with_columns_left_out();
                decoder.decode(&messages[0]).unwrap();
                decoder.decode(&messages[1]).ok();
            }
        }
    }

    #[test]
    fn a_message_of_text_has_the_columns_that_say_something_and_is_small() {
        let batch = rows(&[GenerationChunk {
            sequence: 7,
            text: Some("word".into()),
            ..GenerationChunk::default()
        }]);
        let lean = &sent(&batch)[1];
        assert_eq!(Columns::named(&lean.app_metadata), Some(Columns(0b1100)));
        let mut plain = Vec::new();
        Encoder::new(1 << 20).batch(&batch, &mut plain).unwrap();
        let bytes = |it: &arrow_flight::FlightData| it.data_header.len() + it.data_body.len();
        assert!(4 * bytes(lean) < bytes(&plain[0]), "{}", bytes(lean));
    }

    #[test]
    fn whoever_did_not_ask_for_it_does_not_read_it() {
        let batch = rows(&[
            GenerationChunk::default(),
            GenerationChunk {
                sequence: 1,
                ..GenerationChunk::default()
            },
        ]);
        let messages = sent(&batch);
        let mut decoder = Decoder::default();
        decoder.decode(&messages[0]).unwrap();
        assert!(decoder.decode(&messages[1]).is_err());
    }
}
