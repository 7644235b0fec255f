//! Pass-through columns: request columns that the model does not use are joined to its response.

use std::collections::VecDeque;
use std::sync::Arc;

use arrow_array::{RecordBatch, RecordBatchOptions};
use arrow_schema::{ArrowError, Schema, SchemaRef};
use futures::StreamExt;
use parking_lot::Mutex;
use volley_proto::predict_command::PredictHead;
use volley_types::{ChunkStream, ErrorCode, Input, PredictError, Resolved, Signature, Task};

use super::{Exchange, check_output, no_rows, within_exchange};
use crate::egress::{Encoder, RESPONSE_MESSAGE_BYTES};
use crate::server::incoming::ExchangeInput;

/// Maximum size in bytes of pass-through columns whose rows the model has not answered yet.
const MAX_KEPT_BYTES: usize = 64 << 20;

impl Exchange {
    /// Answers a call for rows. The response's schema depends on the request's schema, because it
    /// has columns of both.
    pub(super) async fn answer_passing(
        &self,
        head: PredictHead,
        resolved: &Resolved,
        mut incoming: ExchangeInput,
        schema: Option<SchemaRef>,
    ) -> Result<(), PredictError> {
        let signature = &resolved.signature;
        let encoder = Encoder::new(RESPONSE_MESSAGE_BYTES);
        let mut encoder = encoder.leaving_out(head.columns_left_out);
        let schema = match schema {
            Some(schema) => Some(schema),
            None => incoming.schema().await?,
        };
        let Some(schema) = schema else {
            self.send(encoder.schema(&signature.output)).await?;
            return no_rows(signature.task);
        };
        let passing = PassThrough::of(&schema, signature)?;
        let fit = signature.fit(&passing.taken_schema)?;
        self.send(encoder.schema(&passing.answer)).await?;
        let grace = self.config.whole_request_grace;
        let Some((input, _incoming)) = incoming.rows(schema, grace).await? else {
            return no_rows(signature.task);
        };
        let kept = Arc::new(Mutex::new(PassingRows::default()));
        let input = fit.apply(passing.taken_of(input, &kept)?)?;
        let mut request = within_exchange(head, input);
        request.resolved = Some(resolved.clone());
        let chunks = self.predict.predict(request).await?;
        check_output(&chunks, &signature.output)?;
        let answer = passing.answer.clone();
        let joined = {
            let (answer, kept) = (answer.clone(), kept.clone());
            chunks.map(move |batch| joined(&answer, &batch?, &kept))
        };
        self.send_chunks(ChunkStream::new(answer, joined), &mut encoder)
            .await?;
        kept.lock().check_empty()
    }
}

/// Input columns of the model, and pass-through columns.
#[derive(Clone)]
struct PassThrough {
    taken: Vec<usize>,
    passed: Vec<usize>,
    taken_schema: SchemaRef,
    /// The response's columns, followed by the pass-through columns.
    answer: SchemaRef,
}

impl PassThrough {
    fn of(given: &Schema, signature: &Signature) -> Result<Self, PredictError> {
        if signature.task == Task::Events {
            return Err(PredictError::invalid(
                "columns cannot pass through a stream of events, whose rows are not those of the \
                 request",
            ));
        }
        if signature.task == Task::Generate {
            return Err(PredictError::invalid(
                "columns cannot pass through a generation, which returns several rows for each \
                 input row; join the rows by their column 'item'",
            ));
        }
        let columns = given.fields().iter().enumerate();
        let takes = |name: &str| signature.input.field_with_name(name).is_ok();
        let (taken, passed): (Vec<_>, Vec<_>) = columns.partition(|(_, field)| takes(field.name()));
        let mut answer = signature.output.fields().to_vec();
        for (_, field) in &passed {
            if answer.iter().any(|other| other.name() == field.name()) {
                return Err(PredictError::invalid(format!(
                    "column '{}' cannot pass through: the response has another column of this \
                     name; rename it",
                    field.name().escape_debug()
                )));
            }
            answer.push((*field).clone());
        }
        let indices = |columns: &[(usize, _)]| columns.iter().map(|(index, _)| *index).collect();
        let taken_schema: Vec<_> = taken.iter().map(|(_, field)| (*field).clone()).collect();
        let answer = Schema::new(answer).with_metadata(signature.output.metadata().clone());
        Ok(Self {
            taken: indices(&taken),
            passed: indices(&passed),
            taken_schema: Arc::new(Schema::new(taken_schema)),
            answer: Arc::new(answer),
        })
    }

    /// The model's columns of `input`; the other columns of each batch are buffered.
    fn taken_of(
        &self,
        input: Input,
        kept: &Arc<Mutex<PassingRows>>,
    ) -> Result<Input, PredictError> {
        Ok(match input {
            Input::Batch(batch) => Input::Batch(self.split(&batch, kept)?),
            Input::Stream { batches, .. } => {
                let (passing, kept) = (self.clone(), kept.clone());
                let batches = batches.map(move |batch| passing.split(&batch?, &kept));
                Input::Stream {
                    schema: self.taken_schema.clone(),
                    batches: Box::pin(batches),
                }
            }
        })
    }

    fn split(
        &self,
        batch: &RecordBatch,
        kept: &Mutex<PassingRows>,
    ) -> Result<RecordBatch, PredictError> {
        let project = |columns: &[usize]| batch.project(columns).map_err(apart);
        kept.lock().push(project(&self.passed)?)?;
        project(&self.taken)
    }
}

/// Buffered rows of pass-through columns, in order, until the model has answered them.
#[derive(Default)]
struct PassingRows {
    batches: VecDeque<RecordBatch>,
    bytes: usize,
}

impl PassingRows {
    fn push(&mut self, batch: RecordBatch) -> Result<(), PredictError> {
        self.bytes = self.bytes.saturating_add(batch.get_array_memory_size());
        if MAX_KEPT_BYTES < self.bytes {
            return Err(PredictError::new(
                ErrorCode::TooLarge,
                "the pass-through columns have over 64 MiB of rows that the model has not \
                 answered yet; send fewer rows, or fewer columns",
            ));
        }
        self.batches.push_back(batch);
        Ok(())
    }

    /// Removes the next rows, in one or more pieces.
    fn take(&mut self, mut rows: usize) -> Result<Vec<RecordBatch>, PredictError> {
        let mut pieces = Vec::new();
        while rows != 0 {
            let batch = self.batches.pop_front().ok_or_else(|| misaligned("more"))?;
            let bytes = batch.get_array_memory_size();
            if batch.num_rows() <= rows {
                self.bytes = self.bytes.saturating_sub(bytes);
                rows -= batch.num_rows();
                pieces.push(batch);
            } else {
                pieces.push(batch.slice(0, rows));
                let rest = batch.slice(rows, batch.num_rows() - rows);
                let left = rest.get_array_memory_size();
                self.bytes = self.bytes.saturating_sub(bytes).saturating_add(left);
                self.batches.push_front(rest);
                rows = 0;
            }
        }
        Ok(pieces)
    }

    fn check_empty(&self) -> Result<(), PredictError> {
        match self.batches.is_empty() {
            true => Ok(()),
            false => Err(misaligned("fewer")),
        }
    }
}

/// Rows of a response with the pass-through columns.
fn joined(
    schema: &SchemaRef,
    batch: &RecordBatch,
    kept: &Mutex<PassingRows>,
) -> Result<RecordBatch, PredictError> {
    let rows = batch.num_rows();
    let pieces = kept.lock().take(rows)?;
    let mut columns = batch.columns().to_vec();
    if let Some(first) = pieces.first() {
        let passed = arrow_select::concat::concat_batches(&first.schema(), &pieces);
        columns.extend(passed.map_err(apart)?.columns().iter().cloned());
    } else {
        let passed = schema.fields().iter().skip(columns.len());
        columns.extend(passed.map(|field| arrow_array::new_empty_array(field.data_type())));
    }
    let options = RecordBatchOptions::new().with_row_count(Some(rows));
    RecordBatch::try_new_with_options(schema.clone(), columns, &options).map_err(apart)
}

fn misaligned(count: &str) -> PredictError {
    PredictError::internal(
        "the model did not return one row for each input row",
        format!("{count} rows"),
    )
}

fn apart(error: ArrowError) -> PredictError {
    PredictError::internal(
        "pass-through columns could not be added to the response",
        error,
    )
}

#[cfg(test)]
mod tests {
    use arrow_array::cast::AsArray;
    use arrow_array::types::Int64Type;
    use arrow_array::{ArrayRef, Int64Array};
    use arrow_schema::{DataType, Field};

    use super::*;

    fn numbers(name: &str, values: Vec<i64>) -> RecordBatch {
        let column: ArrayRef = Arc::new(Int64Array::from(values));
        RecordBatch::try_from_iter([(name, column)]).unwrap()
    }

    #[test]
    fn rows_stay_beside_their_answers_however_batches_are_cut() {
        let kept = Mutex::new(PassingRows::default());
        for batch in [vec![1, 2, 3], vec![4], vec![5, 6]] {
            kept.lock().push(numbers("id", batch)).unwrap();
        }
        let schema = Arc::new(Schema::new(vec![
            Field::new("y", DataType::Int64, false),
            Field::new("id", DataType::Int64, false),
        ]));
        let mut seen = Vec::new();
        for answer in [vec![10, 20], vec![], vec![30, 40, 50], vec![60]] {
            let joined = joined(&schema, &numbers("y", answer), &kept).unwrap();
            let column = |index| {
                joined
                    .column(index)
                    .as_primitive::<Int64Type>()
                    .values()
                    .to_vec()
            };
            seen.extend(column(0).into_iter().zip(column(1)));
        }
        assert_eq!(seen, [(10, 1), (20, 2), (30, 3), (40, 4), (50, 5), (60, 6)]);
        kept.lock().check_empty().unwrap();
        assert_eq!(kept.lock().bytes, 0);
        let more = joined(&schema, &numbers("y", vec![70]), &kept).unwrap_err();
        assert_eq!(more.code, ErrorCode::Internal);
    }

    #[test]
    fn a_column_of_the_answers_name_and_a_generations_columns_do_not_pass() {
        let signature = Signature::rerank();
        let given = |names: &[&str]| {
            let field = |name: &&str| Field::new(*name, DataType::Utf8, true);
            Schema::new(names.iter().map(field).collect::<Vec<_>>())
        };
        let passing = PassThrough::of(&given(&["id", "text", "query"]), &signature).unwrap();
        assert_eq!((passing.taken, passing.passed), (vec![1, 2], vec![0]));
        let names: Vec<_> = passing
            .answer
            .fields()
            .iter()
            .map(|it| it.name().as_str())
            .collect();
        assert_eq!(names, ["score", "tokens", "id"]);
        for (given, signature, text) in [
            (given(&["text", "query", "score"]), signature, "'score'"),
            (given(&["prompt", "id"]), Signature::generation(), "'item'"),
        ] {
            let error = PassThrough::of(&given, &signature).err().unwrap();
            assert_eq!(error.code, ErrorCode::InvalidInput);
            assert!(error.message.contains(text), "{}", error.message);
        }
    }

    #[test]
    fn what_waits_for_answers_is_bounded() {
        let mut kept = PassingRows::default();
        let batch = numbers("id", vec![0; 1 << 20]);
        let pushed = (0..)
            .take_while(|_| kept.push(batch.clone()).is_ok())
            .count();
        assert!((7..=8).contains(&pushed), "{pushed}");
    }
}
