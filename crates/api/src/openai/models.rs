//! `GET /v1/models`: what can chat, complete or embed, and is ready; with `?all=true` whatever is
//! registered. Anthropic's clients, who send `anthropic-version`, get their own form.

use std::sync::Arc;

use axum::Json;
use axum::extract::FromRequestParts;
use http::HeaderMap;
use http::request::Parts;
use serde::Deserialize;
use serde_json::{Value, json};
use volley_types::{ErrorCode, ModelRef, PredictError, Task};

use crate::anthropic;
use crate::app::App;
use crate::catalogue::{self, Listed};
use crate::context::RequestContext;
use crate::error::{ApiError, House};
use crate::extract::{Path, Query, State};

/// Which models, and which page of them.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Which {
    /// What is not ready, or does something else, too.
    #[serde(default)]
    pub(crate) all: bool,
    /// Of a page in Anthropic's form.
    pub(crate) limit: Option<usize>,
    pub(crate) before_id: Option<String>,
    pub(crate) after_id: Option<String>,
}

/// Whether a request is of one of Anthropic's clients.
pub(crate) struct ForAnthropic(bool);

impl<S: Sync> FromRequestParts<S> for ForAnthropic {
    type Rejection = std::convert::Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Self::Rejection> {
        Ok(Self(is_for_anthropic(&parts.headers)))
    }
}

fn is_for_anthropic(headers: &HeaderMap) -> bool {
    House::of_request("/v1/models", headers) == House::Anthropic
}

/// The models, by name.
pub(crate) async fn list(
    State(app): State<Arc<App>>,
    context: RequestContext,
    Query(which): Query<Which>,
    ForAnthropic(for_anthropic): ForAnthropic,
) -> Result<Json<Value>, ApiError> {
    let all = context
        .in_time(async { Ok(catalogue::all(&app).await) })
        .await?;
    if for_anthropic {
        return Ok(Json(anthropic::models::page(all, &which)?));
    }
    if which.limit.is_some() || which.before_id.is_some() || which.after_id.is_some() {
        return Err(ApiError(PredictError::invalid(
            "'limit', 'before_id' and 'after_id' are of Anthropic's form, which a request asks for \
             by the header 'anthropic-version'",
        )));
    }
    let chosen = all.iter().filter(|it| which.all || it.is_usual());
    let models: Vec<_> = chosen.map(|it| model(it, it.name.as_str())).collect();
    Ok(Json(json!({ "object": "list", "data": models })))
}

/// One model that is deployed.
pub(crate) async fn get(
    State(app): State<Arc<App>>,
    context: RequestContext,
    Path(name): Path<String>,
    ForAnthropic(for_anthropic): ForAnthropic,
) -> Result<Json<Value>, ApiError> {
    let reference = super::reference(&name)?;
    let found = async { Ok(find(&app, &reference).await) };
    let found = context.in_time(found).await?;
    let listed = found.ok_or_else(|| unknown(&name))?;
    Ok(Json(match for_anthropic {
        true => anthropic::models::model(&listed, &name),
        false => model(&listed, &name),
    }))
}

async fn find(app: &App, reference: &ModelRef) -> Option<Listed> {
    let registry = app.control.registry();
    if let Some(entry) = registry.models.get(&reference.name) {
        let deployed = entry.deployment.as_ref()?;
        let meant = reference.version.unwrap_or(deployed.version);
        entry.versions.get(&meant)?;
    }
    catalogue::find(app, &reference.name).await
}

fn unknown(name: &str) -> PredictError {
    let name: String = name.chars().filter(|c| !c.is_control()).take(200).collect();
    PredictError::new(
        ErrorCode::NotFound,
        format!("no model '{name}' is deployed"),
    )
}

/// A model as these clients know it. `max_model_len`, `root` and `parent` are of other servers.
fn model(listed: &Listed, name: &str) -> Value {
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
