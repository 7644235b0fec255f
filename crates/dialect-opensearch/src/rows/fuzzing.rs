//! Entry points for fuzzers of streamed bodies.

use std::sync::Arc;
use std::time::Duration;

use arrow_schema::{DataType, Field, Schema};
use volley_http_edge::axum::body::Body;
use volley_types::arrow_messages::ReadArrow;
use volley_types::{Input, Intake, PredictError, Signature, Task};

use super::{Pieces, arrow, ndjson};

/// Maximum length of a line in bytes.
const LIMIT: usize = 1 << 16;

/// Reads JSON lines for one of several models, which `which` selects.
///
/// # Errors
/// The error of the reader for a body that is rejected before its first row.
pub async fn json_lines(body: Body, which: u8, timeout: Duration) -> Result<Input, PredictError> {
    let signature = match which % 4 {
        0 => Signature::generation(),
        1 => Signature::embed(2),
        2 => Signature::rerank(),
        _ => {
            let item = Arc::new(Field::new("item", DataType::Float32, false));
            let x = Field::new("x", DataType::FixedSizeList(item, 2), false);
            Signature {
                task: Task::Tensors,
                input: Arc::new(Schema::new(vec![x])),
                ..Signature::generation()
            }
        }
    };
    let (_, input) = ndjson::read(counted(body), signature, LIMIT, timeout).await?;
    Ok(input)
}

/// Reads an Arrow stream with `reader`.
///
/// # Errors
/// The error of the reader for a body that is rejected before its first row.
pub async fn arrow(
    body: Body,
    reader: Box<dyn ReadArrow>,
    timeout: Duration,
) -> Result<Input, PredictError> {
    arrow::read(counted(body), Some(reader), timeout).await
}

fn counted(body: Body) -> Pieces {
    Pieces::new(body, Intake::default().share())
}
