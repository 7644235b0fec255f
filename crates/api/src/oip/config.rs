//! A model's configuration, as Triton's clients read it.

use std::sync::Arc;

use arrow_schema::Schema;
use axum::Json;
use serde_json::{Value, json};

use super::{Found, Named, tensors};
use crate::app::App;
use crate::error::ApiError;
use crate::extract::{Path, State};

/// What of a model's configuration has a meaning here.
pub(crate) async fn config(
    State(app): State<Arc<App>>,
    Path(named): Path<Named>,
) -> Result<Json<Value>, ApiError> {
    let found = Found::find(&app, &named).await?;
    let task = found.signature.task.as_str();
    Ok(Json(json!({
        "name": found.model.name.as_str(),
        "platform": format!("volley_{task}"),
        "backend": "volley",
        // The rows are a dimension of every tensor, not one that the server adds.
        "max_batch_size": 0,
        "input": ports(&found.signature.input),
        "output": ports(&found.signature.output),
    })))
}

fn ports(schema: &Schema) -> Vec<Value> {
    let told = schema.fields().iter().filter_map(|field| {
        let data_type = match tensors::described(field)? {
            "BYTES" => "TYPE_STRING".to_owned(),
            other => format!("TYPE_{other}"),
        };
        let dims = tensors::declared_shape(field);
        Some(json!({ "name": field.name(), "data_type": data_type, "dims": dims }))
    });
    told.collect()
}
