//! `GET /v1/models` in Anthropic's format: the newest model first, in pages. Pure.

use serde_json::{Value, json};
use volley_types::{PredictError, Task};

use volley_dialect_kit::catalogue::{CatalogueEntry, ModelsQuery};
use volley_dialect_kit::clock::time;

/// Default number of models on a page.
const PAGE: usize = 20;
/// Maximum number of models on a page.
const LARGEST_PAGE: usize = 1_000;

/// One page of the models that can answer messages, or of all models if requested.
///
/// # Errors
/// `InvalidInput` naming the parameter.
pub fn page(all: Vec<CatalogueEntry>, which: &ModelsQuery) -> Result<Value, PredictError> {
    let limit = which.limit.unwrap_or(PAGE);
    if !(1..=LARGEST_PAGE).contains(&limit) {
        return Err(PredictError::invalid(format!(
            "parameter 'limit' must be 1 to {LARGEST_PAGE}"
        )));
    }
    let mut models: Vec<_> = all
        .into_iter()
        .filter(|it| which.all || it.task() == Some(Task::Generate))
        .collect();
    models.sort_by(|a, b| b.created_ms.cmp(&a.created_ms).then(a.name.cmp(&b.name)));
    let place = |parameter: &str, id: &str| {
        let found = models.iter().position(|it| it.name.as_str() == id);
        found.ok_or_else(|| {
            PredictError::invalid(format!(
                "parameter '{parameter}' must be the id of a model of this list"
            ))
        })
    };
    let (from, to, has_more) = match (&which.after_id, &which.before_id) {
        (Some(_), Some(_)) => {
            return Err(PredictError::invalid(
                "parameters 'after_id' and 'before_id' exclude each other",
            ));
        }
        (None, Some(before)) => {
            let to = place("before_id", before)?;
            let from = to.saturating_sub(limit);
            (from, to, 0 < from)
        }
        (after, None) => {
            let after = after.as_deref();
            let from = after.map_or(Ok(0), |id| Ok(place("after_id", id)? + 1))?;
            let to = models.len().min(from.saturating_add(limit));
            (from, to, to < models.len())
        }
    };
    let data: Vec<_> = models[from..to]
        .iter()
        .map(|it| model(it, it.name.as_str()))
        .collect();
    let id_of = |model: Option<&Value>| model.map(|model| model["id"].clone());
    Ok(json!({
        "first_id": id_of(data.first()),
        "last_id": id_of(data.last()),
        "has_more": has_more,
        "data": data,
    }))
}

/// Formats one model.
pub fn model(listed: &CatalogueEntry, name: &str) -> Value {
    json!({
        "type": "model",
        "id": name,
        "display_name": name,
        "created_at": time(listed.created_ms),
        "max_input_tokens": listed.context(),
        "max_tokens": listed.context(),
    })
}
