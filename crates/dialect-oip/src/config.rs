//! A model's configuration, as Triton's clients read it.

use serde_json::{Value, json};
use volley_http_edge::axum::Json;
use volley_types::Task;

use super::describe::{self, TensorForm};
use super::{ModelPath, ResolvedModel};
use volley_http_edge::edge::Caller;
use volley_http_edge::error::ApiError;
use volley_http_edge::extract::Path;

/// What of a model's configuration has a meaning here.
pub(crate) async fn config(
    caller: Caller,
    Path(named): Path<ModelPath>,
) -> Result<Json<Value>, ApiError> {
    let found = ResolvedModel::find(&caller, &named).await?;
    Ok(Json(of(&found)))
}

/// The configuration: what the model's own `config.pbtxt` says, where it has one.
pub(super) fn of(found: &ResolvedModel) -> Value {
    let signature = &found.signature;
    let mut config = found.served.config.clone().unwrap_or_else(|| {
        json!({
            "platform": describe::platform(found),
            "backend": describe::SERVER,
            // The rows are a dimension of every tensor, not one that the server adds.
            "max_batch_size": 0,
            "input": ports(describe::inputs(signature)),
            "output": ports(describe::outputs(signature)),
        })
    });
    config["name"] = found.model.name.as_str().into();
    if signature.task == Task::Generate && config.get("model_transaction_policy").is_none() {
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
