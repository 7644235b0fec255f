//! A model's configuration in Triton's format.

use serde_json::{Value, json};
use volley_http_edge::axum::Json;
use volley_types::Task;

use super::describe::{self, TensorForm};
use super::{ModelPath, ResolvedModel};
use volley_http_edge::edge::Caller;
use volley_http_edge::error::ApiError;
use volley_http_edge::extract::Path;

/// Returns the configuration of a model.
pub(crate) async fn config(
    caller: Caller,
    Path(named): Path<ModelPath>,
) -> Result<Json<Value>, ApiError> {
    let found = ResolvedModel::find(&caller, &named).await?;
    Ok(Json(of(&found)))
}

/// The configuration: that of the model's own `config.pbtxt` if it has one, or otherwise one that
/// is derived from its signature.
pub(super) fn of(found: &ResolvedModel) -> Value {
    let signature = &found.signature;
    let mut config = found.served.config.clone().unwrap_or_else(|| {
        json!({
            "platform": describe::platform(found),
            "backend": describe::SERVER,
            // The rows are a dimension of every tensor. The server does not add one.
            "max_batch_size": 0,
            "input": ports(describe::inputs(signature)),
            "output": ports(describe::outputs(signature)),
        })
    });
    config["name"] = found.model.name.as_str().into();
    let streams = matches!(signature.task, Task::Generate | Task::Events);
    if streams && config.get("model_transaction_policy").is_none() {
        config["model_transaction_policy"] = json!({ "decoupled": true });
    }
    config
}

fn ports(forms: Vec<TensorForm>) -> Vec<Value> {
    let told = forms.into_iter().map(|form| {
        let data_type = describe::config_type(form.datatype);
        let mut port = json!({ "name": form.name, "data_type": data_type, "dims": form.shape });
        if form.optional {
            port["optional"] = true.into();
        }
        port
    });
    told.collect()
}
