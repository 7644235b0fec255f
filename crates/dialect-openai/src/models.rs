//! Models as `GET /v1/models` lists them. Pure.

use serde_json::{Value, json};
use volley_types::{PredictError, Task};

use volley_dialect_kit::catalogue::{CatalogueEntry, ModelsQuery};

/// What can chat, complete or embed, and is ready; with `?all=true` whatever is registered.
///
/// # Errors
/// `InvalidInput` for parameters of Anthropic's form.
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

/// A model as these clients know it. `max_model_len`, `root` and `parent` are of other servers.
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
