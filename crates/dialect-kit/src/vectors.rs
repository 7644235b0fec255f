//! The columns of embeddings. Pure.

use arrow_array::cast::AsArray;
use arrow_array::types::{Float32Type, UInt32Type};
use arrow_array::{Array, RecordBatch};
use volley_types::signature::{EMBEDDING, TOKENS};
use volley_types::{ErrorCode, PredictError};

/// Adds the vectors of a batch's rows.
///
/// # Errors
/// `UpstreamFailed` for a value that is not finite, which JSON cannot represent.
pub fn vectors(batch: &RecordBatch, all: &mut Vec<Vec<f32>>) -> Result<(), PredictError> {
    let vectors = batch.column_by_name(EMBEDDING);
    let vectors = vectors.and_then(|column| column.as_list_opt::<i32>());
    let vectors = vectors.ok_or_else(|| malformed("no embeddings"))?;
    for row in 0..vectors.len() {
        let vector = vectors.value(row);
        let vector = vector
            .as_primitive_opt::<Float32Type>()
            .ok_or_else(|| malformed("embeddings are not f32"))?;
        if !vector.values().iter().all(|value| value.is_finite()) {
            return Err(PredictError::new(
                ErrorCode::UpstreamFailed,
                "the model returned an embedding with a value that is not a finite 32-bit number; \
                 check the model with another text",
            ));
        }
        all.push(vector.values().to_vec());
    }
    Ok(())
}

/// The tokens of a batch's rows; `None` if they are unknown.
pub fn count(batch: &RecordBatch) -> Option<u64> {
    let tokens = batch.column_by_name(TOKENS);
    let tokens = tokens.and_then(|column| column.as_primitive_opt::<UInt32Type>())?;
    tokens.iter().map(|tokens| tokens.map(u64::from)).sum()
}

/// The error for a response that does not match the model's signature.
pub fn malformed(cause: &str) -> PredictError {
    PredictError::internal("the model's answer is malformed", cause.to_owned())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow_array::ArrayRef;
    use arrow_array::builder::{Float32Builder, ListBuilder};

    use super::*;

    #[test]
    fn a_value_that_is_not_finite_is_an_error() {
        let read = |value: f32| {
            let mut lists = ListBuilder::new(Float32Builder::new());
            lists.values().append_slice(&[0.5, value]);
            lists.append(true);
            let batch =
                RecordBatch::try_from_iter([(EMBEDDING, Arc::new(lists.finish()) as ArrayRef)]);
            let mut all = Vec::new();
            vectors(&batch.unwrap(), &mut all).map(|()| all)
        };
        assert_eq!(read(1.0).unwrap().len(), 1);
        for value in [f32::INFINITY, f32::NAN] {
            assert_eq!(read(value).unwrap_err().code, ErrorCode::UpstreamFailed);
        }
    }
}
