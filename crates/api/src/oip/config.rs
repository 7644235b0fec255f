//! A model's configuration, as Triton's clients read it.

use std::sync::Arc;

use axum::Json;
use serde_json::{Value, json};

use super::describe::{self, TensorForm};
use super::{Found, Named};
use crate::app::App;
use crate::error::ApiError;
use crate::extract::{Path, State};

/// What of a model's configuration has a meaning here.
pub(crate) async fn config(
    State(app): State<Arc<App>>,
    Path(named): Path<Named>,
) -> Result<Json<Value>, ApiError> {
    let found = Found::find(&app, &named).await?;
    let signature = &found.signature;
    Ok(Json(json!({
        "name": found.model.name.as_str(),
        "platform": describe::platform(signature),
        "backend": describe::SERVER,
        // The rows are a dimension of every tensor, not one that the server adds.
        "max_batch_size": 0,
        "input": ports(describe::inputs(signature)),
        "output": ports(describe::outputs(signature)),
    })))
}

fn ports(forms: Vec<TensorForm>) -> Vec<Value> {
    let told = forms.into_iter().map(|form| {
        let data_type = describe::config_type(form.datatype);
        json!({ "name": form.name, "data_type": data_type, "dims": form.shape })
    });
    told.collect()
}
