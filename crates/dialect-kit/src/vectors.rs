//! The columns of embeddings. Pure.

use arrow_array::cast::AsArray;
use arrow_array::types::{Float32Type, UInt32Type};
use arrow_array::{Array, RecordBatch};
use volley_types::PredictError;
use volley_types::signature::{EMBEDDING, TOKENS};

/// Adds the vectors of a batch's rows.
pub fn vectors(batch: &RecordBatch, all: &mut Vec<Vec<f32>>) -> Result<(), PredictError> {
    let vectors = batch.column_by_name(EMBEDDING);
    let vectors = vectors.and_then(|column| column.as_list_opt::<i32>());
    let vectors = vectors.ok_or_else(|| malformed("no embeddings"))?;
    for row in 0..vectors.len() {
        let vector = vectors.value(row);
        let vector = vector
            .as_primitive_opt::<Float32Type>()
            .ok_or_else(|| malformed("embeddings are not f32"))?;
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
