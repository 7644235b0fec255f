//! Format of `GET /v1/models`. Pure.

use serde_json::{Value, json};
use volley_types::{PredictError, Task};

use volley_dialect_kit::catalogue::{CatalogueEntry, ModelsQuery};

/// The models that are ready and can chat, complete or embed. With `?all=true`, all registered
/// models.
///
/// # Errors
/// `InvalidInput` for the paging parameters of Anthropic's format.
pub fn list(all: &[CatalogueEntry], query: &ModelsQuery) -> Result<Value, PredictError> {
    if query.limit.is_some() || query.before_id.is_some() || query.after_id.is_some() {
        return Err(PredictError::invalid(
            "'limit', 'before_id' and 'after_id' belong to Anthropic's format; send the header \
             'anthropic-version' to use it",
        ));
    }
    let chosen = all.iter().filter(|it| query.all || it.is_usual());
    let models: Vec<_> = chosen.map(|it| model(it, it.name.as_str())).collect();
    Ok(json!({ "object": "list", "data": models }))
}

/// One model. `max_model_len`, `root` and `parent` are fields of vLLM's format.
pub fn model(listed: &CatalogueEntry, name: &str) -> Value {
    json!({
        "id": name,
        "object": "model",
        "created": listed.created_ms / 1_000,
        "owned_by": "volley",
        "root": name,
        "parent": null,
        "max_model_len": listed.context(),
        "task": listed.task().map(Task::as_str),
        "state": listed.state.as_str(),
    })
}
