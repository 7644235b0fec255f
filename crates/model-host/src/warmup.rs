//! Runs a tensor model once with zeros after loading; text models run a probe when they load. A
//! model that crashes at once then fails its load instead of a request.

use std::sync::Arc;
use std::time::Duration;

use arrow_array::{ArrayRef, FixedSizeListArray, Int8Array, ListArray, RecordBatch, StructArray};
use arrow_buffer::OffsetBuffer;
use arrow_schema::{ArrowError, DataType, Field, Schema};
use futures::StreamExt;
use volley_backend::Backend;
use volley_types::registry::Assignment;
use volley_types::{Input, ModelRef, PredictError, PredictRequest, Task};

/// Time limit of the run; a slower model is accepted.
const LIMIT: Duration = Duration::from_secs(2);

/// Maximum number of values in a row.
const MAX_VALUES: usize = 1 << 20;

/// Runs `backend` once if it is a tensor model. An error of the run is only logged, because a model
/// may reject zeros.
///
/// # Errors
/// Those of the backend's signature.
pub(crate) async fn run(
    backend: &dyn Backend,
    assignment: &Assignment,
) -> Result<(), PredictError> {
    let model = ModelRef::deployed(assignment.model.clone());
    let signature = backend.signature(&model).await?;
    if signature.task != Task::Tensors {
        return Ok(());
    }
    let Ok(batch) = row_of_zeros(&signature.input) else {
        return Ok(());
    };
    let request = PredictRequest::new(model, Input::Batch(batch));
    let run = async {
        let mut answer = backend.predict(request).await?;
        answer.next().await.transpose()
    };
    if let Ok(Err(error)) = tokio::time::timeout(LIMIT, run).await {
        tracing::debug!(error = error.chain(), "warm-up run with zeros failed");
    }
    Ok(())
}

fn row_of_zeros(schema: &Schema) -> Result<RecordBatch, ArrowError> {
    let columns = schema.fields().iter().map(|field| alike(field, 1, 0));
    let columns = columns.collect::<Result<_, _>>()?;
    RecordBatch::try_new(Arc::new(schema.clone()), columns)
}

/// `count` values of a field, all equal to `number`. Lists have one value, and shapes are all ones.
fn alike(field: &Field, count: usize, number: i8) -> Result<ArrayRef, ArrowError> {
    Ok(match field.data_type() {
        DataType::FixedSizeList(item, size) => {
            let values = count.saturating_mul(usize::try_from(*size).unwrap_or(0));
            if MAX_VALUES < values {
                return Err(ArrowError::MemoryError("too many to try".to_owned()));
            }
            let values = alike(item, values, number)?;
            let list = FixedSizeListArray::try_new(item.clone(), *size, values, None)?;
            Arc::new(list)
        }
        DataType::List(item) => {
            let ends = OffsetBuffer::from_lengths(vec![1; count]);
            let values = alike(item, count, number)?;
            Arc::new(ListArray::try_new(item.clone(), ends, values, None)?)
        }
        DataType::Struct(fields) => {
            let value = |field: &Arc<Field>| {
                let number = if field.name() == "shape" { 1 } else { number };
                alike(field, count, number)
            };
            let values = fields.iter().map(value).collect::<Result<_, _>>()?;
            Arc::new(StructArray::try_new(fields.clone(), values, None)?)
        }
        plain => {
            let values = Int8Array::from_iter_values(std::iter::repeat_n(number, count));
            arrow_cast::cast(&values, plain)?
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_of_column_has_a_row_to_try() {
        let item = |kind| Arc::new(Field::new("item", kind, false));
        let shape = DataType::FixedSizeList(item(DataType::Int32), 3);
        let ragged = vec![
            Field::new("data", DataType::List(item(DataType::Float16)), false),
            Field::new("shape", shape, false),
        ];
        let fixed = |size| DataType::FixedSizeList(item(DataType::UInt8), size);
        let field = |name: &str, kind| Field::new(name, kind, false);
        let schema = Schema::new(vec![
            field("plain", DataType::Float64),
            field("flag", DataType::Boolean),
            field("text", DataType::Utf8),
            field("fixed", fixed(12)),
            field("ragged", DataType::Struct(ragged.into())),
        ]);
        let batch = row_of_zeros(&schema).unwrap();
        assert_eq!(batch.num_rows(), 1);
        let huge = Schema::new(vec![field("huge", fixed(i32::MAX))]);
        assert!(row_of_zeros(&huge).is_err());
    }
}
