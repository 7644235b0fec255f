//! `/_volley/aliases`: names that split requests over models and versions.

use std::sync::Arc;

use axum::Json;
use http::StatusCode;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use volley_types::registry::{
    AliasEntry, AliasMirror, AliasSpec, AliasTarget, RegistryCommand, RegistryState,
};
use volley_types::{ErrorCode, ModelName, ModelRef, PredictError, Revision};

use crate::app::App;
use crate::body::{Fields, JsonObject};
use crate::error::ApiError;
use crate::extract::{Path, Query, State};

const FIELDS: [&str; 5] = ["name", "targets", "mirror", "sticky_header", "description"];

/// The state that a write is made for.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct At {
    /// The revision that was read; without it, whatever is there is replaced.
    revision: Option<u64>,
}

impl At {
    pub(crate) fn expected(&self) -> Option<Revision> {
        self.revision.map(Revision)
    }
}

pub(crate) async fn list(State(app): State<Arc<App>>) -> Json<Value> {
    let registry = app.control.registry();
    let aliases = registry.aliases.values();
    let aliases: Vec<_> = aliases.map(|entry| render(&app, entry)).collect();
    Json(json!({ "aliases": aliases }))
}

pub(crate) async fn get(
    State(app): State<Arc<App>>,
    Path(name): Path<String>,
) -> Result<Json<Value>, ApiError> {
    let name = ModelName::new(name)?;
    Ok(Json(find(&app, &name)?))
}

/// Creates an alias; there must be none of its name.
pub(crate) async fn create(
    State(app): State<Arc<App>>,
    JsonObject(body): JsonObject,
) -> Result<(StatusCode, Json<Value>), ApiError> {
    let name = ModelName::new(body.required("name")?)?;
    let alias = read(&body, name)?;
    let written = put(&app, alias, Some(Revision(0))).await?;
    Ok((StatusCode::CREATED, Json(written)))
}

/// Creates or replaces an alias.
pub(crate) async fn replace(
    State(app): State<Arc<App>>,
    Path(name): Path<String>,
    Query(at): Query<At>,
    JsonObject(body): JsonObject,
) -> Result<Json<Value>, ApiError> {
    let name = ModelName::new(name)?;
    body.same_name(name.as_str())?;
    let alias = read(&body, name)?;
    Ok(Json(put(&app, alias, at.expected()).await?))
}

pub(crate) async fn delete(
    State(app): State<Arc<App>>,
    Path(name): Path<String>,
    Query(at): Query<At>,
) -> Result<Json<Value>, ApiError> {
    let name = ModelName::new(name)?;
    let delete = RegistryCommand::DeleteAlias {
        name: name.clone(),
        expected: at.expected(),
    };
    app.control.write(delete).await?;
    Ok(Json(json!({ "_id": name.as_str(), "result": "deleted" })))
}

async fn put(
    app: &App,
    alias: AliasSpec,
    expected: Option<Revision>,
) -> Result<Value, PredictError> {
    let name = alias.name.clone();
    let write = RegistryCommand::PutAlias { alias, expected };
    app.control.write(write).await?;
    find(app, &name)
}

fn find(app: &App, name: &ModelName) -> Result<Value, PredictError> {
    let registry = app.control.registry();
    let entry = registry.aliases.get(name);
    let entry = entry.ok_or_else(|| {
        PredictError::new(ErrorCode::NotFound, format!("no alias '{name}' exists"))
    })?;
    Ok(render(app, entry))
}

fn read(body: &Map<String, Value>, name: ModelName) -> Result<AliasSpec, PredictError> {
    body.only("an alias", &FIELDS)?;
    let targets = match body.get("targets") {
        Some(Value::Array(targets)) => targets.iter().map(target).collect::<Result<_, _>>()?,
        _ => return Err(wrong_target()),
    };
    Ok(AliasSpec {
        name,
        targets,
        mirror: body.object("mirror")?.map(mirror).transpose()?,
        sticky_header: body.text("sticky_header")?.map(str::to_ascii_lowercase),
        description: body.text("description")?.unwrap_or_default().to_owned(),
    })
}

fn wrong_target() -> PredictError {
    PredictError::invalid(
        "field 'targets' must be a list of {\"model\": \"name\" or \"name:version\", \"weight\": \
         number}",
    )
}

fn target(target: &Value) -> Result<AliasTarget, PredictError> {
    let target = target.as_object().ok_or_else(wrong_target)?;
    target.only("a target", &["model", "weight"])?;
    let weight = target.count("weight")?.unwrap_or(1);
    Ok(AliasTarget {
        model: target.required("model")?.parse()?,
        weight: u32::try_from(weight).unwrap_or(u32::MAX),
    })
}

fn mirror(mirror: &Map<String, Value>) -> Result<AliasMirror, PredictError> {
    mirror.only("a mirror", &["model", "percent"])?;
    let percent = match mirror.get("percent") {
        None | Some(Value::Null) => Some(100.0),
        Some(percent) => percent.as_f64(),
    };
    let permille = percent.map(|percent| (percent * 10.0).round());
    let permille = permille.filter(|permille| (1.0..=1_000.0).contains(permille));
    let permille = permille.ok_or_else(|| {
        PredictError::invalid("field 'percent' of a mirror must be a number from 0.1 to 100")
    })?;
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "it is a whole number from 1 to 1000"
    )]
    let permille = permille as u32;
    Ok(AliasMirror {
        model: mirror.required("model")?.parse()?,
        permille,
    })
}

fn render(app: &App, entry: &AliasEntry) -> Value {
    let alias = &entry.spec;
    let targets = alias.targets.iter();
    let targets = targets
        .map(|target| json!({ "model": target.model.to_string(), "weight": target.weight }))
        .collect::<Vec<_>>();
    let mirror = alias.mirror.as_ref();
    let mirror = mirror.map(|mirror| {
        let percent = f64::from(mirror.permille) / 10.0;
        json!({ "model": mirror.model.to_string(), "percent": percent })
    });
    let status = app.control.model_status(&alias.name);
    json!({
        "name": alias.name.as_str(),
        "targets": targets,
        "mirror": mirror,
        "sticky_header": alias.sticky_header,
        "description": alias.description,
        "revision": entry.revision.0,
        "state": status.map(|status| status.state.as_str()),
    })
}

/// Aliases and pipelines as entries of lists of models: those that answer.
pub(crate) fn listed(app: &App, registry: &RegistryState) -> Vec<(ModelName, u64)> {
    let answers = |alias: &ModelName| {
        let status = app.control.model_status(alias);
        status.is_some_and(|status| status.state != volley_types::registry::ModelState::Undeployed)
    };
    let aliases = registry.aliases.values().map(|entry| {
        let created = created_ms(registry, entry.spec.names());
        (entry.spec.name.clone(), created)
    });
    let pipelines = registry.pipelines.values().map(|entry| {
        let created = created_ms(registry, entry.spec.names());
        (entry.spec.name.clone(), created)
    });
    let names = aliases.chain(pipelines);
    names.filter(|(name, _)| answers(name)).collect()
}

/// When the newest of these models was registered; 0 where there is none.
fn created_ms<'a>(registry: &RegistryState, names: impl Iterator<Item = &'a ModelRef>) -> u64 {
    let versions = names.filter_map(|model| {
        let entry = registry.models.get(&model.name)?;
        let newest = entry.versions.last_key_value();
        newest.map(|(_, version)| version.created_ms)
    });
    versions.max().unwrap_or(0)
}
